//! The stored prefix of a file that is still written: its beginning, which increments have stored
//! as a content without a name.
//!
//! It is used only while the file still begins with it and the file's row is unchanged. When the
//! file is stored, its dirty snapshot lies over the prefix; without one, all of it is stored.

use std::ops::Range;
use std::sync::Arc;

use outrigger_clock::Instant;
use outrigger_format::Root;
use outrigger_format::catalogue::Attributes;
use outrigger_store::staging::Piece;

use super::file::State;
use super::increment_queue::LOOK_EVERY;
use crate::tail::Prefix;

/// Minimum bytes of an increment, unless the options say otherwise: a few packs.
pub(super) const ROUND: u64 = 64 << 20;
/// A tailed file's first increment is this many times shorter, for an early start.
const FIRST: u64 = 64;
/// Each later one is this many times as long as all before it, up to a whole one. Few are better,
/// as each ends with a partly filled pack and a commit, and a slow program has enough to read. If
/// the writer is slow or pauses, data that has waited is stored once it fills a first increment.
const GROWS: u64 = 3;
/// An increment is this many times shorter if a reader is past what is stored, or others store it.
pub(super) const SHORTER: u64 = 4;

/// The stored prefix of a file that is still written.
pub(super) struct Increments {
    /// All that was written since the file was begun.
    pub prefix: Prefix,
    /// The content that the file's row had then.
    over: Root,
    /// The stored content and how much of the file it has; at first, the file's own content.
    stored: Root,
    len: u64,
    /// How much the file had when it was begun.
    began: u64,
    /// There was a round.
    is_held: bool,
    /// When the last one ended.
    since: Instant,
}

#[derive(Clone, Copy)]
pub(super) enum Due {
    /// Enough was written.
    Enough,
    /// Written data has waited for long.
    Waited,
}

/// Bytes of a tailed file's next increment, after `stored` bytes since the file was begun.
fn tailed_increment(round: u64, stored: u64) -> u64 {
    (stored * GROWS).clamp(round / FIRST, round)
}

#[derive(Clone)]
pub(super) struct Increment {
    pub(super) attributes: Attributes,
    over: Root,
    pub(super) base: Arc<Root>,
    pub(super) pieces: Vec<(Range<u64>, Piece)>,
    len: u64,
}

impl State {
    /// Begins a prefix if byte `at`, about to be written, is the end of an unchanged file.
    pub fn begin_increments(&mut self, at: u64) {
        let len = self.map.len();
        // A file that was cut to nothing begins anew, whatever it had.
        let is_begun = len == 0 || (self.map.is_clean() && self.row.root.len() == len);
        if self.increments.is_some() || at != len || !is_begun || self.is_only_here() {
            return;
        }
        let stored = if len == 0 { Root::Empty } else { self.row.root.clone() };
        let mut prefix = Prefix::default();
        prefix.wrote(0..len);
        prefix.handed_out(len);
        let (over, since) = (self.row.root.clone(), Instant::now());
        self.increments = Some(Increments { prefix, over, stored, len, began: len, is_held: false, since });
    }

    /// Drops the prefix: a later store does not use it.
    pub fn forget_increments(&mut self) {
        self.increments = None;
    }

    /// True if no other host can find the file by a name.
    pub fn is_only_here(&self) -> bool {
        self.is_removed || self.is_unpublished || self.may_be_named || self.is_noted
    }

    /// The prefix, if the file still begins with it.
    fn valid_increments(&self) -> Option<&Increments> {
        let sound = |increments: &&Increments| {
            !increments.prefix.is_invalidated() && increments.over == self.row.root
        };
        self.increments.as_ref().filter(sound).filter(|_| !self.is_only_here())
    }

    /// True if an increment is due, where a whole one has `round` bytes.
    pub(super) fn is_increment_due(&self, round: u64, due: Due) -> bool {
        let is_due = |increments: &Increments| {
            let round = match (&self.open, due) {
                (Some(open), _) if open.is_left_to_others() => return false,
                // Its readers, at this mount's log, are past what is stored.
                (Some(open), _) if open.prefix.consumed() > increments.len => round / SHORTER,
                (Some(_), Due::Waited) if increments.since.elapsed() >= LOOK_EVERY => round / FIRST,
                (Some(_), _) => tailed_increment(round, increments.len.saturating_sub(increments.began)),
                (None, _) => round,
            };
            increments.prefix.end().saturating_sub(increments.len) >= round
        };
        self.valid_increments().is_some_and(is_due)
    }

