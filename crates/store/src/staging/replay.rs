//! Reading the log when it is opened: every record in order, up to a torn tail.
//!
//! Segments are read whole, one at a time. The scan ends at the first record that is not the
//! expected one (its bytes are broken, its sequence differs, its segment is missing). This is
//! either the torn tail that a loss of power may leave, or damage. The records behind it decide:
//! every record's header says up to which sequence the log was on disk when it was appended. If one
//! says so of the broken record, that record was durable, and is damaged. Then nothing is changed,
//! and the error names what is lost. Otherwise no record from the broken one on was acknowledged as
//! durable, and they are cut off.
//!
//! A record with valid checksums and meaningless fields is damage, wherever it is.
//!
//! Broken records that were durable and have nothing behind them look like a torn tail.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use outrigger_format::catalogue::Time;
use outrigger_format::staging::{
    Operation, RECORD_MAGIC, Record, RecordHeader, SEGMENT_HEADER_LEN, SegmentHeader,
};
use outrigger_format::{FormatError, StoreId};

use super::files::{Files, read_whole};
use super::log::{Appended, Location, Segment};
use super::usage::Usage;
use crate::error::{Context, Error, ErrorKind, Result};

/// One record, as the replay returns it.
#[derive(Debug)]
pub struct Replayed<'a> {
    /// The operation.
    pub operation: Operation,
    /// The written bytes; empty for all but writes.
    pub data: &'a [u8],
    /// As [`Log::append`](super::Log::append) returned it. For an operation on a file's content,
    /// give it to the file's map, or release it.
    pub appended: Appended,
    /// For those maps.
    pub usage: &'a Arc<Usage>,
}

/// The result of a scan.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Report {
    /// Sequence of the first record; 0 when there is none.
    pub first: u64,
    /// Sequence of the last record; 0 when there has never been one.
    pub last: u64,
    /// Bytes of whole records.
    pub bytes: u64,
    /// The part that was cut off.
    pub torn: Option<Torn>,
}

/// The end of a log that was not on disk when power failed, or not whole when the process died.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Torn {
    /// The sequence that the first missing record would have had.
    pub sequence: u64,
    /// Where it should have been.
    pub place: String,
    /// Why the scan ended there.
    pub why: String,
    /// Bytes cut off, in this segment and those after it.
    pub bytes: u64,
}

/// The segments that stay, and those that go.
#[derive(Default)]
pub(super) struct Scanned {
    /// Number and length of each segment that stays.
    kept: Vec<(u32, u64)>,
    /// Segments to remove.
    dropped: Vec<u32>,
    /// Sequence of the next record.
    pub next: u64,
    pub report: Report,
}

/// Where and why a scan ended early.
struct Break {
    /// Its position in the list of existing segments.
    at: usize,
    offset: usize,
    place: String,
    why: String,
}

