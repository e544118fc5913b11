//! Splits one large piece of work into units, which any number of threads do in parallel. The
//! result is that of a single thread.
//!
//! ```text
//!   scan         pieces of the data; each is given what precedes it, which is all that a candidate depends on
//!   hash_many    runs of pieces
//!   window_hash  runs of windows
//!   pmd_hash     pieces of the data, one or two levels of the construction; the few digests that are left are for one thread
//!   ingest       see `batch.rs`: the cut walk goes over all candidates in order, everything else is units
//! ```
//!
//! The threads share a [`Split`] under their own lock. It hands [`Unit`]s out and takes them back.
//! A unit is executed without the lock. Vectors are kept from task to task.

mod batch;

use std::ops::Range;
use std::sync::Arc;

use outrigger_format::Fingerprint;

use super::{Class, Output, Request, Work};
use crate::op::{HashMany, Ingested, PMD_SEGMENT, Scan, WindowHash};
use crate::{CpuDevice, Device, Task};
use batch::{Batch, Piece};

/// Less data is left to one thread, as waking another would take as long.
const LEAST: usize = 1 << 20;
/// Bytes of a unit: enough to fill the lanes, and few enough that threads finish at about the same
/// time.
const UNIT: Range<usize> = 256 << 10..1 << 20;
/// The approximate number of units for each thread.
const A_THREAD: usize = 4;
/// A unit with two levels of the parallel construction is a multiple of this: whole segments of the
/// second level, for every length of digest.
const TWO_LEVELS: usize = 4 << 20;
/// The number of windows in a unit is a multiple of this: whole groups of lanes.
const WINDOWS: usize = 64;

/// The results of a unit. The operation determines which vectors are used.
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

/// The content of a unit.
#[derive(Clone)]
enum Does {
    /// These bytes of the data, pieces to be hashed, or windows.
    Range(Range<usize>),
    /// These bytes of the data, with so many levels.
    Levels(Range<usize>, u32),
    /// A piece of an ingestion.
    Piece(Piece),
}

/// A piece of work that threads share, as the module describes.
#[derive(Default)]
pub(crate) struct Split {
    work: Option<Arc<Work>>,
    /// Bytes, pieces or windows in total, and in a unit.
    total: usize,
    unit: usize,
    /// How many of them were handed out.
    handed: usize,
    levels: u32,
    /// Results by unit number. There may be more than `used`, to keep their capacity.
    parts: Vec<Part>,
    used: usize,
    under_way: usize,
    batch: Batch,
}

/// True if tasks of so many bytes usually gain from several threads.
pub(crate) fn is_usually_worth_it(class: Class, bytes: usize) -> bool {
    let several = matches!(
        class,
        Class::Scan | Class::HashMany(_) | Class::WindowHash(_) | Class::PmdHash(_) | Class::Ingest(..)
    );
    several && bytes >= LEAST
}

/// True if this work gains from several threads. False for work that can only fail.
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

    /// A share of the work, to execute units of it.
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
                // The last unit has up to one and a half times the length, so that none is tiny.
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

    /// Takes a finished unit back.
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

    /// True if there is no unit now, but a returning one may make others possible.
    pub(crate) fn may_give_more(&self) -> bool {
        let in_order = matches!(self.work.as_deref(), Some(Work { request: Request::Ingest { .. }, .. }));
        in_order && self.under_way > 0
    }

    /// Units that are handed out.
    pub(crate) fn under_way(&self) -> usize {
        self.under_way
    }

    /// Combines the results if all units are finished. Ends the split in any case.
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
    /// Executes the unit.
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
