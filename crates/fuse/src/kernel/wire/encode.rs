//! Answers, field by field, as `include/uapi/linux/fuse.h` of the kernel lays them out.
#![allow(clippy::host_endian_bytes, reason = "both sides of this protocol are on one machine")]

use std::time::Duration;

use outrigger_format::catalogue::FileKind;
use rustix::fs::FileType;

use super::super::convert::{IO_BYTES, SECTOR, kernel_device};
use crate::fs::{Attr, DirEntry, Entry, Opened, Statfs};

/// Bytes of an entry with attributes, before the record of the directory.
pub const ENTRY_BYTES: usize = 128;
/// Bytes of a record of a directory, before the name.
const DIRENT_BYTES: usize = 24;
/// `FOPEN_` flags.
const KEEP_CACHE: u32 = 1 << 1;
const CACHE_DIR: u32 = 1 << 3;
const NOFLUSH: u32 = 1 << 5;

/// Bytes of the header of an answer.
pub const ANSWER_HEADER_BYTES: usize = 16;

/// `fuse_out_header`, for `len` bytes that follow.
pub fn answer_header(unique: u64, error: i32, len: usize) -> [u8; ANSWER_HEADER_BYTES] {
    let mut header = [0; ANSWER_HEADER_BYTES];
    header[..4].copy_from_slice(&((ANSWER_HEADER_BYTES + len) as u32).to_ne_bytes());
    header[4..8].copy_from_slice(&error.to_ne_bytes());
    header[8..].copy_from_slice(&unique.to_ne_bytes());
    header
}

/// Appends fields of the protocol.
pub trait Encode {
    /// Four bytes.
    fn u32(&mut self, value: u32);
    /// Eight bytes.
    fn u64(&mut self, value: u64);
    /// `fuse_attr`.
    fn attr(&mut self, attr: &Attr);
    /// `fuse_attr_out`.
    fn attributes(&mut self, entry: &Entry);
    /// `fuse_entry_out`.
    fn entry(&mut self, entry: &Entry);
    /// `fuse_entry_out` of a name that stands for nothing, or of one about which nothing is told.
    fn no_entry(&mut self, valid: Duration);
    /// `fuse_open_out`.
    fn opened(&mut self, opened: Opened, directory: bool);
    /// `fuse_statfs_out`.
    fn statfs(&mut self, space: &Statfs);
    /// A record of a directory; `false` when it does not fit into `room` bytes in all.
    fn dir_entry(&mut self, entry: &DirEntry<'_>, attributes: bool, room: usize) -> bool;
}

fn file_type(kind: FileKind) -> u32 {
    let kind = match kind {
        FileKind::File => FileType::RegularFile,
        FileKind::Directory => FileType::Directory,
        FileKind::Symlink => FileType::Symlink,
        FileKind::Fifo => FileType::Fifo,
        FileKind::Socket => FileType::Socket,
        FileKind::CharDevice => FileType::CharacterDevice,
        FileKind::BlockDevice => FileType::BlockDevice,
    };
    kind.as_raw_mode()
}

impl Encode for Vec<u8> {
    fn u32(&mut self, value: u32) {
        self.extend_from_slice(&value.to_ne_bytes());
    }

    fn u64(&mut self, value: u64) {
        self.extend_from_slice(&value.to_ne_bytes());
    }

    fn attr(&mut self, attr: &Attr) {
        let times = [attr.atime, attr.mtime, attr.ctime];
        [attr.number, attr.size, attr.allocated.div_ceil(SECTOR)]
            .into_iter()
            .for_each(|field| self.u64(field));
        times.into_iter().for_each(|time| self.u64(time.secs as u64));
        times.into_iter().for_each(|time| self.u32(time.nanos));
        let mode = file_type(attr.kind) | attr.mode & 0o7777;
        let (rdev, flags) = (kernel_device(attr.rdev), 0);
        [mode, attr.links, attr.uid, attr.gid, rdev, IO_BYTES, flags]
            .into_iter()
            .for_each(|field| self.u32(field));
    }

    fn attributes(&mut self, entry: &Entry) {
        self.u64(entry.valid.as_secs());
        self.u32(entry.valid.subsec_nanos());
        self.u32(0);
        self.attr(&entry.attr);
    }

    fn entry(&mut self, entry: &Entry) {
        let generation = 0;
        let (name, attributes) = (entry.name_valid, entry.valid);
        [entry.attr.number, generation, name.as_secs(), attributes.as_secs()]
            .into_iter()
            .for_each(|field| self.u64(field));
        self.u32(name.subsec_nanos());
        self.u32(attributes.subsec_nanos());
        self.attr(&entry.attr);
    }

    fn no_entry(&mut self, valid: Duration) {
        let start = self.len();
        [0, 0, valid.as_secs(), 0].into_iter().for_each(|field| self.u64(field));
        self.u32(valid.subsec_nanos());
        self.resize(start + ENTRY_BYTES, 0);
    }

    fn opened(&mut self, opened: Opened, directory: bool) {
        let mut flags = if opened.keep_cache { KEEP_CACHE } else { 0 };
        if directory {
            flags |= if opened.keep_cache { CACHE_DIR } else { 0 };
        } else if !opened.flushes {
            flags |= NOFLUSH;
        }
        self.u64(opened.handle);
        self.u32(flags);
        self.u32(0);
    }

    fn statfs(&mut self, space: &Statfs) {
        let start = self.len();
        [space.blocks, space.blocks_free, space.blocks_available, space.files, space.files_free]
            .into_iter()
            .for_each(|field| self.u64(field));
        [space.block_bytes, space.name_max, space.block_bytes].into_iter().for_each(|field| self.u32(field));
        self.resize(start + 80, 0);
    }

    fn dir_entry(&mut self, entry: &DirEntry<'_>, attributes: bool, room: usize) -> bool {
        let head = DIRENT_BYTES + if attributes { ENTRY_BYTES } else { 0 };
        let end = self.len() + (head + entry.name.len()).next_multiple_of(8);
        if end > room {
            return false;
        }
        match &entry.entry {
            _ if !attributes => (),
            Some(known) => self.entry(known),
            // Number 0: the kernel takes the name, and does not count it as looked up.
            None => self.no_entry(Duration::ZERO),
        }
        self.u64(entry.number);
        self.u64(entry.next);
        self.u32(entry.name.len() as u32);
        self.u32(file_type(entry.kind) >> 12);
        self.extend_from_slice(entry.name);
        self.resize(end, 0);
        true
    }
}
