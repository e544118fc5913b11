//! The chunk-boundary rule `gear32`: table, candidates, and the cut walk over them.
//!
//! It has two steps, so that the costly one runs anywhere. *Scanning* finds candidates: positions
//! whose hash of the last 32 bytes has zeros on top. It reads each byte once and depends only on
//! the 32 bytes before. So one loop, sixteen SIMD lanes and a GPU give the same result. *Walking*
//! picks chunk ends from the candidates in order ([`CutWalk`]). It reads one number for each
//! candidate, and no bytes.
//!
//! ```text
//! h(i)   = (h(i−1) << 1) + g[b(i)]  mod 2^32, from h = 0 before the first byte of the file
//! g[b]   = sum over k = 0..4 of  affineinv(b ^ C[k]) << 8k,   C = 1d 63 b7 f1
//! strict = the top a + 1 bits of h(i) are zero,  inline = the top a − 1 bits are,  where avg = 2^a
//! ```
//!
//! The table is computable: `affineinv` is the instruction GF2P8AFFINEINVQB, so sixteen lanes need
//! no gathers. These are on-disk semantics (`docs/format.md`, "Chunk boundaries"). A change here
//! would silently end deduplication against every existing store. The golden vectors at the end of
//! this file must never change.

use crate::ChunkerSpec;

/// `h` depends on this many bytes, its own and those before it.
pub const WINDOW: usize = 32;

/// The window of [`ChunkerSpec::Windowed`]: a candidate's hash covers this many bytes, its own and
/// those before it.
pub const WINDOWED: usize = 48;

/// The irreducible polynomial of degree 53 over GF(2) that is the modulus of Rabin fingerprints.
/// Bit `n` stands for `x^n`.
pub const RABIN_POLYNOMIAL: u64 = 0x003D_A335_8B4C_C173;

impl ChunkerSpec {
    /// The bytes before a segment that scanning needs to find all of its candidates. The beginning
    /// of a file has fewer. It is less than any minimum, so the bytes before a chunk do not affect
    /// where it ends.
    pub fn history_len(self) -> usize {
        match self {
            Self::Gear32 { .. } => WINDOW,
            Self::Windowed { .. } => WINDOWED - 1,
            Self::Fixed { .. } => 0,
        }
    }
}

/// The low bits of a window's hash that must all be one at a candidate of
/// [`ChunkerSpec::Windowed`]. (With zeros instead, a run of zero bytes, whose Rabin fingerprint is
/// 0, would be cut to pieces.)
///
/// ```
/// assert_eq!(outrigger_format::boundary::windowed_mask(8 << 10), 0x1fff);
/// ```
pub fn windowed_mask(avg: u32) -> u32 {
    avg.wrapping_sub(1)
}

/// The constant that each byte of a table entry xors into its index: see [`GEAR`].
pub const GEAR_XOR: [u8; 4] = [0x1d, 0x63, 0xb7, 0xf1];

/// The 8×8 bit matrix of [`GEAR`]. Its byte `7 − i` is row `i`, which makes bit `i` of a result.
pub const GEAR_MATRIX: u64 = 0xF1E3_C78F_1F3E_7CF8;

/// The table: byte `k` of `GEAR[b]` is `M · (b ^ C[k])^−1` in GF(2^8) mod x^8+x^4+x^3+x+1, where
/// `0^−1 = 0`.
pub static GEAR: [u32; 256] = gear_table();

/// The product in GF(2^8) modulo x^8 + x^4 + x^3 + x + 1 (AES's field).
pub const fn gf_mul(a: u8, b: u8) -> u8 {
    let (mut a, mut product, mut bit) = (a, 0, 0);
    while bit < 8 {
        if b >> bit & 1 == 1 {
            product ^= a;
        }
        a = (a << 1) ^ if a >> 7 == 1 { 0x1b } else { 0 };
        bit += 1;
    }
    product
}

/// The multiplicative inverse in that field, and 0 for 0: `x^254`.
pub const fn gf_inverse(x: u8) -> u8 {
    let (mut power, mut inverse, mut bit) = (x, 1, 1);
    while bit < 8 {
        power = gf_mul(power, power);
        inverse = gf_mul(inverse, power);
        bit += 1;
    }
    inverse
}

