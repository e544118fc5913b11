//! Locks on files among all clients of a store: `fcntl`'s on ranges of bytes, `flock`'s on whole
//! files.
//!
//! A lock belongs to an *owner*: a number that a client has for one of its processes, or for one of
//! its open files; owners of two sessions are never the same. Locks of one owner do not exclude
//! each other: a new lock replaces what the owner had in its range. Locks are advisory: they do not
//! stop reads and writes.
//!
//! **An expired lock goes when another owner wants it.** A request that meets a lock of a session
//! with an expired lease (by the database's clock) first ends that session, with all its locks. So
//! the old holder commits nothing after the new one has the lock. A session that is ended for
//! another reason ([`Sessions::fence`](super::Sessions::fence)) leaves its locks. Until another
//! owner wants one of them, the next session of the same client can take them over
//! ([`FileLocks::take_over_locks`]); then nobody else has held them meanwhile.
//!
//! **Waiting** is up to the client: it asks again when [`FileLocks::lock_blockers`] answers
//! differently. The database records what a client waits for, for two reasons. Later clients let it
//! go first for a while. And a deadlock is found: each new wait is checked, one after the other,
//! for a cycle of owners. The client whose wait would close the cycle is told, and no other.

use super::SessionId;
use crate::error::Result;

/// The last byte that a lock can reach: the end of the file, wherever that is.
pub const LOCK_END: u64 = i64::MAX as u64;

/// The two kinds of locks, which are independent of each other.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
#[repr(u8)]
pub enum LockFamily {
    /// On ranges of bytes, as `fcntl` has them.
    Ranges = 0,
    /// On whole files, as `flock` has them.
    Whole = 1,
}

/// Which locks a lock excludes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum LockMode {
    /// Exclusive ones.
    Shared = 0,
    /// All others.
    Exclusive = 1,
}

/// Bytes of a file, `last` among them; at most up to [`LOCK_END`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LockRange {
    /// The first one.
    pub first: u64,
    /// The last one.
    pub last: u64,
}

impl LockRange {
    /// All there are, or will be.
    pub const ALL: Self = Self { first: 0, last: LOCK_END };

    /// True when they have a byte in common.
    pub fn overlaps(&self, other: &Self) -> bool {
        self.first <= other.last && other.first <= self.last
    }

    /// The range and the bytes next to it: locks that overlap this can be merged with it.
    pub(crate) fn with_neighbours(&self) -> Self {
        Self { first: self.first.saturating_sub(1), last: self.last.saturating_add(1).min(LOCK_END) }
    }
}

/// A lock that an owner wants or has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lock {
    /// Which kind.
    pub family: LockFamily,
    /// The owner's number within its session.
    pub owner: u64,
    /// What it covers.
    pub range: LockRange,
    /// Which locks it excludes.
    pub mode: LockMode,
    /// The process that asked for it, on its host; only for people to read.
    pub process: u32,
}

impl Lock {
    /// True when the two cannot be held by different owners.
    pub fn excludes(&self, other: &Self) -> bool {
        self.family == other.family
            && self.range.overlaps(&other.range)
            && (self.mode == LockMode::Exclusive || other.mode == LockMode::Exclusive)
    }
}

/// All locks of one owner of one family on one file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OwnersLocks {
    /// The file.
    pub inode: u64,
    /// Which kind.
    pub family: LockFamily,
    /// The owner's number within its session.
    pub owner: u64,
    /// The ranges that it has locked.
    pub owned: Owned,
}

/// A lock that is in the way of another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Blocker {
    /// The owner's session.
    pub session: SessionId,
    /// The lock that is held or waited for.
    pub lock: Lock,
    /// The lease of its session is over, or the session is.
    pub is_over: bool,
    /// The lock is not held: its owner has waited for longer.
    pub is_waiting: bool,
}

/// A wait for a lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Wait {
    /// The session's own number for the wait.
    pub ticket: u64,
    /// Owners that have waited for longer go first.
    pub gives_way: bool,
}

/// The outcome of a request for a lock.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Taken {
    /// The owner has it.
    Yes,
    /// These are in the way, and the owner keeps what it had. One exception: an owner that waits to
    /// change its lock on a whole file has released it, as two such owners would wait for each
    /// other.
    No(Vec<Blocker>),
    /// A lock in the way belongs to an owner that waits for this very owner. The wait would never
    /// end, so it was not recorded. Only for locks on ranges.
    Deadlock,
}

/// The locks of a store. Every method is a transaction of its own.
pub trait FileLocks: Send + Sync {
    /// Takes a lock on `inode` for its owner, and replaces what the owner has in the range. If a
    /// lock is in the way and the caller waits, records the wait under its ticket, in place of an
    /// earlier one. Once the lock is taken the record goes.
    ///
    /// # Errors
    /// `Fenced`; `Invalid` for a range that cannot be.
    fn take_lock(&self, session: SessionId, inode: u64, lock: &Lock, wait: Option<Wait>) -> Result<Taken>;
    /// Returns what is in the way of a lock. Changes nothing, and ends no session.
    fn lock_blockers(
        &self,
        session: SessionId,
        inode: u64,
        lock: &Lock,
        wait: Option<Wait>,
    ) -> Result<Vec<Blocker>>;
    /// Releases a range of an owner, whatever it has there. Returns whether the owner has another
    /// lock of the family on `inode`.
    ///
    /// # Errors
    /// `Fenced`: then it has none.
    fn release_lock(
        &self,
        session: SessionId,
        inode: u64,
        family: LockFamily,
        owner: u64,
        range: LockRange,
    ) -> Result<bool>;
    /// Gives `session` the locks that one owner had in a session that is over. Returns false, and
    /// moves none, if another owner has wanted a lock of that session since it was ended, or if the
    /// owner had other locks.
    ///
    /// # Errors
    /// `Fenced`.
    fn take_over_locks(&self, session: SessionId, from: SessionId, locks: &OwnersLocks) -> Result<bool>;
    /// Removes the locks and waits of sessions that are over.
    fn sweep_locks(&self) -> Result<()>;
    /// Removes the record of a wait.
    fn stop_waiting(&self, session: SessionId, ticket: u64) -> Result<()>;
    /// Counts locks by session, for sessions that hold some.
    fn lock_counts(&self) -> Result<Vec<(SessionId, u64)>>;
}

