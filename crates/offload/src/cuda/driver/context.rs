//! A separate context on one device, with kernels, constants, and the device's identity.
//!
//! It is not the device's primary context, which other libraries in the process share. A context
//! that a kernel's fault has broken must be destroyed, and the work of those libraries would be
//! lost with it.

use std::collections::HashMap;
use std::ffi::{CStr, CString, c_void};
use std::marker::PhantomData;
use std::ptr;
use std::sync::{Arc, Mutex, PoisonError};

use cudarc::driver::{result, sys};

use super::super::kernel::{self, Kernel, Module};
use super::super::lane::constants;
use super::{DeviceMemory, fault};
use crate::accelerator::{Fault, Identity};
use crate::work::{KernelCode, UserOperation};

/// A context. Everything made in it holds it, so it is dropped last.
pub(crate) struct Context {
    raw: sys::CUcontext,
    functions: HashMap<&'static CStr, sys::CUfunction>,
    /// Kernels of users, by the id of their operation.
    user: Mutex<HashMap<u32, Result<Function, Fault>>>,
}

/// A kernel's handle. Valid as long as its context.
#[derive(Clone, Copy)]
pub(super) struct Function(pub(super) sys::CUfunction);

// SAFETY: handles of the driver may be used by any thread to which their context is current, which
// every call here sees to ([`Context::bind`]).
unsafe impl Send for Context {}
// SAFETY: as above; the driver locks inside, and what is ours is behind a mutex or never changes.
unsafe impl Sync for Context {}
// SAFETY: as above.
unsafe impl Send for Function {}

impl Context {
    /// A context on device `ordinal`, with all kernels loaded.
    ///
    /// # Errors
    /// [`Fault`]. The driver compiles the kernels for the GPU here (and caches the result), so a
    /// GPU that is too old for them fails now.
    pub(crate) fn new(ordinal: usize) -> Result<Arc<Self>, Fault> {
        super::devices().map_err(|why| Fault::Lost(why.into()))?;
        let device = result::device::get(ordinal as i32).map_err(fault)?;
        let mut raw = ptr::null_mut();
        // Waiting threads sleep, as the processor may have other work.
        let flags = sys::CUctx_flags_enum::CU_CTX_SCHED_BLOCKING_SYNC as u32;
        // SAFETY: `raw` is where the context goes; the device was found just now.
        unsafe { sys::cuCtxCreate_v2(&mut raw, flags, device) }.result().map_err(fault)?;
        let mut context = Self { raw, functions: HashMap::new(), user: Mutex::default() };
        // Creation has made the context current.
        let _bound = Bound(PhantomData);
        context.load()?;
        Ok(Arc::new(context))
    }

    fn load(&mut self) -> Result<(), Fault> {
        for module in Module::ALL {
            let loaded = module_of(module.ptx())?;
            for kernel in kernel::ALL.iter().filter(|kernel| kernel.module == module) {
                self.functions.insert(kernel.name, function(loaded, kernel.name)?);
            }
        }
        Ok(())
    }

    /// The identity of device `ordinal`.
    ///
    /// # Errors
    /// [`Fault::Lost`] if there is none.
    pub(crate) fn identity(ordinal: usize) -> Result<Identity, Fault> {
        super::devices().map_err(|why| Fault::Lost(why.into()))?;
        let device = result::device::get(ordinal as i32).map_err(fault)?;
        let mut version = 0;
        // SAFETY: `version` is where it goes.
        unsafe { sys::cuDriverGetVersion(&mut version) }.result().map_err(fault)?;
        Ok(Identity {
            name: format!("cuda:{ordinal}"),
            model: result::device::get_name(device).map_err(fault)?,
            driver: format!("CUDA {}.{}", version / 1000, version % 1000 / 10),
            // SAFETY: the device was found just now.
            memory_bytes: unsafe { result::device::total_mem(device) }.map_err(fault)? as u64,
            zero_copy: false,
        })
    }

    /// True if kernels are faster when they stage data through shared memory. An H100 (compute
    /// capability 9.0) hashes chunks three to five times as fast without. Its caches do as much,
    /// and a block that stages has 32 threads, which leave most of a multiprocessor idle
    /// (`docs/evaluation/records/2026-11-27-gpu-h100.md`). Older devices have not been measured,
    /// and stage.
    pub(crate) fn stages(&self) -> Result<bool, Fault> {
        const UNSTAGED_FROM: i32 = 9;
        let _bound = self.bind()?;
        let major = sys::CUdevice_attribute_enum::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR;
        let mut device = 0;
        // SAFETY: `device` is where it goes.
        unsafe { sys::cuCtxGetDevice(&mut device) }.result().map_err(fault)?;
        // SAFETY: it is the device of the current context.
        let major = unsafe { result::device::get_attribute(device, major) }.map_err(fault)?;
        Ok(major < UNSTAGED_FROM)
    }

