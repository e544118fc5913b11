//! When staged data is written back, and which data goes first.
//!
//! The flusher, a thread, checks a few times a second if the log is filling up, or some data has
//! not been written for a while. A writer that finds the log [filling](destage_order) wakes it.
//! After a failure it tries again every second, and writers that wait for room get the error.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use outrigger_clock::Instant;
use outrigger_format::catalogue::FileKind;
use outrigger_store::staging::{Due, Log, Ranges};
use outrigger_store::{Error, Result};
use rustix::io::Errno;

use super::core::{Core, Counters};
use super::freeze_lock::Closed;
use super::node::{File, Node};
use crate::destage_order::{self, BLOCK};

/// Nodes that wait for a commit at most, about: this bounds their memory.
const WAITING_MAX: usize = 20_000;
/// How often to check for data that has waited long enough.
const TICK: Duration = Duration::from_millis(250);
/// Pause after a failure.
const RETRY: Duration = Duration::from_secs(1);

/// Which contents a batch takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Select {
    /// Everything that has a name.
    All,
    /// A batch's worth.
    Batch,
    /// Files that have not been written for a while.
    Idle,
    /// One, with a name or without.
    One(u64),
}

/// Requests to the flusher, and its state.
#[derive(Default)]
pub(super) struct Control {
    state: Mutex<Asked>,
    changed: Condvar,
    /// One batch at a time.
    turn: Mutex<()>,
    /// The log is filling up.
    pressed: AtomicBool,
    /// There may be roots that are held for the log's records.
    holds: AtomicBool,
    /// Taken shared from holding a root until its record is appended; taken alone to release all of
    /// them.
    sharing: RwLock<()>,
}

#[derive(Default)]
struct Asked {
    stop: bool,
    pressed: bool,
    failed: Option<(Errno, Instant)>,
    /// When the last batch ended.
    ended: Option<Instant>,
}

impl Control {
    /// Somebody is about to write.
    pub fn note_pressure(&self, log: &Log) {
        if destage_order::is_filling(log) && !self.pressed.swap(true, Ordering::Relaxed) {
            self.state.lock().expect("no panic while held").pressed = true;
            self.changed.notify_all();
        }
    }

    /// A guard for holding a root that a record will share: kept until the record is appended.
    /// Taken after the record's room.
    pub fn sharing(&self) -> RwLockReadGuard<'_, ()> {
        self.sharing.read().expect("no panic while held")
    }

    /// A root was held.
    pub fn note_hold(&self) {
        self.holds.store(true, Ordering::Relaxed);
    }

    /// True if there may be roots that are held for the log.
    pub fn holds(&self) -> bool {
        self.holds.load(Ordering::Relaxed)
    }

    /// Keeps other threads from holding roots; `None` while one is being held.
    pub fn alone(&self) -> Option<RwLockWriteGuard<'_, ()>> {
        self.sharing.try_write().ok()
    }

    /// All roots were let go.
    pub fn note_released(&self) {
        self.holds.store(false, Ordering::Relaxed);
    }

    /// The error for writers that wait for room, if they should give up.
    pub fn trouble(&self) -> Option<Errno> {
        self.state.lock().expect("no panic while held").failed.map(|(errno, _)| errno)
    }

    /// The flusher's turn: no other thread stores anything while this is kept.
    pub fn turn(&self) -> MutexGuard<'_, ()> {
        self.turn.lock().expect("no panic while held")
    }

    /// Ends the flusher's thread.
    pub fn stop(&self) {
        self.state.lock().expect("no panic while held").stop = true;
        self.changed.notify_all();
    }
}

/// The store has everything, and nothing changes, while this lives.
pub(super) struct Barrier<'a> {
    _gate: Closed<'a>,
    _turn: MutexGuard<'a, ()>,
}

/// The store is at one moment while this lives.
pub struct Paused<'a> {
    _turn: MutexGuard<'a, ()>,
}

