//! The destination of a copy, a directory or a schema of PostgreSQL: its present contents, what
//! must not be there, and how a finished database takes its place.

use crate::meta::{Packs, Sessions};
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use outrigger_format::PackId;

use super::journal::{self, Journal};
use super::{CopyEncryption, CopyOptions, UNFINISHED, frozen};
use crate::backend::{Access, Backend, KEYS_DIR, Location as PacksLocation};
use crate::config::StoreConfig;
use crate::error::{Context, Error, ErrorKind, Result};
use crate::keys::slots::ring_of;
use crate::keys::{Key, Keyring, RingId};
use crate::layout::{CONFIG_FILE, DATABASE_FILE, create_store_dirs, write_durably};
use crate::meta::CopyNote;
use crate::meta::{Counters, Location, Meta, OpenMode, PackRow, PostgresMeta, SqliteMeta, is_gone};
use crate::sealed::sealed;
use crate::shared;
use crate::store::Store;

/// See the module.
pub(super) struct Destination {
    /// As the user names it.
    name: PathBuf,
    /// The directory of journal and unfinished database: the copy's own, or this host's cache
    /// directory for the copy.
    pub dir: PathBuf,
    /// The copy's configuration.
    pub config: StoreConfig,
    /// Its keys, if it is encrypted: the source's, or those of [`CopyOptions::encryption`].
    keys: Option<Arc<Keyring>>,
    /// It is one already: an earlier copy.
    pub is_store: bool,
    database: Database,
}

enum Database {
    /// In the directory.
    File,
    /// In PostgreSQL; the store that is there.
    Postgres(Location, Option<Box<PostgresMeta>>),
}

impl Destination {
    /// Looks at the destination, and makes the directory.
    ///
    /// # Errors
    /// `Invalid` and `Exists` if it cannot be a copy of `store`; `Denied`; those of connecting.
    pub fn open(store: &Store, options: &CopyOptions) -> Result<Self> {
        let to = options.to.as_path();
        let Some(url) = shared::url(to) else {
            refuse_itself(store, to)?;
            let config = config_of_copy(store, options, StoreConfig::find(to)?)?;
            let is_store = to.join(CONFIG_FILE).exists();
            if !is_store && to.exists() {
                refuse_foreign(to)?;
            }
            create_store_dirs(to)?;
            let (name, dir) = (to.to_path_buf(), to.to_path_buf());
            let keys = keys_of_copy(store, options, &config, &dir)?;
            return Ok(Self { name, dir, config, keys, is_store, database: Database::File });
        };
        let location = Location::parse(url)?;
        let there = match PostgresMeta::is_at(location.clone())? {
            true => Some(PostgresMeta::open(location.clone(), false)?),
            false => None,
        };
        if there.as_ref().is_some_and(PostgresMeta::is_read_only) {
            let why = format!("{location} may only be read by this role, or the server is a standby");
            return Err(Error::new(ErrorKind::Denied, why));
        }
        let its_config = there.as_ref().map(|meta| StoreConfig::from_text(meta.config())).transpose()?;
        let config = config_of_copy(store, options, its_config)?;
        shared::require_shareable(&config)?;
        if there.is_none() {
            PostgresMeta::could_be_made(&location)?;
        }
        let dir = shared::make_cache_dir(&config)?;
        let is_store = there.is_some();
        let name = to.to_path_buf();
        let keys = keys_of_copy(store, options, &config, &dir)?;
        if let (Some(there), Some(sealer)) = (&there, shared::sealer(keys.as_ref())) {
            there.seal_with(sealer);
        }
        Ok(Self {
            name,
            dir,
            config,
            keys,
            is_store,
            database: Database::Postgres(location, there.map(Box::new)),
        })
    }

    /// Where the state is frozen until all that it refers to is there.
    pub fn unfinished(&self) -> PathBuf {
        self.dir.join(UNFINISHED)
    }

    /// The key of its database in a directory, and of the frozen state.
    pub fn database_key(&self) -> Option<Key> {
        self.keys.as_ref().map(|keys| keys.database_key())
    }

    /// Its packs, in a place that is noted to be this copy's, and that has the key slots.
    pub fn packs(&self, options: &CopyOptions, journal: &mut Journal) -> Result<Arc<dyn Backend>> {
        if !self.is_store {
            if self.config.packs.is_none() {
                self.config.claim_packs(&self.dir)?;
            } else if journal.is_new() {
                // Written before the claim: after an interruption, claimed packs are known to be
                // ours.
                self.config.claim_packs(&self.dir)?;
                journal.claimed()?;
            }
        }
        let create = !self.is_store && self.config.packs.is_none();
        let stored = self.config.open_uncached(&self.dir, Access { create, ..Access::default() })?;
        if let CopyEncryption::New(new) = &options.encryption
            && Some(new.ring.id()) == self.config.ring_id()
        {
            self.config.write_keys(new, &self.dir)?;
        }
        Ok(sealed(stored, self.keys.as_ref()))
    }

