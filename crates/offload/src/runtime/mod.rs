//! The runtime: tasks go in, and are done by whatever does them best; the caller sees no device.
//!
//! ```text
//!            Runtime::draft           submit (waits for room)          a manager or a worker thread takes it
//!   IDLE ─────────────────▶ filled ───────────────────────▶ OUTSTANDING ─────────────────────────▶ RUNNING
//!    ▲   empty tasks, their         placement chooses       one queue a device                        │
//!    │   vectors and cells          the device              and priority; an idle device              │
//!    │                                                      takes from a longer queue                 │
//!    └──────────── Finished is dropped ◀──── Ticket::wait, .await, callback ◀─────────────────────────┘
//! ```
//!
//! Threads: one manager a device ([`crate::accelerator::Accelerator`]), which keeps several tasks in flight; `cpu_threads` workers; one watchdog,
//! which watches the clock. Who waits for whom: submitters for room in the outstanding queue (`outstanding_max` tasks);
//! workers and managers for tasks; nobody for a device that does not answer (`watchdog.rs`). A device's failure puts its
//! tasks in front of the processor's queue, past the bound: they were admitted already.
//!
//! Who owns buffers: a task's input belongs to the task, or to several in an `Arc`; while a device has it, both read.
//! Outputs move to the device and back. When a [`Finished`] or [`Failed`] is dropped, all returns to [`Pool`] and idle
//! queue. In steady state nothing is allocated (`tests/no_allocation.rs`).
//!
//! One large task is done by all of the processor's threads that are idle (`helpers.rs`).
//!
//! Trust: `breaker.rs` for when a device is cut off and let in again, `answers.rs` and `cpu.rs` for how its results are
//! checked.

mod answers;
mod breaker;
mod builder;
mod cell;
mod cpu;
mod helpers;
mod lane;
mod manager;
mod metrics;
mod queue;
mod shared;
mod sync;
mod task;
mod ticket;
mod watchdog;

pub use breaker::BreakerState;
pub use builder::Builder;
pub use metrics::{DeviceMetrics, Metrics};
pub use task::{Callback, Draft, Failed, Failure, Finished, Priority, Report};
pub use ticket::Ticket;

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use crate::accelerator::Fault;
use crate::placement::{Calibration, Model, Policy};
use crate::pool::Pool;
use crate::work::{Class, Work};
use outrigger_clock::Instant;
use queue::Refusal;
use shared::Shared;

/// See the module. Dropping it waits until everything that was submitted is done.
///
/// ```
/// use outrigger_format::FingerprintKind::Blake3;
/// use outrigger_offload::runtime::Runtime;
/// let runtime = Runtime::builder().cpu_threads(2).build();
/// let mut draft = runtime.draft(1 << 20);
/// draft.input().extend_from_slice(b"one two");
/// draft.hash_many(Blake3, [0..3, 4..7]);
/// let done = runtime.submit(draft)?.wait()?;
/// assert_eq!(done.output().fingerprints[1], outrigger_offload::hash(Blake3, b"two"));
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
pub struct Runtime {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    managers: Vec<JoinHandle<()>>,
    watchdog: Option<JoinHandle<()>>,
}

/// What a device has to do at a moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DeviceLoad {
    /// Tasks that wait for it, and that it works on.
    pub tasks: usize,
    /// Tasks that it keeps under way; 0 for the processor.
    pub in_flight_max: usize,
    /// Nothing is sent to it.
    pub is_cut_off: bool,
    /// It gets one task at a time.
    pub is_on_trial: bool,
}

impl DeviceLoad {
    /// Whether it takes one more task than it has, of `most`; 0: of half as many again as it keeps under way.
    pub fn has_room(&self, most: usize) -> bool {
        let most = if most > 0 { most } else { self.in_flight_max + self.in_flight_max / 2 };
        self.tasks < if self.is_on_trial { 1 } else { most }
    }
}

/// How a runtime ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shutdown {
    /// Everything that was submitted is done first.
    Finish,
    /// What has not been begun fails as [`Failure::Stopped`], with its data.
    HandBack,
}

/// A task that was not admitted.
#[derive(Debug, thiserror::Error)]
#[error("{}", if *.full { "too many tasks are waiting" } else { "the runtime is being shut down" })]
pub struct Refused {
    /// The task.
    pub draft: Draft,
    /// Whether it was for want of room; else the runtime is being shut down.
    pub full: bool,
}

/// How long a manager that is stuck inside its device is waited for at the end.
const GRACE: Duration = Duration::from_secs(1);

impl Runtime {
    /// Says what it is to consist of.
    pub fn builder() -> Builder {
        Builder::new()
    }

    /// An idle task with an empty buffer for at least `bytes`, to be filled and submitted.
    pub fn draft(&self, bytes: usize) -> Draft {
        self.shared.draft(bytes)
    }

    /// Submits a task. Waits for room while too many are waiting.
    ///
    /// # Errors
    /// [`Refused`] while the runtime is being shut down.
    ///
    /// # Panics
    /// When the task is not what [`Work::assert_valid`] wants.
    pub fn submit(&self, draft: Draft) -> Result<Ticket, Refused> {
        self.shared.submit(draft, true).map_err(refused)
    }

