//! The queue of lock requests, with the time of each one's next try; and the owners that may have
//! locks here.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::Duration;

use outrigger_clock::Instant;
use outrigger_store::meta::SessionId;
use outrigger_store::meta::locks::{Blocker, LockFamily, LockMode, LockRange, Owned, OwnersLocks};
use rustix::io::Errno;

use crate::fs::{Answer, Handle, LockRequest};

/// Interruptions at most of requests that have not arrived here yet. Between the reading of a
/// request and its arrival here there are never more requests than threads; other interruptions
/// that end up here do not matter.
const INCREMENTS_MAX: usize = 1024;

/// A request for a lock.
pub struct Task {
    pub inode: u64,
    pub asked: LockRequest,
    pub answer: Answer,
    /// Its number in the database.
    pub ticket: u64,
    pub since: Instant,
    /// The session for which it was last tried.
    pub session: Option<SessionId>,
    /// The locks that were in its way when it was last tried. The database has a record that it
    /// waits for them.
    pub blockers: Option<Vec<Blocker>>,
    /// When it was last checked if their sessions are gone.
    pub looked: Option<Instant>,
}

/// Work of the pool's threads.
pub enum Job {
    /// Take a lock, if possible.
    Take(Task),
    /// Release all that an owner has, as that failed when it was due.
    Release(Key),
    /// Withdraw the record that a request waits.
    StopWaiting(u64),
}

/// An owner's locks of one kind on one file.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Key {
    pub inode: u64,
    pub family: LockFamily,
    pub owner: u64,
}

/// The locks of an owner, and the handles by which it may have come by them.
#[derive(Default)]
struct Hold {
    handles: BTreeSet<Handle>,
    /// Its locks.
    owned: Owned,
    /// It had more, and does not know that another client has them.
    is_lost: bool,
    /// Rises with every attempt to take one.
    begun: u64,
}

#[derive(Default)]
struct State {
    jobs: Vec<(Instant, Job)>,
    /// Requests that are being tried, and whether they have been interrupted.
    trying: HashMap<u64, bool>,
    /// Interruptions of requests that have not arrived here yet.
    increments: VecDeque<u64>,
    holds: BTreeMap<Key, Hold>,
    /// One thread waits until the first job is due, at this time. The others wait until they are
    /// woken.
    watched: Option<Instant>,
    is_ending: bool,
}

