//! Names and inodes: reading the tree, and the changes that a commit makes to it.
//!
//! **Epochs.** The tree has a current epoch. A snapshot (or a reader's pin) names the current epoch
//! and raises it. After that, the first change to a row copies it to the history with the epochs it
//! was valid in, and later changes update it in place. So [`At::Epoch`] reads the tree exactly as
//! it was.

use std::collections::BTreeMap;

use outrigger_format::catalogue::{Attributes, Time};
use outrigger_format::{PackId, Root};

use super::{SessionId, inline, jobs};
use crate::error::{Result, Unanswered};

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
    /// A digest of the source's (size, mtime, ctime, inode) at the last put; 0: none, or not to be
    /// trusted. Not part of the history: a put that changes nothing else changes it in all epochs.
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
    /// If the name exists and the kinds match (both directories, or neither), the existing inode is
    /// kept and changed. Its old content becomes an earlier version by the directory's policy
    /// `versions`. `inode` is then an alias of the existing inode for the rest of this commit; in
    /// later commits the caller replaces it by that of [`Committed::aliases`]. If the kinds differ,
    /// the old entry is removed first (a directory with all below it). If `inode` or its alias
    /// already has another name, this makes a hard link: the name stands for that inode from now
    /// on, whose attributes and content are updated. Directories have one name: for them that is
    /// `Invalid`.
    ///
    /// If nothing differs, only the stamp is written. A version is kept only when the content
    /// differs.
    ///
    /// An empty name, with [`ROOT_INODE`] as parent and as inode, changes the attributes of the
    /// root directory.
    Put {
        /// Directory: an inode in the database, one made earlier in this commit, or an alias of
        /// this commit.
        parent: u64,
        /// Name in it; not empty, without `/`, not `.` or `..`, at most 255 bytes.
        name: Vec<u8>,
        /// Number for the inode if it is new, from [`Tree::reserve_inodes`].
        inode: u64,
        /// Attributes.
        attributes: Attributes,
        /// Content; [`Root::Empty`] except for files.
        root: Root,
        /// See [`Inode::stamp`].
        stamp: u64,
        /// True when an existing name is a hard link to another inode than in the source: replace
        /// the entry instead of changing its inode.
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
    /// Removes an entry; a directory with all below it when `recursive`, else it must be empty
    /// (`Exists`: it has entries). An inode goes with its last name, and its earlier versions with
    /// it. With `recursive` an entry that is gone already counts as removed.
    Remove {
        /// Directory.
        parent: u64,
        /// Name in it.
        name: Vec<u8>,
        /// Allow directories that are not empty.
        recursive: bool,
    },
    /// Moves an entry by POSIX's rules: a file replaces a file, a directory an empty directory
    /// (`Exists`: it is not empty; `Invalid`: the kinds differ, or the directory would move into
    /// itself). Two names of one file stay both.
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
    /// A precondition: `name` stands for `inode` just now (`None`: is free); else the commit is
    /// refused (`Changed`). For a client of a shared store that decided on earlier reads. This and
    /// the four below are applied in order, together with those above.
    IfName {
        /// Directory.
        parent: u64,
        /// Name in it.
        name: Vec<u8>,
        /// The inode that it must stand for.
        inode: Option<u64>,
    },
    /// A precondition: the inode has the mode, owner, group and extended attributes of these just
    /// now; else the commit is refused (`Changed`). For a new entry that inherits some of them from
    /// its directory.
    IfAttributes {
        /// The inode.
        inode: u64,
        /// The attributes; times do not count.
        attributes: Box<Attributes>,
    },
    /// Sets attributes and content of an inode, if the present ones are `was`; else the commit is
    /// refused (`Changed`; `NotFound` when it is gone). The stamp is cleared. A directory stays
    /// one, and so does anything else.
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
    /// Sets an inode's time of last change, and with `modified` that of its content, to `time`,
    /// unless they are later. Ignored if it is missing.
    Touch {
        /// The inode.
        inode: u64,
        /// Also the time of the last modification: a directory has got or lost an entry.
        modified: bool,
        /// The time.
        time: Time,
    },
    /// A precondition: the inode has so many names and this content just now; else the commit is
    /// refused (`Changed`, also when it is gone). If it has one name, its content is kept from
    /// reclaiming as long as the session lasts: for an open file that loses its last name in this
    /// commit.
    PinContent {
        /// The inode.
        inode: u64,
        /// Names that it must have.
        links: u32,
        /// Content that it must have.
        root: Root,
    },
    /// Makes `name` stand for `inode`, or for nothing, whatever it stood for before. This and
    /// [`Change::Node`] are for clients that own the tree and know its state, as a mount does:
    /// applying them twice is the same as once. Only the state at the end of the commit counts. An
    /// inode without a name goes then, with its versions, and a directory must have exactly one
    /// name, or none and no entries (`Invalid`). So their order does not matter, except for two
    /// that set the same name or the same inode: the last one decides. A commit has changes of
    /// these two kinds, or of the others (`Invalid`).
    ///
    /// At the end `parent` must be a directory if it has entries (`NotFound`), and must not lie
    /// below itself (`Invalid`); `inode` must exist if it has a name (`Invalid`). A move is one
    /// entry that is removed and one that is created.
    Name {
        /// Directory.
        parent: u64,
        /// Name in it.
        name: Vec<u8>,
        /// The inode that it stands for.
        inode: Option<u64>,
    },
    /// Sets attributes and content of an inode, whatever they were; makes it if it is missing (see
    /// [`Change::Name`]). The stamp is cleared. If nothing else differs, nothing else is written.
    Node {
        /// The inode, from [`Tree::reserve_inodes`] if it is new. A directory stays one, and so
        /// does anything else.
        inode: u64,
        /// A directory that it has a name in at the end of the commit: its policies count.
        parent: u64,
        /// Attributes.
        attributes: Attributes,
        /// Content; [`Root::Empty`] except for files.
        root: Root,
        /// If the content differs, the earlier one becomes a version by the policy `versions`; else
        /// it is replaced, and the version keeps its number.
        keep: bool,
    },
    /// Holds the content of an inode without names, or of a file that is still open, for `holder`,
    /// in place of what that held before. Goes with changes of the two kinds above. The catalogue
    /// does not have it, as it is of no use once the mount has ended.
    Orphan {
        /// The inode; the database need not have it.
        inode: u64,
        /// The owner of the hold: [`orphan_holder`](super::orphan_holder) for an inode without
        /// names, [`increments::holder`](crate::increments::holder) for one that is being written.
        holder: String,
        /// Content.
        root: Root,
    },
    /// A change of a job; goes with changes that are applied in order. The catalogue does not have
    /// it.
    Job(jobs::JobChange),
    /// A change of an inline chunk; goes with changes that are applied in order. The catalogue does
    /// not have it.
    InlineChunks(inline::InlineChange),
}

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

