//! A task before it is submitted.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use outrigger_clock::Instant;
use outrigger_format::FingerprintKind;

use super::{Callback, Loan, Priority};
use crate::pool::Buffer;
use crate::work::{Input, InvalidWork, Request, Work};

/// A task that the caller is filling with a request and data. Dropping it returns its buffers.
pub struct Draft(pub(super) Loan);

impl Draft {
    pub(in crate::runtime) fn new(loan: Loan) -> Self {
        Self(loan)
    }

    pub(in crate::runtime) fn into_loan(self) -> Loan {
        self.0
    }

    /// Sets the request.
    pub fn set_request(&mut self, request: Request) -> &mut Self {
        self.0.body_mut().set_request(request);
        self
    }

    /// Requests the fingerprints of these pieces, and reuses an earlier task's vector.
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

    /// The task's own buffer, to be filled. All of it is the data, unless [`Draft::set_range`] says
    /// otherwise.
    ///
    /// # Panics
    /// If the data is shared.
    pub fn input(&mut self) -> &mut Buffer {
        let work = self.0.body_mut().work_mut();
        match &mut work.input {
            Input::Own(buffer) => buffer,
            Input::Shared(_) | Input::Empty => panic!("the task has no buffer of its own"),
        }
    }

    /// Uses a part of a buffer that other tasks read too. The task's own buffer returns to the
    /// pool.
    pub fn share(&mut self, buffer: Arc<Buffer>, range: Range<usize>) -> &mut Self {
        let work = self.0.body_mut().work_mut();
        work.input = Input::Shared(buffer);
        self.set_range(range)
    }

    /// Makes only this part of the buffer the data.
    pub fn set_range(&mut self, range: Range<usize>) -> &mut Self {
        let body = self.0.body_mut();
        body.work_mut().range = range;
        body.ranged = true;
        self
    }

    /// Sets the priority.
    pub fn set_priority(&mut self, priority: Priority) -> &mut Self {
        self.0.body_mut().priority = priority;
        self
    }

    /// If no device has begun by then, the task fails as
    /// [`Failure::Expired`](super::Failure::Expired).
    pub fn set_deadline(&mut self, deadline: Instant) -> &mut Self {
        self.0.body_mut().deadline = Some(deadline);
        self
    }

    /// Removes the deadline.
    pub fn clear_deadline(&mut self) -> &mut Self {
        self.0.body_mut().deadline = None;
        self
    }

    /// Sends the task to one device, regardless of placement. The processor does it if that device
    /// cannot do it, fails, or is cut off. `device` is its index in
    /// [`Metrics::devices`](crate::runtime::Metrics::devices); 0 is the processor.
    pub fn pin(&mut self, device: usize) -> &mut Self {
        self.0.body_mut().pinned = Some(device);
        self
    }

    /// Has `callback` called when the task ends. The ticket then serves only to cancel it.
    pub fn set_callback(&mut self, callback: Callback) -> &mut Self {
        let body = self.0.body_mut();
        (body.callback, body.called_anywhere) = (Some(callback), false);
        self
    }

    /// Like [`Draft::set_callback`], but the submitting thread may make the call before `submit`
    /// returns. So `callback` must not take a lock that the submitter holds. This lets the
    /// submitter execute small tasks itself
    /// ([`Policy::inline_max`](crate::placement::Policy::inline_max)).
    pub fn set_callback_anywhere(&mut self, callback: Callback) -> &mut Self {
        let body = self.0.body_mut();
        (body.callback, body.called_anywhere) = (Some(callback), true);
        self
    }

    /// The request so far.
    pub fn work(&self) -> &Work {
        &self.0.body().work
    }

    /// Checks that the task can be submitted.
    ///
    /// # Errors
    /// [`InvalidWork`] if [`Runtime::submit`](crate::runtime::Runtime::submit) would panic.
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
