//! Raw deflate streams (RFC 1951) and gzip members (RFC 1952) by `libdeflate`, which works on whole
//! buffers. So no window is copied, and the encoder gives up as soon as its room is full. `gzip -d`
//! and every inflate read the output.

use libdeflater::{CompressionError, CompressionLvl, DecompressionError};
use outrigger_format::Codec;

use crate::op::CodecError;

/// The wrapping of a stream.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Wrapping {
    Raw,
    Gzip,
}

impl Wrapping {
    fn codec(self) -> Codec {
        match self {
            Self::Raw => Codec::Deflate,
            Self::Gzip => Codec::Gzip,
        }
    }
}

/// In the worst case, a stored block has 5 bytes and its data, for every 5,000 bytes. A gzip member
/// also has 18 bytes of header and trailer.
pub(super) fn worst_case(wrapping: Wrapping, len: usize) -> usize {
    len + 5 * (len.div_ceil(5000) + 1) + if wrapping == Wrapping::Gzip { 18 } else { 0 }
}

#[derive(Default)]
pub(super) struct Encoder {
    /// The compressor of the last level. It takes 60 KB at level 1, and megabytes at the highest.
    of_level: Option<(i8, libdeflater::Compressor)>,
}

impl Encoder {
    /// Returns true if `raw` compresses to at most `room` bytes, which `out` then holds.
    pub(super) fn compress(
        &mut self,
        wrapping: Wrapping,
        level: i8,
        raw: &[u8],
        room: usize,
        out: &mut Vec<u8>,
    ) -> bool {
        self.of_level.take_if(|(of, _)| *of != level);
        let (_, encoder) = self.of_level.get_or_insert_with(|| {
            let known = CompressionLvl::new(level.into()).unwrap_or_default();
            (level, libdeflater::Compressor::new(known))
        });
        out.resize(room, 0);
        let result = match wrapping {
            Wrapping::Raw => encoder.deflate_compress(raw, out),
            Wrapping::Gzip => encoder.gzip_compress(raw, out),
        };
        match result {
            Ok(len) => {
                out.truncate(len);
                true
            }
            Err(CompressionError::InsufficientSpace) => false,
        }
    }
}

#[derive(Default)]
pub(super) struct Decoder {
    decoder: Option<libdeflater::Decompressor>,
}

impl Decoder {
    /// Fills the front of `out` and returns the number of bytes.
    pub(super) fn decompress_into(
        &mut self,
        wrapping: Wrapping,
        stored: &[u8],
        out: &mut [u8],
    ) -> Result<usize, CodecError> {
        let decoder = self.decoder.get_or_insert_with(libdeflater::Decompressor::new);
        let result = match wrapping {
            Wrapping::Raw => decoder.deflate_decompress(stored, out),
            Wrapping::Gzip => decoder.gzip_decompress(stored, out),
        };
        result.map_err(|error| match error {
            DecompressionError::BadData | DecompressionError::InsufficientSpace => {
                CodecError::Malformed(wrapping.codec())
            }
        })
    }
}
