//! What can be asked for, owned: the counterpart of [`crate::op::Task`] without its buffers.

use std::ops::Range;
use std::sync::Arc;

use outrigger_format::boundary::GearMasks;
use outrigger_format::{ChunkerSpec, Codec, CodecSpec, Fingerprint, FingerprintKind};

use super::{Class, UserOperation};
use crate::op::{Digest, Stream, WindowSpec};
use crate::table::Table;

/// An operation with its parameters. The data is [`Work::data`](super::Work::data); an idle task
/// holds the default, a request for no fingerprints.
#[derive(Clone, Debug)]
pub enum Request {
    /// [`crate::op::Scan`]: gives `output.candidates`.
    Scan {
        /// How many bytes right before the data, in the same buffer, precede it in its file too. Only the last 32 matter.
        history: usize,
        /// For the average aimed at.
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
        /// The codec it is stored in.
        codec: Codec,
        /// The length that must come out.
        raw_len: usize,
    },
    /// [`crate::op::WindowHash`]: gives `output.bytes`.
    WindowHash {
        /// Which windows.
        spec: WindowSpec,
    },
    /// [`crate::op::PmdHash`]: gives `output.bytes`.
    PmdHash {
        /// The function.
        digest: Digest,
    },
    /// [`crate::op::Lookup`]: gives `output.places`. The data plays no part.
    Lookup {
        /// The table, as it is for as long as the task is alive.
        table: Arc<Table>,
        /// The questions.
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
        /// Where to look chunks up, if anywhere; as it is for as long as the task is alive.
        table: Option<Arc<Table>>,
    },
    /// An operation that a user registered: gives `output.bytes`.
    User {
        /// The operation.
        operation: Arc<UserOperation>,
        /// Whatever it takes beside the data.
        parameters: Vec<u8>,
    },
}

impl Default for Request {
    fn default() -> Self {
        Self::HashMany { kind: FingerprintKind::Blake3, ranges: Vec::new() }
    }
}

impl Request {
    /// How many bytes of input it has beside the data: lists of pieces, keys and streams, parameters.
    pub fn side_len(&self) -> usize {
        match self {
            Self::HashMany { ranges, .. } => size_of_val(&ranges[..]),
            Self::Lookup { keys, .. } => size_of_val(&keys[..]),
            Self::Ingest { streams, .. } => size_of_val(&streams[..]),
            Self::User { parameters, .. } => parameters.len(),
            _ => 0,
        }
    }

    /// What its speed depends on.
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
