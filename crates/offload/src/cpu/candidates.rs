//! Boundary candidates of every chunker. gear32 has its own scan. The others hash every window of
//! 48 bytes.

use outrigger_format::ChunkerSpec;
use outrigger_format::boundary::{GearMasks, WINDOWED, windowed_mask};

use super::{scan_with, window};
use crate::SimdLevel;
use crate::op::WindowSpec;
use crate::reference::window_function;

/// Windows hashed at a time. Their hashes stay in the first-level cache.
const BLOCK: usize = 2048;

/// Appends to `out` every candidate of `chunker` in `data`, ascending, as `position << 1 | strict`,
/// for [`CutWalk`](outrigger_format::boundary::CutWalk). `history` holds the bytes before `data` in
/// its file. Only its last [`ChunkerSpec::history_len`] bytes matter. It may be shorter at the
/// beginning of a file or of a chunk. Blocks of a fixed size have no candidates. Reference:
/// [`crate::reference::candidates`].
///
/// # Panics
/// If `data` has 2^31 bytes or more.
///
/// ```
/// use outrigger_format::ChunkerSpec;
/// let data: Vec<u8> = (0..100_000u32).flat_map(|n| n.wrapping_mul(0x9e37_79b9).to_be_bytes()).collect();
/// let (mut rabin, mut blocks) = (Vec::new(), Vec::new());
/// outrigger_offload::candidates(ChunkerSpec::parse("rabin:1K/4K/16K")?, &[], &data, &mut rabin);
/// outrigger_offload::candidates(ChunkerSpec::parse("fixed:4K")?, &[], &data, &mut blocks);
/// assert!(rabin.is_sorted() && blocks.is_empty());
/// # Ok::<_, outrigger_format::FormatError>(())
/// ```
pub fn candidates(chunker: ChunkerSpec, history: &[u8], data: &[u8], out: &mut Vec<u32>) {
    candidates_with(SimdLevel::current(), chunker, history, data, out);
}

/// [`candidates`] with the instructions of `level`, or of the best lower level that this processor
/// has.
///
/// # Panics
/// If `data` has 2^31 bytes or more.
pub fn candidates_with(
    level: SimdLevel,
    chunker: ChunkerSpec,
    history: &[u8],
    data: &[u8],
    out: &mut Vec<u32>,
) {
    let (hash, avg) = match chunker {
        ChunkerSpec::Fixed { .. } => return,
        ChunkerSpec::Gear32 { avg, .. } => {
            return scan_with(level, history, data, GearMasks::for_average(avg), out);
        }
        ChunkerSpec::Windowed { hash, avg, .. } => (hash, avg),
    };
    assert!(data.len() < 1 << 31, "a segment has less than 2^31 bytes");
    const BEFORE: usize = WINDOWED - 1;
    let spec = WindowSpec { function: window_function(hash), window: WINDOWED, step: 1, keep: 4 };
    let mask = windowed_mask(avg);
    let mut kept = [[0; 4]; BLOCK];
    // The windows of `bytes`, the first of which ends after position `first`.
    let mut find = |bytes: &[u8], first: usize| {
        let kept = &mut kept[..spec.count(bytes.len())];
        window::hash_into(level, spec, bytes, kept.as_flattened_mut());
        for (n, &low) in kept.iter().enumerate() {
            if u32::from_le_bytes(low) & mask == mask {
                out.push(((first + n) as u32) << 1 | 1);
            }
        }
    };
    // First the windows that begin in the history.
    let history = &history[history.len().saturating_sub(BEFORE)..];
    let head = data.len().min(BEFORE);
    let mut around = [0; 2 * BEFORE];
    around[..history.len()].copy_from_slice(history);
    around[history.len()..history.len() + head].copy_from_slice(&data[..head]);
    find(&around[..history.len() + head], BEFORE - history.len());
    // Then those that begin in the data.
    let mut start = 0;
    while start + WINDOWED <= data.len() {
        let end = data.len().min(start + BLOCK + BEFORE);
        find(&data[start..end], start + BEFORE);
        start += BLOCK;
    }
}
