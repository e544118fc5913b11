//! A cell, in which a task's submitter waits for its end.
//!
//! A cell is reused, and the task's id numbers each use. A call with an old number finds nothing:
//! for example a ticket that is dropped while its task ends, or a device that answers after its
//! task was given up.

use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};

use super::sync::{Condvar, Mutex, glance, lock, wait};

#[derive(Debug)]
enum Phase<T> {
    /// Not in use, or its outcome was taken.
    Idle,
    /// Submitted.
    Pending,
    /// Ended.
    Ended(T),
}

struct State<T> {
    id: u64,
    phase: Phase<T>,
    waker: Option<Waker>,
}

/// One task's end, to wait for.
pub(super) struct Cell<T> {
    state: Mutex<State<T>>,
    ended: Condvar,
    /// The newest ended task. Readers look without the lock, and check again under it.
    newest: AtomicU64,
}

impl<T> Cell<T> {
    /// A cell that is not in use.
    pub(super) fn new() -> Self {
        let state = State { id: 0, phase: Phase::Idle, waker: None };
        Self { state: Mutex::new(state), ended: Condvar::new(), newest: AtomicU64::new(0) }
    }

    /// Starts a use for task `id`.
    pub(super) fn begin(&self, id: u64) {
        let mut state = lock(&self.state);
        state.id = id;
        state.phase = Phase::Pending;
        state.waker = None;
    }

    /// Ends task `id`. Returns the outcome if nobody waits for it.
    pub(super) fn end(&self, id: u64, outcome: T) -> Result<(), T> {
        let mut state = lock(&self.state);
        if state.id != id || !matches!(state.phase, Phase::Pending) {
            return Err(outcome);
        }
        state.phase = Phase::Ended(outcome);
        self.newest.store(id, Ordering::Release);
        let waker = state.waker.take();
        // Notified under the lock: once it is free, the cell may already serve another task.
        self.ended.notify_all();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
        Ok(())
    }

    /// True if task `id` has neither ended nor been given up.
    pub(super) fn is_pending(&self, id: u64) -> bool {
        let state = lock(&self.state);
        state.id == id && matches!(state.phase, Phase::Pending)
    }

    /// Waits until task `id` has ended, and takes its outcome. `None` if the outcome was taken or
    /// given up.
    pub(super) fn wait(&self, id: u64) -> Option<T> {
        glance(|| self.newest.load(Ordering::Acquire) == id);
        let mut state = lock(&self.state);
        loop {
            if state.id != id {
                return None;
            }
            match std::mem::replace(&mut state.phase, Phase::Idle) {
                Phase::Idle => return None,
                Phase::Ended(outcome) => return Some(outcome),
                Phase::Pending => {
                    state.phase = Phase::Pending;
                    state = wait(&self.ended, state);
                }
            }
        }
    }

    /// Takes the outcome of task `id` if it has ended. Otherwise the task's end will wake the
    /// context's waker.
    pub(super) fn poll(&self, id: u64, context: &Context<'_>) -> Poll<Option<T>> {
        let mut state = lock(&self.state);
        if state.id != id {
            return Poll::Ready(None);
        }
        match std::mem::replace(&mut state.phase, Phase::Idle) {
            Phase::Idle => Poll::Ready(None),
            Phase::Ended(outcome) => Poll::Ready(Some(outcome)),
            Phase::Pending => {
                state.phase = Phase::Pending;
                match &mut state.waker {
                    Some(waker) => waker.clone_from(context.waker()),
                    none => *none = Some(context.waker().clone()),
                }
                Poll::Pending
            }
        }
    }

    /// Ends task `id` without an outcome. Returns true if it had not ended before.
    pub(super) fn close(&self, id: u64) -> bool {
        let mut state = lock(&self.state);
        let pending = state.id == id && matches!(state.phase, Phase::Pending);
        if pending {
            state.phase = Phase::Idle;
            self.ended.notify_all();
        }
        let waker = if pending { state.waker.take() } else { None };
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
        pending
    }

    /// Drops the interest in task `id`, and returns its outcome if it has ended.
    pub(super) fn give_up(&self, id: u64) -> Option<T> {
        let mut state = lock(&self.state);
        if state.id != id {
            return None;
        }
        state.waker = None;
        match std::mem::replace(&mut state.phase, Phase::Idle) {
            Phase::Ended(outcome) => Some(outcome),
            Phase::Idle | Phase::Pending => None,
        }
    }
}
