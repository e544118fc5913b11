//! A buffer on loan from a pool.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use super::{Pool, Region, class_bytes};

/// Bytes with a fixed capacity, aligned to 4096. A buffer returns to its pool when dropped.
pub struct Buffer {
    /// `None` only in `drop`.
    region: Option<Region>,
    len: usize,
    pool: Pool,
}

impl Buffer {
    pub(super) fn new(region: Region, pool: Pool) -> Self {
        Self { region: Some(region), len: 0, pool }
    }

    fn region(&self) -> &Region {
        self.region.as_ref().expect("a buffer has its memory until it is dropped")
    }

    fn memory_mut(&mut self) -> &mut [u8] {
        let region = self.region.as_mut().expect("a buffer has its memory until it is dropped");
        region.memory.bytes_mut()
    }

    /// The most bytes that it can hold.
    pub fn capacity(&self) -> usize {
        class_bytes(self.region().class)
    }

    /// True if it is page-locked for a device.
    pub fn is_locked(&self) -> bool {
        self.region().locked
    }

    /// True if it returns to this pool.
    pub fn is_of(&self, pool: &Pool) -> bool {
        Arc::ptr_eq(&self.pool.shared, &pool.shared)
    }

    /// Sets the length to `len` bytes. New bytes keep whatever value they had.
    ///
    /// # Panics
    /// If `len` exceeds the capacity.
    pub fn set_len(&mut self, len: usize) {
        assert!(len <= self.capacity(), "{len} bytes do not fit in a buffer of {}", self.capacity());
        self.len = len;
    }

    /// Appends bytes.
    ///
    /// # Panics
    /// If they do not fit.
    pub fn extend_from_slice(&mut self, bytes: &[u8]) {
        let at = self.len;
        self.set_len(at + bytes.len());
        self.memory_mut()[at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// Empties it.
    pub fn clear(&mut self) {
        self.len = 0;
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.region().memory.bytes()[..self.len]
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        let len = self.len;
        &mut self.memory_mut()[..len]
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Some(region) = self.region.take() {
            self.pool.give_back(region);
        }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} of {} bytes)", self.len, self.capacity())
    }
}
