//! How the other end of a network fares, by the requests that are made of it: an object store, a pool, a database.
//!
//! One that fails and is made again is trouble, until one succeeds. So is one that has waited for [`PATIENT`], though nothing has been said of it yet: that is all there is to see of a server that holds its connections
//! and does not answer.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use outrigger_clock::Instant;

use crate::wait;

/// How long a request may wait before that is trouble.
const PATIENT: Duration = Duration::from_secs(10);
/// What failed longer ago says nothing of now.
const RECENT: Duration = Duration::from_secs(30);

/// What is wrong just now.
#[derive(Default)]
pub(crate) struct Health {
    /// Requests that failed and were made again.
    pub retries: AtomicU64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Since when nothing has worked, and what was said last.
    failing: Option<(Instant, String)>,
    /// When something failed last.
    failed: Option<Instant>,
    /// Somebody was told of that.
    is_told: bool,
    /// Requests that wait, in the order in which they began.
    waiting: BTreeMap<u64, Instant>,
    next: u64,
}

/// A request that waits, until this is dropped.
pub(crate) struct Waiting<'a> {
    health: &'a Health,
    number: u64,
}

impl Health {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A request has been answered, if only by a refusal.
    pub fn works(&self) {
        let mut state = self.lock();
        (state.failing, state.is_told) = (None, false);
    }

    /// A request has failed for no reason of its own. Whoever waits is told once that it is made again ([`wait`]).
    pub fn fails(&self, why: &str) {
        if self.fails_for(why, wait::LONG) {
            wait::tell(&format!("{why}; trying again until it is there, or for about a minute"));
        }
    }

    /// As [`Health::fails`], of a request that nobody is told of and that has waited since then.
    pub fn fails_since(&self, since: Instant, why: &str) {
        let mut state = self.lock();
        state.failing.get_or_insert_with(|| (since, why.to_string()));
        state.failed = Some(Instant::now());
    }

    /// Whether somebody is to be told now that it has done so for longer than `long`.
    fn fails_for(&self, why: &str, long: Duration) -> bool {
        self.retries.fetch_add(1, Ordering::Relaxed);
        let mut state = self.lock();
        let since = state.failing.as_ref().map_or_else(Instant::now, |(since, _)| *since);
        state.failing = Some((since, why.to_string()));
        state.failed = Some(Instant::now());
        since.elapsed() >= long && !std::mem::replace(&mut state.is_told, true)
    }

    /// How long nothing has worked that was tried; nothing when the last failure is a while ago, since it may work by now.
    pub fn failing_for(&self) -> Duration {
        let state = self.lock();
        let is_recent = state.failed.is_some_and(|failed| failed.elapsed() < RECENT);
        state.failing.as_ref().filter(|_| is_recent).map_or(Duration::ZERO, |(since, _)| since.elapsed())
    }

    /// Whether nothing has worked since a failure that is younger than this.
    pub fn failed_within(&self, time: Duration) -> bool {
        let state = self.lock();
        state.failing.is_some() && state.failed.is_some_and(|failed| failed.elapsed() < time)
    }

    /// A request begins.
    pub fn begin(&self) -> Waiting<'_> {
        let mut state = self.lock();
        let number = state.next;
        state.next += 1;
        state.waiting.insert(number, Instant::now());
        Waiting { health: self, number }
    }

    /// What is wrong, in a clause; `None` while requests succeed.
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
        let health = Health::default();
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
        let health = Health::default();
        let (now, never) = (Duration::ZERO, Duration::MAX);
        assert!(!health.fails_for("refused", never));
        assert!(health.fails_for("refused", now) && !health.fails_for("refused", now));
        health.works();
        assert!(health.fails_for("refused", now));
    }

    #[test]
    fn who_waits_for_long_is_trouble_and_the_first_one_counts() {
        let health = Health::default();
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
