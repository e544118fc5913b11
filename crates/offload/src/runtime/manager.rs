//! The manager thread of a device. It keeps the device busy, and re-initialises it after a failure.
//!
//! No other thread calls the device. The manager takes no task while `in_flight_max` tasks are on
//! the device, or while the device is cut off. It waits for the earliest of: a task, the device's
//! waker, the next poll, and the next attempt to re-initialise.

use std::sync::Arc;
use std::task::{Wake, Waker};
use std::time::Duration;

use outrigger_clock::Instant;

use super::answers::KnownAnswers;
use super::lane::{Lane, Running, add};
use super::queue::Next;
use super::shared::Shared;
use super::sync::lock;
use super::task::{Body, Failure};
use crate::accelerator::{Accelerator, Completion, Fault, StageTimes, Submission};
use crate::placement::Stages;

pub(super) struct Manager {
    shared: Arc<Shared>,
    lane: usize,
    device: Box<dyn Accelerator>,
    /// Submissions that the device has not answered, given up or not.
    in_flight: usize,
    /// True if the one task in flight has been alone from the start.
    alone: bool,
    done: Vec<Completion>,
    answers: KnownAnswers,
}

/// Wakes a manager on behalf of its device.
struct Bell {
    shared: Arc<Shared>,
    lane: usize,
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.shared.board.wake(self.lane);
    }
}

impl Manager {
    pub(super) fn new(shared: Arc<Shared>, lane: usize, device: Box<dyn Accelerator>) -> Self {
        let done = Vec::with_capacity(device.in_flight_max());
        let answers = KnownAnswers::default();
        Self { shared, lane, device, in_flight: 0, alone: false, done, answers }
    }

    fn lane(&self) -> &Lane {
        &self.shared.lanes[self.lane]
    }

    /// The main loop of the thread.
    pub(super) fn run(mut self) {
        let bell = Bell { shared: Arc::clone(&self.shared), lane: self.lane };
        if let Err(fault) = self.device.attach(Waker::from(Arc::new(bell))) {
            self.shared.fault(self.lane, &grave(fault));
        }
        loop {
            self.collect();
            if self.lane().is_open() {
                self.repair_if_due();
            }
            let may_take = !self.lane().is_open() && self.in_flight < self.device.in_flight_max();
            let poll = if self.in_flight > 0 { self.device.poll_interval() } else { None };
            let poll = poll.map(|interval| Instant::now() + interval);
            let retry = lock(&self.lane().breaker).retry_at();
            let until = poll.into_iter().chain(retry).min();
            match self.shared.board.next(self.lane, may_take, until) {
                Next::Item(body, cost) => self.start(body, cost),
                Next::Woken | Next::Called | Next::Elapsed => {}
                Next::Ended => return,
            }
        }
    }

    fn start(&mut self, mut body: Box<Body>, cost: u64) {
        let now = Instant::now();
        if body.deadline.is_some_and(|deadline| deadline < now) {
            self.shared.board.finished(self.lane, cost, false);
            self.shared.end(body, Some(Failure::Expired));
            self.shared.board.settled();
            return;
        }
        body.begun = now;
        body.report.queue = now.saturating_duration_since(body.submitted);
        let need = self.device.output_room(&body.work);
        if need > 0 && body.output.bytes.buffer_room() < need {
            body.output.bytes.provide(self.shared.pool.alloc(need));
        }
        let submission = Submission {
            id: body.id,
            work: Arc::clone(&body.work),
            output: std::mem::take(&mut body.output),
        };
        let limit = now + self.patience(&body);
        let refused = {
            let lane = &self.shared.lanes[self.lane];
            let mut running = lock(&lane.running);
            if lane.is_open() {
                Some(body)
            } else {
                running.push(Running { body, cost, limit });
                None
            }
        };
        if let Some(body) = refused {
            drop(submission);
            self.shared.board.finished(self.lane, cost, false);
            self.shared.to_processor(body, self.lane);
            return;
        }
        self.shared.watch.limit(limit);
        self.alone = self.in_flight == 0;
        self.in_flight += 1;
        self.device.submit(submission);
    }

