//! What comes of a task: vectors that are reused, and bytes in one of two kinds of memory.

use std::ops::Deref;

use outrigger_format::{Codec, Fingerprint};

use crate::op::Ingested;
use crate::pool::Buffer;

/// The outputs of any operation; which are filled says [`super::Request`]. Vectors keep their room from task to task.
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
    /// How many of them each stream has.
    pub counts: Vec<u32>,
    /// Bytes.
    pub bytes: OutputBytes,
    /// What the bytes are compressed with.
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
    /// Empties it, and keeps the room.
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

/// Bytes that a task gives. The processor writes them into a vector; a device copies them into a page-locked buffer. Both
/// stay for the next task, and reading does not care.
#[derive(Debug, Default)]
pub struct OutputBytes {
    vector: Vec<u8>,
    buffer: Option<Buffer>,
    in_buffer: bool,
}

impl OutputBytes {
    /// The vector, which counts from now on. Cleared.
    pub fn vector(&mut self) -> &mut Vec<u8> {
        self.in_buffer = false;
        self.vector.clear();
        &mut self.vector
    }

    /// The buffer, which counts from now on, with length 0 and room for at least what [`super::Work::output_len_max`]
    /// says; set its length. `None` if the runtime has provided none: the vector does as well.
    pub fn buffer(&mut self) -> Option<&mut Buffer> {
        let buffer = self.buffer.as_mut()?;
        self.in_buffer = true;
        buffer.set_len(0);
        Some(buffer)
    }

    /// The room of the buffer that is there, 0 without one.
    pub fn buffer_room(&self) -> usize {
        self.buffer.as_ref().map_or(0, Buffer::capacity)
    }

    /// Provides a buffer for a device to write to.
    pub fn provide(&mut self, buffer: Buffer) {
        self.buffer = Some(buffer);
    }

    /// Takes the buffer away. What was in it is gone.
    pub fn take_buffer(&mut self) -> Option<Buffer> {
        self.in_buffer = false;
        self.buffer.take()
    }

    /// Takes what counts: the buffer, filled; or says that it is in the vector, which may be swapped for another.
    ///
    /// # Errors
    /// The vector.
    pub fn take_filled(&mut self) -> Result<Buffer, &mut Vec<u8>> {
        match self.buffer.take_if(|_| self.in_buffer) {
            Some(buffer) => {
                self.in_buffer = false;
                Ok(buffer)
            }
            None => Err(&mut self.vector),
        }
    }

    /// Empties it, and keeps the room.
    pub fn clear(&mut self) {
        self.vector.clear();
        self.in_buffer = false;
    }

    /// What counts, to be written over in place.
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
