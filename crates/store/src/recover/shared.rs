//! Recovering a store whose metadata lies in PostgreSQL.
//!
//! The configuration comes from the store's database or, when that is lost, from the record beside
//! its packs. The new database grows in a schema of its own, and takes the old one's name when it
//! is complete (`meta/postgres/exchange.rs`); the old one is kept under another name. No host may
//! use the store meanwhile: live sessions are refused, at the beginning and in the transaction that
//! exchanges the names.
//!
//! Jobs, rules, and the rights of roles on the tables are not in the packs, and are lost with the
//! database.

use std::path::PathBuf;
use std::sync::Arc;

use super::{RecoverProgress, RecoverReport, noted, rebuild};
use crate::backend::{Access, Location};
use crate::catalogue::Head;
use crate::config::StoreConfig;
use crate::error::{Error, ErrorKind, Result};
use crate::meta::{self, Unfinished};
use crate::shared;
use crate::store::Parts;

/// Rebuilds the database of the store at `url` from its packs. `packs` says where they lie, or else
/// the rest of the database does. They must have the state of `head`.
///
/// # Errors
/// `NotFound` when the place of the packs is unknown, or they are not there; `Exists` when another
/// store is there; `Busy` while a client uses it; `Newer`, `Denied`, `Io`. The old database, if
/// any, then stays where it was.
pub fn recover_shared(
    url: &str,
    packs: Option<&Location>,
    head: Option<&Head>,
    progress: &RecoverProgress,
) -> Result<RecoverReport> {
    let location = meta::Location::parse(url)?;
    let found = meta::look(&location)?;
    let left = found.config.as_deref().map(StoreConfig::from_text);
    let config = match (packs, left) {
        (None, Some(left)) => left?,
        (None, None) => {
            let why = format!(
                "{location} has no store, and nothing that tells where the packs of one are; name their place: `recover --packs URL`"
            );
            return Err(Error::new(ErrorKind::NotFound, why));
        }
        (Some(packs), left) => {
            let config = noted(packs)?;
            // One that cannot be read is no other store.
            if let Some(Ok(left)) = left
                && left != config
            {
                let why = format!(
                    "{location} has another store, or one whose packs lie elsewhere; name another schema"
                );
                return Err(Error::new(ErrorKind::Exists, why));
            }
            config
        }
    };
    shared::require_shareable(&config)?;
    let dir = shared::make_cache_dir(&config)?;
    let locks = dir.join("sessions");
    let keys = config.unlock_to_change(&dir, Access::default())?;
    let backend = config.open_packs(&dir, Access::default(), keys.as_ref())?;
    let mut report = RecoverReport::default();
    let unfinished = Unfinished::begin(&location, found, &config, &locks, shared::sealer(keys.as_ref()))?;
    let database = Arc::clone(&unfinished.meta) as Arc<dyn meta::Meta>;
    let parts = Parts { config, meta: database, backend: Arc::clone(&backend), keys };
    let moved = rebuild(&dir, parts, Some(&locks), head, progress, &mut report)?;
    report.old_database = unfinished.take_place()?.map(PathBuf::from);
    for id in moved {
        backend.set_aside(id)?;
    }
    Ok(report)
}
