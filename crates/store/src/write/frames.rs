//! Compressing frames by devices. A worker plans a full frame (samples it, chooses its filter and
//! codec). The frame becomes a task of the offload runtime and comes back through the queue. Any
//! free worker then appends it to the open pack.
//!
//! No worker waits: after it has submitted a frame it goes on with the next, so one worker keeps
//! many frames under way. The device reads a frame where it lies: in the batch that it was read
//! into, or in memory of the same pool where it was copied together. Its output is appended from
//! where it wrote it. A frame keeps its batch's buffer until it is appended, like a frame in the
//! queue.
//!
//! Bounds: `FrameDevices` limits the bytes under way. If a frame exceeds that, or no device has
//! room, the worker compresses it itself. It uses the next entry of the policy's list, and records
//! that no device did it. So workers never wait for a device. Every frame that is away comes back:
//! compressed by the device or by the processor, or unchanged.

use std::ops::Range;
use std::sync::Arc;

use outrigger_clock::thread_time;
use outrigger_format::{Codec, Encoding, Reason};
use outrigger_offload::{Auto, Encoder, FrameDevices, Made, Planned, Wanted};

use super::framer::RawFrame;
use super::queue::Queue;

/// A frame that a device has compressed.
pub(super) struct Compressed {
    pub frame: RawFrame,
    pub made: Made,
}

/// The outcome for a frame that was to be compressed.
pub(super) enum Turn {
    /// It is stored with this encoding. Unless it is uncompressed, its bytes are in the worker's
    /// vector.
    Here(RawFrame, Encoding),
    /// It is with a device, and comes back through the queue.
    Away,
}

/// Compresses a frame, by a device or at once. If a device is wanted and none is open, `may_come`
/// says whether one may be soon.
pub(super) fn compress(
    devices: Option<&Arc<FrameDevices>>,
    may_come: impl FnOnce() -> bool,
    queue: &Arc<Queue>,
    auto: &Auto,
    frame: RawFrame,
    encoder: &mut Encoder,
    stored: &mut Vec<u8>,
) -> Turn {
    let codec = frame.form.codec;
    let Some(devices) = devices.filter(|_| !frame.for_processor) else {
        let mut wanted = Wanted::of(codec, auto);
        if wanted.reason == Reason::Absent && (devices.is_some() || !frame.for_processor && may_come()) {
            // There may be a device that was not asked, or is not open yet.
            wanted.reason = Reason::Unsuitable;
        }
        let encoding = encoder.encode(wanted, frame.raw.bytes(), stored);
        return Turn::Here(frame, encoding);
    };
    let (mut frame, mut refused) = (frame, None);
    let (route, plan) = loop {
        let (route, plan) =
            match devices.plan(encoder, codec, auto, frame.raw.bytes(), queue.backlog(), refused) {
                (_, Planned::Plain(encoding)) => return Turn::Here(frame, encoding),
                (route, Planned::Compress(plan)) => (route, plan),
            };
        if route.device == 0 {
            break (route, plan);
        }
        queue.go_away();
        let (buffer, range): (_, Range<usize>) = frame.raw.lend();
        let back = Arc::clone(queue);
        let come_back = Arc::new(move |frame, made| match made {
            Some(made) => back.come_back_compressed(Compressed { frame, made }),
            None => back.come_back_raw(frame),
        });
        match devices.submit(route.device, plan, &buffer, range, frame, come_back) {
            Ok(()) => return Turn::Away,
            Err(same) => {
                queue.stay();
                frame = same;
                refused = Some(route);
            }
        }
    };
    if route.comparable {
        devices.try_out(&plan, frame.raw.bytes().len(), || frame.raw.lend());
    }
    let began = thread_time();
    let encoding = encoder.compress(&plan, frame.raw.bytes(), stored);
    if route.comparable && encoding.codec != Codec::None {
        devices.observe_processor(&route.wanted, frame.raw.bytes().len(), thread_time() - began);
    }
    Turn::Here(frame, encoding)
}
