//! Stage frame: new chunks, in order, collected until they are worth compressing together.
//!
//! A compressor needs a frame's bytes contiguous. If all chunks are new, they are contiguous
//! already, in the buffer that they were read into: such a frame borrows that buffer. If new and
//! known chunks alternate, the new ones are copied together. No open frame borrows beyond the batch
//! it began in ([`Framer::settle`]): one new chunk must not hold a buffer, nor wait for data that
//! only comes when there is a free buffer. Chunks of files with different [`Form`]s are never in
//! one frame.

use std::ops::Range;
use std::sync::Arc;

use outrigger_format::{Domain, Fingerprint, MAX_FRAME_LEN};
use outrigger_offload::Compression;
use outrigger_offload::pool::{Buffer as Memory, Pool};

use super::bytes::{Buffer, Bytes};

/// The properties of a file's frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Form {
    pub codec: Compression,
    /// See [`super::FileItem::frame`].
    pub frame: Option<u32>,
    /// The file's domain.
    pub domain: Domain,
}

impl Form {
    #[cfg(test)]
    const PLAIN: Self = Self { codec: Compression::NONE, frame: None, domain: Domain::COMMON };
}

/// A frame's raw bytes, complete, before compression.
pub(super) struct RawFrame {
    /// Its number: rises in the order frames were opened.
    pub sequence: u64,
    pub raw: RawBytes,
    pub lengths: Vec<u32>,
    pub fingerprints: Vec<Fingerprint>,
    pub form: Form,
    /// No device is to be asked, or no longer.
    pub for_processor: bool,
}

/// Where a frame's raw bytes are.
pub(super) enum RawBytes {
    /// In the buffer that they were read into.
    Borrowed(Arc<Buffer>, Range<usize>),
    /// Copied together, in memory of the pool, which a device can read as well as a batch.
    Owned(Bytes),
}

impl RawBytes {
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::Borrowed(buffer, range) => &buffer.bytes[range.clone()],
            Self::Owned(bytes) => bytes,
        }
    }

    /// The same, for a device to read.
    pub fn lend(&self) -> (Arc<Memory>, Range<usize>) {
        match self {
            Self::Borrowed(buffer, range) => (buffer.bytes.lend(), range.clone()),
            Self::Owned(bytes) => (bytes.lend(), 0..bytes.len()),
        }
    }

    /// Copies the bytes into memory of their own, with room for `len` bytes.
    fn own(&mut self, len: usize, pool: &Pool) -> &mut Bytes {
        if let Self::Borrowed(buffer, range) = self {
            let mut owned = Bytes::with_room(pool, len.max(range.len()));
            owned.extend_from_slice(&buffer.bytes[range.clone()]);
            *self = Self::Owned(owned);
        }
        match self {
            Self::Owned(bytes) => bytes,
            Self::Borrowed(..) => unreachable!("just copied"),
        }
    }
}

/// Frames do not grow beyond this.
const GROWN_MAX: usize = 4 << 20;

/// Chunks that a frame's header can name.
const CHUNKS_MAX: usize = 65_535;

/// Collects chunks into frames of about `frame_size` raw bytes. A frame ends with the chunk that
/// reaches that size, or before a chunk that would exceed it by a quarter (a larger chunk is a
/// frame of its own).
pub(super) struct Framer {
    frame_size: usize,
    limit: usize,
    /// True if frames may be longer than that when their codec asks for it.
    grows: bool,
    open: Option<RawFrame>,
    next_sequence: u64,
    pool: Pool,
}

impl Framer {
    /// Frames that are copied together lie in memory of `pool`.
    pub fn new(frame_size: usize, pool: Pool) -> Self {
        let limit = Self::usual_limit(frame_size);
        Self { frame_size, limit, grows: true, open: None, next_sequence: 1, pool }
    }

    /// The most bytes of a frame of this size, unless a chunk is longer.
    pub fn usual_limit(frame_size: usize) -> usize {
        (frame_size + frame_size / 4).min(MAX_FRAME_LEN)
    }

    /// From the next frame on, no frame of several chunks is longer than this, not even for its
    /// codec: a device takes no more.
    pub fn set_limit(&mut self, limit: usize) {
        (self.limit, self.grows) = (limit, false);
    }

    /// Frames are copied together in memory of `pool` from now on.
    pub fn use_memory(&mut self, pool: &Pool) {
        self.pool = pool.clone();
    }

