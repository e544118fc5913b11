//! Replay: applies the log of a mount that ended without unmounting to memory.
//!
//! Records say what names, inodes and bytes *are* afterwards. They are applied in order to the
//! database's names and nodes, which may be those of any moment up to the last commit. In the end,
//! everything is as its last record says. Nothing is committed meanwhile, so an inode may be
//! without a name for a while; one that has none at the end is dropped.
//!
//! Each record's effects on times use the time at which it was appended.

use std::sync::Arc;

use outrigger_format::catalogue::{Attributes, FileKind, Time};
use outrigger_format::staging::Operation;
use outrigger_store::Result;
use outrigger_store::meta::ROOT_INODE;
use outrigger_store::staging::{Appended, Replayed};

use super::node::Node;
use super::tree::Tree;
use super::world::{Seen, World};

/// Applies records; see the module.
pub(super) struct Replay<'a> {
    pub world: &'a World,
    pub tree: Tree,
    /// Records that were applied.
    pub records: u64,
    /// Some of them share another file's content.
    pub clones: bool,
}

impl Replay<'_> {
    /// Applies one record.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn apply(&mut self, record: Replayed<'_>) -> Result<()> {
        self.records += 1;
        let Replayed { operation, appended, usage, .. } = record;
        let time = appended.time;
        match &operation {
            Operation::Create { parent, name, inode, attributes } => {
                let node = self.create(*inode, *parent, attributes)?;
                // A file that is to be linked comes without a name.
                if name.is_empty() { Ok(()) } else { self.name(*parent, name, Some(&node), time) }
            }
            Operation::Link { parent, name, inode } => {
                let node = self.load(*inode)?;
                self.name(*parent, name, node.as_ref(), time)
            }
            Operation::Unlink { parent, name, .. } => self.name(*parent, name, None, time),
            Operation::Rename { parent, name, new_parent, new_name, inode, .. } => {
                let node = self.load(*inode)?;
                self.name(*new_parent, new_name, node.as_ref(), time)?;
                self.name(*parent, name, None, time)?;
                self.moved(node.as_ref(), *new_parent, time);
                Ok(())
            }
            Operation::Exchange { parent, name, inode, other_parent, other_name, other_inode } => {
                let (one, other) = (self.load(*inode)?, self.load(*other_inode)?);
                self.name(*parent, name, other.as_ref(), time)?;
                self.name(*other_parent, other_name, one.as_ref(), time)?;
                self.moved(one.as_ref(), *other_parent, time);
                self.moved(other.as_ref(), *parent, time);
                Ok(())
            }
            Operation::Attributes { inode, attributes } => {
                if let Some(node) = self.load(*inode)? {
                    let mut state = node.write();
                    state.attributes = attributes.clone();
                    state.edited();
                    self.world.mark(&node);
                }
                Ok(())
            }
            Operation::Write { inode, .. }
            | Operation::Truncate { inode, .. }
            | Operation::Zero { inode, .. }
            | Operation::Clone { inode, .. } => {
                let node = self.load(*inode)?.filter(|node| node.kind == FileKind::File);
                match node {
                    Some(node) => self.change_content(&node, operation, &appended),
                    None => usage.release(&operation, &appended),
                }
                Ok(())
            }
            Operation::Forget { .. } | Operation::Destaged { .. } | Operation::Committed { .. } => Ok(()),
        }
    }

    /// Makes an inode, unless the database has it already.
    fn create(&mut self, inode: u64, parent: u64, attributes: &Attributes) -> Result<Arc<Node>> {
        let node = match self.load(inode)? {
            Some(node) => node,
            None => {
                let World { usage, budget, .. } = self.world;
                let node = Arc::new(Node::new(inode, attributes.clone(), parent, usage, budget));
                self.tree.nodes.insert(inode, Arc::clone(&node));
                node
            }
        };
        let mut state = node.write();
        state.attributes = attributes.clone();
        state.edited();
        drop(state);
        self.world.mark(&node);
        Ok(node)
    }

    fn change_content(&mut self, node: &Arc<Node>, operation: Operation, appended: &Appended) {
        let mut state = node.write();
        let map = &mut state.file.map;
        match operation {
            Operation::Write { offset, .. } => map.write(offset, appended),
            Operation::Truncate { len, .. } => map.truncate(len, appended),
            Operation::Zero { offset, len, .. } => map.zero(offset, len, appended),
            Operation::Clone { root, from_offset, offset, len, .. } => {
                self.clones = true;
                map.clone_range(offset, len, Arc::new(root), from_offset, appended);
            }
            _ => {}
        }
        state.file.touched();
        state.modified(appended.time);
        self.world.mark(node);
    }

    /// Drops inodes without names: the rest is the tree as it was acknowledged.
    pub fn finish(self) -> Tree {
        let mut tree = self.tree;
        let mut dirty = self.world.dirty.lock().expect("no panic while it is held");
        tree.nodes.retain(|number, node| {
            let named = node.read().links > 0 || *number == ROOT_INODE;
            if !named {
                dirty.remove(number);
            }
            named
        });
        tree
    }

    fn load(&mut self, number: u64) -> Result<Option<Arc<Node>>> {
        self.world.load_in(&mut self.tree, number)
    }

    /// Makes a name stand for `node`. A directory that is not there any more has no names either.
    fn name(&mut self, parent: u64, name: &[u8], node: Option<&Arc<Node>>, time: Time) -> Result<()> {
        let Some(directory) = self.load(parent)?.filter(|node| node.is_directory()) else { return Ok(()) };
        let old = match self.world.find_in(&self.tree, parent, name)? {
            None => None,
            Some(Seen::Node(node)) => Some(node),
            Some(Seen::Row(row)) => self.load(row.number)?,
        };
        self.world.set_name(&mut self.tree, &directory, name, old.as_ref(), node, time);
        Ok(())
    }

    fn moved(&mut self, node: Option<&Arc<Node>>, parent: u64, time: Time) {
        let Some(node) = node else { return };
        if node.is_directory() {
            self.tree.parents.insert(node.number, parent);
        }
        let mut state = node.write();
        state.parent = parent;
        state.changed_at(time);
        state.edited();
    }
}
