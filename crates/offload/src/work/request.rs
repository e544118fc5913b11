//! Owned requests: [`crate::op::Task`] without its buffers.

use std::ops::Range;
use std::sync::Arc;

use outrigger_format::boundary::GearMasks;
use outrigger_format::{ChunkerSpec, Codec, CodecSpec, Fingerprint, FingerprintKind};

use super::{Class, UserOperation};
use crate::op::{Digest, Stream, WindowSpec};
use crate::table::Table;

/// An operation with its parameters. Its data is [`Work::data`](super::Work::data). An idle task
/// holds the default, a request for no fingerprints.
#[derive(Clone, Debug)]
pub enum Request {
    /// [`crate::op::Scan`]: gives `output.candidates`.
    Scan {
        /// How many bytes directly before the data in the buffer also precede it in its file. Only
        /// the last 32 matter.
        history: usize,
        /// The masks for the wanted average.
        masks: GearMasks,
    },
    /// [`crate::op::HashMany`]: gives `output.fingerprints`.
    HashMany {
        /// The function.
        kind: FingerprintKind,
        /// The pieces, relative to the data.
        ranges: Vec<Range<u32>>,
    },
    /// [`crate::op::Compress`]: gives `output.bytes` and `output.codec`.
    Compress {
        /// The codec wanted.
        spec: CodecSpec,
    },
    /// [`crate::op::Decompress`]: gives `output.bytes`.
    Decompress {
        /// The codec of the stored bytes.
        codec: Codec,
        /// The expected length of the frame.
        raw_len: usize,
    },
    /// [`crate::op::WindowHash`]: gives `output.bytes`.
    WindowHash {
        /// The windows to hash.
        spec: WindowSpec,
    },
    /// [`crate::op::PmdHash`]: gives `output.bytes`.
    PmdHash {
        /// The function.
        digest: Digest,
    },
    /// [`crate::op::Lookup`]: gives `output.places`. Does not use the data.
    Lookup {
        /// The table, which must not change while the task lives.
        table: Arc<Table>,
        /// The fingerprints.
        keys: Vec<Fingerprint>,
    },
    /// [`crate::op::Ingest`]: gives `output.chunks` and `output.counts`.
    Ingest {
        /// The streams, relative to the data.
        streams: Vec<Stream>,
        /// How to cut.
        chunker: ChunkerSpec,
        /// The fingerprint.
        kind: FingerprintKind,
        /// The table in which chunks are looked up, if any. It must not change while the task
        /// lives.
        table: Option<Arc<Table>>,
    },
    /// An operation that a user registered: gives `output.bytes`.
    User {
        /// The operation.
        operation: Arc<UserOperation>,
        /// The parameters of the user's function.
        parameters: Vec<u8>,
    },
}

impl Default for Request {
    fn default() -> Self {
        Self::HashMany { kind: FingerprintKind::Blake3, ranges: Vec::new() }
    }
}

impl Request {
    /// The bytes of input other than the data: lists of pieces, keys and streams, and parameters.
    pub fn side_len(&self) -> usize {
        match self {
            Self::HashMany { ranges, .. } => size_of_val(&ranges[..]),
            Self::Lookup { keys, .. } => size_of_val(&keys[..]),
            Self::Ingest { streams, .. } => size_of_val(&streams[..]),
            Self::User { parameters, .. } => parameters.len(),
            _ => 0,
        }
    }

    /// The class that determines its speed.
    pub fn class(&self) -> Class {
        match self {
            Self::Scan { .. } => Class::Scan,
            Self::HashMany { kind, .. } => Class::HashMany(*kind),
            Self::Compress { spec } => Class::Compress(spec.codec, spec.level),
            Self::Decompress { codec, .. } => Class::Decompress(*codec),
            Self::WindowHash { spec } => Class::WindowHash(*spec),
            Self::PmdHash { digest } => Class::PmdHash(*digest),
            Self::Lookup { .. } => Class::Lookup,
            Self::Ingest { chunker, kind, table, .. } => Class::Ingest(*chunker, *kind, table.is_some()),
            Self::User { operation, .. } => Class::User(operation.id()),
        }
    }
}