    /// As [`Runtime::submit`], without waiting.
    ///
    /// # Errors
    /// [`Refused`], also while there is no room.
    ///
    /// # Panics
    /// When the task is not what [`Work::assert_valid`] wants.
    pub fn try_submit(&self, draft: Draft) -> Result<Ticket, Refused> {
        self.shared.submit(draft, false).map_err(refused)
    }

    /// Where buffers come from that several tasks share.
    pub fn pool(&self) -> &Pool {
        &self.shared.pool
    }

    /// What has been done so far.
    pub fn metrics(&self) -> Metrics {
        metrics::collect(&self.shared)
    }

    /// Devices, the processor included, which is the first.
    pub fn device_count(&self) -> usize {
        self.shared.lanes.len()
    }

    /// Whether nothing waits and nothing runs: a moment for upkeep.
    pub fn is_idle(&self) -> bool {
        self.shared.board.is_idle()
    }

    /// What is known of the devices' speeds by now.
    pub fn model(&self) -> &Model {
        &self.shared.model
    }

    /// The same, to be saved.
    pub fn calibration(&self) -> Calibration {
        self.shared.model.calibration()
    }

    /// Tells that a result of a device, by its place in [`Metrics::devices`], has turned out to be wrong: it is cut off, as if a comparison had
    /// shown that. The processor (0) is not.
    pub fn quarantine(&self, device: usize) {
        if (1..self.shared.lanes.len()).contains(&device) {
            self.shared.fault(device, &Fault::Wrong);
        }
    }

    /// The policy in force.
    pub fn policy(&self) -> &Policy {
        &self.shared.policy
    }

    /// Whether a device can do this, by its place in [`Metrics::devices`]. It may be cut off all the same.
    pub fn supports(&self, device: usize, work: &Work) -> bool {
        let lane = self.shared.lanes.get(device);
        lane.is_some_and(|lane| lane.capabilities.as_ref().is_none_or(|can| can(work)))
    }

    /// What a device, by its place in [`Metrics::devices`], has to do now.
    ///
    /// # Panics
    /// When there is no such device.
    pub fn load(&self, device: usize) -> DeviceLoad {
        let (lane, load) = (&self.shared.lanes[device], self.shared.board.load(device));
        DeviceLoad {
            tasks: load.waiting + load.running,
            in_flight_max: lane.in_flight_max,
            is_cut_off: lane.is_open(),
            is_on_trial: lane.state() == BreakerState::HalfOpen,
        }
    }

    /// What a device is predicted to take for a task on its own, waiting aside; for a large task of the processor, with all threads. `None` if it was never measured.
    pub fn predict(&self, device: usize, class: Class, bytes: usize) -> Option<Duration> {
        let model = &self.shared.model;
        let together = if device == 0 { model.predict_together(class, bytes) } else { None };
        let ns = together.or_else(|| Some(model.predict(device, class, bytes)?.latency()))?;
        Some(Duration::from_nanos(ns as u64))
    }

    /// After how long a task that is submitted now is expected back from a device, with all that waits there before it. `None` if too few have come back to say.
    pub fn expect(&self, device: usize, class: Class, bytes: usize) -> Option<Duration> {
        let load = self.shared.board.load(device);
        let (model, before) = (&self.shared.model, load.waiting + load.running);
        let ns = model.expect(&self.shared.policy, device, class, bytes, before)?;
        Some(Duration::from_nanos(ns as u64))
    }

    /// Ends it. Waits for what is to be done still, and for all threads, except those that are stuck inside a device.
    pub fn shutdown(mut self, how: Shutdown) {
        self.end(how);
    }

    fn end(&mut self, how: Shutdown) {
        let Some(watchdog) = self.watchdog.take() else { return };
        let shared = &self.shared;
        shared.board.close();
        if how == Shutdown::HandBack {
            // Where a device has done it and only the comparison is outstanding, that is not skipped.
            let mut to_check = Vec::new();
            for lane in 0..shared.lanes.len() {
                while let Some(body) = shared.board.evict(lane) {
                    if body.to_check.is_some() {
                        to_check.push(body);
                        continue;
                    }
                    shared.end(body, Some(Failure::Stopped));
                    shared.board.settled();
                }
            }
            to_check.into_iter().for_each(|body| shared.put_to_processor(body));
        }
        shared.board.drain();
        shared.board.end();
        shared.watch.end();
        for thread in self.workers.drain(..).chain([watchdog]) {
            // None of these panics; if one did, there is nobody to be told here.
            let _ = thread.join();
        }
        let until = Instant::now() + GRACE;
        for thread in self.managers.drain(..) {
            while !thread.is_finished() && Instant::now() < until {
                outrigger_clock::sleep(Duration::from_millis(1));
            }
            if thread.is_finished() {
                let _ = thread.join();
            }
        }
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        self.end(Shutdown::Finish);
    }
}

fn refused((draft, refusal): (Draft, Refusal)) -> Refused {
    Refused { draft, full: refusal == Refusal::Full }
}
