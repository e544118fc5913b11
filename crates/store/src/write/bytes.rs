//! The memory that batches are read into, which devices read too.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use outrigger_offload::pool::{Buffer as Memory, Pool};

/// A place for one batch's bytes, reused.
pub(super) struct Buffer {
    /// Bytes before the data, for a large file's unfinished chunk.
    pub headroom: usize,
    /// Headroom and data.
    pub bytes: Bytes,
}

/// Memory of one owner, who may lend it to devices for reading. While it is lent it is not written
/// to.
pub(super) struct Bytes(Arc<Memory>);

impl Bytes {
    /// `len` bytes of any value: page-locked if the pool is a device's.
    pub fn new(pool: &Pool, len: usize) -> Self {
        let mut memory = pool.alloc(len);
        memory.set_len(len);
        Self(Arc::new(memory))
    }

    /// Space for `len` bytes, still empty.
    pub fn with_room(pool: &Pool, len: usize) -> Self {
        Self(Arc::new(pool.alloc(len)))
    }

    /// Appends bytes, for which there must be space. Lent memory is not written to.
    pub fn extend_from_slice(&mut self, bytes: &[u8]) {
        Arc::get_mut(&mut self.0).expect("what is lent is not written to").extend_from_slice(bytes);
    }

    /// True if it is memory of this pool.
    pub fn is_of(&self, pool: &Pool) -> bool {
        self.0.is_of(pool)
    }

    /// For a task to read.
    pub fn lend(&self) -> Arc<Memory> {
        Arc::clone(&self.0)
    }

    /// Makes this the only reference. A device that was given up may still use the old memory, so
    /// this becomes a copy.
    pub fn unshare(&mut self) {
        if self.is_lent() {
            let mut copy = Self::new(&Pool::new(None, 0), self.len());
            copy.copy_from_slice(self);
            *self = copy;
        }
    }

    /// A device that was given up may still read it, for an unknown time.
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
