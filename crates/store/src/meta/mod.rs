//! Metadata: the name space, manifest roots, packs, sessions, pins, snapshots and policies, in one database.
//!
//! [`Meta`] is the contract that every engine fulfils; `conformance` in the tests states it as code. An engine serialises
//! its transactions. Chunks are not rows: they live in pack footers.
//!
//! **Epochs.** The tree has a current epoch. A snapshot (or a reader's pin) names the current epoch and raises it; after
//! that, the first change to a row copies it to the history with the epochs it was valid in, and later changes update
//! in place. [`At::Epoch`] therefore reads the tree exactly as it was.

mod carry;
mod change;
mod fault;
pub mod jobs;
pub mod locks;
pub mod loose;
mod packs;
mod postgres;
pub mod records;
mod sessions;
mod sqlite;
pub mod telling;

use std::collections::BTreeMap;

use outrigger_format::catalogue::{Attributes, Time};
use outrigger_format::{PackId, PackKind, Root};

use crate::error::{Result, Unanswered};

pub use packs::{PackChanges, PackMark, PackRow, PackState, PackSum};
pub use postgres::{Address, Location, Others, PostgresMeta, TlsMode, is_postgres_url};
pub(crate) use postgres::{Unfinished, look};
pub use sessions::{AgentRole, Role, SessionId, SessionKind, SessionOwner, SessionRow, is_gone, lives};
pub(crate) use sqlite::is_unused_database;
pub(crate) use sqlite::register_functions;
pub use sqlite::{Clock, OpenMode, SqliteMeta};

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

/// What transactions that write have cost this process, where that is counted: with the database on another host.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct WriteCounts {
    /// How many there were.
    pub transactions: u64,
    /// How often one was made again: because of another transaction, or because its connection was lost.
    pub again: u64,
    /// How long they took all together, with all their tries.
    pub nanos: u64,
}

/// What a writer may rely on (rules 1, 8 and 9 of `docs/decisions/0003-reclaim-protocol.md`): read in one transaction.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Generation {
    /// Raised each time packs are condemned.
    pub number: u64,
    /// Ids of all live packs, rising. Every other pack counts as absent. None are told to a session that opens to read: it relies on none.
    pub live: Vec<PackId>,
    /// From where on to ask for [`Meta::changed_packs`], where the engine tells changes.
    pub mark: Option<PackMark>,
}

/// What a session keeps from being reclaimed.
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
    /// A digest of the source's (size, mtime, ctime, inode) at the last put; 0: none, or not to be trusted. Not part of the history: a put
    /// that changes nothing else changes it in all epochs.
    pub stamp: u64,
}

/// A name and what it stands for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DirEntry {
    /// The name.
    pub name: Vec<u8>,
    /// The inode.
    pub inode: Inode,
}

/// A name in a directory, and what it stood for, unchanged, from one epoch until another.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Era {
    /// The name and what it stood for.
    pub entry: DirEntry,
    /// The first epoch.
    pub from: u64,
    /// The epoch after the last one; `u64::MAX` for what is so now.
    pub until: u64,
}

/// Where a directory hangs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Hanging {
    /// The directory that it is in.
    pub parent: u64,
    /// Its name there, and what it is.
    pub entry: DirEntry,
}

