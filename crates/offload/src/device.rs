//! What executes tasks.
//!
//! - [`Device`]: synchronous, on the calling thread. The processor is one, and a thread that works on the processor
//!   anyway makes its own.
//! - [`Accelerator`](crate::accelerator::Accelerator): works by itself, on several tasks at once, in memory of its own. The [`crate::runtime`] gives each
//!   a manager thread and is the only caller of this trait.

use crate::{CodecError, Operation, Task};

/// Why a task was not executed. Its outputs are then unspecified; its inputs are untouched, so it can go elsewhere.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TaskError {
    /// The device does not offer the operation, or not with these parameters.
    #[error("{device} does not support {operation}")]
    Unsupported {
        /// The device.
        device: String,
        /// The operation.
        operation: Operation,
    },
    /// The input is damaged: no device can help.
    #[error(transparent)]
    Codec(#[from] CodecError),
    /// An operation that a user registered said so of its input.
    #[error("{operation}: {message}")]
    User {
        /// The operation's name.
        operation: String,
        /// What its function said.
        message: String,
    },
}

/// Executes tasks, one at a time, on the calling thread. A thread that wants one makes one: contexts and scratch memory
/// belong to it. (Devices that work by themselves are [`Accelerator`](crate::accelerator::Accelerator)s.)
pub trait Device: Send {
    /// Its name: `cpu`, `cuda:0`, `qat:0`.
    fn name(&self) -> &str;

    /// Whether it offers `operation`.
    fn supports(&self, operation: Operation) -> bool;

    /// Executes a task and returns when its outputs are there. Calling with what [`crate::op`] rules out is a bug of the
    /// caller's and panics; bad *data* never does.
    ///
    /// # Errors
    /// [`TaskError`]. Whatever a device rejects, the processor still does.
    fn run(&mut self, task: &mut Task<'_>) -> Result<(), TaskError>;
}

/// Allocates host memory that a device copies from and to at full speed.
pub trait HostMemory: Send + Sync {
    /// `bytes` of it, zeroed or not but initialised, aligned to 4096. `None` if there is no more: ordinary memory is then
    /// used, which is slower but not wrong. Slow (page-locking is): the pool asks rarely.
    fn allocate(&self, bytes: usize) -> Option<Box<dyn HostRegion>>;
}

/// Memory from [`HostMemory::allocate`], given back when dropped. It outlives whatever happens to its device.
pub trait HostRegion: Send + Sync {
    /// To be read.
    fn bytes(&self) -> &[u8];
    /// To be written.
    fn bytes_mut(&mut self) -> &mut [u8];
}
