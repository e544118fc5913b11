//! Packs as files: `packs/XX/ID.pack` under the store's directory, `XX` the last two digits of the
//! id.
//!
//! The names are spread over 256 directories by the fastest-changing digits, so that no directory
//! grows large. Each pack is written by its own [`writer::PackFile`], which does its own buffering
//! and bypasses the page cache for all but small packs. Readers share a bounded cache of open files
//! ([`descriptors::Descriptors`]) and use `pread`. So any number of threads read, and lock only
//! briefly to look up the descriptor.
//!
//! A name is durable after an `fsync` of its directory, and of `packs` if that directory may be
//! new. Another thread or process may have made `packs/XX` and not have synced it yet. So each
//! process syncs `packs` itself before it first relies on a subdirectory.
//!
//! On a file system that several hosts mount ([`LocalBackend::open_shared`]), names and lengths
//! that this host has cached may be outdated. If a name is not found, it is looked up again after
//! its directory was opened anew, as NFS then asks the server. Lengths are read from a file opened
//! for that. A descriptor whose file another host removed (`ESTALE`) counts as missing.
//!
//! Bytes of a pack that is still being written become readable in pieces of [`writer::STAGE_LEN`];
//! before that a read finds the pack too short.

mod descriptors;
mod texts;
mod writer;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use outrigger_format::PackId;
use rustix::fd::OwnedFd;
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;

use super::texts::{TextName, require_folder};
use super::{Access, Backend, PackWriter, names};
use crate::error::{Context, Error, ErrorKind, Result};
use crate::home::{Home, identity};
use crate::owner::{self, open_below};

use descriptors::Descriptors;
use texts::Texts;
use writer::{PackFile, StagePool};

/// Open files kept for reading; a process may hold 1024 by default.
const DESCRIPTORS_MAX: usize = 256;

/// Where damaged packs are moved to, beside `packs`.
pub const DAMAGED_DIR: &str = "packs-damaged";

/// The directory below `packs` for packs that must not be found before they are whole: their names
/// are no pack's to [`LocalBackend::list`].
const UNSEEN_DIR: &str = "unseen";

/// State that [`LocalBackend`] shares with its writers.
struct Shared {
    /// `STORE/packs`.
    path: PathBuf,
    packs: OwnedFd,
    /// The store's directory, for calls that need a path.
    home: Home,
    /// The subdirectories whose names this process knows to be durable: 256 for packs, one for
    /// parity files.
    durable: Mutex<[bool; 257]>,
    stages: StagePool,
}

/// Packs in a directory of the local file system. See the module's text.
pub struct LocalBackend {
    shared: Arc<Shared>,
    read_only: bool,
    /// Other hosts change it too.
    is_shared: bool,
    open: Descriptors,
}

impl LocalBackend {
    /// Opens the packs of the store in `dir`; `create` makes `dir/packs` when it is missing,
    /// durably. With `read_only`, creating and removing packs is refused with `Denied`.
    ///
    /// # Errors
    /// `NotFound` when `dir/packs` is missing and `create` is not set; whatever the file system
    /// says.
    pub fn open(dir: &Path, create: bool, read_only: bool) -> Result<Self> {
        Self::open_as(dir, create, read_only, false)
    }

    /// Opens the packs in a directory that other hosts may have mounted too; see the module. With
    /// `access.create`, `dir` itself is made.
    ///
    /// # Errors
    /// As [`LocalBackend::open`].
    pub fn open_shared(dir: &Path, access: Access) -> Result<Self> {
        if access.create && !access.read_only {
            let at = || format!("cannot create {}", dir.display());
            match rustix::fs::mkdir(dir, Mode::RWXU) {
                Ok(()) => {
                    let parent = dir.parent().unwrap_or(dir);
                    fs::File::open(parent).and_then(|parent| parent.sync_all()).context(at)?;
                }
                Err(Errno::EXIST) => {}
                Err(error) => return Err(error).context(at),
            }
        }
        Self::open_as(dir, access.create, access.read_only, true)
    }

