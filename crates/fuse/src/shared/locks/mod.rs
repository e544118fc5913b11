//! Locks that hold on all hosts: rows of the database, taken and released by transactions of their
//! own (`store/src/meta/locks.rs`).
//!
//! ```text
//!   SETLK, SETLKW ──► queue ──► a thread of this pool: one transaction ──taken──► the row is read again, the kernel forgets ──► answer
//!                       ▲                                └──others are in the way──► EAGAIN, or later again
//!                       └──interrupted: EINTR
//!   unlock, close ──► what was written is stored ──► one transaction; who waits here tries at once
//! ```
//!
//! **Waiting.** A waiting request blocks no thread that answers requests: it lies in the queue and
//! is tried again, at first after some milliseconds, later four times a second. As long as the
//! locks in the way stay the same, a statement that only reads checks them. Among the waiters of
//! all hosts for the same range, the first comer goes first for a while. That while is longer than
//! the longest pause of a waiter, so that a program that takes a lock again and again leaves the
//! others a turn.
//!
//! **A lock is a point where hosts agree.** Before a lock is taken, changed or released, this mount
//! stores what was written to the file here, as by fsync. The lock is released only if that
//! succeeds, except by a close. After a lock is taken, the mount reads the row again. If another
//! host has stored another content since, it makes the kernel drop its cache of the old one before
//! it answers. So the owner of a lock reads what earlier owners wrote under theirs. Threads that
//! answer requests must not make the kernel drop its cache, as the kernel may be waiting for them.
//! This pool's threads do it, as they serve no requests.
//!
//! **How a lock ends.** The kernel does not know these locks, and so sends no unlock for a process
//! that ends. It sends `FLUSH` whenever a descriptor is closed, also at exit, and names the
//! process. An open file's last `RELEASE` ends all locks that were taken by it: those of `flock`,
//! and those of open files (`F_OFD_SETLK`), which look like a process's. So the queue records who
//! may have a lock here, and by which handles. `RELEASE` comes when no program waits for it any
//! more, and by then the kernel may have reused the owner number of the open file. So an owner of
//! `flock` is known by its handle, which is never reused. A release that fails is tried again until
//! it succeeds or the session is over.
//!
//! **When the session is ended** by another client, its locks go. The queue also records what each
//! owner has, so that the mount can take it again (`../lease.rs`).

mod queue;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

use outrigger_clock::Instant;
use outrigger_store::meta::locks::{Blocker, FileLocks, Lock, LockFamily, LockMode, LockRange, Taken, Wait};
use outrigger_store::meta::{SessionId, is_gone};
use outrigger_store::session::Session;
use outrigger_store::{Context as _, ErrorKind, Result as Stored};
use rustix::io::Errno;

use self::queue::{Job, Key, Queue, Task};
use super::core::{Core, TRIES};
use crate::fs::{Answer, Handle, LockRequest, Result, Unlock};

/// Threads that take locks. Each waits for the database, and for the kernel to drop its cache.
const THREADS: usize = 4;
/// A waiter tries again after this part of the time that it has waited, but neither sooner …
const PAUSE_PART: u32 = 8;
const PAUSE_MIN: Duration = Duration::from_millis(5);
/// … nor later than this.
const PAUSE_MAX: Duration = Duration::from_millis(250);
/// How long a waiter yields to those that have waited longer: each of them has tried again by then,
/// if its host is alive.
const GIVES_WAY: Duration = Duration::from_millis(300);
/// How often to check if a session in the way was a process of this host that has ended.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Pause after a release has failed.
const RETRY: Duration = Duration::from_secs(1);

/// Makes the kernel drop its cache of a file.
type Forget = Box<dyn Fn(u64) + Send + Sync>;

/// See the module.
pub(super) struct Locks {
    shared: Arc<LockService>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// The queue and what its threads do.
pub(super) struct LockService {
    core: Arc<Core>,
    queue: Queue,
    tickets: AtomicU64,
    forget: OnceLock<Forget>,
}

impl Locks {
    /// Starts the threads.
    pub fn start(core: &Arc<Core>) -> outrigger_store::Result<Self> {
        let core = Arc::clone(core);
        let shared = LockService {
            core,
            queue: Queue::default(),
            tickets: AtomicU64::new(1),
            forget: OnceLock::new(),
        };
        // From here on its drop ends those that have been started.
        let locks = Self { shared: Arc::new(shared), threads: Mutex::default() };
        for number in 0..THREADS {
            let shared = Arc::clone(&locks.shared);
            let thread = std::thread::Builder::new().name(format!("mount-lock-{number}"));
            let thread =
                thread.spawn(move || shared.work()).context(|| "cannot start a thread".to_string())?;
            locks.threads.lock().expect("no panic while held").push(thread);
        }
        Ok(locks)
    }