/// `M · x`: bit `i` of the result is the parity of `x` under row `i` of [`GEAR_MATRIX`].
pub const fn gear_affine(x: u8) -> u8 {
    let rows = GEAR_MATRIX.to_le_bytes();
    let (mut result, mut bit) = (0, 0);
    while bit < 8 {
        result |= ((rows[7 - bit] & x).count_ones() as u8 & 1) << bit;
        bit += 1;
    }
    result
}

const fn gear_table() -> [u32; 256] {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut k = 0;
        while k < 4 {
            table[byte] |= (gear_affine(gf_inverse(byte as u8 ^ GEAR_XOR[k])) as u32) << (8 * k);
            k += 1;
        }
        byte += 1;
    }
    table
}

/// The bits of `h` that must be zero at a candidate: runs of ones from the top, `strict` at least
/// as long as `inline`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GearMasks {
    /// The top `a − 1` bits, for an average of `2^a` bytes.
    pub inline: u32,
    /// The top `a + 1` bits.
    pub strict: u32,
}

impl GearMasks {
    /// The masks for chunks of `avg` bytes on average.
    ///
    /// # Panics
    /// Unless `avg` is a power of two from 4 to 2^30. [`ChunkerSpec::parse`] admits only 256 to 8
    /// Mi.
    ///
    /// ```
    /// use outrigger_format::boundary::GearMasks;
    /// assert_eq!(GearMasks::for_average(16 << 10), GearMasks { inline: 0xfff8_0000, strict: 0xfffe_0000 });
    /// ```
    pub fn for_average(avg: u32) -> Self {
        assert!(
            avg.is_power_of_two() && (4..=1 << 30).contains(&avg),
            "an average of {avg} bytes has no masks"
        );
        let bits = avg.trailing_zeros();
        Self { inline: !(u32::MAX >> (bits - 1)), strict: !(u32::MAX >> (bits + 1)) }
    }

    /// Packs a candidate in the form of a scan: `position << 1 | strict`.
    #[inline]
    pub fn candidate(self, position: usize, h: u32) -> u32 {
        (position as u32) << 1 | u32::from(h & self.strict == 0)
    }
}

/// `h` after the last byte of `history`, with which a scan of the next bytes begins. Only the last
/// [`WINDOW`] bytes matter. Only at the beginning of a file may `history` be shorter.
#[inline]
pub fn warm_up(history: &[u8]) -> u32 {
    let window = &history[history.len().saturating_sub(WINDOW)..];
    window.iter().fold(0u32, |h, &byte| (h << 1).wrapping_add(GEAR[byte as usize]))
}

/// The reference scan: appends every inline candidate in `data` to `out`, ascending, as `position
/// << 1 | strict` with positions relative to `data`. `history` holds at least the last [`WINDOW`]
/// bytes before `data` in the file, or all bytes if there are fewer. All other scans give the same
/// numbers.
///
/// # Panics
/// If `data` has 2^31 bytes or more.
///
/// ```
/// use outrigger_format::boundary::{GearMasks, scan_reference};
/// let (data, masks) = ([7; 100], GearMasks::for_average(256));
/// let (mut whole, mut rest) = (Vec::new(), Vec::new());
/// scan_reference(&[], &data, masks, &mut whole);
/// scan_reference(&data[..40], &data[40..], masks, &mut rest);
/// whole.retain(|&candidate| candidate >> 1 >= 40);
/// assert_eq!(whole, rest.iter().map(|candidate| candidate + (40 << 1)).collect::<Vec<_>>());
/// ```
pub fn scan_reference(history: &[u8], data: &[u8], masks: GearMasks, out: &mut Vec<u32>) {
    assert!(data.len() < 1 << 31, "a segment has less than 2^31 bytes");
    let mut h = warm_up(history);
    for (position, &byte) in data.iter().enumerate() {
        h = (h << 1).wrapping_add(GEAR[byte as usize]);
        if h & masks.inline == 0 {
            out.push(masks.candidate(position, h));
        }
    }
}

