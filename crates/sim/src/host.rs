//! A host: a mount of the simulated store without a kernel, and the operations of programs in it.

use std::path::Path;
use std::sync::{Arc, Mutex, mpsc};

use outrigger_format::catalogue::FileKind;
use outrigger_fuse::fs::{
    Answer, Attr, Caller, FileSystem, Found, Handle, LockRequest, NewNode, ROOT, Unlock,
};
use outrigger_fuse::report::Reports;
use outrigger_fuse::shared::{SharedOptions, SharedVolume};
use outrigger_store::meta::SessionId;
use outrigger_store::meta::locks::{Lock, LockFamily, LockMode, LockRange};
use outrigger_store::{ErrorKind, Result, Store};
use rustix::fs::{OFlags, RenameFlags};
use rustix::io::Errno;

use crate::link::{Condition, Link};
use crate::pack_bytes::flip;
use crate::packs::Packs;
use crate::planted::{self, Planted};
use crate::scheduler;
use crate::servers::Servers;

const USER: Caller = Caller { uid: 0, gid: 0, pid: 1 };

/// See the module.
pub struct Host {
    /// Its store.
    pub store: Arc<Store>,
    /// Its mount.
    pub volume: SharedVolume,
    /// The mount's reports of damage.
    pub damage: Arc<Mutex<Vec<String>>>,
    servers: Arc<Servers>,
    condition: Arc<Condition>,
}

/// An open file.
pub struct Open<'a> {
    host: &'a Host,
    /// Its inode.
    pub number: u64,
    handle: Handle,
}

/// The result of an operation.
pub type Done<T> = std::result::Result<T, Errno>;

/// A host's view of the store. `dir` is its own directory.
///
/// # Errors
/// The store's.
pub fn store(servers: &Arc<Servers>, dir: &Path, condition: &Arc<Condition>) -> Result<Store> {
    let link = Link::new(Arc::clone(servers), Arc::clone(condition));
    let packs = Packs::new(servers.packs.clone(), Arc::clone(condition));
    Store::open_together(dir, &servers.config, Arc::new(link), Arc::new(packs))
}

impl Host {
    /// Mounts the store.
    ///
    /// # Errors
    /// The store's.
    pub fn mount(servers: &Arc<Servers>, dir: &Path, condition: &Arc<Condition>) -> Result<Self> {
        let store = Arc::new(store(servers, dir, condition)?);
        let mut options = SharedOptions::new(1);
        (options.snapshots, options.staging_bytes, options.increment_bytes) = (false, 4 << 20, 256 << 10);
        let verbose = std::env::var_os("SIM_VERBOSE").is_some();
        let damage = Arc::<Mutex<Vec<String>>>::default();
        let told = Arc::clone(&damage);
        let reports = Reports::new(move |report| {
            if verbose {
                eprintln!("    {:?}: {report}", scheduler::elapsed());
            }
            if report.kind == Some(ErrorKind::Damaged) {
                told.lock().expect("no panic while held").push(report.message.clone());
            }
        });
        let volume = SharedVolume::open(Arc::clone(&store), options, reports)?;
        let (servers, condition) = (Arc::clone(servers), Arc::clone(condition));
        Ok(Self { store, volume, damage, servers, condition })
    }

    /// True if this session is live, and still the mount's.
    pub fn has(&self, session: SessionId) -> bool {
        let is_live = scheduler::whole(|| self.servers.is_live(session)).unwrap_or(false);
        is_live && self.volume.session_id() == session
    }

    /// The attributes of a path.
    ///
    /// # Errors
    /// `ENOENT` and the mount's.
    pub fn stat(&self, path: &str) -> Done<Attr> {
        let (parent, name) = self.split(path)?;
        match self.volume.lookup(USER, parent, name)? {
            Found::Entry(entry) => Ok(entry.attr),
            Found::Missing { .. } => Err(Errno::NOENT),
        }
    }

