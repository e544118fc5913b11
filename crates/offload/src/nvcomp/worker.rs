//! One stream. It copies a batch of frames to the device, compresses or decompresses them together,
//! and copies the results back.
//!
//! ```text
//!  Area::Input   frame ▒ frame ▒ ...        Area::Lists   addresses and lengths, and what nvCOMP says of each
//!  Area::Output  room  ▒ room  ▒ ...        Area::Temp    what nvCOMP asks for
//! ```
//! ▒: padding to the next multiple of 256, which suffices for every codec.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use outrigger_clock::Instant;
use outrigger_format::{Codec, CodecSpec};

use super::library::{Batch, Library, check};
use super::memory::{ALIGNMENT, Area, Place};
use crate::accelerator::{Fault, StageTimes, Submission};
use crate::work::Request;
use crate::worker_pool::Worker;

pub(super) struct NvcompWorker {
    pub library: Arc<Library>,
    pub place: Place,
}

/// The operation on all frames of a batch.
#[derive(Clone, Copy)]
enum Job {
    Compress(CodecSpec),
    Decompress(Codec),
}

/// Lists in device memory, in a row, with `count` entries of eight bytes each.
struct Lists {
    bytes: Vec<u8>,
    count: usize,
}

impl Lists {
    const INPUTS: usize = 0;
    const INPUT_LENS: usize = 1;
    const OUTPUTS: usize = 2;
    const ROOMS: usize = 3;
    const OUTPUT_LENS: usize = 4;
    /// With entries of four bytes.
    const STATUSES: usize = 5;

    fn new(count: usize) -> Self {
        Self { bytes: vec![0; 8 * count * (Self::STATUSES + 1)], count }
    }

    fn set(&mut self, list: usize, at: usize, value: u64) {
        self.bytes[8 * (list * self.count + at)..][..8].copy_from_slice(&value.to_le_bytes());
    }

    /// The offset of a list in the bytes.
    fn start(&self, list: usize) -> usize {
        8 * list * self.count
    }

    /// The lists that nvCOMP has written: lengths, then statuses.
    fn written(&self) -> Range<usize> {
        self.start(Self::OUTPUT_LENS)..self.bytes.len()
    }

    fn output_len(&self, at: usize) -> usize {
        let bytes = self.bytes[self.start(Self::OUTPUT_LENS) + 8 * at..].first_chunk();
        u64::from_le_bytes(*bytes.expect("the list is longer")) as usize
    }

    fn status(&self, at: usize) -> i32 {
        let bytes = self.bytes[self.start(Self::STATUSES) + 4 * at..].first_chunk();
        i32::from_le_bytes(*bytes.expect("the list is longer"))
    }
}

/// A batch with its room on the device.
struct Prepared {
    /// The address of the frames.
    input: u64,
    /// The address of the lists.
    at: u64,
    lists: Lists,
    /// Bytes that each result may have, and its address.
    rooms: Vec<usize>,
    outputs: Vec<u64>,
    described: Batch,
}

impl Worker for NvcompWorker {
    fn work(&mut self, batch: &mut [Submission]) -> Vec<Result<StageTimes, Fault>> {
        let job = match batch.first().map(|first| &first.work.request) {
            Some(Request::Compress { spec }) => Job::Compress(*spec),
            Some(Request::Decompress { codec, .. }) => Job::Decompress(*codec),
            _ => return batch.iter().map(|_| Err(Fault::Unsupported)).collect(),
        };
        self.batch(job, batch).unwrap_or_else(|fault| {
            // Nothing may be in flight when the frames' memory is used elsewhere.
            let fault = self.place.wait().err().unwrap_or(fault);
            batch.iter().map(|_| Err(fault.clone())).collect()
        })
    }
}

