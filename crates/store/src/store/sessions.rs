//! The sessions of a store: opening them, ending those whose process is gone, and the records that
//! ended ones have left behind.
//!
//! A session whose process is gone is ended by whoever asks which are live
//! ([`Store::live_sessions`]), and what belongs to it counts as left behind only after that. The
//! collector is a session, too: the database lets one at a time be it.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::Store;
use crate::counters::raise_counters;
use crate::error::Result;
use crate::lock_files::remove_old_locks;
use crate::meta::records::{Record, Registered, Registry};
use crate::meta::{Role, SessionId, SessionKind, SessionRow, is_gone};
use crate::session::{Beside, Session};

/// Commands that change a store and that a host may run whose key only stores.
const STORING: [&str; 3] = ["put", "import", "snapshot"];

/// True for what a host does whose key only stores.
fn is_storing(kind: SessionKind, role: &Role) -> bool {
    match (kind, role) {
        (SessionKind::Reader, Role::Command(_)) => true,
        (SessionKind::Writer, Role::Command(command)) => STORING.contains(&command.as_str()),
        _ => false,
    }
}

impl Store {
    /// Opens a session for a process that does this; a text is a command's name.
    ///
    /// # Errors
    /// `Denied` on a read-only store, and for a key whose rights do not cover it.
    pub fn session(&self, kind: SessionKind, role: impl Into<Role>) -> Result<Arc<Session>> {
        let role = role.into();
        self.require_writable()?;
        if !is_storing(kind, &role) {
            self.require_all_rights()?;
        }
        if kind != SessionKind::Reader {
            self.tend_reserve();
        }
        if kind == SessionKind::Writer && self.backend.lists_cheaply() {
            self.raise_counters_once()?;
        }
        let locks = self.locks_dir();
        remove_old_locks(&*self.meta, &locks);
        let open = || Session::open(&self.meta, kind, Some(&locks), role.clone());
        // A reader does without a session; the reserve is for those that can make room.
        let reserve = self.reserve.as_ref().filter(|_| kind != SessionKind::Reader);
        let opened = reserve.map_or_else(open, |reserve| reserve.make_room(open))?;
        opened.tend(&self.backend, &self.links);
        if let Some(beside) = self.beside.get() {
            opened.set_beside(beside);
        }
        Ok(opened)
    }

    /// Has `beside` called before each commit of sessions that are opened from now on. The first
    /// call counts.
    pub fn set_beside(&self, beside: Arc<Beside>) {
        let _ = self.beside.set(beside);
    }

    /// Raises the database's counters above all packs, the first time.
    ///
    /// Once is enough. Clients of this database share its counters, so later ids lie below them.
    /// Only packs of another history can lie above. If an older copy of the database was put back,
    /// no client had the store open. If another database goes on with the same packs, as an old
    /// primary does, its packs may come at any moment, and no listing would be late enough. There
    /// the pack's name decides: a client that creates or seals a pack under a taken name is refused
    /// and passes it by, and an intent for it gives no right to the other's pack
    /// ([`crate::stale::is_anothers`]).
    ///
    /// # Errors
    /// Those of the engine and the database.
    pub(crate) fn raise_counters_once(&self) -> Result<()> {
        if !self.is_above_packs.load(Ordering::Relaxed) {
            raise_counters(&*self.meta, &*self.backend)?;
            self.is_above_packs.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Opens a session that is the collector: while it is open, no other client takes packs away.
    /// It succeeds a collector that was killed at once. Also counts the sessions without a process
    /// that it ended first.
    ///
    /// # Errors
    /// `Busy` while another is, `Denied` on a read-only store.
    pub(crate) fn collector(&self, what: &str) -> Result<(Arc<Session>, u64)> {
        let session = self.session(SessionKind::Collector, what)?;
        // Before anything is made or swept: so the evidence of used ids is still there, and none is
        // given out.
        raise_counters(&*self.meta, &*self.backend)?;
        // Locks of the sessions that are ended now stay until the next run.
        self.meta.file_locks().map_or(Ok(()), |locks| locks.sweep_locks())?;
        let fenced = self.fence_gone()?;
        self.meta.take_collector(session.id())?;
        Ok((session, fenced))
    }

    /// Ends the sessions whose process is gone (rule 11), and counts them.
    pub(crate) fn fence_gone(&self) -> Result<u64> {
        Ok(self.end_gone(|_| true)?.1)
    }

    /// Of these sessions, those that are not over; for a caller that acts once a session is over.
    /// Sessions whose process is gone are ended first. A session with an expired lease goes on if
    /// its client comes back before anybody ends it.
    ///
    /// # Errors
    /// Those of the database.
    pub fn live_sessions(&self, these: impl Fn(&SessionRow) -> bool) -> Result<Vec<SessionRow>> {
        Ok(self.end_gone(these)?.0)
    }

    /// True if a session is not over; see [`Store::live_sessions`].
    ///
    /// # Errors
    /// Those of the database.
    pub fn is_live(&self, session: SessionId) -> Result<bool> {
        Ok(!self.live_sessions(|row| row.id == session)?.is_empty())
    }

    fn end_gone(&self, these: impl Fn(&SessionRow) -> bool) -> Result<(Vec<SessionRow>, u64)> {
        let (locks, mut live, mut ended) = (self.locks_dir(), Vec::new(), 0);
        for row in self.meta.sessions()?.into_iter().filter(these) {
            // A process does not end its own sessions while it has their lock files.
            if is_gone(&row, Some(&locks)) && !row.owner.is_held_here(&locks) {
                self.meta.fence(row.id)?;
                ended += 1;
            } else {
                live.push(row);
            }
        }
        Ok((live, ended))
    }

    /// The records of this store.
    pub fn registry(&self) -> Registry<'_> {
        Registry::of(&*self.meta)
    }

    /// The records of a kind whose sessions are over.
    ///
    /// # Errors
    /// Those of the database.
    pub fn leftover_records<R: Record>(&self) -> Result<Vec<Registered<R>>> {
        // The records are read first: the session of each was there before it.
        let mut records = self.registry().all::<R>()?;
        records.retain(|read| read.record.session().is_some());
        if records.is_empty() {
            return Ok(records);
        }
        let is_of = |read: &Registered<R>, session: SessionId| read.record.session() == Some(session);
        let live = self.live_sessions(|row| records.iter().any(|read| is_of(read, row.id)))?;
        records.retain(|read| !live.iter().any(|row| is_of(read, row.id)));
        Ok(records)
    }

    /// Removes the records of a kind whose sessions are over.
    ///
    /// # Errors
    /// Those of the database.
    pub fn sweep_records<R: Record>(&self) -> Result<()> {
        let leftovers = self.leftover_records::<R>()?;
        leftovers.iter().try_for_each(|read| self.registry().take_read(read).map(drop))
    }
}
