//! A host's path to the simulated database: every call takes time, is refused, is lost, or reaches
//! nobody.

use outrigger_store::meta::{Holds, Packs, Policies, Reclaim, Sessions, Snapshots, Tree};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicI64, AtomicU64};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use outrigger_format::{PackId, PackKind, Root};
use outrigger_store::meta::locks::{
    Blocker, FileLocks, Lock, LockFamily, LockRange, OwnersLocks, Taken, Wait,
};
use outrigger_store::meta::{
    At, Commit, Committed, Counters, DirEntry, Era, Generation, Inode, Meta, PackRow, PackSum, PinTarget,
    SessionId, SessionKind, SessionOwner, SessionRow, SnapshotRow, TreeTotals, VersionRow, inline, jobs,
};
use outrigger_store::testing::lost_answer;
use outrigger_store::{Error, ErrorKind, Result, Unanswered, meta_calls};

use crate::planted::{self, Planted};
use crate::scheduler;
use crate::servers::Servers;

/// How long a client waits for a server that does not answer.
const PATIENCE: Duration = Duration::from_secs(20);
/// How far back a planted fault tells old rows.
const STALE: Duration = Duration::from_secs(30);

/// The behaviour of a host's links. The script changes it.
#[derive(Default)]
pub struct Condition {
    /// Until when the first four hold: virtual nanoseconds.
    pub bad_until: AtomicU64,
    /// The longest travel of a message, in microseconds.
    pub delay_micros: AtomicU64,
    /// Calls in a thousand that are refused before anything is done.
    pub refused: AtomicU64,
    /// Answers in a thousand that are lost.
    pub lost: AtomicU64,
    /// Calls of the pack store in a thousand that fail.
    pub packs_fail: AtomicU64,
    /// Seconds that the host stops once it commits something while it holds a lock; 0: never.
    pub stall: AtomicU64,
    /// No message arrives at the database until then: virtual nanoseconds.
    pub away_until: AtomicU64,
    /// No message arrives at the pack store until then.
    pub packs_away_until: AtomicU64,
    /// Until then, bits of some answers of the pack store are flipped on the way: virtual
    /// nanoseconds.
    pub flips_until: AtomicU64,
    /// Names of the packs in such answers, and of their chunks.
    pub flipped: Mutex<BTreeSet<String>>,
}

fn is_before(until: &AtomicU64) -> bool {
    u128::from(until.load(Relaxed)) > scheduler::elapsed().as_nanos()
}

/// Waits until a server is back. Returns false if that takes too long.
fn await_back(until: &AtomicU64) -> bool {
    if is_before(until) {
        let until = Duration::from_nanos(until.load(Relaxed));
        outrigger_clock::sleep(until.saturating_sub(scheduler::elapsed()).min(PATIENCE));
    }
    !is_before(until)
}

impl Condition {
    /// Lets a request travel to the database or to the packs.
    pub fn travel(&self) {
        let most = if is_before(&self.bad_until) { self.delay_micros.load(Relaxed) } else { 100 };
        outrigger_clock::sleep(Duration::from_micros(20 + scheduler::below(most)));
    }

    /// Lets an answer travel. It takes no time while all is well: only the order in which requests
    /// arrive matters.
    fn travel_back(&self) {
        if is_before(&self.bad_until) {
            self.travel();
        }
    }

    fn is_bad(&self) -> bool {
        is_before(&self.bad_until) || is_before(&self.away_until)
    }

    /// Draws true for so many of a thousand calls.
    pub fn draws(&self, often: &AtomicU64) -> bool {
        is_before(&self.bad_until) && scheduler::below(1000) < often.load(Relaxed)
    }

    /// Draws whether a commit's answer is lost. It is lost more often than others, because it
    /// matters most.
    fn loses_commit(&self) -> bool {
        is_before(&self.bad_until) && scheduler::below(1000) < 5 * self.lost.load(Relaxed)
    }

    /// Draws whether a bit of the read bytes is flipped on the way: in one answer of four, while
    /// that lasts.
    pub fn flips(&self) -> bool {
        is_before(&self.flips_until) && scheduler::below(4) == 0
    }

    /// Waits for the pack store. Returns false if that takes too long.
    pub fn await_packs(&self) -> bool {
        await_back(&self.packs_away_until)
    }

    /// Ends all troubles.
    pub fn heal(&self) {
        let all = [&self.bad_until, &self.stall, &self.away_until, &self.packs_away_until, &self.flips_until];
        for until in all {
            until.store(0, Relaxed);
        }
    }
}

/// Rows of earlier answers, with their time.
type Told = HashMap<(u64, Vec<u8>), (Duration, Option<Inode>)>;

/// See the module.
pub struct Link {
    servers: Arc<Servers>,
    condition: Arc<Condition>,
    told: Mutex<Told>,
}