impl NvcompWorker {
    /// The results of all tasks, or the fault that concerns all of them.
    fn batch(&mut self, job: Job, batch: &mut [Submission]) -> Result<Vec<Result<StageTimes, Fault>>, Fault> {
        let begun = Instant::now();
        let mut prepared = self.prepare(job, batch)?;
        self.copy_in(prepared.input, prepared.at, &prepared.lists, batch)?;
        let copied = Instant::now();
        self.launch(job, &prepared.described)?;
        self.place.wait()?;
        let computed = Instant::now();
        let Prepared { at, lists, rooms, outputs, .. } = &mut prepared;
        let written = lists.written();
        let from = *at + written.start as u64;
        self.copy_back(&mut [(from, &mut lists.bytes[written])])?;
        let results: Vec<Result<usize, Fault>> = rooms
            .iter()
            .enumerate()
            .map(|(number, room)| {
                check(lists.status(number))?;
                let len = lists.output_len(number);
                if len <= *room { Ok(len) } else { Err(Fault::Lost("a result longer than its room".into())) }
            })
            .collect();
        let results = self.fetch(job, batch, outputs, results)?;
        // Each task's share of the batch's time.
        let each = |time: Duration| time / batch.len() as u32;
        let times = StageTimes {
            copy_in: each(copied - begun),
            kernel: each(computed - copied),
            copy_out: each(computed.elapsed()),
        };
        Ok(results.into_iter().map(|result| result.map(|()| times)).collect())
    }

    /// Makes room in the areas, and the lists.
    fn prepare(&mut self, job: Job, batch: &[Submission]) -> Result<Prepared, Fault> {
        let count = batch.len();
        let raw_len = |submission: &Submission| match submission.work.request {
            Request::Decompress { raw_len, .. } => raw_len,
            _ => submission.work.input_len(),
        };
        let longest = batch.iter().map(raw_len).max().unwrap_or(0);
        let total = batch.iter().map(raw_len).sum();
        let stream = self.place.stream();
        let (temp_bytes, most) = match job {
            Job::Compress(spec) => (
                self.library.compress_temp(spec, count, longest, total, stream)?,
                Some(self.library.max_output(spec, longest)?),
            ),
            Job::Decompress(codec) => {
                (self.library.decompress_temp(codec, count, longest, total, stream)?, None)
            }
        };
        // The room of each frame is nvCOMP's worst case, so that no second try is necessary.
        let rooms: Vec<usize> = batch.iter().map(|one| most.unwrap_or(raw_len(one))).collect();
        let padded = |len: usize| len.next_multiple_of(ALIGNMENT);
        let input_bytes = batch.iter().map(|one| padded(one.work.input_len())).sum();
        let output_bytes = rooms.iter().map(|room| padded(*room)).sum();
        let input = self.place.memory(Area::Input, input_bytes)?;
        let output = self.place.memory(Area::Output, output_bytes)?;
        let temp = self.place.memory(Area::Temp, temp_bytes)?;
        let mut lists = Lists::new(count);
        let at = self.place.memory(Area::Lists, lists.bytes.len())?;
        let (mut input_at, mut output_at) = (input, output);
        let mut outputs = Vec::with_capacity(count);
        for (number, (one, room)) in batch.iter().zip(&rooms).enumerate() {
            lists.set(Lists::INPUTS, number, input_at);
            lists.set(Lists::INPUT_LENS, number, one.work.input_len() as u64);
            lists.set(Lists::OUTPUTS, number, output_at);
            lists.set(Lists::ROOMS, number, *room as u64);
            outputs.push(output_at);
            input_at += padded(one.work.input_len()) as u64;
            output_at += padded(*room) as u64;
        }
        let list = |number: usize| at + lists.start(number) as u64;
        let described = Batch {
            count,
            longest,
            inputs: list(Lists::INPUTS),
            input_lens: list(Lists::INPUT_LENS),
            outputs: list(Lists::OUTPUTS),
            output_lens: list(Lists::OUTPUT_LENS),
            output_rooms: list(Lists::ROOMS),
            statuses: list(Lists::STATUSES),
            temp,
            temp_bytes,
        };
        Ok(Prepared { input, at, lists, rooms, outputs, described })
    }

