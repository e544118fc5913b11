//! Destaging: from the log to packs and the database.
//!
//! One batch at a time, by the destager's thread or by whoever waits for a barrier:
//!
//! 1. *Cut*: with the gate closed for a moment, the staged names and the dirty nodes are taken. All of the names so far belong to the batch, so that
//!    every commit is a state that the tree was in.
//! 2. *Select* files whose content goes along: the least recently written first (what was just written will likely be written
//!    again), until the batch is full; and those that the oldest segment of the log waits for.
//! 3. *Write*: each node's attributes and, if selected, its content as it is now, go through a [`Writer`] of their own; so do the names. The writer commits
//!    all of it in one transaction, after its packs are durable.
//! 4. *Settle*: files give up what was stored and has not been written again since; names that were committed leave the tree's memory; segments of the
//!    log that nothing needs any more are removed. A crash before this leaves more in the log than is needed: replaying it says again what is so.
//!
//! *Orphans*, files that have lost their last name and are still open, or known to the kernel, have no row in the database. What is stored of them is held by the commit
//! that takes their names away, so that it is not reclaimed until they are gone; what is staged of them goes along only when room is
//! needed: most are gone before.
//!
//! An attribute or a content may be newer in the database than the names of the same commit. That is no harm: the log has everything from the
//! cut on, in order, and says what each *is*, so that a replay ends in the last state. For a snapshot the gate stays closed over the
//! whole batch.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, RwLockReadGuard};
use std::time::Instant;

use outrigger_format::catalogue::FileKind;
use outrigger_format::{ChunkerSpec, Root};
use outrigger_store::meta::{Change, ROOT_INODE, orphan_holder};
use outrigger_store::staging::Piece;
use outrigger_store::tree::Policies;
use outrigger_store::write::{
    CommitWhen, Content, FileItem, Item, Oracle, PartSource, Parts, Progress, Target, WriteOptions, Writer,
};
use outrigger_store::{Error, ErrorKind, Result};

use super::HOLDER;
use super::core::{Core, Counters};
use super::destager::Select;
use super::file::read_noted;
use super::gate::Closed;
use super::node::{Node, State};
use super::plan::plan;
use crate::view::content::StoredFile;

/// Clean nodes that are kept in memory.
const NODES_MAX: usize = 16 << 10;
/// Blocks of files that are rewritten in place, and the frames that hold them.
const BLOCK: u32 = 16 << 10;
const BLOCK_FRAME: u32 = 64 << 10;
/// When nothing is staged, a segment with more than this in it is begun anew, so that there is little to replay.
const RESTART_MIN: u64 = 1 << 20;
/// So many small overwrites make a file one that is rewritten in place.
const REWRITES: u32 = 64;

/// A node in a batch.
struct Taken {
    node: Arc<Node>,
    edition: u64,
    /// Of a file whose content goes along.
    content: Option<TakenContent>,
    /// It had no name any more.
    is_orphan: bool,
}

struct TakenContent {
    sequence: u64,
    staged: u64,
    rewrites: u32,
    was_closed: bool,
}

