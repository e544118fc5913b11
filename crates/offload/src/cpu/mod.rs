//! The processor: its operations as plain functions, which the store's threads call, and as a
//! [`Device`].

mod blake3_many;
mod candidates;
mod codec;
mod cut;
mod filter;
mod hash;
mod ingest;
mod lanes;
mod pmd;
mod scan;
mod scratch;
mod window;

pub use candidates::{candidates, candidates_with};
pub(crate) use codec::sample::Sample;
pub use codec::{Compressor, Decompressor, worst_case};
pub use cut::{cut, name_chunks};
pub use filter::{apply_filter, apply_filter_into, undo_filter};
pub(crate) use filter::{is_in_place, undo_in_place, x86_density};
pub use hash::{Hasher, hash, hash_many, hash_many_with};
pub use ingest::Ingester;
pub use pmd::{pmd_hash, pmd_hash_with};
pub use scan::{scan, scan_with};
pub use window::{window_hash, window_hash_with};

use outrigger_format::{ChunkerSpec, FingerprintKind};

use crate::op::Digest;
use crate::{Device, Operation, SimdLevel, Task, TaskError};

/// The processor as a device. It always exists, and other devices are compared with it.
///
/// ```
/// use outrigger_format::boundary::GearMasks;
/// use outrigger_offload::{CpuDevice, Device, Task, op::Scan};
/// let mut candidates = Vec::new();
/// let masks = GearMasks::for_average(256);
/// let scan = Scan { history: &[], data: &[1; 5000], masks, out: &mut candidates };
/// CpuDevice::new().run(&mut Task::Scan(scan))?;
/// # Ok::<_, outrigger_offload::TaskError>(())
/// ```
pub struct CpuDevice {
    level: SimdLevel,
    compressor: Compressor,
    decompressor: Decompressor,
    /// The ingester of the last ingestion, with its parameters.
    ingester: Option<(ChunkerSpec, FingerprintKind, Ingester)>,
}

impl CpuDevice {
    /// A device with the instructions of [`SimdLevel::current`].
    pub fn new() -> Self {
        Self::with_level(SimdLevel::current())
    }

    /// A device with the instructions of `level`, or of the best lower level that this processor
    /// has.
    pub fn with_level(level: SimdLevel) -> Self {
        Self { level, compressor: Compressor::new(), decompressor: Decompressor::new(), ingester: None }
    }
}

/// Parts of operations, for [`crate::work::split`].
impl CpuDevice {
    /// Like [`candidates`].
    pub(crate) fn candidates(&self, chunker: ChunkerSpec, history: &[u8], data: &[u8], out: &mut Vec<u32>) {
        candidates_with(self.level, chunker, history, data, out);
    }

    /// Like [`pmd::levels`].
    pub(crate) fn pmd_levels(&self, digest: Digest, data: &[u8], levels: u32, out: &mut Vec<u8>) {
        pmd::levels(self.level, digest, data, levels, out);
    }

    /// Like [`pmd::finish`].
    pub(crate) fn pmd_finish<'a>(
        &self,
        digest: Digest,
        total: usize,
        parts: impl Iterator<Item = &'a [u8]>,
        out: &mut Vec<u8>,
    ) {
        pmd::finish(self.level, digest, total, parts, out);
    }
}

impl Default for CpuDevice {
    fn default() -> Self {
        Self::new()
    }
}

impl Device for CpuDevice {
    fn name(&self) -> &str {
        "cpu"
    }

    fn supports(&self, _: Operation) -> bool {
        true
    }

    fn run(&mut self, task: &mut Task<'_>) -> Result<(), TaskError> {
        let unsupported = |operation| TaskError::Unsupported { device: "cpu".to_string(), operation };
        match task {
            Task::Scan(task) => scan_with(self.level, task.history, task.data, task.masks, task.out),
            Task::HashMany(task) => {
                let ranges = task.ranges.iter().map(|range| range.start as usize..range.end as usize);
                hash_many_with(self.level, task.kind, task.data, ranges, task.out);
            }
            Task::Compress(task) => task.used = self.compressor.compress(task.spec, task.raw, task.out),
            Task::Decompress(task) => {
                self.decompressor.decompress(task.codec, task.stored, task.raw_len, task.out)?;
            }
            Task::WindowHash(task) if !task.spec.is_valid() => {
                return Err(unsupported(Operation::WindowHash));
            }
            Task::WindowHash(task) => window_hash_with(self.level, task.spec, task.data, task.out),
            Task::PmdHash(task) if !task.digest.has_pmd() => return Err(unsupported(Operation::PmdHash)),
            Task::PmdHash(task) => pmd_hash_with(self.level, task.digest, task.data, task.out),
            Task::Lookup(task) => task.table.lookup_many(task.keys, task.out),
            Task::Ingest(task) if !task.chunker.is_valid() => return Err(unsupported(Operation::Ingest)),
            Task::Ingest(task) => {
                let wanted = (task.chunker, task.kind);
                self.ingester.take_if(|(chunker, kind, _)| (*chunker, *kind) != wanted);
                let (_, _, ingester) = self.ingester.get_or_insert_with(|| {
                    let ingester = Ingester::with_level(self.level, task.chunker, task.kind);
                    (task.chunker, task.kind, ingester)
                });
                ingester.ingest(task.data, task.streams, task.table, task.out, task.counts);
            }
        }
        Ok(())
    }
}
