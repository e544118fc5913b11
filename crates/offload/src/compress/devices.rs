//! Compresses frames on devices, with many in flight at once.
//!
//! ```text
//!  route (route.rs) ──▶ Encoder::plan ──▶ submit ─────────────▶ runtime ──▶ device ──▶ callback ──▶ Encoder::conclude
//!                        sample, filter    reads the frame where           writes to a page-locked
//!                                          it lies                         buffer with room for the worst
//! ```
//!
//! The device reads the frame from the buffer that the file was read into, and the writer appends
//! the result to the pack straight from the output buffer ([`Made::bytes`]). Only a filter copies.
//! At most [`BYTES_MAX`] raw bytes are in flight. A frame counts from [`FrameDevices::submit`]
//! until its [`Made`] is dropped. If a device declines a frame, fails or does not answer, then the
//! runtime compresses it on the processor, so every submitted frame comes back.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use outrigger_clock::Instant;
use outrigger_format::{Codec, CodecDevice, Encoding, Filter, Reason};

use super::encoder::{Encoder, FramePlan, Planned, Wanted};
use super::route::{Backlog, Declined, Route, Router, devices};
use super::{Auto, Compression};
use crate::cpu::apply_filter_into;
use crate::placement::Stages;
use crate::pool::Buffer;
use crate::runtime::{Finished, Runtime};
use crate::work::{Class, Request};

/// The most raw bytes of frames in flight (a single frame may be larger).
const BYTES_MAX: usize = 64 << 20;

/// The compressing devices of a runtime, for the writers of a store.
pub struct FrameDevices {
    runtime: Arc<Runtime>,
    router: Router,
    away: AtomicUsize,
}

/// Counts a frame's bytes as in flight while it lives.
struct Permit {
    home: Arc<FrameDevices>,
    bytes: usize,
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.home.away.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// A compressed frame, with its output buffer.
pub struct Made {
    finished: Finished,
    plan: FramePlan,
    _permit: Permit,
}

impl Made {
    /// How the frame is stored, as [`Encoder::encode`] returns it. `encoder` learns whether the
    /// filter paid.
    pub fn conclude(&self, encoder: &mut Encoder) -> Encoding {
        let report = self.finished.report();
        let output = self.finished.output();
        let len = (output.codec == self.plan.spec.codec).then_some(output.bytes.len());
        let by_device = report.device > 0;
        let reason = if by_device { self.plan.reason } else { Reason::Failed };
        encoder.conclude(&FramePlan { reason, ..self.plan }, len)
    }

    /// The bytes to store, where the device wrote them. Not valid if the frame is stored as it is.
    pub fn bytes(&self) -> &[u8] {
        &self.finished.output().bytes
    }

    /// The index of the device that did it. 0 is the processor.
    pub fn device(&self) -> usize {
        self.finished.report().device
    }
}

/// The callback for a frame. It gets `None` if the runtime did not compress it: the runtime is
/// shutting down, or one of its functions panicked.
type Back<T> = dyn Fn(T, Option<Made>) + Send + Sync;

impl FrameDevices {
    /// The compressing devices of `runtime`, or `None` if it has none.
    pub fn of(runtime: &Arc<Runtime>) -> Option<Arc<Self>> {
        let devices = devices(runtime);
        if devices.is_empty() {
            return None;
        }
        let (runtime, router) = (Arc::clone(runtime), Router::new(devices));
        Some(Arc::new(Self { runtime, router, away: AtomicUsize::new(0) }))
    }

    /// The runtime that the devices belong to.
    pub fn runtime(&self) -> &Arc<Runtime> {
        &self.runtime
    }

    /// The devices' indices in [`Metrics::devices`](crate::runtime::Metrics::devices).
    pub(super) fn places(&self) -> impl Iterator<Item = usize> {
        self.router.devices.iter().map(|known| known.place)
    }

    /// The devices' kinds.
    pub fn kinds(&self) -> impl Iterator<Item = CodecDevice> {
        self.router.devices.iter().map(|known| known.kind)
    }

    /// The longest useful frame: `size` if some device takes frames of `size` bytes but not of
    /// `limit`, else `limit`.
    pub fn frame_limit(&self, size: usize, limit: usize) -> usize {
        if self.router.has_limit_between(&self.runtime, size, limit) { size } else { limit }
    }

    /// The frames that all devices together keep in flight.
    pub fn in_flight(&self) -> usize {
        self.router.devices.iter().map(|known| self.runtime.load(known.place).in_flight_max).sum()
    }

    /// Chooses the compressor and the codec for a frame of `len` bytes, without looking at its
    /// content.
    pub fn route(&self, compression: Compression, auto: &Auto, len: usize, backlog: Backlog) -> Route {
        self.route_behind(compression, auto, len, backlog, None)
    }

    fn route_behind(
        &self,
        compression: Compression,
        auto: &Auto,
        len: usize,
        backlog: Backlog,
        declined: Option<Declined>,
    ) -> Route {
        let away = self.away.load(Ordering::Relaxed);
        let is_full = away > 0 && away + len > BYTES_MAX;
        self.router.route(&self.runtime, compression, auto, len, (is_full, backlog), declined)
    }

    /// Chooses the compressor for `raw` and plans the frame. If the sample shows that the frame
    /// does not suit the chosen device, the next candidate is tried. `refused` is an earlier answer
    /// whose device had no room.
    pub fn plan(
        &self,
        encoder: &mut Encoder,
        compression: Compression,
        auto: &Auto,
        raw: &[u8],
        backlog: Backlog,
        refused: Option<Route>,
    ) -> (Route, Planned) {
        let mut declined = refused.map(|route| Declined { route, reason: Reason::Overflow });
        loop {
            let route = self.route_behind(compression, auto, raw.len(), backlog, declined);
            let planned = encoder.plan(route.wanted, raw);
            match &planned {
                Planned::Compress(plan) if route.device > 0 && !self.is_for_devices(plan, encoder.bits()) => {
                    declined = Some(Declined { route, reason: Reason::Unsuitable });
                }
                _ => return (route, planned),
            }
        }
    }

