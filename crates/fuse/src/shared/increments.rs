//! Incremental flush: a shared mount stores large files while they are written, so that a close has
//! little left to store and other hosts can read their beginning ([`outrigger_store::increments`]).
//!
//! One thread does this, under the flush lock. An increment (`Increment`) takes a file of which enough
//! was written in order, from byte 0 or from the end that it had. It stores that *prefix* as a
//! content without a name, over the increment before it. The file's row, its map and the log do not
//! change. When the file is stored, its dirty snapshot lies over the prefix, unless the file no
//! longer begins with it or its row has changed. Then all of it is stored, and finds the
//! increments' chunks again. So a failed or useless increment costs only time.
//!
//! The same thread makes room in the log when that is half full. Writers go on meanwhile, and wait
//! only when it is full. From agents it takes what they have stored so far ([`super::delegated`]). It
//! releases a prefix soon after its file is stored, closed or changed, but not during a commit over
//! it.
//!
//! **Programs that tail the file** count as having read an increment before it becomes visible: if
//! the writer changes those bytes, their work is void. A prefix from before the file was tailed is
//! not theirs, and is released before their job exists ([`Core::forget_increments`]).

use std::collections::{BTreeSet, VecDeque};
use std::ops::{Deref, Range};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use outrigger_clock::Instant;
use outrigger_format::Root;
use outrigger_format::catalogue::Attributes;
use outrigger_store::increments::holder;
use outrigger_store::staging::Piece;
use outrigger_store::write::Target;
use outrigger_store::{Error, ErrorKind, Result};

use super::core::Core;
use super::file::{File, State};
use super::in_doubt::Tried;
use super::worker::Worker;
use crate::follow::Prefix;

/// Minimum bytes of an increment, unless the options say otherwise: a few packs.
pub(super) const ROUND: u64 = 64 << 20;
/// A tailed file's first increment is this many times shorter, for an early start.
const FIRST: u64 = 64;
/// Each later one is this many times as long as all before it, up to a whole one. Few are better,
/// as each ends with a partly filled pack and a commit, and a slow program has enough to read. If
/// the writer is slow or pauses, data that has waited is stored once it fills a first increment.
const GROWS: u64 = 3;
/// An increment is this many times shorter if a reader is past what is stored, or others store it.
pub(super) const SHORTER: u64 = 4;
/// How often the thread looks for prefixes to release and for data that has waited.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Pause after making room freed too little.
const AGAIN: Duration = Duration::from_millis(100);
/// Pause after a failure, before the next increment.
const RETRY: Duration = Duration::from_secs(5);

/// The stored prefix of a file that is still written.
pub(super) struct Increments {
    /// All that was written since the file was begun.
    pub prefix: Prefix,
    /// The content that the file's row had then.
    over: Root,
    /// The stored content and how much of the file it has; at first, the file's own content.
    stored: Root,
    len: u64,
    /// How much the file had when it was begun.
    began: u64,
    /// There was a round.
    is_held: bool,
    /// When the last one ended.
    since: Instant,
}

#[derive(Clone, Copy)]
enum Due {
    /// Enough was written.
    Enough,
    /// Written data has waited for long.
    Waited,
}

/// Bytes of a tailed file's next increment, after `stored` bytes since the file was begun.
fn tailed_increment(round: u64, stored: u64) -> u64 {
    (stored * GROWS).clamp(round / FIRST, round)
}

#[derive(Clone)]
pub(super) struct Increment {
    attributes: Attributes,
    over: Root,
    base: Arc<Root>,
    pieces: Vec<(Range<u64>, Piece)>,
    len: u64,
}

impl State {
    /// Begins a prefix if byte `at`, about to be written, is the end of an unchanged file.
    pub fn begin_increments(&mut self, at: u64) {
        let len = self.map.len();
        // A file that was cut to nothing begins anew, whatever it had.
        let is_begun = len == 0 || (self.map.is_clean() && self.row.root.len() == len);
        if self.increments.is_some() || at != len || !is_begun || self.is_only_here() {
            return;
        }
        let stored = if len == 0 { Root::Empty } else { self.row.root.clone() };
        let mut prefix = Prefix::default();
        prefix.wrote(0..len);
        prefix.handed_out(len);
        let (over, since) = (self.row.root.clone(), Instant::now());
        self.increments = Some(Increments { prefix, over, stored, len, began: len, is_held: false, since });
    }

