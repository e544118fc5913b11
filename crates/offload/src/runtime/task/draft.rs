//! A task before it is submitted.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use outrigger_clock::Instant;
use outrigger_format::FingerprintKind;

use super::{Callback, Loan, Priority};
use crate::pool::Buffer;
use crate::work::{Input, InvalidWork, Request, Work};

/// A task that is being filled: what to do, with which data. Dropping it returns its buffers.
pub struct Draft(pub(super) Loan);

impl Draft {
    pub(in crate::runtime) fn new(loan: Loan) -> Self {
        Self(loan)
    }

    pub(in crate::runtime) fn into_loan(self) -> Loan {
        self.0
    }

    /// Says what is to be done.
    pub fn set_request(&mut self, request: Request) -> &mut Self {
        self.0.body_mut().set_request(request);
        self
    }

    /// Asks for the fingerprints of these pieces, in the vector of an earlier task.
    pub fn hash_many(
        &mut self,
        kind: FingerprintKind,
        pieces: impl IntoIterator<Item = Range<u32>>,
    ) -> &mut Self {
        let body = self.0.body_mut();
        let mut ranges = std::mem::take(&mut body.spare);
        ranges.clear();
        ranges.extend(pieces);
        body.set_request(Request::HashMany { kind, ranges });
        self
    }

    /// Its own buffer, to be filled; the data is all of it.
    ///
    /// # Panics
    /// When the data is shared.
    pub fn input(&mut self) -> &mut Buffer {
        let work = self.0.body_mut().work_mut();
        match &mut work.input {
            Input::Own(buffer) => buffer,
            Input::Shared(_) | Input::Empty => panic!("the task has no buffer of its own"),
        }
    }

    /// Uses a part of a buffer that other tasks read too. Its own goes back to the pool.
    pub fn share(&mut self, buffer: Arc<Buffer>, range: Range<usize>) -> &mut Self {
        let work = self.0.body_mut().work_mut();
        work.input = Input::Shared(buffer);
        self.set_range(range)
    }

    /// The part of its own buffer that is meant; without this, all of it.
    pub fn set_range(&mut self, range: Range<usize>) -> &mut Self {
        let body = self.0.body_mut();
        body.work_mut().range = range;
        body.ranged = true;
        self
    }

    /// How urgent it is.
    pub fn set_priority(&mut self, priority: Priority) -> &mut Self {
        self.0.body_mut().priority = priority;
        self
    }

    /// If no device has begun with it by then, it fails as [`Failure::Expired`](super::Failure::Expired).
    pub fn set_deadline(&mut self, deadline: Instant) -> &mut Self {
        self.0.body_mut().deadline = Some(deadline);
        self
    }

    /// It may wait as long as it likes.
    pub fn clear_deadline(&mut self) -> &mut Self {
        self.0.body_mut().deadline = None;
        self
    }

    /// Sends it to one device, whatever placement thinks of it; to the processor if that device cannot do it, fails, or
    /// is cut off. The place is that in [`Metrics::devices`](crate::runtime::Metrics::devices); 0 is the processor.
    pub fn pin(&mut self, device: usize) -> &mut Self {
        self.0.body_mut().pinned = Some(device);
        self
    }

    /// Has `callback` called at its end. The ticket then only serves to cancel it.
    pub fn set_callback(&mut self, callback: Callback) -> &mut Self {
        let body = self.0.body_mut();
        (body.callback, body.called_anywhere) = (Some(callback), false);
        self
    }

    /// As [`Draft::set_callback`], for a callback that takes no lock that is held while the task is submitted: it may be called by the thread that submits, before
    /// that returns, so that small tasks need not be handed over ([`Policy::inline_max`](crate::placement::Policy::inline_max)).
    pub fn set_callback_anywhere(&mut self, callback: Callback) -> &mut Self {
        let body = self.0.body_mut();
        (body.callback, body.called_anywhere) = (Some(callback), true);
        self
    }

    /// What is asked for so far.
    pub fn work(&self) -> &Work {
        &self.0.body().work
    }

    /// Whether it can be submitted as it is.
    ///
    /// # Errors
    /// [`InvalidWork`]: what [`Runtime::submit`](crate::runtime::Runtime::submit) would panic about.
    pub fn check(&mut self) -> Result<(), InvalidWork> {
        self.0.body_mut().settle_range();
        self.work().check()
    }
}

impl fmt::Debug for Draft {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Draft").field(&self.work().class()).finish()
    }
}
