//! A file system that remembers what it was asked, and changes nothing.

use std::fmt::Arguments;
use std::sync::{Condvar, Mutex};
use std::time::Duration;

use outrigger_format::catalogue::{FileKind, Time};
use outrigger_fuse::fs::{
    Attr, Caller, DirEntry, Entry, FileSystem, Found, Handle, NewNode, OpenFlags, Opened, Part, ROOT, Result,
    Seek, SetAttr, Statfs, TakeEntry,
};
use outrigger_fuse::kernel::MountOptions;
use outrigger_fuse::measures::{Status, Watched};
use rustix::fs::{FallocateFlags, RenameFlags, XattrFlags};
use rustix::io::Errno;

/// The operations, as they begin in the record.
pub const CALLS: [&str; 33] = [
    "lookup",
    "attributes",
    "read_link",
    "xattr ",
    "xattrs",
    "statfs",
    "open ",
    "read ",
    "seek",
    "flush",
    "release ",
    "fsync ",
    "open_dir",
    "read_dir",
    "release_dir",
    "fsync_dir",
    "set_attributes",
    "make",
    "symlink",
    "link",
    "create ",
    "create_anonymous",
    "unlink",
    "remove_dir",
    "rename",
    "write",
    "allocate",
    "copy_range",
    "set_xattr",
    "remove_xattr",
    "fsync 3 3 true",
    "fsync 3 3 false",
    "rename (1, \"a-file\") (2, \"renamed\")",
];

const FILE: u64 = 3;
const LENGTH: u64 = 8 << 20;
/// What is there.
const NAMES: [(&[u8], u64, FileKind); 4] = [
    (b"a-dir", 2, FileKind::Directory),
    (b"a-file", FILE, FileKind::File),
    (b"a-link", 4, FileKind::Symlink),
    (b"a-device", 5, FileKind::CharDevice),
];

/// See the module.
#[derive(Default)]
pub struct Recorder {
    calls: Mutex<Vec<String>>,
    /// Calls that begin so are not answered.
    blocked: Mutex<Option<&'static str>>,
    changed: Condvar,
}

fn text(name: &[u8]) -> String {
    String::from_utf8_lossy(name).into_owned()
}

fn entry(number: u64, kind: FileKind) -> Entry {
    let time = |secs, nanos| Time { secs, nanos };
    let attr = Attr {
        number,
        kind,
        mode: 0o751,
        links: 3,
        uid: 11,
        gid: 12,
        rdev: if kind == FileKind::CharDevice { rustix::fs::makedev(300, 66_000) } else { 0 },
        size: LENGTH,
        allocated: LENGTH / 2,
        atime: time(1, 2),
        mtime: time(-3, 999_999_999),
        ctime: time(1 << 33, 5),
    };
    // So short that the kernel asks again, and asks alike whatever the time of day.
    Entry::new(attr, Duration::ZERO)
}

impl Recorder {
    /// The calls since the last time.
    pub fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.calls.lock().unwrap())
    }

    /// Leaves calls that begin so without an answer, or answers those that wait.
    pub fn block(&self, calls: Option<&'static str>) {
        *self.blocked.lock().unwrap() = calls;
        self.changed.notify_all();
    }

    fn note(&self, call: Arguments<'_>) {
        let call = call.to_string();
        self.calls.lock().unwrap().push(call.clone());
        let blocked = self.blocked.lock().unwrap();
        let is_blocked = |blocked: &mut Option<&str>| blocked.is_some_and(|begins| call.starts_with(begins));
        drop(self.changed.wait_while(blocked, is_blocked).unwrap());
    }
}

/// The part of the caller that does not depend on the thread.
fn who(caller: Caller) -> (u32, u32) {
    (caller.uid, caller.gid)
}

/// How it is mounted, with so many threads: the kernel hands everything on.
pub fn options(threads: usize) -> MountOptions {
    MountOptions {
        source: "test".to_string(),
        read_only: false,
        allow_other: false,
        check_permissions: false,
        suid: false,
        dev: false,
        exec: false,
        threads,
    }
}

const OPENED: Opened = Opened { handle: 3, flushes: true, keep_cache: false };

impl Watched for Recorder {
    fn watch(&self, _: &mut Status) {}
}

