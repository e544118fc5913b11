//! Metadata: the name space, manifest roots, packs, sessions, pins, snapshots and policies, in one database.
//!
//! [`Meta`] is the contract that every engine fulfils; `conformance` in the tests states it as code. An engine serialises
//! its transactions. Chunks are not rows: they live in pack footers.
//!
//! **Epochs.** The tree has a current epoch. A snapshot (or a reader's pin) names the current epoch and raises it. After that, the first change to a
//! row copies it to the history with the epochs it was valid in, and later changes update it in place. So [`At::Epoch`] reads the tree exactly as it
//! was.

mod carry;
mod change;
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
mod sessions;
mod sqlite;
mod tree;

use std::collections::BTreeMap;

use outrigger_format::catalogue::{Attributes, Time};
use outrigger_format::{PackId, Root};

use crate::error::Result;

pub use history::{Holds, Policies, Snapshots};
pub use packs::{PackChanges, PackMark, PackRow, PackState, PackSum, Packs};
pub use postgres::{Address, Location, Others, PostgresMeta, TlsMode, is_postgres_url};
pub(crate) use postgres::{Unfinished, look};
pub use reclaim::Reclaim;
pub use sessions::{
    AgentRole, Role, SessionId, SessionKind, SessionOwner, SessionRow, Sessions, is_gone, lives,
};
pub use sqlite::{Clock, OpenMode, SqliteMeta};
pub(crate) use sqlite::{is_unused_database, register_functions};
pub use tree::Tree;

/// Inode of the root directory.
pub const ROOT_INODE: u64 = 1;

/// Which tree is meant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum At {
    /// The tree as it is now.
    Now,
    /// The tree at a snapshot's or pin's epoch.
    Epoch(u64),
}

/// Costs of write transactions in this process, if the engine counts them: with the database on another host.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct WriteCounts {
    /// How many there were.
    pub transactions: u64,
    /// How often one was repeated because of another transaction or a lost connection.
    pub again: u64,
    /// How long they took all together, with all tries.
    pub nanos: u64,
}

/// What a writer may rely on (rules 1, 8 and 9 of `docs/decisions/0003-reclaim-protocol.md`): read in one transaction.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Generation {
    /// Raised each time packs are marked as deletion candidates.
    pub number: u64,
    /// Ids of all live packs, rising. Every other pack counts as absent. Empty for a reader's session, which relies on none.
    pub live: Vec<PackId>,
    /// The mark for [`Meta::changed_packs`], if the engine has one.
    pub mark: Option<PackMark>,
}

/// Something that a session keeps from being reclaimed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PinTarget {
    /// The tree as it is now: its epoch is named, and the current epoch raised, as by an unnamed snapshot.
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

/// A file, directory or other inode.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Inode {
    /// Its number.
    pub number: u64,
    /// Mode, owner, times and the like.
    pub attributes: Attributes,
    /// Content.
    pub root: Root,
    /// Names it has; 1 for a directory.
    pub links: u32,
    /// A digest of the source's (size, mtime, ctime, inode) at the last put; 0: none, or not to be trusted. Not part of the history: a put that
    /// changes nothing else changes it in all epochs.
    pub stamp: u64,
}

/// A name and its inode.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DirEntry {
    /// The name.
    pub name: Vec<u8>,
    /// The inode.
    pub inode: Inode,
}

/// A name in a directory, with its inode as it was, unchanged, from one epoch until another.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Era {
    /// The name and its inode then.
    pub entry: DirEntry,
    /// The first epoch.
    pub from: u64,
    /// The epoch after the last one; `u64::MAX` for the present state.
    pub until: u64,
}

/// The place of a directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Hanging {
    /// The directory that it is in.
    pub parent: u64,
    /// Its name there, and its inode.
    pub entry: DirEntry,
}

