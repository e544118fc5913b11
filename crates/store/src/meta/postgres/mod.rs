//! The metadata engine in a schema of a PostgreSQL database: any number of processes on any number
//! of hosts, all equal.
//!
//! Clients have no authority. A method decides by what it read and locked in its own transaction.
//! The server's clock decides about leases. Acknowledged changes were committed by the server.
//! docs/decisions/0009-postgresql.md has the reasons.
//!
//! | file | holds |
//! | --- | --- |
//! | `location.rs`, `tls.rs` | the URL, the sources of passwords; securing the connection |
//! | `connection.rs`, `pool.rs` | statements, alone or several in one go; connections on loan |
//! | `transaction.rs` | which transactions run concurrently, and which are repeated after a failure |
//! | `open.rs`, `schema.sql`, `schema_triggers.sql` | making the schema, refusing schemas of other programs |
//! | `query.rs`, `sealing.rs` | statements and rows; what is sealed in them, and as what (`meta/sealer.rs`) |
//! | `row.rs` | rows to values and back, with their checksums |
//! | `tree.rs`, `listing.rs` | reading the tree; the order of names where they are sealed |
//! | `speculative.rs`, `schema_speculative.sql`, `schema_make_speculatively.sql` | a small commit in one round trip |
//! | `commit.rs`, `working.rs`, `flush.rs` | one commit; the rows that its changes work on (what they mean is in `meta/change/`); writing them |
//! | `sessions.rs`, `packs.rs`, `reclaim.rs` | the protocol of docs/decisions/0003-reclaim-protocol.md |
//! | `jobs/` | jobs |
//! | `inline.rs` | inline chunks |
//! | `locks.rs` | locks on files |
//! | `publishing.rs` | the state of names and inodes at one instant, for the catalogue |
//! | `carry.rs`, `carry/rows.rs`, `exchange.rs` | taking over a copy's rows; putting a recovered database in the place of the old one |
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
mod inline;
mod jobs;
mod listing;
mod location;
mod locks;
mod open;
mod speculative;
#[macro_use]
mod packs;
mod policies;
mod pool;
mod publishing;
mod query;
mod reclaim;
mod records;
mod row;
mod sealing;
mod servers;
mod sessions;
mod snapshots;
mod tls;
mod transaction;
mod tree;
mod working;

use crate::meta::Sessions;
use std::collections::HashSet;
use std::fmt;

use outrigger_format::Fingerprint;
use tokio_postgres::types::Type;

use self::connection::{Answer, Query};
use self::listing::Listings;
use self::pool::Pool;
use self::sealing::Public;
use self::speculative::CachedRows;
use self::transaction::{Gate, Once, Transactions, Tx};
use super::fault::{Explain as _, Outcome};
use super::inline::{InlineChunk, InlineChunks, InlineOwner, InlineRow};
use super::locks::{Blocker, FileLocks, Lock, LockFamily, LockMode, LockRange, OwnersLocks, Taken, Wait};
use super::publishing::{Anew, Published, Publishing};
use super::{Commit, Committed, Counters, Meta, Sealer, SessionId, WriteCounts};
use crate::error::{Error, ErrorKind, Result};

pub(crate) use self::exchange::{Unfinished, look};
pub use self::location::{Address, Location, Others, TlsMode, is_postgres_url};

/// The metadata engine in a PostgreSQL database.
pub struct PostgresMeta {
    transactions: Transactions,
    config: String,
    read_only: bool,
    /// This role writes, and may not delete snapshots.
    only_adds: bool,
    cached: CachedRows,
    listings: Listings,
}

impl PostgresMeta {
    /// Makes an empty store at `location`, whose configuration is the text `config`, and opens it.
    ///
    /// # Errors
    /// `Exists` when there is one already; those of [`PostgresMeta::open`].
    pub fn create(location: Location, config: &str) -> Result<Self> {
        Self::create_with(location, config, None)
    }

    /// As [`PostgresMeta::create`], with the sealer of an encrypted store.
    ///
    /// # Errors
    /// As there.
    pub fn create_with(location: Location, config: &str, sealer: Option<Sealer>) -> Result<Self> {
        let transactions = Transactions::new(Pool::with(location, sealer)?);
        open::create(&transactions, config, &mut |_| Ok(()))?;
        Self::finish(transactions, false)
    }

    /// Gives an engine that was just opened the sealer of its store, which its configuration says
    /// it has. Before that, an engine of an encrypted store can only tell its configuration.
    ///
    /// # Panics
    /// When it has one already.
    pub fn seal_with(&self, sealer: Sealer) {
        assert!(self.transactions.pool.seals.set(sealer), "an engine gets one sealer");
    }

    /// True when there is a store at `location`.
    ///
    /// # Errors
    /// When the server or the database cannot be reached.
    pub fn is_at(location: Location) -> Result<bool> {
        open::is_there(&Transactions::new(Pool::new(location)?))
    }

    /// Opens the store at `location`. `read_only` makes nothing but reads; a role that may only
    /// read can do no other.
    ///
    /// # Errors
    /// `NotFound` when there is none, `Denied`, `Newer`, `Busy` or `Io` when the server cannot be
    /// reached.
    pub fn open(location: Location, read_only: bool) -> Result<Self> {
        Self::finish(Transactions::new(Pool::new(location)?), read_only)
    }