    /// True if programs wait for the file's first increment before they can start.
    pub(super) fn begins_increments(&self) -> bool {
        let waits = |increments: &Increments| {
            let open = self.open.as_ref().filter(|open| !open.is_left_to_others());
            !increments.is_held && open.is_some_and(|open| open.prefix.consumed() <= increments.len)
        };
        self.valid_increments().is_some_and(waits)
    }

    /// Length of the stored prefix, if everything behind it is staged.
    pub fn stored_increments(&self) -> Option<u64> {
        let increments = self.valid_increments().filter(|increments| increments.is_held)?;
        self.pieces_over(increments, u64::MAX).map(|_| increments.len)
    }

    /// The file's pieces, and the content below them if that is not the row's.
    pub fn increment_pieces(&self) -> (Option<Root>, Vec<(Range<u64>, Piece)>) {
        if let Some(increments) = self.valid_increments().filter(|increments| increments.is_held)
            && let Some(pieces) = self.pieces_over(increments, u64::MAX)
        {
            return (Some(increments.stored.clone()), pieces);
        }
        (None, self.map.pieces(0..u64::MAX).collect())
    }

    /// The pieces up to byte `end` over a prefix. `None` if the row's content is needed, too.
    fn pieces_over(&self, increments: &Increments, end: u64) -> Option<Vec<(Range<u64>, Piece)>> {
        let mut pieces = Vec::new();
        if increments.len > 0 {
            pieces.push((0..increments.len, Piece::Committed));
        }
        pieces.extend(self.map.pieces(increments.len..end));
        let is_ours = |(range, piece): &(Range<u64>, Piece)| {
            range.start < increments.len || !matches!(piece, Piece::Committed)
        };
        pieces.iter().all(is_ours).then_some(pieces)
    }

    /// Begins an increment. Its bytes must not change from here on, as readers may read them.
    pub(super) fn begin_increment(&mut self, round: u64, due: Due) -> Option<Increment> {
        if !self.is_increment_due(round, due) || self.is_committing {
            return None;
        }
        let increments = self.valid_increments()?;
        let mut len = increments.prefix.end();
        if self.begins_increments() {
            // A program needs no more to start, even if more is there.
            len = len.min(increments.len + round / FIRST);
        }
        let round = Increment {
            attributes: self.attributes(),
            over: increments.over.clone(),
            base: Arc::new(increments.stored.clone()),
            pieces: self.pieces_over(increments, len)?,
            len,
        };
        self.increments.as_mut()?.prefix.handed_out(len);
        if let Some(open) = &mut self.open {
            open.prefix.handed_out(len);
        }
        Some(round)
    }

    /// Records a stored increment. False if it was useless.
    pub fn end_increment(&mut self, round: &Increment, root: Root) -> bool {
        let Some(increments) = self
            .increments
            .as_mut()
            .filter(|increments| increments.over == round.over && increments.len < round.len)
        else {
            return false;
        };
        (increments.stored, increments.len, increments.is_held) = (root, round.len, true);
        increments.since = Instant::now();
        true
    }

    /// Makes the `len` bytes that an agent stored the file's prefix. Returns the earlier one.
    pub fn take_over(&mut self, root: Root, len: u64) -> Option<Root> {
        let before = self
            .increments
            .take()
            .filter(|increments| increments.is_held)
            .map(|increments| increments.stored);
        let mut prefix = Prefix::default();
        prefix.wrote(0..self.open.as_ref().map_or(len, |open| open.prefix.end()));
        prefix.handed_out(len);
        let over = self.row.root.clone();
        self.increments = Some(Increments {
            prefix,
            over,
            stored: root,
            len,
            began: 0,
            is_held: true,
            since: Instant::now(),
        });
        before
    }

    /// True if the file may still be stored over its prefix, or is being stored over it.
    pub(super) fn needs_increments(&self) -> bool {
        self.is_committing || self.valid_increments().is_some_and(|increments| increments.is_held)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_of_a_file_that_programs_wait_for_begin_short_and_grow() {
        let (mut stored, mut rounds) = (0, Vec::new());
        while rounds.len() < 6 {
            rounds.push(tailed_increment(ROUND, stored) >> 20);
            stored += tailed_increment(ROUND, stored);
        }
        assert_eq!(rounds, [1, 3, 12, 48, 64, 64]);
    }
}
