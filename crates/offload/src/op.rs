//! The operations that devices execute, as data: what goes in, what comes out, in which shape.
//!
//! A task borrows its buffers: input slices, and vectors that results are appended to or put in. That is all a device
//! sees; it knows no files, packs or stores. Every operation has a reference that all devices agree with, bit by bit for
//! `scan` and `hash_many`; two devices may compress differently, but each can read what the other wrote.

use std::fmt;
use std::ops::Range;

use outrigger_format::boundary::GearMasks;
use outrigger_format::{Codec, CodecSpec, Fingerprint, FingerprintKind};

/// What can be asked of a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Operation {
    /// See [`Scan`].
    Scan,
    /// See [`HashMany`].
    HashMany,
    /// See [`Compress`].
    Compress,
    /// See [`Decompress`].
    Decompress,
}

impl Operation {
    /// Every operation.
    pub const ALL: [Operation; 4] = [Self::Scan, Self::HashMany, Self::Compress, Self::Decompress];

    /// Its name in listings and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Scan => "scan",
            Self::HashMany => "hash_many",
            Self::Compress => "compress",
            Self::Decompress => "decompress",
        }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Finds boundary candidates. Reference: [`outrigger_format::boundary::scan_reference`].
#[derive(Debug)]
pub struct Scan<'a> {
    /// What precedes `data` in its file: at least the last 32 bytes, fewer at the beginning of the file only.
    pub history: &'a [u8],
    /// Less than 2^31 bytes.
    pub data: &'a [u8],
    /// For the average aimed at.
    pub masks: GearMasks,
    /// Candidates are appended, ascending: `position in data << 1 | strict`.
    pub out: &'a mut Vec<u32>,
}

/// Fingerprints pieces of a buffer. Reference: [`crate::hash`], one by one.
#[derive(Debug)]
pub struct HashMany<'a> {
    /// The function.
    pub kind: FingerprintKind,
    /// The buffer, less than 4 GiB.
    pub data: &'a [u8],
    /// The pieces, in bytes; any order, empty or overlapping as they like, within `data`.
    pub ranges: &'a [Range<u32>],
    /// One fingerprint per range is appended, in their order.
    pub out: &'a mut Vec<Fingerprint>,
}

/// Compresses one frame.
#[derive(Debug)]
pub struct Compress<'a> {
    /// The codec wanted.
    pub spec: CodecSpec,
    /// The frame, at most 64 MiB.
    pub raw: &'a [u8],
    /// Replaced by the bytes to store, never more than `raw` has.
    pub out: &'a mut Vec<u8>,
    /// Set to the codec used: `spec`'s, or [`Codec::None`] when that gains less than 1/32.
    pub used: Codec,
}

/// Decompresses one frame. Its checksum has been verified if `stored` comes from outside.
#[derive(Debug)]
pub struct Decompress<'a> {
    /// The codec it is stored in.
    pub codec: Codec,
    /// The stored bytes.
    pub stored: &'a [u8],
    /// The length that must come out, at most 64 MiB.
    pub raw_len: usize,
    /// Replaced by the frame.
    pub out: &'a mut Vec<u8>,
}

/// One piece of work for a device.
#[derive(Debug)]
pub enum Task<'a> {
    /// Find boundary candidates.
    Scan(Scan<'a>),
    /// Fingerprint pieces of a buffer.
    HashMany(HashMany<'a>),
    /// Compress a frame.
    Compress(Compress<'a>),
    /// Decompress a frame.
    Decompress(Decompress<'a>),
}

impl Task<'_> {
    /// Which operation it asks for.
    pub fn operation(&self) -> Operation {
        match self {
            Self::Scan(_) => Operation::Scan,
            Self::HashMany(_) => Operation::HashMany,
            Self::Compress(_) => Operation::Compress,
            Self::Decompress(_) => Operation::Decompress,
        }
    }
}
