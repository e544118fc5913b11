//! Numbers and plain structures.

use outrigger_format::{ChunkerSpec, CodecSpec, Fingerprint, FingerprintKind};
use outrigger_offload::op::{Digest, Ingested, Stream, WindowFunction, WindowSpec};

use crate::status::{Error, Result};

/// A function that hashes whole pieces of data. The numbers are those of the on-disk format.
#[repr(u32)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(dead_code, reason = "C uses the numbers")]
pub enum outrigger_hash_kind {
    /// BLAKE3, 32 bytes.
    OUTRIGGER_BLAKE3 = 1,
    /// SHA-256 (FIPS 180-4), 32 bytes.
    OUTRIGGER_SHA256 = 2,
    /// MD5 (RFC 1321), 16 bytes.
    OUTRIGGER_MD5 = 3,
    /// SHA-1 (RFC 3174), 20 bytes.
    OUTRIGGER_SHA1 = 4,
    /// The parallel Merkle-Damgard construction over MD5. It is not MD5 of the data, but thousands
    /// of threads can compute it. It hashes segments of 4096 bytes, then their digests, and so on
    /// (docs/format.md, "pmd"). 16 bytes.
    OUTRIGGER_PMD_MD5 = 5,
    /// The same over SHA-1, 20 bytes.
    OUTRIGGER_PMD_SHA1 = 6,
    /// The same over SHA-256, 32 bytes.
    OUTRIGGER_PMD_SHA256 = 7,
}

/// A function that hashes sliding windows.
#[repr(u32)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(dead_code, reason = "C uses the numbers")]
pub enum outrigger_window_function {
    /// MD5, 16 bytes.
    OUTRIGGER_WINDOW_MD5 = 1,
    /// SHA-1, 20 bytes.
    OUTRIGGER_WINDOW_SHA1 = 2,
    /// The Rabin fingerprint modulo the polynomial 0x3DA3358B4CC173, 8 bytes, little-endian.
    OUTRIGGER_WINDOW_RABIN = 3,
    /// The hash that finds boundaries, 4 bytes, little-endian.
    OUTRIGGER_WINDOW_GEAR32 = 4,
}

/// The language of a caller's kernel.
#[repr(u32)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(dead_code, reason = "C uses the numbers")]
pub enum outrigger_kernel_language {
    /// CUDA C++, which NVRTC compiles if it is installed.
    OUTRIGGER_CUDA = 1,
    /// PTX.
    OUTRIGGER_PTX = 2,
}

/// The order of a device's waiting tasks. It is strict: a lower one waits while a higher one is
/// there.
#[repr(u32)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(dead_code, reason = "C uses the numbers")]
pub enum outrigger_priority {
    /// A caller waits for it.
    OUTRIGGER_HIGH = 0,
    /// The default.
    OUTRIGGER_NORMAL = 1,
    /// Only when nothing else waits.
    OUTRIGGER_LOW = 2,
}

/// The codec of a frame. The numbers are those of the on-disk format.
#[repr(u32)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(dead_code, reason = "C uses the numbers")]
pub enum outrigger_codec {
    /// Uncompressed.
    OUTRIGGER_CODEC_NONE = 0,
    /// Zstandard (RFC 8878).
    OUTRIGGER_CODEC_ZSTD = 1,
    /// An LZ4 block.
    OUTRIGGER_CODEC_LZ4 = 2,
    /// A gzip member (RFC 1952).
    OUTRIGGER_CODEC_GZIP = 3,
    /// A raw deflate stream (RFC 1951).
    OUTRIGGER_CODEC_DEFLATE = 4,
    /// Runs of zeros shortened.
    OUTRIGGER_CODEC_ZLE = 5,
    /// LZJB.
    OUTRIGGER_CODEC_LZJB = 6,
}

/// A hash: the function's bytes, then zeros.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct outrigger_fingerprint {
    /// Its bytes.
    pub bytes: [u8; 32],
}

/// A piece of the data: the bytes from `start` to before `end`.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct outrigger_range {
    /// Where it begins, bytes.
    pub start: u32,
    /// Where it ends.
    pub end: u32,
}

