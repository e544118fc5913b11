//! Names and nodes: lookups in memory first, then in the database, and changes to memory. For
//! operations and for the log's replay.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use outrigger_format::catalogue::{FileKind, Time};
use outrigger_store::Store;
use outrigger_store::meta::{At, Inode, ROOT_INODE};
use outrigger_store::staging::Usage;
use rustix::io::Errno;

use super::node::{Node, State};
use super::tree::Tree;
use crate::fs::Result;
use crate::report::Reports;
use crate::view::content::Budget;

/// See the module.
pub(super) struct World {
    pub store: Arc<Store>,
    /// Counts of what still needs each of the log's segments.
    pub usage: Arc<Usage>,
    /// Manifest entries that open files keep.
    pub budget: Arc<Budget>,
    pub reports: Arc<Reports>,
    /// Nodes of which the database lacks something.
    pub dirty: Mutex<HashMap<u64, Arc<Node>>>,
    /// Inodes whose content was held without a name, and may be released.
    pub gone: Mutex<Vec<u64>>,
    /// For files that the kernel knows: a directory that each has, or had, a name in.
    pub parents: Mutex<HashMap<u64, u64>>,
}

/// An inode that was looked up.
pub(super) enum Seen {
    /// In memory.
    Node(Arc<Node>),
    /// In the database alone.
    Row(Inode),
}

impl Seen {
    pub fn kind(&self) -> FileKind {
        match self {
            Self::Node(node) => node.kind,
            Self::Row(row) => row.attributes.kind,
        }
    }
}

impl World {
    pub fn fail<T>(&self, done: outrigger_store::Result<T>) -> Result<T> {
        done.map_err(|error| self.reports.errno(&error))
    }

    /// Records that the database lacks something of this node, whose state is locked.
    pub fn mark(&self, node: &Arc<Node>) {
        if !node.listed.swap(true, Ordering::Relaxed) {
            self.dirty.lock().expect("no panic while it is held").insert(node.number, Arc::clone(node));
        }
    }

    /// Remembers in which directory a file has a name.
    pub fn hangs_in(&self, number: u64, parent: u64) {
        self.parents.lock().expect("no panic while it is held").insert(number, parent);
    }

    /// Brings the node of a number into memory, with the tree locked.
    pub fn node_in(&self, tree: &mut Tree, number: u64) -> Result<Arc<Node>> {
        self.fail(self.load_in(tree, number))?.ok_or(Errno::STALE)
    }

    /// Brings a node into memory; `None` when the database has no such inode.
    pub fn load_in(&self, tree: &mut Tree, number: u64) -> outrigger_store::Result<Option<Arc<Node>>> {
        if let Some(node) = tree.nodes.get(&number) {
            return Ok(Some(Arc::clone(node)));
        }
        let Some(row) = self.store.meta.inode(At::Now, number)? else { return Ok(None) };
        // The kernel looks a name up before it asks by number.
        let parent = self.parents.lock().expect("no panic while it is held").get(&number).copied();
        let node = Arc::new(Node::stored(row, parent.unwrap_or(ROOT_INODE), &self.usage, &self.budget));
        tree.nodes.insert(number, Arc::clone(&node));
        Ok(Some(node))
    }

    /// Finds a directory that is still in the tree, with the tree locked.
    pub fn directory_in(&self, tree: &mut Tree, number: u64) -> Result<Arc<Node>> {
        let node = self.node_in(tree, number)?;
        if !node.is_directory() {
            return Err(Errno::NOTDIR);
        }
        if node.read().links == 0 {
            return Err(Errno::NOENT);
        }
        Ok(node)
    }

    /// Looks a name up, with the tree locked.
    pub fn lookup_in(&self, tree: &Tree, parent: u64, name: &[u8]) -> Result<Option<Seen>> {
        self.fail(self.find_in(tree, parent, name))
    }

    /// As [`World::lookup_in`], with the store's error.
    pub fn find_in(&self, tree: &Tree, parent: u64, name: &[u8]) -> outrigger_store::Result<Option<Seen>> {
        if let Some(node) = tree.unpublished(parent, name) {
            return Ok(Some(Seen::Node(Arc::clone(node))));
        }
        if let Some(staged) = tree.staged(parent, name) {
            let Some((number, _)) = staged.target else { return Ok(None) };
            if let Some(node) = tree.nodes.get(&number) {
                return Ok(Some(Seen::Node(Arc::clone(node))));
            }
            return Ok(self.store.meta.inode(At::Now, number)?.map(Seen::Row));
        }
        // The database has nothing of a directory that was just made.
        if tree.nodes.get(&parent).is_some_and(|node| !node.read().in_database) {
            return Ok(None);
        }
        let row = self.store.meta.lookup(At::Now, parent, name)?;
        Ok(row.map(|row| match tree.nodes.get(&row.number) {
            Some(node) => Seen::Node(Arc::clone(node)),
            None => Seen::Row(row),
        }))
    }