impl Core {
    /// Destages one batch; see the module. It must be the caller's turn. `closed`: the gate, if the caller has closed it.
    pub fn batch(self: &Arc<Self>, select: Select, closed: Option<&Closed<'_>>) -> Result<()> {
        self.session.check()?;
        let began = Instant::now();
        // Cut.
        let gate = closed.is_none().then(|| self.gate.pause());
        let sequence = self.log.last();
        let (names, generation) = self.tree_mut().take();
        let dirty = self.take_dirty();
        drop(gate);
        // Select.
        let selected = self.select(select, &dirty);
        // Write.
        let policies = Policies::load(&self.world.store)?.with(self.options.overrides);
        let chunk_max = policies.chunk_max()?.max(BLOCK as usize);
        let options =
            WriteOptions { threads: self.options.write_threads, chunk_max, commit: CommitWhen::AtTheEnd };
        let progress = Arc::new(Progress::default());
        let mut writer = Writer::start(&self.world.store, &self.session, &options, &progress);
        let mut taken = Vec::with_capacity(dirty.len());
        let mut submitted = 0;
        for (node, is_orphan) in dirty {
            let content = selected.contains(&node.number);
            let made = if is_orphan {
                self.orphan_item(&node, content, &policies)?
            } else {
                Some(self.item(&node, content, &policies)?)
            };
            let Some((item, note)) = made else { continue };
            taken.push(note);
            submitted += 1;
            writer.submit(item)?;
        }
        for super::tree::Taken { parent, name, inode } in names {
            submitted += 1;
            writer.submit(Item::Change(Change::Name { parent, name, inode }))?;
        }
        if submitted == 0 {
            drop(writer);
            self.tree_mut().drop_taken(generation);
            return self.reclaim(sequence);
        }
        let summary = writer.finish()?;
        // Settle.
        let roots: HashMap<u64, Root> = summary.nodes.into_iter().collect();
        let mut staged = 0;
        for note in taken {
            staged += note.content.as_ref().map_or(0, |content| content.staged);
            self.settle(note, &roots)?;
        }
        Counters::add(&self.counters.batches, 1);
        {
            let mut tree = self.tree_mut();
            tree.drop_taken(generation);
            tree.evict(NODES_MAX);
        }
        self.counters.took.note(began.elapsed());
        Counters::add(&self.counters.destaged, staged);
        Counters::add(&self.counters.stored, summary.progress.bytes_stored);
        Counters::add(&self.counters.new, summary.progress.bytes_new);
        self.reclaim(sequence)
    }

    /// The dirty nodes, and which of them are orphans. What is buried leaves the set: the database will not have it any more.
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

    /// What to write of a node: its attributes, and its content if `content`.
    fn item(self: &Arc<Self>, node: &Arc<Node>, content: bool, policies: &Policies) -> Result<(Item, Taken)> {
        // It may have lost its last name since the cut; but the names of this batch are older, and stand for it.
        let state = node.read();
        let (inode, parent, edition) = (node.number, state.parent, state.edition);
        let attributes = state.attributes.clone();
        let root = state.file.stored.root();
        if !content || node.kind != FileKind::File {
            let root = if node.kind == FileKind::File { root.clone() } else { Root::Empty };
            let change = Change::Node { inode, parent, attributes, root, keep: false };
            let note = Taken { node: Arc::clone(node), edition, content: None, is_orphan: false };
            return Ok((Item::Change(change), note));
        }
        let keep = state.file.is_version && *root != Root::Empty;
        self.file_item(node, state, Target::Node { inode, parent, keep }, policies)
    }

    /// What to write of an orphan, if anything: its content if `content`, or what is to be held of it.
    fn orphan_item(
        self: &Arc<Self>,
        node: &Arc<Node>,
        content: bool,
        policies: &Policies,
    ) -> Result<Option<(Item, Taken)>> {
        let state = node.read();
        let inode = node.number;
        if content {
            return self.file_item(node, state, Target::Orphan { inode }, policies).map(Some);
        }
        let root = state.file.stored.root();
        if state.file.is_held || *root == Root::Empty {
            return Ok(None);
        }
        let note = Taken { node: Arc::clone(node), edition: state.edition, content: None, is_orphan: true };
        Ok(Some((Item::Change(Change::Orphan { inode, root: root.clone() }), note)))
    }

    /// A file's content as it is now, what is committed under what is staged.
    fn file_item(
        self: &Arc<Self>,
        node: &Arc<Node>,
        state: RwLockReadGuard<'_, State>,
        to: Target,
        policies: &Policies,
    ) -> Result<(Item, Taken)> {
        let (parent, edition, attributes) = (state.parent, state.edition, state.attributes.clone());
        let file = &state.file;
        let pieces: Vec<(Range<u64>, Piece)> = file.map.pieces(0..u64::MAX).collect();
        // With the node held nothing of it is being appended, so this is no older than its last record.
        let sequence = self.log.last();
        let (staged, in_place) = (file.map.staged_bytes(), file.in_place);
        let root = Arc::new(file.stored.root().clone());
        let was_closed = !node.has_writers();
        drop(state);
        let policy = self.policy_of(policies, parent)?;
        // Blocks suit such a file best, unless the mount was told how to cut everything.
        let blocks = in_place && self.options.overrides.chunker.is_none();
        let chunker = if blocks { ChunkerSpec::Fixed { size: BLOCK } } else { policy.chunker };
        let planned = plan(&self.reader(), &root, &pieces, chunker)?;
        let content = TakenContent { sequence, staged, rewrites: planned.rewrites, was_closed };
        let source = Arc::new(Noted { core: Arc::clone(self), root: Arc::clone(&root), pieces });
        let is_orphan = matches!(to, Target::Orphan { .. });
        let item = FileItem {
            to,
            attributes,
            content: Content::Parts(Parts { parts: planned.parts, source }),
            chunker,
            codec: policy.codec,
            dedup: policy.dedup,
            frame: in_place.then_some(BLOCK_FRAME),
            oracle: Oracle::Off,
        };
        Ok((Item::File(item), Taken { node: Arc::clone(node), edition, content: Some(content), is_orphan }))
    }

