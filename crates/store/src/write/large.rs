//! Stage read + scan + cut + hash for large and sparse files and streams: segments of one file in parallel.
//!
//! Workers take segments in order and read and scan them at the same time. Cutting must go in order, but is tiny: whoever
//! finishes scanning the next segment in line cuts it, and any later ones already scanned. The unfinished chunk at a
//! segment's end is copied in front of the next segment's data (its buffer has headroom for the longest chunk), so every
//! chunk lies in one buffer; hashing then needs no order.

use std::collections::BTreeMap;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};

use outrigger_format::boundary::{CutWalk, GearMasks, WINDOW};
use outrigger_format::{ChunkerSpec, CodecSpec, FingerprintKind};

use super::ingest::{ChunkRef, hash_chunks, open_source};
use super::item::{Content, FileItem, SourceFile};
use super::progress::Progress;
use super::queue::Buffer;
use crate::local::{self, Extent};
use crate::meta::Change;

/// A file read in segments.
pub(super) struct LargeFile {
    source: Source,
    /// The change to commit when the last segment is through; taken by the sequencer.
    pub change: Mutex<Option<Change>>,
    pub chunker: ChunkerSpec,
    pub codec: CodecSpec,
    pub dedup: bool,
    segment_len: u64,
    next_segment: AtomicU64,
    /// Set when reading failed: the rest of the file is not read, and the file not stored.
    failed: AtomicBool,
    stream_ended: AtomicBool,
    cut: Mutex<CutState>,
}

enum Source {
    File { fd: OwnedFd, source: SourceFile, segments: Vec<Extent>, counts: Vec<u64> },
    Stream { reader: Mutex<StreamState>, turn: Condvar },
}

struct StreamState {
    reader: Box<dyn Read + Send>,
    next: u64,
    ended: bool,
    history: Vec<u8>,
}

struct CutState {
    next: u64,
    parked: BTreeMap<u64, ReadSegment>,
    walk: CutWalk,
    /// Position within the extent of the last cut, and the bytes read since.
    cut_at: u64,
    carry: Vec<u8>,
}

/// A segment that was read and scanned.
struct ReadSegment {
    ticket: u64,
    buffer: Buffer,
    /// Bytes of the same extent that lie before the data in the buffer, for the scanner.
    history: usize,
    len: usize,
    candidates: Vec<u32>,
    hole_before: u64,
    extent_end: bool,
    last: bool,
}

/// A segment that was cut: its chunks have no fingerprints yet.
pub(super) struct Scanned {
    pub ticket: u64,
    pub file: Arc<LargeFile>,
    pub buffer: Buffer,
    pub chunks: Vec<ChunkRef>,
    /// Bytes of hole before the first chunk.
    pub hole_before: u64,
    /// The file ends here.
    pub last: bool,
}

impl LargeFile {
    /// Opens the file and plans its segments.
    pub fn open(item: FileItem, segment_len: usize) -> Result<Self, String> {
        let FileItem { parent, name, inode, replace, mut attributes, content, chunker, codec, dedup } = item;
        let mut stamp = 0;
        let source = match content {
            Content::File(source) => {
                let fd = open_source(&source)?;
                attributes.xattrs =
                    local::xattrs(&fd).map_err(|errno| format!("extended attributes: {errno}"))?;
                stamp = source.stat.stamp(source.scan_start);
                let extents = if source.stat.is_sparse() {
                    local::extents(&fd, source.stat.size).map_err(|errno| errno.to_string())?
                } else {
                    vec![Extent { hole_before: 0, start: 0, len: source.stat.size }]
                };
                let mut total = 0;
                let counts = extents
                    .iter()
                    .map(|extent| {
                        total += extent.len.div_ceil(segment_len as u64).max(1);
                        total
                    })
                    .collect();
                Source::File { fd, source, segments: extents, counts }
            }
            Content::Stream(reader) => Source::Stream {
                reader: Mutex::new(StreamState { reader, next: 0, ended: false, history: Vec::new() }),
                turn: Condvar::new(),
            },
            Content::Bytes(bytes) => Source::Stream {
                reader: Mutex::new(StreamState {
                    reader: Box::new(std::io::Cursor::new(bytes)),
                    next: 0,
                    ended: false,
                    history: Vec::new(),
                }),
                turn: Condvar::new(),
            },
        };
        let root = outrigger_format::Root::Empty;
        let change = Change::Put { parent, name, inode, attributes, root, stamp, replace };
        let cut = CutState {
            next: 0,
            parked: BTreeMap::new(),
            walk: CutWalk::new(chunker),
            cut_at: 0,
            carry: Vec::new(),
        };
        Ok(Self {
            source,
            change: Mutex::new(Some(change)),
            chunker,
            codec,
            dedup,
            segment_len: segment_len as u64,
            next_segment: AtomicU64::new(0),
            failed: AtomicBool::new(false),
            stream_ended: AtomicBool::new(false),
            cut: Mutex::new(cut),
        })
    }

