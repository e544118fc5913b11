//! `window_hash`: the kernel depends on the window, the step, and the size of shared memory.

use super::super::kernel::{self, Kernel};
use super::super::lane::Argument::{At, Long, Word};
use super::super::lane::{Area, Lane, RABIN_AT};
use super::{Data, Step};
use crate::accelerator::Fault;
use crate::op::{WindowFunction, WindowSpec};

/// Windows of one block, for the tiled kernels and for those by rows.
const TILE_WINDOWS: usize = 128;
const ROWS: usize = 32;
/// The most bytes of a tile in shared memory. It has 48 KiB by default, and the tables need the
/// rest.
const TILE_BYTES: usize = 40 << 10;
/// The longest message that fits one block of MD5 or SHA-1 with its padding.
const ONE_BLOCK: usize = 55;

/// True if at least four threads would access the same bank of shared memory. This happens if
/// windows are a multiple of four words apart. A word of padding after each 32 then separates them.
pub(super) fn needs_padding(step: usize) -> bool {
    step.is_multiple_of(16)
}

/// The shared memory of a tile, or `None` if it is too large.
pub(super) fn tile_bytes(spec: WindowSpec) -> Option<usize> {
    let span = (TILE_WINDOWS - 1).checked_mul(spec.step)?.checked_add(spec.window + 3)?;
    // One word more than the windows cover, plus the padding.
    let words = span.div_ceil(4) + 1;
    let words = if needs_padding(spec.step) { words + words / 32 } else { words };
    Some(4 * words).filter(|&bytes| bytes <= TILE_BYTES)
}

pub(super) fn begin(lane: &mut dyn Lane, data: Data, spec: WindowSpec) -> Result<Step, Fault> {
    let count = spec.count(data.len);
    if count == 0 {
        return Ok(Step::default());
    }
    let bytes = count * spec.keep;
    let out = lane.memory(Area::Result, bytes)?;
    let tile = tile_bytes(spec).filter(|_| lane.is_staged());
    let (kernel, windows, tile) = choose(spec, tile, lane.is_staged());
    let table = match spec.function {
        WindowFunction::Rabin => Some(lane.constants().plus(RABIN_AT)),
        WindowFunction::Gear32 => Some(lane.constants()),
        WindowFunction::Md5 | WindowFunction::Sha1 => None,
    };
    let mut arguments = vec![
        At(data.at),
        Long(data.words()),
        Long(count as u64),
        Long(spec.step as u64),
        Word(spec.window as u32),
        Word(spec.keep as u32),
        Word(u32::from(needs_padding(spec.step))),
    ];
    arguments.extend(table.map(At));
    arguments.push(At(out));
    lane.launch(kernel, count.div_ceil(windows), tile.unwrap_or(0), &arguments)?;
    Ok(Step { bytes, ..Step::default() })
}

/// The kernel, the windows of its blocks, and its shared memory.
fn choose(spec: WindowSpec, tile: Option<usize>, staged: bool) -> (Kernel, usize, Option<usize>) {
    let one_block = spec.window <= ONE_BLOCK;
    let tiled = |with: Kernel, without: Kernel| {
        if tile.is_some() { (with, TILE_WINDOWS, tile) } else { (without, TILE_WINDOWS, None) }
    };
    let rows =
        |with: Kernel, without: Kernel| if staged { (with, ROWS, None) } else { (without, ROWS, None) };
    match spec.function {
        WindowFunction::Rabin => tiled(kernel::WINDOW_RABIN, kernel::WINDOW_RABIN_DIRECT),
        WindowFunction::Gear32 => tiled(kernel::WINDOW_GEAR32, kernel::WINDOW_GEAR32_DIRECT),
        WindowFunction::Md5 if one_block && (tile.is_some() || !staged) => {
            tiled(kernel::WINDOW_MD5, kernel::WINDOW_MD5_DIRECT)
        }
        WindowFunction::Sha1 if one_block && (tile.is_some() || !staged) => {
            tiled(kernel::WINDOW_SHA1, kernel::WINDOW_SHA1_DIRECT)
        }
        WindowFunction::Md5 => rows(kernel::WINDOW_ROWS_MD5, kernel::WINDOW_ROWS_MD5_DIRECT),
        WindowFunction::Sha1 => rows(kernel::WINDOW_ROWS_SHA1, kernel::WINDOW_ROWS_SHA1_DIRECT),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The most threads of a warp that access different words of one bank, over all words of a
    /// window.
    fn conflicts(step: usize) -> usize {
        let padding = needs_padding(step);
        let banks = |offset: usize| {
            let mut words: Vec<usize> = (0..32).map(|thread| (thread * step + offset) / 4).collect();
            words.dedup();
            let mut banks = [0; 32];
            words.iter().for_each(|word| banks[(word + if padding { word / 32 } else { 0 }) % 32] += 1);
            banks.into_iter().max().unwrap_or(0)
        };
        (0..512).map(banks).max().unwrap_or(0)
    }

    #[test]
    fn threads_rarely_meet_in_a_bank() {
        // If windows are an odd number of words apart, each thread has its own bank.
        for step in [4, 12, 20, 28, 52, 60, 100, 252] {
            assert_eq!(conflicts(step), 1, "step {step}");
        }
        // At most two threads share a bank. Without padding, up to 32 would.
        for step in [16, 32, 48, 64, 128, 256] {
            assert!(conflicts(step) <= 2, "step {step}: {}", conflicts(step));
        }
        // With any other step that fits a tile, few do.
        for step in 1..=256 {
            assert!(conflicts(step) <= 4, "step {step}: {}", conflicts(step));
        }
    }

    #[test]
    fn tiles_fit_shared_memory_or_are_not_used() {
        let spec = |window, step| WindowSpec { function: WindowFunction::Rabin, window, step, keep: 8 };
        assert_eq!(tile_bytes(spec(48, 1)), Some(4 * 46));
        assert!(tile_bytes(spec(4096, 1)).is_some());
        assert!(tile_bytes(spec(20, 1000)).is_none());
        assert!(tile_bytes(spec(20, usize::MAX)).is_none());
    }
}