/// One change in a [`Commit`].
#[derive(Clone, Debug)]
pub enum Change {
    /// Makes `name` in `parent` stand for a file with these attributes and content.
    ///
    /// If the name exists and stands for the same kind (directory and directory, or neither a directory), the existing
    /// inode is kept and changed: its old content becomes an earlier version by the directory's policy `versions`. `inode` is then an
    /// alias of the existing one for the rest of this commit; in later ones the caller puts [`Committed::aliases`] in its place. If the
    /// kinds differ, the old entry is removed first (a directory with all below it). An alias or `inode` that exists already under another
    /// name is a hard link: the name then stands for that inode, whose attributes and content are updated, even if the name stood for
    /// another file before. Directories have one name: for them that is `Invalid`.
    ///
    /// When nothing differs nothing is written, but the stamp. A version is kept only when the content differs.
    ///
    /// With an empty name, and [`ROOT_INODE`] as parent and as inode, it changes the attributes of the root directory.
    Put {
        /// Directory: an inode in the database, one made earlier in this commit, or an alias of this commit.
        parent: u64,
        /// Name in it; not empty, without `/`, not `.` or `..`, at most 255 bytes.
        name: Vec<u8>,
        /// Number for the inode if it is new, from [`Meta::reserve_inodes`].
        inode: u64,
        /// Attributes.
        attributes: Attributes,
        /// Content; [`Root::Empty`] but for files.
        root: Root,
        /// See [`Inode::stamp`].
        stamp: u64,
        /// True when an existing name is a hard link to another inode than the source says: replace the entry instead of
        /// changing its inode.
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
    /// its last name, and its earlier versions with it.
    Remove {
        /// Directory.
        parent: u64,
        /// Name in it.
        name: Vec<u8>,
        /// Allow directories that are not empty.
        recursive: bool,
    },
    /// Moves an entry, as POSIX says: a file replaces a file, a directory an empty directory (`Exists`: it is not empty; `Invalid`: the kinds
    /// differ, or the directory would move into itself). Two names of one file stay both.
    Rename {
        /// Old directory.
        parent: u64,
        /// Old name.
        name: Vec<u8>,
        /// New directory; must not lie below what is moved.
        new_parent: u64,
        /// New name.
        new_name: Vec<u8>,
    },
    /// Nothing, if `name` stands for `inode` just now (`None`: for nothing); else the commit is refused (`Changed`). For who decided on what was read
    /// before, on a store that others change too. This and the four below go by their order, with those above.
    Expect {
        /// Directory.
        parent: u64,
        /// Name in it.
        name: Vec<u8>,
        /// What it must stand for.
        inode: Option<u64>,
    },
    /// Nothing, if the inode has the mode, owner, group and extended attributes of these just now; else the commit is refused (`Changed`). For what is made in a
    /// directory and takes over some of them.
    Like {
        /// The inode.
        inode: u64,
        /// Of which times do not count.
        attributes: Box<Attributes>,
    },
    /// Sets attributes and content of an inode, if they are what the caller has seen; else the commit is refused (`Changed`; `NotFound` when it is gone).
    /// The stamp is cleared. What it is, a directory or not one, stays.
    Swap {
        /// The inode.
        inode: u64,
        /// A directory that it has a name in: its policies count.
        parent: u64,
        /// Attributes and content as they must be.
        was: Box<(Attributes, Root)>,
        /// Attributes as they are to be.
        attributes: Attributes,
        /// Content as it is to be; [`Root::Empty`] but for files.
        root: Root,
        /// As in [`Change::Node`].
        keep: bool,
    },
    /// The inode was changed, and with `modified` its content was, at `time`, unless it was later already. Of an inode that is not there, nothing.
    Touch {
        /// The inode.
        inode: u64,
        /// The time of the last modification, too: a directory has another entry.
        modified: bool,
        /// When.
        time: Time,
    },
    /// Nothing, if the inode has so many names and this content just now; else the commit is refused (`Changed`, also when it is gone). If that is one name, the
    /// content is kept from being reclaimed for as long as the session lasts: of a file that is open and loses its last name in this commit.
    Pin {
        /// The inode.
        inode: u64,
        /// Names that it must have.
        links: u32,
        /// Content that it must have.
        root: Root,
    },
    /// Makes `name` stand for `inode`, or for nothing, whatever it stood for before. This and [`Change::Node`] are for those who own the tree
    /// and know its state, as a mount does: applying them twice is the same as once. Only the state at the end of the commit counts: an
    /// inode without a name goes then, with its versions, and a directory must have exactly one name, or none and no entries (`Invalid`).
    /// So their order does not matter but for two that set the same name or the same inode: the last one decides. A commit has changes
    /// of these two kinds, or of the others (`Invalid`).
    ///
    /// At the end `parent` must be a directory if it has entries (`NotFound`), and must not lie below itself (`Invalid`); `inode` must exist
    /// if it has a name (`Invalid`). A move is one entry that is removed and one that is created.
    Name {
        /// Directory.
        parent: u64,
        /// Name in it.
        name: Vec<u8>,
        /// What it stands for.
        inode: Option<u64>,
    },
    /// Sets attributes and content of an inode, whatever they were; makes it if it is not there (see [`Change::Name`]). The stamp is cleared.
    /// When nothing else differs nothing else is written.
    Node {
        /// The inode, from [`Meta::reserve_inodes`] if it is new. It stays what it is: a directory, or not one.
        inode: u64,
        /// A directory that it has a name in at the end of the commit: its policies count.
        parent: u64,
        /// Attributes.
        attributes: Attributes,
        /// Content; [`Root::Empty`] but for files.
        root: Root,
        /// If the content differs, the one before becomes an earlier version by the policy `versions`; else it is replaced, and the version
        /// keeps its number.
        keep: bool,
    },
    /// A content of an inode that no name leads to, of a file that is still open: held by `holder`, in place of what that held
    /// before. Goes with changes of the two kinds above. The catalogue does not have it, as it is of no use once the mount has ended.
    Orphan {
        /// The inode; the database need not have it.
        inode: u64,
        /// Who holds it: [`orphan_holder`] of an inode without names, [`early::holder`](crate::early::holder) of one that is being written.
        holder: String,
        /// Content.
        root: Root,
    },
    /// A change of a job; goes with changes that go by their order. The catalogue does not have it.
    Job(jobs::JobChange),
    /// A change of a loose chunk; goes with changes that go by their order. The catalogue does not have it.
    Loose(loose::LooseChange),
}

/// Who holds the content of an inode without names.
pub fn orphan_holder(inode: u64) -> String {
    format!("{ORPHAN}{inode}")
}

/// What the names of all such holders begin with.
pub const ORPHAN: &str = "orphan:";

/// Who holds what the log of a mount refers to.
pub const MOUNT_HOLDER: &str = "mount";

/// What one transaction makes visible: all of it or nothing.
#[derive(Clone, Debug, Default)]
pub struct Commit {
    /// Packs of this session, sealed and durable, that become live.
    pub packs: Vec<PackId>,
    /// Changes of the tree, in order.
    pub changes: Vec<Change>,
    /// When, nanoseconds since 1970.
    pub time: u64,
}

impl Commit {
    /// Contents that are to be pinned to the session, as said by [`Change::Pin`], if the changes apply.
    pub(crate) fn pinned(&self) -> impl Iterator<Item = &Root> {
        self.changes.iter().filter_map(|change| match change {
            Change::Pin { links: 1, root, .. } => Some(root),
            _ => None,
        })
    }
}

/// What a commit did.
#[derive(Clone, Debug, Default)]
pub struct Committed {
    /// Reserved inode → the existing inode that was kept instead.
    pub aliases: BTreeMap<u64, u64>,
    /// Entries that are new.
    pub created: u64,
    /// Entries that were changed, replaced or moved.
    pub changed: u64,
    /// Entries that were removed, those below removed directories among them.
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
    /// Its tags, and what the program notes about it in the same list: see [`Facts`](crate::snapshot::facts::Facts).
    pub tags: Vec<String>,
}

/// What is given out next.
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
    /// Directories, the root among them.
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
pub trait Meta: Send + Sync {
    /// The database's time, nanoseconds since 1970: the one clock that all hosts of a store judge ages by.
    fn now(&self) -> Result<u64>;
    /// What is wrong with the way to the database just now, in a clause; `None` while it answers.
    fn trouble(&self) -> Option<String> {
        None
    }

