//! The state of the source's database at one moment, in an SQLite database beside the copy. No
//! client waits for it, and it does not change, however long the copying of its packs takes.
//!
//! It is a state, not a list of changes, so it is complete by itself. Nothing can be lost between
//! one copy and the next, in whatever order the writers' transactions became visible.

use crate::meta::{Holds, Packs, Sessions};
use std::path::Path;

use outrigger_format::PackId;

use crate::error::{Context, Error, Result};
use crate::keys::Key;
use crate::layout::DATABASE_FILE;
use crate::meta::CopyNote;
use crate::meta::records::Registry;
use crate::meta::{MOUNT_HOLDER, Meta, ORPHAN, OpenMode, PackState, SqliteMeta, copy_database};
use crate::store::Store;

/// Findings that are named when the source's database is damaged.
const NAMED: usize = 5;

/// Freezes the state of `store` in `to`, with all sessions ended; `key` encrypts it.
///
/// # Errors
/// `Damaged` when the database is not what was written; those of both databases.
pub(super) fn freeze(store: &Store, to: &Path, key: Option<Key>, as_of: u64) -> Result<SqliteMeta> {
    remove(to)?;
    let meta = match store.postgres() {
        Some(source) => {
            let meta = SqliteMeta::open_encrypted(to, OpenMode::Create, key)?;
            source.carry_into(&meta)?;
            meta
        }
        None => {
            let from = store.home().path().join(DATABASE_FILE);
            let source_key = store.keys().map(|keys| keys.database_key());
            copy_database((&from, source_key.as_ref()), (to, key.as_ref()))?;
            SqliteMeta::open_encrypted(to, OpenMode::ReadWrite, key)?
        }
    };
    for session in meta.sessions()? {
        meta.fence(session.id)?;
    }
    meta.sweep_packs(meta.now()?)?;
    let dead: Vec<PackId> =
        meta.packs()?.into_iter().filter(|row| row.state == PackState::Dead).map(|row| row.id).collect();
    meta.forget_packs(&dead)?;
    // A mount's log is not copied, so nothing needs the contents it refers to, nor files that are
    // open there.
    for holder in
        meta.holders()?.iter().filter(|holder| *holder == MOUNT_HOLDER || holder.starts_with(ORPHAN))
    {
        meta.release(holder, None)?;
    }
    Registry::of(&meta).put(&CopyNote::of(&store.name().to_string_lossy(), as_of, &meta)?)?;
    let found = meta.check()?;
    if found.is_empty() {
        return Ok(meta);
    }
    let more = if found.len() > NAMED { ", …" } else { "" };
    let named = found[..found.len().min(NAMED)].join(", ");
    Err(Error::damaged(format!(
        "the database of {} is damaged: {named}{more}; {}",
        store.name().display(),
        store.database_advice()
    )))
}

/// Removes a database with its log files.
pub(super) fn remove(database: &Path) -> Result<()> {
    for suffix in ["", "-wal", "-shm", "-journal"] {
        let mut name = database.as_os_str().to_owned();
        name.push(suffix);
        match std::fs::remove_file(&name) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(error).context(|| format!("cannot remove {}", Path::new(&name).display()));
            }
            _ => {}
        }
    }
    Ok(())
}
