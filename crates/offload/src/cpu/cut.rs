//! Cutting a whole file that lies in memory, and naming its chunks.

use outrigger_format::boundary::CutWalk;
use outrigger_format::{ChunkerSpec, Fingerprint, FingerprintKind};

use super::{candidates, hash_many};

/// The ends of `data`'s chunks, in bytes, as a store's writers cut it.
///
/// ```
/// use outrigger_format::ChunkerSpec;
/// let chunker = ChunkerSpec::parse("fixed:4K").unwrap();
/// assert_eq!(outrigger_offload::cut(chunker, &[0; 10_000]), [4096, 8192, 10_000]);
/// ```
pub fn cut(chunker: ChunkerSpec, data: &[u8]) -> Vec<usize> {
    let (mut found, mut ends) = (Vec::new(), Vec::new());
    candidates(chunker, &[], data, &mut found);
    let mut walk = CutWalk::new(chunker);
    walk.feed(data.len(), &found, &mut ends);
    ends.extend(walk.finish());
    ends.into_iter().map(|end| end as usize).collect()
}

/// The fingerprints and lengths, in bytes, of the chunks of `data` with these ends.
pub fn name_chunks(data: &[u8], ends: &[usize]) -> Vec<(Fingerprint, usize)> {
    let mut start = 0;
    let ranges: Vec<_> = ends.iter().map(|&end| std::mem::replace(&mut start, end)..end).collect();
    let mut names = Vec::new();
    hash_many(FingerprintKind::Blake3, data, ranges.iter().cloned(), &mut names);
    names.into_iter().zip(ranges.iter().map(std::ops::Range::len)).collect()
}
