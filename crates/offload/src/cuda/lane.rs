//! What a plan needs of a device: memory that stays, lists to be sent, kernels to be launched, all in order.
//!
//! A CUDA stream with its buffers is a lane (`driver/`), and so is the grid on the host (`host.rs`). A lane does one task
//! at a time; what makes tasks overlap is several lanes. Memory belongs to the lane and is reused from task to task: an
//! area is only replaced when a task needs a larger one.

use outrigger_format::boundary::{GEAR, RABIN_POLYNOMIAL};

use super::kernel::Kernel;
use crate::accelerator::Fault;
use crate::work::UserOperation;

/// An address in a device's memory. 0 is no address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Address(pub(crate) u64);

impl Address {
    pub(crate) const NONE: Address = Address(0);

    /// So many bytes further.
    pub(crate) fn plus(self, bytes: usize) -> Self {
        Self(self.0 + bytes as u64)
    }
}

/// Pieces of device memory that a lane keeps, by what they hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Area {
    /// 32 bytes of history and the data.
    Input,
    /// What is copied back: every plan's result begins at its begin.
    Result,
    /// Lists that the host makes: ranges, streams, keys.
    List,
    LooseBits,
    StrictBits,
    Counts,
    Candidates,
    Ends,
    Ranges,
    First,
    Fingerprints,
    /// Digests of levels that are hashed again; there are two.
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

/// See the module's header. Everything happens in the order of the calls, on the device's time: nothing waits for it but
/// what says so.
pub(crate) trait Lane {
    /// The memory of `area`, at least `bytes` of it, aligned to 16. What it held may be lost if it has to grow.
    fn memory(&mut self, area: Area, bytes: usize) -> Result<Address, Fault>;

    /// Fills `bytes` of `area` with what `fill` writes: all of them, or they are whatever was there before.
    fn send(&mut self, area: Area, bytes: usize, fill: &mut dyn FnMut(&mut [u8])) -> Result<Address, Fault>;

    /// Launches a kernel over `blocks` blocks; none for 0.
    fn launch(
        &mut self,
        kernel: Kernel,
        blocks: usize,
        shared_bytes: usize,
        arguments: &[Argument],
    ) -> Result<(), Fault>;

    /// Launches the kernel of an operation that a user registered.
    fn launch_user(
        &mut self,
        _operation: &UserOperation,
        _blocks: usize,
        _threads: u32,
        _arguments: &[Argument],
    ) -> Result<(), Fault> {
        Err(Fault::Unsupported)
    }

    /// Where [`constants`] lie.
    fn constants(&self) -> Address;

    /// Whether kernels stage through shared memory. Unset only to measure what that is worth.
    fn is_staged(&self) -> bool {
        true
    }
}

/// What every lane's device holds once: the table of `gear32`, then that of Rabin fingerprints.
pub(crate) fn constants() -> Vec<u8> {
    let rabin = (0..256u64).map(|high| {
        // What the eight bits above the degree are worth.
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

/// Where the Rabin table begins in [`constants`].
pub(crate) const RABIN_AT: usize = size_of_val(&GEAR);

const RABIN_DEGREE: u32 = RABIN_POLYNOMIAL.ilog2();

/// Writes words one after the other.
pub(crate) struct Words<'a>(pub(crate) &'a mut [u8]);

impl Words<'_> {
    pub(crate) fn push(&mut self, word: u32) {
        let rest = std::mem::take(&mut self.0);
        let (place, rest) = rest.split_at_mut(4);
        place.copy_from_slice(&word.to_le_bytes());
        self.0 = rest;
    }
}
