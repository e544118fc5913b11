//! What callers submit: changes that carry no data, and files with where to read them.

use std::io::Read;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use outrigger_format::catalogue::{Attributes, Time};
use outrigger_format::checksum;
use outrigger_format::{ChunkerSpec, CodecSpec};

use crate::meta::Change;

/// One thing to write.
pub enum Item {
    /// A change of the tree without content.
    Change(Change),
    /// A file with content.
    File(FileItem),
}

/// A file to write: becomes a [`Change::Put`] once its content is durable.
pub struct FileItem {
    /// Directory in the store.
    pub parent: u64,
    /// Name in it.
    pub name: Vec<u8>,
    /// Reserved inode number.
    pub inode: u64,
    /// See [`Change::Put`].
    pub replace: bool,
    /// Attributes; for [`Content::File`] refreshed from the file when it is read, extended attributes included.
    pub attributes: Attributes,
    /// Where its bytes come from.
    pub content: Content,
    /// How to cut it.
    pub chunker: ChunkerSpec,
    /// How to compress what is new.
    pub codec: CodecSpec,
    /// Whether to look for what is stored already.
    pub dedup: bool,
}

/// Where a file's bytes come from.
pub enum Content {
    /// A file of this machine.
    File(SourceFile),
    /// A stream of unknown length, read once.
    Stream(Box<dyn Read + Send>),
    /// Bytes in memory.
    Bytes(Vec<u8>),
}

/// A file of this machine, named by its directory and name, so that paths longer than the kernel's limit and
/// directories that move meanwhile do no harm.
pub struct SourceFile {
    /// Its directory.
    pub dir: Arc<OwnedFd>,
    /// Its name in it.
    pub name: Vec<u8>,
    /// How to name it in messages.
    pub display: Arc<str>,
    /// What `stat` said when it was found.
    pub stat: SourceStat,
    /// A file whose ctime is not older than this may change again without its ctime showing it.
    pub scan_start: Time,
}

/// The part of `stat` that tells one content of a file from another.
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
    /// A digest of size, mtime, ctime and inode that a later put compares; 0 when the file may change within the clock
    /// tick of `scan_start` and must be read again next time.
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

    /// True when `other` cannot be told from this: nothing was written in between.
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
