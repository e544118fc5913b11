//! Large files are stored while they are written, so that a close has little left to do, and programs on other hosts can read what there is ([`outrigger_store::early`]).
//!
//! One thread, in turn with all else that is stored. A round takes a file of which enough was written in order, from its beginning on or behind what it had, and stores that *prefix* as a content without a
//! name, over the one of the round before. What is staged stays where it is: the file's row, its map and the log know nothing of it. When the file is stored, what is cut lies over the prefix, if that is
//! still what the file begins with and the row is still the one that the file was begun over; else all of it is stored as if there had been no rounds, and what they have stored is found again.
//! So a round that fails, or was for nothing, costs time and nothing else.
//!
//! The same thread makes room in the log when that is half full: whoever writes goes on meanwhile, and waits only where all of it is. Of what an agent stores it takes what there is ([`super::carried`]).
//!
//! A prefix is let go of when its file is stored, closed or changed, a moment later, by the same thread; never while something is committed that may lie over it.
//!
//! **Programs that read the file meanwhile** count as having been handed what a round stores, from before it can be seen: if that changes, what they did is void. What was stored of a file before it was
//! followed is not theirs, and gone before their job is there ([`Core::forget_early`]).

use std::collections::{BTreeSet, VecDeque};
use std::ops::{Deref, Range};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use outrigger_clock::Instant;
use outrigger_format::Root;
use outrigger_format::catalogue::Attributes;
use outrigger_store::early::holder;
use outrigger_store::staging::Piece;
use outrigger_store::write::Target;
use outrigger_store::{Error, ErrorKind, Result};

use super::core::Core;
use super::file::{File, State};
use super::unsettled::Tried;
use super::worker::Worker;
use crate::follow::Prefix;

/// Bytes of one round, at least, unless told otherwise: some packs.
pub(super) const ROUND: u64 = 64 << 20;
/// Of a file that programs wait for the first round is so many times shorter, so that they begin soon.
const FIRST: u64 = 64;
/// Each one after it is so many times as long as all before it, up to a whole one: a round ends with a pack that is not full, and a commit, while nothing else of the file is stored; and a program that is slower than that has enough to read meanwhile. Of a
/// writer that is slow, or pauses, what has waited for a look is stored, be it as little as the first one.
const GROWS: u64 = 3;
/// Where a reader is further than what is stored, or others store it, a round is so many times shorter.
pub(super) const SHORTER: u64 = 4;
/// How often it is looked what need not be held any more, and what has waited.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How long after there was too little to make room of.
const AGAIN: Duration = Duration::from_millis(100);
/// How long after a failure nothing is stored early.
const RETRY: Duration = Duration::from_secs(5);

/// What is stored of a file that is still written.
pub(super) struct Early {
    /// What was written since the file was begun.
    pub prefix: Prefix,
    /// The content that the file's row had then.
    over: Root,
    /// What is stored, and how much of the file that is; at first what the file had.
    stored: Root,
    len: u64,
    /// How much the file had when it was begun.
    began: u64,
    /// There was a round.
    is_held: bool,
    /// When the last one ended.
    since: Instant,
}

/// Why there is a round.
#[derive(Clone, Copy)]
enum Due {
    /// Enough was written.
    Enough,
    /// What was written has waited for long.
    Waited,
}

/// Bytes of the next round of a file that programs wait for, where `stored` were stored since it was begun.
fn followed_round(round: u64, stored: u64) -> u64 {
    (stored * GROWS).clamp(round / FIRST, round)
}

/// What a round stores.
#[derive(Clone)]
pub(super) struct Round {
    attributes: Attributes,
    over: Root,
    base: Arc<Root>,
    pieces: Vec<(Range<u64>, Piece)>,
    len: u64,
}

impl State {
    /// Byte `at` is about to be written: from here on a prefix grows, if that is where the file ends, and nothing else was done to it.
    pub fn begin_early(&mut self, at: u64) {
        let len = self.map.len();
        // A file that was cut to nothing begins anew, whatever it had.
        let is_begun = len == 0 || (self.map.is_clean() && self.row.root.len() == len);
        if self.early.is_some() || at != len || !is_begun || self.is_only_here() {
            return;
        }
        let stored = if len == 0 { Root::Empty } else { self.row.root.clone() };
        let mut prefix = Prefix::default();
        prefix.wrote(0..len);
        prefix.handed_out(len);
        let (over, since) = (self.row.root.clone(), Instant::now());
        self.early = Some(Early { prefix, over, stored, len, began: len, is_held: false, since });
    }