impl FileSystem for Recorder {
    fn lookup(&self, caller: Caller, parent: u64, name: &[u8]) -> Result<Found> {
        self.note(format_args!("lookup {:?} {parent} {}", who(caller), text(name)));
        let found = NAMES.iter().find(|(known, ..)| parent == ROOT && *known == name);
        let missing = Found::Missing { valid: Duration::ZERO };
        Ok(found.map_or(missing, |(_, number, kind)| Found::Entry(entry(*number, *kind))))
    }

    fn attributes(&self, caller: Caller, number: u64, handle: Option<Handle>) -> Result<Entry> {
        self.note(format_args!("attributes {:?} {number} {handle:?}", who(caller)));
        let kind = NAMES.iter().find(|(_, known, _)| *known == number).map(|(.., kind)| *kind);
        Ok(entry(number, kind.unwrap_or(FileKind::Directory)))
    }

    fn read_link(&self, caller: Caller, number: u64) -> Result<Vec<u8>> {
        self.note(format_args!("read_link {:?} {number}", who(caller)));
        Ok(b"some where".to_vec())
    }

    fn xattr(&self, caller: Caller, number: u64, name: &[u8]) -> Result<Vec<u8>> {
        self.note(format_args!("xattr {:?} {number} {}", who(caller), text(name)));
        if name == b"user.any" { Ok(b"zero\0one\x01".to_vec()) } else { Err(Errno::NODATA) }
    }

    fn xattrs(&self, caller: Caller, number: u64) -> Result<Vec<Vec<u8>>> {
        self.note(format_args!("xattrs {:?} {number}", who(caller)));
        Ok(vec![b"user.any".to_vec(), b"user.other".to_vec()])
    }

    fn statfs(&self) -> Result<Statfs> {
        self.note(format_args!("statfs"));
        let (blocks, blocks_free, blocks_available) = (1 << 34, 1 << 33, 1 << 32);
        let (files, files_free) = (99, 98);
        Ok(Statfs {
            block_bytes: 4096,
            blocks,
            blocks_free,
            blocks_available,
            files,
            files_free,
            name_max: 255,
        })
    }

    fn open(&self, caller: Caller, number: u64, flags: OpenFlags) -> Result<Opened> {
        self.note(format_args!("open {:?} {number} {flags:?}", who(caller)));
        Ok(OPENED)
    }

    fn read(&self, number: u64, handle: Handle, offset: u64, len: usize, out: &mut Vec<u8>) -> Result<()> {
        self.note(format_args!("read {number} {handle} {offset} {len}"));
        let end = LENGTH.min(offset + len as u64);
        out.extend((offset..end).map(|at| (at % 253) as u8));
        Ok(())
    }

    fn seek(&self, number: u64, handle: Handle, offset: u64, to: Seek) -> Result<u64> {
        self.note(format_args!("seek {number} {handle} {offset} {to:?}"));
        if offset < LENGTH { Ok(offset + 1000) } else { Err(Errno::NXIO) }
    }

    fn flush(&self, caller: Caller, number: u64, handle: Handle) -> Result<()> {
        self.note(format_args!("flush {:?} {number} {handle}", who(caller)));
        Ok(())
    }

    fn release(&self, number: u64, handle: Handle) {
        self.note(format_args!("release {number} {handle}"));
    }

    fn fsync(&self, number: u64, handle: Handle, data_only: bool) -> Result<()> {
        self.note(format_args!("fsync {number} {handle} {data_only}"));
        Ok(())
    }

    fn open_dir(&self, caller: Caller, number: u64) -> Result<Opened> {
        self.note(format_args!("open_dir {:?} {number}", who(caller)));
        Ok(OPENED)
    }

    fn read_dir(
        &self,
        number: u64,
        handle: Handle,
        offset: u64,
        attributes: bool,
        take: &mut TakeEntry<'_>,
    ) -> Result<()> {
        self.note(format_args!("read_dir {number} {handle} {offset} {attributes}"));
        // More than one answer holds.
        for at in offset as usize..300 {
            let long = format!("{at:0200}");
            let (name, kind) = match at {
                0 => (".", FileKind::Directory),
                1 => ("..", FileKind::Directory),
                _ => (&long[..1 + at % 200], FileKind::Fifo),
            };
            let (number, next) = (1000 + at as u64, at as u64 + 1);
            let known = (attributes && at > 1).then(|| entry(number, kind));
            if !take(&DirEntry { name: name.as_bytes(), number, kind, next, entry: known }) {
                break;
            }
        }
        Ok(())
    }

