//! Yielding: an agent begins nothing while other users of the store on this host wait for their
//! reads and writes in a mount.
//!
//! A mount counts its requests and how long they took. Programs of jobs read and write without it,
//! so it counts only other users' requests. Their recent mean duration is compared with a limit.
//! Times of `fsync` do not count, as a disk takes them even when idle; nor does the time that a
//! writer waits for the program that reads its file (`--attach path`). With a store in PostgreSQL
//! this host may have several mounts: each is asked, and one slow mount is enough. A mount that
//! does not answer soon is asked again later, and does not count until then.
//!
//! Running programs yield, too, if they have control groups ([`crate::cgroup`]). While others wait
//! they have the least share of the machine, and are frozen, but never for longer than
//! [`STILL_MAX`] in a row. After that they go on for at least [`GO_ON_MIN`] (`Yielding`).

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use outrigger_clock::Instant;
use outrigger_fuse::control::Client;
use serde_json::Value;

/// Returns true while others wait.
pub type Busy = Arc<dyn Fn() -> bool + Send + Sync>;

/// How often mounts are asked …
const ASK_EVERY: Duration = Duration::from_millis(500);
/// … and how long one may take to answer.
const ANSWERS_WITHIN: Duration = Duration::from_secs(1);

/// How long programs are frozen in a row at most, while others wait …
pub const STILL_MAX: Duration = Duration::from_secs(2);
/// … and how long they go on at least before they are frozen again: however busy others are, a
/// third of the time is theirs.
pub const GO_ON_MIN: Duration = Duration::from_secs(1);

/// The state of running programs while others wait now and then.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Yielding {
    /// Run: nobody waits.
    #[default]
    Not,
    /// Frozen, since then.
    Still(Instant),
    /// They run although others wait: they were frozen for long enough.
    GoOn(Instant),
}

impl Yielding {
    /// The next state.
    pub fn next(self, others_wait: bool, now: Instant) -> Self {
        match self {
            _ if !others_wait => Self::Not,
            Self::Not => Self::Still(now),
            Self::Still(since) if now.duration_since(since) >= STILL_MAX => Self::GoOn(now),
            Self::GoOn(since) if now.duration_since(since) >= GO_ON_MIN => Self::Still(now),
            other => other,
        }
    }

    /// True if they are to be frozen.
    pub fn is_still(self) -> bool {
        matches!(self, Self::Still(_))
    }
}

/// A mount's counts.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
struct Sample {
    /// Reads and writes.
    operations: u64,
    /// Their duration together, without the time that writers waited for a program of a job, which
    /// must not be frozen for it.
    seconds: f64,
    /// Operations that wait for room just now.
    waiting: u64,
}

impl Sample {
    fn parse(text: &str) -> Option<Self> {
        let status: Value = serde_json::from_str(text).ok()?;
        let count = |name: &str| status[name].as_u64();
        let seconds = |name: &str| status[name].as_f64();
        Some(Self {
            operations: count("operations_read")? + count("operations_write")?,
            seconds: seconds("reading_seconds")? + seconds("writing_seconds")?
                - seconds("writing_paced_seconds")?,
            waiting: count("waiting_operations")?,
        })
    }

    /// True if requests have taken more than `limit` on average since `before`.
    fn is_slow(&self, before: Option<&Self>, limit: Duration) -> bool {
        if self.waiting > 0 {
            return true;
        }
        // A mount that was started anew has counted less.
        let Some(before) = before.filter(|before| before.operations < self.operations) else { return false };
        let mean = (self.seconds - before.seconds) / (self.operations - before.operations) as f64;
        mean > limit.as_secs_f64()
    }
}

/// A mount that is asked again and again.
struct Asked {
    mount: Client,
    before: Option<Sample>,
}

impl Asked {
    fn connect(dir: &Path) -> Option<Self> {
        let mount = Client::connect(dir).ok().flatten()?;
        mount.answers_within(ANSWERS_WITHIN).ok()?;
        Some(Self { mount, before: None })
    }

