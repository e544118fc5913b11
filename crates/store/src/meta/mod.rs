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
    /// its last name, and its earlier versions with it.
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
    Expect {
        /// Directory.
        parent: u64,
        /// Name in it.
        name: Vec<u8>,
        /// The inode that it must stand for.
        inode: Option<u64>,
    },
    /// A precondition: the inode has the mode, owner, group and extended attributes of these just now; else the commit is refused (`Changed`). For a
    /// new entry that inherits some of them from its directory.
    Like {
        /// The inode.
        inode: u64,
        /// The attributes; times do not count.
        attributes: Box<Attributes>,
    },
    /// Sets attributes and content of an inode, if the present ones are `was`; else the commit is refused (`Changed`; `NotFound` when it is gone).
    /// The stamp is cleared. A directory stays one, and so does anything else.
    Swap {
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
    Pin {
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
        /// The owner of the hold: [`orphan_holder`] for an inode without names, [`early::holder`](crate::early::holder) for one that is being
        /// written.
        holder: String,
        /// Content.
        root: Root,
    },
    /// A change of a job; goes with changes that are applied in order. The catalogue does not have it.
    Job(jobs::JobChange),
    /// A change of an inline chunk; goes with changes that are applied in order. The catalogue does not have it.
    Loose(loose::LooseChange),
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
    /// Contents to pin to the session by [`Change::Pin`], if the changes apply.
    pub(crate) fn pinned(&self) -> impl Iterator<Item = &Root> {
        self.changes.iter().filter_map(|change| match change {
            Change::Pin { links: 1, root, .. } => Some(root),
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
pub trait Meta: Send + Sync {
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

    // ---- sessions -------------------------------------------------------------------------------------------------

    /// Opens a session with a lease of `lease_secs`, and returns the current generation, which it has acknowledged.
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
    /// Rule 8, in one transaction: candidates among `relied` become live again, and the session acknowledges the current generation, which is
    /// returned.
    fn acknowledge(&self, session: SessionId, relied: &[PackId]) -> Result<Generation>;
    /// Fails once this database was removed or replaced: data stored from then on would be lost. Asks only this machine.
    fn still_there(&self) -> Result<()> {
        Ok(())
    }
    /// The current generation's number.
    fn generation(&self) -> Result<u64>;
    /// Ends a session, if it is not over yet: its row is over, its pins go; packs it left `Writing` or `Sealed` await [`Meta::sweep_packs`].
    fn close_session(&self, session: SessionId) -> Result<()>;
    /// Ends another's session whose lease is over, or whose process is gone as the caller knows.
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
    /// Withdraws intents that the session announced and did not write, as their names were taken. Rows in another state, or of another session, stay.
    fn withdraw_packs(&self, session: SessionId, packs: &[PackId]) -> Result<()>;
    /// Records that announced packs are sealed and durable (`bytes`, `raw_bytes`, `chunks` are taken from the rows).
    fn packs_sealed(&self, session: SessionId, packs: &[PackRow]) -> Result<()>;
    /// Every pack row.
    fn packs(&self) -> Result<Vec<PackRow>>;
    /// Up to `limit` pack rows, in the order of their ids, after `after`: for a caller that needs little of each.
    fn packs_after(&self, after: PackId, limit: usize) -> Result<Vec<PackRow>>;
    /// Sums over all pack rows, by their state.
    fn pack_sums(&self) -> Result<Vec<PackSum>>;
    /// The mark for asking for later changes, if the engine has one. Data that is read after it may be reported once more.
    fn pack_mark(&self) -> Result<Option<PackMark>> {
        Ok(None)
    }
    /// Rows of packs that have changed since `mark`: all of them, in whatever order their transactions began and ended. `None` if the engine cannot
    /// tell: then read all.
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
    /// The inodes of several names in directories now; on a server this takes one round trip.
    fn lookup_each(&self, names: &[(u64, &[u8])]) -> Result<Vec<Option<Inode>>> {
        names.iter().map(|(parent, name)| self.lookup(At::Now, *parent, name)).collect()
    }
    /// The directory that a directory of the current tree is in; the root is in itself. `None` when there is no such directory.
    fn parent_of(&self, directory: u64) -> Result<Option<u64>>;
    /// The places of those of `directories` that are in the current tree, and of all their ancestors but the root, each once. Needed for the
    /// catalogue of a store whose mounts do not write it; other catalogues have all names, and the answer is empty.
    fn hanging(&self, directories: &[u64]) -> Result<Vec<Hanging>> {
        let _ = directories;
        Ok(Vec::new())
    }
    /// Up to `limit` entries of `parent`, in bytewise order of names, after `after`; none when there is no such directory.
    fn read_dir(&self, at: At, parent: u64, after: Option<&[u8]>, limit: usize) -> Result<Vec<DirEntry>>;
    /// Every name that `directory` has or had, with every state of its inode at the same time, as far as snapshots and pins keep them. Names come in
    /// bytewise order, the states of a name in the order of time.
    fn history(&self, directory: u64) -> Result<Vec<Era>>;
    /// A fresh range of inode numbers.
    fn reserve_inodes(&self, count: u64) -> Result<std::ops::Range<u64>>;
    /// Makes a batch of changes visible at once: the session must be live, its packs, which it sealed, become live, the changes apply in order.
    ///
    /// # Errors
    /// `Fenced` when the session is no longer live: then nothing has changed. The same holds for other errors: `Invalid` (packs in another state,
    /// names, attributes, kinds), `NotFound` (parents, inodes, entries), `Exists`. Only after an error with
    /// [`Error::unanswered`](crate::Error::unanswered) may all of it have happened.
    fn commit(&self, session: SessionId, commit: &Commit) -> Result<Committed>;
    /// True if a transaction whose answer was lost has happened. If it has not, it never will.
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
    /// Keeps `roots` from being reclaimed until `holder` (a name; not empty) releases them, independently of sessions: for the staging log of a
    /// mount, which outlives its process. A root that it already holds is held once. The caller makes sure that their chunks are committed, and
    /// cannot be reclaimed before this returns.
    fn hold(&self, holder: &str, roots: &[Root]) -> Result<()>;
    /// Releases these roots, or with `None` all that `holder` holds. Other owners may hold the same ones.
    fn release(&self, holder: &str, roots: Option<&[Root]>) -> Result<()>;
    /// Lists the owners of holds.
    fn holders(&self) -> Result<Vec<String>>;
    /// The roots that `holder` holds, each once; empty ones never are.
    fn held(&self, holder: &str) -> Result<Vec<Root>>;
    /// Drops history rows that no snapshot and no pin can see; returns how many.
    fn purge_history(&self) -> Result<u64>;
    /// Sets (or with `None` unsets) a policy of a directory; it goes with the directory. The engine itself obeys `versions`: how many earlier
    /// contents of a file are kept. The nearest directory above that sets it counts: a number, `all` or `none`; the default is 10.
    fn set_policy(&self, inode: u64, key: &str, value: Option<&str>) -> Result<()>;
    /// Policies set on exactly this directory.
    fn policies(&self, inode: u64) -> Result<BTreeMap<String, String>>;
    /// All policies: inode → key → value.
    fn all_policies(&self) -> Result<BTreeMap<u64, BTreeMap<String, String>>>;

    // ---- reclaiming (see docs/decisions/0003-reclaim-protocol.md) ---------------------------------------------------

    /// Rule 14: `session` becomes the collector (its id is the token). The earlier one is fenced if its lease or its row is over; otherwise this
    /// fails with `Busy`. All candidates become live again. The methods below fail with `Fenced` once another session has taken over.
    fn take_collector(&self, session: SessionId) -> Result<()>;
    /// Ends the run: candidates that are left become live again.
    fn release_collector(&self, session: SessionId) -> Result<()>;
    /// On one consistent state of the database: calls `visit` for every retained root, and returns the rows of the committed (`Live` and `Condemned`)
    /// packs. Retained are current roots, history that a snapshot or pin sees, kept and pinned versions, and held roots. Equal ones may repeat, and
    /// empty ones are left out.
    fn visit_roots(&self, visit: &mut dyn FnMut(Root) -> Result<()>) -> Result<Vec<PackRow>>;
    /// Marks those of `packs` that are live as candidates, raises the generation, and returns it.
    fn condemn(&self, session: SessionId, packs: &[PackId]) -> Result<u64>;
    /// True when all writer sessions that are not over have acknowledged `generation`. One whose lease is over counts until it is fenced.
    fn all_acknowledged(&self, generation: u64) -> Result<bool>;
    /// Rule 21, in one transaction: the collector's own sealed `copies` become live, and candidates among `victims` become dead at `time`. Durable
    /// when it returns. `Busy` when [`Meta::all_acknowledged`] is false for the generation that marked a victim.
    fn bury(&self, session: SessionId, copies: &[PackId], victims: &[PackId], time: u64) -> Result<()>;
    /// Unmarks candidates (one that could not be copied).
    fn absolve(&self, session: SessionId, packs: &[PackId]) -> Result<()>;

    // ---- jobs -----------------------------------------------------------------------------------------------------

    /// The jobs.
    fn jobs(&self) -> &dyn jobs::Jobs;
    /// The registry's rows.
    fn records(&self) -> &dyn records::Records;

    // ---- inline chunks --------------------------------------------------------------------------------------------

    /// The inline chunks.
    fn loose(&self) -> &dyn loose::Loose;

    // ---- locks on files -------------------------------------------------------------------------------------------

    /// The locks on files, if the engine has them, as PostgreSQL's does. One process at a time mounts a store in a directory, and its kernel keeps
    /// locks.
    fn file_locks(&self) -> Option<&dyn locks::FileLocks> {
        None
    }

    // ---- the catalogue of names that mounts change ----------------------------------------------------------------

    /// Publishes to the catalogue where mounts change names in the database alone: in PostgreSQL. Elsewhere each commit publishes its changes.
    fn telling(&self) -> Option<&dyn telling::Telling> {
        None
    }

    // ---- upkeep ---------------------------------------------------------------------------------------------------

    /// The counters' next values; gives out nothing.
    fn counters(&self) -> Result<Counters>;
    /// Raises the counters to at least these values, for a database that was rebuilt from packs, or that is stale.
    fn raise_counters(&self, next_pack: u64, next_inode: u64, next_sequence: u64) -> Result<()>;
    /// Inserts rows of packs that were found as objects, as live: for a database rebuilt from packs. Existing rows stay. Ids handed out later are
    /// above them.
    fn adopt_packs(&self, packs: &[PackRow]) -> Result<()>;
    /// Inserts earlier contents of a file, for a database rebuilt from packs. Existing ones stay.
    fn restore_versions(&self, inode: u64, versions: &[VersionRow]) -> Result<()>;
    /// Checks the engine's own structures; returns findings in words.
    fn check(&self) -> Result<Vec<String>>;
    /// Moves the write-ahead log into the database, and frees unused pages if that is cheap.
    fn tidy(&self) -> Result<()>;
}
