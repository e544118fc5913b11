//! Waiting for what another thread or process does, instead of sleeping as long as it might take.

use std::time::{Duration, Instant};

/// No test waits longer for anything: by then something hangs, on the slowest machine.
const LIMIT: Duration = Duration::from_secs(120);

/// Returns as soon as `condition` holds. It is asked again after a pause that grows from 1 ms to 50 ms.
///
/// # Panics
/// If it does not hold within two minutes; `what` says what was waited for.
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
