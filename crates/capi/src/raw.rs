//! C's pointers become slices, strings and references. The code here relies on C's contract (see
//! the crate's head), and checks what it can: that nothing is null, misaligned, or longer than
//! memory.

use std::ffi::{CStr, c_char, c_void};
use std::mem::MaybeUninit;

use crate::status::outrigger_status::OUTRIGGER_SPACE;
use crate::status::{Error, Result};

/// `len` elements to read. Without elements, the pointer may be null.
///
/// # Safety
/// C's contract: unless it is null, `pointer` points to `len` elements, which nobody writes while
/// `'a` lasts.
pub unsafe fn slice<'a, T>(pointer: *const T, len: usize, what: &str) -> Result<&'a [T]> {
    if len == 0 {
        return Ok(&[]);
    }
    check(pointer, len, what)?;
    // SAFETY: not null, aligned, of a length that exists; the rest is the caller's contract.
    Ok(unsafe { std::slice::from_raw_parts(pointer, len) })
}

/// `len` bytes to read.
///
/// # Safety
/// Like [`slice`].
pub unsafe fn bytes<'a>(pointer: *const c_void, len: usize, what: &str) -> Result<&'a [u8]> {
    // SAFETY: the same contract.
    unsafe { slice(pointer.cast(), len, what) }
}

/// Room for `len` elements, to write.
///
/// # Safety
/// C's contract: unless it is null, `pointer` points to room for `len` elements, which nobody else
/// uses while `'a` lasts.
pub unsafe fn room<'a, T: Copy>(pointer: *mut T, len: usize, what: &str) -> Result<&'a mut [MaybeUninit<T>]> {
    if len == 0 {
        return Ok(&mut []);
    }
    check(pointer, len, what)?;
    // SAFETY: not null, aligned, of a length that exists, and whatever is there is a MaybeUninit.
    Ok(unsafe { std::slice::from_raw_parts_mut(pointer.cast(), len) })
}

fn check<T>(pointer: *const T, len: usize, what: &str) -> Result {
    if pointer.is_null() {
        return Err(Error::invalid(format!("{what} is null")));
    }
    if !pointer.is_aligned() {
        return Err(Error::invalid(format!("{what} is misaligned")));
    }
    match len.checked_mul(size_of::<T>()).map(isize::try_from) {
        Some(Ok(_)) => Ok(()),
        _ => Err(Error::invalid(format!("{what}: {len} elements are more than memory can hold"))),
    }
}

/// A string.
///
/// # Safety
/// C's contract: unless it is null, `pointer` points to a string that ends with a zero and is not
/// written while `'a` lasts.
pub unsafe fn text<'a>(pointer: *const c_char, what: &str) -> Result<&'a str> {
    if pointer.is_null() {
        return Err(Error::invalid(format!("{what} is null")));
    }
    // SAFETY: not null; the rest is the caller's contract.
    let text = unsafe { CStr::from_ptr(pointer) };
    text.to_str().map_err(|_| Error::invalid(format!("{what} is not UTF-8")))
}

/// The object of a handle.
pub fn handle<'a, T>(handle: Option<&'a T>, what: &str) -> Result<&'a T> {
    handle.ok_or_else(|| Error::invalid(format!("{what} is null")))
}

/// Copies `values` to `out`, and stores their number in `count`, even if they do not fit.
pub fn put<T: Copy>(
    values: &[T],
    out: &mut [MaybeUninit<T>],
    count: Option<&mut MaybeUninit<usize>>,
) -> Result {
    if let Some(count) = count {
        count.write(values.len());
    }
    let Some(out) = out.get_mut(..values.len()) else {
        let (needed, given) = (values.len(), out.len());
        return Err(Error::new(OUTRIGGER_SPACE, format!("there is room for {given} elements of {needed}")));
    };
    out.iter_mut().zip(values).for_each(|(out, value)| {
        out.write(*value);
    });
    Ok(())
}

/// Copies a structure to which later versions append fields: as much of it as the program knows,
/// `size` bytes. Fields that the program knows and this version does not are zero.
///
/// # Safety
/// C's contract: unless it is null, `out` points to `size` bytes that nobody else uses.
pub unsafe fn put_struct<T: Copy>(value: &T, out: *mut T, size: usize) -> Result {
    if out.is_null() {
        return Err(Error::invalid("the structure to be filled in is null"));
    }
    let known = size.min(size_of::<T>());
    // SAFETY: `out` has `size` bytes, of which `known` come from a structure of ours that has as
    // many.
    unsafe {
        let out = out.cast::<u8>();
        std::ptr::copy_nonoverlapping(std::ptr::from_ref(value).cast::<u8>(), out, known);
        std::ptr::write_bytes(out.add(known), 0, size - known);
    }
    Ok(())
}