    /// Drops the prefix: a later store does not use it.
    pub fn forget_increments(&mut self) {
        self.increments = None;
    }

    /// True if no other host can find the file by a name.
    pub fn is_only_here(&self) -> bool {
        self.is_removed || self.is_hidden || self.may_be_named || self.is_noted
    }

    /// The prefix, if the file still begins with it.
    fn valid_increments(&self) -> Option<&Increments> {
        let sound = |increments: &&Increments| {
            !increments.prefix.is_invalidated() && increments.over == self.row.root
        };
        self.increments.as_ref().filter(sound).filter(|_| !self.is_only_here())
    }

    /// True if an increment is due, where a whole one has `round` bytes.
    fn is_increment_due(&self, round: u64, due: Due) -> bool {
        let is_due = |increments: &Increments| {
            let round = match (&self.open, due) {
                (Some(open), _) if open.is_left_to_others() => return false,
                // Its readers, at this mount's log, are past what is stored.
                (Some(open), _) if open.prefix.consumed() > increments.len => round / SHORTER,
                (Some(_), Due::Waited) if increments.since.elapsed() >= LOOK_EVERY => round / FIRST,
                (Some(_), _) => tailed_increment(round, increments.len.saturating_sub(increments.began)),
                (None, _) => round,
            };
            increments.prefix.end().saturating_sub(increments.len) >= round
        };
        self.valid_increments().is_some_and(is_due)
    }

    /// True if programs wait for the file's first increment before they can start.
    fn begins_increments(&self) -> bool {
        let waits = |increments: &Increments| {
            let open = self.open.as_ref().filter(|open| !open.is_left_to_others());
            !increments.is_held && open.is_some_and(|open| open.prefix.consumed() <= increments.len)
        };
        self.valid_increments().is_some_and(waits)
    }

    /// Length of the stored prefix, if everything behind it is staged.
    pub fn stored_increments(&self) -> Option<u64> {
        let increments = self.valid_increments().filter(|increments| increments.is_held)?;
        self.pieces_over(increments, u64::MAX).map(|_| increments.len)
    }

    /// The file's pieces, and the content below them if that is not the row's.
    pub fn increment_pieces(&self) -> (Option<Root>, Vec<(Range<u64>, Piece)>) {
        if let Some(increments) = self.valid_increments().filter(|increments| increments.is_held)
            && let Some(pieces) = self.pieces_over(increments, u64::MAX)
        {
            return (Some(increments.stored.clone()), pieces);
        }
        (None, self.map.pieces(0..u64::MAX).collect())
    }

    /// The pieces up to byte `end` over a prefix. `None` if the row's content is needed, too.
    fn pieces_over(&self, increments: &Increments, end: u64) -> Option<Vec<(Range<u64>, Piece)>> {
        let mut pieces = Vec::new();
        if increments.len > 0 {
            pieces.push((0..increments.len, Piece::Committed));
        }
        pieces.extend(self.map.pieces(increments.len..end));
        let is_ours = |(range, piece): &(Range<u64>, Piece)| {
            range.start < increments.len || !matches!(piece, Piece::Committed)
        };
        pieces.iter().all(is_ours).then_some(pieces)
    }

    /// Begins an increment. Its bytes must not change from here on, as followers may read them.
    fn begin_increment(&mut self, round: u64, due: Due) -> Option<Increment> {
        if !self.is_increment_due(round, due) || self.is_committing {
            return None;
        }
        let increments = self.valid_increments()?;
        let mut len = increments.prefix.end();
        if self.begins_increments() {
            // A program needs no more to start, even if more is there.
            len = len.min(increments.len + round / FIRST);
        }
        let round = Increment {
            attributes: self.attributes(),
            over: increments.over.clone(),
            base: Arc::new(increments.stored.clone()),
            pieces: self.pieces_over(increments, len)?,
            len,
        };
        self.increments.as_mut()?.prefix.handed_out(len);
        if let Some(open) = &mut self.open {
            open.prefix.handed_out(len);
        }
        Some(round)
    }

