//! `copy`: a store into another place: its packs to any engine, then its database. For moving out of one machine, and for replicas.
//!
//! ```text
//!  hold the collector off ─▶ a copy of the database, of one moment ─▶ its packs, several at once ─▶ the database takes its name
//!                                                                    packs.rs, journal.rs          ─▶ store.toml: it is a store
//! ```
//!
//! Packs go over as they are: nothing is cut, hashed or compressed again, and versions, snapshots and policies are what they were. Each is
//! checked on its way (header, every frame's checksum, footer), written, and counted only when the other engine has acknowledged it. Packs are
//! immutable and never change their names, so a copy that was interrupted goes on where it was, and a copy of what has changed since is short.
//!
//! The copy has the source's id: it is the same store elsewhere, or a replica of it. Written to on its own, it is one no more: the next copy
//! into it is refused, since two histories cannot be joined.

mod journal;
mod packs;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use outrigger_format::PackId;
use serde::Serialize;

use crate::backend::{Access, Location};
use crate::clock;
use crate::config::{CONFIG_FILE, StoreConfig};
use crate::error::{Context, Error, ErrorKind, Result};
use crate::meta::{Meta, OpenMode, PackRow, PackState, SqliteMeta, register_functions};
use crate::older;
use crate::store::{DATABASE_FILE, Store, create_private_dir, write_durably};

use journal::Journal;

/// The database's name until all it refers to is there.
const UNFINISHED: &str = "meta.db.copying";

/// What to copy, and where to.
#[derive(Clone, Debug)]
pub struct CopyOptions {
    /// The copy's directory.
    pub to: PathBuf,
    /// Where its packs are to lie; `None`: where they lie if the copy is there already, else in its directory.
    pub packs: Option<Location>,
    /// Packs copied at once.
    pub threads: usize,
    /// Read all packs of the copy again when done, as the engine returns them.
    pub verify: bool,
}

/// Live counters of a copy.
#[derive(Debug, Default)]
pub struct CopyProgress {
    /// Packs there are.
    pub packs_expected: AtomicU64,
    /// Packs that are there.
    pub packs_done: AtomicU64,
    /// Bytes to copy.
    pub bytes_expected: AtomicU64,
    /// Bytes copied.
    pub bytes_done: AtomicU64,
}

/// What a copy did.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct CopyReport {
    /// Packs that were copied.
    pub packs_copied: u64,
    /// Their bytes.
    pub bytes_copied: u64,
    /// Packs that were there already.
    pub packs_kept: u64,
    /// Packs removed, since the source has them no more.
    pub packs_removed: u64,
    /// Packs read again and found whole.
    pub packs_verified: u64,
    /// Snapshots in the copy.
    pub snapshots: u64,
    /// Files in the copy.
    pub files: u64,
    /// What could not be copied, in sentences. The copy is not whole then, and was not made a store.
    pub problems: Vec<String>,
}

/// Copies `store`, as it is at one moment from now on.
///
/// # Errors
/// `Exists` when something else is in the way, or the copy was changed by itself; `Busy` when either is in use in a way that does not allow
/// it; whatever the engines say.
pub fn copy(store: &Store, options: &CopyOptions, progress: &CopyProgress) -> Result<CopyReport> {
    let to = options.to.as_path();
    if store.is_shared() || crate::shared::url(to).is_some() {
        let why = "a store whose metadata lies in PostgreSQL cannot be copied so far, nor be a copy: `get`, `export` and `import` carry files over";
        return Err(Error::new(ErrorKind::Invalid, why));
    }
    refuse_itself(store, to)?;
    let config = config_of_copy(store, options)?;
    let is_store = to.join(CONFIG_FILE).exists();
    create_private_dir(to).context(|| format!("cannot create {}", to.display()))?;
    for name in ["index", "sessions"] {
        create_private_dir(&to.join(name)).context(|| format!("cannot create {}", to.display()))?;
    }
    let mut journal = Journal::open(to, &config)?;
    if !is_store {
        refuse_foreign(to)?;
        if config.packs.is_none() {
            config.claim_packs(to)?;
        } else if journal.is_new() {
            // Written before the claim, so that what is claimed is ours when this is interrupted.
            config.claim_packs(to)?;
            journal.claimed()?;
        }
    }
    let backend =
        config.open_uncached(to, Access { create: !is_store && config.packs.is_none(), read_only: false })?;

    // While this session is the collector, no pack of the source can go away.
    let session = if store.is_read_only() { None } else { Some(store.collector("copy")?.0) };
    let copied = (|| -> Result<_> {
        // What its database has forgotten would be removed from the copy.
        older::refuse(store)?;
        let mut report = CopyReport::default();
        let meta = copy_database(store.dir(), &to.join(UNFINISHED))?;
        let rows: Vec<PackRow> = meta.packs()?.into_iter().filter(is_committed).collect();
        if is_store {
            refuse_diverged(to, &journal)?;
        }
        packs::copy(store, &*backend, &rows, &mut journal, options, progress, &mut report)?;
        Ok((meta, rows, report))
    })();
    if let Some(session) = session {
        let _ = store.meta.release_collector(session.id());
    }
    let (meta, rows, mut report) = copied?;
    if options.verify {
        packs::verify(&*backend, &config, &rows, options.threads, &mut report);
    }
    if !report.problems.is_empty() {
        return Ok(report);
    }
    let totals = meta.totals()?;
    (report.files, report.snapshots) = (totals.files, meta.snapshots()?.len() as u64);
    meta.tidy()?;
    drop(meta);
    take_name(to)?;
    write_durably(to, CONFIG_FILE, config.to_text().as_bytes())?;
    // What the source has given up since the last copy.
    let known: std::collections::HashSet<PackId> = rows.iter().map(|row| row.id).collect();
    for id in backend.list()?.into_iter().filter(|id| !known.contains(id)) {
        backend.remove(id)?;
        report.packs_removed += 1;
    }
    journal.retain(&known)?;
    Ok(report)
}

