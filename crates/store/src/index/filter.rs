//! The summary vector: a blocked Bloom filter that says "never seen" without touching the disk.
//!
//! The *high* bits of a key's prefix choose its 64-byte block (`prefix × blocks >> 64`). So a
//! stream of sorted prefixes fills the filter from its beginning to its end, and a merge writes it
//! once, in order. Prefixes are bytes of a cryptographic hash, so the blocks are as evenly filled
//! as by any other choice. Within its block a key sets one bit in each of the eight words: word i
//! has bit `m >> (16 + 6i) & 63`, `m = (p ^ p >> 32) × C mod 2^64`. A test costs one cache line and
//! no branch. At 10 bits a key about 1.0 % of absent keys pass, at 11 bits 0.7 %, at 12 bits 0.4 %.

use super::prefetch::prefetch;

const MIX: u64 = 0xd6e8_feb8_6659_fd93;

#[derive(Clone, Copy, Default)]
#[repr(align(64))]
struct Block([u64; 8]);

/// Bits per key for a run of `entries`. A false positive costs the same probe in every run. So
/// small runs, whose filters cost little, get more bits: a store with many runs then pays about as
/// much as its largest run alone would cost.
pub(super) fn bits_per_key(entries: u64) -> u64 {
    match entries {
        0..0x20_0000 => 18,
        0x20_0000..0x80_0000 => 14,
        0x80_0000..0x200_0000 => 12,
        _ => 11,
    }
}

/// The filter of one run; see the module's header.
pub(super) struct Filter {
    blocks: Vec<Block>,
}

impl Filter {
    /// An empty filter for `entries` keys.
    pub fn new(entries: u64) -> Self {
        let blocks = (entries * bits_per_key(entries)).div_ceil(512).max(1);
        Self::with_blocks(blocks as usize)
    }

    /// An empty filter of `blocks` blocks, at least 1, whose words are set by [`Filter::set_word`].
    pub fn with_blocks(blocks: usize) -> Self {
        Self { blocks: vec![Block::default(); blocks] }
    }

    /// Sets word `at`, counted as [`Filter::words`] yields them.
    pub fn set_word(&mut self, at: usize, word: u64) {
        self.blocks[at / 8].0[at % 8] = word;
    }

    /// Its words, in the order of the file.
    pub fn words(&self) -> impl Iterator<Item = u64> + '_ {
        self.blocks.iter().flat_map(|block| block.0)
    }

    /// Bytes of memory, and of the file.
    pub fn memory(&self) -> usize {
        self.blocks.len() * size_of::<Block>()
    }

    /// Adds a key.
    pub fn insert(&mut self, prefix: u64) {
        let (at, mixed) = (self.block(prefix), mix(prefix));
        for (i, word) in self.blocks[at].0.iter_mut().enumerate() {
            *word |= 1 << (mixed >> (16 + 6 * i) & 63);
        }
    }

    /// False when the key was never added.
    #[inline]
    pub fn contains(&self, prefix: u64) -> bool {
        let (block, mixed) = (&self.blocks[self.block(prefix)], mix(prefix));
        let hits =
            block.0.iter().enumerate().fold(1, |all, (i, word)| all & word >> (mixed >> (16 + 6 * i) & 63));
        hits & 1 == 1
    }

    /// Starts loading the key's block.
    #[inline]
    pub fn prefetch(&self, prefix: u64) {
        prefetch(&self.blocks[self.block(prefix)]);
    }

    #[inline]
    fn block(&self, prefix: u64) -> usize {
        ((u128::from(prefix) * self.blocks.len() as u128) >> 64) as usize
    }
}

#[inline]
fn mix(prefix: u64) -> u64 {
    (prefix ^ prefix >> 32).wrapping_mul(MIX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::index::tests::Rng;

    #[test]
    fn no_key_is_missed_and_about_one_percent_of_others_pass() {
        let mut rng = Rng(7);
        let keys: Vec<u64> = (0..100_000).map(|_| rng.next()).collect();
        let mut filter = Filter::with_blocks(keys.len() * 10 / 512);
        keys.iter().for_each(|&key| filter.insert(key));
        assert!(keys.iter().all(|&key| filter.contains(key)));
        let passed = (0..100_000).filter(|_| filter.contains(rng.next())).count();
        assert!((500..1500).contains(&passed), "{passed} of 100000");
        let mut read = Filter::with_blocks(filter.memory() / 64);
        filter.words().enumerate().for_each(|(at, word)| read.set_word(at, word));
        assert!(keys.iter().all(|&key| read.contains(key)));
    }
}
