//! Counters and gauges of a runtime.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::breaker::BreakerState;
use super::lane::{FAULTS, Lane};
use super::queue::Load;
use super::shared::Shared;
use super::sync::lock;
use crate::accelerator::{Identity, StageTimes};
use crate::pool::PoolCounts;

/// A runtime at one moment. Sums run since it began.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Metrics {
    /// The devices; the first is the processor.
    pub devices: Vec<DeviceMetrics>,
    /// Tasks that ended without a result: bad data, cancelled, expired, stopped.
    pub failed: u64,
    /// The buffers.
    pub pool: PoolCounts,
}

/// One device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeviceMetrics {
    /// Which device it is.
    pub identity: Identity,
    /// The state of its breaker.
    pub breaker: BreakerState,
    /// How often it was cut off.
    pub trips: u64,
    /// How often the runtime tried to re-initialise it.
    pub resets: u64,
    /// Tasks that wait for it.
    pub waiting: usize,
    /// Tasks that it works on.
    pub running: usize,
    /// Tasks that it has done.
    pub tasks: u64,
    /// Their bytes.
    pub bytes: u64,
    /// How long they waited.
    pub queue: Duration,
    /// The time of their stages. Stages of different tasks overlap, so this may be more than the
    /// time that has passed.
    pub busy: StageTimes,
    /// Tasks that the device did not finish and the processor took over.
    pub given_up: u64,
    /// Results that were compared with the processor's.
    pub checked: u64,
    /// Faults, by name: `unsupported`, `busy`, `out_of_memory`, `failed`, `lost`, `hung`, `wrong`.
    pub faults: [(&'static str, u64); 7],
    /// Predicted times from submission to end, of the tasks that had a prediction.
    pub predicted: Duration,
    /// Actual times of the same tasks.
    pub actual: Duration,
}

impl DeviceMetrics {
    /// The number of faults of this name.
    pub fn faults_named(&self, name: &str) -> u64 {
        self.faults.iter().find(|(known, _)| *known == name).map_or(0, |(_, count)| *count)
    }
}

fn get(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

fn time(counter: &AtomicU64) -> Duration {
    Duration::from_nanos(get(counter))
}

pub(super) fn collect(shared: &Shared) -> Metrics {
    let loads = shared.board.loads();
    Metrics {
        devices: shared.lanes.iter().zip(loads).map(|(lane, load)| device(lane, load)).collect(),
        failed: get(&shared.failed),
        pool: shared.pool.counts(),
    }
}

fn device(lane: &Lane, load: Load) -> DeviceMetrics {
    let counters = &lane.counters;
    let (breaker, trips) = {
        let breaker = lock(&lane.breaker);
        (breaker.state(), breaker.trips)
    };
    DeviceMetrics {
        identity: lane.identity.clone(),
        breaker,
        trips,
        resets: get(&counters.resets),
        waiting: load.waiting,
        running: load.running,
        tasks: get(&counters.tasks),
        bytes: get(&counters.bytes),
        queue: time(&counters.queue_ns),
        busy: StageTimes {
            copy_in: time(&counters.copy_in_ns),
            kernel: time(&counters.kernel_ns),
            copy_out: time(&counters.copy_out_ns),
        },
        given_up: get(&counters.given_up),
        checked: get(&counters.checked),
        faults: std::array::from_fn(|at| (FAULTS[at], get(&counters.faults[at]))),
        predicted: time(&counters.predicted_ns),
        actual: time(&counters.actual_ns),
    }
}
