//! Locks that survive a panicking holder, and waits with a time limit. `queue/` and `cell.rs` use
//! nothing else of `std::sync`. A test compiles them with another module in place of this one,
//! whose locks a model checker schedules.

use std::sync::PoisonError;
pub(super) use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::Duration;

use outrigger_clock::Instant;

/// How long a thread spins before it sleeps. Going to sleep and being woken takes longer.
const GLANCE: Duration = Duration::from_micros(10);

/// Spins for a moment until `happened`, so that a prompt event finds the thread awake. The caller
/// holds no lock, and checks again under one.
pub(super) fn glance(happened: impl Fn() -> bool) {
    let until = Instant::now() + GLANCE;
    while !happened() {
        if Instant::now() >= until {
            return;
        }
        (0..8).for_each(|_| std::hint::spin_loop());
    }
}

/// Locks. The state is consistent even if a thread panicked, as none of our code panics in the
/// middle of a change.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits for a notification.
pub(super) fn wait<'a, T>(condvar: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    condvar.wait(guard).unwrap_or_else(PoisonError::into_inner)
}

/// Waits for a notification or until a moment. The flag says whether the moment has come.
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
