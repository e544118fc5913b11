//! The close barrier: waits until all files that any mount has closed are in the store, although
//! some mounts defer closes (`behind.rs`).
//!
//! A mount that defers closes has a registry record. A waiting client adds a record of another kind
//! for it. The mount looks once a second, stores its closed files, and removes that record. So all
//! files that were closed in any mount before the client's records were written are in the store
//! when all of these are gone. A mount without deferred closes needs no wait, as its closes
//! returned when they were stored. A mount that has died has lost what it had not stored, and
//! nobody waits for it.
//!
//! | record of kind | name | value |
//! | --- | --- | --- |
//! | [`BEHIND`] | the mount's session | nothing |
//! | [`WAITS`] | the mount's session and a random number | nothing |

use std::sync::Arc;
use std::time::Duration;

use outrigger_clock as clock;
use outrigger_clock::Instant;
use outrigger_store::meta::jobs::Note;
use outrigger_store::meta::{SessionId, SessionRow};
use outrigger_store::{Error, ErrorKind, Result, Store};

use super::core::Core;

const BEHIND: &str = "closes-behind";
const WAITS: &str = "waits-for-closes";
/// How often mounts look for waiting clients.
pub(super) const LOOK_EVERY: Duration = Duration::from_secs(1);
const ASK_EVERY: Duration = Duration::from_millis(50);

/// True if this is the session of the mount that a record names.
fn is_of(name: &str, session: &SessionRow) -> bool {
    name.parse() == Ok(session.id.0)
}

/// Waits until everything that was closed in any mount before is in the store, at most for `most`.
///
/// # Errors
/// `Busy` if a mount has not done it by then; those of the database.
pub fn await_closed(store: &Store, most: Duration) -> Result<()> {
    let (jobs, until) = (store.jobs()?, Instant::now() + most);
    let behind = jobs.notes(BEHIND)?;
    if behind.is_empty() {
        return Ok(());
    }
    let chance = format!("{:016x}", u64::from_le_bytes(clock::random()?));
    let mut waits = Vec::new();
    for mount in behind {
        let name = format!("{} {chance}", mount.name);
        jobs.set_note(WAITS, &name, Some(""))?;
        waits.push((mount.name, name));
    }
    let waited = loop {
        let left = jobs.notes(WAITS)?;
        waits.retain(|(_, name)| left.iter().any(|note| note.name == *name));
        let sessions = store.live_sessions(|row| waits.iter().any(|(mount, _)| is_of(mount, row)))?;
        let (lives, gone): (Vec<_>, Vec<_>) = std::mem::take(&mut waits)
            .into_iter()
            .partition(|(mount, _)| sessions.iter().any(|row| is_of(mount, row)));
        for (mount, name) in gone {
            jobs.set_note(WAITS, &name, None)?;
            jobs.set_note(BEHIND, &mount, None)?;
        }
        waits = lives;
        if waits.is_empty() {
            return Ok(());
        }
        if Instant::now() >= until {
            break waits;
        }
        outrigger_clock::sleep(ASK_EVERY);
    };
    waited.iter().try_for_each(|(_, name)| jobs.set_note(WAITS, name, None))?;
    let host = |id: &str| {
        let row = store.meta.sessions().ok()?.into_iter().find(|row| row.id.0.to_string() == id)?;
        Some(row.owner.host)
    };
    let on = host(&waited[0].0).unwrap_or_else(|| "another host".to_string());
    let why = format!("a mount on {on} has not stored yet what was closed in it; it is tried again");
    Err(Error::new(ErrorKind::Busy, why))
}

/// Removes records of mounts that are gone.
///
/// # Errors
/// Those of the database.
pub fn sweep_awaited(store: &Store) -> Result<()> {
    let jobs = store.jobs()?;
    let mut notes: Vec<_> = jobs.notes(BEHIND)?.into_iter().map(|note| (BEHIND, note)).collect();
    notes.extend(jobs.notes(WAITS)?.into_iter().map(|note| (WAITS, note)));
    let mount = |note: &Note| note.name.split(' ').next().unwrap_or_default().to_owned();
    let is_ones = |row: &SessionRow| notes.iter().any(|(_, note)| is_of(&mount(note), row));
    let sessions = store.live_sessions(is_ones)?;
    for (kind, note) in &notes {
        if !sessions.iter().any(|row| is_of(&mount(note), row)) {
            jobs.set_note(kind, &note.name, None)?;
        }
    }
    Ok(())
}

impl Core {
    fn id(&self) -> SessionId {
        self.session().id()
    }

    /// Records that the mount with this session defers closes.
    pub fn tell_behind(&self, mount: SessionId) -> Result<()> {
        self.store.jobs()?.set_note(BEHIND, &mount.0.to_string(), Some(""))
    }

    /// Removes that record. If this fails, waiting clients find that this mount is gone.
    pub fn tell_behind_no_more(&self) {
        let _ = self.store.jobs().and_then(|jobs| jobs.set_note(BEHIND, &self.id().0.to_string(), None));
    }

    /// Stores closed files, if a client waits for them.
    pub fn answer_waiting(self: &Arc<Self>) -> Result<()> {
        let (jobs, own) = (self.store.jobs()?, format!("{} ", self.id().0));
        let mut waits = jobs.notes(WAITS)?;
        waits.retain(|note| note.name.starts_with(&own));
        if waits.is_empty() {
            return Ok(());
        }
        self.store_closed()?;
        waits.iter().try_for_each(|note| jobs.set_note(WAITS, &note.name, None))
    }
}