    fn open_as(dir: &Path, create: bool, read_only: bool, is_shared: bool) -> Result<Self> {
        let path = dir.join("packs");
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        if create && !read_only {
            match rustix::fs::mkdir(&path, Mode::RWXU) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(error) => return Err(error).context(|| format!("cannot create {}", path.display())),
            }
            rustix::fs::open(dir, flags, Mode::empty())
                .and_then(rustix::fs::fsync)
                .context(|| format!("cannot sync {}", dir.display()))?;
        }
        let packs = rustix::fs::open(&path, flags, Mode::empty())
            .context(|| format!("cannot open {}", path.display()))?;
        let home = Home::of(dir);
        let shared =
            Shared { path, packs, home, durable: Mutex::new([false; 257]), stages: StagePool::default() };
        Ok(Self { shared: Arc::new(shared), read_only, is_shared, open: Descriptors::new(DESCRIPTORS_MAX) })
    }

    fn refuse_read_only(&self, id: PackId, what: &str) -> Result<()> {
        if !self.read_only {
            return Ok(());
        }
        let path = self.shared.full(id);
        Err(Error::new(ErrorKind::Denied, format!("cannot {what} {}: opened read-only", path.display())))
    }

    /// A descriptor of pack `id`, from the cache or newly opened.
    fn opened(&self, id: PackId) -> Result<Arc<OwnedFd>> {
        let opened = self.open.get(id, || self.open_file(id));
        opened.context(|| format!("cannot open pack {}", self.shared.full(id).display()))
    }

    fn open_file(&self, id: PackId) -> rustix::io::Result<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let open = || open_below(&self.shared.packs, relative(id), flags, Mode::empty());
        match open() {
            Err(Errno::NOENT | Errno::STALE) if self.is_shared => {
                let directory = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
                for path in [".".to_string(), names::folder(id)] {
                    drop(rustix::fs::openat(&self.shared.packs, path, directory, Mode::empty()));
                }
                open().map_err(|error| if error == Errno::STALE { Errno::NOENT } else { error })
            }
            opened => opened,
        }
    }

    /// The texts beside the packs.
    fn texts_here(&self) -> Texts<'_> {
        let shown = self.shared.path.with_file_name("");
        Texts { above: self.above(), shown, read_only: self.read_only }
    }

    /// The directory that `packs` lies in.
    fn above(&self) -> &Path {
        self.shared.home.path()
    }
}

impl Shared {
    /// The path of pack `id`, for messages.
    fn full(&self, id: PackId) -> PathBuf {
        self.path.join(relative(id))
    }

    /// Makes a directory below `packs`, if it is not there.
    fn make_dir(&self, name: &str) -> rustix::io::Result<()> {
        match rustix::fs::mkdirat(&self.packs, name, Mode::RWXU) {
            Ok(()) => {
                owner::give(&self.packs, name);
                Ok(())
            }
            Err(Errno::EXIST) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// The folder of a name below `packs`, and the name in it.
    fn folder<'n>(&self, name: &'n str) -> rustix::io::Result<(OwnedFd, &'n str)> {
        let (folder, file) = name.split_once('/').unwrap_or((".", name));
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok((open_below(&self.packs, folder, flags, Mode::empty())?, file))
    }

    /// Removes a file below `packs`.
    fn unlink(&self, name: &str) -> rustix::io::Result<()> {
        let (folder, file) = self.folder(name)?;
        rustix::fs::unlinkat(folder, file, AtFlags::empty())
    }

    /// The names in a directory at or below `packs`; none when it is gone. Ours are all text.
    fn list(&self, name: &str) -> Result<Vec<String>> {
        let names = fs::read_dir(self.home.path().join("packs").join(name)).and_then(|entries| {
            entries.map(|entry| Ok(entry?.file_name().into_string().unwrap_or_default())).collect()
        });
        match names {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            names => names.context(|| format!("cannot list {}", self.path.join(name).display())),
        }
    }

    /// Makes the names in the directory of pack `id` durable, and its own name.
    fn sync_directory(&self, id: PackId) -> Result<()> {
        let name = names::folder(id);
        let what = || format!("cannot sync {}", self.path.join(&name).display());
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = open_below(&self.packs, &name, flags, Mode::empty()).context(what)?;
        rustix::fs::fsync(dir).context(what)?;
        let slot = id.parity().map_or_else(|| usize::from(id.0 as u8), |_| 256);
        let known = self.durable.lock().expect("no panic while it is held")[slot];
        if !known {
            rustix::fs::fsync(&self.packs).context(|| format!("cannot sync {}", self.path.display()))?;
            self.durable.lock().expect("no panic while it is held")[slot] = true;
        }
        Ok(())
    }
}

impl Backend for LocalBackend {
    fn create(&self, id: PackId) -> Result<Box<dyn PackWriter>> {
        self.refuse_read_only(id, "create")?;
        let what = || format!("cannot create pack {}", self.shared.full(id).display());
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let mode = Mode::RUSR | Mode::WUSR;
        let create = || open_below(&self.shared.packs, relative(id), flags, mode);
        let file = match create() {
            Err(Errno::NOENT) => {
                self.shared.make_dir(&names::folder(id)).context(what)?;
                create()
            }
            other => other,
        };
        let file = file.context(what)?;
        owner::give_file(&self.shared.packs, &file);
        Ok(Box::new(PackFile::new(file, id, relative(id), Arc::clone(&self.shared))))
    }

