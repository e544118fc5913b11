//! The map of one file: which of its bytes are staged, and where they lie.
//!
//! The map lies over the file's committed content. Where it has no entry the committed content
//! counts, up to the shortest length that the file has had since: bytes that a truncation cut off
//! do not come back when the file grows again. Each extent remembers the sequence of the record it
//! came from. So a flusher can look at the map, store what it saw, and then give up exactly that
//! ([`ExtentMap::settle`]), while writes go on: bytes that were written meanwhile have a later
//! sequence and stay.
//!
//! A map owns the bytes and pins that it counts in [`Usage`]. They are released when they are
//! overwritten, settled, or dropped with the map.

mod ranges;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use outrigger_format::Root;

use super::log::{Appended, Location};
use super::usage::Usage;

pub use self::ranges::{Age, Due, Ranges};

/// Where staged bytes come from.
#[derive(Clone, Debug)]
enum Source {
    /// As in a [`Location`].
    Data {
        offset: u32,
        whole: (u32, u32),
    },
    Zero,
    Clone {
        root: Arc<Root>,
        offset: u64,
    },
}

/// Staged bytes, from their key in the map up to `end`.
#[derive(Clone, Debug)]
struct Extent {
    end: u64,
    sequence: u64,
    segment: u32,
    /// The segment in which its bytes were first written since they were last stored.
    first: u32,
    source: Source,
}

impl Extent {
    /// Drops the first `by` bytes.
    fn skip(mut self, by: u64) -> Self {
        match &mut self.source {
            Source::Data { offset, .. } => *offset += by as u32,
            Source::Zero => {}
            Source::Clone { offset, .. } => *offset += by,
        }
        self
    }
}

/// Why a map gives up staged bytes.
#[derive(Clone, Copy)]
enum Fate {
    /// They are part of the committed content now.
    Stored,
    /// They were overwritten, cut off, or removed with their file.
    Superseded,
}

/// A truncation that is not part of the committed content yet.
#[derive(Clone, Copy, Debug)]
struct Cut {
    sequence: u64,
    segment: u32,
    len: u64,
}

/// The content of a range of a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Piece {
    /// Staged data.
    Data(Location),
    /// Zeros.
    Zero,
    /// The content of another root, from this offset on.
    Clone(Arc<Root>, u64),
    /// The committed content.
    Committed,
}

/// The staged state of one file. Not shared between threads: its file's lock guards it.
#[derive(Debug)]
pub struct ExtentMap {
    usage: Arc<Usage>,
    extents: BTreeMap<u64, Extent>,
    /// Length of the file.
    len: u64,
    /// The committed content counts up to here.
    committed: u64,
    /// Truncations that made the file shorter, in the order of their sequences, with rising
    /// lengths: a later truncation to the same length or less replaces an earlier one.
    cuts: Vec<Cut>,
    /// The last truncation that made the file longer, if none made it shorter since.
    growth: Option<Cut>,
    /// Bytes in `Data` extents.
    staged: u64,
}

impl ExtentMap {
    /// Nothing is staged; the committed content has `len` bytes.
    pub fn new(usage: Arc<Usage>, len: u64) -> Self {
        Self {
            usage,
            extents: BTreeMap::new(),
            len,
            committed: len,
            cuts: Vec::new(),
            growth: None,
            staged: 0,
        }
    }

    /// Length of the file.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// True when the file has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// True when nothing is staged over the committed content.
    pub fn is_clean(&self) -> bool {
        self.extents.is_empty() && self.cuts.is_empty() && self.growth.is_none()
    }

    /// Bytes of staged data.
    pub fn staged_bytes(&self) -> u64 {
        self.staged
    }

    /// The oldest segment that this file needs: it must be flushed before that segment can be
    /// removed.
    pub fn oldest_segment(&self) -> Option<u32> {
        let cuts = self.cuts.iter().chain(&self.growth).map(|cut| cut.segment);
        self.extents.values().map(|extent| extent.segment).chain(cuts).min()
    }

    /// Records a write whose data belongs at `offset`.
    ///
    /// # Panics
    /// When it ends beyond 2^64.
    pub fn write(&mut self, offset: u64, appended: &Appended) {
        let Location { offset: at, len, whole, .. } = appended.location;
        self.staged += u64::from(len);
        self.insert(offset, len.into(), appended, Source::Data { offset: at, whole });
    }

