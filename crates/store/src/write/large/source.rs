//! Where a large file's segments come from: files of this machine and streams; composed files are
//! in `parts.rs`.

use std::collections::VecDeque;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex};

use outrigger_format::ChunkerSpec;

use super::parts::{PartsSource, Span};
use super::{Between, Data, LargeFile, Piece, ReadSegment};
use crate::file::{self, Extent};
use crate::meta::Change;
use crate::write::item::SourceFile;
use crate::write::progress::Progress;

pub(super) enum Source {
    File(FileSource),
    Stream(StreamSource),
    Parts(PartsSource),
}

/// A segment that a worker has taken.
pub(in crate::write) struct Segment {
    /// Counts from 0.
    pub number: u64,
    /// Its part of a composed file.
    pub(super) span: Option<Span>,
}

impl Source {
    /// See [`LargeFile::take_segment`].
    pub fn take_segment(&self) -> Option<Segment> {
        let take = |next: &AtomicU64| Segment { number: next.fetch_add(1, Ordering::Relaxed), span: None };
        match self {
            Self::File(source) => {
                let more = source.next.load(Ordering::Relaxed) < source.counts.last().copied().unwrap_or(0);
                more.then(|| take(&source.next))
            }
            // The end of a stream is known only after its reader has met it; a segment that was
            // taken in vain is empty.
            Self::Stream(source) => (!source.ended.load(Ordering::Relaxed)).then(|| take(&source.next)),
            Self::Parts(source) => source.take_segment(),
        }
    }
}

/// A file of this machine.
pub(super) struct FileSource {
    fd: OwnedFd,
    file: SourceFile,
    extents: Vec<Extent>,
    /// Segments up to the end of each extent.
    counts: Vec<u64>,
    segment_len: u64,
    next: AtomicU64,
}

impl FileSource {
    pub fn new(fd: OwnedFd, file: SourceFile, segment_len: u64) -> Result<Self, rustix::io::Errno> {
        let extents = if file.stat.is_sparse() {
            file::extents(&fd, file.stat.size)?
        } else {
            vec![Extent { hole_before: 0, start: 0, len: file.stat.size }]
        };
        let mut total = 0;
        let count = |extent: &Extent| {
            total += extent.len.div_ceil(segment_len).max(1);
            total
        };
        let counts = extents.iter().map(count).collect();
        Ok(Self { fd, file, extents, counts, segment_len, next: AtomicU64::new(0) })
    }
}

/// A stream: segments are read one after the other, by the worker that has the next. A segment has
/// bytes of one extent.
pub(super) struct StreamSource {
    state: Mutex<StreamState>,
    turn: Condvar,
    segment_len: u64,
    next: AtomicU64,
    ended: AtomicBool,
}

struct StreamState {
    reader: Box<dyn Read + Send>,
    next: u64,
    ended: bool,
    history: Vec<u8>,
    /// The extents to come.
    extents: VecDeque<Extent>,
    /// Bytes of the first of them that were read.
    within: u64,
}

/// The extent of a stream that ends where its reader does.
const ENDLESS: Extent = Extent { hole_before: 0, start: 0, len: u64::MAX };

impl StreamSource {
    pub fn new(reader: Box<dyn Read + Send>, segment_len: u64) -> Self {
        Self::sparse(reader, vec![ENDLESS], segment_len)
    }

    pub fn sparse(reader: Box<dyn Read + Send>, extents: Vec<Extent>, segment_len: u64) -> Self {
        let (ended, extents) = (extents.is_empty(), extents.into());
        Self {
            state: Mutex::new(StreamState {
                reader,
                next: 0,
                ended,
                history: Vec::new(),
                extents,
                within: 0,
            }),
            turn: Condvar::new(),
            segment_len,
            next: AtomicU64::new(0),
            ended: AtomicBool::new(false),
        }
    }
}

