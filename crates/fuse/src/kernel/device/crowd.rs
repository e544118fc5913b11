//! The threads that serve the device, each one's request, and callers that no longer wait.
//!
//! A request may wait for a server that does not answer. Two things must not wait with it.
//!
//! - **Its caller, if that is being killed**, or gets a signal after having waited for [`PATIENT`].
//!   The kernel reports signals by `INTERRUPT`. The request is then answered with `EINTR`. Its
//!   thread goes on, but its answer goes nowhere, and any reference to an inode or an open file in
//!   that answer is taken back ([`take_back`]). Other signals are no reason: programs do not expect
//!   `EINTR` from files, and some send themselves signals all the time.
//! - **Other requests.** While all threads have been at work on one request each for a second, one more thread is started at a time, up to [`MORE`].

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::thread::Scope;
use std::time::Duration;

use outrigger_clock::Instant;
use rustix::io::Errno;

use super::Device;
use super::serve::serve;
use crate::fs::{FileSystem, Result};
use crate::kernel::wire::Request;
use crate::kernel::wire::decode::Fields;
use crate::kernel::wire::encode::ENTRY_BYTES;
use crate::kernel::wire::opcode::{
    CREATE, LINK, LOOKUP, MKDIR, MKNOD, OPEN, OPENDIR, READDIRPLUS, RELEASE, RELEASEDIR, SYMLINK, TMPFILE,
};

/// How long a request lasts before a signal that does not kill its caller ends it.
const PATIENT: Duration = Duration::from_secs(2);
/// How often interrupted requests, and whether all threads are at work, are looked at.
const TICK: Duration = Duration::from_millis(250);
/// All threads have been at work for so long: one more is started.
const BUSY: Duration = Duration::from_secs(1);
/// Threads started beside those that a mount begins with, at most.
const MORE: usize = 64;
/// Interruptions of requests that no thread has yet, or that may end by themselves, at most.
const ASKED_MAX: usize = 1024;

/// A thread at work on nothing.
const IDLE: u64 = 0;
/// A thread at work on a request that was answered for it.
const GIVEN_UP: u64 = u64::MAX;

#[derive(Default)]
struct Slot {
    /// Number of the request, or one of the above.
    unique: AtomicU64,
    /// The calling thread.
    caller: AtomicU32,
    /// When it began, milliseconds.
    began: AtomicU64,
    device: OnceLock<Arc<Device>>,
}

/// See the module.
pub(in crate::kernel) struct Crowd {
    started: Instant,
    slots: Vec<Slot>,
    asked: Mutex<Asked>,
    changed: Condvar,
}

#[derive(Default)]
struct Asked {
    /// Requests that were interrupted, and when.
    interrupted: Vec<(u64, Instant)>,
    has_ended: bool,
}

impl Crowd {
    /// For so many threads to begin with.
    pub fn new(threads: usize) -> Self {
        let slots = std::iter::repeat_with(Slot::default).take(threads + MORE).collect();
        Self { started: Instant::now(), slots, asked: Mutex::default(), changed: Condvar::new() }
    }

    /// A thread serves this device from now on.
    pub(super) fn join(&self, at: usize, device: &Arc<Device>) {
        let _ = self.slots[at].device.set(Arc::clone(device));
    }

    /// A thread begins a request. [`Crowd::end`] must follow.
    pub(super) fn begin(&self, at: usize, request: &Request<'_>) {
        let slot = &self.slots[at];
        slot.caller.store(request.caller.pid, Ordering::Relaxed);
        slot.began.store(self.started.elapsed().as_millis() as u64, Ordering::Relaxed);
        let may_be_given_up = !matches!(request.opcode, READDIRPLUS | RELEASE | RELEASEDIR);
        // The same number with the highest bit set is no request's: it is found busy, and not
        // interrupted.
        let unique = if may_be_given_up { request.unique } else { request.unique | 1 << 63 };
        slot.unique.store(unique, Ordering::Release);
    }

    /// A thread has done what it was at work on. False if that was answered for it.
    pub(super) fn end(&self, at: usize) -> bool {
        self.slots[at].unique.swap(IDLE, Ordering::AcqRel) != GIVEN_UP
    }

