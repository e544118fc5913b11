//! Locks on files among all clients of a store: `fcntl`'s on ranges of bytes, `flock`'s on whole files.
//!
//! A lock belongs to an *owner*: a number that a client has for one of its processes, or for one of its open files; owners of two sessions are never the same. Locks of one
//! owner do not exclude each other: a new one takes the place of what the owner had in its range. They say nothing about reading and writing: they are for those who ask.
//!
//! **They go when somebody else wants one of them.** Whoever finds a lock of a session whose lease is over, by the database's clock, ends that
//! session first, and all its locks go with it: so nothing that their holder was still committing comes after the next one has the lock. A
//! session that is ended for another reason ([`Meta::fence`](super::Meta::fence)) leaves its locks where they are. Until somebody wants one,
//! the next session of the same client can take them over ([`FileLocks::take_over_locks`]). Then nobody else has had them meanwhile.
//!
//! **Waiting** is the client's affair: it asks again, when [`FileLocks::lock_blockers`] says something else than before. What it waits for is recorded, so that those who came later let it go first for a while, and so that it is seen when owners
//! wait for each other in a circle. That is looked for whenever somebody begins to wait for somebody else, one after the other, so that the last one to close a circle is told, and nobody else.

use super::SessionId;
use crate::error::Result;

/// The last byte that a lock can reach: the end of the file, wherever that is.
pub const LOCK_END: u64 = i64::MAX as u64;

/// Which locks: the two know nothing of each other.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
#[repr(u8)]
pub enum LockFamily {
    /// On ranges of bytes, as `fcntl` has them.
    Ranges = 0,
    /// On whole files, as `flock` has them.
    Whole = 1,
}

/// Whom a lock excludes.
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

    /// It with the bytes beside it: what overlaps that can be one with it.
    pub(crate) fn with_neighbours(&self) -> Self {
        Self { first: self.first.saturating_sub(1), last: self.last.saturating_add(1).min(LOCK_END) }
    }
}

/// A lock that somebody wants, or has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lock {
    /// Which kind.
    pub family: LockFamily,
    /// Whose it is, among those of its session.
    pub owner: u64,
    /// What it covers.
    pub range: LockRange,
    /// Whom it excludes.
    pub mode: LockMode,
    /// The process that asked for it, on its host; for people.
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
    /// Whose they are, among those of its session.
    pub owner: u64,
    /// What it has.
    pub owned: Owned,
}

/// What is in the way of a lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Blocker {
    /// Whose owner it is.
    pub session: SessionId,
    /// The lock that is held, or waited for.
    pub lock: Lock,
    /// The lease of its session is over, or the session is.
    pub is_over: bool,
    /// It is not held: somebody has waited for it for longer.
    pub is_waiting: bool,
}

/// Somebody waits for a lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Wait {
    /// A number of the session's own for it.
    pub ticket: u64,
    /// Those who have waited for longer go first.
    pub gives_way: bool,
}

/// What became of a lock that was wanted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Taken {
    /// The owner has it.
    Yes,
    /// These are in the way. Of what the owner had nothing has changed; but who waits to change a lock on a whole file has let go of that, as two of them would
    /// wait for each other.
    No(Vec<Blocker>),
    /// Whoever is in the way waits for this very owner: the wait has not been recorded, as it would never end. Of locks on ranges only.
    Deadlock,
}

/// The locks of a store. Every method is a transaction of its own.
pub trait FileLocks: Send + Sync {
    /// Takes a lock on `inode` for its owner, in place of what that has in the range. If something is in the way, and the caller waits, what it waits for is recorded, in place of what was for that ticket;
    /// once the lock is taken the record goes.
    ///
    /// # Errors
    /// `Fenced`; `Invalid` for a range that cannot be.
    fn take_lock(&self, session: SessionId, inode: u64, lock: &Lock, wait: Option<Wait>) -> Result<Taken>;
    /// What is in the way of a lock; nothing is changed, and sessions that are over are not ended.
    fn lock_blockers(
        &self,
        session: SessionId,
        inode: u64,
        lock: &Lock,
        wait: Option<Wait>,
    ) -> Result<Vec<Blocker>>;
    /// An owner lets go of a range, whatever it has there. Returns whether it has another lock of the family on `inode`.
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
    /// Gives `session` the locks of one owner that a session had which is over. False, and the owner has none: somebody has wanted a lock of
    /// that session since it was ended, or the owner had other ones.
    ///
    /// # Errors
    /// `Fenced`.
    fn take_over_locks(&self, session: SessionId, from: SessionId, locks: &OwnersLocks) -> Result<bool>;
    /// Removes what sessions have left that are over.
    fn sweep_locks(&self) -> Result<()>;
    /// Somebody does not wait any more.
    fn stop_waiting(&self, session: SessionId, ticket: u64) -> Result<()>;
    /// Locks by the sessions that hold some.
    fn lock_counts(&self) -> Result<Vec<(SessionId, u64)>>;
}

/// What one owner has of one family on one file: ranges in order that do not overlap; neighbours of one mode are one.
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

    /// From here on `range` has this mode, or none.
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

    /// Bytes of the file that the model knows one by one; the last one stands for all from there to the end.
    const BYTES: u64 = 24;

    fn range(first: u64, last: u64) -> LockRange {
        LockRange { first, last: if last == BYTES - 1 { LOCK_END } else { last } }
    }

    proptest! {
        /// Byte by byte it is what was set last, and there are no more ranges than there must be.
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

        /// What touches a range is all that setting it can change.
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
