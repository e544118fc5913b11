//! Names: making, linking, removing, moving. Each operation does three things with the tree locked:
//! it looks the names up, appends one record, and changes memory.

use std::sync::Arc;

use outrigger_format::Domain;
use outrigger_format::catalogue::{Attributes, FileKind, OtherTimes};
use outrigger_format::staging::Operation;
use outrigger_store::Store;
use rustix::fs::RenameFlags;
use rustix::io::Errno;

use super::acl;
use super::core::{Core, now};
use super::node::Node;
use super::tree::Tree;
use super::world::Seen;
use crate::fs::{Caller, NewNode, Result};
use crate::report::Reports;

/// Longest target of a symlink, bytes: as Linux has it.
pub(crate) const TARGET_MAX: usize = 4095;

pub(crate) fn check_name(name: &[u8]) -> Result<()> {
    match name {
        _ if name.len() > outrigger_store::tree::NAME_MAX => Err(Errno::NAMETOOLONG),
        b"" => Err(Errno::NOENT),
        b"." | b".." => Err(Errno::EXIST),
        _ if name.contains(&b'/') || name.contains(&0) => Err(Errno::INVAL),
        _ => Ok(()),
    }
}

impl Core {
    /// Makes something new. If the name exists and `open` is set, returns that and `false`.
    pub fn make_node(
        &self,
        caller: Caller,
        parent: u64,
        name: &[u8],
        new: NewNode,
        target: &[u8],
        open: bool,
    ) -> Result<(Arc<Node>, bool)> {
        check_name(name)?;
        if target.len() > TARGET_MAX {
            return Err(Errno::NAMETOOLONG);
        }
        let inode = self.next_inode()?;
        let _room = self.room(name.len() + target.len() + (64 << 10))?;
        let _gate = self.enter();
        let tree = &mut *self.tree_mut();
        let directory = self.world.directory_in(tree, parent)?;
        if let Some(found) = self.world.lookup_in(tree, parent, name)? {
            if !open {
                return Err(Errno::EXIST);
            }
            let node = match found {
                Seen::Node(node) => node,
                Seen::Row(row) => self.world.node_in(tree, row.number)?,
            };
            return Ok((node, false));
        }
        let attributes = inherit(&directory.read().attributes, caller, new, target);
        require_key(&self.world.store, &self.world.reports, &attributes)?;
        let operation =
            Operation::Create { parent, name: name.to_vec(), inode, attributes: attributes.clone() };
        let time = self.append(&operation, &[])?.time;
        let node = Arc::new(Node::new(inode, attributes, parent, self.log.usage(), &self.world.budget));
        tree.nodes.insert(inode, Arc::clone(&node));
        self.world.set_name(tree, &directory, name, None, Some(&node), time);
        Ok((node, true))
    }

    /// Gives a file one more name.
    pub fn link_node(&self, number: u64, parent: u64, name: &[u8]) -> Result<Arc<Node>> {
        check_name(name)?;
        let _room = self.room(name.len())?;
        let _gate = self.enter();
        let tree = &mut *self.tree_mut();
        let node = self.world.node_in(tree, number)?;
        if node.is_directory() {
            return Err(Errno::PERM);
        }
        if node.read().links == 0 {
            return Err(Errno::NOENT);
        }
        let directory = self.world.directory_in(tree, parent)?;
        if self.world.lookup_in(tree, parent, name)?.is_some() {
            return Err(Errno::EXIST);
        }
        require_one_key(&node.read().attributes, &directory.read().attributes)?;
        let link = Operation::Link { parent, name: name.to_vec(), inode: number };
        let time = self.append(&link, &[])?.time;
        self.world.set_name(tree, &directory, name, None, Some(&node), time);
        Ok(node)
    }

    /// Removes a name; of a directory only with `directory`, and only when it is empty.
    pub fn unlink_node(&self, parent: u64, name: &[u8], directory: bool) -> Result<()> {
        if name == b"." {
            return Err(Errno::INVAL);
        }
        let _room = self.room_to_free(name.len());
        let _gate = self.enter();
        let tree = &mut *self.tree_mut();
        let above = self.world.directory_in(tree, parent)?;
        let node = self.world.child_in(tree, parent, name)?.ok_or(Errno::NOENT)?;
        if tree.unpublished(parent, name).is_some() && !directory {
            // Its writer gives it up: no other program has ever seen it.
            tree.remove_unpublished(parent, name, node.number);
            self.give_up_unpublished(&node);
            return Ok(());
        }
        match (node.is_directory(), directory) {
            (true, false) => return Err(Errno::ISDIR),
            (false, true) => return Err(Errno::NOTDIR),
            (true, true) if !self.world.is_empty_in(tree, node.number)? => return Err(Errno::NOTEMPTY),
            _ => {}
        }
        let unlink = Operation::Unlink { parent, name: name.to_vec(), inode: node.number };
        let time = self.append(&unlink, &[])?.time;
        self.world.set_name(tree, &above, name, Some(&node), None, time);
        Ok(())
    }

