//! Who wants locks and when each is tried again; and who may have some here.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::Duration;

use outrigger_clock::Instant;
use outrigger_store::meta::SessionId;
use outrigger_store::meta::locks::{Blocker, LockFamily, LockMode, LockRange, Owned, OwnersLocks};
use rustix::io::Errno;

use crate::fs::{Answer, Handle, LockRequest};

/// Interruptions of what has not been heard of yet, at most. Between the moment that a request is read and the one that it is here there are never more requests than threads, and all others that end up here do not matter.
const EARLY_MAX: usize = 1024;

/// A lock that somebody wants.
pub struct Task {
    pub inode: u64,
    pub asked: LockRequest,
    pub answer: Answer,
    /// Its number in the database.
    pub ticket: u64,
    pub since: Instant,
    /// For which it was last tried.
    pub session: Option<SessionId>,
    /// What was in its way when it was last tried: that it waits for that is recorded.
    pub blockers: Option<Vec<Blocker>>,
    /// When it was last looked whether those are gone.
    pub looked: Option<Instant>,
}

/// What the threads do.
pub enum Job {
    /// To take a lock, if that can be done.
    Take(Task),
    /// To end all that an owner has, as that could not be done when it was due.
    Release(Key),
    /// To take back that somebody waits.
    StopWaiting(u64),
}

/// An owner's locks of one kind on one file.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Key {
    pub inode: u64,
    pub family: LockFamily,
    pub owner: u64,
}

/// How an owner may have come by locks.
#[derive(Default)]
struct Hold {
    handles: BTreeSet<Handle>,
    /// What it has.
    owned: Owned,
    /// It had more, and does not know that somebody else has it.
    is_lost: bool,
    /// Rises with every attempt to take one.
    begun: u64,
}

#[derive(Default)]
struct State {
    jobs: Vec<(Instant, Job)>,
    /// Requests that are being tried, and whether they have been interrupted.
    trying: HashMap<u64, bool>,
    /// Interruptions of requests that have not been heard of.
    early: VecDeque<u64>,
    holds: BTreeMap<Key, Hold>,
    /// Until when one of the threads waits for the first job to be due. The others wait until they are woken.
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

    /// Somebody wants a lock.
    pub fn push(&self, task: Task) {
        let mut state = self.lock();
        let request = task.asked.request;
        if let Some(at) = state.early.iter().position(|early| *early == request) {
            state.early.remove(at);
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

    /// Something is to be done after `pause`.
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

    /// A task that was tried is to be tried again after `pause`. It is returned if it has been interrupted meanwhile, or nobody tries any more.
    pub fn put_back(&self, task: Task, pause: Duration) -> Option<Task> {
        let mut state = self.lock();
        let was_interrupted = state.trying.remove(&task.asked.request).unwrap_or(false);
        if was_interrupted || state.is_ending {
            return Some(task);
        }
        state.jobs.push((Instant::now() + pause, Job::Take(task)));
        drop(state);
        // Another thread may be waiting for something that is due later.
        self.changed.notify_one();
        None
    }

    /// A task that was tried needs not be tried again.
    pub fn settled(&self, request: u64) {
        self.lock().trying.remove(&request);
    }

    /// The task that was interrupted, if it was waiting. If it is just being tried, [`Queue::put_back`] gives it back.
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
                if state.early.len() == EARLY_MAX {
                    state.early.pop_front();
                }
                state.early.push_back(request);
            }
        }
        None
    }

    /// Whoever waits for a lock on this file tries at once.
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

    /// Nothing is done any more. Returns what was waiting.
    pub fn end(&self) -> Vec<Job> {
        let mut state = self.lock();
        state.is_ending = true;
        let left = std::mem::take(&mut state.jobs).into_iter().map(|(_, job)| job).collect();
        drop(state);
        self.changed.notify_all();
        left
    }

    /// True, once, if this is still to be given up.
    pub fn owed(&self, key: Key) -> bool {
        let mut state = self.lock();
        let before = state.jobs.len();
        state.jobs.retain(|(_, job)| !matches!(job, Job::Release(owed) if *owed == key));
        state.jobs.len() < before
    }

    // ---- who may have locks -----------------------------------------------------------------------------------------

    /// An owner may have locks, from now on, by this handle.
    pub fn begins(&self, key: Key, handle: Handle) {
        let mut state = self.lock();
        let hold = state.holds.entry(key).or_default();
        hold.handles.insert(handle);
        hold.begun += 1;
    }

    /// An owner has a lock of this mode in a range, or none.
    pub fn has(&self, key: Key, range: LockRange, mode: Option<LockMode>) {
        if let Some(hold) = self.lock().holds.get_mut(&key) {
            hold.owned.set(range, mode);
            hold.is_lost &= mode.is_none();
        }
    }

    /// What every owner has.
    pub fn owned(&self) -> Vec<OwnersLocks> {
        let state = self.lock();
        let has_some = state.holds.iter().filter(|(_, hold)| !hold.owned.ranges().is_empty());
        let owned = has_some.map(|(key, hold)| {
            let Key { inode, family, owner } = *key;
            OwnersLocks { inode, family, owner, owned: hold.owned.clone() }
        });
        owned.collect()
    }

    /// An owner has nothing any more, and does not know. Returns the handles by which it had something.
    pub fn lose(&self, key: Key) -> BTreeSet<Handle> {
        let mut state = self.lock();
        let Some(hold) = state.holds.get_mut(&key) else { return BTreeSet::new() };
        (hold.owned, hold.is_lost) = (Owned::default(), true);
        hold.handles.clone()
    }

    /// Whether an owner has lost what it had, and has taken nothing since.
    pub fn is_lost(&self, key: Key) -> bool {
        self.lock().holds.get(&key).is_some_and(|hold| hold.is_lost)
    }

    /// Whether an owner may have locks.
    pub fn may_hold(&self, key: Key) -> bool {
        self.lock().holds.contains_key(&key)
    }

    /// How often an owner has begun to take one.
    pub fn begun(&self, key: Key) -> u64 {
        self.lock().holds.get(&key).map_or(0, |hold| hold.begun)
    }

    /// An owner has none, unless it has begun to take one since.
    pub fn let_go(&self, key: Key, begun: u64) {
        let mut state = self.lock();
        if state.holds.get(&key).is_some_and(|hold| hold.begun == begun) {
            state.holds.remove(&key);
        }
    }

    /// A handle is gone: owners that may have locks which they have come by with no other one. What a process has by another one it has taken after it closed this one, which ended
    /// those before.
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
