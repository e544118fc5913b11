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
//! An attribute or a content may be newer in the database than the names of the same commit. That is no harm: the log has everything from the
//! cut on, in order, and says what each *is*, so that a replay ends in the last state. For a snapshot the gate stays closed over the
//! whole batch.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use outrigger_format::catalogue::FileKind;
use outrigger_format::{ChunkerSpec, Root};
use outrigger_store::meta::{Change, ROOT_INODE};
use outrigger_store::staging::{Fill, Piece};
use outrigger_store::tree::Policies;
use outrigger_store::write::{
    CommitWhen, Content, FileItem, Item, Oracle, PartSource, Parts, Progress, Target, WriteOptions, Writer,
};
use outrigger_store::{Error, ErrorKind, Result};
use rustix::io::Errno;

use super::core::{Core, Counters};
use super::file::read_noted;
use super::gate::Closed;
use super::node::Node;
use super::plan::plan;
use super::{HOLDER, Order};
use crate::view::content::StoredFile;

/// Nodes and names that wait for a commit at most, about: what they take in memory is bounded by this.
const WAITING_MAX: usize = 20_000;
/// Clean nodes that are kept in memory.
const NODES_MAX: usize = 16 << 10;
/// How often the destager looks whether something has waited long enough.
const TICK: Duration = Duration::from_millis(250);
/// After a failure, when to try again.
const RETRY: Duration = Duration::from_secs(1);
/// Blocks of files that are rewritten in place, and the frames that hold them.
const BLOCK: u32 = 16 << 10;
const BLOCK_FRAME: u32 = 64 << 10;
/// When nothing is staged, a segment with more than this in it is begun anew, so that there is little to replay.
const RESTART_MIN: u64 = 1 << 20;
/// So many small overwrites make a file one that is rewritten in place.
const REWRITES: u32 = 64;

/// Which content a batch takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Select {
    /// Everything.
    All,
    /// A batch's worth.
    Batch,
    /// What has not been written for a while.
    Idle,
}

/// What the destager is asked for, and how it fares.
#[derive(Default)]
pub(super) struct Control {
    state: Mutex<Asked>,
    changed: Condvar,
    /// One batch at a time.
    turn: Mutex<()>,
    /// The log is filling up.
    pressed: AtomicBool,
    /// There may be roots that are held for the log.
    holds: AtomicBool,
}

#[derive(Default)]
struct Asked {
    stop: bool,
    pressed: bool,
    failed: Option<(Errno, Instant)>,
}

impl Control {
    /// Somebody is about to write.
    pub fn note_pressure(&self, fill: Fill) {
        if is_high(fill) && !self.pressed.swap(true, Ordering::Relaxed) {
            self.state.lock().expect("no panic while held").pressed = true;
            self.changed.notify_all();
        }
    }

    /// A root was held.
    pub fn note_hold(&self) {
        self.holds.store(true, Ordering::Relaxed);
    }

    /// Why writers who wait for room should not go on waiting.
    pub fn trouble(&self) -> Option<Errno> {
        self.state.lock().expect("no panic while held").failed.map(|(errno, _)| errno)
    }

    /// Ends the destager's thread.
    pub fn stop(&self) {
        self.state.lock().expect("no panic while held").stop = true;
        self.changed.notify_all();
    }
}

fn is_high(fill: Fill) -> bool {
    fill.waiting > 0 || fill.used + fill.reserved > fill.capacity / 2
}

/// A node in a batch.
struct Taken {
    node: Arc<Node>,
    edition: u64,
    /// Of a file whose content goes along.
    content: Option<TakenContent>,
}

struct TakenContent {
    sequence: u64,
    staged: u64,
    rewrites: u32,
    was_closed: bool,
}

impl Core {
    /// The destager's thread.
    pub fn run_destager(self: &Arc<Self>) {
        loop {
            let asked = {
                let state = self.control.state.lock().expect("no panic while held");
                let state = if state.pressed || state.stop {
                    state
                } else {
                    self.control.changed.wait_timeout(state, TICK).expect("no panic while held").0
                };
                (state.stop, state.failed)
            };
            if asked.0 {
                return;
            }
            if asked.1.is_some_and(|(_, at)| at.elapsed() < RETRY) {
                std::thread::sleep(TICK);
                continue;
            }
            let Some(select) = self.due() else { continue };
            let done = self.destage(select, None);
            self.note_outcome(&done);
        }
    }

    fn note_outcome(&self, done: &Result<()>) {
        let mut state = self.control.state.lock().expect("no panic while held");
        let told = |error: &Error| (self.world.reports.errno_of_our_own(error), Instant::now());
        state.failed = done.as_ref().err().map(told);
    }

    /// What should be destaged now, if anything.
    fn due(&self) -> Option<Select> {
        let fill = self.log.fill();
        let high = is_high(fill);
        self.control.pressed.store(high, Ordering::Relaxed);
        self.control.state.lock().expect("no panic while held").pressed = high;
        let dirty = self.world.dirty.lock().expect("no panic while held");
        if dirty.is_empty() {
            return high.then_some(Select::All);
        }
        if high || dirty.len() > WAITING_MAX {
            return Some(Select::Batch);
        }
        let idle = self.options.idle;
        let waited = dirty.values().any(|node| {
            let state = node.read();
            let since = state.file.dirty_since.unwrap_or(state.file.written);
            state.is_dirty() && (state.file.written.elapsed() >= idle || since.elapsed() >= 4 * idle)
        });
        waited.then_some(Select::Idle)
    }

