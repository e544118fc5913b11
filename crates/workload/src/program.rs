//! Programs that tests write and then run.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

/// Writes a program to `path`, mode 0755.
///
/// A child writes it. If this process had the file open, every child that another thread starts at
/// that moment would have it open, too. The kernel runs no program that is open for writing
/// (`ETXTBSY`).
///
/// # Panics
/// When it cannot be written.
pub fn write_program(path: &Path, bytes: &[u8]) {
    let mut shell = Command::new("/bin/sh");
    shell.args(["-c", r#"cat > "$0" && chmod 755 "$0""#]).arg(path);
    let mut child = shell.stdin(Stdio::piped()).spawn().expect("/bin/sh runs");
    child.stdin.take().expect("it is piped").write_all(bytes).expect("the shell reads it");
    assert!(child.wait().expect("it is ours").success(), "{} cannot be written", path.display());
}