    /// What transactions that write have cost so far.
    fn write_counts(&self) -> WriteCounts {
        WriteCounts::default()
    }

    // ---- sessions -------------------------------------------------------------------------------------------------

    /// Opens a session with a lease of `lease_secs`, which has acknowledged the current generation, and returns that.
    fn open_session(
        &self,
        kind: SessionKind,
        owner: &SessionOwner,
        lease_secs: u32,
    ) -> Result<(SessionId, Generation)>;
    /// Extends the lease and returns the current generation's number.
    ///
    /// # Errors
    /// `Fenced` when the session is no longer live.
    fn renew(&self, session: SessionId, lease_secs: u32) -> Result<u64>;
    /// Rule 8, in one transaction: condemned packs among `relied` become live again, the session has acknowledged the current
    /// generation, and that is returned.
    fn acknowledge(&self, session: SessionId, relied: &[PackId]) -> Result<Generation>;
    /// Fails once this database was removed, or another one put in its place: what is stored then would be lost. Asks nobody who is not on this machine.
    fn still_there(&self) -> Result<()> {
        Ok(())
    }
    /// The current generation's number.
    fn generation(&self) -> Result<u64>;
    /// Ends a session, if it is not over yet: its row is over, its pins go; packs it left `Writing` or `Sealed` await [`Meta::sweep_packs`].
    fn close_session(&self, session: SessionId) -> Result<()>;
    /// Ends another's session whose lease is over or whose process is known to be gone (the caller vouches for it).
    fn fence(&self, session: SessionId) -> Result<()>;
    /// Sessions that are not over (closed or fenced); the lease of some may be (see [`SessionRow::lease_until`]).
    fn sessions(&self) -> Result<Vec<SessionRow>>;

