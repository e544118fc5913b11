//! Telling the catalogue what names and inodes are, where commits do not tell it themselves:
//! docs/decisions/0022-names-of-shared-mounts.md.
//!
//! ```text
//!   mount: commits, notes what it touched ──later──▶ round: a sequence and what all of it is, at one instant ──▶ a block that says so
//!   command: its block, its commit ──if a round or a new catalogue came between──▶ round
//!   gc: a mount was killed, or a snapshot taken, before all was told ──▶ the catalogue anew, from one instant
//! ```
//!
//! **Why the last block that speaks of a name is right.** Whoever changes a name has a sequence
//! taken and the name read after that, by a round, or (a command whose commit no round came before)
//! has taken its sequence before, and nobody reads in between. A round reads at the instant at
//! which it takes its sequence. So what a block with a later sequence says of the name was read
//! later, or is a commit that came later.
//!
//! The rounds themselves are [`crate::write::publish_catalogue`].
//!
//! **What is still to be told is registered** (`CatalogueDebt`): a mount does so before the first
//! commit after it had told everything, and until it has again. When its session is over and the
//! record is there, nobody knows any more what it has touched, and the catalogue has to be written
//! anew.

use std::collections::{BTreeMap, HashSet};

use outrigger_clock as clock;
use outrigger_format::Root;
use outrigger_format::catalogue::{FileKind, Record};

use crate::error::Result;
use crate::meta::publishing::Published;
use crate::meta::records::{Record as Registers, Registry};
use crate::meta::{Change, Inode, Meta, ROOT_INODE, SessionId};
use serde::{Deserialize, Serialize};

/// The catalogue has had everything at some time. A store whose database was made anew has no such
/// record.
#[derive(Serialize, Deserialize)]
struct Whole {}

impl Registers for Whole {
    const KIND: &'static str = "catalogue-whole";

    fn name(&self) -> String {
        String::new()
    }
}

/// Something that the catalogue lacks.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum CatalogueDebt {
    /// A session has changed what it has not yet published to the catalogue.
    Unpublished {
        session: SessionId,
        /// When this was written, so that a record which was made again differs from the one
        /// before.
        at: u64,
    },
    /// The catalogue has to be written anew.
    Due {
        why: String,
        /// As above.
        at: u64,
    },
}

impl Registers for CatalogueDebt {
    const KIND: &'static str = "catalogue-debt";

    fn name(&self) -> String {
        match self {
            Self::Unpublished { session, .. } => format!("session/{}", session.0),
            Self::Due { why, .. } => format!("due/{why}"),
        }
    }

    fn session(&self) -> Option<SessionId> {
        match self {
            Self::Unpublished { session, .. } => Some(*session),
            Self::Due { .. } => None,
        }
    }
}

/// Names and inodes that are read at one instant, at most: everybody's commits wait for that.
const AT_ONCE: usize = 4096;

/// Names and inodes that were changed.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Touched {
    names: HashSet<(u64, Vec<u8>)>,
    inodes: HashSet<u64>,
}

impl Touched {
    /// What these changes touch.
    pub fn of<'a>(changes: impl IntoIterator<Item = &'a Change>) -> Self {
        let mut touched = Self::default();
        for change in changes {
            touched.add(change);
        }
        touched
    }

    fn add(&mut self, change: &Change) {
        let mut name = |parent: u64, name: &Vec<u8>| {
            // The root directory is put without a name.
            if !name.is_empty() {
                self.names.insert((parent, name.clone()));
            }
        };
        match change {
            Change::Put { parent, name: text, inode, .. } | Change::Link { parent, name: text, inode } => {
                name(*parent, text);
                self.inodes.insert(*inode);
            }
            Change::Remove { parent, name: text, .. } | Change::Name { parent, name: text, .. } => {
                name(*parent, text);
            }
            Change::Rename { parent, name: text, new_parent, new_name } => {
                name(*parent, text);
                name(*new_parent, new_name);
            }
            Change::CompareAndSwap { inode, .. }
            | Change::Node { inode, .. }
            | Change::Touch { inode, .. } => {
                self.inodes.insert(*inode);
            }
            Change::IfName { .. }
            | Change::IfAttributes { .. }
            | Change::PinContent { .. }
            | Change::Orphan { .. }
            | Change::Job(_)
            | Change::InlineChunks(_) => {}
        }
    }

    /// These inodes.
    pub fn inodes(inodes: impl IntoIterator<Item = u64>) -> Self {
        Self { names: HashSet::new(), inodes: inodes.into_iter().collect() }
    }

    /// Nothing.
    pub fn is_empty(&self) -> bool {
        self.names.is_empty() && self.inodes.is_empty()
    }

    /// Names and inodes.
    pub fn len(&self) -> usize {
        self.names.len() + self.inodes.len()
    }

    /// Adds what another one has.
    pub fn merge(&mut self, other: Self) {
        self.names.extend(other.names);
        self.inodes.extend(other.inodes);
    }

    /// Takes out as much as is told at once.
    pub fn take_some(&mut self) -> Self {
        if self.len() <= AT_ONCE {
            return std::mem::take(self);
        }
        let names: HashSet<_> = self.names.iter().take(AT_ONCE).cloned().collect();
        let inodes: HashSet<_> = self.inodes.iter().take(AT_ONCE - names.len()).copied().collect();
        self.names.retain(|name| !names.contains(name));
        self.inodes.retain(|inode| !inodes.contains(inode));
        Self { names, inodes }
    }
}

