//! Commits in doubt: the database went away during a commit and did not come back in time.
//!
//! Until the outcome is known, the files of such a commit count as *being committed*. The database
//! may report the row before it or the row after it, and this host takes over neither. Otherwise it
//! would mistake its own write for another host's and lay its staged data over that. Appended bytes
//! would be appended twice. A thread that takes the flush lock asks for the outcome first
//! ([`Core::take_turn`]) and stores nothing before it knows.
//!
//! If the commit has happened, the files drop what was stored, as after any commit. Their rows are
//! read again, as others may have changed them since. If it has not happened, it never will, and
//! the next commit stores the staged data.

use std::sync::{Arc, MutexGuard};

use outrigger_format::Root;
use outrigger_store::increments::holder;
use outrigger_store::meta::{At, Inode, orphan_holder};
use outrigger_store::{Error, Result, Unanswered};

use super::core::Core;
use super::dirty::DirtySnapshot;
use super::file::{File, State};
use super::store::Asked;
use super::stored_prefix::Increment;

/// The purpose of a commit in doubt.
pub(super) enum Tried {
    /// Give files their content.
    Store(Vec<DirtySnapshot>),
    /// Give an anonymous file its first name, in this directory; with all that was written to it,
    /// or with what was stored before.
    Name { cut: Box<DirtySnapshot>, parent: u64, is_all: bool },
    /// Hold prefixes of files.
    Hold(Vec<(Arc<File>, Increment)>),
}

/// See the module.
pub(super) struct InDoubt {
    unanswered: Unanswered,
    tried: Tried,
}

/// The database's present answer about a file.
enum Found {
    Row(Option<Inode>),
    Held(Option<Root>),
}

impl Core {
    /// Takes the flush lock, and resolves what is in doubt.
    ///
    /// # Errors
    /// If the outcome cannot be found out now.
    pub fn take_turn(&self) -> Result<MutexGuard<'_, Asked>> {
        let mut asked = self.turn.turn.lock().expect("no panic while held");
        self.resolve_in_doubt(&mut asked)?;
        Ok(asked)
    }

    /// The holder of the flush lock failed to commit: if that commit is in doubt, records it to be
    /// resolved later.
    pub fn note_in_doubt(&self, error: &Error, tried: impl FnOnce() -> Tried) {
        let unanswered = error.unanswered().filter(|unanswered| self.session().is_unanswered(*unanswered));
        if let Some(unanswered) = unanswered {
            *self.turn.in_doubt() = Some(Arc::new(InDoubt { unanswered, tried: tried() }));
            // Perhaps no thread has anything to store for long.
            self.increments.will_settle();
        }
    }

    /// True if it is in doubt which content a file has, or whether it has a name.
    pub fn is_in_doubt_of(&self, number: u64) -> bool {
        match self.turn.in_doubt().as_ref().map(|in_doubt| &in_doubt.tried) {
            Some(Tried::Store(cuts)) => cuts.iter().any(|cut| cut.file.number == number),
            Some(Tried::Name { cut, .. }) => cut.file.number == number,
            Some(Tried::Hold(_)) | None => false,
        }
    }

    fn resolve_in_doubt(&self, asked: &mut Asked) -> Result<()> {
        // Only the holder of the flush lock sets and clears it; others see it until then.
        let Some(in_doubt) = self.turn.in_doubt().clone() else { return Ok(()) };
        self.resolve_tried(asked, &in_doubt)?;
        *self.turn.in_doubt() = None;
        Ok(())
    }

    fn resolve_tried(&self, asked: &mut Asked, in_doubt: &InDoubt) -> Result<()> {
        let has_happened = self.session().has_happened(in_doubt.unanswered)?;
        match &in_doubt.tried {
            Tried::Store(cuts) if has_happened => {
                // Find out everything before anything is changed.
                let found = cuts.iter().map(|cut| self.find(cut)).collect::<Result<Vec<_>>>()?;
                cuts.iter().zip(found).for_each(|(cut, found)| self.resolve_found(cut, found));
                // The content may lie in packs that are visible only now.
                asked.packs_at = None;
            }
            Tried::Store(cuts) => cuts.iter().for_each(|cut| self.give_up_cut(cut)),
            Tried::Name { cut, parent, is_all } if has_happened => {
                let row = self.store.meta.inode(At::Now, cut.file.number)?;
                self.resolve_named(cut, *parent, *is_all, row);
            }
            Tried::Hold(rounds) if has_happened => {
                for (file, round) in rounds {
                    let held = self.store.meta.held(&holder(file.number, self.session().id()))?.pop();
                    if let Some(root) = held {
                        file.write().end_increment(round, root);
                    }
                }
            }
            Tried::Name { .. } | Tried::Hold(_) => {}
        }
        Ok(())
    }

    fn find(&self, cut: &DirtySnapshot) -> Result<Found> {
        let number = cut.file.number;
        if cut.is_kept {
            return Ok(Found::Held(self.store.meta.held(&orphan_holder(number))?.pop()));
        }
        Ok(Found::Row(self.store.meta.inode(At::Now, number)?))
    }

    fn resolve_found(&self, cut: &DirtySnapshot, found: Found) {
        let mut state = cut.file.write();
        match found {
            Found::Row(Some(row)) => self.resolve_row(&mut state, cut, &row),
            // Its last name was removed since: by this host, which has pinned the content, or by
            // another one.
            Found::Row(None) => match state.pinned() {
                Some(root) => self.settle_in(&mut state, cut, root),
                None => {
                    state.is_committing = false;
                    state.lose();
                }
            },
            Found::Held(Some(root)) => self.settle_in(&mut state, cut, root),
            Found::Held(None) => state.is_committing = false,
        }
    }

    /// The snapshot is in the file's row, or was.
    fn resolve_row(&self, state: &mut State, cut: &DirtySnapshot, row: &Inode) {
        if row.attributes == cut.attributes && row.root.len() == cut.len {
            self.settle_in(state, cut, row.root.clone());
        } else {
            state.give_up_stored(cut, cut.len);
            state.replace(&row.root, &self.budget);
            state.row = row.clone();
            self.forget_row(row.number);
        }
    }

    /// The file got its first name.
    fn resolve_named(&self, cut: &DirtySnapshot, parent: u64, is_all: bool, row: Option<Inode>) {
        let mut state = cut.file.write();
        let Some(row) = row else {
            // It has lost it again.
            state.may_be_named = false;
            return;
        };
        state.got_name();
        if is_all {
            self.resolve_row(&mut state, cut, &row);
        } else {
            state.set_at_once(cut.attributes.clone());
            state.take(&row, &self.budget);
        }
        drop(state);
        self.moved(row.number, parent);
        self.let_go_of_anonymous(&cut.file);
    }
}
