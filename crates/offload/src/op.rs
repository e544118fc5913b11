//! The operations of devices as data: inputs, outputs and their form.
//!
//! A task borrows its buffers: input slices, and vectors for results. A device sees nothing else,
//! and knows no files, packs or stores. Every operation has a reference with which all devices
//! agree. For `scan` and `hash_many` they agree bit by bit. Two devices may compress differently,
//! but each can decompress the other's output.

use std::fmt;
use std::ops::Range;

use outrigger_format::boundary::GearMasks;
use outrigger_format::{ChunkerSpec, Codec, CodecSpec, Fingerprint, FingerprintKind};

use crate::table::Table;

/// Why stored bytes could not be decompressed. They are damaged, or come from something else.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CodecError {
    /// The codec cannot have written these bytes.
    #[error("the stored bytes are not valid {}", .0.name())]
    Malformed(Codec),
    /// The bytes decode to less than promised. If they decode to more, the error is this or
    /// [`CodecError::Malformed`].
    #[error("{} gave {got} bytes where {expected} were promised", .codec.name())]
    Length {
        /// The codec.
        codec: Codec,
        /// The bytes promised.
        expected: usize,
        /// The bytes that came out.
        got: usize,
    },
    /// The promised length exceeds that of any frame.
    #[error("a frame of {0} bytes is promised, more than any may have")]
    TooLong(usize),
}

/// An operation of a device.
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
    /// See [`WindowHash`].
    WindowHash,
    /// See [`PmdHash`].
    PmdHash,
    /// See [`Lookup`].
    Lookup,
    /// See [`Ingest`].
    Ingest,
}

impl Operation {
    /// Every operation.
    pub const ALL: [Operation; 8] = [
        Self::Scan,
        Self::HashMany,
        Self::Compress,
        Self::Decompress,
        Self::WindowHash,
        Self::PmdHash,
        Self::Lookup,
        Self::Ingest,
    ];

    /// Its name in listings and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Scan => "scan",
            Self::HashMany => "hash_many",
            Self::Compress => "compress",
            Self::Decompress => "decompress",
            Self::WindowHash => "window_hash",
            Self::PmdHash => "pmd_hash",
            Self::Lookup => "lookup",
            Self::Ingest => "ingest",
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
    /// The bytes before `data` in its file: at least the last 32, or all at the beginning of the
    /// file.
    pub history: &'a [u8],
    /// Less than 2^31 bytes.
    pub data: &'a [u8],
    /// The masks for the wanted average.
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
    /// The pieces, in bytes, within `data`. They may be in any order, empty or overlapping.
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
    /// Set to the codec used: that of `spec`, or [`Codec::None`] if it gains less than 1/32.
    pub used: Codec,
}

/// Decompresses one frame. If `stored` comes from outside, the caller has verified its checksum.
#[derive(Debug)]
pub struct Decompress<'a> {
    /// The codec of `stored`.
    pub codec: Codec,
    /// The stored bytes.
    pub stored: &'a [u8],
    /// The expected length of the frame, at most 64 MiB.
    pub raw_len: usize,
    /// Replaced by the frame.
    pub out: &'a mut Vec<u8>,
}

/// A standard hash function.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Digest {
    /// MD5 (RFC 1321), 16 bytes.
    Md5,
    /// SHA-1 (RFC 3174), 20 bytes.
    Sha1,
    /// SHA-256 (FIPS 180-4), 32 bytes.
    Sha256,
    /// BLAKE3, 32 bytes.
    Blake3,
}

impl Digest {
    /// Every function.
    pub const ALL: [Digest; 4] = [Self::Md5, Self::Sha1, Self::Sha256, Self::Blake3];

