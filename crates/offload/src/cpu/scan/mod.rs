//! Finds boundary candidates: a fast `outrigger_format::boundary::scan_reference`.
//!
//! One hash is a chain of dependent additions, so speed comes from several hashes at once. A block
//! of the input is split into one stretch for each lane. Since the hash forgets after 32 bytes,
//! each lane starts 32 bytes before its stretch, and its hash is right from there on. All lanes
//! take the same number of steps, rounded up to whole loads. If a lane's run would pass the block's
//! end, it begins earlier instead and reads bytes of its neighbour again. Only the stretches decide
//! which lane reports a position ([`Lanes::emit`]), so nothing is found twice and no remainder is
//! left over.
//!
//! Candidates are rare, so kernels test several steps at once, and examine them only if one has a
//! candidate. Lanes report in turns, and each block's candidates are sorted in place at its end.
//! Data with intentionally dense candidates would make that slow. So a block with more than one in
//! [`DENSE`] bytes is given up, and the plain loop scans it.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "aarch64")]
mod neon;
mod portable;

use outrigger_format::boundary::{GEAR, GearMasks, WINDOW, scan_reference, warm_up};

use crate::SimdLevel;

/// Bytes per block: the lanes' stretches stay within L2, and sorting stays tiny. Not a power of two:
/// sixteen lanes 8 KiB apart would share the few ways of the same sets of the L1 cache.
const BLOCK: usize = 127 << 10;
/// For fewer bytes, warming up the lanes costs more than it gains.
const SMALL: usize = 256;
/// One candidate in this many bytes is dense. The smallest average, 256, has one in 128.
const DENSE: usize = 32;

/// Appends to `out` every inline candidate in `data`, ascending, as `position << 1 | strict`. The
/// result equals that of [`scan_reference`], by the best kernel of this processor. `history` holds
/// the bytes before `data` in its file. Only its last 32 bytes matter. It may be shorter only at
/// the beginning of a file. Allocates nothing apart from the growth of `out`.
///
/// # Panics
/// If `data` has 2^31 bytes or more.
///
/// ```
/// use outrigger_format::{ChunkerSpec, boundary::{CutWalk, GearMasks}};
/// let data: Vec<u8> = (0..100_000u32).flat_map(|n| n.wrapping_mul(0x9e37_79b9).to_be_bytes()).collect();
/// let (mut candidates, mut ends) = (Vec::new(), Vec::new());
/// let mut walk = CutWalk::new(ChunkerSpec::DEFAULT);
/// for at in (0..data.len()).step_by(1 << 17) {
///     let segment = &data[at..data.len().min(at + (1 << 17))];
///     candidates.clear();
///     outrigger_offload::scan(&data[..at], segment, GearMasks::for_average(16 << 10), &mut candidates);
///     walk.feed(segment.len(), &candidates, &mut ends);
/// }
/// ends.extend(walk.finish());
/// assert_eq!(ends.last(), Some(&400_000));
/// ```
pub fn scan(history: &[u8], data: &[u8], masks: GearMasks, out: &mut Vec<u32>) {
    scan_with(SimdLevel::current(), history, data, masks, out);
}

