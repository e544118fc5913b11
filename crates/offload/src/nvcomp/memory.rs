//! The memory that nvCOMP works in: a GPU's, with a separate stream, or this machine's for a
//! stand-in library.

#![allow(unsafe_code)]

use cudarc::driver::{result, sys};

use super::library::Stream;
use crate::accelerator::Fault;
use crate::cuda::driver_fault as fault;

/// Areas of memory that are kept from batch to batch.
#[derive(Clone, Copy)]
pub(super) enum Area {
    Input,
    Output,
    Lists,
    Temp,
}

/// The alignment of all areas.
pub(super) const ALIGNMENT: usize = 256;

const AREAS: usize = Area::Temp as usize + 1;

/// A place with its memory.
pub(super) enum Place {
    Gpu(Gpu),
    Host(Host),
}

impl Place {
    /// The memory of `area`, at least `bytes` of it, aligned to [`ALIGNMENT`]. If it has to grow,
    /// its content may be lost.
    pub(super) fn memory(&mut self, area: Area, bytes: usize) -> Result<u64, Fault> {
        match self {
            Self::Gpu(gpu) => gpu.memory(area, bytes),
            Self::Host(host) => Ok(host.memory(area, bytes)),
        }
    }

    /// The stream of all operations.
    pub(super) fn stream(&self) -> Stream {
        match self {
            Self::Gpu(gpu) => gpu.stream.cast(),
            Self::Host(_) => std::ptr::null_mut(),
        }
    }

    /// Copies pieces to the place, and waits.
    ///
    /// # Safety
    /// Each address has room for its bytes, in memory that [`Place::memory`] returned and has not
    /// replaced.
    pub(super) unsafe fn copy_in(&mut self, pieces: &[(u64, &[u8])]) -> Result<(), Fault> {
        match self {
            Self::Gpu(gpu) => {
                for (to, from) in pieces.iter().filter(|(_, from)| !from.is_empty()) {
                    // SAFETY: as the caller has promised; the source stays borrowed until the wait
                    // below.
                    let status = unsafe {
                        sys::cuMemcpyHtoDAsync_v2(*to, from.as_ptr().cast(), from.len(), gpu.stream)
                    };
                    if let Err(error) = status.result() {
                        // No copy may be in flight when the borrow ends.
                        let _ = gpu.wait();
                        return Err(fault(error));
                    }
                }
                gpu.wait()
            }
            Self::Host(_) => {
                for (to, from) in pieces {
                    // SAFETY: as the caller has promised, the address is in this machine's memory.
                    unsafe {
                        std::ptr::copy_nonoverlapping(
                            from.as_ptr(),
                            std::ptr::with_exposed_provenance_mut::<u8>(*to as usize),
                            from.len(),
                        )
                    };
                }
                Ok(())
            }
        }
    }

    /// Copies pieces back, and waits.
    ///
    /// # Safety
    /// As for [`Place::copy_in`].
    pub(super) unsafe fn copy_out(&mut self, pieces: &mut [(u64, &mut [u8])]) -> Result<(), Fault> {
        match self {
            Self::Gpu(gpu) => {
                for (from, to) in pieces.iter_mut().filter(|(_, to)| !to.is_empty()) {
                    // SAFETY: as the caller has promised; the target stays borrowed until the wait
                    // below.
                    let status = unsafe {
                        sys::cuMemcpyDtoHAsync_v2(to.as_mut_ptr().cast(), *from, to.len(), gpu.stream)
                    };
                    if let Err(error) = status.result() {
                        let _ = gpu.wait();
                        return Err(fault(error));
                    }
                }
                gpu.wait()
            }
            Self::Host(_) => {
                for (from, to) in pieces {
                    // SAFETY: as the caller has promised.
                    unsafe {
                        std::ptr::copy_nonoverlapping(
                            std::ptr::with_exposed_provenance::<u8>(*from as usize),
                            to.as_mut_ptr(),
                            to.len(),
                        )
                    };
                }
                Ok(())
            }
        }
    }

    /// Waits until nothing is in flight.
    pub(super) fn wait(&mut self) -> Result<(), Fault> {
        match self {
            Self::Gpu(gpu) => gpu.wait(),
            Self::Host(_) => Ok(()),
        }
    }
}

/// A context and a stream for one thread. (If a kernel's fault breaks the context, only this thread
/// is affected.)
pub(super) struct Gpu {
    context: sys::CUcontext,
    stream: sys::CUstream,
    areas: [Option<(sys::CUdeviceptr, usize)>; AREAS],
}

impl Gpu {
    /// A context on device `ordinal`. From now on it is current on this thread.
    ///
    /// # Errors
    /// The driver's error as a fault.
    pub(super) fn new(ordinal: usize) -> Result<Self, Fault> {
        crate::cuda::device_count().map_err(|why| Fault::Lost(why.into()))?;
        let device = result::device::get(ordinal as i32).map_err(fault)?;
        let mut context = std::ptr::null_mut();
        let flags = sys::CUctx_flags_enum::CU_CTX_SCHED_BLOCKING_SYNC as u32;
        // SAFETY: `context` is where it goes; the device was found just now.
        unsafe { sys::cuCtxCreate_v2(&mut context, flags, device) }.result().map_err(fault)?;
        let mut gpu = Self { context, stream: std::ptr::null_mut(), areas: [None; AREAS] };
        gpu.stream = result::stream::create(result::stream::StreamKind::NonBlocking).map_err(fault)?;
        Ok(gpu)
    }

    fn memory(&mut self, area: Area, bytes: usize) -> Result<u64, Fault> {
        let held = &mut self.areas[area as usize];
        if let Some((at, _)) = held.filter(|(_, len)| *len >= bytes) {
            return Ok(at);
        }
        if let Some((at, _)) = held.take() {
            // SAFETY: allocated in this context, and nothing is in flight, as every method waits.
            unsafe { result::free_sync(at) }.map_err(fault)?;
        }
        let bytes = bytes.max(4096).next_power_of_two();
        // SAFETY: the context is current to this thread.
        let at = unsafe { result::malloc_sync(bytes) }.map_err(fault)?;
        *held = Some((at, bytes));
        Ok(at)
    }

    fn wait(&self) -> Result<(), Fault> {
        // SAFETY: the stream belongs to this context.
        unsafe { result::stream::synchronize(self.stream) }.map_err(fault)
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        // SAFETY: created by this thread. Its stream and memory are destroyed with it. An error
        // means that it is gone already.
        let _ = unsafe { sys::cuCtxDestroy_v2(self.context) };
    }
}

/// This machine's memory.
#[derive(Default)]
pub(super) struct Host {
    areas: [Vec<u8>; AREAS],
}

impl Host {
    fn memory(&mut self, area: Area, bytes: usize) -> u64 {
        let area = &mut self.areas[area as usize];
        if area.len() < bytes + ALIGNMENT {
            area.resize(bytes + ALIGNMENT, 0);
        }
        let offset = area.as_ptr().align_offset(ALIGNMENT);
        area[offset..].as_mut_ptr().expose_provenance() as u64
    }
}
