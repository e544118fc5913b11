//! The log: opening, reading, syncing, removing. `append.rs` writes to its end.
//!
//! **Locks**, in the order in which they are taken: `removal` (one remover at a time), then `tail`
//! (the end of the log: held over one append and while a segment begins, never over a sync), then
//! `segments` (the list of segments). In a plain log a record's data is hashed before `tail` is taken, and
//! written from the caller's memory, in one `pwritev` of header, fields and data. A log with a key
//! encrypts it into a buffer of its own while `tail` is held, and writes that. So records are whole in
//! the order of their sequences, and a record is acknowledged only after those before it.

mod append;

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, RwLock};
use std::time::Duration;

use outrigger_format::StoreId;
use outrigger_format::catalogue::Time;
use outrigger_format::staging::{RECORD_HEADER_LEN, RECORD_TAG_LEN};

use self::append::Tail;
use super::files::{Directory, Files, SegmentFile, read_whole};
use super::replay::{self, Replayed, Report};
use super::sealed::{Sealing, SegmentKeys};
use super::space::{Fill, Reservation, Space};
use super::sync::GroupCommit;
use super::usage::Usage;
use crate::error::{Context, Error, ErrorKind, Result};
use crate::keys::Key;

/// How a log is kept.
#[derive(Clone, Debug)]
pub struct Options {
    /// The store: a log of another one is refused.
    pub store: StoreId,
    /// Bytes of a segment at most.
    pub segment_len: u64,
    /// Bytes of all segments at most, not counting the flusher's own records; at least two
    /// segments.
    pub capacity: u64,
    /// Packs lie on the same disk: while there is staged data, space for its packs is kept free
    /// there.
    pub packs_beside: bool,
    /// Encrypts the records. Without a key they are plain. A log that was written with another key,
    /// or with one where there is none now, is refused.
    pub key: Option<Key>,
}

impl Options {
    /// Plain segments of 64 MiB, 256 MiB of them: twice the largest batch that a device takes at
    /// once.
    pub fn new(store: StoreId) -> Self {
        Self { store, segment_len: 64 << 20, capacity: 256 << 20, packs_beside: false, key: None }
    }

    fn sealing(&self) -> Sealing {
        Sealing::new(self.store, self.key.as_ref())
    }

    fn validate(&self) -> Result<()> {
        let least = self.sealing().header_len() + RECORD_HEADER_LEN as u64;
        if self.segment_len <= least || self.segment_len > u32::MAX.into() {
            let text = format!("a staging segment of {} bytes is too short or too long", self.segment_len);
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        if self.capacity < 2 * self.segment_len {
            let (capacity, segment) = (self.capacity, self.segment_len);
            let text = format!("staging of {capacity} bytes does not hold two segments of {segment} bytes");
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        Ok(())
    }
}

/// Where appended data lies. The file map that it was given to keeps its segment from being
/// removed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Location {
    /// The segment.
    pub segment: u32,
    /// Where the data begins in it.
    pub offset: u32,
    /// Its length, bytes.
    pub len: u32,
    /// Where all data of its record begins, and its length: an encrypted log verifies all of it only.
    pub whole: (u32, u32),
}

impl Location {
    /// All data of a record.
    pub(super) fn whole(segment: u32, offset: u32, len: u32) -> Self {
        Self { segment, offset, len, whole: (offset, len) }
    }

    /// The part of the data at `range`.
    ///
    /// # Panics
    /// When `range` is not within the data.
    #[must_use]
    pub fn slice(&self, range: Range<u32>) -> Self {
        assert!(range.start <= range.end && range.end <= self.len, "{range:?} of {self:?}");
        Self { offset: self.offset + range.start, len: range.end - range.start, ..*self }
    }
}

/// The result of appending. If the operation was on a file's content (write, truncate, zero,
/// clone), give it to the file's [`ExtentMap`](super::ExtentMap), or to [`Usage::release`];
/// otherwise its segment stays for ever.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Appended {
    /// The record's sequence.
    pub sequence: u64,
    /// Its segment, and the place of its data there; of length 0 unless it is a write.
    pub location: Location,
    /// The time that the operation gives to what it changes.
    pub time: Time,
}

