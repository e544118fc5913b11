//! One large piece of work as many units, which any number of threads do side by side, with the result that one would have.
//!
//! ```text
//!   scan         pieces of the data; each is given what precedes it, which is all that a candidate depends on
//!   hash_many    runs of pieces
//!   window_hash  runs of windows
//!   pmd_hash     pieces of the data, one or two levels of the construction; the few digests that are left are for one thread
//!   ingest       see `batch.rs`: the cut walk goes over all candidates in order, everything else is units
//! ```
//!
//! [`Split`] is what the threads share, under a lock of theirs: it hands [`Unit`]s out and takes them back. A unit is done without
//! the lock. Vectors stay from task to task.

mod batch;

use std::ops::Range;
use std::sync::Arc;

use outrigger_format::Fingerprint;

use super::{Class, Output, Request, Work};
use crate::op::{HashMany, Ingested, PMD_SEGMENT, Scan, WindowHash};
use crate::{CpuDevice, Device, Task};
use batch::{Batch, Piece};

/// Less data than this is for one thread: waking another one would take as long.
const LEAST: usize = 1 << 20;
/// Bytes of a unit: enough to fill the lanes, and few enough that threads end together.
const UNIT: Range<usize> = 256 << 10..1 << 20;
/// Units a thread, about.
const A_THREAD: usize = 4;
/// What a unit of two levels of the parallel construction is a multiple of: whole segments of the second level, whatever the
/// digest's length.
const TWO_LEVELS: usize = 4 << 20;
/// Windows in a unit are a multiple of this: whole groups of lanes.
const WINDOWS: usize = 64;

/// What a unit gives. Which of the vectors are used depends on the operation.
#[derive(Default)]
struct Part {
    candidates: Vec<u32>,
    fingerprints: Vec<Fingerprint>,
    places: Vec<Option<u64>>,
    chunks: Vec<Ingested>,
    counts: Vec<u32>,
    cut: Vec<Range<u32>>,
    bytes: Vec<u8>,
}

impl Part {
    fn clear(&mut self) {
        self.candidates.clear();
        self.fingerprints.clear();
        self.places.clear();
        self.chunks.clear();
        self.counts.clear();
        self.cut.clear();
        self.bytes.clear();
    }
}

/// A part of the work, for one thread.
pub(crate) struct Unit {
    number: usize,
    does: Does,
    part: Part,
}

/// What it is.
#[derive(Clone)]
enum Does {
    /// These bytes of the data, pieces to be hashed, or windows.
    Range(Range<usize>),
    /// These bytes of the data, so many levels.
    Levels(Range<usize>, u32),
    /// Of an ingestion.
    Piece(Piece),
}

/// See the module.
#[derive(Default)]
pub(crate) struct Split {
    work: Option<Arc<Work>>,
    /// Bytes, pieces or windows in all, and in a unit.
    total: usize,
    unit: usize,
    /// How many of them were handed out.
    handed: usize,
    levels: u32,
    /// Results, by the number of the unit. Longer than `used`, so that their room is kept.
    parts: Vec<Part>,
    used: usize,
    under_way: usize,
    batch: Batch,
}

/// Whether tasks of so many bytes are usually worth being done by several threads.
pub(crate) fn is_usually_worth_it(class: Class, bytes: usize) -> bool {
    let several = matches!(
        class,
        Class::Scan | Class::HashMany(_) | Class::WindowHash(_) | Class::PmdHash(_) | Class::Ingest(..)
    );
    several && bytes >= LEAST
}

/// Whether this work is worth being done by several threads. Says no to what only an error can come of.
pub(crate) fn is_worth_it(work: &Work) -> bool {
    let several = match &work.request {
        Request::Scan { .. } => true,
        Request::HashMany { ranges, .. } => ranges.len() > 1,
        Request::WindowHash { spec } => spec.is_valid() && spec.count(work.input_len()) >= 2 * WINDOWS,
        Request::PmdHash { digest } => digest.has_pmd(),
        Request::Ingest { chunker, .. } => chunker.is_valid(),
        _ => false,
    };
    several && work.input_len() >= LEAST
}

impl Split {
    /// Begins with work that [is worth it](is_worth_it), for so many threads.
    pub(crate) fn begin(&mut self, work: &Arc<Work>, threads: usize) {
        let len = work.input_len();
        self.unit = (len / (A_THREAD * threads)).clamp(UNIT.start, UNIT.end).next_multiple_of(PMD_SEGMENT);
        self.total = len;
        match &work.request {
            Request::HashMany { ranges, .. } => self.total = ranges.len(),
            Request::WindowHash { spec } => {
                self.total = spec.count(len);
                self.unit = (self.unit / spec.step).max(1).next_multiple_of(WINDOWS);
            }
            Request::PmdHash { .. } => {
                let two = len >= 2 * TWO_LEVELS * threads;
                self.levels = if two { 2 } else { 1 };
                self.unit = if two { TWO_LEVELS } else { self.unit };
            }
            Request::Ingest { .. } => self.batch.begin(self.unit),
            _ => {}
        }
        (self.handed, self.used, self.under_way) = (0, 0, 0);
        self.work = Some(Arc::clone(work));
    }

    /// A share of the work, to do units of.
    pub(crate) fn work(&self) -> Option<Arc<Work>> {
        self.work.clone()
    }

