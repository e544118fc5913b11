//! Deferred close: a close of a small file may return before its commit
//! (`SharedOptions::closes_within`). This serves programs that make many small files.
//!
//! ```text
//!   close ──► waits here ──► with the name that this mount makes next: one transaction for both
//!                       ├──► before any other change, sync or lock of this mount
//!                       └──► alone, when it has waited for as long as it may
//! ```
//!
//! **In order.** This mount commits nothing before a close that came earlier: another host that
//! sees a later change sees the closed file, too. So programs may write a file, close it, and then
//! rename it or make another one that announces it. Only one promise is given up: a reader that
//! learns of the close in another way may find the bytes that much later. Making a name is never
//! deferred, as it is exclusive among all hosts and must be committed before its maker gets the
//! answer.
//!
//! **In this mount** nothing differs: a waiting file is an open one with data that is not stored.
//!
//! **A file that cannot be stored** stays open here and is tried again, as after any close. The
//! program that closed it does not see the error; the mount reports it. Until it is stored, no
//! further close is deferred, so closes return errors.
//!
//! Large files, tailed files and files without a name do not wait here.

use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use outrigger_clock::Instant;
use outrigger_store::Result;
use outrigger_store::inline::new_bytes_max;
use outrigger_store::meta::Change;

use super::close_barrier::LOOK_EVERY;
use super::core::Core;
use super::dirty::DirtySnapshot;
use super::file::{File, State};
use super::worker::Worker;

/// Waiting files at most: they are changes of one transaction.
const FILES_MAX: usize = 32;
/// Bytes of these.
const BYTES_MAX: u64 = 1 << 20;

/// See the module.
#[derive(Default)]
pub(super) struct DeferredQueue {
    state: Mutex<Waiting>,
    changed: Condvar,
    /// Held by the thread that stores the waiting files. A later commit waits for it.
    storing: Mutex<()>,
    thread: Worker,
}

/// The thread's next step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Due {
    /// A file has waited long enough.
    Store,
    /// Other mounts may be waiting at a close barrier.
    Look,
}

#[derive(Default)]
struct Waiting {
    /// In the order of their closes. Each has a handle.
    files: Vec<Arc<File>>,
    bytes: u64,
    /// When the first of them began to wait.
    since: Option<Instant>,
    is_ending: bool,
}

impl DeferredQueue {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.state.lock().expect("no panic while held")
    }

    fn storing(&self) -> MutexGuard<'_, ()> {
        self.storing.lock().expect("no panic while held")
    }

    /// Starts the thread that does `work`, once.
    pub fn start(&self, work: impl FnOnce() + Send + 'static) -> Result<()> {
        self.thread.start("closes", work)
    }

    /// Ends the thread. Waiting files still wait.
    pub fn stop(&self) {
        self.lock().is_ending = true;
        self.changed.notify_all();
        self.thread.join();
    }

    /// True if the file waits.
    fn has(&self, number: u64) -> bool {
        self.lock().files.iter().any(|file| file.number == number)
    }

    fn take(&self) -> Vec<Arc<File>> {
        let mut waiting = self.lock();
        (waiting.bytes, waiting.since) = (0, None);
        std::mem::take(&mut waiting.files)
    }

    /// Waits until a file has waited for `within`, or it is time to look for close barriers; `None`
    /// at the end.
    fn next(&self, within: Duration, looked: Instant) -> Option<Due> {
        let mut waiting = self.lock();
        loop {
            if waiting.is_ending {
                return None;
            }
            let look = LOOK_EVERY.saturating_sub(looked.elapsed());
            let pause = waiting.since.map_or(look, |since| within.saturating_sub(since.elapsed()).min(look));
            if !pause.is_zero() {
                waiting = self.changed.wait_timeout(waiting, pause).expect("no panic while held").0;
                continue;
            }
            return Some(if look.is_zero() { Due::Look } else { Due::Store });
        }
    }
}

impl Core {
    /// The thread's loop.
    pub fn store_deferred_in_time(self: &Arc<Self>) {
        let mut looked = Instant::now();
        while let Some(due) = self.deferred.next(self.options.closes_within, looked) {
            match due {
                Due::Store => self.store_deferred(),
                Due::Look => {
                    // A waiting client learns only that the closes are committed, no errors.
                    let _ = self.fail(self.answer_waiting());
                    looked = Instant::now();
                }
            }
        }
    }

    fn is_deferred(&self) -> bool {
        !self.options.closes_within.is_zero()
    }