    /// True if the frame still suits a device after sampling. The planes of grouped numbers become
    /// several Zstandard frames, which only the processor makes.
    fn is_for_devices(&self, plan: &FramePlan, bits: Option<f32>) -> bool {
        let dense = bits.is_some_and(|bits| f64::from(bits) > self.runtime.policy().codec_max_bits);
        !dense && (plan.filter.planes() == 1 || plan.spec.codec != Codec::Zstd)
    }

    /// Records how long the processor took for a frame. Devices are compared with it.
    pub fn observe_processor(&self, wanted: &Wanted, len: usize, took: Duration) {
        let stages = Stages { work: took.as_nanos() as f64, ..Stages::default() };
        let class = Class::Compress(wanted.spec.codec, wanted.spec.level);
        self.runtime.model().observe(0, class, len, stages, true, self.runtime.policy().learn);
    }

    /// Submits `range` of `buffer` to `device`, to compress as planned. `back` gets `carried` and
    /// the result on a thread of the runtime, which it must not block.
    ///
    /// # Errors
    /// Returns `carried` if the runtime takes no more tasks at the moment.
    pub fn submit<T: Send + 'static>(
        self: &Arc<Self>,
        device: usize,
        plan: FramePlan,
        buffer: &Arc<Buffer>,
        range: Range<usize>,
        carried: T,
        back: Arc<Back<T>>,
    ) -> Result<(), T> {
        let bytes = range.len();
        let mut draft = self.runtime.draft(0);
        draft.set_request(Request::Compress { spec: plan.spec }).pin(device);
        if plan.filter == Filter::None {
            draft.share(Arc::clone(buffer), range);
        } else {
            let mut filtered = self.runtime.pool().alloc(bytes);
            filtered.set_len(bytes);
            apply_filter_into(plan.filter, &buffer[range], &mut filtered);
            draft.share(Arc::new(filtered), 0..bytes);
        }
        self.away.fetch_add(bytes, Ordering::Relaxed);
        let permit = Permit { home: Arc::clone(self), bytes };
        let away = Arc::new(Mutex::new(Some((carried, permit))));
        let waits = Arc::clone(&away);
        draft.set_callback(Arc::new(move |ended| {
            let Some((carried, permit)) = take(&waits) else { return };
            let made = ended.ok().map(|finished| Made { finished, plan, _permit: permit });
            back(carried, made);
        }));
        match self.runtime.try_submit(draft) {
            Ok(_) => Ok(()),
            // The refused draft was dropped together with its callback, which nobody has called.
            Err(_) => match take(&away) {
                Some((carried, _)) => Err(carried),
                None => Ok(()),
            },
        }
    }

    /// Has a device compress a copy of a frame that the processor also compresses, to measure its
    /// time. The result is dropped.
    pub fn try_out(&self, plan: &FramePlan, len: usize, lend: impl FnOnce() -> (Arc<Buffer>, Range<usize>)) {
        if plan.filter != Filter::None || !self.is_for_devices(plan, None) {
            return;
        }
        let Some(device) = self.router.to_be_tried(&self.runtime, plan.spec, len) else { return };
        let (mut draft, (buffer, range)) = (self.runtime.draft(0), lend());
        draft.set_request(Request::Compress { spec: plan.spec }).pin(device).share(buffer, range);
        // The time is measured in any case, so the ticket is dropped.
        drop(self.runtime.try_submit(draft));
    }

    /// [`Encoder::encode`] on the best device or the processor. Blocks until the frame is done, for
    /// threads that have nothing else to do. A device gets a copy, and its result is copied back.
    pub fn encode(
        self: &Arc<Self>,
        encoder: &mut Encoder,
        compression: Compression,
        auto: &Auto,
        raw: &[u8],
        out: &mut Vec<u8>,
    ) -> Encoding {
        let copied = || {
            let mut buffer = self.runtime.pool().alloc(raw.len());
            buffer.extend_from_slice(raw);
            (Arc::new(buffer), 0..raw.len())
        };
        let mut refused = None;
        let (route, plan) = loop {
            let (route, plan) = match self.plan(encoder, compression, auto, raw, Backlog::default(), refused)
            {
                (_, Planned::Plain(encoding)) => return encoding,
                (route, Planned::Compress(plan)) => (route, plan),
            };
            if route.device == 0 {
                break (route, plan);
            }
            let (buffer, range) = copied();
            let (send, receive) = sync_channel(1);
            let back = Arc::new(move |(), made| {
                let _ = send.send(made);
            });
            if self.submit(route.device, plan, &buffer, range, (), back).is_err() {
                refused = Some(route);
                continue;
            }
            let Ok(Some(made)) = receive.recv() else {
                break (route, FramePlan { reason: Reason::Failed, ..plan });
            };
            let encoding = made.conclude(encoder);
            out.clear();
            if encoding.codec != Codec::None {
                out.extend_from_slice(made.bytes());
            }
            return encoding;
        };
        if route.comparable {
            self.try_out(&plan, raw.len(), copied);
        }
        let began = Instant::now();
        let encoding = encoder.compress(&plan, raw, out);
        if route.comparable {
            self.observe_processor(&route.wanted, raw.len(), began.elapsed());
        }
        encoding
    }
}

fn take<T>(away: &Mutex<Option<T>>) -> Option<T> {
    away.lock().unwrap_or_else(PoisonError::into_inner).take()
}
