//! Mounts of one store in PostgreSQL, and what programs do in them.

use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use outrigger_format::catalogue::FileKind;
use outrigger_fuse::fs::{Caller, FileSystem, Found, Handle, NewNode, OpenFlags, ROOT, Result, SetAttr};
use outrigger_fuse::report::Reports;
use outrigger_fuse::shared::{SharedOptions, SharedVolume};
use outrigger_store::check::{CheckOptions, CheckProgress, check};
use outrigger_store::{Profile, Store};
use outrigger_workload::postgres::Server;
use rustix::fs::{OFlags, RenameFlags};
use rustix::io::Errno;
use tempfile::TempDir;

pub const USER: Caller = Caller { uid: 0, gid: 0, pid: 1 };

/// The thread that walks a path, as the kernel says.
pub fn walker() -> Caller {
    static NEXT: AtomicU32 = AtomicU32::new(USER.pid + 1);
    thread_local!(static NUMBER: u32 = NEXT.fetch_add(1, Ordering::Relaxed));
    Caller { pid: NUMBER.with(|number| *number), ..USER }
}

/// A schema of the server that the tests share, and a directory for its packs.
pub struct Cluster {
    pub server: &'static Server,
    pub schema: String,
    pub packs: TempDir,
    pub said: Arc<Mutex<Vec<String>>>,
}

/// One mount. All are in this process, and know nothing of each other.
pub struct Host {
    pub volume: Arc<SharedVolume>,
    pub store: Arc<Store>,
}

impl Cluster {
    /// `None`, said aloud, without PostgreSQL.
    pub fn new() -> Option<Self> {
        let server = Server::shared()?;
        let cluster = Self {
            server,
            schema: server.fresh(),
            packs: tempfile::tempdir().unwrap(),
            said: Arc::default(),
        };
        let mut config = Profile::Default.config().unwrap();
        config.packs = Some(
            outrigger_store::backend::Location::parse(&format!("file:{}", cluster.packs.path().display()))
                .unwrap(),
        );
        Store::init(Path::new(&cluster.url()), &config).unwrap();
        Some(cluster)
    }

    pub fn url(&self) -> String {
        self.server.url(&self.schema)
    }

    pub fn store(&self) -> Store {
        Store::open(Path::new(&self.url()), false).unwrap()
    }

    pub fn mount(&self) -> Host {
        self.mount_with(SharedOptions::new(2))
    }

    pub fn mount_with(&self, options: SharedOptions) -> Host {
        self.mount_through(&self.url(), options)
    }

    /// Mounts the store by another way to its server.
    pub fn mount_through(&self, url: &str, options: SharedOptions) -> Host {
        let said = Arc::clone(&self.said);
        let reports = Reports::new(move |text| said.lock().unwrap().push(text.to_string()));
        let store = Arc::new(Store::open(Path::new(url), false).unwrap());
        let volume = SharedVolume::open(Arc::clone(&store), options, reports).unwrap();
        Host { volume: Arc::new(volume), store }
    }

    /// All of it is sound, and nobody holds a lock.
    #[track_caller]
    pub fn check(&self) {
        let options = CheckOptions { read_data: true, repair: false, threads: 2 };
        let report = check(&self.store(), &options, &CheckProgress::default()).unwrap();
        assert!(report.findings.is_empty(), "{:?}", report.findings);
        let sql = format!(
            "SELECT count(*) FROM {}.inode i WHERE i.links <> 1 AND EXISTS (SELECT 1 FROM {}.directory d WHERE d.inode = i.number)",
            self.schema, self.schema
        );
        assert_eq!(self.server.sql(&sql), "0");
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let id = Store::open(Path::new(&self.url()), true).map(|store| store.dir().to_path_buf());
        if let (Ok(dir), false) = (id, std::thread::panicking()) {
            let _ = std::fs::remove_dir_all(dir);
        }
    }
}

pub fn new_file(mode: u32) -> NewNode {
    NewNode { kind: FileKind::File, mode, umask: 0, rdev: 0 }
}

/// An open file of a host.
pub struct Open<'a> {
    pub host: &'a Host,
    pub number: u64,
    pub handle: Handle,
}

impl Host {
    pub fn find(&self, path: &str) -> Result<u64> {
        let mut number = ROOT;
        for name in path.split('/').filter(|name| !name.is_empty()) {
            match self.volume.lookup(walker(), number, name.as_bytes())? {
                Found::Entry(entry) => number = entry.attr.number,
                Found::Missing { .. } => return Err(Errno::NOENT),
            }
        }
        Ok(number)
    }

