//! One batch: what is written and committed together.
//!
//! A batch
//!
//! 1. takes of each file a dirty snapshot ([`DirtySnapshot`]): the staged data and the row that it lies over;
//! 2. sends larger files through a writer, which cuts, hashes, compresses and packs. When its packs
//!    are durable, one transaction gives each file its content, if the row is still the same;
//! 3. drops what was stored from the files, and from the log the segments that nothing needs;
//! 4. does the same for small files, which are cut and hashed in memory and wait for no pack: their
//!    transaction also adds the new chunks to the database ([`outrigger_store::inline`]).
//!    `packer.rs` packs these later.
//!
//! If a row has changed or a file cannot be stored, the whole transaction fails, for large or small
//! files.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use outrigger_clock::Instant;
use outrigger_format::Root;
use outrigger_format::catalogue::Attributes;
use outrigger_store::inline::{self, new_bytes_max};
use outrigger_store::meta::inline::InlineChunk;
use outrigger_store::meta::{Change, ROOT_INODE, orphan_holder};
use outrigger_store::policy::{Policies, WritePolicy};
use outrigger_store::publish::Touched;
use outrigger_store::staging::{Due, Piece};
use outrigger_store::write::{
    CommitWhen, Composed, Content, FileItem, Item, PartSource, Parts, Progress, Target, WriteOptions,
    WriteSummary, Writer, compose,
};
use outrigger_store::{Error, ErrorKind, Result};

use super::core::Core;
use super::dirty::DirtySnapshot;
use super::file::File;
use super::in_doubt::Tried;
use super::store::Asked;
use crate::live::file::read_noted;
use crate::live::plan::plan;
use crate::measures::{Histogram, Status};

/// Bytes of small contents in one batch. More than that is packed at once, as it is not small.
const SMALL_BATCH_MAX: u64 = 1 << 20;

#[derive(Default)]
pub(super) struct Counters {
    stored: AtomicU64,
    new: AtomicU64,
    pub(super) destaged: AtomicU64,
    failures: AtomicU64,
    pub(super) outside: AtomicU64,
    took: Histogram,
}

impl Counters {
    pub(super) fn add(counter: &AtomicU64, value: u64) {
        counter.fetch_add(value, Ordering::Relaxed);
    }

    pub fn watch(&self, status: &mut Status) {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        status.destaged_bytes = of(&self.destaged);
        status.new_bytes = of(&self.new);
        status.stored_bytes = of(&self.stored);
        status.destage_failures = of(&self.failures);
        status.outside_changes = of(&self.outside);
        (status.destage_last_seconds, status.destage_longest_seconds) = self.took.last_and_longest();
        status.destage_seconds = self.took.spread();
    }
}

impl Core {
    /// Stores these files. The caller has the flush lock.
    pub fn batch(self: &Arc<Self>, asked: &mut Asked, files: &[Arc<File>]) -> Result<()> {
        self.batch_of(asked, || files.iter().map(|file| self.cut(file)).collect())
    }

    /// Stores what is due of these files. The caller has the flush lock.
    pub fn batch_due(self: &Arc<Self>, asked: &mut Asked, files: &[Arc<File>], due: &Due) -> Result<()> {
        self.batch_of(asked, || files.iter().filter_map(|file| self.cut_due(file, due)).collect())
    }

    fn batch_of(self: &Arc<Self>, asked: &mut Asked, cut: impl FnOnce() -> Vec<DirtySnapshot>) -> Result<()> {
        let began = Instant::now();
        let policies = self.policies(asked)?;
        let cuts = cut();
        let done = self.write(&cuts, &policies, &mut asked.packs_at);
        match &done {
            Ok(()) => {
                self.counters.took.note(began.elapsed());
                self.log.remove_dead(self.log.last())?;
            }
            Err(error) => {
                // For those that were stored it changes nothing.
                self.give_up_cuts(&cuts);
                let is_ours = !matches!(error.kind(), ErrorKind::Changed | ErrorKind::NotFound);
                Counters::add(&self.counters.failures, is_ours.into());
            }
        }
        done
    }

