//! One thread of the device: its sessions, and one task after the other.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use outrigger_clock::Instant;
use outrigger_format::{Codec, CodecSpec};

use super::library::{Library, Session, Setup};
use super::{LEVEL_MAX, lz4, room_for};
use crate::accelerator::{Fault, StageTimes, Submission};
use crate::work::{Output, Request, Work};
use crate::worker_pool::Worker;

/// The sessions that a thread keeps. Tasks of one kind come in rows, and each change costs a
/// message to the instance.
const SESSIONS_MAX: usize = 4;

pub(super) struct QatWorker {
    library: Arc<Library>,
    /// The most recently used is the last.
    sessions: Vec<(Setup, Session)>,
    /// For tasks whose buffer is too small for the worst case.
    scratch: Vec<u8>,
}

impl QatWorker {
    /// A worker with one session, so that a lack of instances or memory shows now. Also finds out,
    /// unless another worker has, whether the card supports LZ4. Cards before the fourth generation
    /// do not, and QATzip then reports that no instance is free.
    pub(super) fn new(library: &Arc<Library>, does_lz4: &AtomicBool) -> Result<Self, Fault> {
        let mut worker = Self { library: Arc::clone(library), sessions: Vec::new(), scratch: Vec::new() };
        worker.session(Setup::Gzip(1), |known| known == Setup::Gzip(1))?;
        if !does_lz4.load(Ordering::Relaxed) && worker.compresses_lz4() {
            does_lz4.store(true, Ordering::Relaxed);
        }
        Ok(worker)
    }

    fn compresses_lz4(&mut self) -> bool {
        let raw = b"does it do LZ4? ".repeat(256);
        let mut output = Output::default();
        let spec = CodecSpec { codec: Codec::Lz4, level: 0 };
        self.compress(spec, &raw, &mut output).is_ok() && output.codec == Codec::Lz4
    }

    /// A session that `will_do`, or a new one of `setup`.
    fn session(&mut self, setup: Setup, will_do: impl Fn(Setup) -> bool) -> Result<&mut Session, Fault> {
        let found = match self.sessions.iter().position(|(known, _)| will_do(*known)) {
            Some(at) => self.sessions.remove(at),
            None => {
                if self.sessions.len() >= SESSIONS_MAX {
                    self.sessions.remove(0);
                }
                (setup, Session::new(&self.library, setup)?)
            }
        };
        self.sessions.push(found);
        Ok(&mut self.sessions.last_mut().expect("it was pushed just now").1)
    }

    fn one(&mut self, work: &Work, output: &mut Output) -> Result<StageTimes, Fault> {
        let begun = Instant::now();
        output.clear();
        match work.request {
            Request::Compress { spec } => self.compress(spec, work.data(), output)?,
            Request::Decompress { codec, raw_len } => {
                self.decompress(codec, work.data(), raw_len, output)?;
            }
            _ => return Err(Fault::Unsupported),
        }
        // If the card cannot reach the buffers, QATzip copies, and that time is included.
        Ok(StageTimes { kernel: begun.elapsed(), ..StageTimes::default() })
    }

    fn compress(&mut self, spec: CodecSpec, raw: &[u8], output: &mut Output) -> Result<(), Fault> {
        let setup = setup_of(spec)?;
        let mut scratch = std::mem::take(&mut self.scratch);
        let session = self.session(setup, |known| known == setup)?;
        let room = session.room(raw.len()).max(room_for(raw.len()));
        let in_place = output.bytes.buffer_room() >= room;
        let target = if in_place {
            of_buffer(output, room)
        } else {
            scratch.resize(room, 0);
            &mut scratch[..]
        };
        let done = session.compress(raw, target)?;
        let found = match done {
            Some(done) if done.taken != raw.len() => {
                return Err(Fault::Failed("only a part was compressed".into()));
            }
            Some(done) if spec.codec == Codec::Lz4 => lz4::block_of(&target[..done.made]),
            Some(done) => Some(0..done.made),
            None => None,
        };
        let limit = raw.len() - raw.len().div_ceil(32);
        match found.filter(|found| found.len() <= limit) {
            None => {
                output.bytes.vector().extend_from_slice(raw);
                output.codec = Codec::None;
            }
            Some(found) => {
                if in_place {
                    // Removes the bytes before the block and after it.
                    let len = found.len();
                    of_buffer(output, found.end).copy_within(found, 0);
                    of_buffer(output, len);
                } else {
                    output.bytes.vector().extend_from_slice(&scratch[found]);
                }
                output.codec = spec.codec;
            }
        }
        self.scratch = scratch;
        Ok(())
    }

    fn decompress(
        &mut self,
        codec: Codec,
        stored: &[u8],
        raw_len: usize,
        output: &mut Output,
    ) -> Result<(), Fault> {
        let session = match codec {
            Codec::Gzip => self.session(Setup::Gzip(1), |known| matches!(known, Setup::Gzip(_)))?,
            Codec::Deflate => self.session(Setup::Deflate(1), |known| matches!(known, Setup::Deflate(_)))?,
            _ => return Err(Fault::Unsupported),
        };
        let in_place = output.bytes.buffer_room() >= raw_len;
        let target = if in_place {
            of_buffer(output, raw_len)
        } else {
            output.bytes.vector().resize(raw_len, 0);
            output.bytes.as_mut_slice()
        };
        let done = session.decompress(stored, target)?;
        if (done.taken, done.made) == (stored.len(), raw_len) {
            Ok(())
        } else {
            // The frame may be damaged, so the processor tries again.
            Err(Fault::Failed(format!("{} of {raw_len} bytes came out", done.made).into()))
        }
    }
}

impl Worker for QatWorker {
    fn work(&mut self, batch: &mut [Submission]) -> Vec<Result<StageTimes, Fault>> {
        let one = |submission: &mut Submission| {
            let result = self.one(&submission.work, &mut submission.output);
            if result.as_ref().is_err_and(Fault::is_grave) {
                // After such a fault no session can be trusted.
                self.sessions.clear();
            }
            result
        };
        batch.iter_mut().map(one).collect()
    }
}

/// `len` bytes of the task's buffer, which becomes its output.
fn of_buffer(output: &mut Output, len: usize) -> &mut [u8] {
    let buffer = output.bytes.buffer().expect("it has room, so it is there");
    buffer.set_len(len);
    &mut buffer[..]
}

/// The set-up of a session for this codec and level.
fn setup_of(spec: CodecSpec) -> Result<Setup, Fault> {
    let level = || u8::try_from(spec.level).unwrap_or(1).clamp(1, LEVEL_MAX);
    match spec.codec {
        Codec::Gzip => Ok(Setup::Gzip(level())),
        Codec::Deflate => Ok(Setup::Deflate(level())),
        Codec::Lz4 => Ok(Setup::Lz4),
        _ => Err(Fault::Unsupported),
    }
}