/// One change in a [`Commit`].
#[derive(Clone, Debug)]
pub enum Change {
    /// Makes `name` in `parent` stand for a file with these attributes and content.
    ///
    /// If the name exists and the kinds match (both directories, or neither), the existing inode is kept and changed. Its old content becomes an
    /// earlier version by the directory's policy `versions`. `inode` is then an alias of the existing inode for the rest of this commit; in later
    /// commits the caller replaces it by that of [`Committed::aliases`]. If the kinds differ, the old entry is removed first (a directory with all
    /// below it). If `inode` or its alias already has another name, this makes a hard link: the name stands for that inode from now on, whose
    /// attributes and content are updated. Directories have one name: for them that is `Invalid`.
    ///
    /// If nothing differs, only the stamp is written. A version is kept only when the content differs.
    ///
    /// An empty name, with [`ROOT_INODE`] as parent and as inode, changes the attributes of the root directory.
    Put {
        /// Directory: an inode in the database, one made earlier in this commit, or an alias of this commit.
        parent: u64,
        /// Name in it; not empty, without `/`, not `.` or `..`, at most 255 bytes.
        name: Vec<u8>,
        /// Number for the inode if it is new, from [`Meta::reserve_inodes`].
        inode: u64,
        /// Attributes.
        attributes: Attributes,
        /// Content; [`Root::Empty`] except for files.
        root: Root,
        /// See [`Inode::stamp`].
        stamp: u64,
        /// True when an existing name is a hard link to another inode than in the source: replace the entry instead of changing its inode.
        replace: bool,
    },
    /// Another name for an inode that is not a directory; `Exists` when the name is taken.
    Link {
        /// Directory.
        parent: u64,
        /// Name in it.
        name: Vec<u8>,
        /// The inode, in the database or made earlier in this commit.
        inode: u64,
    },
    /// Removes an entry; a directory with all below it when `recursive`, else it must be empty (`Exists`: it has entries). An inode goes with
    /// its last name, and its earlier versions with it. With `recursive` an entry that is gone already counts as removed.
    Remove {
        /// Directory.
        parent: u64,
        /// Name in it.
        name: Vec<u8>,
        /// Allow directories that are not empty.
        recursive: bool,
    },
    /// Moves an entry by POSIX's rules: a file replaces a file, a directory an empty directory (`Exists`: it is not empty; `Invalid`: the kinds
    /// differ, or the directory would move into itself). Two names of one file stay both.
    Rename {
        /// Old directory.
        parent: u64,
        /// Old name.
        name: Vec<u8>,
        /// New directory; must not lie below the moved entry.
        new_parent: u64,
        /// New name.
        new_name: Vec<u8>,
    },
    /// A precondition: `name` stands for `inode` just now (`None`: is free); else the commit is refused (`Changed`). For a client of a shared store
    /// that decided on earlier reads. This and the four below are applied in order, together with those above.
    IfName {
        /// Directory.
        parent: u64,
        /// Name in it.
        name: Vec<u8>,
        /// The inode that it must stand for.
        inode: Option<u64>,
    },
    /// A precondition: the inode has the mode, owner, group and extended attributes of these just now; else the commit is refused (`Changed`). For a
    /// new entry that inherits some of them from its directory.
    IfAttributes {
        /// The inode.
        inode: u64,
        /// The attributes; times do not count.
        attributes: Box<Attributes>,
    },
    /// Sets attributes and content of an inode, if the present ones are `was`; else the commit is refused (`Changed`; `NotFound` when it is gone).
    /// The stamp is cleared. A directory stays one, and so does anything else.
    CompareAndSwap {
        /// The inode.
        inode: u64,
        /// A directory that it has a name in: its policies count.
        parent: u64,
        /// Required attributes and content.
        was: Box<(Attributes, Root)>,
        /// New attributes.
        attributes: Attributes,
        /// New content; [`Root::Empty`] except for files.
        root: Root,
        /// As in [`Change::Node`].
        keep: bool,
    },
    /// Sets an inode's time of last change, and with `modified` that of its content, to `time`, unless they are later. Ignored if it is missing.
    Touch {
        /// The inode.
        inode: u64,
        /// Also the time of the last modification: a directory has got or lost an entry.
        modified: bool,
        /// The time.
        time: Time,
    },
    /// A precondition: the inode has so many names and this content just now; else the commit is refused (`Changed`, also when it is gone). If it has
    /// one name, its content is kept from reclaiming as long as the session lasts: for an open file that loses its last name in this commit.
    PinContent {
        /// The inode.
        inode: u64,
        /// Names that it must have.
        links: u32,
        /// Content that it must have.
        root: Root,
    },
    /// Makes `name` stand for `inode`, or for nothing, whatever it stood for before. This and [`Change::Node`] are for clients that own the tree and
    /// know its state, as a mount does: applying them twice is the same as once. Only the state at the end of the commit counts. An inode without a
    /// name goes then, with its versions, and a directory must have exactly one name, or none and no entries (`Invalid`). So their order does not
    /// matter, except for two that set the same name or the same inode: the last one decides. A commit has changes of these two kinds, or of the
    /// others (`Invalid`).
    ///
    /// At the end `parent` must be a directory if it has entries (`NotFound`), and must not lie below itself (`Invalid`); `inode` must exist if it
    /// has a name (`Invalid`). A move is one entry that is removed and one that is created.
    Name {
        /// Directory.
        parent: u64,
        /// Name in it.
        name: Vec<u8>,
        /// The inode that it stands for.
        inode: Option<u64>,
    },
    /// Sets attributes and content of an inode, whatever they were; makes it if it is missing (see [`Change::Name`]). The stamp is cleared. If
    /// nothing else differs, nothing else is written.
    Node {
        /// The inode, from [`Meta::reserve_inodes`] if it is new. A directory stays one, and so does anything else.
        inode: u64,
        /// A directory that it has a name in at the end of the commit: its policies count.
        parent: u64,
        /// Attributes.
        attributes: Attributes,
        /// Content; [`Root::Empty`] except for files.
        root: Root,
        /// If the content differs, the earlier one becomes a version by the policy `versions`; else it is replaced, and the version keeps its number.
        keep: bool,
    },
    /// Holds the content of an inode without names, or of a file that is still open, for `holder`, in place of what that held before. Goes with
    /// changes of the two kinds above. The catalogue does not have it, as it is of no use once the mount has ended.
    Orphan {
        /// The inode; the database need not have it.
        inode: u64,
        /// The owner of the hold: [`orphan_holder`] for an inode without names, [`increments::holder`](crate::increments::holder) for one that is being
        /// written.
        holder: String,
        /// Content.
        root: Root,
    },
    /// A change of a job; goes with changes that are applied in order. The catalogue does not have it.
    Job(jobs::JobChange),
    /// A change of an inline chunk; goes with changes that are applied in order. The catalogue does not have it.
    InlineChunks(inline::InlineChange),
}

