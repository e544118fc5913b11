//! Where the cuts that a device has found in a segment meet those of the file.
//!
//! ```text
//!   file    ──┤ open chunk ······|·········┤··········┤·······┤················┤·····
//!   device                       |····┤··········┤····┤·······┤················┤·····
//!                                at               here they meet: from now on the device's chunks are the file's
//! ```
//!
//! A device does not wait for the segment before, so it cuts a segment as if a chunk began with it.
//! The cutting rule looks only at the bytes since the last cut, as a candidate depends on fewer
//! bytes than the shortest chunk has. So once both have cut at one place, they also do at all later
//! ones. Until then the file's own walk goes on, over candidates found here. That takes a few
//! chunks in most data. It takes the whole segment if the two never meet, as in a long run of one
//! byte, which is only cut at the maximum. Chunks that the device has not found are hashed as if
//! there were no device.

use std::ops::Range;

#[cfg(any(test, feature = "testing"))]
use outrigger_format::ChunkerSpec;
use outrigger_format::boundary::CutWalk;
#[cfg(any(test, feature = "testing"))]
use outrigger_offload::candidates;

use crate::write::ingest::ChunkRef;

/// Bytes that are scanned at a time until the two meet.
const STEP: usize = 64 << 10;

/// A device's chunks of one piece of a segment.
pub(super) struct Told<'a> {
    /// Where the piece lies in the buffer.
    pub at: usize,
    pub len: usize,
    /// The position of its first byte in the extent.
    pub base: u64,
    /// In order, from `at` on without gaps.
    pub chunks: &'a [ChunkRef],
}

fn end(chunk: &ChunkRef) -> usize {
    (chunk.start + chunk.len) as usize
}

impl<'a> Told<'a> {
    /// Takes `walk`, which has come to the piece, to its end, and appends the ends of chunks, as
    /// positions in the extent. `met`: a chunk does begin with the piece. `scan` appends the
    /// candidates in a range of it; `ends_here`: the extent ends with it.
    pub fn follow(
        &self,
        walk: &mut CutWalk,
        mut met: bool,
        scan: impl Fn(Range<usize>, &mut Vec<u32>),
        ends_here: bool,
        ends: &mut Vec<u64>,
    ) {
        let (mut done, mut candidates) = (0, Vec::new());
        while !met && done < self.len {
            let step = STEP.min(self.len - done);
            candidates.clear();
            scan(done..done + step, &mut candidates);
            let before = ends.len();
            walk.feed(step, &candidates, ends);
            done += step;
            met = ends[before..].iter().any(|&end| self.ends_at(end));
        }
        let rest = self.chunks.partition_point(|chunk| end(chunk) <= self.at + done);
        let position = |chunk: &ChunkRef| self.base + (end(chunk) - self.at) as u64;
        ends.extend(self.chunks[rest..].iter().map(position));
        walk.follow(self.len - done, self.chunks[rest..].last().map(position));
        if ends_here {
            ends.extend(walk.finish());
        }
    }

    fn ends_at(&self, position: u64) -> bool {
        let Some(here) = position.checked_sub(self.base) else { return false };
        self.chunks.binary_search_by_key(&(self.at + here as usize), end).is_ok()
    }

    /// Gives the file's chunks, which must come in order, the device's fingerprints.
    pub fn names(self) -> Names<'a> {
        Names { chunks: self.chunks }
    }
}

/// See [`Told::names`].
pub(super) struct Names<'a> {
    chunks: &'a [ChunkRef],
}

impl Names<'_> {
    /// The chunk of the buffer at `start`, if the device has found that very one.
    pub fn of(&mut self, start: usize, len: usize) -> Option<ChunkRef> {
        let passed = self.chunks.iter().take_while(|chunk| (chunk.start as usize) < start).count();
        self.chunks = &self.chunks[passed..];
        let chunk = self.chunks.first()?;
        ((chunk.start, chunk.len) == (start as u32, len as u32)).then_some(*chunk)
    }
}

/// What [`cut_in_segments`] found.
#[cfg(any(test, feature = "testing"))]
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Met {
    /// Where the file's chunks end.
    pub ends: Vec<u64>,
    /// How many of them the device has not found.
    pub unnamed: usize,
}

