//! The CUDA driver: its presence, contexts, and the meaning of its errors. The `unsafe` code for
//! GPUs is here and in `cuda/device/`.
//!
//! `libcuda` is opened at run time. `cudarc` panics if a call finds no library, so [`devices`]
//! checks before any other call. Only the plain functions of `cudarc` are used. Its safe layer
//! tracks every allocation with events, which costs more than the small tasks do.

#![allow(unsafe_code)]

mod context;
mod memory;
mod stream;

pub(crate) use context::{Context, has_compiler};
pub(crate) use memory::{DeviceMemory, Registered};
pub(crate) use stream::{Options, Stream};

use std::sync::OnceLock;

use cudarc::driver::{result, sys};
use result::DriverError;
use sys::CUresult;

use crate::accelerator::Fault;

/// The number of devices.
///
/// # Errors
/// The reason why there are none, for users.
pub(crate) fn devices() -> Result<usize, String> {
    static DEVICES: OnceLock<Result<usize, String>> = OnceLock::new();
    DEVICES
        .get_or_init(|| {
            if let Some(why) = crate::loader::OPENS_NO_LIBRARIES {
                return Err(format!("no CUDA driver: {why}"));
            }
            // SAFETY: opens and closes the library, if there is one; its initialisers are NVIDIA's.
            if !unsafe { sys::is_culib_present() } {
                return Err("no CUDA driver: libcuda is not installed".to_string());
            }
            let count = result::init().and_then(|()| result::device::get_count());
            match count {
                Ok(0) => Err("the CUDA driver sees no GPU".to_string()),
                Ok(count) => Ok(count as usize),
                Err(error) => Err(format!("the CUDA driver does not start: {}", name(error))),
            }
        })
        .clone()
}

/// The meaning of a driver's error for the task and the device.
pub(crate) fn fault(error: DriverError) -> Fault {
    match error.0 {
        CUresult::CUDA_ERROR_OUT_OF_MEMORY => Fault::OutOfMemory,
        // The device lacks what the task needs, but the context is well.
        CUresult::CUDA_ERROR_INVALID_VALUE
        | CUresult::CUDA_ERROR_NOT_FOUND
        | CUresult::CUDA_ERROR_INVALID_PTX
        | CUresult::CUDA_ERROR_UNSUPPORTED_PTX_VERSION
        | CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU
        | CUresult::CUDA_ERROR_JIT_COMPILER_NOT_FOUND
        | CUresult::CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES
        | CUresult::CUDA_ERROR_NOT_SUPPORTED => Fault::Failed(name(error).into()),
        // After all other errors (a fault in a kernel, an uncorrectable error, a time-out, a device
        // that fell off the bus), every further call in the context fails.
        _ => Fault::Lost(name(error).into()),
    }
}

/// `CUDA_ERROR_ILLEGAL_ADDRESS (an illegal memory access was encountered)`.
fn name(error: DriverError) -> String {
    let text = |text: Result<&std::ffi::CStr, DriverError>| {
        text.map_or_else(|_| format!("{:?}", error.0), |text| text.to_string_lossy().into_owned())
    };
    format!("{} ({})", text(error.error_name()), text(error.error_string()))
}
