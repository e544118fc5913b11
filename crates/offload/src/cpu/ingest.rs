//! Cuts, fingerprints and looks up in one pass: a stream's bytes are hashed while they are still in
//! the caches from the scan.
//!
//! Streams are scanned piece by piece. Chunks whose ends are found wait until there are enough of
//! them to fill the lanes of the hash functions. Then they are hashed and looked up together. A
//! chunk that crosses pieces is complete in the later one, since the whole batch lies in one
//! buffer.

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
/// About how many bytes are hashed together: enough chunks to fill the lanes, and still in the
/// caches.
const TOGETHER: usize = 1 << 20;

/// Cuts, fingerprints and looks up chunks. Callers keep it, for its scratch memory.
/// [`crate::op::Ingest`] describes inputs and outputs.
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
    /// An ingester with the instructions of [`SimdLevel::current`].
    pub fn new(chunker: ChunkerSpec, kind: FingerprintKind) -> Self {
        Self::with_level(SimdLevel::current(), chunker, kind)
    }

    /// An ingester with the instructions of `level`, or of the best lower level that this processor
    /// has.
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

    /// Appends the chunks of all `streams` to `out`, and the number of chunks of each to `counts`.
    ///
    /// # Panics
    /// If a stream lies outside of `data`, or `data` has 2^31 bytes or more.
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
                // The last piece has up to one and a half times the length, so that none is tiny.
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

    /// Hashes the cut chunks and looks them up.
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