    /// The directory and the name of a path.
    fn split<'p>(&self, path: &'p str) -> Done<(u64, &'p [u8])> {
        match path.rsplit_once('/') {
            Some((above, name)) => Ok((self.stat(above)?.number, name.as_bytes())),
            None => Ok((ROOT, path.as_bytes())),
        }
    }

    /// Opens a file, and creates it if the flags say so.
    ///
    /// # Errors
    /// `ENOENT`, `EEXIST` and the mount's.
    pub fn open(&self, path: &str, flags: OFlags) -> Done<Open<'_>> {
        let found = if flags.contains(OFlags::EXCL) { Err(Errno::NOENT) } else { self.stat(path) };
        let (number, handle) = match found {
            Ok(attr) => (attr.number, self.volume.open(USER, attr.number, flags)?.handle),
            Err(Errno::NOENT) if flags.contains(OFlags::CREATE) => {
                let (parent, name) = self.split(path)?;
                let new = NewNode { kind: FileKind::File, mode: 0o644, umask: 0, rdev: 0 };
                let (entry, opened) = self.volume.create(USER, parent, name, new, flags)?;
                (entry.attr.number, opened.handle)
            }
            Err(errno) => return Err(errno),
        };
        Ok(Open { host: self, number, handle })
    }

    /// Makes a directory.
    ///
    /// # Errors
    /// `EEXIST` and the mount's.
    pub fn mkdir(&self, path: &str) -> Done<()> {
        let (parent, name) = self.split(path)?;
        let new = NewNode { kind: FileKind::Directory, mode: 0o755, umask: 0, rdev: 0 };
        self.volume.make(USER, parent, name, new).map(drop)
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// `ENOENT` and the mount's.
    pub fn rmdir(&self, path: &str) -> Done<()> {
        let (parent, name) = self.split(path)?;
        self.volume.remove_dir(USER, parent, name)
    }

    /// Gives a file another name.
    ///
    /// # Errors
    /// `EEXIST` and the mount's.
    pub fn link(&self, from: &str, to: &str) -> Done<()> {
        let (number, (parent, name)) = (self.stat(from)?.number, self.split(to)?);
        self.volume.link(USER, number, parent, name).map(drop)
    }

    /// Moves a file, over another one unless the flags forbid it.
    ///
    /// # Errors
    /// `ENOENT` and the mount's.
    pub fn rename(&self, from: &str, to: &str, flags: RenameFlags) -> Done<()> {
        let (from, to) = (self.split(from)?, self.split(to)?);
        self.volume.rename(USER, from, to, flags)
    }

    /// Removes a file.
    ///
    /// # Errors
    /// `ENOENT` and the mount's.
    pub fn unlink(&self, path: &str) -> Done<()> {
        let (parent, name) = self.split(path)?;
        self.volume.unlink(USER, parent, name)
    }

    /// The names in a directory.
    ///
    /// # Errors
    /// The mount's.
    pub fn list(&self, path: &str) -> Done<Vec<String>> {
        let number = if path.is_empty() { ROOT } else { self.stat(path)?.number };
        let handle = self.volume.open_dir(USER, number)?.handle;
        let mut names = Vec::new();
        let done = self.volume.read_dir(number, handle, 0, true, &mut |entry| {
            names.push(String::from_utf8_lossy(entry.name).into_owned());
            true
        });
        self.volume.release_dir(number, handle);
        done.map(|()| names)
    }
}

impl Open<'_> {
    /// Writes all of `bytes`.
    ///
    /// # Errors
    /// The mount's.
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Done<()> {
        match self.host.volume.write(USER, self.number, self.handle, offset, bytes, false) {
            Err(Errno::NOSPC) if planted::is(Planted::FullAcknowledged) => Ok(()),
            done => done,
        }
    }

    /// Reads the file, or a part of it.
    ///
    /// # Errors
    /// The mount's.
    pub fn read(&self, offset: u64, len: usize) -> Done<Vec<u8>> {
        let mut bytes = Vec::new();
        self.host.volume.read(self.number, self.handle, offset, len, &mut bytes)?;
        if planted::is(Planted::UnverifiedRead) && !bytes.is_empty() && self.host.condition.flips() {
            flip(&mut bytes);
        }
        Ok(bytes)
    }

    /// Makes all writes durable.
    ///
    /// # Errors
    /// The mount's.
    pub fn sync(&self) -> Done<()> {
        if planted::is(Planted::ForgottenSync) {
            return Ok(());
        }
        self.host.volume.fsync(self.number, self.handle, false)
    }

    /// A lock on the whole file, of the open file (`flock`) or of a process (`fcntl`).
    fn whole_lock(&self, process: Option<u64>) -> Lock {
        let (family, owner) = match process {
            Some(process) => (LockFamily::Ranges, process),
            None => (LockFamily::Whole, self.handle),
        };
        Lock { family, owner, range: LockRange::ALL, mode: LockMode::Exclusive, process: 1 }
    }

    /// Waits for a lock on the whole file.
    ///
    /// # Errors
    /// The mount's.
    pub fn lock(&self, process: Option<u64>) -> Done<()> {
        let (tell, told) = mpsc::channel();
        let answer = Answer::new(move |done| {
            let _ = tell.send(done);
        });
        let lock = self.whole_lock(process);
        let asked = LockRequest { handle: self.handle, request: self.handle, lock, waits: true };
        self.host.volume.lock(self.number, &asked, answer);
        told.recv().unwrap_or(Err(Errno::IO))
    }

    /// Releases the lock.
    ///
    /// # Errors
    /// The mount's: then it is still held.
    pub fn unlock(&self, process: Option<u64>) -> Done<()> {
        let Lock { family, owner, range, .. } = self.whole_lock(process);
        self.host.volume.unlock(self.number, &Unlock { family, owner, range })
    }

    /// Closes the file. Others see the writes only if this succeeds.
    ///
    /// # Errors
    /// The mount's. The file is closed all the same.
    pub fn close(self, process: Option<u64>) -> Done<()> {
        let done = self.host.volume.flush(USER, self.number, self.handle);
        if let Some(process) = process {
            self.host.volume.closed_by(self.number, process);
        }
        self.host.volume.release(self.number, self.handle);
        done
    }
}