    // ---- packs ----------------------------------------------------------------------------------------------------

    /// Announces `count` packs of `kind` that `session` will write, with this mark in their headers, and returns their new ids, rising.
    fn announce_packs(
        &self,
        session: SessionId,
        kind: PackKind,
        count: u32,
        mark: u64,
    ) -> Result<Vec<PackId>>;
    /// Takes back the intents of packs that the session announced and did not write: their names were taken. Rows in another state, or of another session, stay.
    fn withdraw_packs(&self, session: SessionId, packs: &[PackId]) -> Result<()>;
    /// Records that packs that the session announced are sealed and durable (`bytes`, `raw_bytes`, `chunks` are taken from the rows).
    fn packs_sealed(&self, session: SessionId, packs: &[PackRow]) -> Result<()>;
    /// Every pack row.
    fn packs(&self) -> Result<Vec<PackRow>>;
    /// Up to `limit` pack rows, in the order of their ids, after `after`: for who needs little of many.
    fn packs_after(&self, after: PackId, limit: usize) -> Result<Vec<PackRow>>;
    /// Sums over all pack rows, by their state.
    fn pack_sums(&self) -> Result<Vec<PackSum>>;
    /// From where on to ask for what changes from now on, if the engine tells that. What is read afterwards is told once more at most.
    fn pack_mark(&self) -> Result<Option<PackMark>> {
        Ok(None)
    }
    /// Rows of packs that have changed since `mark`: all of them, whatever the order in which their transactions began and ended. `None` where that cannot be told, and all
    /// have to be looked at.
    fn changed_packs(&self, mark: PackMark) -> Result<Option<PackChanges>> {
        let _ = mark;
        Ok(None)
    }
    /// Rule 15: sets packs `Dead` that are `Writing` or `Sealed` and whose session is over. Returns how many.
    fn sweep_packs(&self, time: u64) -> Result<u64>;
    /// Drops the rows of dead packs whose objects are gone; rows that are not `Dead`, or whose session is not over, are left alone (rule 22).
    fn forget_packs(&self, packs: &[PackId]) -> Result<()>;

    // ---- the tree -------------------------------------------------------------------------------------------------

