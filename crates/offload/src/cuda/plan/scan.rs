//! `scan`: the device counts the candidates, so the host learns their number together with them.

use outrigger_format::WindowedHash;
use outrigger_format::boundary::GearMasks;

use super::super::kernel;
use super::super::lane::Argument::{At, Long, Word};
use super::super::lane::{Address, Area, HISTORY, Lane, RABIN_AT};
use super::{Data, Step, word};
use crate::accelerator::Fault;

/// The bytes of one block of `scan_bits`.
const TILE: usize = 16 << 10;
/// The offset of the candidates in the result, after their number.
const HEADER: usize = 16;

/// Where the candidates of a scan go, and the room for them.
pub(super) struct Room {
    pub(super) total: Address,
    pub(super) candidates: Address,
    pub(super) capacity: usize,
}

/// The rule that makes a position a candidate.
#[derive(Clone, Copy)]
pub(super) enum Rule {
    Gear { history: usize, masks: GearMasks },
    Windowed { hash: WindowedHash, mask: u32 },
}

impl Rule {
    /// Room for about twice the expected candidates. If there are more, another step is necessary.
    pub(super) fn expected(self, len: usize) -> usize {
        let bits = match self {
            Self::Gear { masks, .. } => masks.inline.count_ones(),
            Self::Windowed { mask, .. } => mask.count_ones(),
        };
        (2 * (len >> bits) + 1024).min(len)
    }
}

/// Launches all three kernels.
pub(super) fn scan(lane: &mut dyn Lane, data: Data, rule: Rule, room: Room) -> Result<(), Fault> {
    let tiles = data.len.div_ceil(TILE);
    let bits = tiles * TILE / 8;
    let inline = lane.memory(Area::InlineBits, bits)?;
    let strict = lane.memory(Area::StrictBits, bits)?;
    let counts = lane.memory(Area::Counts, tiles * 4)?;
    match rule {
        Rule::Gear { history, masks } => {
            let input = Address(data.at.0 - HISTORY as u64);
            let arguments = [
                At(input),
                Long(data.words() + (HISTORY / 4) as u64),
                Word(data.len as u32),
                Word(history as u32),
                At(lane.constants()),
                Word(masks.inline),
                Word(masks.strict),
                At(inline),
                At(strict),
                At(counts),
            ];
            lane.launch(kernel::SCAN_BITS, tiles, 0, &arguments)?;
        }
        Rule::Windowed { hash, mask } => {
            let kernel = match hash {
                WindowedHash::Rabin => kernel::SCAN_WINDOWS_RABIN,
                WindowedHash::Md5 => kernel::SCAN_WINDOWS_MD5,
                WindowedHash::Sha1 => kernel::SCAN_WINDOWS_SHA1,
            };
            let arguments = [
                At(data.at),
                Long(data.words()),
                Word(data.len as u32),
                At(lane.constants().plus(RABIN_AT)),
                Word(mask),
                At(inline),
                At(strict),
                At(counts),
            ];
            lane.launch(kernel, tiles, 0, &arguments)?;
        }
    }
    lane.launch(kernel::SCAN_OFFSETS, 1, 0, &[At(counts), Word(tiles as u32), At(room.total)])?;
    emit(lane, tiles, inline, strict, counts, room.candidates, room.capacity)
}

fn emit(
    lane: &mut dyn Lane,
    tiles: usize,
    inline: Address,
    strict: Address,
    counts: Address,
    out: Address,
    capacity: usize,
) -> Result<(), Fault> {
    let arguments = [At(inline), At(strict), At(counts), At(out), Word(capacity as u32)];
    lane.launch(kernel::SCAN_EMIT, tiles, 0, &arguments)
}

pub(super) fn begin(
    lane: &mut dyn Lane,
    data: Data,
    history: usize,
    masks: GearMasks,
) -> Result<Step, Fault> {
    if data.len == 0 {
        return Ok(Step::default());
    }
    let rule = Rule::Gear { history, masks };
    let capacity = rule.expected(data.len);
    let bytes = HEADER + 4 * capacity;
    let result = lane.memory(Area::Result, bytes)?;
    scan(lane, data, rule, Room { total: result, candidates: result.plus(HEADER), capacity })?;
    Ok(Step { bytes, candidates: capacity, known: None })
}

pub(super) fn finish(
    lane: &mut dyn Lane,
    data: Data,
    step: Step,
    bytes: &[u8],
    out: &mut Vec<u32>,
) -> Result<Option<Step>, Fault> {
    if data.len == 0 {
        return Ok(None);
    }
    let total = step.known.unwrap_or_else(|| word(bytes, 0) as usize);
    if total > data.len {
        return Err(Fault::Failed("more candidates than bytes".into()));
    }
    if total > step.candidates {
        // The bits are still there, so only the last kernel runs again, with room for all.
        let tiles = data.len.div_ceil(TILE);
        let bytes = HEADER + 4 * total;
        let inline = lane.memory(Area::InlineBits, tiles * TILE / 8)?;
        let strict = lane.memory(Area::StrictBits, tiles * TILE / 8)?;
        let counts = lane.memory(Area::Counts, tiles * 4)?;
        let result = lane.memory(Area::Result, bytes)?;
        emit(lane, tiles, inline, strict, counts, result.plus(HEADER), total)?;
        return Ok(Some(Step { bytes, candidates: total, known: Some(total) }));
    }
    let (candidates, _) = bytes[HEADER..HEADER + 4 * total].as_chunks();
    out.extend(candidates.iter().map(|candidate| u32::from_le_bytes(*candidate)));
    Ok(None)
}
