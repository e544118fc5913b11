//! Latencies in this process, for monitoring: transactions of the database, reads and writes of
//! packs.
//!
//! They are of the process, not of a store: a monitored process, a mount or an agent, has one
//! store.

use std::array;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use outrigger_clock::Instant;

/// Upper bounds of a histogram's classes, in milliseconds; longer times are in one more.
pub const BOUNDS: [u64; 11] = [1, 3, 10, 30, 100, 300, 1_000, 3_000, 10_000, 30_000, 100_000];

/// Transactions that write to the database, from their begin to their answer, with all repetitions.
pub static TRANSACTIONS: Histogram = Histogram::new();
/// Reads of a part of a pack, from its place or from a cache.
pub static PACK_READS: Histogram = Histogram::new();
/// Packs that were made durable, from their last byte on.
pub static PACK_WRITES: Histogram = Histogram::new();

/// How long things took, as a histogram shows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Spread {
    /// How many are in each class.
    pub classes: [u64; BOUNDS.len() + 1],
    /// Nanoseconds of all together.
    pub nanos: u64,
}

impl Spread {
    /// How many there are.
    pub fn count(&self) -> u64 {
        self.classes.iter().sum()
    }
}

/// Counts how long things took.
#[derive(Default)]
pub struct Histogram {
    classes: [AtomicU64; BOUNDS.len() + 1],
    nanos: AtomicU64,
    last: AtomicU64,
    longest: AtomicU64,
}

impl Histogram {
    const fn new() -> Self {
        Self {
            classes: [const { AtomicU64::new(0) }; BOUNDS.len() + 1],
            nanos: AtomicU64::new(0),
            last: AtomicU64::new(0),
            longest: AtomicU64::new(0),
        }
    }

    /// Something took so long.
    pub fn note(&self, took: Duration) {
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        let class = BOUNDS.partition_point(|bound| bound * 1_000_000 < nanos);
        self.classes[class].fetch_add(1, Ordering::Relaxed);
        self.nanos.fetch_add(nanos, Ordering::Relaxed);
        self.last.store(nanos, Ordering::Relaxed);
        self.longest.fetch_max(nanos, Ordering::Relaxed);
    }

    /// Does something, and counts how long it took, if it succeeded.
    pub(crate) fn timed<T, E>(&self, work: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
        let began = Instant::now();
        work().inspect(|_| self.note(began.elapsed()))
    }

    /// All so far.
    pub fn spread(&self) -> Spread {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Spread { classes: array::from_fn(|class| of(&self.classes[class])), nanos: of(&self.nanos) }
    }

    /// Nanoseconds that the last one took, and the longest.
    pub fn last_and_longest(&self) -> (u64, u64) {
        (self.last.load(Ordering::Relaxed), self.longest.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_belongs_to_its_class() {
        let histogram = Histogram::default();
        for millis in [0, 1, 10, 11, 100_000, 100_001] {
            histogram.note(Duration::from_millis(millis));
        }
        let spread = histogram.spread();
        assert_eq!(spread.classes, [2, 0, 1, 1, 0, 0, 0, 0, 0, 0, 1, 1]);
        assert_eq!((spread.count(), spread.nanos), (6, 200_023_000_000));
        assert_eq!(histogram.last_and_longest(), (100_001_000_000, 100_001_000_000));
    }
}
