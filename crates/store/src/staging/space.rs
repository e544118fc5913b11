//! The bound on the log's size: back-pressure instead of failure.
//!
//! Before a thread appends a user's operation, it reserves space. It waits until there is some, in
//! the order of arrival, so that a large write is not overtaken for ever. Appending itself never
//! waits: the flusher, whose work frees space, must append its own records while the log is full. A
//! record counts twice between its append and the end of its reservation; that errs on the side of
//! waiting.
//!
//! No thread waits for ever: a reservation is at most a segment, the log holds at least two, and
//! all segments but the last can be removed once they are flushed.
//!
//! **A nearly full disk** bounds the log more tightly than its capacity: `Space::bound` says by how
//! much it may grow. The same back-pressure then makes the flusher store staged data before more is
//! taken.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex};
use std::time::Duration;

use outrigger_clock::Instant;

use crate::error::{Error, ErrorKind, Result};

/// How full a log is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fill {
    /// Bytes in segments.
    pub used: u64,
    /// Bytes reserved for records that are about to be appended.
    pub reserved: u64,
    /// Bytes that used and reserved may reach.
    pub capacity: u64,
    /// The disk allows no more than this, and less than the log was made for.
    pub is_bounded: bool,
    /// Threads that wait for room.
    pub waiting: usize,
}

#[derive(Default)]
struct State {
    used: u64,
    reserved: u64,
    /// Bytes that the disk lets `used` and `reserved` reach, and from where on it is asked again.
    bound: Option<(u64, u64)>,
    queue: VecDeque<u64>,
    next_ticket: u64,
}

/// The disk is asked again at the latest after so many bytes.
const ASK_EVERY: u64 = 16 << 20;

impl State {
    fn limit(&self, capacity: u64) -> u64 {
        self.bound.map_or(capacity, |(limit, _)| limit.min(capacity))
    }
}

pub(super) struct Space {
    capacity: u64,
    state: Mutex<State>,
    changed: Condvar,
}

/// Room for records; dropped once they are appended.
pub struct Reservation<'a> {
    space: &'a Space,
    bytes: u64,
}

impl Space {
    pub fn new(capacity: u64) -> Self {
        Self { capacity, state: Mutex::default(), changed: Condvar::new() }
    }

    /// Waits for room, at most for `patience` if there is a bound.
    pub fn reserve(&self, bytes: u64, patience: Option<Duration>) -> Result<Reservation<'_>> {
        let deadline = patience.map(|patience| Instant::now() + patience);
        let mut state = self.state.lock().expect("no panic while it is held");
        let ticket = state.next_ticket;
        state.next_ticket += 1;
        state.queue.push_back(ticket);
        while state.queue.front() != Some(&ticket)
            || state.used + state.reserved + bytes > state.limit(self.capacity)
        {
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            state = match left {
                None => self.changed.wait(state).expect("no panic while it is held"),
                Some(Duration::ZERO) => {
                    state.queue.retain(|waiting| *waiting != ticket);
                    self.changed.notify_all();
                    let text = format!("no room for {bytes} bytes in the staging log within the given time");
                    return Err(Error::new(ErrorKind::Busy, text));
                }
                Some(left) => self.changed.wait_timeout(state, left).expect("no panic while it is held").0,
            };
        }
        state.queue.pop_front();
        state.reserved += bytes;
        if !state.queue.is_empty() {
            self.changed.notify_all();
        }
        Ok(Reservation { space: self, bytes })
    }

    /// True when the disk is to be asked, before so many bytes are reserved, how much more it
    /// takes.
    pub fn is_bound_old(&self, bytes: u64) -> bool {
        let state = self.state.lock().expect("no panic while it is held");
        state.bound.is_none_or(|(_, until)| state.used + state.reserved + bytes > until)
    }

    /// The disk lets the log grow by so many bytes.
    pub fn bound(&self, growth: u64) {
        let mut state = self.state.lock().expect("no panic while it is held");
        let now = state.used + state.reserved;
        let limit = now.saturating_add(growth);
        let more = state.bound.is_some_and(|(before, _)| limit > before);
        state.bound = Some((limit, now.saturating_add(ASK_EVERY.min(growth / 4))));
        if more {
            self.changed.notify_all();
        }
    }

    /// Bytes were appended.
    pub fn take(&self, bytes: u64) {
        self.state.lock().expect("no panic while it is held").used += bytes;
    }

    /// Bytes went with a segment.
    pub fn release(&self, bytes: u64) {
        self.state.lock().expect("no panic while it is held").used -= bytes;
        self.changed.notify_all();
    }

    /// Bytes that may still be appended.
    pub fn left(&self) -> u64 {
        let state = self.state.lock().expect("no panic while it is held");
        state.limit(self.capacity).saturating_sub(state.used)
    }

    pub fn fill(&self) -> Fill {
        let state = self.state.lock().expect("no panic while it is held");
        let (used, reserved, waiting) = (state.used, state.reserved, state.queue.len());
        let capacity = state.limit(self.capacity);
        Fill { used, reserved, capacity, is_bounded: capacity < self.capacity, waiting }
    }
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        let mut state = self.space.state.lock().expect("no panic while it is held");
        state.reserved -= self.bytes;
        if !state.queue.is_empty() {
            self.space.changed.notify_all();
        }
    }
}