/// An existing segment.
pub(super) struct Segment {
    pub number: u32,
    pub file: Box<dyn SegmentFile>,
    /// There are some if its records are encrypted.
    pub keys: Option<SegmentKeys>,
    /// Bytes of whole records and the header.
    pub len: AtomicU64,
}

/// A staging log. All methods may be called by any number of threads.
pub struct Log {
    files: Box<dyn Files>,
    options: Options,
    sealing: Sealing,
    tail: Mutex<Tail>,
    segments: RwLock<BTreeMap<u32, Arc<Segment>>>,
    commit: GroupCommit,
    space: Space,
    usage: Arc<Usage>,
    removal: Mutex<()>,
}

impl std::fmt::Debug for Log {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "staging log, {:?}", self.fill())
    }
}

impl Log {
    /// Opens the log in directory `path`, making it if there is none, and hands each of its records
    /// to `visit`, in order. The effects of `visit` must not last before this returns: the log may
    /// turn out to be damaged further on. When it has returned, all visited records are on disk.
    ///
    /// # Errors
    /// `Busy` when another mount has it, `Invalid` when it lies on a FUSE mount, belongs to another
    /// store or was written with another key (nothing is changed then), `Damaged` when records that were on disk are broken (nothing is changed
    /// then), `Newer`; errors of `visit`.
    pub fn open(
        path: &Path,
        options: Options,
        visit: &mut dyn FnMut(Replayed<'_>) -> Result<()>,
    ) -> Result<(Self, Report)> {
        Self::open_counting(path, options, Arc::default(), visit)
    }

    /// Like [`Log::open`], counting in `usage`, with which the maps of files can be made before
    /// there is a log.
    ///
    /// # Errors
    /// As [`Log::open`].
    pub fn open_counting(
        path: &Path,
        options: Options,
        usage: Arc<Usage>,
        visit: &mut dyn FnMut(Replayed<'_>) -> Result<()>,
    ) -> Result<(Self, Report)> {
        options.validate()?;
        Self::open_files(Box::new(Directory::open(path)?), options, usage, visit)
    }

    pub(super) fn open_files(
        files: Box<dyn Files>,
        options: Options,
        usage: Arc<Usage>,
        visit: &mut dyn FnMut(Replayed<'_>) -> Result<()>,
    ) -> Result<(Self, Report)> {
        options.validate()?;
        let sealing = options.sealing();
        let mut scanned = replay::scan(&*files, &sealing, &usage, visit)?;
        let kept = replay::mend(&*files, &mut scanned)?;
        let space = Space::new(options.capacity);
        let segments: BTreeMap<u32, Arc<Segment>> =
            kept.into_iter().map(|segment| (segment.number, Arc::new(segment))).collect();
        segments.values().for_each(|segment| space.take(segment.len.load(Ordering::Relaxed)));
        let next = scanned.next;
        let last = segments.values().next_back().cloned();
        let tail = match &last {
            Some(segment) => Tail {
                segment: Arc::clone(segment),
                len: segment.len.load(Ordering::Relaxed),
                // Nobody knows what was encrypted there before.
                taken: if segment.keys.is_some() { u64::MAX } else { 0 },
                reserved: 0,
                next,
                ragged: false,
                unsynced: vec![Arc::clone(segment)],
                buffer: Vec::new(),
            },
            None => Tail::begin(&*files, &sealing, 1, next)?,
        };
        let log = Self {
            files,
            options,
            sealing,
            tail: Mutex::new(tail),
            segments: RwLock::new(segments),
            commit: GroupCommit::new(next - 1),
            space,
            usage,
            removal: Mutex::new(()),
        };
        let mut tail = log.tail();
        if last.is_none() {
            log.adopt(&tail.segment);
        } else if tail.len > log.options.segment_len {
            // Older segments were longer: without this, the bound would not hold for the last one.
            log.roll(&mut tail)?;
        }
        drop(tail);
        Ok((log, scanned.report))
    }

    fn tail(&self) -> MutexGuard<'_, Tail> {
        self.tail.lock().expect("no panic while it is held")
    }

    /// Waits until there is room for `bytes` more, then keeps it until the reservation is dropped.
    /// `patience` bounds the wait.
    ///
    /// # Errors
    /// `Busy` when there was none in the given time, `Invalid` for more than a segment.
    pub fn reserve(&self, bytes: u64, patience: Option<Duration>) -> Result<Reservation<'_>> {
        if bytes > self.options.segment_len {
            let text = format!("{bytes} bytes are too many for one operation of the staging log");
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        if self.space.is_bound_old(bytes) {
            self.ask_disk();
        }
        self.space.reserve(bytes, patience)
    }

    /// Finds out by how much the disk lets the log grow: down to the disk's floor, and with space
    /// left for packs of the staged data. Called when space is reserved, and again and again while
    /// a caller waits for space.
    pub fn ask_disk(&self) {
        let Some(disk) = self.files.disk() else { return };
        let (staged, times) = if self.options.packs_beside { (self.usage.bytes(), 2) } else { (0, 1) };
        self.space.bound(disk.room().saturating_sub(staged) / times);
    }

    /// True when the disk has no room for so many bytes more, and nothing is staged that could make
    /// some.
    pub fn is_out_of_disk(&self, bytes: u64) -> bool {
        self.ask_disk();
        let fill = self.fill();
        fill.is_bounded && fill.used + bytes > fill.capacity && self.usage.bytes() == 0
    }

    /// Makes all that was appended before the call durable, and returns the last sequence of that.
    ///
    /// # Errors
    /// `Io` when a sync failed, now or earlier: what was not durable may be lost, and the log takes
    /// nothing more.
    pub fn sync(&self) -> Result<u64> {
        let last = self.tail().next - 1;
        self.sync_to(last)?;
        Ok(last)
    }

    /// Makes what was appended up to `sequence` durable; returns at once when it is.
    ///
    /// # Errors
    /// Those of [`Log::sync`].
    pub fn sync_to(&self, sequence: u64) -> Result<()> {
        self.commit.wait(sequence, || self.flush())
    }

    /// Syncs data first, then names: records count as durable only when both are.
    fn flush(&self) -> Result<u64> {
        let (last, segments) = {
            let mut tail = self.tail();
            // The last segment stays: it will be appended to.
            let current = vec![Arc::clone(&tail.segment)];
            let segments = std::mem::replace(&mut tail.unsynced, current);
            (tail.next - 1, segments)
        };
        for segment in segments {
            segment.file.sync().context(|| format!("cannot sync {}", self.files.name(segment.number)))?;
        }
        Ok(last)
    }

    /// Records up to this sequence are on disk.
    pub fn durable(&self) -> u64 {
        self.commit.durable()
    }

    /// Fills `buf`, which is as long as `location`, with the data there. All data of a record in an
    /// encrypted log is verified. Other data is not: this process appended it, or the replay has verified
    /// it.
    ///
    /// # Errors
    /// `NotFound` when its segment was removed, `Damaged` when it is shorter, or was changed, `Io`.
    ///
    /// # Panics
    /// When the lengths differ.
    pub fn read(&self, location: Location, buf: &mut [u8]) -> Result<()> {
        assert_eq!(buf.len(), location.len as usize, "a buffer for {location:?}");
        let number = location.segment;
        let segment = self.segments.read().expect("no panic while it is held").get(&number).cloned();
        let segment = segment.ok_or_else(|| {
            Error::new(ErrorKind::NotFound, format!("{} was removed", self.files.name(number)))
        })?;
        let whole = location.whole == (location.offset, location.len) && location.len > 0;
        let mut tag = [0; RECORD_TAG_LEN];
        let mut read = read_whole(&*segment.file, buf, location.offset.into());
        if whole && segment.keys.is_some() {
            let end = u64::from(location.offset) + u64::from(location.len);
            read = read.and_then(|()| read_whole(&*segment.file, &mut tag, end));
        }
        read.map_err(|error| {
            let text = format!("cannot read {location:?} of {}", self.files.name(number));
            let short = error.kind() == std::io::ErrorKind::UnexpectedEof;
            let kind = if short { ErrorKind::Damaged } else { ErrorKind::Io };
            Error::new(kind, text).caused_by(error)
        })?;
        match &segment.keys {
            Some(keys) if !whole => {
                let begin = location.whole.0;
                keys.decrypt(begin.into(), (location.offset - begin) as usize, buf);
            }
            Some(keys) if !keys.open_data(location.offset.into(), buf, &tag) => {
                let name = self.files.name(number);
                let text = format!("{name}: the data of {location:?} was changed since it was written");
                return Err(Error::damaged(text));
            }
            _ => {}
        }
        Ok(())
    }

    /// Removes segments from the front of the log in which nothing is needed, given that the
    /// database has the name-space operations up to sequence `committed`. Returns how many. The
    /// last segment always stays.
    ///
    /// The records that are left need not be durable: a client that commits while older records are
    /// only in the log calls [`Log::sync`] before.
    ///
    /// # Errors
    /// `Io` when a segment could not be removed.
    pub fn remove_dead(&self, committed: u64) -> Result<usize> {
        let _removal = self.removal.lock().expect("no panic while it is held");
        let last = self.tail().segment.number;
        let dead: Vec<Arc<Segment>> = {
            let segments = self.segments.read().expect("no panic while it is held");
            let dead = segments
                .values()
                .take_while(|at| at.number < last && self.usage.is_dead(at.number, committed));
            dead.cloned().collect()
        };
        for segment in &dead {
            let what = || format!("cannot remove {}", self.files.name(segment.number));
            self.files.remove(segment.number).context(what)?;
            // Synced before the next removal, so that no crash can undo this one and keep that.
            self.files.sync().context(what)?;
            self.segments.write().expect("no panic while it is held").remove(&segment.number);
            // No later sync includes it: data that is not on the disk yet never gets there.
            self.tail().unsynced.retain(|unsynced| unsynced.number != segment.number);
            self.usage.removed(segment.number);
            self.space.release(segment.len.load(Ordering::Relaxed));
        }
        if !dead.is_empty() {
            self.ask_disk();
        }
        Ok(dead.len())
    }

    /// Begins a new segment when the last one is longer than `least` and nothing in it is needed,
    /// and removes dead segments. If it returns `true`, no record is left.
    ///
    /// # Errors
    /// Those of [`Log::remove_dead`]; `Full` and `Io` when no segment could be begun.
    pub fn restart(&self, committed: u64, least: u64) -> Result<bool> {
        {
            let mut tail = self.tail();
            let last = tail.segment.number;
            if tail.len > self.sealing.header_len() + least
                && !tail.ragged
                && self.usage.is_dead(last, committed)
            {
                self.roll(&mut tail)?;
            }
        }
        self.remove_dead(committed)?;
        let tail = self.tail();
        Ok(tail.len == self.sealing.header_len() && self.oldest_segment() == tail.segment.number)
    }

    /// Removes the log, in which nothing is needed any more: its segments from the front, then the
    /// directory.
    ///
    /// # Errors
    /// `Busy` when something in it is needed; then only what is dead was removed. `Io`.
    pub fn discard(&self, committed: u64) -> Result<()> {
        if !self.restart(committed, 0)? {
            return Err(Error::new(
                ErrorKind::Busy,
                "the staging log still holds what the store does not have",
            ));
        }
        let last = self.tail().segment.number;
        let what = || format!("cannot remove {}", self.files.name(last));
        self.files.remove(last).context(what)?;
        self.files.sync().context(what)?;
        self.files.remove_directory().context(|| "cannot remove the staging directory".into())
    }

    /// Sequence of the last record.
    pub fn last(&self) -> u64 {
        self.tail().next - 1
    }

    /// The oldest segment: the flusher must empty it before any space is released.
    pub fn oldest_segment(&self) -> u32 {
        let segments = self.segments.read().expect("no panic while it is held");
        segments.keys().next().copied().expect("a log has a segment")
    }

    /// The segments, the oldest first.
    pub fn segments(&self) -> Vec<u32> {
        self.segments.read().expect("no panic while it is held").keys().copied().collect()
    }

    /// How full the log is.
    pub fn fill(&self) -> Fill {
        self.space.fill()
    }

    /// The counts of what each segment is needed for, for the maps of files.
    pub fn usage(&self) -> &Arc<Usage> {
        &self.usage
    }
}
