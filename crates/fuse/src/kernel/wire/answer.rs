//! The table of operations.

use outrigger_format::catalogue::{FileKind, Time};
use outrigger_store::file::kind_of;
use rustix::fs::{FallocateFlags, RenameFlags, XattrFlags};
use rustix::io::Errno;

use super::super::convert::device;
use super::decode::{Fields, Request};
use super::encode::Encode as _;
use super::lock::{Asked, in_the_way};
use super::opcode::*;
use crate::fs::{
    DROP_SET_GROUP, Effort, FileSystem, Found, NewNode, OpenFlags, Part, Result, Seek, SetAttr, SetTime,
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
    request.asked().answering(|| carry_out(fs, request, out))
}

fn carry_out<F: FileSystem>(fs: &F, request: &Request<'_>, out: &mut Vec<u8>) -> Result<()> {
    let Request { opcode, number, caller, fields: mut head, mut rest, .. } = *request;
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
        SETATTR => out.attributes(&fs.set_attributes(caller, number, &set_attr(&mut head)?)?),
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
        RENAME | RENAME2 => {
            let to = head.u64()?;
            let flags = if opcode == RENAME2 { head.u32()? } else { 0 };
            let flags = RenameFlags::from_bits_retain(flags);
            fs.rename(caller, (number, rest.name()?), (to, rest.name()?), flags)?;
        }
        LINK => out.entry(&fs.link(caller, head.u64()?, number, rest.name()?)?),
        OPEN => out.opened(fs.open(caller, number, OpenFlags::from_bits_retain(head.u32()?))?, false),
        READ => {
            let Range { handle, offset, len } = Range::new(&mut head)?;
            fs.read(number, handle, offset, len, out)?;
        }
        WRITE => {
            let Range { handle, offset, len } = Range::new(&mut head)?;
            let drop_set_id = head.u32()? & WRITE_KILL_SUIDGID != 0;
            fs.write(caller, number, handle, offset, rest.bytes(len)?, drop_set_id)?;
            out.u32(len as u32);
            out.u32(0);
        }
        STATFS => out.statfs(&fs.statfs()?),
        RELEASE => fs.release(number, head.u64()?),
        FSYNC => {
            let (handle, flags) = (head.u64()?, head.u32()?);
            fs.fsync(number, handle, flags & FSYNC_DATA != 0)?;
        }
        SETXATTR => {
            let (len, flags) = (head.u32()?, head.u32()?);
            let kills_group = head.u32().unwrap_or(0) & SETXATTR_ACL_KILL_SGID != 0;
            let (name, value) = (rest.name()?, rest.bytes(len as usize)?);
            let mut flags = XattrFlags::from_bits_retain(flags);
            flags.set(DROP_SET_GROUP, kills_group);
            fs.set_xattr(caller, number, name, value, flags)?;
        }
        GETXATTR => value(head.u32()?, fs.xattr(caller, number, rest.name()?)?, out)?,
        LISTXATTR => {
            let names = fs.xattrs(caller, number)?;
            value(
                head.u32()?,
                names.into_iter().flat_map(|name| name.into_iter().chain([0])).collect(),
                out,
            )?;
        }
        REMOVEXATTR => fs.remove_xattr(caller, number, rest.name()?)?,
        FLUSH => {
            let (handle, _, owner) = (head.u64()?, head.u64()?, head.u64()?);
            let flushed = fs.flush(caller, number, handle);
            // Also after a failed flush.
            fs.closed_by(number, owner);
            flushed?;
        }
        GETLK => in_the_way(out, fs.locked_by(number, &Asked::new(request)?.lock)?),
        OPENDIR => out.opened(fs.open_dir(caller, number)?, true),
        READDIR | READDIRPLUS => {
            let Range { handle, offset, len } = Range::new(&mut head)?;
            let attributes = opcode == READDIRPLUS;
            fs.read_dir(number, handle, offset, attributes, &mut |entry| {
                out.dir_entry(entry, attributes, len)
            })?;
        }
        RELEASEDIR => fs.release_dir(number, head.u64()?),
        FSYNCDIR => fs.fsync_dir(number, head.u64()?)?,
        // Asked only if the kernel was told not to check: then any user that may enter the mount
        // may do anything.
        ACCESS | DESTROY => (),
        CREATE | TMPFILE => {
            let (flags, mode, umask) = (head.u32()?, head.u32()?, head.u32()?);
            let node = NewNode { kind: FileKind::File, mode: mode & 0o7777, umask, rdev: 0 };
            let flags = OpenFlags::from_bits_retain(flags);
            let (entry, opened) = match opcode {
                CREATE => fs.create(caller, number, rest.name()?, node, flags)?,
                // The name that comes along means nothing.
                _ => fs.create_anonymous(caller, number, node, flags)?,
            };
            out.entry(&entry);
            out.opened(opened, false);
        }
        FALLOCATE => {
            let part = Part { number, handle: head.u64()?, offset: head.u64()? };
            let (len, mode) = (head.u64()?, FallocateFlags::from_bits_retain(head.u32()?));
            fs.allocate(caller, part, len, mode)?;
        }
        LSEEK => {
            let (handle, offset, whence) = (head.u64()?, head.u64()?, head.u32()?);
            let to = match whence {
                3 => Seek::Data,
                4 => Seek::Hole,
                // The kernel does the others itself.
                _ => return Err(Errno::INVAL),
            };
            if offset > i64::MAX as u64 {
                return Err(Errno::NXIO);
            }
            out.u64(fs.seek(number, handle, offset, to)?);
        }
        COPY_FILE_RANGE => {
            let from = Part { number, handle: head.u64()?, offset: head.u64()? };
            let to = Part { number: head.u64()?, handle: head.u64()?, offset: head.u64()? };
            // The answer has 32 bits; the caller comes back for the rest.
            let len = head.u64()?.min(u64::from(u32::MAX) & !0xfff);
            out.u32(fs.copy_range(caller, from, to, len)? as u32);
            out.u32(0);
        }
        _ => return Err(Errno::NOSYS),
    }
    Ok(())
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