    /// What was stored of it before it is closed counts no more.
    pub fn forget_early(&mut self) {
        self.early = None;
    }

    /// Others do not find it by a name.
    pub fn is_only_here(&self) -> bool {
        self.is_removed || self.is_hidden || self.may_be_named || self.is_noted
    }

    /// What there is of a prefix, if it is still what the file begins with.
    fn sound_early(&self) -> Option<&Early> {
        let sound = |early: &&Early| !early.prefix.is_spoilt() && early.over == self.row.root;
        self.early.as_ref().filter(sound).filter(|_| !self.is_only_here())
    }

    /// It is time for a round, where a whole one has so many bytes.
    fn is_early_due(&self, round: u64, due: Due) -> bool {
        let is_due = |early: &Early| {
            let round = match (&self.open, due) {
                (Some(open), _) if open.is_left_to_others() => return false,
                // Who reads it from the log of this mount is further than what is stored, and waits for no round.
                (Some(open), _) if open.prefix.consumed() > early.len => round / SHORTER,
                (Some(_), Due::Waited) if early.since.elapsed() >= LOOK_EVERY => round / FIRST,
                (Some(_), _) => followed_round(round, early.len.saturating_sub(early.began)),
                (None, _) => round,
            };
            early.prefix.end().saturating_sub(early.len) >= round
        };
        self.sound_early().is_some_and(is_due)
    }

    /// Programs wait for the first round of the file, to begin.
    fn begins_early(&self) -> bool {
        let waits = |early: &Early| {
            let open = self.open.as_ref().filter(|open| !open.is_left_to_others());
            !early.is_held && open.is_some_and(|open| open.prefix.consumed() <= early.len)
        };
        self.sound_early().is_some_and(waits)
    }

    /// How long a part of the file there is of which all is stored, is held, and what is behind it is staged.
    pub fn stored_early(&self) -> Option<u64> {
        let early = self.sound_early().filter(|early| early.is_held)?;
        self.pieces_over(early, u64::MAX).map(|_| early.len)
    }

    /// The pieces of the file, and what they lie over if that is not the content of its row.
    pub fn early_pieces(&self) -> (Option<Root>, Vec<(Range<u64>, Piece)>) {
        if let Some(early) = self.sound_early().filter(|early| early.is_held)
            && let Some(pieces) = self.pieces_over(early, u64::MAX)
        {
            return (Some(early.stored.clone()), pieces);
        }
        (None, self.map.pieces(0..u64::MAX).collect())
    }

    /// The pieces up to byte `end` over a prefix; `None`: the content of the row is needed as well.
    fn pieces_over(&self, early: &Early, end: u64) -> Option<Vec<(Range<u64>, Piece)>> {
        let mut pieces = Vec::new();
        if early.len > 0 {
            pieces.push((0..early.len, Piece::Committed));
        }
        pieces.extend(self.map.pieces(early.len..end));
        let is_ours = |(range, piece): &(Range<u64>, Piece)| {
            range.start < early.len || !matches!(piece, Piece::Committed)
        };
        pieces.iter().all(is_ours).then_some(pieces)
    }

    /// What there is to be stored. From here on it must not change, and whoever follows the file may read it.
    fn begin_round(&mut self, round: u64, due: Due) -> Option<Round> {
        if !self.is_early_due(round, due) || self.is_committing {
            return None;
        }
        let early = self.sound_early()?;
        let mut len = early.prefix.end();
        if self.begins_early() {
            // However much there is by now: it is all that its program needs to begin.
            len = len.min(early.len + round / FIRST);
        }
        let round = Round {
            attributes: self.attributes(),
            over: early.over.clone(),
            base: Arc::new(early.stored.clone()),
            pieces: self.pieces_over(early, len)?,
            len,
        };
        self.early.as_mut()?.prefix.handed_out(len);
        if let Some(open) = &mut self.open {
            open.prefix.handed_out(len);
        }
        Some(round)
    }

    /// A round was stored. False: for nothing.
    pub fn end_round(&mut self, round: &Round, root: Root) -> bool {
        let Some(early) =
            self.early.as_mut().filter(|early| early.over == round.over && early.len < round.len)
        else {
            return false;
        };
        (early.stored, early.len, early.is_held) = (root, round.len, true);
        early.since = Instant::now();
        true
    }

