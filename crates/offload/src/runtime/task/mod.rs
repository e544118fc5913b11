//! A task's life: [`Draft`] (idle, being filled), [`Ticket`](super::Ticket) (submitted),
//! [`Finished`] or [`Failed`].
//!
//! All of them hold the same [`Body`], which is reused: its vectors keep their capacity, and its
//! cell and its `Arc` serve again. So in steady state a task allocates nothing.

mod body;
mod draft;

pub(super) use body::{Body, Loan};
pub use draft::Draft;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::TaskError;
use crate::accelerator::StageTimes;
use crate::work::{Output, Work};

/// The order of a device's waiting tasks. It is strict: a lower one waits while a higher one is
/// there.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub enum Priority {
    /// A caller waits for it.
    High,
    /// The rest.
    #[default]
    Normal,
    /// Upkeep: only when nothing else waits.
    Low,
}

/// Called when a task ends, by the thread that ended it. It must be quick, as it may hold up a
/// device.
pub type Callback = Arc<dyn Fn(Result<Finished, Failed>) + Send + Sync>;

/// Why a task has no result.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Failure {
    /// The processor says that its data or parameters are bad.
    #[error(transparent)]
    Task(#[from] TaskError),
    /// A user's function panicked.
    #[error("the operation's function panicked")]
    Panicked,
    /// It was cancelled.
    #[error("cancelled")]
    Cancelled,
    /// It had not been begun by its deadline.
    #[error("not begun by its deadline")]
    Expired,
    /// The runtime was shut down before it was begun.
    #[error("the runtime was shut down")]
    Stopped,
}

/// How a task was executed, and how long it took.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Report {
    /// The index in [`Metrics::devices`](super::Metrics::devices) of the device that did it. 0 is
    /// the processor.
    pub device: usize,
    /// From submission until a device began.
    pub queue: Duration,
    /// Times on the device. The processor has only `kernel`: the time of all threads that shared
    /// the task.
    pub stages: StageTimes,
    /// From submission to end.
    pub total: Duration,
    /// The prediction of `total`. Zero if there was none.
    pub predicted: Duration,
    /// How many devices failed at it.
    pub fallbacks: u32,
    /// True if the result was compared with the processor's.
    pub checked: bool,
}

/// An ended task, as the cell holds it.
pub(super) type Ended = (Box<Body>, Option<Failure>);

/// A task that was done.
pub struct Finished(Loan);

impl Finished {
    pub(super) fn new(loan: Loan) -> Self {
        Self(loan)
    }

    /// The result.
    pub fn output(&self) -> &Output {
        &self.0.body().output
    }

    /// The result, for the caller to take or change.
    pub fn output_mut(&mut self) -> &mut Output {
        &mut self.0.body_mut().output
    }

    /// The request, with its data.
    pub fn work(&self) -> &Work {
        &self.0.body().work
    }

    /// The device that did it, and how long it took.
    pub fn report(&self) -> &Report {
        &self.0.body().report
    }

    /// The same task again, with the same request and buffers.
    pub fn again(self) -> Draft {
        let mut draft = Draft(self.0);
        draft.0.body_mut().output.clear();
        draft
    }
}

/// A task that was not done.
pub struct Failed {
    /// Why.
    pub reason: Failure,
    /// The task, to get at its data. `None` if a device still works on it.
    pub draft: Option<Draft>,
}

impl fmt::Debug for Finished {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Finished").field(&self.work().class()).field(self.report()).finish()
    }
}

impl fmt::Debug for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Failed").field(&self.reason).finish()
    }
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.reason.fmt(f)
    }
}

impl std::error::Error for Failed {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.reason)
    }
}
