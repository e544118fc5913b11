//! Reading and changing the tree.

use super::{At, Commit, Committed, DirEntry, Era, Hanging, Inode, SessionId, TreeTotals};
use crate::error::{Result, Unanswered};

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
}
