//! The state of the source's database at one moment, in an SQLite database beside the copy. No
//! client waits for it, and it does not change, however long the copying of its packs takes.
//!
//! It is a state, not a list of changes, so it is complete by itself. Nothing can be lost between
//! one copy and the next, in whatever order the writers' transactions became visible.

use crate::meta::{Holds, Packs, Sessions};
use std::fs::File;
use std::path::Path;
use std::time::Duration;

use outrigger_format::PackId;

use super::note::CopyNote;
use crate::error::{Context, Error, ErrorKind, Result};
use crate::layout::DATABASE_FILE;
use crate::meta::records::Registry;
use crate::meta::{MOUNT_HOLDER, Meta, ORPHAN, OpenMode, PackState, SqliteMeta, register_functions};
use crate::store::Store;

/// Findings that are named when the source's database is damaged.
const NAMED: usize = 5;

/// Freezes the state of `store` in `to`, with all sessions ended.
///
/// # Errors
/// `Damaged` when the database is not what was written; those of both databases.
pub(super) fn freeze(store: &Store, to: &Path, as_of: u64) -> Result<SqliteMeta> {
    remove(to)?;
    let meta = match store.postgres() {
        Some(source) => {
            let meta = SqliteMeta::open(to, OpenMode::Create)?;
            source.carry_into(&meta)?;
            meta
        }
        None => {
            vacuum_into(&store.home().path().join(DATABASE_FILE), to)?;
            SqliteMeta::open(to, OpenMode::ReadWrite)?
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

fn vacuum_into(source: &Path, to: &Path) -> Result<()> {
    let at = || format!("cannot copy the database to {}", to.display());
    let sql = |error: rusqlite::Error| Error::new(ErrorKind::Io, at()).caused_by(error);
    let connection = rusqlite::Connection::open(source).map_err(sql)?;
    connection.busy_timeout(Duration::from_secs(30)).map_err(sql)?;
    register_functions(&connection).map_err(sql)?;
    let name = to.to_str().ok_or_else(|| Error::new(ErrorKind::Invalid, "the copy's path is not UTF-8"))?;
    connection.execute("VACUUM INTO ?1", [name]).map_err(sql)?;
    File::open(to).and_then(|file| file.sync_all()).context(at)
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
