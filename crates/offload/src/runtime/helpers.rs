//! One large task done by several of the processor's threads.
//!
//! ```text
//!   leader: begins a split ▶ publishes it ▶ does units ▶ waits for the last ones ▶ puts the results together
//!   helper: is idle ▶ finds it ▶ does units ─▶ nothing is left, or something more urgent waits ▶ is idle
//! ```
//!
//! The thread that took the task leads. Idle threads help: those without a task, so that a full queue is worked off a task a thread,
//! and one task that is left over, or alone, by all. A task that is cancelled stops between units. Each thread has one [`Job`], which is
//! used again for every task that the thread leads: nothing is allocated in steady state.
//!
//! Locks: that of the helpers before the board's, a job's before the board's, never that of the helpers and a job's.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use outrigger_clock::Instant;

use super::shared::Shared;
use super::sync::{Condvar, Mutex, lock, wait};
use super::task::{Body, Failure};
use crate::CpuDevice;
use crate::work::Output;
use crate::work::split::{Split, is_worth_it};

/// A task that threads share.
#[derive(Default)]
pub(super) struct Job {
    state: Mutex<State>,
    /// A unit came back, which may have made others possible, or was the last.
    changed: Condvar,
}

#[derive(Default)]
struct State {
    split: Split,
    priority: usize,
    /// Hands out nothing more.
    stopped: bool,
    panicked: bool,
    /// What all threads have spent on it.
    spent: Duration,
}

/// The tasks that idle threads can help with.
pub(super) struct Helpers {
    jobs: Mutex<Vec<Arc<Job>>>,
}

impl Helpers {
    /// For so many threads.
    pub(super) fn new(threads: usize) -> Self {
        Self { jobs: Mutex::new(Vec::with_capacity(threads)) }
    }

    /// An idle thread lends a hand, if there is anything to do.
    pub(super) fn help(&self, shared: &Shared, cpu: &mut CpuDevice) {
        let mut tried = 0;
        loop {
            let job = {
                let jobs = lock(&self.jobs);
                let Some(job) = jobs.get(tried) else {
                    // Under the lock, so that who publishes a task now calls again.
                    shared.board.call_off(0);
                    return;
                };
                Arc::clone(job)
            };
            if !job.work(cpu, |priority| shared.board.has_more_urgent(0, priority)) {
                // That is taken first.
                return;
            }
            tried += 1;
        }
    }
}

impl Job {
    /// Does a task together with whoever is idle, if it is large enough; says how long all threads together have worked.
    pub(super) fn lead(
        self: &Arc<Self>,
        shared: &Shared,
        body: &Body,
        cpu: &mut CpuDevice,
        output: &mut Output,
    ) -> Option<Result<Duration, Failure>> {
        let threads = shared.lanes[0].width;
        if threads < 2 || !is_worth_it(&body.work) {
            return None;
        }
        {
            let mut state = lock(&self.state);
            state.split.begin(&body.work, threads);
            (state.priority, state.stopped) = (body.priority as usize, false);
            (state.panicked, state.spent) = (false, Duration::ZERO);
        }
        {
            let mut jobs = lock(&shared.helpers.jobs);
            jobs.push(Arc::clone(self));
            shared.board.call(0);
        }
        let cancelled = || !body.cell.is_pending(body.id);
        self.work(cpu, |_| cancelled());
        lock(&shared.helpers.jobs).retain(|job| !Arc::ptr_eq(job, self));
        let mut state = lock(&self.state);
        state.stopped = true;
        while state.split.under_way() > 0 {
            state = wait(&self.changed, state);
        }
        let begun = Instant::now();
        state.split.finish(cpu, output);
        let spent = state.spent + begun.elapsed();
        Some(match (state.panicked, cancelled()) {
            (true, _) => Err(Failure::Panicked),
            (_, true) => Err(Failure::Cancelled),
            _ => Ok(spent),
        })
    }

    /// Does units until there is none left, and will be none; or until `leave` says so of the task's priority: then false.
    fn work(&self, cpu: &mut CpuDevice, leave: impl Fn(usize) -> bool) -> bool {
        let mut state = lock(&self.state);
        loop {
            if state.stopped {
                return true;
            }
            if leave(state.priority) {
                return false;
            }
            let (unit, work) = (state.split.next(), state.split.work());
            let (Some(mut unit), Some(work)) = (unit, work) else {
                if !state.split.may_give_more() {
                    return true;
                }
                state = wait(&self.changed, state);
                continue;
            };
            drop(state);
            let begun = Instant::now();
            let done = catch_unwind(AssertUnwindSafe(|| unit.run(&work, cpu)));
            let spent = begun.elapsed();
            // Before it is told: then the task's share of the work is the only one.
            drop(work);
            state = lock(&self.state);
            state.spent += spent;
            if done.is_err() {
                // What a panic left in the scratch memory is unknown.
                *cpu = CpuDevice::new();
                (state.panicked, state.stopped) = (true, true);
            }
            state.split.done(unit);
            self.changed.notify_all();
        }
    }
}
