//! Packs, as the database knows them.

use crate::error::Result;
use outrigger_format::{PackId, PackKind};

use super::SessionId;
use super::fault::{Outcome, refuse};
use crate::error::ErrorKind;

/// The life of a pack: `Writing` → `Sealed` → `Live` ⇄ `Candidate` → `Dead`; `Writing` and `Sealed`
/// → `Dead` when swept. Nothing leaves `Dead`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub enum PackState {
    /// Announced by an intent: its session is writing it.
    Writing = 0,
    /// Durable, but nothing committed refers to it yet; owned by its session.
    Sealed = 1,
    /// Committed.
    Live = 2,
    /// A collector's candidate: sessions that acknowledged since do not rely on it.
    Candidate = 3,
    /// Nothing may refer to it ever again; its object may still be there.
    Dead = 4,
}

/// A pack as the database knows it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PackRow {
    /// Its id.
    pub id: PackId,
    /// The kind of its chunks.
    pub kind: PackKind,
    /// Its state.
    pub state: PackState,
    /// The session that wrote it.
    pub session: SessionId,
    /// Length of the object, bytes; 0 until sealed.
    pub bytes: u64,
    /// Raw length of its chunks, bytes; 0 until sealed.
    pub raw_bytes: u64,
    /// Chunks in it; 0 until sealed.
    pub chunks: u32,
    /// When it became dead, nanoseconds since 1970; else 0.
    pub dead_since: u64,
    /// For a pack that was announced and never recorded as sealed: the
    /// [`mark`](outrigger_format::PackHeader::mark) that its header has if this announcer made it.
    /// 0 for all other packs.
    pub mark: u64,
}

/// Packs in one state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PackSum {
    /// The state.
    pub state: PackState,
    /// How many there are.
    pub packs: u64,
    /// Lengths of their objects, bytes.
    pub bytes: u64,
}

impl PackState {
    /// Its name, for people and programs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Writing => "writing",
            Self::Sealed => "sealed",
            Self::Live => "live",
            Self::Candidate => "candidate",
            Self::Dead => "dead",
        }
    }

    /// Reads a row's number.
    pub(super) fn from_row(number: i64) -> Outcome<Self> {
        let known = [Self::Writing, Self::Sealed, Self::Live, Self::Candidate, Self::Dead];
        let found = known.into_iter().find(|state| *state as i64 == number);
        found.ok_or_else(|| refuse(ErrorKind::Damaged, format!("pack state {number}")))
    }
}

impl PackRow {
    /// True when committed data may refer to it, even if it is a deletion candidate.
    pub fn is_committed(&self) -> bool {
        matches!(self.state, PackState::Live | PackState::Candidate)
    }
}

/// How far a client has read the rows of packs: a number of the engine's, and what the number
/// belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PackMark {
    /// All earlier changes have been read.
    pub(crate) at: i64,
    /// The run of the server, and the table: if either changes, the number means nothing.
    pub(crate) of: (i64, i64),
}

/// The changes of packs since a mark.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PackChanges {
    /// The generation in the same state of the database.
    pub generation: u64,
    /// The changed rows, as they are now; some may have been seen before. Removed rows are missing:
    /// these packs were never visible, or were dead before.
    pub rows: Vec<PackRow>,
    /// The mark for the next call.
    pub mark: PackMark,
}

/// The rows of packs.
pub trait Packs: Send + Sync {
    /// Announces `count` packs of `kind` that `session` will write, with this mark in their
    /// headers, and returns their new ids, rising.
    fn announce_packs(
        &self,
        session: SessionId,
        kind: PackKind,
        count: u32,
        mark: u64,
    ) -> Result<Vec<PackId>>;
    /// Withdraws intents that the session announced and did not write, as their names were taken.
    /// Rows in another state, or of another session, stay.
    fn withdraw_packs(&self, session: SessionId, packs: &[PackId]) -> Result<()>;
    /// Records that announced packs are sealed and durable (`bytes`, `raw_bytes`, `chunks` are
    /// taken from the rows).
    fn packs_sealed(&self, session: SessionId, packs: &[PackRow]) -> Result<()>;
    /// Every pack row.
    fn packs(&self) -> Result<Vec<PackRow>>;
    /// Up to `limit` pack rows, in the order of their ids, after `after`: for a caller that needs
    /// little of each.
    fn packs_after(&self, after: PackId, limit: usize) -> Result<Vec<PackRow>>;
    /// Sums over all pack rows, by their state.
    fn pack_sums(&self) -> Result<Vec<PackSum>>;
    /// The mark for asking for later changes, if the engine has one. Data that is read after it may
    /// be reported once more.
    fn pack_mark(&self) -> Result<Option<PackMark>> {
        Ok(None)
    }
    /// Rows of packs that have changed since `mark`: all of them, in whatever order their
    /// transactions began and ended. `None` if the engine cannot tell: then read all.
    fn changed_packs(&self, mark: PackMark) -> Result<Option<PackChanges>> {
        let _ = mark;
        Ok(None)
    }
    /// Rule 15: sets packs `Dead` that are `Writing` or `Sealed` and whose session is over. Returns
    /// how many.
    fn sweep_packs(&self, time: u64) -> Result<u64>;
    /// Drops the rows of dead packs whose objects are gone; rows that are not `Dead`, or whose
    /// session is not over, are left alone (rule 22).
    fn forget_packs(&self, packs: &[PackId]) -> Result<()>;
    /// Inserts rows of packs that were found as objects, as live: for a database rebuilt from
    /// packs. Existing rows stay. Ids handed out later are above them.
    fn adopt_packs(&self, packs: &[PackRow]) -> Result<()>;
}
