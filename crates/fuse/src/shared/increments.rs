//! Incremental flush: a shared mount stores large files while they are written, so that a close has
//! little left to store and other hosts can read their beginning ([`outrigger_store::increments`]).
//!
//! One thread does this, under the flush lock. An increment (`Increment`) takes a file of which
//! enough was written in order, from byte 0 or from the end that it had. It stores that *prefix* as
//! a content without a name, over the increment before it. The file's row, its map and the log do
//! not change. When the file is stored, its dirty snapshot lies over the prefix, unless the file no
//! longer begins with it or its row has changed. Then all of it is stored, and finds the
//! increments' chunks again. So a failed or useless increment costs only time.
//!
//! The same thread makes room in the log when that fills ([`crate::destage_order`]). Writers go on
//! meanwhile, and wait only when it is full. From agents it takes what they have stored so far ([`super::delegated`]).
//! It releases a prefix soon after its file is stored, closed or changed, but not during a commit
//! over it.
//!
//! **Programs that tail the file** count as having read an increment before it becomes visible: if
//! the writer changes those bytes, their work is void. A prefix from before the file was tailed is
//! not theirs, and is released before their job exists ([`Core::forget_increments`]).

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use outrigger_clock::Instant;
use outrigger_store::increments::holder;
use outrigger_store::write::Target;
use outrigger_store::{Error, ErrorKind, Result};

use super::core::Core;
use super::file::{File, State};
use super::in_doubt::Tried;
use super::increment_queue::Next;
use super::stored_prefix::{Due, Increment};

/// Pause after making room freed too little.
const AGAIN: Duration = Duration::from_millis(100);
/// Pause after a failure, before the next increment.
const RETRY: Duration = Duration::from_secs(5);

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
                    let oldest = self.log.oldest_segment();
                    let pause = match self.fail(self.make_some_room()) {
                        Err(_) => RETRY,
                        Ok(()) if !self.is_filling() => continue,
                        // A batch frees the oldest segment only.
                        Ok(()) if self.log.oldest_segment() != oldest => Duration::ZERO,
                        // Agents have not read the rest yet.
                        Ok(()) => AGAIN,
                    };
                    self.increments.make_room_after(pause);
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
            self.increments.enqueue(file, begins);
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
