//! A computation that is stopped now and then to be saved: it searches a database for stretches of
//! a growing collection of DNA reads.
//!
//! It does real work on its own memory: a read-only database, a read-only index of it, a table of
//! counters that is written in random places, and a growing list of hits. In [`Search::image`]
//! these lie one after the other as in a process, with the growing list *in front* of the constant
//! parts. So from image to image most bytes stay the same, but most of them move.

use crate::Rng;

/// Letters of a stretch; two bits each.
const STRETCH: usize = 12;
/// The database has one byte for so many bytes of an image.
const SHARE: usize = 16;

/// The computation. It takes the same steps everywhere, for ever.
///
/// ```
/// let mut search = outrigger_workload::Search::new(1, 1 << 20);
/// let before = search.image();
/// search.work(100);
/// assert!(search.image().len() > before.len());
/// ```
#[derive(Clone, Debug)]
pub struct Search {
    rng: Rng,
    /// Four letters per byte.
    database: Vec<u8>,
    /// For each hash of a stretch, its last place, plus one.
    index: Vec<u32>,
    /// How often each place was hit.
    counts: Vec<u32>,
    /// Hits: read, place, length.
    hits: Vec<u32>,
    reads: u32,
}

impl Search {
    /// A search whose images have about `bytes` bytes at first.
    pub fn new(seed: u64, bytes: usize) -> Self {
        let mut database = vec![0; bytes / SHARE * 8];
        Rng::part(seed, 1).fill(&mut database);
        let slots = (bytes / SHARE).next_power_of_two() / 2;
        let mut search = Self {
            rng: Rng::part(seed, 2),
            database,
            index: vec![0; slots.max(64)],
            counts: vec![0; (bytes / SHARE / 2).max(1)],
            hits: Vec::new(),
            reads: 0,
        };
        for at in (0..search.letters() - STRETCH).step_by(STRETCH) {
            let slot = search.slot(search.stretch(at));
            search.index[slot] = at as u32 + 1;
        }
        search
    }

    /// Takes so many more reads: each is a part of the database with a few letters changed, or
    /// noise.
    pub fn work(&mut self, reads: u32) {
        for _ in 0..reads {
            let length = self.rng.between(60, 240) as usize;
            let start = self.rng.below((self.letters() - length) as u64) as usize;
            let foreign = self.rng.permille(300);
            let mut stretch: u32 = 0;
            for at in 0..length {
                let changed = foreign || self.rng.permille(20);
                let letter = if changed { self.rng.below(4) as u32 } else { self.letter(start + at) };
                stretch = (stretch << 2 | letter) & ((1 << (2 * STRETCH)) - 1);
                if at + 1 < STRETCH {
                    continue;
                }
                let found = self.index[self.slot(stretch)];
                if found > 0 && self.stretch(found as usize - 1) == stretch {
                    let place = (found as usize - 1) / STRETCH % self.counts.len();
                    self.counts[place] += 1;
                    if self.counts[place].is_power_of_two() {
                        self.hits.extend([self.reads, found - 1, at as u32]);
                    }
                }
            }
            self.reads += 1;
        }
    }

    /// Its memory, as it is saved.
    pub fn image(&self) -> Vec<u8> {
        let mut image = Vec::with_capacity(self.database.len() + 4 * (self.index.len() + self.hits.len()));
        image.extend_from_slice(&self.reads.to_le_bytes());
        let words = |words: &[u32], image: &mut Vec<u8>| {
            words.iter().for_each(|word| image.extend_from_slice(&word.to_le_bytes()));
        };
        words(&self.counts, &mut image);
        words(&self.hits, &mut image);
        words(&self.index, &mut image);
        image.extend_from_slice(&self.database);
        image
    }

    fn letters(&self) -> usize {
        self.database.len() * 4
    }

    fn letter(&self, at: usize) -> u32 {
        u32::from(self.database[at / 4] >> (at % 4 * 2) & 3)
    }

    fn stretch(&self, at: usize) -> u32 {
        (at..at + STRETCH).fold(0, |stretch, at| stretch << 2 | self.letter(at))
    }

    fn slot(&self, stretch: u32) -> usize {
        (stretch.wrapping_mul(0x9E37_79B1) >> 7) as usize & (self.index.len() - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_images_of_a_seed_never_change() {
        let mut search = Search::new(1, 300_000);
        let mut hasher = blake3::Hasher::new();
        for _ in 0..3 {
            hasher.update(&search.image());
            search.work(200);
        }
        assert_eq!(&hasher.finalize().to_hex().as_str()[..32], "d9f90d4882160f8780086aee88c03966");
    }

    #[test]
    fn what_does_not_change_moves() {
        let mut search = Search::new(2, 300_000);
        search.work(50);
        let before = search.image();
        search.work(50);
        let after = search.image();
        let tail = 100_000;
        assert_eq!(before[before.len() - tail..], after[after.len() - tail..]);
        assert!(after.len() > before.len() && after.len() < before.len() + before.len() / 2);
    }
}