impl Core {
    /// The flusher's loop.
    pub fn run_flusher(self: &Arc<Self>) {
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
                outrigger_clock::sleep(TICK);
                continue;
            }
            let Some(select) = self.due() else { continue };
            let done = self.destage(select);
            self.note_outcome(&done);
        }
    }

    /// Stores one batch.
    ///
    /// # Errors
    /// Those of the store; what could not be stored stays staged.
    pub fn destage(self: &Arc<Self>, select: Select) -> Result<()> {
        let _turn = self.control.turn();
        self.batch(select, None)
    }

    fn note_outcome(&self, done: &Result<()>) {
        Counters::add(&self.counters.failures, u64::from(done.is_err()));
        let mut state = self.control.state.lock().expect("no panic while held");
        let failure = |error: &Error| (self.world.reports.errno_of_our_own(error), Instant::now());
        state.failed = done.as_ref().err().map(failure);
        state.ended = Some(Instant::now());
    }

    /// Which contents should be stored now, if any.
    fn due(&self) -> Option<Select> {
        let high = destage_order::is_filling(&self.log);
        self.control.pressed.store(high, Ordering::Relaxed);
        self.control.state.lock().expect("no panic while held").pressed = high;
        let dirty: Vec<Arc<Node>> =
            self.world.dirty.lock().expect("no panic while held").values().map(Arc::clone).collect();
        if high || dirty.len() > WAITING_MAX {
            return Some(Select::Batch);
        }
        let idle = self.options.idle;
        // Not all the time: files that are still being written would be synced again and again, and
        // packs would be small.
        let ended = self.control.state.lock().expect("no panic while held").ended;
        if ended.is_some_and(|ended| ended.elapsed() < idle / 2) {
            return None;
        }
        let waited = dirty.iter().any(|node| {
            let state = node.read();
            let since = state.file.dirty_since.unwrap_or(state.file.written);
            state.links > 0
                && state.is_dirty()
                && (state.file.written.elapsed() >= idle || since.elapsed() >= 4 * idle)
        });
        waited.then_some(Select::Idle)
    }

    /// Stores everything that is staged now.
    ///
    /// # Errors
    /// Those of the store; what could not be stored stays staged.
    pub fn flush(self: &Arc<Self>) -> Result<()> {
        let done = self.destage(Select::All);
        self.note_outcome(&done);
        done
    }

    /// Stores everything, and closes the gate.
    ///
    /// # Errors
    /// Those of the store; then the gate is open.
    pub fn barrier(self: &Arc<Self>) -> Result<Barrier<'_>> {
        // Most of it is stored while changes go on.
        self.flush()?;
        let turn = self.control.turn();
        let freeze_lock = self.freeze_lock.close();
        self.batch(Select::All, Some(&freeze_lock))?;
        Ok(Barrier { _gate: freeze_lock, _turn: turn })
    }

    /// Stores everything that was acknowledged up to some moment within this call. Nothing is
    /// stored from then on, and changes go on.
    ///
    /// # Errors
    /// Those of the store.
    pub fn pause(self: &Arc<Self>) -> Result<Paused<'_>> {
        // Most of it first, so that the log has room meanwhile.
        self.flush()?;
        let turn = self.control.turn();
        self.batch(Select::All, None)?;
        Ok(Paused { _turn: turn })
    }

    /// The staged contents that go along, by the numbers of their files.
    pub fn select(&self, select: Select, dirty: &[(Arc<Node>, bool)]) -> HashMap<u64, Ranges> {
        let due = match select {
            Select::Batch => self.due_for_room(),
            _ => None,
        };
        let mut chosen = HashMap::new();
        for (node, is_orphan) in dirty.iter().filter(|(node, _)| node.kind == FileKind::File) {
            let state = node.read();
            let file = &state.file;
            let spared = *is_orphan && !matches!(select, Select::Batch | Select::One(_));
            if file.map.is_clean() || spared {
                continue;
            }
            let is_whole = match select {
                Select::All => true,
                Select::One(number) => node.number == number,
                Select::Batch => due.is_none(),
                Select::Idle => self.is_idle(file),
            };
            let part = || due.and_then(|due| file.map.due(&due, BLOCK.into()));
            let ranges = if is_whole { Some(Ranges::all()) } else { part() };
            chosen.extend(ranges.map(|ranges| (node.number, ranges)));
        }
        chosen
    }

    /// Selects the data of a batch; `None` selects all that is staged.
    fn due_for_room(&self) -> Option<Due> {
        if destage_order::is_filling(&self.log) {
            self.options.order.due(&self.log, self.options.batch_bytes)
        } else {
            // Too many nodes wait.
            destage_order::oldest(&self.log)
        }
    }

    /// True if a file has been left alone for long enough, or has waited for too long.
    fn is_idle(&self, file: &File) -> bool {
        let delay = if file.in_place { 4 * self.options.idle } else { self.options.idle };
        file.written.elapsed() >= delay || file.dirty_since.is_some_and(|since| since.elapsed() >= 4 * delay)
    }
}