    /// A descriptor of a written file is closed. True if the close is deferred: the file is stored
    /// soon, and the close need not wait.
    pub fn defers_close(&self, file: &Arc<File>) -> bool {
        if !self.is_deferred() || file.is_stored() {
            return false;
        }
        if self.deferred.has(file.number) {
            return true;
        }
        let staged = {
            let state = file.read();
            if !state.may_defer_close() {
                return false;
            }
            state.map.staged_bytes()
        };
        let is_sound = self.packer.has_room() && !self.has_left() && self.session().check().is_ok();
        if staged > new_bytes_max(&self.store) || !is_sound {
            return false;
        }
        let mut waiting = self.deferred.lock();
        let has_room = waiting.files.len() < FILES_MAX && waiting.bytes + staged <= BYTES_MAX;
        if waiting.is_ending || !has_room || !self.open.again(file) {
            return false;
        }
        waiting.files.push(Arc::clone(file));
        waiting.bytes += staged;
        let is_first = waiting.since.is_none();
        waiting.since.get_or_insert_with(Instant::now);
        drop(waiting);
        file.write().closed();
        if is_first {
            self.deferred.changed.notify_all();
        }
        true
    }

    /// Stores a waiting file before it is written again: its content at the close is a version.
    pub fn reopens(self: &Arc<Self>, number: u64) {
        if self.is_deferred() && self.deferred.has(number) {
            self.store_deferred();
        }
    }

    /// Stores the waiting files. Called before a commit that does not include them.
    pub fn store_deferred(self: &Arc<Self>) {
        if self.is_deferred() {
            // Another thread may be storing them.
            let _storing = self.deferred.storing();
            self.store_taken(self.deferred.take());
        }
    }

    /// As [`Core::commit`], of changes that make one new name, together with all deferred closes.
    pub fn commit_deferred(self: &Arc<Self>, changes: Vec<Change>) -> Result<Option<()>> {
        if !self.is_deferred() {
            return self.commit(changes);
        }
        let storing = self.deferred.storing();
        let files = self.deferred.take();
        if files.is_empty() {
            drop(storing);
            return self.commit(changes);
        }
        match self.carry(&files, &changes) {
            Ok(true) => {
                self.closed_deferred(&files);
                return Ok(Some(()));
            }
            // In doubt: perhaps the commit made the name. Retrying would tell the maker that it is
            // another's.
            Err(error) if self.turn.in_doubt().is_some() => {
                self.closed_deferred(&files);
                return Err(error);
            }
            // One of the files or the name may be the cause: they are committed one by one.
            _ => {}
        }
        self.store_taken(files);
        drop(storing);
        self.commit(changes)
    }

    /// Stores these files, in one transaction if that can be.
    fn store_taken(self: &Arc<Self>, files: Vec<Arc<File>>) {
        if files.is_empty() {
            return;
        }
        self.will_store(&files);
        for file in &files {
            let stored =
                self.store_one(file).map_err(|error| error.context("storing a file that was closed"));
            let _ = self.fail(stored);
        }
        self.closed_deferred(&files);
    }

    /// Commits `changes` and the data of these files in one transaction. False if the files do not
    /// allow that.
    fn carry(self: &Arc<Self>, files: &[Arc<File>], changes: &[Change]) -> Result<bool> {
        let mut asked = self.take_turn()?;
        let policies = self.policies(&mut asked)?;
        let files = files.iter().filter(|file| !file.is_stored());
        let cuts: Vec<DirtySnapshot> = files.map(|file| self.cut(file)).collect();
        let delegated = self.write_with(&cuts, changes, &policies);
        match delegated {
            Ok(true) => drop(self.log.remove_dead(self.log.last())?),
            _ => self.give_up_cuts(&cuts),
        }
        delegated
    }

    /// These files wait no more. A file that could not be stored stays open here.
    fn closed_deferred(&self, files: &[Arc<File>]) {
        for file in files {
            if file.is_stored() {
                file.write().is_version = true;
            }
            self.close_file(file);
        }
    }
}

impl State {
    /// True if its close may be deferred: see the module.
    fn may_defer_close(&self) -> bool {
        let is_only_here = self.is_removed || self.is_unpublished || self.may_be_named || self.is_noted;
        self.open.is_none() && !is_only_here
    }

    /// Its writer has closed it.
    fn closed(&mut self) {
        (self.is_new, self.writer) = (false, None);
    }
}