    /// The caller of a request has a signal.
    pub(super) fn interrupt(&self, unique: u64) {
        if self.try_to_give_up(unique) {
            return;
        }
        let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        if asked.interrupted.len() < ASKED_MAX {
            asked.interrupted.push((unique, Instant::now()));
        }
        self.changed.notify_all();
    }

    /// Answers a request for its thread if its caller should not wait any longer; says whether that
    /// is done.
    fn try_to_give_up(&self, unique: u64) -> bool {
        let Some(slot) = self.slots.iter().find(|slot| slot.unique.load(Ordering::Acquire) == unique) else {
            return false;
        };
        let caller = slot.caller.load(Ordering::Relaxed);
        if self.lasted(slot) < PATIENT && !is_being_killed(caller) {
            return false;
        }
        let given_up = slot.unique.compare_exchange(unique, GIVEN_UP, Ordering::AcqRel, Ordering::Relaxed);
        if let (Ok(_), Some(device)) = (given_up, slot.device.get()) {
            device.answer(unique, Err(Errno::INTR));
        }
        true
    }

    /// Looks after requests and threads until [`Crowd::ended`].
    pub fn watch<'scope, F: FileSystem>(
        &'scope self,
        fs: &'scope F,
        device: &'scope Arc<Device>,
        scope: &'scope Scope<'scope, '_>,
        threads: usize,
    ) {
        let mut threads = threads;
        let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        while !asked.has_ended {
            let wait = if asked.interrupted.is_empty() { BUSY } else { TICK };
            asked = self.changed.wait_timeout(asked, wait).unwrap_or_else(PoisonError::into_inner).0;
            // One that no thread has is in a queue still, or is done.
            asked
                .interrupted
                .retain(|(unique, at)| !self.try_to_give_up(*unique) && at.elapsed() < 2 * PATIENT);
            if threads < self.slots.len()
                && self.all_are_busy(threads)
                && let Ok(another) = device.another()
            {
                let (at, another) = (threads, Arc::new(another));
                let name = format!("mount-more-{at}");
                let run = move || drop(serve(fs, &another, self, at));
                if std::thread::Builder::new().name(name).spawn_scoped(scope, run).is_ok() {
                    threads += 1;
                }
            }
        }
    }

    fn all_are_busy(&self, threads: usize) -> bool {
        let is_busy = |slot: &Slot| slot.unique.load(Ordering::Acquire) != IDLE && self.lasted(slot) >= BUSY;
        self.slots[..threads].iter().all(is_busy)
    }

    /// How long a thread has been at work on its request.
    fn lasted(&self, slot: &Slot) -> Duration {
        self.started.elapsed().saturating_sub(Duration::from_millis(slot.began.load(Ordering::Relaxed)))
    }

    /// The mount is gone.
    pub fn ended(&self) {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner).has_ended = true;
        self.changed.notify_all();
    }
}

/// True when a thread has a signal that kills it: the kernel makes each of those a `SIGKILL` of the
/// thread.
fn is_being_killed(thread: u32) -> bool {
    const SIGKILL: u64 = 1 << 8;
    let Ok(status) = std::fs::read_to_string(format!("/proc/{thread}/status")) else { return false };
    status.lines().any(|line| {
        let set = line.strip_prefix("SigPnd:").or_else(|| line.strip_prefix("ShdPnd:"));
        set.and_then(|set| u64::from_str_radix(set.trim(), 16).ok()).is_some_and(|set| set & SIGKILL != 0)
    })
}

/// Takes back what an answer that was not given would have given the kernel.
pub(super) fn take_back<F: FileSystem>(fs: &F, request: &Request<'_>, answer: &[u8]) -> Result<()> {
    let mut fields = Fields(answer);
    match request.opcode {
        LOOKUP | SYMLINK | MKNOD | MKDIR | LINK => match fields.u64()? {
            0 => {}
            number => fs.forget(number, 1),
        },
        OPEN => fs.release(request.number, fields.u64()?),
        OPENDIR => fs.release_dir(request.number, fields.u64()?),
        CREATE | TMPFILE => {
            let number = fields.u64()?;
            let mut opened = Fields(answer.get(ENTRY_BYTES..).unwrap_or_default());
            fs.release(number, opened.u64()?);
            fs.forget(number, 1);
        }
        _ => {}
    }
    Ok(())
}
