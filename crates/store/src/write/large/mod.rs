//! Stage read + scan + cut + hash for large, sparse and composed files and streams: segments of one file in parallel.
//!
//! Workers take segments in order and read and scan them at the same time (`source.rs`). Cutting must go in order, but is tiny: whoever
//! finishes scanning the next segment in line cuts it, and any later ones already scanned. The unfinished chunk at a
//! segment's end is copied in front of the next segment's data (its buffer has headroom for the longest chunk), so every
//! chunk lies in one buffer; hashing then needs no order.
//!
//! A file is a sequence of *extents*, runs of bytes that are cut by themselves, and of what lies between them: holes, and what
//! is kept of other files. A segment holds a piece of one long extent, or many short extents together.

mod parts;
mod source;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use outrigger_format::{ChunkerSpec, Root};

use self::parts::PartsSource;
use self::source::{FileSource, Source, StreamSource};
use super::bytes::Buffer;
use super::framer::Form;
use super::ingest::{ChunkRef, open_source};
use super::item::{Content, FileItem, hinted};
use super::oracle::{Cuts, Oracle};
use super::progress::Progress;
use crate::error::Result;
use crate::local;
use crate::meta::Change;

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
    /// Set when reading failed: the rest of the file is not read, and the file not stored.
    failed: AtomicBool,
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

/// What is pushed into the manifest between two extents.
pub(super) enum Between {
    Hole(u64),
    /// The entries of a root in a range.
    Keep(Arc<Root>, u64, u64),
}

/// What a segment holds, in order.
enum Piece {
    Between(Between),
    /// `len` bytes, which follow those of the piece before in the buffer, and where to cut them. `ends`: the extent ends with them.
    Data {
        len: usize,
        candidates: Range<usize>,
        ends: bool,
    },
}

/// A segment that was read and scanned.
struct ReadSegment {
    ticket: u64,
    buffer: Buffer,
    pieces: Vec<Piece>,
    candidates: Vec<u32>,
    last: bool,
}

/// A segment that was cut: its chunks have no fingerprints yet, unless an oracle told them.
pub(super) struct Scanned {
    pub ticket: u64,
    pub file: Arc<LargeFile>,
    pub buffer: Buffer,
    pub chunks: Vec<ChunkRef>,
    /// What comes between chunks: each with the number of chunks that come before it.
    pub between: Vec<(usize, Between)>,
    /// The file ends here.
    pub last: bool,
}

impl LargeFile {
    /// Opens the file and plans its segments.
    pub fn open(item: FileItem, segment_len: usize) -> Result<Self, String> {
        let FileItem { to, mut attributes, content, chunker, codec, dedup, frame, oracle } = item;
        let mut stamp = 0;
        let segment_len = segment_len as u64;
        let source = match content {
            Content::File(source) => {
                let fd = open_source(&source)?;
                attributes.xattrs =
                    local::xattrs(&fd).map_err(|errno| format!("extended attributes: {errno}"))?;
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
        let change = to.into_change(attributes, stamp);
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
            form: Form { codec, frame },
            dedup,
            oracle,
            failed: AtomicBool::new(false),
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

    /// Reads and scans a segment, then cuts what is in line; cut segments are handed to `push`.
    ///
    /// # Errors
    /// Those of a [`super::PartSource`], and a file that is not the one an oracle tells of: the writer must stop.
    pub fn run_segment(
        self: &Arc<Self>,
        ticket: u64,
        segment: &Segment,
        buffer: Buffer,
        progress: &Progress,
        push: &mut dyn FnMut(Scanned),
    ) -> Result<()> {
        let read = self.read_segment(ticket, segment, buffer, progress)?;
        let mut cut = self.cut.lock().expect("no panic while cutting");
        cut.parked.insert(segment.number, read);
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
        // What is not longer than the shortest chunk, alone in its extent or not, may still end one that began before.
        let may_end = data.len() > self.chunker.min_len() || !history.is_empty();
        if may_end && self.oracle.answers().is_none() {
            outrigger_offload::candidates(self.chunker, history, data, candidates);
        }
        before..candidates.len()
    }

    fn cut_segment(self: &Arc<Self>, cut: &mut CutState, mut read: ReadSegment) -> Result<Scanned> {
        let start = read.buffer.headroom;
        // Where the open chunk begins: before the data, if it began in an earlier segment.
        let mut open = start - cut.carry.len();
        read.buffer.bytes[open..start].copy_from_slice(&cut.carry);
        let (mut chunks, mut between, mut ends) = (Vec::new(), Vec::new(), Vec::new());
        let mut at = start;
        for piece in read.pieces {
            let (len, candidates, extent_ends) = match piece {
                Piece::Between(what) => {
                    between.push((chunks.len(), what));
                    continue;
                }
                Piece::Data { len, candidates, ends } => (len, candidates, ends),
            };
            ends.clear();
            let fed = cut.cuts.feed(len, &read.candidates[candidates], extent_ends, &mut ends);
            // Of a file that could not be read nothing is stored, whatever an oracle says.
            if !self.failed() {
                fed?;
            }
            // Ends are positions within the extent, of which `cut_at` lies at `open`.
            for &end in &ends {
                let len = (end - cut.cut_at) as u32;
                chunks.push(ChunkRef { start: open as u32, len, fingerprint: cut.cuts.name() });
                open += len as usize;
                cut.cut_at = end;
            }
            if extent_ends {
                cut.cut_at = 0;
            }
            at += len;
        }
        if read.last && !self.failed() {
            cut.cuts.finish()?;
        }
        cut.carry.clear();
        cut.carry.extend_from_slice(&read.buffer.bytes[open..at]);
        let (ticket, file) = (read.ticket, Arc::clone(self));
        Ok(Scanned { ticket, file, buffer: read.buffer, chunks, between, last: read.last })
    }

    fn read_segment(
        &self,
        ticket: u64,
        segment: &Segment,
        buffer: Buffer,
        progress: &Progress,
    ) -> Result<ReadSegment> {
        let mut read =
            ReadSegment { ticket, buffer, pieces: Vec::new(), candidates: Vec::new(), last: false };
        match &self.source {
            Source::File(source) => self.read_file(source, segment.number, &mut read, progress),
            Source::Stream(source) => self.read_stream(source, segment.number, &mut read, progress),
            Source::Parts(source) => self.read_parts(source, segment, &mut read, progress)?,
        }
        Ok(read)
    }

    fn fail(&self, what: &str, why: &str, progress: &Progress) {
        if !self.failed.swap(true, Ordering::Relaxed) {
            progress.skip(what, why);
        }
    }
}
