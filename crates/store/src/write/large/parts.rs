//! Composed files: parts shared out to segments, and read from their source.

use std::sync::Mutex;

use outrigger_format::ChunkerSpec;

use super::source::Segment;
use super::{Between, Data, LargeFile, Piece, ReadSegment};
use crate::error::Result;
use crate::write::item::{Part, Parts};
use crate::write::progress::Progress;

/// Parts in one segment at most: they are shared out under the queue's lock.
const PARTS_MAX: usize = 1024;

/// A place in a sequence of parts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct At {
    part: usize,
    /// Bytes of it that lie before.
    within: u64,
}

/// The parts of one segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::write) struct Span {
    from: At,
    to: At,
    last: bool,
}

pub(super) struct PartsSource {
    content: Parts,
    segment_len: u64,
    /// The next segment's number, and where it begins; `None`: all were taken.
    next: Mutex<Option<(u64, At)>>,
}

impl PartsSource {
    pub fn new(mut content: Parts, chunker: ChunkerSpec, segment_len: u64) -> Self {
        if let ChunkerSpec::Fixed { size } = chunker {
            align(&mut content.parts, size.into());
        }
        Self { content, segment_len, next: Mutex::new(Some((0, At::default()))) }
    }

    /// See [`LargeFile::take_segment`]. There is one segment at least, to end the file.
    pub fn take_segment(&self) -> Option<Segment> {
        let mut next = self.next.lock().expect("no panic while held");
        let (number, from) = (*next)?;
        let span = span_from(&self.content.parts, from, self.segment_len);
        *next = (!span.last).then_some((number + 1, span.to));
        Some(Segment { number, span: Some(span) })
    }
}

/// Splits data that begins within a block where the block ends, so that the cuts after it lie at
/// multiples of the size.
fn align(parts: &mut Vec<Part>, size: u64) {
    let begins_within = |part: &Part| matches!(part, Part::Data { offset, len } if offset % size != 0 && *len > size - offset % size);
    if !parts.iter().any(begins_within) {
        return;
    }
    let split = |part: Part| match part {
        Part::Data { offset, len } if begins_within(&part) => {
            let first = size - offset % size;
            let rest = Part::Data { offset: offset + first, len: len - first };
            [Some(Part::Data { offset, len: first }), Some(rest)]
        }
        whole => [Some(whole), None],
    };
    *parts = std::mem::take(parts).into_iter().flat_map(split).flatten().collect();
}

/// The parts after `from`, with `room` bytes of data at most.
fn span_from(parts: &[Part], from: At, mut room: u64) -> Span {
    let mut to = from;
    while to.part < parts.len() && to.part - from.part < PARTS_MAX {
        if let Part::Data { len, .. } = &parts[to.part] {
            let left = len - to.within;
            if left > room {
                to.within += room;
                break;
            }
            room -= left;
        }
        to = At { part: to.part + 1, within: 0 };
    }
    Span { from, to, last: to.part == parts.len() }
}

impl LargeFile {
    pub(super) fn read_parts(
        &self,
        source: &PartsSource,
        segment: &Segment,
        read: &mut ReadSegment,
        progress: &Progress,
    ) -> Result<()> {
        let Span { from, to, last } = segment.span.expect("segments of parts have one");
        let Parts { parts, source } = &source.content;
        let mut at = read.buffer.headroom;
        read.last = last;
        for (number, part) in parts.iter().enumerate().take(to.part + 1).skip(from.part) {
            let begin = if number == from.part { from.within } else { 0 };
            if part.is_empty() || (number == to.part && to.within == begin) {
                continue;
            }
            let (offset, len) = match part {
                Part::Keep { root, from, to } => {
                    let kept = Between::Keep(root.clone(), *from, *to);
                    read.pieces.push(Piece::Between(kept));
                    continue;
                }
                Part::Hole { len } => {
                    read.pieces.push(Piece::Between(Between::Hole(*len)));
                    continue;
                }
                Part::Data { offset, len } => (*offset, *len),
            };
            let end = if number == to.part { to.within } else { len };
            let now = (end - begin) as usize;
            // The scanner needs the bytes before to tell whether a chunk ends right here. Only the
            // first piece of a segment continues an earlier one, so there is space in front of it.
            // Blocks of one size need no scan.
            let history = self.chunker.history_len().min(begin as usize);
            let bytes = &mut read.buffer.bytes[at - history..at + now];
            source.read_at(offset + begin - history as u64, bytes)?;
            let aligned = match self.chunker {
                ChunkerSpec::Fixed { size } => begin == 0 || (offset + begin).is_multiple_of(size.into()),
                _ => true,
            };
            read.pieces.push(Piece::Data(Data {
                len: now,
                history,
                candidates: 0..0,
                ends: end == len,
                aligned,
            }));
            at += now;
        }
        Progress::add(&progress.bytes_done, (at - read.buffer.headroom) as u64);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(offset: u64, len: u64) -> Part {
        Part::Data { offset, len }
    }

    fn spans(parts: &[Part], room: u64) -> Vec<((usize, u64), (usize, u64))> {
        let (mut all, mut from) = (Vec::new(), At::default());
        loop {
            let span = span_from(parts, from, room);
            all.push(((span.from.part, span.from.within), (span.to.part, span.to.within)));
            if span.last {
                return all;
            }
            from = span.to;
        }
    }

    #[test]
    fn short_parts_share_a_segment_and_long_ones_take_several() {
        assert_eq!(spans(&[], 10), [((0, 0), (0, 0))]);
        assert_eq!(spans(&[data(0, 10)], 10), [((0, 0), (1, 0))]);
        let hole = || Part::Hole { len: 1 << 40 };
        let parts = [data(0, 4), hole(), data(9, 25), hole(), data(50, 1)];
        assert_eq!(spans(&parts, 10), [((0, 0), (2, 6)), ((2, 6), (2, 16)), ((2, 16), (5, 0))]);
        let full = [data(0, 10), hole(), data(20, 10)];
        assert_eq!(spans(&full, 10), [((0, 0), (2, 0)), ((2, 0), (3, 0))]);
        let many: Vec<Part> = (0..2 * PARTS_MAX).map(|_| hole()).collect();
        assert_eq!(spans(&many, 10).len(), 2);
    }

    #[test]
    fn blocks_of_one_size_stay_aligned() {
        let mut parts = vec![data(0, 100), data(130, 20), data(250, 150), data(330, 70), data(390, 10)];
        align(&mut parts, 100);
        let lens: Vec<(u64, u64)> = parts
            .iter()
            .map(|part| match part {
                Part::Data { offset, len } => (*offset, *len),
                _ => unreachable!(),
            })
            .collect();
        assert_eq!(lens, [(0, 100), (130, 20), (250, 50), (300, 100), (330, 70), (390, 10)]);
    }
}
