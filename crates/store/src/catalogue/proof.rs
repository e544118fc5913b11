//! Proves that the database is what the catalogue says. The catalogue is replayed into a database of
//! its own, which is then compared with the present one.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use outrigger_clock as clock;
use outrigger_format::{PackId, PackKind};

use super::blocks::{self, FoundBlock};
use super::chain::{Chain, Standing};
use super::compare::{Differences, compare};
use super::replay::{ReplayProgress, Replayed, replay};
use crate::error::{Context, Result};
use crate::follow::Census;
use crate::keys::Key;
use crate::layout::{DATABASE_FILE, create_private_dir};
use crate::meta::{At, Meta, OpenMode, Others, PackRow, SessionKind, SqliteMeta};
use crate::session::Session;
use crate::stale;
use crate::store::{Parts, Store};

/// The catalogue as it is in the packs.
pub(crate) struct Catalogue {
    /// The blocks that count, in order.
    pub blocks: Vec<FoundBlock>,
    pub standing: Standing,
    pub chain: Chain,
    /// Blocks that cannot be read, in sentences.
    pub problems: Vec<String>,
}

impl Catalogue {
    /// Judges and links all blocks that were found.
    pub fn of(mut blocks: Vec<FoundBlock>, problems: Vec<String>) -> Self {
        blocks::in_order(&mut blocks);
        let standing = Standing::of(&blocks);
        blocks.retain(|found| standing.counts(found.sequence));
        let chain = Chain::of(&blocks, &standing);
        Self { blocks, standing, chain, problems }
    }

    /// Reads the catalogue from all packs, whether the database knows them or not. Packs that a
    /// session is about to commit do not count.
    ///
    /// # Errors
    /// Those of the engine and the database, and `Newer`; damage is none.
    pub fn read(store: &Store) -> Result<Self> {
        // A pack is announced before it is made, so the rows are read later.
        let objects = store.backend.list()?;
        let rows = store.meta.packs()?;
        let rows: HashMap<PackId, &PackRow> = rows.iter().map(|row| (row.id, row)).collect();
        let (mut found, mut problems) = (Vec::new(), Vec::new());
        for id in objects {
            if counts(store, id, rows.get(&id).copied())? {
                read_pack(store, id, &mut found, &mut problems)?;
            }
        }
        Ok(Self::of(found, problems))
    }
}

/// True if the catalogue blocks of an object count.
fn counts(store: &Store, id: PackId, row: Option<&PackRow>) -> Result<bool> {
    match row {
        Some(row) if row.is_committed() => Ok(row.kind == PackKind::Meta),
        Some(row) => stale::is_anothers(store, row),
        None => match store.packs.read_header(id) {
            Ok(header) => Ok(header.kind == PackKind::Meta),
            Err(error) if stale::is_about_the_pack(&error) => Ok(false),
            Err(error) => Err(error),
        },
    }
}

fn read_pack(
    store: &Store,
    id: PackId,
    found: &mut Vec<FoundBlock>,
    problems: &mut Vec<String>,
) -> Result<()> {
    let footer = match store.packs.read_footer(id) {
        Ok(footer) => footer,
        Err(error) if stale::is_about_the_pack(&error) => {
            problems.push(error.to_string());
            return Ok(());
        }
        Err(error) => return Err(error),
    };
    let keys = store.keys().and_then(|keys| keys.content_keys());
    blocks::sort_out(blocks::read(&store.packs, keys, id, &footer), found, problems)
}

/// Compares the database's state at `now` with that of `blocks`, which count and are in order.
///
/// # Errors
/// Those of the store, and of a database in the directory for temporary files.
pub(crate) fn prove(store: &Store, blocks: Vec<FoundBlock>, now: At) -> Result<Differences> {
    let scratch = Scratch::new(store)?;
    let (expected, done) = (AtomicU64::new(0), AtomicU64::new(0));
    let progress = ReplayProgress { expected: &expected, done: &done };
    scratch.fill(store, blocks, progress)?;
    compare(&*scratch.meta, &*store.meta, now)
}

/// A database that goes when it is dropped.
struct Scratch {
    meta: Arc<dyn Meta>,
    dir: Temporary,
}

/// A directory that only this user can read, and that goes when it is dropped.
struct Temporary(PathBuf);

impl Drop for Temporary {
    fn drop(&mut self) {
        // If the store is encrypted, so are the files that stay.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

impl Scratch {
    fn new(store: &Store) -> Result<Self> {
        let name = format!("outrigger-{:016x}", u64::from_le_bytes(clock::random()?));
        let dir = std::env::temp_dir().join(name);
        create_private_dir(&dir).context(|| format!("cannot make {}", dir.display()))?;
        let dir = Temporary(dir);
        let key = store.keys().map(|_| Key::random()).transpose()?;
        let database = dir.0.join(DATABASE_FILE);
        Ok(Self { meta: Arc::new(SqliteMeta::open_encrypted(&database, OpenMode::Create, key)?), dir })
    }

    fn path(&self) -> &Path {
        &self.dir.0
    }

    /// Replays `blocks`. A change that cannot be replayed shows as a difference, or makes none.
    fn fill(&self, of: &Store, blocks: Vec<FoundBlock>, progress: ReplayProgress<'_>) -> Result<()> {
        let parts = Parts {
            config: of.config.clone(),
            meta: Arc::clone(&self.meta),
            backend: Arc::clone(&of.backend),
            keys: of.keys().cloned(),
        };
        // Its index stays empty, in memory.
        let store = Store::assemble(self.path(), parts, true, Others::Trust, &mut Census::default())?;
        let session = Session::open(&self.meta, SessionKind::Writer, None, "check".into())?;
        replay(&store, &session, blocks, of.is_shared(), progress, &mut Replayed::default())
    }
}