    /// The next unit, if there is one now.
    pub(crate) fn next(&mut self) -> Option<Unit> {
        let work = self.work.as_deref()?;
        let does = match &work.request {
            Request::Ingest { streams, .. } => {
                let unit = self.batch.next(streams).map(|(number, piece, part)| Unit {
                    number,
                    does: Does::Piece(piece),
                    part,
                })?;
                self.under_way += 1;
                return Some(unit);
            }
            _ if self.handed == self.total => return None,
            Request::HashMany { ranges, .. } => {
                let (from, mut bytes) = (self.handed, 0);
                for range in &ranges[from..] {
                    self.handed += 1;
                    bytes += range.len();
                    if bytes >= self.unit {
                        break;
                    }
                }
                Does::Range(from..self.handed)
            }
            request => {
                let from = self.handed;
                // The last one takes up to a unit and a half, so that none is tiny.
                let left = self.total - from;
                let size = if left <= self.unit + self.unit / 2 { left } else { self.unit };
                self.handed += size;
                match request {
                    Request::PmdHash { .. } => Does::Levels(from..self.handed, self.levels),
                    _ => Does::Range(from..self.handed),
                }
            }
        };
        let number = self.used;
        self.used += 1;
        if self.parts.len() < self.used {
            self.parts.push(Part::default());
        }
        let mut part = std::mem::take(&mut self.parts[number]);
        part.clear();
        self.under_way += 1;
        Some(Unit { number, does, part })
    }

    /// Takes a unit back that was done.
    pub(crate) fn done(&mut self, unit: Unit) {
        self.under_way -= 1;
        let Unit { number, does, part } = unit;
        match does {
            Does::Piece(_) => {
                if let Some(Work { request: Request::Ingest { streams, chunker, .. }, .. }) =
                    self.work.as_deref()
                {
                    self.batch.done(number, part, streams, *chunker);
                }
            }
            _ => self.parts[number] = part,
        }
    }

    /// Whether a unit that comes back may make others possible, where there is none now.
    pub(crate) fn may_give_more(&self) -> bool {
        let in_order = matches!(self.work.as_deref(), Some(Work { request: Request::Ingest { .. }, .. }));
        in_order && self.under_way > 0
    }

    /// Units that are handed out and not back.
    pub(crate) fn under_way(&self) -> usize {
        self.under_way
    }

    /// Puts the results together, if all units are back and none is left; ends it in any case.
    pub(crate) fn finish(&mut self, cpu: &mut CpuDevice, output: &mut Output) {
        let Some(work) = self.work.take() else { return };
        output.clear();
        let parts = &self.parts[..self.used];
        match &work.request {
            Request::Scan { .. } => {
                let mut from = 0;
                for part in parts {
                    let moved = part.candidates.iter().map(|candidate| candidate + ((from as u32) << 1));
                    output.candidates.extend(moved);
                    from += self.unit;
                }
            }
            Request::HashMany { .. } => {
                parts.iter().for_each(|part| output.fingerprints.extend_from_slice(&part.fingerprints));
            }
            Request::WindowHash { .. } => {
                let bytes = output.bytes.vector();
                bytes.reserve(parts.iter().map(|part| part.bytes.len()).sum());
                parts.iter().for_each(|part| bytes.extend_from_slice(&part.bytes));
            }
            Request::PmdHash { digest } => {
                cpu.pmd_finish(
                    *digest,
                    work.input_len(),
                    parts.iter().map(|part| &part.bytes[..]),
                    output.bytes.vector(),
                );
            }
            Request::Ingest { streams, .. } => self.batch.finish(streams, output),
            _ => {}
        }
    }
}

impl Unit {
    /// Does it.
    pub(crate) fn run(&mut self, work: &Work, cpu: &mut CpuDevice) {
        let (data, part) = (work.data(), &mut self.part);
        let done = match (&work.request, &self.does) {
            (Request::Scan { masks, .. }, Does::Range(range)) => {
                let history = if range.start == 0 { work.history() } else { &data[..range.start] };
                let (data, out) = (&data[range.clone()], &mut part.candidates);
                cpu.run(&mut Task::Scan(Scan { history, data, masks: *masks, out }))
            }
            (Request::HashMany { kind, ranges }, Does::Range(range)) => {
                let (ranges, out) = (&ranges[range.clone()], &mut part.fingerprints);
                cpu.run(&mut Task::HashMany(HashMany { kind: *kind, data, ranges, out }))
            }
            (Request::WindowHash { spec }, Does::Range(range)) => {
                let end = (range.end - 1) * spec.step + spec.window;
                let (data, out) = (&data[range.start * spec.step..end], &mut part.bytes);
                cpu.run(&mut Task::WindowHash(WindowHash { spec: *spec, data, out }))
            }
            (Request::PmdHash { digest }, Does::Levels(range, levels)) => {
                cpu.pmd_levels(*digest, &data[range.clone()], *levels, &mut part.bytes);
                Ok(())
            }
            (Request::Ingest { streams, chunker, kind, table }, Does::Piece(piece)) => {
                piece.run(part, data, streams, (*chunker, *kind, table.as_deref()), cpu)
            }
            _ => unreachable!("units are of the work's own operation"),
        };
        done.expect("what is not valid is not split, and the processor does everything else");
    }
}

#[cfg(test)]
mod tests;