    fn create_unseen(&self, id: PackId) -> Result<Option<Box<dyn PackWriter>>> {
        self.refuse_read_only(id, "create")?;
        let what = || format!("cannot create pack {}", self.shared.full(id).display());
        if self.len(id)?.is_some() {
            return Err(Error::new(ErrorKind::Exists, format!("{}: it exists", what())));
        }
        for dir in [UNSEEN_DIR, &names::folder(id)] {
            self.shared.make_dir(dir).context(what)?;
        }
        let name = format!("{UNSEEN_DIR}/{id}.pack");
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let file = open_below(&self.shared.packs, &name, flags, Mode::RUSR | Mode::WUSR).context(what)?;
        owner::give_file(&self.shared.packs, &file);
        Ok(Some(Box::new(PackFile::new(file, id, name, Arc::clone(&self.shared)))))
    }

    fn clear_unseen(&self) -> Result<()> {
        for name in self.shared.list(UNSEEN_DIR)? {
            let name = format!("{UNSEEN_DIR}/{name}");
            let what = || format!("cannot remove {}", self.shared.path.join(&name).display());
            self.shared.unlink(&name).context(what)?;
        }
        Ok(())
    }

    fn tend(&self) {
        self.open.close_removed();
    }

    fn read_at(&self, id: PackId, offset: u64, buf: &mut [u8]) -> Result<()> {
        let file = self.opened(id)?;
        let wanted = buf.len();
        let mut rest = buf;
        while !rest.is_empty() {
            let at = offset + (wanted - rest.len()) as u64;
            match rustix::io::pread(&*file, &mut *rest, at) {
                Ok(0) => {
                    let path = self.shared.full(id);
                    return Err(Error::damaged(format!(
                        "pack {} is too short: {wanted} bytes wanted at offset {offset}, it ends before {at}",
                        path.display()
                    )));
                }
                Ok(n) => rest = &mut rest[n..],
                Err(Errno::INTR) => {}
                Err(error) => {
                    if error == Errno::STALE {
                        self.open.forget(id);
                    }
                    let error = if error == Errno::STALE { Errno::NOENT } else { error };
                    return Err(error).context(|| {
                        format!(
                            "cannot read {wanted} bytes at offset {offset} of pack {}",
                            self.shared.full(id).display()
                        )
                    });
                }
            }
        }
        Ok(())
    }

