//! Stage read + scan + cut for small files: one worker does a whole batch, its bytes in one buffer.

use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;

use outrigger_format::boundary::CutWalk;
use outrigger_format::{ChunkerSpec, Fingerprint, FingerprintKind};
use outrigger_offload::Compression;

use super::bytes::Buffer;
use super::framer::Form;
use super::item::{Content, FileItem, Part, SourceFile, SourceStat, hinted};
use super::oracle::{Answers, Oracle, UNNAMED};
use super::progress::Progress;
use super::queue::Small;
use crate::error::Result;
use crate::local;
use crate::meta::Change;

/// A chunk in a buffer.
#[derive(Clone, Copy)]
pub(super) struct ChunkRef {
    pub start: u32,
    pub len: u32,
    pub fingerprint: Fingerprint,
}

/// Computes the fingerprints of chunks in `buffer` that have none. All at once: most files have fewer leaves than a vector has lanes.
pub(super) fn hash_chunks(kind: FingerprintKind, buffer: &Buffer, chunks: &mut [ChunkRef]) {
    let mut fingerprints = Vec::with_capacity(chunks.len());
    let unnamed = chunks.iter().filter(|chunk| chunk.fingerprint == UNNAMED);
    let ranges = unnamed.map(|chunk| chunk.start as usize..(chunk.start + chunk.len) as usize);
    outrigger_offload::hash_many(kind, &buffer.bytes, ranges, &mut fingerprints);
    let unnamed = chunks.iter_mut().filter(|chunk| chunk.fingerprint == UNNAMED);
    unnamed.zip(fingerprints).for_each(|(chunk, fingerprint)| chunk.fingerprint = fingerprint);
}

/// What a small batch became: changes in order, each with the chunks that make its content, which have no fingerprints yet, unless an oracle
/// told them.
pub(super) struct Cut {
    pub files: Vec<CutFile>,
    pub chunks: Vec<ChunkRef>,
    pub buffer: Buffer,
}

/// One change of a batch; its chunks are the next `chunks` of the batch.
pub(super) struct CutFile {
    pub change: Change,
    pub chunks: usize,
    pub form: Form,
    pub dedup: bool,
    pub chunker: ChunkerSpec,
    pub oracle: Oracle,
    /// False for a change that was submitted without content: its root, if it has one, stays.
    pub content: bool,
}

/// A worker's reusable memory.
#[derive(Default)]
pub(super) struct Scratch {
    candidates: Vec<u32>,
    ends: Vec<u64>,
}

/// How often a file that changes while it is read is read again.
const ATTEMPTS: u32 = 3;

/// Opens a source file without following a symlink that has taken its place, nor waiting for a fifo's writer.
pub(super) fn open_source(file: &SourceFile) -> Result<OwnedFd, String> {
    use rustix::fs::{Mode, OFlags};
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    rustix::fs::openat(&file.dir, file.name.as_slice(), flags, Mode::empty())
        .map_err(|errno| errno.to_string())
}

/// Reads and cuts a batch.
///
/// # Errors
/// Those of a [`super::PartSource`], and a file that is not the one an oracle tells of: the writer must stop.
pub(super) fn ingest_small(
    items: Vec<Small>,
    mut buffer: Buffer,
    progress: &Progress,
    scratch: &mut Scratch,
) -> Result<Cut> {
    let mut files = Vec::with_capacity(items.len());
    let mut chunks = Vec::with_capacity(items.len() * 2);
    let mut at = buffer.headroom;
    for item in items {
        let file = match item {
            Small::Change(change) => {
                files.push(CutFile {
                    change,
                    chunks: 0,
                    form: Form { codec: Compression::NONE, frame: None },
                    dedup: false,
                    chunker: ChunkerSpec::DEFAULT,
                    oracle: Oracle::Off,
                    content: false,
                });
                continue;
            }
            Small::File(file) => file,
        };
        let (chunker, dedup, oracle) = (file.chunker, file.dedup, file.oracle.clone());
        let frame = file.frame;
        let Some((change, len, offset, codec)) = read_file(file, &mut buffer.bytes[at..], progress)? else {
            continue;
        };
        let form = Form { codec, frame };
        let before = chunks.len();
        if let Some(answers) = oracle.answers() {
            answers.check_data(len as u64)?;
            told(answers, at, &mut chunks);
        } else {
            let mut begin = at;
            if let ChunkerSpec::Fixed { size } = chunker
                && !offset.is_multiple_of(size.into())
            {
                // Data that begins within a block: the rest of that block first.
                begin += len.min(size as usize - (offset % u64::from(size)) as usize);
                cut(&buffer.bytes[at..begin], at, chunker, scratch, &mut chunks);
            }
            cut(&buffer.bytes[begin..at + len], begin, chunker, scratch, &mut chunks);
        }
        let count = chunks.len() - before;
        files.push(CutFile { change, chunks: count, form, dedup, chunker, oracle, content: true });
        at += len;
        progress.bytes_done.fetch_add(len as u64, Ordering::Relaxed);
        progress.files_done.fetch_add(1, Ordering::Relaxed);
    }
    Ok(Cut { files, chunks, buffer })
}

