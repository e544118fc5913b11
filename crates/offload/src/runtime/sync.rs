//! Locks that survive a panicking holder, and waiting until a moment. `queue.rs` and `cell.rs` use nothing else of
//! `std::sync`: a test compiles them with this module exchanged for one whose locks are scheduled by a model checker.

use std::sync::PoisonError;
pub(super) use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::Duration;

use outrigger_clock::Instant;

/// So long a thread looks before it sleeps: less than going to sleep and being woken takes.
const GLANCE: Duration = Duration::from_micros(10);

/// Looks for a moment whether something has happened, so that what comes soon is met awake. Who calls this holds no lock, and looks again under
/// one.
pub(super) fn glance(happened: impl Fn() -> bool) {
    let until = Instant::now() + GLANCE;
    while !happened() {
        if Instant::now() >= until {
            return;
        }
        (0..8).for_each(|_| std::hint::spin_loop());
    }
}

/// Locks. What a panicking thread left behind is consistent: nothing of ours panics in the middle of a change.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits to be notified.
pub(super) fn wait<'a, T>(condvar: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    condvar.wait(guard).unwrap_or_else(PoisonError::into_inner)
}

/// Waits to be notified, or until a moment; says whether it has come.
pub(super) fn wait_until<'a, T>(
    condvar: &Condvar,
    guard: MutexGuard<'a, T>,
    until: Option<Instant>,
) -> (MutexGuard<'a, T>, bool) {
    let Some(until) = until else { return (wait(condvar, guard), false) };
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return (guard, true);
    }
    let (guard, timeout) = condvar.wait_timeout(guard, left).unwrap_or_else(PoisonError::into_inner);
    (guard, timeout.timed_out())
}
