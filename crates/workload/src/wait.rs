//! Waiting for another thread or process, instead of sleeping for its longest time.

use std::time::{Duration, Instant};

/// No test waits longer: after this time something hangs, even on the slowest machine.
const LIMIT: Duration = Duration::from_secs(120);

/// Returns as soon as `condition` holds. It is asked again after a pause that grows from 1 ms to 50
/// ms.
///
/// # Panics
/// If it does not hold within two minutes; `what` names the awaited event.
#[track_caller]
pub fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let until = Instant::now() + LIMIT;
    let mut pause = Duration::from_millis(1);
    while !condition() {
        assert!(Instant::now() < until, "{what}: not within {} s", LIMIT.as_secs());
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(50));
    }
}
