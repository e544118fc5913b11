//! Helpers for tests of runtimes with one device beside the processor.

use std::time::{Duration, Instant};

use outrigger_offload::placement::Policy;
use outrigger_offload::runtime::{DeviceMetrics, Runtime};

/// A policy that checks everything, never explores, and takes no task for hung, as anything may
/// take a while on a busy machine.
pub fn strict() -> Policy {
    Policy {
        check_every: 1,
        first_tasks: 0,
        explore_every: 0,
        hang_floor: Duration::from_secs(3600),
        retry_first: Duration::from_millis(1),
        retry_last: Duration::from_millis(20),
        trial_tasks: 2,
        ..Policy::default()
    }
}

/// Like [`strict`], but with a short time limit.
pub fn impatient() -> Policy {
    Policy { hang_floor: Duration::from_millis(100), hang_factor: 1.0, ..strict() }
}

pub fn device(runtime: &Runtime) -> DeviceMetrics {
    runtime.metrics().devices.swap_remove(1)
}

/// Calls `run` until `is_so` holds for the device. Fails after a minute.
pub fn run_until(runtime: &Runtime, what: &str, run: impl Fn(), is_so: impl Fn(&DeviceMetrics) -> bool) {
    let begun = Instant::now();
    while !is_so(&device(runtime)) {
        assert!(begun.elapsed() < Duration::from_secs(60), "{what}: {:?}", runtime.metrics());
        run();
        std::thread::sleep(Duration::from_millis(1));
    }
}
