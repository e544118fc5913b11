//! Stage read + scan + cut + hash for large, sparse and composed files and streams: segments of one
//! file in parallel.
//!
//! Workers take segments in order and read and scan them in parallel (`source.rs`). Cutting must go
//! in order, but is tiny: the worker that finishes scanning the next segment in line cuts it, and
//! any later ones already scanned. The unfinished chunk at a segment's end is copied in front of
//! the next segment's data (its buffer has headroom for the longest chunk). So every chunk lies in
//! one buffer, and hashing needs no order.
//!
//! A device that cuts and hashes a segment does not wait for the segment before: it assumes that a
//! chunk begins with the segment. Its chunks count from where its cuts meet the file's own
//! (`meet.rs`).
//!
//! A file is a sequence of *extents*, runs of bytes that are cut by themselves. Between them are
//! holes and ranges that are kept from other files. A segment holds a piece of one long extent, or
//! many short extents together.

mod meet;
mod parts;
mod source;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use outrigger_format::{ChunkerSpec, Root};
use outrigger_offload::op::Stream;

use self::meet::Told;
use self::parts::PartsSource;
use self::source::{FileSource, Source, StreamSource};
use super::bytes::Buffer;
use super::framer::Form;
use super::ingest::{ChunkRef, open_source};
use super::item::{Content, FileItem, hinted};
use super::oracle::{Cuts, Oracle};
use super::progress::Progress;
use crate::error::Result;
use crate::file;
use crate::meta::Change;
use crate::text::show;

#[cfg(any(test, feature = "testing"))]
pub use self::meet::{Met, cut_in_segments};
pub(super) use self::source::Segment;

/// A file read in segments.
pub(super) struct LargeFile {
    source: Source,
    /// The change to commit when the last segment is through; taken by the sequencer.
    pub change: Mutex<Option<Change>>,
    pub chunker: ChunkerSpec,
    pub form: Form,
    pub dedup: bool,
    pub oracle: Oracle,
    /// Set when reading failed: then the rest of the file is not read, and the file is not stored.
    failed: AtomicBool,
    /// A multiple of the block length if the file is cut into blocks: then nothing is carried over.
    segment_len: u64,
    cut: Mutex<CutState>,
}

struct CutState {
    next: u64,
    parked: BTreeMap<u64, ReadSegment>,
    cuts: Cuts,
    /// Position within the extent of the last cut, and the bytes read since.
    cut_at: u64,
    carry: Vec<u8>,
}

/// An item of the manifest between two extents.
pub(super) enum Between {
    Hole(u64),
    /// The entries of a root in a range.
    Keep(Arc<Root>, u64, u64),
}

/// A part of a segment, in order.
enum Piece {
    Between(Between),
    Data(Data),
}

/// Bytes of one extent, which follow those of the piece before in the buffer.
struct Data {
    len: usize,
    /// How many bytes right before them belong to the same extent: as many as a scan needs.
    history: usize,
    /// Where to cut them, if they were scanned.
    candidates: Range<usize>,
    /// The extent ends with them.
    ends: bool,
    /// True if they begin where a block would, for a file that is cut into blocks.
    aligned: bool,
}

/// A segment that was read, before or after it is scanned.
pub(super) struct ReadSegment {
    pub ticket: u64,
    pub file: Arc<LargeFile>,
    number: u64,
    pub buffer: Buffer,
    pieces: Vec<Piece>,
    candidates: Vec<u32>,
    /// The chunks that a device found, and how many each piece has.
    told: Option<(Vec<ChunkRef>, Vec<u32>)>,
    last: bool,
}

impl ReadSegment {
    fn data(&self) -> impl Iterator<Item = &Data> {
        self.pieces.iter().filter_map(|piece| match piece {
            Piece::Data(data) => Some(data),
            Piece::Between(_) => None,
        })
    }

    /// Bytes of data.
    pub fn len(&self) -> usize {
        self.data().map(|data| data.len).sum()
    }

    /// The ranges that a device is to cut, relative to the end of the headroom. `None` if there are
    /// no bytes, if an oracle says where to cut, or if a device would cut in the wrong places for
    /// blocks.
    pub fn streams(&self) -> Option<Vec<Stream>> {
        let mut at = 0;
        let mut streams = Vec::new();
        for data in self.data() {
            let end = at + data.len as u32;
            streams.push(Stream { range: at..end, last: data.ends });
            at = end;
        }
        let aligned = self.data().all(|data| data.aligned);
        (at > 0 && aligned && self.file.oracle.answers().is_none()).then_some(streams)
    }