    fn release_dir(&self, number: u64, handle: Handle) {
        self.note(format_args!("release_dir {number} {handle}"));
    }

    fn fsync_dir(&self, number: u64, handle: Handle) -> Result<()> {
        self.note(format_args!("fsync_dir {number} {handle}"));
        Ok(())
    }

    fn set_attributes(&self, caller: Caller, number: u64, set: &SetAttr) -> Result<Entry> {
        self.note(format_args!("set_attributes {:?} {number} {set:?}", who(caller)));
        Ok(entry(number, FileKind::File))
    }

    fn make(&self, caller: Caller, parent: u64, name: &[u8], node: NewNode) -> Result<Entry> {
        self.note(format_args!("make {:?} {parent} {} {node:?}", who(caller), text(name)));
        Ok(entry(20, node.kind))
    }

    fn symlink(&self, caller: Caller, parent: u64, name: &[u8], target: &[u8]) -> Result<Entry> {
        self.note(format_args!("symlink {:?} {parent} {} {}", who(caller), text(name), text(target)));
        Ok(entry(21, FileKind::Symlink))
    }

    fn link(&self, caller: Caller, number: u64, parent: u64, name: &[u8]) -> Result<Entry> {
        self.note(format_args!("link {:?} {number} {parent} {}", who(caller), text(name)));
        Ok(entry(number, FileKind::File))
    }

    fn create(
        &self,
        caller: Caller,
        parent: u64,
        name: &[u8],
        node: NewNode,
        flags: OpenFlags,
    ) -> Result<(Entry, Opened)> {
        self.note(format_args!("create {:?} {parent} {} {node:?} {flags:?}", who(caller), text(name)));
        Ok((entry(22, FileKind::File), Opened { handle: 77, ..OPENED }))
    }

    fn unlink(&self, caller: Caller, parent: u64, name: &[u8]) -> Result<()> {
        self.note(format_args!("unlink {:?} {parent} {}", who(caller), text(name)));
        Ok(())
    }

    fn remove_dir(&self, caller: Caller, parent: u64, name: &[u8]) -> Result<()> {
        self.note(format_args!("remove_dir {:?} {parent} {}", who(caller), text(name)));
        Err(Errno::NOTEMPTY)
    }

    fn rename(&self, _: Caller, from: (u64, &[u8]), to: (u64, &[u8]), flags: RenameFlags) -> Result<()> {
        self.note(format_args!("rename {:?} {:?} {flags:?}", (from.0, text(from.1)), (to.0, text(to.1))));
        Ok(())
    }

    fn write(
        &self,
        caller: Caller,
        number: u64,
        handle: Handle,
        offset: u64,
        data: &[u8],
        drop_set_id: bool,
    ) -> Result<()> {
        let sum = data.iter().fold(0u32, |sum, byte| sum.rotate_left(5) ^ u32::from(*byte));
        let (who, len) = (who(caller), data.len());
        self.note(format_args!("write {who:?} {number} {handle} {offset} {len} {sum} {drop_set_id}"));
        Ok(())
    }

    fn allocate(&self, caller: Caller, part: Part, len: u64, mode: FallocateFlags) -> Result<()> {
        self.note(format_args!("allocate {:?} {part:?} {len} {mode:?}", who(caller)));
        Ok(())
    }

    fn copy_range(&self, caller: Caller, from: Part, to: Part, len: u64) -> Result<u64> {
        self.note(format_args!("copy_range {:?} {from:?} {to:?} {len}", who(caller)));
        Ok(len / 3)
    }

    fn create_anonymous(
        &self,
        caller: Caller,
        parent: u64,
        node: NewNode,
        flags: OpenFlags,
    ) -> Result<(Entry, Opened)> {
        self.note(format_args!("create_anonymous {:?} {parent} {node:?} {flags:?}", who(caller)));
        Ok((entry(7, FileKind::File), OPENED))
    }

    fn set_xattr(
        &self,
        caller: Caller,
        number: u64,
        name: &[u8],
        value: &[u8],
        flags: XattrFlags,
    ) -> Result<()> {
        self.note(format_args!("set_xattr {:?} {number} {} {value:?} {flags:?}", who(caller), text(name)));
        Ok(())
    }

    fn remove_xattr(&self, caller: Caller, number: u64, name: &[u8]) -> Result<()> {
        self.note(format_args!("remove_xattr {:?} {number} {}", who(caller), text(name)));
        Ok(())
    }
}
