//! The memory that batches are read into, which devices read too.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use outrigger_offload::pool::{Buffer as Memory, Pool};

/// A place for one batch's bytes, reused.
pub(super) struct Buffer {
    /// Bytes before the data, into which a large file's unfinished chunk is carried over.
    pub headroom: usize,
    /// Headroom and data.
    pub bytes: Bytes,
}

/// Memory of one owner, who may lend it to devices for reading. While it is lent nobody writes to it.
pub(super) struct Bytes(Arc<Memory>);

impl Bytes {
    /// `len` bytes, whatever they are: page-locked if the pool is a device's.
    pub fn new(pool: &Pool, len: usize) -> Self {
        let mut memory = pool.alloc(len);
        memory.set_len(len);
        Self(Arc::new(memory))
    }

    /// Room for `len` bytes, of which none are there yet.
    pub fn with_room(pool: &Pool, len: usize) -> Self {
        Self(Arc::new(pool.alloc(len)))
    }

    /// Appends bytes, which there must be room for. What is lent is not written to.
    pub fn extend_from_slice(&mut self, bytes: &[u8]) {
        Arc::get_mut(&mut self.0).expect("what is lent is not written to").extend_from_slice(bytes);
    }

    /// Whether it is memory of this pool.
    pub fn is_of(&self, pool: &Pool) -> bool {
        self.0.is_of(pool)
    }

    /// For a task to read.
    pub fn lend(&self) -> Arc<Memory> {
        Arc::clone(&self.0)
    }

    /// Makes it nobody else's: a device that was given up goes on with what it has, and this is a copy.
    pub fn unshare(&mut self) {
        if self.is_lent() {
            let mut copy = Self::new(&Pool::new(None, 0), self.len());
            copy.copy_from_slice(self);
            *self = copy;
        }
    }

    /// A device that was given up may still read it, and nobody knows until when.
    pub fn is_lent(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl DerefMut for Bytes {
    fn deref_mut(&mut self) -> &mut [u8] {
        Arc::get_mut(&mut self.0).expect("what is lent is not written to")
    }
}
