//! An open store: its engines put together.

use crate::meta::Packs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use outrigger_format::{Fingerprint, Footer, PackId, Place};

use outrigger_offload::runtime::Runtime;
use outrigger_offload::{FrameDevices, Opening};

use crate::backend::{Access, AwayBackend, Backend};
use crate::config::StoreConfig;
use crate::counters::raise_counters;
use crate::devices::StoreDevices;
use crate::disk::{RESERVE_FILE, Reserve};
use crate::error::{Context, Error, ErrorKind, Result};
use crate::follow::{self, Census};
use crate::home::Home;
use crate::index::{Index, IndexOptions, LoadFooter};
use crate::layout::{CONFIG_FILE, DATABASE_FILE, OWN_DIRS, create_private_dir, sync_dir, write_durably};
use crate::lock_files::remove_old_locks;
use crate::meta::jobs::Jobs;
use crate::meta::{
    Meta, OpenMode, Others, PackRow, PackState, PostgresMeta, Role, SessionId, SessionKind, SessionRow,
    SqliteMeta, is_gone,
};
use crate::packs::PackReader;
use crate::session::{Beside, Session};
use crate::shared::{self, Shared};
use crate::space::StoredBytes;
use crate::table_cache::{TABLE_CACHE_FILE, TableCache, TableCacheOptions};
use crate::verified::Verified;
use crate::{leftovers, owner, publish};

/// The file in this host's directory that lists the packs it has compared with their data.
const VERIFIED_FILE: &str = "verified";

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
    /// The database's counters were found to be above every pack that is there.
    is_above_packs: AtomicBool,
    stored: StoredBytes,
    /// Space that is kept free on the disk of a store in a directory.
    reserve: Option<Arc<Reserve>>,
    beside: OnceLock<Arc<Beside>>,
    /// The directory. Closed last: what is above may have paths through it.
    home: Arc<Home>,
}

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

/// Reads the configuration of the store at `dir`.
///
/// # Errors
/// `NotFound` when there is no store, `Damaged` when a store has lost the file. Both say what to do.
fn read_config(dir: &Path) -> Result<StoreConfig> {
    StoreConfig::find(dir)?.ok_or_else(|| leftovers::refuse(dir))
}

/// Opens the packs.
fn open_packs(
    config: &StoreConfig,
    dir: &Path,
    read_only: bool,
    purpose: Purpose,
) -> Result<Arc<dyn Backend>> {
    let brief = purpose == Purpose::Look;
    config.open_packs(dir, Access { read_only, brief, create: false }).or_else(|error| match error.kind() {
        ErrorKind::Io | ErrorKind::Denied | ErrorKind::NotFound | ErrorKind::Busy if brief => {
            Ok(Arc::new(AwayBackend::new(&error)))
        }
        _ => Err(error),
    })
}

/// Refuses packs outside a store of another user if this process is root's: root would write, with its keys, wherever that user says.
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

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "store at {}", self.name.display())
    }
}