/// A stream in a batch, or a piece of one that begins where a chunk does.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct outrigger_stream {
    /// Where it begins in the batch, bytes.
    pub start: u32,
    /// Where it ends.
    pub end: u32,
    /// 1 if the stream, and hence its last chunk, ends with this piece; 0 if more follows. The
    /// bytes after the last cut then form no chunk yet, and belong in front of the next piece.
    pub last: u32,
}

/// A chunk, cut, fingerprinted and looked up.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct outrigger_chunk {
    /// Its fingerprint.
    pub fingerprint: outrigger_fingerprint,
    /// The table's number for it, if it is found.
    pub place: u64,
    /// Where it ends in the batch, bytes. It begins where the one before it ends, or its stream
    /// begins.
    pub end: u32,
    /// 1 if it is in the table, 0 if not.
    pub found: u32,
}

/// The windows to hash, and the part of each hash to keep.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct outrigger_window {
    /// One of enum outrigger_window_function.
    pub function: u32,
    /// How many bytes of each hash to keep, from its beginning: 1 to all.
    pub keep: u32,
    /// Bytes in a window, 1 to 4096.
    pub window: usize,
    /// Window i begins at byte i * step; at least 1.
    pub step: usize,
}

/// Converts a kind of hash from C's number.
pub fn kind(number: u32) -> Result<FingerprintKind> {
    let known = FingerprintKind::ALL.into_iter().find(|&kind| kind as u32 == number);
    known.ok_or_else(|| Error::invalid(format!("{number} is no kind of hash (enum outrigger_hash_kind)")))
}

/// Converts a kind that is a parallel construction.
pub fn pmd_digest(number: u32) -> Result<Digest> {
    match Digest::of_kind(kind(number)?) {
        (digest, true) => Ok(digest),
        (digest, false) => {
            Err(Error::invalid(format!("{} is no parallel construction: use OUTRIGGER_PMD_*", digest.name())))
        }
    }
}

/// Converts a window specification and checks it.
pub fn window(spec: &outrigger_window) -> Result<WindowSpec> {
    let function = match spec.function {
        1 => WindowFunction::Md5,
        2 => WindowFunction::Sha1,
        3 => WindowFunction::Rabin,
        4 => WindowFunction::Gear32,
        other => {
            let what = "a window function (enum outrigger_window_function)";
            return Err(Error::invalid(format!("{other} is not {what}")));
        }
    };
    let &outrigger_window { window, step, keep, .. } = spec;
    let spec = WindowSpec { function, window, step, keep: keep as usize };
    if !spec.is_valid() {
        let most = function.len();
        return Err(Error::invalid(format!(
            "windows have 1 to {} bytes, begin at least 1 byte apart, and 1 to {most} bytes of a hash are kept; \
             not {window}, {step} and {keep}",
            WindowSpec::WINDOW_MAX
        )));
    }
    Ok(spec)
}

/// `gear32:4K/16K/64K`.
pub fn chunker(text: &str) -> Result<ChunkerSpec> {
    ChunkerSpec::parse(text).map_err(|error| Error::invalid(error.to_string()))
}

/// `zstd:3`.
pub fn codec(text: &str) -> Result<CodecSpec> {
    CodecSpec::parse(text).map_err(|error| Error::invalid(error.to_string()))
}

/// Converts a stream.
pub fn stream(stream: &outrigger_stream) -> Stream {
    Stream { range: stream.start..stream.end, last: stream.last != 0 }
}

impl From<Fingerprint> for outrigger_fingerprint {
    fn from(fingerprint: Fingerprint) -> Self {
        Self { bytes: fingerprint.0 }
    }
}

impl From<outrigger_fingerprint> for Fingerprint {
    fn from(fingerprint: outrigger_fingerprint) -> Self {
        Self(fingerprint.bytes)
    }
}

impl From<&Ingested> for outrigger_chunk {
    fn from(chunk: &Ingested) -> Self {
        Self {
            fingerprint: chunk.fingerprint.into(),
            place: chunk.place.unwrap_or(0),
            end: chunk.end,
            found: chunk.place.is_some().into(),
        }
    }
}
