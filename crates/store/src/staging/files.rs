//! The files of a staging log: a directory of segments that one process owns.
//!
//! The log uses the operating system only through [`Files`] and [`SegmentFile`]. So tests can run
//! it in memory, let it fail, and record what a disk would have seen. The lock is flock'ed, so it
//! ends with the process, also after a crash.

use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};

use rustix::fd::OwnedFd;
use rustix::fs::{AtFlags, FallocateFlags, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use crate::disk::{Disk, takes};
use crate::error::{Context, Error, ErrorKind, Result};

/// The `statfs` type of a FUSE mount, from `linux/magic.h`.
const FUSE_SUPER_MAGIC: u64 = 0x6573_5546;

const LOCK_FILE: &str = "lock";

/// A place for segments, named by their numbers.
pub(super) trait Files: Send + Sync {
    /// A new, empty segment; an earlier one of that number is gone.
    fn create(&self, number: u32) -> io::Result<Box<dyn SegmentFile>>;
    /// A segment that is there.
    fn open(&self, number: u32) -> io::Result<Box<dyn SegmentFile>>;
    /// Removes a segment's name; one that is not there is no error.
    fn remove(&self, number: u32) -> io::Result<()>;
    /// Numbers of all segments, rising.
    fn list(&self) -> io::Result<Vec<u32>>;
    /// Makes all names, new and removed, durable.
    fn sync(&self) -> io::Result<()>;
    /// The disk that segments lie on, where that can be found out.
    fn disk(&self) -> Option<Disk>;
    /// Removes the place itself, in which there are no segments any more.
    fn remove_directory(&self) -> io::Result<()>;
    /// The name of a segment, for messages.
    fn name(&self, number: u32) -> String;
}

/// One open segment. Dropping it closes it.
pub(super) trait SegmentFile: Send + Sync {
    /// One write of all parts at `offset`; returns how many bytes were taken.
    fn write(&self, parts: &[IoSlice<'_>], offset: u64) -> io::Result<usize>;
    /// One read; 0 at the end of the file.
    fn read(&self, buf: &mut [u8], offset: u64) -> io::Result<usize>;
    /// Bytes in the file.
    fn len(&self) -> io::Result<u64>;
    /// Reserves room beyond the end, without changing the length.
    fn reserve(&self, offset: u64, len: u64) -> io::Result<()>;
    /// Sets the length, and gives back room beyond it.
    fn truncate(&self, len: u64) -> io::Result<()>;
    /// Makes data and length durable.
    fn sync(&self) -> io::Result<()>;
}

/// Segments as files of a directory.
pub(super) struct Directory {
    path: PathBuf,
    dir: OwnedFd,
    /// Held for as long as it is open.
    _lock: OwnedFd,
}

impl Directory {
    /// Opens the directory, making it if it is missing, and locks it.
    ///
    /// # Errors
    /// `Busy` when another process has it; `Invalid` when it lies on a FUSE mount.
    pub fn open(path: &Path) -> Result<Self> {
        let what = || format!("cannot open the staging directory {}", path.display());
        let above = path.ancestors().filter(|dir| !dir.as_os_str().is_empty());
        let missing: Vec<&Path> = above.take_while(|dir| !dir.exists()).collect();
        for dir in missing.iter().rev() {
            match rustix::fs::mkdir(*dir, Mode::RWXU) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(error) => return Err(error).context(|| format!("cannot create {}", dir.display())),
            }
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = rustix::fs::open(path, flags, Mode::empty()).context(what)?;
        refuse_fuse(rustix::fs::fstatfs(&dir).context(what)?.f_type as u64, path)?;
        let lock_flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC;
        let lock = rustix::fs::openat(&dir, LOCK_FILE, lock_flags, Mode::RUSR | Mode::WUSR).context(what)?;
        match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => {
                let text = format!("the staging directory {} is in use by another mount", path.display());
                return Err(Error::new(ErrorKind::Busy, text));
            }
            Err(error) => return Err(error).context(what),
        }
        // The names that lead to it: their maker may have been killed before it synced them. `..`
        // is used, as a relative path may lack a parent.
        let mut above = rustix::fs::openat(&dir, "..", flags, Mode::empty()).context(what)?;
        rustix::fs::fsync(&above).context(what)?;
        for _ in 1..missing.len().max(2) {
            above = rustix::fs::openat(&above, "..", flags, Mode::empty()).context(what)?;
            rustix::fs::fsync(&above).context(what)?;
        }
        Ok(Self { path: path.to_owned(), dir, _lock: lock })
    }
}

/// A log on the mount that it serves would wait for itself; on another FUSE mount, it is unknown
/// what a sync guarantees.
fn refuse_fuse(kind: u64, path: &Path) -> Result<()> {
    if kind & 0xffff_ffff != FUSE_SUPER_MAGIC {
        return Ok(());
    }
    let text =
        format!("the staging directory {} lies on a FUSE mount; put it on a local disk", path.display());
    Err(Error::new(ErrorKind::Invalid, text))
}

fn file_name(number: u32) -> String {
    format!("{number:08}.log")
}

fn parse(name: &str) -> Option<u32> {
    let number = name.strip_suffix(".log")?.parse().ok()?;
    (number > 0 && file_name(number) == name).then_some(number)
}

impl Files for Directory {
    fn create(&self, number: u32) -> io::Result<Box<dyn SegmentFile>> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&self.dir, file_name(number), flags, Mode::RUSR | Mode::WUSR)?;
        Ok(Box::new(Plain(file)))
    }

    fn open(&self, number: u32) -> io::Result<Box<dyn SegmentFile>> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        Ok(Box::new(Plain(rustix::fs::openat(&self.dir, file_name(number), flags, Mode::empty())?)))
    }

    fn remove(&self, number: u32) -> io::Result<()> {
        match rustix::fs::unlinkat(&self.dir, file_name(number), AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn list(&self) -> io::Result<Vec<u32>> {
        let mut numbers = Vec::new();
        for entry in rustix::fs::Dir::read_from(&self.dir)? {
            numbers.extend(entry?.file_name().to_str().ok().and_then(parse));
        }
        numbers.sort_unstable();
        Ok(numbers)
    }

    fn sync(&self) -> io::Result<()> {
        Ok(rustix::fs::fsync(&self.dir)?)
    }

    fn disk(&self) -> Option<Disk> {
        Disk::of_file(&self.dir)
    }

    fn remove_directory(&self) -> io::Result<()> {
        rustix::fs::unlinkat(&self.dir, LOCK_FILE, AtFlags::empty())?;
        // In the directory that it lies in now: its path may lead to another by now.
        let above = rustix::fs::openat(&self.dir, "..", OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
        let name = self.path.file_name().ok_or(Errno::INVAL)?;
        rustix::fs::unlinkat(above, name, AtFlags::REMOVEDIR)?;
        Ok(())
    }

    fn name(&self, number: u32) -> String {
        self.path.join(file_name(number)).display().to_string()
    }
}

struct Plain(OwnedFd);

impl SegmentFile for Plain {
    fn write(&self, parts: &[IoSlice<'_>], offset: u64) -> io::Result<usize> {
        let len = parts.iter().map(|part| part.len()).sum();
        let taken = takes(len)?;
        if taken < len {
            let first = parts.first().map_or(&[][..], |part| &part[..]);
            return Ok(rustix::io::pwrite(&self.0, &first[..taken.min(first.len())], offset)?);
        }
        Ok(rustix::io::pwritev(&self.0, parts, offset)?)
    }

    fn read(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        Ok(rustix::io::pread(&self.0, buf, offset)?)
    }

    fn len(&self) -> io::Result<u64> {
        Ok(rustix::fs::fstat(&self.0)?.st_size as u64)
    }

    fn reserve(&self, offset: u64, len: u64) -> io::Result<()> {
        takes(len as usize)?;
        Ok(rustix::fs::fallocate(&self.0, FallocateFlags::KEEP_SIZE, offset, len)?)
    }

    fn truncate(&self, len: u64) -> io::Result<()> {
        Ok(rustix::fs::ftruncate(&self.0, len)?)
    }

    fn sync(&self) -> io::Result<()> {
        Ok(rustix::fs::fdatasync(&self.0)?)
    }
}

/// Fills `buf` from `offset`; `UnexpectedEof` when the file ends before.
pub(super) fn read_whole(file: &dyn SegmentFile, mut buf: &mut [u8], mut offset: u64) -> io::Result<()> {
    while !buf.is_empty() {
        match file.read(buf, offset) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(n) => {
                buf = &mut buf[n..];
                offset += n as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Writes all of `parts` at `offset`: in one call, unless the file takes less at once.
pub(super) fn write_whole(
    file: &dyn SegmentFile,
    mut parts: &mut [IoSlice<'_>],
    mut offset: u64,
) -> io::Result<()> {
    IoSlice::advance_slices(&mut parts, 0);
    while !parts.is_empty() {
        match file.write(parts, offset) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(n) => {
                IoSlice::advance_slices(&mut parts, n);
                offset += n as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_what_they_say() {
        assert_eq!(file_name(7), "00000007.log");
        assert_eq!(parse("00000007.log"), Some(7));
        assert_eq!(parse(&file_name(u32::MAX)), Some(u32::MAX));
        for other in ["7.log", "00000000.log", "+0000007.log", "00000007.log.old", "lock", "99999999999.log"]
        {
            assert_eq!(parse(other), None, "{other}");
        }
    }

    #[test]
    fn a_fuse_mount_is_refused() {
        assert_eq!(refuse_fuse(FUSE_SUPER_MAGIC, Path::new("/x")).unwrap_err().kind(), ErrorKind::Invalid);
        refuse_fuse(0xef53, Path::new("/x")).unwrap();
    }

    #[test]
    fn one_owner() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("staging/name");
        let owner = Directory::open(&path).unwrap();
        assert_eq!(Directory::open(&path).err().unwrap().kind(), ErrorKind::Busy);
        drop(owner);
        Directory::open(&path).unwrap();
    }
}