    fn len(&self, id: PackId) -> Result<Option<u64>> {
        let stat = match self.is_shared {
            // Opened for this: the cached length of the name may be outdated.
            true => self.open_file(id).and_then(rustix::fs::fstat),
            false => rustix::fs::statat(&self.shared.packs, relative(id), AtFlags::SYMLINK_NOFOLLOW),
        };
        match stat {
            Ok(stat) => Ok(Some(stat.st_size as u64)),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => {
                Err(error).context(|| format!("cannot look at pack {}", self.shared.full(id).display()))
            }
        }
    }

    fn remove(&self, id: PackId) -> Result<()> {
        self.refuse_read_only(id, "remove")?;
        let removed = self.shared.unlink(&relative(id));
        self.open.forget(id);
        match removed {
            // Also when it is gone already: the process that removed it may not have synced yet.
            Ok(()) | Err(Errno::NOENT) => match self.shared.sync_directory(id) {
                Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
                other => other,
            },
            Err(error) => {
                Err(error).context(|| format!("cannot remove pack {}", self.shared.full(id).display()))
            }
        }
    }

    fn list(&self) -> Result<Vec<PackId>> {
        let mut ids = Vec::new();
        for last in self.shared.list(".")? {
            if !matches!(u8::from_str_radix(&last, 16), Ok(byte) if format!("{byte:02x}") == last) {
                continue;
            }
            let names = self.shared.list(&last)?;
            ids.extend(
                names.iter().filter_map(|name| names::parse(name)).filter(|id| names::folder(*id) == last),
            );
        }
        ids.sort_unstable();
        Ok(ids)
    }

    /// True if another process has put another file in the place of the one that was read, as a
    /// repair does.
    fn forget(&self, id: PackId) -> bool {
        let Some(kept) = self.open.forget(id) else { return false };
        let now = rustix::fs::statat(&self.shared.packs, relative(id), AtFlags::SYMLINK_NOFOLLOW);
        matches!((now, rustix::fs::fstat(kept)), (Ok(now), Ok(kept)) if identity(&now) != identity(&kept))
    }

    fn list_parity(&self) -> Result<Vec<PackId>> {
        let named = self.shared.list(names::PARITY_DIR)?;
        let mut ids: Vec<PackId> = named.iter().filter_map(|name| names::parse_parity(name)).collect();
        ids.sort_unstable();
        Ok(ids)
    }

    fn lists_cheaply(&self) -> bool {
        !self.is_shared
    }

    fn set_aside(&self, id: PackId) -> Result<()> {
        self.refuse_read_only(id, "move")?;
        let (from, to_dir) = (self.above().join("packs").join(relative(id)), self.above().join(DAMAGED_DIR));
        let at = || format!("cannot move {} to {DAMAGED_DIR}", self.shared.full(id).display());
        fs::create_dir_all(&to_dir).context(at)?;
        let name = names::file(id);
        let mut to = to_dir.join(&name);
        for number in 1.. {
            if !to.exists() {
                break;
            }
            to = to_dir.join(format!("{name}.{number}"));
        }
        let moved = fs::rename(&from, &to);
        self.open.forget(id);
        match moved {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            moved => moved.context(at)?,
        }
        for dir in [to_dir.as_path(), self.above()] {
            fs::File::open(dir).and_then(|dir| dir.sync_all()).context(at)?;
        }
        self.shared.sync_directory(id)
    }

    fn put_text(&self, name: &str, text: &str) -> Result<()> {
        self.texts_here().put(TextName::to_put(name, text)?, text)
    }

    fn text(&self, name: &str) -> Result<Option<String>> {
        self.texts_here().get(TextName::parse(name)?)
    }

    fn texts(&self, folder: &str) -> Result<Vec<String>> {
        require_folder(folder)?;
        self.texts_here().list(folder)
    }

    fn remove_text(&self, name: &str) -> Result<()> {
        self.texts_here().remove(TextName::to_remove(name)?)
    }

    fn place(&self) -> Option<String> {
        Some(self.texts_here().shown.display().to_string())
    }
}

/// The path of pack `id` below `packs`.
fn relative(id: PackId) -> String {
    format!("{}/{}", names::folder(id), names::file(id))
}

#[cfg(test)]
#[path = "local_tests.rs"]
mod tests;
