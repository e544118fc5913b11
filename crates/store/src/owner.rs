//! Whom it belongs to what is made in a store's directory: whoever owns that.
//!
//! Root works in other people's stores: one agent of root's may serve all users of a host. What it left as its own there, packs above all, would be closed to who owns the store.

use std::os::fd::AsFd;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Gid, Stat, Uid};

/// The owner of a directory with this metadata, if root is to give what it makes there to somebody else.
fn other(above: rustix::io::Result<Stat>) -> Option<(Option<Uid>, Option<Gid>)> {
    let above = above.ok().filter(|above| above.st_uid != 0)?;
    Some((Some(Uid::from_raw(above.st_uid)), Some(Gid::from_raw(above.st_gid))))
}

/// Gives what was just made as `name` in the directory `above` to that directory's owner, if this process is root's. Where that cannot be done (a file system without owners), it stays
/// as it is.
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

/// In somebody else's store, root follows no links that lead out of it: names in it that are links.
pub(crate) fn links(dir: &Path, names: &[&str]) -> Option<String> {
    if !rustix::process::geteuid().is_root() || other(rustix::fs::stat(dir)).is_none() {
        return None;
    }
    let is_link = |name: &&&str| dir.join(name).symlink_metadata().is_ok_and(|found| found.is_symlink());
    names.iter().find(is_link).map(|name| name.to_string())
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
