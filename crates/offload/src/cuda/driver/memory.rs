//! Device memory, and host memory that a device copies from and to at full speed.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;
use std::sync::{Arc, Weak};

use cudarc::driver::{result, sys};

use super::super::lane::Address;
use super::{Context, fault};
use crate::accelerator::Fault;
use crate::device::HostRegion;

/// Memory on a device.
pub(crate) struct DeviceMemory {
    at: sys::CUdeviceptr,
    bytes: usize,
    context: Arc<Context>,
}

impl DeviceMemory {
    /// Allocates at least one byte, aligned to 256.
    pub(crate) fn new(context: &Arc<Context>, bytes: usize) -> Result<Self, Fault> {
        let _bound = context.bind()?;
        // SAFETY: the context is current.
        let at = unsafe { result::malloc_sync(bytes.max(1)) }.map_err(fault)?;
        Ok(Self { at, bytes: bytes.max(1), context: context.clone() })
    }

    pub(crate) fn address(&self) -> Address {
        Address(self.at)
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Copies words to the device, and waits.
    pub(crate) fn write<T: Words>(&self, offset: usize, words: &[T]) -> Result<(), Fault> {
        assert!(offset + size_of_val(words) <= self.bytes, "writes stay within an allocation");
        let _bound = self.context.bind()?;
        // SAFETY: both ends are valid for as many bytes, and the call returns when it is done.
        unsafe { result::memcpy_htod_sync(self.at + offset as u64, words) }.map_err(fault)
    }
}

/// Integers that are copied to a device unchanged. Every machine with CUDA is little-endian, and so
/// are devices.
pub(crate) trait Words: Copy {}
impl Words for u8 {}
impl Words for u32 {}
impl Words for u64 {}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        if let Ok(_bound) = self.context.bind() {
            // SAFETY: it was allocated in this context. The driver waits for what still uses it.
            let _ = unsafe { result::free_sync(self.at) };
        }
    }
}

/// Pages from the allocator, page-locked for a context as long as that lives. They stay readable
/// and writable afterwards.
///
/// (Page-locked memory from the driver would be unmapped with its context. Write-combined memory
/// does not suit, as results are read from it.)
pub(crate) struct Registered {
    start: NonNull<u8>,
    layout: Layout,
    context: Weak<Context>,
}

const PAGE: usize = 4096;

// SAFETY: it owns its allocation, as a box would.
unsafe impl Send for Registered {}
// SAFETY: shared references only read.
unsafe impl Sync for Registered {}

impl Registered {
    /// Allocates at least `bytes`, zeroed. `None` if there is no memory, or the driver does not
    /// lock it.
    pub(crate) fn new(context: &Arc<Context>, bytes: usize) -> Option<Self> {
        let _bound = context.bind().ok()?;
        let layout = Layout::from_size_align(bytes.max(1).next_multiple_of(PAGE), PAGE).ok()?;
        // SAFETY: the layout has at least a page.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        // SAFETY: these pages are ours until `drop`, which unregisters them first.
        let status = unsafe {
            sys::cuMemHostRegister_v2(start.as_ptr().cast(), layout.size(), sys::CU_MEMHOSTREGISTER_PORTABLE)
        };
        if status.result().is_err() {
            // SAFETY: allocated above with this layout.
            unsafe { dealloc(start.as_ptr(), layout) };
            return None;
        }
        Some(Self { start, layout, context: Arc::downgrade(context) })
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        // Without its context it is no longer registered.
        if let Some(context) = self.context.upgrade()
            && let Ok(_bound) = context.bind()
        {
            // SAFETY: it was registered in this context, and no copy is under way: buffers in
            // flight are held.
            let _ = unsafe { sys::cuMemHostUnregister(self.start.as_ptr().cast()) };
        }
        // SAFETY: allocated with this layout, and not used any more.
        unsafe { dealloc(self.start.as_ptr(), self.layout) };
    }
}

impl HostRegion for Registered {
    fn bytes(&self) -> &[u8] {
        // SAFETY: zeroed when it was allocated; ours.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.layout.size()) }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and the borrow is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.layout.size()) }
    }
}
