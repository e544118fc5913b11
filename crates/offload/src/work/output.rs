//! The results of a task: reused vectors, and bytes in one of two kinds of memory.

use std::ops::Deref;

use outrigger_format::{Codec, Fingerprint};

use crate::op::Ingested;
use crate::pool::Buffer;

/// The results of any operation. [`super::Request`] says which fields are filled. Vectors keep
/// their capacity from task to task.
#[derive(Debug)]
pub struct Output {
    /// `position in the data << 1 | strict`, ascending.
    pub candidates: Vec<u32>,
    /// One for each piece, in their order.
    pub fingerprints: Vec<Fingerprint>,
    /// One for each key, in their order.
    pub places: Vec<Option<u64>>,
    /// The chunks of all streams.
    pub chunks: Vec<Ingested>,
    /// The number of chunks of each stream.
    pub counts: Vec<u32>,
    /// Bytes.
    pub bytes: OutputBytes,
    /// The codec of the bytes.
    pub codec: Codec,
}

impl Default for Output {
    fn default() -> Self {
        Self {
            candidates: Vec::new(),
            fingerprints: Vec::new(),
            places: Vec::new(),
            chunks: Vec::new(),
            counts: Vec::new(),
            bytes: OutputBytes::default(),
            codec: Codec::None,
        }
    }
}

impl Output {
    /// Empties it, and keeps the capacity.
    pub fn clear(&mut self) {
        self.candidates.clear();
        self.fingerprints.clear();
        self.places.clear();
        self.chunks.clear();
        self.counts.clear();
        self.bytes.clear();
        self.codec = Codec::None;
    }
}

/// Output bytes. The processor writes them into a vector, and a device copies them into a
/// page-locked buffer. Both are kept for the next task. Readers need not know which of them holds
/// the bytes.
#[derive(Debug, Default)]
pub struct OutputBytes {
    vector: Vec<u8>,
    buffer: Option<Buffer>,
    in_buffer: bool,
}

impl OutputBytes {
    /// The cleared vector, which becomes the output.
    pub fn vector(&mut self) -> &mut Vec<u8> {
        self.in_buffer = false;
        self.vector.clear();
        &mut self.vector
    }

    /// The buffer, which becomes the output. Its length is 0, and it has room for at least
    /// [`super::Work::output_len_max`]. The caller sets its length. `None` if the runtime has
    /// provided none: then the vector serves.
    pub fn buffer(&mut self) -> Option<&mut Buffer> {
        let buffer = self.buffer.as_mut()?;
        self.in_buffer = true;
        buffer.set_len(0);
        Some(buffer)
    }

    /// The capacity of the buffer, or 0 without one.
    pub fn buffer_room(&self) -> usize {
        self.buffer.as_ref().map_or(0, Buffer::capacity)
    }

    /// Provides a buffer that a device can write to.
    pub fn provide(&mut self, buffer: Buffer) {
        self.buffer = Some(buffer);
    }

    /// Takes the buffer away, with its content.
    pub fn take_buffer(&mut self) -> Option<Buffer> {
        self.in_buffer = false;
        self.buffer.take()
    }

    /// Takes the output if it is in the buffer. Otherwise returns the vector, which the caller may
    /// swap.
    ///
    /// # Errors
    /// The vector, if it holds the output.
    pub fn take_filled(&mut self) -> Result<Buffer, &mut Vec<u8>> {
        match self.buffer.take_if(|_| self.in_buffer) {
            Some(buffer) => {
                self.in_buffer = false;
                Ok(buffer)
            }
            None => Err(&mut self.vector),
        }
    }

    /// Empties it, and keeps the capacity.
    pub fn clear(&mut self) {
        self.vector.clear();
        self.in_buffer = false;
    }

    /// The output, to change in place.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        match &mut self.buffer {
            Some(buffer) if self.in_buffer => buffer,
            _ => &mut self.vector,
        }
    }
}

impl Deref for OutputBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.buffer {
            Some(buffer) if self.in_buffer => buffer,
            _ => &self.vector,
        }
    }
}