    /// Its length in bytes.
    #[allow(clippy::len_without_is_empty, reason = "no digest is empty")]
    pub fn len(self) -> usize {
        match self {
            Self::Md5 => 16,
            Self::Sha1 => 20,
            Self::Sha256 | Self::Blake3 => 32,
        }
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Md5 => "md5",
            Self::Sha1 => "sha1",
            Self::Sha256 => "sha256",
            Self::Blake3 => "blake3",
        }
    }

    /// True if the parallel Merkle-Damgård construction is defined over this function. (BLAKE3 is a
    /// tree already.)
    pub fn has_pmd(self) -> bool {
        self != Self::Blake3
    }

    /// The function of a fingerprint kind, and true if the kind is its parallel Merkle-Damgård
    /// construction.
    pub fn of_kind(kind: FingerprintKind) -> (Digest, bool) {
        match kind {
            FingerprintKind::Blake3 => (Self::Blake3, false),
            FingerprintKind::Sha256 => (Self::Sha256, false),
            FingerprintKind::Md5 => (Self::Md5, false),
            FingerprintKind::Sha1 => (Self::Sha1, false),
            FingerprintKind::PmdMd5 => (Self::Md5, true),
            FingerprintKind::PmdSha1 => (Self::Sha1, true),
            FingerprintKind::PmdSha256 => (Self::Sha256, true),
        }
    }
}

/// Segments of the parallel Merkle-Damgård construction, bytes: `docs/format.md`, "pmd".
pub const PMD_SEGMENT: usize = 4096;
/// The beginning of the construction's last message.
pub const PMD_TAG: [u8; 16] = *b"outrigger pmd1\0\0";

/// Hashes one block of any size by the parallel Merkle-Damgård construction. The result is not the
/// function's standard digest, but thousands of threads can compute it. Reference:
/// [`crate::reference::pmd_hash`].
#[derive(Debug)]
pub struct PmdHash<'a> {
    /// The function. Unsupported unless [`Digest::has_pmd`].
    pub digest: Digest,
    /// The block.
    pub data: &'a [u8],
    /// [`Digest::len`] bytes are appended.
    pub out: &'a mut Vec<u8>,
}

/// A function that hashes sliding windows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum WindowFunction {
    /// MD5, 16 bytes.
    Md5,
    /// SHA-1, 20 bytes.
    Sha1,
    /// The Rabin fingerprint, 8 bytes, little-endian: the window as a polynomial over GF(2), the
    /// top bit of its first byte being the highest coefficient, modulo
    /// [`outrigger_format::boundary::RABIN_POLYNOMIAL`].
    Rabin,
    /// 4 bytes, little-endian: `h` of [`outrigger_format::boundary`] after the window's bytes, from
    /// 0 before them.
    Gear32,
}

impl WindowFunction {
    /// Every function.
    pub const ALL: [WindowFunction; 4] = [Self::Md5, Self::Sha1, Self::Rabin, Self::Gear32];

    /// The bytes it gives per window.
    #[allow(clippy::len_without_is_empty, reason = "no hash is empty")]
    pub fn len(self) -> usize {
        match self {
            Self::Md5 => 16,
            Self::Sha1 => 20,
            Self::Rabin => 8,
            Self::Gear32 => 4,
        }
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Md5 => "md5",
            Self::Sha1 => "sha1",
            Self::Rabin => "rabin",
            Self::Gear32 => "gear32",
        }
    }
}

/// The windows to hash, and the part of each hash to keep.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct WindowSpec {
    /// The function.
    pub function: WindowFunction,
    /// Bytes in a window, 1 to [`WindowSpec::WINDOW_MAX`].
    pub window: usize,
    /// Window `i` begins at byte `i × step`; at least 1.
    pub step: usize,
    /// How many bytes of each hash to keep, from its beginning: 1 to [`WindowFunction::len`].
    pub keep: usize,
}

impl WindowSpec {
    /// The largest window, bytes.
    pub const WINDOW_MAX: usize = 4096;

    /// True if all fields are within bounds. Devices report others as unsupported.
    pub fn is_valid(&self) -> bool {
        (1..=Self::WINDOW_MAX).contains(&self.window)
            && self.step >= 1
            && (1..=self.function.len()).contains(&self.keep)
    }

