//! What the thread of the incremental flush has to do next, and its sleep while there is nothing.
//!
//! First increments that programs wait for come first, together. Then room is made in a log that
//! fills, and then the other files have their turn, each of which is queued once.

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use outrigger_clock::Instant;
use outrigger_store::Result;

use super::file::File;
use super::worker::Worker;

/// How often the thread looks for prefixes to release and for data that has waited.
pub(super) const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Which files are due for an increment, and which have a stored prefix.
#[derive(Default)]
pub(super) struct IncrementQueue {
    state: Mutex<Waiting>,
    changed: Condvar,
    thread: Worker,
}

#[derive(Default)]
pub(super) struct Waiting {
    /// Files whose first increment programs wait for.
    begin: Vec<Arc<File>>,
    /// The others, in turn.
    due: VecDeque<Arc<File>>,
    pub(super) held: BTreeSet<u64>,
    pub(super) not_before: Option<Instant>,
    looked: Option<Instant>,
    /// The log fills.
    is_filling: bool,
    /// A commit is in doubt.
    pub(super) is_in_doubt: bool,
    is_ending: bool,
}

pub(super) enum Next {
    /// An increment of one file, or the short first ones of several files together.
    Rounds(Vec<Arc<File>>),
    Room,
    /// At stored prefixes, data that has waited, and a commit in doubt.
    Look,
}

impl IncrementQueue {
    pub(super) fn lock(&self) -> MutexGuard<'_, Waiting> {
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
    pub(super) fn enqueue(&self, file: &Arc<File>, begins: bool) {
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

    /// The log fills: the thread makes room.
    pub fn wake_for_room(&self) {
        let mut state = self.lock();
        if !std::mem::replace(&mut state.is_filling, true) {
            drop(state);
            self.changed.notify_all();
        }
    }

    /// As [`IncrementQueue::wake_for_room`], by the thread itself, which does nothing else before.
    pub(super) fn make_room_after(&self, pause: Duration) {
        let mut state = self.lock();
        state.is_filling = true;
        state.not_before = Some(Instant::now() + pause);
    }

    /// Waits for something to do; `None` at the end.
    pub(super) fn next(&self) -> Option<Next> {
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
        let (queue, files) = (IncrementQueue::default(), [1, 2, 3, 4].map(file));
        queue.enqueue(&files[0], false);
        queue.enqueue(&files[1], false);
        queue.wake_for_room();
        queue.enqueue(&files[2], true);
        queue.enqueue(&files[3], true);
        // Each file once, whatever it is due for by now.
        queue.enqueue(&files[2], false);
        queue.enqueue(&files[0], true);
        let mut said = Vec::new();
        for _ in 0..4 {
            said.push(match queue.next().unwrap() {
                Next::Rounds(files) => files.iter().map(|file| file.number).collect(),
                Next::Room => vec![0],
                Next::Look => panic!("nothing is held"),
            });
        }
        assert_eq!(said, [vec![3, 4], vec![0], vec![1], vec![2]]);
    }
}
