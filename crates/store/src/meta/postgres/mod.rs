//! The metadata engine in a schema of a PostgreSQL database: any number of processes on any number of hosts, all equal.
//!
//! Clients have no authority. A method decides by what it read and locked in its own transaction. The server's clock decides
//! about leases. Acknowledged changes were committed by the server. docs/decisions/0009-postgresql.md has the reasons.
//!
//! | file | holds |
//! | --- | --- |
//! | `location.rs`, `tls.rs` | the URL, the sources of passwords; securing the connection |
//! | `connection.rs`, `pool.rs` | statements, alone or several in one go; connections on loan |
//! | `transaction.rs` | which transactions run concurrently, and which are repeated after a failure |
//! | `open.rs`, `schema.sql`, `schema_triggers.sql` | making the schema, refusing schemas of other programs |
//! | `row.rs` | rows to values and back, with their checksums |
//! | `tree.rs` | reading the tree |
//! | `speculative.rs`, `schema_speculative.sql`, `schema_make_speculatively.sql` | a small commit in one round trip |
//! | `commit.rs`, `working.rs`, `flush.rs` | one commit; the rows that its changes work on (what they mean is in `meta/change/`); writing them |
//! | `sessions.rs`, `packs.rs`, `reclaim.rs` | the protocol of docs/decisions/0003-reclaim-protocol.md |
//! | `jobs/` | jobs |
//! | `loose.rs` | inline chunks |
//! | `locks.rs` | locks on files |
//! | `telling.rs` | the state of names and inodes at one instant, for the catalogue |
//! | `carry.rs`, `exchange.rs` | taking over a copy's rows; putting a recovered database in the place of the old one |
//! | `snapshots.rs`, `policies.rs`, `counters.rs`, `check.rs` | the rest |

mod carry;
mod check;
mod columns;
mod commit;
mod connection;
mod counters;
mod exchange;
mod flush;
mod guarded;
mod jobs;
mod location;
mod locks;
mod loose;
mod open;
mod speculative;
#[macro_use]
mod packs;
mod policies;
mod pool;
mod reclaim;
mod records;
mod row;
mod servers;
mod sessions;
mod snapshots;
mod telling;
mod tls;
mod transaction;
mod tree;
mod working;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::ops::Range;

use outrigger_format::{Fingerprint, PackId, PackKind, Root};
use tokio_postgres::types::Type;

use self::connection::{Answer, Query};
use self::pool::Pool;
use self::speculative::{CachedRows, ObservedRows};
use self::transaction::{Gate, Once, Transactions, Tx};
use super::fault::{Explain as _, Outcome};
use super::locks::{Blocker, FileLocks, Lock, LockFamily, LockMode, LockRange, OwnersLocks, Taken, Wait};
use super::loose::{Loose, LooseChunk, LooseOwner, LooseRow};
use super::telling::{Anew, Telling, Told};
use super::{
    At, Commit, Committed, Counters, DirEntry, Era, Generation, Hanging, Inode, Meta, PackChanges, PackMark,
    PackRow, PackSum, PinTarget, SessionId, SessionKind, SessionOwner, SessionRow, SnapshotRow, TreeTotals,
    VersionRow, WriteCounts,
};
use crate::error::{Error, ErrorKind, Result, Unanswered};

pub(crate) use self::exchange::{Unfinished, look};
pub use self::location::{Address, Location, Others, TlsMode, is_postgres_url};

/// The metadata engine in a PostgreSQL database.
pub struct PostgresMeta {
    transactions: Transactions,
    config: String,
    read_only: bool,
    guesses: CachedRows,
}

impl PostgresMeta {
    /// Makes an empty store at `location`, whose configuration is the text `config`, and opens it.
    ///
    /// # Errors
    /// `Exists` when there is one already; those of [`PostgresMeta::open`].
    pub fn create(location: Location, config: &str) -> Result<Self> {
        let transactions = Transactions::new(Pool::new(location)?);
        open::create(&transactions, config, &mut |_| Ok(()))?;
        Self::finish(transactions, false)
    }

    /// True when there is a store at `location`.
    ///
    /// # Errors
    /// When the server or the database cannot be reached.
    pub fn is_at(location: Location) -> Result<bool> {
        open::is_there(&Transactions::new(Pool::new(location)?))
    }

