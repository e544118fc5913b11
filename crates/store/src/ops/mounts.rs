//! Where a store is mounted: each mount registers itself for those who ask (`status`), so that
//! other hosts know it, too.
//!
//! A record is named by the host and the process of its mount, as the mount's sessions are. It
//! counts while one of these is live: nothing has to be removed after a mount that was killed, but
//! the next one removes what is left all the same.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::status::{SessionStatus, Standing};
use crate::error::Result;
use crate::meta::records::{Record, Registered, Registry};
use crate::meta::{Meta, Role, SessionOwner};
use crate::store::Store;

/// Where mounts keep changes that they could not store, in the host's directory of the store.
pub const UNSAVED: &str = "unsaved";

/// A process on some host.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Process {
    /// The host's name.
    pub host: String,
    /// The process there.
    pub number: u32,
}

impl Process {
    /// This one.
    #[must_use]
    pub fn own() -> Self {
        Self { host: crate::host::name(), number: std::process::id() }
    }

    /// Whether this process has opened a session.
    #[must_use]
    pub fn has(&self, session: &SessionOwner) -> bool {
        (&session.host, session.process) == (&self.host, self.number)
    }
}

/// For records of a process.
impl std::fmt::Display for Process {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.host, self.number)
    }
}

/// A mount, as it registers itself.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct MountRecord {
    /// Its process.
    pub process: Process,
    /// The directory that it is mounted on.
    pub point: String,
    /// Who mounted it: a name, or a number where it has none.
    pub user: String,
    /// Nobody may change anything in it.
    pub read_only: bool,
    /// The snapshot that it shows, if it does not show the present.
    pub snapshot: Option<String>,
}

impl Record for MountRecord {
    const KIND: &'static str = "mount";

    fn name(&self) -> String {
        self.process.to_string()
    }
}

impl MountRecord {
    fn is_of(&self, session: &SessionOwner) -> bool {
        session.role == Role::Mount && self.process.has(session)
    }
}

/// A mount that there is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MountStatus {
    /// What it is.
    pub mount: MountRecord,
    /// Since when, nanoseconds since 1970 by the database's clock.
    pub since: u64,
    /// The number of its session.
    pub session: u64,
}

/// Registers a mount of this process. To be called when the store is mounted; a mount works
/// without, so failures may be passed over.
///
/// # Errors
/// Those of the database.
pub fn register(store: &Store, mount: &MountRecord) -> Result<()> {
    let registry = store.registry();
    // The records first: the session of each was there before it.
    let records = registry.all::<MountRecord>()?;
    let there = store.meta.sessions()?;
    for old in records {
        if !there.iter().any(|row| old.record.is_of(&row.owner)) {
            registry.take_read(&old)?;
        }
    }
    registry.put(mount)
}

/// Files of this host with changes that a mount could not store, in order of their names. Nothing
/// removes them.
#[must_use]
pub fn unsaved(store: &Store) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(store.dir().join(UNSAVED)).into_iter().flatten().flatten();
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    files.sort_unstable();
    files
}

/// Mounts whose sessions are among these, and live.
pub(super) fn mounts(meta: &dyn Meta, sessions: &[SessionStatus]) -> Result<Vec<MountStatus>> {
    let mount = |Registered { record, changed, .. }: Registered<MountRecord>| {
        let is_live = |session: &&SessionStatus| session.standing == Standing::Live;
        let session = sessions.iter().filter(is_live).find(|session| record.is_of(&session.owner))?;
        Some(MountStatus { mount: record, since: changed, session: session.id })
    };
    Ok(Registry::of(meta).all()?.into_iter().filter_map(mount).collect())
}
