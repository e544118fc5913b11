//! A transaction's change of the totals, and the epochs that are still visible.

use outrigger_format::catalogue::FileKind;

use super::row::kind_of;
use crate::error::ErrorKind;
use crate::meta::fault::{Outcome, refuse};

/// A transaction's change of the totals.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(in crate::meta) struct TotalsDelta {
    pub files: i64,
    pub directories: i64,
    pub others: i64,
    pub bytes: i64,
}

impl TotalsDelta {
    /// `by` (1 or −1) inodes with this mode column and length.
    pub fn count(&mut self, by: i64, mode: i64, length: u64) -> Outcome<()> {
        match kind_of(mode).map_err(|error| refuse(ErrorKind::Damaged, error.to_string()))? {
            FileKind::File => self.files += by,
            FileKind::Directory => self.directories += by,
            _ => self.others += by,
        }
        // Holes may sum up beyond 64 bits: the sum wraps, and wraps back when they go.
        self.bytes = self.bytes.wrapping_add((length as i64).wrapping_mul(by));
        Ok(())
    }
}

/// Epochs of snapshots and pins, rising, as one transaction sees them.
#[derive(Clone, Debug)]
pub(in crate::meta) struct Retained(pub Vec<i64>);

impl Retained {
    /// True when one of them lies in `from .. to`.
    pub fn sees(&self, from: i64, to: i64) -> bool {
        let at = self.0.partition_point(|&epoch| epoch < from);
        self.0.get(at).is_some_and(|&epoch| epoch < to)
    }
}