    /// Opens the store at `location`. `read_only` makes nothing but reads; a role that may only read can do no other.
    ///
    /// # Errors
    /// `NotFound` when there is none, `Denied`, `Newer`, `Busy` or `Io` when the server cannot be reached.
    pub fn open(location: Location, read_only: bool) -> Result<Self> {
        Self::finish(Transactions::new(Pool::new(location)?), read_only)
    }

    fn finish(transactions: Transactions, read_only: bool) -> Result<Self> {
        let read_only = read_only || !open::may_write(&transactions)?;
        let config = open::recognise(&transactions)?;
        if !read_only {
            open::require_durable(&transactions)?;
        }
        Ok(Self { transactions, config, read_only, guesses: CachedRows::default() })
    }

    /// The configuration's text.
    pub fn config(&self) -> &str {
        &self.config
    }

    /// True when it was opened so, or the role may only read, or the server is a standby.
    pub fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// Where it is.
    pub fn location(&self) -> &Location {
        &self.transactions.pool.location
    }

    /// How far packs of other clients are trusted, from the URL.
    pub fn others(&self) -> Others {
        self.location().others
    }

    /// Bytes that the tables and their indexes take.
    ///
    /// # Errors
    /// When the server cannot be asked.
    pub fn bytes(&self) -> Result<u64> {
        let sql = "SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint FROM pg_class c \
                   JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = $1 AND c.relkind = 'r'";
        let query = Query::new(sql).with(self.location().schema.clone(), Type::NAME);
        self.read("asking for the database's size", &query, |answer| {
            Ok(counters::row(answer)?.try_get::<_, i64>(0)? as u64)
        })
    }

    fn write<T>(&self, what: &str, gate: Gate, work: impl FnMut(&mut Tx<'_>) -> Outcome<T>) -> Result<T> {
        if self.read_only {
            let why = format!("{what}: the metadata in {} is open read-only", self.location());
            return Err(Error::new(ErrorKind::Denied, why));
        }
        self.transactions.write(what, gate, work)
    }

    /// Commits in one round trip, if the commit is suitable and its assumptions hold; otherwise nothing happens.
    fn commit_speculatively(&self, session: SessionId, commit: &Commit) -> Result<Option<Committed>> {
        let attempt = if self.read_only { None } else { self.guesses.attempt(session, commit) };
        let Some(mut attempt) = attempt else { return Ok(None) };
        let Once::Done(generation) =
            self.transactions.at_once("committing", |ticket| attempt.query(ticket))?
        else {
            return Ok(None);
        };
        let generation = generation.map_or_else(|| self.generation(), Ok)?;
        let (done, learnt) = attempt.finish(generation);
        self.guesses.learn(learnt);
        Ok(Some(done))
    }

    /// Runs one statement, and interprets its answer.
    fn read<T>(&self, what: &str, query: &Query, mean: impl FnOnce(&Answer) -> Outcome<T>) -> Result<T> {
        mean(&self.transactions.read_once(what, query)?).explain(what)
    }

    /// Runs one statement, and turns each row of its answer into a value.
    fn list<T>(
        &self,
        what: &str,
        sql: &'static str,
        read: impl Fn(&tokio_postgres::Row) -> Outcome<T>,
    ) -> Result<Vec<T>> {
        self.read(what, &Query::new(sql), |answer| answer.rows.iter().map(read).collect())
    }
}

impl fmt::Debug for PostgresMeta {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresMeta").field("location", &self.location().to_string()).finish_non_exhaustive()
    }
}

impl Meta for PostgresMeta {
    fn open_session(
        &self,
        kind: SessionKind,
        owner: &SessionOwner,
        lease_secs: u32,
    ) -> Result<(SessionId, Generation)> {
        let opened =
            self.write("opening a session", Gate::Shared, |tx| sessions::open(tx, kind, owner, lease_secs))?;
        self.transactions.pool.call(format!("outrigger {}, session {}", owner.role, opened.0.0));
        Ok(opened)
    }

    fn renew(&self, session: SessionId, lease_secs: u32) -> Result<u64> {
        // Not through the gate: a lease must not run out because others are slow.
        self.write("renewing a session's lease", Gate::Open, |tx| sessions::renew(tx, session, lease_secs))
    }

    fn acknowledge(&self, session: SessionId, relied: &[PackId]) -> Result<Generation> {
        self.write("acknowledging a generation", Gate::Shared, |tx| {
            sessions::acknowledge(tx, session, relied)
        })
    }

    fn write_counts(&self) -> WriteCounts {
        self.transactions.counts.get()
    }

