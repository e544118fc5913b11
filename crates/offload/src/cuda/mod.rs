//! CUDA devices: hashing, chunking and lookup on a GPU.
//!
//! ```text
//! kernels/*.cu    one source per operation             ─▶ kernels/ptx/*.ptx, committed (scripts/kernels.py)
//!                                                       ─▶ the host's compiler, behind a grid of fibres (`grid`)
//! plan/           what is launched for each operation, over any Lane
//! lane.rs         memory, lists and launches, in order
//! driver/         a lane is a CUDA stream              device/     several of them: `cuda:N`
//! host.rs         a lane is the grid on the host       sync.rs     one task at a time, waited for
//! ```
//!
//! So the grid and a GPU share sources, plans and the reading of results, which are tested without
//! a GPU. Only `driver/` and `device/` need a machine with a GPU: `make test-gpu`. See
//! `docs/offload-cuda.md`.
//!
//! `libcuda` is opened at run time. Without it, [`device_count`] says so, and nothing else happens.

mod device;
mod driver;
#[cfg(feature = "grid")]
mod host;
mod kernel;
mod lane;
mod plan;
mod sync;
mod table;
mod tables;

use crate::accelerator::{Fault, Identity};
pub use device::{CopyBandwidth, CudaDevice, CudaOptions, CudaTable, device_count};

/// The identity of device `ordinal`.
///
/// # Errors
/// [`Fault::Lost`] if there is none.
pub(crate) fn identity(ordinal: usize) -> Result<Identity, Fault> {
    driver::Context::identity(ordinal)
}

pub(crate) use driver::fault as driver_fault;

#[cfg(feature = "grid")]
pub use host::{HostGrid, HostTable, Order};
