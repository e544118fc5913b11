//! The processor: its operations as plain functions, which the store's threads call directly, and as a [`Device`].

mod blake3_many;
mod codec;
mod filter;
mod hash;
mod scan;

pub(crate) use codec::sample::Sample;
pub use codec::{CodecError, Compressor, Decompressor, worst_case};
pub use filter::{apply_filter, undo_filter};
pub(crate) use filter::{is_in_place, undo_in_place, x86_density};
pub use hash::{Hasher, hash, hash_many};
pub use scan::{scan, scan_with};

use crate::{Device, Operation, SimdLevel, Task, TaskError};

/// The processor as a device: always there, and the oracle that others are compared with.
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
}

impl CpuDevice {
    /// With the instructions of [`SimdLevel::current`].
    pub fn new() -> Self {
        Self::with_level(SimdLevel::current())
    }

    /// Scanning with the instructions of `level`, or the best level below it that this processor has.
    pub fn with_level(level: SimdLevel) -> Self {
        Self { level, compressor: Compressor::new(), decompressor: Decompressor::new() }
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
        match task {
            Task::Scan(task) => scan_with(self.level, task.history, task.data, task.masks, task.out),
            Task::HashMany(task) => {
                let ranges = task.ranges.iter().map(|range| range.start as usize..range.end as usize);
                hash_many(task.kind, task.data, ranges, task.out);
            }
            Task::Compress(task) => task.used = self.compressor.compress(task.spec, task.raw, task.out),
            Task::Decompress(task) => {
                self.decompressor.decompress(task.codec, task.stored, task.raw_len, task.out)?;
            }
        }
        Ok(())
    }
}