    fn trouble(&self) -> Option<String> {
        self.transactions.pool.health.trouble()
    }

    fn now(&self) -> Result<u64> {
        self.read("asking for the time", &Query::new(sessions::NOW), |answer| {
            Ok(counters::row(answer)?.try_get::<_, i64>(0)? as u64)
        })
    }

    fn generation(&self) -> Result<u64> {
        let query = Query::new("SELECT generation FROM @state");
        self.read("reading the generation", &query, |answer| {
            Ok(counters::row(answer)?.try_get::<_, i64>(0)? as u64)
        })
    }

    fn close_session(&self, session: SessionId) -> Result<()> {
        self.write("closing a session", Gate::Shared, |tx| {
            sessions::end(tx, session);
            sessions::end_locks(tx, session);
            Ok(())
        })
    }

    fn fence(&self, session: SessionId) -> Result<()> {
        self.write("fencing a session", Gate::Alone, |tx| {
            sessions::end(tx, session);
            Ok(())
        })
    }

    fn sessions(&self) -> Result<Vec<SessionRow>> {
        self.list("listing sessions", sessions::ALL, sessions::read)
    }

    fn announce_packs(
        &self,
        session: SessionId,
        kind: PackKind,
        count: u32,
        mark: u64,
    ) -> Result<Vec<PackId>> {
        self.write("announcing packs", Gate::Shared, |tx| packs::announce(tx, session, kind, (count, mark)))
    }

    fn withdraw_packs(&self, session: SessionId, packs: &[PackId]) -> Result<()> {
        self.write("withdrawing packs", Gate::Shared, |tx| packs::withdraw(tx, session, packs))
    }

    fn packs_sealed(&self, session: SessionId, packs: &[PackRow]) -> Result<()> {
        self.write("recording sealed packs", Gate::Shared, |tx| packs::sealed(tx, session, packs))
    }

    fn packs(&self) -> Result<Vec<PackRow>> {
        self.list("listing packs", packs::EVERY, packs::read)
    }

    fn packs_after(&self, after: PackId, limit: usize) -> Result<Vec<PackRow>> {
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let query = Query::new(packs::AFTER).int(after.0 as i64).int(limit);
        self.read("listing packs", &query, |answer| answer.rows.iter().map(packs::read).collect())
    }

    fn pack_sums(&self) -> Result<Vec<PackSum>> {
        self.transactions.read("summing up packs", |connection| {
            connection.query(&Query::new(packs::SUMS))?.rows.iter().map(packs::read_sum).collect()
        })
    }

    fn pack_mark(&self) -> Result<Option<PackMark>> {
        let read = |answer: &Answer| packs::read_mark(counters::row(answer)?, 0);
        self.read("asking from where on to follow packs", &Query::new(packs::MARK), read).map(Some)
    }

    fn changed_packs(&self, mark: PackMark) -> Result<Option<PackChanges>> {
        let query = Query::new(packs::CHANGED).int(mark.at);
        self.read("following packs", &query, |answer| packs::read_changes(answer, mark))
    }

    fn sweep_packs(&self, time: u64) -> Result<u64> {
        self.write("sweeping packs", Gate::Alone, |tx| packs::sweep(tx, time))
    }

    fn forget_packs(&self, packs: &[PackId]) -> Result<()> {
        self.write("forgetting packs", Gate::Alone, |tx| {
            packs::forget(tx, packs);
            Ok(())
        })
    }

    fn inode(&self, at: At, number: u64) -> Result<Option<Inode>> {
        self.read("reading an inode", &tree::inode(at, number), tree::read_inode)
    }

    fn lookup(&self, at: At, parent: u64, name: &[u8]) -> Result<Option<Inode>> {
        let query = tree::lookup(at, parent, name);
        let entries = self.read("looking up a name", &query, |answer| tree::read_entries(answer, parent))?;
        Ok(entries.into_iter().next().map(|entry| entry.inode))
    }

    fn lookup_each(&self, names: &[(u64, &[u8])]) -> Result<Vec<Option<Inode>>> {
        if let [(parent, name)] = names {
            return Ok(vec![self.lookup(At::Now, *parent, name)?]);
        }
        let query = tree::names(names.iter().copied());
        let found = self.read("looking up names", &query, tree::read_hanging)?.into_iter();
        let found: HashMap<(u64, Vec<u8>), Inode> =
            found.map(|Hanging { parent, entry }| ((parent, entry.name), entry.inode)).collect();
        Ok(names.iter().map(|(parent, name)| found.get(&(*parent, name.to_vec())).cloned()).collect())
    }