    /// Records a stored increment. False if it was useless.
    pub fn end_increment(&mut self, round: &Increment, root: Root) -> bool {
        let Some(increments) = self
            .increments
            .as_mut()
            .filter(|increments| increments.over == round.over && increments.len < round.len)
        else {
            return false;
        };
        (increments.stored, increments.len, increments.is_held) = (root, round.len, true);
        increments.since = Instant::now();
        true
    }

    /// Makes the `len` bytes that an agent stored the file's prefix. Returns the earlier one.
    pub fn take_over(&mut self, root: Root, len: u64) -> Option<Root> {
        let before = self
            .increments
            .take()
            .filter(|increments| increments.is_held)
            .map(|increments| increments.stored);
        let mut prefix = Prefix::default();
        prefix.wrote(0..self.open.as_ref().map_or(len, |open| open.prefix.end()));
        prefix.handed_out(len);
        let over = self.row.root.clone();
        self.increments = Some(Increments {
            prefix,
            over,
            stored: root,
            len,
            began: 0,
            is_held: true,
            since: Instant::now(),
        });
        before
    }

    /// True if the file may still be stored over its prefix, or is being stored over it.
    fn needs_increments(&self) -> bool {
        self.is_committing || self.valid_increments().is_some_and(|increments| increments.is_held)
    }
}

/// Which files are due for an increment, and which have a stored prefix.
#[derive(Default)]
pub(super) struct IncrementQueue {
    state: Mutex<Waiting>,
    changed: Condvar,
    thread: Worker,
}

#[derive(Default)]
struct Waiting {
    /// Files whose first increment programs wait for.
    begin: Vec<Arc<File>>,
    /// The others, in turn.
    due: VecDeque<Arc<File>>,
    held: BTreeSet<u64>,
    not_before: Option<Instant>,
    looked: Option<Instant>,
    /// The log is half full.
    is_filling: bool,
    /// A commit is in doubt.
    is_in_doubt: bool,
    is_ending: bool,
}

enum Next {
    /// An increment of one file, or the short first ones of several files together.
    Rounds(Vec<Arc<File>>),
    Room,
    /// At stored prefixes, data that has waited, and a commit in doubt.
    Look,
}

impl IncrementQueue {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.state.lock().expect("no panic while held")
    }

    /// A prefix of this file is about to be stored.
    pub fn will_hold(&self, number: u64) {
        self.lock().held.insert(number);
        // The thread may be asleep, with nothing else to do.
        self.changed.notify_all();
    }

    /// The session that held the prefixes is over, and so are they.
    pub fn forget_held(&self) {
        self.lock().held.clear();
    }

    /// A commit is in doubt: the thread asks until its outcome is known.
    pub fn will_settle(&self) {
        self.lock().is_in_doubt = true;
        self.changed.notify_all();
    }

    pub fn start(&self, work: impl FnOnce() + Send + 'static) -> Result<()> {
        self.thread.start("early", work)
    }

    pub fn stop(&self) {
        self.lock().is_ending = true;
        self.changed.notify_all();
        self.thread.join();
    }

    /// Queues a file for an increment; `begins` if programs wait for its first one.
    fn is_due(&self, file: &Arc<File>, begins: bool) {
        let mut state = self.lock();
        let Waiting { begin, due, .. } = &mut *state;
        if begin.iter().chain(&*due).any(|due| Arc::ptr_eq(due, file)) {
            return;
        }
        if begins {
            begin.push(Arc::clone(file));
        } else {
            due.push_back(Arc::clone(file));
        }
        drop(state);
        self.changed.notify_all();
    }

    /// The log is half full.
    pub fn is_filling(&self) {
        let mut state = self.lock();
        if !std::mem::replace(&mut state.is_filling, true) {
            drop(state);
            self.changed.notify_all();
        }
    }

    /// Waits for something to do; `None` at the end.
    fn next(&self) -> Option<Next> {
        let mut state = self.lock();
        loop {
            let now = Instant::now();
            if state.is_ending {
                return None;
            }
            if state.not_before.is_none_or(|at| now >= at) {
                // First increments do not wait for room to be made, which takes long.
                if !state.begin.is_empty() {
                    return Some(Next::Rounds(std::mem::take(&mut state.begin)));
                }
                if std::mem::take(&mut state.is_filling) {
                    return Some(Next::Room);
                }
                if let Some(file) = state.due.pop_front() {
                    return Some(Next::Rounds(vec![file]));
                }
            }
            let looked = *state.looked.get_or_insert(now);
            let looks = !state.held.is_empty() || state.is_in_doubt;
            if looks && now.duration_since(looked) >= LOOK_EVERY {
                state.looked = Some(now);
                return Some(Next::Look);
            }
            let waits = !state.due.is_empty() || !state.begin.is_empty() || state.is_filling;
            let pause = match state.not_before.filter(|_| waits) {
                Some(at) => at.saturating_duration_since(now).min(LOOK_EVERY),
                None if looks || waits => LOOK_EVERY,
                None => Duration::from_secs(3600),
            };
            state = self.changed.wait_timeout(state, pause).expect("no panic while held").0;
        }
    }
}

