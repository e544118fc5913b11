//! Loose chunks: chunks of small files that lie in the database itself, until they are packed.
//!
//! A pack for every small file that is closed would cost more than the file, so its chunks are committed as rows, in the transaction that makes
//! the file refer to them. Contents do not tell: a manifest root names chunks by their fingerprints, wherever they lie, and does not change when they are packed.
//!
//! A row belongs to the session that is to pack it, and leaves only in a transaction of that session which makes the pack live that has the chunk, or while the session
//! relies on one that has (rule 4 of `docs/decisions/0003-reclaim-protocol.md`). So a chunk that a file needs lies in a row or in a committed pack at any moment, and whoever finds it in
//! no row after looking in all packs finds it in a pack that was committed meanwhile. Of a session that is over anybody may take the rows over. `docs/decisions/0017-small-files.md`
//! has the protocol, and why it loses nothing.

use std::collections::HashSet;

use outrigger_format::{CodecChoice, Fingerprint, FingerprintKind};

use super::SessionId;
use crate::error::Result;

/// A chunk that lies in the database.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LooseChunk {
    /// Its name.
    pub fingerprint: Fingerprint,
    /// How it is to be compressed when it is packed.
    pub codec: CodecChoice,
    /// Its bytes.
    pub bytes: Vec<u8>,
}

impl LooseChunk {
    /// Its bytes are what its name says, which the function `kind` made.
    pub fn is_whole(&self, kind: FingerprintKind) -> bool {
        outrigger_offload::hash(kind, &self.bytes) == self.fingerprint
    }
}

/// A chunk in its row.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LooseRow {
    /// Rises in the order in which they came.
    pub number: u64,
    /// The chunk. Nobody has compared its bytes with its name since they were read.
    pub chunk: LooseChunk,
}

/// A change that a commit makes of loose chunks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LooseChange {
    /// The chunk is there from here on, if it is not already: whoever's it is then. A row that has other bytes under its name gets these.
    Add {
        /// The chunk.
        chunk: LooseChunk,
        /// The session that is to pack it. It need not be live.
        owner: SessionId,
    },
    /// The chunk is in a pack that this commit makes live, or that the session relies on: its row goes. It must be there, and this session's; else the commit is
    /// refused (`Changed`).
    Packed {
        /// Its name.
        fingerprint: Fingerprint,
    },
}

/// What of one session waits to be packed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LooseOwner {
    /// Whose it is; it may be over.
    pub session: SessionId,
    /// Chunks.
    pub chunks: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// Reading loose chunks, and taking them over. Changes come with commits ([`super::Change::Loose`]). All methods block.
pub trait Loose: Send + Sync {
    /// The bytes of a chunk, not compared with its name; `None` when it is not loose.
    fn loose_chunk(&self, fingerprint: &Fingerprint) -> Result<Option<Vec<u8>>>;
    /// Those of `fingerprints` that are loose.
    fn loose_among(&self, fingerprints: &[Fingerprint]) -> Result<HashSet<Fingerprint>>;
    /// Rows of `session` above number `after`, rising: as many as have `bytes` together, and one more; none when there are no more.
    fn loose_of(&self, session: SessionId, after: u64, bytes: u64) -> Result<Vec<LooseRow>>;
    /// Who has rows.
    fn loose_owners(&self) -> Result<Vec<LooseOwner>>;
    /// Every loose chunk, in no order: its name and its bytes, not compared.
    fn visit_loose(&self, visit: &mut dyn FnMut(LooseChunk) -> Result<()>) -> Result<()>;
    /// Rows of sessions that are over become those of `session`; returns how many.
    ///
    /// # Errors
    /// `Fenced`.
    fn adopt_loose(&self, session: SessionId) -> Result<u64>;
}
