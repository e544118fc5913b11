//! A task's life: [`Draft`] (idle, being filled), [`Ticket`](super::Ticket) (submitted), [`Finished`] or [`Failed`].
//!
//! All of them are one [`Body`] that goes round: its vectors keep their room, its cell and its `Arc` are used again, so
//! that in steady state a task allocates nothing.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use outrigger_format::FingerprintKind;

use super::cell::Cell;
use super::queue::Costs;
use super::shared::Shared;
use crate::TaskError;
use crate::device::StageTimes;
use crate::pool::Buffer;
use crate::work::{Class, Input, Output, Request, Work};

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
    /// On the device. For the processor, all is `kernel`.
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

/// Everything about one task.
pub(super) struct Body {
    pub id: u64,
    pub cell: Arc<Cell<Ended>>,
    pub work: Arc<Work>,
    pub output: Output,
    pub priority: Priority,
    pub deadline: Option<Instant>,
    pub pinned: Option<usize>,
    pub callback: Option<Callback>,
    /// The vector of an earlier request for fingerprints.
    pub spare: Vec<Range<u32>>,
    pub class: Class,
    pub bytes: usize,
    /// Whether the submitter has said which part of the buffer is meant.
    pub ranged: bool,
    /// What each device would need, for the queues.
    pub costs: Costs,
    pub submitted: Instant,
    pub begun: Instant,
    pub report: Report,
    /// The device whose result lies in `output`, to be checked before anybody sees it.
    pub to_check: Option<usize>,
}

/// A body at its end, as it lies in the cell.
pub(super) type Ended = (Box<Body>, Option<Failure>);

impl Body {
    pub(super) fn new() -> Box<Self> {
        let now = Instant::now();
        Box::new(Self {
            id: 0,
            cell: Arc::new(Cell::new()),
            work: Arc::new(Work::empty()),
            output: Output::default(),
            priority: Priority::Normal,
            deadline: None,
            pinned: None,
            callback: None,
            spare: Vec::new(),
            class: Request::default().class(),
            bytes: 0,
            ranged: false,
            costs: Costs::NONE,
            submitted: now,
            begun: now,
            report: Report::default(),
            to_check: None,
        })
    }

    /// The work, to be changed. If a device that hangs still has its share of it, it keeps the old one.
    pub(super) fn work_mut(&mut self) -> &mut Work {
        if Arc::get_mut(&mut self.work).is_none() {
            self.work = Arc::new(Work::empty());
        }
        Arc::get_mut(&mut self.work).expect("nobody else can have it")
    }

    /// Replaces the request, and keeps the room of its list.
    fn set_request(&mut self, request: Request) {
        let old = std::mem::replace(&mut self.work_mut().request, request);
        if let Request::HashMany { ranges, .. } = old
            && ranges.capacity() > self.spare.capacity()
        {
            self.spare = ranges;
        }
    }

    /// As good as new, with buffers returned to the pool and vectors emptied.
    pub(super) fn reset(&mut self) {
        let work = self.work_mut();
        work.input = Input::Empty;
        work.range = 0..0;
        self.ranged = false;
        // Tables and users' operations may be large: an idle task holds none.
        self.set_request(Request::default());
        self.output.clear();
        self.output.bytes.take_buffer();
        self.priority = Priority::Normal;
        self.deadline = None;
        self.pinned = None;
        self.callback = None;
        self.report = Report::default();
        self.to_check = None;
    }
}

/// A body on loan; it goes back to the idle ones.
pub(super) struct Loan {
    body: Option<Box<Body>>,
    home: Arc<Shared>,
}

impl Loan {
    pub(super) fn new(body: Box<Body>, home: Arc<Shared>) -> Self {
        Self { body: Some(body), home }
    }

    fn body(&self) -> &Body {
        self.body.as_ref().expect("a loan has its body until it ends")
    }

    fn body_mut(&mut self) -> &mut Body {
        self.body.as_mut().expect("a loan has its body until it ends")
    }

    pub(super) fn into_body(mut self) -> Box<Body> {
        self.body.take().expect("a loan has its body until it ends")
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        if let Some(body) = self.body.take() {
            self.home.give_back(body);
        }
    }
}

/// A task that is being filled: what to do, with which data. Dropping it returns its buffers.
pub struct Draft(Loan);

impl Draft {
    pub(super) fn new(loan: Loan) -> Self {
        Self(loan)
    }

    pub(super) fn into_loan(self) -> Loan {
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

    /// If no device has begun with it by then, it fails as [`Failure::Expired`].
    pub fn set_deadline(&mut self, deadline: Instant) -> &mut Self {
        self.0.body_mut().deadline = Some(deadline);
        self
    }

    /// Sends it to one device, whatever placement thinks of it; to the processor if that device cannot do it, fails, or
    /// is cut off. The place is that in [`Metrics::devices`](super::Metrics::devices); 0 is the processor.
    pub fn pin(&mut self, device: usize) -> &mut Self {
        self.0.body_mut().pinned = Some(device);
        self
    }

    /// Has `callback` called at its end. The ticket then only serves to cancel it.
    pub fn set_callback(&mut self, callback: Callback) -> &mut Self {
        self.0.body_mut().callback = Some(callback);
        self
    }

    /// What is asked for so far.
    pub fn work(&self) -> &Work {
        &self.0.body().work
    }
}

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

impl fmt::Debug for Draft {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Draft").field(&self.work().class()).finish()
    }
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
