//! The simulation's tests. Simulations in one process take turns; tests that need many seeds start
//! processes.

use std::sync::{Mutex, MutexGuard};

mod cluster;
mod scheduler;

/// The right to simulate in this process.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
