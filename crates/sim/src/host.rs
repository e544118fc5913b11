//! A host: a mount of the simulated store, without a kernel, and what programs do in it.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use outrigger_format::catalogue::FileKind;
use outrigger_fuse::fs::{Caller, FileSystem, Found, NewNode, OpenFlags, ROOT};
use outrigger_fuse::report::Reports;
use outrigger_fuse::shared::{SharedOptions, SharedVolume};
use outrigger_store::backend::MemoryBackend;
use outrigger_store::meta::SqliteMeta;
use outrigger_store::{Result, Store, StoreConfig};
use rustix::fs::{OFlags, RenameFlags};
use rustix::io::Errno;

use crate::link::{Condition, Link};
use crate::packs::Packs;

const USER: Caller = Caller { uid: 0, gid: 0, pid: 1 };

/// What all hosts have.
pub struct Servers {
    /// The database.
    pub database: Arc<SqliteMeta>,
    /// The packs.
    pub packs: MemoryBackend,
    /// What the store is.
    pub config: StoreConfig,
}

impl Servers {
    /// A host's view of the store. `dir` is its own directory.
    ///
    /// # Errors
    /// The store's.
    pub fn store(&self, dir: &Path, condition: &Arc<Condition>) -> Result<Store> {
        let link = Link::new(Arc::clone(&self.database), Arc::clone(condition));
        let packs = Packs::new(self.packs.clone(), Arc::clone(condition));
        Store::open_together(dir, &self.config, Arc::new(link), Arc::new(packs))
    }
}

/// See the module.
pub struct Host {
    /// Its store.
    pub store: Arc<Store>,
    /// Its mount.
    pub volume: SharedVolume,
}

type Done<T> = std::result::Result<T, Errno>;

/// The bytes of the content with this id: longer than what lies in a database, for some.
pub fn content(id: u32) -> Vec<u8> {
    let len = 20 + (id as usize * 7919) % 40_000;
    format!("{id};").bytes().cycle().take(len).collect()
}

/// Whose bytes these are; `Err` if they were never written.
pub fn id_of(bytes: &[u8]) -> std::result::Result<u32, String> {
    let text: String =
        bytes.iter().take(12).take_while(|&&byte| byte != b';').map(|&byte| char::from(byte)).collect();
    let id = text.parse().map_err(|_| format!("{} bytes that begin with {text:?}", bytes.len()))?;
    if content(id) == bytes { Ok(id) } else { Err(format!("{} bytes, some of them of {id}", bytes.len())) }
}

impl Host {
    /// Mounts the store.
    ///
    /// # Errors
    /// The store's.
    pub fn mount(servers: &Servers, dir: &Path, condition: &Arc<Condition>) -> Result<Self> {
        let store = Arc::new(servers.store(dir, condition)?);
        let mut options = SharedOptions::new(1);
        (options.snapshots, options.staging_bytes) = (false, 4 << 20);
        options.closes_within = Duration::ZERO;
        let verbose = std::env::var_os("SIM_VERBOSE").is_some();
        let reports = Reports::new(move |report| {
            if verbose {
                eprintln!("    {report}");
            }
        });
        let volume = SharedVolume::open(Arc::clone(&store), options, reports)?;
        Ok(Self { store, volume })
    }

    fn find(&self, name: &str) -> Done<u64> {
        match self.volume.lookup(USER, ROOT, name.as_bytes())? {
            Found::Entry(entry) => Ok(entry.attr.number),
            Found::Missing { .. } => Err(Errno::NOENT),
        }
    }

    /// Makes a file, which must not be there.
    ///
    /// # Errors
    /// `EEXIST` and the mount's.
    pub fn create(&self, name: &str, bytes: &[u8]) -> Done<()> {
        let new = NewNode { kind: FileKind::File, mode: 0o644, umask: 0, rdev: 0 };
        let flags = OpenFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
        let (entry, opened) = self.volume.create(USER, ROOT, name.as_bytes(), new, flags)?;
        let number = entry.attr.number;
        let done = self.volume.write(USER, number, opened.handle, 0, bytes, false);
        let done = done.and_then(|()| self.volume.flush(USER, number, opened.handle));
        self.volume.release(number, opened.handle);
        done
    }

    /// Reads a file.
    ///
    /// # Errors
    /// `ENOENT` and the mount's.
    pub fn read(&self, name: &str) -> Done<Vec<u8>> {
        let number = self.find(name)?;
        let opened = self.volume.open(USER, number, OpenFlags::RDONLY)?;
        let mut bytes = Vec::new();
        let done = self.volume.read(number, opened.handle, 0, 1 << 30, &mut bytes);
        let _ = self.volume.flush(USER, number, opened.handle);
        self.volume.release(number, opened.handle);
        done.map(|()| bytes)
    }

    /// Puts a file in another's place.
    ///
    /// # Errors
    /// The mount's.
    pub fn rename(&self, from: &str, to: &str) -> Done<()> {
        self.volume.rename(USER, (ROOT, from.as_bytes()), (ROOT, to.as_bytes()), RenameFlags::empty())
    }

    /// Removes a file.
    ///
    /// # Errors
    /// `ENOENT` and the mount's.
    pub fn unlink(&self, name: &str) -> Done<()> {
        self.volume.unlink(USER, ROOT, name.as_bytes())
    }

    /// The names in the root.
    ///
    /// # Errors
    /// The mount's.
    pub fn list(&self) -> Done<Vec<String>> {
        let handle = self.volume.open_dir(USER, ROOT)?.handle;
        let mut names = Vec::new();
        let done = self.volume.read_dir(ROOT, handle, 0, true, &mut |entry| {
            names.push(String::from_utf8_lossy(entry.name).into_owned());
            true
        });
        self.volume.release_dir(ROOT, handle);
        done.map(|()| names)
    }
}
