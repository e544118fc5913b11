//! A file that is being written, as the programs that tail it see it.
//!
//! A program is given the file's *prefix*: the bytes that were written without a gap since the file
//! was empty, in the file's order, however they were written. A program cannot forget the bytes
//! that it was given, so a change to them *invalidates* its work: it has to run again, over the
//! finished file. Comparing the bytes would need them once more; running again is always right.
//!
//! All of this happens under the lock of the file's state, as changes of its map do. So handing out
//! a block and writing a byte of it happen in one order or the other. A block counts as handed out
//! before it is read: a later write to it invalidates it, whichever bytes were read.

use std::ops::Range;

use outrigger_clock::Instant;
use outrigger_store::meta::SessionId;
use outrigger_store::meta::jobs::JobId;

/// Ranges beyond a gap that are remembered. With more of them the prefix stops growing at one that
/// was forgotten, until the file is closed.
const BEYOND_MAX: usize = 64;

/// How the writing of a file has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum End {
    /// Not yet.
    Open,
    /// The last handle that could write was released.
    Closed,
    /// Likewise, and its writer had marked it as worthless.
    Aborted,
}

/// An open version: see the module.
#[derive(Debug)]
pub(crate) struct Open {
    pub prefix: Prefix,
    pub end: End,
    /// The jobs that read it.
    pub jobs: Vec<JobId>,
    /// Directory and name.
    pub place: (u64, Vec<u8>),
    /// An unpublished file: only the writer sees it, and the program's output takes its name.
    pub is_unpublished: bool,
    /// It existed before and is overwritten: it stays whatever the outcome.
    pub was_there: bool,
    /// How many bytes the writer may be ahead of its readers; `None`: no limit.
    pub ahead: Option<u64>,
    /// The agent that stores it for the mount …
    pub delegate: Option<Delegate>,
    /// … or until when one may come to do so.
    pub delegated_until: Option<Instant>,
}

/// An agent on another host that stores a file as it reads it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Delegate {
    /// Its session.
    pub session: SessionId,
    /// How far it is asked to store the file and to commit, if it is asked.
    pub asked: Option<u64>,
}

impl Open {
    /// True if agents could have come to store it, and none has.
    pub fn has_nobody_come(&self) -> bool {
        self.end == End::Open
            && self.delegate.is_none()
            && self.delegated_until.is_some_and(|until| Instant::now() >= until)
    }

    /// True if the mount leaves storing the file to an agent while it is written.
    pub fn is_left_to_others(&self) -> bool {
        self.delegate.is_some() || self.delegated_until.is_some_and(|until| Instant::now() < until)
    }

    /// True if this reader is the file's delegate, has read up to byte `from`, and is asked for
    /// that much.
    pub fn asks(&self, reader: Option<SessionId>, from: u64) -> bool {
        let is_it = |delegate: &Delegate| {
            Some(delegate.session) == reader && delegate.asked.is_some_and(|asked| from >= asked)
        };
        self.end == End::Open && from <= self.prefix.end() && self.delegate.as_ref().is_some_and(is_it)
    }
}

/// The part of a file that can be handed out, and the part that has been.
#[derive(Debug, Default)]
pub(crate) struct Prefix {
    end: u64,
    /// Ranges written beyond it: not touching each other, rising.
    beyond: Vec<Range<u64>>,
    consumed: u64,
    invalidated: bool,
}

impl Prefix {
    /// These bytes were written.
    pub fn wrote(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        self.changed(range.start);
        if range.start > self.end {
            return self.note(range);
        }
        self.end = self.end.max(range.end);
        let reached = self.beyond.iter().take_while(|known| known.start <= self.end).count();
        if let Some(last) = self.beyond.drain(..reached).next_back() {
            self.end = self.end.max(last.end);
        }
    }

    fn note(&mut self, range: Range<u64>) {
        // Merge the ranges that it touches.
        let from = self.beyond.partition_point(|known| known.end < range.start);
        let to = self.beyond.partition_point(|known| known.start <= range.end);
        let (mut start, mut end) = (range.start, range.end);
        let touched = &self.beyond[from..to];
        if let (Some(first), Some(last)) = (touched.first(), touched.last()) {
            (start, end) = (start.min(first.start), end.max(last.end));
        }
        self.beyond.splice(from..to, std::iter::once(start..end));
        self.beyond.truncate(BEYOND_MAX);
    }

    /// The file was cut to this length, or lengthened, which makes a gap.
    pub fn cut(&mut self, len: u64) {
        self.changed(len);
        self.end = self.end.min(len);
        self.beyond.retain_mut(|known| {
            known.end = known.end.min(len);
            !known.is_empty()
        });
    }

