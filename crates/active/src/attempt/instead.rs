//! Attempts at which a [function](crate::instead) is called in the place of a program.

use std::fs::File;
use std::io::Read as _;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt as _;
use std::process::{ChildStdin, ChildStdout};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use outrigger_store::meta::jobs::{Claimed, JobId};
use outrigger_store::{Context as _, Result};
use rustix::fs::{MemfdFlags, memfd_create};

use super::paced::PacedInput;
use super::{Attempt, Ended, Feed, Pipes, Watch};
use crate::cgroup::Usage;
use crate::instead::{Call, Function};
use crate::progress::Counters;

/// A call that was begun, and its outcome once it has ended.
#[derive(Default)]
pub(super) struct Called {
    ended: Mutex<Option<std::result::Result<(), String>>>,
    changed: Condvar,
}

impl Called {
    /// Waits for its end; false after `most`.
    pub fn has_ended(&self, most: Option<Duration>) -> bool {
        let ended = self.ended.lock().expect("no panic while held");
        let runs = |ended: &mut Option<_>| ended.is_none();
        match most {
            None => self.changed.wait_while(ended, runs).expect("no panic while held").is_some(),
            Some(most) => self.changed.wait_timeout_while(ended, most, runs).expect("no panic").0.is_some(),
        }
    }

    pub fn end(&self, killed: Option<String>) -> Ended {
        let was_killed = killed.is_some();
        let result = killed.map_or_else(
            || {
                self.has_ended(None);
                self.ended.lock().expect("no panic while held").take().expect("it has ended")
            },
            Err,
        );
        Ended { result, was_killed, log: Vec::new(), usage: Usage::default() }
    }
}

/// Calls the function in a thread, with `feed` as its input. Its result is a file's content, which
/// exists once the call has ended.
pub(crate) fn call(
    function: Function,
    (job, program, claimed): (JobId, Vec<String>, Claimed),
    feed: Feed,
    watch: &Arc<Watch>,
    counters: &Arc<Counters>,
) -> Result<(Attempt, ChildStdout)> {
    let file = |name| memfd_create(name, MemfdFlags::CLOEXEC).map(File::from);
    let at = || "memory for what a function reads and writes".to_string();
    let (mut input, output) = (file("input").context(at)?, file("output").context(at)?);
    let (stdin, stdout) = (input.try_clone().context(at)?, output.try_clone().context(at)?);
    let (live, called) = (watch.add_function(), Arc::<Called>::default());
    let (own, end, counters) = (Arc::clone(&live), Arc::clone(&called), Arc::clone(counters));
    std::thread::spawn(move || {
        let mut pipes = Pipes::one(PacedInput::new(ChildStdin::from(OwnedFd::from(stdin))));
        let fed = feed.into(&mut pipes, &counters);
        drop(pipes);
        let ran = fed.and_then(|()| {
            let mut bytes = Vec::new();
            let text = |error: std::io::Error| error.to_string();
            std::io::Seek::rewind(&mut input).and_then(|()| input.read_to_end(&mut bytes)).map_err(text)?;
            let is_killed = || own.is_killed();
            let written =
                function(&Call { job, program: &program, claimed, input: bytes, is_killed: &is_killed })?;
            output.write_all_at(&written, 0).map_err(text)
        });
        *end.ended.lock().expect("no panic while held") = Some(ran);
        end.changed.notify_all();
    });
    let attempt = Attempt {
        child: None,
        feeder: None,
        log: None,
        forward: None,
        live,
        watch: Arc::clone(watch),
        group: None,
        called: Some(called),
    };
    Ok((attempt, ChildStdout::from(OwnedFd::from(stdout))))
}
