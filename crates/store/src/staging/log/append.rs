//! Appending: records at the end of the last segment, and the next segment when that is full.
//!
//! **A failed append** leaves part of a record at the end of the segment. It is cut off before
//! anything else is appended. If even that fails, the next append tries again, and fails if it
//! cannot. So a full disk is an error for the caller alone: the log goes on when there is space
//! again. An append that fails while it begins a new segment leaves the old one in place. An
//! encrypted segment never takes a position twice: the next append after a failed one begins a new
//! segment, and so does the first one after the log was opened.
//!
//! A new segment gets its whole space at once (`fallocate`, keeping the length), and gives the rest
//! back when it is full. If that does not work, or the disk bounds the log, the writes themselves
//! fail.

use std::io::{self, IoSlice};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use outrigger_clock as clock;
use outrigger_format::catalogue::Time;
use outrigger_format::staging::{MAX_PAYLOAD_LEN, Operation, RECORD_HEADER_LEN};

use super::{Appended, Location, Log, Segment};
use crate::error::{Context, Error, ErrorKind, Result};
use crate::staging::files::{Files, write_whole};
use crate::staging::sealed::Sealing;

/// The end of the log.
pub(super) struct Tail {
    pub segment: Arc<Segment>,
    /// Bytes of whole records and the header: where the next record goes.
    pub len: u64,
    /// Everything below may have been encrypted already, also where the write failed. 0 in a plain
    /// segment.
    pub taken: u64,
    /// Space was reserved up to here, or could not be.
    pub reserved: u64,
    /// Sequence of the next record.
    pub next: u64,
    /// There may be more in the file than `len`.
    pub ragged: bool,
    /// Segments that were appended to since the last sync, in order.
    pub unsynced: Vec<Arc<Segment>>,
    /// Records are encrypted into it.
    pub buffer: Vec<u8>,
}

impl Log {
    /// Appends an operation, with the data of a write. Never waits for room: see [`Log::reserve`].
    ///
    /// When it returns the operation survives the death of the process, and of the machine after
    /// the next [`Log::sync`].
    ///
    /// # Errors
    /// `Full` and `Io` when it could not be written; it is not in the log then, which stays usable.
    /// `Invalid` when it does not fit into a segment, or has data and is not a write, or the
    /// reverse. `Io` once a sync has failed.
    pub fn append(&self, operation: &Operation, data: &[u8]) -> Result<Appended> {
        if data.is_empty() == matches!(operation, Operation::Write { .. }) {
            return Err(Error::new(
                ErrorKind::Invalid,
                "a write to the staging log needs data, nothing else has any",
            ));
        }
        let too_long = || Error::new(ErrorKind::Invalid, "an operation is too long for the staging log");
        if data.len() > MAX_PAYLOAD_LEN {
            return Err(too_long());
        }
        let prepared = self.sealing.prepare(operation, data);
        let len = prepared.record_len() as u64 + self.sealing.tags_len(data.len());
        let header_len = self.sealing.header_len();
        if prepared.record_len() > MAX_PAYLOAD_LEN + RECORD_HEADER_LEN
            || header_len + len > self.options.segment_len
        {
            return Err(too_long());
        }
        let mut tail = self.tail();
        self.commit.check()?;
        if tail.ragged {
            self.cut(&mut tail)?;
        }
        if tail.len + len > self.options.segment_len || tail.len < tail.taken {
            self.roll(&mut tail)?;
        }
        let end = tail.len + len;
        self.reserve_to(&mut tail, end)?;
        let sequence = tail.next;
        let now = clock::now_nanos();
        let head = prepared.head(sequence, self.commit.durable(), now);
        if let Err(error) = tail.write(&head, data, end) {
            tail.ragged = true;
            // Cut now, so that others have the space; if this fails, the next append tries again.
            let _ = self.cut(&mut tail);
            return Err(error)
                .context(|| format!("cannot append to {}", self.files.name(tail.segment.number)));
        }
        let offset = tail.len + self.sealing.tag_len() + head.len() as u64;
        let location = Location::whole(tail.segment.number, offset as u32, data.len() as u32);
        let appended = Appended { sequence, location, time: Time::from_nanos(now) };
        tail.len = end;
        tail.next += 1;
        tail.segment.len.store(tail.len, Ordering::Relaxed);
        self.space.take(len);
        self.usage.appended(operation, &appended);
        Ok(appended)
    }

