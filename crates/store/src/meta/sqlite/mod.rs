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
//! | `inline.rs` | inline chunks |
//! | `carry.rs` | rows for another engine, and from one |
//! | `snapshots.rs`, `policies.rs`, `state.rs`, `check.rs` | the rest |

mod carry;
mod check;
mod commit;
mod inline;
mod job_rows;
mod jobs;
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

use std::collections::HashSet;
use std::fmt;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use outrigger_format::Fingerprint;
use rusqlite::{Connection, TransactionBehavior};

use self::sessions::Moment;
use super::fault::{Explain as _, Outcome};
use super::inline::{InlineChunk, InlineChunks, InlineOwner, InlineRow};
use super::{At, Counters, Meta, SessionId};
use crate::error::{Error, ErrorKind, Result};
use crate::keys::Key;

pub use self::open::OpenMode;
pub(crate) use open::copy_database;
#[cfg(any(test, feature = "testing"))]
pub(crate) use sums::register as register_functions;

/// The database's clock, nanoseconds.
pub type Clock = Arc<dyn Fn() -> u64 + Send + Sync>;

/// Reading connections that are kept open.
const READERS_KEPT: usize = 8;

/// True when nothing has ever been stored by the database at `path`; one that cannot be read is not
/// unused.
pub(crate) fn is_unused_database(path: &Path, key: Option<&Key>) -> bool {
    open::is_unused(path, key)
}

/// The metadata engine in an SQLite database.
pub struct SqliteMeta {
    path: PathBuf,
    source: open::Source,
    readers: Mutex<Vec<Connection>>,
    /// Closed after the readers, because only a writing connection that is the last one puts the
    /// log away.
    writer: Option<Mutex<Connection>>,
    wall: Clock,
    steady: Clock,
}

impl SqliteMeta {
    /// Opens (or makes) the database at `path`.
    ///
    /// # Errors
    /// `Exists` (creating), `NotFound`, `Denied`, `Invalid` or `Damaged` (not such a database),
    /// `Newer`, `Io`.
    pub fn open(path: &Path, mode: OpenMode) -> Result<Self> {
        Self::open_encrypted(path, mode, None)
    }

    /// As [`SqliteMeta::open`], of a database that is encrypted with `key`.
    ///
    /// # Errors
    /// As [`SqliteMeta::open`].
    pub fn open_encrypted(path: &Path, mode: OpenMode, key: Option<Key>) -> Result<Self> {
        let steady = Arc::new(outrigger_clock::steady_nanos);
        Self::open_with_clocks(path, mode, key, Arc::new(outrigger_clock::now_nanos), steady)
    }

    /// As [`SqliteMeta::open`], with another clock for times and to judge leases by.
    ///
    /// # Errors
    /// As [`SqliteMeta::open`].
    pub fn open_with_clock(path: &Path, mode: OpenMode, clock: Clock) -> Result<Self> {
        Self::open_with_clocks(path, mode, None, Arc::clone(&clock), clock)
    }

    fn open_with_clocks(
        path: &Path,
        mode: OpenMode,
        key: Option<Key>,
        wall: Clock,
        steady: Clock,
    ) -> Result<Self> {
        if mode == OpenMode::Create {
            open::create(path, key.as_ref())?;
        }
        let source = open::Source::new(path, mode, key)?;
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
    fn now(&self) -> Result<u64> {
        Ok((self.wall)())
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

    fn counters(&self) -> Result<Counters> {
        self.read_once("reading counters", state::counters)
    }

    fn raise_counters(&self, next_pack: u64, next_inode: u64, next_sequence: u64) -> Result<()> {
        let least = [("next_pack", next_pack), ("next_inode", next_inode), ("next_sequence", next_sequence)];
        self.write("raising counters", |db| state::raise(db, &least))
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

impl InlineChunks for SqliteMeta {
    fn inline_chunk(&self, fingerprint: &Fingerprint) -> Result<Option<Vec<u8>>> {
        self.read_once("reading a inline chunk", |db| inline::chunk(db, fingerprint))
    }

    fn inline_among(&self, fingerprints: &[Fingerprint]) -> Result<HashSet<Fingerprint>> {
        self.read("looking for inline chunks", |db| inline::among(db, fingerprints))
    }

    fn inline_of(&self, session: SessionId, after: u64, bytes: u64) -> Result<Vec<InlineRow>> {
        self.read("listing inline chunks", |db| inline::of(db, session, after, bytes))
    }

    fn inline_owners(&self) -> Result<Vec<InlineOwner>> {
        self.read("counting inline chunks", inline::owners)
    }

    fn visit_inline(&self, visit: &mut dyn FnMut(InlineChunk) -> Result<()>) -> Result<()> {
        self.read("reading inline chunks", |db| inline::visit(db, visit))
    }

    fn adopt_inline(&self, session: SessionId) -> Result<u64> {
        self.write("taking inline chunks over", |db| inline::adopt(db, self.moment(), session))
    }
}
