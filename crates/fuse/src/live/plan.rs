//! Plans a file's new content: which staged and committed bytes must be read and cut again.
//!
//! Staged bytes are cut afresh, and committed content only where necessary. A committed range is
//! kept as whole entries; if a staged range begins or ends within a chunk, the rest of that chunk
//! is cut with it. So new cut points meet the old ones again at the next old boundary. An append
//! begins with the last chunk, whose end was the file's end and no cut point.

use std::ops::Range;
use std::sync::Arc;

use outrigger_format::{ChunkerSpec, Entry, Root};
use outrigger_store::Result;
use outrigger_store::read::Reader;
use outrigger_store::staging::Piece;
use outrigger_store::write::Part;

/// Runs of zeros of at least this become holes.
const HOLE_MIN: u64 = 4096;
/// Shorter ranges of another content are read and cut, not shared.
const SHARED_MIN: u64 = 64 << 10;
/// Overwritten ranges of less than this count as rewriting in place.
const REWRITE_MAX: u64 = 128 << 10;

/// A file's new content, and how the file is used.
pub(crate) struct Plan {
    pub parts: Vec<Part>,
    /// Small ranges within the committed content that were overwritten.
    pub rewrites: u32,
}

enum Span {
    Keep(Arc<Root>, Range<u64>),
    Data(u64),
    Hole(u64),
}

/// Plans a file of these pieces, over the content `root`.
///
/// # Errors
/// When a manifest cannot be read.
pub(crate) fn plan(
    reader: &Reader<'_>,
    root: &Arc<Root>,
    pieces: &[(Range<u64>, Piece)],
    chunker: ChunkerSpec,
) -> Result<Plan> {
    let mut planner = Planner { spans: Vec::with_capacity(pieces.len() + 2) };
    let mut rewrites = 0;
    for (at, (range, piece)) in pieces.iter().enumerate() {
        let len = range.end - range.start;
        match piece {
            Piece::Data(_) => {
                planner.data(len);
                let overwrites = range.end < root.len() && len < REWRITE_MAX;
                rewrites += u32::from(overwrites);
            }
            Piece::Zero if len >= HOLE_MIN => planner.spans.push(Span::Hole(len)),
            Piece::Zero => planner.data(len),
            Piece::Clone(other, from) if len >= SHARED_MIN => {
                planner.shared(reader, other, *from..from + len, false, None)?;
            }
            Piece::Clone(..) => planner.data(len),
            Piece::Committed => {
                let goes_on = pieces.get(at + 1).is_some_and(|(_, next)| !matches!(next, Piece::Zero));
                let appended = (goes_on && range.end == root.len()).then_some(chunker);
                planner.shared(reader, root, range.clone(), true, appended)?;
            }
        }
    }
    Ok(Plan { parts: planner.parts(), rewrites })
}

struct Planner {
    spans: Vec<Span>,
}

impl Planner {
    fn data(&mut self, len: u64) {
        match self.spans.last_mut() {
            _ if len == 0 => {}
            Some(Span::Data(before)) => *before += len,
            _ => self.spans.push(Span::Data(len)),
        }
    }

    /// A range of another content, or of the file's own: its whole entries are kept, what lies in
    /// others is cut again. With `appended`, the last entry is cut again too, unless it is as long
    /// as a chunk can be.
    fn shared(
        &mut self,
        reader: &Reader<'_>,
        root: &Arc<Root>,
        range: Range<u64>,
        own: bool,
        appended: Option<ChunkerSpec>,
    ) -> Result<()> {
        let Range { start, end } = range;
        let (first, first_entry) = entry_at(reader, root, start)?;
        let (last, last_entry) = entry_at(reader, root, end - 1)?;
        let (first_end, last_end) = (first + first_entry.len(), last + last_entry.len());
        let mut keep = start..end;
        if first < start {
            keep.start = first_end.min(end);
        }
        let redo = match (appended, last_entry) {
            (Some(ChunkerSpec::Fixed { size }), Entry::Chunk { len, .. }) => len < size,
            (Some(chunker), Entry::Chunk { len, .. }) => (len as usize) < chunker.max_len(),
            _ => false,
        };
        if last_end > end || redo {
            keep.end = last.max(start);
        }
        let (head, tail);
        if keep.start >= keep.end {
            (head, tail) = ((end - start, first_entry), (0, last_entry));
        } else {
            (head, tail) = ((keep.start - start, first_entry), (end - keep.end, last_entry));
        }
        self.edge(head.0, &head.1, first_end >= end || head.0 <= first_end - start);
        if keep.start < keep.end {
            match self.spans.last_mut() {
                Some(Span::Keep(before, known))
                    if own && Arc::ptr_eq(before, root) && known.end == keep.start =>
                {
                    known.end = keep.end;
                }
                _ => self.spans.push(Span::Keep(Arc::clone(root), keep)),
            }
        }
        self.edge(tail.0, &tail.1, true);
        Ok(())
    }

    /// A part of one entry: bytes to cut again, or a part of a hole.
    fn edge(&mut self, len: u64, entry: &Entry, within_entry: bool) {
        match entry {
            _ if len == 0 => {}
            Entry::Hole { .. } if within_entry && len >= HOLE_MIN => self.spans.push(Span::Hole(len)),
            _ => self.data(len),
        }
    }

    fn parts(self) -> Vec<Part> {
        let mut offset = 0;
        let parts = self.spans.into_iter().map(|span| match span {
            Span::Keep(root, range) => {
                offset += range.end - range.start;
                Part::Keep { root, from: range.start, to: range.end }
            }
            Span::Data(len) => {
                offset += len;
                Part::Data { offset: offset - len, len }
            }
            Span::Hole(len) => {
                offset += len;
                Part::Hole { len }
            }
        });
        parts.collect()
    }
}

/// The entry that holds a byte, and where it begins.
fn entry_at(reader: &Reader<'_>, root: &Root, at: u64) -> Result<(u64, Entry)> {
    let mut found = None;
    reader.entries(root, at, at + 1, &mut |start, entry| {
        found = Some((start, entry));
        Ok(false)
    })?;
    found.ok_or_else(|| outrigger_store::Error::damaged(format!("a manifest has nothing at byte {at}")))
}