/// [`scan`] by the kernel of `level`, or of the best lower level that this processor has, for tests
/// and benchmarks.
///
/// # Panics
/// If `data` has 2^31 bytes or more.
pub fn scan_with(level: SimdLevel, history: &[u8], data: &[u8], masks: GearMasks, out: &mut Vec<u32>) {
    assert!(data.len() < 1 << 31, "a segment has less than 2^31 bytes");
    // Kernels compare with a limit instead of masking, so masks must be runs of ones from the top.
    let from_the_top = |mask: u32| mask.leading_ones() == mask.count_ones();
    if data.len() < SMALL || !from_the_top(masks.inline) {
        return scan_reference(history, data, masks, out);
    }
    let level = level.min(SimdLevel::detect());
    scan_reference(history, &data[..WINDOW], masks, out);
    let mut begin = WINDOW;
    while begin < data.len() {
        // The last block has up to one and a half times the length, so that none is tiny.
        let end = if data.len() - begin <= BLOCK + BLOCK / 2 { data.len() } else { begin + BLOCK };
        let found = out.len();
        let whole = match level {
            #[cfg(target_arch = "x86_64")]
            SimdLevel::Avx512 => avx512::scan(data, &Lanes::new(begin, end, 64), masks, out),
            #[cfg(target_arch = "x86_64")]
            SimdLevel::Avx2Gfni => avx2::scan_gfni(data, &Lanes::new(begin, end, 16), masks, out),
            #[cfg(target_arch = "x86_64")]
            SimdLevel::Avx2Vaes => avx2::scan_vaes(data, &Lanes::new(begin, end, 16), masks, out),
            #[cfg(target_arch = "x86_64")]
            SimdLevel::Avx2 => avx2::scan_aes(data, &Lanes::new(begin, end, 16), masks, out),
            #[cfg(target_arch = "aarch64")]
            SimdLevel::NeonAes => neon::scan(data, &Lanes::new(begin, end, 16), masks, out),
            _ => portable::scan(data, &Lanes::new(begin, end, 1), masks, out),
        };
        if whole {
            out[found..].sort_unstable();
        } else {
            out.truncate(found);
            scan_plainly(data, begin, end, masks, out);
        }
        begin = end;
    }
}

/// The plain loop over `data[begin..end]`, positions relative to `data`.
fn scan_plainly(data: &[u8], begin: usize, end: usize, masks: GearMasks, out: &mut Vec<u32>) {
    let mut h = warm_up(&data[..begin]);
    for (position, &byte) in data.iter().enumerate().take(end).skip(begin) {
        h = (h << 1).wrapping_add(GEAR[byte as usize]);
        if h & masks.inline == 0 {
            out.push(masks.candidate(position, h));
        }
    }
}

/// How `N` lanes share the bytes `begin..end` of a segment.
struct Lanes<const N: usize> {
    /// Where each lane's run begins, its warm-up included.
    starts: [usize; N],
    /// Bytes each lane reads: a multiple of the kernel's load.
    run: usize,
    /// Lane `n` reports the positions from `begin + n × stretch` up to the next lane's, and below
    /// `end`.
    begin: usize,
    stretch: usize,
    end: usize,
    /// The scan gives up beyond this many candidates.
    dense: usize,
}

impl<const N: usize> Lanes<N> {
    /// The lanes for kernels that read `load` bytes at a time. `begin` is at least [`WINDOW`], and
    /// there are at least `SMALL − WINDOW` bytes, so no start is below zero.
    fn new(begin: usize, end: usize, load: usize) -> Self {
        debug_assert!(begin >= WINDOW && end - begin >= SMALL - WINDOW);
        let stretch = (end - begin).div_ceil(N);
        let run = (stretch + WINDOW).next_multiple_of(load);
        let starts = std::array::from_fn(|lane| (begin - WINDOW + lane * stretch).min(end - run));
        Self { starts, run, begin, stretch, end, dense: (end - begin) / DENSE }
    }

    /// Each lane's run as loads of `LOAD` bytes. All runs have the same length, so one loop bound
    /// covers them.
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    #[inline]
    fn rows<'a, const LOAD: usize>(&self, data: &'a [u8]) -> [&'a [[u8; LOAD]]; N] {
        self.starts.map(|start| &data[start..start + self.run].as_chunks().0[..self.run / LOAD])
    }

    /// Reports the candidate of `lane` at `offset` in its run, unless another lane reports that
    /// position.
    #[inline]
    fn emit(&self, lane: usize, offset: usize, h: u32, masks: GearMasks, out: &mut Vec<u32>) {
        let position = self.starts[lane] + offset;
        let from = self.begin + lane * self.stretch;
        if position >= from && position < self.end.min(from + self.stretch) {
            out.push(masks.candidate(position, h));
        }
    }
}