    /// The inode.
    fn inode(&self, at: At, number: u64) -> Result<Option<Inode>>;
    /// The entry `name` of directory `parent`.
    fn lookup(&self, at: At, parent: u64, name: &[u8]) -> Result<Option<Inode>>;
    /// What each of several names in directories stands for now; where that is a round trip to a server, it is one for all of them.
    fn lookup_each(&self, names: &[(u64, &[u8])]) -> Result<Vec<Option<Inode>>> {
        names.iter().map(|(parent, name)| self.lookup(At::Now, *parent, name)).collect()
    }
    /// The directory that a directory of the current tree is in; the root is in itself. `None` when there is no such directory.
    fn parent_of(&self, directory: u64) -> Result<Option<u64>>;
    /// Where those of `directories` that are in the current tree hang, and all that are above them but the root, each once. For the catalogue of a store whose mounts
    /// leave no trace in it; of others it has all names, and nothing is answered.
    fn hanging(&self, directories: &[u64]) -> Result<Vec<Hanging>> {
        let _ = directories;
        Ok(Vec::new())
    }
    /// Up to `limit` entries of `parent`, in bytewise order of names, after `after`; none when there is no such directory.
    fn read_dir(&self, at: At, parent: u64, after: Option<&[u8]>, limit: usize) -> Result<Vec<DirEntry>>;
    /// Every name that `directory` has or had, with every state of its inode at the same time, as far as snapshots and
    /// pins keep them. Names come in bytewise order, the states of a name in the order of time.
    fn history(&self, directory: u64) -> Result<Vec<Era>>;
    /// A fresh range of inode numbers.
    fn reserve_inodes(&self, count: u64) -> Result<std::ops::Range<u64>>;
    /// Makes a batch of changes visible, at once: the session is live, its packs were sealed by it and become live, the changes apply in order.
    ///
    /// # Errors
    /// `Fenced` when the session is no longer live; then nothing has changed. Any other error likewise: `Invalid` (packs in another state,
    /// names, attributes, kinds), `NotFound` (parents, inodes, entries), `Exists`. Only after one that says so ([`Error::unanswered`](crate::Error::unanswered)) all of
    /// it may have happened.
    fn commit(&self, session: SessionId, commit: &Commit) -> Result<Committed>;
    /// Whether a transaction whose answer was lost has happened. If it has not, it never will.
    ///
    /// # Errors
    /// When that cannot be found out now.
    fn has_happened(&self, unanswered: Unanswered) -> Result<bool>;
    /// The next number for a catalogue block; rises with every call.
    fn next_sequence(&self) -> Result<u64>;
    /// Totals of the current tree.
    fn totals(&self) -> Result<TreeTotals>;

    // ---- versions, snapshots, pins, policies -----------------------------------------------------------------------

    /// Earlier contents of a file that are kept, newest first.
    fn versions(&self, inode: u64) -> Result<Vec<VersionRow>>;
    /// Names the current epoch and raises it; `Exists` when the name is taken.
    fn create_snapshot(&self, name: &str, time: u64, tags: &[String]) -> Result<SnapshotRow>;
    /// Gives a snapshot these tags, in place of those that it has; `NotFound` when there is none of that name.
    fn set_snapshot_tags(&self, name: &str, tags: &[String]) -> Result<()>;
    /// All snapshots, oldest first.
    fn snapshots(&self) -> Result<Vec<SnapshotRow>>;
    /// Forgets a snapshot; rows only it could see go with the next [`Meta::purge_history`].
    fn delete_snapshot(&self, name: &str) -> Result<()>;
    /// Pins something for `session`, checking in the same transaction that it is there. Returns the epoch to read at (`Now` and
    /// `Snapshot`; for `Version` the current one) and, for `Version`, its content.
    ///
    /// # Errors
    /// `NotFound` when it is not there, `Fenced`.
    fn pin(&self, session: SessionId, target: &PinTarget) -> Result<(u64, Option<Root>)>;
    /// Keeps `roots` from being reclaimed until `holder` (a name; not empty) releases them, whatever becomes of sessions: for the staging log
    /// of a mount, which outlives its process. Those that it holds already it holds once. The caller sees to it that what they refer to is
    /// committed, and cannot be reclaimed before this returns.
    fn hold(&self, holder: &str, roots: &[Root]) -> Result<()>;
    /// Ends what [`Meta::hold`] began, for these roots or, with `None`, for all that `holder` holds. Others may hold the same ones.
    fn release(&self, holder: &str, roots: Option<&[Root]>) -> Result<()>;
    /// Who holds roots.
    fn holders(&self) -> Result<Vec<String>>;
    /// The roots that `holder` holds, each once; empty ones never are.
    fn held(&self, holder: &str) -> Result<Vec<Root>>;
    /// Drops history rows that no snapshot and no pin can see; returns how many.
    fn purge_history(&self) -> Result<u64>;
    /// Sets (or with `None` unsets) a policy of a directory; it goes with the directory. The engine obeys `versions` itself: how many earlier
    /// contents of a file are kept, by the nearest directory above it that says so: a number, `all` or `none`; 10 if none does.
    fn set_policy(&self, inode: u64, key: &str, value: Option<&str>) -> Result<()>;
    /// Policies set on exactly this directory.
    fn policies(&self, inode: u64) -> Result<BTreeMap<String, String>>;
    /// All policies: inode → key → value.
    fn all_policies(&self) -> Result<BTreeMap<u64, BTreeMap<String, String>>>;