impl Core {
    pub fn store_increments(self: &Arc<Self>) {
        while let Some(next) = self.increments.next() {
            match next {
                Next::Look => {
                    self.settle_in_time();
                    self.release_increments();
                    self.store_waiting();
                }
                // A failure fails no writer, as there is room yet. Writers may have asked twice.
                Next::Room => {
                    if !self.is_filling() {
                        continue;
                    }
                    let pause = match self.fail(self.make_some_room()) {
                        Err(_) => RETRY,
                        // Agents have not read the rest yet.
                        Ok(()) if self.is_filling() => AGAIN,
                        Ok(()) => continue,
                    };
                    self.increments.lock().not_before = Some(Instant::now() + pause);
                }
                Next::Rounds(files) => {
                    // If the fault persists, the file's close reports it.
                    if self.run_increments(&files, Due::Enough).is_err() {
                        self.increments.lock().not_before = Some(Instant::now() + RETRY);
                        // Queue them again: perhaps nothing more is written.
                        files
                            .iter()
                            .filter(|file| self.open.get(file.number).is_some())
                            .for_each(|file| self.enqueue_increment(file, file.read()));
                    }
                }
            }
        }
    }

    /// Resolves a commit in doubt, and stores what waited for that.
    fn settle_in_time(self: &Arc<Self>) {
        let is_in_doubt = std::mem::take(&mut self.increments.lock().is_in_doubt);
        if !is_in_doubt {
            return;
        }
        match self.take_turn() {
            Ok(turn) => {
                drop(turn);
                let _ = self.fail(self.store_closed());
            }
            // If the fault persists, the next one to store something reports it.
            Err(_) => self.increments.will_settle(),
        }
    }

    /// Stores data that programs have waited for, of files that had an increment.
    fn store_waiting(self: &Arc<Self>) {
        let held: Vec<u64> = {
            let waiting = self.increments.lock();
            if waiting.not_before.is_some_and(|at| Instant::now() < at) {
                return;
            }
            waiting.held.iter().copied().collect()
        };
        let round = self.options.increment_bytes;
        for file in held.into_iter().filter_map(|number| self.open.get(number)) {
            let is_due = file.read().is_increment_due(round, Due::Waited);
            if is_due && self.run_increments(&[file], Due::Waited).is_err() {
                self.increments.lock().not_before = Some(Instant::now() + RETRY);
                return;
            }
        }
    }

    /// Stores an increment of each of these files that is due.
    fn run_increments(self: &Arc<Self>, files: &[Arc<File>], due: Due) -> Result<()> {
        let mut asked = self.take_turn()?;
        let policies = self.policies(&mut asked)?;
        let begun = |file: &Arc<File>| {
            let round = file.write().begin_increment(self.options.increment_bytes, due)?;
            Some((Arc::clone(file), round))
        };
        let rounds: Vec<(Arc<File>, Increment)> = files.iter().filter_map(begun).collect();
        if rounds.is_empty() {
            return Ok(());
        }
        self.follow_packs(&mut asked.packs_at)?;
        let mut items = Vec::with_capacity(rounds.len());
        for (file, round) in &rounds {
            let number = file.number;
            self.increments.will_hold(number);
            let policy = self.policy_of(&policies, self.parent_of(number))?;
            let to = Target::Orphan { inode: number, holder: holder(number, self.session().id()) };
            let content = (Arc::clone(&round.base), round.pieces.clone());
            items.push(self.item_of(to, round.attributes.clone(), content, policy)?);
        }
        let stored = self.through_pipeline(items, policies.chunk_max()?);
        let mut roots =
            stored.inspect_err(|error| self.note_in_doubt(error, || Tried::Hold(rounds.clone())))?;
        for (file, round) in &rounds {
            let lost = || {
                let number = file.number;
                Error::new(ErrorKind::Io, format!("the writer does not say what inode {number} became"))
            };
            let root = roots.remove(&file.number).ok_or_else(lost)?;
            // More may have come meanwhile.
            let mut state = file.write();
            if state.end_increment(round, root) {
                self.enqueue_increment(file, state);
            }
        }
        Ok(())
    }

