//! The fingerprint table: which of the fingerprints at hand are known, answered many at a time, by the processor or by a device that
//! has the same bytes.
//!
//! Two arrays. The *summary vector*, a blocked Bloom filter, is asked first and ends most questions about what was never seen; it
//! takes one read of 32 bytes. The *slots*, open addressing in buckets of one cache line, answer the rest. Both are plain words, so a copy
//! of each is all that a device needs ([`Table::slot_words`], [`Table::summary_words`]):
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
//! Removing marks a slot; a Bloom filter cannot forget, so the summary vector goes on answering "perhaps" until
//! [`Table::refresh`] rebuilds it, and the slots without the marks, too. The capacity is fixed: a device's memory does not grow.
//!
//! A batch of lookups runs in two passes over a few questions at a time: the first prefetches, so that the waits for memory overlap.

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
/// Questions in flight at a time: more than a core has outstanding reads.
const BATCH: usize = 32;

const EMPTY: u64 = 0;
const FULL: u64 = 1;
const REMOVED: u64 = 2;

/// One of the slots; see the module.
type Slot = [u64; 4];

/// The table is full: nothing of what was left over was inserted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the fingerprint table holds {capacity} entries and is full; {inserted} of this batch were inserted")]
pub struct TableFull {
    /// Entries that fit.
    pub capacity: usize,
    /// Entries of the batch that were inserted (or replaced) before it was full: the first so many.
    pub inserted: usize,
}

/// Fingerprints and what is known of each: a number, which is opaque to the table.
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
    /// Entries that fit.
    capacity: usize,
    len: usize,
    /// Slots marked as removed.
    removed: usize,
}

/// What the table keeps of a fingerprint.
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
    /// An empty table for `capacity` entries. It takes 34 bytes for each of its slots, of which there are at least a third more than
    /// entries, and a power of two.
    pub fn with_capacity(capacity: usize) -> Self {
        // Probes stay short while a quarter of the slots is free; and one at least must be, to end them.
        let slots = (capacity + capacity / 3 + 2).next_power_of_two();
        let blocks = (slots / SLOTS_A_BLOCK).max(1);
        let (buckets, blocks) = (vec![Bucket::default(); slots / WIDTH], vec![Block::default(); blocks]);
        Self { buckets, blocks, capacity, len: 0, removed: 0 }
    }

    /// Entries that fit.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Entries there.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The slots, four words each: see the module.
    pub fn slot_words(&self) -> &[u64] {
        shim::bucket_words(&self.buckets)
    }

    /// The summary vector, eight words a block: see the module.
    pub fn summary_words(&self) -> &[u32] {
        shim::block_words(&self.blocks)
    }

    /// Inserts entries, or replaces the numbers of those that are there.
    ///
    /// # Errors
    /// [`TableFull`] when one does not fit; those before it are inserted.
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

    /// Slots that may be in use or marked: never all of them, or a probe would not end.
    fn limit(&self) -> usize {
        let slots = self.buckets.len() * WIDTH;
        slots - slots / 8 - 1
    }

    /// Removes entries; returns how many of them were there. The summary vector still lets questions about them pass, until
    /// [`Table::refresh`].
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

    /// Rebuilds slots and summary vector from the entries there, without what was removed. Takes the memory of the slots once more
    /// while it runs.
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

    /// Removes everything.
    pub fn clear(&mut self) {
        self.buckets.fill(Bucket::default());
        self.blocks.fill(Block::default());
        (self.len, self.removed) = (0, 0);
    }

    /// What is known of one fingerprint.
    pub fn get(&self, fingerprint: &Fingerprint) -> Option<u64> {
        let key = Key::new(fingerprint);
        if self.passes(key) { self.find(key) } else { None }
    }

    /// Whether the summary vector lets a question about this fingerprint pass: always, if it is in the table; seldom, if it was not
    /// there since the last refresh.
    pub fn may_hold(&self, fingerprint: &Fingerprint) -> bool {
        self.passes(Key::new(fingerprint))
    }

    /// Appends what is known of each fingerprint, in their order. Allocates nothing but what `out` grows by.
    pub fn lookup_many(&self, fingerprints: &[Fingerprint], out: &mut Vec<Option<u64>>) {
        out.reserve(fingerprints.len());
        let mut passed = [false; BATCH];
        let mut batches = fingerprints.chunks(BATCH);
        // The blocks of the next batch are on their way while the slots of this one are.
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

    /// The slot of a key, or else the first one that it could be put in.
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

    /// The entries, in the order of the slots: what is kept of each fingerprint, and its number.
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
