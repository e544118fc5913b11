//! Counters that a terminal can show while work goes on.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

use outrigger_clock::Instant;

/// Something that could not be read, and why; the rest was stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skipped {
    /// The item, as the user knows it.
    pub what: String,
    /// Why.
    pub why: String,
}

/// The outcome for an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// It is new.
    Added,
    /// It was there, and is changed or replaced.
    Changed,
    /// It is not there any more.
    Removed,
}

type Listen = dyn Fn(Step, &[u8]) + Send + Sync;

/// Hears of each entry.
struct Listener(Box<Listen>);

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Listener")
    }
}

/// Live counters of one operation; shared by its threads.
#[derive(Debug, Default)]
pub struct Progress {
    /// Bytes the whole operation is expected to handle; 0 while unknown.
    pub bytes_expected: AtomicU64,
    /// Bytes read from the source (or written to the target).
    pub bytes_done: AtomicU64,
    /// Files done.
    pub files_done: AtomicU64,
    /// Files that had not changed and were not read.
    pub files_unchanged: AtomicU64,
    /// Bytes of them.
    pub bytes_unchanged: AtomicU64,
    /// Chunks seen.
    pub chunks: AtomicU64,
    /// Bytes of chunks that were looked up already; reading is ahead of this.
    pub bytes_looked_up: AtomicU64,
    /// Bytes that were not stored before.
    pub bytes_new: AtomicU64,
    /// Bytes written to packs.
    pub bytes_stored: AtomicU64,
    /// Chunks that were not stored before.
    pub chunks_new: AtomicU64,
    /// Frames that were meant for a device which is not there, or is not trusted: the processor
    /// made them.
    pub frames_without_device: AtomicU64,
    /// Files and other entries on this machine that a restore replaced.
    pub replaced: AtomicU64,
    /// Those of them that had a later modification time than what replaced them.
    pub replaced_newer: AtomicU64,
    /// Files that could not be restored because stored data is damaged.
    pub damaged: AtomicU64,
    /// What was skipped.
    pub skipped: Mutex<Vec<Skipped>>,
    /// Files that are being written now: a caller that ends the process should not leave them
    /// incomplete.
    unfinished: AtomicU64,
    cancelled: AtomicBool,
    listener: OnceLock<Listener>,
}

/// A reading of [`Progress`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct ProgressView {
    /// See [`Progress`].
    pub bytes_expected: u64,
    /// See [`Progress`].
    pub bytes_done: u64,
    /// See [`Progress`].
    pub files_done: u64,
    /// See [`Progress`].
    pub files_unchanged: u64,
    /// See [`Progress`].
    pub bytes_unchanged: u64,
    /// See [`Progress`].
    pub chunks: u64,
    /// See [`Progress`].
    pub chunks_new: u64,
    /// See [`Progress`].
    pub bytes_looked_up: u64,
    /// See [`Progress`].
    pub bytes_new: u64,
    /// See [`Progress`].
    pub bytes_stored: u64,
    /// See [`Progress`].
    pub frames_without_device: u64,
}

impl Progress {
    /// Adds to a counter.
    pub fn add(counter: &AtomicU64, value: u64) {
        counter.fetch_add(value, Ordering::Relaxed);
    }

    /// From now on `listen` hears of each entry that is submitted or restored, with its path.
    pub fn on_entry(&self, listen: impl Fn(Step, &[u8]) + Send + Sync + 'static) {
        let _ = self.listener.set(Listener(Box::new(listen)));
    }

    /// Tells the listener, if there is one.
    pub fn entry(&self, step: Step, path: impl FnOnce() -> Vec<u8>) {
        if let Some(Listener(listen)) = self.listener.get() {
            listen(step, &path());
        }
    }

    /// Records something that could not be read.
    pub fn skip(&self, what: impl Into<String>, why: impl Into<String>) {
        let skipped = Skipped { what: what.into(), why: why.into() };
        self.skipped.lock().expect("no panic while held").push(skipped);
    }

    /// Says that a file is begun, which [`Progress::ended`] must follow; `false`, and nothing must
    /// follow, when no more shall be begun.
    pub fn begin(&self) -> bool {
        // Counted first: then either this thread sees the flag, or the thread that sets it sees
        // this file.
        self.unfinished.fetch_add(1, Ordering::SeqCst);
        let goes_on = !self.is_cancelled();
        if !goes_on {
            self.ended();
        }
        goes_on
    }

    /// Says that a file is whole, or gone again.
    pub fn ended(&self) {
        self.unfinished.fetch_sub(1, Ordering::SeqCst);
    }

    /// From now on no file is begun, and those that are written are finished or removed: waits for
    /// that, but no longer than `patience`.
    pub fn cancel(&self, patience: Duration) {
        self.cancelled.store(true, Ordering::SeqCst);
        let until = Instant::now() + patience;
        while self.unfinished.load(Ordering::SeqCst) > 0 && Instant::now() < until {
            outrigger_clock::sleep(Duration::from_millis(1));
        }
    }

    /// True after [`Progress::cancel`].
    pub fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::SeqCst)
    }

    /// All counters now.
    pub fn view(&self) -> ProgressView {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        ProgressView {
            bytes_expected: get(&self.bytes_expected),
            bytes_done: get(&self.bytes_done),
            files_done: get(&self.files_done),
            files_unchanged: get(&self.files_unchanged),
            bytes_unchanged: get(&self.bytes_unchanged),
            chunks: get(&self.chunks),
            chunks_new: get(&self.chunks_new),
            bytes_looked_up: get(&self.bytes_looked_up),
            bytes_new: get(&self.bytes_new),
            bytes_stored: get(&self.bytes_stored),
            frames_without_device: get(&self.frames_without_device),
        }
    }
}
