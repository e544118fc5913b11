//! The traits of devices.
//!
//! - [`Device`] is synchronous and works on the calling thread. The processor is one. Each thread
//!   that works on the processor makes its own.
//! - [`Accelerator`](crate::accelerator::Accelerator) works asynchronously on several tasks, in its
//!   own memory. The [`crate::runtime`] gives each a manager thread, and only that thread calls it.

use crate::{CodecError, Operation, Task};

/// Why a task was not executed. Its outputs are then unspecified. Its inputs are unchanged, so
/// another device can take it.
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
    /// The input is damaged, so no device can decode it.
    #[error(transparent)]
    Codec(#[from] CodecError),
    /// A user's operation rejected its input.
    #[error("{operation}: {message}")]
    User {
        /// The operation's name.
        operation: String,
        /// The function's message.
        message: String,
    },
}

/// Executes tasks one at a time on the calling thread. Each thread makes its own, with contexts and
/// scratch memory. (Asynchronous devices are [`Accelerator`](crate::accelerator::Accelerator)s.)
pub trait Device: Send {
    /// Its name: `cpu`, `cuda:0`, `qat:0`.
    fn name(&self) -> &str;

    /// True if it offers `operation`.
    fn supports(&self, operation: Operation) -> bool;

    /// Executes a task and returns when its outputs are complete. Panics if the caller violates a
    /// precondition of [`crate::op`], but never because of bad *data*.
    ///
    /// # Errors
    /// [`TaskError`]. The processor can still execute a task that another device rejects.
    fn run(&mut self, task: &mut Task<'_>) -> Result<(), TaskError>;
}

/// Allocates host memory that a device copies from and to at full speed.
pub trait HostMemory: Send + Sync {
    /// Allocates `bytes`, initialised but not necessarily zeroed, aligned to 4096. `None` if there
    /// is no more. The pool then uses ordinary memory, which is slower. Page-locking is slow, so
    /// the pool calls this rarely.
    fn allocate(&self, bytes: usize) -> Option<Box<dyn HostRegion>>;
}

/// Memory from [`HostMemory::allocate`], freed when dropped. It outlives its device.
pub trait HostRegion: Send + Sync {
    /// The bytes, to read.
    fn bytes(&self) -> &[u8];
    /// The bytes, to write.
    fn bytes_mut(&mut self) -> &mut [u8];
}
