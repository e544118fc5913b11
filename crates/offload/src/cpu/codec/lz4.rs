//! LZ4 blocks by `lz4_flex`, all in Rust, with its bounds-checked decoder.

use lz4_flex::block::{CompressTable, compress_into_with_table, decompress_into as decode};
use outrigger_format::Codec;

use crate::op::CodecError;

/// The most bytes of output.
pub(super) fn worst_case(len: usize) -> usize {
    lz4_flex::block::get_maximum_output_size(len)
}

#[derive(Default)]
pub(super) struct Encoder {
    table: Option<CompressTable>,
}

impl Encoder {
    /// Returns true if `raw` compresses to at most `room` bytes, which `out` then holds.
    pub(super) fn compress(&mut self, raw: &[u8], room: usize, out: &mut Vec<u8>) -> bool {
        // The encoder wants room for the worst case; zeroing it costs little beside compressing.
        out.resize(worst_case(raw.len()), 0);
        let table = self.table.get_or_insert_with(CompressTable::large);
        match compress_into_with_table(raw, out, table) {
            Ok(len) if len <= room => {
                out.truncate(len);
                true
            }
            _ => false,
        }
    }
}

/// Fills the front of `out`; returns how many bytes.
pub(super) fn decompress_into(stored: &[u8], out: &mut [u8]) -> Result<usize, CodecError> {
    decode(stored, out).map_err(|_| CodecError::Malformed(Codec::Lz4))
}