    fn parent_of(&self, directory: u64) -> Result<Option<u64>> {
        let query = Query::new(tree::PARENT_OF).int(directory as i64);
        self.read("finding where a directory hangs", &query, |answer| tree::read_parent(answer, directory))
    }

    fn hanging(&self, directories: &[u64]) -> Result<Vec<Hanging>> {
        let query = Query::new(tree::HANGING).ints(directories.iter().map(|&inode| inode as i64).collect());
        self.read("finding where directories hang", &query, tree::read_hanging)
    }

    fn read_dir(&self, at: At, parent: u64, after: Option<&[u8]>, limit: usize) -> Result<Vec<DirEntry>> {
        let query = tree::read_dir(at, parent, after, limit);
        self.read("reading a directory", &query, |answer| tree::read_entries(answer, parent))
    }

    fn history(&self, directory: u64) -> Result<Vec<Era>> {
        let query = Query::new(tree::HISTORY).int(directory as i64);
        self.read("reading a directory's history", &query, |answer| tree::read_history(answer, directory))
    }

    fn reserve_inodes(&self, count: u64) -> Result<Range<u64>> {
        let first =
            self.write("reserving inodes", Gate::Open, |tx| counters::advance(tx, "next_inode", count))?;
        self.guesses.reserved(first + count);
        Ok(first..first + count)
    }

    fn commit(&self, session: SessionId, commit: &Commit) -> Result<Committed> {
        if let Some(done) = self.commit_speculatively(session, commit)? {
            return Ok(done);
        }
        let mut learnt = ObservedRows::default();
        let done =
            self.write("committing", Gate::Shared, |tx| commit::commit(tx, session, commit, &mut learnt))?;
        self.guesses.learn(learnt);
        Ok(done)
    }

    fn has_happened(&self, unanswered: Unanswered) -> Result<bool> {
        self.transactions.has_happened(unanswered)
    }

    fn next_sequence(&self) -> Result<u64> {
        self.write("numbering a catalogue block", Gate::Open, |tx| counters::advance(tx, "next_sequence", 1))
    }

    fn totals(&self) -> Result<TreeTotals> {
        self.read("reading totals", &Query::new(counters::TOTALS), counters::read_totals)
    }

    fn versions(&self, inode: u64) -> Result<Vec<VersionRow>> {
        let query = Query::new(tree::VERSIONS).int(inode as i64);
        self.read("listing versions", &query, |answer| answer.rows.iter().map(row::read_version).collect())
    }

    fn create_snapshot(&self, name: &str, time: u64, tags: &[String]) -> Result<SnapshotRow> {
        self.write("taking a snapshot", Gate::Alone, |tx| snapshots::create(tx, name, time, tags))
    }

    fn set_snapshot_tags(&self, name: &str, tags: &[String]) -> Result<()> {
        self.write("changing a snapshot", Gate::Shared, |tx| snapshots::set_tags(tx, name, tags))
    }

    fn snapshots(&self) -> Result<Vec<SnapshotRow>> {
        self.list("listing snapshots", snapshots::ALL, snapshots::read)
    }

    fn delete_snapshot(&self, name: &str) -> Result<()> {
        self.write("deleting a snapshot", Gate::Shared, |tx| snapshots::delete(tx, name))
    }

    fn pin(&self, session: SessionId, target: &PinTarget) -> Result<(u64, Option<Root>)> {
        let gate = if *target == PinTarget::Now { Gate::Alone } else { Gate::Shared };
        self.write("pinning", gate, |tx| snapshots::pin(tx, session, target))
    }

    fn purge_history(&self) -> Result<u64> {
        const BATCH: i64 = 20_000;
        let mut total = 0;
        loop {
            let gone = self.write("purging history", Gate::Shared, |tx| snapshots::purge(tx, BATCH))?;
            if gone == 0 {
                return Ok(total);
            }
            total += gone;
        }
    }

    fn set_policy(&self, inode: u64, key: &str, value: Option<&str>) -> Result<()> {
        self.write("setting a policy", Gate::Shared, |tx| policies::set(tx, inode, key, value))
    }

    fn policies(&self, inode: u64) -> Result<BTreeMap<String, String>> {
        let query = Query::new(policies::OF).int(inode as i64);
        let mut of = self.read("reading policies", &query, policies::read)?;
        Ok(of.remove(&inode).unwrap_or_default())
    }