    /// Makes the context current on this thread, as all calls require, until the guard is dropped.
    /// The thread may use CUDA for something else, too.
    pub(super) fn bind(&self) -> Result<Bound, Fault> {
        // SAFETY: the context lives as long as `self`.
        unsafe { sys::cuCtxPushCurrent_v2(self.raw) }.result().map_err(fault)?;
        Ok(Bound(PhantomData))
    }

    /// Asks the driver whether anything has broken the context. Does not wait for running work.
    pub(crate) fn check(&self) -> Result<(), Fault> {
        let _bound = self.bind()?;
        // Any call that a broken context refuses, here for free and total memory.
        result::mem_get_info().map(|_| ()).map_err(fault)
    }

    pub(super) fn function(&self, kernel: Kernel) -> Function {
        Function(self.functions[kernel.name])
    }

    /// A user's kernel. It is loaded, and CUDA C++ is compiled, at first use.
    pub(super) fn user_function(&self, operation: &UserOperation) -> Result<Function, Fault> {
        let _bound = self.bind()?;
        let mut user = self.user.lock().unwrap_or_else(PoisonError::into_inner);
        let load = || {
            let kernel = operation.kernel().ok_or(Fault::Unsupported)?;
            let name = CString::new(kernel.name.as_str())
                .map_err(|_| Fault::Failed("a kernel's name has a zero byte".into()))?;
            let module = match &kernel.code {
                KernelCode::Ptx(ptx) => module_of(ptx)?,
                KernelCode::Cuda(source) => module_of(&compile(source)?)?,
            };
            function(module, &name).map(Function)
        };
        user.entry(operation.id()).or_insert_with(load).clone()
    }

    /// The kernels' constants, in memory of this context.
    pub(crate) fn constants(self: &Arc<Self>) -> Result<DeviceMemory, Fault> {
        let bytes = constants();
        let memory = DeviceMemory::new(self, bytes.len())?;
        memory.write(0, &bytes)?;
        Ok(memory)
    }
}

/// A context that is current on this thread.
pub(super) struct Bound(PhantomData<*const ()>);

impl Drop for Bound {
    fn drop(&mut self) {
        let mut raw = ptr::null_mut();
        // SAFETY: `raw` is where the context goes that was current, which [`Context::bind`] has
        // pushed.
        let _ = unsafe { sys::cuCtxPopCurrent_v2(&mut raw) };
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: nothing that was made in it is left: all of it holds the context. An error means
        // that it is gone already.
        let _ = unsafe { sys::cuCtxDestroy_v2(self.raw) };
    }
}

/// Loads PTX into the current context.
fn module_of(ptx: &str) -> Result<sys::CUmodule, Fault> {
    let image = CString::new(ptx).map_err(|_| Fault::Failed("PTX has a zero byte".into()))?;
    // SAFETY: the image is text that ends with a zero, which is how the driver knows PTX.
    unsafe { result::module::load_data(image.as_ptr().cast::<c_void>()) }.map_err(fault)
}

fn function(module: sys::CUmodule, name: &CStr) -> Result<sys::CUfunction, Fault> {
    // SAFETY: the module was loaded into the current context and is never unloaded before it.
    unsafe { result::module::get_function(module, name.to_owned()) }.map_err(fault)
}

/// True if NVRTC, which compiles users' sources, is installed.
pub(crate) fn has_compiler() -> bool {
    static PRESENT: std::sync::OnceLock<bool> = std::sync::OnceLock::new();
    // SAFETY: opens and closes the library, if there is one.
    *PRESENT.get_or_init(|| unsafe { cudarc::nvrtc::sys::is_culib_present() })
}

fn compile(source: &str) -> Result<String, Fault> {
    if !has_compiler() {
        return Err(Fault::Unsupported);
    }
    let compiled = cudarc::nvrtc::compile_ptx(source);
    compiled.map(|ptx| ptx.to_src()).map_err(|error| Fault::Failed(error.to_string().into()))
}
