//! Gives new files in a store's directory to the owner of that directory.
//!
//! Root may work in other users' stores: one agent of root's may serve all users of a host. Files
//! that stayed root's, packs above all, would be closed to the store's owner.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Gid, Mode, OFlags, ResolveFlags, Stat, Uid};
use rustix::io::Errno;
use rustix::path::Arg;

/// The owner of a directory with this metadata, if root is to give new files to another user.
fn other(above: rustix::io::Result<Stat>) -> Option<(Option<Uid>, Option<Gid>)> {
    let above = above.ok().filter(|above| above.st_uid != 0)?;
    Some((Some(Uid::from_raw(above.st_uid)), Some(Gid::from_raw(above.st_gid))))
}

/// Gives a new entry `name` in the directory `above` to that directory's owner, if this process is
/// root's. If that fails (a file system without owners), the entry stays as it is.
pub(crate) fn give(above: impl AsFd, name: &str) {
    if rustix::process::geteuid().is_root()
        && let Some((uid, gid)) = other(rustix::fs::fstat(&above))
    {
        let _ = rustix::fs::chownat(above, name, uid, gid, AtFlags::SYMLINK_NOFOLLOW);
    }
}

/// The same of a file that was just made below the directory `above`.
pub(crate) fn give_file(above: impl AsFd, file: impl AsFd) {
    if rustix::process::geteuid().is_root()
        && let Some((uid, gid)) = other(rustix::fs::fstat(&above))
    {
        let _ = rustix::fs::fchown(file, uid, gid);
    }
}

/// In another user's store, root follows no links that lead out of it: returns a name that is a
/// link.
pub(crate) fn links(dir: &Path, names: &[&str]) -> Option<String> {
    if !is_others(dir) {
        return None;
    }
    let is_link = |name: &&&str| dir.join(name).symlink_metadata().is_ok_and(|found| found.is_symlink());
    names.iter().find(is_link).map(|name| name.to_string())
}

/// True if this process is root's and the store another user's.
pub(crate) fn is_others(dir: &Path) -> bool {
    rustix::process::geteuid().is_root() && other(rustix::fs::stat(dir)).is_some()
}

/// Opens an entry below a directory. No link is followed: the directory's owner may have made one
/// that leads root elsewhere.
///
/// # Errors
/// Those of `openat2`; `LOOP` and `XDEV` for links.
pub fn open_below(dir: impl AsFd, path: impl Arg, flags: OFlags, mode: Mode) -> rustix::io::Result<OwnedFd> {
    let (dir, path) = (dir.as_fd(), path.into_c_str()?);
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    match rustix::fs::openat2(dir, &*path, flags, mode, resolve) {
        // Kernels before 5.6.
        Err(Errno::NOSYS) => rustix::fs::openat(dir, &*path, flags | OFlags::NOFOLLOW, mode),
        opened => opened,
    }
}

/// Flags that make opening fail for a link.
pub(crate) const NO_LINK: i32 = OFlags::NOFOLLOW.bits().cast_signed();

/// Opens a file for writing, and makes it if it is missing. With `empties` it is truncated, as by
/// [`File::create`]. Fails for a link.
pub(crate) fn create(path: &Path, empties: bool) -> std::io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(empties).custom_flags(NO_LINK).open(path)
}

/// Writes a file, as [`std::fs::write`] does; not where a link is in its place.
pub(crate) fn write(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    create(path, true)?.write_all(bytes)
}

/// As [`give`], by its path.
pub(crate) fn give_path(path: &Path) {
    if rustix::process::geteuid().is_root()
        && let Some(above) = path.parent()
        && let Some((uid, gid)) = other(rustix::fs::stat(above))
    {
        let _ = rustix::fs::chownat(CWD, path, uid, gid, AtFlags::SYMLINK_NOFOLLOW);
    }
}
