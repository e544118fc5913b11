//! `hash_many`: ranges are sent to the device unchanged. Under BLAKE3, large chunks are hashed in
//! pieces, which are joined afterwards.

use std::ops::Range;

use outrigger_format::{Fingerprint, FingerprintKind};

use super::super::kernel::{self, Kernel};
use super::super::lane::Argument::{At, Long, Word};
use super::super::lane::{Address, Area, Lane, Words};
use super::{Data, Step};
use crate::accelerator::Fault;
use crate::op::{Digest, PMD_SEGMENT};

/// Threads that hash side by side.
const ROWS: usize = 32;
/// BLAKE3: the part of a larger chunk that one block of threads hashes. It is a subtree of 64
/// leaves.
const PIECE: u32 = 64 << 10;
const LEAF: u32 = 1 << 10;
/// Set in a piece's first leaf if the piece is a whole chunk.
const WHOLE: u32 = 1 << 31;

/// Chunks in device memory, ready to hash.
#[derive(Clone, Copy)]
pub(super) struct Chunks {
    /// Pairs of start and length.
    pub(super) ranges: Address,
    /// The most chunks.
    pub(super) limit: usize,
    /// The address where an earlier kernel left their number, if it did.
    pub(super) count_at: Address,
    /// For the parallel Merkle-Damgård construction: the position of each chunk's digests, and the
    /// number of positions.
    pub(super) first: Address,
    pub(super) segments: usize,
}

/// Hashes chunks, each by one block or thread, into 32 bytes each at `out`.
pub(super) fn chunks(
    lane: &mut dyn Lane,
    data: Data,
    kind: FingerprintKind,
    chunks: Chunks,
    out: Address,
) -> Result<(), Fault> {
    let Chunks { ranges, limit, count_at, first, segments } = chunks;
    let (digest, pmd) = Digest::of_kind(kind);
    let mut arguments = vec![At(data.at), Long(data.words()), At(ranges), Word(limit as u32), At(count_at)];
    if pmd {
        let scratch = lane.memory(Area::LevelA, 2 * segments * digest.len())?;
        arguments.extend([At(first), At(scratch), Long(segments as u64), At(out)]);
        let kernel = match digest {
            Digest::Md5 => kernel::PMD_MANY_MD5,
            Digest::Sha1 => kernel::PMD_MANY_SHA1,
            Digest::Sha256 => kernel::PMD_MANY_SHA256,
            Digest::Blake3 => return Err(Fault::Unsupported),
        };
        return lane.launch(kernel, limit, 0, &arguments);
    }
    let pick = |staged: Kernel, direct: Kernel| if lane.is_staged() { staged } else { direct };
    let (kernel, blocks) = match digest {
        Digest::Md5 => (pick(kernel::HASH_MD5, kernel::HASH_MD5_DIRECT), limit.div_ceil(ROWS)),
        Digest::Sha1 => (pick(kernel::HASH_SHA1, kernel::HASH_SHA1_DIRECT), limit.div_ceil(ROWS)),
        Digest::Sha256 => (pick(kernel::HASH_SHA256, kernel::HASH_SHA256_DIRECT), limit.div_ceil(ROWS)),
        Digest::Blake3 => {
            arguments.push(At(Address::NONE));
            (pick(kernel::BLAKE3_RANGES, kernel::BLAKE3_RANGES_DIRECT), limit)
        }
    };
    arguments.push(At(out));
    lane.launch(kernel, blocks, 0, &arguments)
}

pub(super) fn begin(
    lane: &mut dyn Lane,
    data: Data,
    kind: FingerprintKind,
    ranges: &[Range<u32>],
) -> Result<Step, Fault> {
    if ranges.is_empty() {
        return Ok(Step::default());
    }
    let bytes = ranges.len() * size_of::<Fingerprint>();
    let out = lane.memory(Area::Result, bytes)?;
    if kind == FingerprintKind::Blake3 && ranges.iter().any(|range| range.len() > PIECE as usize) {
        blake3_pieces(lane, data, ranges, out)?;
        return Ok(Step { bytes, ..Step::default() });
    }
    let limit = ranges.len();
    // Pairs, then for pmd the first position of each chunk.
    let list = lane.send(Area::List, limit * 12, &mut |list| {
        let mut words = Words(list);
        for range in ranges {
            words.push(range.start);
            words.push(range.end - range.start);
        }
        let mut place = 0;
        for range in ranges {
            words.push(place);
            place += segments(range.len()) as u32;
        }
    })?;
    let segments = ranges.iter().map(|range| segments(range.len())).sum();
    let first = list.plus(limit * 8);
    let list = Chunks { ranges: list, limit, count_at: Address::NONE, first, segments };
    chunks(lane, data, kind, list, out)?;
    Ok(Step { bytes, ..Step::default() })
}

fn segments(len: usize) -> usize {
    len.div_ceil(PMD_SEGMENT).max(1)
}

/// Splits chunks that are longer than a piece, so that many blocks work on them.
fn blake3_pieces(lane: &mut dyn Lane, data: Data, ranges: &[Range<u32>], out: Address) -> Result<(), Fault> {
    let pieces_of = |range: &Range<u32>| (range.end - range.start).div_ceil(PIECE).max(1);
    let pieces: usize = ranges.iter().map(|range| pieces_of(range) as usize).sum();
    // Pairs, then each piece's first leaf, then the first and last piece of each chunk.
    let list = lane.send(Area::List, pieces * 12 + (ranges.len() + 1) * 4, &mut |list| {
        let mut words = Words(list);
        for range in ranges {
            for piece in 0..pieces_of(range) {
                let start = range.start + piece * PIECE;
                words.push(start);
                words.push((range.end - start).min(PIECE));
            }
        }
        for range in ranges {
            let count = pieces_of(range);
            (0..count).for_each(|piece| words.push(if count == 1 { WHOLE } else { piece * (PIECE / LEAF) }));
        }
        let mut first = 0;
        words.push(first);
        for range in ranges {
            first += pieces_of(range);
            words.push(first);
        }
    })?;
    let values = lane.memory(Area::Fingerprints, pieces * 32)?;
    let (leaves, first) = (list.plus(pieces * 8), list.plus(pieces * 12));
    let kernel = if lane.is_staged() { kernel::BLAKE3_RANGES } else { kernel::BLAKE3_RANGES_DIRECT };
    let none = At(Address::NONE);
    let arguments =
        [At(data.at), Long(data.words()), At(list), Word(pieces as u32), none, At(leaves), At(values)];
    lane.launch(kernel, pieces, 0, &arguments)?;
    let arguments = [At(values), At(first), Word(ranges.len() as u32), At(out)];
    lane.launch(kernel::BLAKE3_MERGE, ranges.len(), 0, &arguments)
}
