//! Asks the runs: filters first, a batch at a time, then one page a key that a filter let through.
//!
//! For 64 keys at a time all filter blocks are prefetched and then tested, so that their cache
//! misses overlap. Keys that pass are probed in windows. Pages that the kernel has cached are read
//! at once (`RWF_NOWAIT`). The kernel is told to prefetch the others before they are read, so a
//! window's disk reads overlap on one thread.

use std::io::IoSliceMut;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::Advice;
use rustix::io::{Errno, ReadWriteFlags};

use super::run::{PAGE_LEN, Page, Run, check_page};
use crate::error::{Context, Result};

/// Keys whose filter blocks are in flight together.
const GROUP: usize = 64;

/// A key that passed the filter of a run, both by number.
#[derive(Clone, Copy)]
pub(super) struct Passed {
    pub key: u32,
    pub run: u32,
}

/// What lookups count.
#[derive(Default)]
pub(super) struct ProbeCounts {
    /// Pages read.
    pub probes: AtomicU64,
    /// Probes of keys that were not there.
    pub false_probes: AtomicU64,
}

/// Tests every key against every run's filter; appends those that pass to `passed`, key by key.
pub(super) fn filter(runs: &[Arc<Run>], prefixes: &[u64], passed: &mut Vec<Passed>) {
    for (number, group) in prefixes.chunks(GROUP).enumerate() {
        for run in runs {
            group.iter().for_each(|&prefix| run.filter.prefetch(prefix));
        }
        for (at, &prefix) in group.iter().enumerate() {
            for (run, _) in runs.iter().enumerate().filter(|(_, run)| run.filter.contains(prefix)) {
                passed.push(Passed { key: (number * GROUP + at) as u32, run: run as u32 });
            }
        }
    }
}

/// Reads pages for keys that passed, and finds their places in them.
pub(super) struct Prober<'a> {
    runs: &'a [Arc<Run>],
    counts: &'a ProbeCounts,
    page: Box<Page>,
    late: Vec<(Passed, usize)>,
}

impl<'a> Prober<'a> {
    pub fn new(runs: &'a [Arc<Run>], counts: &'a ProbeCounts) -> Self {
        Self { runs, counts, page: Box::new([0; PAGE_LEN]), late: Vec::new() }
    }

    /// Probes a window of keys; calls `found` with a key's number and one of its places, in no
    /// order. A run that fails answers nothing from then on: it is marked, and its owner drops it.
    pub fn probe(&mut self, window: &[Passed], prefixes: &[u64], mut found: impl FnMut(u32, u64)) {
        self.late.clear();
        for &passed in window {
            let run = &self.runs[passed.run as usize];
            let prefix = prefixes[passed.key as usize];
            let Some(at) = run.first_page(prefix).filter(|_| !run.has_failed()) else { continue };
            if window.len() > 1 && !self.read_cached(run, at) {
                let _ = rustix::fs::fadvise(
                    &run.file,
                    Run::page_offset(at),
                    std::num::NonZeroU64::new(PAGE_LEN as u64),
                    Advice::WillNeed,
                );
                self.late.push((passed, at));
                continue;
            }
            let read = if window.len() > 1 {
                checked(run, at, &mut self.page)
            } else {
                run.read_page(at, &mut self.page)
            };
            self.search(passed, at, prefix, read, &mut found);
        }
        for (passed, at) in std::mem::take(&mut self.late) {
            let read = self.runs[passed.run as usize].read_page(at, &mut self.page);
            self.search(passed, at, prefixes[passed.key as usize], read, &mut found);
        }
    }

    fn search(
        &mut self,
        passed: Passed,
        at: usize,
        prefix: u64,
        read: Result<()>,
        found: &mut impl FnMut(u32, u64),
    ) {
        let run = &self.runs[passed.run as usize];
        self.counts.probes.fetch_add(1, Ordering::Relaxed);
        let mut hit = false;
        let searched = read.and_then(|()| {
            run.search(at, &mut self.page, prefix, |place| {
                hit = true;
                found(passed.key, place);
            })
        });
        if searched.is_err() {
            run.failed.store(true, Ordering::Release);
        } else if !hit {
            self.counts.false_probes.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Reads a page if the kernel has it in memory; returns whether it had.
    fn read_cached(&mut self, run: &Run, at: usize) -> bool {
        let parts = &mut [IoSliceMut::new(&mut self.page[..])];
        let read = rustix::io::preadv2(&run.file, parts, Run::page_offset(at), ReadWriteFlags::NOWAIT);
        // File systems that do not know the flag read the ordinary way, after the advice.
        matches!(read, Ok(PAGE_LEN)) || matches!(read, Err(Errno::INTR)) && self.read_cached(run, at)
    }
}

fn checked(run: &Run, at: usize, page: &mut Page) -> Result<()> {
    check_page(page).context(|| format!("index run {:08}, page {at}", run.number))
}
