//! `recover`: makes a new database from the packs alone, in a store's directory or, where hosts
//! share it, in PostgreSQL (`shared.rs`).
//!
//! ```text
//!   survey.rs   every object: header, footer, catalogue blocks; what has no footer is kept for salvage
//!       │
//!   a new database beside the old one ◀── rows of all whole packs, counters beyond everything seen
//!       │   salvage: good frames of torn packs go into new packs
//!   `catalogue/replay.rs`: blocks by (sequence, pack, frame) ─▶ commits, snapshots, versions, policies
//!       │
//!   the old database is moved aside, the new one takes its name; torn packs are moved to `packs-damaged/`
//! ```
//!
//! Nothing that was there is changed before the new database is whole, and nothing is deleted but
//! packs that hold nothing. A block found in a torn pack belongs to a commit that may never have
//! been acknowledged: it counts only if all that it refers to can be found.

mod shared;
mod survey;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use outrigger_clock as clock;
use outrigger_format::PackId;
use serde::Serialize;

use crate::backend::{self, Access, Location};
use crate::catalogue::Head;
use crate::catalogue::blocks::{self, FoundBlock};
use crate::catalogue::proof::Catalogue;
use crate::catalogue::replay::{ReplayProgress, Replayed, replay};
use crate::check::salvage;
use crate::config::StoreConfig;
use crate::counters::PACK_ID_GAP;
use crate::error::{Context, Error, ErrorKind, Result};
use crate::follow::Census;
use crate::layout::{CONFIG_FILE, DATABASE_FILE, create_store_dirs, write_durably};
use crate::leftovers;
use crate::meta::{Commit, Meta, OpenMode, Others, SessionKind, SqliteMeta};
use crate::publish;
use crate::session::Session;
use crate::store::{Parts, Store, refuse_packs_elsewhere};
pub use shared::recover_shared;
use survey::Survey;

/// The new database's name until it is whole.
const UNFINISHED: &str = "meta.db.recovering";

/// The result of a recovery.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct RecoverReport {
    /// Whole packs, now live.
    pub packs: u64,
    /// Packs without a footer, or with a damaged one, whose good frames were copied.
    pub packs_salvaged: u64,
    /// Packs of which nothing could be read, or that were never sealed and empty; moved aside.
    pub packs_dropped: u64,
    /// Catalogue blocks replayed.
    pub blocks: u64,
    /// Changes replayed.
    pub changes: u64,
    /// Snapshots there are now.
    pub snapshots: u64,
    /// Files there are now.
    pub files: u64,
    /// Directories there are now.
    pub directories: u64,
    /// Where the old database is now, if there was one: its file, or in PostgreSQL the name of its
    /// schema.
    pub old_database: Option<PathBuf>,
    /// What could not be recovered, in sentences.
    pub problems: Vec<String>,
}

/// Live counters of a recovery.
#[derive(Debug, Default)]
pub struct RecoverProgress {
    /// Objects to read.
    pub packs_expected: AtomicU64,
    /// Objects read.
    pub packs_done: AtomicU64,
    /// Catalogue blocks that will be replayed.
    pub blocks_expected: AtomicU64,
    /// Blocks replayed.
    pub blocks_done: AtomicU64,
}

/// Rebuilds the database of the store in `dir` from its packs.
///
/// # Errors
/// `NotFound` when there is no store, `Damaged` when its packs are gone, `Busy` while a process
/// uses it, `Newer`, `Denied`, `Io`. The old database, if any, then stays where it was.
pub fn recover(dir: &Path, progress: &RecoverProgress) -> Result<RecoverReport> {
    recover_since(dir, None, progress)
}

/// As [`recover`], from packs that have the state with this head.
///
/// # Errors
/// As [`recover`]; `Damaged` when the packs do not have it, and `Invalid` when it is another store's.
pub fn recover_since(dir: &Path, head: Option<&Head>, progress: &RecoverProgress) -> Result<RecoverReport> {
    let mut report = RecoverReport::default();
    let (config, is_new) = configuration(dir, &mut report)?;
    refuse_packs_elsewhere(dir, &config)?;
    refuse_in_use(dir)?;
    if config.packs.is_none() && !dir.join("packs").is_dir() {
        let packs = dir.join("packs");
        let why = format!("{} is missing: put it back from a copy of the store", packs.display());
        return Err(Error::damaged(why));
    }
    remove_database(&dir.join(UNFINISHED))?;
    let keys = config.unlock_to_change(dir, Access::default())?;
    let key = keys.as_ref().map(|keys| keys.database_key());
    let meta: Arc<dyn Meta> =
        Arc::new(SqliteMeta::open_encrypted(&dir.join(UNFINISHED), OpenMode::Create, key)?);
    let backend = config.open_packs(dir, Access::default(), keys.as_ref())?;
    let text = config.to_text();
    let parts = Parts { config, meta, backend: Arc::clone(&backend), keys };
    let moved = rebuild(dir, parts, None, head, progress, &mut report)?;
    if is_new {
        leftovers::set_aside(dir)?;
        write_durably(dir, CONFIG_FILE, text.as_bytes())?;
    }
    report.old_database = exchange_databases(dir)?;
    for id in moved {
        backend.set_aside(id)?;
    }
    Ok(report)
}