    /// Copies the results to their tasks.
    fn fetch(
        &mut self,
        job: Job,
        batch: &mut [Submission],
        outputs: &[u64],
        results: Vec<Result<usize, Fault>>,
    ) -> Result<Vec<Result<(), Fault>>, Fault> {
        let mut pieces: Vec<(u64, &mut [u8])> = Vec::with_capacity(batch.len());
        let mut done = Vec::with_capacity(batch.len());
        for ((one, &from), result) in batch.iter_mut().zip(outputs).zip(results) {
            let Submission { work, output, .. } = one;
            output.clear();
            done.push(match (result, job, &work.request) {
                (Err(fault), ..) => Err(fault),
                (Ok(len), Job::Decompress(_), Request::Decompress { raw_len, .. }) if len != *raw_len => {
                    // The frame may be damaged, so the processor tries again.
                    Err(Fault::Failed(format!("{len} of {raw_len} bytes came out").into()))
                }
                (Ok(len), Job::Compress(_), _) if len > work.input_len() - work.input_len().div_ceil(32) => {
                    output.bytes.vector().extend_from_slice(work.data());
                    Ok(())
                }
                (Ok(len), ..) => {
                    if let Job::Compress(spec) = job {
                        output.codec = spec.codec;
                    }
                    pieces.push((from, room_in(output, len)));
                    Ok(())
                }
            });
        }
        self.copy_back(&mut pieces)?;
        Ok(done)
    }
}

/// `len` bytes of the task's buffer, or of its vector if the buffer is too small.
fn room_in(output: &mut crate::work::Output, len: usize) -> &mut [u8] {
    if output.bytes.buffer_room() >= len {
        let buffer = output.bytes.buffer().expect("it has room");
        buffer.set_len(len);
    } else {
        output.bytes.vector().resize(len, 0);
    }
    output.bytes.as_mut_slice()
}

mod calls {
    //! The calls that use addresses which the batch has just made.

    #![allow(unsafe_code)]

    use super::{Batch, Job, Lists, NvcompWorker};
    use crate::accelerator::{Fault, Submission};
    use crate::nvcomp::memory::ALIGNMENT;

    impl NvcompWorker {
        /// Copies the frames to `input`, at the offsets in the lists, and the lists to `at`.
        pub(super) fn copy_in(
            &mut self,
            input: u64,
            at: u64,
            lists: &Lists,
            batch: &[Submission],
        ) -> Result<(), Fault> {
            let mut pieces: Vec<(u64, &[u8])> = vec![(at, &lists.bytes[..])];
            let mut to = input;
            for one in batch {
                pieces.push((to, one.work.data()));
                to += one.work.input_len().next_multiple_of(ALIGNMENT) as u64;
            }
            // SAFETY: both areas were made for this batch, with room for all of it.
            unsafe { self.place.copy_in(&pieces) }
        }

        pub(super) fn launch(&mut self, job: Job, batch: &Batch) -> Result<(), Fault> {
            let stream = self.place.stream();
            // SAFETY: lists, frames and rooms lie in areas that were made for this batch and stay
            // until the next one. Each output has the room that nvCOMP asked for.
            unsafe {
                match job {
                    Job::Compress(spec) => self.library.compress(spec, batch, stream),
                    Job::Decompress(codec) => self.library.decompress(codec, batch, stream),
                }
            }
        }

        /// Copies back results, or lists.
        pub(super) fn copy_back(&mut self, pieces: &mut [(u64, &mut [u8])]) -> Result<(), Fault> {
            // SAFETY: each piece is the beginning of a room of this batch, and its length was
            // checked against the room.
            unsafe { self.place.copy_out(pieces) }
        }
    }
}
