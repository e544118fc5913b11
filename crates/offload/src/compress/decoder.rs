//! Decodes frames of any encoder: undoes the codec, then the filter.

use outrigger_format::{Codec, Encoding, Filter};

use crate::cpu::{is_in_place, undo_filter, undo_in_place};
use crate::{CodecError, Decompressor};

/// Decodes frames one at a time. Keep one decoder per thread.
#[derive(Default)]
pub struct FrameDecoder {
    decompressor: Decompressor,
    filtered: Vec<u8>,
}

impl FrameDecoder {
    /// A decoder that has allocated nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Replaces `out` by the `raw_len` bytes that `stored` encodes. Allocates at most twice
    /// `raw_len` bytes, even if `stored` is damaged.
    ///
    /// # Errors
    /// [`CodecError`] unless `stored` decodes to exactly `raw_len` bytes; `out` is then empty.
    pub fn decode(
        &mut self,
        encoding: Encoding,
        stored: &[u8],
        raw_len: usize,
        out: &mut Vec<u8>,
    ) -> Result<(), CodecError> {
        let Encoding { codec, filter, .. } = encoding;
        if is_in_place(filter) {
            self.decompressor.decompress(codec, stored, raw_len, out)?;
            undo_in_place(filter, out);
            return Ok(());
        }
        let result = self.decompressor.decompress(codec, stored, raw_len, &mut self.filtered);
        match result {
            Ok(()) => undo_filter(filter, &self.filtered, out),
            Err(_) => out.clear(),
        }
        result
    }

    /// True if the frame is stored as it is. Even if it is damaged, its content is then `stored`
    /// itself. Nothing is certain about other damaged frames.
    pub fn is_plain(encoding: Encoding) -> bool {
        encoding.codec == Codec::None && encoding.filter == Filter::None
    }
}
