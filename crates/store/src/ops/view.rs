//! A tree to read from, held still.

use std::sync::{Arc, PoisonError, RwLock};

use outrigger_format::Root;

use crate::error::{Error, ErrorKind, Result};
use crate::meta::{At, PinTarget, Role, SessionId, SessionKind};
use crate::session::Session;
use crate::store::Store;

/// A tree as it was at one epoch, pinned for as long as this lives: concurrent removals and
/// reclaiming do not disturb it.
///
/// A store that cannot be written (read-only, or on a full disk) cannot be pinned; then its present
/// state is read.
pub struct View {
    /// Where to read.
    pub at: At,
    role: Role,
    /// The snapshot that `at` is.
    snapshot: Option<String>,
    session: Option<RwLock<Arc<Session>>>,
}

impl View {
    /// Opens a session for a process that does this and pins a snapshot, or the tree as it is now.
    ///
    /// # Errors
    /// `NotFound` when there is no such snapshot, and failures of the store.
    pub fn open(store: &Store, role: impl Into<Role>, snapshot: Option<&str>) -> Result<Self> {
        let (role, name) = (role.into(), snapshot.map(str::to_owned));
        let target = name.clone().map_or(PinTarget::Now, PinTarget::Snapshot);
        let pinned = store
            .session(SessionKind::Reader, role.clone())
            .and_then(|session| session.pin(&target).map(|(epoch, _)| (session, epoch)));
        match pinned {
            Ok((session, epoch)) => {
                let session = Some(RwLock::new(session));
                Ok(Self { at: At::Epoch(epoch), role, snapshot: name, session })
            }
            Err(error) if matches!(error.kind(), ErrorKind::Denied | ErrorKind::Full) => {
                Ok(Self { at: unpinned(store, snapshot)?, role, snapshot: name, session: None })
            }
            Err(error) => Err(error),
        }
    }

    /// The present tree at every moment, for its owner; snapshots in it are pinned on demand.
    ///
    /// # Errors
    /// Failures of the store.
    pub fn live(store: &Store, role: impl Into<Role>) -> Result<Self> {
        let role = role.into();
        let session = Some(RwLock::new(store.session(SessionKind::Reader, role.clone())?));
        Ok(Self { at: At::Now, role, snapshot: None, session })
    }

    fn session(&self) -> Option<Arc<Session>> {
        self.session
            .as_ref()
            .map(|session| Arc::clone(&session.read().unwrap_or_else(PoisonError::into_inner)))
    }

    /// Fails once the pin may no longer hold, because another client has ended the session: later
    /// reads may find nothing, or another epoch.
    ///
    /// # Errors
    /// `Fenced`.
    pub fn check(&self) -> Result<()> {
        self.session().map_or(Ok(()), |session| session.check())
    }

    /// Makes sure that its contents stay, and returns the session that pins them. If another client
    /// has ended the session, opens another one; then all [snapshots](View::snapshot) have to be
    /// pinned again.
    ///
    /// # Errors
    /// `Fenced` when the pinned contents may be gone: an epoch without a snapshot's name. Those of
    /// the store.
    pub fn renew(&self, store: &Store) -> Result<Option<SessionId>> {
        let Some(held) = &self.session else { return Ok(None) };
        let session = Arc::clone(&held.read().unwrap_or_else(PoisonError::into_inner));
        let Err(over) = session.check() else { return Ok(Some(session.id())) };
        if over.kind() != ErrorKind::Fenced || (self.at != At::Now && self.snapshot.is_none()) {
            return Err(over);
        }
        // Other threads go on reading meanwhile, or do the same.
        let next = store.session(SessionKind::Reader, self.role.clone())?;
        if let Some(name) = &self.snapshot {
            let (epoch, _) = next.pin(&PinTarget::Snapshot(name.clone()))?;
            if At::Epoch(epoch) != self.at {
                return Err(over);
            }
        }
        let id = next.id();
        let before = std::mem::replace(&mut *held.write().unwrap_or_else(PoisonError::into_inner), next);
        // Its drop asks the database.
        drop(before);
        Ok(Some(id))
    }

    /// Pins a further snapshot for as long as this lives, and returns where to read it.
    ///
    /// # Errors
    /// `NotFound` when there is no such snapshot, and failures of the store.
    pub fn snapshot(&self, store: &Store, name: &str) -> Result<At> {
        let Some(session) = self.session() else { return unpinned(store, Some(name)) };
        let (epoch, _) = session.pin(&PinTarget::Snapshot(name.to_string()))?;
        Ok(At::Epoch(epoch))
    }

    /// The content of an earlier version of a file, pinned as well.
    ///
    /// # Errors
    /// `NotFound` when that version is not kept.
    pub fn version(&self, store: &Store, inode: u64, number: u64) -> Result<Root> {
        let missing = || Error::new(ErrorKind::NotFound, format!("version {number} is not kept"));
        if let Some(session) = self.session() {
            let pinned = session.pin(&PinTarget::Version { inode, number });
            let (_, root) = pinned
                .map_err(|error| if error.kind() == ErrorKind::NotFound { missing() } else { error })?;
            return root.ok_or_else(missing);
        }
        let versions = store.meta.versions(inode)?;
        versions
            .into_iter()
            .find(|version| version.number == number)
            .map(|version| version.root)
            .ok_or_else(missing)
    }
}

fn unpinned(store: &Store, snapshot: Option<&str>) -> Result<At> {
    let Some(name) = snapshot else { return Ok(At::Now) };
    let found = store.meta.snapshots()?.into_iter().find(|snapshot| snapshot.name == name);
    found
        .map(|snapshot| At::Epoch(snapshot.epoch))
        .ok_or_else(|| Error::new(ErrorKind::NotFound, format!("there is no snapshot `{name}`")))
}
