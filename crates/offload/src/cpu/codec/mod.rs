//! Compressing and decompressing frames on the processor: the algorithm vector, one file each.
//!
//! A compressor writes into a room smaller than its input: what does not gain that much is stored as it is, and the
//! codec gives up as soon as the room is full. Data that looks random is tried with a codec that passes over it quickly
//! first ([`sample`]). Contexts keep their memory, so that in steady state nothing is allocated but what output grows by.
//!
//! A decompressor trusts nothing: it writes into room for exactly the promised length, keeps no window of its own, and
//! whatever comes out shorter, longer or not at all is a [`CodecError`].
//!
//! What else makes a frame (filters, budgets, which level) is decided in [`crate::Encoder`].

mod deflate;
mod lz4;
mod lzjb;
mod none;
pub(crate) mod sample;
mod zle;
mod zstd;

use outrigger_format::{Codec, CodecSpec, MAX_FRAME_LEN};

use self::deflate::Wrapping;
use self::sample::Sample;

use crate::op::CodecError;

/// Bytes that `codec` makes of `len` at most: room that never needs a second try.
///
/// ```
/// use outrigger_format::Codec;
/// assert!(outrigger_offload::worst_case(Codec::Gzip, 1 << 20) < (1 << 20) + 2048);
/// ```
pub fn worst_case(codec: Codec, len: usize) -> usize {
    match codec {
        Codec::None => none::worst_case(len),
        Codec::Zstd => zstd::worst_case(len),
        Codec::Lz4 => lz4::worst_case(len),
        Codec::Gzip => deflate::worst_case(Wrapping::Gzip, len),
        Codec::Deflate => deflate::worst_case(Wrapping::Raw, len),
        Codec::Zle => zle::worst_case(len),
        Codec::Lzjb => lzjb::worst_case(len),
    }
}

/// Compresses frames, one at a time; keep one per thread. Its memory (at `zstd:3`, 1 MB) is allocated at first use.
///
/// ```
/// use outrigger_format::{Codec, CodecSpec};
/// use outrigger_offload::{Compressor, Decompressor};
/// let raw = b"the same again, ".repeat(1000);
/// let (mut stored, mut back) = (Vec::new(), Vec::new());
/// let used = Compressor::new().compress(CodecSpec::parse("zstd:1")?, &raw, &mut stored);
/// assert_eq!(used, Codec::Zstd);
/// Decompressor::new().decompress(used, &stored, raw.len(), &mut back)?;
/// assert_eq!(back, raw);
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
#[derive(Default)]
pub struct Compressor {
    zstd: zstd::Encoder,
    lz4: lz4::Encoder,
    deflate: deflate::Encoder,
    lzjb: lzjb::Encoder,
}

impl Compressor {
    /// A compressor that has allocated nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Replaces `out` by `raw` as it is to be stored, and returns the codec that it is stored in: `spec`'s, or
    /// [`Codec::None`] when that would save less than 1/32 or `raw` is longer than a frame may be. `out` never becomes
    /// longer than `raw`.
    pub fn compress(&mut self, spec: CodecSpec, raw: &[u8], out: &mut Vec<u8>) -> Codec {
        let room = raw.len() - raw.len().div_ceil(32);
        let costly = !matches!(spec.codec, Codec::None | Codec::Lz4 | Codec::Zle);
        let promising = |this: &mut Self, out: &mut Vec<u8>| {
            !costly
                || !Sample::take(raw).is_some_and(|sample| sample.looks_random())
                || this.lz4.compress(raw, room, out)
        };
        if promising(self, out) && self.compress_within(spec, raw, room, out) {
            return spec.codec;
        }
        out.clear();
        out.extend_from_slice(raw);
        Codec::None
    }

    /// Whether `raw` compresses to at most `room` bytes; `out` then holds them, and is unspecified otherwise. Gives up as soon as
    /// that is certain. `false` for [`Codec::None`], for a level that the codec does not have, and for more than a frame may hold.
    pub fn compress_within(&mut self, spec: CodecSpec, raw: &[u8], room: usize, out: &mut Vec<u8>) -> bool {
        if room == 0 || raw.len() > MAX_FRAME_LEN || !spec.is_valid() {
            return false;
        }
        match spec.codec {
            Codec::None => false,
            Codec::Zstd => self.zstd.compress(spec.level, raw, room, out),
            Codec::Lz4 => self.lz4.compress(raw, room, out),
            Codec::Gzip => self.deflate.compress(Wrapping::Gzip, spec.level, raw, room, out),
            Codec::Deflate => self.deflate.compress(Wrapping::Raw, spec.level, raw, room, out),
            Codec::Zle => zle::compress(raw, room, out),
            Codec::Lzjb => self.lzjb.compress(raw, room, out),
        }
    }
}

