//! The fingerprint table, which says what fingerprints are known. The processor answers many
//! lookups at a time, and so does a device that has a copy of the table's bytes.
//!
//! It has two arrays. The *summary vector* is a blocked Bloom filter, which is checked first. With
//! one read of 32 bytes it ends most lookups of fingerprints that were never inserted. The *slots*,
//! open addressing in buckets of one cache line, answer the rest. Both arrays are plain words, so a
//! device needs only a copy of them ([`Table::slot_words`], [`Table::summary_words`]):
//!
//! ```text
//! a, b     = bytes 0..8 and 8..16 of the fingerprint, little-endian; the rest of it is not kept: a hit by 16 bytes is a hit
//! slot     = four u64: a, b, place, state (0 never used, 1 full, 2 removed)
//! bucket   = two slots, 64 bytes, aligned; there are B of them, a power of two
//! probe    = from bucket a mod B on, slot by slot; a slot never used ends it, after the last bucket comes the first
//! block    = eight u32, 32 bytes, aligned, of the summary vector; there is one for 16 slots, at least one, N in all
//! summary  = in block (a >> 32) mod N, word i has bit (b >> 5i) mod 32 set, for each fingerprint inserted, i = 0..8
//! ```
//!
//! Removing an entry marks its slot. A Bloom filter cannot forget, so the summary vector still
//! answers "perhaps" until [`Table::refresh`] rebuilds it, together with slots without marks. The
//! capacity is fixed, because a device's memory does not grow.
//!
//! Lookups run in batches of a few, in two passes. The first pass prefetches, so that the waits for
//! memory overlap.

mod file;
mod hot;
mod shim;
mod sketch;

#[cfg(test)]
mod tests;

pub use file::LoadError;
pub use hot::{HotOptions, HotTable, HotView, PackPlace, Refreshed, Whereabouts};
pub use sketch::{Hot, HotSketch};

use outrigger_format::Fingerprint;

use shim::{Block, Bucket};

/// Slots in a bucket.
const WIDTH: usize = 2;
/// Slots for each block of the summary vector.
const SLOTS_A_BLOCK: usize = 16;
/// Lookups in flight at a time. A core has fewer outstanding reads.
const BATCH: usize = 32;

const EMPTY: u64 = 0;
const FULL: u64 = 1;
const REMOVED: u64 = 2;

/// A slot, as the module describes.
type Slot = [u64; 4];

/// The table is full. The rest of the batch was not inserted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the fingerprint table holds {capacity} entries and is full; {inserted} of this batch were inserted")]
pub struct TableFull {
    /// The table's capacity.
    pub capacity: usize,
    /// How many entries of the batch, from the first on, were inserted or replaced.
    pub inserted: usize,
}

/// Maps fingerprints to numbers, which are opaque to the table.
///
/// ```
/// use outrigger_format::Fingerprint;
/// use outrigger_offload::table::Table;
/// let key = |byte| Fingerprint([byte; 32]);
/// let mut table = Table::with_capacity(1000);
/// table.insert_many(&[(key(1), 10), (key(2), 20)])?;
/// table.remove_many(&[key(1)]);
/// let mut places = Vec::new();
/// table.lookup_many(&[key(1), key(2), key(3)], &mut places);
/// assert_eq!(places, [None, Some(20), None]);
/// # Ok::<_, outrigger_offload::table::TableFull>(())
/// ```
#[derive(Clone)]
pub struct Table {
    buckets: Vec<Bucket>,
    blocks: Vec<Block>,
    /// The most entries.
    capacity: usize,
    len: usize,
    /// Slots marked as removed.
    removed: usize,
}

/// The part of a fingerprint that the table keeps.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Key {
    a: u64,
    b: u64,
}

impl Key {
    #[inline]
    fn new(fingerprint: &Fingerprint) -> Self {
        let words = fingerprint.0.as_chunks().0;
        Self { a: u64::from_le_bytes(words[0]), b: u64::from_le_bytes(words[1]) }
    }
}

