//! The plan of each operation on a device: its kernels, their memory, and how to read the result.
//!
//! ```text
//! Job::begin   launches everything; nothing in between is looked at by the host
//!              … Step::bytes of Area::Result are copied back …
//! Job::finish  reads them. Where the result is larger than was expected, it asks for one more step
//! ```
//!
//! Plans do not depend on CUDA. They run over any [`Lane`], and are tested on the grid on the host.

mod hash;
mod ingest;
mod lookup;
mod pmd;
mod scan;
mod user;
mod window;

use std::ops::Range;

use outrigger_format::boundary::GearMasks;
use outrigger_format::{ChunkerSpec, Fingerprint, FingerprintKind};

use super::lane::{Address, Lane};
use crate::accelerator::Fault;
use crate::op::{Digest, Ingested, Stream, WindowSpec};
use crate::table::Table;
use crate::work::{KernelCode, Output, Request, UserOperation, Work};
use crate::{Operation, Task};

/// An operation with its borrowed parameters.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Job<'a> {
    Scan { history: usize, masks: GearMasks },
    HashMany { kind: FingerprintKind, ranges: &'a [Range<u32>] },
    WindowHash { spec: WindowSpec },
    PmdHash { digest: Digest },
    Lookup { table: &'a Table, keys: &'a [Fingerprint] },
    Ingest { streams: &'a [Stream], chunker: ChunkerSpec, kind: FingerprintKind, table: Option<&'a Table> },
    User { operation: &'a UserOperation, parameters: &'a [u8] },
}

/// Data in device memory, with [`super::lane::HISTORY`] bytes before it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Data {
    pub(crate) at: Address,
    pub(crate) len: usize,
}

impl Data {
    /// Its words. The last one may be partial.
    fn words(self) -> u64 {
        self.len.div_ceil(4) as u64
    }
}

/// A launched step, whose result is to be read.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct Step {
    bytes: usize,
    /// The room for candidates.
    candidates: usize,
    /// The number of candidates, if an earlier step found it.
    known: Option<usize>,
}

impl Step {
    /// Bytes of [`super::lane::Area::Result`] to copy back.
    pub(crate) fn bytes(self) -> usize {
        self.bytes
    }
}

// A table is made resident before `Job::begin`.
pub(crate) use lookup::Resident as ResidentTable;
pub(crate) use lookup::{begin as lookup, count, finish as looked_up, insert, refresh, remove};

