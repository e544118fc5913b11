//! Stage read + scan + cut for small files: one worker reads a whole batch into one buffer, and
//! cuts it, or has a device do that (`devices.rs`).

use std::num::NonZeroU64;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;

use outrigger_format::boundary::CutWalk;
use outrigger_format::{ChunkerSpec, Domain, Fingerprint, FingerprintKind};
use outrigger_offload::Compression;
use outrigger_offload::op::{Ingested, Stream};

use super::bytes::Buffer;
use super::framer::Form;
use super::item::{Content, FileItem, Part, SourceFile, hinted};
use super::oracle::{Answers, Oracle, UNNAMED};
use super::progress::Progress;
use super::queue::Small;
use crate::error::Result;
use crate::file::{self, SourceStat};
use crate::meta::Change;

/// A chunk in a buffer.
#[derive(Clone, Copy)]
pub(super) struct ChunkRef {
    pub start: u32,
    pub len: u32,
    pub fingerprint: Fingerprint,
    /// The table cache's answer, if it was asked and the answer is confirmed
    /// ([`outrigger_offload::table::PackPlace`]).
    pub hot: Option<NonZeroU64>,
}

impl ChunkRef {
    /// As a walk has cut it.
    pub fn cut(start: usize, len: usize) -> Self {
        Self { start: start as u32, len: len as u32, fingerprint: UNNAMED, hot: None }
    }
}

/// Computes the fingerprints of chunks in `buffer` that have none. All at once: most files have
/// fewer leaves than a vector has lanes.
pub(super) fn hash_chunks(kind: FingerprintKind, buffer: &Buffer, chunks: &mut [ChunkRef]) {
    let mut fingerprints = Vec::with_capacity(chunks.len());
    let unnamed = chunks.iter().filter(|chunk| chunk.fingerprint == UNNAMED);
    let ranges = unnamed.map(|chunk| chunk.start as usize..(chunk.start + chunk.len) as usize);
    outrigger_offload::hash_many(kind, &buffer.bytes, ranges, &mut fingerprints);
    let unnamed = chunks.iter_mut().filter(|chunk| chunk.fingerprint == UNNAMED);
    unnamed.zip(fingerprints).for_each(|(chunk, fingerprint)| chunk.fingerprint = fingerprint);
}

/// A small batch that was read: changes in order, each with the chunks of its content once it is
/// cut. Chunks have no fingerprints yet, unless an oracle or a device supplied them.
pub(super) struct Cut {
    pub files: Vec<CutFile>,
    pub chunks: Vec<ChunkRef>,
    pub buffer: Buffer,
}

/// One change of a batch; its chunks are the next `chunks` of the batch.
pub(super) struct CutFile {
    pub change: Change,
    /// Where its bytes lie in the buffer, and at which offset of the file they begin.
    data: Range<usize>,
    offset: u64,
    pub chunks: usize,
    pub form: Form,
    pub dedup: bool,
    pub chunker: ChunkerSpec,
    pub oracle: Oracle,
    /// False for a change that was submitted without content: its root, if it has one, stays.
    pub content: bool,
}

impl CutFile {
    /// The ranges of the buffer that are cut by themselves.
    fn extents(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        extents(self.data.clone(), self.offset, self.chunker)
    }
}

/// The ranges of `data` that are cut by themselves, if it begins at `offset` of its file.
fn extents(
    data: Range<usize>,
    offset: u64,
    chunker: ChunkerSpec,
) -> impl Iterator<Item = Range<usize>> + use<> {
    let Range { start, end } = data;
    let middle = match chunker {
        // Data that begins within a block: the rest of that block first.
        ChunkerSpec::Fixed { size } if !offset.is_multiple_of(size.into()) => {
            end.min(start + (size as usize - (offset % u64::from(size)) as usize))
        }
        _ => start,
    };
    [start..middle, middle..end].into_iter().filter(|extent| !extent.is_empty())
}

