//! The parallel Merkle-Damgård construction (`docs/format.md`, "pmd") of one block or of many, level by level: the segments
//! of all blocks are hashed side by side, then the segments of their digests, until each block has one digest left.

use std::ops::Range;

use super::lanes;
use crate::SimdLevel;
use crate::op::{Digest, PMD_SEGMENT, PMD_TAG};

/// Appends the parallel Merkle-Damgård digest of `data`, [`Digest::len`] bytes, to `out`; see [`crate::op::PmdHash`].
///
/// # Panics
/// When there is none over `digest`: see [`Digest::has_pmd`].
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

/// [`pmd_hash`] with the instructions of `level`, or of the best level below it that this processor has.
///
/// # Panics
/// When there is none over `digest`.
pub fn pmd_hash_with(level: SimdLevel, digest: Digest, data: &[u8], out: &mut Vec<u8>) {
    many(level, digest, &[data], |_, value| out.extend_from_slice(&value[..digest.len()]));
}

/// The construction over each of `blocks`: `put(n, digest)` in any order, as [`lanes::digests`].
pub(super) fn many(level: SimdLevel, digest: Digest, blocks: &[&[u8]], put: impl FnMut(usize, [u8; 32])) {
    assert!(digest.has_pmd(), "{} has no parallel Merkle-Damgård construction", digest.name());
    let len = digest.len();
    // The digests of one level, one after the other, and where those of each block lie.
    let mut segments = Vec::new();
    let mut spans = Vec::with_capacity(blocks.len());
    for block in blocks {
        let from = segments.len() * len;
        segments.extend(block.chunks(PMD_SEGMENT));
        if block.is_empty() {
            segments.push(&[][..]);
        }
        spans.push(from..segments.len() * len);
    }
    let mut values = hash_all(level, digest, &segments);
    while spans.iter().any(|span| span.len() > len) {
        let mut segments = Vec::new();
        // Where each block's digests will be, and whether they are new ones: a block that is down to one digest waits.
        let mut next: Vec<(Range<usize>, bool)> = Vec::with_capacity(spans.len());
        let mut kept = Vec::new();
        for span in &spans {
            if span.len() > len {
                let from = segments.len();
                segments.extend(values[span.clone()].chunks(PMD_SEGMENT));
                next.push((from * len..segments.len() * len, true));
            } else {
                let from = kept.len();
                kept.extend_from_slice(&values[span.clone()]);
                next.push((from..from + len, false));
            }
        }
        let mut made = hash_all(level, digest, &segments);
        let base = made.len();
        made.extend_from_slice(&kept);
        for (span, (range, hashed)) in spans.iter_mut().zip(next) {
            *span = if hashed { range } else { range.start + base..range.end + base };
        }
        values = made;
    }
    let mut last = Vec::with_capacity(blocks.len() * (PMD_TAG.len() + 8 + len));
    for (block, span) in blocks.iter().zip(spans) {
        last.extend_from_slice(&PMD_TAG);
        last.extend_from_slice(&(block.len() as u64).to_le_bytes());
        last.extend_from_slice(&values[span]);
    }
    let messages: Vec<&[u8]> = last.chunks(PMD_TAG.len() + 8 + len).collect();
    lanes::digests(level, digest, messages.len(), |n| messages[n], put);
}

/// The digests of `messages`, one after the other.
fn hash_all(level: SimdLevel, digest: Digest, messages: &[&[u8]]) -> Vec<u8> {
    let len = digest.len();
    let mut values = vec![0; messages.len() * len];
    lanes::digests(
        level,
        digest,
        messages.len(),
        |n| messages[n],
        |n, value| values[n * len..][..len].copy_from_slice(&value[..len]),
    );
    values
}
