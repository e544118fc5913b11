//! Faults that are planted on purpose, to show that the simulation finds them: in the simulated database and pack store, not in what is shipped.

use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

use outrigger_store::meta::{Change, Commit};

/// A fault. One at most is planted in a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Planted {
    /// None.
    Nothing,
    /// A commit's expectations of names are not looked at.
    LostExpectation,
    /// A file's content is replaced whatever it was.
    LostComparison,
    /// A commit is acknowledged and not made, once in a while.
    AcknowledgedBeforeCommit,
    /// A commit without an answer is taken for one that failed.
    UnknownIsFailed,
    /// A pack is acknowledged, and not kept, once in a while.
    LostPack,
    /// A pack has another's bytes, or none, and nobody says so.
    WrongBytes,
}

static NOW: AtomicU8 = AtomicU8::new(0);

/// Plants it in place of the one before.
pub fn plant(fault: Planted) {
    NOW.store(fault as u8, Relaxed);
}

/// True when it is planted.
pub fn is(fault: Planted) -> bool {
    NOW.load(Relaxed) == fault as u8
}

/// A commit as the database gets it.
pub fn change_commit(commit: &Commit) -> Commit {
    let mut commit = commit.clone();
    if is(Planted::LostComparison) {
        for change in &mut commit.changes {
            if let Change::Swap { inode, parent, attributes, root, keep, .. } = change {
                let (attributes, root) = (attributes.clone(), root.clone());
                *change = Change::Node { inode: *inode, parent: *parent, attributes, root, keep: *keep };
            }
        }
    }
    if is(Planted::LostExpectation) {
        commit.changes.retain(|change| !matches!(change, Change::Expect { .. } | Change::Like { .. }));
    }
    commit
}
