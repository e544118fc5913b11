//! Locks that hold on all hosts: rows of the database, taken and given up by transactions of their own (`store/src/meta/locks.rs`).
//!
//! ```text
//!   SETLK, SETLKW ──► queue ──► a thread of this pool: one transaction ──taken──► the row is read again, the kernel forgets ──► answer
//!                       ▲                                └──others are in the way──► EAGAIN, or later again
//!                       └──interrupted: EINTR
//!   unlock, close ──► what was written is stored ──► one transaction; who waits here tries at once
//! ```
//!
//! **Who waits** keeps no thread that answers requests: it lies in the queue, and is tried again, at first after some milliseconds, later four times a second; by a statement that only reads, as long as what is in the way stays the same.
//! Among those of all hosts who wait for the same, whoever came first goes first for a while: longer than the longest pause of those who have waited, so that a program that takes a lock again and again
//! leaves the others a turn.
//!
//! **A lock is a point where hosts agree.** Before a lock is taken, changed or given up, what was written to the file here is stored, as by fsync; only if that succeeds is it given up, but for what a close does. When it was taken, the row is
//! read again, and if another host has stored another content since, the kernel is made to forget what it has of the old one, before whoever asked is told. So whoever has a lock reads what those before it wrote under theirs.
//! Threads that answer requests must not make the kernel forget: it may be waiting for them. So it is done here, where no request is served.
//!
//! **What ends a lock.** The kernel knows of none of them, and so sends none of its own to unlock what a process leaves behind. `FLUSH` comes whenever a descriptor is closed, by exit, too, and names who closed it. An open file's last
//! `RELEASE` ends all that was taken by it: locks of `flock`, and those of open files (`F_OFD_SETLK`), which look like a process's. For this it is kept who may have a lock here, and by which handles. As `RELEASE` comes when nobody waits for
//! it any more, the kernel may have given the open file's number as an owner to another one by then; so an owner of `flock`'s is known by its handle, which nobody else ever has. What cannot be given up just then is tried again until it
//! can, or the session is over.
//!
//! **When the session is ended** by another client its locks go. What each owner has is kept here, too, so that the mount can take it again (`../lease.rs`).

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

/// Threads that take locks. Each waits for the database, and for the kernel to forget.
const THREADS: usize = 4;
/// Whoever waits tries again after this part of the time that it has waited, but neither sooner …
const PAUSE_PART: u32 = 8;
const PAUSE_MIN: Duration = Duration::from_millis(5);
/// … nor later than this.
const PAUSE_MAX: Duration = Duration::from_millis(250);
/// So long those who have waited for longer go first: each of them has tried again by then, if its host is there.
const GIVES_WAY: Duration = Duration::from_millis(300);
/// How often it is looked whether whoever is in the way was a process of this host, and has ended.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How long after a failure it is tried again to give something up.
const RETRY: Duration = Duration::from_secs(1);