impl Table {
    /// An empty table for `capacity` entries. Each of its slots takes 34 bytes. The number of slots
    /// is a power of two, and at least a third larger than `capacity`.
    pub fn with_capacity(capacity: usize) -> Self {
        // With a quarter of the slots free, probes stay short. At least one must be free, to end
        // them.
        let slots = (capacity + capacity / 3 + 2).next_power_of_two();
        let blocks = (slots / SLOTS_A_BLOCK).max(1);
        let (buckets, blocks) = (vec![Bucket::default(); slots / WIDTH], vec![Block::default(); blocks]);
        Self { buckets, blocks, capacity, len: 0, removed: 0 }
    }

    /// The most entries.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// The present entries.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if there are no entries.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The slots, four words each, as the module describes.
    pub fn slot_words(&self) -> &[u64] {
        shim::bucket_words(&self.buckets)
    }

    /// The summary vector, eight words for each block, as the module describes.
    pub fn summary_words(&self) -> &[u32] {
        shim::block_words(&self.blocks)
    }

    /// Inserts entries, or replaces the numbers of existing ones.
    ///
    /// # Errors
    /// [`TableFull`] if an entry does not fit. Those before it are inserted.
    pub fn insert_many(&mut self, entries: &[(Fingerprint, u64)]) -> Result<(), TableFull> {
        for (inserted, (fingerprint, place)) in entries.iter().enumerate() {
            if !self.insert(Key::new(fingerprint), *place) {
                return Err(TableFull { capacity: self.capacity, inserted });
            }
        }
        Ok(())
    }

    fn insert(&mut self, key: Key, place: u64) -> bool {
        let (found, free) = self.probe(key);
        if let Some(at) = found {
            self.slot_mut(at)[2] = place;
            return true;
        }
        if self.len == self.capacity {
            return false;
        }
        let mut free = free.expect("a slot is free: the table is not full");
        if self.slot_mut(free)[3] == REMOVED {
            self.removed -= 1;
        } else if self.len + self.removed >= self.limit() {
            // Marks have used up the free slots that keep probes short.
            self.refresh();
            free = self.probe(key).1.expect("a slot is free: refreshed");
        }
        *self.slot_mut(free) = [key.a, key.b, place, FULL];
        self.len += 1;
        self.summarise(key);
        true
    }

    /// The most slots that may be full or marked. It is less than all of them, so that probes end.
    fn limit(&self) -> usize {
        let slots = self.buckets.len() * WIDTH;
        slots - slots / 8 - 1
    }

    /// Removes entries and returns how many of them existed. Until [`Table::refresh`], the summary
    /// vector still answers "perhaps" for them.
    pub fn remove_many(&mut self, fingerprints: &[Fingerprint]) -> usize {
        let before = self.len;
        for fingerprint in fingerprints {
            if let (Some(at), _) = self.probe(Key::new(fingerprint)) {
                *self.slot_mut(at) = [0, 0, 0, REMOVED];
                self.len -= 1;
                self.removed += 1;
            }
        }
        before - self.len
    }

    /// Rebuilds the slots and the summary vector without removed entries. While it runs, the slots
    /// take twice their memory.
    pub fn refresh(&mut self) {
        let old = std::mem::take(&mut self.buckets);
        self.buckets = vec![Bucket::default(); old.len()];
        self.blocks.fill(Block::default());
        self.removed = 0;
        for &[a, b, place, state] in old.iter().flat_map(|bucket| &bucket.0) {
            if state == FULL {
                let key = Key { a, b };
                let free = self.probe(key).1.expect("as many slots as before");
                *self.slot_mut(free) = [a, b, place, FULL];
                self.summarise(key);
            }
        }
    }

    /// Removes all entries.
    pub fn clear(&mut self) {
        self.buckets.fill(Bucket::default());
        self.blocks.fill(Block::default());
        (self.len, self.removed) = (0, 0);
    }

    /// The number of one fingerprint, if it has an entry.
    pub fn get(&self, fingerprint: &Fingerprint) -> Option<u64> {
        let key = Key::new(fingerprint);
        if self.passes(key) { self.find(key) } else { None }
    }