    /// Records that the bytes of a range were zeroed.
    ///
    /// # Panics
    /// When the range is empty or ends beyond 2^64.
    pub fn zero(&mut self, offset: u64, len: u64, appended: &Appended) {
        self.insert(offset, len, appended, Source::Zero);
    }

    /// Records that the bytes of a range are those of `root` from `from` on.
    ///
    /// # Panics
    /// When the range is empty or ends beyond 2^64.
    pub fn clone_range(&mut self, offset: u64, len: u64, root: Arc<Root>, from: u64, appended: &Appended) {
        self.insert(offset, len, appended, Source::Clone { root, offset: from });
    }

    fn insert(&mut self, offset: u64, len: u64, appended: &Appended, source: Source) {
        let end = offset.checked_add(len).filter(|end| *end > offset).expect("a range of a file");
        let (sequence, segment) = (appended.sequence, appended.location.segment);
        let first = self.remove(offset..end, Fate::Superseded).min(segment);
        self.extents.insert(offset, Extent { end, sequence, segment, first, source });
        self.len = self.len.max(end);
    }

    /// Records that the file was cut or lengthened to `len` bytes.
    pub fn truncate(&mut self, len: u64, appended: &Appended) {
        let cut = Cut { sequence: appended.sequence, segment: appended.location.segment, len };
        let superseded = self.growth.take();
        if len < self.len {
            self.remove(len..u64::MAX, Fate::Superseded);
            self.committed = self.committed.min(len);
            while self.cuts.last().is_some_and(|last| last.len >= len) {
                self.cuts.pop().into_iter().for_each(|cut| self.usage.unpin(cut.segment));
            }
            self.cuts.push(cut);
        } else {
            self.growth = Some(cut);
        }
        superseded.into_iter().for_each(|cut| self.usage.unpin(cut.segment));
        self.len = len;
    }

    /// The file's state up to `sequence` is committed, with a content of `committed` bytes: gives
    /// up everything that is not newer. Returns the bytes of staged data that were given up. They
    /// are fewer than were flushed if some were written again meanwhile.
    pub fn settle(&mut self, sequence: u64, committed: u64) -> u64 {
        let before = self.staged;
        let settled: Vec<u64> = {
            let old = self.extents.iter().filter(|(_, extent)| extent.sequence <= sequence);
            old.map(|(start, _)| *start).collect()
        };
        for start in settled {
            let extent = self.extents.remove(&start).expect("just seen");
            self.release(start, &extent, Fate::Stored);
        }
        self.settle_cuts(committed, |cut| cut.sequence > sequence);
        before - self.staged
    }

    /// Like [`ExtentMap::settle`], for a commit of only the first `committed` bytes of that state.
    /// Nothing behind them was [`Piece::Committed`] then, and all of it stays.
    pub fn settle_first(&mut self, sequence: u64, committed: u64) -> u64 {
        let before = self.staged;
        self.settle_range(sequence, 0..committed);
        // Truncations behind them say how long the file is, so these stay.
        self.settle_cuts(committed, |cut| cut.sequence > sequence || cut.len > committed);
        before - self.staged
    }

    /// Drops the truncations that a content of `committed` bytes includes: all but those for which
    /// `stays` is true.
    fn settle_cuts(&mut self, committed: u64, stays: impl Fn(&Cut) -> bool) {
        let usage = &self.usage;
        let stays = |cut: &Cut| {
            let stays = stays(cut);
            if !stays {
                usage.unpin(cut.segment);
            }
            stays
        };
        self.cuts.retain(stays);
        self.growth = self.growth.take().filter(stays);
        self.committed = self.cuts.first().map_or(committed, |cut| cut.len.min(committed));
    }

    /// Another client has committed a content of `committed` bytes: staged bytes lie over that from
    /// now on. Written bytes stay where they are. With `follows`, and if all of them were written
    /// behind the end, they follow the new end. A file that was cut here stays cut.
    pub fn rebase(&mut self, committed: u64, follows: bool) {
        if !self.cuts.is_empty() {
            self.committed = self.committed.min(committed);
            return;
        }
        let before = std::mem::replace(&mut self.committed, committed);
        let behind = self.extents.first_key_value().is_some_and(|(first, _)| *first >= before);
        if follows && behind && self.growth.is_none() {
            let moved = |at: u64| at - before + committed;
            let extents = std::mem::take(&mut self.extents);
            self.extents = extents
                .into_iter()
                .map(|(start, extent)| (moved(start), Extent { end: moved(extent.end), ..extent }))
                .collect();
            self.len = moved(self.len);
            return;
        }
        let written = self.extents.last_key_value().map_or(0, |(_, extent)| extent.end);
        let grown = self.growth.map_or(0, |growth| growth.len);
        self.len = committed.max(written).max(grown);
    }

