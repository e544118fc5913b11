//! Decompresses frames on devices, while the reader waits.
//!
//! As the reader waits, a device is used only if it is predicted to finish before the processor
//! would. With the objective `cpu` it may take `cpu_slack` times that. Callers hand over only bytes
//! that match their checksum. If a device calls a frame damaged, the processor decodes it again,
//! and its verdict counts.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use outrigger_format::{Codec, Encoding};

use super::devices::FrameDevices;
use crate::cpu::{is_in_place, undo_filter, undo_in_place};
use crate::placement::{Objective, Stages};
use crate::pool::Buffer;
use crate::runtime::{Priority, Runtime};
use crate::work::{Class, Input, Request, Work};

/// A decoded frame, where the decoder left it.
pub enum Decoded {
    /// In the device's buffer.
    Buffer(Buffer),
    /// In the caller's vector.
    Vector,
}

impl FrameDevices {
    /// The index of a device that should decompress a frame of `stored_len` bytes to `raw_len`.
    /// `None`: the processor should.
    pub fn decoder_for(&self, encoding: Encoding, stored_len: usize, raw_len: usize) -> Option<usize> {
        let codec = encoding.codec;
        if codec == Codec::None {
            return None;
        }
        let (runtime, class) = (&**self.runtime(), Class::Decompress(codec));
        let request = Request::Decompress { codec, raw_len };
        let work = Work { request, input: Input::Empty, range: 0..stored_len };
        let policy = runtime.policy();
        self.places().find(|&place| {
            let state = runtime.load(place);
            runtime.supports(place, &work)
                && policy.may_offload(class, stored_len)
                && !state.is_cut_off
                && state.tasks < if state.is_on_trial { 1 } else { state.in_flight_max }
                && is_faster(runtime, place, class, stored_len)
        })
    }

    /// Has `device` decompress `range` of `buffer`, which must match its checksum, and waits. If a
    /// filter has to copy, the frame is in `out` afterwards. `None`: the processor has to decode
    /// the frame, and reports damage, if any.
    pub fn decode(
        &self,
        device: usize,
        encoding: Encoding,
        (buffer, range): (Arc<Buffer>, Range<usize>),
        raw_len: usize,
        out: &mut Vec<u8>,
    ) -> Option<Decoded> {
        let mut draft = self.runtime().draft(0);
        let request = Request::Decompress { codec: encoding.codec, raw_len };
        draft.set_request(request).pin(device).set_priority(Priority::High).share(buffer, range);
        let mut done = self.runtime().try_submit(draft).ok()?.wait().ok()?;
        let bytes = &mut done.output_mut().bytes;
        if bytes.len() != raw_len {
            return None;
        }
        if !is_in_place(encoding.filter) {
            undo_filter(encoding.filter, bytes, out);
            return Some(Decoded::Vector);
        }
        undo_in_place(encoding.filter, bytes.as_mut_slice());
        match bytes.take_filled() {
            Ok(buffer) => Some(Decoded::Buffer(buffer)),
            Err(vector) => {
                std::mem::swap(out, vector);
                Some(Decoded::Vector)
            }
        }
    }

    /// [`FrameDevices::decode`] for a frame in the caller's own memory, with copies in both
    /// directions. Returns false if the processor has to decode it.
    pub fn decode_copied(
        &self,
        device: usize,
        encoding: Encoding,
        stored: &[u8],
        raw_len: usize,
        out: &mut Vec<u8>,
    ) -> bool {
        let mut buffer = self.runtime().pool().alloc(stored.len());
        buffer.extend_from_slice(stored);
        match self.decode(device, encoding, (Arc::new(buffer), 0..stored.len()), raw_len, out) {
            Some(Decoded::Buffer(buffer)) => {
                out.clear();
                out.extend_from_slice(&buffer);
                true
            }
            Some(Decoded::Vector) => true,
            None => false,
        }
    }

    /// Records how long the processor took for a frame.
    pub fn observe_decoding(&self, codec: Codec, stored_len: usize, took: Duration) {
        let stages = Stages { work: took.as_nanos() as f64, ..Stages::default() };
        let learn = self.runtime().policy().learn;
        self.runtime().model().observe(0, Class::Decompress(codec), stored_len, stages, true, learn);
    }

    /// True if a device decompresses this codec, so that the processor's time is worth measuring.
    pub fn may_decode(&self, codec: Codec) -> bool {
        let request = Request::Decompress { codec, raw_len: 128 << 10 };
        let work = Work { request, input: Input::Empty, range: 0..64 << 10 };
        codec != Codec::None && self.places().any(|place| self.runtime().supports(place, &work))
    }
}

fn is_faster(runtime: &Runtime, place: usize, class: Class, bytes: usize) -> bool {
    let policy = runtime.policy();
    if runtime.model().curve(0, class).samples(bytes) < policy.first_tasks {
        return false;
    }
    let slack = if policy.objective == Objective::Cpu { policy.cpu_slack } else { 1.0 };
    match (runtime.predict(place, class, bytes), runtime.predict(0, class, bytes)) {
        (Some(own), Some(other)) => own <= other.mul_f64(slack),
        _ => true,
    }
}
