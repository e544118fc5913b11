//! The committer: seals full packs, and commits the changes whose data is durable, in the order
//! they were submitted.
//!
//! States of a change: *queued* (its newest frame lies in no sealed pack) → *committable* (its
//! frames, and those of every change before it, lie in sealed packs) → *committed*. One thread does
//! all of this, so that packs, catalogue and database follow each other in the order of
//! `write/mod.rs`. Workers never wait for a sync.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use outrigger_clock as clock;
use outrigger_clock::Instant;
use outrigger_format::catalogue::{BlockBuilder, Record};
use outrigger_format::{Fingerprint, PackId, Root};

use super::catalogue::BLOCK_BYTES;
use super::compare::Compare;
use super::dedup::PendingTable;
use super::meta_frames::MetaFrames;
use super::packer::SealingPack;
use super::places::Places;
use super::progress::Progress;
use crate::error::Result;
use crate::index::Index;
use crate::links::{self, Link, Links};
use crate::meta::{Change, Commit, Meta};
use crate::note::{Level, note};
use crate::publish::{self, Touched};
use crate::session::Session;
use crate::snapshot::facts::Counts;

/// A change that waits for its data to become durable.
pub(super) struct Pending {
    pub change: Change,
    /// The newest frame that holds a chunk of it; 0: none.
    pub newest_frame: u64,
}

/// Changes in order, and the frames that are not durable yet.
#[derive(Default)]
pub(super) struct CommitQueue {
    inner: Mutex<Inner>,
    taken: Condvar,
}

#[derive(Default)]
struct Inner {
    queue: VecDeque<Pending>,
    unsealed: BTreeSet<u64>,
    newest_opened: u64,
}

impl CommitQueue {
    pub fn push(&self, pending: Pending) {
        self.inner.lock().expect("no panic while held").queue.push_back(pending);
    }

    /// Records that frame `sequence` was opened (called again for every chunk; numbers rise).
    pub fn frame_opened(&self, sequence: u64) {
        let mut inner = self.inner.lock().expect("no panic while held");
        if sequence > inner.newest_opened {
            inner.newest_opened = sequence;
            inner.unsealed.insert(sequence);
        }
    }

    fn frames_sealed(&self, sequences: &[u64]) {
        let mut inner = self.inner.lock().expect("no panic while held");
        for sequence in sequences {
            inner.unsealed.remove(sequence);
        }
    }

    /// Changes that wait.
    pub fn waiting(&self) -> usize {
        self.inner.lock().expect("no panic while held").queue.len()
    }

    /// Waits while more than `limit` changes wait for nothing but their commit, unless `stopped`.
    /// It does not wait for changes that need data: the caller may be the worker that would write
    /// it.
    pub fn wait_for_room(&self, limit: usize, stopped: impl Fn() -> bool) {
        let mut inner = self.inner.lock().expect("no panic while held");
        while inner.queue.len() > limit && inner.front_is_ready() && !stopped() {
            inner = self.taken.wait_timeout(inner, IDLE_EVERY).expect("no panic while held").0;
        }
    }

    /// The committable prefix, at most `limit` changes.
    fn take(&self, limit: usize) -> Vec<Change> {
        let mut inner = self.inner.lock().expect("no panic while held");
        let oldest = inner.oldest_unsealed();
        let ready =
            inner.queue.iter().take(limit).take_while(|pending| pending.newest_frame < oldest).count();
        self.taken.notify_all();
        inner.queue.drain(..ready).map(|pending| pending.change).collect()
    }
}

impl Inner {
    fn oldest_unsealed(&self) -> u64 {
        self.unsealed.first().copied().unwrap_or(u64::MAX)
    }

    fn front_is_ready(&self) -> bool {
        self.queue.front().is_some_and(|pending| pending.newest_frame < self.oldest_unsealed())
    }
}

/// A message to the committer.
pub(super) enum Message {
    /// A data pack is full, and being made durable.
    Full(SealingPack),
    /// No more messages: seal and commit everything.
    Finish,
}

/// When a writer's changes become visible.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum CommitWhen {
    /// As soon as their data is durable, several at a time, in the order in which they were
    /// submitted.
    #[default]
    AsItComes,
    /// All in one transaction, at [`super::Writer::finish`], or none. Until then they are kept in
    /// memory, about 400 bytes each.
    AtTheEnd,
}

