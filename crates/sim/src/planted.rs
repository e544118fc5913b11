//! Faults that are planted on purpose, to show that the simulation finds them: in the simulated servers and in the
//! host, not in what is shipped.

use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

use outrigger_store::meta::jobs::JobChange;
use outrigger_store::meta::{At, Change, Commit, Meta, SqliteMeta};

use crate::scheduler;

/// A fault. One at most is planted in a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Planted {
    /// None.
    Nothing,
    /// The database ignores what a commit expects of names.
    LostPrecondition,
    /// The database replaces a file's content whatever it was.
    LostComparison,
    /// The database forgets what a commit pins or holds.
    ForgottenPin,
    /// The database acknowledges a commit and does not make it, once in a while.
    AcknowledgedBeforeCommit,
    /// The database says of a commit whose answer was lost that it has not happened, although it has.
    UnknownIsFailed,
    /// The database makes a rename twice, and answers the second time, once in a while.
    RenamedTwice,
    /// The database accepts commits of sessions that are over.
    FencedAccepted,
    /// A host is told names as they were up to half a minute ago.
    StaleNames,
    /// A host is told contents as they were up to half a minute ago.
    StaleContents,
    /// The database grants a lock that somebody else has, once in a while.
    LockTwice,
    /// The pack store acknowledges a pack and does not keep it, once in a while.
    LostPack,
    /// The pack store keeps only the first half of a pack, once in a while.
    TornPack,
    /// The pack store returns other bytes than it was given, once in a while.
    WrongBytes,
    /// A host acknowledges a sync, and stores nothing.
    ForgottenSync,
    /// A host hands a program what it has read, and does not look whether it was changed on the way.
    UnverifiedRead,
    /// What was changed on the way is stored so, as if a collector copied it.
    KeptFlip,
    /// A check says nothing of packs that have rotted.
    MissedRot,
    /// A host acknowledges a write that its full disk does not take.
    FullAcknowledged,
    /// The database gives an agent a split that another one has.
    ClaimedTwice,
    /// The database tells of one output of a job twice.
    CountedTwice,
    /// The database records that a split is finished, and not what it wrote, once in a while.
    LostOutput,
}

/// All of them.
pub const ALL: [Planted; 21] = [
    Planted::LostPrecondition,
    Planted::LostComparison,
    Planted::ForgottenPin,
    Planted::AcknowledgedBeforeCommit,
    Planted::UnknownIsFailed,
    Planted::RenamedTwice,
    Planted::FencedAccepted,
    Planted::StaleNames,
    Planted::StaleContents,
    Planted::LockTwice,
    Planted::LostPack,
    Planted::TornPack,
    Planted::WrongBytes,
    Planted::ForgottenSync,
    Planted::UnverifiedRead,
    Planted::KeptFlip,
    Planted::MissedRot,
    Planted::FullAcknowledged,
    Planted::ClaimedTwice,
    Planted::CountedTwice,
    Planted::LostOutput,
];

static NOW: AtomicU8 = AtomicU8::new(0);

/// Plants it in place of the one before.
pub fn plant(fault: Planted) {
    NOW.store(fault as u8, Relaxed);
}

/// Plants the one of this name. Returns false if there is none.
pub fn plant_by_name(name: &str) -> bool {
    let found = ALL.into_iter().find(|fault| format!("{fault:?}") == name);
    found.inspect(|&fault| plant(fault)).is_some()
}

/// True when it is planted.
pub fn is(fault: Planted) -> bool {
    NOW.load(Relaxed) == fault as u8
}

/// A commit as the database gets it.
pub fn change_commit(commit: &Commit, database: &SqliteMeta) -> Commit {
    let mut commit = commit.clone();
    if is(Planted::LostComparison) {
        for change in &mut commit.changes {
            if let Change::Swap { inode, was, .. } = change
                && let Ok(Some(row)) = database.inode(At::Now, *inode)
            {
                **was = (row.attributes, row.root);
            }
        }
    }
    if is(Planted::LostPrecondition) {
        commit.changes.retain(|change| !matches!(change, Change::Expect { .. } | Change::Like { .. }));
    }
    if is(Planted::LostOutput) && scheduler::below(4) == 0 {
        let is_output = |change: &Change| matches!(change, Change::Job(JobChange::Output { .. }));
        commit.changes.retain(|change| !is_output(change));
    }
    if is(Planted::ForgottenPin) {
        commit.changes.retain(|change| !matches!(change, Change::Pin { .. } | Change::Orphan { .. }));
    }
    commit
}