    /// Reserves space on the disk up to `end`, and for more records if it can. Only an encrypted
    /// log fails when there is none, because a write that fails costs it the rest of the segment.
    fn reserve_to(&self, tail: &mut Tail, end: u64) -> Result<()> {
        if end <= tail.reserved {
            return Ok(());
        }
        let left = self.space.left().max(end - tail.len);
        let until = self.options.segment_len.min(tail.len + left);
        let is_full = |reserved: &io::Result<()>| {
            let kind = reserved.as_ref().err().map(io::Error::kind);
            matches!(kind, Some(io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded))
        };
        if !is_full(&tail.reserve(until)) || self.options.key.is_none() {
            return Ok(());
        }
        let reserved = tail.reserve(end);
        if !is_full(&reserved) {
            return Ok(());
        }
        let _ = self.cut(tail);
        reserved.context(|| format!("cannot append to {}", self.files.name(tail.segment.number)))
    }

    /// Cuts off what a failed append left behind.
    fn cut(&self, tail: &mut Tail) -> Result<()> {
        let name = || format!("cannot cut off a failed append to {}", self.files.name(tail.segment.number));
        tail.segment.file.truncate(tail.len).context(name)?;
        (tail.ragged, tail.reserved) = (false, tail.len);
        Ok(())
    }

    /// Begins the next segment.
    pub(super) fn roll(&self, tail: &mut Tail) -> Result<()> {
        let number = tail.segment.number.checked_add(1).ok_or_else(|| {
            Error::new(ErrorKind::Full, "the staging log has used up its segments' numbers: mount again")
        })?;
        let new = Tail::begin(&*self.files, &self.sealing, number, tail.next)?;
        self.adopt(&new.segment);
        let mut old = std::mem::replace(tail, new);
        tail.buffer = std::mem::take(&mut old.buffer);
        // Truncating to its length gives back the space that was not needed.
        let _ = old.segment.file.truncate(old.len);
        tail.unsynced.splice(..0, old.unsynced);
        Ok(())
    }

    pub(super) fn adopt(&self, segment: &Arc<Segment>) {
        self.space.take(self.sealing.header_len());
        self.segments.write().expect("no panic while it is held").insert(segment.number, Arc::clone(segment));
    }
}

impl Tail {
    /// Begins a segment, and makes its header and name durable. So a crash leaves no gap before it,
    /// and sequences go on from it when earlier segments are removed.
    pub(super) fn begin(files: &dyn Files, sealing: &Sealing, number: u32, next: u64) -> Result<Self> {
        let what = || format!("cannot begin {}", files.name(number));
        let (header, keys) = sealing.begin(number, next)?;
        let header = header.encode();
        let file = files.create(number).context(what)?;
        let begun = write_whole(&*file, &mut [IoSlice::new(&header)], 0)
            .and_then(|()| file.sync())
            .and_then(|()| files.sync());
        if let Err(error) = begun {
            drop(file);
            // If it stays, it does no harm: the next attempt empties it, and a replay takes it for
            // a torn tail.
            let _ = files.remove(number);
            return Err(error).context(what);
        }
        let len = sealing.header_len();
        let segment = Arc::new(Segment { number, file, keys, len: AtomicU64::new(len) });
        let unsynced = vec![Arc::clone(&segment)];
        let buffer = Vec::new();
        Ok(Self { segment, len, taken: 0, reserved: 0, next, ragged: false, unsynced, buffer })
    }

    /// Writes a record at `len`, which then ends at `end`. An encrypted segment's bytes up to there are
    /// taken for good, also if this fails.
    fn write(&mut self, head: &[u8], data: &[u8], end: u64) -> io::Result<()> {
        let Segment { file, keys, .. } = &*self.segment;
        let Some(keys) = keys else {
            return write_whole(&**file, &mut [IoSlice::new(head), IoSlice::new(data)], self.len);
        };
        assert!(self.len >= self.taken, "no position is encrypted twice");
        self.taken = end;
        let sealed = keys.seal(head, data, self.len, &mut self.buffer);
        write_whole(&**file, &mut [IoSlice::new(sealed)], self.len)
    }

    fn reserve(&mut self, until: u64) -> io::Result<()> {
        self.reserved = until;
        self.segment.file.reserve(self.len, until - self.len)
    }
}