/// Sums over a writer's commits.
#[derive(Clone, Copy, Debug, Default)]
pub struct CommitTotals {
    /// Transactions.
    pub commits: u64,
    /// Entries that are new.
    pub created: u64,
    /// Entries that changed.
    pub changed: u64,
    /// Entries that were removed, including those in removed directories.
    pub removed: u64,
}

impl From<CommitTotals> for Counts {
    fn from(CommitTotals { created, changed, removed, .. }: CommitTotals) -> Self {
        Self { created, changed, removed }
    }
}

pub(super) struct Committer {
    pub session: Arc<Session>,
    pub meta: Arc<dyn Meta>,
    pub index: Arc<Index>,
    pub commits: Arc<CommitQueue>,
    pub pending: PendingTable,
    pub compare: Arc<Compare>,
    pub links: Arc<Links>,
    pub frames: Arc<Mutex<MetaFrames>>,
    pub progress: Arc<Progress>,
    pub when: CommitWhen,
    /// Set if the catalogue lacks changes of mounts.
    pub places: Option<Places>,
    /// Changes that the session has committed or abandoned so far.
    pub done: u64,
    /// Packs that are being made durable, oldest first: at most [`Committer::uploads_max`]
    /// (`Backend::uploads_max`), including the one that is waited for.
    pub sealing: VecDeque<SealingPack>,
    pub uploads_max: usize,
    /// Sealed packs, which become live with the next commit.
    pub sealed: Vec<PackId>,
    pub aliases: BTreeMap<u64, u64>,
    pub ended: Ended,
}

/// The results of a committer.
#[derive(Default)]
pub(super) struct Ended {
    pub totals: CommitTotals,
    /// See [`super::WriteSummary::nodes`].
    pub nodes: Vec<(u64, Root)>,
}

/// The time between commits when nothing forces one.
const COMMIT_EVERY: Duration = Duration::from_millis(500);
/// How often an idle pipeline asks whether its session still lives.
const IDLE_EVERY: Duration = Duration::from_millis(50);
/// Changes that may wait for one pack to fill. If tiny files exceed it, the pack is sealed early.
/// About 400 bytes each.
pub(super) const WAITING_MAX: usize = 32 << 10;
/// Changes in one transaction at most: bounds the time that other writers wait.
const CHANGES_MAX: usize = 20_000;

impl Committer {
    /// Runs until `Finish`, or until the pipeline hangs up.
    pub fn run(mut self, messages: &Receiver<Message>) -> Result<Ended> {
        let mut last = Instant::now();
        loop {
            match messages.recv_timeout(IDLE_EVERY) {
                Ok(Message::Full(pack)) => {
                    self.sealing.push_back(pack);
                    while self.sealing.len() >= self.uploads_max {
                        self.seal_oldest()?;
                    }
                    self.commit_if_due(&mut last)?;
                }
                Ok(Message::Finish) => {
                    while !self.sealing.is_empty() {
                        self.seal_oldest()?;
                    }
                    self.commit(true)?;
                    return Ok(self.ended);
                }
                Err(RecvTimeoutError::Timeout) => {
                    self.session.check()?;
                    self.seal_oldest()?;
                    self.commit_if_due(&mut last)?;
                }
                Err(RecvTimeoutError::Disconnected) => return Ok(self.ended),
            }
        }
    }

    fn commit_if_due(&mut self, last: &mut Instant) -> Result<()> {
        let due = last.elapsed() >= COMMIT_EVERY || self.commits.waiting() > WAITING_MAX;
        if due && self.when == CommitWhen::AsItComes {
            self.commit(false)?;
            *last = Instant::now();
        }
        Ok(())
    }

    /// Waits until the oldest of the packs that are being sealed is durable.
    fn seal_oldest(&mut self) -> Result<()> {
        let Some(pack) = self.sealing.pop_front() else { return Ok(()) };
        let sealed = pack.seal(&self.session)?;
        self.meta.packs_sealed(self.session.id(), std::slice::from_ref(&sealed.row))?;
        // Into the index first, then out of the pending table: see `Dedup::resolve`.
        self.index.add_pack(sealed.row.id, &sealed.footer);
        self.session.own_pack(sealed.row.id);
        {
            let mut pending = self.pending.lock().expect("no panic while held");
            sealed.footer.fingerprints().iter().for_each(|fingerprint| {
                pending.remove(fingerprint);
            });
        }
        self.compare.sealed(sealed.footer.fingerprints());
        self.commits.frames_sealed(&sealed.sequences);
        self.sealed.push(sealed.row.id);
        Progress::add(&self.progress.bytes_stored, sealed.row.bytes);
        Ok(())
    }

