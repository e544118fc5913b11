//! FUSE requests to calls of a [`FileSystem`], and back; nothing is decided here but what the kernel may keep.

use std::cell::RefCell;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use fuser::{
    AccessFlags, BsdFileFlags, CopyFileRangeFlags, FileHandle, Filesystem, FopenFlags, Generation, INodeNo,
    InitFlags, KernelConfig, LockOwner, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory,
    ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr,
    Request, TimeOrNow, WriteFlags,
};
use outrigger_format::catalogue::FileKind;
use rustix::fs::{FallocateFlags, RenameFlags, XattrFlags};
use rustix::io::Errno;

use outrigger_store::local::kind_of;

use super::convert::{bare_attr, caller, device, errno, file_attr, file_type, set_time, time};
use super::uring::Rings;
use crate::fs::{Entry, FileSystem, Found, NewNode, OpenFlags, Opened, Part, Result, Seek, SetAttr};

/// Bytes of a read-ahead or write request.
pub const REQUEST_BYTES: u32 = 1 << 20;
/// Read-ahead requests that the kernel has under way at once.
const BACKGROUND: u16 = 32;
/// Numbers are not reused, so all are of one generation.
const GENERATION: Generation = Generation(0);
/// As the kernel encodes `lseek`'s.
const SEEK_DATA: i32 = 3;
const SEEK_HOLE: i32 = 4;

