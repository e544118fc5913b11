//! Chooses the compressor of a frame: the first entry of the policy's list that has a device with
//! room.
//!
//! ```text
//!  entry CODEC@DEVICE ──▶ is the device there, and trusted?            absent
//!                     ──▶ does it do this codec, level and size?       unsuitable   codec_min_bytes, codec_max_bytes
//!                     ──▶ has it room?                                 overflow     codec_queue_max, and bytes under way
//!                     ──▶ is it fast enough?                           slower
//!                     ──▶ that is who compresses; else the next entry, and the last is the processor's
//! ```
//!
//! *Fast enough* depends on whether the entry names a device:
//!
//! - A named device may take up to `codec_slack` times as long as the processor. Nobody waits for
//!   the frame, and meanwhile the thread does something else.
//! - Without a name, a device gets a frame only if no thread is idle. The frame must also come back
//!   before the processor's threads would have done it and all that waits for them ([`Backlog`]).
//!   The estimate is how long frames were away lately. Until there is one, the processor
//!   compresses, and the device gets copies of a few frames ([`Router::to_be_tried`]). With the
//!   objective `cpu`, `codec_slack` decides here too.
//!
//! The density of a frame (`codec_max_bits`) is known only once it is planned, and a device may
//! still refuse a frame for lack of room. The search then continues with the next device. If the
//! processor compresses in the end, the reason given is that of the last device tried.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use outrigger_format::{Codec, CodecChoice, CodecDevice, CodecSpec, Listed, ListedCodec, Reason};

use super::encoder::Wanted;
use super::{Auto, Compression};
use crate::placement::Objective;
use crate::runtime::Runtime;
use crate::work::{Class, Input, Request, Work};

/// The chosen compressor of a frame, with codec and level.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Route {
    /// The device's index in [`Metrics::devices`](crate::runtime::Metrics::devices). 0 is the
    /// processor.
    pub device: usize,
    /// Codec and level, and why they were chosen.
    pub wanted: Wanted,
    /// True if a device could have done the same. The processor's time is then worth measuring.
    pub comparable: bool,
    /// Where the search found it: the entry's position in the list, and the device's.
    pub(super) at: (usize, usize),
}

/// The work that waits for the processor's threads.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Backlog {
    /// At least one thread is idle.
    pub is_idle: bool,
    /// The time in which all threads together finish the waiting work.
    pub ahead: Duration,
}

impl Backlog {
    /// The time by which a device must return a frame that the processor would compress in `own`.
    /// `None` if a thread is free to do it at once.
    pub fn limit(&self, own: Duration) -> Option<Duration> {
        (!self.is_idle).then(|| own.max(self.ahead))
    }
}

/// A frame that the chosen device did not get after all.
#[derive(Clone, Copy, Debug)]
pub(super) struct Declined {
    pub route: Route,
    pub reason: Reason,
}

/// A device that compresses.
#[derive(Clone, Copy, Debug)]
pub(super) struct Known {
    pub place: usize,
    pub kind: CodecDevice,
}

/// The usual frame size. A device that compresses no codec at this size is not used.
const USUAL: usize = 64 << 10;

/// Each codec at its usual level.
fn specs() -> impl Iterator<Item = CodecSpec> {
    let usual = |codec: Codec| codec.levels().map_or(0, |(_, _, usual)| usual);
    let codecs = Codec::ALL.into_iter().filter(|codec| *codec != Codec::None);
    codecs.map(move |codec| CodecSpec { codec, level: usual(codec) })
}

/// The devices of `runtime` that compress.
pub(super) fn devices(runtime: &Runtime) -> Vec<Known> {
    let metrics = runtime.metrics();
    let compresses = |place: usize| specs().any(|spec| runtime.supports(place, &work(spec, USUAL)));
    let kind =
        |name: &str| CodecDevice::parse(name.split(':').next().unwrap_or_default()).unwrap_or_default();
    let places = (1..metrics.devices.len()).filter(|&place| compresses(place));
    places.map(|place| Known { place, kind: kind(&metrics.devices[place].identity.name) }).collect()
}

/// A compression task for [`Runtime::supports`]. Only the size counts, so it has no input.
fn work(spec: CodecSpec, len: usize) -> Work {
    Work { request: Request::Compress { spec }, input: Input::Empty, range: 0..len }
}

/// Chooses compressors, as the module describes.
pub(super) struct Router {
    pub devices: Vec<Known>,
    /// How many frames a device lost because it was predicted to be slow. Every few of them, one
    /// goes to the device all the same, to measure it again.
    slower: AtomicU32,
}

impl Router {
    pub fn new(devices: Vec<Known>) -> Self {
        Self { devices, slower: AtomicU32::new(0) }
    }

    /// True if some device takes frames of `size` bytes in some codec but not of `limit`.
    pub fn has_limit_between(&self, runtime: &Runtime, size: usize, limit: usize) -> bool {
        let takes = |place, spec, len| runtime.supports(place, &work(spec, len));
        let stops = |place| specs().any(|spec| takes(place, spec, size) && !takes(place, spec, limit));
        self.devices.iter().any(|known| stops(known.place))
    }

