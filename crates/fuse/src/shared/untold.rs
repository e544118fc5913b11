//! What this mount has changed and the catalogue does not have yet: names and inodes, noted after each commit, told by the packer's thread ([`outrigger_store::tell`]).
//!
//! A note in the database says that there is something, from before the first commit until all of it has been told. It is of the packer's session: if the mount is killed, a collector
//! finds the note and no session, and writes the catalogue anew. The note is taken back only while nothing is noted and nobody commits; whoever begins to commit just then waits for
//! that transaction.

use std::sync::{Arc, Mutex, MutexGuard};

use outrigger_store::meta::{Meta, SessionId};
use outrigger_store::session::Session;
use outrigger_store::tell::{self, Touched};
use outrigger_store::write::tell_catalogue;
use outrigger_store::{Result, Store};

/// Noted names and inodes at which they are told at once.
pub(super) const ENOUGH: usize = 8 << 10;
/// Noted names and inodes at most, some 100 bytes each. Beyond them (the packs' place is away) they are forgotten, and the whole catalogue is to be written anew.
const MAX: usize = 1 << 17;

/// See the module.
pub(super) struct Untold {
    meta: Arc<dyn Meta>,
    state: Mutex<State>,
}

struct State {
    /// The packer's session.
    owner: SessionId,
    touched: Touched,
    /// Commits that may be going on.
    committing: u32,
    /// The database says that there is something.
    is_noted: bool,
    /// There was too much.
    is_forgotten: bool,
    /// Nobody will tell it.
    is_over: bool,
}

/// A commit that may be going on.
pub(super) struct Committing<'a>(&'a Untold);

impl Untold {
    pub fn new(meta: &Arc<dyn Meta>, owner: SessionId) -> Self {
        Self { meta: Arc::clone(meta), state: Mutex::new(State::new(owner)) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic while held")
    }

    /// To be called before each commit that changes the tree.
    ///
    /// # Errors
    /// Those of the database.
    pub fn begin(&self) -> Result<Committing<'_>> {
        let mut state = self.lock();
        if !state.is_noted {
            tell::set_untold(&*self.meta, state.owner, true)?;
            // Who writes the catalogue anew takes the note of a session that is over back, although the mount goes on: then it has to be made each time.
            state.is_noted = !state.is_over;
        }
        state.committing += 1;
        Ok(Committing(self))
    }

    /// How much is noted.
    pub fn len(&self) -> usize {
        self.lock().touched.len()
    }

    /// Tells what is noted now. Between what is read for that and what is told, `before` makes durable what it refers to.
    ///
    /// # Errors
    /// Those of the store; what could not be told stays noted.
    pub fn tell(
        &self,
        store: &Store,
        session: &Session,
        mut before: impl FnMut() -> Result<()>,
    ) -> Result<()> {
        let (mut touched, is_forgotten) = {
            let mut state = self.lock();
            (std::mem::take(&mut state.touched), state.is_forgotten)
        };
        if is_forgotten {
            tell::set_due(&*self.meta, "mount")?;
            self.lock().is_forgotten = false;
        }
        while !touched.is_empty() {
            let some = touched.take_some();
            if let Err(error) = tell_catalogue(store, session, &some, &mut before) {
                touched.merge(some);
                self.lock().note(touched);
                return Err(error);
            }
        }
        Ok(())
    }

    /// Takes the note in the database back, if there is nothing that it could be about.
    ///
    /// # Errors
    /// Those of the database.
    pub fn settle(&self) -> Result<()> {
        let mut state = self.lock();
        if state.is_noted && state.committing == 0 && state.touched.is_empty() && !state.is_forgotten {
            tell::set_untold(&*self.meta, state.owner, false)?;
            state.is_noted = false;
        }
        Ok(())
    }

    /// The packer's session is over. Until it has another one, each commit is noted.
    pub fn end(&self) {
        let mut state = self.lock();
        (state.is_over, state.is_noted) = (true, false);
    }

    /// The packer has another session. A commit that goes on meanwhile was noted by the one before.
    ///
    /// # Errors
    /// Those of the database.
    pub fn begin_anew(&self, owner: SessionId) -> Result<()> {
        let mut state = self.lock();
        tell::set_untold(&*self.meta, owner, true)?;
        // What is in `touched` was noted by the session before, and that note may have been taken back since.
        (state.owner, state.is_noted, state.is_over) = (owner, true, false);
        Ok(())
    }
}

impl State {
    fn new(owner: SessionId) -> Self {
        Self {
            owner,
            touched: Touched::default(),
            committing: 0,
            is_noted: false,
            is_forgotten: false,
            is_over: false,
        }
    }

    fn note(&mut self, touched: Touched) {
        self.touched.merge(touched);
        if self.touched.len() > MAX {
            self.touched = Touched::default();
            self.is_forgotten = true;
        }
    }
}

impl Committing<'_> {
    /// This was committed, or may have been. Returns how much is noted now.
    pub fn end(self, touched: Touched) -> usize {
        // The lock is let go of before this is dropped, which takes it.
        let mut state = self.0.lock();
        state.note(touched);
        let count = state.touched.len();
        drop(state);
        count
    }
}

impl Drop for Committing<'_> {
    fn drop(&mut self) {
        self.0.lock().committing -= 1;
    }
}
