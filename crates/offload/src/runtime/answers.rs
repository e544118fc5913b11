//! Known answers: small tasks whose results the processor has computed, for a device that was just re-initialised.

use std::sync::Arc;
use std::time::Instant;

use outrigger_format::boundary::GearMasks;
use outrigger_format::{CodecSpec, FingerprintKind};

use super::queue::Next;
use super::shared::Shared;
use crate::CpuDevice;
use crate::device::{Accelerator, Completion, Fault, Submission};
use crate::op::Digest;
use crate::pool::Pool;
use crate::work::{Input, Output, Request, Work, same_result};

/// Made when they are first needed.
#[derive(Default)]
pub(super) struct KnownAnswers {
    asked: Option<Vec<(Arc<Work>, Output)>>,
}

/// Enough that a kernel has more than one block to do.
const BYTES: usize = 256 << 10;

fn questions(pool: &Pool) -> Vec<(Arc<Work>, Output)> {
    let requests = [
        Request::HashMany {
            kind: FingerprintKind::Blake3,
            ranges: (0..BYTES as u32 / 5000).map(|n| n * 5000..(n + 1) * 5000).collect(),
        },
        Request::Scan { history: 0, masks: GearMasks::for_average(4096) },
        Request::PmdHash { digest: Digest::Sha256 },
        Request::Compress { spec: CodecSpec::NONE },
    ];
    let mut cpu = CpuDevice::new();
    let answer = |request: Request| {
        let mut buffer = pool.alloc(BYTES);
        buffer.set_len(BYTES);
        let mut state = 0x9e37_79b9_u32;
        for byte in buffer.iter_mut() {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            *byte = (state >> 24) as u8;
        }
        let work = Work { request, input: Input::Own(buffer), range: 0..BYTES };
        let mut output = Output::default();
        work.run_on(&mut cpu, &mut output).ok().map(|()| (Arc::new(work), output))
    };
    requests.into_iter().filter_map(answer).collect()
}

impl KnownAnswers {
    /// Asks the device, on its manager's thread, whatever of these it can do.
    ///
    /// # Errors
    /// The first thing that goes wrong.
    pub(super) fn ask(
        &mut self,
        device: &mut dyn Accelerator,
        shared: &Shared,
        lane: usize,
    ) -> Result<(), Fault> {
        let questions = self.asked.get_or_insert_with(|| questions(&Pool::new(None, 0)));
        let can = device.capabilities();
        let mut cpu = CpuDevice::new();
        for (id, (work, expected)) in questions.iter().enumerate().filter(|(_, (work, _))| can(work)) {
            let mut output = Output::default();
            if work.output_len_max() > 0 {
                output.bytes.provide(shared.pool.alloc(work.output_len_max()));
            }
            // Tasks' ids are counted from 1 upwards: none ever gets here.
            let id = u64::MAX - id as u64;
            device.submit(Submission { id, work: Arc::clone(work), output });
            let got = answer(device, shared, lane, id)?;
            if !same_result(work, expected, &got, &mut cpu) {
                return Err(Fault::Wrong);
            }
        }
        Ok(())
    }
}

/// Waits for the answer.
fn answer(device: &mut dyn Accelerator, shared: &Shared, lane: usize, id: u64) -> Result<Output, Fault> {
    let (until, mut done) = (Instant::now() + shared.policy.hang_floor, Vec::new());
    loop {
        device.poll(&mut done);
        // Answers to what was asked before the device was reset are no answers.
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
