//! The close barrier: waits until all files that any mount has closed are in the store, although
//! some mounts defer closes (`deferred.rs`).
//!
//! Such a mount registers [`DeferredCloses`]. Who waits adds a [`CloseBarrier`] for each such
//! mount, and the mount, which looks once a second, stores what was closed and removes it. So what
//! had been closed in any mount before the barrier was added is in the store when all of these
//! barriers have gone. A mount without such closes has nothing to wait for: each was in the store
//! when it came back. One that is gone has lost what it had not stored, and nobody waits for it.

use std::sync::Arc;
use std::time::Duration;

use outrigger_clock as clock;
use outrigger_clock::Instant;
use outrigger_store::meta::SessionId;
use outrigger_store::registry::{Record, Registered};
use outrigger_store::{Error, ErrorKind, Result, Store};
use serde::{Deserialize, Serialize};

use super::core::Core;

/// Closes come back before they are committed in this mount.
#[derive(Serialize, Deserialize)]
struct DeferredCloses {
    mount: SessionId,
}

impl Record for DeferredCloses {
    const KIND: &'static str = "deferred-closes";

    fn name(&self) -> String {
        self.mount.0.to_string()
    }

    fn session(&self) -> Option<SessionId> {
        Some(self.mount)
    }
}

/// Somebody waits until this mount has stored what was closed in it.
#[derive(Serialize, Deserialize)]
struct CloseBarrier {
    mount: SessionId,
    /// Tells those who wait for the same mount apart.
    number: u64,
}

impl Record for CloseBarrier {
    const KIND: &'static str = "close-barrier";

    fn name(&self) -> String {
        format!("{}/{:016x}", self.mount.0, self.number)
    }

    fn session(&self) -> Option<SessionId> {
        Some(self.mount)
    }
}

/// How often mounts look whether somebody waits.
pub(super) const LOOK_EVERY: Duration = Duration::from_secs(1);
const ASK_EVERY: Duration = Duration::from_millis(50);

/// Waits until everything is in the store that was closed in any mount before, for as long as
/// `most`.
///
/// # Errors
/// `Busy` if a mount has not done it by then; those of the database.
pub fn await_closed(store: &Store, most: Duration) -> Result<()> {
    let (registry, until) = (store.registry(), Instant::now() + most);
    // A mount whose record cannot be read may have closes that are not stored.
    let mounts = registry.each::<DeferredCloses>()?.into_iter().map(|(_, read)| read);
    let mounts = mounts.collect::<Result<Vec<_>>>()?;
    if mounts.is_empty() {
        return Ok(());
    }
    let number = u64::from_le_bytes(clock::random()?);
    let barriers = mounts.iter().map(|read| CloseBarrier { mount: read.record.mount, number });
    let mut barriers: Vec<CloseBarrier> = barriers.collect();
    barriers.iter().try_for_each(|barrier| registry.put(barrier))?;
    loop {
        let left = registry.all::<CloseBarrier>()?;
        let is_left = |of: &CloseBarrier| left.iter().any(|read| read.record.name() == of.name());
        barriers.retain(is_left);
        let live = store.live_sessions(|row| barriers.iter().any(|barrier| barrier.mount == row.id))?;
        let is_live = |barrier: &CloseBarrier| live.iter().any(|row| row.id == barrier.mount);
        let (waits, gone): (Vec<_>, Vec<_>) = barriers.into_iter().partition(is_live);
        for barrier in gone {
            registry.remove(&barrier)?;
            registry.remove(&DeferredCloses { mount: barrier.mount })?;
        }
        barriers = waits;
        let Some(first) = barriers.first() else { return Ok(()) };
        if Instant::now() >= until {
            let host = live.iter().find(|row| row.id == first.mount).map(|row| row.owner.host.clone());
            let on = host.unwrap_or_else(|| "another host".to_string());
            barriers.iter().try_for_each(|barrier| registry.remove(barrier))?;
            let secs = most.as_secs();
            let why = format!("a mount on {on} has not stored its closed files within {secs} s");
            return Err(Error::new(ErrorKind::Busy, why));
        }
        outrigger_clock::sleep(ASK_EVERY);
    }
}

/// Removes records of mounts that are gone.
///
/// # Errors
/// Those of the database.
pub fn sweep_barriers(store: &Store) -> Result<()> {
    store.sweep_records::<DeferredCloses>()?;
    store.sweep_records::<CloseBarrier>()
}

impl Core {
    fn id(&self) -> SessionId {
        self.session().id()
    }

    /// Records that the mount with this session defers closes.
    pub fn register_deferred(&self, mount: SessionId) -> Result<()> {
        self.store.registry().put(&DeferredCloses { mount })
    }

    /// Removes that record. If this fails, waiting clients find that this mount is gone.
    pub fn unregister_deferred(&self) {
        let _ = self.store.registry().remove(&DeferredCloses { mount: self.id() });
    }

    /// Stores closed files, if a client waits for them.
    pub fn answer_waiting(self: &Arc<Self>) -> Result<()> {
        let (registry, own) = (self.store.registry(), self.id());
        let mut barriers: Vec<Registered<CloseBarrier>> = registry.all()?;
        barriers.retain(|read| read.record.mount == own);
        if barriers.is_empty() {
            return Ok(());
        }
        self.store_closed()?;
        barriers.iter().try_for_each(|read| registry.take_read(read).map(drop))
    }
}
