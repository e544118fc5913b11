//! The processor's threads. Each takes a task and executes it, with the help of idle threads if it
//! is large (`helpers.rs`). They also check sampled results of other devices. A submitter executes
//! very small tasks the same way.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use outrigger_clock::Instant;

use super::helpers::Job;
use super::lane::add;
use super::queue::Next;
use super::shared::Shared;
use super::task::{Body, Failure};
use crate::CpuDevice;
use crate::accelerator::{Fault, StageTimes};
use crate::placement::Stages;
use crate::work::split::is_worth_it;
use crate::work::{Output, Request, same_result};

/// The main loop of a worker thread.
pub(super) fn run(shared: &Arc<Shared>) {
    let mut worker = Worker::default();
    loop {
        match shared.board.next(0, true, None) {
            Next::Item(body, cost) => worker.take(shared, body, cost),
            Next::Called => shared.helpers.help(shared, &mut worker.cpu),
            Next::Woken | Next::Elapsed => {}
            Next::Ended => return,
        }
    }
}

/// A thread's tools for tasks.
#[derive(Default)]
pub(super) struct Worker {
    cpu: CpuDevice,
    /// For results that are checked.
    scratch: Output,
    /// For tasks that other threads help with.
    job: Arc<Job>,
}

impl Worker {
    /// Executes a task that was admitted and never queued.
    pub(super) fn begin(&mut self, shared: &Arc<Shared>, mut body: Box<Body>) {
        let begun = Instant::now();
        let failure = self.work(shared, &mut body, begun);
        shared.end(body, failure);
        shared.board.settled();
    }

    fn take(&mut self, shared: &Arc<Shared>, mut body: Box<Body>, cost: u64) {
        let begun = Instant::now();
        let failure = match body.to_check.take() {
            Some(lane) => self.check(shared, &mut body, lane),
            None if body.deadline.is_some_and(|deadline| deadline < begun) => Some(Failure::Expired),
            None => self.work(shared, &mut body, begun),
        };
        shared.board.finished(0, cost, false);
        shared.end(body, failure);
        shared.board.settled();
    }

    fn work(&mut self, shared: &Shared, body: &mut Body, begun: Instant) -> Option<Failure> {
        let mut output = std::mem::take(&mut body.output);
        let (failure, kernel) = match self.run(shared, body, &mut output) {
            Ok(spent) => (None, spent),
            Err(failure) => (Some(failure), begun.elapsed()),
        };
        body.output = output;
        let stages = StageTimes { kernel, ..StageTimes::default() };
        body.report.device = 0;
        body.report.queue = begun.saturating_duration_since(body.submitted);
        body.report.stages = stages;
        shared.lanes[0].counters.done(body.bytes, body.report.queue, &stages);
        if failure.is_none() {
            observe(shared, body, kernel);
            if is_worth_it(&body.work) && shared.board.load(0).running == 1 {
                let (took, learn) = (begun.elapsed().as_nanos() as f64, shared.policy.learn);
                shared.model.observe_together(body.class, body.bytes, took, learn);
            }
        }
        failure
    }

    /// Computes a device's result again. Afterwards the task's result is right in any case.
    fn check(&mut self, shared: &Arc<Shared>, body: &mut Body, lane: usize) -> Option<Failure> {
        // A compressed frame is right if it decompresses to the source, so it need not be
        // compressed again. But if it is hardly smaller than its source, the comparison with an
        // empty result fails, and the processor compresses it for comparison.
        if matches!(body.work.request, Request::Compress { .. })
            && same_result(&body.work, &Output::default(), &body.output, &mut self.cpu)
        {
            add(&shared.lanes[lane].counters.checked, 1);
            body.report.checked = true;
            shared.lanes[lane].success(&shared.policy);
            return None;
        }
        let mut expected = std::mem::take(&mut self.scratch);
        let truth = self.run(shared, body, &mut expected);
        if matches!(truth, Err(Failure::Cancelled)) {
            // Nobody wants the result any more, and there is nothing to compare it with.
            self.scratch = expected;
            return truth.err();
        }
        add(&shared.lanes[lane].counters.checked, 1);
        body.report.checked = true;
        let same = match &truth {
            Ok(spent) => {
                observe(shared, body, *spent);
                same_result(&body.work, &expected, &body.output, &mut self.cpu)
            }
            // A user's kernel cannot report bad data.
            Err(_) => matches!(body.work.request, Request::User { .. }),
        };
        if same {
            shared.lanes[lane].success(&shared.policy);
        } else {
            std::mem::swap(&mut body.output, &mut expected);
            body.report.device = 0;
            body.report.fallbacks += 1;
            add(&shared.lanes[lane].counters.given_up, 1);
            shared.fault(lane, &Fault::Wrong);
        }
        self.scratch = expected;
        truth.err()
    }

    /// Executes a task, and returns the time of all threads together.
    fn run(&mut self, shared: &Shared, body: &Body, output: &mut Output) -> Result<Duration, Failure> {
        if let Some(done) = self.job.lead(shared, body, &mut self.cpu, output) {
            return done;
        }
        let begun = Instant::now();
        let done = catch_unwind(AssertUnwindSafe(|| body.work.run_on(&mut self.cpu, output)));
        match done {
            Ok(done) => done.map(|()| begun.elapsed()).map_err(Failure::Task),
            Err(_) => {
                // A panic may have left the compressors in any state.
                self.cpu = CpuDevice::new();
                Err(Failure::Panicked)
            }
        }
    }
}

fn observe(shared: &Shared, body: &Body, took: Duration) {
    let stages = Stages { work: took.as_nanos() as f64, ..Stages::default() };
    shared.model.observe(0, body.class, body.bytes, stages, true, shared.policy.learn);
}
