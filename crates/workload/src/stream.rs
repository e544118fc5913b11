//! A stream of bytes that repeats itself and compresses as much as requested.
//!
//! The stream is a row of segments. Each is new, or (at the requested rate) equal to an earlier
//! one. Its bytes depend only on its number, so a repeat is generated again and nothing is stored.
//! Within a segment, cells of 512 bytes begin with a pattern that compresses away and end in random
//! bytes.

use std::io::{self, Read};

use crate::Rng;

const CELL: usize = 512;
const PATTERN: usize = 64;
/// Random bytes at the head of every segment: two new segments differ even if everything else
/// compresses away.
const LABEL: usize = 16;

/// Options of [`Stream`]. Rates are clamped to `0.0..=1.0`; the segment to at least 64 bytes.
#[derive(Clone, Debug, PartialEq)]
pub struct StreamOptions {
    /// Chooses the bytes.
    pub seed: u64,
    /// Bytes in all.
    pub len: u64,
    /// The share of segments that repeat an earlier one.
    pub dedup_rate: f64,
    /// The share of every new segment that a general compressor removes (zstd comes within a few
    /// percent).
    pub compressibility: f64,
    /// Bytes per segment. A content-defined chunker finds the repeats if its chunks are several
    /// times smaller; the paper's fixed blocks find them if it is a multiple of theirs.
    pub segment: usize,
}

/// The reader made by [`stream`].
#[derive(Debug)]
pub struct Stream {
    seed: u64,
    left: u64,
    repeat_permille: u64,
    patterned: usize,
    decide: Rng,
    /// How many different segments there have been.
    made: u64,
    buffer: Vec<u8>,
    at: usize,
}

/// The stream of `seed`: `len` bytes in segments of `segment` bytes, of which `dedup_rate` (0.0 to
/// 1.0) repeat an earlier one, and of which `compressibility` (0.0 to 1.0) compresses away.
///
/// ```
/// use std::io::Read;
/// let mut bytes = Vec::new();
/// outrigger_workload::stream(7, 100_000, 0.5, 0.5, 8192).read_to_end(&mut bytes).unwrap();
/// assert_eq!(bytes.len(), 100_000);
/// ```
pub fn stream(seed: u64, len: u64, dedup_rate: f64, compressibility: f64, segment: usize) -> Stream {
    Stream::new(&StreamOptions { seed, len, dedup_rate, compressibility, segment })
}

impl Stream {
    /// The stream that `options` describe.
    pub fn new(options: &StreamOptions) -> Self {
        let segment = options.segment.max(PATTERN);
        Self {
            seed: options.seed,
            left: options.len,
            repeat_permille: (options.dedup_rate.clamp(0.0, 1.0) * 1000.0) as u64,
            patterned: (options.compressibility.clamp(0.0, 1.0) * CELL as f64) as usize,
            decide: Rng::part(options.seed, u64::MAX),
            made: 0,
            at: segment,
            buffer: vec![0; segment],
        }
    }

    fn next_segment(&mut self) {
        let repeats = self.decide.permille(self.repeat_permille) && self.made > 0;
        let number = if repeats { self.decide.below(self.made) } else { self.made };
        if !repeats {
            self.made += 1;
        }
        let mut rng = Rng::part(self.seed, number);
        let mut pattern = [0u8; PATTERN];
        Rng::part(self.seed, u64::MAX - 1).fill(&mut pattern);
        for cell in self.buffer.chunks_mut(CELL) {
            let (front, back) = cell.split_at_mut(self.patterned.min(cell.len()));
            front.chunks_mut(PATTERN).for_each(|piece| piece.copy_from_slice(&pattern[..piece.len()]));
            rng.fill(back);
        }
        rng.fill(&mut self.buffer[..LABEL]);
        self.at = 0;
    }
}

impl Read for Stream {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let mut done = 0;
        while done < out.len() && self.left > 0 {
            if self.at == self.buffer.len() {
                self.next_segment();
            }
            let fits = (out.len() - done).min(self.buffer.len() - self.at);
            let take = usize::try_from(self.left).map_or(fits, |left| left.min(fits));
            out[done..done + take].copy_from_slice(&self.buffer[self.at..self.at + take]);
            self.at += take;
            self.left -= take as u64;
            done += take;
        }
        Ok(done)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn bytes(seed: u64, len: u64, dedup: f64, compress: f64, segment: usize) -> Vec<u8> {
        let mut out = Vec::new();
        stream(seed, len, dedup, compress, segment).read_to_end(&mut out).unwrap();
        out
    }

    #[test]
    fn the_bytes_of_a_seed_never_change() {
        let hash = blake3::hash(&bytes(1, 1_000_003, 0.3, 0.5, 8192)).to_hex();
        assert_eq!(&hash.as_str()[..32], "f4da5959c84294e59b67db63180d4de1");
        let hash = blake3::hash(&bytes(2, 70_001, 0.0, 1.0, 1000)).to_hex();
        assert_eq!(&hash.as_str()[..32], "1f857bc51f4dcc044eb9ca343685c912");
    }

    #[test]
    fn small_reads_see_the_same_bytes() {
        let whole = bytes(5, 50_000, 0.5, 0.5, 4096);
        let (mut source, mut got, mut piece) = (stream(5, 50_000, 0.5, 0.5, 4096), Vec::new(), [0u8; 77]);
        loop {
            let n = source.read(&mut piece).unwrap();
            if n == 0 {
                break;
            }
            got.extend_from_slice(&piece[..n]);
        }
        assert_eq!(got, whole);
    }

    #[test]
    fn segments_repeat_at_the_asked_rate() {
        for (rate, low, high) in [(0.0, 1000, 1000), (0.5, 450, 550), (0.9, 70, 130), (1.0, 1, 1)] {
            let data = bytes(8, 1000 * 256, rate, 1.0, 256);
            let unique = data.chunks(256).collect::<BTreeSet<_>>().len();
            assert!((low..=high).contains(&unique), "rate {rate}: {unique} different of 1000");
        }
    }

    #[test]
    fn cells_hold_the_asked_share_of_random_bytes() {
        let data = bytes(8, 1 << 20, 0.0, 0.75, 65536);
        let pattern = &data[LABEL + PATTERN - LABEL..2 * PATTERN];
        let same = data.chunks(PATTERN).filter(|piece| *piece == pattern).count();
        let share = same as f64 * PATTERN as f64 / data.len() as f64;
        assert!((0.74..=0.76).contains(&share), "{share}");
    }
}
