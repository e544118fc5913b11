//! Delay scheduling: when a runner takes a split that lies on another host.
//!
//! A slot first claims splits on its own host, then splits that no willing runner holds, and last
//! the rest. It leaves each split of another host alone for about as long as reading it remotely
//! would take longer than reading it there, and at most for [`DELAY_MAX`]. That time begins when
//! this runner first finds nothing else to do, for all such splits together, so a job is delayed
//! once. No split is left to a host without an agent (or a `run` of this job), or to one whose
//! agent is drained or yields to others. Nothing is delayed if the packs' engine does not know
//! which host holds which pack.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

use outrigger_clock::Instant;
use outrigger_store::backend::is_same_host;
use outrigger_store::host;
use outrigger_store::meta::Role;
use outrigger_store::meta::jobs::{JobId, SplitState};
use outrigger_store::{Result, Store};

use crate::node::nodes;

/// The longest that a split is left alone because another host holds it.
const DELAY_MAX: Duration = Duration::from_secs(2);
/// Assumed bytes a second of remote reads, until some were measured: a gigabit a second.
const RATE_ASSUMED: u64 = 125_000_000;
/// How often a waiting slot looks again.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// How long the list of willing hosts is cached.
const WILLING_FOR: Duration = Duration::from_millis(500);

/// A split of which another host holds more than half.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Far {
    /// Its number.
    pub split: u64,
    /// The holder.
    pub host: String,
    /// Its length.
    pub bytes: u64,
}

/// Where the splits of a job lie, as far as known.
#[derive(Debug, Default)]
pub(crate) struct Placed {
    /// Splits of which this host holds more than half, rising.
    pub local: Vec<u64>,
    /// Splits of which another host does, rising.
    far: Vec<Far>,
    /// How many splits there are.
    splits: u64,
    /// When a runner of this process first found nothing else to do.
    idle: OnceLock<Instant>,
    willing: Mutex<Option<(Instant, Vec<String>)>>,
    /// Bytes read remotely, and how long that took: milliseconds.
    read: (AtomicU64, AtomicU64),
}

impl Placed {
    pub(super) fn new(local: Vec<u64>, far: Vec<Far>, splits: u64) -> Self {
        Self { local, far, splits, ..Self::default() }
    }

    /// Records how long a mostly remote split took.
    pub fn note_far(&self, bytes: u64, took: Duration) {
        self.read.0.fetch_add(bytes, Ordering::Relaxed);
        self.read.1.fetch_add(took.as_millis() as u64, Ordering::Relaxed);
    }

    fn rate(&self) -> u64 {
        let (bytes, millis) = (self.read.0.load(Ordering::Relaxed), self.read.1.load(Ordering::Relaxed));
        if bytes == 0 { RATE_ASSUMED } else { (bytes.saturating_mul(1000) / millis.max(1)).max(1) }
    }

    /// The splits that may be claimed after waiting this long; `None`: all.
    fn offered(&self, willing: &[String], waited: Duration) -> Option<Vec<u64>> {
        let rate = self.rate();
        let is_left = |far: &&Far| {
            let worth = Duration::from_secs_f64(far.bytes as f64 / rate as f64).min(DELAY_MAX);
            waited < worth && willing.iter().any(|host| is_same_host(host, &far.host))
        };
        let mut left = self.far.iter().filter(is_left).map(|far| far.split).peekable();
        left.peek()?;
        let mut offered = Vec::with_capacity(self.splits as usize);
        for split in 0..self.splits {
            if left.peek() == Some(&split) {
                left.next();
            } else {
                offered.push(split);
            }
        }
        Some(offered)
    }

    /// The other hosts with a runner that would take splits of this job.
    fn willing(&self, store: &Store, job: JobId) -> Result<Vec<String>> {
        let mut known = self.willing.lock().expect("no panic while held");
        if let Some((since, willing)) = &*known
            && since.elapsed() < WILLING_FOR
        {
            return Ok(willing.clone());
        }
        let own = host::name();
        let (ready, not): (Vec<_>, Vec<_>) =
            nodes(store)?.into_iter().partition(|node| !node.drains && !node.yields);
        let mut willing: Vec<String> = ready.into_iter().map(|node| node.host).collect();
        // A yielding agent may have begun the job, too, but takes nothing now.
        let is_not = |host: &String| not.iter().any(|node| node.host == *host);
        let runs = store.meta.sessions()?.into_iter().filter(|row| row.owner.role == Role::Job(job));
        willing.extend(runs.map(|row| row.owner.host).filter(|host| !is_not(host)));
        willing.retain(|host| !is_same_host(host, &own));
        *known = Some((Instant::now(), willing.clone()));
        Ok(willing)
    }
}

