//! What tests of runtimes with one device beside the processor have in common.

use std::time::{Duration, Instant};

use outrigger_offload::placement::Policy;
use outrigger_offload::runtime::{DeviceMetrics, Runtime};

/// A policy that checks everything, never goes its own ways, and takes nothing for hanging: on a busy machine, anything
/// may take a while.
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

/// The same, but it does not wait long.
pub fn impatient() -> Policy {
    Policy { hang_floor: Duration::from_millis(100), hang_factor: 1.0, ..strict() }
}

pub fn device(runtime: &Runtime) -> DeviceMetrics {
    runtime.metrics().devices.swap_remove(1)
}

/// Does `run` until the device is as it should be; gives up after a minute, which is for ever.
pub fn run_until(runtime: &Runtime, what: &str, run: impl Fn(), is_so: impl Fn(&DeviceMetrics) -> bool) {
    let begun = Instant::now();
    while !is_so(&device(runtime)) {
        assert!(begun.elapsed() < Duration::from_secs(60), "{what}: {:?}", runtime.metrics());
        run();
        std::thread::sleep(Duration::from_millis(1));
    }
}