/// Makes the kernel forget what it has cached of a file.
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

    /// What a renewal of the session needs.
    pub fn service(&self) -> &Arc<LockService> {
        &self.shared
    }

    /// How the kernel is made to forget what it has cached of a file; the first one counts.
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

    /// Takes a lock; tells `answer`.
    pub fn take(&self, inode: u64, asked: &LockRequest, answer: Answer) {
        let ticket = self.shared.tickets.fetch_add(1, Ordering::Relaxed);
        let since = Instant::now();
        let task =
            Task { inode, asked: *asked, answer, ticket, since, session: None, blockers: None, looked: None };
        self.shared.queue.push(task);
    }

    /// Whoever asked for a lock by this number waits no longer.
    pub fn interrupt(&self, request: u64) {
        if let Some(task) = self.shared.queue.interrupt(request) {
            self.shared.give_up(task);
        }
    }

    /// Gives up what an owner has in a range; what was written is stored before, or it is not given up.
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
            // What was written by another descriptor, too. Whoever closes is told of an error by that; its locks end all the same.
            let _ = self.shared.store(inode);
            self.shared.end(key);
        }
    }

    /// An open file is gone, and all locks that were taken by it.
    pub fn released(&self, inode: u64, handle: Handle) {
        self.shared.queue.released(inode, handle).into_iter().for_each(|key| self.shared.end(key));
    }

    /// Ends the threads. Whoever still waits is told `EIO`.
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
        // A bug in here must not leave the mount without whoever takes locks.
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
                // It may have been let go of while it waited.
                self.queue.wake(key.inode);
                task.answer.give(Err(errno));
            }
        }
    }

    /// Tries once. `false`: others are in the way, and it is waited for.
    fn attempt(&self, task: &mut Task) -> Result<bool> {
        let (core, engine) = (&self.core, self.engine()?);
        let live = core.fail(core.lease.live())?;
        let session = live.id();
        let (inode, lock, wait) = (task.inode, task.asked.lock, task.wait());
        if task.session.replace(session) != Some(session) {
            // That it waits was recorded of a session that is over.
            task.blockers = None;
        }
        if let Some(known) = &task.blockers {
            let now = core.fail(engine.lock_blockers(session, inode, &lock, wait))?;
            if now == *known && !self.end_gone(&now, &mut task.looked)? {
                return Ok(false);
            }
        }
        let key = task.key();
        // Of whoever had this number before.
        if self.queue.owed(key)
            && let Err(errno) = self.release(key, LockRange::ALL)
        {
            self.queue.later(Job::Release(key), RETRY);
            return Err(errno);
        }
        // One that excludes less than before may let others in.
        self.store(inode)?;
        self.queue.begins(key, task.asked.handle);
        loop {
            let taken = engine.take_lock(session, inode, &lock, wait);
            if let Some(error) = taken.as_ref().err().filter(|error| error.kind() == ErrorKind::Fenced) {
                // Once more, for the next session.
                live.note(error);
                return Ok(false);
            }
            match core.fail(taken)? {
                Taken::Yes => break,
                Taken::Deadlock => return Err(Errno::DEADLK),
                Taken::No(blockers) => {
                    if task.asked.waits && lock.family == LockFamily::Whole {
                        self.queue.has(key, LockRange::ALL, None);
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
        // Once more: whoever closed the file meanwhile has found none.
        self.queue.begins(key, task.asked.handle);
        self.queue.has(key, lock.range, Some(lock.mode));
        // If the session has ended since, the next one may have taken what was known before this, and not this one.
        if live.check().is_err() {
            self.queue.has(key, lock.range, None);
            return Ok(false);
        }
        if lock.mode == LockMode::Shared {
            // It may have been an exclusive one.
            self.queue.wake(inode);
        }
        let agreed = self.agree(inode);
        if agreed.is_err() {
            // Nobody is told that it has it.
            let _ = self.release(key, lock.range);
        }
        agreed.map(|()| true)
    }

    /// Ends those sessions in the way whose process was one of this host, and is gone: then nobody has to wait until their leases are over.
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

    /// Stores what was written to a file here, so that it is there for whoever has the lock next.
    fn store(&self, inode: u64) -> Result<()> {
        self.core.store_behind();
        match self.core.open.get(inode) {
            Some(file) if !file.is_stored() => self.core.fail(self.core.store_file(&file, false)),
            _ => Ok(()),
        }
    }

    /// From here on the file is what the database says now, or will: here and in the kernel.
    fn agree(&self, inode: u64) -> Result<()> {
        let core = &self.core;
        for _ in 0..TRIES {
            // What was read before counts for nothing, not even for the moment that it usually does.
            core.forget_row(inode);
            let row = core.row(inode)?;
            let Some(file) = core.open.get(inode) else { return Ok(()) };
            let (is_so, is_committing, others, dropped) = {
                let state = file.read();
                // Of what only this mount knows nobody commits anything else.
                let is_committing = state.is_committing && !state.is_removed;
                let is_so = state.is_removed || *state.stored.root() == row.root;
                (is_so && !is_committing, is_committing, state.others, state.dropped)
            };
            if is_committing {
                // A batch of ours, of which nobody knows yet what it has made of the content: it has the turn, which this waits for.
                core.fail(core.store_file(&file, false))?;
            }
            if !is_so {
                continue;
            }
            if others != dropped {
                self.forget(inode);
                let mut state = file.write();
                // Others that came meanwhile are for whoever asks next: the kernel may have read either.
                state.dropped = state.dropped.max(others);
            }
            return Ok(());
        }
        Err(Errno::BUSY)
    }

    /// Takes the locks that this mount had when `before` was ended over for the next session. Returns the files of those that it cannot have,
    /// as somebody else has wanted some, with the handles by which they were taken.
    ///
    /// # Errors
    /// Those of the database. Then it is done again, for another session: what was taken over is lost.
    pub fn take_over(&self, before: SessionId, session: &Session) -> Stored<Vec<(u64, BTreeSet<Handle>)>> {
        let Some(engine) = self.core.store.meta.file_locks() else { return Ok(Vec::new()) };
        let mut lost = Vec::new();
        for locks in self.queue.owned() {
            if !engine.take_over_locks(session.id(), before, &locks)? {
                lost.push(Key { inode: locks.inode, family: locks.family, owner: locks.owner });
            }
        }
        // Only now: if it is done again, they are found lost again.
        Ok(lost.into_iter().map(|key| (key.inode, self.queue.lose(key))).collect())
    }

    /// Makes the kernel forget what it has cached of a file. Whoever calls it keeps no request waiting.
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
            // Until there is one it may be taken over: it is not forgotten.
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

    /// Ends all that an owner has on a file, now or as soon as that can be done.
    fn end(&self, key: Key) {
        if self.release(key, LockRange::ALL).is_err() {
            self.queue.later(Job::Release(key), RETRY);
        }
    }

    fn give_up(&self, task: Task) {
        if task.blockers.is_some() {
            // By a thread of the pool: this one may have been asked by the kernel.
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