/// The locks of one owner, of one family, on one file: ordered ranges that do not overlap.
/// Neighbours of one mode are merged.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Owned(Vec<(LockRange, LockMode)>);

impl Owned {
    /// These, in any order; they must not overlap.
    pub fn new(mut ranges: Vec<(LockRange, LockMode)>) -> Self {
        ranges.sort_unstable_by_key(|(range, _)| range.first);
        Self(ranges)
    }

    /// The ranges.
    pub fn ranges(&self) -> &[(LockRange, LockMode)] {
        &self.0
    }

    /// Sets the mode of `range`, or removes it for `None`.
    pub fn set(&mut self, range: LockRange, mode: Option<LockMode>) {
        let mut parts = Vec::with_capacity(self.0.len() + 2);
        for (held, held_mode) in self.0.drain(..) {
            if held.first < range.first {
                parts.push((LockRange { last: held.last.min(range.first - 1), ..held }, held_mode));
            }
            if held.last > range.last {
                parts.push((LockRange { first: held.first.max(range.last + 1), ..held }, held_mode));
            }
        }
        parts.extend(mode.map(|mode| (range, mode)));
        parts.sort_unstable_by_key(|(range, _)| range.first);
        for (range, mode) in parts {
            match self.0.last_mut() {
                Some((before, before_mode)) if *before_mode == mode && before.last + 1 == range.first => {
                    before.last = range.last;
                }
                _ => self.0.push((range, mode)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Bytes of the file that the model knows one by one; the last one stands for all from there to
    /// the end.
    const BYTES: u64 = 24;

    fn range(first: u64, last: u64) -> LockRange {
        LockRange { first, last: if last == BYTES - 1 { LOCK_END } else { last } }
    }

    proptest! {
        /// Each byte has the mode that was set last, and there are no more ranges than needed.
        #[test]
        fn ranges_are_what_a_map_of_bytes_says(
            steps in prop::collection::vec((0..BYTES, 0..BYTES, 0_u8..3), 1..40),
        ) {
            let (mut owned, mut model) = (Owned::default(), vec![None; BYTES as usize]);
            for (one, other, mode) in steps {
                let (first, last) = (one.min(other), one.max(other));
                let mode = [None, Some(LockMode::Shared), Some(LockMode::Exclusive)][usize::from(mode)];
                owned.set(range(first, last), mode);
                model[first as usize..=last as usize].fill(mode);
                let mut bytes = vec![None; BYTES as usize];
                for (held, mode) in owned.ranges() {
                    prop_assert!(held.first <= held.last && held.first < BYTES);
                    let last = held.last.min(BYTES - 1);
                    prop_assert!(held.last < BYTES - 1 || held.last == LOCK_END, "{held:?}");
                    for byte in held.first..=last {
                        prop_assert!(bytes[byte as usize].replace(*mode).is_none(), "twice");
                    }
                }
                prop_assert_eq!(&bytes, &model);
                let changes = model.windows(2).filter(|pair| pair[0] != pair[1] && pair[1].is_some()).count();
                prop_assert_eq!(owned.ranges().len(), changes + usize::from(model[0].is_some()));
                prop_assert_eq!(Owned::new(owned.ranges().iter().rev().copied().collect()), owned.clone());
            }
        }

        /// Setting a range changes only locks that touch it.
        #[test]
        fn what_does_not_touch_a_range_stays(
            steps in prop::collection::vec((0..BYTES, 0..BYTES, 0_u8..3), 1..20),
        ) {
            let mut owned = Owned::default();
            for (one, other, mode) in steps {
                let range = range(one.min(other), one.max(other));
                let mode = [None, Some(LockMode::Shared), Some(LockMode::Exclusive)][usize::from(mode)];
                let touches = |held: &LockRange| held.overlaps(&range.with_neighbours());
                let (near, far): (Vec<_>, Vec<_>) = owned.ranges().iter().partition(|(held, _)| touches(held));
                let mut near = Owned::new(near);
                near.set(range, mode);
                owned.set(range, mode);
                let all = Owned::new(far.into_iter().chain(near.ranges().iter().copied()).collect());
                prop_assert_eq!(&all, &owned);
            }
        }
    }

    #[test]
    fn exclusion_is_by_family_range_and_mode() {
        let lock = |family, first, last, mode| Lock {
            family,
            owner: 1,
            range: LockRange { first, last },
            mode,
            process: 1,
        };
        let (ranges, whole) = (LockFamily::Ranges, LockFamily::Whole);
        let (shared, exclusive) = (LockMode::Shared, LockMode::Exclusive);
        let wanted = lock(ranges, 10, 19, shared);
        for (other, excludes) in [
            (lock(ranges, 19, 30, exclusive), true),
            (lock(ranges, 0, 10, exclusive), true),
            (lock(ranges, 0, LOCK_END, exclusive), true),
            (lock(ranges, 20, 30, exclusive), false),
            (lock(ranges, 0, 9, exclusive), false),
            (lock(ranges, 10, 19, shared), false),
            (lock(whole, 0, LOCK_END, exclusive), false),
        ] {
            assert_eq!((wanted.excludes(&other), other.excludes(&wanted)), (excludes, excludes), "{other:?}");
        }
    }
}