    /// What somebody else has stored is what the file begins with, up to byte `len`: it is as if a round had stored it. What was stored before, if it was.
    pub fn take_over(&mut self, root: Root, len: u64) -> Option<Root> {
        let before = self.early.take().filter(|early| early.is_held).map(|early| early.stored);
        let mut prefix = Prefix::default();
        prefix.wrote(0..self.open.as_ref().map_or(len, |open| open.prefix.end()));
        prefix.handed_out(len);
        let over = self.row.root.clone();
        self.early =
            Some(Early { prefix, over, stored: root, len, began: 0, is_held: true, since: Instant::now() });
        before
    }

    /// Whether the file may yet be stored over its prefix, or is just now.
    fn needs_early(&self) -> bool {
        self.is_committing || self.sound_early().is_some_and(|early| early.is_held)
    }
}

/// Which files are due, and of which something is held.
#[derive(Default)]
pub(super) struct Earlies {
    state: Mutex<Waiting>,
    changed: Condvar,
    thread: Worker,
}

#[derive(Default)]
struct Waiting {
    /// Those of which programs wait for the first round.
    begin: Vec<Arc<File>>,
    /// The others, in turn.
    due: VecDeque<Arc<File>>,
    held: BTreeSet<u64>,
    not_before: Option<Instant>,
    looked: Option<Instant>,
    /// The log is half full.
    is_filling: bool,
    /// Nobody knows what became of a commit.
    is_unsettled: bool,
    is_ending: bool,
}

/// What is next for the thread.
enum Next {
    /// Of one file; the first ones of several together, which are short.
    Rounds(Vec<Arc<File>>),
    Room,
    /// At what is held, at what has waited, and at a commit of which nobody knows.
    Look,
}