/// The records of a round, and their sequence.
pub(crate) fn read(
    meta: &dyn Meta,
    session: SessionId,
    touched: &Touched,
) -> Result<Option<(u64, Vec<Record>)>> {
    let Some(publishing) = meta.publishing().filter(|_| !touched.is_empty()) else { return Ok(None) };
    let names: Vec<(u64, Vec<u8>)> = touched.names.iter().cloned().collect();
    let inodes: Vec<u64> = touched.inodes.iter().copied().collect();
    let told = publishing.tell(session, &names, &inodes)?;
    Ok(Some((told.sequence, records_of(told, names))))
}

/// What is there as what it is, those of `names` that are not as nothing. Of a content the one
/// before is not kept as a version: whether it was one is not known here, and if it was none, it
/// may be reclaimed by now.
fn records_of(told: Published, names: Vec<(u64, Vec<u8>)>) -> Vec<Record> {
    let mut stands_for: BTreeMap<(u64, Vec<u8>), Option<u64>> =
        names.into_iter().map(|name| (name, None)).collect();
    let mut nodes = BTreeMap::new();
    for inode in told.inodes {
        nodes.insert(inode.number, (ROOT_INODE, inode));
    }
    for place in told.above.into_iter().chain(told.names) {
        let number = place.entry.inode.number;
        stands_for.insert((place.parent, place.entry.name), Some(number));
        nodes.insert(number, (place.parent, place.entry.inode));
    }
    let node = |(parent, inode): (u64, Inode)| {
        let (root, attributes) = (inode.root, inode.attributes);
        let root = if attributes.kind == FileKind::File { root } else { Root::Empty };
        Record::Node { inode: inode.number, parent, attributes, root, keep: false }
    };
    let name = |((parent, name), inode)| Record::Name { parent, name, inode };
    nodes.into_values().map(node).chain(stands_for.into_iter().map(name)).collect()
}

// ---- what is still to be told ------------------------------------------------------------------------------------------

/// Registers that `session` changes what it has not told, or (`false`) that it has told everything.
///
/// # Errors
/// Those of the database.
pub fn set_unpublished(meta: &dyn Meta, session: SessionId, is_unpublished: bool) -> Result<()> {
    let (registry, record) =
        (Registry::of(meta), CatalogueDebt::Unpublished { session, at: clock::now_nanos() });
    if is_unpublished { registry.put(&record) } else { registry.remove(&record) }
}

/// Registers that the catalogue has to be written anew.
///
/// # Errors
/// Those of the database.
pub fn set_due(meta: &dyn Meta, why: &str) -> Result<()> {
    Registry::of(meta).put(&CatalogueDebt::Due { why: why.to_owned(), at: clock::now_nanos() })
}

/// Registers that the catalogue has everything, of a store that was just made.
///
/// # Errors
/// Those of the database.
pub(crate) fn set_whole(meta: &dyn Meta) -> Result<()> {
    if meta.publishing().is_some() { Registry::of(meta).put(&Whole {}) } else { Ok(()) }
}

/// Whether [`set_whole`] was called.
///
/// # Errors
/// Those of the database.
pub(crate) fn is_whole(meta: &dyn Meta) -> Result<bool> {
    Ok(!Registry::of(meta).all::<Whole>()?.is_empty())
}

/// Whether some of the tree may not have been told just now.
///
/// # Errors
/// Those of the database.
pub fn is_unpublished(meta: &dyn Meta) -> Result<bool> {
    Ok(meta.publishing().is_some() && Registry::of(meta).has::<CatalogueDebt>()?)
}

/// After something that stands at its place in the catalogue (a snapshot, a policy) has been
/// committed, and told with `sequence` before: if a catalogue that is written anew does not have it
/// for that reason, another one is due.
///
/// # Errors
/// Those of the database.
pub(crate) fn settle(meta: &dyn Meta, sequence: u64, why: &str) -> Result<()> {
    match meta.publishing() {
        Some(publishing) if publishing.last_published()? > sequence => set_due(meta, why),
        _ => Ok(()),
    }
}
