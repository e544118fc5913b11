//! Between our types and those of the FUSE crate.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{FileAttr, FileType, INodeNo, Request, TimeOrNow};
use outrigger_format::catalogue::{FileKind, Time};
use rustix::io::Errno;

use crate::fs::{Attr, Caller, SetTime};

/// Unit of `st_blocks`, bytes.
pub const SECTOR: u64 = 512;
/// What `stat` recommends for reading: a frame's worth.
pub const IO_BYTES: u32 = 256 << 10;

/// Who asked.
pub fn caller(request: &Request) -> Caller {
    Caller { uid: request.uid(), gid: request.gid(), pid: request.pid() }
}

/// An error number.
pub fn errno(errno: Errno) -> fuser::Errno {
    fuser::Errno::from_i32(errno.raw_os_error())
}

/// A kind.
pub fn file_type(kind: FileKind) -> FileType {
    match kind {
        FileKind::File => FileType::RegularFile,
        FileKind::Directory => FileType::Directory,
        FileKind::Symlink => FileType::Symlink,
        FileKind::Fifo => FileType::NamedPipe,
        FileKind::Socket => FileType::Socket,
        FileKind::CharDevice => FileType::CharDevice,
        FileKind::BlockDevice => FileType::BlockDevice,
    }
}

/// Attributes.
pub fn file_attr(attr: &Attr) -> FileAttr {
    FileAttr {
        ino: INodeNo(attr.number),
        size: attr.size,
        blocks: attr.allocated.div_ceil(SECTOR),
        atime: system_time(attr.atime),
        mtime: system_time(attr.mtime),
        ctime: system_time(attr.ctime),
        crtime: UNIX_EPOCH,
        kind: file_type(attr.kind),
        perm: (attr.mode & 0o7777) as u16,
        nlink: attr.links,
        uid: attr.uid,
        gid: attr.gid,
        rdev: kernel_device(attr.rdev),
        blksize: IO_BYTES,
        flags: 0,
    }
}

/// Attributes that say no more than number and kind, for where the kernel looks at nothing else.
pub fn bare_attr(number: u64, kind: FileKind) -> FileAttr {
    let time = Time::default();
    let (mode, links, size) = (0, 1, 0);
    let (uid, gid, rdev, allocated) = (0, 0, 0, 0);
    file_attr(&Attr {
        number,
        kind,
        mode,
        links,
        uid,
        gid,
        rdev,
        size,
        allocated,
        atime: time,
        mtime: time,
        ctime: time,
    })
}

/// A device number as FUSE has it: 32 bits, the minor's upper part above the major.
pub fn kernel_device(device: u64) -> u32 {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    minor & 0xff | (major & 0xfff) << 8 | (minor & 0xfff00) << 12
}

/// The reverse of the kernel's 32 bits.
pub fn device(device: u32) -> u64 {
    rustix::fs::makedev(device >> 8 & 0xfff, device & 0xff | device >> 12 & 0xfff00)
}

/// A time; one that the machine cannot express becomes 1970.
pub fn system_time(time: Time) -> SystemTime {
    let (secs, nanos) =
        (Duration::from_secs(time.secs.unsigned_abs()), Duration::from_nanos(time.nanos.into()));
    let whole = if time.secs < 0 { UNIX_EPOCH.checked_sub(secs) } else { UNIX_EPOCH.checked_add(secs) };
    whole.and_then(|whole| whole.checked_add(nanos)).unwrap_or(UNIX_EPOCH)
}

/// The reverse of [`system_time`].
pub fn time(time: SystemTime) -> Time {
    match time.duration_since(UNIX_EPOCH) {
        Ok(since) => Time { secs: since.as_secs() as i64, nanos: since.subsec_nanos() },
        Err(before) => {
            let before = before.duration();
            let borrow = i64::from(before.subsec_nanos() > 0);
            let nanos = (1_000_000_000 - before.subsec_nanos()) % 1_000_000_000;
            Time { secs: -(before.as_secs() as i64) - borrow, nanos }
        }
    }
}

/// A time to set.
pub fn set_time(set: TimeOrNow) -> SetTime {
    match set {
        TimeOrNow::SpecificTime(to) => SetTime::To(time(to)),
        TimeOrNow::Now => SetTime::Now,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_survive_there_and_back() {
        for (secs, nanos) in
            [(0, 0), (-1, 999_999_999), (-2, 0), (1 << 40, 5), (-(1 << 40), 1), (i64::MAX, 0)]
        {
            let there = Time { secs, nanos };
            assert_eq!(time(system_time(there)), there);
        }
    }

    #[test]
    fn devices_survive_there_and_back() {
        for (major, minor) in [(0, 0), (1, 3), (7, 200), (4095, 1_048_575), (259, 300)] {
            let there = rustix::fs::makedev(major, minor);
            assert_eq!(device(kernel_device(there)), there);
        }
    }
}
