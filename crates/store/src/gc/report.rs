//! Options, progress and report of a collector's run.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::Serialize;

use super::localize::Localize;
use super::recompress::Recompress;
use crate::note::{Level, note};
use crate::parity::Upkeep;

/// How a run works.
#[derive(Clone, Debug)]
pub struct GcOptions {
    /// Change nothing; report what would go.
    pub dry_run: bool,
    /// Seconds between a pack's deletion and the removal of its object. An embedded store needs
    /// none, as readers follow their chunks to the new place. If you restore older copies of the
    /// database, set the age of the oldest copy, so that every pack it names still exists.
    pub grace_secs: u64,
    /// A pack is emptied into a new one and removed if a smaller share of it is in use, 0 to 1.
    pub live_ratio: f64,
    /// Threads that mark and verify; 0: as many as there are processors.
    pub threads: usize,
    /// Join packs below a quarter of the pack size when there are many.
    pub merge_small: bool,
    /// The catalogue is rewritten only when it is larger than this, in stored bytes, and twice as
    /// large as it would be then.
    pub catalogue_min: u64,
    /// How long to wait for sessions that do not acknowledge, seconds. A session whose process was
    /// stopped is fenced when its lease ends, within a minute, so a shorter wait may end in `Busy`.
    pub wait_secs: u64,
    /// Also encode old data anew.
    pub recompress: Option<Recompress>,
    /// Also gather data on one host.
    pub localize: Option<Localize>,
}

impl Default for GcOptions {
    fn default() -> Self {
        Self {
            dry_run: false,
            grace_secs: 0,
            live_ratio: 0.8,
            threads: 0,
            merge_small: true,
            catalogue_min: 4 << 20,
            wait_secs: 120,
            recompress: None,
            localize: None,
        }
    }
}

impl GcOptions {
    pub(super) fn threads(&self) -> usize {
        match self.threads {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            threads => threads,
        }
    }
}

/// The outcome of a run, or what a dry run would do.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct GcReport {
    /// Nothing was changed.
    pub dry_run: bool,
    /// Committed packs before the run.
    pub packs_before: u64,
    /// Committed packs after it.
    pub packs_after: u64,
    /// Packs whose object lock was set or renewed.
    pub packs_locked: u64,
    /// Their length before, bytes.
    pub bytes_before: u64,
    /// Their length after, bytes.
    pub bytes_after: u64,
    /// Part of the bytes before: frames in use.
    pub live_bytes: u64,
    /// Part of the bytes before: frames that nothing refers to.
    pub dead_bytes: u64,
    /// Roots of files and versions that were listed, repeated ones included.
    pub roots: u64,
    /// Chunks, manifest nodes and catalogue blocks in use.
    pub chunks: u64,
    /// Manifest nodes among them.
    pub nodes: u64,
    /// Rows of the history that no snapshot could see any more.
    pub history_rows: u64,
    /// Sessions without a process that were ended.
    pub sessions_fenced: u64,
    /// Uncommitted packs of sessions that are over.
    pub packs_swept: u64,
    /// Inline chunks that ended sessions had left in the database, and that were packed.
    pub chunks_packed: u64,
    /// Packs that were to be emptied.
    pub packs_marked: u64,
    /// Candidates that were unmarked because a session came to rely on them.
    pub packs_reprieved: u64,
    /// Packs emptied and deleted.
    pub packs_buried: u64,
    /// Objects removed, including those of swept packs and of earlier runs.
    pub packs_unlinked: u64,
    /// Bytes of these objects.
    pub bytes_freed: u64,
    /// Objects removed that no row knew.
    pub strays: u64,
    /// Deleted packs whose grace period is not over.
    pub packs_waiting: u64,
    /// Chunks copied.
    pub chunks_copied: u64,
    /// Bytes of the packs written.
    pub bytes_copied: u64,
    /// Packs with frames that are not stored as policies ask, as far as this run looked; 0 if it
    /// did not recompress.
    pub packs_outdated: u64,
    /// Packs on other hosts with data that is to be gathered, as far as this run looked; 0 if it
    /// did not gather.
    pub packs_elsewhere: u64,
    /// Raw bytes of that data there.
    pub bytes_elsewhere: u64,
    /// Frames that were encoded anew, joined ones not counted.
    pub frames_recoded: u64,
    /// Their raw bytes.
    pub recoded_raw: u64,
    /// Their stored bytes before.
    pub recoded_before: u64,
    /// Their stored bytes now.
    pub recoded_after: u64,
    /// Stored bytes of the catalogue before the run.
    pub catalogue_bytes: u64,
    /// The catalogue was rewritten.
    pub catalogue_compacted: bool,
    /// The catalogue was not rewritten, as the database is not what it says.
    pub catalogue_differs: bool,
    /// Packs that could not be read and were left alone, and why.
    pub unreadable: Vec<String>,
    /// Packs that were to be emptied, but for whose copies the disk has no space.
    pub packs_without_room: u64,
    /// The work for parity.
    pub parity: Upkeep,
    /// Memory of the marks, bytes.
    pub mark_memory: u64,
    /// Time spent marking, milliseconds.
    pub mark_ms: u64,
    /// Time spent waiting for sessions, milliseconds.
    pub waited_ms: u64,
    /// Time spent copying, milliseconds.
    pub copy_ms: u64,
}

/// The present activity of a run, for a display.
#[derive(Debug, Default)]
pub struct GcProgress {
    phase: Mutex<String>,
    done: AtomicU64,
    total: AtomicU64,
}

impl GcProgress {
    /// The present phase, how much of it is done, and how much there is (0: not known), in that
    /// phase's unit.
    pub fn view(&self) -> (String, u64, u64) {
        let phase = self.phase.lock().expect("no panic while held").clone();
        (phase, self.done.load(Ordering::Relaxed), self.total.load(Ordering::Relaxed))
    }

    pub(super) fn enter(&self, phase: impl Into<String>, total: u64) {
        let phase = phase.into();
        note(Level::Info, "step", || (phase.clone(), vec![("total", total.to_string())]));
        *self.phase.lock().expect("no panic while held") = phase;
        self.done.store(0, Ordering::Relaxed);
        self.total.store(total, Ordering::Relaxed);
    }

    pub(super) fn advance(&self, by: u64) {
        self.done.fetch_add(by, Ordering::Relaxed);
    }
}