    /// Commits all committable changes; `is_last` if nothing more will be submitted.
    fn commit(&mut self, is_last: bool) -> Result<()> {
        loop {
            let limit = match self.when {
                CommitWhen::AsItComes => CHANGES_MAX,
                CommitWhen::AtTheEnd => usize::MAX,
            };
            let mut changes = self.commits.take(limit);
            if changes.is_empty() {
                return Ok(());
            }
            changes.iter_mut().for_each(|change| resolve_aliases(change, &self.aliases));
            self.commit_batch(changes, is_last)?;
        }
    }

    fn commit_batch(&mut self, changes: Vec<Change>, is_last: bool) -> Result<()> {
        // First of all: changes that a mount has acknowledged belong into the snapshot from before
        // the command.
        let _beside = self.session.stand_still()?;
        let before = match self.session.before_snapshot() {
            Some(before) => before.take(&*self.meta, is_last)?,
            None => None,
        };
        let time = clock::now_nanos();
        let sequence = self.meta.next_sequence()?;
        let above = match &mut self.places {
            Some(places) => places.records(&*self.meta, &changes)?,
            None => Vec::new(),
        };
        let snapshot = before.as_ref().map(|taken| taken.record.clone());
        let records = snapshot.into_iter().chain(above).chain(changes.iter().filter_map(record_of));
        let named = self.links.named(&*self.meta, &self.index)?;
        let blocks = self.seal_blocks(&blocks_of(records, &named, sequence, time))?;
        let commit = Commit { packs: std::mem::take(&mut self.sealed), changes, time };
        self.done += commit.changes.len() as u64;
        let committed =
            self.session.commit(self.done, &commit.packs, || self.meta.commit(self.session.id(), &commit))?;
        self.links.committed(&named, sequence, &blocks);
        self.aliases.extend(committed.aliases);
        self.tell_again(sequence, &commit.changes)?;
        if let Some(taken) = before {
            taken.settle(&*self.meta, sequence)?;
        }
        note(Level::Info, "commit", || {
            let counts = [
                ("packs", commit.packs.len() as u64),
                ("created", committed.created),
                ("changed", committed.changed),
            ];
            let fields = counts.map(|(name, count)| (name, count.to_string()));
            (format!("committed {} changes", commit.changes.len()), fields.into())
        });
        let Ended { totals, nodes } = &mut self.ended;
        totals.commits += 1;
        totals.created += committed.created;
        totals.changed += committed.changed;
        totals.removed += committed.removed;
        if self.when == CommitWhen::AtTheEnd {
            nodes.extend(commit.changes.into_iter().filter_map(|change| match change {
                Change::Node { inode, root, .. }
                | Change::CompareAndSwap { inode, root, .. }
                | Change::Orphan { inode, root, .. } => Some((inode, root)),
                _ => None,
            }));
        }
        Ok(())
    }

    /// Publishes the changes of a commit again, as they are now, if its block with this sequence
    /// may be wrong. There are two cases. First, a mount or a collector has published the tree
    /// since: then this block comes before it, and so before older changes. Second, a name was
    /// moved that a mount has not published yet: then the block cannot be applied. Mounts publish
    /// again by themselves, later: nothing may fail for them here, as their commit has happened.
    fn tell_again(&mut self, sequence: u64, changes: &[Change]) -> Result<()> {
        let (Some(_), Some(publishing)) = (&self.places, self.meta.publishing()) else { return Ok(()) };
        let is_of_mount = |change: &Change| {
            matches!(
                change,
                Change::Name { .. }
                    | Change::Node { .. }
                    | Change::CompareAndSwap { .. }
                    | Change::Orphan { .. }
            )
        };
        let goes_out_from = |change: &Change| matches!(change, Change::Rename { .. } | Change::Link { .. });
        if changes.iter().any(is_of_mount) {
            return Ok(());
        }
        let is_late = publishing.last_published()? > sequence
            || (changes.iter().any(goes_out_from) && publish::is_unpublished(&*self.meta)?);
        if !is_late {
            return Ok(());
        }
        let resolved = changes.iter().cloned().map(|mut change| {
            resolve_aliases(&mut change, &self.aliases);
            change
        });
        let mut touched = Touched::of(&resolved.collect::<Vec<_>>());
        while !touched.is_empty() {
            let Some((sequence, records)) =
                publish::read(&*self.meta, self.session.id(), &touched.take_some())?
            else {
                return Ok(());
            };
            let time = clock::now_nanos();
            let named = self.links.named(&*self.meta, &self.index)?;
            let blocks = self.seal_blocks(&blocks_of(records.into_iter(), &named, sequence, time))?;
            let commit = Commit { packs: std::mem::take(&mut self.sealed), changes: Vec::new(), time };
            self.session.commit(0, &commit.packs, || self.meta.commit(self.session.id(), &commit))?;
            self.links.committed(&named, sequence, &blocks);
        }
        Ok(())
    }