/// Fills the empty database of `parts` from its packs, which must have the state of `head`; `dir` is
/// this host's directory for the store. `locks` is the directory for the session's lock file, if
/// others must see that.
/// Returns the packs to move aside when the database has its place. Closes the database.
fn rebuild(
    dir: &Path,
    parts: Parts,
    locks: Option<&Path>,
    head: Option<&Head>,
    progress: &RecoverProgress,
    report: &mut RecoverReport,
) -> Result<Vec<PackId>> {
    let meta = Arc::clone(&parts.meta);
    let keys = parts.keys.clone();
    let keys = keys.as_ref().and_then(|keys| keys.content_keys());
    let survey = survey::survey(&parts.backend, &parts.config, keys, progress, report)?;
    verify_chain(&parts.config, &survey.blocks, head, report)?;
    meta.raise_counters(next_pack(&survey), 0, 0)?;
    meta.adopt_packs(&survey.whole)?;
    report.packs = survey.whole.len() as u64;

    let mut rows = Census::of(&*meta)?;
    let store = Store::assemble(dir, parts, false, Others::Trust, &mut rows)?;
    let store = store.indexed(rows)?;
    let session = Session::open(&meta, SessionKind::Writer, locks, "recover".into())?;
    let mut blocks = survey.blocks;
    let moved = salvage_torn(&store, &session, &survey.torn, &mut blocks, report)?;
    blocks::in_order(&mut blocks);
    let counters = ReplayProgress { expected: &progress.blocks_expected, done: &progress.blocks_done };
    let mut replayed = Replayed::default();
    replay(&store, &session, blocks, meta.publishing().is_some(), counters, &mut replayed)?;
    (report.blocks, report.changes) = (replayed.blocks, replayed.changes);
    report.problems.append(&mut replayed.problems);
    let totals = meta.totals()?;
    (report.files, report.directories) = (totals.files, totals.directories);
    report.snapshots = meta.snapshots()?.len() as u64;
    drop(session);
    if report.problems.is_empty() {
        // Else it is written anew, as it is not what it was.
        publish::set_whole(&*meta)?;
    }
    meta.tidy()?;
    Ok(moved)
}

/// Refuses packs without the state of `head`, and reports blocks that others name and that are not
/// there.
fn verify_chain(
    config: &StoreConfig,
    blocks: &[FoundBlock],
    head: Option<&Head>,
    report: &mut RecoverReport,
) -> Result<()> {
    let Catalogue { chain, .. } = Catalogue::of(blocks.to_vec(), Vec::new());
    if let Some(head) = head {
        head.require_of(config.id)?;
        chain.require(head)?;
    }
    report.problems.extend(chain.missing_in_words());
    Ok(())
}

/// Reads the store's configuration. The flag says that its `store.toml` is lost or damaged, and
/// that the packs supplied this one.
fn configuration(dir: &Path, report: &mut RecoverReport) -> Result<(StoreConfig, bool)> {
    let lost = match StoreConfig::find(dir) {
        Ok(Some(config)) => return Ok((config, false)),
        Ok(None) => leftovers::refuse(dir),
        Err(error) if error.kind() == ErrorKind::Damaged => error,
        Err(error) => return Err(error),
    };
    let Some((config, sentence)) = leftovers::configuration(dir)? else {
        // If the packs lie elsewhere, the configuration is recorded beside them.
        return match lost.kind() {
            ErrorKind::Damaged => Err(lost.context(
                "no pack here says what the store was; if its packs lie elsewhere, `recover --packs URL` in a new directory finds it",
            )),
            _ => Err(lost),
        };
    };
    report.problems.push(sentence);
    Ok((config, true))
}

/// If a store's directory is lost as a whole, makes it again from the configuration that is
/// recorded beside its packs. [`recover`] does the rest.
///
/// # Errors
/// `NotFound` when nothing is recorded at `location`, `Exists` when there is a store in `dir`
/// already.
pub fn adopt(dir: &Path, location: &Location) -> Result<()> {
    if dir.join(CONFIG_FILE).exists() {
        return Err(Error::new(ErrorKind::Exists, format!("{} is a store already", dir.display())));
    }
    let config = noted(location)?;
    create_store_dirs(dir)?;
    write_durably(dir, CONFIG_FILE, config.to_text().as_bytes())
}

