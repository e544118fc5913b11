//! What keeps contents that the tree has no more: versions, snapshots, pins and holds; and the
//! policies of directories, which say how much is kept.

use std::collections::BTreeMap;

use outrigger_format::Root;
use outrigger_format::catalogue::Time;

use super::SessionId;
use crate::error::Result;

/// Something that a session keeps from being reclaimed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PinTarget {
    /// The tree as it is now: its epoch is named, and the current epoch raised, as by an unnamed
    /// snapshot.
    Now,
    /// A snapshot, by name.
    Snapshot(String),
    /// One earlier version of a file.
    Version {
        /// The file.
        inode: u64,
        /// The version's number.
        number: u64,
    },
}

/// An earlier content of a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VersionRow {
    /// Rises from 1 per file, with every content it has had, kept or not.
    pub number: u64,
    /// When it was committed, nanoseconds since 1970.
    pub time: u64,
    /// Modification time it had.
    pub mtime: Time,
    /// Its content.
    pub root: Root,
}

/// A named epoch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SnapshotRow {
    /// Its name.
    pub name: String,
    /// Its epoch.
    pub epoch: u64,
    /// When it was taken, nanoseconds since 1970.
    pub time: u64,
    /// Its tags, including the program's own: see [`Facts`](crate::snapshot::facts::Facts).
    pub tags: Vec<String>,
    /// The role of the database that has taken it, if the server knows.
    pub role: Option<String>,
}

/// The tree's past: versions of files, snapshots, and pins on them.
pub trait Snapshots: Send + Sync {
    /// Earlier contents of a file that are kept, newest first.
    fn versions(&self, inode: u64) -> Result<Vec<VersionRow>>;
    /// Names the current epoch and raises it; `Exists` when the name is taken.
    fn create_snapshot(&self, name: &str, time: u64, tags: &[String]) -> Result<SnapshotRow>;
    /// Gives a snapshot these tags, in place of those that it has; `NotFound` when there is none of
    /// that name.
    fn set_snapshot_tags(&self, name: &str, tags: &[String]) -> Result<()>;
    /// All snapshots, oldest first.
    fn snapshots(&self) -> Result<Vec<SnapshotRow>>;
    /// Forgets a snapshot; rows only it could see go with the next [`Snapshots::purge_history`].
    fn delete_snapshot(&self, name: &str) -> Result<()>;
    /// Pins something for `session`, checking in the same transaction that it is there. Returns the
    /// epoch to read at (`Now` and `Snapshot`; for `Version` the current one) and, for `Version`,
    /// its content.
    ///
    /// # Errors
    /// `NotFound` when it is not there, `Fenced`.
    fn pin(&self, session: SessionId, target: &PinTarget) -> Result<(u64, Option<Root>)>;
    /// Drops history rows that no snapshot and no pin can see; returns how many.
    fn purge_history(&self) -> Result<u64>;
    /// Inserts earlier contents of a file, for a database rebuilt from packs. Existing ones stay.
    fn restore_versions(&self, inode: u64, versions: &[VersionRow]) -> Result<()>;
}

/// The owner of the hold on the content of an inode without names.
pub fn orphan_holder(inode: u64) -> String {
    format!("{ORPHAN}{inode}")
}

/// The beginning of the names of all such owners.
pub const ORPHAN: &str = "orphan:";

/// The owner of holds on contents that a mount's log refers to.
pub const MOUNT_HOLDER: &str = "mount";

/// Claims on contents that outlive sessions.
pub trait Holds: Send + Sync {
    /// Keeps `roots` from being reclaimed until `holder` (a name; not empty) releases them,
    /// independently of sessions: for the staging log of a mount, which outlives its process. A
    /// root that it already holds is held once. The caller makes sure that their chunks are
    /// committed, and cannot be reclaimed before this returns.
    fn hold(&self, holder: &str, roots: &[Root]) -> Result<()>;
    /// Releases these roots, or with `None` all that `holder` holds. Other owners may hold the same
    /// ones.
    fn release(&self, holder: &str, roots: Option<&[Root]>) -> Result<()>;
    /// Lists the owners of holds.
    fn holders(&self) -> Result<Vec<String>>;
    /// The roots that `holder` holds, each once; empty ones never are.
    fn held(&self, holder: &str) -> Result<Vec<Root>>;
}

/// Policies of directories.
pub trait Policies: Send + Sync {
    /// Sets (or with `None` unsets) a policy of a directory; it goes with the directory. The engine
    /// itself obeys `versions`: how many earlier contents of a file are kept. The nearest directory
    /// above that sets it counts: a number, `all` or `none`; the default is 10.
    fn set_policy(&self, inode: u64, key: &str, value: Option<&str>) -> Result<()>;
    /// Policies set on exactly this directory.
    fn policies(&self, inode: u64) -> Result<BTreeMap<String, String>>;
    /// All policies: inode → key → value.
    fn all_policies(&self) -> Result<BTreeMap<u64, BTreeMap<String, String>>>;
}
