//! Reports which files programs open to read, for rules with `--on read`.
//!
//! ```text
//!  open, to read only ──▶ a set of inodes, once a second ──▶ what of them is not stored yet is ──▶ whoever wants to know
//! ```
//!
//! No operation waits for this: opening a file costs a check of a flag while nobody listens, and
//! otherwise an entry in a set. This module's thread stores and reports the files, and then rests
//! ten times as long as that took. The set is bounded; files that do not fit in are not reported.
//!
//! Programs of jobs do not count, as far as they read a mount at all (they get their inputs
//! otherwise). Their environment identifies them.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

use outrigger_clock::Instant;
use outrigger_format::catalogue::Time;
use outrigger_store::{Context as _, Error, ErrorKind, Result};

use crate::fs::Caller;

/// How often opened files are reported, if reporting is quick …
const TELL_EVERY: Duration = Duration::from_secs(1);
/// … and how many times longer than reporting the pause is at least.
const PAUSE_FACTOR: u32 = 10;
/// Files at most that are remembered between two reports.
const FILES_MAX: usize = 64 << 10;
/// A variable in the environment of a job's programs.
const OF_A_JOB: &[u8] = b"AS_TASK_ID=";

/// A listener that wants to know which files are opened to read.
pub trait Reads: Send + Sync {
    /// Looks up if anybody listens.
    ///
    /// # Errors
    /// When that fails; then the earlier answer stays.
    fn refresh(&self) -> Result<()>;
    /// False if nobody listens. Quick.
    fn is_any(&self) -> bool;
    /// Reports opened files, with their times of last modification. May take its time.
    ///
    /// # Errors
    /// Those of the store; then the files are reported again.
    fn opened(&self, files: &HashMap<u64, Time>) -> Result<()>;
}

/// The mount's part.
pub(crate) trait Source: Send + Sync {
    /// Stores these files as they are now, unless they are stored.
    fn store(&self, files: &[u64]) -> Result<()>;
    /// Reports an error that no caller waits for.
    fn report(&self, error: &Error);
}

/// See the module.
#[derive(Default)]
pub(crate) struct Opens {
    reads: OnceLock<Arc<dyn Reads>>,
    files: Mutex<HashMap<u64, Time>>,
    stop: AtomicBool,
    rests: Mutex<()>,
    stopped: Condvar,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Opens {
    /// Reports to `reads` from now on; once.
    pub fn start(self: &Arc<Self>, reads: Arc<dyn Reads>, source: Box<dyn Source>) -> Result<()> {
        reads.refresh()?;
        if self.reads.set(reads).is_err() {
            return Err(Error::new(ErrorKind::Invalid, "this mount tells somebody already who reads"));
        }
        let opens = Arc::clone(self);
        let thread = std::thread::Builder::new().name("reads".to_string()).spawn(move || opens.run(&*source));
        let thread = thread.context(|| "cannot start the thread that tells who reads".to_string())?;
        *self.thread.lock().expect("no panic while held") = Some(thread);
        Ok(())
    }

    /// Looks up again if anybody listens.
    pub fn refresh(&self) -> Result<()> {
        self.reads.get().map_or(Ok(()), |reads| reads.refresh())
    }

    /// A file was opened to read. The closure returns its time of last modification.
    pub fn opened(&self, caller: Caller, number: u64, changed: impl FnOnce() -> Time) {
        if !self.reads.get().is_some_and(|reads| reads.is_any()) {
            return;
        }
        let changed = changed();
        let files = || self.files.lock().expect("no panic while held");
        let is_wanted = {
            let files = files();
            files.get(&number) != Some(&changed) && files.len() < FILES_MAX
        };
        // Looked up without the lock: nobody else waits for the kernel's answer about this process.
        if is_wanted && !is_of_a_job(caller) {
            files().insert(number, changed);
        }
    }

    fn run(&self, source: &dyn Source) {
        while !self.stop.load(Ordering::Relaxed) {
            let began = Instant::now();
            if let Err(error) = self.tell(source) {
                source.report(&error);
            }
            let pause = TELL_EVERY.max(began.elapsed() * PAUSE_FACTOR);
            let rests = self.rests.lock().expect("no panic while held");
            let goes_on = |_: &mut ()| !self.stop.load(Ordering::Relaxed);
            drop(self.stopped.wait_timeout_while(rests, pause, goes_on));
        }
    }

    fn tell(&self, source: &dyn Source) -> Result<()> {
        let Some(reads) = self.reads.get() else { return Ok(()) };
        reads.refresh()?;
        let files = std::mem::take(&mut *self.files.lock().expect("no panic while held"));
        if files.is_empty() || !reads.is_any() {
            return Ok(());
        }
        // Stored first, so that the listener finds the content in the store, or a later one.
        let numbers: Vec<u64> = files.keys().copied().collect();
        source.store(&numbers).and_then(|()| reads.opened(&files)).inspect_err(|_| {
            let mut again = self.files.lock().expect("no panic while held");
            for (number, changed) in files {
                again.entry(number).or_insert(changed);
            }
        })
    }

    /// Ends the thread; files that it has not reported are lost.
    pub fn stop(&self) {
        let rests = self.rests.lock().expect("no panic while held");
        self.stop.store(true, Ordering::Relaxed);
        drop(rests);
        self.stopped.notify_all();
        if let Some(thread) = self.thread.lock().expect("no panic while held").take() {
            let _ = thread.join();
        }
    }
}

/// True for the kernel on its own account and for a job's program. A process whose environment
/// cannot be read is neither.
fn is_of_a_job(caller: Caller) -> bool {
    caller.pid == 0
        || std::fs::read(format!("/proc/{}/environ", caller.pid))
            .is_ok_and(|all| all.split(|&byte| byte == 0).any(|one| one.starts_with(OF_A_JOB)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_of_jobs_are_told_from_others() {
        let caller = |pid: u32| Caller { uid: 0, gid: 0, pid };
        assert!(is_of_a_job(caller(0)) && !is_of_a_job(caller(std::process::id())));
        let mut command = std::process::Command::new("sleep");
        let mut child = command.arg("60").env("AS_TASK_ID", "x-1-0").spawn().unwrap();
        // Until it has its own environment.
        while !is_of_a_job(caller(child.id())) {
            assert!(child.try_wait().unwrap().is_none());
            outrigger_clock::sleep(Duration::from_millis(5));
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