/// The destination of the results.
pub(crate) enum Sink<'a> {
    Candidates(&'a mut Vec<u32>),
    Fingerprints(&'a mut Vec<Fingerprint>),
    Bytes(&'a mut Vec<u8>),
    Places(&'a mut Vec<Option<u64>>),
    Chunks(&'a mut Vec<Ingested>, &'a mut Vec<u32>),
}

impl<'a> Job<'a> {
    /// The job of a task, its history and data, and the destination of its results. `None` for
    /// operations without kernels.
    pub(crate) fn of_task<'t>(task: &'t mut Task<'a>) -> Option<(Job<'a>, &'a [u8], &'a [u8], Sink<'t>)> {
        Some(match task {
            Task::Scan(scan) => {
                let job =
                    Job::Scan { history: scan.history.len().min(super::lane::HISTORY), masks: scan.masks };
                (job, scan.history, scan.data, Sink::Candidates(scan.out))
            }
            Task::HashMany(hash) => {
                let job = Job::HashMany { kind: hash.kind, ranges: hash.ranges };
                (job, &[], hash.data, Sink::Fingerprints(hash.out))
            }
            Task::WindowHash(window) => {
                (Job::WindowHash { spec: window.spec }, &[], window.data, Sink::Bytes(window.out))
            }
            Task::PmdHash(pmd) => (Job::PmdHash { digest: pmd.digest }, &[], pmd.data, Sink::Bytes(pmd.out)),
            Task::Lookup(lookup) => {
                let job = Job::Lookup { table: lookup.table, keys: lookup.keys };
                (job, &[], &[], Sink::Places(lookup.out))
            }
            Task::Ingest(ingest) => {
                let (streams, chunker) = (ingest.streams, ingest.chunker);
                let job = Job::Ingest { streams, chunker, kind: ingest.kind, table: ingest.table };
                (job, &[], ingest.data, Sink::Chunks(ingest.out, ingest.counts))
            }
            Task::Compress(_) | Task::Decompress(_) => return None,
        })
    }

    /// The job of owned work.
    pub(crate) fn of_work(work: &'a Work) -> Option<Job<'a>> {
        Some(match &work.request {
            Request::Scan { history, masks } => {
                Job::Scan { history: (*history).min(super::lane::HISTORY), masks: *masks }
            }
            Request::HashMany { kind, ranges } => Job::HashMany { kind: *kind, ranges },
            Request::WindowHash { spec } => Job::WindowHash { spec: *spec },
            Request::PmdHash { digest } => Job::PmdHash { digest: *digest },
            Request::Lookup { table, keys } => Job::Lookup { table, keys },
            Request::Ingest { streams, chunker, kind, table } => {
                Job::Ingest { streams, chunker: *chunker, kind: *kind, table: table.as_deref() }
            }
            Request::User { operation, parameters } => Job::User { operation, parameters },
            Request::Compress { .. } | Request::Decompress { .. } => return None,
        })
    }

    /// The destination of its results in an output.
    pub(crate) fn sink(self, output: &mut Output) -> Sink<'_> {
        match self {
            Self::Scan { .. } => Sink::Candidates(&mut output.candidates),
            Self::HashMany { .. } => Sink::Fingerprints(&mut output.fingerprints),
            Self::WindowHash { .. } | Self::PmdHash { .. } | Self::User { .. } => {
                Sink::Bytes(output.bytes.vector())
            }
            Self::Lookup { .. } => Sink::Places(&mut output.places),
            Self::Ingest { .. } => Sink::Chunks(&mut output.chunks, &mut output.counts),
        }
    }

    /// True if there are kernels for these parameters.
    pub(crate) fn is_supported(self) -> bool {
        match self {
            Self::Scan { .. } | Self::HashMany { .. } | Self::Lookup { .. } => true,
            Self::WindowHash { spec } => spec.is_valid(),
            Self::PmdHash { digest } => digest.has_pmd(),
            Self::Ingest { chunker, .. } => chunker.is_valid(),
            Self::User { operation, .. } => operation.kernel().is_some_and(|kernel| match kernel.code {
                KernelCode::Ptx(_) => true,
                KernelCode::Cuda(_) => super::driver::has_compiler(),
            }),
        }
    }

    /// The table that must be resident.
    pub(crate) fn table(self) -> Option<&'a Table> {
        match self {
            Self::Lookup { table, .. } => Some(table),
            Self::Ingest { table, .. } => table,
            _ => None,
        }
    }

    /// Launches the job's kernels.
    pub(crate) fn begin(
        self,
        lane: &mut dyn Lane,
        data: Data,
        table: Option<ResidentTable>,
    ) -> Result<Step, Fault> {
        match self {
            Self::Scan { history, masks } => scan::begin(lane, data, history, masks),
            Self::HashMany { kind, ranges } => hash::begin(lane, data, kind, ranges),
            Self::WindowHash { spec } => window::begin(lane, data, spec),
            Self::PmdHash { digest } => pmd::begin(lane, data, digest),
            Self::Lookup { keys, .. } => lookup::begin(lane, table, keys),
            Self::Ingest { streams, chunker, kind, .. } => {
                ingest::begin(lane, data, streams, chunker, kind, table, None)
            }
            Self::User { operation, parameters } => user::begin(lane, data, operation, parameters),
        }
    }

    /// Reads `bytes`, the result of `step`. `Some`: one more step is necessary, and nothing was
    /// appended.
    pub(crate) fn finish(
        self,
        lane: &mut dyn Lane,
        data: Data,
        table: Option<ResidentTable>,
        step: Step,
        bytes: &[u8],
        sink: Sink<'_>,
    ) -> Result<Option<Step>, Fault> {
        match (self, sink) {
            (Self::Scan { .. }, Sink::Candidates(out)) => scan::finish(lane, data, step, bytes, out),
            (Self::HashMany { .. }, Sink::Fingerprints(out)) => {
                let (digests, _) = bytes.as_chunks();
                out.extend(digests.iter().map(|digest| Fingerprint(*digest)));
                Ok(None)
            }
            (Self::WindowHash { .. } | Self::PmdHash { .. } | Self::User { .. }, Sink::Bytes(out)) => {
                out.extend_from_slice(bytes);
                Ok(None)
            }
            (Self::Lookup { keys, .. }, Sink::Places(out)) => {
                lookup::finish(keys.len(), bytes, out);
                Ok(None)
            }
            (Self::Ingest { streams, chunker, kind, .. }, Sink::Chunks(chunks, counts)) => {
                match ingest::finish(streams, step, bytes, chunks, counts) {
                    ingest::Read::All => Ok(None),
                    ingest::Read::More(step) => Ok(Some(step)),
                    ingest::Read::Again(candidates) => {
                        ingest::begin(lane, data, streams, chunker, kind, table, Some(candidates)).map(Some)
                    }
                }
            }
            _ => unreachable!("sinks are made for their jobs"),
        }
    }
}

impl Sink<'_> {
    /// The same destination for another attempt.
    pub(crate) fn again(&mut self) -> Sink<'_> {
        match self {
            Self::Candidates(out) => Sink::Candidates(out),
            Self::Fingerprints(out) => Sink::Fingerprints(out),
            Self::Bytes(out) => Sink::Bytes(out),
            Self::Places(out) => Sink::Places(out),
            Self::Chunks(chunks, counts) => Sink::Chunks(chunks, counts),
        }
    }
}

/// The operations with kernels.
pub(crate) fn supports(operation: Operation) -> bool {
    match operation {
        Operation::Scan
        | Operation::HashMany
        | Operation::WindowHash
        | Operation::PmdHash
        | Operation::Lookup
        | Operation::Ingest => true,
        Operation::Compress | Operation::Decompress => false,
    }
}

/// The word at `at` of a device's result.
fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(*bytes[at..].first_chunk().expect("a device's result has its header"))
}
