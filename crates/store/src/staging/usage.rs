//! Counts how much of each segment is still needed.
//!
//! Appending adds to a segment's usage, and the caller that got the [`Appended`] must release it. A
//! write counts by its bytes, because parts of it are overwritten one by one. Another operation on
//! a file's content counts as one *pin*. For name-space operations only the last sequence matters,
//! since the database takes them in order.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};

use outrigger_format::staging::Operation;

use super::log::{Appended, Location};

/// Of one segment.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
struct Needed {
    /// Bytes of writes that are neither overwritten nor flushed.
    bytes: u64,
    /// Truncations, zeroed ranges and clones, likewise.
    pins: u64,
    /// Bytes of writes that were overwritten or removed before they were stored.
    superseded: u64,
    /// The last name-space operation.
    name_space: u64,
}

/// Shared by a log and the maps of all its files.
#[derive(Default, Debug)]
pub struct Usage {
    counts: Mutex<Counts>,
}

#[derive(Default, Debug)]
struct Counts {
    segments: BTreeMap<u32, Needed>,
    /// Of all segments.
    superseded: u64,
}

impl Usage {
    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().expect("no panic while it is held")
    }

    fn with(&self, segment: u32, change: impl FnOnce(&mut Needed)) {
        change(self.counts().segments.entry(segment).or_default());
    }

    /// An operation was appended.
    pub(super) fn appended(&self, operation: &Operation, appended: &Appended) {
        let Location { segment, len, .. } = appended.location;
        match operation {
            Operation::Write { .. } => self.with(segment, |needed| needed.bytes += u64::from(len)),
            Operation::Truncate { .. } | Operation::Zero { .. } | Operation::Clone { .. } => {
                self.pin(segment)
            }
            // By the same rule, a forgotten inode is a change of names.
            operation if operation.is_name_space() => {
                self.with(segment, |needed| needed.name_space = appended.sequence);
            }
            _ => {}
        }
    }

    /// Gives up an operation on a file's content that no map has taken: a file that is gone
    /// already. Other operations need no release.
    pub fn release(&self, operation: &Operation, appended: &Appended) {
        let Location { segment, len, .. } = appended.location;
        match operation {
            Operation::Write { .. } => self.supersede_bytes(segment, u64::from(len)),
            Operation::Truncate { .. } | Operation::Zero { .. } | Operation::Clone { .. } => {
                self.unpin(segment)
            }
            _ => {}
        }
    }

    pub(super) fn release_bytes(&self, segment: u32, bytes: u64) {
        self.with(segment, |needed| {
            needed.bytes = needed.bytes.checked_sub(bytes).expect("bytes are released once");
        });
    }

    /// As [`Usage::release_bytes`], of bytes that were overwritten or removed before they were
    /// stored.
    pub(super) fn supersede_bytes(&self, segment: u32, bytes: u64) {
        self.release_bytes(segment, bytes);
        let mut counts = self.counts();
        counts.superseded += bytes;
        counts.segments.entry(segment).or_default().superseded += bytes;
    }

    pub(super) fn pin(&self, segment: u32) {
        self.with(segment, |needed| needed.pins += 1);
    }

    pub(super) fn unpin(&self, segment: u32) {
        self.with(segment, |needed| {
            needed.pins = needed.pins.checked_sub(1).expect("a pin is released once")
        });
    }

    /// Bytes of data that are needed, of all segments.
    pub fn bytes(&self) -> u64 {
        self.counts().segments.values().map(|needed| needed.bytes).sum()
    }

    /// True when nothing in `segment` is needed, name-space operations up to `committed` being in
    /// the database.
    pub fn is_dead(&self, segment: u32, committed: u64) -> bool {
        let needed = self.counts().segments.get(&segment).copied().unwrap_or_default();
        needed.bytes == 0 && needed.pins == 0 && needed.name_space <= committed
    }

    /// Bytes of writes in `segment` that are neither overwritten nor flushed.
    pub fn live_bytes(&self, segment: u32) -> u64 {
        self.counts().segments.get(&segment).map_or(0, |needed| needed.bytes)
    }

    /// Bytes of writes in all segments that are neither overwritten nor flushed.
    pub fn staged_bytes(&self) -> u64 {
        self.counts().segments.values().map(|needed| needed.bytes).sum()
    }

    /// Bytes of writes in all segments that were overwritten or removed before they were stored.
    pub fn superseded_bytes(&self) -> u64 {
        self.counts().superseded
    }

    /// The segment was removed.
    pub(super) fn removed(&self, segment: u32) {
        let mut counts = self.counts();
        let gone = counts.segments.remove(&segment).unwrap_or_default();
        counts.superseded -= gone.superseded;
    }
}