fn away(what: &str) -> Error {
    // A session may now be in doubt, and looks for the outcome.
    scheduler::something_is_new();
    Error::new(ErrorKind::Io, format!("{what}: the simulated database cannot be reached"))
}

/// A number for a commit whose answer is lost.
fn next_token() -> i64 {
    static TOKENS: AtomicI64 = AtomicI64::new(1);
    TOKENS.fetch_add(1, Relaxed)
}

impl Link {
    /// A link in good condition.
    pub fn new(servers: Arc<Servers>, condition: Arc<Condition>) -> Self {
        Self { servers, condition, told: Mutex::default() }
    }

    /// Lets a request arrive, or not.
    fn send(&self, what: &str) -> Result<()> {
        self.condition.travel();
        if !await_back(&self.condition.away_until) {
            return Err(away(what));
        }
        if self.condition.draws(&self.condition.refused) {
            return Err(Error::new(ErrorKind::Busy, format!("{what}: the simulated database is busy")));
        }
        Ok(())
    }

    pub(crate) fn call<T>(&self, what: &str, call: impl FnOnce(&Servers) -> Result<T>) -> Result<T> {
        self.send(what)?;
        let answer = scheduler::whole(|| call(&self.servers));
        if what == "mark_candidates" {
            self.servers.forget_generation();
        }
        self.condition.travel_back();
        if self.condition.draws(&self.condition.lost) {
            outrigger_clock::sleep(PATIENCE);
            return Err(away(what));
        }
        answer
    }

    /// A row of the database, or an old one if that fault is planted.
    fn row(
        &self,
        fault: Planted,
        key: (u64, &[u8]),
        read: impl FnOnce() -> Result<Option<Inode>>,
    ) -> Result<Option<Inode>> {
        let row = read()?;
        if !planted::is(fault) {
            return Ok(row);
        }
        let (now, mut told) = (scheduler::elapsed(), self.told.lock().expect("no panic while held"));
        let told = told.entry((key.0, key.1.to_vec())).or_insert_with(|| (now, row.clone()));
        if now - told.0 > STALE {
            *told = (now, row);
        }
        Ok(told.1.clone())
    }

    fn lookup_row(&self, at: At, parent: u64, name: &[u8]) -> Result<Option<Inode>> {
        let read = || self.call("lookup", |servers| servers.database.lookup(at, parent, name));
        let row = self.row(Planted::StaleNames, (parent, name), read)?;
        match row {
            Some(row) => self.row(Planted::StaleContents, (row.number, b""), || Ok(Some(row))),
            None => Ok(None),
        }
    }

    fn inode_row(&self, at: At, number: u64) -> Result<Option<Inode>> {
        let read = || self.call("inode", |servers| servers.database.inode(at, number));
        self.row(Planted::StaleContents, (number, b""), read)
    }

    /// A commit travels for long, and the host stops meanwhile.
    fn commit_stalled(&self, session: SessionId, commit: &Commit, secs: u64) -> Result<Committed> {
        let token = next_token();
        self.arrives_late(token, session, commit, Duration::from_secs(secs));
        scheduler::pause_for(scheduler::own_host(), Duration::from_secs(secs + 5));
        outrigger_clock::sleep(PATIENCE);
        Err(lost_answer(away("commit"), token))
    }

    fn arrives_late(&self, token: i64, session: SessionId, commit: &Commit, late: Duration) {
        let (servers, commit) = (Arc::clone(&self.servers), commit.clone());
        scheduler::spawn_on(scheduler::WORLD, move || {
            outrigger_clock::sleep(late);
            scheduler::whole(|| servers.commit_late(token, session, &commit));
        });
    }

    /// A commit whose answer does not come. The commit itself may be late, too.
    fn commit_unanswered(&self, session: SessionId, commit: &Commit) -> Result<Committed> {
        let token = next_token();
        if scheduler::below(3) == 0 {
            let late = [1, 15, 100][scheduler::below(3) as usize];
            self.arrives_late(token, session, commit, Duration::from_secs(late));
        } else {
            let done = scheduler::whole(|| self.servers.commit(session, commit));
            self.servers.note_outcome(token, done.is_ok());
            outrigger_clock::sleep(Duration::from_secs(1));
            // The client asks first by itself, and gets the answer late.
            if scheduler::below(4) == 0 && await_back(&self.condition.away_until) {
                return done;
            }
        }
        outrigger_clock::sleep(PATIENCE);
        Err(lost_answer(away("commit"), token))
    }
}