/// The sequential walk that turns a file's candidates into chunk ends. Callers feed it segment by
/// segment.
///
/// Let `L` be the length of the open chunk if it ended after the present byte. It ends there if
/// that byte is
///
/// * a strict candidate and `min < L ≤ avg`, or
/// * a inline candidate (every strict one is inline) and `avg < L < max`, or
/// * anything, and `L = max`, or the file ends.
///
/// Fixed chunking is the walk without candidates. Windowed chunking is the walk with only strict
/// candidates and `avg = max`. The ends do not depend on how a file is split into segments.
///
/// ```
/// use outrigger_format::{ChunkerSpec, boundary::CutWalk};
/// let mut walk = CutWalk::new(ChunkerSpec::Fixed { size: 512 });
/// let mut ends = Vec::new();
/// walk.feed(700, &[], &mut ends);
/// walk.feed(400, &[], &mut ends);
/// assert_eq!((ends, walk.finish()), (vec![512, 1024], Some(1100)));
/// ```
#[derive(Clone, Debug)]
pub struct CutWalk {
    min: u64,
    norm: u64,
    max: u64,
    /// The beginning of the open chunk, which is the last end.
    start: u64,
    /// Bytes fed so far.
    total: u64,
}

impl CutWalk {
    /// A walk at the beginning of a file.
    ///
    /// # Panics
    /// If the chunk size is 0, which [`ChunkerSpec::parse`] does not admit.
    pub fn new(spec: ChunkerSpec) -> Self {
        let (min, norm, max) = match spec {
            ChunkerSpec::Gear32 { min, avg, max } => (min, avg, max),
            ChunkerSpec::Fixed { size } => (size, size, size),
            // All of its candidates are strict, so the norm has no effect.
            ChunkerSpec::Windowed { min, max, .. } => (min, max, max),
        };
        assert!(max > 0, "chunks have at least one byte");
        Self { min: min.into(), norm: norm.into(), max: max.into(), start: 0, total: 0 }
    }

    /// Takes the next `segment_len` bytes of the file. `candidates` are ascending, as from
    /// [`scan_reference`]. Appends to `ends` the absolute offset of each chunk end within the
    /// segment, even at its last byte. The open chunk continues in the next segment.
    ///
    /// # Panics
    /// Debug builds check that candidates lie in the segment.
    pub fn feed(&mut self, segment_len: usize, candidates: &[u32], ends: &mut Vec<u64>) {
        let base = self.total;
        self.total += segment_len as u64;
        for &candidate in candidates {
            debug_assert!(
                ((candidate >> 1) as usize) < segment_len,
                "candidate {candidate} beyond {segment_len} bytes"
            );
            let (end, strict) = (base + u64::from(candidate >> 1) + 1, candidate & 1 == 1);
            // If candidates are further apart than `max`, forced cuts come first.
            while end - self.start > self.max {
                self.cut(self.start + self.max, ends);
            }
            let len = end - self.start;
            if len > self.norm || (strict && len > self.min) {
                self.cut(end, ends);
            }
        }
        while self.total - self.start >= self.max {
            self.cut(self.start + self.max, ends);
        }
    }

    /// Takes the next `segment_len` bytes of the file, whose ends another walk over the same bytes
    /// has found. `last_end` is the last of them, if any. Once two walks have ended a chunk at the
    /// same place, all their later ends are equal, wherever each began.
    ///
    /// # Panics
    /// Debug builds check that the end lies in the segment.
    pub fn follow(&mut self, segment_len: usize, last_end: Option<u64>) {
        let base = self.total;
        self.total += segment_len as u64;
        if let Some(end) = last_end {
            debug_assert!(base < end && end <= self.total, "the end {end} beyond the segment");
            self.start = end;
        }
    }

    /// Ends the file. Returns the end of its last chunk if bytes are left. The walk is then ready
    /// for a new file.
    pub fn finish(&mut self) -> Option<u64> {
        let last = (self.total > self.start).then_some(self.total);
        (self.start, self.total) = (0, 0);
        last
    }