    /// Writes, commits and settles. Small files need no access to the packs' place.
    fn write(
        self: &Arc<Self>,
        cuts: &[DirtySnapshot],
        policies: &Policies,
        packs_at: &mut Option<Instant>,
    ) -> Result<()> {
        let (mut small, mut large) = (Vec::new(), Vec::new());
        let (kept, cuts): (Vec<&DirtySnapshot>, Vec<&DirtySnapshot>) =
            cuts.iter().partition(|cut| cut.is_kept);
        let (cuts, same): (Vec<&DirtySnapshot>, Vec<&DirtySnapshot>) =
            cuts.into_iter().partition(|cut| cut.is_content);
        small.extend(same.into_iter().map(|cut| (cut, cut.as_it_was())));
        let items = cuts.iter().map(|cut| self.item(cut, policies)).collect::<Result<Vec<_>>>()?;
        let most = new_bytes_max(&self.store);
        let bytes = cuts.iter().map(|cut| cut.staged).filter(|staged| *staged <= most).sum::<u64>();
        let composes = bytes <= SMALL_BATCH_MAX && self.packer.has_room();
        for (cut, item) in cuts.into_iter().zip(items) {
            let composed = match composes {
                true => compose(&self.reader(), &item, most)?,
                false => None,
            };
            match composed {
                Some(composed) => small.push((cut, composed)),
                None => large.push((cut, item)),
            }
        }
        let chunk_max = policies.chunk_max()?;
        if !large.is_empty() || !kept.is_empty() {
            self.follow_packs(packs_at)?;
        }
        self.write_large(large, chunk_max)?;
        self.write_small(small, &[])?;
        self.write_kept(kept, policies, chunk_max)
    }

    /// Holds the content of files without a name, by transactions of another kind.
    fn write_kept(
        self: &Arc<Self>,
        cuts: Vec<&DirtySnapshot>,
        policies: &Policies,
        chunk_max: usize,
    ) -> Result<()> {
        let (cuts, same): (Vec<&DirtySnapshot>, Vec<&DirtySnapshot>) =
            cuts.into_iter().partition(|cut| cut.is_content);
        same.into_iter().for_each(|cut| self.settle(cut, cut.was.1.clone()));
        let items = cuts.into_iter().map(|cut| Ok((cut, self.item(cut, policies)?)));
        self.write_large(items.collect::<Result<Vec<_>>>()?, chunk_max)
    }

    fn write_large(&self, large: Vec<(&DirtySnapshot, FileItem)>, chunk_max: usize) -> Result<()> {
        if large.is_empty() {
            return Ok(());
        }
        let (cuts, items): (Vec<&DirtySnapshot>, Vec<FileItem>) = large.into_iter().unzip();
        let tried = || Tried::Store(cuts.iter().copied().cloned().collect());
        let stored = self.through_pipeline(items, chunk_max);
        let mut roots = stored.inspect_err(|error| self.note_in_doubt(error, tried))?;
        for cut in cuts {
            let number = cut.file.number;
            let root = roots.remove(&number).ok_or_else(|| {
                Error::new(ErrorKind::Io, format!("the writer does not say what inode {number} became"))
            })?;
            self.settle(cut, root);
        }
        Ok(())
    }

    /// Cuts, compresses, packs and commits under the flush lock; returns each inode's root.
    pub fn through_pipeline(&self, items: Vec<FileItem>, chunk_max: usize) -> Result<HashMap<u64, Root>> {
        let options =
            WriteOptions { threads: self.options.write_threads, chunk_max, commit: CommitWhen::AtTheEnd };
        let committing = self.packer.begin_commit()?;
        let touched = Touched::inodes(items.iter().filter_map(|item| match item.to {
            Target::Swap { inode, .. } => Some(inode),
            _ => None,
        }));
        let done = self.write_items(items, &options);
        self.note_committed(committing, &done, touched);
        let summary = done?;
        Counters::add(&self.counters.stored, summary.progress.bytes_stored);
        Counters::add(&self.counters.new, summary.progress.bytes_new);
        Ok(summary.nodes.into_iter().collect())
    }

    fn write_items(&self, items: Vec<FileItem>, options: &WriteOptions) -> Result<WriteSummary> {
        let progress = Arc::new(Progress::default());
        let session = self.session();
        let mut writer = Writer::start(&self.store, &session, options, &progress);
        for item in items {
            if let Err(error) = writer.submit(Item::File(item)) {
                // The committer knows better what was wrong, if it has stopped.
                return match (error.kind(), writer.finish()) {
                    (ErrorKind::Cancelled, Err(better)) => Err(better),
                    _ => Err(error),
                };
            }
        }
        writer.finish()
    }