macro_rules! pass_on {
    (@one inode($at:ident: $at_type:ty, $number:ident: $number_type:ty) -> $out:ty) => {
        fn inode(&self, $at: $at_type, $number: $number_type) -> Result<$out> {
            self.inode_row($at, $number)
        }
    };
    (@one lookup($at:ident: $at_type:ty, $parent:ident: $parent_type:ty, $name:ident: $name_type:ty) -> $out:ty) => {
        fn lookup(&self, $at: $at_type, $parent: $parent_type, $name: $name_type) -> Result<$out> {
            self.lookup_row($at, $parent, $name)
        }
    };
    // A server tidies itself.
    (@one tidy() -> $out:ty) => {
        fn tidy(&self) -> Result<$out> {
            self.call("tidy", |_| Ok(()))
        }
    };
    (@one $name:ident($($argument:ident: $type:ty),*) -> $out:ty) => {
        fn $name(&self, $($argument: $type),*) -> Result<$out> {
            self.call(stringify!($name), |servers| servers.database.$name($($argument),*))
        }
    };
    ($(fn $name:ident($($argument:ident: $type:ty),*) -> $out:ty;)*) => {
        $(pass_on! { @one $name($($argument: $type),*) -> $out })*
    };
}

impl Meta for Link {
    fn jobs(&self) -> &dyn jobs::Jobs {
        self
    }

    fn records(&self) -> &dyn outrigger_store::meta::records::Records {
        self
    }

    fn inline(&self) -> &dyn inline::InlineChunks {
        self.condition.travel();
        self.servers.database.inline()
    }

    fn file_locks(&self) -> Option<&dyn FileLocks> {
        Some(self)
    }

    meta_calls!(Meta, pass_on);
}

impl Tree for Link {
    fn commit(&self, session: SessionId, commit: &Commit) -> Result<Committed> {
        self.send("commit")?;
        let stall = self.condition.stall.load(Relaxed);
        if stall > 0 && scheduler::whole(|| self.servers.holds_locks(session)) {
            self.condition.stall.store(0, Relaxed);
            return self.commit_stalled(session, commit, stall);
        }
        if self.condition.loses_commit() {
            return self.commit_unanswered(session, commit);
        }
        let done = scheduler::whole(|| self.servers.commit(session, commit));
        self.condition.travel_back();
        done
    }

    fn has_happened(&self, unanswered: Unanswered) -> Result<bool> {
        let token = outrigger_store::testing::token_of(unanswered);
        self.call("has_happened", |servers| Ok(servers.has_happened(token)))
    }

    meta_calls!(Tree, pass_on);
}

impl Sessions for Link {
    fn renew(&self, session: SessionId, _: u32) -> Result<u64> {
        if !self.condition.is_bad()
            && let Some((generation, until)) = scheduler::whole(|| self.servers.renewed(session))
        {
            if scheduler::below(4) > 0 {
                scheduler::nothing_is_new_until(until);
            }
            return Ok(generation);
        }
        self.call("renew", |servers| servers.renew(session))
    }

    meta_calls!(Sessions, pass_on);
}

impl Packs for Link {
    meta_calls!(Packs, pass_on);
}

impl Snapshots for Link {
    meta_calls!(Snapshots, pass_on);
}

impl Holds for Link {
    meta_calls!(Holds, pass_on);
}

impl Policies for Link {
    meta_calls!(Policies, pass_on);
}

impl Reclaim for Link {
    meta_calls!(Reclaim, pass_on);
}

impl FileLocks for Link {
    fn take_lock(&self, session: SessionId, inode: u64, lock: &Lock, wait: Option<Wait>) -> Result<Taken> {
        self.call("take_lock", |servers| servers.take_lock(session, inode, lock, wait))
    }

    fn lock_blockers(
        &self,
        session: SessionId,
        inode: u64,
        lock: &Lock,
        wait: Option<Wait>,
    ) -> Result<Vec<Blocker>> {
        self.call("lock_blockers", |servers| {
            let (locks, sessions) = servers.locks()?;
            Ok(locks.blockers(&sessions, session, inode, lock, wait))
        })
    }

    fn release_lock(
        &self,
        session: SessionId,
        inode: u64,
        family: LockFamily,
        owner: u64,
        range: LockRange,
    ) -> Result<bool> {
        self.call("release_lock", |servers| {
            servers.require_live(session)?;
            Ok(servers.locks()?.0.release(session, inode, family, owner, range))
        })
    }

    fn stop_waiting(&self, session: SessionId, ticket: u64) -> Result<()> {
        self.call("stop_waiting", |servers| {
            servers.locks()?.0.stop_waiting(session, ticket);
            Ok(())
        })
    }

    fn take_over_locks(&self, session: SessionId, from: SessionId, locks: &OwnersLocks) -> Result<bool> {
        self.call("take_over_locks", |servers| {
            servers.require_live(session)?;
            Ok(servers.locks()?.0.take_over(session, from, locks))
        })
    }

    fn sweep_locks(&self) -> Result<()> {
        self.call("sweep_locks", |servers| {
            let (mut locks, sessions) = servers.locks()?;
            locks.sweep(&sessions);
            Ok(())
        })
    }

    fn lock_counts(&self) -> Result<Vec<(SessionId, u64)>> {
        self.call("lock_counts", |servers| Ok(servers.locks()?.0.counts()))
    }
}