impl Earlies {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.state.lock().expect("no panic while held")
    }

    /// Something of a file is about to be held.
    pub fn will_hold(&self, number: u64) {
        self.lock().held.insert(number);
        // Whoever looks what need not be held any more may have nothing else to do.
        self.changed.notify_all();
    }

    /// Nothing is held any more: the session is over by whose number it was.
    pub fn forget_held(&self) {
        self.lock().held.clear();
    }

    /// Nobody knows what became of a commit: that is looked at until it is known.
    pub fn will_settle(&self) {
        self.lock().is_unsettled = true;
        self.changed.notify_all();
    }

    /// Starts the thread that does `work`, once.
    pub fn start(&self, work: impl FnOnce() + Send + 'static) -> Result<()> {
        self.thread.start("early", work)
    }

    /// Ends it.
    pub fn stop(&self) {
        self.lock().is_ending = true;
        self.changed.notify_all();
        self.thread.join();
    }

    /// Enough of a file was written, for a first round that programs wait for or another one.
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
                // Before there is room made, which takes long: the log is only half full.
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
            let looks = !state.held.is_empty() || state.is_unsettled;
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
    /// What the thread does.
    pub fn store_early(self: &Arc<Self>) {
        while let Some(next) = self.early.next() {
            match next {
                Next::Look => {
                    self.settle_in_time();
                    self.let_go_of_early();
                    self.store_waiting();
                }
                // There is some still, so nobody has to fail if it cannot be done. What was written while it was made may have said so again.
                Next::Room => {
                    if !self.is_filling() {
                        continue;
                    }
                    let pause = match self.fail(self.make_some_room()) {
                        Err(_) => RETRY,
                        // The rest is for agents, which have not read it yet.
                        Ok(()) if self.is_filling() => AGAIN,
                        Ok(()) => continue,
                    };
                    self.early.lock().not_before = Some(Instant::now() + pause);
                }
                Next::Rounds(files) => {
                    // Whoever closes the file says what is wrong, if it still is.
                    if self.early_rounds(&files, Due::Enough).is_err() {
                        self.early.lock().not_before = Some(Instant::now() + RETRY);
                        // Perhaps nothing more is written that would say so.
                        files
                            .iter()
                            .filter(|file| self.open.get(file.number).is_some())
                            .for_each(|file| self.early_is_due(file, file.read()));
                    }
                }
            }
        }
    }

    /// Finds out what became of a commit of which nobody knew, and stores what waited for that.
    fn settle_in_time(self: &Arc<Self>) {
        let is_unsettled = std::mem::take(&mut self.early.lock().is_unsettled);
        if !is_unsettled {
            return;
        }
        match self.take_turn() {
            Ok(turn) => {
                drop(turn);
                let _ = self.fail(self.store_closed());
            }
            // Whoever stores something says what is wrong, if it still is.
            Err(_) => self.early.will_settle(),
        }
    }

    /// Stores what programs have waited for, of files of which there was a round: the first one waits for nothing but the bytes.
    fn store_waiting(self: &Arc<Self>) {
        let held: Vec<u64> = {
            let waiting = self.early.lock();
            if waiting.not_before.is_some_and(|at| Instant::now() < at) {
                return;
            }
            waiting.held.iter().copied().collect()
        };
        let round = self.options.early_bytes;
        for file in held.into_iter().filter_map(|number| self.open.get(number)) {
            let is_due = file.read().is_early_due(round, Due::Waited);
            if is_due && self.early_rounds(&[file], Due::Waited).is_err() {
                self.early.lock().not_before = Some(Instant::now() + RETRY);
                return;
            }
        }
    }

    /// A round of each of these of which it is time for one.
    fn early_rounds(self: &Arc<Self>, files: &[Arc<File>], due: Due) -> Result<()> {
        let mut asked = self.take_turn()?;
        let policies = self.policies(&mut asked)?;
        let begun = |file: &Arc<File>| {
            let round = file.write().begin_round(self.options.early_bytes, due)?;
            Some((Arc::clone(file), round))
        };
        let rounds: Vec<(Arc<File>, Round)> = files.iter().filter_map(begun).collect();
        if rounds.is_empty() {
            return Ok(());
        }
        self.follow_packs(&mut asked.packs_at)?;
        let mut items = Vec::with_capacity(rounds.len());
        for (file, round) in &rounds {
            let number = file.number;
            self.early.will_hold(number);
            let policy = self.policy_of(&policies, self.parent_of(number))?;
            let to = Target::Orphan { inode: number, holder: holder(number, self.session().id()) };
            let content = (Arc::clone(&round.base), round.pieces.clone());
            items.push(self.item_of(to, round.attributes.clone(), content, policy)?);
        }
        let stored = self.through_pipeline(items, policies.chunk_max()?);
        let mut roots =
            stored.inspect_err(|error| self.note_unsettled(error, || Tried::Hold(rounds.clone())))?;
        for (file, round) in &rounds {
            let lost = || {
                let number = file.number;
                Error::new(ErrorKind::Io, format!("the writer does not say what inode {number} became"))
            };
            let root = roots.remove(&file.number).ok_or_else(lost)?;
            // More may have come meanwhile.
            let mut state = file.write();
            if state.end_round(round, root) {
                self.early_is_due(file, state);
            }
        }
        Ok(())
    }

    /// Says so, if it is time for a round, by the file's state, which is held until that is known.
    pub fn early_is_due(&self, file: &Arc<File>, state: impl Deref<Target = State>) {
        let is_due = state.is_early_due(self.options.early_bytes, Due::Enough);
        let begins = is_due && state.begins_early();
        drop(state);
        if is_due {
            self.early.is_due(file, begins);
        }
    }

    /// Lets go of what no file needs any more.
    fn let_go_of_early(&self) {
        let held: Vec<u64> = self.early.lock().held.iter().copied().collect();
        for number in held {
            // What an agent has stored is held, and then the file's, by whoever has the turn.
            let _turn = self.turn.turn.lock().expect("no panic while held");
            let is_needed = self.open.get(number).is_some_and(|file| file.read().needs_early());
            if !is_needed && self.store.meta.release(&holder(number, self.session().id()), None).is_ok() {
                self.early.lock().held.remove(&number);
            }
        }
    }

    /// Before a file is followed that was there: nobody is to read what was stored of it before.
    pub fn forget_early(&self, file: &File) -> Result<()> {
        if file.read().early.is_none() && !self.early.lock().held.contains(&file.number) {
            return Ok(());
        }
        // After a round that is going on.
        let _turn = self.take_turn()?;
        file.write().early = None;
        self.store.meta.release(&holder(file.number, self.session().id()), None)
    }

    /// Lets go of everything; at the end, when all is stored.
    pub fn end_early(&self) {
        self.early.stop();
        for number in std::mem::take(&mut self.early.lock().held) {
            // What stays goes with the session.
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
        let (earlies, files) = (Earlies::default(), [1, 2, 3, 4].map(file));
        earlies.is_due(&files[0], false);
        earlies.is_due(&files[1], false);
        earlies.is_filling();
        earlies.is_due(&files[2], true);
        earlies.is_due(&files[3], true);
        // Each once, whatever it is due for by now.
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
            rounds.push(followed_round(ROUND, stored) >> 20);
            stored += followed_round(ROUND, stored);
        }
        assert_eq!(rounds, [1, 3, 12, 48, 64, 64]);
    }
}
