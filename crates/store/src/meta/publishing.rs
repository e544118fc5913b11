//! How clients publish to the catalogue a tree that others change in the database alone:
//! docs/decisions/0022-names-of-shared-mounts.md.

use super::{Hanging, Inode, SessionId};
use crate::error::Result;

/// The kind of the one record that has the sequence that a round or a new catalogue took last.
pub(crate) const PUBLISHED: &str = "published";

/// The state of names and inodes at one instant.
#[derive(Clone, Debug, Default)]
pub struct Published {
    /// The sequence of the block with this state. A block with a later sequence cannot be of a
    /// commit from before that instant.
    pub sequence: u64,
    /// The names that were asked for and exist: the directory of each, and its inode.
    pub names: Vec<Hanging>,
    /// The inodes that were asked for and exist.
    pub inodes: Vec<Inode>,
    /// The directories of these names, the directories among the inodes, and all their ancestors
    /// but the root.
    pub above: Vec<Hanging>,
}

/// The starting point of a rewritten catalogue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Anew {
    /// The sequence of its blocks.
    pub sequence: u64,
    /// The catalogue describes the tree as of this epoch.
    pub epoch: u64,
}

/// Orders commits and catalogue, where mounts change names without a catalogue block of their own.
///
/// Each of the first two methods sees one instant, between the commits of all clients, and takes a
/// sequence at that instant. A commit may have taken its sequence before and happen after it. Its
/// block then comes too early in the catalogue. So its client asks for
/// [`Publishing::last_published`] and, if that is later, publishes the commit again.
pub trait Publishing: Send + Sync {
    /// Takes a sequence, and returns the state of these names and inodes at that instant.
    ///
    /// # Errors
    /// `Fenced` when the session is no longer live.
    fn tell(&self, session: SessionId, names: &[(u64, Vec<u8>)], inodes: &[u64]) -> Result<Published>;
    /// Takes a sequence, and pins the tree of that instant for `session`.
    ///
    /// # Errors
    /// `Fenced` when the session is no longer live.
    fn begin_anew(&self, session: SessionId) -> Result<Anew>;
    /// The latest sequence that one of these two has taken; 0 if none has.
    fn last_published(&self) -> Result<u64>;
}
