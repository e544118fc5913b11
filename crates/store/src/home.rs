//! The directory in which something was opened, even if its path changes.
//!
//! While a store is in use, its path may come to mean another directory: a user moves the store
//! away and makes a new one in its place, or removes it. A mount that opened its files by that path
//! would then mix two stores. So a store opens its directory once, and finds everything that it
//! opens later through that descriptor. A store that is moved goes on at its new place.
//! [`Sessions::still_there`](crate::meta::Sessions::still_there) says whether it was removed.
//!
//! SQLite opens files by a name, and needs one without links. So the descriptor's link in `/proc`
//! is resolved to the directory's present path.

use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, Stat};

/// An open directory.
#[derive(Debug)]
pub struct Home {
    path: PathBuf,
    /// The descriptor that `path` leads through.
    _dir: Option<OwnedFd>,
}

impl Home {
    /// Opens the directory. If that fails, or `/proc` does not show it, only its name is known.
    #[must_use]
    pub fn of(name: &Path) -> Self {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = rustix::fs::openat(CWD, name, flags, Mode::empty()).ok();
        let through = dir.as_ref().map(|dir| PathBuf::from(format!("/proc/self/fd/{}", dir.as_raw_fd())));
        let is_shown = |through: &PathBuf| {
            let shown = through.read_link().ok().and_then(|shown| rustix::fs::stat(&shown).ok());
            let open = dir.as_ref().and_then(|dir| rustix::fs::fstat(dir).ok());
            matches!((shown, open), (Some(shown), Some(open)) if identity(&shown) == identity(&open))
        };
        let path = through.filter(is_shown).unwrap_or_else(|| name.to_path_buf());
        Self { path, _dir: dir }
    }

    /// A path that leads to this directory for as long as `self` lives, and to no other.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The present path of the directory, for people and other processes.
    #[must_use]
    pub fn lies_at(&self) -> PathBuf {
        self.path.read_link().unwrap_or_else(|_| self.path.clone())
    }
}

/// The file's identity, as long as it exists.
pub(crate) fn identity(stat: &Stat) -> (u64, u64) {
    (stat.st_dev, stat.st_ino)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moved_directory_is_found_and_another_in_its_place_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let (here, there) = (dir.path().join("here"), dir.path().join("there"));
        std::fs::create_dir(&here).unwrap();
        std::fs::write(here.join("file"), "first").unwrap();
        let home = Home::of(&here);
        std::fs::rename(&here, &there).unwrap();
        std::fs::create_dir(&here).unwrap();
        std::fs::write(here.join("file"), "second").unwrap();
        assert_eq!(std::fs::read(home.path().join("file")).unwrap(), b"first");
        assert_eq!(home.lies_at(), there.canonicalize().unwrap());
    }

    #[test]
    fn what_cannot_be_opened_is_known_by_its_name() {
        assert_eq!(Home::of(Path::new("/no/such/place")).path(), Path::new("/no/such/place"));
    }
}