    /// Raw bytes that complete a frame, and the most that a frame of several chunks may have.
    fn bounds(&self, form: Form) -> (usize, usize) {
        match form.frame {
            None if self.grows && form.codec.frame_factor() > 1 => {
                let size = self.frame_size.saturating_mul(form.codec.frame_factor()).min(GROWN_MAX);
                let size = size.max(self.frame_size);
                (size, Self::usual_limit(size))
            }
            None => (self.frame_size.min(self.limit), self.limit),
            Some(most) => {
                let most = (most as usize).min(MAX_FRAME_LEN);
                (most, most)
            }
        }
    }

    /// Adds the chunk at `at` of `buffer`. Returns the number of its frame, and the frame before it
    /// if that is now complete.
    pub fn push(
        &mut self,
        fingerprint: Fingerprint,
        buffer: &Arc<Buffer>,
        at: Range<usize>,
        form: Form,
    ) -> (u64, Option<RawFrame>) {
        let (size, limit) = self.bounds(form);
        let full = self.open.as_ref().is_some_and(|open| {
            let len = open.raw.bytes().len();
            len >= size || len + at.len() > limit || open.form != form || open.lengths.len() == CHUNKS_MAX
        });
        let complete = if full { self.open.take() } else { None };
        let len = at.len() as u32;
        match &mut self.open {
            None => {
                let sequence = self.next_sequence;
                self.next_sequence += 1;
                let raw = RawBytes::Borrowed(Arc::clone(buffer), at);
                let (lengths, fingerprints) = (vec![len], vec![fingerprint]);
                let for_processor = false;
                self.open = Some(RawFrame { sequence, raw, lengths, fingerprints, form, for_processor });
                (sequence, complete)
            }
            Some(open) => {
                match &mut open.raw {
                    RawBytes::Borrowed(same, range) if range.end == at.start && Arc::ptr_eq(same, buffer) => {
                        range.end = at.end;
                    }
                    raw => raw.own(limit, &self.pool).extend_from_slice(&buffer.bytes[at]),
                }
                open.lengths.push(len);
                open.fingerprints.push(fingerprint);
                (open.sequence, None)
            }
        }
    }

    /// Ends a batch: afterwards the open frame borrows nothing. Returns the open frame if it is
    /// complete; three quarters are enough when that saves the copy.
    pub fn settle(&mut self) -> Option<RawFrame> {
        let (size, limit) = self.bounds(self.open.as_ref()?.form);
        let open = self.open.as_mut()?;
        if let RawBytes::Borrowed(_, range) = &open.raw {
            if range.len() >= size - size / 4 {
                return self.open.take();
            }
            open.raw.own(limit, &self.pool);
        }
        None
    }

    /// Takes the frame that is still open.
    pub fn flush(&mut self) -> Option<RawFrame> {
        self.open.take()
    }
}

#[cfg(test)]
mod tests {
    use outrigger_format::{CodecChoice, Objective};
    use outrigger_offload::pool::Pool;

    use super::super::bytes::Bytes;
    use super::*;

    fn buffer(len: usize) -> Arc<Buffer> {
        let mut bytes = Bytes::new(&Pool::new(None, 0), len);
        bytes.iter_mut().enumerate().for_each(|(n, byte)| *byte = (n * 7 % 251) as u8);
        Arc::new(Buffer { headroom: 0, bytes })
    }

    fn push(framer: &mut Framer, buffer: &Arc<Buffer>, at: Range<usize>) -> (u64, Option<RawFrame>) {
        framer.push(Fingerprint([at.start as u8; 32]), buffer, at, Form::PLAIN)
    }

    #[test]
    fn what_lies_together_is_not_copied_and_what_does_not_is() {
        let (mut framer, source) = (Framer::new(1000, Pool::new(None, 0)), buffer(4000));
        for at in [0..400, 400..900, 900..1100] {
            assert!(push(&mut framer, &source, at).1.is_none(), "not complete before it reaches its size");
        }
        let (number, first) = push(&mut framer, &source, 1100..1200);
        let first = first.expect("complete: it has reached its size");
        assert_eq!((first.sequence, number), (1, 2));
        assert!(matches!(&first.raw, RawBytes::Borrowed(_, range) if *range == (0..1100)));
        assert_eq!(first.lengths, [400, 500, 200]);
        // A gap.
        push(&mut framer, &source, 1300..1500);
        let second = framer.flush().expect("open");
        assert!(matches!(&second.raw, RawBytes::Owned(_)));
        assert_eq!(second.raw.bytes(), [&source.bytes[1100..1200], &source.bytes[1300..1500]].concat());
    }