    /// True if others wait in it; `None` when it has gone.
    fn is_slow(&mut self, limit: Duration) -> Option<bool> {
        let sample = Sample::parse(&self.mount.ask("status").ok()?)?;
        let before = self.before.replace(sample);
        Some(sample.is_slow(before.as_ref(), limit))
    }
}

/// The mounts of a store, and when to ask them next.
struct Mounts {
    asked: HashMap<PathBuf, Asked>,
    next: Instant,
    busy: bool,
}

impl Mounts {
    /// Asks those that may listen in these directories.
    fn ask(&mut self, dirs: Vec<PathBuf>, limit: Duration) {
        self.busy = false;
        let mut before = std::mem::take(&mut self.asked);
        for dir in dirs {
            let Some(mut asked) = before.remove(&dir).or_else(|| Asked::connect(&dir)) else { continue };
            if let Some(is_slow) = asked.is_slow(limit) {
                self.busy |= is_slow;
                self.asked.insert(dir, asked);
            }
        }
    }
}

/// Looks for the mounts that listen in these directories, and asks if reads and writes take more
/// than `limit` on average in one of them.
pub fn of_mounts(dirs: impl Fn() -> Vec<PathBuf> + Send + Sync + 'static, limit: Duration) -> Busy {
    let mounts = Mutex::new(Mounts { asked: HashMap::new(), next: Instant::now(), busy: false });
    Arc::new(move || {
        let mut mounts = mounts.lock().expect("no panic while held");
        if Instant::now() >= mounts.next {
            mounts.ask(dirs(), limit);
            mounts.next = Instant::now() + ASK_EVERY;
        }
        mounts.busy
    })
}

#[cfg(test)]
mod tests {
    use outrigger_fuse::measures::{Status, json};

    use super::*;

    #[test]
    fn what_takes_longer_than_the_limit_on_average_is_busy() {
        let limit = Duration::from_millis(20);
        let sample = |operations, seconds| Sample { operations, seconds, waiting: 0 };
        let before = sample(100, 50.0);
        assert!(!sample(100, 50.0).is_slow(Some(&before), limit), "nobody asks for anything");
        assert!(!sample(200, 51.0).is_slow(Some(&before), limit));
        assert!(sample(200, 53.0).is_slow(Some(&before), limit));
        assert!(!sample(200, 53.0).is_slow(None, limit), "what was before it was looked at says nothing");
        assert!(!sample(10, 3.0).is_slow(Some(&before), limit), "another mount");
        assert!(Sample { waiting: 1, ..before }.is_slow(None, limit));
    }

    #[test]
    fn programs_are_held_still_while_others_wait_but_never_for_long() {
        let begun = Instant::now();
        let at = |millis| begun + Duration::from_millis(millis);
        let mut yielding = Yielding::default();
        assert!(!yielding.is_still());
        let mut told = Vec::new();
        // Others wait all the time: the mount is asked four times a second.
        for millis in (0..6000).step_by(250) {
            yielding = yielding.next(true, at(millis));
            told.push(yielding.is_still());
        }
        let (still, go_on) = ([true; 8], [false; 4]);
        assert_eq!(told, [&still[..], &go_on, &still, &go_on].concat());
        yielding = yielding.next(false, at(6000));
        assert_eq!(yielding, Yielding::Not, "nobody waits any more");
        assert!(yielding.next(true, at(6001)).is_still());
    }

    #[test]
    fn a_mounts_answer_is_understood() {
        let mut status =
            Status { operations_read: 3, operations_write: 4, waiting_operations: 5, ..Status::default() };
        (status.reading_seconds, status.writing_seconds) = (1_500_000_000, 700_000_000);
        status.writing_paced_seconds = 200_000_000;
        assert_eq!(
            Sample::parse(&json(&status, &[])),
            Some(Sample { operations: 7, seconds: 2.0, waiting: 5 })
        );
        assert_eq!(Sample::parse("{}"), None);
    }
}
