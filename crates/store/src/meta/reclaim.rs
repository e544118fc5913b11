//! What the collector asks of the database.

use outrigger_format::{PackId, Root};

use super::{PackRow, SessionId};
use crate::error::Result;

/// The collector's half of the reclaim protocol (`docs/decisions/0003-reclaim-protocol.md`).
pub trait Reclaim: Send + Sync {
    /// Rule 14: `session` becomes the collector (its id is the token). The earlier one is fenced if
    /// its lease or its row is over; otherwise this fails with `Busy`. All candidates become live
    /// again. The methods below fail with `Fenced` once another session has taken over.
    fn take_collector(&self, session: SessionId) -> Result<()>;
    /// Ends the run: candidates that are left become live again.
    fn release_collector(&self, session: SessionId) -> Result<()>;
    /// On one consistent state of the database: calls `visit` for every retained root, and returns
    /// the rows of the committed (`Live` and `Candidate`) packs. Retained are current roots,
    /// history that a snapshot or pin sees, kept and pinned versions, and held roots. Equal ones
    /// may repeat, and empty ones are left out.
    fn visit_roots(&self, visit: &mut dyn FnMut(Root) -> Result<()>) -> Result<Vec<PackRow>>;
    /// Marks those of `packs` that are live as candidates, raises the generation, and returns it.
    fn mark_candidates(&self, session: SessionId, packs: &[PackId]) -> Result<u64>;
    /// True when all writer sessions that are not over have acknowledged `generation`. One whose
    /// lease is over counts until it is fenced.
    fn all_acknowledged(&self, generation: u64) -> Result<bool>;
    /// Rule 21, in one transaction: the collector's own sealed `copies` become live, and candidates
    /// among `victims` become dead at `time`. Durable when it returns. `Busy` when
    /// [`Reclaim::all_acknowledged`] is false for the generation that marked a victim.
    fn delete_packs(
        &self,
        session: SessionId,
        copies: &[PackId],
        victims: &[PackId],
        time: u64,
    ) -> Result<()>;
    /// Unmarks candidates (one that could not be copied).
    fn unmark(&self, session: SessionId, packs: &[PackId]) -> Result<()>;
}