/// The splits that a slot may claim next: from near to far.
pub(super) enum Turn {
    /// Those on this host.
    Local,
    /// All but those that are left to other hosts.
    Patient,
    /// Anything.
    Any,
}

impl Turn {
    pub fn first(placed: &Placed) -> Self {
        match (placed.local.is_empty(), placed.far.is_empty()) {
            (false, _) => Self::Local,
            (true, false) => Self::Patient,
            (true, true) => Self::Any,
        }
    }

    /// The splits that may be claimed; `None`: any.
    pub fn only(&self, placed: &Placed, store: &Store, job: JobId) -> Result<Option<Vec<u64>>> {
        match self {
            Self::Local => Ok(Some(placed.local.clone())),
            Self::Patient => {
                let waited = placed.idle.get_or_init(Instant::now).elapsed();
                Ok(placed.offered(&placed.willing(store, job)?, waited))
            }
            Self::Any => Ok(None),
        }
    }

    /// Nothing of that could be claimed: returns the next turn, perhaps after a moment; `None` if
    /// there is no other.
    pub fn after(self, only: Option<&[u64]>, store: &Store, job: JobId) -> Result<Option<Self>> {
        match (self, only) {
            (Self::Local, _) => Ok(Some(Self::Patient)),
            (Self::Patient, Some(_)) => {
                let row = store.jobs().job_briefly(job)?;
                if row.is_none_or(|row| row.splits[SplitState::Waiting as usize] == 0) {
                    return Ok(Some(Self::Any));
                }
                outrigger_clock::sleep(LOOK_EVERY);
                Ok(Some(Self::Patient))
            }
            (Self::Patient | Self::Any, _) => Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_split_is_left_to_who_holds_it_for_as_long_as_that_is_worth() {
        let far = |split: u64, host: &str, bytes: u64| Far { split, host: host.to_string(), bytes };
        let placed = Placed::new(
            vec![0],
            vec![far(1, "a", 25_000_000), far(3, "b", 1 << 40), far(4, "c", 1 << 40)],
            6,
        );
        let (a, b) = ("a".to_string(), "b".to_string());
        let offered = |willing: &[String], millis| placed.offered(willing, Duration::from_millis(millis));
        // Nobody else is there, or is willing: anything.
        assert_eq!(offered(&[], 0), None);
        assert_eq!(offered(&[a.clone(), b.clone()], 0), Some(vec![0, 2, 4, 5]));
        assert_eq!(offered(std::slice::from_ref(&b), 0), Some(vec![0, 1, 2, 4, 5]));
        // 25 MB are 200 ms of remote reads; no split is left alone for more than two seconds.
        assert_eq!(offered(&[a.clone(), b.clone()], 199), Some(vec![0, 2, 4, 5]));
        assert_eq!(offered(&[a.clone(), b.clone()], 200), Some(vec![0, 1, 2, 4, 5]));
        assert_eq!(offered(&[a.clone(), b.clone()], 2000), None);
        // The measured rate counts: a tenth of the assumed one.
        placed.note_far(12_500_000, Duration::from_secs(1));
        assert_eq!(offered(&[a.clone(), b.clone()], 1900), Some(vec![0, 2, 4, 5]));
        assert_eq!(offered(&[a, b], 2000), None);
    }

    #[test]
    fn turns_go_from_near_to_far() {
        let far = || vec![Far { split: 1, host: "a".to_string(), bytes: 1 }];
        let first = |local, far| Turn::first(&Placed::new(local, far, 2));
        assert!(matches!(first(vec![0], far()), Turn::Local));
        assert!(matches!(first(vec![], far()), Turn::Patient));
        assert!(matches!(first(vec![], vec![]), Turn::Any));
    }
}
