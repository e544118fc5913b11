//! Lock files of sessions: each shows as long as its process lives that it does, so that no client
//! on its host has to wait for its lease.

use std::fs::File;
use std::path::Path;
use std::time::Duration;

use outrigger_clock as clock;

use crate::error::{Context, Result};
use crate::home::Home;
use crate::meta::Meta;
use crate::owner;

/// The lock file of a session of this process.
pub(crate) struct LockFile {
    _held: File,
    locks: Home,
    name: String,
}

impl LockFile {
    pub fn take(locks: &Path, name: String) -> Result<Self> {
        let locks = Home::of(locks);
        let path = locks.path().join(&name);
        let at = || format!("cannot make the lock file {}", locks.lies_at().join(&name).display());
        let held = File::create_new(&path).context(at)?;
        owner::give_path(&path);
        rustix::fs::flock(&held, rustix::fs::FlockOperation::NonBlockingLockExclusive).context(at)?;
        Ok(Self { _held: held, locks, name })
    }

    /// Removes it.
    pub fn remove(&self) {
        let _ = std::fs::remove_file(self.locks.path().join(&self.name));
    }
}

/// Lock files looked at when a session opens, at most.
const LOCKS_MAX: usize = 256;
/// A lock file younger than this may be one that is just being made: between its making and its
/// locking lie microseconds.
const LOCK_AGE_MIN: Duration = Duration::from_secs(60);

/// Removes lock files of killed sessions, and ends these sessions: if a file can be locked, its
/// session has no process (rule 11). Failures do not matter: the files are small, and the collector
/// ends such sessions too.
pub(crate) fn remove_old_locks(meta: &dyn Meta, locks: &Path) {
    let Ok(entries) = std::fs::read_dir(locks) else { return };
    let is_old = |entry: &std::fs::DirEntry| {
        let modified = entry.metadata().and_then(|metadata| metadata.modified()).ok();
        let age = modified.and_then(clock::age);
        age.is_some_and(|age| age >= LOCK_AGE_MIN)
    };
    let mut sessions = None;
    for entry in entries.flatten().take(LOCKS_MAX) {
        let path = entry.path();
        if path.extension().is_none_or(|extension| extension != "lock") || !is_old(&entry) {
            continue;
        }
        let Ok(file) = File::open(&path) else { continue };
        if rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive).is_err() {
            continue;
        }
        // Its row, if it has one still, names it first.
        if sessions.is_none() {
            sessions = meta.sessions().ok();
        }
        let Some(rows) = &sessions else { return };
        let name = entry.file_name().to_string_lossy().trim_end_matches(".lock").to_string();
        let of_it = rows.iter().filter(|row| row.owner.lock == name);
        if of_it.map(|row| meta.fence(row.id)).all(|fenced| fenced.is_ok()) {
            let _ = std::fs::remove_file(&path);
        }
    }
}
