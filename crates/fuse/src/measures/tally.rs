//! Counters that cost an operation next to nothing.
//!
//! A counter that all processors add to moves from cache to cache with every addition. So
//! operations are counted in several places, each a cache line of its own, and a thread always uses
//! the same one; whoever watches adds them up.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use rustix::io::Errno;

use super::Status;

/// Places to count in: about as many as threads answer at once.
const PLACES: usize = 16;

/// Kinds of operations.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operation {
    /// Reads bytes of a file.
    Read,
    /// Writes bytes of a file.
    Write,
    /// Makes something durable.
    Sync,
    /// Names, attributes, opening, closing.
    Other,
}

#[derive(Default)]
#[repr(align(64))]
struct Place {
    operations: [AtomicU64; 4],
    /// Nanoseconds of all of them, by kind.
    nanos: [AtomicU64; 4],
    read_bytes: AtomicU64,
    written_bytes: AtomicU64,
}

/// Operations and bytes, by kind.
#[derive(Default)]
pub struct Tally {
    places: [Place; PLACES],
    errors: Errors,
}

thread_local! {
    static PLACE: usize = {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        NEXT.fetch_add(1, Ordering::Relaxed) % PLACES
    };
}

fn add(counter: &AtomicU64, value: u64) {
    counter.fetch_add(value, Ordering::Relaxed);
}

fn of(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

impl Tally {
    fn place(&self) -> &Place {
        &self.places[PLACE.with(|place| *place)]
    }

    /// An operation was asked for.
    pub fn operation(&self, kind: Operation) {
        add(&self.place().operations[kind as usize], 1);
    }

    /// An operation has taken so long.
    pub fn took(&self, kind: Operation, time: Duration) {
        add(&self.place().nanos[kind as usize], time.as_nanos() as u64);
    }

    /// Bytes were read.
    pub fn read(&self, bytes: usize) {
        add(&self.place().read_bytes, bytes as u64);
    }

    /// Bytes were written.
    pub fn wrote(&self, bytes: u64) {
        add(&self.place().written_bytes, bytes);
    }

    /// An operation was refused.
    pub fn failed(&self, errno: Errno) {
        self.errors.note(errno);
    }

    /// Puts the sums into `status`.
    pub fn watch(&self, status: &mut Status) {
        let sum = |part: &dyn Fn(&Place) -> u64| self.places.iter().map(part).sum();
        let operations = |kind: Operation| sum(&|place| of(&place.operations[kind as usize]));
        status.operations_read = operations(Operation::Read);
        status.operations_write = operations(Operation::Write);
        status.operations_sync = operations(Operation::Sync);
        status.operations_other = operations(Operation::Other);
        let nanos = |kind: Operation| sum(&|place| of(&place.nanos[kind as usize]));
        status.reading_seconds = nanos(Operation::Read);
        status.writing_seconds = nanos(Operation::Write);
        status.syncing_seconds = nanos(Operation::Sync);
        status.read_bytes = sum(&|place| of(&place.read_bytes));
        status.written_bytes = sum(&|place| of(&place.written_bytes));
        self.errors.watch(status);
    }
}

/// Failures that are not the callers' own doing. A name that is missing, or a permission, is an
/// answer like any other.
#[derive(Default)]
struct Errors {
    io: AtomicU64,
    full: AtomicU64,
    stale: AtomicU64,
}

impl Errors {
    /// Counts it if it is one.
    fn note(&self, errno: Errno) {
        match errno {
            Errno::IO => add(&self.io, 1),
            Errno::NOSPC => add(&self.full, 1),
            Errno::STALE => add(&self.stale, 1),
            _ => {}
        }
    }

    fn watch(&self, status: &mut Status) {
        (status.errors_io, status.errors_full, status.errors_stale) =
            (of(&self.io), of(&self.full), of(&self.stale));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_count_apart_and_are_added_up() {
        let tally = Tally::default();
        std::thread::scope(|scope| {
            for _ in 0..20 {
                scope.spawn(|| {
                    for _ in 0..1000 {
                        tally.operation(Operation::Write);
                        tally.wrote(3);
                    }
                    tally.operation(Operation::Sync);
                    tally.failed(Errno::IO);
                    tally.failed(Errno::NOENT);
                });
            }
        });
        let mut status = Status::default();
        tally.watch(&mut status);
        assert_eq!(
            (status.operations_write, status.operations_sync, status.operations_read),
            (20_000, 20, 0)
        );
        assert_eq!((status.written_bytes, status.errors_io, status.errors_full), (60_000, 20, 0));
    }
}
