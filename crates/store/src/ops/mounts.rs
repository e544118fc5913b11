//! Where a store is mounted: noted by each mount for those who ask (`status`), in the database, so that other hosts know it, too.
//!
//! A note is called by the host and the process of its mount, as the mount's sessions are. It counts while one of these lives: nothing has to be removed after a mount
//! that was killed, but the next one removes what is left all the same.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::status::{SessionStatus, Standing};
use crate::error::{Context as _, Result};
use crate::meta::jobs::Note;
use crate::meta::{Meta, Role, SessionOwner};
use crate::store::Store;

const KIND: &str = "mount";
/// Where mounts keep changes that they could not store, in the host's directory of the store.
pub const UNSAVED: &str = "unsaved";

/// A mount, as it is noted.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct MountNote {
    /// The directory that it is mounted on.
    pub point: String,
    /// Who mounted it: a name, or a number where it has none.
    pub user: String,
    /// Nobody may change anything in it.
    pub read_only: bool,
    /// The snapshot that it shows, if it does not show the present.
    pub snapshot: Option<String>,
}

/// A mount that there is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MountStatus {
    /// What it is.
    pub note: MountNote,
    /// Since when, nanoseconds since 1970 by the database's clock.
    pub since: u64,
    /// The number of its session.
    pub session: u64,
    /// Its host.
    pub host: String,
    /// Its process there.
    pub process: u32,
}

/// Notes that this process has mounted the store. To be called when it is mounted; a mount works without, so failures may be passed over.
///
/// # Errors
/// Those of the database, where notes cannot be made among them.
pub fn noted(store: &Store, note: &MountNote) -> Result<()> {
    let jobs = store.jobs()?;
    let there = store.meta.sessions()?;
    for old in jobs.notes(KIND)? {
        if !there.iter().any(|row| is_mount(&row.owner, &old.name)) {
            jobs.set_note(KIND, &old.name, None)?;
        }
    }
    let text = serde_json::to_string(note).map_err(std::io::Error::other);
    jobs.set_note(KIND, &own_name(), Some(&text.context(|| "the mount's note".to_owned())?))
}

/// Files of this host with changes that a mount could not store, in order of their names. Nothing removes them.
#[must_use]
pub fn unsaved(store: &Store) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(store.dir().join(UNSAVED)).into_iter().flatten().flatten();
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    files.sort_unstable();
    files
}

/// Takes this process's note away.
///
/// # Errors
/// Those of the database.
pub fn ended(store: &Store) -> Result<()> {
    store.jobs()?.set_note(KIND, &own_name(), None)
}

/// Mounts whose sessions are among these, and live.
pub(super) fn mounts(meta: &dyn Meta, sessions: &[SessionStatus]) -> Result<Vec<MountStatus>> {
    let Some(jobs) = meta.jobs() else { return Ok(Vec::new()) };
    let mount = |Note { name, value, changed, .. }: Note| {
        let is_live = |session: &&SessionStatus| session.standing == Standing::Live;
        let session = sessions.iter().filter(is_live).find(|session| is_mount(&session.owner, &name))?;
        // One of a later program that this one does not understand counts as none.
        let note = serde_json::from_str(&value).ok()?;
        let (host, process) = (session.owner.host.clone(), session.owner.process);
        Some(MountStatus { note, since: changed, session: session.id, host, process })
    };
    Ok(jobs.notes(KIND)?.into_iter().filter_map(mount).collect())
}

/// Whether a session is that of a mount which calls its note so.
fn is_mount(owner: &SessionOwner, name: &str) -> bool {
    owner.role == Role::Mount && name == name_of(&owner.host, owner.process)
}

/// Whether a session lives, and is one of the process that calls a note so.
pub(super) fn is_of_process(session: &SessionStatus, name: &str) -> bool {
    session.standing == Standing::Live && name == name_of(&session.owner.host, session.owner.process)
}

/// What a process calls its notes.
fn name_of(host: &str, process: u32) -> String {
    format!("{host} {process}")
}

pub(super) fn own_name() -> String {
    name_of(&crate::host::name(), std::process::id())
}