    /// Looks a name up, and brings its node into memory.
    pub fn child_in(&self, tree: &mut Tree, parent: u64, name: &[u8]) -> Result<Option<Arc<Node>>> {
        Ok(match self.lookup_in(tree, parent, name)? {
            None => None,
            Some(Seen::Node(node)) => Some(node),
            Some(Seen::Row(row)) => {
                let node = Arc::new(Node::stored(row, parent, &self.usage, &self.budget));
                tree.nodes.insert(node.number, Arc::clone(&node));
                Some(node)
            }
        })
    }

    /// True if a directory has no entries, with the tree locked.
    pub fn is_empty_in(&self, tree: &Tree, directory: u64) -> Result<bool> {
        let is_named = tree.staged_after(directory, None).any(|(_, staged)| staged.target.is_some());
        if is_named || tree.has_unpublished_in(directory) {
            return Ok(false);
        }
        const PAGE: usize = 256;
        let mut after: Option<Vec<u8>> = None;
        loop {
            let page = self.fail(self.store.meta.read_dir(At::Now, directory, after.as_deref(), PAGE))?;
            // A staged name that the database still has was removed.
            if page.iter().any(|entry| tree.staged(directory, &entry.name).is_none()) {
                return Ok(false);
            }
            match page.last() {
                Some(last) if page.len() == PAGE => after = Some(last.name.clone()),
                _ => return Ok(true),
            }
        }
    }

    // ---- changing memory, for operations and for the replay of the log ----------------------------------------------

    /// Makes a name that stood for `old` stand for `node`.
    pub fn set_name(
        &self,
        tree: &mut Tree,
        parent: &Arc<Node>,
        name: &[u8],
        old: Option<&Arc<Node>>,
        node: Option<&Arc<Node>>,
        time: Time,
    ) {
        tree.set(parent.number, name, node.map(|node| &**node));
        if old.map(|old| old.number) != node.map(|node| node.number) {
            if let Some(old) = old {
                self.count_links(old, -1, None, time);
            }
            if let Some(node) = node {
                self.count_links(node, 1, Some(parent.number), time);
                if !node.is_directory() {
                    self.hangs_in(node.number, parent.number);
                }
            }
        }
        let mut state = parent.write();
        state.attributes.mtime = time;
        state.changed_at(time);
        state.edited();
        drop(state);
        self.mark(parent);
    }

    /// Gives up a node that nobody can find any more, with its state locked.
    pub fn delete_packs(&self, node: &Node, state: &mut State) {
        if state.file.is_held {
            self.let_go(node.number);
        }
        state.delete_packs(&self.usage, &self.budget);
    }

    /// Gives up everything without a name. Nothing is open any more, though the kernel may not have
    /// said that it has forgotten it.
    pub fn delete_all(&self, tree: &mut Tree) {
        tree.nodes.retain(|_, node| {
            let mut state = node.write();
            let is_named = state.links > 0;
            if !is_named {
                self.delete_packs(node, &mut state);
            }
            is_named
        });
    }

    /// The held content of an inode without names may be released.
    pub fn let_go(&self, number: u64) {
        self.gone.lock().expect("no panic while held").push(number);
    }

    /// Moves a name.
    pub fn move_name(
        &self,
        tree: &mut Tree,
        from: (&Arc<Node>, &[u8]),
        to: (&Arc<Node>, &[u8]),
        node: &Arc<Node>,
        replaced: Option<&Arc<Node>>,
        time: Time,
    ) {
        self.set_name(tree, to.0, to.1, replaced, Some(node), time);
        self.set_name(tree, from.0, from.1, Some(node), None, time);
        // Removing the old name must not leave the old parent recorded.
        if node.is_directory() {
            tree.parents.insert(node.number, to.0.number);
        }
        let mut state = node.write();
        state.parent = to.0.number;
        if let Some(open) = &mut state.open {
            open.place = (to.0.number, to.1.to_vec());
        }
        state.changed_at(time);
        state.edited();
        drop(state);
        self.mark(node);
    }

    /// Exchanges two names' inodes.
    pub fn exchange_names(
        &self,
        tree: &mut Tree,
        one: (&Arc<Node>, &[u8], &Arc<Node>),
        other: (&Arc<Node>, &[u8], &Arc<Node>),
        time: Time,
    ) {
        self.set_name(tree, one.0, one.1, Some(one.2), Some(other.2), time);
        self.set_name(tree, other.0, other.1, Some(other.2), Some(one.2), time);
        for (node, parent) in [(one.2, other.0), (other.2, one.0)] {
            if node.is_directory() {
                tree.parents.insert(node.number, parent.number);
            }
            let mut state = node.write();
            state.parent = parent.number;
            state.changed_at(time);
            state.edited();
            drop(state);
            self.mark(node);
        }
    }

    fn count_links(&self, node: &Arc<Node>, more: i32, parent: Option<u64>, time: Time) {
        let mut state = node.write();
        state.links = state.links.saturating_add_signed(more);
        if let Some(parent) = parent {
            state.parent = parent;
        }
        state.changed_at(time);
        state.edited();
        drop(state);
        self.mark(node);
    }
}