    /// The content of a range, in order and without gaps, up to the file's end.
    pub fn pieces(&self, range: Range<u64>) -> Pieces<'_> {
        Pieces { map: self, at: range.start, end: range.end.min(self.len) }
    }

    /// Takes a range out of the map. Returns the oldest segment in which its bytes were first
    /// written; the highest number if there were none.
    fn remove(&mut self, range: Range<u64>, fate: Fate) -> u32 {
        let Range { start, end } = range;
        let mut oldest = u32::MAX;
        // If an extent begins before the range, its parts before and behind the range stay.
        if let Some((&first, extent)) = self.extents.range_mut(..start).next_back()
            && extent.end > start
        {
            let cut = extent.clone();
            oldest = cut.first;
            extent.end = start;
            if cut.end > end {
                // One extent becomes two; a pin is needed for each.
                if !matches!(cut.source, Source::Data { .. }) {
                    self.usage.pin(cut.segment);
                }
                self.extents.insert(end, cut.clone().skip(end - first));
            }
            if let Source::Data { .. } = cut.source {
                self.release_bytes(cut.segment, cut.end.min(end) - start, fate);
            }
        }
        while let Some((&first, _)) = self.extents.range(start..end).next() {
            let extent = self.extents.remove(&first).expect("just seen");
            oldest = oldest.min(extent.first);
            if extent.end > end {
                if let Source::Data { .. } = extent.source {
                    self.release_bytes(extent.segment, end - first, fate);
                }
                self.extents.insert(end, extent.skip(end - first));
            } else {
                self.release(first, &extent, fate);
            }
        }
        oldest
    }

    fn release_bytes(&mut self, segment: u32, bytes: u64, fate: Fate) {
        self.staged -= bytes;
        match fate {
            Fate::Stored => self.usage.release_bytes(segment, bytes),
            Fate::Superseded => self.usage.supersede_bytes(segment, bytes),
        }
    }

    fn release(&mut self, start: u64, extent: &Extent, fate: Fate) {
        match extent.source {
            Source::Data { .. } => self.release_bytes(extent.segment, extent.end - start, fate),
            Source::Zero | Source::Clone { .. } => self.usage.unpin(extent.segment),
        }
    }
}

impl Drop for ExtentMap {
    fn drop(&mut self) {
        for (start, extent) in std::mem::take(&mut self.extents) {
            self.release(start, &extent, Fate::Superseded);
        }
        self.cuts.iter().chain(&self.growth).for_each(|cut| self.usage.unpin(cut.segment));
    }
}

/// The content of a range: see [`ExtentMap::pieces`].
#[derive(Clone, Debug)]
pub struct Pieces<'a> {
    map: &'a ExtentMap,
    at: u64,
    end: u64,
}

impl Iterator for Pieces<'_> {
    type Item = (Range<u64>, Piece);

    fn next(&mut self) -> Option<Self::Item> {
        let (start, map) = (self.at, self.map);
        if start >= self.end {
            return None;
        }
        let before = map.extents.range(..=start).next_back().filter(|(_, extent)| extent.end > start);
        let (end, piece) = match before {
            Some((first, extent)) => {
                let end = extent.end.min(self.end);
                let piece = match &extent.clone().skip(start - first).source {
                    Source::Data { offset, whole } => Piece::Data(Location {
                        segment: extent.segment,
                        offset: *offset,
                        len: (end - start) as u32,
                        whole: *whole,
                    }),
                    Source::Zero => Piece::Zero,
                    Source::Clone { root, offset } => Piece::Clone(Arc::clone(root), *offset),
                };
                (end, piece)
            }
            None => {
                let next =
                    map.extents.range(start..).next().map_or(self.end, |(&next, _)| next.min(self.end));
                if start < map.committed {
                    (next.min(map.committed), Piece::Committed)
                } else {
                    (next, Piece::Zero)
                }
            }
        };
        self.at = end;
        Some((start..end, piece))
    }
}