    /// How many windows lie in `len` bytes.
    ///
    /// ```
    /// use outrigger_offload::op::{WindowFunction, WindowSpec};
    /// let spec = WindowSpec { function: WindowFunction::Md5, window: 20, step: 4, keep: 4 };
    /// assert_eq!([19, 20, 23, 24].map(|len| spec.count(len)), [0, 1, 1, 2]);
    /// ```
    ///
    /// # Panics
    /// If `step` is 0.
    pub fn count(&self, len: usize) -> usize {
        len.checked_sub(self.window).map_or(0, |rest| rest / self.step + 1)
    }
}

/// Hashes sliding windows. Reference: [`crate::reference::window_hash`].
#[derive(Debug)]
pub struct WindowHash<'a> {
    /// The windows. Unless [valid](WindowSpec::is_valid), the task is unsupported.
    pub spec: WindowSpec,
    /// The buffer.
    pub data: &'a [u8],
    /// `keep` bytes per window are appended, in order.
    pub out: &'a mut Vec<u8>,
}

/// Looks many fingerprints up in a table. Reference: [`Table::get`], one by one.
#[derive(Debug)]
pub struct Lookup<'a> {
    /// The table.
    pub table: &'a Table,
    /// The fingerprints.
    pub keys: &'a [Fingerprint],
    /// One answer per key is appended, in their order.
    pub out: &'a mut Vec<Option<u64>>,
}

/// A stream, or a piece of one that begins where a chunk does.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stream {
    /// Where it lies in the batch's buffer, bytes.
    pub range: Range<u32>,
    /// True if the stream, and hence its last chunk, ends with this piece. Otherwise the bytes
    /// after the last cut form no chunk yet, and the caller puts them in front of the next piece.
    pub last: bool,
}

/// A chunk, as [`Ingest`] reports it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ingested {
    /// Where it ends in the batch's buffer, bytes. It begins where the one before it ends, or its
    /// stream begins.
    pub end: u32,
    /// Its fingerprint.
    pub fingerprint: Fingerprint,
    /// The table's answer.
    pub place: Option<u64>,
}

/// Cuts streams into chunks, fingerprints the chunks and looks them up, in one pass. Reference:
/// [`crate::reference::ingest`].
#[derive(Debug)]
pub struct Ingest<'a> {
    /// The buffer, less than 2^31 bytes.
    pub data: &'a [u8],
    /// The streams in it; any order, within `data`.
    pub streams: &'a [Stream],
    /// How to cut. Unless [valid](ChunkerSpec::is_valid), the task is unsupported.
    pub chunker: ChunkerSpec,
    /// The fingerprint.
    pub kind: FingerprintKind,
    /// The table in which chunks are looked up. Without one, every place is `None`.
    pub table: Option<&'a Table>,
    /// The chunks of all streams are appended in order.
    pub out: &'a mut Vec<Ingested>,
    /// The number of chunks of each stream is appended.
    pub counts: &'a mut Vec<u32>,
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
    /// Hash sliding windows.
    WindowHash(WindowHash<'a>),
    /// Hash one large block.
    PmdHash(PmdHash<'a>),
    /// Look fingerprints up in a table.
    Lookup(Lookup<'a>),
    /// Cut, fingerprint and look up streams.
    Ingest(Ingest<'a>),
}

impl Task<'_> {
    /// The task's operation.
    pub fn operation(&self) -> Operation {
        match self {
            Self::Scan(_) => Operation::Scan,
            Self::HashMany(_) => Operation::HashMany,
            Self::Compress(_) => Operation::Compress,
            Self::Decompress(_) => Operation::Decompress,
            Self::WindowHash(_) => Operation::WindowHash,
            Self::PmdHash(_) => Operation::PmdHash,
            Self::Lookup(_) => Operation::Lookup,
            Self::Ingest(_) => Operation::Ingest,
        }
    }
}
