//! The state that all threads of a runtime share, and the paths of tasks between them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use outrigger_clock::Instant;

use super::breaker::BreakerState;
use super::cell::Cell;
use super::cpu::Worker;
use super::helpers::Helpers;
use super::lane::{Lane, add};
use super::queue::{Board, Costs, LANES_MAX, Load, Refusal};
use super::sync::{Mutex, lock};
use super::task::{Body, Draft, Ended, Failed, Failure, Finished, Loan};
use super::ticket::Ticket;
use super::watchdog::Watch;
use crate::accelerator::Fault;
use crate::placement::{Advice, Candidate, Explore, Model, Objective, Policy, choose};
use crate::pool::Pool;
use crate::work::split::is_worth_it;
use crate::work::{Input, Request};

pub(super) struct Shared {
    pub policy: Policy,
    pub board: Board<Box<Body>>,
    /// The first is the processor.
    pub lanes: Vec<Lane>,
    pub model: Model,
    pub pool: Pool,
    pub watch: Watch,
    pub helpers: Helpers,
    #[allow(
        clippy::vec_box,
        reason = "a task moves through all queues as one pointer, also through this one"
    )]
    idle: Mutex<Vec<Box<Body>>>,
    /// The workers with which submitters execute small tasks themselves.
    hands: Mutex<Vec<Worker>>,
    next_id: AtomicU64,
    pub failed: AtomicU64,
}

/// How many submitters can execute small tasks at the same time without allocating.
const HANDS: usize = 64;

/// The facts about a task that are known before the queues are read.
struct Plan {
    advice: Advice,
    /// The devices that could take it.
    eligible: [bool; LANES_MAX],
    /// Those of them that take one task at a time.
    trial: [bool; LANES_MAX],
    /// True if idle threads of the processor share it.
    shared: bool,
}

impl Shared {
    pub(super) fn new(
        policy: Policy,
        board: Board<Box<Body>>,
        lanes: Vec<Lane>,
        model: Model,
        pool: Pool,
    ) -> Self {
        // One for each task that can be outstanding, running, or held by a submitter.
        let idle = Mutex::new(Vec::with_capacity(2 * policy.outstanding_max));
        let (next_id, failed) = (AtomicU64::new(1), AtomicU64::new(0));
        let watch = Watch::new(2 * policy.outstanding_max);
        let helpers = Helpers::new(lanes[0].width);
        let hands = Mutex::new(Vec::with_capacity(HANDS));
        Self { policy, board, lanes, model, pool, watch, helpers, idle, hands, next_id, failed }
    }

    /// An idle task with its own buffer.
    pub(super) fn draft(self: &Arc<Self>, bytes: usize) -> Draft {
        let mut body = lock(&self.idle).pop().unwrap_or_else(Body::new);
        body.work_mut().input = Input::Own(self.pool.alloc(bytes));
        Draft::new(Loan::new(body, Arc::clone(self)))
    }

    /// Returns a task to the idle ones.
    pub(super) fn give_back(&self, mut body: Box<Body>) {
        body.reset();
        let mut idle = lock(&self.idle);
        if idle.len() < idle.capacity() {
            idle.push(body);
        }
    }

    /// Admits a task, or returns it with the reason.
    pub(super) fn submit(self: &Arc<Self>, draft: Draft, block: bool) -> Result<Ticket, (Draft, Refusal)> {
        let mut body = draft.into_loan().into_body();
        body.settle_range();
        body.work.assert_valid();
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        body.id = id;
        body.class = body.work.class();
        body.bytes = body.work.len_in();
        body.submitted = Instant::now();
        body.report = Default::default();
        let cell = Arc::clone(&body.cell);
        cell.begin(id);
        let (plan, deadline, priority) = (self.plan(&body), body.deadline, body.priority as usize);
        let called_back = body.callback.is_some();
        if (!called_back || body.called_anywhere)
            && deadline.is_none()
            && let Some(predicted) = self.too_small(&plan, &body)
            && self.board.admit()
        {
            body.report.predicted = predicted;
            self.do_here(body);
            return Ok(Ticket::new(id, cell, Arc::clone(self), called_back));
        }
        let place =
            |loads: &mut dyn Iterator<Item = Load>, body: &mut Box<Body>| self.place(&plan, loads, body);
        match self.board.submit(id, priority, body, block, place) {
            Ok(()) => {
                if let Some(deadline) = deadline {
                    self.watch.deadline(deadline, id, || self.board.waiting());
                }
                Ok(Ticket::new(id, cell, Arc::clone(self), called_back))
            }
            Err((body, refusal)) => {
                cell.close(id);
                Err((Draft::new(Loan::new(body, Arc::clone(self))), refusal))
            }
        }
    }