    /// For the renewal of the session.
    pub fn service(&self) -> &Arc<LockService> {
        &self.shared
    }

    /// Sets how to make the kernel drop its cache of a file; only the first call counts.
    pub fn forget_by(&self, forget: Forget) {
        let _ = self.shared.forget.set(forget);
    }

    /// A lock that is in the way of this one.
    pub fn in_the_way(&self, inode: u64, lock: &Lock) -> Result<Option<Lock>> {
        let core = &self.shared.core;
        let session = core.fail(core.lease.live())?.id();
        let blockers = core.fail(self.shared.engine()?.lock_blockers(session, inode, lock, None))?;
        let found = blockers.into_iter().find(|blocker| !blocker.is_over);
        // A process of another host has no number here.
        Ok(found.map(|Blocker { session: whose, lock, .. }| Lock {
            process: if whose == session { lock.process } else { 0 },
            ..lock
        }))
    }

    /// Takes a lock and gives `answer` the result.
    pub fn take(&self, inode: u64, asked: &LockRequest, answer: Answer) {
        let ticket = self.shared.tickets.fetch_add(1, Ordering::Relaxed);
        let since = Instant::now();
        let task =
            Task { inode, asked: *asked, answer, ticket, since, session: None, blockers: None, looked: None };
        self.shared.queue.push(task);
    }

    /// Ends the wait of the lock request with this number.
    pub fn interrupt(&self, request: u64) {
        if let Some(task) = self.shared.queue.interrupt(request) {
            self.shared.give_up(task);
        }
    }

    /// Releases an owner's locks in a range, after storing what was written. They stay if that
    /// fails.
    pub fn give_up(&self, inode: u64, unlock: &Unlock) -> Result<()> {
        let key = Key { inode, family: unlock.family, owner: unlock.owner };
        let shared = &self.shared;
        shared.core.require_session()?;
        if !shared.queue.may_hold(key) {
            return Ok(());
        }
        shared.store(inode)?;
        let was_lost = shared.queue.is_lost(key);
        shared.release(key, unlock.range)?;
        if was_lost { Err(Errno::IO) } else { Ok(()) }
    }

    /// A process has closed a descriptor of the file.
    pub fn closed_by(&self, inode: u64, owner: u64) {
        let key = Key { inode, family: LockFamily::Ranges, owner };
        if self.shared.queue.may_hold(key) {
            // Includes writes by other descriptors. The close of that descriptor reports an error;
            // the locks end all the same.
            let _ = self.shared.store(inode);
            self.shared.end(key);
        }
    }

    /// An open file is gone, and all locks that were taken by it.
    pub fn released(&self, inode: u64, handle: Handle) {
        self.shared.queue.released(inode, handle).into_iter().for_each(|key| self.shared.end(key));
    }

    /// Ends the threads. Requests that still wait get `EIO`.
    pub fn end(&self) {
        let left = self.shared.queue.end();
        for thread in std::mem::take(&mut *self.threads.lock().expect("no panic while held")) {
            let _ = thread.join();
        }
        drop(left);
    }
}

impl Drop for Locks {
    fn drop(&mut self) {
        self.end();
    }
}

impl Task {
    fn wait(&self) -> Option<Wait> {
        let gives_way = self.since.elapsed() < GIVES_WAY;
        self.asked.waits.then_some(Wait { ticket: self.ticket, gives_way })
    }

    fn key(&self) -> Key {
        Key { inode: self.inode, family: self.asked.lock.family, owner: self.asked.lock.owner }
    }
}

impl LockService {
    fn engine(&self) -> Result<&dyn FileLocks> {
        self.core.store.meta.file_locks().ok_or(Errno::NOLCK)
    }

    fn work(&self) {
        while let Some(job) = self.queue.next() {
            match job {
                Job::Take(task) => self.try_to_take(task),
                Job::Release(key) => self.end(key),
                Job::StopWaiting(ticket) => self.stop_waiting(ticket),
            }
        }
    }

