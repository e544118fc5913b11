//! Executes work on a synchronous device, and compares results.

use outrigger_format::Codec;

use super::{Output, Request, Work};
use crate::op::{Compress, Decompress, HashMany, Ingest, Lookup, PmdHash, Scan, WindowHash};
use crate::{CpuDevice, Device, Task, TaskError};

impl Work {
    /// Executes the work on `device`, on this thread. Clears `output` first.
    ///
    /// # Errors
    /// [`TaskError`]. `output` is then unspecified.
    ///
    /// # Panics
    /// If [`Work::assert_valid`] rejects the work.
    pub fn run_on(&self, device: &mut dyn Device, output: &mut Output) -> Result<(), TaskError> {
        output.clear();
        let data = self.data();
        match &self.request {
            Request::Scan { masks, .. } => {
                let out = &mut output.candidates;
                device.run(&mut Task::Scan(Scan { history: self.history(), data, masks: *masks, out }))
            }
            Request::HashMany { kind, ranges } => {
                let out = &mut output.fingerprints;
                device.run(&mut Task::HashMany(HashMany { kind: *kind, data, ranges, out }))
            }
            Request::Compress { spec } => {
                let (spec, out) = (*spec, output.bytes.vector());
                let mut task = Task::Compress(Compress { spec, raw: data, out, used: Codec::None });
                device.run(&mut task)?;
                if let Task::Compress(Compress { used, .. }) = task {
                    output.codec = used;
                }
                Ok(())
            }
            Request::Decompress { codec, raw_len } => {
                let out = output.bytes.vector();
                device.run(&mut Task::Decompress(Decompress {
                    codec: *codec,
                    stored: data,
                    raw_len: *raw_len,
                    out,
                }))
            }
            Request::WindowHash { spec } => {
                let out = output.bytes.vector();
                device.run(&mut Task::WindowHash(WindowHash { spec: *spec, data, out }))
            }
            Request::PmdHash { digest } => {
                let out = output.bytes.vector();
                device.run(&mut Task::PmdHash(PmdHash { digest: *digest, data, out }))
            }
            Request::Lookup { table, keys } => {
                device.run(&mut Task::Lookup(Lookup { table, keys, out: &mut output.places }))
            }
            Request::Ingest { streams, chunker, kind, table } => device.run(&mut Task::Ingest(Ingest {
                data,
                streams,
                chunker: *chunker,
                kind: *kind,
                table: table.as_deref(),
                out: &mut output.chunks,
                counts: &mut output.counts,
            })),
            Request::User { operation, parameters } => operation
                .run(parameters, data, output.bytes.vector())
                .map_err(|message| TaskError::User { operation: operation.name().to_string(), message }),
        }
    }
}

/// True if a compressed frame saves so little that it would not be stored.
fn saves_little(len: usize, raw_len: usize) -> bool {
    len as u64 * 10 > raw_len as u64 * 9
}

/// True if it saves so much that no device may call the frame incompressible, however simple its
/// matcher is.
fn saves_much(len: usize, raw_len: usize) -> bool {
    len as u64 * 4 <= raw_len as u64 * 3
}

/// True if `got` is a right result of `work`, for which the processor computed `expected`. Two
/// devices may compress differently. So a compressed frame is right if it decompresses to its
/// source, is not longer than that, and is not given up although the processor makes it much
/// smaller. A device that always answered "does not compress" would never compress, and everything
/// would be stored uncompressed for good.
pub fn same_result(work: &Work, expected: &Output, got: &Output, cpu: &mut CpuDevice) -> bool {
    match &work.request {
        Request::Scan { .. } => expected.candidates == got.candidates,
        Request::HashMany { .. } => expected.fingerprints == got.fingerprints,
        Request::Lookup { .. } => expected.places == got.places,
        Request::Ingest { .. } => expected.chunks == got.chunks && expected.counts == got.counts,
        Request::Decompress { .. }
        | Request::WindowHash { .. }
        | Request::PmdHash { .. }
        | Request::User { .. } => *expected.bytes == *got.bytes,
        Request::Compress { spec } => {
            if got.codec != spec.codec && got.codec != Codec::None || got.bytes.len() > work.input_len() {
                return false;
            }
            let len = work.input_len();
            if saves_little(got.bytes.len(), len) && saves_much(expected.bytes.len(), len) {
                return false;
            }
            let mut back = Vec::new();
            let (raw, stored) = (work.data(), &*got.bytes);
            let task = Decompress { codec: got.codec, stored, raw_len: raw.len(), out: &mut back };
            cpu.run(&mut Task::Decompress(task)).is_ok() && back == raw
        }
    }
}
