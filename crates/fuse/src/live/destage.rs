//! Write-back: from the log to packs and the database.
//!
//! One batch at a time, by the flusher or by a thread that waits for a barrier:
//!
//! 1. *Cut* (`dirty.rs`): with the gate closed for a moment, a dirty snapshot is taken of the staged
//!    names, the dirty nodes, and some contents. All names and attributes so far belong to the
//!    batch. To make room it takes, of all files, the ranges that the log's oldest segment waits for,
//!    or everything ([`crate::destage_order`]). (A range that was just written will likely be written
//!    again.)
//! 2. *Write*: all of it goes through a [`Writer`] of its own. If contents stay behind, the log is made durable: a loss of power must not leave a name
//!    without its content. Then the writer commits everything in one transaction, after its packs are durable.
//! 3. *Settle*: files drop what was stored and has not been written again since; committed names
//!    leave the tree's memory; and segments of the log that nothing needs are removed. A crash
//!    before this leaves more in the log than is needed: its replay repeats what is already true.
//!
//! *Orphans* are files that have lost their last name and are still open, or known to the kernel.
//! They have no row in the database. The commit that takes their names away also holds their stored
//! content, so that it is not reclaimed until they are gone. Their staged data goes along only when
//! room is needed, as most orphans are gone before.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use outrigger_clock::Instant;
use outrigger_format::catalogue::FileKind;
use outrigger_format::{ChunkerSpec, Domain, Root};
use outrigger_store::meta::{Change, ROOT_INODE, orphan_holder};
use outrigger_store::policy::Policies;
use outrigger_store::staging::{Piece, Ranges};
use outrigger_store::write::{
    CommitWhen, Content, FileItem, Item, Oracle, PartSource, Parts, Progress, Target, WriteOptions, Writer,
};
use outrigger_store::{Error, ErrorKind, Result};

use super::HOLDER;
use super::core::{Core, Counters};
use super::dirty::{DirtyContent, DirtyNode, DirtySnapshot};
use super::file::read_noted;
use super::flusher::Select;
use super::freeze_lock::Closed;
use super::node::Node;
use super::plan::plan;
use super::tree::Taken;
use crate::destage_order::BLOCK;
use crate::view::content::StoredFile;

/// Clean nodes that are kept in memory.
const NODES_MAX: usize = 16 << 10;
/// Frames of the blocks of files that are rewritten in place.
const BLOCK_FRAME: u32 = 64 << 10;
/// Files of at least this many bytes are read here and there more often than whole, and each such
/// read decodes a frame: their frames are no larger than this.
const LARGE: u64 = 4 << 20;
const LARGE_FRAME: u32 = 128 << 10;
/// When nothing is staged, a segment with more than this in it is replaced, so that there is little
/// to replay.
const RESTART_MIN: u64 = 1 << 20;
/// Number of small overwrites after which a file counts as rewritten in place.
const REWRITES: u32 = 64;

/// A node in a batch, with what its commit will settle.
struct Sent {
    node: Arc<Node>,
    edition: u64,
    /// Its content, if that goes along.
    content: Option<SentContent>,
    is_orphan: bool,
}

struct SentContent {
    ranges: Ranges,
    staged: u64,
    rewrites: u32,
    was_closed: bool,
}

