//! The parallel Merkle-Damgård construction (`docs/format.md`, "pmd") of one or many blocks. It
//! goes level by level: the segments of all blocks are hashed side by side, then the segments of
//! their digests, until each block has a single digest.
//!
//! Several threads may also begin a block, each with a part of its segments ([`levels`]), and one
//! thread finishes it ([`finish`]).

use super::{lanes, scratch};
use crate::SimdLevel;
use crate::op::{Digest, PMD_SEGMENT, PMD_TAG};

/// Appends the parallel Merkle-Damgård digest of `data`, [`Digest::len`] bytes, to `out`; see
/// [`crate::op::PmdHash`].
///
/// # Panics
/// Unless the construction is defined over `digest`: see [`Digest::has_pmd`].
///
/// ```
/// use outrigger_offload::{op::Digest, pmd_hash, reference};
/// let (data, mut out) = (vec![7; 100_000], Vec::new());
/// pmd_hash(Digest::Md5, &data, &mut out);
/// assert_eq!(out, reference::pmd_hash(Digest::Md5, &data));
/// ```
pub fn pmd_hash(digest: Digest, data: &[u8], out: &mut Vec<u8>) {
    pmd_hash_with(SimdLevel::current(), digest, data, out);
}

/// [`pmd_hash`] with the instructions of `level`, or of the best lower level that this processor
/// has.
///
/// # Panics
/// Unless the construction is defined over `digest`.
pub fn pmd_hash_with(level: SimdLevel, digest: Digest, data: &[u8], out: &mut Vec<u8>) {
    many(level, digest, 1, |_| data, |_, value| out.extend_from_slice(&value[..digest.len()]));
}

/// A thread's reusable memory.
#[derive(Default)]
pub(super) struct Scratch {
    /// The digests of one level in a row, and those of the next level.
    values: Vec<u8>,
    made: Vec<u8>,
    /// The first digest of each block among them, and the end of the last block's.
    firsts: Vec<usize>,
    next: Vec<usize>,
    /// The same for the segments of a level. A block with a single digest is done and has none.
    asked: Vec<usize>,
}

/// The construction over each of `count` blocks. Calls `put(n, digest)` in any order, like
/// [`lanes::digests`].
pub(super) fn many<'a>(
    level: SimdLevel,
    digest: Digest,
    count: usize,
    block: impl Fn(usize) -> &'a [u8],
    put: impl FnMut(usize, [u8; 32]),
) {
    assert!(digest.has_pmd(), "{} has no parallel Merkle-Damgård construction", digest.name());
    let len = digest.len();
    scratch::with(|scratch| {
        let Scratch { values, made, firsts, next, asked } = &mut scratch.pmd;
        running_sum(firsts, (0..count).map(|n| segments(block(n).len())));
        fill(values, firsts[count] * len);
        lanes::digests(
            level,
            digest,
            firsts[count],
            |n| {
                let at = block_of(firsts, n);
                segment(block(at), n - firsts[at])
            },
            |n, value| values[n * len..][..len].copy_from_slice(&value[..len]),
        );
        while firsts[count] > count {
            let digests = |n: usize| firsts[n + 1] - firsts[n];
            let wanted = |n: usize| if digests(n) > 1 { segments(digests(n) * len) } else { 0 };
            running_sum(asked, (0..count).map(wanted));
            running_sum(next, (0..count).map(|n| wanted(n).max(1)));
            fill(made, next[count] * len);
            (0..count).filter(|&n| digests(n) == 1).for_each(|n| {
                made[next[n] * len..][..len].copy_from_slice(&values[firsts[n] * len..][..len]);
            });
            lanes::digests(
                level,
                digest,
                asked[count],
                |n| {
                    let at = block_of(asked, n);
                    segment(&values[firsts[at] * len..firsts[at + 1] * len], n - asked[at])
                },
                |n, value| {
                    let at = block_of(asked, n);
                    made[(next[at] + n - asked[at]) * len..][..len].copy_from_slice(&value[..len]);
                },
            );
            std::mem::swap(values, made);
            std::mem::swap(firsts, next);
        }
        made.clear();
        for n in 0..count {
            root(made, block(n).len(), &values[n * len..][..len]);
        }
        let message = PMD_TAG.len() + 8 + len;
        lanes::digests(level, digest, count, |n| &made[n * message..][..message], put);
    });
}

/// Appends the digests of 1 or 2 `levels` over `data`. This is a non-empty part of a block, which
/// begins where a segment of the last of these levels begins.
pub(super) fn levels(level: SimdLevel, digest: Digest, data: &[u8], levels: u32, out: &mut Vec<u8>) {
    scratch::with(|scratch| {
        let Scratch { values, made, .. } = &mut scratch.pmd;
        values.clear();
        hash_segments(level, digest, data, values);
        for _ in 1..levels {
            made.clear();
            hash_segments(level, digest, values, made);
            std::mem::swap(values, made);
        }
        out.extend_from_slice(values);
    });
}

/// Appends the digest of a block of `total` bytes, given all the digests of one level in `parts`.
pub(super) fn finish<'a>(
    level: SimdLevel,
    digest: Digest,
    total: usize,
    parts: impl Iterator<Item = &'a [u8]>,
    out: &mut Vec<u8>,
) {
    let len = digest.len();
    scratch::with(|scratch| {
        let Scratch { values, made, .. } = &mut scratch.pmd;
        values.clear();
        parts.for_each(|part| values.extend_from_slice(part));
        while values.len() > len {
            made.clear();
            hash_segments(level, digest, values, made);
            std::mem::swap(values, made);
        }
        made.clear();
        root(made, total, values);
        lanes::digests(level, digest, 1, |_| made, |_, value| out.extend_from_slice(&value[..len]));
    });
}

/// Appends the digests of the segments of `data` to `made`.
fn hash_segments(level: SimdLevel, digest: Digest, data: &[u8], made: &mut Vec<u8>) {
    let (len, count, before) = (digest.len(), segments(data.len()), made.len());
    made.resize(before + count * len, 0);
    let made = &mut made[before..];
    lanes::digests(
        level,
        digest,
        count,
        |n| segment(data, n),
        |n, value| made[n * len..][..len].copy_from_slice(&value[..len]),
    );
}

/// Appends the last message of a block.
fn root(made: &mut Vec<u8>, total: usize, value: &[u8]) {
    made.extend_from_slice(&PMD_TAG);
    made.extend_from_slice(&(total as u64).to_le_bytes());
    made.extend_from_slice(value);
}

/// The number of segments in `len` bytes. Empty data is one empty segment.
fn segments(len: usize) -> usize {
    len.div_ceil(PMD_SEGMENT).max(1)
}

fn segment(data: &[u8], n: usize) -> &[u8] {
    &data[n * PMD_SEGMENT..data.len().min((n + 1) * PMD_SEGMENT)]
}

/// Zero, and the sums of the first 1, 2, ... of `counts`.
fn running_sum(sums: &mut Vec<usize>, counts: impl Iterator<Item = usize>) {
    sums.clear();
    sums.push(0);
    sums.extend(counts.scan(0, |sum, count| {
        *sum += count;
        Some(*sum)
    }));
}

/// The block to which number `n` belongs, given where each block begins. Blocks without numbers are
/// skipped.
fn block_of(firsts: &[usize], n: usize) -> usize {
    firsts.partition_point(|&first| first <= n) - 1
}

/// Resizes the vector to `len` bytes. Their content does not matter.
fn fill(values: &mut Vec<u8>, len: usize) {
    values.resize(len, 0);
}
