//! A file system that does not answer: whoever is killed does not wait for it, and neither does
//! anybody else.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;

use outrigger_fuse::kernel::{Transport, mount_by};
use outrigger_fuse::mounts;
use outrigger_workload::eventually;
use tempfile::TempDir;

use crate::recorder::{Recorder, options};

struct Mounted {
    recorder: Arc<Recorder>,
    point: PathBuf,
    serving: Option<JoinHandle<std::io::Result<()>>>,
    _dir: TempDir,
}

impl Mounted {
    fn new() -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let point = dir.path().canonicalize().unwrap();
        let recorder = Arc::new(Recorder::default());
        let mounted = match mount_by(Transport::Device, Arc::clone(&recorder), &point, &options(2)) {
            Ok(mounted) => mounted,
            Err(error) => {
                outrigger_workload::skipped!("cannot mount: {error}");
                return None;
            }
        };
        let (ready, wait) = mpsc::channel();
        let serving = std::thread::spawn(move || mounted.serve(move || ready.send(()).unwrap()));
        wait.recv().unwrap();
        Some(Self { recorder, point, serving: Some(serving), _dir: dir })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.point.join(name)
    }

    /// Runs a program that is to wait until `calls` of these have been made in all.
    fn waiting(&self, program: &[&str], path: &Path, calls: &str, so_far: &mut Vec<String>) -> Child {
        let before = count(so_far, calls);
        let mut command = Command::new(program[0]);
        command.args(&program[1..]).arg(path).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().unwrap();
        eventually("the call is made", || {
            so_far.extend(self.recorder.take());
            count(so_far, calls) > before
        });
        child
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        self.recorder.block(None);
        let _ = mounts::unmount(&self.point, true);
        let _ = self.serving.take().map(JoinHandle::join);
    }
}

fn count(calls: &[String], begin: &str) -> usize {
    calls.iter().filter(|call| call.starts_with(begin)).count()
}

fn signal(child: &Child, name: &str) {
    assert!(Command::new("kill").args(["-s", name, &child.id().to_string()]).status().unwrap().success());
}

fn ends(child: &mut Child) -> Option<i32> {
    let mut status = None;
    eventually("the program ends, though nothing is answered", || {
        status = child.try_wait().unwrap();
        status.is_some()
    });
    status.unwrap().code()
}

#[test]
fn whoever_is_killed_does_not_wait_for_an_answer_and_keeps_nothing_open() {
    let Some(mount) = Mounted::new() else { return };
    let mut calls = Vec::new();
    for (blocked, program) in [
        ("open ", vec!["cat"]),
        ("create ", vec!["touch"]),
        ("lookup ", vec!["stat"]),
        ("flush ", vec!["sh", "-c", "exec 3<\"$0\"; exec 3<&-; exit 7"]),
    ] {
        let name = if blocked == "create " { "new" } else { "a-file" };
        mount.recorder.block(Some(blocked));
        let mut child = mount.waiting(&program, &mount.path(name), blocked, &mut calls);
        signal(&child, "KILL");
        assert_eq!(ends(&mut child), None, "{blocked}: it was killed");
        mount.recorder.block(None);
        // Others are answered, by the same threads.
        std::fs::metadata(mount.path("a-dir")).unwrap();
    }
    eventually("what was opened for the killed ones is closed", || {
        calls.extend(mount.recorder.take());
        count(&calls, "open ") + count(&calls, "create ") == count(&calls, "release ")
    });
}

#[test]
fn other_signals_end_a_request_only_when_it_has_lasted() {
    let Some(mount) = Mounted::new() else { return };
    let mut calls = Vec::new();
    let script =
        "import signal, sys\nsignal.signal(signal.SIGUSR1, lambda *_: sys.exit(7))\nopen(sys.argv[1])";
    mount.recorder.block(Some("open "));
    let program = ["python3", "-c", script];
    let mut child = mount.waiting(&program, &mount.path("a-file"), "open ", &mut calls);
    signal(&child, "USR1");
    assert_eq!(ends(&mut child), Some(7), "its handler has run");
    mount.recorder.block(None);
    // One that is answered soon is not disturbed by a signal: the program would get an error that
    // files do not have.
    mount.recorder.block(Some("lookup "));
    let script = "import os, signal, sys, threading\nsignal.signal(signal.SIGUSR1, lambda *_: None)\nos.stat(sys.argv[1])";
    let mut child = mount.waiting(&["python3", "-c", script], &mount.path("a-file"), "lookup ", &mut calls);
    signal(&child, "USR1");
    mount.recorder.block(None);
    assert_eq!(ends(&mut child), Some(0));
}

#[test]
fn requests_that_wait_keep_no_others_from_being_answered() {
    let Some(mount) = Mounted::new() else { return };
    let mut calls = Vec::new();
    mount.recorder.block(Some("open "));
    let start = |calls: &mut Vec<String>| mount.waiting(&["cat"], &mount.path("a-file"), "open ", calls);
    // More than there are threads.
    let mut waiting: Vec<Child> = (0..4).map(|_| start(&mut calls)).collect();
    let mut other = Command::new("stat").arg(mount.path("a-dir")).stdout(Stdio::null()).spawn().unwrap();
    assert_eq!(ends(&mut other), Some(0));
    mount.recorder.block(None);
    for child in &mut waiting {
        ends(child);
    }
}
