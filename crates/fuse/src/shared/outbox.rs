//! The change outbox: names and inodes that this mount has changed and the catalogue does not have
//! yet. They are added after each commit, and the packer's thread publishes them
//! ([`outrigger_store::tell`]).
//!
//! A registry record in the database exists from before the first commit until all of it has been
//! published. It belongs to the packer's session: if the mount is killed, a collector finds the
//! record without its session, and rewrites the whole catalogue. The mount withdraws the record
//! only while the outbox is empty and no commit is in progress. A commit that begins at that moment
//! waits for the withdrawal's transaction.

use std::sync::{Arc, Mutex, MutexGuard};

use outrigger_store::meta::{Meta, SessionId};
use outrigger_store::publish::{self, Touched};
use outrigger_store::session::Session;
use outrigger_store::write::publish_catalogue;
use outrigger_store::{Result, Store};

/// Size of the outbox at which it is published at once.
pub(super) const ENOUGH: usize = 8 << 10;
/// Names and inodes in the outbox at most, some 100 bytes each. Beyond them (the packs' place is
/// away) the outbox is dropped, and the whole catalogue must be rewritten.
const MAX: usize = 1 << 17;

/// See the module.
pub(super) struct Outbox {
    meta: Arc<dyn Meta>,
    state: Mutex<State>,
}

struct State {
    /// The packer's session.
    owner: SessionId,
    touched: Touched,
    /// Commits that may be in progress.
    committing: u32,
    /// The database has a record.
    is_noted: bool,
    /// The outbox was dropped, as there was too much.
    is_forgotten: bool,
    /// The session is over that would publish it.
    is_over: bool,
}

/// A commit that may be in progress.
pub(super) struct Committing<'a>(&'a Outbox);

impl Outbox {
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
            publish::set_unpublished(&*self.meta, state.owner, true)?;
            // Who writes the catalogue anew takes the note of a session that is over back, although
            // the mount goes on: then it has to be made each time.
            state.is_noted = !state.is_over;
        }
        state.committing += 1;
        Ok(Committing(self))
    }

    /// Size of the outbox.
    pub fn len(&self) -> usize {
        self.lock().touched.len()
    }

    /// Publishes the present outbox. `before` runs between reading the names and publishing them,
    /// and makes durable what they refer to.
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
            publish::set_due(&*self.meta, "mount")?;
            self.lock().is_forgotten = false;
        }
        while !touched.is_empty() {
            let some = touched.take_some();
            if let Err(error) = publish_catalogue(store, session, &some, &mut before) {
                touched.merge(some);
                self.lock().note(touched);
                return Err(error);
            }
        }
        Ok(())
    }

    /// Withdraws the database's record, if the outbox is empty.
    ///
    /// # Errors
    /// Those of the database.
    pub fn settle(&self) -> Result<()> {
        let mut state = self.lock();
        if state.is_noted && state.committing == 0 && state.touched.is_empty() && !state.is_forgotten {
            publish::set_unpublished(&*self.meta, state.owner, false)?;
            state.is_noted = false;
        }
        Ok(())
    }

    /// The packer's session is over. Until it has another one, each commit makes the record.
    pub fn end(&self) {
        let mut state = self.lock();
        (state.is_over, state.is_noted) = (true, false);
    }

    /// The packer has another session. A commit in progress was recorded for the one before.
    ///
    /// # Errors
    /// Those of the database.
    pub fn begin_anew(&self, owner: SessionId) -> Result<()> {
        let mut state = self.lock();
        publish::set_unpublished(&*self.meta, owner, true)?;
        // What is in `touched` was noted by the session before, and that note may have been taken
        // back since.
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
    /// Adds what was committed, or may have been. Returns the size of the outbox.
    pub fn end(self, touched: Touched) -> usize {
        // Unlocked before this is dropped, as the drop takes the lock.
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