    fn all_policies(&self) -> Result<BTreeMap<u64, BTreeMap<String, String>>> {
        self.read("reading policies", &Query::new(policies::ALL), policies::read)
    }

    fn hold(&self, holder: &str, roots: &[Root]) -> Result<()> {
        self.write("holding roots", Gate::Shared, |tx| reclaim::hold(tx, holder, roots))
    }

    fn release(&self, holder: &str, roots: Option<&[Root]>) -> Result<()> {
        self.write("releasing roots", Gate::Shared, |tx| {
            reclaim::let_go(tx, holder, roots);
            Ok(())
        })
    }

    fn holders(&self) -> Result<Vec<String>> {
        let sql = "SELECT DISTINCT holder FROM @held ORDER BY holder";
        self.list("listing who holds roots", sql, |row| Ok(row.try_get(0)?))
    }

    fn held(&self, holder: &str) -> Result<Vec<Root>> {
        let sql = "SELECT holder, sum, root FROM @held WHERE holder = $1 ORDER BY root";
        let query = Query::new(sql).text(holder);
        self.read("listing held roots", &query, |answer| answer.rows.iter().map(reclaim::read_held).collect())
    }

    fn take_collector(&self, session: SessionId) -> Result<()> {
        self.write("becoming the collector", Gate::Alone, |tx| reclaim::take(tx, session))
    }

    fn release_collector(&self, session: SessionId) -> Result<()> {
        self.write("ending a collector's run", Gate::Alone, |tx| reclaim::release(tx, session))
    }

    fn visit_roots(&self, visit: &mut dyn FnMut(Root) -> Result<()>) -> Result<Vec<PackRow>> {
        let what = "listing what is retained";
        // Waits for all present commits before it chooses the state that it reads.
        self.transactions.barrier(what)?;
        self.transactions.read_through(what, |connection| reclaim::visit_roots(connection, visit))
    }

    fn condemn(&self, session: SessionId, packs: &[PackId]) -> Result<u64> {
        self.write("condemning packs", Gate::Alone, |tx| reclaim::condemn(tx, session, packs))
    }

    fn all_acknowledged(&self, generation: u64) -> Result<bool> {
        let query = Query::new(sessions::SLOWEST);
        let slowest = self.read("reading acknowledgements", &query, sessions::slowest)?;
        Ok(slowest >= generation as i64)
    }

    fn bury(&self, session: SessionId, copies: &[PackId], victims: &[PackId], time: u64) -> Result<()> {
        self.write("burying packs", Gate::Alone, |tx| reclaim::bury(tx, session, (copies, victims), time))
    }

    fn absolve(&self, session: SessionId, packs: &[PackId]) -> Result<()> {
        self.write("absolving packs", Gate::Alone, |tx| reclaim::absolve(tx, session, packs))
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

    fn file_locks(&self) -> Option<&dyn FileLocks> {
        Some(self)
    }

    fn telling(&self) -> Option<&dyn Telling> {
        Some(self)
    }

    fn counters(&self) -> Result<Counters> {
        self.read("reading counters", &Query::new(counters::NEXT), counters::read_next)
    }

    fn raise_counters(&self, next_pack: u64, next_inode: u64, next_sequence: u64) -> Result<()> {
        let least = [("next_pack", next_pack), ("next_inode", next_inode), ("next_sequence", next_sequence)];
        self.write("raising counters", Gate::Shared, |tx| counters::raise(tx, &least))
    }

    fn adopt_packs(&self, packs: &[PackRow]) -> Result<()> {
        self.write("adopting packs", Gate::Shared, |tx| packs::adopt(tx, packs))
    }

    fn restore_versions(&self, inode: u64, versions: &[VersionRow]) -> Result<()> {
        self.write("restoring versions", Gate::Shared, |tx| tree::restore_versions(tx, inode, versions))
    }

    fn check(&self) -> Result<Vec<String>> {
        self.transactions.read("checking the metadata", check::check)
    }

    fn tidy(&self) -> Result<()> {
        // The server vacuums by itself. Statistics matter after a bulk load, before its own daemon comes round.
        let what = "tidying the metadata";
        self.write(what, Gate::Open, |tx| {
            counters::forget_lanes(tx);
            for sql in ["ANALYZE @inode", "ANALYZE @dentry", "ANALYZE @directory", "ANALYZE @pack"] {
                tx.later(Query::new(sql));
            }
            Ok(())
        })
    }
}

impl Loose for PostgresMeta {
    fn loose_chunk(&self, fingerprint: &Fingerprint) -> Result<Option<Vec<u8>>> {
        self.read("reading a loose chunk", &loose::chunk(fingerprint), loose::read_chunk)
    }

