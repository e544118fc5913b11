//! Damages packs in memory, as a failing disk would.

use outrigger_format::PackId;

use crate::backend::MemoryBackend;

impl MemoryBackend {
    /// Inverts bit `bit` (0 to 7) of the byte at `offset` of pack `id`.
    ///
    /// # Panics
    /// When there is no such byte.
    pub fn flip_bit(&self, id: PackId, offset: u64, bit: u8) {
        self.edit(id, |bytes| bytes[offset as usize] ^= 1 << bit);
    }

    /// Cuts pack `id` to `len` bytes.
    ///
    /// # Panics
    /// When there is no such pack.
    pub fn truncate(&self, id: PackId, len: u64) {
        self.edit(id, |bytes| bytes.truncate(len as usize));
    }

    /// The content of pack `id`, a copy.
    ///
    /// # Panics
    /// When there is no such pack.
    pub fn content(&self, id: PackId) -> Vec<u8> {
        self.edit(id, |bytes| bytes.clone())
    }

    /// Changes the content of pack `id` in any way, past all rules.
    ///
    /// # Panics
    /// When there is no such pack.
    pub fn edit<T>(&self, id: PackId, change: impl FnOnce(&mut Vec<u8>) -> T) -> T {
        change(self.packs().get_mut(&id).unwrap_or_else(|| panic!("there is no pack {id}")))
    }
}