    /// The directory and the name of a path.
    pub fn split<'p>(&self, path: &'p str) -> Result<(u64, &'p [u8])> {
        let (above, name) = path.rsplit_once('/').unwrap_or(("", path));
        Ok((self.find(above)?, name.as_bytes()))
    }

    pub fn open(&self, path: &str, flags: OFlags) -> Result<Open<'_>> {
        let found = self.find(path);
        if flags.contains(OFlags::CREATE) && (found.is_err() || flags.contains(OFlags::EXCL)) {
            let (parent, name) = self.split(path)?;
            let (entry, opened) = self.volume.create(USER, parent, name, new_file(0o644), flags)?;
            return Ok(Open { host: self, number: entry.attr.number, handle: opened.handle });
        }
        let number = found?;
        let opened = self.volume.open(USER, number, flags)?;
        Ok(Open { host: self, number, handle: opened.handle })
    }

    /// As a shell's `>`.
    pub fn put(&self, path: &str, data: &[u8]) -> Result<()> {
        let open = self.open(path, OpenFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC)?;
        open.write(0, data)?;
        open.close()
    }

    /// As a shell's `>>`.
    pub fn append(&self, path: &str, data: &[u8]) -> Result<()> {
        let open = self.open(path, OpenFlags::WRONLY | OFlags::CREATE | OFlags::APPEND)?;
        open.write(0, data)?;
        open.close()
    }

    /// As programs do that want a file to be seen whole or not at all.
    pub fn publish(&self, path: &str, data: &[u8]) -> Result<()> {
        let (parent, name) = self.split(path)?;
        let (entry, opened) = self.volume.create_anonymous(USER, parent, new_file(0o644), OpenFlags::RDWR)?;
        let open = Open { host: self, number: entry.attr.number, handle: opened.handle };
        let done = open.write(0, data);
        let done = done.and_then(|()| self.volume.link(USER, open.number, parent, name).map(drop));
        done.and(open.close())
    }

    pub fn cat(&self, path: &str) -> Result<Vec<u8>> {
        let open = self.open(path, OpenFlags::RDONLY)?;
        let bytes = open.read();
        open.close()?;
        bytes
    }

    pub fn mkdir(&self, path: &str) -> Result<()> {
        let (parent, name) = self.split(path)?;
        let new = NewNode { kind: FileKind::Directory, mode: 0o755, umask: 0, rdev: 0 };
        self.volume.make(USER, parent, name, new).map(drop)
    }

    pub fn unlink(&self, path: &str) -> Result<()> {
        let (parent, name) = self.split(path)?;
        self.volume.unlink(USER, parent, name)
    }

    pub fn rmdir(&self, path: &str) -> Result<()> {
        let (parent, name) = self.split(path)?;
        self.volume.remove_dir(USER, parent, name)
    }

    pub fn link(&self, from: &str, to: &str) -> Result<()> {
        let (number, (parent, name)) = (self.find(from)?, self.split(to)?);
        self.volume.link(USER, number, parent, name).map(drop)
    }

    pub fn rename(&self, from: &str, to: &str, flags: RenameFlags) -> Result<()> {
        let (from, to) = (self.split(from)?, self.split(to)?);
        self.volume.rename(USER, from, to, flags)
    }

    pub fn truncate(&self, path: &str, len: u64) -> Result<()> {
        let set = SetAttr { size: Some(len), ..SetAttr::default() };
        self.volume.set_attributes(USER, self.find(path)?, &set).map(drop)
    }

    pub fn chmod(&self, path: &str, mode: u32) -> Result<()> {
        let set = SetAttr { mode: Some(mode), ..SetAttr::default() };
        self.volume.set_attributes(USER, self.find(path)?, &set).map(drop)
    }

    pub fn stat(&self, path: &str) -> Result<outrigger_fuse::fs::Attr> {
        let (parent, name) = self.split(path)?;
        match self.volume.lookup(walker(), parent, name)? {
            Found::Entry(entry) => Ok(entry.attr),
            Found::Missing { .. } => Err(Errno::NOENT),
        }
    }

    pub fn list(&self, path: &str) -> Result<Vec<String>> {
        let number = self.find(path)?;
        let handle = self.volume.open_dir(USER, number)?.handle;
        let mut names = Vec::new();
        self.volume.read_dir(number, handle, 0, true, &mut |entry| {
            names.push(String::from_utf8(entry.name.to_vec()).unwrap());
            true
        })?;
        self.volume.release_dir(number, handle);
        Ok(names.split_off(2))
    }
}

impl Open<'_> {
    pub fn write(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.host.volume.write(USER, self.number, self.handle, offset, data, false)
    }

    pub fn read(&self) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.host.volume.read(self.number, self.handle, 0, 1 << 30, &mut bytes).map(|()| bytes)
    }

    pub fn sync(&self) -> Result<()> {
        self.host.volume.fsync(self.number, self.handle, false)
    }

    pub fn close(self) -> Result<()> {
        let done = self.host.volume.flush(USER, self.number, self.handle);
        self.host.volume.release(self.number, self.handle);
        done
    }
}
