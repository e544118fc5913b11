//! The embedded engine: one SQLite database, one writer at a time, readers beside it.
//!
//! **Correctness comes from transactions alone.** Several processes have the database open. A
//! method decides by what it read in its own write transaction (`BEGIN IMMEDIATE`, so that no other
//! writer comes between reading and writing). Memory has only connections and prepared statements.
//!
//! **Connections.** One writes, behind a mutex; a few read, each serving one thread at a time. With
//! a write-ahead log readers see the last commit and never wait. A commit is durable when the
//! method returns (`synchronous = FULL`).
//!
//! | file | holds |
//! | --- | --- |
//! | `open.rs` | opening, settings, refusing files of other programs |
//! | `schema.sql`, `row.rs`, `sums.rs` | tables; rows to values and back, checked; their checksums |
//! | `tree.rs` | reading the tree |
//! | `commit.rs`, `rows.rs`, `statements.rs` | one commit; the rows that its changes work on (what they mean is in `meta/change/`); their SQL |
//! | `sessions.rs`, `packs.rs`, `reclaim.rs` | the protocol of docs/decisions/0003-reclaim-protocol.md |
//! | `jobs.rs`, `job_rows.rs`, `marks.rs` | reading and claiming jobs; the rows that their rules work on (these are in `meta/jobs/rules.rs`); what rules for files have seen |
//! | `records.rs` | the registry |
//! | `loose.rs` | loose chunks |
//! | `carry.rs` | rows for another engine, and from one |
//! | `snapshots.rs`, `policies.rs`, `state.rs`, `check.rs` | the rest |

mod carry;
mod check;
mod commit;
mod job_rows;
mod jobs;
mod loose;
mod marks;
mod open;
mod packs;
mod policies;
mod reclaim;
mod records;
mod row;
mod rows;
mod sessions;
mod snapshots;
mod state;
mod statements;
mod sums;
#[cfg(test)]
mod tests;
mod tree;

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::ops::{Deref, Range};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use outrigger_format::{Fingerprint, PackId, PackKind, Root};
use rusqlite::{Connection, TransactionBehavior};

use self::sessions::Moment;
use self::snapshots::PurgePosition;
use super::fault::{Explain as _, Outcome};
use super::loose::{Loose, LooseChunk, LooseOwner, LooseRow};
use super::{
    At, Commit, Committed, Counters, DirEntry, Era, Generation, Inode, Meta, PackRow, PackSum, PinTarget,
    SessionId, SessionKind, SessionOwner, SessionRow, SnapshotRow, TreeTotals, VersionRow,
};
use crate::error::{Error, ErrorKind, Result, Unanswered};

pub use self::open::OpenMode;
pub(crate) use sums::register as register_functions;

/// The database's clock, nanoseconds.
pub type Clock = Arc<dyn Fn() -> u64 + Send + Sync>;

/// Reading connections that are kept open.
const READERS_KEPT: usize = 8;

/// True when nothing has ever been stored by the database at `path`; one that cannot be read is not unused.
pub(crate) fn is_unused_database(path: &Path) -> bool {
    open::is_unused(path)
}

/// The metadata engine in an SQLite database.
pub struct SqliteMeta {
    path: PathBuf,
    source: open::Source,
    readers: Mutex<Vec<Connection>>,
    /// Closed after the readers, because only a writing connection that is the last one puts the log away.
    writer: Option<Mutex<Connection>>,
    wall: Clock,
    steady: Clock,
}

impl SqliteMeta {
    /// Opens (or makes) the database at `path`.
    ///
    /// # Errors
    /// `Exists` (creating), `NotFound`, `Denied`, `Invalid` or `Damaged` (not such a database), `Newer`, `Io`.
    pub fn open(path: &Path, mode: OpenMode) -> Result<Self> {
        let steady = Arc::new(outrigger_clock::steady_nanos);
        Self::open_with_clocks(path, mode, Arc::new(outrigger_clock::now_nanos), steady)
    }