    fn try_to_take(&self, mut task: Task) {
        let (request, key) = (task.asked.request, task.key());
        // A panic in here must not end a thread that takes locks.
        let tried = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| self.attempt(&mut task)));
        match tried.unwrap_or(Err(Errno::IO)) {
            Ok(false) => {
                let pause = (task.since.elapsed() / PAUSE_PART).clamp(PAUSE_MIN, PAUSE_MAX);
                if let Some(task) = self.queue.put_back(task, pause) {
                    self.give_up(task);
                }
            }
            Ok(true) => {
                self.queue.settled(request);
                task.answer.give(Ok(()));
            }
            Err(errno) => {
                self.queue.settled(request);
                if task.blockers.is_some() {
                    self.stop_waiting(task.ticket);
                }
                // It may have been released while it waited.
                self.queue.wake(key.inode);
                task.answer.give(Err(errno));
            }
        }
    }

    /// Tries once. `false` if others are in the way and the request waits.
    fn attempt(&self, task: &mut Task) -> Result<bool> {
        let (core, engine) = (&self.core, self.engine()?);
        let live = core.fail(core.lease.live())?;
        let session = live.id();
        let (inode, lock, wait) = (task.inode, task.asked.lock, task.wait());
        if task.session.replace(session) != Some(session) {
            // Its wait was recorded for a session that is over.
            task.blockers = None;
        }
        if let Some(known) = &task.blockers {
            let now = core.fail(engine.lock_blockers(session, inode, &lock, wait))?;
            if now == *known && !self.end_gone(&now, &mut task.looked)? {
                return Ok(false);
            }
        }
        let key = task.key();
        // Left over from an earlier owner with this number.
        if self.queue.owed(key)
            && let Err(errno) = self.release(key, LockRange::ALL)
        {
            self.queue.later(Job::Release(key), RETRY);
            return Err(errno);
        }
        // A weaker lock than before may let others in, so they must find the data stored.
        self.store(inode)?;
        self.queue.begins(key, task.asked.handle);
        if !self.take(task, &live, wait)? {
            return Ok(false);
        }
        // Again: a close of the file meanwhile has found no owner.
        self.queue.begins(key, task.asked.handle);
        self.queue.has(key, lock.range, Some(lock.mode));
        // If the session has ended since, the next one may have taken over the locks that were
        // known before this one, but not this one.
        if live.check().is_err() {
            self.queue.has(key, lock.range, None);
            return Ok(false);
        }
        if lock.mode == LockMode::Shared {
            // The lock may have been exclusive before.
            self.queue.wake(inode);
        }
        let agreed = self.agree(inode);
        if agreed.is_err() {
            // The program is not told that it has the lock.
            let _ = self.release(key, lock.range);
        }
        agreed.map(|()| true)
    }

    /// Asks the database for the lock. `false` if the request waits, or is tried again with the next
    /// session.
    fn take(&self, task: &mut Task, live: &Session, wait: Option<Wait>) -> Result<bool> {
        let (engine, lock) = (self.engine()?, task.asked.lock);
        loop {
            let taken = engine.take_lock(live.id(), task.inode, &lock, wait);
            if let Some(error) = taken.as_ref().err().filter(|error| error.kind() == ErrorKind::Fenced) {
                live.note(error);
                return Ok(false);
            }
            match self.core.fail(taken)? {
                Taken::Yes => return Ok(true),
                Taken::Deadlock => return Err(Errno::DEADLK),
                Taken::No(blockers) => {
                    if task.asked.waits && lock.family == LockFamily::Whole {
                        self.queue.has(task.key(), LockRange::ALL, None);
                    }
                    if self.end_gone(&blockers, &mut task.looked)? {
                        continue;
                    }
                    if !task.asked.waits {
                        return Err(Errno::AGAIN);
                    }
                    task.blockers = Some(blockers);
                    return Ok(false);
                }
            }
        }
    }

    /// Ends sessions in the way whose process was one of this host and is gone, so that nobody
    /// waits for the end of their leases.
    fn end_gone(&self, blockers: &[Blocker], looked: &mut Option<Instant>) -> Result<bool> {
        let core = &self.core;
        let own = core.session().id();
        let is_soon = looked.is_some_and(|at| at.elapsed() < LOOK_EVERY);
        if is_soon || blockers.iter().all(|blocker| blocker.session == own) {
            return Ok(false);
        }
        *looked = Some(Instant::now());
        let locks = core.store.locks_dir();
        let sessions = core.fail(core.store.meta.sessions())?;
        let blocks = |session: SessionId| blockers.iter().any(|blocker| blocker.session == session);
        let gone =
            sessions.iter().filter(|row| row.id != own && blocks(row.id) && is_gone(row, Some(&locks)));
        let gone: Vec<SessionId> = gone.map(|row| row.id).collect();
        gone.iter().try_for_each(|session| core.fail(core.store.meta.fence(*session)))?;
        Ok(!gone.is_empty())
    }

    /// Stores what was written to a file here, for the lock's next owner.
    fn store(&self, inode: u64) -> Result<()> {
        self.core.store_deferred();
        match self.core.open.get(inode) {
            Some(file) if !file.is_stored() => self.core.fail(self.core.store_file(&file, false)),
            _ => Ok(()),
        }
    }

    /// Brings this mount and the kernel up to the database's present row of the file.
    fn agree(&self, inode: u64) -> Result<()> {
        let core = &self.core;
        for _ in 0..TRIES {
            // A cached row counts for nothing here, although it is used elsewhere for a moment.
            core.forget_row(inode);
            let row = core.row(inode)?;
            let Some(file) = core.open.get(inode) else { return Ok(()) };
            let (is_so, is_committing, others, dropped) = {
                let state = file.read();
                // Nobody else commits anything to a file that only this mount knows.
                let is_committing = state.is_committing && !state.is_removed;
                let is_so = state.is_removed || *state.stored.root() == row.root;
                (is_so && !is_committing, is_committing, state.others, state.dropped)
            };
            if is_committing {
                // One of our batches, whose effect on the content is not known yet. It has the
                // flush lock, and this call waits for that.
                core.fail(core.store_file(&file, false))?;
            }
            if !is_so {
                continue;
            }
            if others != dropped {
                self.forget(inode);
                let mut state = file.write();
                // Changes that came meanwhile are left to the next request: the kernel may have
                // read either content.
                state.dropped = state.dropped.max(others);
            }
            return Ok(());
        }
        Err(Errno::BUSY)
    }

    /// Takes the locks that this mount had, when `before` was ended, again for the next session.
    /// Returns the files whose locks it cannot have, as another client wanted some of them, with
    /// the handles by which they were taken.
    ///
    /// # Errors
    /// Those of the database. Then it is repeated for another session: the locks taken so far are
    /// lost.
    pub fn take_over(&self, before: SessionId, session: &Session) -> Stored<Vec<(u64, BTreeSet<Handle>)>> {
        let Some(engine) = self.core.store.meta.file_locks() else { return Ok(Vec::new()) };
        let mut lost = Vec::new();
        for locks in self.queue.owned() {
            if !engine.take_over_locks(session.id(), before, &locks)? {
                lost.push(Key { inode: locks.inode, family: locks.family, owner: locks.owner });
            }
        }
        // Only now: if it is repeated, they are found lost again.
        Ok(lost.into_iter().map(|key| (key.inode, self.queue.lose(key))).collect())
    }

    /// Makes the kernel drop its cache of a file. The calling thread must not be serving a request.
    pub fn forget(&self, inode: u64) {
        if let Some(forget) = self.forget.get() {
            forget(inode);
        }
    }

    fn release(&self, key: Key, range: LockRange) -> Result<()> {
        let (core, engine) = (&self.core, self.engine()?);
        let begun = self.queue.begun(key);
        let Key { inode, family, owner } = key;
        let left = loop {
            // Without a session the lock may still be taken over: it is not forgotten.
            let session = core.fail(core.lease.live())?;
            match engine.release_lock(session.id(), inode, family, owner, range) {
                // The next session has taken it over.
                Err(error) if error.kind() == ErrorKind::Fenced => session.note(&error),
                left => break left,
            }
        };
        if left.is_ok() {
            self.queue.has(key, range, None);
        }
        if left.as_ref().is_ok_and(|left| !left) {
            self.queue.let_go(key, begun);
        }
        self.queue.wake(inode);
        core.fail(left).map(drop)
    }

    /// Ends all locks of an owner on a file, now or as soon as possible.
    fn end(&self, key: Key) {
        if self.release(key, LockRange::ALL).is_err() {
            self.queue.later(Job::Release(key), RETRY);
        }
    }

    fn give_up(&self, task: Task) {
        if task.blockers.is_some() {
            // In the pool: this thread may be serving a request of the kernel.
            self.queue.later(Job::StopWaiting(task.ticket), Duration::ZERO);
        }
        task.answer.give(Err(Errno::INTR));
    }

    fn stop_waiting(&self, ticket: u64) {
        let session = self.core.session().id();
        let stopped = self.engine().and_then(|engine| self.core.fail(engine.stop_waiting(session, ticket)));
        if stopped.is_err() && self.core.session().check().is_ok() {
            self.queue.later(Job::StopWaiting(ticket), RETRY);
        }
    }
}
