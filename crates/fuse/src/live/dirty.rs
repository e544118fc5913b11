//! A dirty snapshot: the staged state of one moment, from which a batch is stored.
//!
//! It is a copy that is taken with the gate closed; later writes belong to a later batch. So a
//! batch commits a state that the tree was in, names, attributes and contents together.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use outrigger_format::Root;
use outrigger_format::catalogue::{Attributes, FileKind};
use outrigger_store::staging::{Piece, Ranges};

use super::core::Core;
use super::flusher::Select;
use super::node::{Node, State};
use super::tree::Taken;

/// See the module.
pub(super) struct DirtySnapshot {
    /// Sequence number of the last record before it.
    pub sequence: u64,
    pub names: Vec<Taken>,
    /// For [`super::tree::Tree::drop_taken`].
    pub generation: u64,
    pub nodes: Vec<DirtyNode>,
    /// Some contents stay behind, and only the log holds them.
    pub leaves_some: bool,
}

/// A node as it was.
pub(super) struct DirtyNode {
    pub node: Arc<Node>,
    pub attributes: Attributes,
    pub parent: u64,
    pub edition: u64,
    /// Its committed content.
    pub root: Root,
    /// Content to store, of a file whose content goes along.
    pub content: Option<DirtyContent>,
    /// It has no name any more.
    pub is_orphan: bool,
    /// It is an orphan whose committed content is held already.
    pub is_held: bool,
}

/// Content as it was.
pub(super) struct DirtyContent {
    /// The whole content: what is staged in `ranges`, over what is committed.
    pub pieces: Vec<(Range<u64>, Piece)>,
    /// The part that this batch stores.
    pub ranges: Ranges,
    /// Bytes of staged data in it.
    pub staged: u64,
    pub was_closed: bool,
    /// The committed content is an earlier version, to be kept.
    pub keep: bool,
    pub in_place: bool,
    /// Nobody could read it: the committed content stays in its place.
    pub is_lost: bool,
}

impl DirtyNode {
    fn new(node: &Arc<Node>, state: &State, ranges: Option<Ranges>) -> Self {
        let file = &state.file;
        let root = file.stored.root().clone();
        let content = ranges.map(|ranges| {
            let pieces = file.map.pieces_in(&ranges);
            DirtyContent {
                staged: staged_bytes(&pieces),
                pieces,
                ranges,
                was_closed: !node.has_writers(),
                keep: file.is_version && root != Root::Empty,
                in_place: file.in_place,
                is_lost: false,
            }
        });
        Self {
            node: Arc::clone(node),
            attributes: state.attributes.clone(),
            parent: state.parent,
            edition: state.edition,
            root,
            content,
            is_orphan: state.links == 0,
            is_held: file.is_held,
        }
    }
}

/// Bytes of staged data in these pieces.
pub(crate) fn staged_bytes(pieces: &[(Range<u64>, Piece)]) -> u64 {
    let staged = |piece: &Piece| if let Piece::Data(at) = piece { at.len.into() } else { 0 };
    pieces.iter().map(|(_, piece)| staged(piece)).sum()
}

impl Core {
    /// Takes the dirty snapshot, with the gate closed.
    pub fn cut(&self, select: Select) -> DirtySnapshot {
        let sequence = self.log.last();
        let (names, generation) = self.tree_mut().take();
        let dirty = self.take_dirty();
        let mut chosen = self.select(select, &dirty);
        let mut leaves_some = false;
        let nodes = dirty.iter().filter_map(|(node, is_orphan)| {
            let state = node.read();
            let ranges = chosen.remove(&node.number);
            let is_whole = ranges.as_ref().map_or(state.file.map.is_clean(), Ranges::is_all);
            // An orphan is gone after a crash, whatever is in the log.
            leaves_some |= !is_whole && !is_orphan;
            // Otherwise the database has all of it but what stays staged.
            let is_sent = ranges.is_some() || state.changed || *is_orphan || is_whole;
            is_sent.then(|| DirtyNode::new(node, &state, ranges))
        });
        let nodes = nodes.collect();
        DirtySnapshot { sequence, names, generation, nodes, leaves_some }
    }

    /// The dirty nodes, and which of them are orphans. Buried nodes leave the set: the database
    /// will not have them any more.
    fn take_dirty(&self) -> Vec<(Arc<Node>, bool)> {
        let mut dirty = self.world.dirty.lock().expect("no panic while held");
        let mut taken = Vec::with_capacity(dirty.len());
        dirty.retain(|_, node| {
            let state = node.read();
            let is_named = state.links > 0;
            let stays = is_named || !state.is_buried && node.kind == FileKind::File;
            if stays {
                taken.push((Arc::clone(node), !is_named));
            } else {
                node.listed.store(false, Ordering::Relaxed);
            }
            stays
        });
        taken
    }
}
