//! A device as the runtime sees it: its identity, its breaker, its running tasks and its counters.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use outrigger_clock::Instant;

use super::breaker::{Breaker, BreakerState};
use super::sync::{Mutex, lock};
use super::task::Body;
use crate::accelerator::{Fault, Identity, StageTimes};
use crate::placement::Policy;
use crate::work::Work;

/// Says whether a device supports a task.
pub(super) type Capabilities = Arc<dyn Fn(&Work) -> bool + Send + Sync>;

/// A task on a device. The device shares the work and owns the outputs.
pub(super) struct Running {
    pub body: Box<Body>,
    pub cost: u64,
    /// The time by which the device must have answered.
    pub limit: Instant,
}

pub(super) struct Lane {
    pub identity: Identity,
    /// Tasks that it executes at a time without one slowing another.
    pub width: usize,
    /// Tasks that it keeps in flight. 0 for the processor.
    pub in_flight_max: usize,
    /// `None` for the processor, which does everything.
    pub capabilities: Option<Capabilities>,
    /// True if the device is cut off. It is set before the device's queue and its running tasks are
    /// taken away. A thread that would add to them checks it under the same locks, so nothing is
    /// left behind.
    open: AtomicBool,
    pub breaker: Mutex<Breaker>,
    pub running: Mutex<Vec<Running>>,
    pub counters: Counters,
}

/// Counters of a device since the runtime began.
#[derive(Default)]
pub(super) struct Counters {
    pub tasks: AtomicU64,
    pub bytes: AtomicU64,
    pub queue_ns: AtomicU64,
    pub copy_in_ns: AtomicU64,
    pub kernel_ns: AtomicU64,
    pub copy_out_ns: AtomicU64,
    pub predicted_ns: AtomicU64,
    pub actual_ns: AtomicU64,
    pub faults: [AtomicU64; FAULTS.len()],
    pub given_up: AtomicU64,
    pub checked: AtomicU64,
    pub resets: AtomicU64,
    /// Results since the device was last admitted.
    pub since_admitted: AtomicU64,
}

/// The names of all faults.
pub(super) const FAULTS: [&str; 7] =
    ["unsupported", "busy", "out_of_memory", "failed", "lost", "hung", "wrong"];

pub(super) fn add(counter: &AtomicU64, amount: u64) {
    counter.fetch_add(amount, Ordering::Relaxed);
}

pub(super) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl Counters {
    /// Counts a finished task.
    pub(super) fn done(&self, bytes: usize, queue: Duration, stages: &StageTimes) {
        add(&self.tasks, 1);
        add(&self.bytes, bytes as u64);
        add(&self.queue_ns, nanos(queue));
        add(&self.copy_in_ns, nanos(stages.copy_in));
        add(&self.kernel_ns, nanos(stages.kernel));
        add(&self.copy_out_ns, nanos(stages.copy_out));
    }

    fn fault(&self, fault: &Fault) {
        if let Some(at) = FAULTS.iter().position(|name| *name == fault.name()) {
            add(&self.faults[at], 1);
        }
    }
}

impl Lane {
    pub(super) fn new(
        identity: Identity,
        width: usize,
        capabilities: Option<Capabilities>,
        policy: &Policy,
        in_flight_max: usize,
    ) -> Self {
        Self {
            identity,
            width,
            in_flight_max,
            capabilities,
            open: AtomicBool::new(false),
            breaker: Mutex::new(Breaker::new(policy)),
            running: Mutex::new(Vec::with_capacity(in_flight_max)),
            counters: Counters::default(),
        }
    }

    /// True if the device is cut off.
    pub(super) fn is_open(&self) -> bool {
        self.open.load(Ordering::SeqCst)
    }

    pub(super) fn state(&self) -> BreakerState {
        lock(&self.breaker).state()
    }

    /// Records a fault. Returns true if it cuts the device off, and the caller must then take its
    /// tasks away.
    pub(super) fn fault(&self, fault: &Fault, policy: &Policy) -> bool {
        self.counters.fault(fault);
        let mut breaker = lock(&self.breaker);
        let tripped = breaker.failure(fault, Instant::now(), policy);
        if tripped {
            self.open.store(true, Ordering::SeqCst);
        }
        tripped
    }

    /// Records a right result.
    pub(super) fn success(&self, policy: &Policy) {
        lock(&self.breaker).success(policy);
    }

    /// Admits the device again, on trial.
    pub(super) fn let_in(&self, policy: &Policy) {
        let mut breaker = lock(&self.breaker);
        breaker.repaired(policy);
        self.counters.since_admitted.store(0, Ordering::Relaxed);
        self.open.store(false, Ordering::SeqCst);
    }

    /// True if the latest result should be compared with the processor's.
    pub(super) fn wants_check(&self, policy: &Policy) -> bool {
        let number = self.counters.since_admitted.fetch_add(1, Ordering::Relaxed);
        let sampled = policy.check_every > 0 && number.is_multiple_of(policy.check_every.into());
        number < policy.check_first.into() || sampled || self.state() == BreakerState::HalfOpen
    }
}
