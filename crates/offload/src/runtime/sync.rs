//! Locks that survive a panicking holder, and waiting until a moment. `queue.rs` and `cell.rs` use nothing else of
//! `std::sync`: a test compiles them with this module exchanged for one whose locks are scheduled by a model checker.

use std::sync::PoisonError;
pub(super) use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::Instant;

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
