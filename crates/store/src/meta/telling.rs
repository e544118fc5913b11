//! What a client has to know to tell the catalogue of a tree that others change in the database alone: docs/decisions/0022-names-of-shared-mounts.md.

use super::{Hanging, Inode, SessionId};
use crate::error::Result;

/// The kind of the one record that has the sequence that a round or a new catalogue took last.
pub(crate) const PUBLISHED: &str = "published";

/// What names and inodes were at one instant.
#[derive(Clone, Debug, Default)]
pub struct Told {
    /// For the block that says so. No block that has a later one can be of a commit that was made before that instant.
    pub sequence: u64,
    /// The names that were asked for and are there: in which directory, and what they stand for.
    pub names: Vec<Hanging>,
    /// The inodes that were asked for and are there.
    pub inodes: Vec<Inode>,
    /// The directories that the names were asked for in, those among the inodes, and all that are above them but the root.
    pub above: Vec<Hanging>,
}

/// What a catalogue that is written anew goes out from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Anew {
    /// For its blocks.
    pub sequence: u64,
    /// The tree is told as it was then.
    pub epoch: u64,
}

/// What commits and catalogue agree by, where mounts change names without a block of their own.
///
/// Both of the first two methods see one instant, between commits of all clients, and take a sequence at that instant. A commit that took its own before that, and comes after it, is
/// in the catalogue before what it has changed: whoever makes it asks for [`Telling::last_told`], and if that is later, tells it again.
pub trait Telling: Send + Sync {
    /// Takes a sequence, and says what these names and inodes are at that instant.
    ///
    /// # Errors
    /// `Fenced` when the session is no longer live.
    fn tell(&self, session: SessionId, names: &[(u64, Vec<u8>)], inodes: &[u64]) -> Result<Told>;
    /// Takes a sequence, and pins the tree of that instant for `session`.
    ///
    /// # Errors
    /// `Fenced` when the session is no longer live.
    fn begin_anew(&self, session: SessionId) -> Result<Anew>;
    /// The latest sequence that one of these two has taken; 0 if none has.
    fn last_told(&self) -> Result<u64>;
}