    /// The number of the next segment, or `None` when all were taken. Called under the queue's lock.
    pub fn take_segment(&self) -> Option<u64> {
        let next = self.next_segment.load(Ordering::Relaxed);
        let more = match &self.source {
            Source::File { counts, .. } => next < counts.last().copied().unwrap_or(0),
            // That a stream has ended is known once its reader has said so; a segment taken too many is empty.
            Source::Stream { .. } => !self.stream_ended.load(Ordering::Relaxed),
        };
        more.then(|| {
            self.next_segment.store(next + 1, Ordering::Relaxed);
            next
        })
    }

    /// True when a read failed: nothing of the file is committed.
    pub fn failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }

    /// Reads and scans segment `number`, then cuts what is in line; cut segments are handed to `push`.
    pub fn run_segment(
        self: &Arc<Self>,
        ticket: u64,
        number: u64,
        buffer: Buffer,
        progress: &Progress,
        push: &mut dyn FnMut(Scanned),
    ) {
        let mut read = self.read_segment(ticket, number, buffer, progress);
        if let ChunkerSpec::Gear32 { avg, .. } = self.chunker {
            let start = read.buffer.headroom;
            let history = &read.buffer.bytes[start - read.history..start];
            let data = &read.buffer.bytes[start..start + read.len];
            outrigger_offload::scan(history, data, GearMasks::for_average(avg), &mut read.candidates);
        }
        let mut cut = self.cut.lock().expect("no panic while cutting");
        cut.parked.insert(number, read);
        while let Some(read) = {
            let next = cut.next;
            cut.parked.remove(&next)
        } {
            cut.next += 1;
            push(self.cut_segment(&mut cut, read));
        }
    }

    fn cut_segment(self: &Arc<Self>, cut: &mut CutState, mut read: ReadSegment) -> Scanned {
        let start = read.buffer.headroom;
        let base = start - cut.carry.len();
        read.buffer.bytes[base..start].copy_from_slice(&cut.carry);
        let mut ends = Vec::new();
        cut.walk.feed(read.len, &read.candidates, &mut ends);
        if read.extent_end {
            ends.extend(cut.walk.finish());
        }
        // Absolute positions within the extent → positions in this buffer: `cut_at` lies at `base`.
        let mut chunks = Vec::with_capacity(ends.len());
        let mut at = cut.cut_at;
        for end in ends {
            let from = base + (at - cut.cut_at) as usize;
            let fingerprint = outrigger_format::Fingerprint([0; 32]);
            chunks.push(ChunkRef { start: from as u32, len: (end - at) as u32, fingerprint });
            at = end;
        }
        let tail = base + (at - cut.cut_at) as usize;
        cut.carry.clear();
        cut.carry.extend_from_slice(&read.buffer.bytes[tail..start + read.len]);
        cut.cut_at = at;
        if read.extent_end {
            cut.walk = CutWalk::new(self.chunker);
            cut.cut_at = 0;
            cut.carry.clear();
        }
        Scanned {
            ticket: read.ticket,
            file: Arc::clone(self),
            buffer: read.buffer,
            chunks,
            hole_before: read.hole_before,
            last: read.last,
        }
    }

    fn read_segment(&self, ticket: u64, number: u64, mut buffer: Buffer, progress: &Progress) -> ReadSegment {
        let start = buffer.headroom;
        let mut read = match &self.source {
            Source::File { fd, source, segments, counts } => {
                let extent = counts.partition_point(|&count| count <= number);
                let first = if extent == 0 { 0 } else { counts[extent - 1] };
                let Extent { hole_before, start: extent_start, len: extent_len } = segments[extent];
                let within = (number - first) * self.segment_len;
                let len = (extent_len - within).min(self.segment_len) as usize;
                let history = if within == 0 { 0 } else { WINDOW };
                let from = start - history;
                let offset = extent_start + within - history as u64;
                let room = &mut buffer.bytes[from..start + len];
                if !self.failed()
                    && let Err(why) = read_exact_at(fd, offset, room)
                {
                    self.fail(&source.display, &why, progress);
                }
                let last = number + 1 == *counts.last().expect("at least one extent");
                if last && !self.failed() {
                    self.notice_change(fd, source, progress);
                }
                ReadSegment {
                    ticket,
                    buffer,
                    history,
                    len,
                    candidates: Vec::new(),
                    hole_before: if within == 0 { hole_before } else { 0 },
                    extent_end: number + 1 == counts[extent],
                    last,
                }
            }
            Source::Stream { reader, turn } => {
                self.read_stream(reader, turn, ticket, number, buffer, progress)
            }
        };
        if self.failed() {
            read.len = 0;
        }
        progress.bytes_done.fetch_add(read.len as u64, Ordering::Relaxed);
        read
    }

    fn read_stream(
        &self,
        reader: &Mutex<StreamState>,
        turn: &Condvar,
        ticket: u64,
        number: u64,
        mut buffer: Buffer,
        progress: &Progress,
    ) -> ReadSegment {
        let start = buffer.headroom;
        let mut state = reader.lock().expect("no panic while reading");
        while state.next != number {
            state = turn.wait(state).expect("no panic while reading");
        }
        let history = std::mem::take(&mut state.history);
        buffer.bytes[start - history.len()..start].copy_from_slice(&history);
        let mut len = 0;
        let was_ended = state.ended;
        let segment_len = self.segment_len as usize;
        while !state.ended && len < segment_len {
            match state.reader.read(&mut buffer.bytes[start + len..start + segment_len]) {
                Ok(0) => state.ended = true,
                Ok(n) => len += n,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => {
                    self.fail("standard input", &error.to_string(), progress);
                    state.ended = true;
                }
            }
        }
        let keep = WINDOW.min(len + history.len());
        state.history = buffer.bytes[start + len - keep..start + len].to_vec();
        state.next += 1;
        if state.ended {
            self.stream_ended.store(true, Ordering::Relaxed);
        }
        let last = state.ended && !was_ended;
        turn.notify_all();
        let (history, candidates) = (history.len(), Vec::new());
        ReadSegment { ticket, buffer, history, len, candidates, hole_before: 0, extent_end: last, last }
    }

    fn fail(&self, what: &str, why: &str, progress: &Progress) {
        if !self.failed.swap(true, Ordering::Relaxed) {
            progress.skip(what, why);
        }
    }

    fn notice_change(&self, fd: &OwnedFd, source: &SourceFile, progress: &Progress) {
        if !local::fstat(fd).is_ok_and(|after| after.same_content(&source.stat)) {
            progress.skip(&*source.display, "changed while it was read; what was read is stored");
            if let Some(Change::Put { stamp, .. }) = self.change.lock().expect("no panic while held").as_mut()
            {
                *stamp = 0;
            }
        }
    }
}

/// Computes the fingerprints of a cut segment's chunks.
pub(super) fn hash_segment(scanned: &mut Scanned, kind: FingerprintKind) {
    hash_chunks(kind, &scanned.buffer, &mut scanned.chunks);
}

fn read_exact_at(fd: &OwnedFd, offset: u64, room: &mut [u8]) -> Result<(), String> {
    let mut len = 0;
    while len < room.len() {
        match rustix::io::pread(fd, &mut room[len..], offset + len as u64) {
            Ok(0) => return Err("became shorter while it was read; put it again".to_string()),
            Ok(n) => len += n,
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno.to_string()),
        }
    }
    Ok(())
}
