//! Threads that read the device, each kept on a processor of its own.
//!
//! Threads that wait for the device are woken in turn, wherever they are. Left to itself, the scheduler wakes them on the processor that
//! idles, which takes longer than the request; with one on every processor, the turn often falls to the one where the request was made.
//! Measured in `docs/decisions/0005-fuse-transport.md`.
//!
//! The FUSE crate starts the threads and gives no way to them but their names. If those were to change, nothing is pinned.

use std::collections::HashSet;
use std::time::Duration;

use rustix::thread::{CpuSet, Pid, sched_getaffinity, sched_setaffinity};

/// Times that threads are looked for: they are being started.
const TRIES: u32 = 50;
const PAUSE: Duration = Duration::from_millis(2);

/// Threads of the FUSE crate: which of a mount's it is, and its number.
fn serving() -> Vec<(usize, Pid)> {
    let tasks = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let named = tasks.filter_map(|task| {
        let name = std::fs::read_to_string(task.path().join("comm")).ok()?;
        let ordinal = name.trim_end().strip_prefix("fuser-")?.parse().ok()?;
        Some((ordinal, Pid::from_raw(task.file_name().to_str()?.parse().ok()?)?))
    });
    named.collect()
}

/// Threads that were there before, of other mounts.
pub struct Others(HashSet<Pid>);

impl Others {
    /// To be called before a mount's threads are started.
    pub fn new() -> Self {
        Self(serving().into_iter().map(|(_, thread)| thread).collect())
    }

    /// Pins the first of `threads` new ones, one to each processor that we may run on; what is beyond that may run anywhere.
    pub fn pin_new(&self, threads: usize) {
        let Ok(ours) = sched_getaffinity(None) else { return };
        let cpus: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|cpu| ours.is_set(*cpu)).collect();
        if threads < 2 || cpus.len() < 2 {
            return;
        }
        for _ in 0..TRIES {
            let new: Vec<_> = serving().into_iter().filter(|(_, thread)| !self.0.contains(thread)).collect();
            if new.len() >= threads {
                for (cpu, thread) in
                    new.into_iter().filter_map(|(ordinal, thread)| Some((*cpus.get(ordinal)?, thread)))
                {
                    let mut only = CpuSet::new();
                    only.set(cpu);
                    let _ = sched_setaffinity(Some(thread), &only);
                }
                return;
            }
            std::thread::sleep(PAUSE);
        }
    }
}