    /// Queues the file if an increment is due. `state` stays locked until that is known.
    pub fn enqueue_increment(&self, file: &Arc<File>, state: impl Deref<Target = State>) {
        let is_due = state.is_increment_due(self.options.increment_bytes, Due::Enough);
        let begins = is_due && state.begins_increments();
        drop(state);
        if is_due {
            self.increments.is_due(file, begins);
        }
    }

    /// Releases prefixes that no file needs any more.
    fn release_increments(&self) {
        let held: Vec<u64> = self.increments.lock().held.iter().copied().collect();
        for number in held {
            // An agent's prefix is held before it becomes the file's: both under the flush lock.
            let _turn = self.turn.turn.lock().expect("no panic while held");
            let is_needed = self.open.get(number).is_some_and(|file| file.read().needs_increments());
            if !is_needed && self.store.meta.release(&holder(number, self.session().id()), None).is_ok() {
                self.increments.lock().held.remove(&number);
            }
        }
    }

    /// Before a file that exists is tailed: nobody must read a prefix that was stored earlier.
    pub fn forget_increments(&self, file: &File) -> Result<()> {
        if file.read().increments.is_none() && !self.increments.lock().held.contains(&file.number) {
            return Ok(());
        }
        // Waits for an increment in progress.
        let _turn = self.take_turn()?;
        file.write().increments = None;
        self.store.meta.release(&holder(file.number, self.session().id()), None)
    }

    /// Releases every prefix at the end, when all is stored.
    pub fn end_increments(&self) {
        self.increments.stop();
        for number in std::mem::take(&mut self.increments.lock().held) {
            // A prefix that stays ends with the session.
            let _ = self.store.meta.release(&holder(number, self.session().id()), None);
        }
    }
}

#[cfg(test)]
mod tests {
    use outrigger_format::catalogue::FileKind;

    use super::*;
    use crate::shared::new_row;

    fn file(number: u64) -> Arc<File> {
        Arc::new(File::new(new_row(number, FileKind::File), &Arc::default(), &Arc::default()))
    }

    #[test]
    fn what_programs_wait_for_to_begin_comes_before_room_is_made_and_the_rest_in_turn_after_it() {
        let (earlies, files) = (IncrementQueue::default(), [1, 2, 3, 4].map(file));
        earlies.is_due(&files[0], false);
        earlies.is_due(&files[1], false);
        earlies.is_filling();
        earlies.is_due(&files[2], true);
        earlies.is_due(&files[3], true);
        // Each file once, whatever it is due for by now.
        earlies.is_due(&files[2], false);
        earlies.is_due(&files[0], true);
        let mut said = Vec::new();
        for _ in 0..4 {
            said.push(match earlies.next().unwrap() {
                Next::Rounds(files) => files.iter().map(|file| file.number).collect(),
                Next::Room => vec![0],
                Next::Look => panic!("nothing is held"),
            });
        }
        assert_eq!(said, [vec![3, 4], vec![0], vec![1], vec![2]]);
    }

    #[test]
    fn rounds_of_a_file_that_programs_wait_for_begin_short_and_grow() {
        let (mut stored, mut rounds) = (0, Vec::new());
        while rounds.len() < 6 {
            rounds.push(tailed_increment(ROUND, stored) >> 20);
            stored += tailed_increment(ROUND, stored);
        }
        assert_eq!(rounds, [1, 3, 12, 48, 64, 64]);
    }
}