    /// The answer of the summary vector. Always true for a fingerprint in the table. Seldom true
    /// for others, unless they were removed since the last refresh.
    pub fn may_hold(&self, fingerprint: &Fingerprint) -> bool {
        self.passes(Key::new(fingerprint))
    }

    /// Appends the number of each fingerprint, in their order. Allocates nothing apart from the
    /// growth of `out`.
    pub fn lookup_many(&self, fingerprints: &[Fingerprint], out: &mut Vec<Option<u64>>) {
        out.reserve(fingerprints.len());
        let mut passed = [false; BATCH];
        let mut batches = fingerprints.chunks(BATCH);
        // While this batch's slots arrive, the next batch's blocks are already requested.
        let first = batches.clone().next().unwrap_or(&[]);
        self.prefetch_blocks(first);
        while let Some(batch) = batches.next() {
            for (passed, fingerprint) in passed.iter_mut().zip(batch) {
                let key = Key::new(fingerprint);
                *passed = self.passes(key);
                if *passed {
                    shim::prefetch(&self.buckets, self.home(key));
                }
            }
            self.prefetch_blocks(batches.clone().next().unwrap_or(&[]));
            out.extend(
                batch.iter().zip(&passed).map(
                    |(fingerprint, &passed)| if passed { self.find(Key::new(fingerprint)) } else { None },
                ),
            );
        }
    }

    fn prefetch_blocks(&self, batch: &[Fingerprint]) {
        for fingerprint in batch {
            shim::prefetch(&self.blocks, self.block(Key::new(fingerprint)));
        }
    }

    #[inline]
    fn home(&self, key: Key) -> usize {
        key.a as usize & (self.buckets.len() - 1)
    }

    #[inline]
    fn block(&self, key: Key) -> usize {
        (key.a >> 32) as usize & (self.blocks.len() - 1)
    }

    #[inline]
    fn passes(&self, key: Key) -> bool {
        let wanted = bits(key);
        self.blocks[self.block(key)].0.iter().zip(wanted).all(|(word, bit)| word & bit != 0)
    }

    fn summarise(&mut self, key: Key) {
        let block = self.block(key);
        self.blocks[block].0.iter_mut().zip(bits(key)).for_each(|(word, bit)| *word |= bit);
    }

    #[inline]
    fn find(&self, key: Key) -> Option<u64> {
        let mut bucket = self.home(key);
        loop {
            for &[a, b, place, state] in &self.buckets[bucket].0 {
                if state == FULL && a == key.a && b == key.b {
                    return Some(place);
                }
                if state == EMPTY {
                    return None;
                }
            }
            bucket = (bucket + 1) & (self.buckets.len() - 1);
        }
    }

    /// The slot of a key if it exists, and the first slot that could take it.
    fn probe(&self, key: Key) -> (Option<usize>, Option<usize>) {
        let mut free = None;
        let mut bucket = self.home(key);
        for _ in 0..self.buckets.len() {
            for (n, &[a, b, _, state]) in self.buckets[bucket].0.iter().enumerate() {
                let at = bucket * WIDTH + n;
                match state {
                    FULL if a == key.a && b == key.b => return (Some(at), free),
                    FULL => {}
                    EMPTY => return (None, free.or(Some(at))),
                    _ => free = free.or(Some(at)),
                }
            }
            bucket = (bucket + 1) & (self.buckets.len() - 1);
        }
        (None, free)
    }

    fn slot_mut(&mut self, at: usize) -> &mut Slot {
        &mut self.buckets[at / WIDTH].0[at % WIDTH]
    }

    /// The entries in the order of the slots: the kept parts of each fingerprint, and its number.
    fn entries(&self) -> impl Iterator<Item = [u64; 3]> {
        let slots = self.buckets.iter().flat_map(|bucket| &bucket.0);
        slots.filter(|slot| slot[3] == FULL).map(|&[a, b, place, _]| [a, b, place])
    }
}

/// The bits of a key in its block of the summary vector, one a word.
#[inline]
fn bits(key: Key) -> [u32; 8] {
    std::array::from_fn(|word| 1 << (key.b >> (5 * word) & 31))
}

impl std::fmt::Debug for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Table of {} entries, {} at most", self.len, self.capacity)
    }
}
