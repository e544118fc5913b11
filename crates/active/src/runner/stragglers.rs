//! Slow splits: an idle runner makes a speculative attempt beside the first, and the first to
//! finish counts.
//!
//! No two hosts' clocks are compared. A runner measures how long *it* has seen a split with the
//! same attempt. It compares that with the longest attempt at this job here, and with the split's
//! forecast from other splits on any host ([`Forecast`]). The database decides which of two
//! attempts counts
//! ([`Splits::claim_speculative`](outrigger_store::meta::jobs::Splits::claim_speculative)). A
//! runner whose attempt does not count any more finds out within a second or so ([`Overtaken`]),
//! and ends it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use outrigger_clock::Instant;
use outrigger_store::meta::jobs::{Claimed, JobId, SplitRow, SplitState};
use outrigger_store::meta::{SessionId, is_gone};
use outrigger_store::{Result, Store};

use super::measured::{Forecast, measured};
use crate::attempt::Stopper;

/// The reason when another attempt finished first.
pub(super) const OVERTAKEN: &str = "another attempt at its split was first";
/// A straggler takes this many times as long as the longest attempt here, and as its forecast …
const LONGER: u32 = 3;
/// … and at least this long, …
const TAKES_MIN: Duration = Duration::from_secs(3);
/// … if there is something to compare it with; otherwise this long.
const TAKES_UNKNOWN: Duration = Duration::from_secs(60);
/// How often to look for stragglers, and to check if an attempt still counts.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// A speculative attempt to make.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Speculative {
    pub split: u64,
    /// The newest attempt at it.
    pub attempt: u64,
}

/// Looks for stragglers.
#[derive(Default)]
pub(crate) struct Stragglers {
    /// When each attempt was first seen running.
    seen: HashMap<(JobId, u64, u64), Instant>,
    /// When to look at each job next.
    next: HashMap<JobId, Instant>,
}

impl Stragglers {
    /// Finds a split that another process has been running for too long, compared with attempts
    /// that took `longest` here. A job is looked at once a second.
    ///
    /// # Errors
    /// Those of the database.
    pub fn find(
        &mut self,
        store: &Store,
        job: JobId,
        longest: Option<Duration>,
    ) -> Result<Option<Speculative>> {
        let now = Instant::now();
        self.next.retain(|_, next| now < *next);
        if self.next.contains_key(&job) {
            return Ok(None);
        }
        self.next.insert(job, now + LOOK_EVERY);
        let locks = store.locks_dir();
        let sessions = store.meta.sessions()?;
        // A process never makes a speculative attempt at its own split. An abandoned split is
        // claimed like any other.
        let others = |id: SessionId| {
            sessions
                .iter()
                .any(|row| row.id == id && !row.owner.is_this_process() && !is_gone(row, Some(&locks)))
        };
        let splits = store.jobs().splits(job)?;
        let forecast = Forecast::new(&splits, &measured(store, job)?);
        let is_others =
            |row: &&SplitRow| row.state == SplitState::Running && !row.range.is_open() && others(row.session);
        let running: Vec<_> = splits.iter().filter(is_others).collect();
        let beside = |row: &SplitRow| Speculative { split: row.number, attempt: row.attempt };
        self.seen.retain(|(of, split, attempt), _| {
            *of != job || running.iter().any(|row| (row.number, row.attempt) == (*split, *attempt))
        });
        let mut late = None;
        for row in running {
            let since = *self.seen.entry((job, row.number, row.attempt)).or_insert(now);
            let expected = forecast.secs(row).and_then(|secs| Duration::try_from_secs_f64(secs).ok());
            let limit = longest.max(expected).map_or(TAKES_UNKNOWN, |takes| {
                takes.checked_mul(LONGER).map_or(Duration::MAX, |takes| takes.max(TAKES_MIN))
            });
            if late.is_none() && now.duration_since(since) >= limit {
                late = Some(beside(row));
            }
        }
        Ok(late)
    }
}

/// An attempt that runs here.
struct Running {
    session: SessionId,
    claimed: Claimed,
    stopper: Stopper,
    since: Instant,
}

/// Attempts that run here, to be ended when they do not count any more.
#[derive(Default)]
pub(super) struct Overtaken {
    all: Mutex<Vec<Arc<Running>>>,
    next: Mutex<Option<Instant>>,
}

/// Watches an attempt as long as it lives.
pub(super) struct Looked<'a> {
    all: &'a Overtaken,
    one: Arc<Running>,
}

impl Drop for Looked<'_> {
    fn drop(&mut self) {
        self.all.all.lock().expect("no panic while held").retain(|other| !Arc::ptr_eq(other, &self.one));
    }
}

impl Overtaken {
    /// Begins to watch an attempt.
    pub fn look_after(&self, session: SessionId, claimed: Claimed, stopper: Stopper) -> Looked<'_> {
        let one = Arc::new(Running { session, claimed, stopper, since: Instant::now() });
        self.all.lock().expect("no panic while held").push(Arc::clone(&one));
        Looked { all: self, one }
    }

    /// Ends attempts that do not count any more, once a second. Most attempts end before they are
    /// checked.
    pub fn end(&self, store: &Store, job: JobId) {
        let now = Instant::now();
        let mut next = self.next.lock().expect("no panic while held");
        if next.is_some_and(|next| now < next) {
            return;
        }
        *next = Some(now + LOOK_EVERY);
        drop(next);
        let all = self.all.lock().expect("no panic while held").clone();
        for one in all.iter().filter(|one| now.duration_since(one.since) >= LOOK_EVERY) {
            // A database that is away says nothing of it.
            let current = store.jobs().is_current(one.session, job, &one.claimed);
            if current.is_ok_and(|current| !current) {
                one.stopper.stop(OVERTAKEN);
            }
        }
    }
}
