//! The table of operations.

use outrigger_format::catalogue::{DOMAIN_XATTR, FileKind, Time};
use outrigger_store::file::kind_of;
use rustix::fs::{FallocateFlags, RenameFlags, XattrFlags};
use rustix::io::Errno;

use super::super::convert::device;
use super::decode::{Fields, Request};
use super::encode::Encode as _;
use super::lock::{Asked, in_the_way};
use super::opcode::*;
use crate::fs::{
    Caller, DROP_SET_GROUP, Effort, FileSystem, Found, NewNode, OpenFlags, Part, Result, Seek, SetAttr,
    SetTime,
};

/// `GETATTR` comes with a handle.
const GETATTR_FH: u32 = 1;
/// `WRITE` ends what the set-id bits allowed.
const WRITE_KILL_SUIDGID: u32 = 4;
/// `SETXATTR` of an ACL ends what the set-group bit allowed.
const SETXATTR_ACL_KILL_SGID: u32 = 1;
/// `FSYNC` is `fdatasync`.
const FSYNC_DATA: u32 = 1;

/// Carries out `request` and appends the answer to `out`, which counts for nothing after an error.
///
/// # Errors
/// The file system's, and `ENOSYS` for what it has no call for, upon which the kernel does without.
pub fn answer<F: FileSystem>(fs: &F, request: &Request<'_>, out: &mut Vec<u8>) -> Result<()> {
    let Request { number, caller, fields: head, rest, .. } = *request;
    let mut call = Call { fs, number, caller, head, rest, out };
    request.asked().answering(|| call.carry_out(request))
}

/// A request that is being carried out.
struct Call<'a, F> {
    fs: &'a F,
    number: u64,
    caller: Caller,
    /// Fixed fields that were not read yet.
    head: Fields<'a>,
    /// Names, values and data that were not read yet.
    rest: Fields<'a>,
    out: &'a mut Vec<u8>,
}

