//! The servers that all hosts share: the simulated database and the simulated pack store.
//!
//! The database is one SQLite engine. It runs one call after the other, in the order in which they
//! arrive. This module adds what that engine lacks: locks on files, and commits whose outcome the
//! client does not know.

use outrigger_store::meta::{Sessions, Tree};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use outrigger_format::PackId;
use outrigger_store::backend::{Backend, MemoryBackend};
use outrigger_store::meta::locks::{Lock, Taken, Wait};
use outrigger_store::meta::{
    Commit, Committed, SessionId, SessionKind, SessionOwner, SessionRow, SqliteMeta,
};
use outrigger_store::session::LEASE_SECS;
use outrigger_store::{Error, ErrorKind, Result, StoreConfig};

use crate::locks::LockTable;
use crate::pack_bytes::{self, flip};
use crate::planted::{self, Planted};
use crate::scheduler;

/// A lease is written to the database only if it was not for so long, because most renewals change
/// nothing that counts.
const RENEWED_EVERY: Duration = Duration::from_secs(20);

/// See the module.
pub struct Servers {
    /// The database.
    pub database: SqliteMeta,
    /// The packs.
    pub packs: MemoryBackend,
    /// The store's configuration.
    pub config: StoreConfig,
    locks: Mutex<LockTable>,
    /// Outcomes of commits whose answer was lost, by their tokens. A commit that is asked about
    /// before it has arrived never happens.
    outcomes: Mutex<HashMap<i64, bool>>,
    renewed: Mutex<HashMap<SessionId, Duration>>,
    /// The generation, while there is no deletion candidate.
    generation: Mutex<Option<u64>>,
    /// Packs that have rotted.
    rotten: Mutex<Rotten>,
}

/// Packs that have rotted.
#[derive(Default)]
pub struct Rotten {
    /// Their original bytes.
    pub packs: BTreeMap<PackId, Vec<u8>>,
    /// Their names, and those of their chunks.
    pub names: BTreeSet<String>,
}

impl Servers {
    /// The servers of a new store.
    pub fn new(database: SqliteMeta, config: StoreConfig) -> Self {
        let (packs, locks) = (MemoryBackend::new(), Mutex::default());
        let (outcomes, renewed, generation) = (Mutex::default(), Mutex::default(), Mutex::default());
        let rotten = Mutex::default();
        Self { database, packs, config, locks, outcomes, renewed, generation, rotten }
    }

    /// The generation, if a lease was extended a moment ago, and until when it counts.
    pub fn renewed(&self, session: SessionId) -> Option<(u64, Duration)> {
        let renewed = self.renewed.lock().expect("no panic while held");
        let last = *renewed.get(&session)?;
        if scheduler::elapsed() - last >= RENEWED_EVERY {
            return None;
        }
        let mut generation = self.generation.lock().expect("no panic while held");
        if generation.is_none() {
            *generation = self.database.generation().ok();
        }
        generation.map(|generation| (generation, last + RENEWED_EVERY))
    }

    /// Forgets the generation, because there is a deletion candidate.
    pub fn forget_generation(&self) {
        scheduler::something_is_new();
        *self.generation.lock().expect("no panic while held") = None;
    }

    /// Extends a lease.
    ///
    /// # Errors
    /// The database's.
    pub fn renew(&self, session: SessionId) -> Result<u64> {
        if let Some((generation, _)) = self.renewed(session) {
            return Ok(generation);
        }
        let generation = self.database.renew(session, LEASE_SECS)?;
        self.renewed.lock().expect("no panic while held").insert(session, scheduler::elapsed());
        Ok(generation)
    }

    // ---- commits --------------------------------------------------------------------------------------------------

    /// Makes a commit.
    ///
    /// # Errors
    /// The database's.
    pub fn commit(&self, session: SessionId, commit: &Commit) -> Result<Committed> {
        if planted::is(Planted::AcknowledgedBeforeCommit) && scheduler::below(8) == 0 {
            return Ok(Committed::default());
        }
        let changed = planted::change_commit(commit, &self.database);
        let done = self.database.commit(session, &changed);
        let is_rename = |commit: &Commit| {
            commit.changes.iter().any(|change| matches!(change, outrigger_store::meta::Change::Rename { .. }))
        };
        if planted::is(Planted::RenamedTwice) && done.is_ok() && is_rename(commit) && scheduler::below(3) == 0
        {
            return self.database.commit(session, &changed);
        }
        let is_fenced = done.as_ref().is_err_and(|error| error.kind() == ErrorKind::Fenced);
        if planted::is(Planted::FencedAccepted) && is_fenced {
            let (other, _) = self.database.open_session(
                SessionKind::Writer,
                &SessionOwner::this(String::new(), "planted".into()),
                LEASE_SECS,
            )?;
            let done = self.database.commit(other, &changed);
            self.database.close_session(other)?;
            return done;
        }
        done
    }

