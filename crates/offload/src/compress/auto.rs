//! The levels of `auto`, chosen by how much time writers leave the processors.
//!
//! A writer's threads report how long they worked and how long they waited for work. Waiting means
//! that data arrives more slowly than it is compressed. If the waiting lasts, the level rises by a
//! step. If the threads hardly wait, it falls again. Each objective has its part of the ladder.
//!
//! ```text
//! ladder       zstd:1  zstd:2  zstd:3  zstd:4  zstd:6  zstd:9  zstd:12
//! cpu            ●
//! throughput     ●──────────────────────────────────────▶
//! ratio                          ●──────────────────────────────▶        ● where it begins
//! ```
//!
//! Frames are longer than with a fixed level
//! ([`Compression::frame_factor`](super::Compression::frame_factor)), so that `zstd:1` gets the
//! size that `zstd:3` gets in frames of the usual length.
//!
//! The level rises if threads wait at least half of the time, as the next step at most doubles the
//! work. It falls at a far lower share, so that it does not swing.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use outrigger_format::{Codec, CodecSpec, Objective, Reason};

const LADDER: [CodecSpec; 7] = [zstd(1), zstd(2), zstd(3), zstd(4), zstd(6), zstd(9), zstd(12)];

const fn zstd(level: i8) -> CodecSpec {
    CodecSpec { codec: Codec::Zstd, level }
}

/// The level is reviewed after so much work and waiting of all threads together, in nanoseconds.
const WINDOW: u64 = 500_000_000;
/// Windows in a row that must speak for a higher level.
const PATIENCE: usize = 2;
/// Shares of the time waited, in per cent: the level rises from [`RAISE`] on, and falls below
/// [`LOWER`].
const RAISE: u64 = 50;
const LOWER: u64 = 15;

/// The first and the last step of an objective.
fn steps(objective: Objective) -> (usize, usize) {
    match objective {
        Objective::Cpu => (0, 0),
        Objective::Throughput => (0, 5),
        Objective::Ratio => (2, 6),
    }
}

/// A writer's level, shared by its threads. It changes no frame's content, and no thread waits for
/// it.
#[derive(Debug, Default)]
pub struct Auto {
    /// Steps above the objective's first.
    raised: AtomicUsize,
    worked: AtomicU64,
    waited: AtomicU64,
    /// Windows in a row in which threads mostly waited.
    idle: AtomicUsize,
    /// Windows in which threads hardly waited.
    busy: AtomicU64,
}

impl Auto {
    /// At the first step.
    pub fn new() -> Self {
        Self::default()
    }

    /// For old data that nobody waits for and that keeps its frames for long: one step above the
    /// first.
    pub fn at_rest() -> Self {
        Self { raised: AtomicUsize::new(1), ..Self::default() }
    }

    /// Records a thread's time of work, and its time of waiting for work, a source or a disk.
    pub fn note(&self, worked: Duration, waited: Duration) {
        let worked =
            self.worked.fetch_add(worked.as_nanos() as u64, Ordering::Relaxed) + worked.as_nanos() as u64;
        let waited =
            self.waited.fetch_add(waited.as_nanos() as u64, Ordering::Relaxed) + waited.as_nanos() as u64;
        let all = worked + waited;
        if all < WINDOW {
            return;
        }
        // The thread that resets the counters decides. Time that another thread adds meanwhile
        // counts in the next window or, at worst, not at all.
        if self.worked.compare_exchange(worked, 0, Ordering::Relaxed, Ordering::Relaxed).is_err() {
            return;
        }
        self.waited.store(0, Ordering::Relaxed);
        let share = waited * 100 / all;
        let raised = self.raised.load(Ordering::Relaxed);
        if share < RAISE {
            self.idle.store(0, Ordering::Relaxed);
        } else if self.idle.fetch_add(1, Ordering::Relaxed) + 1 >= PATIENCE {
            self.idle.store(0, Ordering::Relaxed);
            self.raised.store((raised + 1).min(LADDER.len()), Ordering::Relaxed);
        }
        if share < LOWER {
            self.busy.fetch_add(1, Ordering::Relaxed);
            self.raised.store(raised.saturating_sub(1), Ordering::Relaxed);
        }
    }

    /// The present codec and level, and why they were chosen.
    pub fn choose(&self, objective: Objective) -> (CodecSpec, Reason) {
        let ((first, last), raised) = (steps(objective), self.raised.load(Ordering::Relaxed));
        let step = (first + raised).min(last);
        let reason = match step > first {
            true => Reason::Idle,
            false if first < last && self.busy.load(Ordering::Relaxed) > 0 => Reason::Busy,
            false => Reason::Objective,
        };
        (LADDER[step], reason)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn the_level_follows_what_processors_have_time_for() {
        let auto = Auto::new();
        let level = |objective| auto.choose(objective).0.to_string();
        assert_eq!(Objective::ALL.map(level), ["zstd:1", "zstd:3", "zstd:1"]);
        assert_eq!(auto.choose(Objective::Throughput).1, Reason::Objective);
        auto.note(100 * MS, 400 * MS);
        assert_eq!(level(Objective::Throughput), "zstd:1", "once is not enough");
        for _ in 0..9 {
            auto.note(100 * MS, 400 * MS);
        }
        assert_eq!(Objective::ALL.map(level), ["zstd:9", "zstd:12", "zstd:1"]);
        assert_eq!(auto.choose(Objective::Throughput).1, Reason::Idle);
        assert_eq!(auto.choose(Objective::Cpu).1, Reason::Objective);
        // In between, nothing changes.
        for _ in 0..9 {
            auto.note(400 * MS, 200 * MS);
        }
        assert_eq!(level(Objective::Throughput), "zstd:9");
        for _ in 0..9 {
            auto.note(500 * MS, 10 * MS);
        }
        assert_eq!(Objective::ALL.map(level), ["zstd:1", "zstd:3", "zstd:1"]);
        assert_eq!(auto.choose(Objective::Ratio).1, Reason::Busy);
    }

    #[test]
    fn little_work_says_nothing() {
        let auto = Auto::new();
        auto.note(MS, 300 * MS);
        assert_eq!(auto.choose(Objective::Throughput).1, Reason::Objective);
    }
}