    /// As [`SqliteMeta::open`], with another clock for times and to judge leases by.
    ///
    /// # Errors
    /// As [`SqliteMeta::open`].
    pub fn open_with_clock(path: &Path, mode: OpenMode, clock: Clock) -> Result<Self> {
        Self::open_with_clocks(path, mode, Arc::clone(&clock), clock)
    }

    fn open_with_clocks(path: &Path, mode: OpenMode, wall: Clock, steady: Clock) -> Result<Self> {
        if mode == OpenMode::Create {
            open::create(path)?;
        }
        let source = open::Source::new(path, mode)?;
        let reader = source.reader()?;
        open::recognise(&reader, path)?;
        let writer = match mode {
            OpenMode::Create | OpenMode::ReadWrite => Some(Mutex::new(source.writer()?)),
            OpenMode::ReadOnly => None,
        };
        Ok(Self { path: path.to_owned(), source, writer, readers: Mutex::new(vec![reader]), wall, steady })
    }

    fn moment(&self) -> Moment {
        Moment { wall: (self.wall)(), steady: (self.steady)() }
    }

    fn lock_writer(&self, what: &str) -> Result<MutexGuard<'_, Connection>> {
        let writer = self.writer.as_ref().ok_or_else(|| {
            Error::new(
                ErrorKind::Denied,
                format!("{what}: metadata database {} is open read-only", self.path.display()),
            )
        })?;
        // A panic of another thread rolled its transaction back when it unwound.
        Ok(writer.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Runs `work` in a write transaction: all of it or, on any error, nothing.
    fn write<T>(&self, what: &str, work: impl FnOnce(&Connection) -> Outcome<T>) -> Result<T> {
        let mut connection = self.lock_writer(what)?;
        self.source.still_there()?;
        let transact = || -> Outcome<T> {
            let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let value = work(&transaction)?;
            transaction.commit()?;
            Ok(value)
        };
        transact().explain(what)
    }

    fn reader(&self) -> Result<Reader<'_>> {
        let kept = self.readers.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let connection = kept.map_or_else(|| self.source.reader(), Ok)?;
        Ok(Reader { connection: Some(connection), home: &self.readers })
    }

    /// Runs `work`, which makes one statement, on a reading connection.
    fn read_once<T>(&self, what: &str, work: impl FnOnce(&Connection) -> Outcome<T>) -> Result<T> {
        work(&*self.reader()?).explain(what)
    }

    /// Runs `work` on one state of the database.
    fn read<T>(&self, what: &str, work: impl FnOnce(&Connection) -> Outcome<T>) -> Result<T> {
        let connection = self.reader()?;
        let transact = || -> Outcome<T> {
            let transaction = connection.unchecked_transaction()?;
            let value = work(&transaction)?;
            transaction.commit()?;
            Ok(value)
        };
        transact().explain(what)
    }

    /// Reads of the current tree are one statement, and so need no transaction; others do.
    fn read_tree<T>(&self, what: &str, at: At, work: impl FnOnce(&Connection) -> Outcome<T>) -> Result<T> {
        match at {
            At::Now => self.read_once(what, work),
            At::Epoch(_) => self.read(what, work),
        }
    }
}

impl fmt::Debug for SqliteMeta {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteMeta").field("path", &self.path).finish_non_exhaustive()
    }
}

/// A reading connection, on loan.
struct Reader<'a> {
    connection: Option<Connection>,
    home: &'a Mutex<Vec<Connection>>,
}

impl Deref for Reader<'_> {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        self.connection.as_ref().expect("it is taken out when dropped only")
    }
}

impl Drop for Reader<'_> {
    fn drop(&mut self) {
        let mut home = self.home.lock().unwrap_or_else(PoisonError::into_inner);
        if home.len() < READERS_KEPT {
            home.extend(self.connection.take());
        }
    }
}

