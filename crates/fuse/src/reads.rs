//! Which files programs open to read them, for those who want to know (rules with `--on read`).
//!
//! ```text
//!  open, to read only ──▶ a set of inodes, once a second ──▶ what of them is not stored yet is ──▶ whoever wants to know
//! ```
//!
//! Nothing waits for this: opening a file costs a look at a flag as long as nobody wants to know, and an entry in a set then. What is looked at and noted is this
//! module's thread's, which rests ten times as long as that took. The set is bounded; what does not fit in is not told.
//!
//! Programs of jobs do not count, as far as they read a mount at all (they are given their inputs otherwise): it is told by their environment.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

use outrigger_clock::Instant;
use outrigger_format::catalogue::Time;
use outrigger_store::{Context as _, Error, ErrorKind, Result};

use crate::fs::Caller;

/// How often is told what was opened, if telling is quick …
const TELL_EVERY: Duration = Duration::from_secs(1);
/// … and how many times longer than telling the pause is at least.
const PAUSE_FACTOR: u32 = 10;
/// Files that are remembered between two times at most.
const FILES_MAX: usize = 64 << 10;
/// What the environment of a job's programs has.
const OF_A_JOB: &[u8] = b"AS_TASK_ID=";

/// Who wants to know which files are opened to be read.
pub trait Reads: Send + Sync {
    /// Looks whether anybody does.
    ///
    /// # Errors
    /// When that cannot be found out; then what was wanted before is.
    fn refresh(&self) -> Result<()>;
    /// False when nobody does. Quick.
    fn is_any(&self) -> bool;
    /// These were opened, which were changed last at these times. May take its time.
    ///
    /// # Errors
    /// Those of the store; they are told again then.
    fn opened(&self, files: &HashMap<u64, Time>) -> Result<()>;
}

/// What a mount has to do with it.
pub(crate) trait Source: Send + Sync {
    /// Has these files stored as they are now, as far as they are not.
    fn store(&self, files: &[u64]) -> Result<()>;
    /// Says what went wrong where nobody waits.
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
    /// Tells `reads` from now on; once.
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

    /// Looks again who wants to know.
    pub fn refresh(&self) -> Result<()> {
        self.reads.get().map_or(Ok(()), |reads| reads.refresh())
    }

    /// A file was opened to be read; it was changed last at the time that is asked for.
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
        // Whoever is told finds in the store what was read, or what it became.
        let numbers: Vec<u64> = files.keys().copied().collect();
        source.store(&numbers).and_then(|()| reads.opened(&files)).inspect_err(|_| {
            let mut again = self.files.lock().expect("no panic while held");
            for (number, changed) in files {
                again.entry(number).or_insert(changed);
            }
        })
    }

    /// Ends the thread; what it has not told is lost.
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

/// The kernel on its own account, or a program that a job runs. One whose environment cannot be read is neither.
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
