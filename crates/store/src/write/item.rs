//! Items that callers submit: changes without data, and files with the source of their bytes.

use std::io::Read;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use outrigger_format::catalogue::{Attributes, Time, Xattrs};
use outrigger_format::{ChunkerSpec, CodecChoice, Fingerprint, Root};
use outrigger_offload::Compression;

use super::oracle::Oracle;
use crate::error::Result;
use crate::file::{Extent, SourceStat};
use crate::meta::Change;
use crate::meta::inline::InlineChange;
use crate::meta::jobs::{JobChange, JobId};
use crate::policy::WritePolicy;

/// One thing to write.
pub enum Item {
    /// A change of the tree without content.
    Change(Change),
    /// A file with content.
    File(FileItem),
}

/// A file to write: becomes a [`Change`] once its content is durable.
pub struct FileItem {
    /// The change that it becomes.
    pub to: Target,
    /// Attributes; for [`Content::File`] refreshed from the file when it is read, extended
    /// attributes included.
    pub attributes: Attributes,
    /// Where its bytes come from.
    pub content: Content,
    /// How to cut it.
    pub chunker: ChunkerSpec,
    /// How to compress new chunks.
    pub codec: Compression,
    /// True to look for chunks that are stored already.
    pub dedup: bool,
    /// At most so many raw bytes in a frame of its chunks (a longer chunk is a frame of its own);
    /// no frame is shared with files of another limit. `None`: the store's setting. For files that
    /// are rewritten in place: a hole in a small frame costs little.
    pub frame: Option<u32>,
    /// For experiments: a record of its chunks.
    pub oracle: Oracle,
}

impl FileItem {
    /// An item cut and compressed by a policy, in frames of the store's size.
    pub fn under(to: Target, attributes: Attributes, content: Content, policy: WritePolicy) -> Self {
        let WritePolicy { chunker, codec, dedup } = policy;
        Self { to, attributes, content, chunker, codec, dedup, frame: None, oracle: Oracle::Off }
    }
}

/// The extended attribute by which one file sets its codec, as a policy does for a directory.
pub const CODEC_HINT: &[u8] = b"user.outrigger.codec";

/// The compression of a file with these extended attributes: `policy`, changed by the file's own
/// hint if that is valid.
pub(crate) fn hinted(policy: Compression, xattrs: &Xattrs) -> Compression {
    let hint = xattrs.iter().find(|(name, _)| name == CODEC_HINT);
    let hint =
        hint.and_then(|(_, value)| CodecChoice::parse(std::str::from_utf8(value).ok()?.trim_end()).ok());
    hint.map_or(policy, |codec| Compression { codec, ..policy })
}

/// The change that a content ends in.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Target {
    /// A [`Change::Put`].
    Put {
        /// Directory in the store.
        parent: u64,
        /// Name in it.
        name: Vec<u8>,
        /// Reserved inode number.
        inode: u64,
        /// See [`Change::Put`].
        replace: bool,
    },
    /// A [`Change::Node`].
    Node {
        /// The inode.
        inode: u64,
        /// See [`Change::Node`].
        parent: u64,
        /// See [`Change::Node`].
        keep: bool,
    },
    /// A [`Change::CompareAndSwap`].
    Swap {
        /// The inode.
        inode: u64,
        /// See [`Change::CompareAndSwap`].
        parent: u64,
        /// See [`Change::CompareAndSwap`].
        was: Box<(Attributes, Root)>,
        /// See [`Change::CompareAndSwap`].
        keep: bool,
    },
    /// A [`Change::Orphan`].
    Orphan {
        /// The inode.
        inode: u64,
        /// See [`Change::Orphan`].
        holder: String,
    },
    /// A [`JobChange::Output`].
    Output {
        /// The job.
        job: JobId,
        /// The split.
        split: u64,
        /// The fencing token.
        attempt: u64,
        /// See [`JobChange::Output`].
        name: Vec<u8>,
    },
    /// A [`InlineChange::Packed`]: the content is an inline chunk's bytes, and must be cut into
    /// that one chunk.
    Packed {
        /// The chunk.
        fingerprint: Fingerprint,
    },
}