    /// Something at this byte or beyond was changed without being written: a hole, zeroes.
    pub fn changed(&mut self, from: u64) {
        self.invalidated |= from < self.consumed;
    }

    /// All bytes were changed.
    pub fn replaced(&mut self) {
        self.invalidated |= self.consumed > 0;
        (self.end, self.beyond) = (0, Vec::new());
    }

    /// The prefix's end.
    pub fn end(&self) -> u64 {
        self.end
    }

    /// Hands out up to `most` bytes from byte `from` on.
    pub fn hand_out(&mut self, from: u64, most: u64) -> Range<u64> {
        let range = from..self.end.min(from.saturating_add(most)).max(from);
        if !range.is_empty() {
            self.consumed = self.consumed.max(range.end);
        }
        range
    }

    /// Everything before byte `end` counts as handed out.
    pub fn handed_out(&mut self, end: u64) {
        self.consumed = self.consumed.max(end);
    }

    /// First byte that was not handed out.
    pub fn consumed(&self) -> u64 {
        self.consumed
    }

    /// True if handed-out bytes were changed afterwards.
    pub fn is_invalidated(&self) -> bool {
        self.invalidated
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The same, byte by byte.
    #[derive(Default)]
    struct Model {
        written: Vec<bool>,
        consumed: usize,
        invalidated: bool,
    }

    impl Model {
        fn prefix(&self) -> usize {
            self.written.iter().take_while(|written| **written).count()
        }

        fn change(&mut self, from: usize) {
            self.invalidated |= from < self.consumed;
        }
    }

    #[test]
    fn a_prefix_grows_as_a_byte_by_byte_model_says() {
        let mut state = 88_172_645_463_325_252u64;
        let mut below = |limit: usize| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state % limit as u64) as usize
        };
        let (mut invalidated, mut grown) = (0, 0);
        for round in 0..3000 {
            let (mut prefix, mut model) = (Prefix::default(), Model::default());
            model.written.resize(120, false);
            for step in 0..40 {
                match below(12) {
                    0 => {
                        let len = below(110);
                        prefix.cut(len as u64);
                        model.change(len);
                        model.written[len..].fill(false);
                    }
                    1 => {
                        let from = below(110);
                        prefix.changed(from as u64);
                        model.change(from);
                    }
                    2..=4 => {
                        let (from, most) = (below(100), below(20));
                        let range = prefix.hand_out(from as u64, most as u64);
                        let end = model.prefix().min(from + most).max(from);
                        assert_eq!(range, from as u64..end as u64, "round {round}, step {step}");
                        if end > from {
                            model.consumed = model.consumed.max(end);
                        }
                    }
                    _ => {
                        // Most writes go on where the prefix ends, or it would hardly grow.
                        let from = if below(3) > 0 { model.prefix().min(100) } else { below(100) };
                        let len = below(20);
                        prefix.wrote(from as u64..(from + len) as u64);
                        if len > 0 {
                            model.change(from);
                        }
                        model.written[from..from + len].fill(true);
                    }
                }
                assert_eq!(prefix.end, model.prefix() as u64, "round {round}, step {step}: {prefix:?}");
                assert_eq!(
                    prefix.is_invalidated(),
                    model.invalidated,
                    "round {round}, step {step}: {prefix:?}"
                );
                assert_eq!(prefix.consumed(), model.consumed as u64);
            }
            invalidated += usize::from(model.invalidated);
            grown += usize::from(model.prefix() > 0);
        }
        // Otherwise the rounds test nothing.
        assert!(
            invalidated > 500 && invalidated < 2990 && grown > 500,
            "{invalidated} invalidated, {grown} grown"
        );
    }

    #[test]
    fn ranges_beyond_a_gap_are_few_and_forgetting_some_hands_out_less_never_more() {
        let mut prefix = Prefix::default();
        for number in (1..=200).rev() {
            prefix.wrote(number * 10..number * 10 + 5);
        }
        assert_eq!(prefix.beyond.len(), BEYOND_MAX);
        // The gaps are closed one after the other, up to what was remembered.
        for number in 0..200 {
            prefix.wrote(number * 10..number * 10 + 10);
            assert!(prefix.end <= (number + 1) * 10 + 5, "{prefix:?}");
        }
        assert_eq!(prefix.end, 2000);
        prefix.hand_out(0, u64::MAX);
        assert_eq!((prefix.consumed(), prefix.is_invalidated()), (2000, false));
        prefix.replaced();
        assert!(prefix.is_invalidated() && prefix.hand_out(0, 10).is_empty());
    }
}
