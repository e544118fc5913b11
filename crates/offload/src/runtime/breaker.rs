//! The circuit breaker of a device.
//!
//! ```text
//!            failures_max in a row, or one grave fault
//!   CLOSED ───────────────────────────────────────────▶ OPEN ──▶ re-initialise after retry_first, twice that, ... retry_last
//!     ▲                                                 ▲  │
//!     │ trial_tasks right results         any failure   │  │ re-initialised, and known answers came
//!     └───────────────────────────── HALF-OPEN ◀────────┼──┘
//!                                        └──────────────┘
//! ```
//!
//! Open: the device gets no tasks. Half-open: it gets one task at a time, and each result is
//! checked. The breaker only decides, and callers pass it the time.

use std::time::Duration;

use outrigger_clock::Instant;

use crate::accelerator::Fault;
use crate::placement::Policy;

/// How far a device is trusted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BreakerState {
    /// It is trusted.
    Closed,
    /// It is cut off.
    Open,
    /// It is on trial.
    HalfOpen,
}

impl BreakerState {
    /// Its name in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Open => "open",
            Self::HalfOpen => "half-open",
        }
    }
}

#[derive(Debug)]
pub(super) struct Breaker {
    state: BreakerState,
    failures: u32,
    trials_left: u32,
    retry_after: Duration,
    retry_at: Option<Instant>,
    /// How often it was opened.
    pub trips: u64,
}

impl Breaker {
    pub(super) fn new(policy: &Policy) -> Self {
        let state = BreakerState::Closed;
        Self { state, failures: 0, trials_left: 0, retry_after: policy.retry_first, retry_at: None, trips: 0 }
    }

    pub(super) fn state(&self) -> BreakerState {
        self.state
    }

    /// Records a right result.
    pub(super) fn success(&mut self, policy: &Policy) {
        self.failures = 0;
        if self.state == BreakerState::HalfOpen {
            self.trials_left = self.trials_left.saturating_sub(1);
            if self.trials_left == 0 {
                self.state = BreakerState::Closed;
                self.retry_after = policy.retry_first;
            }
        }
    }

    /// Records a fault. Returns true if it opened the breaker.
    pub(super) fn failure(&mut self, fault: &Fault, now: Instant, policy: &Policy) -> bool {
        if *fault == Fault::Unsupported || self.state == BreakerState::Open {
            return false;
        }
        self.failures += 1;
        let on_trial = self.state == BreakerState::HalfOpen;
        if !fault.is_grave() && !on_trial && self.failures < policy.failures_max {
            return false;
        }
        self.open(now, policy);
        true
    }

    /// Records that re-initialising failed.
    pub(super) fn still_bad(&mut self, now: Instant, policy: &Policy) {
        self.schedule(now, policy);
    }

    /// Records that the device is re-initialised and has given the known answers.
    pub(super) fn repaired(&mut self, policy: &Policy) {
        self.failures = 0;
        self.retry_at = None;
        self.trials_left = policy.trial_tasks;
        self.state = if policy.trial_tasks == 0 { BreakerState::Closed } else { BreakerState::HalfOpen };
    }

    /// The time of the next attempt to re-initialise, if the breaker is open.
    pub(super) fn retry_at(&self) -> Option<Instant> {
        if self.state == BreakerState::Open { self.retry_at } else { None }
    }

    fn open(&mut self, now: Instant, policy: &Policy) {
        self.state = BreakerState::Open;
        self.trips += 1;
        self.failures = 0;
        self.schedule(now, policy);
    }

    fn schedule(&mut self, now: Instant, policy: &Policy) {
        self.retry_at = Some(now + self.retry_after);
        self.retry_after = (self.retry_after * 2).min(policy.retry_last);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_opens_tries_and_closes_again() {
        let policy = Policy { failures_max: 3, trial_tasks: 2, ..Policy::default() };
        let (mut breaker, start) = (Breaker::new(&policy), Instant::now());
        assert!(!breaker.failure(&Fault::Busy, start, &policy));
        assert!(!breaker.failure(&Fault::OutOfMemory, start, &policy));
        breaker.success(&policy);
        assert!(!breaker.failure(&Fault::Failed("x".into()), start, &policy));
        assert!(!breaker.failure(&Fault::Unsupported, start, &policy));
        assert!(!breaker.failure(&Fault::Busy, start, &policy));
        assert!(breaker.failure(&Fault::Busy, start, &policy), "the third in a row");
        assert_eq!(breaker.retry_at(), Some(start + policy.retry_first));
        assert!(!breaker.failure(&Fault::Hung, start, &policy), "already open");
        breaker.still_bad(start, &policy);
        assert_eq!(breaker.retry_at(), Some(start + 2 * policy.retry_first));
        breaker.repaired(&policy);
        assert_eq!((breaker.state(), breaker.retry_at()), (BreakerState::HalfOpen, None));
        breaker.success(&policy);
        assert!(breaker.failure(&Fault::Busy, start, &policy), "one failure on trial is enough");
        // The breaker was not closed in between, so the pause keeps growing.
        assert_eq!(breaker.retry_at(), Some(start + 4 * policy.retry_first));
        breaker.repaired(&policy);
        breaker.success(&policy);
        breaker.success(&policy);
        assert_eq!((breaker.state(), breaker.trips), (BreakerState::Closed, 2));
    }

    #[test]
    fn grave_faults_open_at_once_and_pauses_are_bounded() {
        let policy = Policy::default();
        let start = Instant::now();
        for fault in [Fault::Lost("".into()), Fault::Hung, Fault::Wrong] {
            assert!(Breaker::new(&policy).failure(&fault, start, &policy));
        }
        let mut breaker = Breaker::new(&policy);
        breaker.failure(&Fault::Hung, start, &policy);
        (0..40).for_each(|_| breaker.still_bad(start, &policy));
        assert_eq!(breaker.retry_at(), Some(start + policy.retry_last));
    }
}