    fn policy_of(&self, policies: &Policies, directory: u64) -> Result<outrigger_store::tree::WritePolicy> {
        let mut above = vec![directory];
        let tree = self.tree();
        while let Some(&at) = above.last()
            && at != ROOT_INODE
            && !policies.is_empty()
        {
            let parent = match tree.parents.get(&at) {
                Some(&parent) => Some(parent),
                None => self.world.store.meta.parent_of(at)?,
            };
            match parent {
                Some(parent) if above.len() < 4096 => above.push(parent),
                _ => break,
            }
        }
        drop(tree);
        above.push(ROOT_INODE);
        above.dedup();
        above.iter().rev().try_fold(policies.store_default(), |policy, inode| policies.below(policy, *inode))
    }

    /// Gives up what a batch has stored of a node.
    fn settle(&self, note: Taken, roots: &HashMap<u64, Root>) -> Result<()> {
        let Taken { node, edition, content, is_orphan } = note;
        let mut state = node.write();
        if state.is_buried {
            // It leaves the set of dirty ones with the next cut.
            if is_orphan {
                self.world.let_go(node.number);
            }
            return Ok(());
        }
        state.in_database = !is_orphan;
        state.file.is_held = is_orphan;
        if state.edition == edition {
            state.changed = false;
        }
        if let Some(content) = content {
            let root = roots.get(&node.number).cloned().ok_or_else(|| {
                Error::new(
                    ErrorKind::Io,
                    format!("the writer does not say what inode {} became", node.number),
                )
            })?;
            let file = &mut state.file;
            let freed = file.map.settle(content.sequence, root.len());
            Counters::add(&self.counters.invalidated, content.staged.saturating_sub(freed));
            file.is_version = content.was_closed && !node.has_writers() && file.map.is_clean();
            file.stored = Arc::new(StoredFile::new(root, &self.world.budget));
            file.allocated = None;
            file.rewrites += content.rewrites;
            file.in_place |= file.rewrites >= REWRITES;
            file.dirty_since = (!file.map.is_clean()).then_some(file.written);
        }
        if !state.is_dirty() {
            let mut dirty = self.world.dirty.lock().expect("no panic while held");
            dirty.remove(&node.number);
            node.listed.store(false, Ordering::Relaxed);
        }
        Ok(())
    }

    /// What was held of orphans that are closed now.
    pub fn release_orphans(&self) -> Result<()> {
        let gone = std::mem::take(&mut *self.world.gone.lock().expect("no panic while held"));
        gone.into_iter().try_for_each(|inode| self.world.store.meta.release(&orphan_holder(inode), None))
    }

    /// Gives back what the log does not need any more, names being committed up to `sequence`.
    fn reclaim(&self, sequence: u64) -> Result<()> {
        self.log.remove_dead(sequence)?;
        self.release_orphans()?;
        let idle = self.world.dirty.lock().expect("no panic while held").is_empty();
        if !idle {
            return Ok(());
        }
        // Nothing is staged: not even the last segment is needed, and so no root that its records name.
        let least = if self.control.holds.load(Ordering::Relaxed) { 0 } else { RESTART_MIN };
        if self.log.restart(sequence, least)? && self.control.holds.swap(false, Ordering::Relaxed) {
            self.world.store.meta.release(HOLDER, None)?;
        }
        Ok(())
    }
}

/// A file as it was when its batch was cut.
struct Noted {
    core: Arc<Core>,
    root: Arc<Root>,
    pieces: Vec<(Range<u64>, Piece)>,
}

impl PartSource for Noted {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        let core = &self.core;
        read_noted(&core.log, &core.reader(), &self.root, &self.pieces, offset, buf)
    }
}
