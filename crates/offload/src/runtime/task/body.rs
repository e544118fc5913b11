//! The reusable state of a task, and the loan that returns it.

use std::ops::Range;
use std::sync::Arc;

use outrigger_clock::Instant;

use super::{Callback, Ended, Priority, Report};
use crate::runtime::cell::Cell;
use crate::runtime::queue::Costs;
use crate::runtime::shared::Shared;
use crate::work::{Class, Input, Output, Request, Work};

/// Everything about one task.
pub(in crate::runtime) struct Body {
    pub id: u64,
    pub cell: Arc<Cell<Ended>>,
    pub work: Arc<Work>,
    pub output: Output,
    pub priority: Priority,
    pub deadline: Option<Instant>,
    pub pinned: Option<usize>,
    pub callback: Option<Callback>,
    /// The submitter may call it before `submit` returns.
    pub called_anywhere: bool,
    /// The vector of an earlier fingerprint request.
    pub spare: Vec<Range<u32>>,
    pub class: Class,
    pub bytes: usize,
    /// True if the submitter has chosen a part of the buffer.
    pub ranged: bool,
    /// Tasks that the device had when this one was submitted.
    pub before: usize,
    /// The task's cost on each device, for the queues.
    pub costs: Costs,
    pub submitted: Instant,
    pub begun: Instant,
    pub report: Report,
    /// The device whose result lies in `output` and must be checked before anybody sees it.
    pub to_check: Option<usize>,
}

impl Body {
    pub(in crate::runtime) fn new() -> Box<Self> {
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
            called_anywhere: false,
            spare: Vec::new(),
            class: Request::default().class(),
            bytes: 0,
            ranged: false,
            before: 0,
            costs: Costs::NONE,
            submitted: now,
            begun: now,
            report: Report::default(),
            to_check: None,
        })
    }

    /// The work, to be changed. If a hung device still shares it, the device keeps the old one.
    pub(in crate::runtime) fn work_mut(&mut self) -> &mut Work {
        if Arc::get_mut(&mut self.work).is_none() {
            self.work = Arc::new(Work::empty());
        }
        Arc::get_mut(&mut self.work).expect("nobody else can have it")
    }

    /// Unless the submitter has chosen a part of its own buffer, takes all of it.
    pub(in crate::runtime) fn settle_range(&mut self) {
        if !self.ranged
            && let Input::Own(buffer) = &self.work.input
        {
            let len = buffer.len();
            self.work_mut().range = 0..len;
        }
    }

    /// Replaces the request, and keeps the capacity of its list.
    pub(super) fn set_request(&mut self, request: Request) {
        let old = std::mem::replace(&mut self.work_mut().request, request);
        if let Request::HashMany { ranges, .. } = old
            && ranges.capacity() > self.spare.capacity()
        {
            self.spare = ranges;
        }
    }

    /// Resets the task: buffers return to the pool, and vectors are emptied.
    pub(in crate::runtime) fn reset(&mut self) {
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
        self.called_anywhere = false;
        self.report = Report::default();
        self.to_check = None;
    }
}

/// A body on loan. It returns to the idle ones when dropped.
pub(in crate::runtime) struct Loan {
    body: Option<Box<Body>>,
    home: Arc<Shared>,
}

impl Loan {
    pub(in crate::runtime) fn new(body: Box<Body>, home: Arc<Shared>) -> Self {
        Self { body: Some(body), home }
    }

    pub(super) fn body(&self) -> &Body {
        self.body.as_ref().expect("a loan has its body until it ends")
    }

    pub(super) fn body_mut(&mut self) -> &mut Body {
        self.body.as_mut().expect("a loan has its body until it ends")
    }

    pub(in crate::runtime) fn into_body(mut self) -> Box<Body> {
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
