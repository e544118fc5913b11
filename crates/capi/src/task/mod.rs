//! Tasks: filled, submitted, ended, and reused.
//!
//! ```text
//!   FILLING ──submit──▶ SUBMITTED ──▶ ENDED (done or failed) ──again──▶ FILLING
//! ```
//!
//! Each task has had a callback of the runtime since it was made, which reports every end. The
//! callback stores the result for C, wakes waiting threads, and calls C's callback, if there is
//! one. A task is an `Arc`. C's pointer is one share, and a running call holds another, so a
//! callback may free its own task. The lock is never held during a call of C or of the runtime.

mod calls;
mod fill;
mod results;

use std::ffi::c_void;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};

use outrigger_clock::Instant;
use outrigger_offload::runtime::{Callback, Draft, Failed, Failure, Finished, Runtime, Ticket};

use crate::status::outrigger_status::{
    OUTRIGGER_BUG, OUTRIGGER_CANCELLED, OUTRIGGER_DATA, OUTRIGGER_EXPIRED, OUTRIGGER_FULL, OUTRIGGER_PENDING,
    OUTRIGGER_STATE, OUTRIGGER_STOPPED, OUTRIGGER_UNSUPPORTED,
};
use crate::status::{Error, Result, outrigger_status};
use results::Converted;
#[cfg(test)]
pub use results::outrigger_report;

/// Called once for each submission of a task when it ends, by a thread of the runtime or by the one
/// that cancels it. It must be quick, as it may hold up a device. It may read the task, free it, or
/// reuse it (with outrigger_try_submit(), which does not wait for room), but must not wait for
/// another task.
pub type outrigger_callback = Option<unsafe extern "C" fn(context: *mut c_void, task: *mut outrigger_task)>;

/// A task. One thread at a time fills it. After submission, any thread may poll, wait for or cancel
/// it.
pub struct outrigger_task {
    inner: Mutex<Inner>,
    ended: Condvar,
    /// The callback for the runtime.
    told: Callback,
}

struct Inner {
    state: State,
    /// The number of the last submission.
    turn: u64,
    callback: outrigger_callback,
    context: Context,
    converted: Converted,
}

/// C's context.
#[derive(Clone, Copy)]
struct Context(*mut c_void);

// SAFETY: C's contract: any thread may call a callback.
unsafe impl Send for Context {}

enum State {
    Filling(Draft),
    /// Without a ticket until the runtime has returned one.
    Submitted(Option<Ticket>),
    Done(Finished),
    Failed(Failure, Option<Draft>),
    /// A bug lost it.
    Gone,
}

impl State {
    fn name(&self) -> &'static str {
        match self {
            Self::Filling(_) => "not submitted yet",
            Self::Submitted(_) => "under way",
            Self::Done(_) => "done",
            Self::Failed(..) => "failed",
            Self::Gone => "lost",
        }
    }

    /// The status of a task in this state.
    fn status(&self) -> Result {
        match self {
            Self::Done(_) => Ok(()),
            Self::Submitted(_) => Err(Error::new(OUTRIGGER_PENDING, "the task has not ended yet")),
            Self::Failed(why, _) => Err(Error::new(failure(why), why.to_string())),
            Self::Filling(_) | Self::Gone => Err(not(self, "submitted")),
        }
    }
}

fn not(state: &State, wanted: &str) -> Error {
    Error::new(OUTRIGGER_STATE, format!("the task is {}, not {wanted}", state.name()))
}

/// The status of a task that failed.
pub fn failure(failure: &Failure) -> outrigger_status {
    use outrigger_offload::TaskError;
    match failure {
        Failure::Task(TaskError::Unsupported { .. }) => OUTRIGGER_UNSUPPORTED,
        Failure::Task(_) => OUTRIGGER_DATA,
        Failure::Panicked => OUTRIGGER_BUG,
        Failure::Cancelled => OUTRIGGER_CANCELLED,
        Failure::Expired => OUTRIGGER_EXPIRED,
        Failure::Stopped => OUTRIGGER_STOPPED,
    }
}

