//! Inline chunks: chunks of small files that lie in the database itself, until they are packed.
//!
//! A pack for every small file would cost more than the file. So its chunks are committed as rows,
//! in the transaction that makes the file refer to them. A file's content does not show that: a
//! manifest root names chunks by their fingerprints, wherever they lie, and does not change when
//! they are packed.
//!
//! A row belongs to the session that is to pack it. It is removed only in a transaction of that
//! session that makes the pack with the chunk live, or while the session relies on a pack that has
//! it (rule 4 of `docs/decisions/0003-reclaim-protocol.md`). So a needed chunk is always in a row
//! or in a committed pack. If a reader finds it in no pack and then in no row, it is in a pack that
//! was committed meanwhile. Any session may take over the rows of an ended one.
//! `docs/decisions/0017-small-files.md` has the protocol, and why it loses nothing.

use std::collections::HashSet;

use outrigger_format::{CodecChoice, Fingerprint, FingerprintKind};

use super::SessionId;
use crate::error::Result;

/// An inline chunk.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct InlineChunk {
    /// Its fingerprint.
    pub fingerprint: Fingerprint,
    /// How to compress it when it is packed.
    pub codec: CodecChoice,
    /// Its bytes.
    pub bytes: Vec<u8>,
}

impl InlineChunk {
    /// True if its bytes match its fingerprint, which the function `kind` made.
    pub fn is_whole(&self, kind: FingerprintKind) -> bool {
        outrigger_offload::hash(kind, &self.bytes) == self.fingerprint
    }
}

/// A chunk in its row.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct InlineRow {
    /// Rises in the order of insertion.
    pub number: u64,
    /// The chunk. Its bytes were not compared with its fingerprint since they were read.
    pub chunk: InlineChunk,
}

/// A commit's change of inline chunks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum InlineChange {
    /// From now on the chunk is there. If it was already, its owner stays, and wrong bytes are
    /// replaced.
    Add {
        /// The chunk.
        chunk: InlineChunk,
        /// The session that is to pack it. It need not be live.
        owner: SessionId,
    },
    /// Removes the chunk's row, as the chunk is in a pack that this commit makes live, or that the
    /// session relies on. The row must exist and belong to this session; otherwise the commit is
    /// refused (`Changed`).
    Packed {
        /// Its fingerprint.
        fingerprint: Fingerprint,
    },
}

/// The inline chunks of one session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InlineOwner {
    /// Their owner; it may be over.
    pub session: SessionId,
    /// Chunks.
    pub chunks: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// Reading and taking over inline chunks. Changes come with commits
/// ([`super::Change::InlineChunks`]). All methods block.
pub trait InlineChunks: Send + Sync {
    /// The bytes of a chunk, not compared with its fingerprint; `None` when it is not inline.
    fn inline_chunk(&self, fingerprint: &Fingerprint) -> Result<Option<Vec<u8>>>;
    /// Those of `fingerprints` that are inline.
    fn inline_among(&self, fingerprints: &[Fingerprint]) -> Result<HashSet<Fingerprint>>;
    /// Rows of `session` above number `after`, rising: as many as have `bytes` together, and one
    /// more; empty when there are no more.
    fn inline_of(&self, session: SessionId, after: u64, bytes: u64) -> Result<Vec<InlineRow>>;
    /// Lists the sessions that have rows.
    fn inline_owners(&self) -> Result<Vec<InlineOwner>>;
    /// Visits every inline chunk, in no order, with bytes that were not compared.
    fn visit_inline(&self, visit: &mut dyn FnMut(InlineChunk) -> Result<()>) -> Result<()>;
    /// Gives rows of ended sessions to `session`; returns how many.
    ///
    /// # Errors
    /// `Fenced`.
    fn adopt_inline(&self, session: SessionId) -> Result<u64>;
}