impl LargeFile {
    pub(super) fn read_file(
        &self,
        source: &FileSource,
        number: u64,
        read: &mut ReadSegment,
        progress: &Progress,
    ) {
        let FileSource { fd, file, extents, counts, segment_len, .. } = source;
        let start = read.buffer.headroom;
        let extent = counts.partition_point(|&count| count <= number);
        let first = if extent == 0 { 0 } else { counts[extent - 1] };
        let Extent { hole_before, start: extent_start, len: extent_len } = extents[extent];
        let within = (number - first) * segment_len;
        let len = (extent_len - within).min(*segment_len) as usize;
        let history = if within == 0 { 0 } else { self.chunker.history_len() };
        let offset = extent_start + within - history as u64;
        let room = &mut read.buffer.bytes[start - history..start + len];
        if !self.failed()
            && let Err(why) = read_exact_at(fd, offset, room)
        {
            self.fail(&file.display, &why, progress);
        }
        read.last = number + 1 == *counts.last().expect("at least one extent");
        if read.last && !self.failed() {
            self.notice_change(fd, file, progress);
        }
        if within == 0 && hole_before > 0 {
            read.pieces.push(Piece::Between(Between::Hole(hole_before)));
        }
        self.add_piece(read, history, len, number + 1 == counts[extent], progress);
    }

    pub(super) fn read_stream(
        &self,
        source: &StreamSource,
        number: u64,
        read: &mut ReadSegment,
        progress: &Progress,
    ) {
        let start = read.buffer.headroom;
        let bytes = &mut read.buffer.bytes;
        let mut state = source.state.lock().expect("no panic while reading");
        while state.next != number {
            state = source.turn.wait(state).expect("no panic while reading");
        }
        let history = std::mem::take(&mut state.history);
        bytes[start - history.len()..start].copy_from_slice(&history);
        let mut len = 0;
        let was_ended = state.ended;
        let extent = state.extents.front().copied().unwrap_or(Extent { len: 0, ..ENDLESS });
        if state.within == 0 && extent.hole_before > 0 {
            read.pieces.push(Piece::Between(Between::Hole(extent.hole_before)));
        }
        let room = (extent.len - state.within).min(source.segment_len) as usize;
        while !state.ended && len < room {
            match state.reader.read(&mut bytes[start + len..start + room]) {
                Ok(0) => {
                    if extent.len != ENDLESS.len {
                        self.fail("a sparse stream", "it ends before its last extent does", progress);
                    }
                    state.ended = true;
                }
                Ok(n) => len += n,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => {
                    self.fail(&self.name(), &error.to_string(), progress);
                    state.ended = true;
                }
            }
        }
        state.within += len as u64;
        let extent_ends = state.within == extent.len && !was_ended;
        if extent_ends {
            state.extents.pop_front();
            (state.within, state.ended) = (0, state.ended || state.extents.is_empty());
        } else {
            let keep = self.chunker.history_len().min(len + history.len());
            state.history = bytes[start + len - keep..start + len].to_vec();
        }
        state.next += 1;
        if state.ended {
            source.ended.store(true, Ordering::Relaxed);
        }
        read.last = state.ended && !was_ended;
        source.turn.notify_all();
        drop(state);
        let ends = extent_ends || read.last;
        self.add_piece(read, history.len(), len, ends, progress);
    }

    /// The one piece of a segment of a file or stream; nothing of it counts once reading has
    /// failed.
    fn add_piece(&self, read: &mut ReadSegment, history: usize, len: usize, ends: bool, progress: &Progress) {
        let len = if self.failed() { 0 } else { len };
        // All but the last segment of an extent are as long as the first.
        let aligned = match self.chunker {
            ChunkerSpec::Fixed { size } => self.segment_len.is_multiple_of(size.into()),
            _ => true,
        };
        read.pieces.push(Piece::Data(Data { len, history, candidates: 0..0, ends, aligned }));
        Progress::add(&progress.bytes_done, len as u64);
    }

    fn notice_change(&self, fd: &OwnedFd, source: &SourceFile, progress: &Progress) {
        if !file::fstat(fd).is_ok_and(|after| after.same_content(&source.stat)) {
            progress.skip(&*source.display, "changed while it was read; what was read is stored");
            if let Some(Change::Put { stamp, .. }) = self.change.lock().expect("no panic while held").as_mut()
            {
                *stamp = 0;
            }
        }
    }
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
