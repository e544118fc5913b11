//! The simulated database's locks on files, in memory. It follows PostgreSQL's engine, except for
//! circles of waiters.

use outrigger_store::meta::locks::{Blocker, Lock, LockFamily, LockRange, Owned, OwnersLocks, Taken, Wait};
use outrigger_store::meta::{SessionId, SessionRow};

/// The locks of one owner in one family on one file.
struct Held {
    session: SessionId,
    inode: u64,
    family: LockFamily,
    owner: u64,
    process: u32,
    ranges: Owned,
}

impl Held {
    fn is_of(&self, session: SessionId, inode: u64, family: LockFamily, owner: u64) -> bool {
        (self.session, self.inode, self.family, self.owner) == (session, inode, family, owner)
    }
}

struct Waiting {
    session: SessionId,
    ticket: u64,
    inode: u64,
    lock: Lock,
}

/// See the module.
#[derive(Default)]
pub struct LockTable {
    held: Vec<Held>,
    /// In the order in which they came.
    waiting: Vec<Waiting>,
}

impl LockTable {
    /// Ends the waits of sessions that are not among these.
    pub fn keep(&mut self, sessions: &[SessionRow]) {
        let lives = |session: SessionId| sessions.iter().any(|row| row.id == session);
        self.waiting.retain(|waiting| lives(waiting.session));
    }

    /// Ends the locks of a session.
    pub fn end(&mut self, session: SessionId) {
        self.held.retain(|held| held.session != session);
    }

    /// Ends the locks of sessions that are not among these.
    pub fn sweep(&mut self, sessions: &[SessionRow]) {
        self.held.retain(|held| sessions.iter().any(|row| row.id == held.session));
    }

    /// Gives a session the locks that an owner had in another one, if they are all there.
    pub fn take_over(&mut self, session: SessionId, from: SessionId, locks: &OwnersLocks) -> bool {
        let is_it = |held: &Held| held.is_of(from, locks.inode, locks.family, locks.owner);
        let Some(at) = self.held.iter().position(is_it) else { return false };
        let is_whole = self.held[at].ranges == locks.owned;
        if is_whole {
            self.held[at].session = session;
        } else {
            self.held.remove(at);
        }
        is_whole
    }

    fn owned(&mut self, session: SessionId, inode: u64, lock: &Lock) -> &mut Held {
        let is_it = |held: &Held| held.is_of(session, inode, lock.family, lock.owner);
        let found = self.held.iter().position(is_it).unwrap_or_else(|| {
            let (family, owner, process, ranges) = (lock.family, lock.owner, lock.process, Owned::default());
            self.held.push(Held { session, inode, family, owner, process, ranges });
            self.held.len() - 1
        });
        &mut self.held[found]
    }

    fn set(&mut self, session: SessionId, inode: u64, lock: &Lock, is_held: bool) {
        self.owned(session, inode, lock).ranges.set(lock.range, is_held.then_some(lock.mode));
        self.held.retain(|held| !held.ranges.ranges().is_empty());
    }

    /// The locks and waiters that block a lock.
    pub fn blockers(
        &self,
        sessions: &[SessionRow],
        session: SessionId,
        inode: u64,
        lock: &Lock,
        wait: Option<Wait>,
    ) -> Vec<Blocker> {
        let is_over = |id: SessionId| !sessions.iter().any(|row| row.id == id && !row.lease_is_over);
        let (mut found, mut has_some) = (Vec::new(), false);
        for held in self.held.iter().filter(|held| (held.inode, held.family) == (inode, lock.family)) {
            for &(range, mode) in held.ranges.ranges() {
                let (owner, process) = (held.owner, held.process);
                let other = Lock { family: held.family, owner, range, mode, process };
                if (held.session, owner) == (session, lock.owner) {
                    has_some |= range.overlaps(&lock.range);
                } else if other.excludes(lock) {
                    let (session, is_over) = (held.session, is_over(held.session));
                    found.push(Blocker { session, lock: other, is_over, is_waiting: false });
                }
            }
        }
        if wait.is_some_and(|wait| wait.gives_way) && !has_some {
            let is_own =
                |one: &&Waiting| one.session == session && Some(one.ticket) == wait.map(|wait| wait.ticket);
            let before = self.waiting.iter().take_while(|one| !is_own(one));
            let before = before.filter(|one| one.inode == inode && one.lock.excludes(lock));
            let before = before.filter(|one| {
                !is_over(one.session) && (one.session, one.lock.owner) != (session, lock.owner)
            });
            found.extend(before.map(|one| Blocker {
                session: one.session,
                lock: one.lock,
                is_over: false,
                is_waiting: true,
            }));
        }
        found.sort_unstable_by_key(|one| (one.is_waiting, one.lock.range.first, one.session, one.lock.owner));
        found
    }

    /// Takes a lock that nothing blocks.
    pub fn take(&mut self, session: SessionId, inode: u64, lock: &Lock, wait: Option<Wait>) -> Taken {
        self.set(session, inode, lock, true);
        if let Some(wait) = wait {
            self.stop_waiting(session, wait.ticket);
        }
        Taken::Yes
    }

    /// Records a waiter.
    pub fn wait(&mut self, session: SessionId, inode: u64, lock: &Lock, ticket: u64) {
        if lock.family == LockFamily::Whole {
            self.set(session, inode, lock, false);
        }
        if !self.waiting.iter().any(|one| (one.session, one.ticket) == (session, ticket)) {
            self.waiting.push(Waiting { session, ticket, inode, lock: *lock });
        }
    }

    /// Removes a waiter.
    pub fn stop_waiting(&mut self, session: SessionId, ticket: u64) {
        self.waiting.retain(|one| (one.session, one.ticket) != (session, ticket));
    }

    /// Releases a range of an owner. Returns true if it has another lock of the family on the file.
    pub fn release(
        &mut self,
        session: SessionId,
        inode: u64,
        family: LockFamily,
        owner: u64,
        range: LockRange,
    ) -> bool {
        let is_it = |held: &Held| held.is_of(session, inode, family, owner);
        self.held.iter_mut().filter(|held| is_it(held)).for_each(|held| held.ranges.set(range, None));
        self.held.retain(|held| !held.ranges.ranges().is_empty());
        self.held.iter().any(is_it)
    }

    /// Locks by the sessions that hold some.
    pub fn counts(&self) -> Vec<(SessionId, u64)> {
        self.held.iter().map(|held| (held.session, held.ranges.ranges().len() as u64)).collect()
    }
}