    fn finish(transactions: Transactions, read_only: bool) -> Result<Self> {
        let may = open::may(&transactions)?;
        let read_only = read_only || !may.write;
        let config = open::recognise(&transactions)?;
        if !read_only {
            open::require_durable(&transactions)?;
        }
        let (cached, listings) = (CachedRows::default(), Listings::default());
        Ok(Self { transactions, config, read_only, only_adds: !may.remove, cached, listings })
    }

    /// The configuration's text.
    pub fn config(&self) -> &str {
        &self.config
    }

    /// True when it was opened so, or the role may only read, or the server is a standby.
    pub fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// Makes nothing but reads from now on: the key that opens the store gives no more.
    pub(crate) fn refuse_changes(&mut self) {
        self.read_only = true;
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
        let query = Query::new(sql).with(Public(self.location().schema.clone()), Type::NAME);
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

    /// Commits in one round trip, if the commit is suitable and its assumptions hold; otherwise
    /// nothing happens.
    fn commit_speculatively(&self, session: SessionId, commit: &Commit) -> Result<Option<Committed>> {
        let seals = &self.transactions.pool.seals;
        let attempt = if self.read_only { None } else { self.cached.attempt(seals, session, commit) };
        let Some(mut attempt) = attempt else { return Ok(None) };
        let Once::Done(generation) =
            self.transactions.at_once("committing", |ticket| attempt.query(ticket))?
        else {
            return Ok(None);
        };
        let generation = generation.map_or_else(|| self.generation(), Ok)?;
        let (done, observed) = attempt.finish(generation);
        self.cached.observe(observed);
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
        read: impl Fn(&connection::Row) -> Outcome<T>,
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
    fn write_counts(&self) -> WriteCounts {
        self.transactions.counts.get()
    }

    fn only_adds(&self) -> Option<&str> {
        self.only_adds.then_some(&*self.location().user)
    }

    fn trouble(&self) -> Option<String> {
        self.transactions.pool.health.trouble()
    }

    fn now(&self) -> Result<u64> {
        self.read("asking for the time", &Query::new(sessions::NOW), |answer| {
            Ok(counters::row(answer)?.try_get::<_, i64>(0)? as u64)
        })
    }

    fn jobs(&self) -> &dyn super::jobs::Jobs {
        self
    }

    fn records(&self) -> &dyn super::records::Records {
        self
    }

    fn inline(&self) -> &dyn InlineChunks {
        self
    }

    fn file_locks(&self) -> Option<&dyn FileLocks> {
        Some(self)
    }

    fn publishing(&self) -> Option<&dyn Publishing> {
        Some(self)
    }

    fn counters(&self) -> Result<Counters> {
        self.read("reading counters", &Query::new(counters::NEXT), counters::read_next)
    }

    fn raise_counters(&self, next_pack: u64, next_inode: u64, next_sequence: u64) -> Result<()> {
        let least = [("next_pack", next_pack), ("next_inode", next_inode), ("next_sequence", next_sequence)];
        self.write("raising counters", Gate::Shared, |tx| counters::raise(tx, &least))
    }

    fn check(&self) -> Result<Vec<String>> {
        self.transactions.read("checking the metadata", check::check)
    }

    fn tidy(&self) -> Result<()> {
        // The server vacuums by itself. Statistics matter after a bulk load, before its own daemon
        // comes round.
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

impl InlineChunks for PostgresMeta {
    fn inline_chunk(&self, fingerprint: &Fingerprint) -> Result<Option<Vec<u8>>> {
        self.read("reading a inline chunk", &inline::chunk(fingerprint), |answer| {
            inline::read_chunk(answer, fingerprint)
        })
    }

    fn inline_among(&self, fingerprints: &[Fingerprint]) -> Result<HashSet<Fingerprint>> {
        self.read("looking for inline chunks", &inline::among(fingerprints), inline::read_among)
    }

    fn inline_of(&self, session: SessionId, after: u64, bytes: u64) -> Result<Vec<InlineRow>> {
        self.read("listing inline chunks", &inline::of(session, after, bytes), inline::read_of)
    }

    fn inline_owners(&self) -> Result<Vec<InlineOwner>> {
        self.read("counting inline chunks", &inline::owners(), |answer| {
            answer.rows.iter().map(inline::read_owner).collect()
        })
    }

    fn visit_inline(&self, visit: &mut dyn FnMut(InlineChunk) -> Result<()>) -> Result<()> {
        let what = "reading inline chunks";
        self.transactions.read_through(what, |connection| inline::visit(connection, visit))
    }

    fn adopt_inline(&self, session: SessionId) -> Result<u64> {
        self.write("taking inline chunks over", Gate::Shared, |tx| inline::adopt(tx, session))
    }
}

impl Publishing for PostgresMeta {
    fn tell(&self, session: SessionId, names: &[(u64, Vec<u8>)], inodes: &[u64]) -> Result<Published> {
        self.write("reading what names are", Gate::Alone, |tx| publishing::tell(tx, session, names, inodes))
    }

    fn begin_anew(&self, session: SessionId) -> Result<Anew> {
        self.write("pinning the tree", Gate::Alone, |tx| publishing::begin_anew(tx, session))
    }

    fn last_published(&self) -> Result<u64> {
        self.read("reading what was told last", &publishing::last(), publishing::read_last)
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
