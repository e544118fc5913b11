//! The health of the other end of a network (an object store, a pool, a database), judged by the
//! requests made of it.
//!
//! A request that fails and is repeated is trouble, until one succeeds. So is a request that has
//! waited for [`PATIENT`] without an error: nothing else shows that a server holds its connections
//! and does not answer.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use outrigger_clock::Instant;

use crate::wait;

/// How long a request may wait before that is trouble.
const PATIENT: Duration = Duration::from_secs(10);
/// An older failure does not count as trouble now.
const RECENT: Duration = Duration::from_secs(30);

/// The present state.
pub(crate) struct Health {
    /// How long a failing request is repeated, for messages.
    patience: Duration,
    /// Requests that failed and were made again.
    pub retries: AtomicU64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Since when nothing has worked, and the last error.
    failing: Option<(Instant, String)>,
    /// When a request failed last.
    failed: Option<Instant>,
    /// The user was told of that.
    is_told: bool,
    /// Waiting requests, in the order in which they began.
    waiting: BTreeMap<u64, Instant>,
    next: u64,
}

/// A request that waits, until this is dropped.
pub(crate) struct Waiting<'a> {
    health: &'a Health,
    number: u64,
}

impl Health {
    /// For requests that are repeated for as long as `patience` says.
    pub fn new(patience: Duration) -> Self {
        Self { patience, retries: AtomicU64::new(0), state: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that a request was answered, even by a refusal.
    pub fn works(&self) {
        let mut state = self.lock();
        (state.failing, state.is_told) = (None, false);
    }

    /// Records a failure of the connection or the server. A thread that waits for long is told once
    /// that the request is repeated ([`wait`]).
    pub fn fails(&self, why: &str) {
        if self.fails_for(why, wait::LONG) {
            wait::tell(&format!("{why}; trying again for up to {} s", self.patience.as_secs()));
        }
    }

    /// Like [`Health::fails`], for a request that has failed since `since` and is not reported.
    pub fn fails_since(&self, since: Instant, why: &str) {
        let mut state = self.lock();
        state.failing.get_or_insert_with(|| (since, why.to_string()));
        state.failed = Some(Instant::now());
    }

    /// Records a failure. True if it has now failed for longer than `long` and the user was not
    /// told yet.
    fn fails_for(&self, why: &str, long: Duration) -> bool {
        self.retries.fetch_add(1, Ordering::Relaxed);
        let mut state = self.lock();
        let since = state.failing.as_ref().map_or_else(Instant::now, |(since, _)| *since);
        state.failing = Some((since, why.to_string()));
        state.failed = Some(Instant::now());
        since.elapsed() >= long && !std::mem::replace(&mut state.is_told, true)
    }

    /// How long every request has failed; zero when the last failure is a while ago, since it may
    /// work by now.
    pub fn failing_for(&self) -> Duration {
        let state = self.lock();
        let is_recent = state.failed.is_some_and(|failed| failed.elapsed() < RECENT);
        state.failing.as_ref().filter(|_| is_recent).map_or(Duration::ZERO, |(since, _)| since.elapsed())
    }

    /// True if a request failed within this time, and none has succeeded since.
    pub fn failed_within(&self, time: Duration) -> bool {
        let state = self.lock();
        state.failing.is_some() && state.failed.is_some_and(|failed| failed.elapsed() < time)
    }

    /// Records that a request begins.
    pub fn begin(&self) -> Waiting<'_> {
        let mut state = self.lock();
        let number = state.next;
        state.next += 1;
        state.waiting.insert(number, Instant::now());
        Waiting { health: self, number }
    }

    /// Explains in a clause what is wrong; `None` while requests succeed.
    pub fn trouble(&self) -> Option<String> {
        self.trouble_after(PATIENT)
    }

    fn trouble_after(&self, patient: Duration) -> Option<String> {
        let state = self.lock();
        if let Some((since, why)) = &state.failing {
            return Some(format!("no request has succeeded for {} s: {why}", since.elapsed().as_secs()));
        }
        let waited = state.waiting.first_key_value()?.1.elapsed();
        (waited >= patient).then(|| format!("a request has waited for {} s for an answer", waited.as_secs()))
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.health.lock().waiting.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_trouble_until_something_works() {
        let health = Health::new(Duration::MAX);
        assert_eq!(health.trouble(), None);
        health.fails("refused");
        health.fails("reset");
        let trouble = health.trouble().unwrap();
        assert!(
            trouble.starts_with("no request has succeeded for 0 s") && trouble.ends_with("reset"),
            "{trouble}"
        );
        assert_eq!(health.retries.load(Ordering::Relaxed), 2);
        assert!(health.failed_within(Duration::MAX) && !health.failed_within(Duration::ZERO));
        health.works();
        assert_eq!(health.trouble(), None);
        assert!(!health.failed_within(Duration::MAX));
    }

    #[test]
    fn whoever_waits_is_told_once_each_time_that_nothing_works() {
        let health = Health::new(Duration::MAX);
        let (now, never) = (Duration::ZERO, Duration::MAX);
        assert!(!health.fails_for("refused", never));
        assert!(health.fails_for("refused", now) && !health.fails_for("refused", now));
        health.works();
        assert!(health.fails_for("refused", now));
    }

    #[test]
    fn who_waits_for_long_is_trouble_and_the_first_one_counts() {
        let health = Health::new(Duration::MAX);
        let first = health.begin();
        let second = health.begin();
        assert_eq!(health.trouble(), None, "they have only begun");
        let trouble = |health: &Health| health.trouble_after(Duration::ZERO);
        assert!(trouble(&health).unwrap().contains("waited"));
        drop(first);
        assert!(trouble(&health).is_some());
        drop(second);
        assert_eq!(trouble(&health), None);
    }
}