    /// Moves a name, or exchanges two.
    pub fn rename_node(&self, from: (u64, &[u8]), to: (u64, &[u8]), flags: RenameFlags) -> Result<()> {
        check_name(to.1)?;
        if flags.intersects(!(RenameFlags::NOREPLACE | RenameFlags::EXCHANGE)) {
            return Err(Errno::INVAL);
        }
        let _room = self.room(from.1.len() + to.1.len())?;
        let _gate = self.enter();
        let tree = &mut *self.tree_mut();
        let from_dir = self.world.directory_in(tree, from.0)?;
        let to_dir = self.world.directory_in(tree, to.0)?;
        let moved = self.world.child_in(tree, from.0, from.1)?.ok_or(Errno::NOENT)?;
        if tree.unpublished(from.0, from.1).or(tree.unpublished(to.0, to.1)).is_some() {
            // A program's output will take the unpublished file's name, so nothing else may.
            return Err(Errno::BUSY);
        }
        let replaced = self.world.child_in(tree, to.0, to.1)?;
        if from.0 != to.0 {
            require_one_key(&moved.read().attributes, &to_dir.read().attributes)?;
        }
        if moved.is_directory() && from.0 != to.0 && self.is_within(tree, to.0, moved.number)? {
            return Err(Errno::INVAL);
        }
        if flags.contains(RenameFlags::EXCHANGE) {
            let other = replaced.ok_or(Errno::NOENT)?;
            if from.0 != to.0 {
                require_one_key(&other.read().attributes, &from_dir.read().attributes)?;
            }
            if other.is_directory() && from.0 != to.0 && self.is_within(tree, from.0, other.number)? {
                return Err(Errno::INVAL);
            }
            let exchange = Operation::Exchange {
                parent: from.0,
                name: from.1.to_vec(),
                inode: moved.number,
                other_parent: to.0,
                other_name: to.1.to_vec(),
                other_inode: other.number,
            };
            let time = self.append(&exchange, &[])?.time;
            self.world.exchange_names(tree, (&from_dir, from.1, &moved), (&to_dir, to.1, &other), time);
            return Ok(());
        }
        if let Some(replaced) = &replaced {
            if flags.contains(RenameFlags::NOREPLACE) {
                return Err(Errno::EXIST);
            }
            if replaced.number == moved.number {
                // Two names of one file, or the same one: both stay.
                return Ok(());
            }
            match (moved.is_directory(), replaced.is_directory()) {
                (true, false) => return Err(Errno::NOTDIR),
                (false, true) => return Err(Errno::ISDIR),
                (true, true) if !self.world.is_empty_in(tree, replaced.number)? => {
                    return Err(Errno::NOTEMPTY);
                }
                _ => {}
            }
        }
        let rename = Operation::Rename {
            parent: from.0,
            name: from.1.to_vec(),
            new_parent: to.0,
            new_name: to.1.to_vec(),
            inode: moved.number,
            replaced: replaced.as_ref().map(|node| node.number),
        };
        let time = self.append(&rename, &[])?.time;
        self.world.move_name(tree, (&from_dir, from.1), (&to_dir, to.1), &moved, replaced.as_ref(), time);
        Ok(())
    }

    /// True when directory `inner` is `outer`, or lies below it.
    fn is_within(&self, tree: &Tree, inner: u64, outer: u64) -> Result<bool> {
        let mut at = inner;
        while at != outer {
            if at == outrigger_store::meta::ROOT_INODE {
                return Ok(false);
            }
            at = match tree.parents.get(&at) {
                Some(&parent) => parent,
                None => self.world.fail(self.world.store.meta.parent_of(at))?.ok_or(Errno::STALE)?,
            };
        }
        Ok(true)
    }
}

/// Attributes of something new in a directory with the attributes `above`, with what it inherits.
pub(crate) fn inherit(above: &Attributes, caller: Caller, new: NewNode, target: &[u8]) -> Attributes {
    const SET_GROUP: u32 = 0o2000;
    let inherits_group = above.mode & SET_GROUP != 0;
    let gid = if inherits_group { above.gid } else { caller.gid };
    let (mut mode, mut xattrs) = (new.mode & 0o7777, Vec::new());
    if new.kind == FileKind::Symlink {
        mode = 0o777;
    } else {
        match acl::inherited(&above.xattrs, new.kind == FileKind::Directory, mode) {
            Some(inherited) => (mode, xattrs) = inherited,
            None => mode &= !new.umask,
        }
        if inherits_group && new.kind == FileKind::Directory {
            mode |= SET_GROUP;
        }
    }
    let present = now();
    Attributes {
        kind: new.kind,
        mode,
        uid: caller.uid,
        gid,
        mtime: present,
        rdev: new.rdev,
        target: target.to_vec(),
        xattrs,
        times: Some(OtherTimes { atime: present, ctime: present }),
    }
    .in_domain(above.domain())
}

/// Fails unless contents of an inode can be stored: the key of its directory may have been destroyed.
pub(crate) fn require_key(store: &Store, reports: &Reports, attributes: &Attributes) -> Result<()> {
    match (attributes.kind, attributes.domain()) {
        (FileKind::File, domain) if domain != Domain::COMMON => {
            store.packs.domain_key(domain).map(drop).map_err(|error| reports.errno(&error))
        }
        _ => Ok(()),
    }
}

/// Fails with `EXDEV` if an entry would come into a directory whose contents have another key, so
/// programs copy it. A directory keeps its key where there is none.
pub(crate) fn require_one_key(entry: &Attributes, directory: &Attributes) -> Result<()> {
    let (own, there) = (entry.domain(), directory.domain());
    let keeps = entry.kind == FileKind::Directory && there == Domain::COMMON;
    if own == there || keeps { Ok(()) } else { Err(Errno::XDEV) }
}