    /// Fails when the copy has a history of its own; returns the packs that its database has as
    /// whole.
    ///
    /// # Errors
    /// `Exists`.
    pub fn require_copy(&self, journal: &Journal) -> Result<Vec<PackRow>> {
        if !self.is_store {
            return Ok(Vec::new());
        }
        let own = |why: &str| {
            let name = self.name.display();
            Error::new(ErrorKind::Exists, format!("{name} {why}: it is a store of its own now"))
        };
        match &self.database {
            Database::File => {
                let path = self.dir.join(DATABASE_FILE);
                let meta = SqliteMeta::open_encrypted(&path, OpenMode::ReadOnly, self.database_key())?;
                let rows: Vec<PackRow> = meta.packs()?.into_iter().filter(PackRow::is_committed).collect();
                match rows.iter().find(|row| !journal.has(row.id)) {
                    None => Ok(rows),
                    Some(row) => {
                        let id = row.id;
                        Err(own(&format!("has been written to by itself (pack {id} was not copied there)")))
                    }
                }
            }
            Database::Postgres(_, None) => Ok(Vec::new()),
            Database::Postgres(_, Some(meta)) => {
                let note = CopyNote::read(&**meta)?.ok_or_else(|| own("was not made by `copy`"))?;
                if meta.counters()? != note.counters() {
                    return Err(own("has been written to by itself"));
                }
                Ok(meta.packs()?.into_iter().filter(PackRow::is_committed).collect())
            }
        }
    }

    /// How many files an earlier copy has, and its snapshots; `None` if there is none.
    ///
    /// # Errors
    /// When its database cannot be read.
    pub fn before(&self) -> Result<Option<(u64, Vec<String>)>> {
        fn of(meta: &dyn Meta) -> Result<Option<(u64, Vec<String>)>> {
            let names = meta.snapshots()?.into_iter().map(|row| row.name).collect();
            Ok(Some((meta.totals()?.files, names)))
        }
        match &self.database {
            Database::File if self.is_store => {
                let path = self.dir.join(DATABASE_FILE);
                of(&SqliteMeta::open_encrypted(&path, OpenMode::ReadOnly, self.database_key())?)
            }
            Database::Postgres(_, Some(meta)) if self.is_store => of(&**meta),
            _ => Ok(None),
        }
    }

    /// The frozen state, to which all packs are there, becomes the copy's.
    ///
    /// Order: the database is durable under its name before the configuration makes a directory a
    /// store; in PostgreSQL rows and configuration are one transaction.
    pub fn take(&self, state: SqliteMeta) -> Result<()> {
        match &self.database {
            Database::File => {
                state.tidy()?;
                drop(state);
                take_name(&self.dir)?;
                write_durably(&self.dir, CONFIG_FILE, self.config.to_text().as_bytes())
            }
            Database::Postgres(location, None) => {
                let meta = PostgresMeta::create_from(
                    location.clone(),
                    &self.config.to_text(),
                    &state,
                    shared::sealer(self.keys.as_ref()),
                )?;
                self.settle(&meta, state)
            }
            Database::Postgres(_, Some(meta)) => {
                // Of this host, and without a process.
                let locks = self.dir.join("sessions");
                for row in meta.sessions()?.iter().filter(|row| is_gone(row, Some(&locks))) {
                    meta.fence(row.id)?;
                }
                let note = CopyNote::read(&**meta)?;
                let expected: Option<Counters> = note.map(|note| note.counters());
                let gone =
                    || Error::new(ErrorKind::Exists, "the copy's note of what it is a copy of is gone");
                meta.take_over(&state, &expected.ok_or_else(gone)?)?;
                self.settle(meta, state)
            }
        }
    }

    fn settle(&self, meta: &PostgresMeta, state: SqliteMeta) -> Result<()> {
        drop(state);
        frozen::remove(&self.unfinished())?;
        // Statistics; without them it is slower, no more.
        let _ = meta.tidy();
        Ok(())
    }
}

/// Notes the packs of `rows` that are whole in the copy: they are there, and in its journal or,
/// with the same length, in its database.
pub(super) fn reconcile(journal: &mut Journal, rows: &[PackRow], known: &[PackRow], there: &[PackId]) {
    let there: HashSet<PackId> = there.iter().copied().collect();
    let known: HashSet<(PackId, u64)> = known.iter().map(|row| (row.id, row.bytes)).collect();
    let also = rows.iter().filter(|row| known.contains(&(row.id, row.bytes)) && there.contains(&row.id));
    journal.reconcile(&there, also.map(|row| row.id));
}

fn refuse_itself(store: &Store, to: &Path) -> Result<()> {
    // The part of the path that exists.
    let there = to.ancestors().find_map(|above| match above.as_os_str().is_empty() {
        true => std::env::current_dir().ok(),
        false => above.canonicalize().ok(),
    });
    let (Ok(own), Some(there)) = (store.home().path().canonicalize(), there) else { return Ok(()) };
    let why = match there.strip_prefix(&own) {
        Err(_) => return Ok(()),
        Ok(below) if below.as_os_str().is_empty() && to.exists() => "source and copy are the same directory",
        Ok(_) => {
            "the copy would lie in the store itself, and be lost with it; name a place elsewhere, best on another disk"
        }
    };
    Err(Error::new(ErrorKind::Invalid, why))
}