/// Appends the chunks of `data`, which lies at `base` of its buffer, without their fingerprints.
fn cut(data: &[u8], base: usize, chunker: ChunkerSpec, scratch: &mut Scratch, chunks: &mut Vec<ChunkRef>) {
    if data.is_empty() {
        return;
    }
    scratch.candidates.clear();
    scratch.ends.clear();
    if data.len() <= chunker.min_len() {
        scratch.ends.push(data.len() as u64);
    } else {
        outrigger_offload::candidates(chunker, &[], data, &mut scratch.candidates);
        let mut walk = CutWalk::new(chunker);
        walk.feed(data.len(), &scratch.candidates, &mut scratch.ends);
        scratch.ends.extend(walk.finish());
    }
    let mut start = 0;
    for &end in &scratch.ends {
        let end = end as usize;
        let len = (end - start) as u32;
        chunks.push(ChunkRef { start: (base + start) as u32, len, fingerprint: UNNAMED });
        start = end;
    }
}

/// Appends the chunks that an oracle tells of a file whose bytes lie at `base`.
fn told(answers: &Answers, base: usize, chunks: &mut Vec<ChunkRef>) {
    let mut start = base as u32;
    for &(len, fingerprint) in &answers.chunks {
        chunks.push(ChunkRef { start, len, fingerprint });
        start += len;
    }
}

/// Reads one file into `room`, and says how long it is, at which offset that begins, and how to compress it; `None` when it was skipped (and said so). A file
/// that no longer fits is skipped too: the batch was made from the sizes that `stat` gave.
fn read_file(
    file: FileItem,
    room: &mut [u8],
    progress: &Progress,
) -> Result<Option<(Change, usize, u64, Compression)>> {
    let FileItem { to, mut attributes, content, codec, .. } = file;
    let mut begins = 0;
    let (len, stamp) = match content {
        Content::Bytes(bytes) => {
            room[..bytes.len()].copy_from_slice(&bytes);
            (bytes.len(), 0)
        }
        Content::Parts(parts) => match parts.parts[..] {
            [] => (0, 0),
            [Part::Data { offset, len }] => {
                begins = offset;
                if len > 0 {
                    parts.source.read_at(offset, &mut room[..len as usize])?;
                }
                (len as usize, 0)
            }
            _ => unreachable!("several parts are never small"),
        },
        Content::Stream(_) | Content::Sparse { .. } => unreachable!("streams are never small"),
        Content::File(source) => match read_source(&source, room) {
            Err(why) => {
                progress.skip(&*source.display, why);
                return Ok(None);
            }
            Ok(read) => {
                if !read.settled {
                    progress
                        .skip(&*source.display, "changed while it was read; what was read last is stored");
                }
                attributes.mode = read.stat.mode;
                attributes.uid = read.stat.uid;
                attributes.gid = read.stat.gid;
                attributes.mtime = read.stat.mtime;
                attributes.xattrs = read.xattrs;
                let stamp = if read.settled { read.stat.stamp(source.scan_start) } else { 0 };
                (read.len, stamp)
            }
        },
    };
    let codec = hinted(codec, &attributes.xattrs);
    Ok(Some((to.into_change(attributes, stamp), len, begins, codec)))
}

struct Read {
    len: usize,
    stat: SourceStat,
    xattrs: outrigger_format::catalogue::Xattrs,
    settled: bool,
}

fn read_source(source: &SourceFile, room: &mut [u8]) -> Result<Read, String> {
    let fd = open_source(source)?;
    let mut before = source.stat;
    for attempt in 1..=ATTEMPTS {
        // One byte more than expected is asked for, so that growth is noticed without another call.
        let limit = room.len().min(before.size as usize + 1);
        let len = read_full(&fd, &mut room[..limit]).map_err(|errno| errno.to_string())?;
        let after = local::fstat(&fd).map_err(|errno| errno.to_string())?;
        let settled = len as u64 == before.size && before.same_content(&after);
        if settled || attempt == ATTEMPTS {
            let len = len.min(room.len());
            let xattrs = local::xattrs(&fd).map_err(|errno| format!("extended attributes: {errno}"))?;
            return Ok(Read { len, stat: after, xattrs, settled });
        }
        before = after;
        rustix::fs::seek(&fd, rustix::fs::SeekFrom::Start(0)).map_err(|errno| errno.to_string())?;
        if before.size > room.len() as u64 {
            return Err(format!("grew to {} bytes while it was read; put it again", before.size));
        }
    }
    unreachable!("the last attempt returns")
}

/// Reads until `room` is full or the file ends. A short read that follows the expected size is taken as the end
/// only when the kernel says so with 0.
fn read_full(fd: &OwnedFd, room: &mut [u8]) -> Result<usize, rustix::io::Errno> {
    let mut len = 0;
    while len < room.len() {
        match rustix::io::read(fd, &mut room[len..]) {
            Ok(0) => break,
            Ok(n) => {
                len += n;
                // The expected size plus one was asked for: one byte short of full is the file as `stat` saw it. The
                // `fstat` that follows notices if it has grown.
                if len + 1 == room.len() {
                    break;
                }
            }
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(len)
}
