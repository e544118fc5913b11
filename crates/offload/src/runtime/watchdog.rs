//! The watchdog thread, which finds devices that do not answer and waiting tasks whose deadline
//! passes.
//!
//! It sleeps until the earliest of these moments. It is a thread of its own and calls no device, as
//! a manager that is stuck inside a driver cannot watch itself.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use outrigger_clock::Instant;

use super::lane::Running;
use super::shared::Shared;
use super::sync::{Condvar, Mutex, lock, wait_until};
use super::task::Failure;
use crate::accelerator::Fault;

/// The moments that the watchdog waits for.
pub(super) struct Watch {
    state: Mutex<State>,
    earlier: Condvar,
    /// The most deadlines to keep. It is more than the tasks that can wait.
    room: usize,
}

struct State {
    /// When it checks next. `None` if there is nothing to check.
    next: Option<Instant>,
    deadlines: BinaryHeap<Reverse<(Instant, u64)>>,
    ended: bool,
}

impl Watch {
    pub(super) fn new(room: usize) -> Self {
        let state = State { next: None, deadlines: BinaryHeap::with_capacity(room), ended: false };
        Self { state: Mutex::new(state), earlier: Condvar::new(), room }
    }

    /// Has running tasks checked at this moment, or before.
    pub(super) fn limit(&self, at: Instant) {
        let mut state = lock(&self.state);
        if state.next.is_none_or(|next| at < next) {
            state.next = Some(at);
            self.earlier.notify_one();
        }
    }

    /// Has the watchdog check at this moment whether a task still waits. `waiting` returns the
    /// sorted ids of waiting tasks. If there are too many deadlines, those of other tasks are
    /// dropped.
    pub(super) fn deadline(&self, at: Instant, id: u64, waiting: impl FnOnce() -> Vec<u64>) {
        let mut state = lock(&self.state);
        if state.deadlines.len() >= self.room {
            let waiting = waiting();
            state.deadlines.retain(|Reverse((_, id))| waiting.binary_search(id).is_ok());
        }
        state.deadlines.push(Reverse((at, id)));
        drop(state);
        self.limit(at);
    }

    /// Ends the watchdog.
    pub(super) fn end(&self) {
        lock(&self.state).ended = true;
        self.earlier.notify_one();
    }

    /// Waits for the next moment. Returns false if the watchdog should end.
    fn wait(&self) -> bool {
        let mut state = lock(&self.state);
        while !state.ended && state.next.is_none_or(|next| next > Instant::now()) {
            let until = state.next;
            (state, _) = wait_until(&self.earlier, state, until);
        }
        // From now on, any new moment is an earlier one.
        state.next = None;
        !state.ended
    }

    /// Takes a task whose deadline has passed.
    fn passed(&self, now: Instant) -> Option<u64> {
        let mut state = lock(&self.state);
        let Reverse((at, id)) = *state.deadlines.peek()?;
        if at > now {
            return None;
        }
        state.deadlines.pop();
        Some(id)
    }

    fn next_deadline(&self) -> Option<Instant> {
        lock(&self.state).deadlines.peek().map(|Reverse((at, _))| *at)
    }
}

/// The main loop of the watchdog.
pub(super) fn run(shared: &Arc<Shared>) {
    while shared.watch.wait() {
        let now = Instant::now();
        let mut next = None;
        for lane in 1..shared.lanes.len() {
            let limit = |running: &Running| running.limit;
            let earliest = || lock(&shared.lanes[lane].running).iter().map(limit).min();
            if earliest().is_some_and(|limit| limit <= now) {
                shared.fault(lane, &Fault::Hung);
            }
            next = next.into_iter().chain(earliest()).min();
        }
        while let Some(id) = shared.watch.passed(now) {
            if let Some(body) = shared.board.withdraw(id) {
                shared.end(body, Some(Failure::Expired));
                shared.board.settled();
            }
        }
        if let Some(next) = next.into_iter().chain(shared.watch.next_deadline()).min() {
            shared.watch.limit(next);
        }
    }
}
