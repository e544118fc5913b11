//! From the log to the store: what close and fsync wait for.
//!
//! One thread at a time has the flush lock. It stores what all that wait for the lock want stored,
//! in one batch, so that many closes share one transaction. A batch:
//!
//! 1. takes of each file a dirty snapshot (`DirtySnapshot`): the staged data and the row that it lies over;
//! 2. sends larger files through a writer, which cuts, hashes, compresses and packs. When its packs
//!    are durable, one transaction gives each file its content, if the row is still the same;
//! 3. drops what was stored from the files, and from the log the segments that nothing needs;
//! 4. does the same for small files, which are cut and hashed in memory and wait for no pack: their
//!    transaction also adds the new chunks to the database ([`outrigger_store::inline`]).
//!    `packer.rs` packs these later.
//!
//! If a row has changed or a file cannot be stored, the whole transaction fails, for large or small
//! files. Then each waiting thread stores its own file alone, if it still has to. If another host
//! changed the file, the thread reads it again and lays its bytes over the new content, until that
//! succeeds. Deduplication finds again what was packed.
//!
//! A batch in doubt is resolved before anything else is stored (`in_doubt.rs`). A closed file that
//! cannot be stored stays open here, and is tried again with later batches.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use outrigger_clock::Instant;
use outrigger_format::Root;
use outrigger_format::catalogue::Attributes;
use outrigger_store::inline::{self, NEW_BYTES_MAX};
use outrigger_store::meta::inline::InlineChunk;
use outrigger_store::meta::{Change, ROOT_INODE, orphan_holder};
use outrigger_store::policy::{Policies, WritePolicy};
use outrigger_store::publish::Touched;
use outrigger_store::staging::Piece;
use outrigger_store::write::{
    CommitWhen, Composed, Content, FileItem, Item, PartSource, Parts, Progress, Target, WriteOptions,
    WriteSummary, Writer, compose,
};
use outrigger_store::{Error, ErrorKind, Result};

use super::core::{Core, TRIES};
use super::file::{File, State};
use super::in_doubt::{InDoubt, Tried};
use crate::live::file::read_noted;
use crate::live::plan::plan;
use crate::measures::{Histogram, Status};
use crate::view::content::StoredFile;

/// How long other hosts' new policies and packs (whose chunks are stored again) may stay unknown.
const FOLLOW_EVERY: Duration = Duration::from_secs(1);

/// Pause before storing again what could not be stored at its close.
const RETRY_EVERY: Duration = Duration::from_secs(5);
/// Growth of the pause after each time that other hosts have changed the file again.
const PAUSE: Duration = Duration::from_millis(1);
const PAUSES_MAX: u32 = 50;
/// Bytes of small contents in one batch. More than that is packed at once, as it is not small.
const SMALL_BATCH_MAX: u64 = 1 << 20;

/// The flush lock, and the files that wait for it.
#[derive(Default)]
pub(super) struct Turn {
    pub turn: Mutex<Asked>,
    waiting: Mutex<Vec<Arc<File>>>,
    left: Mutex<Left>,
    /// The commit in doubt. Only the holder of the flush lock sets or clears it.
    in_doubt: Mutex<Option<Arc<InDoubt>>>,
}

/// The database's last answers.
#[derive(Default)]
pub(super) struct Asked {
    at: Option<Instant>,
    policies: Option<Arc<Policies>>,
    /// When other hosts' packs were last read about, in their place.
    pub packs_at: Option<Instant>,
}

impl Turn {
    fn waiting(&self) -> MutexGuard<'_, Vec<Arc<File>>> {
        self.waiting.lock().expect("no panic while held")
    }

    pub fn in_doubt(&self) -> MutexGuard<'_, Option<Arc<InDoubt>>> {
        self.in_doubt.lock().expect("no panic while held")
    }
}

/// Files that are closed, and of which something could not be stored. Each has kept a handle.
#[derive(Default)]
struct Left {
    files: Vec<Arc<File>>,
    tried: Option<Instant>,
}

#[derive(Default)]
pub(super) struct Counters {
    stored: AtomicU64,
    new: AtomicU64,
    destaged: AtomicU64,
    failures: AtomicU64,
    outside: AtomicU64,
    took: Histogram,
}