    fn cut(&mut self, end: u64, ends: &mut Vec<u64>) {
        ends.push(end);
        self.start = end;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checksum;
    use proptest::prelude::*;

    /// The golden vectors' generator (xorshift64*), in full here so that no dependency can change
    /// it.
    fn golden_bytes(seed: u64, len: usize) -> Vec<u8> {
        let mut state = seed;
        let mut bytes = Vec::with_capacity(len + 8);
        while bytes.len() < len {
            state ^= state >> 12;
            state ^= state << 25;
            state ^= state >> 27;
            bytes.extend_from_slice(&state.wrapping_mul(0x2545_f491_4f6c_dd1d).to_le_bytes());
        }
        bytes.truncate(len);
        bytes
    }

    fn cut(spec: ChunkerSpec, data: &[u8], segments: impl IntoIterator<Item = usize>) -> Vec<u64> {
        let masks = GearMasks::for_average(match spec {
            ChunkerSpec::Gear32 { avg, .. } => avg,
            ChunkerSpec::Fixed { .. } => 1 << 30,
            ChunkerSpec::Windowed { .. } => unreachable!("cut by gear32 or blocks here"),
        });
        let (mut walk, mut ends, mut candidates, mut done) = (CutWalk::new(spec), Vec::new(), Vec::new(), 0);
        for len in segments.into_iter().chain([usize::MAX]) {
            let next = done + len.min(data.len() - done);
            candidates.clear();
            scan_reference(&data[..done], &data[done..next], masks, &mut candidates);
            walk.feed(next - done, &candidates, &mut ends);
            done = next;
        }
        ends.extend(walk.finish());
        ends
    }

    /// The rule in the words of `docs/format.md`, byte by byte, without candidates or segments.
    fn cut_by_the_book(spec: ChunkerSpec, data: &[u8]) -> Vec<u64> {
        let ChunkerSpec::Gear32 { min, avg, max } = spec else { panic!("gear32 only") };
        let top_bits_zero = |h: u32, bits: u32| h >> (32 - bits) == 0;
        let (a, mut h, mut len, mut ends) = (avg.trailing_zeros(), 0u32, 0, Vec::new());
        for (i, &byte) in data.iter().enumerate() {
            h = h.wrapping_mul(2).wrapping_add(GEAR[byte as usize]);
            len += 1;
            let strict = top_bits_zero(h, a + 1) && min < len && len <= avg;
            let inline = top_bits_zero(h, a - 1) && avg < len;
            if strict || inline || len == max || i + 1 == data.len() {
                ends.push(i as u64 + 1);
                len = 0;
            }
        }
        ends
    }

    #[test]
    fn table_is_what_the_instruction_computes() {
        assert_eq!([GEAR[0], GEAR[1], GEAR[0x61], GEAR[0xff]], GOLDEN_TABLE);
        let bytes: Vec<u8> = GEAR.iter().flat_map(|entry| entry.to_le_bytes()).collect();
        assert_eq!(checksum(&[&bytes]), GOLDEN_TABLE_CHECKSUM);
        for byte in 1..=255 {
            assert_eq!(gf_mul(byte, gf_inverse(byte)), 1);
        }
        for k in 0..4 {
            let mut column: Vec<u8> = GEAR.iter().map(|entry| entry.to_le_bytes()[k]).collect();
            column.sort_unstable();
            assert!(
                column.iter().enumerate().all(|(i, &value)| i == value as usize),
                "column {k} is a permutation"
            );
        }
    }

    #[test]
    fn golden_candidates_and_cuts() {
        let data = golden_bytes(0x4f75_7472_6967_6765, 1 << 20);
        let spec = ChunkerSpec::DEFAULT;
        let mut candidates = Vec::new();
        scan_reference(&[], &data, GearMasks::for_average(16 << 10), &mut candidates);
        let bytes: Vec<u8> = candidates.iter().flat_map(|candidate| candidate.to_le_bytes()).collect();
        assert_eq!((candidates.len(), checksum(&[&bytes])), GOLDEN_CANDIDATES);
        assert_eq!(cut(spec, &data, []), GOLDEN_CUTS);
        assert_eq!(cut_by_the_book(spec, &data), GOLDEN_CUTS);
    }

    #[test]
    fn limits_are_exact() {
        let spec = ChunkerSpec::Gear32 { min: 64, avg: 256, max: 1024 };
        let ends = |len: usize, candidates: &[(usize, bool)]| {
            let packed: Vec<u32> =
                candidates.iter().map(|&(at, strict)| (at as u32) << 1 | u32::from(strict)).collect();
            let (mut walk, mut ends) = (CutWalk::new(spec), Vec::new());
            walk.feed(len, &packed, &mut ends);
            ends.extend(walk.finish());
            ends
        };
        assert_eq!(ends(0, &[]), []);
        assert_eq!(ends(1, &[(0, true)]), [1]);
        assert_eq!(ends(200, &[(63, true)]), [200], "a chunk of min bytes does not end");
        assert_eq!(ends(200, &[(64, true)]), [65, 200], "one of min + 1 does");
        assert_eq!(
            ends(300, &[(100, false), (255, false)]),
            [300],
            "loose candidates do not count up to avg"
        );
        assert_eq!(ends(300, &[(255, true)]), [256, 300]);
        assert_eq!(ends(300, &[(256, false)]), [257, 300]);
        assert_eq!(ends(1024, &[]), [1024]);
        assert_eq!(ends(1025, &[]), [1024, 1025]);
        assert_eq!(
            ends(1100, &[(1023, false), (1030, true)]),
            [1024, 1100],
            "what max cut starts a new chunk"
        );
        assert_eq!(ends(5000, &[(4000, true)]), [1024, 2048, 3072, 4001, 5000]);
    }

    proptest! {
        #[test]
        fn segments_do_not_matter(
            seed in 1u64..,
            len in 0usize..20_000,
            alphabet in prop_oneof![Just(1u8), Just(2), Just(255)],
            segments in proptest::collection::vec(prop_oneof![0usize..70, 0usize..5000], 0..20),
            avg in 8u32..12,
        ) {
            let data: Vec<u8> = golden_bytes(seed, len).iter().map(|byte| byte % alphabet).collect();
            let spec = ChunkerSpec::Gear32 { min: 1 << (avg - 2), avg: 1 << avg, max: 4 << avg };
            let expected = cut_by_the_book(spec, &data);
            prop_assert_eq!(&cut(spec, &data, []), &expected);
            prop_assert_eq!(&cut(spec, &data, segments.iter().copied()), &expected);
            let fixed = ChunkerSpec::Fixed { size: 512 };
            prop_assert_eq!(cut(fixed, &data, []), cut(fixed, &data, segments));
        }

        #[test]
        fn an_insertion_changes_boundaries_near_it_only(seed in 1u64.., at in 0usize..60_000, inserted in 1usize..50) {
            let data = golden_bytes(seed, 60_000);
            let mut changed = data.clone();
            changed.splice(at..at, golden_bytes(!seed, inserted));
            let spec = ChunkerSpec::Gear32 { min: 64, avg: 256, max: 1024 };
            let (before, after) = (cut(spec, &data, []), cut(spec, &changed, []));
            let same_head = before.iter().zip(&after).take_while(|(a, b)| a == b).count();
            let same_tail = before.iter().rev().zip(after.iter().rev()).take_while(|(a, b)| **a + inserted as u64 == **b);
            prop_assert!(before.len() - same_head - same_tail.count().min(before.len() - same_head) < 40);
        }
    }

    const GOLDEN_TABLE: [u32; 4] = [0xc2ca_98c7, 0xef2d_c9ff, 0x0395_1473, 0xc831_bdfb];
    const GOLDEN_TABLE_CHECKSUM: u64 = 0x65b0_adc3_9c18_c133;
    const GOLDEN_CANDIDATES: (usize, u64) = (139, 0xdc8d_d1a5_106b_586e);
    const GOLDEN_CUTS: &[u64] = &[
        18494, 49608, 74904, 91651, 113740, 134631, 154321, 183772, 203154, 237420, 243067, 272911, 290686,
        300520, 334310, 356369, 378763, 398810, 411156, 429598, 436149, 453438, 471866, 490479, 519451,
        545712, 562290, 583510, 606526, 613368, 624982, 644805, 661495, 672418, 683455, 703026, 722873,
        747812, 792487, 804445, 820328, 840301, 853333, 878075, 932730, 938893, 971407, 987428, 1004252,
        1010211, 1038750, 1048576,
    ];
}
