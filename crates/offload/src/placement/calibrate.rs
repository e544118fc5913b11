//! Calibration on purpose: every operation, on every device, at one size a decade, one task at a time.

use std::time::{Duration, Instant};

use outrigger_format::boundary::GearMasks;
use outrigger_format::{ChunkerSpec, CodecSpec, FingerprintKind};

use super::{Point, Stages};
use crate::Compressor;
use crate::op::{Digest, Stream, WindowFunction, WindowSpec};
use crate::runtime::{Draft, Failed, Runtime};
use crate::work::Request;

/// An operation to be measured, with data that is typical for it.
#[derive(Clone)]
pub struct Case {
    request: Asked,
    /// No larger task of this kind makes sense.
    max: usize,
}

#[derive(Clone)]
enum Asked {
    HashMany(FingerprintKind),
    Compress(CodecSpec),
    Decompress(CodecSpec),
    Other(Request),
    /// Cut, and fingerprinted.
    Ingest(ChunkerSpec, FingerprintKind),
}

/// How carefully.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CalibrateOptions {
    /// The largest task, bytes.
    pub max_bytes: usize,
    /// Tasks of one kind and size, at least; the first only warms up.
    pub repeats: u32,
    /// More of them, until this time has passed.
    pub at_least: Duration,
}

impl Default for CalibrateOptions {
    fn default() -> Self {
        Self { max_bytes: 128 << 20, repeats: 4, at_least: Duration::from_millis(10) }
    }
}

/// One size in each decade from 4 KiB to `max`.
pub fn sizes(max: usize) -> impl Iterator<Item = usize> {
    (0..).map(|step| (4 << 10) << (3 * step)).take_while(move |&bytes| bytes <= max)
}

/// What the store does, and the papers' primitives.
pub fn builtin_cases() -> Vec<Case> {
    let large = 128 << 20;
    let frame = 2 << 20;
    let codec = |text| CodecSpec::parse(text).expect("a codec");
    let window = WindowSpec { function: WindowFunction::Md5, window: 20, step: 4, keep: 4 };
    let case = |request, max| Case { request, max };
    vec![
        case(Asked::Other(Request::Scan { history: 0, masks: GearMasks::for_average(16 << 10) }), large),
        case(Asked::HashMany(FingerprintKind::Blake3), large),
        case(Asked::HashMany(FingerprintKind::Sha256), large),
        case(Asked::Ingest(ChunkerSpec::DEFAULT, FingerprintKind::Blake3), large),
        case(Asked::Other(Request::PmdHash { digest: Digest::Sha256 }), large),
        // Four bytes come out for four that go in.
        case(Asked::Other(Request::WindowHash { spec: window }), 16 << 20),
        case(Asked::Compress(codec("lz4")), frame),
        case(Asked::Compress(codec("zstd:2")), frame),
        case(Asked::Decompress(codec("lz4")), frame),
        case(Asked::Decompress(codec("zstd:2")), frame),
    ]
}

/// Half of what text is like and half noise, so that codecs have something to do.
fn fill(bytes: &mut [u8]) {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    for piece in bytes.chunks_mut(64) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        for (at, byte) in piece.iter_mut().enumerate() {
            let noise = state.rotate_left(at as u32 * 7) as u8;
            *byte = if at < 24 { noise } else { b' ' + (noise & 15) * ((at as u8) & 3) };
        }
    }
}

impl Case {
    /// Its class's name: `hash_many/blake3`.
    pub fn name(&self) -> String {
        let request = match &self.request {
            Asked::HashMany(kind) => Request::HashMany { kind: *kind, ranges: Vec::new() },
            Asked::Compress(spec) => Request::Compress { spec: *spec },
            Asked::Decompress(spec) => Request::Decompress { codec: spec.codec, raw_len: 0 },
            Asked::Ingest(chunker, kind) => {
                Request::Ingest { streams: Vec::new(), chunker: *chunker, kind: *kind, table: None }
            }
            Asked::Other(request) => request.clone(),
        };
        request.class().to_string()
    }

