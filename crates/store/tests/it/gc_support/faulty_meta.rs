//! A metadata engine that fails on purpose: the call of a given number, before or after it has done
//! what it was asked.

use outrigger_store::meta::{Holds, Packs, Policies, Reclaim, Sessions, Snapshots, Tree};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use outrigger_format::{PackId, PackKind, Root};
use outrigger_store::meta::{
    At, Commit, Committed, Counters, DirEntry, Era, Generation, Inode, Meta, PackRow, PackSum, PinTarget,
    SessionId, SessionKind, SessionOwner, SessionRow, SnapshotRow, TreeTotals, VersionRow,
};
use outrigger_store::{Error, ErrorKind, Result, Unanswered, meta_calls};

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
    fn inline(&self) -> &dyn outrigger_store::meta::inline::InlineChunks {
        self.inner.inline()
    }

    /// Not counted, as above.
    fn jobs(&self) -> &dyn outrigger_store::meta::jobs::Jobs {
        self.inner.jobs()
    }

    /// Not counted, as above.
    fn records(&self) -> &dyn outrigger_store::meta::records::Records {
        self.inner.records()
    }

    meta_calls!(Meta, pass_on);
}

impl Sessions for FaultyMeta {
    /// By a thread of its own, at any time: not counted, so that runs are alike.
    fn renew(&self, session: SessionId, lease_secs: u32) -> Result<u64> {
        self.inner.renew(session, lease_secs)
    }

    meta_calls!(Sessions, pass_on);
}

impl Tree for FaultyMeta {
    pass_on! {
        fn commit(session: SessionId, commit: &Commit) -> Committed;
        fn has_happened(unanswered: Unanswered) -> bool;
    }

    meta_calls!(Tree, pass_on);
}

impl Packs for FaultyMeta {
    meta_calls!(Packs, pass_on);
}

impl Snapshots for FaultyMeta {
    meta_calls!(Snapshots, pass_on);
}

impl Holds for FaultyMeta {
    meta_calls!(Holds, pass_on);
}

impl Policies for FaultyMeta {
    meta_calls!(Policies, pass_on);
}

impl Reclaim for FaultyMeta {
    meta_calls!(Reclaim, pass_on);
}
