//! Anonymous files, which have no name but may get one (`O_TMPFILE`, then `linkat`).
//!
//! While it has no name, such a file is like a removed file that is still open: gone after a crash,
//! and its stored content is held. So the log has only the writes to it, which a replay skips.
//!
//! After `linkat`, a crash must leave the file with all its data, or not at all. But by then the
//! log may have dropped some of its records, and the database does not know the file. So new
//! records repeat all of it: first the inode without a name, then its content, and last its name.
//! They name stored content by its root. Staged data is written to the log again, or stored first
//! if it is much.

use std::sync::Arc;

use outrigger_format::Root;
use outrigger_format::catalogue::FileKind;
use outrigger_format::staging::Operation;
use outrigger_store::staging::Piece;
use rustix::io::Errno;

use super::HOLDER;
use super::core::Core;
use super::flusher::Select;
use super::names::{check_name, inherit, require_key, require_one_key};
use super::node::{Node, State};
use crate::fs::{Caller, NewNode, Result};

/// Bytes that these records may take in the log: well below the shortest segment.
const SAID_MAX: u64 = 1 << 20;
/// Bytes of each record beside names, attributes and data.
const RECORD: u64 = 256;
/// Bytes that attributes may take.
const ATTRIBUTES: u64 = 64 << 10;

impl Core {
    /// Makes an anonymous file, which inherits from directory `parent`.
    pub fn make_anonymous(&self, caller: Caller, parent: u64, new: NewNode) -> Result<Arc<Node>> {
        if new.kind != FileKind::File {
            return Err(Errno::INVAL);
        }
        let inode = self.next_inode()?;
        let _gate = self.enter();
        let tree = &mut *self.tree_mut();
        let directory = self.world.directory_in(tree, parent)?;
        let attributes = inherit(&directory.read().attributes, caller, new, &[]);
        require_key(&self.world.store, &self.world.reports, &attributes)?;
        let node = Node::new(inode, attributes, parent, self.log.usage(), &self.world.budget);
        node.write().may_be_named = true;
        let node = Arc::new(node);
        tree.nodes.insert(inode, Arc::clone(&node));
        Ok(node)
    }

    /// Gives a file its first name.
    pub fn name_anonymous(self: &Arc<Self>, node: &Arc<Node>, parent: u64, name: &[u8]) -> Result<()> {
        check_name(name)?;
        loop {
            let (stored, said) = {
                let state = node.read();
                (Arc::clone(&state.file.stored), said_bytes(&state))
            };
            if said > SAID_MAX {
                self.world.fail(self.destage(Select::One(node.number)))?;
                continue;
            }
            let _room = self.room(said as usize + name.len())?;
            let _sharing = self.control.sharing();
            let root = stored.root();
            if *root != Root::Empty {
                self.control.note_hold();
                self.world.fail(self.world.store.meta.hold(HOLDER, std::slice::from_ref(root)))?;
            }
            let _gate = self.enter();
            let tree = &mut *self.tree_mut();
            let directory = self.world.directory_in(tree, parent)?;
            if self.world.lookup_in(tree, parent, name)?.is_some() {
                return Err(Errno::EXIST);
            }
            let mut state = node.write();
            require_one_key(&state.attributes, &directory.read().attributes)?;
            if !state.may_be_named {
                return Err(Errno::NOENT);
            }
            if !Arc::ptr_eq(&stored, &state.file.stored) || said_bytes(&state) > said {
                // It was stored or written meanwhile.
                continue;
            }
            self.say_anew(node.number, parent, &mut state)?;
            let link = Operation::Link { parent, name: name.to_vec(), inode: node.number };
            let time = self.append(&link, &[])?.time;
            state.may_be_named = false;
            drop(state);
            self.world.set_name(tree, &directory, name, None, Some(node), time);
            return Ok(());
        }
    }

    /// Appends a file's attributes and content, as of an inode that is not in the log.
    fn say_anew(&self, inode: u64, parent: u64, state: &mut State) -> Result<()> {
        let create =
            Operation::Create { parent, name: Vec::new(), inode, attributes: state.attributes.clone() };
        self.append(&create, &[])?;
        let (len, root) = (state.file.map.len(), Arc::new(state.file.stored.root().clone()));
        let pieces: Vec<_> = state.file.map.pieces(0..u64::MAX).collect();
        let mut end = 0;
        for (range, piece) in pieces {
            let (offset, len) = (range.start, range.end - range.start);
            end = range.end;
            let map = &mut state.file.map;
            let (shared, from_offset) = match piece {
                Piece::Data(location) => {
                    let mut data = vec![0; len as usize];
                    self.world.fail(self.log.read(location, &mut data))?;
                    map.write(offset, &self.append(&Operation::Write { inode, offset }, &data)?);
                    continue;
                }
                Piece::Zero => {
                    map.zero(offset, len, &self.append(&Operation::Zero { inode, offset, len }, &[])?);
                    continue;
                }
                Piece::Clone(root, from) => (root, from),
                Piece::Committed => (Arc::clone(&root), offset),
            };
            let root = (*shared).clone();
            let clone = Operation::Clone { from: inode, root, from_offset, inode, offset, len };
            map.clone_range(offset, len, shared, from_offset, &self.append(&clone, &[])?);
        }
        if end != len {
            state.file.map.truncate(len, &self.append(&Operation::Truncate { inode, len }, &[])?);
        }
        Ok(())
    }
}

/// Bytes in the log to repeat all of a file.
fn said_bytes(state: &State) -> u64 {
    let root = state.file.stored.root();
    let each = state.file.map.pieces(0..u64::MAX).map(|(range, piece)| {
        RECORD
            + match piece {
                Piece::Data(_) => range.end - range.start,
                Piece::Clone(other, _) => other.encode().len() as u64,
                Piece::Committed => root.encode().len() as u64,
                Piece::Zero => 0,
            }
    });
    ATTRIBUTES + each.sum::<u64>() + 2 * RECORD
}
