//! Cut, fingerprint and look up in one pass: while a stream's bytes are still in the caches from being scanned, they are hashed.
//!
//! Streams are scanned a piece at a time; chunks whose ends are found wait until there are enough of them to fill the lanes
//! of the hash functions, and are then hashed and looked up together. A chunk that begins in one piece is whole in a later one, since all of
//! a batch lies in one buffer.

use std::ops::Range;

use outrigger_format::boundary::CutWalk;
use outrigger_format::{ChunkerSpec, Fingerprint, FingerprintKind};

use super::candidates::candidates_with;
use super::hash::hash_many_with;
use crate::SimdLevel;
use crate::op::{Ingested, Stream};
use crate::table::Table;

/// Bytes scanned at a time.
const PIECE: usize = 256 << 10;
/// Bytes hashed together, about: chunks enough to fill the lanes, and still in the caches.
const TOGETHER: usize = 1 << 20;

/// Cuts, fingerprints and looks up; keep one, for its scratch memory. See [`crate::op::Ingest`] for inputs and outputs.
///
/// ```
/// use outrigger_format::{ChunkerSpec, FingerprintKind};
/// use outrigger_offload::{Ingester, op::Stream};
/// let (data, mut chunks, mut counts) = (vec![7; 100_000], Vec::new(), Vec::new());
/// let streams = [Stream { range: 0..70_000, last: true }, Stream { range: 70_000..100_000, last: false }];
/// let mut ingester = Ingester::new(ChunkerSpec::DEFAULT, FingerprintKind::Blake3);
/// ingester.ingest(&data, &streams, None, &mut chunks, &mut counts);
/// // 70,000 bytes are a chunk of 64 KiB and the rest; of the open stream nothing has ended yet.
/// assert_eq!((chunks.iter().map(|chunk| chunk.end).collect(), counts), (vec![65_536, 70_000], vec![2, 0]));
/// ```
#[derive(Debug)]
pub struct Ingester {
    level: SimdLevel,
    chunker: ChunkerSpec,
    kind: FingerprintKind,
    candidates: Vec<u32>,
    ends: Vec<u64>,
    /// Chunks that are cut and not hashed yet.
    cut: Vec<Range<usize>>,
    fingerprints: Vec<Fingerprint>,
    places: Vec<Option<u64>>,
}

impl Ingester {
    /// For one way of cutting and one fingerprint, with the instructions of [`SimdLevel::current`].
    pub fn new(chunker: ChunkerSpec, kind: FingerprintKind) -> Self {
        Self::with_level(SimdLevel::current(), chunker, kind)
    }

    /// The same with the instructions of `level`, or of the best level below it that this processor has.
    pub fn with_level(level: SimdLevel, chunker: ChunkerSpec, kind: FingerprintKind) -> Self {
        Self {
            level,
            chunker,
            kind,
            candidates: Vec::new(),
            ends: Vec::new(),
            cut: Vec::new(),
            fingerprints: Vec::new(),
            places: Vec::new(),
        }
    }

    /// Appends the chunks of all `streams` to `out`, and how many each has to `counts`.
    ///
    /// # Panics
    /// When a stream lies outside of `data`, or `data` has 2^31 bytes or more.
    pub fn ingest(
        &mut self,
        data: &[u8],
        streams: &[Stream],
        table: Option<&Table>,
        out: &mut Vec<Ingested>,
        counts: &mut Vec<u32>,
    ) {
        assert!(data.len() < 1 << 31, "a batch has less than 2^31 bytes");
        self.cut.clear();
        let mut waiting = 0;
        for Stream { range, last } in streams {
            let (begin, end) = (range.start as usize, range.end as usize);
            let stream = &data[begin..end];
            let mut walk = CutWalk::new(self.chunker);
            let (mut start, mut count, mut scanned) = (0, 0, 0);
            loop {
                // The last piece takes up to a piece and a half, so that none is tiny.
                let left = stream.len() - scanned;
                let piece = if left <= PIECE + PIECE / 2 { left } else { PIECE };
                let (history, rest) = stream.split_at(scanned);
                self.candidates.clear();
                candidates_with(self.level, self.chunker, history, &rest[..piece], &mut self.candidates);
                self.ends.clear();
                walk.feed(piece, &self.candidates, &mut self.ends);
                scanned += piece;
                let done = scanned == stream.len();
                if done && *last {
                    self.ends.extend(walk.finish());
                }
                for &end in &self.ends {
                    self.cut.push(begin + start..begin + end as usize);
                    waiting += end as usize - start;
                    start = end as usize;
                    count += 1;
                }
                if waiting >= TOGETHER {
                    self.finish(data, table, out);
                    waiting = 0;
                }
                if done {
                    break;
                }
            }
            counts.push(count);
        }
        self.finish(data, table, out);
    }

    /// Hashes and looks up what is cut.
    fn finish(&mut self, data: &[u8], table: Option<&Table>, out: &mut Vec<Ingested>) {
        self.fingerprints.clear();
        hash_many_with(self.level, self.kind, data, self.cut.iter().cloned(), &mut self.fingerprints);
        self.places.clear();
        match table {
            Some(table) => table.lookup_many(&self.fingerprints, &mut self.places),
            None => self.places.resize(self.fingerprints.len(), None),
        }
        let found = self.fingerprints.iter().zip(&self.places);
        out.extend(self.cut.drain(..).zip(found).map(|(range, (&fingerprint, &place))| Ingested {
            end: range.end as u32,
            fingerprint,
            place,
        }));
    }
}
