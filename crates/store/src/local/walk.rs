//! Reads directories of this machine in a fixed order, without following symlinks.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{AtFlags, Dir, Mode, OFlags, Stat};
use rustix::io::Errno;

/// Opens a directory beneath `parent` without following a symlink.
pub(super) fn open_dir(parent: impl AsFd, name: &[u8]) -> Result<Arc<OwnedFd>, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(parent, name, flags, Mode::empty()).map(Arc::new)
}

/// The names in `dir` but `.` and `..`, sorted bytewise.
pub(super) fn list(dir: &OwnedFd) -> Result<Vec<Box<[u8]>>, Errno> {
    let mut names = Vec::new();
    for entry in Dir::read_from(dir)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." {
            names.push(name.into());
        }
    }
    names.sort_unstable();
    Ok(names)
}

/// Calls `stat` on an entry, or on the symlink itself; `None` when it is gone.
pub(super) fn stat(dir: &OwnedFd, name: &[u8]) -> Result<Option<Stat>, Errno> {
    match rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) {
        Err(Errno::NOENT) => Ok(None),
        stat => stat.map(Some),
    }
}

/// A path that names an entry of an open directory, for calls that take no descriptor.
pub(super) fn proc_path(dir: &OwnedFd, name: &[u8]) -> Vec<u8> {
    use std::os::fd::AsRawFd;
    let mut path = format!("/proc/self/fd/{}/", dir.as_raw_fd()).into_bytes();
    path.extend_from_slice(name);
    path
}
