//! The four calls of StoreGPU's library, from its paper: `SHA` and `MD5` of a block, and of the
//! windows of a block. C has no overloading, so they have four names here.

use std::ffi::c_void;

use outrigger_offload::op::{Digest, WindowFunction, WindowSpec};
use outrigger_offload::work::Request;
use outrigger_offload::{pmd_hash, window_hash};

use crate::cut::fits;
use crate::handles::outrigger_runtime;
use crate::raw;
use crate::status::outrigger_status::{OUTRIGGER_FULL, OUTRIGGER_STOPPED};
use crate::status::{Error, Result, value};
use crate::task::failure;

unsafe extern "C" {
    fn malloc(bytes: usize) -> *mut u8;
}

/// Executes the request, and returns the result to C, which frees it.
fn call(
    runtime: Option<&outrigger_runtime>,
    data: &[u8],
    request: Request,
    here: impl FnOnce(&mut Vec<u8>),
) -> Result<*mut u8> {
    let Some(runtime) = runtime else {
        let mut out = Vec::new();
        here(&mut out);
        return given(&out);
    };
    fits(data.len())?;
    let mut draft = runtime.0.draft(data.len());
    draft.input().extend_from_slice(data);
    draft.set_request(request);
    let ticket =
        runtime.0.submit(draft).map_err(|refused| Error::new(OUTRIGGER_STOPPED, refused.to_string()))?;
    let done = ticket.wait().map_err(|failed| Error::new(failure(&failed.reason), failed.to_string()))?;
    given(&done.output().bytes)
}

/// A copy in memory that C can free.
fn given(bytes: &[u8]) -> Result<*mut u8> {
    // SAFETY: requests at least one byte, because `malloc(0)` may return null.
    let copy = unsafe { malloc(bytes.len().max(1)) };
    if copy.is_null() {
        return Err(Error::new(OUTRIGGER_FULL, format!("no memory for {} bytes", bytes.len())));
    }
    // SAFETY: `copy` has room for so many bytes, and is new.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), copy, bytes.len()) };
    Ok(copy)
}

/// Direct hashing.
///
/// # Safety
/// `data` can be read for `len` bytes, as C promises.
unsafe fn direct(
    runtime: Option<&outrigger_runtime>,
    digest: Digest,
    data: *const c_void,
    len: usize,
) -> *mut u8 {
    value(std::ptr::null_mut(), || {
        // SAFETY: C's contract.
        let data = unsafe { raw::bytes(data, len, "data")? };
        call(runtime, data, Request::PmdHash { digest }, |out| pmd_hash(digest, data, out))
    })
}

/// Sliding windows, with all bytes of each hash.
///
/// # Safety
/// Like [`direct`].
unsafe fn windows(
    runtime: Option<&outrigger_runtime>,
    function: WindowFunction,
    data: *const c_void,
    len: usize,
    window: usize,
    step: usize,
) -> *mut u8 {
    value(std::ptr::null_mut(), || {
        let spec = WindowSpec { function, window, step, keep: function.len() };
        if !spec.is_valid() {
            return Err(Error::invalid(format!("windows of {window} bytes, {step} apart")));
        }
        // SAFETY: C's contract.
        let data = unsafe { raw::bytes(data, len, "data")? };
        call(runtime, data, Request::WindowHash { spec }, |out| window_hash(spec, data, out))
    })
}

/// StoreGPU's `SHA(data, len)`: the block's hash by the parallel construction over SHA-1, 20 bytes,
/// to free with free(). Null after an error. The best device of `runtime` executes it (at most 2^31
/// - 1 bytes), or, if that is null, this thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outrigger_storegpu_sha(
    runtime: Option<&outrigger_runtime>,
    data: *const c_void,
    len: usize,
) -> *mut u8 {
    // SAFETY: C's contract.
    unsafe { direct(runtime, Digest::Sha1, data, len) }
}

/// StoreGPU's `MD5(data, len)`: like outrigger_storegpu_sha(), over MD5, 16 bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outrigger_storegpu_md5(
    runtime: Option<&outrigger_runtime>,
    data: *const c_void,
    len: usize,
) -> *mut u8 {
    // SAFETY: C's contract.
    unsafe { direct(runtime, Digest::Md5, data, len) }
}

/// StoreGPU's `SHA(data, len, window, offset)`: SHA-1 of each window of `window` bytes, one every
/// `offset` bytes, 20 bytes each, to free with free(). There are (len - window) / offset + 1 of
/// them, or none if `len` is less than `window`. Null after an error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outrigger_storegpu_sha_windows(
    runtime: Option<&outrigger_runtime>,
    data: *const c_void,
    len: usize,
    window: usize,
    offset: usize,
) -> *mut u8 {
    // SAFETY: C's contract.
    unsafe { windows(runtime, WindowFunction::Sha1, data, len, window, offset) }
}

/// StoreGPU's `MD5(data, len, window, offset)`: like outrigger_storegpu_sha_windows(), by MD5, 16
/// bytes each.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outrigger_storegpu_md5_windows(
    runtime: Option<&outrigger_runtime>,
    data: *const c_void,
    len: usize,
    window: usize,
    offset: usize,
) -> *mut u8 {
    // SAFETY: C's contract.
    unsafe { windows(runtime, WindowFunction::Md5, data, len, window, offset) }
}