/// The source's configuration, with the copy's place for packs.
fn config_of_copy(store: &Store, options: &CopyOptions, there: Option<StoreConfig>) -> Result<StoreConfig> {
    let packs = match (&there, &options.packs) {
        (Some(there), None) => there.packs.clone(),
        (_, packs) => packs.clone(),
    };
    if packs.is_some() && packs == store.config.packs {
        let why = "the copy's packs would lie where the source's do; name another place";
        return Err(Error::new(ErrorKind::Invalid, why));
    }
    let keyring = match (&there, &options.encryption) {
        (Some(there), CopyEncryption::New(_)) if !there.is_encrypted() => {
            return Err(other_encryption(options, "is not encrypted"));
        }
        (Some(there), CopyEncryption::Plain) if there.is_encrypted() => {
            return Err(other_encryption(options, "is encrypted"));
        }
        (Some(there), _) => there.keyring,
        (None, CopyEncryption::Same) => store.config.keyring,
        // An interrupted copy goes on with the keys that it began with.
        (None, CopyEncryption::New(new)) => {
            Some(begun_ring(store, options, &packs)?.unwrap_or(new.ring.id()).number)
        }
        (None, CopyEncryption::Plain) => None,
    };
    let config = StoreConfig { packs, keyring, ..store.config.clone() };
    if there.is_some_and(|there| there != config) {
        let why = format!(
            "{} is another store, or its packs lie elsewhere; name a new directory, or another schema",
            options.to.display()
        );
        return Err(Error::new(ErrorKind::Exists, why));
    }
    Ok(config)
}

/// Why an earlier copy does not become what was asked for.
fn other_encryption(options: &CopyOptions, what: &str) -> Error {
    let why = format!("{} is a copy already, and {what}: name a new place", options.to.display());
    Error::new(ErrorKind::Exists, why)
}

/// The keyring of an interrupted copy to this destination.
fn begun_ring(store: &Store, options: &CopyOptions, packs: &Option<PacksLocation>) -> Result<Option<RingId>> {
    let dir = match shared::url(&options.to) {
        Some(_) => shared::make_cache_dir(&StoreConfig { packs: packs.clone(), ..store.config.clone() })?,
        None => options.to.clone(),
    };
    Ok(ring_of(&dir).filter(|ring| ring.store == store.config.id))
}

/// The keys of a copy.
fn keys_of_copy(
    store: &Store,
    options: &CopyOptions,
    config: &StoreConfig,
    dir: &Path,
) -> Result<Option<Arc<Keyring>>> {
    match (&options.encryption, store.keys()) {
        _ if !config.is_encrypted() => Ok(None),
        (_, Some(keys)) if Some(keys.id()) == config.ring_id() => Ok(Some(Arc::clone(keys))),
        (CopyEncryption::New(new), _) if Some(new.ring.id()) == config.ring_id() => {
            Ok(Some(Arc::clone(&new.ring)))
        }
        // Of the source's keyring there are only copies; this store has a keyring of its own.
        _ => config.unlock_to_change(dir, Access::default()),
    }
}

/// Fails when a directory that is no store yet holds anything but an unfinished copy.
fn refuse_foreign(to: &Path) -> Result<()> {
    let ours = [DATABASE_FILE, UNFINISHED, "packs", "index", "sessions", "cache", KEYS_DIR, journal::FILE];
    for entry in std::fs::read_dir(to).context(|| format!("cannot list {}", to.display()))?.flatten() {
        let name = entry.file_name();
        if !name.to_str().is_some_and(|name| ours.iter().any(|ours| name.starts_with(ours))) {
            let why = format!("{} is not empty (it has {name:?}); name a new directory", to.display());
            return Err(Error::new(ErrorKind::Exists, why));
        }
    }
    Ok(())
}

/// The finished database takes its name, over that of the copy before.
fn take_name(to: &Path) -> Result<()> {
    let (new, name) = (to.join(UNFINISHED), to.join(DATABASE_FILE));
    crate::recover::refuse_in_use(to)?;
    // The index was built for the earlier contents; it is made again from the footers.
    let _ = std::fs::remove_file(to.join("index").join("CURRENT"));
    for suffix in ["-wal", "-shm"] {
        let mut log = name.as_os_str().to_owned();
        log.push(suffix);
        let _ = std::fs::remove_file(log);
    }
    std::fs::rename(&new, &name).context(|| format!("cannot rename {}", new.display()))?;
    frozen::remove(&new)?;
    std::fs::File::open(to).and_then(|dir| dir.sync_all()).context(|| format!("cannot sync {}", to.display()))
}
