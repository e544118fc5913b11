//! One bit for each chunk of each committed pack: is it in use?
//!
//! A chunk is named by its place (pack and slot), so marking 64 million chunks takes 8 MB. Bits are
//! atomic and the map of packs does not change while threads mark, so they need no lock.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

use outrigger_format::{Footer, PackId, PackKind, Place};

use crate::error::{Error, Result};
use crate::meta::PackRow;

/// The bits of one pack.
pub(super) struct PackBits {
    pub kind: PackKind,
    chunks: u32,
    words: Box<[AtomicU64]>,
}

impl PackBits {
    fn new(kind: PackKind, chunks: u32) -> Self {
        Self { kind, chunks, words: (0..chunks.div_ceil(64)).map(|_| AtomicU64::new(0)).collect() }
    }

    /// True when the chunk in `slot` is in use.
    pub fn get(&self, slot: u32) -> bool {
        self.words
            .get(slot as usize / 64)
            .is_some_and(|word| word.load(Ordering::Relaxed) >> (slot % 64) & 1 == 1)
    }

    /// Chunks in use.
    pub fn count(&self) -> u32 {
        self.words.iter().map(|word| word.load(Ordering::Relaxed).count_ones()).sum()
    }

    /// True when all chunks are in use.
    pub fn is_full(&self) -> bool {
        self.count() == self.chunks
    }

    /// Bytes of the frames that are in use; if only some chunks of a frame are, their share of it.
    pub fn live_bytes(&self, footer: &Footer) -> u64 {
        let mut used = vec![0u64; footer.frames().len()];
        for slot in (0..self.chunks).filter(|&slot| self.get(slot)) {
            if let Some((frame, _)) = footer.position(slot) {
                used[frame as usize] += 1;
            }
        }
        let shares = (0..).zip(footer.frames()).zip(&used).map(|((number, frame), used)| {
            let range = footer.frame_range(number).unwrap_or(0..0);
            u64::from(range.end - range.start) * used / u64::from(frame.chunks)
        });
        shares.sum()
    }
}

/// The bits of all packs that count.
#[derive(Default)]
pub(super) struct Bits {
    packs: HashMap<PackId, PackBits>,
}

impl Bits {
    /// Makes space for `rows`; existing marks stay.
    pub fn admit(&mut self, rows: &[PackRow]) {
        for row in rows {
            self.packs.entry(row.id).or_insert_with(|| PackBits::new(row.kind, row.chunks));
        }
    }

    /// True when `pack` counts.
    pub fn has(&self, pack: PackId) -> bool {
        self.packs.contains_key(&pack)
    }

    /// The bits of `pack`.
    pub fn pack(&self, pack: PackId) -> Option<&PackBits> {
        self.packs.get(&pack)
    }

    /// Marks `place`; true when it was not marked before.
    pub fn set(&self, place: Place) -> Result<bool> {
        let word = self.packs.get(&place.pack).filter(|bits| place.slot < bits.chunks);
        let word = word.map(|bits| &bits.words[place.slot as usize / 64]).ok_or_else(|| {
            Error::damaged(format!("pack {}: it has more chunks than the database says", place.pack))
        })?;
        let bit = 1 << (place.slot % 64);
        Ok(word.fetch_or(bit, Ordering::Relaxed) & bit == 0)
    }

    /// Chunks in use in all packs.
    pub fn count(&self) -> u64 {
        self.packs.values().map(|bits| u64::from(bits.count())).sum()
    }

    /// Bytes of memory.
    pub fn memory(&self) -> usize {
        let each = size_of::<(PackId, PackBits)>();
        self.packs.values().map(|bits| each + bits.words.len() * 8).sum()
    }
}
