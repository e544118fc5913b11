//! Compressing and decompressing frames on the processor: `zstd`, `lz4`, `none`.
//!
//! A compressor writes into a room 1/32 smaller than its input: what does not gain that much is stored as it is, and the
//! codec gives up as soon as the room is full. Data that looks random is tried with a codec that passes over it quickly
//! first ([`sample`]). Contexts keep their memory, so that in steady state nothing is allocated but what output grows by.
//!
//! A decompressor trusts nothing: it writes into room for exactly the promised length, keeps no window of its own, and
//! whatever comes out shorter, longer or not at all is a [`CodecError`].

mod lz4;
mod sample;
mod zstd;

use outrigger_format::{Codec, CodecSpec, MAX_FRAME_LEN};

/// Why stored bytes could not be decompressed. They are damaged, or were written by something else.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CodecError {
    /// They are not what the codec writes.
    #[error("the stored bytes are not valid {}", .0.name())]
    Malformed(Codec),
    /// They hold less than promised; more than promised is malformed, or this.
    #[error("{} gave {got} bytes where {expected} were promised", .codec.name())]
    Length {
        /// The codec.
        codec: Codec,
        /// The bytes promised.
        expected: usize,
        /// The bytes that came out.
        got: usize,
    },
    /// More is promised than a frame may hold.
    #[error("a frame of {0} bytes is promised, more than any may have")]
    TooLong(usize),
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
        let fits = room > 0
            && raw.len() <= MAX_FRAME_LEN
            && match spec.codec {
                Codec::None => false,
                Codec::Lz4 => self.lz4.compress(raw, room, out),
                Codec::Zstd => {
                    let promising = !sample::looks_random(raw) || self.lz4.compress(raw, room, out);
                    promising && self.zstd.compress(spec.level, raw, room, out)
                }
            };
        if fits {
            return spec.codec;
        }
        out.clear();
        out.extend_from_slice(raw);
        Codec::None
    }
}

/// Decompresses frames, one at a time; keep one per thread. Its memory (160 KB) is allocated at first use.
#[derive(Default)]
pub struct Decompressor {
    zstd: zstd::Decoder,
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
            Codec::None => {
                out.clear();
                out.extend_from_slice(&stored[..stored.len().min(raw_len)]);
                Ok(stored.len())
            }
            Codec::Zstd => self.zstd.decompress(stored, raw_len, out),
            Codec::Lz4 => lz4::decompress(stored, raw_len, out),
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
        let got = match codec {
            _ if expected > MAX_FRAME_LEN => return Err(CodecError::TooLong(expected)),
            Codec::None => {
                if stored.len() == expected {
                    out.copy_from_slice(stored);
                }
                stored.len()
            }
            Codec::Zstd => self.zstd.decompress_into(stored, out)?,
            Codec::Lz4 => lz4::decompress_into(stored, out)?,
        };
        if got == expected { Ok(()) } else { Err(CodecError::Length { codec, expected, got }) }
    }
}
