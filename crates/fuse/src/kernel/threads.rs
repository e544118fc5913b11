//! Where threads that read the device run: each on a processor of its own.
//!
//! The kernel wakes threads that wait for the device in turn, on any processor. The scheduler alone
//! would wake them on an idle processor, which takes longer than the request. With one thread on
//! every processor, the turn often falls to the one where the request was made. Measured in
//! `docs/decisions/0005-fuse-transport.md`.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Processors that we may run on; none when that is not known.
pub fn processors() -> Vec<usize> {
    let ours = sched_getaffinity(None).ok();
    ours.map_or_else(Vec::new, |ours| (0..CpuSet::MAX_CPU).filter(|cpu| ours.is_set(*cpu)).collect())
}

/// Keeps the calling thread on a processor. Where it cannot be, it serves as well, and more slowly.
pub fn stay_on(cpu: usize) {
    let mut only = CpuSet::new();
    only.set(cpu);
    let _ = sched_setaffinity(None, &only);
}
