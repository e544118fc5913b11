//! Executes one large task on several of the processor's threads.
//!
//! ```text
//!   leader: begins a split ▶ publishes it ▶ does units ▶ waits for the last ones ▶ puts the results together
//!   helper: is idle ▶ finds it ▶ does units ─▶ nothing is left, or something more urgent waits ▶ is idle
//! ```
//!
//! The thread that took the task leads. Threads without a task help. So a full queue is worked off
//! with one task for each thread, while a single or last task is shared by all. A cancelled task
//! stops between units. Each thread has one [`Job`], which it reuses for every task that it leads,
//! so nothing is allocated in steady state.
//!
//! Lock order: the helpers' lock before the board's, and a job's lock before the board's. No thread
//! holds the helpers' lock together with a job's.

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
    /// A unit is done. It may have made others possible, or was the last.
    changed: Condvar,
}

#[derive(Default)]
struct State {
    split: Split,
    priority: usize,
    /// No more units are handed out.
    stopped: bool,
    panicked: bool,
    /// The time of all threads together.
    spent: Duration,
}

/// The tasks that idle threads can help with.
pub(super) struct Helpers {
    jobs: Mutex<Vec<Arc<Job>>>,
}

impl Helpers {
    /// Helpers for so many threads.
    pub(super) fn new(threads: usize) -> Self {
        Self { jobs: Mutex::new(Vec::with_capacity(threads)) }
    }

    /// Has an idle thread help with the published tasks, as long as there are units.
    pub(super) fn help(&self, shared: &Shared, cpu: &mut CpuDevice) {
        let mut tried = 0;
        loop {
            let job = {
                let jobs = lock(&self.jobs);
                let Some(job) = jobs.get(tried) else {
                    // Under the lock, so that a thread which publishes a task now repeats the call.
                    shared.board.call_off(0);
                    return;
                };
                Arc::clone(job)
            };
            if !job.work(cpu, |priority| shared.board.has_more_urgent(0, priority)) {
                // The more urgent task comes first.
                return;
            }
            tried += 1;
        }
    }
}

impl Job {
    /// Executes a task together with all idle threads and returns the time of all threads. `None`
    /// if the task is too small for that.
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

    /// Executes units and returns true once no more will come. Returns false as soon as `leave` is
    /// true for the task's priority.
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
            // Before the unit is reported, so that only the task itself shares the work afterwards.
            drop(work);
            state = lock(&self.state);
            state.spent += spent;
            if done.is_err() {
                // A panic may have left the scratch memory in any state.
                *cpu = CpuDevice::new();
                (state.panicked, state.stopped) = (true, true);
            }
            state.split.done(unit);
            self.changed.notify_all();
        }
    }
}