    /// How long the device may take: a multiple of the prediction for all tasks on it.
    fn patience(&self, body: &Body) -> Duration {
        let policy = &self.shared.policy;
        let own = self.shared.model.predict(self.lane, body.class, body.bytes);
        let own = own.map_or(0.0, |stages| stages.latency());
        let before: u64 = lock(&self.lane().running).iter().map(|running| running.cost).sum();
        let expected = (own + before as f64) * policy.hang_factor;
        policy.hang_floor.max(Duration::from_nanos(expected as u64))
    }

    /// Takes the device's finished tasks.
    fn collect(&mut self) {
        let mut done = std::mem::take(&mut self.done);
        self.device.poll(&mut done);
        for completion in done.drain(..) {
            self.in_flight = self.in_flight.saturating_sub(1);
            self.complete(completion);
        }
        self.done = done;
    }

    fn complete(&mut self, completion: Completion) {
        let Completion { submission, result } = completion;
        let taken = {
            let mut running = lock(&self.lane().running);
            let at = running.iter().position(|running| running.body.id == submission.id);
            at.map(|at| running.swap_remove(at))
        };
        // The processor already has a task that was given up in the meantime.
        let Some(Running { mut body, cost, .. }) = taken else { return };
        // Drops the device's share of the work first, so that only the task shares it.
        body.output = submission.output;
        drop(submission.work);
        self.shared.board.finished(self.lane, cost, false);
        match result {
            Ok(stages) => self.succeed(body, stages),
            Err(fault) => {
                self.shared.fault(self.lane, &fault);
                self.shared.to_processor(body, self.lane);
            }
        }
    }

    fn succeed(&mut self, mut body: Box<Body>, stages: StageTimes) {
        let service = body.begun.elapsed();
        body.report.device = self.lane;
        body.report.stages = stages;
        let lane = self.lane();
        lane.counters.done(body.bytes, body.report.queue, &stages);
        let measured = Stages {
            overhead: service.saturating_sub(stages.sum()).as_nanos() as f64,
            copy_in: stages.copy_in.as_nanos() as f64,
            work: stages.kernel.as_nanos() as f64,
            copy_out: stages.copy_out.as_nanos() as f64,
        };
        let learn = self.shared.policy.learn;
        self.shared.model.observe(self.lane, body.class, body.bytes, measured, self.alone, learn);
        let away = body.submitted.elapsed().as_nanos() as f64;
        self.shared.model.returned(self.lane, body.class, body.bytes, away, body.before, learn);
        if lane.wants_check(&self.shared.policy) {
            body.to_check = Some(self.lane);
            self.shared.put_to_processor(body);
            return;
        }
        lane.success(&self.shared.policy);
        self.shared.end(body, None);
        self.shared.board.settled();
    }

    /// Re-initialises a device that was cut off, if it is time.
    fn repair_if_due(&mut self) {
        let due = lock(&self.lane().breaker).retry_at().is_some_and(|at| at <= Instant::now());
        if !due {
            return;
        }
        add(&self.lane().counters.resets, 1);
        let repaired = self.device.reset().and_then(|()| {
            self.in_flight = 0;
            self.device.probe()?;
            self.answers.ask(&mut *self.device, &self.shared, self.lane)
        });
        let policy = &self.shared.policy;
        match repaired {
            Ok(()) => self.lane().let_in(policy),
            Err(_) => lock(&self.lane().breaker).still_bad(Instant::now(), policy),
        }
    }
}

/// A device that cannot be attached counts as lost, whatever fault it reports.
fn grave(fault: Fault) -> Fault {
    if fault.is_grave() { fault } else { Fault::Lost(fault.to_string().into()) }
}
