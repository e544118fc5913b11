//! Known answers: small tasks with results from the processor. A re-initialised device must solve
//! them.

use std::sync::Arc;

use outrigger_clock::Instant;
use outrigger_format::boundary::GearMasks;
use outrigger_format::{Codec, CodecSpec, FingerprintKind};

use super::queue::Next;
use super::shared::Shared;
use crate::accelerator::{Accelerator, Completion, Fault, Submission};
use crate::op::Digest;
use crate::pool::Pool;
use crate::work::{Input, Output, Request, Work, same_result};
use crate::{Compressor, CpuDevice};

/// The questions, made when they are first needed.
#[derive(Default)]
pub(super) struct KnownAnswers {
    asked: Option<Vec<(Arc<Work>, Output)>>,
}

/// Enough data that a kernel runs more than one block.
const BYTES: usize = 256 << 10;

/// Codecs that devices may have, each at a level that all of them have.
const CODECS: [CodecSpec; 4] = [
    CodecSpec { codec: Codec::Gzip, level: 1 },
    CodecSpec { codec: Codec::Deflate, level: 1 },
    CodecSpec { codec: Codec::Lz4, level: 0 },
    CodecSpec { codec: Codec::Zstd, level: 1 },
];

/// The index of the last question for a device that hashes.
const ENOUGH: usize = 3;

/// Random bytes with only the bits in `mask`. If these are few, the data is compressible.
fn numbers(mask: u8) -> impl Iterator<Item = u8> {
    let mut state = 0x9e37_79b9_u32;
    std::iter::repeat_with(move || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8 & mask
    })
}

fn questions(pool: &Pool) -> Vec<(Arc<Work>, Output)> {
    let mut cpu = CpuDevice::new();
    let mut answer = |request: Request, data: &[u8]| {
        let mut buffer = pool.alloc(data.len());
        buffer.extend_from_slice(data);
        let work = Work { request, input: Input::Own(buffer), range: 0..data.len() };
        let mut output = Output::default();
        work.run_on(&mut cpu, &mut output).ok().map(|()| (Arc::new(work), output))
    };
    let hashed = [
        Request::HashMany {
            kind: FingerprintKind::Blake3,
            ranges: (0..BYTES as u32 / 5000).map(|n| n * 5000..(n + 1) * 5000).collect(),
        },
        Request::Scan { history: 0, masks: GearMasks::for_average(4096) },
        Request::PmdHash { digest: Digest::Sha256 },
    ];
    let data: Vec<u8> = numbers(0xff).take(BYTES).collect();
    let mut asked: Vec<_> = hashed.into_iter().filter_map(|request| answer(request, &data)).collect();
    // Data that fits every device's buffers, and that every codec makes smaller.
    let raw: Vec<u8> = numbers(0x11).take(BYTES / 4).collect();
    for spec in CODECS {
        let mut stored = Vec::new();
        let codec = Compressor::new().compress(spec, &raw, &mut stored);
        asked.extend(answer(Request::Compress { spec }, &raw));
        asked.extend(answer(Request::Decompress { codec, raw_len: raw.len() }, &stored));
    }
    asked
}

impl KnownAnswers {
    /// Asks the device, on its manager's thread, the questions that it supports.
    ///
    /// # Errors
    /// The first fault.
    pub(super) fn ask(
        &mut self,
        device: &mut dyn Accelerator,
        shared: &Shared,
        lane: usize,
    ) -> Result<(), Fault> {
        let questions = self.asked.get_or_insert_with(|| questions(&Pool::new(None, 0)));
        let can = device.capabilities();
        // For a device that hashes, the hash questions and one codec suffice.
        let hashes = can(&questions[0].0);
        let mut cpu = CpuDevice::new();
        for (id, (work, expected)) in questions.iter().enumerate() {
            if !can(work) || hashes && id > ENOUGH {
                continue;
            }
            let mut output = Output::default();
            let room = device.output_room(work);
            if room > 0 {
                output.bytes.provide(shared.pool.alloc(room));
            }
            // Real tasks' ids count up from 1 and never get here.
            let id = u64::MAX - id as u64;
            device.submit(Submission { id, work: Arc::clone(work), output });
            let got = answer(device, shared, lane, id)?;
            if !same_result(work, expected, &got, &mut cpu) || !is_smaller(work, &got) {
                return Err(Fault::Wrong);
            }
        }
        Ok(())
    }
}

/// True if a compressed result is smaller and of the requested codec. Every codec makes these data
/// smaller.
fn is_smaller(work: &Work, got: &Output) -> bool {
    match work.request {
        Request::Compress { spec } => got.codec == spec.codec && got.bytes.len() < work.input_len(),
        _ => true,
    }
}

/// Waits for the answer.
fn answer(device: &mut dyn Accelerator, shared: &Shared, lane: usize, id: u64) -> Result<Output, Fault> {
    let (until, mut done) = (Instant::now() + shared.policy.hang_floor, Vec::new());
    loop {
        device.poll(&mut done);
        // Skips answers to submissions from before the reset.
        let mut ours = done.drain(..).filter(|completion| completion.submission.id == id);
        if let Some(Completion { submission, result }) = ours.next() {
            return result.map(|_| submission.output);
        }
        drop(ours);
        let now = Instant::now();
        if now >= until {
            return Err(Fault::Hung);
        }
        let poll = device.poll_interval().map_or(until, |interval| until.min(now + interval));
        if let Next::Ended = shared.board.next(lane, false, Some(poll)) {
            return Err(Fault::Lost("the runtime is ending".into()));
        }
    }
}