    /// Makes these blocks, and all manifest nodes so far, durable in packs. Returns the blocks'
    /// fingerprints.
    fn seal_blocks(&mut self, blocks: &[Vec<u8>]) -> Result<Vec<Fingerprint>> {
        let (packs, fingerprints) = self.frames.lock().expect("no panic while held").finish_packs(blocks)?;
        for pack in packs {
            let sealed = pack.seal(&self.session)?;
            self.meta.packs_sealed(self.session.id(), std::slice::from_ref(&sealed.row))?;
            self.index.add_pack(sealed.row.id, &sealed.footer);
            self.session.own_pack(sealed.row.id);
            self.frames.lock().expect("no panic while held").sealed(sealed.footer.fingerprints());
            self.sealed.push(sealed.row.id);
            Progress::add(&self.progress.bytes_stored, sealed.row.bytes);
        }
        Ok(fingerprints)
    }
}

fn resolve_aliases(change: &mut Change, aliases: &BTreeMap<u64, u64>) {
    let resolve = |inode: &mut u64| {
        if let Some(&kept) = aliases.get(inode) {
            *inode = kept;
        }
    };
    if aliases.is_empty() {
        return;
    }
    match change {
        Change::Put { parent, inode, .. } | Change::Link { parent, inode, .. } => {
            resolve(parent);
            resolve(inode);
        }
        Change::Remove { parent, .. } => resolve(parent),
        Change::Rename { parent, new_parent, .. } => {
            resolve(parent);
            resolve(new_parent);
        }
        // The client that submits these knows the real numbers.
        Change::Name { .. }
        | Change::Node { .. }
        | Change::IfName { .. }
        | Change::IfAttributes { .. }
        | Change::CompareAndSwap { .. }
        | Change::Touch { .. }
        | Change::PinContent { .. }
        | Change::Orphan { .. }
        | Change::Job(_)
        | Change::InlineChunks(_) => {}
    }
}

/// The catalogue blocks of a commit. The first one says that it comes after `named`.
fn blocks_of(
    records: impl Iterator<Item = Record>,
    named: &[Link],
    sequence: u64,
    time: u64,
) -> Vec<Vec<u8>> {
    let mut blocks = Vec::new();
    let mut builder = BlockBuilder::default();
    let mut records = records.peekable();
    // A commit without records has no block.
    let after = records.peek().and_then(|_| links::after(named));
    for record in after.into_iter().chain(records) {
        builder.push(&record);
        if builder.len() >= BLOCK_BYTES {
            blocks.push(builder.finish(sequence, time));
        }
    }
    if !builder.is_empty() {
        blocks.push(builder.finish(sequence, time));
    }
    blocks
}

fn record_of(change: &Change) -> Option<Record> {
    Some(match change.clone() {
        Change::Put { parent, name, inode, attributes, root, stamp: _, replace } => {
            let root = if attributes.kind == outrigger_format::catalogue::FileKind::File {
                root
            } else {
                Root::Empty
            };
            Record::Upsert { inode, parent, name, attributes, root, replace }
        }
        Change::Link { parent, name, inode } => Record::Link { parent, name, inode },
        Change::Remove { parent, name, .. } => Record::Unlink { parent, name },
        Change::Rename { parent, name, new_parent, new_name } => {
            Record::Rename { parent, name, new_parent, new_name }
        }
        Change::Name { parent, name, inode } => Record::Name { parent, name, inode },
        Change::Node { inode, parent, attributes, root, keep } => {
            Record::Node { inode, parent, attributes, root, keep }
        }
        Change::CompareAndSwap { inode, parent, attributes, root, keep, .. } => {
            Record::Node { inode, parent, attributes, root, keep }
        }
        Change::IfName { .. }
        | Change::IfAttributes { .. }
        | Change::Touch { .. }
        | Change::PinContent { .. }
        | Change::Orphan { .. }
        | Change::Job(_)
        | Change::InlineChunks(_) => return None,
    })
}