/// Reads the configuration that is recorded beside the packs at `location`.
fn noted(location: &Location) -> Result<StoreConfig> {
    let none = || Error::new(ErrorKind::NotFound, format!("{location} holds no store's packs"));
    let claim = backend::open(location, Access { read_only: true, ..Access::default() })?
        .claimed()?
        .ok_or_else(none)?;
    let config = StoreConfig::from_text(&claim).context(|| location.to_string())?;
    if config.packs.as_ref() != Some(location) {
        // The same place has two addresses (another gateway, another path). The recorded one stays,
        // and works.
        let noted = config.packs.map_or_else(|| "a directory".to_string(), |packs| packs.to_string());
        let why = format!("the packs at {location} are noted to lie at {noted}; name them so");
        return Err(Error::new(ErrorKind::Invalid, why));
    }
    Ok(config)
}

fn next_pack(survey: &Survey) -> u64 {
    (survey.highest + PACK_ID_GAP).min(PackId::MAX.0)
}

/// Every process that writes holds the lock of its session's file.
pub(crate) fn refuse_in_use(dir: &Path) -> Result<()> {
    let locks = dir.join("sessions");
    let names = match std::fs::read_dir(&locks) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        other => other.context(|| format!("cannot list {}", locks.display()))?,
    };
    for entry in names.flatten() {
        let Ok(file) = std::fs::File::open(entry.path()) else { continue };
        let is_locked =
            rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive).is_err();
        if is_locked {
            let why = format!("{} is in use by another process; end it first", dir.display());
            return Err(Error::new(ErrorKind::Busy, why));
        }
    }
    Ok(())
}

/// Copies the good frames of torn packs into new ones; returns the packs to move aside afterwards.
fn salvage_torn(
    store: &Store,
    session: &Session,
    torn: &[survey::Torn],
    blocks: &mut Vec<FoundBlock>,
    report: &mut RecoverReport,
) -> Result<Vec<PackId>> {
    let mut moved = Vec::new();
    let keys = store.keys().and_then(|keys| keys.content_keys());
    for pack in torn {
        let mut uncertain = Vec::new();
        let kind = pack.kind;
        let salvaged = salvage::rewrite(store, &store.meta, session, pack.id, kind, &mut |frame| {
            uncertain.extend(survey::blocks_of(pack.id, keys, frame));
            true
        });
        let (sealed, salvage) = match salvaged {
            Ok(salvaged) => salvaged,
            Err(error) if error.kind() == ErrorKind::Fenced => return Err(error),
            Err(error) => {
                report.problems.push(format!("pack {}: {error}", pack.id));
                continue;
            }
        };
        for pack in &sealed {
            store.index.add_pack(pack.row.id, &pack.footer);
            session.own_pack(pack.row.id);
        }
        let commit = Commit {
            packs: sealed.iter().map(|pack| pack.row.id).collect(),
            changes: Vec::new(),
            time: clock::now_nanos(),
        };
        session.commit(0, &commit.packs, || store.meta.commit(session.id(), &commit))?;
        let why = &pack.why;
        if salvage.chunks > 0 {
            report.packs_salvaged += 1;
            report.problems.push(format!("{why}; {} chunks of it were copied to new packs", salvage.chunks));
        } else {
            report.packs_dropped += 1;
            report.problems.push(format!("{why}; nothing of it could be read"));
        }
        uncertain.iter_mut().for_each(|found: &mut FoundBlock| found.is_lossy = salvage.losses > 0);
        blocks.extend(uncertain);
        moved.push(pack.id);
    }
    Ok(moved)
}

fn database_files(path: &Path) -> [PathBuf; 3] {
    ["", "-wal", "-shm"].map(|suffix| {
        let mut name = path.as_os_str().to_owned();
        name.push(suffix);
        PathBuf::from(name)
    })
}

fn remove_database(path: &Path) -> Result<()> {
    for file in database_files(path) {
        match std::fs::remove_file(&file) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(error).context(|| format!("cannot remove {}", file.display()));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Moves the old database aside, if there is one, and the new one to its place.
fn exchange_databases(dir: &Path) -> Result<Option<PathBuf>> {
    let (old, new) = (dir.join(DATABASE_FILE), dir.join(UNFINISHED));
    let at = || format!("cannot exchange {}", old.display());
    // Never replaces one that an earlier recovery has set aside, even in the same second.
    let aside = format!("{DATABASE_FILE}.damaged-{}", clock::now_nanos() / 1_000_000_000);
    let aside = leftovers::free_name(dir, &aside, &["-wal", "-shm"]);
    let log = &database_files(&new)[1];
    if std::fs::metadata(log).is_ok_and(|log| log.len() > 0) {
        return Err(Error::new(ErrorKind::Busy, format!("{} is still in use", new.display())));
    }
    let mut was_there = None;
    // The log first: a database beside another one's log would be worse than none.
    for (from, to) in database_files(&old).iter().zip(database_files(&aside)).rev() {
        match std::fs::rename(from, &to) {
            Ok(()) if *from == old => was_there = Some(aside.clone()),
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error).context(at),
            _ => {}
        }
    }
    std::fs::rename(&new, &old).context(at)?;
    for file in &database_files(&new)[1..] {
        let _ = std::fs::remove_file(file);
    }
    std::fs::File::open(dir).and_then(|dir| dir.sync_all()).context(at)?;
    Ok(was_there)
}