impl outrigger_task {
    fn new(draft: Draft) -> Arc<Self> {
        Arc::new_cyclic(|task| {
            let task: Weak<Self> = task.clone();
            let told = move |ended| {
                // If C has freed the task, nobody needs the result.
                if let Some(task) = task.upgrade() {
                    Self::end(&task, ended);
                }
            };
            let (state, converted) = (State::Filling(draft), Converted::default());
            let inner =
                Inner { state, turn: 0, callback: None, context: Context(std::ptr::null_mut()), converted };
            Self { inner: Mutex::new(inner), ended: Condvar::new(), told: Arc::new(told) }
        })
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls `fill` with the draft of a task that is being filled.
    pub fn draft<T>(&self, fill: impl FnOnce(&mut Draft) -> Result<T>) -> Result<T> {
        match &mut self.lock().state {
            State::Filling(draft) => fill(draft),
            other => Err(Error::new(
                OUTRIGGER_STATE,
                format!("the task is {}: only after outrigger_task_again() can it be filled", other.name()),
            )),
        }
    }

    fn submit(&self, runtime: &Runtime, block: bool) -> Result {
        let (mut draft, turn, is_told) = {
            let mut inner = self.lock();
            let State::Filling(draft) = &mut inner.state else {
                return Err(not(&inner.state, "to be submitted"));
            };
            draft.check().map_err(|why| Error::invalid(why.to_string()))?;
            let State::Filling(draft) = std::mem::replace(&mut inner.state, State::Submitted(None)) else {
                unreachable!("looked at under the same lock")
            };
            inner.turn += 1;
            (draft, inner.turn, inner.callback.is_some())
        };
        let told = Arc::clone(&self.told);
        // Our callback takes no lock that is held here, but C's callback may.
        if is_told {
            draft.set_callback(told)
        } else {
            draft.set_callback_anywhere(told)
        };
        let submitted = if block { runtime.submit(draft) } else { runtime.try_submit(draft) };
        let mut inner = self.lock();
        match submitted {
            Ok(ticket) => {
                // The task may have ended already, and its callback may have submitted it again.
                if inner.turn == turn
                    && let State::Submitted(slot) = &mut inner.state
                {
                    *slot = Some(ticket);
                }
                Ok(())
            }
            Err(refused) => {
                let status = if refused.full { OUTRIGGER_FULL } else { OUTRIGGER_STOPPED };
                let error = Error::new(status, refused.to_string());
                inner.state = State::Filling(refused.draft);
                Err(error)
            }
        }
    }

    /// Called by the runtime.
    fn end(self: &Arc<Self>, ended: std::result::Result<Finished, Failed>) {
        let mut inner = self.lock();
        inner.state = match ended {
            Ok(finished) => State::Done(finished),
            Err(Failed { reason, draft }) => State::Failed(reason, draft),
        };
        let (callback, context) = (inner.callback, inner.context);
        self.ended.notify_all();
        drop(inner);
        if let Some(callback) = callback {
            // SAFETY: C's contract; this share of the task outlives the call.
            unsafe { callback(context.0, Arc::as_ptr(self).cast_mut()) };
        }
    }

    fn wait(&self, until: Option<Instant>) -> Result {
        let mut inner = self.lock();
        while let State::Submitted(_) = inner.state {
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            inner = match left {
                Some(left) if left.is_zero() => break,
                Some(left) => self.ended.wait_timeout(inner, left).unwrap_or_else(PoisonError::into_inner).0,
                None => self.ended.wait(inner).unwrap_or_else(PoisonError::into_inner),
            };
        }
        inner.state.status()
    }

    fn cancel(&self) -> bool {
        let ticket = match &mut self.lock().state {
            State::Submitted(ticket) => ticket.take(),
            _ => None,
        };
        // Not under the lock, as a waiting task ends during this call.
        ticket.is_some_and(|ticket| ticket.cancel())
    }

    fn again(&self) -> Result {
        let mut inner = self.lock();
        let mut draft = match std::mem::replace(&mut inner.state, State::Gone) {
            State::Filling(draft) => draft,
            State::Done(finished) => finished.again(),
            State::Failed(_, Some(draft)) => draft,
            other => {
                inner.state = other;
                return Err(not(&inner.state, "at its end"));
            }
        };
        draft.clear_deadline();
        inner.state = State::Filling(draft);
        inner.converted.clear();
        Ok(())
    }
}
