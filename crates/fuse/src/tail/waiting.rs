//! Writers that wait for their programs, and other waits for a change of a tailed file.
//!
//! **A writer that must wait** for its program ([`Open::ahead`]) waits before its write has taken
//! anything: no room in the log, no gate, no lock. The wait is bounded: a program that has read
//! nothing for [`STANDSTILL`] may itself wait for this writer's next step, so the limit is lifted
//! for this file. At least one of the threads that serve requests never waits.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex};
use std::time::Duration;

use outrigger_clock::Instant;

use super::{End, Open, STANDSTILL, Tailing, Versioned};

/// Wakes threads that wait for a change.
#[derive(Default)]
pub(super) struct Pulse {
    beats: Mutex<u64>,
    changed: Condvar,
}

impl Pulse {
    pub(super) fn now(&self) -> u64 {
        *self.beats.lock().expect("no panic while held")
    }

    pub(super) fn beat(&self) {
        *self.beats.lock().expect("no panic while held") += 1;
        self.changed.notify_all();
    }

    pub(super) fn wait(&self, seen: u64, most: Duration) {
        let beats = self.beats.lock().expect("no panic while held");
        drop(self.changed.wait_timeout_while(beats, most, |beats| *beats == seen));
    }
}

struct Waiting<'a> {
    begun: Instant,
    waiting: &'a AtomicU32,
    waited: &'a AtomicU64,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        self.waited.fetch_add(self.begun.elapsed().as_nanos() as u64, Ordering::Relaxed);
    }
}

/// How many threads may wait at once. One is left, also for requests of a waited-for program.
fn most_waiting(threads: usize) -> u32 {
    threads.clamp(2, 8) as u32 - 1
}

pub(crate) struct Write {
    pub offset: u64,
    pub len: usize,
    /// Appends, ignoring `offset`.
    pub appends: bool,
}

impl<F> Tailing<F> {
    /// True if a write may have to wait for a program.
    pub fn may_wait(&self) -> bool {
        self.bounded.load(Ordering::Relaxed) > 0
    }
}

impl<F: Versioned> Tailing<F> {
    /// Waits as long as `goes_on` returns for how long; it is called after each change. If no
    /// thread of the `threads` that serve requests may wait, returns false at once.
    pub fn wait_while(&self, threads: usize, goes_on: impl FnMut() -> Option<Duration>) -> bool {
        let is_free = self.waiting.fetch_add(1, Ordering::Relaxed) < most_waiting(threads);
        if is_free {
            self.wait_here(goes_on);
        }
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        is_free
    }

    /// As [`Tailing::wait_while`], in a thread that serves no requests.
    pub fn wait_here(&self, mut goes_on: impl FnMut() -> Option<Duration>) {
        loop {
            let seen = self.moved.now();
            let Some(most) = goes_on() else { return };
            self.moved.wait(seen, most);
        }
    }

    /// Waits until a write is not too far ahead of the readers. `note` reports that it gave that
    /// up.
    pub fn wait_for(&self, file: &F, write: &Write, threads: usize, note: impl FnOnce(String)) {
        if !self.may_wait() {
            return;
        }
        let (mut moved_at, mut before, mut place) = (Instant::now(), None, None);
        loop {
            let seen = self.moved.now();
            let consumed = file.look(|open, len| match open {
                Some(Open { ahead: Some(ahead), prefix, end: End::Open, .. }) => {
                    let from = if write.appends { len } else { write.offset };
                    let is_near = (from + write.len as u64).saturating_sub(prefix.consumed()) <= *ahead;
                    (!is_near).then(|| prefix.consumed())
                }
                _ => None,
            });
            let Some(consumed) = consumed else { return };
            if before != Some(consumed) {
                (moved_at, before) = (Instant::now(), Some(consumed));
            }
            let stood = moved_at.elapsed();
            if stood >= STANDSTILL {
                return self.lift_bound(file, note);
            }
            if place.is_none() {
                let taken = self.waiting.fetch_add(1, Ordering::Relaxed);
                place = Some(Waiting { begun: Instant::now(), waiting: &self.waiting, waited: &self.waited });
                if taken >= most_waiting(threads) {
                    return;
                }
            }
            self.moved.wait(seen, STANDSTILL - stood);
        }
    }

    /// Nanoseconds that writers have waited for their files' readers.
    pub fn waited(&self) -> u64 {
        self.waited.load(Ordering::Relaxed)
    }

    fn lift_bound(&self, file: &F, note: impl FnOnce(String)) {
        let lifted = file.change(|open| {
            let open = open.as_mut()?;
            open.ahead.take()?;
            let jobs: Vec<String> = open.jobs.iter().map(ToString::to_string).collect();
            Some((jobs.join(", "), open.place.1.escape_ascii().to_string()))
        });
        if let Some((jobs, name)) = lifted {
            self.bounded.fetch_sub(1, Ordering::Relaxed);
            note(format!(
                "`{name}`: its program (job {jobs}) has read nothing for {} seconds; its writer no longer waits for it",
                STANDSTILL.as_secs()
            ));
        }
    }
}