thread_local! {
    /// Where a reading thread puts bytes before it hands them to the kernel: fresh memory for each read would cost page faults.
    static BYTES: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// See the module.
pub struct Adapter<F> {
    fs: Arc<F>,
    /// Let the kernel check permissions, ACLs among them.
    check_permissions: bool,
    rings: Option<Arc<Offer>>,
}

/// Rings, once the kernel has offered to use them and they could be made.
pub type Offer = Mutex<Option<Rings>>;

impl<F: FileSystem> Adapter<F> {
    /// Serves `fs`; an offer of rings is accepted if there is a place to put them.
    pub fn new(fs: Arc<F>, check_permissions: bool, rings: Option<Arc<Offer>>) -> Self {
        Self { fs, check_permissions, rings }
    }

    /// Makes the rings that the kernel has offered to use.
    fn accept_rings(&self) -> bool {
        let Some(place) = &self.rings else { return false };
        let rings = Rings::prepare(&self.fs).ok();
        let mut place = place.lock().unwrap_or_else(PoisonError::into_inner);
        *place = rings;
        place.is_some()
    }
}

fn open_flags(opened: Opened, directory: bool) -> FopenFlags {
    let mut flags = FopenFlags::empty();
    flags.set(FopenFlags::FOPEN_KEEP_CACHE, opened.keep_cache);
    flags.set(FopenFlags::FOPEN_NOFLUSH, !opened.flushes && !directory);
    flags.set(FopenFlags::FOPEN_CACHE_DIR, opened.keep_cache && directory);
    flags
}

fn reply_entry(reply: ReplyEntry, made: Result<Entry>) {
    match made {
        Ok(entry) => reply.entry(&entry.valid, &file_attr(&entry.attr), GENERATION),
        Err(error) => reply.error(errno(error)),
    }
}

fn reply_attr(reply: ReplyAttr, got: Result<Entry>) {
    match got {
        Ok(entry) => reply.attr(&entry.valid, &file_attr(&entry.attr)),
        Err(error) => reply.error(errno(error)),
    }
}

fn reply_open(reply: ReplyOpen, opened: Result<Opened>, directory: bool) {
    match opened {
        Ok(opened) => reply.opened(FileHandle(opened.handle), open_flags(opened, directory)),
        Err(error) => reply.error(errno(error)),
    }
}

fn reply_empty(reply: ReplyEmpty, done: Result<()>) {
    match done {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(errno(error)),
    }
}

/// Extended attributes are asked for twice: for the room they need, then for the bytes.
fn reply_xattr(reply: ReplyXattr, room: u32, got: Result<Vec<u8>>) {
    match got {
        Ok(bytes) if room == 0 => reply.size(bytes.len() as u32),
        Ok(bytes) if bytes.len() > room as usize => reply.error(errno(Errno::RANGE)),
        Ok(bytes) => reply.data(&bytes),
        Err(error) => reply.error(errno(error)),
    }
}

fn flags(raw: i32) -> OpenFlags {
    OpenFlags::from_bits_retain(raw as u32)
}

impl<F: FileSystem> Filesystem for Adapter<F> {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let mut wanted = InitFlags::FUSE_DO_READDIRPLUS
            | InitFlags::FUSE_READDIRPLUS_AUTO
            | InitFlags::FUSE_PARALLEL_DIROPS
            | InitFlags::FUSE_CACHE_SYMLINKS
            | InitFlags::FUSE_ASYNC_DIO
            | InitFlags::FUSE_ATOMIC_O_TRUNC
            | InitFlags::FUSE_DONT_MASK
            | InitFlags::FUSE_HANDLE_KILLPRIV_V2;
        // With ACLs the kernel checks permissions whether it was asked to or not.
        wanted.set(InitFlags::FUSE_POSIX_ACL, self.check_permissions);
        if config.capabilities().contains(InitFlags::FUSE_OVER_IO_URING) {
            wanted.set(InitFlags::FUSE_OVER_IO_URING, self.accept_rings());
        }
        // An older kernel does without what it does not know.
        let _ = config.add_capabilities(wanted & config.capabilities());
        let _ = config.set_max_write(REQUEST_BYTES);
        if let Err(most) = config.set_max_readahead(REQUEST_BYTES) {
            let _ = config.set_max_readahead(most);
        }
        let _ = config.set_max_background(BACKGROUND);
        Ok(())
    }

    fn lookup(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match self.fs.lookup(caller(request), parent.0, name.as_bytes()) {
            // Number 0 is how FUSE says "not there, and you may remember that".
            Ok(Found::Missing { valid }) => reply.entry(&valid, &bare_attr(0, FileKind::File), GENERATION),
            Ok(Found::Entry(entry)) => reply_entry(reply, Ok(entry)),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn forget(&self, _: &Request, number: INodeNo, count: u64) {
        self.fs.forget(number.0, count);
    }

    fn getattr(&self, request: &Request, number: INodeNo, handle: Option<FileHandle>, reply: ReplyAttr) {
        let handle = handle.map(|handle| handle.0);
        reply_attr(reply, self.fs.attributes(caller(request), number.0, handle));
    }

    fn setattr(
        &self,
        request: &Request,
        number: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        ctime: Option<SystemTime>,
        handle: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let handle = handle.map(|handle| handle.0);
        let (atime, mtime, ctime) = (atime.map(set_time), mtime.map(set_time), ctime.map(time));
        let mode = mode.map(|mode| mode & 0o7777);
        let set = SetAttr { handle, mode, uid, gid, size, atime, mtime, ctime };
        reply_attr(reply, self.fs.set_attributes(caller(request), number.0, &set));
    }

    fn readlink(&self, request: &Request, number: INodeNo, reply: ReplyData) {
        match self.fs.read_link(caller(request), number.0) {
            Ok(target) => reply.data(&target),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        rdev: u32,
        reply: ReplyEntry,
    ) {
        let Some(kind) = kind_of(mode) else { return reply.error(errno(Errno::INVAL)) };
        let node = NewNode { kind, mode: mode & 0o7777, umask, rdev: device(rdev) };
        reply_entry(reply, self.fs.make(caller(request), parent.0, name.as_bytes(), node));
    }

    fn mkdir(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        reply: ReplyEntry,
    ) {
        let node = NewNode { kind: FileKind::Directory, mode: mode & 0o7777, umask, rdev: 0 };
        reply_entry(reply, self.fs.make(caller(request), parent.0, name.as_bytes(), node));
    }

    fn unlink(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        reply_empty(reply, self.fs.unlink(caller(request), parent.0, name.as_bytes()));
    }

    fn rmdir(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        reply_empty(reply, self.fs.remove_dir(caller(request), parent.0, name.as_bytes()));
    }

    fn symlink(&self, request: &Request, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        let target = target.as_os_str().as_bytes();
        reply_entry(reply, self.fs.symlink(caller(request), parent.0, name.as_bytes(), target));
    }

    fn rename(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: fuser::RenameFlags,
        reply: ReplyEmpty,
    ) {
        let (from, to) = ((parent.0, name.as_bytes()), (new_parent.0, new_name.as_bytes()));
        let flags = RenameFlags::from_bits_retain(flags.bits());
        reply_empty(reply, self.fs.rename(caller(request), from, to, flags));
    }

    fn link(&self, request: &Request, number: INodeNo, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        reply_entry(reply, self.fs.link(caller(request), number.0, parent.0, name.as_bytes()));
    }

    fn open(&self, request: &Request, number: INodeNo, raw: fuser::OpenFlags, reply: ReplyOpen) {
        reply_open(reply, self.fs.open(caller(request), number.0, flags(raw.0)), false);
    }

    fn read(
        &self,
        _: &Request,
        number: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _: fuser::OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        BYTES.with_borrow_mut(|bytes| {
            bytes.clear();
            match self.fs.read(number.0, handle.0, offset, size as usize, bytes) {
                Ok(()) => reply.data(bytes),
                Err(error) => reply.error(errno(error)),
            }
        });
    }

    fn write(
        &self,
        request: &Request,
        number: INodeNo,
        handle: FileHandle,
        offset: u64,
        data: &[u8],
        how: WriteFlags,
        _: fuser::OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let drop_set_id = how.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID);
        match self.fs.write(caller(request), number.0, handle.0, offset, data, drop_set_id) {
            Ok(()) => reply.written(data.len() as u32),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn flush(&self, request: &Request, number: INodeNo, handle: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply_empty(reply, self.fs.flush(caller(request), number.0, handle.0));
    }

    fn release(
        &self,
        _: &Request,
        number: INodeNo,
        handle: FileHandle,
        _: fuser::OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        self.fs.release(number.0, handle.0);
        reply.ok();
    }

    fn fsync(&self, _: &Request, number: INodeNo, handle: FileHandle, data_only: bool, reply: ReplyEmpty) {
        reply_empty(reply, self.fs.fsync(number.0, handle.0, data_only));
    }

    fn opendir(&self, request: &Request, number: INodeNo, _: fuser::OpenFlags, reply: ReplyOpen) {
        reply_open(reply, self.fs.open_dir(caller(request), number.0), true);
    }

    fn readdir(
        &self,
        _: &Request,
        number: INodeNo,
        handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let read = self.fs.read_dir(number.0, handle.0, offset, false, &mut |entry| {
            let name = OsStr::from_bytes(entry.name);
            !reply.add(INodeNo(entry.number), entry.next, file_type(entry.kind), name)
        });
        match read {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn readdirplus(
        &self,
        _: &Request,
        number: INodeNo,
        handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let read = self.fs.read_dir(number.0, handle.0, offset, true, &mut |entry| {
            let (attr, valid) = match &entry.entry {
                Some(known) => (file_attr(&known.attr), known.valid),
                None => (bare_attr(entry.number, entry.kind), Duration::ZERO),
            };
            let name = OsStr::from_bytes(entry.name);
            !reply.add(INodeNo(entry.number), entry.next, name, &valid, &attr, GENERATION)
        });
        match read {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn releasedir(
        &self,
        _: &Request,
        number: INodeNo,
        handle: FileHandle,
        _: fuser::OpenFlags,
        reply: ReplyEmpty,
    ) {
        self.fs.release_dir(number.0, handle.0);
        reply.ok();
    }

    fn fsyncdir(&self, _: &Request, number: INodeNo, handle: FileHandle, _: bool, reply: ReplyEmpty) {
        reply_empty(reply, self.fs.fsync_dir(number.0, handle.0));
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        match self.fs.statfs() {
            Ok(space) => reply.statfs(
                space.blocks,
                space.blocks_free,
                space.blocks_available,
                space.files,
                space.files_free,
                space.block_bytes,
                space.name_max,
                space.block_bytes,
            ),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn setxattr(
        &self,
        request: &Request,
        number: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _: u32,
        reply: ReplyEmpty,
    ) {
        let flags = XattrFlags::from_bits_retain(flags as u32);
        let set = self.fs.set_xattr(caller(request), number.0, name.as_bytes(), value, flags);
        reply_empty(reply, set);
    }

    fn getxattr(&self, request: &Request, number: INodeNo, name: &OsStr, room: u32, reply: ReplyXattr) {
        reply_xattr(reply, room, self.fs.xattr(caller(request), number.0, name.as_bytes()));
    }

    fn listxattr(&self, request: &Request, number: INodeNo, room: u32, reply: ReplyXattr) {
        let names = self.fs.xattrs(caller(request), number.0);
        let listed =
            names.map(|names| names.into_iter().flat_map(|name| name.into_iter().chain([0])).collect());
        reply_xattr(reply, room, listed);
    }

    fn removexattr(&self, request: &Request, number: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        reply_empty(reply, self.fs.remove_xattr(caller(request), number.0, name.as_bytes()));
    }

    fn access(&self, _: &Request, _: INodeNo, _: AccessFlags, reply: ReplyEmpty) {
        // Asked only when the kernel was told not to check: then whoever may enter the mount may all.
        reply.ok();
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        raw: i32,
        reply: ReplyCreate,
    ) {
        let node = NewNode { kind: FileKind::File, mode: mode & 0o7777, umask, rdev: 0 };
        match self.fs.create(caller(request), parent.0, name.as_bytes(), node, flags(raw)) {
            Ok((entry, opened)) => reply.created(
                &entry.valid,
                &file_attr(&entry.attr),
                GENERATION,
                FileHandle(opened.handle),
                open_flags(opened, false),
            ),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn fallocate(
        &self,
        request: &Request,
        number: INodeNo,
        handle: FileHandle,
        offset: u64,
        len: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let part = Part { number: number.0, handle: handle.0, offset };
        let mode = FallocateFlags::from_bits_retain(mode as u32);
        reply_empty(reply, self.fs.allocate(caller(request), part, len, mode));
    }

    fn lseek(
        &self,
        _: &Request,
        number: INodeNo,
        handle: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        let to = match whence {
            SEEK_DATA => Seek::Data,
            SEEK_HOLE => Seek::Hole,
            // The kernel does the others itself.
            _ => return reply.error(errno(Errno::INVAL)),
        };
        let Ok(offset) = u64::try_from(offset) else { return reply.error(errno(Errno::NXIO)) };
        match self.fs.seek(number.0, handle.0, offset, to) {
            Ok(found) => reply.offset(found as i64),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn copy_file_range(
        &self,
        request: &Request,
        from: INodeNo,
        from_handle: FileHandle,
        from_offset: u64,
        to: INodeNo,
        to_handle: FileHandle,
        to_offset: u64,
        len: u64,
        _: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        let from = Part { number: from.0, handle: from_handle.0, offset: from_offset };
        let to = Part { number: to.0, handle: to_handle.0, offset: to_offset };
        // The answer has 32 bits; the caller comes back for the rest.
        let len = len.min(u64::from(u32::MAX) & !0xfff);
        match self.fs.copy_range(caller(request), from, to, len) {
            Ok(copied) => reply.written(copied as u32),
            Err(error) => reply.error(errno(error)),
        }
    }
}
