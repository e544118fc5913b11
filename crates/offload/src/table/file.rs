//! The saved form of a table. It has only the entries, so that a change of the layout in memory
//! does not affect it.
//!
//! ```text
//!   0  8  magic "OUTRTABL"
//!   8  4  version = 1
//!  12  4  reserved, 0
//!  16  8  capacity
//!  24  8  entries E
//!  32 24E a, b and place of each entry, in any order
//!  ..  8  checksum of all before it
//! ```
//!
//! It is a cache: bytes that are incomplete or damaged are dropped, not repaired.

use outrigger_format::{Fingerprint, checksum};

use super::{Key, Table};

const MAGIC: &[u8; 8] = b"OUTRTABL";
const VERSION: u32 = 1;
const HEADER: usize = 32;
const ENTRY: usize = 24;
const SUM: usize = 8;

/// Why bytes are not a table.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum LoadError {
    /// Something else wrote them.
    #[error("not a saved fingerprint table")]
    Magic,
    /// Another version wrote them, which this one does not read.
    #[error("a fingerprint table of version {0}")]
    Version(u32),
    /// They are truncated, or bits were flipped.
    #[error("the saved fingerprint table is damaged")]
    Damaged,
}

impl Table {
    /// Appends the table to `out`.
    ///
    /// ```
    /// use outrigger_format::Fingerprint;
    /// use outrigger_offload::table::Table;
    /// let mut table = Table::with_capacity(10);
    /// table.insert_many(&[(Fingerprint([7; 32]), 77)])?;
    /// let mut bytes = Vec::new();
    /// table.save(&mut bytes);
    /// assert_eq!(Table::load(&bytes, 20)?.get(&Fingerprint([7; 32])), Some(77));
    /// bytes.pop();
    /// let (empty, why) = Table::load_or_empty(&bytes, 20);
    /// assert!(empty.is_empty() && why.is_some());
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// ```
    pub fn save(&self, out: &mut Vec<u8>) {
        let start = out.len();
        out.reserve(HEADER + self.len * ENTRY + SUM);
        out.extend_from_slice(MAGIC);
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.extend_from_slice(&[0; 4]);
        out.extend_from_slice(&(self.capacity as u64).to_le_bytes());
        out.extend_from_slice(&(self.len as u64).to_le_bytes());
        for word in self.entries().flatten() {
            out.extend_from_slice(&word.to_le_bytes());
        }
        let sum = checksum(&[&out[start..]]);
        out.extend_from_slice(&sum.to_le_bytes());
    }

    /// The table that [`Table::save`] wrote, with room for `capacity` entries. Entries that do not
    /// fit are dropped.
    ///
    /// # Errors
    /// [`LoadError`] if the bytes are not a table, incomplete, or changed.
    pub fn load(bytes: &[u8], capacity: usize) -> Result<Self, LoadError> {
        if bytes.first_chunk() != Some(MAGIC) {
            return Err(LoadError::Magic);
        }
        let version = bytes[8..].first_chunk().ok_or(LoadError::Damaged)?;
        let version = u32::from_le_bytes(*version);
        if version != VERSION {
            return Err(LoadError::Version(version));
        }
        let (covered, sum) = bytes.split_last_chunk::<SUM>().ok_or(LoadError::Damaged)?;
        if covered.len() < HEADER || checksum(&[covered]) != u64::from_le_bytes(*sum) {
            return Err(LoadError::Damaged);
        }
        let (header, entries) = covered.split_at(HEADER);
        let (entries, rest) = entries.as_chunks::<ENTRY>();
        if !rest.is_empty() || header[24..32] != (entries.len() as u64).to_le_bytes() {
            return Err(LoadError::Damaged);
        }
        let mut table = Self::with_capacity(capacity);
        for entry in entries {
            let [a, b, place] = [0, 8, 16].map(|at| {
                let mut word = [0; 8];
                word.copy_from_slice(&entry[at..at + 8]);
                u64::from_le_bytes(word)
            });
            if !table.insert(Key { a, b }, place) {
                break;
            }
        }
        Ok(table)
    }

    /// [`Table::load`]. If it fails, an empty table, and the reason.
    pub fn load_or_empty(bytes: &[u8], capacity: usize) -> (Self, Option<LoadError>) {
        match Self::load(bytes, capacity) {
            Ok(table) => (table, None),
            Err(why) => (Self::with_capacity(capacity), Some(why)),
        }
    }

    /// The first 16 bytes of each entry's fingerprint, zeros after them, and its number, in no
    /// particular order.
    pub fn iter(&self) -> impl Iterator<Item = (Fingerprint, u64)> {
        self.entries().map(|[a, b, place]| {
            let mut fingerprint = Fingerprint([0; 32]);
            fingerprint.0[..8].copy_from_slice(&a.to_le_bytes());
            fingerprint.0[8..16].copy_from_slice(&b.to_le_bytes());
            (fingerprint, place)
        })
    }
}