impl Meta for SqliteMeta {
    fn open_session(
        &self,
        kind: SessionKind,
        owner: &SessionOwner,
        lease_secs: u32,
    ) -> Result<(SessionId, Generation)> {
        self.write("opening a session", |db| sessions::open(db, self.moment(), kind, owner, lease_secs))
    }

    fn renew(&self, session: SessionId, lease_secs: u32) -> Result<u64> {
        self.write("renewing a session's lease", |db| sessions::renew(db, self.moment(), session, lease_secs))
    }

    fn acknowledge(&self, session: SessionId, relied: &[PackId]) -> Result<Generation> {
        self.write("acknowledging a generation", |db| {
            sessions::acknowledge(db, self.moment(), session, relied)
        })
    }

    fn now(&self) -> Result<u64> {
        Ok((self.wall)())
    }

    fn still_there(&self) -> Result<()> {
        self.source.still_there()
    }

    fn generation(&self) -> Result<u64> {
        self.read_once("reading the generation", |db| Ok(state::counter(db, "generation")? as u64))
    }

    fn close_session(&self, session: SessionId) -> Result<()> {
        self.write("closing a session", |db| sessions::end(db, session))
    }

    fn fence(&self, session: SessionId) -> Result<()> {
        self.write("fencing a session", |db| sessions::end(db, session))
    }

    fn sessions(&self) -> Result<Vec<SessionRow>> {
        self.read_once("listing sessions", |db| sessions::all(db, self.moment()))
    }

    fn announce_packs(
        &self,
        session: SessionId,
        kind: PackKind,
        count: u32,
        mark: u64,
    ) -> Result<Vec<PackId>> {
        self.write("announcing packs", |db| packs::announce(db, self.moment(), session, kind, (count, mark)))
    }

    fn withdraw_packs(&self, session: SessionId, packs: &[PackId]) -> Result<()> {
        self.write("withdrawing packs", |db| packs::withdraw(db, self.moment(), session, packs))
    }

    fn packs_sealed(&self, session: SessionId, packs: &[PackRow]) -> Result<()> {
        self.write("recording sealed packs", |db| packs::sealed(db, self.moment(), session, packs))
    }

    fn packs(&self) -> Result<Vec<PackRow>> {
        self.read_once("listing packs", |db| packs::select(db, packs::EVERY, []))
    }

    fn packs_after(&self, after: PackId, limit: usize) -> Result<Vec<PackRow>> {
        let page = (after.0 as i64, i64::try_from(limit).unwrap_or(i64::MAX));
        self.read_once("listing packs", |db| packs::select(db, packs::AFTER, page))
    }

    fn pack_sums(&self) -> Result<Vec<PackSum>> {
        self.read_once("summing up packs", packs::sum_up)
    }

    fn sweep_packs(&self, time: u64) -> Result<u64> {
        self.write("sweeping packs", |db| packs::sweep(db, time))
    }

    fn forget_packs(&self, packs: &[PackId]) -> Result<()> {
        self.write("forgetting packs", |db| packs::forget(db, packs))
    }

    fn inode(&self, at: At, number: u64) -> Result<Option<Inode>> {
        self.read_tree("reading an inode", at, |db| tree::inode(db, at, number))
    }

    fn lookup(&self, at: At, parent: u64, name: &[u8]) -> Result<Option<Inode>> {
        self.read_tree("looking up a name", at, |db| tree::lookup(db, at, parent, name))
    }

    fn parent_of(&self, directory: u64) -> Result<Option<u64>> {
        self.read_once("finding where a directory hangs", |db| tree::parent_of(db, directory))
    }

    fn read_dir(&self, at: At, parent: u64, after: Option<&[u8]>, limit: usize) -> Result<Vec<DirEntry>> {
        self.read_tree("reading a directory", at, |db| tree::read_dir(db, at, parent, after, limit))
    }

