//! Disks that are full when a test says so: code that asks the kernel about space directly, and not
//! through the C library, asks here first.

use std::sync::OnceLock;

/// How many of so many bytes the disk of the calling thread's host takes.
type Takes = fn(usize) -> std::io::Result<usize>;

static TAKES: OnceLock<Takes> = OnceLock::new();

/// From now on `takes` says how many bytes disks take. Only the first call counts.
pub fn disks_take(takes: Takes) {
    let _ = TAKES.set(takes);
}

/// The answer of `takes`, or all bytes.
pub(crate) fn takes(len: usize) -> std::io::Result<usize> {
    TAKES.get().map_or(Ok(len), |takes| takes(len))
}
