//! Disk space that is reserved for operations that free space.
//!
//! A full disk must not lock a store: removing a name, committing a removal and reclaiming a pack
//! all write a little. Two things keep space for that.
//!
//! - **The floor.** Content is refused once less than a 64th of the disk is free, or 64 MiB of a
//!   large one ([`Disk::floor`]). Names, commits and reclaiming may use the space below it. A
//!   staging log counts its contents, so that its packs have space, too.
//! - **The file** `reserve`, 4 MiB of a store's directory. The floor does not bind other programs,
//!   and `statvfs` ignores most quotas. A session that finds no space deletes the file; a later one
//!   makes it again.

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FallocateFlags, Mode, OFlags};
use rustix::io::Errno;

use crate::error::{Error, ErrorKind, Result};
use crate::home::Home;
use crate::owner;

/// See the module.
pub(crate) const RESERVE_FILE: &str = "reserve";
const FILE_LEN: u64 = 4 << 20;
const FLOOR_MIN: u64 = 4 << 20;
const FLOOR_MAX: u64 = 64 << 20;

/// How many of so many bytes a test has the disk take.
#[cfg(any(test, feature = "testing"))]
pub(crate) use crate::testing::full::takes;

/// All of them.
#[cfg(not(any(test, feature = "testing")))]
pub(crate) fn takes(len: usize) -> std::io::Result<usize> {
    Ok(len)
}

/// How full a disk is, bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Disk {
    /// Free for users other than root.
    pub free: u64,
    /// Its size.
    pub total: u64,
}

impl Disk {
    /// The disk of a path; `None` where that cannot be found out.
    #[must_use]
    pub fn of(path: &Path) -> Option<Self> {
        Self::told(&rustix::fs::statvfs(path).ok()?)
    }

    /// The disk of an open file or directory.
    #[must_use]
    pub fn of_file(file: impl AsFd) -> Option<Self> {
        Self::told(&rustix::fs::fstatvfs(file).ok()?)
    }

    /// Takes an answer of `statvfs`; `None` for a file system without a size.
    #[must_use]
    pub fn told(answer: &rustix::fs::StatVfs) -> Option<Self> {
        let bytes = |blocks: u64| blocks.saturating_mul(answer.f_frsize);
        let free = if takes(1).is_ok() { bytes(answer.f_bavail) } else { 0 };
        Some(Self { free, total: bytes(answer.f_blocks) }).filter(|disk| disk.total > 0)
    }

    /// Bytes that content leaves free; less on disks of less than 64 MiB.
    #[must_use]
    pub fn floor(&self) -> u64 {
        (self.total / 64).clamp(FLOOR_MIN, FLOOR_MAX).min(self.total / 16)
    }

    /// Bytes of content that there is room for.
    #[must_use]
    pub fn room(&self) -> u64 {
        self.free.saturating_sub(self.floor())
    }
}

/// The reserved space on the disk of a store in a directory.
#[derive(Debug)]
pub(crate) struct Reserve {
    home: Home,
    /// The name of the directory, for messages.
    shown: PathBuf,
}

impl Reserve {
    pub fn of(dir: &Path) -> Self {
        Self { home: Home::of(dir), shown: dir.to_path_buf() }
    }

    /// Before content is written.
    ///
    /// # Errors
    /// `Full` when so many bytes would go below the floor.
    pub fn check_content(&self, bytes: u64) -> Result<()> {
        match Disk::of(self.home.path()) {
            Some(disk) if disk.room() < bytes => {
                let mib = |bytes: u64| bytes.div_ceil(1 << 20);
                let text = format!(
                    "the disk of {} is full: {} MiB are free, and {} MiB are kept for removing and reclaiming",
                    self.shown.display(),
                    mib(disk.free),
                    mib(disk.floor())
                );
                Err(Error::new(ErrorKind::Full, text))
            }
            _ => Ok(()),
        }
    }

    /// Called before names are changed or space is reclaimed. Deletes the file if hardly anything
    /// is free; otherwise makes it if it is missing.
    pub fn tend(&self) {
        let Some(disk) = Disk::of(self.home.path()) else { return };
        if disk.free < disk.floor() / 2 {
            self.give_back();
        } else if disk.room() > FILE_LEN {
            self.keep(FILE_LEN.min(disk.total / 16));
        }
    }

    /// Tries `work` once more with the file's room, if there was none.
    pub fn make_room<T>(&self, work: impl Fn() -> Result<T>) -> Result<T> {
        match work() {
            Err(error) if error.kind() == ErrorKind::Full && self.give_back() => work(),
            done => done,
        }
    }

    /// Gives the file's room back; whether there was any.
    pub fn give_back(&self) -> bool {
        let Ok(file) = self.open(OFlags::WRONLY) else { return false };
        let has_room = rustix::fs::fstat(&file).is_ok_and(|stat| stat.st_size > 0);
        has_room && rustix::fs::ftruncate(&file, 0).is_ok()
    }

    /// Without it there is the floor: a failure is no error.
    fn keep(&self, len: u64) {
        let path = self.home.path().join(RESERVE_FILE);
        if rustix::fs::lstat(&path).is_ok_and(|stat| stat.st_size as u64 >= len) {
            return;
        }
        let Ok(file) = self.open(OFlags::WRONLY | OFlags::CREATE) else { return };
        owner::give_path(&path);
        if rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, len).is_err() {
            let _ = rustix::fs::ftruncate(&file, 0);
        }
    }

    fn open(&self, flags: OFlags) -> Result<std::os::fd::OwnedFd, Errno> {
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        rustix::fs::openat(CWD, self.home.path().join(RESERVE_FILE), flags, Mode::RUSR | Mode::WUSR)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_floor_grows_with_the_disk_up_to_a_bound() {
        let floor = |total| Disk { free: 0, total }.floor();
        assert_eq!(floor(8 << 20), 512 << 10);
        assert_eq!(floor(180 << 20), 4 << 20);
        assert_eq!(floor(1 << 30), 16 << 20);
        assert_eq!(floor(1 << 40), 64 << 20);
        assert_eq!(Disk { free: 20 << 20, total: 1 << 30 }.room(), 4 << 20);
        assert_eq!(Disk { free: 2 << 20, total: 1 << 30 }.room(), 0);
    }

    #[test]
    fn the_file_is_made_once_given_back_once_and_no_link_is_followed() {
        let dir = tempfile::tempdir().unwrap();
        let (reserve, path) = (Reserve::of(dir.path()), dir.path().join(RESERVE_FILE));
        let len = || std::fs::metadata(&path).map(|file| file.len()).unwrap_or(0);
        assert!(!reserve.give_back());
        reserve.tend();
        assert_eq!(len(), FILE_LEN);
        assert!(reserve.give_back());
        assert!(!reserve.give_back());
        assert_eq!(len(), 0);
        reserve.tend();
        assert_eq!(len(), FILE_LEN);
        let elsewhere = dir.path().join("elsewhere");
        std::fs::write(&elsewhere, "precious").unwrap();
        std::fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink(&elsewhere, &path).unwrap();
        reserve.tend();
        assert!(!reserve.give_back());
        assert_eq!(std::fs::read(&elsewhere).unwrap(), b"precious");
    }
}