impl Target {
    /// The change, still without content: only the sequencer knows the chunks in order.
    pub(super) fn into_change(self, attributes: Attributes, stamp: u64) -> Change {
        let root = Root::Empty;
        match self {
            Self::Put { parent, name, inode, replace } => {
                Change::Put { parent, name, inode, attributes, root, stamp, replace }
            }
            Self::Node { inode, parent, keep } => Change::Node { inode, parent, attributes, root, keep },
            Self::Swap { inode, parent, was, keep } => {
                Change::CompareAndSwap { inode, parent, was, attributes, root, keep }
            }
            Self::Orphan { inode, holder } => Change::Orphan { inode, holder, root },
            Self::Output { job, split, attempt, name } => {
                Change::Job(JobChange::Output { job, split, attempt, name, root })
            }
            Self::Packed { fingerprint } => Change::InlineChunks(InlineChange::Packed { fingerprint }),
        }
    }
}

/// Where a file's bytes come from.
pub enum Content {
    /// A file of this machine.
    File(SourceFile),
    /// A stream of unknown length, read once.
    Stream(Box<dyn Read + Send>),
    /// A stream of a sparse file's data, read once: the bytes of each extent, one after the other.
    /// The holes are not in it.
    Sparse {
        /// Where the bytes come from.
        reader: Box<dyn Read + Send>,
        /// The whole file, in order; `start` says where each extent's data lies in it.
        extents: Vec<Extent>,
    },
    /// Bytes in memory.
    Bytes(Vec<u8>),
    /// Stored ranges and new bytes, in order.
    Parts(Parts),
}

/// A content composed of stored ranges and new bytes.
pub struct Parts {
    /// In order; together they are the file. Empty parts are ignored.
    pub parts: Vec<Part>,
    /// The source of [`Part::Data`]; kept until its last byte was read.
    pub source: Arc<dyn PartSource>,
}

/// A part of [`Parts`].
#[derive(Clone, Debug)]
pub enum Part {
    /// The entries of `root` in `from..to`. Both must be boundaries of entries, or lie in a hole;
    /// else the writer fails with `Invalid`. No chunk is read, and only the manifest nodes at both
    /// ends. The caller must make sure that `root` stays rooted until the commit (rule 5 of
    /// `docs/decisions/0003-reclaim-protocol.md`).
    Keep {
        /// An earlier content of this file, or another file's content.
        root: Arc<Root>,
        /// First byte of it.
        from: u64,
        /// First byte after.
        to: u64,
    },
    /// New bytes, cut afresh: a chunk begins and ends with the part. With blocks of one size, the
    /// first one ends at the file's next multiple of that size, counted from `offset`.
    Data {
        /// Their place in the file, for which the source is asked.
        offset: u64,
        /// Their number.
        len: u64,
    },
    /// Zeros that are not stored.
    Hole {
        /// Their number.
        len: u64,
    },
}

impl Part {
    /// Number of the file's bytes in it.
    pub fn len(&self) -> u64 {
        match self {
            Self::Keep { from, to, .. } => to.saturating_sub(*from),
            Self::Data { len, .. } | Self::Hole { len } => *len,
        }
    }

    /// True when it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// New bytes of a file. Called by several workers at once, in any order, for any range within its
/// [`Part::Data`].
pub trait PartSource: Send + Sync {
    /// Fills `buf` with the file's bytes from `offset`, which must not change before the writer has
    /// finished.
    ///
    /// # Errors
    /// When they cannot be read. That stops the whole writer, and [`super::Writer::finish`] returns
    /// the error.
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()>;
}

/// A file of this machine, named by its directory and name. So paths longer than the kernel's limit
/// work, and so do directories that move meanwhile.
pub struct SourceFile {
    /// Its directory.
    pub dir: Arc<OwnedFd>,
    /// Its name in it.
    pub name: Vec<u8>,
    /// How to name it in messages.
    pub display: Arc<str>,
    /// The result of `stat` when it was found.
    pub stat: SourceStat,
    /// If a file's ctime is not older than this, it may change again with the same ctime.
    pub scan_start: Time,
}
