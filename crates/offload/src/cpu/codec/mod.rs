//! Compresses and decompresses frames on the processor. Each algorithm has a file.
//!
//! A compressor writes into room smaller than its input. It gives up as soon as the room is full,
//! and the frame is then stored as it is. If data looks random ([`sample`]), a codec that passes
//! over it quickly tries first. Contexts keep their memory, so that in steady state nothing is
//! allocated apart from the growth of the output.
//!
//! A decompressor trusts no input. It writes into room for exactly the promised length, and keeps
//! no window of its own. If the result is shorter or longer, or there is none, it returns a
//! [`CodecError`].
//!
//! [`crate::Encoder`] chooses the rest of a frame: filters, budget and level.

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

/// The most bytes that `codec` makes of `len` bytes. With so much room, no second try is necessary.
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

/// Compresses frames one at a time. Keep one per thread. Its memory (1 MB at `zstd:3`) is allocated
/// at first use.
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

    /// Replaces `out` by the stored form of `raw`, and returns its codec. This is `spec`'s, or
    /// [`Codec::None`] if compression would save less than 1/32 or `raw` is longer than a frame may
    /// be. `out` never becomes longer than `raw`.
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

    /// Returns true if `raw` compresses to at most `room` bytes, which `out` then holds. Otherwise
    /// `out` is unspecified. Gives up as soon as the result is certain. Returns false for
    /// [`Codec::None`], for a level that the codec does not have, and for data longer than a frame
    /// may be.
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

/// The bytes of a plane that are tried in both ways.
const PLANE_PIECE: usize = 16 << 10;
/// Repetitions must save at least this share of them, or they are accidents.
const PLANE_GAIN: f32 = 0.02;

impl Compressor {
    /// [`Compressor::compress_within`] for a plane of numbers: the bytes of one position of many
    /// elements. With Zstandard, it searches for repetitions only if a piece of the plane has some.
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

    /// True if repetitions save more than coding the frequencies of the plane's bytes.
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

/// Decompresses frames one at a time. Keep one per thread. Its memory (160 KB) is allocated at
/// first use.
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

    /// Replaces `out` by the `raw_len` bytes that `stored` encodes. Allocates at most `raw_len`
    /// bytes for `out`, even if `stored` is damaged.
    ///
    /// # Errors
    /// [`CodecError`] unless `stored` decodes to exactly `raw_len` bytes. `out` is then empty.
    pub fn decompress(
        &mut self,
        codec: Codec,
        stored: &[u8],
        raw_len: usize,
        out: &mut Vec<u8>,
    ) -> Result<(), CodecError> {
        let result = match codec {
            _ if raw_len > MAX_FRAME_LEN => Err(CodecError::TooLong(raw_len)),
            // These two append their output, so they need no zeroed memory.
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
    /// [`CodecError`] unless `stored` decodes to exactly `out.len()` bytes. The content of `out` is
    /// then unspecified.
    pub fn decompress_into(&mut self, codec: Codec, stored: &[u8], out: &mut [u8]) -> Result<(), CodecError> {
        let expected = out.len();
        if expected > MAX_FRAME_LEN {
            return Err(CodecError::TooLong(expected));
        }
        let got = self.fill(codec, stored, out)?;
        if got == expected { Ok(()) } else { Err(CodecError::Length { codec, expected, got }) }
    }

    /// Decodes `stored` into the front of `out`. Returns the number of decoded bytes, which may
    /// exceed the room.
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
