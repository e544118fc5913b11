//! What the submitter holds while its task is under way.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::cell::Cell;
use super::shared::Shared;
use super::task::{Draft, Ended, Failed, Failure, Finished, Loan};

/// A submitted task: to be waited for, awaited, or cancelled. Dropping it lets the task go on without anybody waiting.
///
/// As a future it needs no particular executor: the thread that ends the task calls the waker.
#[must_use = "a task whose ticket is dropped is done for nothing, unless it has a callback"]
pub struct Ticket {
    id: u64,
    cell: Arc<Cell<Ended>>,
    home: Arc<Shared>,
    /// The outcome was taken, or goes to a callback: nothing is to be given up.
    over: bool,
}

impl Ticket {
    pub(super) fn new(id: u64, cell: Arc<Cell<Ended>>, home: Arc<Shared>, called_back: bool) -> Self {
        Self { id, cell, home, over: called_back }
    }

    /// Waits for the task's end.
    ///
    /// # Errors
    /// [`Failed`] says why it was not done; [`Failure::Cancelled`] also for one with a callback, whose end is told to
    /// that.
    pub fn wait(mut self) -> Result<Finished, Failed> {
        let ended = self.cell.wait(self.id);
        self.over = true;
        self.outcome(ended)
    }

    /// Whether it has ended, so that [`Ticket::wait`] would not wait.
    pub fn has_ended(&self) -> bool {
        !self.cell.is_pending(self.id)
    }

    /// Cancels the task. What waits is not done. What a device works on already is given up: the device finishes, and
    /// nobody sees it. Its callback, if it has one, is called. Says whether it came in time; if not, there is a result.
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
