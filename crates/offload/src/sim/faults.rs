//! The faults of a simulated device.

use std::sync::{Arc, Mutex, PoisonError};

use crate::accelerator::Fault;

/// Which submissions fail, by their number from 1: every `n`th, or none for 0. If several apply,
/// the first in this list counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Faults {
    /// The device is lost, until it is reset.
    pub lost_every: u64,
    /// The device keeps the task and never answers.
    pub hang_every: u64,
    /// One bit of the result is wrong.
    pub wrong_every: u64,
    /// The result is that of the previous task of the same operation.
    pub stale_every: u64,
    /// Lookups get the table's answer for another fingerprint, even if the table has no entry.
    pub lie_every: u64,
    /// The task fails.
    pub fail_every: u64,
    /// The device reports [`Fault::Busy`].
    pub busy_every: u64,
    /// The device reports [`Fault::OutOfMemory`].
    pub memory_every: u64,
    /// So many resets fail before one succeeds.
    pub resets_failing: u64,
}

/// The fault injected into a submission.
pub(super) enum Injected {
    Nothing,
    Wrong(Wrong),
    Hang,
    Fault(Fault),
}

/// How a result is wrong.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Wrong {
    Bit,
    Stale,
    Lie,
}

#[derive(Default)]
struct State {
    faults: Faults,
    submissions: u64,
    injected: u64,
    lost: bool,
    resets: u64,
}

/// A handle to a simulated device's faults.
#[derive(Clone)]
pub struct SimControl {
    state: Arc<Mutex<State>>,
}

impl SimControl {
    pub(super) fn new(faults: Faults) -> Self {
        Self { state: Arc::new(Mutex::new(State { faults, ..State::default() })) }
    }

    fn with<T>(&self, f: impl FnOnce(&mut State) -> T) -> T {
        f(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Replaces the faults.
    pub fn set(&self, faults: Faults) {
        self.with(|state| state.faults = faults);
    }

    /// Loses the device now.
    pub fn lose(&self) {
        self.with(|state| state.lost = true);
    }

    /// The number of tasks that the device got.
    pub fn submissions(&self) -> u64 {
        self.with(|state| state.submissions)
    }

    /// The number of injected faults.
    pub fn injected(&self) -> u64 {
        self.with(|state| state.injected)
    }

    /// The number of resets.
    pub fn resets(&self) -> u64 {
        self.with(|state| state.resets)
    }

    pub(super) fn is_lost(&self) -> bool {
        self.with(|state| state.lost)
    }

    /// True if results should be kept for the next task.
    pub(super) fn is_ever_stale(&self) -> bool {
        self.with(|state| state.faults.stale_every > 0)
    }

    pub(super) fn reset(&self) -> Result<(), Fault> {
        self.with(|state| {
            state.resets += 1;
            if state.faults.resets_failing > 0 {
                state.faults.resets_failing -= 1;
                return Err(Fault::Lost("not yet".into()));
            }
            state.lost = false;
            Ok(())
        })
    }

    pub(super) fn inject(&self) -> Injected {
        self.with(|state| {
            state.submissions += 1;
            let number = state.submissions;
            let due = |every: u64| every > 0 && number.is_multiple_of(every);
            let faults = state.faults;
            let injected = if state.lost || due(faults.lost_every) {
                state.lost = true;
                Injected::Fault(Fault::Lost("as told".into()))
            } else if due(faults.hang_every) {
                Injected::Hang
            } else if due(faults.wrong_every) {
                Injected::Wrong(Wrong::Bit)
            } else if due(faults.stale_every) {
                Injected::Wrong(Wrong::Stale)
            } else if due(faults.lie_every) {
                Injected::Wrong(Wrong::Lie)
            } else if due(faults.fail_every) {
                Injected::Fault(Fault::Failed("as told".into()))
            } else if due(faults.busy_every) {
                Injected::Fault(Fault::Busy)
            } else if due(faults.memory_every) {
                Injected::Fault(Fault::OutOfMemory)
            } else {
                return Injected::Nothing;
            };
            state.injected += 1;
            injected
        })
    }
}
