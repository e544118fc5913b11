//! An open file of this machine: its kind, its status, its holes and its extended attributes.

use std::os::fd::{AsFd, OwnedFd};

use outrigger_format::catalogue::{FileKind, Time, Xattrs};
use outrigger_format::checksum;
use rustix::io::Errno;

/// The fields of `stat` that distinguish one content of a file from another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SourceStat {
    /// Bytes.
    pub size: u64,
    /// 512-byte blocks allocated.
    pub blocks: u64,
    /// Last modification of the content.
    pub mtime: Time,
    /// Last change of the inode.
    pub ctime: Time,
    /// Inode number at the source.
    pub inode: u64,
    /// Permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
}

impl SourceStat {
    /// A digest of size, mtime, ctime and inode that a later put compares. It is 0 when the file
    /// may change within the clock tick of `scan_start`, and so must be read again next time.
    pub fn stamp(&self, scan_start: Time) -> u64 {
        if self.ctime >= scan_start {
            return 0;
        }
        let mut bytes = [0; 40];
        bytes[..8].copy_from_slice(&self.size.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.mtime.secs.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.mtime.nanos.to_le_bytes());
        bytes[20..28].copy_from_slice(&self.ctime.secs.to_le_bytes());
        bytes[28..32].copy_from_slice(&self.ctime.nanos.to_le_bytes());
        bytes[32..].copy_from_slice(&self.inode.to_le_bytes());
        checksum(&[&bytes]).max(1)
    }

    /// True when `other` is the same: nothing was written in between.
    pub fn same_content(&self, other: &SourceStat) -> bool {
        self.size == other.size
            && self.mtime == other.mtime
            && self.ctime == other.ctime
            && self.inode == other.inode
    }

    /// True when blocks are missing: the file may have holes.
    pub fn is_sparse(&self) -> bool {
        self.blocks.saturating_mul(512) < self.size
    }
}

/// A run of data in a sparse file, and the hole before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Bytes of hole before it.
    pub hole_before: u64,
    /// Where the data begins.
    pub start: u64,
    /// Its length; 0 only for the last one, when the file ends in a hole.
    pub len: u64,
}

pub(crate) fn source_stat(stat: &rustix::fs::Stat) -> SourceStat {
    SourceStat {
        size: stat.st_size as u64,
        blocks: stat.st_blocks as u64,
        mtime: Time { secs: stat.st_mtime, nanos: stat.st_mtime_nsec as u32 },
        ctime: Time { secs: stat.st_ctime, nanos: stat.st_ctime_nsec as u32 },
        inode: stat.st_ino,
        mode: stat.st_mode & 0o7777,
        uid: stat.st_uid,
        gid: stat.st_gid,
    }
}

/// Calls `fstat` on an open file.
pub(crate) fn fstat(fd: &OwnedFd) -> Result<SourceStat, Errno> {
    rustix::fs::fstat(fd).map(|stat| source_stat(&stat))
}

/// The kind of a file by its `st_mode`; `None` for what Linux does not have.
pub fn kind_of(st_mode: u32) -> Option<FileKind> {
    use rustix::fs::FileType;
    Some(match FileType::from_raw_mode(st_mode) {
        FileType::RegularFile => FileKind::File,
        FileType::Directory => FileKind::Directory,
        FileType::Symlink => FileKind::Symlink,
        FileType::Fifo => FileKind::Fifo,
        FileType::Socket => FileKind::Socket,
        FileType::CharacterDevice => FileKind::CharDevice,
        FileType::BlockDevice => FileKind::BlockDevice,
        FileType::Unknown => return None,
    })
}

/// Data and holes of a file of `size` bytes; a file system that cannot tell answers with one run of
/// data.
pub(crate) fn extents(fd: &OwnedFd, size: u64) -> Result<Vec<Extent>, Errno> {
    use rustix::fs::SeekFrom;
    let mut extents = Vec::new();
    let mut at = 0;
    while at < size {
        let start = match rustix::fs::seek(fd, SeekFrom::Data(at)) {
            Ok(start) => start.min(size),
            Err(Errno::NXIO) => size,
            Err(Errno::INVAL) => at,
            Err(errno) => return Err(errno),
        };
        let end = if start == size {
            size
        } else {
            match rustix::fs::seek(fd, SeekFrom::Hole(start)) {
                Ok(end) => end.min(size),
                Err(Errno::NXIO | Errno::INVAL) => size,
                Err(errno) => return Err(errno),
            }
        };
        extents.push(Extent { hole_before: start - at, start, len: end - start });
        at = end;
    }
    Ok(extents)
}

/// All extended attributes of an open file, ACLs among them, sorted by name. A file system without
/// them has none.
pub(crate) fn xattrs(fd: impl AsFd) -> Result<Xattrs, Errno> {
    let fd = fd.as_fd();
    collect_xattrs(
        |room| rustix::fs::flistxattr(fd, room),
        |name, room| rustix::fs::fgetxattr(fd, name, room),
    )
}

/// Like [`xattrs`], for files that cannot be opened (symlinks, devices): `path` is not followed.
pub(crate) fn path_xattrs(path: &[u8]) -> Result<Xattrs, Errno> {
    collect_xattrs(
        |room| rustix::fs::llistxattr(path, room),
        |name, room| rustix::fs::lgetxattr(path, name, room),
    )
}

fn collect_xattrs(
    list: impl Fn(&mut [u8]) -> Result<usize, Errno>,
    get: impl Fn(&[u8], &mut [u8]) -> Result<usize, Errno>,
) -> Result<Xattrs, Errno> {
    let mut small = [0; 256];
    let names = match list(&mut small) {
        Ok(0) | Err(Errno::NOTSUP) => return Ok(Vec::new()),
        Ok(len) => small[..len].to_vec(),
        Err(Errno::RANGE) => grow(|room| list(room))?,
        Err(errno) => return Err(errno),
    };
    let mut xattrs = Vec::new();
    for name in names.split(|&byte| byte == 0).filter(|name| !name.is_empty()) {
        match grow(|room| get(name, room)) {
            Ok(value) => xattrs.push((name.to_vec(), value)),
            // Removed since it was listed, or not readable by this user at all.
            Err(Errno::NODATA | Errno::NOTSUP) => {}
            Err(errno) => return Err(errno),
        }
    }
    xattrs.sort();
    Ok(xattrs)
}

/// The kernel's limit for one value and for the list of names.
const XATTR_MAX: usize = 64 << 10;

fn grow(fill: impl Fn(&mut [u8]) -> Result<usize, Errno>) -> Result<Vec<u8>, Errno> {
    let mut room = vec![0; 1024];
    loop {
        match fill(&mut room) {
            Ok(len) => {
                room.truncate(len);
                return Ok(room);
            }
            Err(Errno::RANGE) if room.len() < XATTR_MAX => room.resize(XATTR_MAX, 0),
            Err(errno) => return Err(errno),
        }
    }
}