/// Where the chunks of `data` lie in it, if it begins at `offset` of its file, and is cut afresh.
pub(super) fn cut_here(data: &[u8], offset: u64, chunker: ChunkerSpec) -> Vec<Range<usize>> {
    let (mut chunks, mut scratch) = (Vec::new(), Scratch::default());
    for extent in extents(0..data.len(), offset, chunker) {
        cut(&data[extent.clone()], extent.start, chunker, &mut scratch, &mut chunks);
    }
    chunks.iter().map(|chunk| chunk.start as usize..(chunk.start + chunk.len) as usize).collect()
}

/// A worker's reusable memory.
#[derive(Default)]
pub(super) struct Scratch {
    candidates: Vec<u32>,
    ends: Vec<u64>,
}

/// How often a file that changes while it is read is read again.
const ATTEMPTS: u32 = 3;

/// Opens a source file without following a symlink that has taken its place, nor waiting for a
/// fifo's writer.
pub(super) fn open_source(file: &SourceFile) -> Result<OwnedFd, String> {
    use rustix::fs::{Mode, OFlags};
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    rustix::fs::openat(&file.dir, file.name.as_slice(), flags, Mode::empty())
        .map_err(|errno| errno.to_string())
}

/// Reads a batch.
///
/// # Errors
/// Those of a [`super::PartSource`]: the writer must stop.
pub(super) fn read_small(items: Vec<Small>, mut buffer: Buffer, progress: &Progress) -> Result<Cut> {
    let mut files = Vec::with_capacity(items.len());
    let mut at = buffer.headroom;
    for item in items {
        let file = match item {
            Small::Change(change) => {
                files.push(CutFile {
                    change,
                    data: at..at,
                    offset: 0,
                    chunks: 0,
                    form: Form { codec: Compression::NONE, frame: None, domain: Domain::COMMON },
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
        let (frame, domain) = (file.frame, file.attributes.domain());
        let Some((change, len, offset, codec)) = read_file(file, &mut buffer.bytes[at..], progress)? else {
            continue;
        };
        let (form, data) = (Form { codec, frame, domain }, at..at + len);
        files.push(CutFile { change, data, offset, chunks: 0, form, dedup, chunker, oracle, content: true });
        at += len;
        progress.bytes_done.fetch_add(len as u64, Ordering::Relaxed);
        progress.files_done.fetch_add(1, Ordering::Relaxed);
    }
    Ok(Cut { files, chunks: Vec::new(), buffer })
}

impl Cut {
    /// Bytes of data.
    pub fn len(&self) -> usize {
        self.files.iter().map(|file| file.data.len()).sum()
    }

    /// Cuts everything on this thread.
    ///
    /// # Errors
    /// A file that differs from the oracle's record: the writer must stop.
    pub fn cut_here(&mut self, scratch: &mut Scratch) -> Result<()> {
        self.chunks.reserve(self.files.len() * 2);
        for file in &mut self.files {
            let before = self.chunks.len();
            if let Some(answers) = file.oracle.answers() {
                answers.check_data(file.data.len() as u64)?;
                told(answers, file.data.start, &mut self.chunks);
            } else {
                for extent in file.extents() {
                    let data = &self.buffer.bytes[extent.clone()];
                    cut(data, extent.start, file.chunker, scratch, &mut self.chunks);
                }
            }
            file.chunks = self.chunks.len() - before;
        }
        Ok(())
    }

    /// The streams that a device is to cut, if one task can do it, relative to the end of the
    /// headroom. `None` if there are no bytes, if files are cut in different ways, or if an oracle
    /// says how.
    pub fn streams(&self) -> Option<(ChunkerSpec, Vec<Stream>)> {
        let mut chunker = None;
        let mut streams = Vec::with_capacity(self.files.len());
        for file in self.files.iter().filter(|file| !file.data.is_empty()) {
            if file.oracle.answers().is_some() || *chunker.get_or_insert(file.chunker) != file.chunker {
                return None;
            }
            let relative = |at: usize| (at - self.buffer.headroom) as u32;
            streams.extend(
                file.extents()
                    .map(|extent| Stream { range: relative(extent.start)..relative(extent.end), last: true }),
            );
        }
        chunker.map(|chunker| (chunker, streams))
    }

    /// Takes the chunks of these streams over from a device. They have been checked.
    pub fn take(&mut self, chunks: &[ChunkRef], counts: &[u32]) {
        let mut counts = counts.iter();
        for file in &mut self.files {
            let count = |_| counts.next().map_or(0, |&count| count as usize);
            file.chunks = file.extents().map(count).sum();
        }
        self.chunks = chunks.to_vec();
    }
}

/// The chunks of streams in a buffer, from a device's report; `None` if they are impossible.
/// Positions count from `base`.
pub(super) fn told_chunks(
    streams: &[Stream],
    chunker: ChunkerSpec,
    base: usize,
    chunks: &[Ingested],
    counts: &[u32],
) -> Option<Vec<ChunkRef>> {
    let mut all = Vec::with_capacity(chunks.len());
    let mut rest = chunks;
    if counts.len() != streams.len() {
        return None;
    }
    for (stream, &count) in streams.iter().zip(counts) {
        let (own, others) = rest.split_at_checked(count as usize)?;
        rest = others;
        let mut start = stream.range.start;
        for chunk in own {
            let len =
                chunk.end.checked_sub(start).filter(|&len| len > 0 && len as usize <= chunker.max_len())?;
            if chunk.end > stream.range.end {
                return None;
            }
            let hot = chunk.place.and_then(NonZeroU64::new);
            let start_here = start + base as u32;
            all.push(ChunkRef { start: start_here, len, fingerprint: chunk.fingerprint, hot });
            start = chunk.end;
        }
        // The rest is the beginning of a chunk, if the stream goes on.
        let left = (stream.range.end - start) as usize;
        if left > if stream.last { 0 } else { chunker.max_len() } {
            return None;
        }
    }
    rest.is_empty().then_some(all)
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
        chunks.push(ChunkRef::cut(base + start, end - start));
        start = end;
    }
}

/// Appends the chunks that an oracle has for a file whose bytes lie at `base`.
fn told(answers: &Answers, base: usize, chunks: &mut Vec<ChunkRef>) {
    let mut start = base as u32;
    for &(len, fingerprint) in &answers.chunks {
        chunks.push(ChunkRef { start, len, fingerprint, hot: None });
        start += len;
    }
}

/// Reads one file into `room`. Returns its length, the offset at which its data begins, and how to
/// compress it; `None` when it was skipped and reported. A file that no longer fits is skipped too:
/// the batch was made from the sizes that `stat` gave.
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
                let domain = attributes.domain();
                attributes.xattrs = read.xattrs;
                attributes = attributes.in_domain(domain);
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
        let after = file::fstat(&fd).map_err(|errno| errno.to_string())?;
        let settled = len as u64 == before.size && before.same_content(&after);
        if settled || attempt == ATTEMPTS {
            let len = len.min(room.len());
            let xattrs = file::xattrs(&fd).map_err(|errno| format!("extended attributes: {errno}"))?;
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

/// Reads until `room` is full or the file ends. If a read is short at the expected size, only a
/// read of 0 bytes confirms the end.
fn read_full(fd: &OwnedFd, room: &mut [u8]) -> Result<usize, rustix::io::Errno> {
    let mut len = 0;
    while len < room.len() {
        match rustix::io::read(fd, &mut room[len..]) {
            Ok(0) => break,
            Ok(n) => {
                len += n;
                // The expected size plus one was asked for: one byte short of full is the file as
                // `stat` saw it. The `fstat` that follows notices if it has grown.
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
