//! Progress of a job, for monitoring.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Live counters; shared by all threads of a runner.
#[derive(Debug, Default)]
pub struct Counters {
    /// Bytes of all inputs.
    pub bytes_expected: AtomicU64,
    /// Bytes given to programs.
    pub bytes_read: AtomicU64,
    /// Bytes read for them from packs on this host, if the packs' engine knows which host holds
    /// which pack: whole chunks, without reads of inputs as files.
    pub bytes_here: AtomicU64,
    /// As these, from packs elsewhere.
    pub bytes_elsewhere: AtomicU64,
    /// Records given to programs, if their kind is counted in passing: lines, other delimiters, a
    /// fixed length.
    pub records_read: AtomicU64,
    /// Bytes that programs wrote.
    pub bytes_written: AtomicU64,
    /// Splits of the job.
    pub splits: AtomicU64,
    /// Splits that are finished, by this runner or before.
    pub splits_done: AtomicU64,
    /// Splits that this runner has finished.
    pub splits_here: AtomicU64,
    /// Attempts that failed.
    pub failures: AtomicU64,
    /// A program has read all bytes so far of a file that is still being written.
    pub waits_for_writer: AtomicBool,
}

/// A reading of [`Counters`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct View {
    /// See [`Counters`].
    pub bytes_expected: u64,
    /// See [`Counters`].
    pub bytes_read: u64,
    /// See [`Counters`].
    pub bytes_here: u64,
    /// See [`Counters`].
    pub bytes_elsewhere: u64,
    /// See [`Counters`].
    pub records_read: u64,
    /// See [`Counters`].
    pub bytes_written: u64,
    /// See [`Counters`].
    pub splits: u64,
    /// See [`Counters`].
    pub splits_done: u64,
    /// See [`Counters`].
    pub splits_here: u64,
    /// See [`Counters`].
    pub failures: u64,
    /// See [`Counters`].
    pub waits_for_writer: bool,
}

impl Counters {
    pub(crate) fn add(counter: &AtomicU64, amount: u64) {
        counter.fetch_add(amount, Ordering::Relaxed);
    }

    /// Records if readers wait for the writer of a file that is still being written.
    pub(crate) fn wait_for_writer(&self, waits: bool) {
        self.waits_for_writer.store(waits, Ordering::Relaxed);
    }

    /// Their present values.
    pub fn view(&self) -> View {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        View {
            bytes_expected: read(&self.bytes_expected),
            bytes_read: read(&self.bytes_read),
            bytes_here: read(&self.bytes_here),
            bytes_elsewhere: read(&self.bytes_elsewhere),
            records_read: read(&self.records_read),
            bytes_written: read(&self.bytes_written),
            splits: read(&self.splits),
            splits_done: read(&self.splits_done),
            splits_here: read(&self.splits_here),
            failures: read(&self.failures),
            waits_for_writer: self.waits_for_writer.load(Ordering::Relaxed),
        }
    }
}
