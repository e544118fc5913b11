//! A lane: what a plan needs from a device, which is lasting memory, transfer of lists, and kernel
//! launches, all in order.
//!
//! A CUDA stream with its buffers is a lane (`driver/`), and so is the grid on the host
//! (`host.rs`). A lane does one task at a time, and several lanes make tasks overlap. A lane owns
//! its memory and reuses it from task to task. It replaces an area only if a task needs a larger
//! one.

use outrigger_format::boundary::{GEAR, RABIN_POLYNOMIAL};

use super::kernel::Kernel;
use crate::accelerator::Fault;
use crate::work::UserOperation;

/// An address in a device's memory. 0 is no address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Address(pub(crate) u64);

impl Address {
    pub(crate) const NONE: Address = Address(0);

    /// The address `bytes` further.
    pub(crate) fn plus(self, bytes: usize) -> Self {
        Self(self.0 + bytes as u64)
    }
}

/// Areas of device memory that a lane keeps, by content.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Area {
    /// 32 bytes of history and the data.
    Input,
    /// The result that is copied back. Every plan's result begins at its start.
    Result,
    /// Lists from the host: ranges, streams, keys.
    List,
    InlineBits,
    StrictBits,
    Counts,
    Candidates,
    Ends,
    Ranges,
    First,
    Fingerprints,
    /// Digests of levels that are hashed again, in two areas.
    LevelA,
    LevelB,
}

impl Area {
    pub(crate) const COUNT: usize = Self::LevelB as usize + 1;
}

/// The bytes before the data in [`Area::Input`].
pub(crate) const HISTORY: usize = 32;

/// An argument of a kernel.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Argument {
    Word(u32),
    Long(u64),
    At(Address),
}

/// A lane, as the module describes. The device executes all calls in order. Calls do not wait for
/// it, except where their documentation says so.
pub(crate) trait Lane {
    /// The memory of `area`, at least `bytes`, aligned to 16. If it has to grow, its content may be
    /// lost.
    fn memory(&mut self, area: Area, bytes: usize) -> Result<Address, Fault>;

    /// Sends what `fill` writes to the first `bytes` of `area`. Bytes that `fill` does not write
    /// may have any value.
    fn send(&mut self, area: Area, bytes: usize, fill: &mut dyn FnMut(&mut [u8])) -> Result<Address, Fault>;

    /// Launches a kernel over `blocks` blocks. Does nothing for 0.
    fn launch(
        &mut self,
        kernel: Kernel,
        blocks: usize,
        shared_bytes: usize,
        arguments: &[Argument],
    ) -> Result<(), Fault>;

    /// Launches the kernel of a user's operation.
    fn launch_user(
        &mut self,
        _operation: &UserOperation,
        _blocks: usize,
        _threads: u32,
        _arguments: &[Argument],
    ) -> Result<(), Fault> {
        Err(Fault::Unsupported)
    }

    /// The address of the [`constants`].
    fn constants(&self) -> Address;

    /// True if kernels stage through shared memory. False only to measure the effect.
    fn is_staged(&self) -> bool {
        true
    }
}

/// The constants in each device's memory: the table of `gear32`, then that of Rabin fingerprints.
pub(crate) fn constants() -> Vec<u8> {
    let rabin = (0..256u64).map(|high| {
        // The remainder of the eight bits above the degree.
        let (mut value, degree) = (u128::from(high) << RABIN_DEGREE, RABIN_DEGREE);
        for bit in (degree..degree + 8).rev() {
            if value >> bit & 1 == 1 {
                value ^= u128::from(RABIN_POLYNOMIAL) << (bit - degree);
            }
        }
        value as u64
    });
    let mut bytes: Vec<u8> = GEAR.iter().flat_map(|entry| entry.to_le_bytes()).collect();
    bytes.extend(rabin.flat_map(u64::to_le_bytes));
    bytes
}

/// The offset of the Rabin table in [`constants`].
pub(crate) const RABIN_AT: usize = size_of_val(&GEAR);

const RABIN_DEGREE: u32 = RABIN_POLYNOMIAL.ilog2();

/// Writes words in a row.
pub(crate) struct Words<'a>(pub(crate) &'a mut [u8]);

impl Words<'_> {
    pub(crate) fn push(&mut self, word: u32) {
        let rest = std::mem::take(&mut self.0);
        let (place, rest) = rest.split_at_mut(4);
        place.copy_from_slice(&word.to_le_bytes());
        self.0 = rest;
    }
}