    /// Makes a commit that arrives when nobody waits for its answer.
    pub fn commit_late(&self, token: i64, session: SessionId, commit: &Commit) {
        if !self.outcomes().contains_key(&token) {
            let has_happened = self.commit(session, commit).is_ok();
            self.outcomes().insert(token, has_happened);
        }
    }

    /// Records the outcome of a commit whose answer was lost.
    pub fn note_outcome(&self, token: i64, has_happened: bool) {
        self.outcomes().insert(token, has_happened);
    }

    /// True if a commit has happened. If it has not, it never will.
    pub fn has_happened(&self, token: i64) -> bool {
        let has_happened = *self.outcomes().entry(token).or_insert(false);
        has_happened && !planted::is(Planted::UnknownIsFailed)
    }

    fn outcomes(&self) -> MutexGuard<'_, HashMap<i64, bool>> {
        self.outcomes.lock().expect("no panic while held")
    }

    // ---- packs ----------------------------------------------------------------------------------------------------

    /// Flips so many bits of some pack for good.
    ///
    /// # Errors
    /// The store's.
    pub fn rot(&self, bits: u64) -> Result<()> {
        // A pack that is still being written is empty.
        let mut there = self.packs.list()?;
        there.retain(|id| self.packs.len(*id).is_ok_and(|len| len > Some(0)));
        let Some(&id) = there.get(scheduler::below(there.len() as u64) as usize) else { return Ok(()) };
        let Some(mut bytes) = pack_bytes::bytes_of(&self.packs, id)? else { return Ok(()) };
        let mut rotten = self.rotten();
        rotten.names.insert(id.to_string());
        rotten.names.extend(pack_bytes::names_of(&bytes));
        rotten.packs.entry(id).or_insert_with(|| bytes.clone());
        drop(rotten);
        (0..bits).for_each(|_| flip(&mut bytes));
        pack_bytes::replace(&self.packs, id, &bytes)
    }

    /// Restores rotten packs. Packs that are gone by now stay so.
    ///
    /// # Errors
    /// The store's.
    pub fn mend(&self) -> Result<()> {
        for (id, bytes) in std::mem::take(&mut self.rotten().packs) {
            if self.packs.len(id)?.is_some() {
                pack_bytes::replace(&self.packs, id, &bytes)?;
            }
        }
        Ok(())
    }

    /// Rotten packs, whether they still exist or not.
    pub fn rotten(&self) -> MutexGuard<'_, Rotten> {
        self.rotten.lock().expect("no panic while held")
    }

    // ---- locks ----------------------------------------------------------------------------------------------------

    /// The locks, and the sessions.
    ///
    /// # Errors
    /// The database's.
    pub fn locks(&self) -> Result<(MutexGuard<'_, LockTable>, Vec<SessionRow>)> {
        let sessions = self.database.sessions()?;
        let mut locks = self.locks.lock().expect("no panic while held");
        locks.keep(&sessions);
        Ok((locks, sessions))
    }

    /// True if a session is live.
    ///
    /// # Errors
    /// The database's.
    pub fn is_live(&self, session: SessionId) -> Result<bool> {
        Ok(self.database.sessions()?.iter().any(|row| row.id == session))
    }

    /// Fails unless a session is live.
    ///
    /// # Errors
    /// `Fenced`.
    pub fn require_live(&self, session: SessionId) -> Result<()> {
        let fenced = || Error::new(ErrorKind::Fenced, format!("session {} is over", session.0));
        self.is_live(session)?.then_some(()).ok_or_else(fenced)
    }

    /// True if a session holds locks.
    pub fn holds_locks(&self, session: SessionId) -> bool {
        let locks = self.locks.lock().expect("no panic while held");
        locks.counts().iter().any(|(holder, _)| *holder == session)
    }

    /// Takes a lock, or returns its blockers.
    ///
    /// # Errors
    /// `Fenced`.
    pub fn take_lock(
        &self,
        session: SessionId,
        inode: u64,
        lock: &Lock,
        wait: Option<Wait>,
    ) -> Result<Taken> {
        self.require_live(session)?;
        loop {
            let (mut locks, sessions) = self.locks()?;
            let blockers = locks.blockers(&sessions, session, inode, lock, wait);
            let over: Vec<_> = blockers.iter().filter(|one| one.is_over).map(|one| one.session).collect();
            if !over.is_empty() {
                drop(locks);
                for session in over {
                    self.database.fence(session)?;
                    self.locks()?.0.end(session);
                }
                continue;
            }
            let is_granted = planted::is(Planted::LockTwice) && scheduler::below(3) == 0;
            if blockers.is_empty() || is_granted {
                return Ok(locks.take(session, inode, lock, wait));
            }
            if let Some(wait) = wait {
                locks.wait(session, inode, lock, wait.ticket);
            }
            return Ok(Taken::No(blockers));
        }
    }
}
