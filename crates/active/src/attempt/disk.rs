//! An attempt's use of this machine's disk: files in its work directory, and files that it has
//! removed and still writes to.
//!
//! A sandboxed program can make anything there: links that lead elsewhere, endlessly nested
//! directories, directories without permissions. So each directory is opened from the one above it
//! and no link is followed, and a directory that cannot be searched counts as too much.

use std::collections::HashSet;
use std::fs::Metadata;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, open, openat, statat, statvfs};
use rustix::io::Errno;

use crate::job::limits::Limits;

/// Disk space of a file besides its bytes, about: a name, an inode.
const EACH: u64 = 1 << 10;
/// Depth of directories at most.
const DEPTH_MAX: usize = 200;

/// The reason when an attempt has too many bytes in files.
pub(super) const TOO_MUCH_ON_DISK: &str = "it wrote more into files than it may (--limits output=SIZE, and half of what is free on this machine's disk)";
/// The reason when an attempt's files cannot be searched.
const OBSCURE: &str = "its work directory cannot be looked through";

/// These limits, with the bytes that an attempt may write into files in `work`: at most half of the
/// free space there. If its output has no limit, its files have none.
pub(crate) fn bounded(limits: &Limits, work: &Path) -> Limits {
    let free = statvfs(work).map(|there| there.f_bavail.saturating_mul(there.f_frsize));
    let output = limits.output.map(|most| free.map_or(most, |free| most.min(free / 2)));
    Limits { output, ..*limits }
}

/// The reason why the files in `work` are more than `most` bytes, if they are.
pub(super) fn exceeds(work: &Path, most: u64) -> Option<&'static str> {
    let Ok(top) = open(work, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()) else { return None };
    Sum { bytes: 0, most, counted: HashSet::new() }.below(&top, 0).err()
}

/// The same for files without a name that processes hold on the disk of `work`. This reads `/proc`,
/// and may block for ever.
pub(super) fn exceeds_removed(
    work: &Path,
    pids: impl IntoIterator<Item = i32>,
    most: u64,
) -> Option<&'static str> {
    let device = std::fs::metadata(work).ok()?.dev();
    let mut sum = Sum { bytes: 0, most, counted: HashSet::new() };
    pids.into_iter().find_map(|pid| sum.removed(pid, device).err())
}

struct Sum {
    bytes: u64,
    most: u64,
    /// Files with several names, or several descriptors, that were counted.
    counted: HashSet<u64>,
}

impl Sum {
    fn add(&mut self, blocks: u64) -> Result<(), &'static str> {
        self.bytes += blocks * 512 + EACH;
        if self.bytes > self.most { Err(TOO_MUCH_ON_DISK) } else { Ok(()) }
    }

    fn below(&mut self, directory: &OwnedFd, depth: usize) -> Result<(), &'static str> {
        if depth > DEPTH_MAX {
            return Err(OBSCURE);
        }
        for entry in Dir::read_from(directory).map_err(|_| OBSCURE)? {
            let entry = entry.map_err(|_| OBSCURE)?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            // It may be gone since.
            let Ok(there) = statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
            if there.st_nlink > 1
                && FileType::from_raw_mode(there.st_mode) == FileType::RegularFile
                && !self.counted.insert(there.st_ino)
            {
                continue;
            }
            self.add(there.st_blocks as u64)?;
            if FileType::from_raw_mode(there.st_mode) == FileType::Directory {
                let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                match openat(directory, name, flags, Mode::empty()) {
                    Ok(below) => self.below(&below, depth + 1)?,
                    Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {}
                    Err(_) => return Err(OBSCURE),
                }
            }
        }
        Ok(())
    }

    /// Adds files of a process without a name, on this device.
    fn removed(&mut self, pid: i32, device: u64) -> Result<(), &'static str> {
        // The process may be over, or another user's: then only the bound of its single files
        // holds.
        for entry in std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten() {
            // Other file systems are not asked, as their servers may not answer.
            let said = std::fs::read_link(entry.path()).unwrap_or_default();
            if !said.as_os_str().as_encoded_bytes().ends_with(b" (deleted)") {
                continue;
            }
            let is_removed =
                |there: &Metadata| there.is_file() && there.nlink() == 0 && there.dev() == device;
            if let Some(there) = std::fs::metadata(entry.path()).ok().filter(is_removed)
                && self.counted.insert(there.ino())
            {
                self.add(there.blocks())?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    #[test]
    fn what_is_in_a_directory_is_summed_and_no_more_than_that() {
        let (work, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        std::fs::write(other.path().join("large"), vec![1; 4 << 20]).unwrap();
        symlink(other.path(), work.path().join("link")).unwrap();
        std::fs::create_dir_all(work.path().join("a/b")).unwrap();
        std::fs::write(work.path().join("a/b/c"), vec![1; 1 << 20]).unwrap();
        std::fs::hard_link(work.path().join("a/b/c"), work.path().join("again")).unwrap();
        let is = |most: u64| exceeds(work.path(), most);
        assert_eq!((is(2 << 20), is(1 << 20)), (None, Some(TOO_MUCH_ON_DISK)));
        // Many empty files take room as well.
        for number in 0..2000 {
            std::fs::write(work.path().join(format!("a/{number}")), "").unwrap();
        }
        assert_eq!((is(4 << 20), is(2 << 20)), (None, Some(TOO_MUCH_ON_DISK)));
        assert_eq!(exceeds(&work.path().join("gone"), 0), None);
    }

    #[test]
    fn a_file_that_was_removed_counts_as_long_as_somebody_has_it() {
        let work = tempfile::tempdir().unwrap();
        let mut file = std::fs::File::create(work.path().join("x")).unwrap();
        std::fs::remove_file(work.path().join("x")).unwrap();
        file.write_all(&vec![1; 1 << 20]).unwrap();
        file.sync_all().unwrap();
        let own = std::process::id() as i32;
        assert_eq!(exceeds_removed(work.path(), [own], 1 << 20), Some(TOO_MUCH_ON_DISK));
        assert_eq!(exceeds_removed(work.path(), [], 1 << 20), None);
        assert_eq!(exceeds(work.path(), 1 << 20), None);
    }

    #[test]
    fn what_cannot_be_looked_through_is_too_much() {
        let work = tempfile::tempdir().unwrap();
        let mut deep = work.path().to_path_buf();
        deep.extend(std::iter::repeat_n("d", DEPTH_MAX + 2));
        std::fs::create_dir_all(deep).unwrap();
        assert_eq!(exceeds(work.path(), 1 << 40), Some(OBSCURE));
        std::fs::remove_dir_all(work.path().join("d")).unwrap();
        if !rustix::process::geteuid().is_root() {
            let closed = work.path().join("closed");
            std::fs::create_dir(&closed).unwrap();
            std::fs::set_permissions(&closed, std::fs::Permissions::from_mode(0o000)).unwrap();
            assert_eq!(exceeds(work.path(), 1 << 40), Some(OBSCURE));
            std::fs::set_permissions(&closed, std::fs::Permissions::from_mode(0o755)).unwrap();
        }
    }

    #[test]
    fn files_may_have_half_of_what_is_free() {
        let work = tempfile::tempdir().unwrap();
        let limits = |output| Limits { output, ..Limits::default() };
        assert_eq!(bounded(&limits(Some(1000)), work.path()).output, Some(1000));
        assert!(bounded(&limits(Some(u64::MAX)), work.path()).output.unwrap() < u64::MAX / 4);
        assert_eq!(bounded(&limits(None), work.path()).output, None);
    }
}
