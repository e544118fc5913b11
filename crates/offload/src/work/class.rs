//! The class of a task: with its size, it determines the task's speed. It is the key of
//! calibrations.

use std::fmt;

use outrigger_format::{ChunkerSpec, Codec, FingerprintKind};

use super::UserOperation;
use crate::op::{Digest, WindowSpec};

/// An operation with those parameters that affect its speed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Class {
    /// Boundary candidates.
    Scan,
    /// Fingerprints by this function.
    HashMany(FingerprintKind),
    /// Compression by this codec at this level.
    Compress(Codec, i8),
    /// Decompression of this codec.
    Decompress(Codec),
    /// Sliding windows.
    WindowHash(WindowSpec),
    /// The parallel Merkle-Damgård construction over this function.
    PmdHash(Digest),
    /// Look-ups in a table.
    Lookup,
    /// Ingestion with this chunker and this fingerprint; the flag says if chunks are looked up.
    Ingest(ChunkerSpec, FingerprintKind, bool),
    /// The user's operation of this number ([`UserOperation::id`]).
    User(u32),
}

impl Class {
    /// The name of the operation alone, for thresholds and metrics: [`crate::Operation::name`], or
    /// the user's.
    pub fn operation(self) -> String {
        let name = match self {
            Self::Scan => "scan",
            Self::HashMany(_) => "hash_many",
            Self::Compress(..) => "compress",
            Self::Decompress(_) => "decompress",
            Self::WindowHash(_) => "window_hash",
            Self::PmdHash(_) => "pmd_hash",
            Self::Lookup => "lookup",
            Self::Ingest(..) => "ingest",
            Self::User(id) => return UserOperation::name_of(id),
        };
        name.to_string()
    }

    /// True if the thresholds of compression apply.
    pub fn is_codec(self) -> bool {
        matches!(self, Self::Compress(..) | Self::Decompress(_))
    }
}

/// `scan`, `hash_many/blake3`, `compress/zstd:3`, `decompress/lz4`, `window_hash/md5:20/4/4`
/// (window, step, bytes kept), `pmd_hash/sha1`, `lookup`, `ingest/gear32:4K/16K/64K/blake3+lookup`,
/// `user/NAME`. The name is the same in every process.
impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Scan => write!(f, "scan"),
            Self::HashMany(kind) => write!(f, "hash_many/{}", kind.name()),
            Self::Compress(codec, level) => {
                write!(f, "compress/{}", codec.name())?;
                if codec.levels().is_some() { write!(f, ":{level}") } else { Ok(()) }
            }
            Self::Decompress(codec) => write!(f, "decompress/{}", codec.name()),
            Self::WindowHash(spec) => {
                write!(f, "window_hash/{}:{}/{}/{}", spec.function.name(), spec.window, spec.step, spec.keep)
            }
            Self::PmdHash(digest) => write!(f, "pmd_hash/{}", digest.name()),
            Self::Lookup => write!(f, "lookup"),
            Self::Ingest(chunker, kind, lookup) => {
                write!(f, "ingest/{chunker}/{}{}", kind.name(), if lookup { "+lookup" } else { "" })
            }
            Self::User(id) => write!(f, "user/{}", UserOperation::name_of(id)),
        }
    }
}
