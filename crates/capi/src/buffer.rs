//! Buffers that several tasks read.

use std::sync::{Arc, Mutex, PoisonError};

use outrigger_offload::pool::Buffer;

use crate::handles::{outrigger_runtime, poolable};
use crate::raw::handle;
use crate::status::outrigger_status::OUTRIGGER_STATE;
use crate::status::{Error, value};

/// Memory from a runtime's pool, page-locked if one of its devices has such memory. The program
/// fills it, and tasks then share it.
pub struct outrigger_buffer(Mutex<Arc<Buffer>>);

impl outrigger_buffer {
    /// A share of the buffer.
    pub fn share(&self) -> Arc<Buffer> {
        Arc::clone(&self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A buffer of at least `bytes` bytes, at most 2 GiB, aligned to 4096. Its bytes may have any
/// value. Null after an error. Free it with outrigger_buffer_free().
#[unsafe(no_mangle)]
pub extern "C" fn outrigger_buffer_new(
    runtime: Option<&outrigger_runtime>,
    bytes: usize,
) -> Option<Box<outrigger_buffer>> {
    value(None, || {
        let runtime = handle(runtime, "runtime")?;
        poolable(bytes)?;
        let mut buffer = runtime.0.pool().alloc(bytes);
        buffer.set_len(buffer.capacity());
        Ok(Some(Box::new(outrigger_buffer(Mutex::new(Arc::new(buffer))))))
    })
}

/// The address of its memory, to write. The pointer stays valid until the buffer is freed. While a
/// task that shares the buffer is alive, nothing may be written, and this returns null
/// (OUTRIGGER_STATE).
#[unsafe(no_mangle)]
pub extern "C" fn outrigger_buffer_data(buffer: Option<&outrigger_buffer>) -> *mut u8 {
    value(std::ptr::null_mut(), || {
        let mut shares = handle(buffer, "buffer")?.0.lock().unwrap_or_else(PoisonError::into_inner);
        let buffer = Arc::get_mut(&mut *shares);
        buffer
            .map(|buffer| buffer.as_mut_ptr())
            .ok_or_else(|| Error::new(OUTRIGGER_STATE, "tasks share the buffer: it is not to be written"))
    })
}

/// Its size in bytes; 0 for null.
#[unsafe(no_mangle)]
pub extern "C" fn outrigger_buffer_size(buffer: Option<&outrigger_buffer>) -> usize {
    value(0, || Ok(handle(buffer, "buffer")?.share().capacity()))
}

/// 1 if it is page-locked for a device, else 0.
#[unsafe(no_mangle)]
pub extern "C" fn outrigger_buffer_is_locked(buffer: Option<&outrigger_buffer>) -> i32 {
    value(0, || Ok(handle(buffer, "buffer")?.share().is_locked().into()))
}

/// Frees it. Its memory returns to the pool when the last task that shares it is freed. Null is no
/// error.
#[unsafe(no_mangle)]
pub extern "C" fn outrigger_buffer_free(buffer: Option<Box<outrigger_buffer>>) {
    drop(buffer);
}