fn is_committed(row: &PackRow) -> bool {
    matches!(row.state, PackState::Live | PackState::Condemned)
}

fn refuse_itself(store: &Store, to: &Path) -> Result<()> {
    let same = |a: &Path, b: &Path| matches!((a.canonicalize(), b.canonicalize()), (Ok(a), Ok(b)) if a == b);
    if same(store.dir(), to) {
        return Err(Error::new(ErrorKind::Invalid, "source and copy are the same directory"));
    }
    Ok(())
}

/// The source's configuration, with the copy's place for packs.
fn config_of_copy(store: &Store, options: &CopyOptions) -> Result<StoreConfig> {
    let there = StoreConfig::find(&options.to)?;
    let packs = match (&there, &options.packs) {
        (Some(there), None) => there.packs.clone(),
        (_, packs) => packs.clone(),
    };
    if packs.is_some() && packs == store.config.packs {
        let why = "the copy's packs would lie where the source's do; name another place";
        return Err(Error::new(ErrorKind::Invalid, why));
    }
    let config = StoreConfig { packs, ..store.config.clone() };
    if there.is_some_and(|there| there != config) {
        let why = format!(
            "{} is another store, or its packs lie elsewhere; name a new directory",
            options.to.display()
        );
        return Err(Error::new(ErrorKind::Exists, why));
    }
    Ok(config)
}

/// Fails when a directory that is no store yet holds anything but an unfinished copy.
fn refuse_foreign(to: &Path) -> Result<()> {
    let ours = [DATABASE_FILE, UNFINISHED, "packs", "index", "sessions", "cache", journal::FILE];
    for entry in std::fs::read_dir(to).context(|| format!("cannot list {}", to.display()))?.flatten() {
        let name = entry.file_name();
        if !name.to_str().is_some_and(|name| ours.iter().any(|ours| name.starts_with(ours))) {
            let why = format!("{} is not empty (it has {name:?}); name a new directory", to.display());
            return Err(Error::new(ErrorKind::Exists, why));
        }
    }
    Ok(())
}

/// A copy whose database knows packs that were not copied there has a history of its own. Ids do not tell: both stores give out the same.
fn refuse_diverged(to: &Path, journal: &Journal) -> Result<()> {
    let meta = SqliteMeta::open(&to.join(DATABASE_FILE), OpenMode::ReadOnly)?;
    let own = meta.packs()?.into_iter().find(|row| is_committed(row) && !journal.has(row.id));
    if let Some(row) = own {
        let why = format!(
            "{} has been written to by itself (pack {} was not copied there): it is a store of its own now",
            to.display(),
            row.id
        );
        return Err(Error::new(ErrorKind::Exists, why));
    }
    Ok(())
}

/// Copies the database of the store in `from` as it is at one moment, with all sessions ended.
fn copy_database(from: &Path, to: &Path) -> Result<SqliteMeta> {
    let at = || format!("cannot copy the database to {}", to.display());
    remove(to)?;
    let source = from.join(DATABASE_FILE);
    let sql = |error: rusqlite::Error| Error::new(ErrorKind::Io, at()).caused_by(error);
    let connection = rusqlite::Connection::open(&source).map_err(sql)?;
    connection.busy_timeout(std::time::Duration::from_secs(30)).map_err(sql)?;
    register_functions(&connection).map_err(sql)?;
    let name = to.to_str().ok_or_else(|| Error::new(ErrorKind::Invalid, "the copy's path is not UTF-8"))?;
    connection.execute("VACUUM INTO ?1", [name]).map_err(sql)?;
    std::fs::File::open(to).and_then(|file| file.sync_all()).context(at)?;
    let meta = SqliteMeta::open(to, OpenMode::ReadWrite)?;
    for session in meta.sessions()? {
        meta.fence(session.id)?;
    }
    meta.sweep_packs(clock::now_nanos())?;
    let dead: Vec<PackId> =
        meta.packs()?.into_iter().filter(|row| row.state == PackState::Dead).map(|row| row.id).collect();
    meta.forget_packs(&dead)?;
    Ok(meta)
}

/// Removes a database and what belongs to it.
fn remove(database: &Path) -> Result<()> {
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

/// The finished database takes its name, over that of the copy before.
fn take_name(to: &Path) -> Result<()> {
    let (new, name) = (to.join(UNFINISHED), to.join(DATABASE_FILE));
    crate::recover::refuse_in_use(to)?;
    // The index was built for what was there before; it is made anew from the footers.
    let _ = std::fs::remove_file(to.join("index").join("CURRENT"));
    for suffix in ["-wal", "-shm"] {
        let mut log = name.as_os_str().to_owned();
        log.push(suffix);
        let _ = std::fs::remove_file(log);
    }
    std::fs::rename(&new, &name).context(|| format!("cannot rename {}", new.display()))?;
    remove(&new)?;
    std::fs::File::open(to).and_then(|dir| dir.sync_all()).context(|| format!("cannot sync {}", to.display()))
}

/// Adds to a counter.
fn add(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Ordering::Relaxed);
}
