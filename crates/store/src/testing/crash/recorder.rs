//! Runs a command under strace and makes a [`Trace`] of its changes to a directory.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::calls::{Calls, TRACED};
use super::model::Trace;
use super::recording::Recording;
use crate::error::{Context, Error, ErrorKind, Result};

/// The longest buffer shown in full: larger than any write of ours.
const STRING_MAX: usize = 32 << 20;

/// Why nothing can be recorded on this machine, to be printed by a test that is skipped; `None`
/// when it can.
pub fn unavailable() -> Option<String> {
    let tried = Command::new("strace").args(["-f", "-o", "/dev/null", "true"]).stdin(Stdio::null()).output();
    match tried {
        Ok(output) if output.status.success() => None,
        Ok(output) => {
            Some(format!("strace does not work: {}", String::from_utf8_lossy(&output.stderr).trim()))
        }
        Err(error) => Some(format!("strace cannot be run ({error}); Debian has it in the package `strace`")),
    }
}

/// Runs `command`, waits for it and all its children that write to its standard output, and records
/// their changes to the directory `watch`, which must exist.
///
/// Program, arguments, changed environment variables and current directory are taken from
/// `command`. Its standard input is empty; its standard output and error are recorded. It should
/// name `watch` without symbolic links in the path. A command that fails is no error: see
/// [`Trace::status`].
///
/// # Errors
/// `Invalid` when the command did something to `watch` that cannot be recorded, named in the error;
/// `NotFound` or `Io` when strace or the command cannot be run.
pub fn record(command: &Command, watch: &Path) -> Result<Trace> {
    let watch = watch.canonicalize().context(|| format!("cannot find {}", watch.display()))?;
    let directory = match command.get_current_dir() {
        Some(directory) => directory.to_owned(),
        None => std::env::current_dir().context(|| "there is no current directory".into())?,
    };
    let directory = directory.canonicalize().context(|| format!("cannot find {}", directory.display()))?;
    let scratch = tempfile::tempdir().context(|| "cannot make a temporary directory".into())?;
    let log = scratch.path().join("strace");
    let (mut stdout, child_stdout) = std::io::pipe().context(|| "cannot make a pipe".into())?;
    let pipe = rustix::fs::fstat(&child_stdout).context(|| "cannot look at a pipe".into())?.st_ino;

    let mut strace = Command::new("strace");
    strace.args(["-f", "-y", "-xx", "-q", "--seccomp-bpf", "-e", "signal=none"]);
    strace.arg("-s").arg(STRING_MAX.to_string());
    strace.arg("-e").arg(format!("trace={TRACED}"));
    strace.arg("-o").arg(&log).arg("--").arg(command.get_program()).args(command.get_args());
    strace.current_dir(&directory).stdin(Stdio::null()).stdout(child_stdout).stderr(Stdio::piped());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => strace.env(name, value),
            None => strace.env_remove(name),
        };
    }

    let recording = Recording::begin(&watch)?;
    let child = strace.spawn().context(|| "cannot run strace".into())?;
    drop(strace); // and with it our copy of the pipe's writing end
    let printed = std::thread::spawn(move || stdout.read_to_end(&mut Vec::new()));
    let output = child.wait_with_output().context(|| "cannot wait for strace".into())?;
    let _ = printed.join();

    let mut calls = Calls::new(watch.clone(), directory, PathBuf::from(format!("pipe:[{pipe}]")), recording);
    let file = File::open(&log).context(|| {
        let program = Path::new(command.get_program()).display();
        format!("strace recorded nothing of {program}: {}", String::from_utf8_lossy(&output.stderr).trim())
    })?;
    let mut lines = BufReader::with_capacity(1 << 20, file);
    let mut line = String::new();
    while lines.read_line(&mut line).context(|| "cannot read strace's output".into())? > 0 {
        calls.line(line.trim_end())?;
        line.clear();
    }
    if output.status.code() == Some(1) && calls.recording.steps() == 0 && says_strace(&output.stderr) {
        let text = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        return Err(Error::new(ErrorKind::Io, text));
    }
    calls.recording.compare(&watch)?;
    let mut trace = calls.recording.finish();
    trace.status = Some(output.status);
    trace.stderr = output.stderr;
    Ok(trace)
}

/// True if strace itself complained, and not the command.
fn says_strace(stderr: &[u8]) -> bool {
    OsStr::new("strace: ").as_encoded_bytes() == stderr.get(..8).unwrap_or_default()
}
