//! Planted faults, which show that the simulation finds them. They are in the simulated servers and
//! in the simulated host, not in the product.

use outrigger_store::meta::Tree;
use std::sync::atomic::AtomicU8;
use std::sync::atomic::Ordering::Relaxed;

use outrigger_store::meta::jobs::JobChange;
use outrigger_store::meta::{At, Change, Commit, SqliteMeta};

use crate::scheduler;

/// A fault. At most one is planted in a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Planted {
    /// None.
    Nothing,
    /// The database ignores a commit's preconditions on names.
    LostPrecondition,
    /// The database replaces a file's content without comparing it.
    LostComparison,
    /// The database forgets the pins or holds of a commit.
    ForgottenPin,
    /// The database sometimes acknowledges a commit without making it.
    AcknowledgedBeforeCommit,
    /// The database denies a commit whose answer was lost, although it has happened.
    UnknownIsFailed,
    /// The database sometimes makes a rename twice, and answers the second time.
    RenamedTwice,
    /// The database accepts commits of sessions that are over.
    FencedAccepted,
    /// A host gets names as they were up to half a minute ago.
    StaleNames,
    /// A host gets contents as they were up to half a minute ago.
    StaleContents,
    /// The database sometimes grants a lock that another owner has.
    LockTwice,
    /// The pack store sometimes acknowledges a pack without keeping it.
    LostPack,
    /// The pack store sometimes keeps only the first half of a pack.
    TornPack,
    /// The pack store sometimes returns other bytes than it was given.
    WrongBytes,
    /// A host acknowledges a sync and stores nothing.
    ForgottenSync,
    /// A host gives a program the bytes that it has read without verifying them.
    UnverifiedRead,
    /// Bytes that were changed on the way are stored, as if a collector copied them.
    KeptFlip,
    /// A check does not report rotten packs.
    MissedRot,
    /// A host acknowledges a write that its full disk does not take.
    FullAcknowledged,
    /// The database gives an agent a split that another agent has.
    ClaimedTwice,
    /// The database reports one output of a job twice.
    CountedTwice,
    /// The database sometimes records that a split is finished, but not its output.
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
            if let Change::CompareAndSwap { inode, was, .. } = change
                && let Ok(Some(row)) = database.inode(At::Now, *inode)
            {
                **was = (row.attributes, row.root);
            }
        }
    }
    if is(Planted::LostPrecondition) {
        commit
            .changes
            .retain(|change| !matches!(change, Change::IfName { .. } | Change::IfAttributes { .. }));
    }
    if is(Planted::LostOutput) && scheduler::below(4) == 0 {
        let is_output = |change: &Change| matches!(change, Change::Job(JobChange::Output { .. }));
        commit.changes.retain(|change| !is_output(change));
    }
    if is(Planted::ForgottenPin) {
        commit.changes.retain(|change| !matches!(change, Change::PinContent { .. } | Change::Orphan { .. }));
    }
    commit
}
