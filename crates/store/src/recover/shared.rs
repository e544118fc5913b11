//! Recovering a store whose metadata lies in PostgreSQL.
//!
//! What the store is, its database says, or, when that is lost, what is noted beside its packs. The new database grows in a schema of its own, and takes
//! the old one's name when it is whole (`meta/postgres/exchange.rs`); the old one is kept under another name. The store must not be in use meanwhile, by
//! nobody on any host: sessions that are live are refused, at the beginning and in the transaction that exchanges the names.
//!
//! Lost with the database, and not in the packs: jobs and rules, and what roles were granted on its tables.

use std::path::PathBuf;
use std::sync::Arc;

use super::{RecoverProgress, RecoverReport, noted, rebuild};
use crate::backend::{Access, Location};
use crate::config::StoreConfig;
use crate::error::{Error, ErrorKind, Result};
use crate::meta::{self, Unfinished};
use crate::shared;

/// Rebuilds the database of the store at `url` from its packs. Where they lie is told by `packs`, or else by what is left of the database.
///
/// # Errors
/// `NotFound` when nothing says where the packs are, or they are not there; `Exists` when another store is there; `Busy` while somebody uses it; `Newer`,
/// `Denied`, `Io`. The old database, if any, is then where it was.
pub fn recover_shared(
    url: &str,
    packs: Option<&Location>,
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
    let backend = config.open_packs(&dir, Access::default())?;
    let mut report = RecoverReport::default();
    let unfinished = Unfinished::begin(&location, found, &config, &locks)?;
    let database = Arc::clone(&unfinished.meta) as Arc<dyn meta::Meta>;
    let moved = rebuild(&dir, config, database, Some(&locks), &backend, progress, &mut report)?;
    report.old_database = unfinished.take_place()?.map(PathBuf::from);
    for id in moved {
        backend.set_aside(id)?;
    }
    Ok(report)
}
