//! The runtime executes tasks, each on the device that is best for it. Callers see no device.
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
//! Threads: one manager for each device ([`crate::accelerator::Accelerator`]), which keeps several
//! tasks in flight; `cpu_threads` workers; and one watchdog, which watches the time.
//!
//! Waiting: submitters wait for room in the outstanding queue (`outstanding_max` tasks), and
//! workers and managers wait for tasks. No thread waits for a device that does not answer
//! (`watchdog.rs`). If a device fails, its tasks go to the front of the processor's queue, even
//! above the bound, as they were admitted before.
//!
//! Buffers: a task owns its input, or shares it with others through an `Arc`. While a device has
//! the input, both may read it. Outputs move to the device and back. When a [`Finished`] or
//! [`Failed`] is dropped, its buffers return to the [`Pool`] and its vectors to the idle tasks. In
//! steady state nothing is allocated (`tests/no_allocation.rs`).
//!
//! All idle threads of the processor work on one large task together (`helpers.rs`).
//!
//! Trust: `breaker.rs` says when a device is cut off and admitted again, `answers.rs` and `cpu.rs`
//! how its results are checked.

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

/// Executes tasks, as the module describes. Dropping it waits until all submitted tasks are done.
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

/// The load of a device at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DeviceLoad {
    /// Tasks that wait for it or that it executes.
    pub tasks: usize,
    /// Tasks that it keeps in flight. 0 for the processor.
    pub in_flight_max: usize,
    /// Nothing is sent to it.
    pub is_cut_off: bool,
    /// It gets one task at a time.
    pub is_on_trial: bool,
}

impl DeviceLoad {
    /// True if the device takes one more task, up to `most`. With 0, the bound is one and a half
    /// times its tasks in flight. A device on trial takes only one task.
    pub fn has_room(&self, most: usize) -> bool {
        let most = if most > 0 { most } else { self.in_flight_max + self.in_flight_max / 2 };
        self.tasks < if self.is_on_trial { 1 } else { most }
    }
}

/// How a runtime ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shutdown {
    /// All submitted tasks are done first.
    Finish,
    /// Tasks that have not begun fail as [`Failure::Stopped`], with their data.
    HandBack,
}

/// A task that was not admitted.
#[derive(Debug, thiserror::Error)]
#[error("{}", if *.full { "too many tasks are waiting" } else { "the runtime is being shut down" })]
pub struct Refused {
    /// The task.
    pub draft: Draft,
    /// True if there was no room. Otherwise the runtime is shutting down.
    pub full: bool,
}

/// How long a shutdown waits for a manager that is stuck inside its device.
const GRACE: Duration = Duration::from_secs(1);

impl Runtime {
    /// A builder, which configures the runtime.
    pub fn builder() -> Builder {
        Builder::new()
    }

    /// An idle task with an empty buffer for at least `bytes`, for the caller to fill and submit.
    pub fn draft(&self, bytes: usize) -> Draft {
        self.shared.draft(bytes)
    }

    /// Submits a task. Blocks while too many tasks are waiting.
    ///
    /// # Errors
    /// [`Refused`] if the runtime is shutting down.
    ///
    /// # Panics
    /// If [`Work::assert_valid`] rejects the task.
    pub fn submit(&self, draft: Draft) -> Result<Ticket, Refused> {
        self.shared.submit(draft, true).map_err(refused)
    }

    /// Like [`Runtime::submit`], but never blocks.
    ///
    /// # Errors
    /// [`Refused`] if there is no room or the runtime is shutting down.
    ///
    /// # Panics
    /// If [`Work::assert_valid`] rejects the task.
    pub fn try_submit(&self, draft: Draft) -> Result<Ticket, Refused> {
        self.shared.submit(draft, false).map_err(refused)
    }

    /// The pool for buffers that several tasks share.
    pub fn pool(&self) -> &Pool {
        &self.shared.pool
    }

    /// Counters since the start.
    pub fn metrics(&self) -> Metrics {
        metrics::collect(&self.shared)
    }

    /// The number of devices. The processor is the first.
    pub fn device_count(&self) -> usize {
        self.shared.lanes.len()
    }

    /// True if no task waits or runs, which suits upkeep.
    pub fn is_idle(&self) -> bool {
        self.shared.board.is_idle()
    }

    /// The present model of the devices' speeds.
    pub fn model(&self) -> &Model {
        &self.shared.model
    }

    /// The model's data, to be saved.
    pub fn calibration(&self) -> Calibration {
        self.shared.model.calibration()
    }

    /// Cuts a device off because one of its results turned out to be wrong, as if a check had found
    /// that. `device` is its index in [`Metrics::devices`]. The processor (0) is never cut off.
    pub fn quarantine(&self, device: usize) {
        if (1..self.shared.lanes.len()).contains(&device) {
            self.shared.fault(device, &Fault::Wrong);
        }
    }

    /// The policy in force.
    pub fn policy(&self) -> &Policy {
        &self.shared.policy
    }

    /// True if a device can do this work, even if it is cut off now. `device` is its index in
    /// [`Metrics::devices`].
    pub fn supports(&self, device: usize, work: &Work) -> bool {
        let lane = self.shared.lanes.get(device);
        lane.is_some_and(|lane| lane.capabilities.as_ref().is_none_or(|can| can(work)))
    }

    /// The present load of a device. `device` is its index in [`Metrics::devices`].
    ///
    /// # Panics
    /// If there is no such device.
    pub fn load(&self, device: usize) -> DeviceLoad {
        let (lane, load) = (&self.shared.lanes[device], self.shared.board.load(device));
        DeviceLoad {
            tasks: load.waiting + load.running,
            in_flight_max: lane.in_flight_max,
            is_cut_off: lane.is_open(),
            is_on_trial: lane.state() == BreakerState::HalfOpen,
        }
    }

    /// The predicted time of a single task without waiting. For a large task of the processor, that
    /// of all threads together. `None` if it was never measured.
    pub fn predict(&self, device: usize, class: Class, bytes: usize) -> Option<Duration> {
        let model = &self.shared.model;
        let together = if device == 0 { model.predict_together(class, bytes) } else { None };
        let ns = together.or_else(|| Some(model.predict(device, class, bytes)?.latency()))?;
        Some(Duration::from_nanos(ns as u64))
    }

    /// How long until a device returns a task that is submitted now, after all that waits there
    /// before it. `None` while too few have come back to tell.
    pub fn expect(&self, device: usize, class: Class, bytes: usize) -> Option<Duration> {
        let load = self.shared.board.load(device);
        let (model, before) = (&self.shared.model, load.waiting + load.running);
        let ns = model.expect(&self.shared.policy, device, class, bytes, before)?;
        Some(Duration::from_nanos(ns as u64))
    }

    /// Ends the runtime. Waits for the remaining tasks and for all threads except those that are
    /// stuck inside a device.
    pub fn shutdown(mut self, how: Shutdown) {
        self.end(how);
    }

    fn end(&mut self, how: Shutdown) {
        let Some(watchdog) = self.watchdog.take() else { return };
        let shared = &self.shared;
        shared.board.close();
        if how == Shutdown::HandBack {
            // If a device has finished and only the check remains, the check still takes place.
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
            // These threads do not panic. If one did, there is nobody to report it to.
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
