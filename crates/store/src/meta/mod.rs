//! Metadata: the name space, manifest roots, packs, sessions, pins, snapshots and policies, in one
//! database.
//!
//! [`Meta`] is the contract that every engine fulfils; `conformance` in the tests states it as
//! code. An engine serialises its transactions. Chunks are not rows: they live in pack footers.

mod carry;
mod change;
mod copied;
mod fault;
mod history;
pub mod inline;
pub mod jobs;
pub mod locks;
mod packs;
mod postgres;
pub mod publishing;
mod reclaim;
pub mod records;
mod sealer;
mod sessions;
mod sqlite;
mod tree;

use crate::error::Result;

pub use copied::CopyNote;
pub use history::{
    Holds, MOUNT_HOLDER, ORPHAN, PinTarget, Policies, SnapshotRow, Snapshots, VersionRow, orphan_holder,
};
pub use packs::{PackChanges, PackMark, PackRow, PackState, PackSum, Packs};
pub use postgres::{Address, Location, Others, PostgresMeta, TlsMode, is_postgres_url};
pub(crate) use postgres::{Unfinished, look};
pub use reclaim::Reclaim;
pub use sealer::Sealer;
pub use sessions::{
    AgentRole, Generation, Role, SessionId, SessionKind, SessionOwner, SessionRow, Sessions, is_gone, lives,
};
#[cfg(any(test, feature = "testing"))]
pub(crate) use sqlite::register_functions;
pub use sqlite::{Clock, OpenMode, SqliteMeta};
pub(crate) use sqlite::{copy_database, is_unused_database};
pub use tree::{At, Change, Commit, Committed, DirEntry, Era, Hanging, Inode, ROOT_INODE, Tree, TreeTotals};

/// Costs of write transactions in this process, if the engine counts them: with the database on
/// another host.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct WriteCounts {
    /// How many there were.
    pub transactions: u64,
    /// How often one was repeated because of another transaction or a lost connection.
    pub again: u64,
    /// How long they took all together, with all tries.
    pub nanos: u64,
}

/// The next values of the counters.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Counters {
    /// The next pack's id.
    pub next_pack: u64,
    /// The next inode's number.
    pub next_inode: u64,
    /// The next catalogue block's sequence.
    pub next_sequence: u64,
}

/// The metadata engine. All methods block; all are transactions of their own; `Busy` and lost
/// leases are reported, never hidden.
///
/// A session is *live* while it was neither closed nor fenced and its lease is not over by the
/// database's clock. Methods that take a session fail with `Fenced` when it is not, and renew its
/// lease when it is.
pub trait Meta: Sessions + Packs + Tree + Snapshots + Holds + Policies + Reclaim {
    /// The database's time, nanoseconds since 1970: the clock by which all hosts of a store judge
    /// ages.
    fn now(&self) -> Result<u64>;
    /// Explains in a clause what is wrong with the way to the database just now; `None` while it
    /// answers.
    fn trouble(&self) -> Option<String> {
        None
    }
    /// The role of this process, if it may add to the past and remove nothing of it.
    fn only_adds(&self) -> Option<&str> {
        None
    }
    /// The costs of write transactions so far.
    fn write_counts(&self) -> WriteCounts {
        WriteCounts::default()
    }
    /// The jobs.
    fn jobs(&self) -> &dyn jobs::Jobs;
    /// The registry's rows.
    fn records(&self) -> &dyn records::Records;
    /// The inline chunks.
    fn inline(&self) -> &dyn inline::InlineChunks;
    /// The locks on files, if the engine has them, as PostgreSQL's does. One process at a time
    /// mounts a store in a directory, and its kernel keeps locks.
    fn file_locks(&self) -> Option<&dyn locks::FileLocks> {
        None
    }
    /// Publishes to the catalogue where mounts change names in the database alone: in PostgreSQL.
    /// Elsewhere each commit publishes its changes.
    fn publishing(&self) -> Option<&dyn publishing::Publishing> {
        None
    }
    /// The counters' next values; gives out nothing.
    fn counters(&self) -> Result<Counters>;
    /// Raises the counters to at least these values, for a database that was rebuilt from packs, or
    /// that is stale.
    fn raise_counters(&self, next_pack: u64, next_inode: u64, next_sequence: u64) -> Result<()>;
    /// Checks the engine's own structures; returns findings in words.
    fn check(&self) -> Result<Vec<String>>;
    /// Moves the write-ahead log into the database, and frees unused pages if that is cheap.
    fn tidy(&self) -> Result<()>;
}
