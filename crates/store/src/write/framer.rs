//! Stage frame: new chunks, in order, collected until they are worth compressing together.

use outrigger_format::{CodecSpec, Fingerprint};

/// A frame's raw bytes, complete, before compression.
pub(super) struct RawFrame {
    /// Its number: rises in the order frames were opened.
    pub sequence: u64,
    pub raw: Vec<u8>,
    pub lengths: Vec<u32>,
    pub fingerprints: Vec<Fingerprint>,
    pub codec: CodecSpec,
}

/// Chunks a frame's header can name.
const CHUNKS_MAX: usize = 65_535;

/// Collects chunks into frames of at most `frame_size` raw bytes (a larger chunk is a frame of its own). Bytes are copied
/// here, once: a compressor needs them contiguous, and a buffer must not be held for one new chunk in it.
pub(super) struct Framer {
    frame_size: usize,
    open: Option<RawFrame>,
    next_sequence: u64,
}

impl Framer {
    pub fn new(frame_size: usize) -> Self {
        Self { frame_size, open: None, next_sequence: 1 }
    }

    /// Adds a chunk. Returns the number of its frame, and the frame before it if that is now complete.
    pub fn push(
        &mut self,
        fingerprint: Fingerprint,
        data: &[u8],
        codec: CodecSpec,
        recycled: impl FnOnce() -> Vec<u8>,
    ) -> (u64, Option<RawFrame>) {
        let full = self.open.as_ref().is_some_and(|open| {
            open.raw.len() + data.len() > self.frame_size
                || open.codec != codec
                || open.lengths.len() == CHUNKS_MAX
        });
        let complete = if full { self.open.take() } else { None };
        let open = self.open.get_or_insert_with(|| {
            let sequence = self.next_sequence;
            self.next_sequence += 1;
            let mut raw = recycled();
            raw.clear();
            raw.reserve(self.frame_size.max(data.len()));
            RawFrame { sequence, raw, lengths: Vec::new(), fingerprints: Vec::new(), codec }
        });
        open.raw.extend_from_slice(data);
        open.lengths.push(data.len() as u32);
        open.fingerprints.push(fingerprint);
        (open.sequence, complete)
    }

    /// Takes the frame that is still open.
    pub fn flush(&mut self) -> Option<RawFrame> {
        self.open.take()
    }
}