    /// The processor's predicted time for a task, if handing it over would take longer.
    fn too_small(&self, plan: &Plan, body: &Body) -> Option<Duration> {
        let advice = &plan.advice;
        let own = advice.predicted[0].filter(|_| plan.eligible[0])?.latency();
        let spared = self.policy.objective == Objective::Cpu;
        let no_faster = |at: usize| {
            !plan.eligible[at] || !spared && advice.predicted[at].is_none_or(|other| other.latency() >= own)
        };
        // Exploring with a small task on a slow device would cost as much as many other tasks.
        let too_bad = |at: usize| {
            let worst = own * self.policy.explore_worst;
            !plan.eligible[at] || advice.predicted[at].is_none_or(|other| other.latency() > worst)
        };
        let explored = match advice.explore {
            Explore::No => true,
            Explore::First(_) => false,
            Explore::SecondBest => (1..self.lanes.len()).all(too_bad),
        };
        let brief = match &body.work.request {
            Request::User { operation, .. } => operation.is_brief(),
            _ => true,
        };
        let small = own <= self.policy.inline_max.as_nanos() as f64
            && explored
            && brief
            && (1..self.lanes.len()).all(no_faster);
        small.then(|| Duration::from_nanos(own as u64))
    }

    /// Executes an admitted task on the submitter's thread.
    fn do_here(self: &Arc<Self>, body: Box<Body>) {
        let mut hand = lock(&self.hands).pop().unwrap_or_default();
        hand.begin(self, body);
        let mut hands = lock(&self.hands);
        if hands.len() < hands.capacity() {
            hands.push(hand);
        }
    }

    /// Collects all that can be known without the queues' lock.
    fn plan(&self, body: &Body) -> Plan {
        let (mut eligible, mut trial) = ([false; LANES_MAX], [false; LANES_MAX]);
        for (at, lane) in self.lanes.iter().enumerate() {
            let Some(capabilities) = &lane.capabilities else {
                eligible[at] = body.pinned.is_none_or(|pinned| pinned == at);
                continue;
            };
            let wanted = match body.pinned {
                Some(pinned) => pinned == at,
                None => self.policy.may_offload(body.class, body.bytes),
            };
            let state = lane.state();
            eligible[at] = wanted && state != BreakerState::Open && capabilities(&body.work);
            trial[at] = state == BreakerState::HalfOpen;
        }
        let advice = self.model.advise(&self.policy, body.class, body.bytes, |lane| eligible[lane]);
        Plan { advice, eligible, trial, shared: is_worth_it(&body.work) }
    }

    /// Chooses the device, under the queues' lock.
    fn place(&self, plan: &Plan, loads: &mut dyn Iterator<Item = Load>, body: &mut Body) -> (usize, Costs) {
        let mut candidates = [None; LANES_MAX];
        let (mut may, mut before) = ([false; LANES_MAX], [0; LANES_MAX]);
        let mut costs = Costs::NONE;
        for (at, load) in loads.enumerate() {
            let (lane, tasks) = (&self.lanes[at], load.waiting + load.running);
            before[at] = tasks;
            may[at] = plan.eligible[at] && !lane.is_open() && !(plan.trial[at] && tasks > 0);
            let Some(mut predicted) = plan.advice.predicted[at].filter(|_| may[at]) else { continue };
            let (width, backlog_ns) = (lane.width, load.backlog_ns as f64);
            let occupies =
                if at == 0 { predicted.latency() } else { predicted.overlapped().max(predicted.overhead) };
            if at == 0 && plan.shared {
                predicted.work /=
                    speedup(predicted.work, plan.advice.together, width.saturating_sub(tasks), width);
            }
            candidates[at] = Some(Candidate { predicted, backlog_ns, tasks, width });
            let alone = predicted.latency();
            costs.occupies[at] = occupies as u64;
            // A device on trial takes no other lane's items.
            if !plan.trial[at] {
                costs.alone[at] = alone as u64;
            }
        }
        let (best, second) = choose(&self.policy, &candidates);
        let chosen = match (body.pinned, plan.advice.explore) {
            (Some(pinned), _) => Some(pinned).filter(|&pinned| may.get(pinned).copied().unwrap_or(false)),
            (None, Explore::First(lane)) if may[lane] => Some(lane),
            (None, Explore::SecondBest) => {
                second.filter(|&second| self.is_not_too_bad(&candidates, best, second)).or(best)
            }
            _ => best,
        };
        let lane = chosen.unwrap_or(0);
        body.before = before[lane];
        if let Some(candidate) = candidates[lane] {
            let predicted = candidate.finish_ns(self.policy.objective);
            body.report.predicted = Duration::from_nanos(predicted as u64);
        }
        body.costs = costs;
        // A task that is to be measured there, or is pinned there, must not be taken by another
        // lane.
        if plan.advice.explore != Explore::No || body.pinned.is_some() {
            costs = costs.only(lane);
        }
        (lane, costs)
    }