pub(super) fn scan(
    files: &dyn Files,
    store: StoreId,
    usage: &Arc<Usage>,
    visit: &mut dyn FnMut(Replayed<'_>) -> Result<()>,
) -> Result<Scanned> {
    let numbers = files.list().context(|| "cannot list the staging directory".into())?;
    let mut scanned = Scanned { next: 1, ..Scanned::default() };
    let mut broken = None;
    for (at, &number) in numbers.iter().enumerate() {
        let place = files.name(number);
        if let Some((before, _)) = scanned.kept.last()
            && before + 1 != number
        {
            let why = format!("segment {} is missing", before + 1);
            broken = Some(Break { at, offset: 0, place, why });
            break;
        }
        let bytes = read_segment(files, number)?;
        let mut read = |offset: usize, scanned: &mut Scanned| -> Result<Result<usize, String>> {
            let expected = (!scanned.kept.is_empty() || offset > 0).then_some(scanned.next);
            if offset == 0 {
                return header(&bytes, number, store, expected, &place, scanned);
            }
            record(&bytes, offset, number, usage, &place, scanned, visit)
        };
        let mut offset = 0;
        while offset < bytes.len() || offset == 0 {
            match read(offset, &mut scanned)? {
                Ok(len) => offset += len,
                Err(why) => {
                    broken = Some(Break { at, offset, place: place.clone(), why });
                    break;
                }
            }
        }
        if offset > 0 {
            scanned.kept.push((number, offset as u64));
        }
        if broken.is_some() {
            break;
        }
    }
    if let Some(broken) = broken {
        refuse_damage(files, &numbers, &broken, scanned.next)?;
        let whole = broken.offset > 0;
        scanned.dropped = numbers[broken.at + usize::from(whole)..].to_vec();
        let mut bytes = 0;
        for &number in &numbers[broken.at..] {
            let open = files.open(number).and_then(|file| file.len());
            bytes += open.context(|| format!("cannot look at {}", files.name(number)))?;
        }
        bytes -= broken.offset as u64;
        let Break { place, why, offset, .. } = broken;
        let place = format!("{place} at offset {offset}");
        scanned.report.torn = Some(Torn { sequence: scanned.next, place, why, bytes });
    }
    scanned.report.last = scanned.next - 1;
    Ok(scanned)
}

fn read_segment(files: &dyn Files, number: u32) -> Result<Vec<u8>> {
    let what = || format!("cannot read {}", files.name(number));
    let file = files.open(number).context(what)?;
    let len = file.len().context(what)?;
    if len > u32::MAX.into() {
        return Err(Error::damaged(format!("{} is {len} bytes long, no segment is", files.name(number))));
    }
    let mut bytes = vec![0; len as usize];
    read_whole(&*file, &mut bytes, 0).context(what)?;
    Ok(bytes)
}

/// Turns a format error into a reason. Bytes that are newer than this program are an error instead:
/// they are refused, not cut off.
fn wrong<T>(result: Result<T, FormatError>, place: &str) -> Result<Result<T, String>> {
    match result {
        Err(error @ FormatError::Newer { .. }) => Err(error).context(|| place.to_owned()),
        other => Ok(other.map_err(|error| error.to_string())),
    }
}

/// Checks a segment's header; returns its length, or why it is not valid.
fn header(
    bytes: &[u8],
    number: u32,
    store: StoreId,
    expected: Option<u64>,
    place: &str,
    scanned: &mut Scanned,
) -> Result<Result<usize, String>> {
    let header = match wrong(SegmentHeader::decode(bytes), place)? {
        Ok(header) => header,
        Err(why) => return Ok(Err(why)),
    };
    if header.store != store {
        let text = format!("{place} belongs to store {}, not to {store}", header.store);
        return Err(Error::new(ErrorKind::Invalid, text));
    }
    if header.number != number {
        return Ok(Err(format!("its header says segment {}", header.number)));
    }
    if let Some(expected) = expected.filter(|expected| *expected != header.first) {
        return Ok(Err(format!("it begins with record {}, not {expected}", header.first)));
    }
    scanned.next = header.first;
    Ok(Ok(SEGMENT_HEADER_LEN))
}

/// Hands the record at `offset` to `visit`; returns its length, or why it is not valid.
fn record(
    bytes: &[u8],
    offset: usize,
    number: u32,
    usage: &Arc<Usage>,
    place: &str,
    scanned: &mut Scanned,
    visit: &mut dyn FnMut(Replayed<'_>) -> Result<()>,
) -> Result<Result<usize, String>> {
    let record = match wrong(Record::decode(&bytes[offset..]), place)? {
        Ok(record) if record.sequence == scanned.next => record,
        Ok(record) => return Ok(Err(format!("its sequence is {}, not {}", record.sequence, scanned.next))),
        // Valid checksums mean that a program wrote it like this.
        Err(why) if Record::is_whole(&bytes[offset..]) => {
            let text =
                format!("{place} at offset {offset}: a record that is whole and makes no sense ({why})");
            return Err(Error::damaged(text));
        }
        Err(why) => return Ok(Err(why)),
    };
    let len = record.encoded_len();
    let (sequence, time, data) = (record.sequence, record.time, record.data);
    let at = (offset + record.head_len) as u32;
    let location = Location { segment: number, offset: at, len: data.len() as u32 };
    let appended = Appended { sequence, location, time: Time::from_nanos(time) };
    usage.appended(&record.operation, &appended);
    visit(Replayed { operation: record.operation, data, appended, usage })
        .context(|| format!("replaying record {sequence} of {place}"))?;
    if scanned.report.first == 0 {
        scanned.report.first = sequence;
    }
    scanned.report.bytes += len as u64;
    scanned.next += 1;
    Ok(Ok(len))
}

/// Fails when a record behind the break says that the broken one, `sequence`, was durable.
fn refuse_damage(files: &dyn Files, numbers: &[u32], broken: &Break, sequence: u64) -> Result<()> {
    let (mut durable, mut last) = (0, 0);
    for (at, &number) in numbers.iter().enumerate().skip(broken.at) {
        let bytes = read_segment(files, number)?;
        let from = if at == broken.at { broken.offset } else { 0 };
        for start in find_magic(&bytes, from) {
            // The broken record itself may have a whole header. An older sequence is a copy of a
            // log that was written as data.
            if let Ok(header) = RecordHeader::decode(&bytes[start..])
                && header.sequence > sequence
            {
                durable = header.durable.max(durable);
                last = header.sequence.max(last);
            }
        }
    }
    if durable < sequence {
        return Ok(());
    }
    let Break { place, offset, why, .. } = broken;
    Err(Error::damaged(format!(
        "{place} at offset {offset}: record {sequence} is damaged ({why}). Operations {sequence} to {durable} were on disk, \
         and can no longer be replayed, nor those after them, up to {last}"
    )))
}

fn find_magic(bytes: &[u8], from: usize) -> impl Iterator<Item = usize> {
    let candidates = bytes.windows(RECORD_MAGIC.len()).enumerate().skip(from);
    candidates.filter(|(_, window)| *window == RECORD_MAGIC).map(|(start, _)| start)
}

/// Removes the segments that a scan dropped, cuts the last one, and makes the others durable.
///
/// These steps may reach the disk in any order: after a crash there is again a log with a torn
/// tail, as no record says that a dropped one was durable. Only when all is on disk may a new
/// record take a dropped one's sequence.
pub(super) fn mend(files: &dyn Files, scanned: &Scanned) -> Result<Vec<Segment>> {
    for &number in scanned.dropped.iter().rev() {
        files.remove(number).context(|| format!("cannot remove {}", files.name(number)))?;
    }
    let mut segments = Vec::new();
    for &(number, len) in &scanned.kept {
        let what = || format!("cannot prepare {}", files.name(number));
        let file = files.open(number).context(what)?;
        // If it has that length already, this gives back space that was reserved beyond.
        file.truncate(len).context(what)?;
        file.sync().context(what)?;
        segments.push(Segment { number, file, len: AtomicU64::new(len) });
    }
    files.sync().context(|| "cannot sync the staging directory".into())?;
    Ok(segments)
}