/// Cuts `data` in segments of these lengths, like a large file. `device` cuts each segment as if a
/// chunk began with it, and its cuts are used. It gets a range of the data and whether that is the
/// last one, and returns the ends of its chunks, counted from the start of the range.
///
/// # Panics
/// When a segment has no byte, or a device's chunk none.
#[cfg(any(test, feature = "testing"))]
pub fn cut_in_segments(
    chunker: ChunkerSpec,
    data: &[u8],
    segments: impl IntoIterator<Item = usize>,
    mut device: impl FnMut(Range<usize>, bool) -> Vec<usize>,
) -> Met {
    let (mut walk, mut met) = (CutWalk::new(chunker), Met { ends: Vec::new(), unnamed: 0 });
    let (mut at, mut open, mut segments) = (0, 0, segments.into_iter());
    while at < data.len() {
        let segment = segments.next().unwrap_or(data.len()).min(data.len() - at);
        assert!(segment > 0, "a segment has a byte");
        let ends_here = at + segment == data.len();
        let mut start = at;
        let chunk = |end: usize| {
            let len = at + end - start;
            assert!(len > 0, "a chunk has a byte");
            start += len;
            ChunkRef::cut(start - len, len)
        };
        let chunks: Vec<ChunkRef> = device(at..at + segment, ends_here).into_iter().map(chunk).collect();
        let told = Told { at, len: segment, base: at as u64, chunks: &chunks };
        let scan = |range: Range<usize>, out: &mut Vec<u32>| {
            let (before, piece) = data[..at + range.end].split_at(at + range.start);
            candidates(chunker, before, piece, out);
        };
        let before = met.ends.len();
        told.follow(&mut walk, open == at, scan, ends_here, &mut met.ends);
        let mut names = told.names();
        for &end in &met.ends[before..] {
            met.unnamed += usize::from(names.of(open, end as usize - open).is_none());
            open = end as usize;
        }
        at += segment;
    }
    met
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noise(len: usize, seed: u64) -> Vec<u8> {
        let mut state = seed | 1;
        let next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 24) as u8
        };
        std::iter::repeat_with(next).take(len).collect()
    }

    /// Chunk ends of `data` by one walk, not the last one of the open chunk.
    fn ends_of(chunker: ChunkerSpec, data: &[u8]) -> Vec<u64> {
        let (mut found, mut ends) = (Vec::new(), Vec::new());
        candidates(chunker, &[], data, &mut found);
        CutWalk::new(chunker).feed(data.len(), &found, &mut ends);
        ends
    }

    /// Cuts by a device, for which the processor's functions stand in.
    fn followed(chunker: ChunkerSpec, data: &[u8], segment: usize) -> Met {
        cut_in_segments(chunker, data, std::iter::repeat(segment), |range, last| {
            let piece = &data[range];
            let mut ends: Vec<usize> = ends_of(chunker, piece).into_iter().map(|end| end as usize).collect();
            if last && ends.last() != Some(&piece.len()) {
                ends.push(piece.len());
            }
            ends
        })
    }

    #[test]
    fn a_file_is_cut_as_by_one_walk_whatever_the_segments() {
        let (mut mixed, chunkers) = (noise(900_000, 5), ["gear32:1K/4K/16K", "rabin:1K/4K/16K", "fixed:4K"]);
        // Runs in which walks that began apart never meet, and short ones between.
        mixed[200_000..330_000].fill(7);
        mixed.extend_from_within(100_000..400_000);
        for chunker in chunkers.map(|text| ChunkerSpec::parse(text).unwrap()) {
            let mut whole = ends_of(chunker, &mixed);
            if *whole.last().unwrap() < mixed.len() as u64 {
                whole.push(mixed.len() as u64);
            }
            for segment in [20_000, 65_536, 100_001, 250_000, 2_000_000] {
                assert_eq!(
                    followed(chunker, &mixed, segment).ends,
                    whole,
                    "{chunker} in segments of {segment}"
                );
            }
        }
    }

    #[test]
    fn in_ordinary_data_few_chunks_have_to_be_named_again() {
        let data = noise(8 << 20, 9);
        let Met { ends, unnamed } =
            followed(ChunkerSpec::parse("gear32:4K/16K/64K").unwrap(), &data, 1 << 20);
        assert!(ends.len() > 400 && unnamed < 40, "{unnamed} of {}", ends.len());
    }
}
