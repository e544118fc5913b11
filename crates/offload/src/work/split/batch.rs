//! Ingestion in units. Only the cut walk is sequential, and it is tiny: some 130 candidates a
//! megabyte.
//!
//! ```text
//!   scan piece 3    scan piece 4    scan piece 5          any thread, in any order
//!        └───────────────┴──────┬────────┘
//!                      walk over 3, then 4, then 5        whoever brings the one that is next, under the lock
//!        ┌───────────────┬──────┴────────┐
//!   hash chunks     hash chunks     hash chunks           any thread, before more is scanned: the bytes are in the caches
//! ```
//!
//! So the cuts are those of one walk over all candidates, regardless of the threads that found
//! them. Streams shorter than a piece are combined in groups, and one thread ingests a whole group.

use std::collections::VecDeque;
use std::ops::Range;

use outrigger_format::boundary::CutWalk;
use outrigger_format::{ChunkerSpec, FingerprintKind};

use super::Part;
use crate::op::{HashMany, Ingest, Ingested, Lookup, Stream};
use crate::table::Table;
use crate::work::Output;
use crate::{CpuDevice, Device, Task, TaskError};

/// The work that a thread does at a time.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Piece {
    /// Whole small streams.
    Group(Range<usize>),
    /// Scans these bytes of a stream.
    Scan(usize, Range<usize>),
    /// Hashes the chunks that were cut, and looks them up.
    Hash,
}

/// A piece of the data with its results.
struct Slot {
    piece: Piece,
    part: Part,
    scanned: bool,
}

/// An ingestion in units, as the module describes.
#[derive(Default)]
pub(super) struct Batch {
    /// Bytes in a piece.
    unit: usize,
    /// The next piece to hand out: its stream, and its offset there.
    stream: usize,
    at: usize,
    /// In the order of the data. Those beyond `used` only keep their capacity.
    slots: Vec<Slot>,
    used: usize,
    /// The next slot of the walk, the walk itself, and the start of the open chunk in its stream.
    walked: usize,
    walk: Option<CutWalk>,
    start: usize,
    ends: Vec<u64>,
    /// Slots whose chunks must be hashed.
    cut: VecDeque<usize>,
}

impl Batch {
    pub(super) fn begin(&mut self, unit: usize) {
        (self.unit, self.stream, self.at, self.used) = (unit, 0, 0, 0);
        (self.walked, self.walk, self.start) = (0, None, 0);
        self.cut.clear();
    }

    /// The next unit: the slot's number, its piece, and the vectors for results.
    pub(super) fn next(&mut self, streams: &[Stream]) -> Option<(usize, Piece, Part)> {
        if let Some(number) = self.cut.pop_front() {
            return Some((number, Piece::Hash, std::mem::take(&mut self.slots[number].part)));
        }
        let piece = self.plan(streams)?;
        let number = self.used;
        self.used += 1;
        if self.slots.len() < self.used {
            self.slots.push(Slot { piece: Piece::Hash, part: Part::default(), scanned: false });
        }
        let slot = &mut self.slots[number];
        (slot.piece, slot.scanned) = (piece.clone(), false);
        let mut part = std::mem::take(&mut slot.part);
        part.clear();
        Some((number, piece, part))
    }

    /// Chooses the next piece of the data.
    fn plan(&mut self, streams: &[Stream]) -> Option<Piece> {
        let small = |stream: &Stream| stream.range.len() <= self.unit + self.unit / 2;
        let len = streams.get(self.stream)?.range.len();
        if small(&streams[self.stream]) {
            let (first, mut bytes) = (self.stream, 0);
            while bytes < self.unit && streams.get(self.stream).is_some_and(small) {
                bytes += streams[self.stream].range.len();
                self.stream += 1;
            }
            return Some(Piece::Group(first..self.stream));
        }
        let (stream, from, left) = (self.stream, self.at, len - self.at);
        // The last piece has up to one and a half times the length, so that none is tiny.
        if left <= self.unit + self.unit / 2 {
            (self.stream, self.at) = (stream + 1, 0);
            return Some(Piece::Scan(stream, from..len));
        }
        self.at += self.unit;
        Some(Piece::Scan(stream, from..self.at))
    }

    /// Takes results back, and continues the walk as far as possible.
    pub(super) fn done(&mut self, number: usize, part: Part, streams: &[Stream], chunker: ChunkerSpec) {
        self.slots[number].part = part;
        self.slots[number].scanned = true;
        while self.walked < self.used && self.slots[self.walked].scanned {
            let Slot { piece, part, .. } = &mut self.slots[self.walked];
            if let Piece::Scan(stream, bytes) = piece {
                let Stream { range, last } = &streams[*stream];
                let walk = self.walk.get_or_insert_with(|| CutWalk::new(chunker));
                self.ends.clear();
                walk.feed(bytes.len(), &part.candidates, &mut self.ends);
                let complete = bytes.end == range.len();
                if complete && *last {
                    self.ends.extend(walk.finish());
                }
                for &end in &self.ends {
                    part.cut.push(range.start + self.start as u32..range.start + end as u32);
                    self.start = end as usize;
                }
                if complete {
                    (self.walk, self.start) = (None, 0);
                }
                if !part.cut.is_empty() {
                    self.cut.push_back(self.walked);
                }
            }
            self.walked += 1;
        }
    }

    /// Appends the results of all slots.
    pub(super) fn finish(&mut self, streams: &[Stream], output: &mut Output) {
        let mut count = 0;
        for Slot { piece, part, .. } in &self.slots[..self.used] {
            let Piece::Scan(stream, bytes) = piece else {
                output.chunks.extend_from_slice(&part.chunks);
                output.counts.extend_from_slice(&part.counts);
                continue;
            };
            let found = part.fingerprints.iter().zip(&part.places);
            output.chunks.extend(
                part.cut.iter().zip(found).map(|(range, (&fingerprint, &place))| Ingested {
                    end: range.end,
                    fingerprint,
                    place,
                }),
            );
            count += part.cut.len() as u32;
            if bytes.end == streams[*stream].range.len() {
                output.counts.push(count);
                count = 0;
            }
        }
    }
}

impl Piece {
    /// Executes the piece.
    pub(super) fn run(
        &self,
        part: &mut Part,
        data: &[u8],
        streams: &[Stream],
        (chunker, kind, table): (ChunkerSpec, FingerprintKind, Option<&Table>),
        cpu: &mut CpuDevice,
    ) -> Result<(), TaskError> {
        match self {
            Self::Group(group) => cpu.run(&mut Task::Ingest(Ingest {
                data,
                streams: &streams[group.clone()],
                chunker,
                kind,
                table,
                out: &mut part.chunks,
                counts: &mut part.counts,
            })),
            Self::Scan(stream, bytes) => {
                let range = &streams[*stream].range;
                let (history, rest) = data[range.start as usize..range.end as usize].split_at(bytes.start);
                cpu.candidates(chunker, history, &rest[..bytes.len()], &mut part.candidates);
                Ok(())
            }
            Self::Hash => {
                let out = &mut part.fingerprints;
                cpu.run(&mut Task::HashMany(HashMany { kind, data, ranges: &part.cut, out }))?;
                match table {
                    Some(table) => {
                        let (keys, out) = (&part.fingerprints[..], &mut part.places);
                        cpu.run(&mut Task::Lookup(Lookup { table, keys, out }))
                    }
                    None => {
                        part.places.resize(part.fingerprints.len(), None);
                        Ok(())
                    }
                }
            }
        }
    }
}