    /// Destages everything that is staged now.
    ///
    /// # Errors
    /// Those of the store; what could not be destaged stays staged.
    pub fn flush(self: &Arc<Self>) -> Result<()> {
        let done = self.destage(Select::All, None);
        self.note_outcome(&done);
        done
    }

    /// Closes the gate, destages what is left, and runs `work` on a store that has everything, before changes go on.
    ///
    /// # Errors
    /// Those of the store and of `work`.
    pub fn with_everything_stored<T>(self: &Arc<Self>, work: impl FnOnce() -> Result<T>) -> Result<T> {
        // Most of it while changes go on.
        self.flush()?;
        let gate = self.gate.close();
        self.destage(Select::All, Some(&gate))?;
        work()
    }

    /// Destages one batch; see the module. `closed`: the gate, if the caller has closed it.
    pub fn destage(self: &Arc<Self>, select: Select, closed: Option<&Closed<'_>>) -> Result<()> {
        let _turn = self.control.turn.lock().expect("no panic while held");
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
        for node in dirty {
            let content = selected.contains_key(&node.number);
            let (item, note) = self.item(&node, content, &policies)?;
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
        Counters::add(&self.counters.batch_nanos, began.elapsed().as_nanos() as u64);
        Counters::add(&self.counters.destaged, staged);
        Counters::add(&self.counters.stored, summary.progress.bytes_stored);
        Counters::add(&self.counters.new, summary.progress.bytes_new);
        self.reclaim(sequence)
    }

    /// The dirty nodes that have names. What lost its last name leaves the set: the database will not have it any more.
    fn take_dirty(&self) -> Vec<Arc<Node>> {
        let mut dirty = self.world.dirty.lock().expect("no panic while held");
        dirty.retain(|_, node| {
            let named = node.read().links > 0;
            if !named {
                node.listed.store(false, Ordering::Relaxed);
            }
            named
        });
        dirty.values().map(Arc::clone).collect()
    }

    /// Files whose content goes along, by their numbers.
    fn select(&self, select: Select, dirty: &[Arc<Node>]) -> HashMap<u64, ()> {
        let oldest = self.log.oldest_segment();
        let (idle, pressed) = (self.options.idle, is_high(self.log.fill()));
        let mut waiting = Vec::new();
        let mut chosen = HashMap::new();
        let mut bytes = 0;
        for node in dirty.iter().filter(|node| node.kind == FileKind::File) {
            let state = node.read();
            let file = &state.file;
            if file.map.is_clean() || state.links == 0 {
                continue;
            }
            let staged = file.map.staged_bytes();
            let is_due = match select {
                Select::All => true,
                Select::Batch => file.map.oldest_segment().is_some_and(|segment| segment <= oldest),
                Select::Idle => {
                    let patience = if file.in_place { 4 * idle } else { idle };
                    file.written.elapsed() >= patience
                        || file.dirty_since.is_some_and(|since| since.elapsed() >= 4 * patience)
                }
            };
            if is_due {
                chosen.insert(node.number, ());
                bytes += staged;
            } else {
                waiting.push((file.written, file.dirty_since, node.number, staged));
            }
        }
        if select == Select::Batch && pressed {
            match self.options.order {
                Order::LeastRecentlyWritten => waiting.sort_unstable_by_key(|(written, ..)| *written),
                Order::FirstWritten => waiting.sort_unstable_by_key(|(_, since, ..)| *since),
                Order::MostRecentlyWritten => {
                    waiting.sort_unstable_by_key(|(written, ..)| std::cmp::Reverse(*written));
                }
            }
            for (_, _, number, staged) in waiting {
                if bytes >= self.options.batch_bytes {
                    break;
                }
                chosen.insert(number, ());
                bytes += staged;
            }
        }
        chosen
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
            let note = Taken { node: Arc::clone(node), edition, content: None };
            return Ok((Item::Change(change), note));
        }
        let file = &state.file;
        let pieces: Vec<(Range<u64>, Piece)> = file.map.pieces(0..u64::MAX).collect();
        // With the node held nothing of it is being appended, so this is no older than its last record.
        let sequence = self.log.last();
        let (staged, keep, in_place) = (file.map.staged_bytes(), file.is_version, file.in_place);
        let root = Arc::new(root.clone());
        let was_closed = !node.has_writers();
        drop(state);
        let policy = self.policy_of(policies, parent)?;
        // Blocks suit such a file best, unless the mount was told how to cut everything.
        let blocks = in_place && self.options.overrides.chunker.is_none();
        let chunker = if blocks { ChunkerSpec::Fixed { size: BLOCK } } else { policy.chunker };
        let planned = plan(&self.reader(), &root, &pieces, chunker)?;
        let content = TakenContent { sequence, staged, rewrites: planned.rewrites, was_closed };
        let source = Arc::new(Noted { core: Arc::clone(self), root: Arc::clone(&root), pieces });
        let item = FileItem {
            to: Target::Node { inode, parent, keep: keep && *root != Root::Empty },
            attributes,
            content: Content::Parts(Parts { parts: planned.parts, source }),
            chunker,
            codec: policy.codec,
            dedup: policy.dedup,
            frame: in_place.then_some(BLOCK_FRAME),
            oracle: Oracle::Off,
        };
        Ok((Item::File(item), Taken { node: Arc::clone(node), edition, content: Some(content) }))
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
        let Taken { node, edition, content } = note;
        let mut state = node.write();
        state.in_database = true;
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

    /// Gives back what the log does not need any more, names being committed up to `sequence`.
    fn reclaim(&self, sequence: u64) -> Result<()> {
        self.log.remove_dead(sequence)?;
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
