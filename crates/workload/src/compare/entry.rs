//! Entries of the compared trees, each opened relative to its directory.

use std::ffi::{CStr, CString, OsStr};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{self, AtFlags, CWD, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::Kind;

/// A root as a directory and a name in it, so that it is treated as every other entry.
pub(super) struct Root {
    parent: OwnedFd,
    pub(super) name: CString,
}

impl Root {
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let (parent, name) = match (path.parent(), path.file_name()) {
            (Some(parent), Some(name)) if parent.as_os_str().is_empty() => (Path::new("."), name),
            (Some(parent), Some(name)) => (parent, name),
            _ => (path, OsStr::new(".")),
        };
        let parent =
            fs::openat(CWD, parent, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
                .map_err(io::Error::from)
                .map_err(crate::about(path))?;
        Ok(Self { parent, name: CString::new(name.as_bytes())? })
    }

    pub(super) fn entry(&self) -> io::Result<Entry<'_>> {
        Entry::new(&self.parent, &self.name)
            .map_err(crate::about(Path::new(OsStr::from_bytes(self.name.to_bytes()))))
    }
}

/// An entry of an open directory.
pub(super) struct Entry<'d> {
    pub(super) dir: &'d OwnedFd,
    pub(super) name: &'d CStr,
    pub(super) stat: Stat,
}

impl<'d> Entry<'d> {
    pub(super) fn new(dir: &'d OwnedFd, name: &'d CStr) -> io::Result<Self> {
        Ok(Self { dir, name, stat: fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)? })
    }

    pub(super) fn kind(&self) -> Kind {
        match FileType::from_raw_mode(self.stat.st_mode) {
            FileType::RegularFile => Kind::File,
            FileType::Directory => Kind::Directory,
            FileType::Symlink => Kind::Symlink,
            FileType::Fifo => Kind::Fifo,
            FileType::Socket => Kind::Socket,
            FileType::CharacterDevice => Kind::CharDevice,
            FileType::BlockDevice => Kind::BlockDevice,
            _ => Kind::Unknown,
        }
    }

    pub(super) fn len(&self) -> u64 {
        u64::try_from(self.stat.st_size).unwrap_or(0)
    }

    pub(super) fn allocated(&self) -> u64 {
        u64::try_from(self.stat.st_blocks).unwrap_or(0) * 512
    }

    pub(super) fn mtime(&self) -> (i64, u32) {
        // The width and sign of these fields differ between architectures.
        #[allow(clippy::useless_conversion, clippy::unnecessary_cast)]
        (self.stat.st_mtime as i64, self.stat.st_mtime_nsec as u32)
    }

    pub(super) fn device(&self) -> (u32, u32) {
        (fs::major(self.stat.st_rdev), fs::minor(self.stat.st_rdev))
    }

    pub(super) fn open(&self, flags: OFlags) -> rustix::io::Result<OwnedFd> {
        let flags = flags | OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        // Reading must not move access times where we own the file; O_NOATIME is refused elsewhere.
        match fs::openat(self.dir, self.name, flags | OFlags::NOATIME, Mode::empty()) {
            Err(Errno::PERM) => fs::openat(self.dir, self.name, flags, Mode::empty()),
            other => other,
        }
    }

    /// The entry as a path through its open directory, because the xattr calls take no directory.
    fn magic_path(&self) -> CString {
        let mut path = format!("/proc/self/fd/{}/", self.dir.as_raw_fd()).into_bytes();
        path.extend_from_slice(self.name.to_bytes());
        CString::new(path).expect("neither part holds a zero byte")
    }

    /// All extended attributes, sorted by name. File systems without them have none.
    pub(super) fn xattrs(&self) -> io::Result<Vec<(Vec<u8>, Vec<u8>)>> {
        let path = self.magic_path();
        let names = match growing(|buffer| fs::llistxattr(&*path, buffer)) {
            Err(Errno::NOTSUP) => return Ok(Vec::new()),
            names => names?,
        };
        let mut all = Vec::new();
        for name in
            names.split(|&byte| byte == 0).filter(|name| !name.is_empty() && *name != b"security.selinux")
        {
            match growing(|buffer| fs::lgetxattr(&*path, name, buffer)) {
                Ok(value) => all.push((name.to_vec(), value)),
                // Listed, but not readable for us (trusted.* without the capability), or just gone.
                Err(Errno::NODATA | Errno::PERM | Errno::ACCESS) => {}
                Err(error) => return Err(error.into()),
            }
        }
        all.sort();
        Ok(all)
    }
}

/// Calls `read` with larger buffers until the result fits.
fn growing(mut read: impl FnMut(&mut [u8]) -> rustix::io::Result<usize>) -> rustix::io::Result<Vec<u8>> {
    let mut buffer = vec![0; 1024];
    loop {
        match read(&mut buffer) {
            Ok(len) => {
                buffer.truncate(len);
                return Ok(buffer);
            }
            Err(Errno::RANGE) if buffer.len() < 1 << 20 => buffer.resize(buffer.len() * 8, 0),
            Err(error) => return Err(error),
        }
    }
}

/// The offset of the next data from `at` on; `len` if only a hole follows. File systems without
/// holes are all data.
pub(super) fn next_data(file: &File, at: u64, len: u64) -> io::Result<u64> {
    match fs::seek(file, fs::SeekFrom::Data(at)) {
        Ok(next) => Ok(next.min(len)),
        Err(Errno::NXIO) => Ok(len),
        Err(Errno::INVAL | Errno::NOTSUP) => Ok(at),
        Err(error) => Err(error.into()),
    }
}

/// The names in an open directory, sorted, without `.` and `..`.
pub(super) fn names(dir: &OwnedFd) -> io::Result<Vec<(CString, ())>> {
    let mut names = Vec::new();
    for entry in fs::Dir::read_from(dir)? {
        let name = entry?.file_name().to_owned();
        if !matches!(name.to_bytes(), b"." | b"..") {
            names.push((name, ()));
        }
    }
    names.sort();
    Ok(names)
}