    // ---- reclaiming (see docs/decisions/0003-reclaim-protocol.md) ---------------------------------------------------

    /// Rule 14: `session` becomes the collector (its id is the token): the previous one is fenced if its lease is over or
    /// its row is over, else `Busy`; all condemned packs become live again. The methods below fail with `Fenced` once another
    /// has taken over.
    fn take_collector(&self, session: SessionId) -> Result<()>;
    /// The run has ended: condemned packs that are left become live again.
    fn release_collector(&self, session: SessionId) -> Result<()>;
    /// On one consistent state of the database: calls `visit` for every retained root (current, history seen by a snapshot or pin,
    /// kept versions, pinned versions, held roots; equal roots may repeat, empty ones are left out), and returns the rows of the committed (`Live` and `Condemned`) packs.
    fn visit_roots(&self, visit: &mut dyn FnMut(Root) -> Result<()>) -> Result<Vec<PackRow>>;
    /// Condemns those of `packs` that are live, raises the generation, and returns it.
    fn condemn(&self, session: SessionId, packs: &[PackId]) -> Result<u64>;
    /// True when no writer session that is not over has acknowledged less than `generation`. One whose lease is over counts until it is fenced.
    fn all_acknowledged(&self, generation: u64) -> Result<bool>;
    /// Rule 21, in one transaction: the collector's own sealed `copies` become live, and those of `victims` that are condemned
    /// become dead at `time`. Durable when it returns. `Busy` when [`Meta::all_acknowledged`] does not hold for a victim's condemnation.
    fn bury(&self, session: SessionId, copies: &[PackId], victims: &[PackId], time: u64) -> Result<()>;
    /// Takes condemned packs back to live (one that could not be copied).
    fn absolve(&self, session: SessionId, packs: &[PackId]) -> Result<()>;

    // ---- jobs -----------------------------------------------------------------------------------------------------

    /// The jobs.
    fn jobs(&self) -> &dyn jobs::Jobs;
    /// The registry's rows.
    fn records(&self) -> &dyn records::Records;

    // ---- loose chunks ---------------------------------------------------------------------------------------------

    /// The loose chunks; `None` in a store of an earlier version that nobody who may write has opened since, which has none.
    fn loose(&self) -> Option<&dyn loose::Loose>;

    // ---- locks on files -------------------------------------------------------------------------------------------

    /// The locks on files, where an engine has them: PostgreSQL's has. A store in a directory is mounted by one process at a time, whose kernel keeps them.
    fn file_locks(&self) -> Option<&dyn locks::FileLocks> {
        None
    }

    // ---- the catalogue of names that mounts change ----------------------------------------------------------------

    /// How what the database alone says gets into the catalogue, where mounts change names there: in PostgreSQL. Elsewhere each commit tells what it changes.
    fn telling(&self) -> Option<&dyn telling::Telling> {
        None
    }

    // ---- upkeep ---------------------------------------------------------------------------------------------------

    /// What the counters will give out next; nothing is given out.
    fn counters(&self) -> Result<Counters>;
    /// Raises the counters to at least these values, for a database rebuilt from packs, or one that is older than they are.
    fn raise_counters(&self, next_pack: u64, next_inode: u64, next_sequence: u64) -> Result<()>;
    /// Inserts rows of packs that were found as objects, as live: for a database rebuilt from packs. Rows that are there already stay. Ids
    /// handed out later are above them.
    fn adopt_packs(&self, packs: &[PackRow]) -> Result<()>;
    /// Inserts earlier contents of a file, for a database rebuilt from packs. Those that are there already stay.
    fn restore_versions(&self, inode: u64, versions: &[VersionRow]) -> Result<()>;
    /// Checks the engine's own structures; returns what is wrong, in words.
    fn check(&self) -> Result<Vec<String>>;
    /// Moves the write-ahead log into the database and frees unused pages where that is cheap.
    fn tidy(&self) -> Result<()>;
}
