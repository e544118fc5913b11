//! The CUDA driver: whether it is there, contexts, and what its errors mean. All that is `unsafe` about GPUs is in this
//! folder.
//!
//! `libcuda` is opened at run time. `cudarc` panics when a call finds no library, so nothing is called before
//! [`devices`] has looked. Of `cudarc`, only the plain functions are used: its safe layer tracks every allocation with
//! events, which costs more than the small tasks do.

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

/// How many devices there are.
///
/// # Errors
/// Why there are none, in words for people.
pub(crate) fn devices() -> Result<usize, String> {
    static DEVICES: OnceLock<Result<usize, String>> = OnceLock::new();
    DEVICES
        .get_or_init(|| {
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

/// What a driver's error means for the task and the device.
pub(crate) fn fault(error: DriverError) -> Fault {
    match error.0 {
        CUresult::CUDA_ERROR_OUT_OF_MEMORY => Fault::OutOfMemory,
        // The task asks for what this device has not; the context is well.
        CUresult::CUDA_ERROR_INVALID_VALUE
        | CUresult::CUDA_ERROR_NOT_FOUND
        | CUresult::CUDA_ERROR_INVALID_PTX
        | CUresult::CUDA_ERROR_UNSUPPORTED_PTX_VERSION
        | CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU
        | CUresult::CUDA_ERROR_JIT_COMPILER_NOT_FOUND
        | CUresult::CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES
        | CUresult::CUDA_ERROR_NOT_SUPPORTED => Fault::Failed(name(error).into()),
        // Everything else (a fault in a kernel, an uncorrectable error, a time-out, a device that fell off the bus) leaves
        // a context in which every further call fails.
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
