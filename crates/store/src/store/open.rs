//! Creating and opening stores.
//!
//! [`Store::init`] writes the configuration of a directory last, so a directory that has one is a
//! whole store. Opening reads the rows of all packs once ([`Census`]), to fill the index. A store
//! that is opened only to be described does without them, and its packs may be away.

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};

use outrigger_format::{Fingerprint, Footer, PackId, Place};

use super::Store;
use crate::backend::{Access, AwayBackend, Backend, KEYS_DIR};
use crate::config::StoreConfig;
use crate::disk::{RESERVE_FILE, Reserve};
use crate::error::{Context, Error, ErrorKind, Result};
use crate::follow::Census;
use crate::home::Home;
use crate::index::{Index, IndexOptions, LoadFooter};
use crate::keys::slots::remove_slots;
use crate::keys::{Keyring, NewKeys, known};
use crate::layout::{CONFIG_FILE, DATABASE_FILE, OWN_DIRS, create_private_dir, sync_dir, write_durably};
use crate::meta::{Meta, OpenMode, Others, Packs, SqliteMeta};
use crate::packs::PackReader;
use crate::shared::{self, Shared};
use crate::space::StoredBytes;
use crate::verified::Verified;
use crate::{leftovers, owner, publish};

/// The file in this host's directory that lists the packs it has compared with their data.
const VERIFIED_FILE: &str = "verified";

/// Why a store is opened.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Purpose {
    /// To use it: its packs are needed.
    Use,
    /// To describe it: quickly, and whether its packs are reachable or not.
    Look,
}

impl Purpose {
    /// Lists all packs, if the purpose needs them.
    fn census(self, meta: &dyn Meta) -> Result<Census> {
        match self {
            Self::Use => Census::of(meta),
            Self::Look => Ok(Census::default()),
        }
    }
}

/// The parts that a store is put together from.
pub(crate) struct Parts {
    pub config: StoreConfig,
    pub meta: Arc<dyn Meta>,
    /// Packs as they are before they are encrypted.
    pub backend: Arc<dyn Backend>,
    /// The keys, if the store is encrypted.
    pub keys: Option<Arc<Keyring>>,
}

/// Reads the configuration of the store at `dir`.
///
/// # Errors
/// `NotFound` when there is no store, `Damaged` when a store has lost the file. Both say what to
/// do.
pub(super) fn read_config(dir: &Path) -> Result<StoreConfig> {
    StoreConfig::find(dir)?.ok_or_else(|| leftovers::refuse(dir))
}

/// True if the key that opened a store, if there is one, gives the right to change it.
fn may_change(keys: Option<&Arc<Keyring>>) -> bool {
    keys.is_none_or(|keys| keys.rights().require_changes().is_ok())
}

/// The name of a store's place, by which this host knows it.
fn location(dir: &Path) -> String {
    dir.canonicalize().unwrap_or_else(|_| dir.to_path_buf()).display().to_string()
}

/// Opens the packs.
fn open_packs(
    config: &StoreConfig,
    dir: &Path,
    read_only: bool,
    purpose: Purpose,
    keys: Option<&Arc<Keyring>>,
) -> Result<Arc<dyn Backend>> {
    let brief = purpose == Purpose::Look;
    config.open_packs(dir, Access { read_only, brief, create: false }, keys).or_else(|error| {
        match error.kind() {
            ErrorKind::Io | ErrorKind::Denied | ErrorKind::NotFound | ErrorKind::Busy if brief => {
                Ok(Arc::new(AwayBackend::new(&error)))
            }
            _ => Err(error),
        }
    })
}

/// Refuses packs outside a store of another user if this process is root's: root would write, with
/// its keys, wherever that user says.
pub(crate) fn refuse_packs_elsewhere(dir: &Path, config: &StoreConfig) -> Result<()> {
    match config.packs.as_ref().filter(|_| owner::is_others(dir)) {
        None => Ok(()),
        Some(packs) => Err(Error::new(
            ErrorKind::Denied,
            format!(
                "{} says that its packs lie at {packs}, and it is another user's: root does not go there for it; run this as the user whom the store belongs to",
                dir.display()
            ),
        )),
    }
}

