//! Compressing frames by devices: a full frame is planned by a worker (sampled, its filter and codec chosen), becomes a task of the offload runtime, and
//! comes back through the queue, to be appended to the open pack by whichever worker is free.
//!
//! Nobody waits: a worker that has submitted one goes on with the next, so one worker keeps many frames under way. The device reads a frame where it lies (in the batch
//! that it was read into, or in memory of the same pool where it was copied together), and what it writes is appended from where it wrote it. A frame keeps its
//! batch's buffer until it is appended, as one in the queue does.
//!
//! Bounds: `FrameDevices` lets so many bytes be under way; a frame beyond that, or for which no device has room, the worker compresses itself, by the entry of the policy's list that
//! is then next, and for the reason that no device did it. So workers never
//! wait for a device, and whatever is away comes back: done by the device, by the processor in its stead, or as it was.

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

/// What became of a frame that was to be compressed.
pub(super) enum Turn {
    /// It is stored so; unless as it is, its bytes are in the worker's vector.
    Here(RawFrame, Encoding),
    /// It is with a device, and comes back through the queue.
    Away,
}

/// Has a frame compressed, by a device or here and now. `may_come` is asked, where a device is wanted and none is open, whether one may be soon.
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
            // There may be one, which was not asked, or is not open yet.
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