    fn history(&self, directory: u64) -> Result<Vec<Era>> {
        self.read("reading a directory's history", |db| tree::history(db, directory))
    }

    fn reserve_inodes(&self, count: u64) -> Result<Range<u64>> {
        let first = self.write("reserving inodes", |db| state::advance(db, "next_inode", count))?;
        Ok(first..first + count)
    }

    fn commit(&self, session: SessionId, commit: &Commit) -> Result<Committed> {
        self.write("committing", |db| commit::commit(db, self.moment(), session, commit))
    }

    fn has_happened(&self, _: Unanswered) -> Result<bool> {
        Err(Error::new(ErrorKind::Invalid, "transactions of a file always have their answer"))
    }

    fn next_sequence(&self) -> Result<u64> {
        self.write("numbering a catalogue block", |db| state::advance(db, "next_sequence", 1))
    }

    fn totals(&self) -> Result<TreeTotals> {
        self.read_once("reading totals", |db| Ok(state::totals(db)?))
    }

    fn versions(&self, inode: u64) -> Result<Vec<VersionRow>> {
        self.read_once("listing versions", |db| tree::versions(db, inode))
    }

    fn create_snapshot(&self, name: &str, time: u64, tags: &[String]) -> Result<SnapshotRow> {
        self.write("taking a snapshot", |db| snapshots::create(db, name, time, tags))
    }

    fn set_snapshot_tags(&self, name: &str, tags: &[String]) -> Result<()> {
        self.write("changing a snapshot", |db| snapshots::set_tags(db, name, tags))
    }

    fn snapshots(&self) -> Result<Vec<SnapshotRow>> {
        self.read("listing snapshots", snapshots::all)
    }

    fn delete_snapshot(&self, name: &str) -> Result<()> {
        self.write("deleting a snapshot", |db| snapshots::delete(db, name))
    }

    fn pin(&self, session: SessionId, target: &PinTarget) -> Result<(u64, Option<Root>)> {
        self.write("pinning", |db| snapshots::pin(db, self.moment(), session, target))
    }

    fn purge_history(&self) -> Result<u64> {
        const BATCH: usize = 20_000;
        let (mut at, mut total) = (PurgePosition::START, 0);
        while at != PurgePosition::Done {
            let (next, gone) = self.write("purging history", |db| snapshots::purge(db, at, BATCH))?;
            at = next;
            total += gone;
        }
        Ok(total)
    }

    fn set_policy(&self, inode: u64, key: &str, value: Option<&str>) -> Result<()> {
        self.write("setting a policy", |db| policies::set(db, inode, key, value))
    }

    fn policies(&self, inode: u64) -> Result<BTreeMap<String, String>> {
        self.read_once("reading policies", |db| policies::of(db, inode))
    }

    fn all_policies(&self) -> Result<BTreeMap<u64, BTreeMap<String, String>>> {
        self.read_once("reading policies", policies::all)
    }

    fn hold(&self, holder: &str, roots: &[Root]) -> Result<()> {
        self.write("holding roots", |db| reclaim::hold(db, holder, roots))
    }

    fn release(&self, holder: &str, roots: Option<&[Root]>) -> Result<()> {
        self.write("releasing roots", |db| reclaim::let_go(db, holder, roots))
    }

    fn holders(&self) -> Result<Vec<String>> {
        self.read_once("listing who holds roots", reclaim::holders)
    }

    fn held(&self, holder: &str) -> Result<Vec<Root>> {
        self.read_once("listing held roots", |db| reclaim::held(db, holder))
    }

    fn take_collector(&self, session: SessionId) -> Result<()> {
        self.write("becoming the collector", |db| reclaim::take(db, self.moment(), session))
    }

    fn release_collector(&self, session: SessionId) -> Result<()> {
        self.write("ending a collector's run", |db| reclaim::release(db, self.moment(), session))
    }

