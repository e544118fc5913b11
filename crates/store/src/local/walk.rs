//! Reads directories of this machine in a fixed order, without following symlinks.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{AtFlags, Dir, Mode, OFlags, Stat};
use rustix::io::Errno;

/// One entry of a directory.
pub(super) struct Found {
    pub name: Vec<u8>,
    pub stat: Result<Stat, Errno>,
}

/// Opens a directory beneath `parent` without following a symlink.
pub(super) fn open_dir(parent: impl AsFd, name: &[u8]) -> Result<Arc<OwnedFd>, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(parent, name, flags, Mode::empty()).map(Arc::new)
}

/// All entries of `dir` but `.` and `..`, sorted bytewise by name, each with what `stat` says of it.
pub(super) fn list(dir: &OwnedFd) -> Result<Vec<Found>, Errno> {
    let mut names = Vec::new();
    for entry in Dir::read_from(dir)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." {
            names.push(name.to_vec());
        }
    }
    names.sort_unstable();
    let found = names.into_iter().map(|name| {
        let stat = rustix::fs::statat(dir, name.as_slice(), AtFlags::SYMLINK_NOFOLLOW);
        Found { name, stat }
    });
    // What vanished between listing and asking was not there.
    Ok(found.filter(|found| !matches!(found.stat, Err(Errno::NOENT))).collect())
}

/// A path that names an entry of an open directory, for calls that take no descriptor.
pub(super) fn proc_path(dir: &OwnedFd, name: &[u8]) -> Vec<u8> {
    use std::os::fd::AsRawFd;
    let mut path = format!("/proc/self/fd/{}/", dir.as_raw_fd()).into_bytes();
    path.extend_from_slice(name);
    path
}
