//! Disks that are full when a test says so: what asks the kernel about room by itself, and not by the C
//! library, asks here first.

use std::sync::OnceLock;

/// How many of so many bytes the disk of the calling thread's host takes.
type Takes = fn(usize) -> std::io::Result<usize>;

static TAKES: OnceLock<Takes> = OnceLock::new();

/// From now on this says how many bytes disks take. Only the first counts.
pub fn disks_take(takes: Takes) {
    let _ = TAKES.set(takes);
}

/// What was said, or all of it.
pub(crate) fn takes(len: usize) -> std::io::Result<usize> {
    TAKES.get().map_or(Ok(len), |takes| takes(len))
}