    fn visit_roots(&self, visit: &mut dyn FnMut(Root) -> Result<()>) -> Result<Vec<PackRow>> {
        self.read("listing what is retained", |db| reclaim::visit_roots(db, visit))
    }

    fn condemn(&self, session: SessionId, packs: &[PackId]) -> Result<u64> {
        self.write("condemning packs", |db| reclaim::condemn(db, self.moment(), session, packs))
    }

    fn all_acknowledged(&self, generation: u64) -> Result<bool> {
        self.read_once("reading acknowledgements", |db| reclaim::all_acknowledged(db, generation))
    }

    fn bury(&self, session: SessionId, copies: &[PackId], victims: &[PackId], time: u64) -> Result<()> {
        self.write("burying packs", |db| reclaim::bury(db, self.moment(), session, (copies, victims), time))
    }

    fn absolve(&self, session: SessionId, packs: &[PackId]) -> Result<()> {
        self.write("absolving packs", |db| reclaim::absolve(db, self.moment(), session, packs))
    }

    fn jobs(&self) -> &dyn super::jobs::Jobs {
        self
    }

    fn records(&self) -> &dyn super::records::Records {
        self
    }

    fn loose(&self) -> &dyn Loose {
        self
    }

    fn counters(&self) -> Result<Counters> {
        self.read_once("reading counters", state::counters)
    }

    fn raise_counters(&self, next_pack: u64, next_inode: u64, next_sequence: u64) -> Result<()> {
        let least = [("next_pack", next_pack), ("next_inode", next_inode), ("next_sequence", next_sequence)];
        self.write("raising counters", |db| state::raise(db, &least))
    }

    fn adopt_packs(&self, packs: &[PackRow]) -> Result<()> {
        self.write("adopting packs", |db| packs::adopt(db, packs))
    }

    fn restore_versions(&self, inode: u64, versions: &[VersionRow]) -> Result<()> {
        self.write("restoring versions", |db| tree::restore_versions(db, inode, versions))
    }

    fn check(&self) -> Result<Vec<String>> {
        self.read("checking the metadata", check::check)
    }

    fn tidy(&self) -> Result<()> {
        let what = "tidying the metadata";
        let connection = self.lock_writer(what)?;
        let tidy = || -> Outcome<()> {
            // Each step of this pragma frees one page, so it must be stepped to its end.
            let mut vacuum = connection.prepare("PRAGMA incremental_vacuum")?;
            let mut rows = vacuum.query([])?;
            while rows.next()?.is_some() {}
            drop(rows);
            connection.execute_batch("PRAGMA optimize")?;
            // Readers may keep it from truncating the log: then it stays longer, which is no error.
            connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))?;
            Ok(())
        };
        tidy().explain(what)
    }
}

impl Loose for SqliteMeta {
    fn loose_chunk(&self, fingerprint: &Fingerprint) -> Result<Option<Vec<u8>>> {
        self.read_once("reading a loose chunk", |db| loose::chunk(db, fingerprint))
    }

    fn loose_among(&self, fingerprints: &[Fingerprint]) -> Result<HashSet<Fingerprint>> {
        self.read("looking for loose chunks", |db| loose::among(db, fingerprints))
    }

    fn loose_of(&self, session: SessionId, after: u64, bytes: u64) -> Result<Vec<LooseRow>> {
        self.read("listing loose chunks", |db| loose::of(db, session, after, bytes))
    }

    fn loose_owners(&self) -> Result<Vec<LooseOwner>> {
        self.read("counting loose chunks", loose::owners)
    }

    fn visit_loose(&self, visit: &mut dyn FnMut(LooseChunk) -> Result<()>) -> Result<()> {
        self.read("reading loose chunks", |db| loose::visit(db, visit))
    }

    fn adopt_loose(&self, session: SessionId) -> Result<u64> {
        self.write("taking loose chunks over", |db| loose::adopt(db, self.moment(), session))
    }
}