/// Bytes of a plane that are tried both ways.
const PLANE_PIECE: usize = 16 << 10;
/// Repetitions must save so much of them: accidents do not.
const PLANE_GAIN: f32 = 0.02;

impl Compressor {
    /// [`Compressor::compress_within`] for a plane of numbers: one byte of each of many elements. With Zstandard, it looks for repetitions
    /// only where a piece of the plane has some.
    pub(crate) fn compress_plane_within(
        &mut self,
        spec: CodecSpec,
        raw: &[u8],
        room: usize,
        out: &mut Vec<u8>,
    ) -> bool {
        if spec.codec != Codec::Zstd || room == 0 || raw.len() > MAX_FRAME_LEN || self.repeats(spec, raw, out)
        {
            return self.compress_within(spec, raw, room, out);
        }
        self.zstd.compress_literals(raw, room, out)
    }

    /// Whether there is more in a plane than the frequencies of its bytes.
    fn repeats(&mut self, spec: CodecSpec, raw: &[u8], out: &mut Vec<u8>) -> bool {
        if raw.len() < PLANE_PIECE / 4 {
            return true;
        }
        let len = raw.len().min(PLANE_PIECE);
        let (piece, room) = (&raw[(raw.len() - len) / 2..][..len], zstd::worst_case(len));
        let cheap = CodecSpec { level: spec.level.min(1), ..spec };
        if !self.zstd.compress_literals(piece, room, out) {
            return true;
        }
        let literals = out.len();
        self.compress_within(cheap, piece, room, out)
            && (out.len() as f32) < (1.0 - PLANE_GAIN) * literals as f32
    }
}

/// Decompresses frames, one at a time; keep one per thread. Its memory (160 KB) is allocated at first use.
#[derive(Default)]
pub struct Decompressor {
    zstd: zstd::Decoder,
    deflate: deflate::Decoder,
}

impl Decompressor {
    /// A decompressor that has allocated nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Replaces `out` by the `raw_len` bytes that `stored` holds. Allocates at most `raw_len` bytes for `out`, whatever
    /// `stored` says.
    ///
    /// # Errors
    /// [`CodecError`] unless `stored` decodes to exactly `raw_len` bytes; `out` is then empty.
    pub fn decompress(
        &mut self,
        codec: Codec,
        stored: &[u8],
        raw_len: usize,
        out: &mut Vec<u8>,
    ) -> Result<(), CodecError> {
        let result = match codec {
            _ if raw_len > MAX_FRAME_LEN => Err(CodecError::TooLong(raw_len)),
            // These two write what they make, and nothing before it.
            Codec::None => Ok(none::decompress(stored, raw_len, out)),
            Codec::Zstd => self.zstd.decompress(stored, raw_len, out),
            _ => {
                out.resize(raw_len, 0);
                self.fill(codec, stored, out)
            }
        };
        let result = match result {
            Ok(got) if got != raw_len => Err(CodecError::Length { codec, expected: raw_len, got }),
            other => other.map(drop),
        };
        if result.is_err() {
            out.clear();
        }
        result
    }

    /// [`Decompressor::decompress`] into a buffer of exactly the frame's raw length.
    ///
    /// # Errors
    /// [`CodecError`] unless `stored` decodes to exactly `out.len()` bytes; `out`'s content is then unspecified.
    pub fn decompress_into(&mut self, codec: Codec, stored: &[u8], out: &mut [u8]) -> Result<(), CodecError> {
        let expected = out.len();
        if expected > MAX_FRAME_LEN {
            return Err(CodecError::TooLong(expected));
        }
        let got = self.fill(codec, stored, out)?;
        if got == expected { Ok(()) } else { Err(CodecError::Length { codec, expected, got }) }
    }

    /// Fills the front of `out` with what `stored` holds; returns how many bytes that are, which may be more than fit.
    fn fill(&mut self, codec: Codec, stored: &[u8], out: &mut [u8]) -> Result<usize, CodecError> {
        match codec {
            Codec::None => Ok(none::decompress_into(stored, out)),
            Codec::Zstd => self.zstd.decompress_into(stored, out),
            Codec::Lz4 => lz4::decompress_into(stored, out),
            Codec::Gzip => self.deflate.decompress_into(Wrapping::Gzip, stored, out),
            Codec::Deflate => self.deflate.decompress_into(Wrapping::Raw, stored, out),
            Codec::Zle => zle::decompress_into(stored, out),
            Codec::Lzjb => lzjb::decompress_into(stored, out),
        }
    }
}
