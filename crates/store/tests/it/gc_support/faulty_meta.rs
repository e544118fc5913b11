//! A metadata engine that fails on purpose: the call of a given number, before or after it has done what it was asked.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use outrigger_format::{PackId, PackKind, Root};
use outrigger_store::meta::{
    At, Commit, Committed, Counters, DirEntry, Generation, Inode, Meta, PackRow, PackSum, PinTarget,
    SessionId, SessionKind, SessionRow, SnapshotRow, TreeTotals, VersionRow,
};
use outrigger_store::{Error, ErrorKind, Result, Unanswered};

/// Fails once.
pub struct FaultyMeta {
    inner: Arc<dyn Meta>,
    calls: AtomicU64,
    fails: u64,
    after: bool,
}

impl FaultyMeta {
    /// Call number `fails`, from 1, fails: after it was done if `after` says so.
    pub fn new(inner: Arc<dyn Meta>, fails: u64, after: bool) -> Self {
        Self { inner, calls: AtomicU64::new(0), fails, after }
    }

    /// True when the call that fails has been made.
    pub fn has_failed(&self) -> bool {
        self.calls.load(Ordering::Relaxed) >= self.fails
    }

    fn count<T>(&self, what: &str, call: impl FnOnce() -> Result<T>) -> Result<T> {
        let fails = self.calls.fetch_add(1, Ordering::Relaxed) + 1 == self.fails;
        let error = || Error::new(ErrorKind::Io, format!("{what} failed on purpose"));
        if fails && !self.after {
            return Err(error());
        }
        let done = call()?;
        if fails { Err(error()) } else { Ok(done) }
    }
}

macro_rules! pass_on {
    ($(fn $name:ident($($argument:ident: $type:ty),*) -> $out:ty;)*) => {
        $(fn $name(&self, $($argument: $type),*) -> Result<$out> {
            self.count(stringify!($name), || self.inner.$name($($argument),*))
        })*
    };
}

impl Meta for FaultyMeta {
    /// Not counted: what is tested has none.
    fn loose(&self) -> Option<&dyn outrigger_store::meta::loose::Loose> {
        self.inner.loose()
    }

    /// By a thread of its own, at any time: not counted, so that runs are alike.
    fn renew(&self, session: SessionId, lease_secs: u32) -> Result<u64> {
        self.inner.renew(session, lease_secs)
    }

    pass_on! {
        fn open_session(kind: SessionKind, description: &str, lease_secs: u32) -> (SessionId, Generation);
        fn acknowledge(session: SessionId, relied: &[PackId]) -> Generation;
        fn now() -> u64;
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
        fn commit(session: SessionId, commit: &Commit) -> Committed;
        fn has_happened(unanswered: Unanswered) -> bool;
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
