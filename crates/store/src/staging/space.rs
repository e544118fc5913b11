//! The bound on the log's size: back-pressure instead of failure.
//!
//! Before it appends what a user asked for, a thread reserves room and waits until there is some, in the order of
//! arrival, so that a large write is not overtaken for ever. Appending itself never waits, because the destager, whose work makes
//! room, must append its own records while the log is full. A record counts twice for the moment between its append
//! and the end of its reservation; that errs on the side of waiting.
//!
//! No thread waits for ever: what one reserves is at most a segment, the log holds at least two, and all but the last
//! segment can be removed once they are destaged.

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
    /// Threads that wait for room.
    pub waiting: usize,
}

#[derive(Default)]
struct State {
    used: u64,
    reserved: u64,
    queue: VecDeque<u64>,
    next_ticket: u64,
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
        while state.queue.front() != Some(&ticket) || state.used + state.reserved + bytes > self.capacity {
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

    /// Bytes were appended.
    pub fn take(&self, bytes: u64) {
        self.state.lock().expect("no panic while it is held").used += bytes;
    }

    /// Bytes went with a segment.
    pub fn release(&self, bytes: u64) {
        self.state.lock().expect("no panic while it is held").used -= bytes;
        self.changed.notify_all();
    }

    pub fn fill(&self) -> Fill {
        let state = self.state.lock().expect("no panic while it is held");
        let (used, reserved, waiting) = (state.used, state.reserved, state.queue.len());
        Fill { used, reserved, capacity: self.capacity, waiting }
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