impl Store {
    /// Creates a store in `dir`, which must not exist, or be empty; or at the URL of a PostgreSQL database, whose schema must not have one.
    ///
    /// # Errors
    /// `Exists` when something is there already.
    pub fn init(dir: &Path, config: &StoreConfig) -> Result<Self> {
        config.validate()?;
        if let Some(url) = shared::url(dir) {
            let (store, census) =
                Self::assemble_shared(url, shared::init(url, config)?, false, Purpose::Use)?;
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
            let ours = name.to_str().is_some_and(|name| unfinished.iter().any(|ours| name.starts_with(ours)));
            (!ours).then_some(name)
        });
        if let Some(name) = foreign {
            let why = format!("{} is not empty (it has {:?}); give a new directory", dir.display(), name);
            return Err(Error::new(ErrorKind::Exists, why));
        }
        // The configuration is written last, and by a rename: a directory with one is a whole store. `init` starts over what an
        // interrupted `init` left, since nothing can have been stored there. A store that lost its configuration is refused.
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
        config.claim_packs(dir)?;
        drop(SqliteMeta::open(&dir.join(DATABASE_FILE), OpenMode::Create)?);
        write_durably(dir, CONFIG_FILE, config.to_text().as_bytes())?;
        if let Some(parent) = dir.parent() {
            let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
            sync_dir(parent).context(at)?;
        }
        Self::open(dir, false)
    }

    /// Opens the store in `dir`, or at the URL of a PostgreSQL database.
    ///
    /// # Errors
    /// `NotFound` when there is none, `Newer`, `Damaged`, `Denied`; `Busy` or `Io` when a server cannot be reached.
    pub fn open(dir: &Path, read_only: bool) -> Result<Self> {
        let (store, census) = Self::open_with(dir, read_only, Purpose::Use)?;
        store.indexed(census)
    }

    /// Opens a store to describe its state. Its packs need not be reachable and are not read: its index is empty, and no row of a
    /// pack is read. If their place is unreachable or another store's, [`Backend::trouble`] says so, and nothing can be read.
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
        if let Some(name) =
            owner::links(dir, &[CONFIG_FILE, DATABASE_FILE, "packs", "staging", "index", "sessions"])
        {
            let text = format!(
                "{} is a link, and the store is another user's: root does not follow it; run this as the user whom the store belongs to",
                dir.join(name).display()
            );
            return Err(Error::new(ErrorKind::Denied, text));
        }
        let config = read_config(dir)?;
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
        let mode = if read_only { OpenMode::ReadOnly } else { OpenMode::ReadWrite };
        let reserve = (!read_only).then(|| Arc::new(Reserve::of(dir)));
        let open = || SqliteMeta::open(&database, mode);
        let meta = reserve.as_ref().map_or_else(open, |reserve| reserve.make_room(open))?;
        if !read_only {
            make_directories(dir, &config, &meta)?;
        }
        let backend = open_packs(&config, dir, read_only, purpose)?;
        let mut census = purpose.census(&meta)?;
        let mut store =
            Self::assemble(dir, config, Arc::new(meta), backend, read_only, Others::Trust, &mut census)?;
        store.reserve = reserve;
        Ok((store, census))
    }

    fn assemble_shared(
        url: &str,
        shared: Shared,
        read_only: bool,
        purpose: Purpose,
    ) -> Result<(Self, Census)> {
        let Shared { meta, config, dir } = shared;
        let read_only = read_only || meta.is_read_only();
        let backend = open_packs(&config, &dir, read_only, purpose)?;
        let database = Arc::clone(&meta) as Arc<dyn Meta>;
        let others = meta.others();
        let mut census = purpose.census(&*meta)?;
        let mut store = Self::assemble(&dir, config, database, backend, read_only, others, &mut census)?;
        store.name = PathBuf::from(url);
        store.postgres = Some(meta);
        store.is_shared = true;
        Ok((store, census))
    }

    /// Builds a store from a database that is open (`recover` may just have made it), its census and open packs.
    pub(crate) fn assemble(
        dir: &Path,
        config: StoreConfig,
        meta: Arc<dyn Meta>,
        backend: Arc<dyn Backend>,
        read_only: bool,
        others: Others,
        census: &mut Census,
    ) -> Result<Self> {
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
        let index = Index::open(index_dir, config.id, IndexOptions::default(), live, Footers(footers))?;
        let store = Self {
            dir: dir.to_path_buf(),
            name: dir.to_path_buf(),
            postgres: None,
            is_shared: false,
            read_only,
            config,
            backend,
            meta,
            index: Arc::new(index),
            packs,
            verified,
            devices: OnceLock::new(),
            is_above_packs: AtomicBool::new(false),
            stored: StoredBytes::default(),
            reserve: None,
            beside: OnceLock::new(),
            home: Arc::new(Home::of(dir)),
        };
        Ok(store)
    }

    /// Opens a store that several hosts in one process share through one database: for tests. `dir` is one host's own directory.
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
        let mut store =
            Self::assemble(dir, config.clone(), meta, backend, false, Others::Trust, &mut census)?;
        store.is_shared = true;
        store.indexed(census)
    }

    /// With an index that knows every committed pack.
    pub(crate) fn indexed(self, census: Census) -> Result<Self> {
        census.cover(&self.index)?;
        Ok(self)
    }

    /// Bytes that its packs take. The figure is at most some seconds old, or a minute if there are very many packs.
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

    /// Like [`Store::refresh_index`], but reads only changes since the last call if the database can tell: for tailing other hosts. A
    /// pack with an unreadable footer is skipped until all packs are read again: ten minutes later, or when a read finds nothing.
    ///
    /// # Errors
    /// As there.
    pub fn follow_packs(&self) -> Result<()> {
        follow::follow_packs(&*self.meta, &self.index)
    }

    /// The store's directory as it was called when it was opened; if the metadata lies in PostgreSQL, this host's cache directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The same directory, wherever it is moved to: what is opened in it later is found through this.
    pub fn home(&self) -> &Arc<Home> {
        &self.home
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
            None => read_config(self.home.path()),
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

    /// Gives cutting, hashing, compressing and decompressing to this runtime's devices where these are faster, for writers and readers
    /// that start from now on. With `options`, and if a device can look chunks up, there is a table cache too. Chunks, names and
    /// contents do not depend on devices; the compression of frames may. Only the first call counts.
    pub fn use_devices(&self, runtime: Arc<Runtime>, options: Option<TableCacheOptions>) {
        self.use_devices_once_open(Opening::over(runtime), options);
    }

    /// As [`Store::use_devices`], with devices that are opened when there is work enough for them. Writers that are at work then use them, too.
    pub fn use_devices_once_open(&self, opening: Arc<Opening>, options: Option<TableCacheOptions>) {
        self.devices.get_or_init(|| {
            self.packs.use_devices(Arc::clone(&opening));
            let options = options.filter(|_| !self.read_only);
            let options = options.map(|options| (options, self.home.path().join(TABLE_CACHE_FILE)));
            let (config, index) = (self.config.clone(), Arc::clone(&self.index));
            let devices = StoreDevices { opening, config, options, index, table_cache: OnceLock::new() };
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
    /// `Denied`.
    pub fn require_writable(&self) -> Result<()> {
        if self.read_only {
            return Err(Error::new(ErrorKind::Denied, format!("{} is read-only", self.name.display())));
        }
        Ok(())
    }

    /// The directory of lock files, for as long as the store is open.
    pub fn locks_dir(&self) -> PathBuf {
        self.home.path().join("sessions")
    }

    /// Its jobs.
    pub fn jobs(&self) -> &dyn Jobs {
        self.meta.jobs()
    }

    /// Opens a session for a process that does this; a text is a command's name.
    ///
    /// # Errors
    /// `Denied` on a read-only store.
    pub fn session(&self, kind: SessionKind, role: impl Into<Role>) -> Result<Arc<Session>> {
        let role = role.into();
        self.require_writable()?;
        if kind != SessionKind::Reader {
            self.tend_reserve();
        }
        if kind == SessionKind::Writer && self.backend.lists_cheaply() {
            self.raise_counters_once()?;
        }
        let locks = self.locks_dir();
        remove_old_locks(&*self.meta, &locks);
        let open = || Session::open(&self.meta, kind, Some(&locks), role.clone());
        // A reader does without a session; the reserve is for those that can make room.
        let reserve = self.reserve.as_ref().filter(|_| kind != SessionKind::Reader);
        let opened = reserve.map_or_else(open, |reserve| reserve.make_room(open))?;
        opened.tend(&self.backend);
        if let Some(beside) = self.beside.get() {
            opened.set_beside(beside);
        }
        Ok(opened)
    }

    /// Has `beside` called before each commit of sessions that are opened from now on. The first call counts.
    pub fn set_beside(&self, beside: Arc<Beside>) {
        let _ = self.beside.set(beside);
    }

    /// On a full disk, gives back the reserved space. Called before names are changed or space is reclaimed.
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

    /// Raises the database's counters above all packs, the first time.
    ///
    /// Once is enough. Clients of this database share its counters, so later ids lie below them. Only packs of another history can lie above. If an
    /// older copy of the database was put back, no client had the store open. If another database goes on with the same packs, as an old primary
    /// does, its packs may come at any moment, and no listing would be late enough. There the pack's name decides: a client that creates or seals a
    /// pack under a taken name is refused and passes it by, and an intent for it gives no right to the other's pack ([`crate::stale::is_anothers`]).
    ///
    /// # Errors
    /// Those of the engine and the database.
    pub(crate) fn raise_counters_once(&self) -> Result<()> {
        if !self.is_above_packs.load(Ordering::Relaxed) {
            raise_counters(&*self.meta, &*self.backend)?;
            self.is_above_packs.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Opens a session that is the collector: while it is open, no other client takes packs away. It succeeds a collector that was
    /// killed at once. Also counts the sessions without a process that it ended first.
    ///
    /// # Errors
    /// `Busy` while another is, `Denied` on a read-only store.
    pub(crate) fn collector(&self, what: &str) -> Result<(Arc<Session>, u64)> {
        let session = self.session(SessionKind::Collector, what)?;
        // Before anything is made or swept: so the evidence of used ids is still there, and none is given out.
        raise_counters(&*self.meta, &*self.backend)?;
        // Locks of the sessions that are ended now stay until the next run.
        self.meta.file_locks().map_or(Ok(()), |locks| locks.sweep_locks())?;
        let fenced = self.fence_gone()?;
        self.meta.take_collector(session.id())?;
        Ok((session, fenced))
    }

    /// Ends the sessions whose process is gone (rule 11), and counts them.
    pub(crate) fn fence_gone(&self) -> Result<u64> {
        Ok(self.end_gone(|_| true)?.1)
    }

    /// Of these sessions, those that are not over; for a caller that acts once a session is over. Sessions whose process is gone are
    /// ended first. A session with an expired lease goes on if its client comes back before anybody ends it.
    ///
    /// # Errors
    /// Those of the database.
    pub fn live_sessions(&self, these: impl Fn(&SessionRow) -> bool) -> Result<Vec<SessionRow>> {
        Ok(self.end_gone(these)?.0)
    }

    /// True if a session is not over; see [`Store::live_sessions`].
    ///
    /// # Errors
    /// Those of the database.
    pub fn is_live(&self, session: SessionId) -> Result<bool> {
        Ok(!self.live_sessions(|row| row.id == session)?.is_empty())
    }

    fn end_gone(&self, these: impl Fn(&SessionRow) -> bool) -> Result<(Vec<SessionRow>, u64)> {
        let (locks, mut live, mut ended) = (self.locks_dir(), Vec::new(), 0);
        for row in self.meta.sessions()?.into_iter().filter(these) {
            // A process does not end its own sessions while it has their lock files.
            if is_gone(&row, Some(&locks)) && !row.owner.is_held_here(&locks) {
                self.meta.fence(row.id)?;
                ended += 1;
            } else {
                live.push(row);
            }
        }
        Ok((live, ended))
    }
}

/// Tools that copy trees (version control, object stores) drop empty directories. Those without which nothing is lost are made again.
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