impl<F: FileSystem> Call<'_, F> {
    fn carry_out(&mut self, request: &Request<'_>) -> Result<()> {
        let Self { fs, number, caller, head, rest, out } = self;
        let (number, caller, opcode) = (*number, *caller, request.opcode);
        match opcode {
            LOOKUP => match fs.lookup(caller, number, rest.name()?)? {
                Found::Entry(entry) => out.entry(&entry),
                Found::Missing { valid } => out.no_entry(valid),
            },
            GETATTR => {
                let (flags, _, handle) = (head.u32()?, head.u32()?, head.u64()?);
                let handle = (flags & GETATTR_FH != 0).then_some(handle);
                out.attributes(&fs.attributes(caller, number, handle)?);
            }
            SETATTR => out.attributes(&fs.set_attributes(caller, number, &set_attr(head)?)?),
            READLINK => out.extend(fs.read_link(caller, number)?),
            SYMLINK => {
                let (name, target) = (rest.name()?, rest.name()?);
                out.entry(&fs.symlink(caller, number, name, target)?);
            }
            MKNOD => {
                let (mode, rdev, umask) = (head.u32()?, head.u32()?, head.u32()?);
                let kind = kind_of(mode).ok_or(Errno::INVAL)?;
                let node = NewNode { kind, mode: mode & 0o7777, umask, rdev: device(rdev) };
                out.entry(&fs.make(caller, number, rest.name()?, node)?);
            }
            MKDIR => {
                let (mode, umask) = (head.u32()?, head.u32()?);
                let node = NewNode { kind: FileKind::Directory, mode: mode & 0o7777, umask, rdev: 0 };
                out.entry(&fs.make(caller, number, rest.name()?, node)?);
            }
            UNLINK => fs.unlink(caller, number, rest.name()?)?,
            RMDIR => fs.remove_dir(caller, number, rest.name()?)?,
            RENAME | RENAME2 => self.rename(opcode == RENAME2)?,
            LINK => out.entry(&fs.link(caller, head.u64()?, number, rest.name()?)?),
            OPEN => {
                out.opened(fs.open(caller, number, OpenFlags::from_bits_retain(head.u32()?))?, false);
            }
            READ => {
                let Range { handle, offset, len } = Range::new(head)?;
                fs.read(number, handle, offset, len, out)?;
            }
            WRITE => self.write()?,
            STATFS => out.statfs(&fs.statfs()?),
            RELEASE => fs.release(number, head.u64()?),
            FSYNC => {
                let (handle, flags) = (head.u64()?, head.u32()?);
                fs.fsync(number, handle, flags & FSYNC_DATA != 0)?;
            }
            SETXATTR => self.set_xattr()?,
            GETXATTR => {
                let name = rest.name()?;
                // No user sees or changes an inode's domain.
                let found =
                    if name == DOMAIN_XATTR { Err(Errno::NODATA) } else { fs.xattr(caller, number, name) };
                value(head.u32()?, found?, out)?;
            }
            LISTXATTR => self.list_xattrs()?,
            REMOVEXATTR => match rest.name()? {
                DOMAIN_XATTR => return Err(Errno::NODATA),
                name => fs.remove_xattr(caller, number, name)?,
            },
            FLUSH => self.flush()?,
            GETLK => in_the_way(out, fs.locked_by(number, &Asked::new(request)?.lock)?),
            OPENDIR => out.opened(fs.open_dir(caller, number)?, true),
            READDIR | READDIRPLUS => self.read_dir(opcode == READDIRPLUS)?,
            RELEASEDIR => fs.release_dir(number, head.u64()?),
            FSYNCDIR => fs.fsync_dir(number, head.u64()?)?,
            // Asked only if the kernel was told not to check: then any user that may enter the mount
            // may do anything.
            ACCESS | DESTROY => (),
            CREATE | TMPFILE => self.create(opcode == CREATE)?,
            FALLOCATE => self.allocate()?,
            LSEEK => self.seek()?,
            COPY_FILE_RANGE => self.copy_range()?,
            _ => return Err(Errno::NOSYS),
        }
        Ok(())
    }

    fn rename(&mut self, has_flags: bool) -> Result<()> {
        let to = self.head.u64()?;
        let flags = if has_flags { self.head.u32()? } else { 0 };
        let flags = RenameFlags::from_bits_retain(flags);
        let (from, to) = ((self.number, self.rest.name()?), (to, self.rest.name()?));
        self.fs.rename(self.caller, from, to, flags)
    }

    /// Makes a file and opens it; without a name if it is not `named`.
    fn create(&mut self, named: bool) -> Result<()> {
        let Self { fs, number, caller, head, rest, out } = self;
        let (flags, mode, umask) = (head.u32()?, head.u32()?, head.u32()?);
        let node = NewNode { kind: FileKind::File, mode: mode & 0o7777, umask, rdev: 0 };
        let flags = OpenFlags::from_bits_retain(flags);
        let (entry, opened) = match named {
            true => fs.create(*caller, *number, rest.name()?, node, flags)?,
            // The name that comes along means nothing.
            false => fs.create_anonymous(*caller, *number, node, flags)?,
        };
        out.entry(&entry);
        out.opened(opened, false);
        Ok(())
    }

    fn write(&mut self) -> Result<()> {
        let Range { handle, offset, len } = Range::new(&mut self.head)?;
        let drop_set_id = self.head.u32()? & WRITE_KILL_SUIDGID != 0;
        let data = self.rest.bytes(len)?;
        self.fs.write(self.caller, self.number, handle, offset, data, drop_set_id)?;
        self.out.u32(len as u32);
        self.out.u32(0);
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        let (handle, _, owner) = (self.head.u64()?, self.head.u64()?, self.head.u64()?);
        let flushed = self.fs.flush(self.caller, self.number, handle);
        // Also after a failed flush.
        self.fs.closed_by(self.number, owner);
        flushed
    }

    fn allocate(&mut self) -> Result<()> {
        let head = &mut self.head;
        let part = Part { number: self.number, handle: head.u64()?, offset: head.u64()? };
        let (len, mode) = (head.u64()?, FallocateFlags::from_bits_retain(head.u32()?));
        self.fs.allocate(self.caller, part, len, mode)
    }

    fn seek(&mut self) -> Result<()> {
        let (handle, offset, whence) = (self.head.u64()?, self.head.u64()?, self.head.u32()?);
        let to = match whence {
            3 => Seek::Data,
            4 => Seek::Hole,
            // The kernel does the others itself.
            _ => return Err(Errno::INVAL),
        };
        if offset > i64::MAX as u64 {
            return Err(Errno::NXIO);
        }
        self.out.u64(self.fs.seek(self.number, handle, offset, to)?);
        Ok(())
    }

    fn copy_range(&mut self) -> Result<()> {
        let head = &mut self.head;
        let from = Part { number: self.number, handle: head.u64()?, offset: head.u64()? };
        let to = Part { number: head.u64()?, handle: head.u64()?, offset: head.u64()? };
        // The answer has 32 bits; the caller comes back for the rest.
        let len = head.u64()?.min(u64::from(u32::MAX) & !0xfff);
        self.out.u32(self.fs.copy_range(self.caller, from, to, len)? as u32);
        self.out.u32(0);
        Ok(())
    }

    fn read_dir(&mut self, attributes: bool) -> Result<()> {
        let Range { handle, offset, len } = Range::new(&mut self.head)?;
        let out = &mut *self.out;
        self.fs.read_dir(self.number, handle, offset, attributes, &mut |entry| {
            out.dir_entry(entry, attributes, len)
        })
    }

    fn set_xattr(&mut self) -> Result<()> {
        let (len, flags) = (self.head.u32()?, self.head.u32()?);
        let kills_group = self.head.u32().unwrap_or(0) & SETXATTR_ACL_KILL_SGID != 0;
        let (name, value) = (self.rest.name()?, self.rest.bytes(len as usize)?);
        if name == DOMAIN_XATTR {
            return Err(Errno::OPNOTSUPP);
        }
        let mut flags = XattrFlags::from_bits_retain(flags);
        flags.set(DROP_SET_GROUP, kills_group);
        self.fs.set_xattr(self.caller, self.number, name, value, flags)
    }

    fn list_xattrs(&mut self) -> Result<()> {
        let names = self.fs.xattrs(self.caller, self.number)?;
        let names = names
            .into_iter()
            .filter(|name| name != DOMAIN_XATTR)
            .flat_map(|name| name.into_iter().chain([0]))
            .collect();
        value(self.head.u32()?, names, self.out)
    }
}