impl Core {
    /// Stores one batch; see the module. The caller has the flusher's turn. `closed`: the gate, if
    /// the caller has closed it.
    pub fn batch(self: &Arc<Self>, select: Select, closed: Option<&Closed<'_>>) -> Result<()> {
        self.session.check()?;
        if self.log.fill().is_bounded {
            self.world.store.tend_reserve();
        }
        let began = Instant::now();
        let cut = {
            let _gate = closed.is_none().then(|| self.freeze_lock.pause());
            self.cut(select)
        };
        let DirtySnapshot { sequence, names, generation, nodes, leaves_some } = cut;
        if nodes.is_empty() && names.is_empty() {
            self.tree_mut().drop_taken(generation);
            return self.reclaim(sequence);
        }
        let policies = Policies::load(&self.world.store)?.with(self.options.overrides);
        let chunk_max = policies.chunk_max()?.max(BLOCK as usize);
        let options =
            WriteOptions { threads: self.options.write_threads, chunk_max, commit: CommitWhen::AtTheEnd };
        let progress = Arc::new(Progress::default());
        let mut writer = Writer::start(&self.world.store, &self.session, &options, &progress);
        let (mut sent, mut stays) = (Vec::with_capacity(nodes.len()), None);
        for mut node in nodes {
            self.without_key(&mut node, &mut stays);
            let Some((item, note)) = self.item(node, &policies)? else { continue };
            sent.push(note);
            writer.submit(item)?;
        }
        for Taken { parent, name, inode } in names {
            writer.submit(Item::Change(Change::Name { parent, name, inode }))?;
        }
        if leaves_some || stays.is_some() {
            // Otherwise a loss of power could leave a file's name, or another file that was written
            // later, without this one's content.
            self.log.sync()?;
        }
        let summary = writer.finish()?;
        // Settle.
        let roots: HashMap<u64, Root> = summary.nodes.into_iter().collect();
        let mut staged = 0;
        for note in sent {
            staged += note.content.as_ref().map_or(0, |content| content.staged);
            self.settle(note, sequence, &roots)?;
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
        self.reclaim(sequence)?;
        stays.map_or(Ok(()), Err)
    }

    /// Sees to content that cannot be stored, as the key of its directory is not there. If that was
    /// destroyed, the content goes: nobody could read it. Otherwise it stays in the log, and `stays` says
    /// why; the rest of the batch is stored.
    fn without_key(&self, cut: &mut DirtyNode, stays: &mut Option<Error>) {
        let domain = cut.attributes.domain();
        let Some(content) = cut.content.as_mut().filter(|_| domain != Domain::COMMON) else { return };
        let Err(error) = self.world.store.packs.domain_key(domain) else { return };
        let error = error.context(format!("what was written to inode {}", cut.node.number));
        if error.kind() == ErrorKind::Destroyed {
            self.world.reports.errno_of_our_own(&error);
            content.is_lost = true;
        } else {
            cut.content = None;
            stays.get_or_insert(error);
        }
    }

    /// The item to write for a node, if any.
    fn item(self: &Arc<Self>, cut: DirtyNode, policies: &Policies) -> Result<Option<(Item, Sent)>> {
        let DirtyNode { node, attributes, parent, edition, root, content, is_orphan, is_held } = cut;
        let inode = node.number;
        let Some(content) = content else {
            let change = match (is_orphan, node.kind) {
                (true, _) if is_held || root == Root::Empty => return Ok(None),
                (true, _) => Change::Orphan { inode, holder: orphan_holder(inode), root },
                (false, FileKind::File) => Change::Node { inode, parent, attributes, root, keep: false },
                (false, _) => Change::Node { inode, parent, attributes, root: Root::Empty, keep: false },
            };
            return Ok(Some((Item::Change(change), Sent { node, edition, content: None, is_orphan })));
        };
        let DirtyContent { pieces, ranges, staged, was_closed, keep, in_place, is_lost } = content;
        if is_lost {
            let content = Some(SentContent { ranges, staged, rewrites: 0, was_closed });
            let change = match is_orphan {
                true => Change::Orphan { inode, holder: orphan_holder(inode), root },
                false => Change::Node { inode, parent, attributes, root, keep: false },
            };
            return Ok(Some((Item::Change(change), Sent { node, edition, content, is_orphan })));
        }
        let to = match is_orphan {
            true => Target::Orphan { inode, holder: orphan_holder(inode) },
            false => Target::Node { inode, parent, keep },
        };
        let policy = self.policy_of(policies, parent)?;
        // Blocks suit such a file best, unless the mount was told how to cut everything.
        let blocks = in_place && self.options.overrides.chunker.is_none();
        let chunker = if blocks { ChunkerSpec::Fixed { size: BLOCK } } else { policy.chunker };
        let is_large = pieces.last().is_some_and(|(range, _)| range.end >= LARGE);
        let frame = match (in_place, is_large) {
            (true, _) => Some(BLOCK_FRAME),
            (false, true) if self.world.store.config.frame_size > LARGE_FRAME => Some(LARGE_FRAME),
            (false, _) => None,
        };
        let root = Arc::new(root);
        let planned = plan(&self.reader(), &root, &pieces, chunker)?;
        let content = SentContent { ranges, staged, rewrites: planned.rewrites, was_closed };
        let source = Arc::new(Noted { core: Arc::clone(self), root, pieces });
        let item = FileItem {
            to,
            attributes,
            content: Content::Parts(Parts { parts: planned.parts, source }),
            chunker,
            codec: policy.codec,
            dedup: policy.dedup,
            frame,
            oracle: Oracle::Off,
        };
        Ok(Some((Item::File(item), Sent { node, edition, content: Some(content), is_orphan })))
    }

    fn policy_of(&self, policies: &Policies, directory: u64) -> Result<outrigger_store::policy::WritePolicy> {
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

    /// Drops from a node what a batch, cut at `sequence`, has stored.
    fn settle(&self, note: Sent, sequence: u64, roots: &HashMap<u64, Root>) -> Result<()> {
        let Sent { node, edition, content, is_orphan } = note;
        let mut state = node.write();
        if state.is_buried {
            // It leaves the set of dirty ones with the next cut.
            if is_orphan {
                self.world.let_go(node.number);
            }
            return Ok(());
        }
        state.in_database = !is_orphan;
        if state.file.is_held && !is_orphan {
            // It had no name, and got one.
            self.world.let_go(node.number);
        }
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
            let freed = file.map.settle_in(sequence, root.len(), &content.ranges);
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

    /// Releases the content of orphans that are closed now.
    pub fn release_orphans(&self) -> Result<()> {
        let gone = std::mem::take(&mut *self.world.gone.lock().expect("no panic while held"));
        gone.into_iter().try_for_each(|inode| self.world.store.meta.release(&orphan_holder(inode), None))
    }

    /// Removes segments that the log does not need, once names are committed up to `sequence`.
    fn reclaim(&self, sequence: u64) -> Result<()> {
        self.log.remove_dead(sequence)?;
        self.release_orphans()?;
        let idle = self.world.dirty.lock().expect("no panic while held").is_empty();
        if !idle {
            return Ok(());
        }
        // Nothing is staged: even the last segment is not needed, nor any root that its records
        // name.
        if !self.control.holds() {
            return self.log.restart(sequence, RESTART_MIN).map(drop);
        }
        // Otherwise a root is being held just now, and its record will be in the log.
        if let Some(_alone) = self.control.alone()
            && self.log.restart(sequence, 0)?
        {
            self.world.store.meta.release(HOLDER, None)?;
            self.control.note_released();
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