/// See the module.
#[derive(Default)]
pub struct Queue {
    state: Mutex<State>,
    changed: Condvar,
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic while held")
    }

    // ---- jobs -------------------------------------------------------------------------------------------------------

    /// Adds a request for a lock.
    pub fn push(&self, task: Task) {
        let mut state = self.lock();
        let request = task.asked.request;
        if let Some(at) = state.increments.iter().position(|increments| *increments == request) {
            state.increments.remove(at);
            if task.asked.waits {
                drop(state);
                return task.answer.give(Err(Errno::INTR));
            }
        }
        if !state.is_ending {
            state.jobs.push((Instant::now(), Job::Take(task)));
            drop(state);
            self.changed.notify_one();
        }
    }

    /// Adds a job that is due after `pause`.
    pub fn later(&self, job: Job, pause: Duration) {
        let mut state = self.lock();
        if !state.is_ending {
            state.jobs.push((Instant::now() + pause, job));
            drop(state);
            self.changed.notify_one();
        }
    }

    /// Waits for the next job that is due; `None` at the end.
    pub fn next(&self) -> Option<Job> {
        let mut state = self.lock();
        loop {
            if state.is_ending {
                return None;
            }
            let now = Instant::now();
            let first = state.jobs.iter().enumerate().min_by_key(|(_, (due, _))| *due);
            state = match first.map(|(at, (due, _))| (at, *due)) {
                Some((at, due)) if due <= now => {
                    let (_, job) = state.jobs.remove(at);
                    if let Job::Take(task) = &job {
                        state.trying.insert(task.asked.request, false);
                    }
                    if state.watched.is_none() && !state.jobs.is_empty() {
                        self.changed.notify_one();
                    }
                    return Some(job);
                }
                Some((_, due)) if state.watched.is_none_or(|until| due < until) => {
                    state.watched = Some(due);
                    let mut state =
                        self.changed.wait_timeout(state, due - now).expect("no panic while held").0;
                    state.watched.take_if(|until| *until == due);
                    state
                }
                _ => self.changed.wait(state).expect("no panic while held"),
            };
        }
    }

    /// Puts a task back, to be tried again after `pause`. Returns it if it was interrupted
    /// meanwhile, or the queue has ended.
    pub fn put_back(&self, task: Task, pause: Duration) -> Option<Task> {
        let mut state = self.lock();
        let was_interrupted = state.trying.remove(&task.asked.request).unwrap_or(false);
        if was_interrupted || state.is_ending {
            return Some(task);
        }
        state.jobs.push((Instant::now() + pause, Job::Take(task)));
        drop(state);
        // Another thread may be waiting for a job that is due later.
        self.changed.notify_one();
        None
    }

    /// The task need not be tried again.
    pub fn settled(&self, request: u64) {
        self.lock().trying.remove(&request);
    }

    /// Returns the interrupted task if it was waiting. If it is being tried, [`Queue::put_back`]
    /// returns it.
    pub fn interrupt(&self, request: u64) -> Option<Task> {
        let mut state = self.lock();
        let is_it = |job: &Job| matches!(job, Job::Take(task) if task.asked.request == request);
        if let Some(at) = state.jobs.iter().position(|(_, job)| is_it(job)) {
            return match state.jobs.remove(at).1 {
                Job::Take(task) => Some(task),
                _ => None,
            };
        }
        match state.trying.get_mut(&request) {
            Some(interrupted) => *interrupted = true,
            None => {
                if state.increments.len() == INCREMENTS_MAX {
                    state.increments.pop_front();
                }
                state.increments.push_back(request);
            }
        }
        None
    }

    /// Requests for locks on this file are tried at once.
    pub fn wake(&self, inode: u64) {
        let mut state = self.lock();
        let now = Instant::now();
        let mut woken = false;
        for (due, job) in &mut state.jobs {
            if matches!(job, Job::Take(task) if task.inode == inode) {
                *due = (*due).min(now);
                woken = true;
            }
        }
        drop(state);
        if woken {
            self.changed.notify_all();
        }
    }

    /// Ends all work. Returns the jobs that were waiting.
    pub fn end(&self) -> Vec<Job> {
        let mut state = self.lock();
        state.is_ending = true;
        let left = std::mem::take(&mut state.jobs).into_iter().map(|(_, job)| job).collect();
        drop(state);
        self.changed.notify_all();
        left
    }

    /// True, once, if a release of this owner's locks is still due.
    pub fn owed(&self, key: Key) -> bool {
        let mut state = self.lock();
        let before = state.jobs.len();
        state.jobs.retain(|(_, job)| !matches!(job, Job::Release(owed) if *owed == key));
        state.jobs.len() < before
    }

    // ---- who may have locks -----------------------------------------------------------------------------------------

    /// Records that an owner may have locks, taken by this handle.
    pub fn begins(&self, key: Key, handle: Handle) {
        let mut state = self.lock();
        let hold = state.holds.entry(key).or_default();
        hold.handles.insert(handle);
        hold.begun += 1;
    }

    /// Records that an owner has a lock of this mode in a range, or none.
    pub fn has(&self, key: Key, range: LockRange, mode: Option<LockMode>) {
        if let Some(hold) = self.lock().holds.get_mut(&key) {
            hold.owned.set(range, mode);
            hold.is_lost &= mode.is_none();
        }
    }

    /// Every owner's locks.
    pub fn owned(&self) -> Vec<OwnersLocks> {
        let state = self.lock();
        let has_some = state.holds.iter().filter(|(_, hold)| !hold.owned.ranges().is_empty());
        let owned = has_some.map(|(key, hold)| {
            let Key { inode, family, owner } = *key;
            OwnersLocks { inode, family, owner, owned: hold.owned.clone() }
        });
        owned.collect()
    }

    /// Records that an owner has lost its locks without knowing it. Returns the handles by which it
    /// took them.
    pub fn lose(&self, key: Key) -> BTreeSet<Handle> {
        let mut state = self.lock();
        let Some(hold) = state.holds.get_mut(&key) else { return BTreeSet::new() };
        (hold.owned, hold.is_lost) = (Owned::default(), true);
        hold.handles.clone()
    }

    /// True if an owner has lost its locks, and has taken none since.
    pub fn is_lost(&self, key: Key) -> bool {
        self.lock().holds.get(&key).is_some_and(|hold| hold.is_lost)
    }

    /// True if an owner may have locks.
    pub fn may_hold(&self, key: Key) -> bool {
        self.lock().holds.contains_key(&key)
    }

    /// How often an owner has begun to take one.
    pub fn begun(&self, key: Key) -> u64 {
        self.lock().holds.get(&key).map_or(0, |hold| hold.begun)
    }

    /// Records that an owner has no locks, unless it has begun to take one since.
    pub fn let_go(&self, key: Key, begun: u64) {
        let mut state = self.lock();
        if state.holds.get(&key).is_some_and(|hold| hold.begun == begun) {
            state.holds.remove(&key);
        }
    }

    /// A handle is gone. Returns the owners that may have locks and have taken them by no other
    /// handle. If a process took locks by another handle, it did so after it closed this one, which
    /// ended the earlier locks.
    pub fn released(&self, inode: u64, handle: Handle) -> Vec<Key> {
        let first = Key { inode, family: LockFamily::Ranges, owner: 0 };
        let last = Key { inode, family: LockFamily::Whole, owner: u64::MAX };
        let mut state = self.lock();
        let holds = state.holds.range_mut(first..=last);
        let of_handle = holds.filter_map(|(key, hold)| {
            let was_there = hold.handles.remove(&handle);
            (was_there && hold.handles.is_empty()).then_some(*key)
        });
        of_handle.collect()
    }
}
