//! A host's way to the simulated database: every call takes its time, and may be refused, or find nobody.
//!
//! The database is one SQLite engine that all hosts have. It runs one call after the other, in the order in which they arrive, which the seed chooses by how long each is on its way.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use outrigger_format::{PackId, PackKind, Root};
use outrigger_store::meta::{
    At, Commit, Committed, Counters, DirEntry, Generation, Inode, Meta, PackRow, PackSum, PinTarget,
    SessionId, SessionKind, SessionRow, SnapshotRow, SqliteMeta, TreeTotals, VersionRow, jobs, loose,
};
use outrigger_store::{Error, ErrorKind, Result, Unanswered, meta_calls};

use crate::planted::{self, Planted};
use crate::scheduler;

/// How a link behaves; the script changes it.
#[derive(Default)]
pub struct Condition {
    /// Most microseconds that a call is on its way.
    pub delay_micros: AtomicU64,
    /// Calls in a thousand that are refused before anything is done.
    pub refused: AtomicU64,
    /// Calls of the pack store in a thousand that fail.
    pub packs_fail: AtomicU64,
    /// Nothing arrives until then: virtual nanoseconds.
    pub away_until: AtomicU64,
}

impl Condition {
    /// A message is on its way, to the database or to the packs.
    pub fn travel(&self) {
        let most = self.delay_micros.load(Relaxed);
        outrigger_clock::sleep(Duration::from_micros(20 + scheduler::below(most)));
    }
}

/// See the module.
pub struct Link {
    database: Arc<SqliteMeta>,
    condition: Arc<Condition>,
}

fn away(what: &str) -> Error {
    Error::new(ErrorKind::Io, format!("{what}: the simulated database cannot be reached"))
}

impl Link {
    /// A link in good condition.
    pub fn new(database: Arc<SqliteMeta>, condition: Arc<Condition>) -> Self {
        Self { database, condition }
    }

    /// A request arrives, or not.
    fn send(&self, what: &str) -> Result<()> {
        self.condition.travel();
        if u128::from(self.condition.away_until.load(Relaxed)) > scheduler::elapsed().as_nanos() {
            // As long as a client waits for a server that does not answer.
            outrigger_clock::sleep(Duration::from_secs(5));
            return Err(away(what));
        }
        if scheduler::below(1000) < self.condition.refused.load(Relaxed) {
            return Err(Error::new(ErrorKind::Busy, format!("{what}: the simulated database is busy")));
        }
        Ok(())
    }

    fn call<T>(&self, what: &str, call: impl FnOnce() -> Result<T>) -> Result<T> {
        self.send(what)?;
        let answer = scheduler::whole(call);
        self.condition.travel();
        answer
    }
}

macro_rules! pass_on {
    ($(fn $name:ident($($argument:ident: $type:ty),*) -> $out:ty;)*) => {
        $(fn $name(&self, $($argument: $type),*) -> Result<$out> {
            self.call(stringify!($name), || self.database.$name($($argument),*))
        })*
    };
}

impl Meta for Link {
    fn jobs(&self) -> Option<&dyn jobs::Jobs> {
        self.condition.travel();
        self.database.jobs()
    }

    fn loose(&self) -> Option<&dyn loose::Loose> {
        self.condition.travel();
        self.database.loose()
    }

    fn commit(&self, session: SessionId, commit: &Commit) -> Result<Committed> {
        self.send("commit")?;
        if planted::is(Planted::AcknowledgedBeforeCommit) && scheduler::below(8) == 0 {
            return Ok(Committed::default());
        }
        let changed = planted::change_commit(commit);
        let done = scheduler::whole(|| self.database.commit(session, &changed));
        self.condition.travel();
        if planted::is(Planted::UnknownIsFailed) && scheduler::below(8) == 0 {
            return Err(away("commit"));
        }
        done
    }

    fn has_happened(&self, unanswered: Unanswered) -> Result<bool> {
        self.call("has_happened", || self.database.has_happened(unanswered))
    }

    fn renew(&self, session: SessionId, lease_secs: u32) -> Result<u64> {
        self.call("renew", || self.database.renew(session, lease_secs))
    }

    meta_calls!(pass_on);
}
