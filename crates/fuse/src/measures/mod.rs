//! Numbers that a mount measures of itself, for monitoring.
//!
//! ```text
//!   requests ─► fs::Counted ─► Tally ──┐
//!   the file system's own counters ────┼─► Status ─┬─► JSON: the control socket, `outrigger stats --live`
//!   the store's cache of frames ───────┘           └─► Prometheus' text format: `outrigger mount --metrics`
//! ```
//!
//! Both forms are made from one table, [`FIELDS`], so that a number has one name, one unit and one
//! meaning wherever it is read.

mod status;
mod tally;
mod text;

pub use self::status::{FIELDS, Field, HISTOGRAMS, Kind, Label, Shown, Status, Unit};
pub use self::tally::{Operation, Tally};
pub use self::text::{CONTENT_TYPE, exposition, json};
pub use outrigger_store::latency::{BOUNDS, Histogram, Spread};

use outrigger_store::latency::{PACK_READS, PACK_WRITES, TRANSACTIONS};
use outrigger_store::meta::{Meta, WriteCounts};
use outrigger_store::packs::{FrameCounts, PackReader};

/// A source of numbers.
pub trait Watched {
    /// Puts its numbers into `status`, and leaves the others as they are.
    fn watch(&self, status: &mut Status);
}

impl Watched for PackReader {
    fn watch(&self, status: &mut Status) {
        let FrameCounts { hits, misses, ahead, ahead_hits } = self.frame_counts();
        (status.frame_cache_hits, status.frame_cache_misses) = (hits, misses);
        status.packs_trouble = u64::from(self.trouble().is_some());
        (status.read_ahead_frames, status.read_ahead_hits) = (ahead, ahead_hits);
        (status.pack_read_seconds, status.pack_write_seconds) = (PACK_READS.spread(), PACK_WRITES.spread());
        let near = self.cache_counts().unwrap_or_default();
        (status.block_cache_memory, status.block_cache_disk) = (near.memory_hits, near.disk_hits);
        (status.block_cache_fetched, status.block_cache_ahead) = (near.fetched, near.ahead);
        (status.packs_requests, status.packs_failures, status.packs_seconds) =
            (near.requests, near.failures, near.nanos);
    }
}

/// A shared store's database: transactions, retries and time.
pub fn database(meta: &dyn Meta, status: &mut Status) {
    status.database_transaction_seconds = TRANSACTIONS.spread();
    status.database_trouble = u64::from(meta.trouble().is_some());
    let WriteCounts { transactions, again, nanos } = meta.write_counts();
    (status.database_transactions, status.database_retries, status.database_seconds) =
        (transactions, again, nanos);
}