impl Store {
    /// Creates a store in `dir`, which must not exist, or be empty; or at the URL of a PostgreSQL
    /// database, whose schema must not have one.
    ///
    /// # Errors
    /// `Exists` when something is there already.
    pub fn init(dir: &Path, config: &StoreConfig) -> Result<Self> {
        Self::init_with(dir, config, None)
    }

    /// As [`Store::init`], of an encrypted store: with these keys, whose keyring the configuration
    /// names.
    ///
    /// # Errors
    /// As [`Store::init`].
    ///
    /// # Panics
    /// If the configuration and the keys do not go together.
    pub fn init_with(dir: &Path, config: &StoreConfig, keys: Option<&NewKeys>) -> Result<Self> {
        assert_eq!(config.ring_id(), keys.map(|keys| keys.ring.id()), "an encrypted store has its keys");
        config.validate()?;
        if let Some(url) = shared::url(dir) {
            let (store, census) =
                Self::assemble_shared(url, shared::init(url, config, keys)?, false, Purpose::Use)?;
            let store = store.indexed(census)?;
            publish::set_whole(&*store.meta)?;
            return Ok(store);
        }
        if dir.join(CONFIG_FILE).exists() {
            return Err(Error::new(ErrorKind::Exists, format!("{} is a store already", dir.display())));
        }
        let at = || format!("cannot create a store in {}", dir.display());
        create_private_dir(dir).context(at)?;
        let unfinished = [DATABASE_FILE, CONFIG_FILE, "packs", "index", "sessions", RESERVE_FILE];
        let mut entries = std::fs::read_dir(dir).context(at)?;
        let foreign = entries.find_map(|entry| {
            let name = entry.ok()?.file_name();
            let ours = name
                .to_str()
                .is_some_and(|name| name == KEYS_DIR || unfinished.iter().any(|ours| name.starts_with(ours)));
            (!ours).then_some(name)
        });
        if let Some(name) = foreign {
            let why = format!("{} is not empty (it has {:?}); give a new directory", dir.display(), name);
            return Err(Error::new(ErrorKind::Exists, why));
        }
        // The configuration is written last, and by a rename: a directory with one is a whole
        // store. `init` starts over what an interrupted `init` left, since nothing can have been
        // stored there. A store that lost its configuration is refused.
        if let Some(found) = leftovers::of_a_store(dir)? {
            let why = format!(
                "{0} has {found}: it is a store that has lost its {CONFIG_FILE}. Restore that from a copy, or rebuild it with `outrigger -s {0} recover`; \
                 for a new store give a new directory",
                dir.display()
            );
            return Err(Error::new(ErrorKind::Exists, why));
        }
        for leftover in
            [DATABASE_FILE.to_string(), format!("{DATABASE_FILE}-wal"), format!("{DATABASE_FILE}-shm")]
        {
            match std::fs::remove_file(dir.join(leftover)) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error).context(at),
                _ => {}
            }
        }
        for name in OWN_DIRS {
            create_private_dir(&dir.join(name)).context(at)?;
        }
        remove_slots(dir)?;
        config.claim_packs(dir)?;
        known::forget(&location(dir))?;
        let key = keys.map(|keys| config.write_keys(keys, dir)).transpose()?;
        drop(SqliteMeta::open_encrypted(&dir.join(DATABASE_FILE), OpenMode::Create, key)?);
        write_durably(dir, CONFIG_FILE, config.to_text().as_bytes())?;
        if let Some(parent) = dir.parent() {
            let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
            sync_dir(parent).context(at)?;
        }
        Self::open(dir, false)
    }

    /// Opens the store in `dir`, or at the URL of a PostgreSQL database. It opens read-only, too, if
    /// it can only be read here, or the key that opens it gives no more.
    ///
    /// # Errors
    /// `NotFound` when there is none, `Newer`, `Damaged`, `Denied`; `Busy` or `Io` when a server
    /// cannot be reached.
    pub fn open(dir: &Path, read_only: bool) -> Result<Self> {
        let (store, census) = Self::open_with(dir, read_only, Purpose::Use)?;
        store.indexed(census)
    }

    /// Opens a store to describe its state. Its packs need not be reachable and are not read: its
    /// index is empty, and no row of a pack is read. If their place is unreachable or another
    /// store's, [`Backend::trouble`] says so, and nothing can be read.
    ///
    /// # Errors
    /// Those of [`Store::open`] that are about the database and the configuration.
    pub fn open_to_look(dir: &Path) -> Result<Self> {
        Ok(Self::open_with(dir, true, Purpose::Look)?.0)
    }

    fn open_with(dir: &Path, read_only: bool, purpose: Purpose) -> Result<(Self, Census)> {
        if let Some(url) = shared::url(dir) {
            return Self::assemble_shared(url, shared::open(url, read_only)?, read_only, purpose);
        }
        if let Some(name) = owner::links(
            dir,
            &[CONFIG_FILE, DATABASE_FILE, "packs", KEYS_DIR, "staging", "index", "sessions"],
        ) {
            let text = format!(
                "{} is a link, and the store is another user's: root does not follow it; run this as the user whom the store belongs to",
                dir.join(name).display()
            );
            return Err(Error::new(ErrorKind::Denied, text));
        }
        let config = read_config(dir)?;
        known::check(&location(dir), config.ring_id())?;
        refuse_packs_elsewhere(dir, &config)?;
        let read_only = read_only || !is_writable(dir);
        let database = dir.join(DATABASE_FILE);
        if !database.exists() {
            return Err(Error::damaged(format!(
                "{} is missing; rebuild it from the packs with `outrigger -s {} recover`",
                database.display(),
                dir.display()
            )));
        }
        let keys =
            config.unlock(dir, Access { read_only, brief: purpose == Purpose::Look, create: false })?;
        let read_only = read_only || !may_change(keys.as_ref());
        let mode = if read_only { OpenMode::ReadOnly } else { OpenMode::ReadWrite };
        let reserve = (!read_only).then(|| Arc::new(Reserve::of(dir)));
        let key = || keys.as_ref().map(|keys| keys.database_key());
        let open = || SqliteMeta::open_encrypted(&database, mode, key());
        let meta = reserve.as_ref().map_or_else(open, |reserve| reserve.make_room(open))?;
        if !read_only {
            make_directories(dir, &config, &meta)?;
        }
        let backend = open_packs(&config, dir, read_only, purpose, keys.as_ref())?;
        let mut census = purpose.census(&meta)?;
        let parts = Parts { config, meta: Arc::new(meta), backend, keys };
        let mut store = Self::assemble(dir, parts, read_only, Others::Trust, &mut census)?;
        store.reserve = reserve;
        Ok((store, census))
    }

    fn assemble_shared(
        url: &str,
        shared: Shared,
        read_only: bool,
        purpose: Purpose,
    ) -> Result<(Self, Census)> {
        let Shared { meta, config, dir, keys } = shared;
        let read_only = read_only || meta.is_read_only() || !may_change(keys.as_ref());
        let backend = open_packs(&config, &dir, read_only, purpose, keys.as_ref())?;
        let database = Arc::clone(&meta) as Arc<dyn Meta>;
        let others = meta.others();
        let mut census = purpose.census(&*meta)?;
        let parts = Parts { config, meta: database, backend, keys };
        let mut store = Self::assemble(&dir, parts, read_only, others, &mut census)?;
        store.name = PathBuf::from(url);
        store.postgres = Some(meta);
        store.is_shared = true;
        Ok((store, census))
    }

    /// Builds a store from a database that is open (`recover` may just have made it), its census
    /// and open packs.
    pub(crate) fn assemble(
        dir: &Path,
        parts: Parts,
        read_only: bool,
        others: Others,
        census: &mut Census,
    ) -> Result<Self> {
        let Parts { config, meta, backend, keys } = parts;
        let mut packs = PackReader::new(Arc::clone(&backend), config.id, config.fingerprint);
        let live = Arc::new(census.take_kept());
        let verified = (others == Others::Verify && !read_only).then(|| {
            let live = Arc::clone(&live);
            packs.remember_matches();
            Arc::new(Verified::open(dir.join(VERIFIED_FILE), config.id, move |pack| live(pack)))
        });
        let packs = Arc::new(packs);
        let footers = Arc::clone(&packs);
        let index_dir = dir.join("index");
        let index_dir = (!read_only).then_some(index_dir.as_path());
        let live = move |pack| live(pack);
        let key = keys.as_ref().map(|keys| keys.index_key());
        let options = IndexOptions { key, ..IndexOptions::default() };
        let index = Index::open(index_dir, config.id, options, live, Footers(footers))?;
        let store = Self {
            dir: dir.to_path_buf(),
            name: dir.to_path_buf(),
            postgres: None,
            is_shared: false,
            read_only,
            config,
            keys,
            backend,
            meta,
            index: Arc::new(index),
            packs,
            verified,
            devices: OnceLock::new(),
            links: Arc::default(),
            is_above_packs: AtomicBool::new(false),
            stored: StoredBytes::default(),
            reserve: None,
            beside: OnceLock::new(),
            home: Arc::new(Home::of(dir)),
        };
        Ok(store)
    }

    /// Opens a store that several hosts in one process share through one database: for tests. `dir`
    /// is one host's own directory.
    ///
    /// # Errors
    /// When the directory cannot be made, or the database cannot be read.
    #[cfg(any(test, feature = "testing"))]
    pub fn open_together(
        dir: &Path,
        config: &StoreConfig,
        meta: Arc<dyn Meta>,
        backend: Arc<dyn Backend>,
    ) -> Result<Self> {
        crate::layout::create_store_dirs(dir)?;
        write_durably(dir, CONFIG_FILE, config.to_text().as_bytes())?;
        let mut census = Census::of(&*meta)?;
        let parts = Parts { config: config.clone(), meta, backend, keys: None };
        let mut store = Self::assemble(dir, parts, false, Others::Trust, &mut census)?;
        store.is_shared = true;
        store.indexed(census)
    }

    /// With an index that knows every committed pack.
    pub(crate) fn indexed(self, census: Census) -> Result<Self> {
        census.cover(&self.index)?;
        Ok(self)
    }
}

