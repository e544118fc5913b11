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
//! A record with valid checksums, or tags, and meaningless fields is damage, wherever it is.
//!
//! Broken records that were durable and have nothing behind them look like a torn tail.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use outrigger_format::FormatError;
use outrigger_format::catalogue::Time;
use outrigger_format::staging::{Operation, RECORD_MAGIC, Record, RecordHeader, SegmentHeader};

use super::files::{Files, read_whole};
use super::log::{Appended, Location, Segment};
use super::sealed::{Sealing, SegmentKeys};
use super::usage::Usage;
use crate::error::{Context, Error, Result};

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
    kept: Vec<Kept>,
    /// Segments to remove.
    dropped: Vec<u32>,
    /// Sequence of the next record.
    pub next: u64,
    pub report: Report,
}

/// A segment that stays.
struct Kept {
    number: u32,
    len: u64,
    keys: Option<SegmentKeys>,
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
    sealing: &Sealing,
    usage: &Arc<Usage>,
    visit: &mut dyn FnMut(Replayed<'_>) -> Result<()>,
) -> Result<Scanned> {
    let numbers = files.list().context(|| "cannot list the staging directory".into())?;
    let mut scanned = Scanned { next: 1, ..Scanned::default() };
    let mut broken = None;
    for (at, &number) in numbers.iter().enumerate() {
        let place = files.name(number);
        if let Some(before) = scanned.kept.last()
            && before.number + 1 != number
        {
            let why = format!("segment {} is missing", before.number + 1);
            broken = Some(Break { at, offset: 0, place, why });
            break;
        }
        let bytes = read_segment(files, number)?;
        let expected = (!scanned.kept.is_empty()).then_some(scanned.next);
        let keys = match header(&bytes, number, sealing, expected, &place, &mut scanned)? {
            Ok(keys) => keys,
            Err(why) => {
                broken = Some(Break { at, offset: 0, place, why });
                break;
            }
        };
        let mut offset = sealing.header_len() as usize;
        let mut segment = Content { number, bytes, place, keys };
        while offset < segment.bytes.len() {
            match record(&mut segment, sealing, offset, usage, &mut scanned, visit)? {
                Ok(len) => offset += len,
                Err(why) => {
                    broken = Some(Break { at, offset, place: segment.place.clone(), why });
                    break;
                }
            }
        }
        scanned.kept.push(Kept { number, len: offset as u64, keys: segment.keys });
        if broken.is_some() {
            break;
        }
    }
    if let Some(broken) = broken {
        refuse_damage(files, sealing, &numbers, &broken, scanned.next)?;
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

/// A whole segment.
struct Content {
    number: u32,
    bytes: Vec<u8>,
    place: String,
    keys: Option<SegmentKeys>,
}

/// Checks a segment's header; returns the keys of an encrypted one, or why it is not valid.
fn header(
    bytes: &[u8],
    number: u32,
    sealing: &Sealing,
    expected: Option<u64>,
    place: &str,
    scanned: &mut Scanned,
) -> Result<Result<Option<SegmentKeys>, String>> {
    let header = match wrong(SegmentHeader::decode(bytes), place)? {
        Ok(header) => header,
        Err(why) => return Ok(Err(why)),
    };
    let keys = sealing.open(&header, place)?;
    if header.number != number {
        return Ok(Err(format!("its header says segment {}", header.number)));
    }
    if let Some(expected) = expected.filter(|expected| *expected != header.first) {
        return Ok(Err(format!("it begins with record {}, not {expected}", header.first)));
    }
    scanned.next = header.first;
    Ok(Ok(keys))
}

/// Hands the record at `offset` to `visit`; returns its length, or why it is not valid.
fn record(
    segment: &mut Content,
    sealing: &Sealing,
    offset: usize,
    usage: &Arc<Usage>,
    scanned: &mut Scanned,
    visit: &mut dyn FnMut(Replayed<'_>) -> Result<()>,
) -> Result<Result<usize, String>> {
    let Content { number, bytes, place, keys } = segment;
    let verified = match keys {
        None => Record::verify(&bytes[offset..]),
        Some(keys) => keys.open(&mut bytes[offset..], offset as u64),
    };
    let verified = match wrong(verified, place)? {
        Ok(verified) => verified,
        Err(why) => return Ok(Err(why)),
    };
    let record = match wrong(Record::decode_verified(verified), place)? {
        Ok(record) if record.sequence == scanned.next => record,
        Ok(record) => return Ok(Err(format!("its sequence is {}, not {}", record.sequence, scanned.next))),
        // Valid checksums mean that a program wrote it like this.
        Err(why) => {
            let text =
                format!("{place} at offset {offset}: a record that is whole and makes no sense ({why})");
            return Err(Error::damaged(text));
        }
    };
    let (sequence, time, data) = (record.sequence, record.time, record.data);
    let len = record.encoded_len() + sealing.tags_len(data.len()) as usize;
    let at = offset + sealing.tag_len() as usize + record.head_len;
    let location = Location::whole(*number, at as u32, data.len() as u32);
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
fn refuse_damage(
    files: &dyn Files,
    sealing: &Sealing,
    numbers: &[u32],
    broken: &Break,
    sequence: u64,
) -> Result<()> {
    let (mut durable, mut last) = (0, 0);
    for (at, &number) in numbers.iter().enumerate().skip(broken.at) {
        let from = if at == broken.at { broken.offset } else { 0 };
        // The broken record itself may have a whole header. An older sequence is a copy of a log that was
        // written as data.
        for header in headers(files, sealing, number, from, sequence)? {
            if header.sequence > sequence {
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
         and can no longer be replayed, nor those after them, up to {last}. To go on without them, move the log elsewhere and keep \
         it; `outrigger check` does not mend it"
    )))
}

/// The headers of records anywhere in a segment at or after a break, at `from` or behind it.
///
/// A segment's header is on disk before the first record is written. So when it is broken in an encrypted
/// segment that has records, that is damage: they cannot be decrypted.
fn headers(
    files: &dyn Files,
    sealing: &Sealing,
    number: u32,
    from: usize,
    sequence: u64,
) -> Result<Vec<RecordHeader>> {
    let bytes = read_segment(files, number)?;
    if !sealing.is_encrypted() {
        let starts = find_magic(&bytes, from);
        return Ok(starts.filter_map(|start| RecordHeader::decode(&bytes[start..]).ok()).collect());
    }
    let place = files.name(number);
    match wrong(SegmentHeader::decode(&bytes), &place)? {
        Ok(header) => {
            let keys = sealing.open(&header, &place)?;
            Ok(keys.map_or_else(Vec::new, |keys| keys.headers(&bytes, from)))
        }
        Err(_) if bytes.len() as u64 <= sealing.header_len() => Ok(Vec::new()),
        Err(why) => Err(Error::damaged(format!(
            "{place}: its header is damaged ({why}), so its records cannot be decrypted. Record {sequence} and those \
             after it can no longer be replayed"
        ))),
    }
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
pub(super) fn mend(files: &dyn Files, scanned: &mut Scanned) -> Result<Vec<Segment>> {
    for &number in scanned.dropped.iter().rev() {
        files.remove(number).context(|| format!("cannot remove {}", files.name(number)))?;
    }
    let mut segments = Vec::new();
    for Kept { number, len, keys } in std::mem::take(&mut scanned.kept) {
        let what = || format!("cannot prepare {}", files.name(number));
        let file = files.open(number).context(what)?;
        // If it has that length already, this gives back space that was reserved beyond.
        file.truncate(len).context(what)?;
        file.sync().context(what)?;
        segments.push(Segment { number, file, keys, len: AtomicU64::new(len) });
    }
    files.sync().context(|| "cannot sync the staging directory".into())?;
    Ok(segments)
}
