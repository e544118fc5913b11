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
use outrigger_store::{Error, ErrorKind, Result, Unanswered};

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

    pass_on! {
        fn now() -> u64;
        fn open_session(kind: SessionKind, description: &str, lease_secs: u32) -> (SessionId, Generation);
        fn renew(session: SessionId, lease_secs: u32) -> u64;
        fn acknowledge(session: SessionId, relied: &[PackId]) -> Generation;
        fn generation() -> u64;
        fn close_session(session: SessionId) -> ();
        fn fence(session: SessionId) -> ();
        fn sessions() -> Vec<SessionRow>;
        fn announce_packs(session: SessionId, kind: PackKind, count: u32, mark: u64) -> Vec<PackId>;
        fn withdraw_packs(session: SessionId, packs: &[PackId]) -> ();
        fn packs_sealed(session: SessionId, packs: &[PackRow]) -> ();
        fn packs() -> Vec<PackRow>;
        fn packs_after(after: PackId, limit: usize) -> Vec<PackRow>;
        fn pack_sums() -> Vec<PackSum>;
        fn sweep_packs(time: u64) -> u64;
        fn forget_packs(packs: &[PackId]) -> ();
        fn inode(at: At, number: u64) -> Option<Inode>;
        fn lookup(at: At, parent: u64, name: &[u8]) -> Option<Inode>;
        fn parent_of(directory: u64) -> Option<u64>;
        fn read_dir(at: At, parent: u64, after: Option<&[u8]>, limit: usize) -> Vec<DirEntry>;
        fn reserve_inodes(count: u64) -> Range<u64>;
        fn next_sequence() -> u64;
        fn totals() -> TreeTotals;
        fn versions(inode: u64) -> Vec<VersionRow>;
        fn create_snapshot(name: &str, time: u64, tags: &[String]) -> SnapshotRow;
        fn snapshots() -> Vec<SnapshotRow>;
        fn delete_snapshot(name: &str) -> ();
        fn pin(session: SessionId, target: &PinTarget) -> (u64, Option<Root>);
        fn hold(holder: &str, roots: &[Root]) -> ();
        fn release(holder: &str, roots: Option<&[Root]>) -> ();
        fn holders() -> Vec<String>;
        fn held(holder: &str) -> Vec<Root>;
        fn purge_history() -> u64;
        fn set_policy(inode: u64, key: &str, value: Option<&str>) -> ();
        fn policies(inode: u64) -> BTreeMap<String, String>;
        fn all_policies() -> BTreeMap<u64, BTreeMap<String, String>>;
        fn take_collector(session: SessionId) -> ();
        fn release_collector(session: SessionId) -> ();
        fn visit_roots(visit: &mut dyn FnMut(Root) -> Result<()>) -> Vec<PackRow>;
        fn condemn(session: SessionId, packs: &[PackId]) -> u64;
        fn all_acknowledged(generation: u64) -> bool;
        fn bury(session: SessionId, copies: &[PackId], victims: &[PackId], time: u64) -> ();
        fn absolve(session: SessionId, packs: &[PackId]) -> ();
        fn counters() -> Counters;
        fn raise_counters(next_pack: u64, next_inode: u64, next_sequence: u64) -> ();
        fn adopt_packs(packs: &[PackRow]) -> ();
        fn restore_versions(inode: u64, versions: &[VersionRow]) -> ();
        fn check() -> Vec<String>;
        fn tidy() -> ();
    }
}