    /// Writes and settles in one transaction, followed by `more`. False: a file is not small.
    pub fn write_with(
        self: &Arc<Self>,
        cuts: &[DirtySnapshot],
        changes: &[Change],
        policies: &Policies,
    ) -> Result<bool> {
        let mut small = Vec::new();
        for cut in cuts {
            let composed = match cut.is_content {
                true => self.compose_small(cut, policies)?,
                false => Some(cut.as_it_was()),
            };
            match composed {
                Some(composed) if !cut.is_kept => small.push((cut, composed)),
                _ => return Ok(false),
            }
        }
        self.write_small(small, changes).map(|()| true)
    }

    fn write_small(&self, small: Vec<(&DirtySnapshot, Composed)>, more: &[Change]) -> Result<()> {
        if small.is_empty() && more.is_empty() {
            return Ok(());
        }
        let (mut changes, mut chunks, mut settled) = (Vec::new(), Vec::new(), Vec::new());
        for (cut, composed) in small {
            changes.push(Change::CompareAndSwap {
                inode: cut.file.number,
                parent: self.parent_of(cut.file.number),
                was: Box::new(cut.was.clone()),
                attributes: cut.attributes.clone(),
                root: composed.root.clone(),
                keep: cut.keep,
            });
            chunks.extend(composed.chunks);
            settled.push((cut, composed.root));
        }
        changes.extend_from_slice(more);
        let tried = || Tried::Store(settled.iter().map(|(cut, _)| (*cut).clone()).collect());
        self.commit_small(changes, chunks).inspect_err(|error| self.note_in_doubt(error, tried))?;
        settled.into_iter().for_each(|(cut, root)| self.settle(cut, root));
        Ok(())
    }

    /// One transaction, with the chunks that its changes need.
    pub fn commit_small(&self, changes: Vec<Change>, chunks: Vec<InlineChunk>) -> Result<()> {
        // One that is over is as good: what is its is taken over.
        let owner = self.packer.session();
        let committing = self.packer.begin_commit()?;
        self.fresh.will_have(&changes);
        let touched = Touched::of(&changes);
        let done = inline::commit(&self.store, &self.session(), owner, changes, chunks);
        self.note_committed(committing, &done, touched);
        let bytes = done?;
        self.packer.note(bytes);
        Counters::add(&self.counters.new, bytes);
        Ok(())
    }

    /// The content of a snapshot, if it is small.
    pub fn compose_small(
        self: &Arc<Self>,
        cut: &DirtySnapshot,
        policies: &Policies,
    ) -> Result<Option<Composed>> {
        let most = new_bytes_max(&self.store);
        if cut.staged > most || !self.packer.has_room() {
            return Ok(None);
        }
        compose(&self.reader(), &self.item(cut, policies)?, most)
    }

    fn item(self: &Arc<Self>, cut: &DirtySnapshot, policies: &Policies) -> Result<FileItem> {
        let inode = cut.file.number;
        let parent = self.parent_of(inode);
        let policy = self.policy_of(policies, parent)?;
        let root = Arc::new(cut.base.clone().unwrap_or_else(|| cut.was.1.clone()));
        let to = match cut.is_kept {
            true => Target::Orphan { inode, holder: orphan_holder(inode) },
            false => Target::Swap { inode, parent, was: Box::new(cut.was.clone()), keep: cut.keep },
        };
        self.item_of(to, cut.attributes.clone(), (root, cut.pieces.clone()), policy)
    }

    /// A content of these pieces over that of a root.
    pub fn item_of(
        self: &Arc<Self>,
        to: Target,
        attributes: Attributes,
        (root, pieces): (Arc<Root>, Vec<(Range<u64>, Piece)>),
        policy: WritePolicy,
    ) -> Result<FileItem> {
        let planned = plan(&self.reader(), &root, &pieces, policy.chunker)?;
        let source = Arc::new(Noted { core: Arc::clone(self), root, pieces });
        Ok(FileItem::under(to, attributes, Content::Parts(Parts { parts: planned.parts, source }), policy))
    }

    pub fn policy_of(&self, policies: &Policies, directory: u64) -> Result<WritePolicy> {
        const DEPTH_MAX: usize = 4096;
        let mut above = vec![directory];
        while !policies.is_empty()
            && let Some(&at) = above.last()
            && at != ROOT_INODE
            && above.len() < DEPTH_MAX
            && let Some(parent) = self.store.meta.parent_of(at)?
        {
            above.push(parent);
        }
        above.push(ROOT_INODE);
        above.dedup();
        above.iter().rev().try_fold(policies.store_default(), |policy, inode| policies.below(policy, *inode))
    }
}

/// The bytes of a cut.
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