/// The tree of names and inodes.
pub trait Tree: Send + Sync {
    /// The inode.
    fn inode(&self, at: At, number: u64) -> Result<Option<Inode>>;
    /// The entry `name` of directory `parent`.
    fn lookup(&self, at: At, parent: u64, name: &[u8]) -> Result<Option<Inode>>;
    /// The inodes of several names in directories now; on a server this takes one round trip.
    fn lookup_each(&self, names: &[(u64, &[u8])]) -> Result<Vec<Option<Inode>>> {
        names.iter().map(|(parent, name)| self.lookup(At::Now, *parent, name)).collect()
    }
    /// The directory that a directory of the current tree is in; the root is in itself. `None` when
    /// there is no such directory.
    fn parent_of(&self, directory: u64) -> Result<Option<u64>>;
    /// The places of those of `directories` that are in the current tree, and of all their
    /// ancestors but the root, each once. Needed for the catalogue of a store whose mounts do not
    /// write it; other catalogues have all names, and the answer is empty.
    fn hanging(&self, directories: &[u64]) -> Result<Vec<Hanging>> {
        let _ = directories;
        Ok(Vec::new())
    }
    /// Up to `limit` entries of `parent`, in bytewise order of names, after `after`; none when
    /// there is no such directory.
    fn read_dir(&self, at: At, parent: u64, after: Option<&[u8]>, limit: usize) -> Result<Vec<DirEntry>>;
    /// Every name that `directory` has or had, with every state of its inode at the same time, as
    /// far as snapshots and pins keep them. Names come in bytewise order, the states of a name in
    /// the order of time.
    fn history(&self, directory: u64) -> Result<Vec<Era>>;
    /// A fresh range of inode numbers.
    fn reserve_inodes(&self, count: u64) -> Result<std::ops::Range<u64>>;
    /// Makes a batch of changes visible at once: the session must be live, its packs, which it
    /// sealed, become live, the changes apply in order.
    ///
    /// # Errors
    /// `Fenced` when the session is no longer live: then nothing has changed. The same holds for
    /// other errors: `Invalid` (packs in another state, names, attributes, kinds), `NotFound`
    /// (parents, inodes, entries), `Exists`. Only after an error with
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
}
