//! What can be asked for, owned: the counterpart of [`crate::op::Task`] without its buffers.

use std::ops::Range;
use std::sync::Arc;

use outrigger_format::boundary::GearMasks;
use outrigger_format::{Codec, CodecSpec, FingerprintKind};

use super::{Class, UserOperation};

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
    /// What its speed depends on.
    pub fn class(&self) -> Class {
        match self {
            Self::Scan { .. } => Class::Scan,
            Self::HashMany { kind, .. } => Class::HashMany(*kind),
            Self::Compress { spec } => Class::Compress(spec.codec, spec.level),
            Self::Decompress { codec, .. } => Class::Decompress(*codec),
            Self::User { operation, .. } => Class::User(operation.id()),
        }
    }
}