/// Tools that copy trees (version control, object stores) drop empty directories. Those without
/// which nothing is lost are made again.
fn make_directories(dir: &Path, config: &StoreConfig, meta: &SqliteMeta) -> Result<()> {
    let make = |name: &str| {
        let path = dir.join(name);
        if path.is_dir() {
            return Ok(());
        }
        create_private_dir(&path)
            .inspect(|()| owner::give_path(&path))
            .and_then(|()| sync_dir(dir))
            .context(|| format!("cannot create {}", path.display()))
    };
    for name in OWN_DIRS {
        make(name)?;
    }
    let packs = dir.join("packs");
    if config.packs.is_some() || packs.is_dir() {
        return Ok(());
    }
    let lost = meta.packs()?.iter().filter(|row| row.is_committed()).count();
    if lost > 0 {
        return Err(Error::damaged(format!(
            "{} is missing, and with it all {lost} packs that the database knows: put it back from a copy of the store",
            packs.display()
        )));
    }
    make("packs")
}

/// Lets the index read footers.
struct Footers(Arc<PackReader>);

impl LoadFooter for Footers {
    fn load(&self, pack: PackId) -> Result<Footer> {
        self.0.read_footer(pack)
    }

    fn expect(&self, packs: &[(PackId, u32)]) {
        self.0.expect_footers(packs);
    }

    fn at_once(&self) -> usize {
        self.0.footers_at_once()
    }

    fn fingerprint_at(&self, place: Place) -> Result<Option<Fingerprint>> {
        self.0.read_fingerprint(place)
    }
}

fn is_writable(dir: &Path) -> bool {
    rustix::fs::access(dir, rustix::fs::Access::WRITE_OK).is_ok()
}
