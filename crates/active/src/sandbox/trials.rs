//! Trials: tests if the sandbox's means work on this machine, as they may be forbidden.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::Duration;

use outrigger_clock::Instant;

use super::{Kept, becoming, net};
use crate::identity::Submitter;

/// How long a success counts: a trial takes as long as starting a program.
const WORKS_FOR: Duration = Duration::from_secs(60);

/// Runs a trial, unless it has succeeded just now. A failed trial is repeated: somebody may have
/// installed or allowed it meanwhile.
fn tried(
    what: String,
    try_it: impl FnOnce() -> std::result::Result<(), String>,
) -> std::result::Result<(), String> {
    static WORKED: Mutex<BTreeMap<String, Instant>> = Mutex::new(BTreeMap::new());
    let worked = || WORKED.lock().expect("no panic while held");
    if worked().get(&what).is_some_and(|at| at.elapsed() < WORKS_FOR) {
        return Ok(());
    }
    try_it()?;
    worked().insert(what, Instant::now());
    Ok(())
}

/// True if this `setpriv` can change users: other programs of that name cannot.
pub(super) fn can_become(setpriv: &Path, who: &Submitter) -> bool {
    let try_it = || {
        let [program, words @ ..] = becoming(setpriv, who);
        let mut command = Command::new(program);
        command.args(words).arg("/bin/true").stdout(Stdio::null()).stderr(Stdio::null());
        let status = Kept::default().spawn(&mut command).and_then(|mut child| child.wait());
        let can = status.is_ok_and(|status| status.success());
        if can { Ok(()) } else { Err(String::new()) }
    };
    tried(format!("{} {who:?}", setpriv.display()), try_it).is_ok()
}

/// Tests if bwrap works here, started by the words `before`, which have a name: name spaces may be
/// forbidden. Root tests as nobody, if it can become that.
pub(super) fn try_out(
    bwrap: &Path,
    setpriv: Option<&Path>,
    before: Option<(&str, net::Before)>,
) -> std::result::Result<(), String> {
    let called = before.as_ref().map_or("", |(called, _)| *called);
    let what = format!("{} {setpriv:?} {called}", bwrap.display());
    tried(what, || try_out_now(bwrap, setpriv, before.map(|(_, before)| before)))
}

fn try_out_now(
    bwrap: &Path,
    setpriv: Option<&Path>,
    before: Option<net::Before>,
) -> std::result::Result<(), String> {
    let shares = before.is_some().then_some("--share-net");
    let mut words: Vec<OsString> =
        setpriv.map(|setpriv| becoming(setpriv, &Submitter::nobody()).into()).unwrap_or_default();
    let mut kept = Kept::default();
    if let Some((before, opened)) = before {
        words.extend(before);
        kept.add(opened);
    }
    words.push(bwrap.into());
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).args([
        "--unshare-all",
        "--unshare-user",
        "--disable-userns",
        "--die-with-parent",
        "--ro-bind",
        "/usr",
        "/usr",
    ]);
    for name in ["bin", "lib", "lib64"] {
        if let Ok(target) = std::fs::read_link(Path::new("/").join(name)) {
            command.arg("--symlink").arg(target).arg(Path::new("/").join(name));
        }
    }
    command.args(shares).args(["--proc", "/proc", "--dev", "/dev", "--", "/usr/bin/true"]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    match kept.spawn(&mut command).and_then(Child::wait_with_output) {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(format!("bwrap says {}", String::from_utf8_lossy(&output.stderr).trim())),
        Err(error) => Err(format!("bwrap cannot be run: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_worked_is_not_tried_again_and_what_has_not_is() {
        let mut tries = 0;
        let mut attempt = |works: bool| {
            tried("a means of this test".to_string(), || {
                tries += 1;
                if works { Ok(()) } else { Err("forbidden".to_string()) }
            })
        };
        let results = [attempt(false), attempt(false), attempt(true), attempt(true), attempt(false)];
        assert_eq!(results.map(|result| result.is_ok()), [false, false, true, true, true]);
        assert_eq!(tries, 3);
    }
}