    /// Chooses for a frame of `len` bytes. If `is_full`, no device may get more bytes at the
    /// moment. With `declined`, the search continues after that device.
    pub fn route(
        &self,
        runtime: &Runtime,
        compression: Compression,
        auto: &Auto,
        len: usize,
        (is_full, backlog): (bool, Backlog),
        declined: Option<Declined>,
    ) -> Route {
        let mut why = declined.map(|declined| declined.reason);
        let mut comparable = false;
        let behind = declined.map(|declined| declined.route.at);
        let software = Wanted::of(compression, auto);
        if let Some(Declined { route, .. }) = declined {
            comparable = route.comparable && route.wanted.spec == software.spec;
        }
        for (number, entry) in entries(compression.codec).enumerate() {
            if behind.is_some_and(|(entry, _)| number < entry) {
                continue;
            }
            let wanted = Wanted::of(Compression { codec: entry.codec.into(), ..compression }, auto);
            if entry.device == CodecDevice::Cpu {
                break;
            }
            if wanted.spec.codec == Codec::None {
                continue;
            }
            let asked = entry.device != CodecDevice::Any;
            let mut there = behind.is_some_and(|(entry, _)| number == entry);
            for (place, known) in self.devices.iter().enumerate() {
                if asked && known.kind != entry.device
                    || behind.is_some_and(|behind| (number, place) <= behind)
                {
                    continue;
                }
                match self.may(runtime, known, wanted.spec, software.spec, asked, len, (is_full, backlog)) {
                    Ok(()) => {
                        let reason = reason_of(known.kind);
                        return Route {
                            device: known.place,
                            wanted: Wanted { reason, ..wanted },
                            comparable: true,
                            at: (number, place),
                        };
                    }
                    // A device that is absent gives no reason.
                    Err(Reason::Absent) => {}
                    Err(reason) => {
                        there = true;
                        why = Some(reason);
                        comparable |= wanted.spec == software.spec;
                    }
                }
            }
            if asked && !there {
                why = Some(Reason::Absent);
            }
            if !asked {
                // The processor is a candidate of such an entry.
                break;
            }
        }
        let wanted = Wanted { reason: why.unwrap_or(software.reason), ..software };
        Route { device: 0, wanted, comparable, at: (usize::MAX, 0) }
    }

    /// A device that should get a copy of a frame, so that its time becomes known.
    pub fn to_be_tried(&self, runtime: &Runtime, spec: CodecSpec, len: usize) -> Option<usize> {
        let (policy, class) = (runtime.policy(), Class::Compress(spec.codec, spec.level));
        let places = self.devices.iter().map(|known| known.place);
        places.into_iter().find(|&place| {
            let state = runtime.load(place);
            !state.is_cut_off
                && state.tasks == 0
                && policy.may_offload(class, len)
                && runtime.supports(place, &work(spec, len))
                && runtime.model().is_to_be_tried(policy, place, class, len)
        })
    }

    /// Checks whether a device may take a frame, and if not, why.
    #[expect(clippy::too_many_arguments, reason = "what it depends on")]
    fn may(
        &self,
        runtime: &Runtime,
        known: &Known,
        spec: CodecSpec,
        software: CodecSpec,
        asked: bool,
        len: usize,
        (is_full, backlog): (bool, Backlog),
    ) -> Result<(), Reason> {
        let policy = runtime.policy();
        let class = Class::Compress(spec.codec, spec.level);
        if !runtime.supports(known.place, &work(spec, USUAL))
            && !runtime.supports(known.place, &work(spec, len))
        {
            return Err(Reason::Absent);
        }
        if !policy.may_offload(class, len) || !runtime.supports(known.place, &work(spec, len)) {
            return Err(Reason::Unsuitable);
        }
        let state = runtime.load(known.place);
        if state.is_cut_off {
            return Err(Reason::Absent);
        }
        if is_full || !state.has_room(policy.codec_queue_max as usize) {
            return Err(Reason::Overflow);
        }
        let processors = Class::Compress(software.codec, software.level);
        // If anyone may compress, the processor must have been measured too. A policy that names a
        // device wants that device.
        if !asked && runtime.model().curve(0, processors).samples(len) < policy.first_tasks {
            return Err(Reason::Slower);
        }
        if !asked && policy.objective != Objective::Cpu {
            let limit = runtime.predict(0, processors, len).and_then(|own| backlog.limit(own));
            let back = runtime.expect(known.place, class, len);
            let in_time = limit.zip(back).is_some_and(|(limit, back)| back <= limit);
            return if in_time { Ok(()) } else { Err(Reason::Slower) };
        }
        let (Some(own), Some(other)) =
            (runtime.predict(known.place, class, len), runtime.predict(0, processors, len))
        else {
            return Ok(());
        };
        if own <= other.mul_f64(policy.codec_slack) {
            return Ok(());
        }
        let number = self.slower.fetch_add(1, Ordering::Relaxed);
        let tried_again = policy.explore_every > 0 && number.is_multiple_of(policy.explore_every);
        if tried_again { Ok(()) } else { Err(Reason::Slower) }
    }
}

/// The entries of a policy's list, or the one that a policy without a list stands for.
fn entries(choice: CodecChoice) -> impl Iterator<Item = Listed> {
    let entries: [Option<Listed>; 4] = match choice {
        CodecChoice::Listed(list) => {
            let mut entries = list.entries();
            std::array::from_fn(|_| entries.next())
        }
        CodecChoice::Fixed(spec) => [Some(anybody(ListedCodec::Fixed(spec))), None, None, None],
        CodecChoice::Auto(objective) => [Some(anybody(ListedCodec::Auto(objective))), None, None, None],
    };
    entries.into_iter().flatten()
}

/// The reason to report for a frame that a device of this kind compresses.
fn reason_of(kind: CodecDevice) -> Reason {
    match kind {
        CodecDevice::Qat => Reason::Qat,
        CodecDevice::Nvcomp => Reason::Gpu,
        _ => Reason::Device,
    }
}

fn anybody(codec: ListedCodec) -> Listed {
    Listed { codec, device: CodecDevice::Any }
}
