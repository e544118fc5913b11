//! An open store: its engines put together.
//!
//! A [`Store`] owns the database, the packs, the index and the reader of packs, and hands them to
//! the modules that read, write and collect. Devices are given to it later, once
//! ([`Store::use_devices`]).

mod open;
mod sessions;

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};

use outrigger_format::catalogue::Attributes;
use outrigger_format::{Domain, PackId};
use outrigger_offload::runtime::Runtime;
use outrigger_offload::{FrameDevices, Opening};

use crate::backend::Backend;
use crate::config::StoreConfig;
use crate::devices::StoreDevices;
use crate::disk::Reserve;
use crate::error::{Context, Error, ErrorKind, Result};
use crate::follow;
use crate::home::Home;
use crate::index::Index;
use crate::keys::{Keyring, Rights};
use crate::layout::DATABASE_FILE;
use crate::links::Links;
use crate::meta::jobs::Jobs;
use crate::meta::{Meta, PackRow, PackState, PostgresMeta};
use crate::packs::PackReader;
use crate::session::Beside;
use crate::space::StoredBytes;
use crate::table_cache::{TABLE_CACHE_FILE, TableCache, TableCacheOptions};
use crate::verified::Verified;

pub(crate) use open::{Parts, refuse_packs_elsewhere};

/// An open store. Cheap to share by reference between threads.
pub struct Store {
    /// The directory's name when it was opened.
    dir: PathBuf,
    /// The directory or URL as the user names it.
    name: PathBuf,
    /// The database, if it is not in the directory.
    postgres: Option<Arc<PostgresMeta>>,
    /// Other hosts may use it at the same time.
    is_shared: bool,
    read_only: bool,
    /// The store's configuration.
    pub config: StoreConfig,
    /// Its keys, if it is encrypted.
    keys: Option<Arc<Keyring>>,
    /// Where packs lie.
    pub backend: Arc<dyn Backend>,
    /// Names, roots, packs, sessions.
    pub meta: Arc<dyn Meta>,
    /// Fingerprint → place.
    pub index: Arc<Index>,
    /// Reads, checks and caches frames.
    pub packs: Arc<PackReader>,
    /// If set, other clients' packs are relied on only after they were compared with their data.
    verified: Option<Arc<Verified>>,
    devices: OnceLock<Arc<StoreDevices>>,
    /// The blocks that its next catalogue block names.
    pub(crate) links: Arc<Links>,
    /// The database's counters were found to be above every pack that is there.
    is_above_packs: AtomicBool,
    stored: StoredBytes,
    /// Space that is kept free on the disk of a store in a directory.
    reserve: Option<Arc<Reserve>>,
    beside: OnceLock<Arc<Beside>>,
    /// The directory. Closed last: what is above may have paths through it.
    home: Arc<Home>,
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "store at {}", self.name.display())
    }
}

