//! The submitter's handle to its task.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::cell::Cell;
use super::shared::Shared;
use super::task::{Draft, Ended, Failed, Failure, Finished, Loan};

/// A submitted task, to wait for, await, or cancel. After dropping it, the task still runs, but
/// nobody gets the result.
///
/// As a future it needs no particular executor: the thread that ends the task calls the waker.
#[must_use = "a task whose ticket is dropped is done for nothing, unless it has a callback"]
pub struct Ticket {
    id: u64,
    cell: Arc<Cell<Ended>>,
    home: Arc<Shared>,
    /// The outcome was taken or goes to a callback, so dropping gives nothing up.
    over: bool,
}

impl Ticket {
    pub(super) fn new(id: u64, cell: Arc<Cell<Ended>>, home: Arc<Shared>, called_back: bool) -> Self {
        Self { id, cell, home, over: called_back }
    }

    /// Waits for the task's end.
    ///
    /// # Errors
    /// [`Failed`] says why the task was not done. A task with a callback always yields
    /// [`Failure::Cancelled`] here, as the callback gets the outcome.
    pub fn wait(mut self) -> Result<Finished, Failed> {
        let ended = self.cell.wait(self.id);
        self.over = true;
        self.outcome(ended)
    }

    /// True if the task has ended, so that [`Ticket::wait`] would not block.
    pub fn has_ended(&self) -> bool {
        !self.cell.is_pending(self.id)
    }

    /// Cancels the task. A waiting task is not executed. A device that already works on it
    /// finishes, but its result is dropped. The callback, if any, is called. Returns false if the
    /// task had already ended.
    pub fn cancel(&self) -> bool {
        self.home.cancel(self.id, &self.cell)
    }

    fn outcome(&self, ended: Option<Ended>) -> Result<Finished, Failed> {
        match ended {
            Some((body, None)) => Ok(Finished::new(Loan::new(body, Arc::clone(&self.home)))),
            Some((body, Some(reason))) => {
                let draft = Some(Draft::new(Loan::new(body, Arc::clone(&self.home))));
                Err(Failed { reason, draft })
            }
            None => Err(Failed { reason: Failure::Cancelled, draft: None }),
        }
    }
}

impl Future for Ticket {
    type Output = Result<Finished, Failed>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        this.cell.poll(this.id, context).map(|ended| {
            this.over = true;
            this.outcome(ended)
        })
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if !self.over
            && let Some((body, _)) = self.cell.give_up(self.id)
        {
            self.home.give_back(body);
        }
    }
}

impl std::fmt::Debug for Ticket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ticket").field("id", &self.id).field("has_ended", &self.has_ended()).finish()
    }
}
