//! An engine's part in a commit: finding, making, changing and removing single rows, all in the
//! commit's transaction.
//!
//! The neighbours of this module decide what changes *mean*, for all engines; an engine knows rows
//! only. SQLite executes each step at once, as a statement. PostgreSQL keeps the rows of a commit
//! in memory, and writes all of them at the end, in a few statements.

use std::fmt::Debug;

use outrigger_format::{Domain, Root};

use super::row::{Stored, TraitsKey};
use crate::meta::fault::Outcome;

/// A name, the epoch since which it has stood for its inode, and that inode.
pub(in crate::meta) type Entry<T> = (Vec<u8>, i64, Stored<T>);

/// The rows that one transaction sees and changes. `since` is the epoch from which on a name has
/// stood for its inode; `epoch_to` the one from which on an old row no longer holds.
pub(in crate::meta) trait Rows {
    /// A row's stand-in for an inode's owner, group, permissions and extended attributes.
    type Traits: Clone + PartialEq + Debug;

    // ---- names ----
    /// False when the name is taken: then nothing has changed.
    fn insert_name(&mut self, parent: i64, name: &[u8], inode: i64, epoch: i64) -> Outcome<bool>;
    /// The epoch since which a name has stood for its inode, and that inode; `None` also when the
    /// inode is missing.
    fn find(&mut self, parent: i64, name: &[u8]) -> Outcome<Option<(i64, Stored<Self::Traits>)>>;
    /// The inode that a name stands for, whether or not it exists, and since when.
    fn name(&mut self, parent: i64, name: &[u8]) -> Outcome<Option<(i64, i64)>>;
    /// True when a directory has entries.
    fn has_names(&mut self, parent: i64) -> Outcome<bool>;
    /// Up to `limit` entries of a directory, in any order: name, since when, inode.
    fn some_names(&mut self, parent: i64, limit: usize) -> Outcome<Vec<Entry<Self::Traits>>>;
    /// Copies a name to the history.
    fn archive_name(&mut self, parent: i64, name: &[u8], epoch_to: i64) -> Outcome<()>;
    /// Removes a name.
    fn delete_name(&mut self, parent: i64, name: &[u8]) -> Outcome<()>;

    // ---- inodes ----
    /// An inode.
    fn stored(&mut self, number: i64) -> Outcome<Option<Stored<Self::Traits>>>;
    /// An inode at some moment of the transaction, not necessarily the latest: for a caller that
    /// changes nothing of it.
    fn glance(&mut self, number: i64) -> Outcome<Option<Stored<Self::Traits>>> {
        self.stored(number)
    }
    /// Makes an inode; false when its number is in use: then nothing has changed.
    fn insert_inode(&mut self, new: &Stored<Self::Traits>) -> Outcome<bool>;
    /// Sets every column of an inode that is there.
    fn update_inode(&mut self, new: &Stored<Self::Traits>) -> Outcome<()>;
    /// Sets how many names an inode has.
    fn update_links(&mut self, number: i64, epoch: i64, links: i64) -> Outcome<()>;
    /// Sets an inode's stamp.
    fn update_stamp(&mut self, number: i64, stamp: i64) -> Outcome<()>;
    /// Copies an inode to the history.
    fn archive_inode(&mut self, number: i64, epoch_to: i64) -> Outcome<()>;
    /// Removes an inode.
    fn delete_inode(&mut self, number: i64) -> Outcome<()>;
    /// The stand-in for these; equal values have the same.
    fn traits(&mut self, key: TraitsKey) -> Outcome<Self::Traits>;
    /// The domain in these.
    fn domain(&mut self, traits: &Self::Traits) -> Outcome<Domain>;

    // ---- directories and their policies ----
    /// The directory that a directory is in; `None` for what is no directory.
    fn parent_of(&mut self, directory: i64) -> Outcome<Option<i64>>;
    /// Notes where a new directory is.
    fn insert_directory(&mut self, directory: i64, parent: i64) -> Outcome<()>;
    /// Notes that a directory is elsewhere now. If transactions of an engine run concurrently, it
    /// makes sure that no other one moves a directory until this one has ended.
    fn move_directory(&mut self, directory: i64, parent: i64) -> Outcome<()>;
    /// Forgets a directory.
    fn delete_directory(&mut self, directory: i64) -> Outcome<()>;
    /// Removes the policies of a directory.
    fn delete_policies(&mut self, directory: i64) -> Outcome<()>;
    /// The nearest setting of `versions`, from a directory upwards.
    fn versions_policy(&mut self, directory: i64) -> Outcome<Option<String>>;

    // ---- earlier contents, held roots ----
    /// Keeps the present content of an inode as an earlier one.
    fn insert_version(&mut self, of: &Stored<Self::Traits>) -> Outcome<()>;
    /// Drops the earlier contents whose number is below `oldest`.
    fn trim_versions(&mut self, number: i64, oldest: i64) -> Outcome<()>;
    /// Drops all earlier contents.
    fn delete_versions(&mut self, number: i64) -> Outcome<()>;
    /// Makes `root` all that `holder` holds.
    fn hold_only(&mut self, holder: &str, root: &Root) -> Outcome<()>;

    /// The directory that a directory is in, and its name there. For messages: `None` if that
    /// cannot be found out.
    fn above(&mut self, directory: i64) -> Option<(i64, Vec<u8>)>;
}
