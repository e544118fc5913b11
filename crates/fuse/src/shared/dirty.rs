//! A dirty snapshot: a file's staged data at one moment, and the row that it lies over. Writes that
//! come later belong to a later batch. When the snapshot is committed, the file drops just what the
//! snapshot has.

use std::ops::Range;
use std::sync::Arc;

use outrigger_format::Root;
use outrigger_format::catalogue::Attributes;
use outrigger_store::staging::{Due, Piece, Ranges};
use outrigger_store::write::Composed;

use super::batch::Counters;
use super::core::Core;
use super::file::{File, State};
use crate::destage_order::BLOCK;
use crate::live::dirty::staged_bytes;
use crate::view::content::StoredFile;

/// A file as it was when its batch was cut.
#[derive(Clone)]
pub(super) struct DirtySnapshot {
    pub file: Arc<File>,
    sequence: u64,
    pub len: u64,
    pub(super) pieces: Vec<(Range<u64>, Piece)>,
    pub(super) staged: u64,
    pub was: (Attributes, Root),
    /// The content below the pieces, if it is not that of `was`: the file's stored prefix.
    pub(super) base: Option<Root>,
    pub attributes: Attributes,
    edits: usize,
    /// Not only attributes were changed.
    pub is_content: bool,
    /// Only the file's first `len` bytes are stored.
    is_part: bool,
    /// Only what is staged in these ranges is stored.
    ranges: Ranges,
    /// No name leads to it: see [`State::is_kept`](super::file::State::is_kept).
    pub is_kept: bool,
    pub(super) keep: bool,
    edition: u64,
}

impl DirtySnapshot {
    /// The content that it had before.
    pub fn as_it_was(&self) -> Composed {
        Composed { root: self.was.1.clone(), chunks: Vec::new() }
    }
}

impl Core {
    /// Ends the commits of these snapshots, except for those in doubt.
    pub fn give_up_cuts(&self, cuts: &[DirtySnapshot]) {
        let known = cuts.iter().filter(|cut| !self.is_in_doubt_of(cut.file.number));
        known.for_each(|cut| self.give_up_cut(cut));
    }

    pub fn give_up_cut(&self, cut: &DirtySnapshot) {
        let mut state = cut.file.write();
        state.is_committing = false;
        state.settle_pinned(&self.budget);
    }

    /// Takes a dirty snapshot of the file.
    pub fn cut(&self, file: &Arc<File>) -> DirtySnapshot {
        let mut state = file.write();
        state.is_committing = true;
        self.cut_in(file, &state)
    }

    /// Takes a dirty snapshot of what is due of the file's content; `None` if nothing is. A file
    /// that is stored in increments is taken whole.
    pub fn cut_due(&self, file: &Arc<File>, due: &Due) -> Option<DirtySnapshot> {
        let mut state = file.write();
        if state.is_void() {
            return None;
        }
        let ranges = state.map.due(due, BLOCK.into())?;
        let ranges = if state.stored_increments().is_some() { Ranges::all() } else { ranges };
        state.is_committing = true;
        Some(self.cut_ranges(file, &state, ranges))
    }

    /// As [`Core::cut`], of a file whose state is held.
    pub fn cut_in(&self, file: &Arc<File>, state: &State) -> DirtySnapshot {
        self.cut_ranges(file, state, Ranges::all())
    }

    fn cut_ranges(&self, file: &Arc<File>, state: &State, ranges: Ranges) -> DirtySnapshot {
        let attributes = state.attributes();
        let is_whole = ranges.is_all();
        let (base, mut pieces) =
            if is_whole { state.increment_pieces() } else { (None, state.map.pieces_in(&ranges)) };
        let mut staged = if is_whole { state.map.staged_bytes() } else { staged_bytes(&pieces) };
        let all = state.map.len();
        let len = state.delegated_part().filter(|_| is_whole).unwrap_or(all);
        let is_part = len < all;
        if is_part {
            let deferred: Vec<_> = pieces.drain(1..).collect();
            staged -= staged_bytes(&deferred);
        }
        DirtySnapshot {
            file: Arc::clone(file),
            // Later writes to this file have later sequence numbers.
            sequence: self.log.last(),
            len,
            base,
            pieces,
            staged,
            was: (state.row.attributes.clone(), state.row.root.clone()),
            attributes,
            edits: state.waiting(),
            is_content: !state.map.is_clean(),
            is_part,
            ranges,
            is_kept: state.is_kept() || state.is_noted,
            keep: state.is_version && state.row.root != Root::Empty,
            edition: state.edition,
        }
    }

    /// Drops from a file what was stored.
    pub(super) fn settle(&self, cut: &DirtySnapshot, root: Root) {
        self.settle_in(&mut cut.file.write(), cut, root);
    }

    /// As [`Core::settle`], of a file whose state is held.
    pub fn settle_in(&self, state: &mut State, cut: &DirtySnapshot, root: Root) {
        let number = cut.file.number;
        Counters::add(&self.counters.destaged, cut.staged);
        // Else they were set again after the commit, by this host.
        let is_newest = state.edition == cut.edition;
        state.give_up_stored(cut, root.len());
        state.stored = Arc::new(StoredFile::new(root.clone(), &self.budget));
        if is_newest {
            state.row.attributes = cut.attributes.clone();
        }
        if cut.is_kept {
            state.keep(&root);
        }
        state.row.root = root;
        state.is_version = false;
        state.settle_pinned(&self.budget);
        if is_newest {
            self.remember_own(&state.row, None);
        } else {
            self.forget_row(number);
        }
    }
}

impl State {
    /// Drops what the snapshot has: it was stored as a content of `len` bytes.
    pub fn give_up_stored(&mut self, cut: &DirtySnapshot, len: u64) {
        self.is_committing = false;
        match cut.is_part {
            true => self.map.settle_first(cut.sequence, len),
            false => self.map.settle_in(cut.sequence, len, &cut.ranges),
        };
        self.increments = None;
        self.edition += 1;
        self.edited(cut.edits);
        if self.map.is_clean() {
            (self.written, self.drops_rights, self.only_appended) = (None, false, false);
        }
    }
}
