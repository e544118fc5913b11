//! Names and nodes in memory: changes that the database does not have yet, laid over its rows.
//!
//! The tree keeps each directory's *staged* names: those that changed since the last commit, each
//! with the inode that it stands for now, or none. For all other names the database is right. A
//! reader of names holds the tree's lock while it reads the database and the staged names. A commit
//! takes its names out under the lock, after its transaction. So a reader sees a name in one place
//! or the other, and both agree.
//!
//! Each staged name belongs to a *generation*. A commit takes all names of the generations so far
//! and begins the next. When it is done, it drops those of its names that did not change meanwhile.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use outrigger_format::catalogue::FileKind;

use super::node::Node;

/// The inode that a changed name stands for now, if any.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Staged {
    pub target: Option<(u64, FileKind)>,
    generation: u64,
}

/// A name that a commit takes.
pub(super) struct Taken {
    pub parent: u64,
    pub name: Vec<u8>,
    pub inode: Option<u64>,
}

/// See the module.
#[derive(Default)]
pub(super) struct Tree {
    /// Nodes in memory, by number.
    pub nodes: HashMap<u64, Arc<Node>>,
    names: HashMap<u64, BTreeMap<Vec<u8>, Staged>>,
    /// How many names are staged.
    staged: usize,
    generation: u64,
    /// Names of unpublished files, which only this mount knows.
    unpublished: HashMap<(u64, Vec<u8>), u64>,
    /// Directories that were moved or made since the last commit → the directory they are in.
    pub parents: HashMap<u64, u64>,
}

impl Tree {
    /// A name's staged state, if it changed.
    pub fn staged(&self, parent: u64, name: &[u8]) -> Option<Staged> {
        self.names.get(&parent)?.get(name).copied()
    }

    /// Gives a file a name that only this mount knows.
    pub fn add_unpublished(&mut self, parent: u64, name: &[u8], inode: u64) {
        self.unpublished.insert((parent, name.to_vec()), inode);
    }

    /// Takes such a name away.
    pub fn remove_unpublished(&mut self, parent: u64, name: &[u8], inode: u64) {
        let place = (parent, name.to_vec());
        if self.unpublished.get(&place) == Some(&inode) {
            self.unpublished.remove(&place);
        }
    }

    /// The unpublished file of this name.
    pub fn unpublished(&self, parent: u64, name: &[u8]) -> Option<&Arc<Node>> {
        if self.unpublished.is_empty() {
            return None;
        }
        self.nodes.get(self.unpublished.get(&(parent, name.to_vec()))?)
    }

    /// True if this directory has such names.
    pub fn has_unpublished_in(&self, parent: u64) -> bool {
        self.unpublished.keys().any(|(directory, _)| *directory == parent)
    }

    /// A directory's staged names after `after`, in order.
    pub fn staged_after(
        &self,
        parent: u64,
        after: Option<&[u8]>,
    ) -> impl Iterator<Item = (&Vec<u8>, &Staged)> {
        use std::ops::Bound::{Excluded, Unbounded};
        let from = after.map_or(Unbounded, Excluded);
        self.names.get(&parent).into_iter().flat_map(move |names| names.range::<[u8], _>((from, Unbounded)))
    }

    /// Names that are staged, in all directories.
    pub fn staged_count(&self) -> usize {
        self.staged
    }

    /// Records that a name stands for something else now.
    pub fn set(&mut self, parent: u64, name: &[u8], target: Option<&Node>) {
        let target = target.map(|node| (node.number, node.kind));
        let staged = Staged { target, generation: self.generation };
        if let Some((number, FileKind::Directory)) = target {
            self.parents.insert(number, parent);
        }
        let names = self.names.entry(parent).or_default();
        match names.get_mut(name) {
            Some(known) => *known = staged,
            None => {
                names.insert(name.to_vec(), staged);
                self.staged += 1;
            }
        }
    }

    /// Takes all staged names for a commit; later changes belong to the next one. Returns the
    /// generation for [`Tree::drop_taken`].
    pub fn take(&mut self) -> (Vec<Taken>, u64) {
        let mut taken = Vec::with_capacity(self.staged);
        for (&parent, names) in &self.names {
            taken.extend(names.iter().map(|(name, staged)| Taken {
                parent,
                name: name.clone(),
                inode: staged.target.map(|(number, _)| number),
            }));
        }
        self.generation += 1;
        (taken, self.generation)
    }

    /// Ends the commit that took the names before `generation`: the database has them now.
    pub fn drop_taken(&mut self, generation: u64) {
        let (mut left, parents) = (0, &mut self.parents);
        self.names.retain(|parent, names| {
            names.retain(|_, staged| {
                let keep = staged.generation >= generation;
                if let (false, Some((number, FileKind::Directory))) = (keep, staged.target)
                    && parents.get(&number) == Some(parent)
                {
                    parents.remove(&number);
                }
                keep
            });
            left += names.len();
            !names.is_empty()
        });
        self.staged = left;
    }

    /// Forgets unused nodes that the database has completely, when there are more than `limit`.
    pub fn evict(&mut self, limit: usize) {
        if self.nodes.len() <= limit {
            return;
        }
        let mut surplus = self.nodes.len() - limit / 2;
        self.nodes.retain(|_, node| {
            // No other thread can get a reference: they are handed out with the tree's lock held.
            let idle = surplus > 0 && Arc::strong_count(node) == 1 && !node.is_open();
            let forget = idle && {
                let state = node.read();
                !state.is_dirty() && state.links > 0
            };
            surplus -= usize::from(forget);
            !forget
        });
    }
}