    /// Takes over the chunks that a device found. They have been checked.
    pub fn take(&mut self, chunks: Vec<ChunkRef>, counts: Vec<u32>) {
        self.told = Some((chunks, counts));
    }

    /// Looks for candidates in all its data.
    pub fn scan(&mut self) {
        let mut at = self.buffer.headroom;
        for piece in &mut self.pieces {
            let Piece::Data(data) = piece else { continue };
            let (before, bytes) = self.buffer.bytes[at - data.history..at + data.len].split_at(data.history);
            data.candidates = self.file.scan(before, bytes, &mut self.candidates);
            at += data.len;
        }
    }
}

/// A segment that was cut. Its chunks have no fingerprints yet, unless an oracle supplied them.
pub(super) struct Scanned {
    pub ticket: u64,
    pub file: Arc<LargeFile>,
    pub buffer: Buffer,
    pub chunks: Vec<ChunkRef>,
    /// The items between chunks, each with the number of chunks that come before it.
    pub between: Vec<(usize, Between)>,
    /// The file ends here.
    pub last: bool,
}

impl LargeFile {
    /// Opens the file and plans its segments.
    pub fn open(item: FileItem, segment_len: usize) -> Result<Self, String> {
        let FileItem { to, mut attributes, content, chunker, codec, dedup, frame, oracle } = item;
        let (mut stamp, domain) = (0, attributes.domain());
        let segment_len = match chunker {
            ChunkerSpec::Fixed { size } if size as usize <= segment_len => {
                (segment_len - segment_len % size as usize) as u64
            }
            _ => segment_len as u64,
        };
        let source = match content {
            Content::File(source) => {
                let fd = open_source(&source)?;
                attributes.xattrs =
                    file::xattrs(&fd).map_err(|errno| format!("extended attributes: {errno}"))?;
                stamp = source.stat.stamp(source.scan_start);
                Source::File(FileSource::new(fd, source, segment_len).map_err(|errno| errno.to_string())?)
            }
            Content::Stream(reader) => Source::Stream(StreamSource::new(reader, segment_len)),
            Content::Sparse { reader, extents } => {
                Source::Stream(StreamSource::sparse(reader, extents, segment_len))
            }
            Content::Bytes(bytes) => {
                Source::Stream(StreamSource::new(Box::new(std::io::Cursor::new(bytes)), segment_len))
            }
            Content::Parts(parts) => Source::Parts(PartsSource::new(parts, chunker, segment_len)),
        };
        let codec = hinted(codec, &attributes.xattrs);
        let change = to.into_change(attributes.in_domain(domain), stamp);
        let cut = CutState {
            next: 0,
            parked: BTreeMap::new(),
            cuts: Cuts::new(chunker, &oracle),
            cut_at: 0,
            carry: Vec::new(),
        };
        Ok(Self {
            source,
            change: Mutex::new(Some(change)),
            chunker,
            form: Form { codec, frame, domain },
            dedup,
            oracle,
            failed: AtomicBool::new(false),
            segment_len,
            cut: Mutex::new(cut),
        })
    }

    /// The next segment, or `None` when all were taken. Called under the queue's lock.
    pub fn take_segment(&self) -> Option<Segment> {
        self.source.take_segment()
    }

