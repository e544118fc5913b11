//! A task's life: [`Draft`] (idle, being filled), [`Ticket`](super::Ticket) (submitted), [`Finished`] or [`Failed`].
//!
//! All of them are one [`Body`] that goes round: its vectors keep their room, its cell and its `Arc` are used again, so
//! that in steady state a task allocates nothing.

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

/// Which of the waiting tasks of a device is next. Strictly: a lower one waits while a higher one is there.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub enum Priority {
    /// Somebody waits for it.
    High,
    /// The rest.
    #[default]
    Normal,
    /// Only when there is nothing else: upkeep.
    Low,
}

/// Called with a task's end, by the thread that brought it about: quick, or it holds up a device.
pub type Callback = Arc<dyn Fn(Result<Finished, Failed>) + Send + Sync>;

/// Why a task has no result.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Failure {
    /// Its data or its parameters are no good: the processor says so.
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

/// What became of a task, and how long it took.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Report {
    /// The place of the device that did it in [`Metrics::devices`](super::Metrics::devices); 0 is the processor.
    pub device: usize,
    /// From its submission until a device began with it.
    pub queue: Duration,
    /// On the device. For the processor, all is `kernel`: the time of all threads that shared the task.
    pub stages: StageTimes,
    /// From its submission to its end.
    pub total: Duration,
    /// What `total` was predicted to be; zero without a prediction.
    pub predicted: Duration,
    /// How many devices failed at it before.
    pub fallbacks: u32,
    /// Whether its result was compared with the processor's.
    pub checked: bool,
}

/// A body at its end, as it lies in the cell.
pub(super) type Ended = (Box<Body>, Option<Failure>);

/// A task that was done.
pub struct Finished(Loan);

impl Finished {
    pub(super) fn new(loan: Loan) -> Self {
        Self(loan)
    }

    /// What came of it.
    pub fn output(&self) -> &Output {
        &self.0.body().output
    }

    /// The same, to be taken or changed.
    pub fn output_mut(&mut self) -> &mut Output {
        &mut self.0.body_mut().output
    }

    /// What was asked for, with its data.
    pub fn work(&self) -> &Work {
        &self.0.body().work
    }

    /// Who did it, and how long it took.
    pub fn report(&self) -> &Report {
        &self.0.body().report
    }

    /// The same task again, as it was asked for, in the same buffers.
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
    /// The task as it was asked for, to get at its data, unless a device still works at it.
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