impl Counters {
    fn add(counter: &AtomicU64, value: u64) {
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

/// A file as it was when its batch was cut.
#[derive(Clone)]
pub(super) struct DirtySnapshot {
    pub file: Arc<File>,
    sequence: u64,
    pub len: u64,
    pieces: Vec<(Range<u64>, Piece)>,
    staged: u64,
    pub was: (Attributes, Root),
    /// The content below the pieces, if it is not that of `was`: the file's stored prefix.
    base: Option<Root>,
    pub attributes: Attributes,
    edits: usize,
    /// Not only attributes were changed.
    pub is_content: bool,
    /// Only the file's first `len` bytes are stored.
    is_part: bool,
    /// No name leads to it: see [`State::is_kept`](super::file::State::is_kept).
    pub is_kept: bool,
    keep: bool,
    edition: u64,
}

impl Core {
    /// Stores what was written to a file. With `closes`, what is stored is what the file was at a close.
    ///
    /// # Errors
    /// Those of the store; then it stays staged.
    pub fn store_file(self: &Arc<Self>, file: &Arc<File>, closes: bool) -> Result<()> {
        let mut stored = Ok(());
        if self.is_in_doubt_of(file.number) {
            // Perhaps the outcome in doubt gave it a name.
            drop(self.take_turn()?);
        }
        if !file.is_stored() {
            self.await_delegated(file);
            self.store_deferred();
            stored = self.store_one(file);
        }
        self.store_left();
        stored?;
        if closes {
            let mut state = file.write();
            (state.is_version, state.is_new, state.writer) = (true, false, None);
        }
        Ok(())
    }

    /// Adds these files to the batch of the next holder of the flush lock.
    pub fn will_store(&self, files: &[Arc<File>]) {
        self.turn.waiting().extend(files.iter().cloned());
    }

    /// As [`Core::store_file`], of this file and those that wait for the flush lock.
    pub fn store_one(self: &Arc<Self>, file: &Arc<File>) -> Result<()> {
        self.turn.waiting().push(Arc::clone(file));
        for tries in 0..TRIES {
            // Others store their files during the pause.
            let pauses = tries.saturating_sub(1).min(PAUSES_MAX);
            outrigger_clock::sleep(PAUSE * pauses);
            let mut turn = self.take_turn()?;
            // The row may have changed during the pause. A busy host would win each time.
            if pauses > 0 {
                self.refresh(file)?;
            }
            if file.is_stored() {
                self.turn.waiting().retain(|other| !Arc::ptr_eq(other, file));
                return Ok(());
            }
            // After an error each file goes alone: another file may have caused the error.
            let mut files = if tries == 0 { std::mem::take(&mut *self.turn.waiting()) } else { Vec::new() };
            let mut numbers = HashSet::from([file.number]);
            files.retain(|other| !other.is_stored() && numbers.insert(other.number));
            files.push(Arc::clone(file));
            let before = file.read().row.root.clone();
            let Err(error) = self.batch(&mut turn, &files) else { return Ok(()) };
            drop(turn);
            if error.kind() == ErrorKind::Fenced {
                self.session().note(&error);
                self.lease.live()?;
                continue;
            }
            let is_outside = matches!(error.kind(), ErrorKind::Changed | ErrorKind::NotFound);
            Counters::add(&self.counters.outside, is_outside.into());
            if !is_outside && error.kind() != ErrorKind::Damaged {
                if files.len() > 1 {
                    continue;
                }
                return Err(error);
            }
            // Another host may have stored another content, and a collector taken this one.
            self.refresh(file)?;
            let is_same = !file.is_stored() && file.read().row.root == before;
            if is_same && error.kind() != ErrorKind::Changed && files.len() == 1 {
                return Err(error);
            }
        }
        Err(Error::new(ErrorKind::Busy, "other hosts change this file all the time"))
    }

    /// Stores everything that can be.
    ///
    /// # Errors
    /// The first one; what could not be stored stays staged.
    pub fn store_all(self: &Arc<Self>) -> Result<()> {
        let (delegated, files) = self.dirty_delegated();
        // Agents' files come later: a batch would store all that is written to them meanwhile.
        self.will_store(&files);
        self.store_each(files.iter().chain(&delegated))
    }

    fn store_each<'a>(self: &Arc<Self>, files: impl Iterator<Item = &'a Arc<File>>) -> Result<()> {
        let mut first = Ok(());
        for file in files {
            let stored = self.store_file(file, false);
            // Nothing can be stored without the session.
            let goes_on = stored.as_ref().err().is_none_or(|error| error.kind() != ErrorKind::Fenced);
            first = first.and(stored);
            if !goes_on {
                break;
            }
        }
        first
    }

    /// The files with data to store: first those that agents store.
    fn dirty_delegated(&self) -> (Vec<Arc<File>>, Vec<Arc<File>>) {
        let by_others =
            |file: &Arc<File>| file.read().open.as_ref().is_some_and(|open| open.is_left_to_others());
        self.dirty().into_iter().partition(by_others)
    }

    /// Stores all that it can without waiting for agents: of their files, the parts they stored.
    ///
    /// # Errors
    /// The first one.
    pub fn make_some_room(self: &Arc<Self>) -> Result<()> {
        let (delegated, files) = self.dirty_delegated();
        self.will_store(&files);
        let stored = self.store_each(files.iter());
        delegated.iter().try_for_each(|file| self.store_delegated(file)).and(stored)?;
        self.keep_some()
    }

    /// Stores everything that can be stored, and anonymous files only if that was not enough.
    ///
    /// # Errors
    /// The first one.
    pub fn make_all_room(self: &Arc<Self>) -> Result<()> {
        self.store_all()?;
        self.keep_some()
    }

    fn keep_some(self: &Arc<Self>) -> Result<()> {
        if self.is_filling() { self.keep_anonymous() } else { Ok(()) }
    }

    /// Closes a handle. If it is the last one of a file that could not be stored, the file stays.
    pub fn close_file(&self, file: &Arc<File>) {
        if !self.open.close(file) {
            let mut left = self.turn.left.lock().expect("no panic while held");
            left.tried = Some(Instant::now());
            left.files.push(Arc::clone(file));
            return;
        }
        self.anonymous_closed(file);
    }

    /// True if something could not be stored, at its close or since.
    pub fn has_left(&self) -> bool {
        !self.turn.left.lock().expect("no panic while held").files.is_empty()
    }

    /// Tries again to store what was left when it was closed, unless that was a moment ago.
    fn store_left(self: &Arc<Self>) {
        let due = |left: &Left| left.tried.is_none_or(|at| at.elapsed() >= RETRY_EVERY);
        let _ = self.fail(self.store_left_if(due));
    }

    fn store_left_if(self: &Arc<Self>, is_due: impl Fn(&Left) -> bool) -> Result<()> {
        let files = {
            let mut left = self.turn.left.lock().expect("no panic while held");
            if left.files.is_empty() || !is_due(&left) {
                return Ok(());
            }
            left.tried = Some(Instant::now());
            std::mem::take(&mut left.files)
        };
        let mut first = Ok(());
        for file in files {
            first = first.and(self.store_one(&file));
            self.close_file(&file);
        }
        first
    }

    /// Stores all closed files, so that they are in the store when this returns.
    ///
    /// # Errors
    /// The first one.
    pub fn store_closed(self: &Arc<Self>) -> Result<()> {
        self.lease.live()?;
        self.store_deferred();
        self.store_left_if(|_| true)
    }

    pub fn refresh(&self, file: &Arc<File>) -> Result<()> {
        let knows_only_here = |state: &State| state.is_hidden || state.may_be_named;
        if knows_only_here(&file.read()) {
            return Ok(());
        }
        let row = self.store.meta.inode(outrigger_store::meta::At::Now, file.number)?;
        let mut state = file.write();
        match row {
            Some(row) => state.take(&row, &self.budget),
            None => state.lose(),
        }
        Ok(())
    }

    /// Recent policies. The session has followed the collector since they were read.
    pub fn policies(&self, asked: &mut Asked) -> Result<Arc<Policies>> {
        let session = self.session();
        session.check()?;
        if let Some(policies) = &asked.policies
            && asked.at.is_some_and(|at| at.elapsed() < FOLLOW_EVERY)
        {
            return Ok(Arc::clone(policies));
        }
        session.follow().inspect_err(|error| session.note(error))?;
        let policies = Arc::new(Policies::load(&self.store)?.with(self.options.overrides));
        (asked.at, asked.policies) = (Some(Instant::now()), Some(Arc::clone(&policies)));
        Ok(policies)
    }

    /// Stores these files. The caller has the flush lock.
    pub fn batch(self: &Arc<Self>, asked: &mut Asked, files: &[Arc<File>]) -> Result<()> {
        let began = Instant::now();
        let policies = self.policies(asked)?;
        let cuts: Vec<DirtySnapshot> = files.iter().map(|file| self.cut(file)).collect();
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

    /// Ends the commits of these snapshots, except for those in doubt.
    pub fn give_up_cuts(&self, cuts: &[DirtySnapshot]) {
        let known = cuts.iter().filter(|cut| !self.is_in_doubt_of(cut.file.number));
        known.for_each(|cut| self.give_up_cut(cut));
    }

    pub fn give_up_cut(&self, cut: &DirtySnapshot) {
        let mut state = cut.file.write();
        state.is_committing = false;
        state.settle_pinned(&self.budget);
    }

    /// Takes a dirty snapshot of the file.
    pub fn cut(&self, file: &Arc<File>) -> DirtySnapshot {
        let mut state = file.write();
        state.is_committing = true;
        self.cut_in(file, &state)
    }

    /// As [`Core::cut`], of a file whose state is held.
    pub fn cut_in(&self, file: &Arc<File>, state: &State) -> DirtySnapshot {
        let attributes = state.attributes();
        let (base, mut pieces) = state.increment_pieces();
        let all = state.map.len();
        let len = state.delegated_part().unwrap_or(all);
        let (mut staged, is_part) = (state.map.staged_bytes(), len < all);
        if is_part {
            let deferred = pieces.drain(1..).map(|(_, piece)| match piece {
                Piece::Data(at) => u64::from(at.len),
                _ => 0,
            });
            staged -= deferred.sum::<u64>();
        }
        DirtySnapshot {
            file: Arc::clone(file),
            // Later writes to this file have later sequence numbers.
            sequence: self.log.last(),
            len,
            base,
            pieces,
            staged,
            was: (state.row.attributes.clone(), state.row.root.clone()),
            attributes,
            edits: state.waiting(),
            is_content: !state.map.is_clean(),
            is_part,
            is_kept: state.is_kept() || state.is_noted,
            keep: state.is_version && state.row.root != Root::Empty,
            edition: state.edition,
        }
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
        let bytes = cuts.iter().map(|cut| cut.staged).filter(|staged| *staged <= NEW_BYTES_MAX).sum::<u64>();
        let composes = bytes <= SMALL_BATCH_MAX && self.packer.has_room();
        for (cut, item) in cuts.into_iter().zip(items) {
            let composed = match composes {
                true => compose(&self.reader(), &item, NEW_BYTES_MAX)?,
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

    /// Reads about other hosts' packs, unless that was done a moment ago.
    pub fn follow_packs(&self, packs_at: &mut Option<Instant>) -> Result<()> {
        if packs_at.is_none_or(|at| at.elapsed() >= FOLLOW_EVERY) {
            self.store.follow_packs()?;
            *packs_at = Some(Instant::now());
        }
        Ok(())
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
        if cut.staged > NEW_BYTES_MAX || !self.packer.has_room() {
            return Ok(None);
        }
        compose(&self.reader(), &self.item(cut, policies)?, NEW_BYTES_MAX)
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

    /// Drops from a file what was stored.
    fn settle(&self, cut: &DirtySnapshot, root: Root) {
        self.settle_in(&mut cut.file.write(), cut, root);
    }

    /// As [`Core::settle`], of a file whose state is held.
    pub fn settle_in(&self, state: &mut State, cut: &DirtySnapshot, root: Root) {
        let number = cut.file.number;
        Counters::add(&self.counters.destaged, cut.staged);
        // Else they were set again after the commit, by this host.
        let is_newest = state.edition == cut.edition;
        state.give_up_stored(cut, root.len());
        state.stored = Arc::new(StoredFile::new(root.clone(), &self.budget));
        if is_newest {
            state.row.attributes = cut.attributes.clone();
        }
        if cut.is_kept {
            state.keep(&root);
        }
        state.row.root = root;
        state.is_version = false;
        state.settle_pinned(&self.budget);
        if is_newest {
            self.remember_own(&state.row, None);
        } else {
            self.forget_row(number);
        }
    }
}

impl State {
    /// Drops what the snapshot has: it was stored as a content of `len` bytes.
    pub fn give_up_stored(&mut self, cut: &DirtySnapshot, len: u64) {
        self.is_committing = false;
        match cut.is_part {
            true => self.map.settle_first(cut.sequence, len),
            false => self.map.settle(cut.sequence, len),
        };
        self.increments = None;
        self.edition += 1;
        self.edited(cut.edits);
        if self.map.is_clean() {
            (self.written, self.drops_rights, self.only_appended) = (None, false, false);
        }
    }
}

impl DirtySnapshot {
    /// The content that it had before.
    pub fn as_it_was(&self) -> Composed {
        Composed { root: self.was.1.clone(), chunks: Vec::new() }
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