/// The effort of a request, for [`FileSystem::keeps`].
pub fn effort(request: &Request<'_>) -> Effort {
    let mut head = request.fields;
    let mut len = || Range::new(&mut head).map_or(0, |range| range.len);
    match request.opcode {
        READ => Effort::Read { number: request.number, len: len() },
        WRITE => Effort::Write { number: request.number, len: len() },
        FLUSH => Effort::Flush,
        FSYNC | FSYNCDIR => Effort::Sync,
        FALLOCATE | COPY_FILE_RANGE => Effort::Copy,
        _ => Effort::Names,
    }
}

/// Where `READ`, `WRITE`, `READDIR` and `READDIRPLUS` begin alike.
struct Range {
    handle: u64,
    offset: u64,
    len: usize,
}

impl Range {
    fn new(head: &mut Fields<'_>) -> Result<Self> {
        Ok(Self { handle: head.u64()?, offset: head.u64()?, len: head.u32()? as usize })
    }
}

/// Extended attributes are asked for twice: for the room they need, then for the bytes.
fn value(room: u32, value: Vec<u8>, out: &mut Vec<u8>) -> Result<()> {
    if room == 0 {
        out.u32(value.len() as u32);
        out.u32(0);
    } else if value.len() > room as usize {
        return Err(Errno::RANGE);
    } else {
        out.extend(value);
    }
    Ok(())
}

/// `fuse_setattr_in`: all fields are there, and bits say which count.
fn set_attr(head: &mut Fields<'_>) -> Result<SetAttr> {
    let (valid, _) = (head.u32()?, head.u32()?);
    let (handle, size, _lock_owner) = (head.u64()?, head.u64()?, head.u64()?);
    let secs = [head.u64()?, head.u64()?, head.u64()?];
    let nanos = [head.u32()?, head.u32()?, head.u32()?];
    let (mode, _, uid, gid) = (head.u32()?, head.u32()?, head.u32()?, head.u32()?);
    let is = |bit: u32| valid & 1 << bit != 0;
    let time = |which: usize| Time { secs: secs[which] as i64, nanos: nanos[which] };
    let set_time =
        |given, now, which| is(given).then(|| if is(now) { SetTime::Now } else { SetTime::To(time(which)) });
    Ok(SetAttr {
        mode: is(0).then_some(mode & 0o7777),
        uid: is(1).then_some(uid),
        gid: is(2).then_some(gid),
        size: is(3).then_some(size),
        atime: set_time(4, 7, 0),
        mtime: set_time(5, 8, 1),
        handle: is(6).then_some(handle),
        ctime: is(10).then(|| time(2)),
    })
}