impl Store {
    /// Bytes that its packs take. The figure is at most some seconds old, or a minute if there are
    /// very many packs.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn stored_bytes(&self) -> Result<u64> {
        self.stored.get(|| {
            let sums = self.meta.pack_sums()?;
            let stored = sums.iter().filter(|sum| sum.state != PackState::Writing);
            Ok(stored.map(|sum| sum.bytes).sum())
        })
    }

    /// Ids of the live packs and deletion candidates, rising.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn committed_packs(&self) -> Result<Vec<PackId>> {
        let mut packs: Vec<PackId> =
            self.meta.packs()?.into_iter().filter(PackRow::is_committed).map(|row| row.id).collect();
        packs.sort_unstable();
        Ok(packs)
    }

    /// Tells the index of new committed packs, and of those that are gone. A pack whose footer is
    /// damaged is left out: `check` names it.
    ///
    /// # Errors
    /// When the database or a footer cannot be read.
    pub fn refresh_index(&self) -> Result<()> {
        follow::refresh_index(&*self.meta, &self.index)
    }

    /// Like [`Store::refresh_index`], but reads only changes since the last call if the database
    /// can tell: for tailing other hosts. A pack with an unreadable footer is skipped until all
    /// packs are read again: ten minutes later, or when a read finds nothing.
    ///
    /// # Errors
    /// As there.
    pub fn follow_packs(&self) -> Result<()> {
        follow::follow_packs(&*self.meta, &self.index)
    }

    /// The store's directory as it was called when it was opened; if the metadata lies in
    /// PostgreSQL, this host's cache directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The same directory, wherever it is moved to: what is opened in it later is found through
    /// this.
    pub fn home(&self) -> &Arc<Home> {
        &self.home
    }

    /// Its keys; `None` if it is not encrypted.
    pub fn keys(&self) -> Option<&Arc<Keyring>> {
        self.keys.as_ref()
    }

    /// Its directory or URL, as the user names it.
    pub fn name(&self) -> &Path {
        &self.name
    }

    /// The database, if it is not in the store's directory.
    pub(crate) fn postgres(&self) -> Option<&PostgresMeta> {
        self.postgres.as_deref()
    }

    /// True when other hosts may use it at the same time.
    pub fn is_shared(&self) -> bool {
        self.is_shared
    }

    /// Reads the configuration again, as it is now.
    ///
    /// # Errors
    /// `Damaged` when that cannot be read.
    pub fn read_config(&self) -> Result<StoreConfig> {
        match &self.postgres {
            Some(meta) => StoreConfig::from_text(meta.config()),
            None => open::read_config(self.home.path()),
        }
    }

    /// Bytes that the database takes; 0 when that cannot be found out.
    pub fn database_bytes(&self) -> u64 {
        match &self.postgres {
            Some(meta) => meta.bytes().unwrap_or(0),
            None => std::fs::metadata(self.home.path().join(DATABASE_FILE)).map_or(0, |file| file.len()),
        }
    }

    /// Says what a user can do when the database is damaged.
    pub fn database_advice(&self) -> String {
        match &self.postgres {
            Some(_) => format!(
                "restore the database from a backup, or rebuild it with `outrigger -s '{}' recover`",
                self.name.display()
            ),
            None => format!("rebuild it with `outrigger -s {} recover`", self.dir.display()),
        }
    }

    /// Verifies other clients' packs; `None` where every footer is relied on.
    pub fn verified(&self) -> Option<&Arc<Verified>> {
        self.verified.as_ref()
    }

    /// Gives cutting, hashing, compressing and decompressing to this runtime's devices where these
    /// are faster, for writers and readers that start from now on. With `options`, and if a device
    /// can look chunks up, there is a table cache too. Chunks, names and contents do not depend on
    /// devices; the compression of frames may. Only the first call counts.
    pub fn use_devices(&self, runtime: Arc<Runtime>, options: Option<TableCacheOptions>) {
        self.use_devices_once_open(Opening::over(runtime), options);
    }

    /// As [`Store::use_devices`], with devices that are opened when there is work enough for them.
    /// Writers that are at work then use them, too.
    pub fn use_devices_once_open(&self, opening: Arc<Opening>, options: Option<TableCacheOptions>) {
        self.devices.get_or_init(|| {
            self.packs.use_devices(Arc::clone(&opening));
            let options = options.filter(|_| !self.read_only);
            let options = options.map(|options| (options, self.home.path().join(TABLE_CACHE_FILE)));
            let (config, index) = (self.config.clone(), Arc::clone(&self.index));
            let key = self.keys.as_ref().map(|keys| keys.table_cache_key());
            let devices = StoreDevices { opening, config, options, key, index, table_cache: OnceLock::new() };
            // If the devices are open, the file is recalled now, before there is work.
            devices.start_table_cache();
            Arc::new(devices)
        });
    }

    /// The devices that [`Store::use_devices`] was given, for a writer.
    pub(crate) fn store_devices(&self) -> Option<&Arc<StoreDevices>> {
        self.devices.get()
    }

    /// Those of the devices that compress, once they are open.
    pub fn frame_devices(&self) -> Option<&Arc<FrameDevices>> {
        self.packs.devices()
    }

    /// The runtime of the devices that were given to [`Store::use_devices`], once they are open.
    pub fn devices(&self) -> Option<&Arc<Runtime>> {
        self.devices.get()?.opening.runtime()
    }

    /// The table cache of the devices, once a writer has needed it.
    pub fn table_cache(&self) -> Option<&Arc<TableCache>> {
        self.devices.get()?.table_cache.get()?.as_ref()
    }

    /// True when nothing may be changed.
    pub fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// Fails unless the store may be changed.
    ///
    /// # Errors
    /// `Denied`, with what to do.
    pub fn require_writable(&self) -> Result<()> {
        self.require(Rights::require_changes)?;
        if self.read_only {
            return Err(Error::new(ErrorKind::Denied, format!("{} is read-only", self.name.display())));
        }
        Ok(())
    }

    /// Fails for a role that only adds: `what` it would do.
    ///
    /// # Errors
    /// `Denied`.
    pub fn require_may_remove(&self, what: &str) -> Result<()> {
        let Some(role) = self.meta.only_adds() else { return Ok(()) };
        let why = format!(
            "role {role} only adds to this store, and may not {what}: do it as a role that may delete snapshots"
        );
        Err(Error::new(ErrorKind::Denied, why))
    }

    /// Fails if the key that opened it reads no contents.
    ///
    /// # Errors
    /// `Denied`, with what to do.
    pub fn require_contents(&self) -> Result<()> {
        self.require(Rights::require_contents)
    }

    /// Fails unless the key that opened the store reads the contents of an inode.
    ///
    /// # Errors
    /// `Denied`, with what to do; those of [`PackReader::domain_key`].
    pub fn require_readable(&self, attributes: &Attributes) -> Result<()> {
        match attributes.domain() {
            Domain::COMMON => self.require_all_contents(),
            domain => self.packs.domain_key(domain).map(drop),
        }
    }

    /// Fails unless the key that opened the store reads all contents.
    ///
    /// # Errors
    /// `Denied`, with what to do.
    pub fn require_all_contents(&self) -> Result<()> {
        self.require(Rights::require_all_contents)
    }

    /// Fails unless the key that opened it gives all rights.
    ///
    /// # Errors
    /// `Denied`, with what to do.
    pub fn require_all_rights(&self) -> Result<()> {
        self.require(Rights::require_all)
    }

    fn require(&self, what: fn(Rights) -> Result<()>) -> Result<()> {
        let keys = self.keys.iter();
        keys.map(|keys| keys.rights()).try_for_each(what).context(|| self.name.display().to_string())
    }

    /// The directory of lock files, for as long as the store is open.
    pub fn locks_dir(&self) -> PathBuf {
        self.home.path().join("sessions")
    }

    /// Its jobs.
    pub fn jobs(&self) -> &dyn Jobs {
        self.meta.jobs()
    }

    /// On a full disk, gives back the reserved space. Called before names are changed or space is
    /// reclaimed.
    pub fn tend_reserve(&self) {
        if let Some(reserve) = &self.reserve {
            reserve.tend();
        }
    }

    /// The reserve that keeps content from taking the last space of the disk that packs lie on.
    pub(crate) fn reserve_of_packs(&self) -> Option<&Arc<Reserve>> {
        self.reserve.as_ref().filter(|_| self.config.packs.is_none())
    }

    /// True when packs lie in the store's directory, on its disk.
    pub fn has_packs_beside(&self) -> bool {
        self.reserve_of_packs().is_some()
    }
}
