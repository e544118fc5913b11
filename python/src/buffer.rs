//! A Python buffer as a slice of bytes, without the interpreter's lock.
#![allow(unsafe_code, reason = "a buffer's memory is Python's")]

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyBufferError, PyValueError};
use pyo3::prelude::*;

/// A writable buffer, such as a `bytearray` or an array of NumPy.
pub struct Target(PyBuffer<u8>);

impl Target {
    /// Takes the buffer of `object`.
    pub fn of(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let buffer = PyBuffer::<u8>::get(object)?;
        if buffer.readonly() {
            return Err(PyBufferError::new_err("the buffer is read-only"));
        }
        if !buffer.is_c_contiguous() {
            return Err(PyValueError::new_err("the buffer is not contiguous"));
        }
        Ok(Self(buffer))
    }

    /// Bytes that it has room for.
    pub fn len(&self) -> usize {
        self.0.len_bytes()
    }

    /// Its bytes.
    pub fn bytes(&mut self) -> &mut [u8] {
        let (start, len) = (self.0.buf_ptr().cast::<u8>(), self.0.len_bytes());
        if len == 0 {
            return &mut [];
        }
        // SAFETY: the buffer is contiguous, writable and has `len` bytes, and Python neither frees
        // nor moves them while this holds it. As with every reader of Python's that releases the
        // lock, a program must not use the bytes in another thread before the call has returned.
        unsafe { std::slice::from_raw_parts_mut(start, len) }
    }
}

/// The bytes of any contiguous buffer, copied.
pub fn copied(object: &Bound<'_, PyAny>) -> PyResult<Vec<u8>> {
    PyBuffer::<u8>::get(object)?.to_vec(object.py())
}
