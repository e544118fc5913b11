//! Where packs lie: one small trait for production, tests in memory, fault injection and crash recording alike.
//!
//! A pack is written once, front to back, by one [`PackWriter`], and is immutable and durable once
//! [`PackWriter::seal`] has returned. A writer that is dropped unsealed leaves an unfinished pack behind, which is
//! swept when its session's intent is swept. Packs are read by ranges, by any number of threads.

mod local;
mod memory;

use std::io::IoSlice;

use outrigger_format::PackId;

use crate::error::Result;

pub use local::LocalBackend;
pub use memory::MemoryBackend;

/// An engine that keeps packs.
pub trait Backend: Send + Sync {
    /// Begins pack `id`.
    ///
    /// # Errors
    /// `Exists` when a pack of that id is there: ids are never used twice.
    fn create(&self, id: PackId) -> Result<Box<dyn PackWriter>>;

    /// Fills `buf` from `offset` of pack `id`.
    ///
    /// # Errors
    /// `NotFound` when there is no such pack, `Damaged` when it is too short.
    fn read_at(&self, id: PackId, offset: u64, buf: &mut [u8]) -> Result<()>;

    /// Length of pack `id`, bytes; `None` when there is no such pack.
    ///
    /// # Errors
    /// When the engine cannot be asked.
    fn len(&self, id: PackId) -> Result<Option<u64>>;

    /// Removes pack `id`; one that is not there is no error. Durable when it returns.
    ///
    /// # Errors
    /// When the engine fails.
    fn remove(&self, id: PackId) -> Result<()>;

    /// Ids of all packs there, sealed or not, in rising order.
    ///
    /// # Errors
    /// When the engine fails.
    fn list(&self) -> Result<Vec<PackId>>;
}

/// Writes one pack.
pub trait PackWriter: Send {
    /// Appends all of `parts`, in order.
    ///
    /// # Errors
    /// `Full` or `Io`; the pack is then unusable and its writer should be dropped.
    fn append(&mut self, parts: &[IoSlice<'_>]) -> Result<()>;

    /// Makes the pack and its name durable.
    ///
    /// # Errors
    /// When a sync failed: nothing may rely on the pack then.
    fn seal(self: Box<Self>) -> Result<()>;
}
