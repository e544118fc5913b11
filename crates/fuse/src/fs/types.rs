//! Arguments and results of a file system's operations.

use std::time::Duration;

use outrigger_format::catalogue::{FileKind, Time};
use rustix::fs::OFlags;
use rustix::io::Errno;

/// A result with the error number that the caller of the system call gets.
pub type Result<T> = std::result::Result<T, Errno>;

/// An open file or directory, as numbered by the file system.
pub type Handle = u64;

/// The calling process. A kernel that reads ahead or writes back on its own is user 0, process 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Caller {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Process.
    pub pid: u32,
}

/// The attributes that `stat` shows.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Attr {
    /// Inode number; unique in the file system.
    pub number: u64,
    /// Its kind.
    pub kind: FileKind,
    /// Permission bits, set-id bits and the sticky bit (`0o7777`).
    pub mode: u32,
    /// Number of names.
    pub links: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of a device (`makedev` encoding of Linux), else 0.
    pub rdev: u64,
    /// Length, bytes.
    pub size: u64,
    /// Bytes that are not in holes.
    pub allocated: u64,
    /// Last access.
    pub atime: Time,
    /// Last modification.
    pub mtime: Time,
    /// Last change.
    pub ctime: Time,
}

/// Attributes, and how long the kernel may cache them and the name that led to them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// The attributes.
    pub attr: Attr,
    /// How long the attributes may be cached.
    pub valid: Duration,
    /// How long the name may be cached.
    pub name_valid: Duration,
}

impl Entry {
    /// Attributes that may be cached as long as the name that led to them, except for a file with
    /// set-id bits. A write clears the bits, and a kernel that cached them would go on to honour
    /// them.
    pub fn new(attr: Attr, valid: Duration) -> Self {
        let has_set_id = attr.kind == FileKind::File && attr.mode & 0o6000 != 0;
        Self { valid: if has_set_id { Duration::ZERO } else { valid }, attr, name_valid: valid }
    }
}

/// The result of a lookup.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Found {
    /// The name exists.
    Entry(Entry),
    /// The name does not exist, and the kernel may cache that.
    Missing {
        /// How long.
        valid: Duration,
    },
}

/// An opened file or directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Opened {
    /// To be given to later operations, and at last to `release`.
    pub handle: Handle,
    /// `flush` must be called at the end of every descriptor. False where nothing is ever delayed,
    /// to save the message.
    pub flushes: bool,
    /// The kernel's cache from earlier (bytes of a file, entries of a directory) is still right.
    pub keep_cache: bool,
}

/// An entry of a directory that is being read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DirEntry<'a> {
    /// The name; `.` and `..` come first.
    pub name: &'a [u8],
    /// Inode number.
    pub number: u64,
    /// Kind.
    pub kind: FileKind,
    /// Where reading goes on after this entry.
    pub next: u64,
    /// All attributes, where they were asked for; not for `.` and `..`.
    pub entry: Option<Entry>,
}

/// Takes entries of a directory; `false` if this one did not fit, and no more are wanted.
pub type TakeEntry<'t> = dyn FnMut(&DirEntry<'_>) -> bool + 't;

/// The numbers that `statfs` shows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Statfs {
    /// Bytes of a block.
    pub block_bytes: u32,
    /// Blocks in all.
    pub blocks: u64,
    /// Free ones.
    pub blocks_free: u64,
    /// Free ones that anybody may use.
    pub blocks_available: u64,
    /// Inodes in all; 0 when that is not known.
    pub files: u64,
    /// Inodes that may still be made.
    pub files_free: u64,
    /// Longest name, bytes.
    pub name_max: u32,
}

/// The kind of range to seek in a file with holes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Seek {
    /// The next byte that is not in a hole.
    Data,
    /// The next byte in a hole; the end of a file counts as one.
    Hole,
}

/// A time to set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SetTime {
    /// This.
    To(Time),
    /// The present.
    Now,
}

/// Attributes to change: those that are given.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SetAttr {
    /// The file is open as this.
    pub handle: Option<Handle>,
    /// Permission bits.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Length, bytes.
    pub size: Option<u64>,
    /// Last access.
    pub atime: Option<SetTime>,
    /// Last modification.
    pub mtime: Option<SetTime>,
    /// Last change, set by a kernel that keeps times itself.
    pub ctime: Option<Time>,
}

/// A file, directory, device, fifo or socket to make.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NewNode {
    /// Its kind; not a symlink.
    pub kind: FileKind,
    /// Permission bits as asked for.
    pub mode: u32,
    /// The caller's mask, to be applied unless the directory's default ACL takes its place.
    pub umask: u32,
    /// Device number of a device (`makedev` encoding of Linux), else 0.
    pub rdev: u64,
}

/// How to open: access mode and status flags as given to `open`.
pub type OpenFlags = OFlags;

/// Opened for writing.
pub(crate) fn writes(flags: OpenFlags) -> bool {
    flags.intersection(OFlags::RWMODE) != OFlags::RDONLY
}

/// A part of a file, as `copy_file_range` takes two.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Part {
    /// The file.
    pub number: u64,
    /// Open as this.
    pub handle: Handle,
    /// First byte.
    pub offset: u64,
}
