//! Storing a part of a file's staged bytes: those that are due.
//!
//! The log frees only its oldest segments, so a batch that makes room must store what these still
//! hold. Newer bytes may stay staged: they lie over the content that the batch commits, as they lay
//! over the one before. That content has the file's present length. Where newer bytes stay, it has
//! what lies below them: the bytes that were committed before, or zeros.
//!
//! Bytes are due by blocks: what lies in one block with due bytes is due, too. The flusher cuts and
//! hashes such a block as a whole in any case.

use std::ops::Range;

use super::{Extent, ExtentMap, Fate, Piece};

/// By which of its writes the age of a byte counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Age {
    /// By the last one.
    LastWritten,
    /// By the first one since it was last stored.
    FirstWritten,
}

/// Which staged bytes are due: those that were written in these segments of the log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Due {
    /// Up to this segment, which can be removed once they are stored.
    pub until: u32,
    /// And from this segment on.
    pub from: u32,
    /// Which write counts.
    pub by: Age,
}

impl Due {
    fn has(&self, extent: &Extent) -> bool {
        let written = match self.by {
            Age::LastWritten => extent.segment,
            Age::FirstWritten => extent.first,
        };
        written <= self.until || written >= self.from
    }
}

/// A file, however long it is.
const WHOLE: Range<u64> = 0..u64::MAX;

/// Ranges of a file, in order and apart from one another.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ranges(Vec<Range<u64>>);

impl Ranges {
    /// The whole file, however long it is.
    pub fn all() -> Self {
        Self(vec![WHOLE])
    }

    /// True if they are the whole file.
    pub fn is_all(&self) -> bool {
        self.0 == [WHOLE]
    }

    /// Adds a range that does not begin before the last one.
    fn add(&mut self, range: Range<u64>) {
        match self.0.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => self.0.push(range),
        }
    }

    fn has(&self, range: Range<u64>) -> bool {
        let next = self.0.partition_point(|known| known.end < range.end);
        self.0.get(next).is_some_and(|known| known.start <= range.start)
    }
}

impl ExtentMap {
    /// The ranges whose staged bytes are due, in whole blocks of `block` bytes; `None` if the file
    /// has nothing that is due. They are the whole file if nothing else of it is staged. They may
    /// be empty, if only truncations are due.
    ///
    /// # Panics
    /// When `block` is 0.
    pub fn due(&self, due: &Due, block: u64) -> Option<Ranges> {
        let mut ranges = Ranges(Vec::new());
        for (start, extent) in self.extents.iter().filter(|(_, extent)| due.has(extent)) {
            let end = extent.end.checked_next_multiple_of(block).unwrap_or(u64::MAX);
            ranges.add(start - start % block..end);
        }
        let is_cut = || self.cuts.iter().chain(&self.growth).any(|cut| cut.segment <= due.until);
        if ranges.0.is_empty() && !is_cut() {
            return None;
        }
        let is_all = self.extents.iter().all(|(start, extent)| ranges.has(*start..extent.end));
        Some(if is_all { Ranges::all() } else { ranges })
    }

    /// The whole content, in order and without gaps, as if bytes were staged in these ranges only.
    pub fn pieces_in(&self, ranges: &Ranges) -> Vec<(Range<u64>, Piece)> {
        let mut pieces = Vec::new();
        let mut at = 0;
        for range in &ranges.0 {
            self.add_below(at..range.start.min(self.len), &mut pieces);
            self.pieces(range.clone()).for_each(|(range, piece)| add(&mut pieces, range, piece));
            at = range.end;
        }
        self.add_below(at..self.len, &mut pieces);
        pieces
    }

    /// Adds what lies below the staged bytes of a range.
    fn add_below(&self, range: Range<u64>, pieces: &mut Vec<(Range<u64>, Piece)>) {
        let Range { start, end } = range;
        let committed = self.committed.clamp(start, end.max(start));
        add(pieces, start..committed, Piece::Committed);
        add(pieces, committed..end, Piece::Zero);
    }

    /// Like [`ExtentMap::settle`], for a commit of the content that [`ExtentMap::pieces_in`] gave
    /// for these ranges. All that is staged elsewhere stays.
    pub fn settle_in(&mut self, sequence: u64, committed: u64, ranges: &Ranges) -> u64 {
        if ranges.is_all() {
            return self.settle(sequence, committed);
        }
        let before = self.staged;
        for range in &ranges.0 {
            self.settle_range(sequence, range.clone());
        }
        self.settle_cuts(committed, |cut| cut.sequence > sequence);
        before - self.staged
    }

    /// Gives up the staged bytes of a range that are not newer than `sequence`.
    pub(super) fn settle_range(&mut self, sequence: u64, range: Range<u64>) {
        let Range { start, end } = range;
        let across = self.extents.range(..start).next_back().filter(|(_, extent)| extent.end > start);
        let old = across.into_iter().chain(self.extents.range(start..end));
        let old = old.filter(|(_, extent)| extent.sequence <= sequence);
        let old: Vec<Range<u64>> =
            old.map(|(first, extent)| start.max(*first)..extent.end.min(end)).collect();
        for range in old {
            self.remove(range, Fate::Stored);
        }
    }
}

/// Adds a piece, to the one before it if both are of a kind that has no place.
fn add(pieces: &mut Vec<(Range<u64>, Piece)>, range: Range<u64>, piece: Piece) {
    if range.is_empty() {
        return;
    }
    match pieces.last_mut() {
        Some((last, known)) if *known == piece && matches!(piece, Piece::Committed | Piece::Zero) => {
            last.end = range.end;
        }
        _ => pieces.push((range, piece)),
    }
}