    fn is_not_too_bad(&self, candidates: &[Option<Candidate>], best: Option<usize>, second: usize) -> bool {
        let finish =
            |lane: usize| candidates[lane].map(|candidate| candidate.finish_ns(self.policy.objective));
        match (best.and_then(finish), finish(second)) {
            (Some(best), Some(second)) => second <= best * self.policy.explore_worst,
            _ => false,
        }
    }

    /// Cancels a task, unless it has ended.
    pub(super) fn cancel(self: &Arc<Self>, id: u64, cell: &Cell<Ended>) -> bool {
        if let Some(body) = self.board.withdraw(id) {
            self.end(body, Some(Failure::Cancelled));
            self.board.settled();
            return true;
        }
        cell.close(id)
    }

    /// Ends a task and notifies its waiter. The caller settles it with the board afterwards.
    pub(super) fn end(self: &Arc<Self>, mut body: Box<Body>, failure: Option<Failure>) {
        let now = Instant::now();
        body.report.total = now.saturating_duration_since(body.submitted);
        if failure.is_some() {
            add(&self.failed, 1);
        } else {
            self.judge(&body);
        }
        let (id, cell) = (body.id, Arc::clone(&body.cell));
        let Some(callback) = body.callback.take() else {
            if let Err((body, _)) = cell.end(id, (body, failure)) {
                self.give_back(body);
            }
            return;
        };
        let failure = if cell.close(id) { failure } else { Some(Failure::Cancelled) };
        let loan = Loan::new(body, Arc::clone(self));
        callback(match failure {
            None => Ok(Finished::new(loan)),
            Some(reason) => Err(Failed { reason, draft: Some(Draft::new(loan)) }),
        });
    }

    /// Compares the prediction with the outcome, unless a fallback or a check came in between.
    fn judge(&self, body: &Body) {
        let report = &body.report;
        if report.predicted.is_zero() || report.fallbacks > 0 || report.checked {
            return;
        }
        let (predicted, actual) = (report.predicted.as_nanos() as f64, report.total.as_nanos() as f64);
        self.model.judge(report.device, body.class, body.bytes, predicted, actual, self.policy.learn);
        let counters = &self.lanes[report.device].counters;
        add(&counters.predicted_ns, predicted as u64);
        add(&counters.actual_ns, actual as u64);
    }

    /// Moves a task from a failed device to the processor. Its inputs are unchanged. Its outputs
    /// may hold anything.
    pub(super) fn to_processor(&self, mut body: Box<Body>, lane: usize) {
        add(&self.lanes[lane].counters.given_up, 1);
        body.report.fallbacks += 1;
        body.to_check = None;
        body.output.clear();
        self.put_to_processor(body);
    }

    /// Puts a task at the front of the processor's queue.
    pub(super) fn put_to_processor(&self, body: Box<Body>) {
        self.board.put_back(0, body.id, body.priority as usize, body.costs.only(0), body);
    }

    /// Records a device's fault. If the breaker opens, takes all tasks from the device.
    pub(super) fn fault(&self, lane: usize, fault: &Fault) {
        if self.lanes[lane].fault(fault, &self.policy) {
            self.cut_off(lane);
        }
    }

    fn cut_off(&self, lane: usize) {
        while let Some(body) = self.board.evict(lane) {
            self.to_processor(body, lane);
        }
        let running = std::mem::take(&mut *lock(&self.lanes[lane].running));
        for one in running {
            self.board.finished(lane, one.cost, false);
            self.to_processor(one.body, lane);
        }
        self.board.wake(lane);
    }
}

/// How many times faster `idle` of the processor's threads are than one. Scales the measured speed
/// of all threads, or else counts the threads.
fn speedup(one: f64, together: Option<f64>, idle: usize, width: usize) -> f64 {
    let (idle, width) = (idle.max(1) as f64, width.max(1) as f64);
    let all = together.map_or(width, |together| (one / together.max(1.0)).clamp(1.0, width));
    if width > 1.0 { 1.0 + (all - 1.0) * (idle - 1.0) / (width - 1.0) } else { 1.0 }
}