    /// A task of about so many bytes; `None` where that is more than makes sense.
    pub fn draft(&self, runtime: &Runtime, bytes: usize) -> Option<Draft> {
        if bytes > self.max {
            return None;
        }
        let mut draft = runtime.draft(bytes);
        draft.input().set_len(bytes);
        fill(draft.input());
        match &self.request {
            Asked::HashMany(kind) => {
                const CHUNK: u32 = 16 << 10;
                let end = bytes as u32;
                draft.hash_many(*kind, (0..end.div_ceil(CHUNK)).map(|n| n * CHUNK..end.min((n + 1) * CHUNK)));
            }
            Asked::Compress(spec) => {
                draft.set_request(Request::Compress { spec: *spec });
            }
            Asked::Decompress(spec) => {
                let mut stored = Vec::new();
                let codec = Compressor::new().compress(*spec, draft.input(), &mut stored);
                draft.input().clear();
                draft.input().extend_from_slice(&stored);
                draft.set_request(Request::Decompress { codec, raw_len: bytes });
            }
            Asked::Ingest(chunker, kind) => {
                let streams = vec![Stream { range: 0..bytes as u32, last: true }];
                draft.set_request(Request::Ingest { streams, chunker: *chunker, kind: *kind, table: None });
            }
            Asked::Other(request) => {
                draft.set_request(request.clone());
            }
        }
        Some(draft)
    }
}

/// Measures `case` on a device at a size, puts the result in the runtime's model, and returns it. `None` where the device
/// does not do it, did not do it, or the size makes no sense.
///
/// # Errors
/// [`Failed`] when the processor itself fails at it.
pub fn calibrate(
    runtime: &Runtime,
    device: usize,
    case: &Case,
    bytes: usize,
    options: &CalibrateOptions,
) -> Result<Option<Point>, Failed> {
    let Some(mut draft) = case.draft(runtime, bytes) else { return Ok(None) };
    let (class, len) = (draft.work().class(), bytes_of(&draft));
    if !runtime.supports(device, draft.work()) {
        return Ok(None);
    }
    let mut runs: Vec<Stages> = Vec::new();
    let mut begun = None;
    loop {
        draft.pin(device);
        let Ok(ticket) = runtime.submit(draft) else { return Ok(None) };
        let done = ticket.wait()?;
        let report = *done.report();
        if report.device != device {
            return Ok(None);
        }
        let nanos = |time: Duration| time.as_nanos() as f64;
        // The first one warms up: caches, buffers, the device's clock.
        let first = begun.is_none();
        let begun = *begun.get_or_insert_with(Instant::now);
        if !first && !report.checked {
            runs.push(Stages {
                overhead: nanos(report.total.saturating_sub(report.queue + report.stages.sum())),
                copy_in: nanos(report.stages.copy_in),
                work: nanos(report.stages.kernel),
                copy_out: nanos(report.stages.copy_out),
            });
        }
        draft = done.again();
        let enough = runs.len() as u32 + 1 >= options.repeats && begun.elapsed() >= options.at_least;
        if enough && !runs.is_empty() {
            break;
        }
    }
    let point = Point { bytes: len as f64, stages: median(&runs), samples: runs.len() as u32, error: 0.0 };
    runtime.model().put(device, class, point);
    Ok(Some(point))
}

/// What the task's time is predicted from: its range is only set when it is submitted.
fn bytes_of(draft: &Draft) -> usize {
    draft.work().input.bytes().len() + draft.work().request.side_len()
}

/// The run whose latency is in the middle.
fn median(runs: &[Stages]) -> Stages {
    let mut runs = runs.to_vec();
    runs.sort_by(|a, b| a.latency().total_cmp(&b.latency()));
    runs[runs.len() / 2]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_one_size_in_each_decade() {
        let decades: Vec<usize> = sizes(128 << 20).map(super::super::decade).collect();
        assert_eq!(decades, [3, 4, 5, 6, 7, 8]);
    }

    #[test]
    fn every_case_can_be_measured_on_the_processor() {
        let runtime = Runtime::builder().cpu_threads(1).build();
        let options = CalibrateOptions { max_bytes: 4096, repeats: 2, at_least: Duration::ZERO };
        for case in builtin_cases() {
            let point = calibrate(&runtime, 0, &case, 4096, &options).unwrap().expect("a point");
            assert!(point.stages.work > 0.0 && point.stages.copy_in == 0.0);
        }
    }
}