    #[test]
    fn nothing_is_borrowed_beyond_a_batch() {
        let (mut framer, source) = (Framer::new(1000, Pool::new(None, 0)), buffer(4000));
        push(&mut framer, &source, 0..700);
        assert!(framer.settle().is_none(), "too small to be complete");
        assert_eq!(Arc::strong_count(&source), 1, "the buffer is free");
        let other = buffer(4000);
        // The next batch continues it.
        assert_eq!(push(&mut framer, &other, 0..200).0, 1);
        assert!(framer.settle().is_none(), "copied bytes wait for more");
        let (_, complete) = push(&mut framer, &other, 200..700);
        assert_eq!(complete.expect("would be too long").raw.bytes().len(), 900);
        push(&mut framer, &other, 700..1000);
        let frame = framer.settle().expect("three quarters are enough");
        assert!(matches!(&frame.raw, RawBytes::Borrowed(_, range) if *range == (200..1000)));
        assert!(framer.flush().is_none());
    }

    #[test]
    fn files_with_a_limit_of_their_own_have_frames_of_their_own() {
        let (mut framer, source) = (Framer::new(1000, Pool::new(None, 0)), buffer(4000));
        let small = Form { frame: Some(300), ..Form::PLAIN };
        let push = |framer: &mut Framer, at: Range<usize>, form| {
            framer.push(Fingerprint([1; 32]), &source, at, form).1
        };
        assert!(push(&mut framer, 0..100, Form::PLAIN).is_none());
        assert_eq!(push(&mut framer, 100..200, small).expect("another limit").lengths, [100]);
        assert!(push(&mut framer, 200..390, small).is_none());
        assert_eq!(push(&mut framer, 390..401, small).expect("11 bytes too many").lengths, [100, 190]);
        assert_eq!(push(&mut framer, 401..500, Form::PLAIN).expect("another limit").lengths, [11]);
    }

    #[test]
    fn a_device_may_want_none_longer_than_the_size_itself() {
        let source = buffer(4000);
        let mut framer = Framer::new(1000, Pool::new(None, 0));
        framer.set_limit(1000);
        assert!(push(&mut framer, &source, 0..600).1.is_none());
        let (_, complete) = push(&mut framer, &source, 600..1001);
        assert_eq!(complete.expect("a byte too many").lengths, [600]);
        assert!(push(&mut framer, &source, 1001..1600).1.is_none(), "exactly as much");
        assert_eq!(push(&mut framer, &source, 1600..1601).1.expect("full").lengths, [401, 599]);
    }

    #[test]
    fn where_the_level_is_ours_to_choose_so_is_the_length() {
        let source = buffer(9000);
        let auto = |objective| Form { codec: CodecChoice::Auto(objective).into(), ..Form::PLAIN };
        let longest = |framer: &mut Framer, form| {
            for at in (0..9000).step_by(100) {
                if let Some(complete) = framer.push(Fingerprint([1; 32]), &source, at..at + 100, form).1 {
                    return complete.raw.bytes().len();
                }
            }
            9000
        };
        let framer = || Framer::new(1000, Pool::new(None, 0));
        assert_eq!(longest(&mut framer(), auto(Objective::Throughput)), 2000);
        assert_eq!(longest(&mut framer(), auto(Objective::Ratio)), 4000);
        assert_eq!(longest(&mut framer(), Form::PLAIN), 1000);
        let mut limited = framer();
        limited.set_limit(1250);
        assert_eq!(longest(&mut limited, auto(Objective::Ratio)), 1000);
        let small = Form { frame: Some(300), ..auto(Objective::Ratio) };
        assert_eq!(longest(&mut framer(), small), 300, "who reads here and there has said so");
        // A frame size that is already long does not become shorter.
        let mut long = Framer::new(8 << 20, Pool::new(None, 0));
        assert_eq!(long.bounds(auto(Objective::Ratio)).0, 8 << 20);
        long.frame_size = 2 << 20;
        assert_eq!(long.bounds(auto(Objective::Ratio)).0, 4 << 20);
    }

    #[test]
    fn a_chunk_longer_than_a_frame_is_alone() {
        let (mut framer, source) = (Framer::new(1000, Pool::new(None, 0)), buffer(9000));
        push(&mut framer, &source, 0..100);
        let (_, before) = push(&mut framer, &source, 100..5000);
        assert_eq!(before.expect("not joined").lengths, [100]);
        let (_, long) = push(&mut framer, &source, 5000..5100);
        assert_eq!(long.expect("not joined").lengths, [4900]);
    }
}