    /// True when a read failed: nothing of the file is committed.
    pub fn failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }

    /// Takes a segment that was scanned, or cut by a device, and cuts those that are next in line;
    /// hands cut segments to `push`.
    ///
    /// # Errors
    /// A file that differs from the oracle's record: the writer must stop.
    pub fn cut(self: &Arc<Self>, read: ReadSegment, push: &mut dyn FnMut(Scanned)) -> Result<()> {
        let mut cut = self.cut.lock().expect("no panic while cutting");
        cut.parked.insert(read.number, read);
        while let Some(read) = {
            let next = cut.next;
            cut.parked.remove(&next)
        } {
            cut.next += 1;
            push(self.cut_segment(&mut cut, read)?);
        }
        Ok(())
    }

    /// Appends the candidates in `data`, which follows `history` in its extent.
    fn scan(&self, history: &[u8], data: &[u8], candidates: &mut Vec<u32>) -> Range<usize> {
        let before = candidates.len();
        // Data no longer than the shortest chunk may still end a chunk that began before, whether
        // or not it is alone in its extent.
        let may_end = data.len() > self.chunker.min_len() || !history.is_empty();
        if may_end && self.oracle.answers().is_none() {
            outrigger_offload::candidates(self.chunker, history, data, candidates);
        }
        before..candidates.len()
    }

    fn cut_segment(self: &Arc<Self>, cut: &mut CutState, mut read: ReadSegment) -> Result<Scanned> {
        let start = read.buffer.headroom;
        // The beginning of the open chunk: before the data, if it began in an earlier segment.
        let mut open = start - cut.carry.len();
        read.buffer.bytes.unshare();
        read.buffer.bytes[open..start].copy_from_slice(&cut.carry);
        let (mut chunks, mut between, mut ends) = (Vec::new(), Vec::new(), Vec::new());
        let mut at = start;
        let (all_told, counts) = read.told.take().unwrap_or_default();
        let (mut all_told, mut counts) = (&all_told[..], counts.into_iter());
        for piece in read.pieces {
            let data = match piece {
                Piece::Between(what) => {
                    between.push((chunks.len(), what));
                    continue;
                }
                Piece::Data(data) => data,
            };
            ends.clear();
            // The position of `at` in the extent.
            let base = cut.cut_at + (at - open) as u64;
            let told = counts.next().map(|count| {
                let (own, others) = all_told.split_at(count as usize);
                all_told = others;
                Told { at, len: data.len, base, chunks: own }
            });
            let fed = match &told {
                None => cut.cuts.feed(data.len, &read.candidates[data.candidates], data.ends, &mut ends),
                Some(told) => {
                    let bytes = &read.buffer.bytes;
                    let scan = |range: Range<usize>, candidates: &mut Vec<u32>| {
                        let history =
                            at + range.start - (at - open + range.start).min(self.chunker.history_len());
                        let (before, data) =
                            bytes[history..at + range.end].split_at(at + range.start - history);
                        outrigger_offload::candidates(self.chunker, before, data, candidates);
                    };
                    cut.cuts.meet(|walk| told.follow(walk, open == at, scan, data.ends, &mut ends));
                    Ok(())
                }
            };
            // A file that could not be read is not stored, whatever an oracle says.
            if !self.failed() {
                fed?;
            }
            let mut names = told.map(|told| told.names());
            // Ends are positions within the extent; `cut_at` corresponds to `open`.
            for &end in &ends {
                let len = (end - cut.cut_at) as usize;
                let own = || ChunkRef { fingerprint: cut.cuts.name(), ..ChunkRef::cut(open, len) };
                chunks.push(names.as_mut().and_then(|names| names.of(open, len)).unwrap_or_else(own));
                open += len;
                cut.cut_at = end;
            }
            if data.ends {
                cut.cut_at = 0;
            }
            at += data.len;
        }
        if read.last && !self.failed() {
            cut.cuts.finish()?;
        }
        cut.carry.clear();
        cut.carry.extend_from_slice(&read.buffer.bytes[open..at]);
        let (ticket, file) = (read.ticket, Arc::clone(self));
        Ok(Scanned { ticket, file, buffer: read.buffer, chunks, between, last: read.last })
    }

    /// Reads a segment.
    ///
    /// # Errors
    /// Those of a [`super::PartSource`]: the writer must stop.
    pub fn read_segment(
        self: &Arc<Self>,
        ticket: u64,
        segment: &Segment,
        buffer: Buffer,
        progress: &Progress,
    ) -> Result<ReadSegment> {
        let mut read = ReadSegment {
            ticket,
            file: Arc::clone(self),
            number: segment.number,
            buffer,
            pieces: Vec::new(),
            candidates: Vec::new(),
            told: None,
            last: false,
        };
        match &self.source {
            Source::File(source) => self.read_file(source, segment.number, &mut read, progress),
            Source::Stream(source) => self.read_stream(source, segment.number, &mut read, progress),
            Source::Parts(source) => self.read_parts(source, segment, &mut read, progress)?,
        }
        Ok(read)
    }

    /// The name of the file, as the user knows it.
    fn name(&self) -> String {
        match &*self.change.lock().expect("no panic while held") {
            Some(Change::Put { name, .. }) => show(name),
            _ => "a file".to_string(),
        }
    }

    fn fail(&self, what: &str, why: &str, progress: &Progress) {
        if !self.failed.swap(true, Ordering::Relaxed) {
            progress.skip(what, why);
        }
    }
}