/// The owner of the hold on the content of an inode without names.
pub fn orphan_holder(inode: u64) -> String {
    format!("{ORPHAN}{inode}")
}

/// The beginning of the names of all such owners.
pub const ORPHAN: &str = "orphan:";

/// The owner of holds on contents that a mount's log refers to.
pub const MOUNT_HOLDER: &str = "mount";

/// The changes that one transaction makes visible: all or none.
#[derive(Clone, Debug, Default)]
pub struct Commit {
    /// Packs of this session, sealed and durable, that become live.
    pub packs: Vec<PackId>,
    /// Changes of the tree, in order.
    pub changes: Vec<Change>,
    /// The time of the commit, nanoseconds since 1970.
    pub time: u64,
}

impl Commit {
    /// Contents to pin to the session by [`Change::PinContent`], if the changes apply.
    pub(crate) fn pinned(&self) -> impl Iterator<Item = &Root> {
        self.changes.iter().filter_map(|change| match change {
            Change::PinContent { links: 1, root, .. } => Some(root),
            _ => None,
        })
    }
}

/// The outcome of a commit.
#[derive(Clone, Debug, Default)]
pub struct Committed {
    /// Reserved inode → the existing inode that was kept instead.
    pub aliases: BTreeMap<u64, u64>,
    /// Entries that are new.
    pub created: u64,
    /// Entries that were changed, replaced or moved.
    pub changed: u64,
    /// Entries that were removed, including those below removed directories.
    pub removed: u64,
    /// The generation's number as the transaction saw it.
    pub generation: u64,
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

/// Totals that the database keeps or can count.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct TreeTotals {
    /// Inodes that are regular files.
    pub files: u64,
    /// Directories, including the root.
    pub directories: u64,
    /// Others.
    pub others: u64,
    /// Sum of the files' lengths, bytes (each inode once).
    pub bytes: u64,
}

/// The metadata engine. All methods block; all are transactions of their own; `Busy` and lost leases are reported, never hidden.
///
/// A session is *live* while it was neither closed nor fenced and its lease is not over by the database's clock. Methods that take a session
/// fail with `Fenced` when it is not, and renew its lease when it is.
pub trait Meta: Sessions + Packs + Tree + Snapshots + Holds + Policies + Reclaim {
    /// The database's time, nanoseconds since 1970: the clock by which all hosts of a store judge ages.
    fn now(&self) -> Result<u64>;
    /// Explains in a clause what is wrong with the way to the database just now; `None` while it answers.
    fn trouble(&self) -> Option<String> {
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
    /// The locks on files, if the engine has them, as PostgreSQL's does. One process at a time mounts a store in a directory, and its kernel keeps
    /// locks.
    fn file_locks(&self) -> Option<&dyn locks::FileLocks> {
        None
    }
    /// Publishes to the catalogue where mounts change names in the database alone: in PostgreSQL. Elsewhere each commit publishes its changes.
    fn publishing(&self) -> Option<&dyn publishing::Publishing> {
        None
    }
    /// The counters' next values; gives out nothing.
    fn counters(&self) -> Result<Counters>;
    /// Raises the counters to at least these values, for a database that was rebuilt from packs, or that is stale.
    fn raise_counters(&self, next_pack: u64, next_inode: u64, next_sequence: u64) -> Result<()>;
    /// Checks the engine's own structures; returns findings in words.
    fn check(&self) -> Result<Vec<String>>;
    /// Moves the write-ahead log into the database, and frees unused pages if that is cheap.
    fn tidy(&self) -> Result<()>;
}