    fn loose_among(&self, fingerprints: &[Fingerprint]) -> Result<HashSet<Fingerprint>> {
        self.read("looking for loose chunks", &loose::among(fingerprints), loose::read_among)
    }

    fn loose_of(&self, session: SessionId, after: u64, bytes: u64) -> Result<Vec<LooseRow>> {
        self.read("listing loose chunks", &loose::of(session, after, bytes), loose::read_of)
    }

    fn loose_owners(&self) -> Result<Vec<LooseOwner>> {
        self.list("counting loose chunks", loose::OWNERS, loose::read_owner)
    }

    fn visit_loose(&self, visit: &mut dyn FnMut(LooseChunk) -> Result<()>) -> Result<()> {
        let what = "reading loose chunks";
        self.transactions.read_through(what, |connection| loose::visit(connection, visit))
    }

    fn adopt_loose(&self, session: SessionId) -> Result<u64> {
        self.write("taking loose chunks over", Gate::Shared, |tx| loose::adopt(tx, session))
    }
}

impl Telling for PostgresMeta {
    fn tell(&self, session: SessionId, names: &[(u64, Vec<u8>)], inodes: &[u64]) -> Result<Told> {
        self.write("reading what names are", Gate::Alone, |tx| telling::tell(tx, session, names, inodes))
    }

    fn begin_anew(&self, session: SessionId) -> Result<Anew> {
        self.write("pinning the tree", Gate::Alone, |tx| telling::begin_anew(tx, session))
    }

    fn last_told(&self) -> Result<u64> {
        self.read("reading what was told last", &telling::last(), telling::read_last)
    }
}

impl FileLocks for PostgresMeta {
    // None goes through the gate: nothing of the tree changes.
    fn take_lock(&self, session: SessionId, inode: u64, lock: &Lock, wait: Option<Wait>) -> Result<Taken> {
        let keys = self.lock_keys();
        loop {
            let taken = self.write("taking a lock on a file", Gate::Open, |tx| {
                locks::take(tx, &keys, session, inode, lock, wait)
            })?;
            let Taken::No(blockers) = &taken else { return Ok(taken) };
            let over: HashSet<SessionId> =
                blockers.iter().filter(|blocker| blocker.is_over).map(|blocker| blocker.session).collect();
            if over.is_empty() {
                return Ok(taken);
            }
            over.into_iter().try_for_each(|session| self.close_session(session))?;
        }
    }

    fn lock_blockers(
        &self,
        session: SessionId,
        inode: u64,
        lock: &Lock,
        wait: Option<Wait>,
    ) -> Result<Vec<Blocker>> {
        let query = locks::blockers(session, inode, lock, wait);
        self.read("looking for locks on a file", &query, |answer| {
            locks::read_blockers(session, lock, wait, answer)
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
        let keys = self.lock_keys();
        let lock = Lock { family, owner, range, mode: LockMode::Shared, process: 0 };
        self.write("giving up a lock on a file", Gate::Open, |tx| {
            locks::release(tx, &keys, session, inode, &lock)
        })
    }

    fn take_over_locks(&self, session: SessionId, from: SessionId, owned: &OwnersLocks) -> Result<bool> {
        let keys = self.lock_keys();
        self.write("taking over locks on a file", Gate::Open, |tx| {
            locks::take_over(tx, &keys, session, from, owned)
        })
    }

    fn sweep_locks(&self) -> Result<()> {
        self.write("removing locks of sessions that are over", Gate::Open, locks::sweep)
    }

    fn stop_waiting(&self, session: SessionId, ticket: u64) -> Result<()> {
        self.write("giving up a wait for a lock", Gate::Open, |tx| {
            locks::stop_waiting(tx, session, ticket);
            Ok(())
        })
    }

    fn lock_counts(&self) -> Result<Vec<(SessionId, u64)>> {
        self.list("counting locks on files", locks::COUNTS, locks::read_count)
    }
}

impl PostgresMeta {
    fn lock_keys(&self) -> locks::Keys<'_> {
        locks::Keys { schema: &self.location().schema }
    }
}
