//! Records, and where splits begin and end: a record belongs to the split in which it starts.
//!
//! Splits are cut at nominal offsets that know nothing of records. A runner of split `from..to`
//! reads from the first record that starts at or after `from` to the first that starts at or after
//! `to`. The same search finds both, so neighbours agree without talking to each other, and every
//! record is read exactly once.

use outrigger_format::{Entry, Root, parse_size};
use outrigger_store::read::Reader;
use outrigger_store::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};

/// The kind of records that a file consists of.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum Records {
    /// The file is one record: never split.
    #[default]
    Whole,
    /// Each of so many bytes; the last may be shorter.
    Fixed(u64),
    /// Each ends with this, which is part of it. Lines end with `\n`.
    Delimited(Vec<u8>),
    /// Alignments of a BAM file, found by its index; see [`crate::bam`].
    Bam,
    /// They start where this program, with its arguments, says; see `plugin.rs`.
    Plugin(Vec<String>),
}

/// Bytes of the first search for a delimiter: most records are short, and the bytes may lie on
/// another host.
const STEP_MIN: u64 = 4 << 10;
/// Then twice as many each time, up to this.
const STEP_MAX: u64 = 256 << 10;

impl Records {
    /// Parses `lines`, `bam`, `fixed:N`, `delimiter:X` (with `\n`, `\r`, `\t`, `\0`, `\\` and
    /// `\xNN`), `plugin:PROGRAM ARGUMENT…`, `whole`.
    ///
    /// # Errors
    /// `Invalid`, saying what would be accepted.
    pub fn parse(text: &str) -> Result<Self> {
        let invalid = |why: &str| Error::new(ErrorKind::Invalid, format!("--records {text}: {why}"));
        match text.split_once(':') {
            None if text == "lines" => Ok(Self::Delimited(b"\n".to_vec())),
            None if text == "whole" => Ok(Self::Whole),
            None if text == "bam" => Ok(Self::Bam),
            Some(("fixed", size)) => match parse_size(size) {
                Ok(size) if size > 0 => Ok(Self::Fixed(size)),
                _ => Err(invalid("give a number of bytes, such as fixed:4096")),
            },
            Some(("delimiter", escaped)) => {
                let delimiter = unescape(escaped).ok_or_else(|| invalid("an escape that is not known"))?;
                if delimiter.is_empty() || delimiter.len() > 256 {
                    return Err(invalid("give 1 to 256 bytes"));
                }
                if overlaps_itself(&delimiter) {
                    return Err(invalid(
                        "it begins as it ends, so that where a record starts would depend on where one begins to read",
                    ));
                }
                Ok(Self::Delimited(delimiter))
            }
            Some(("plugin", words)) => {
                let words: Vec<String> = words.split_whitespace().map(str::to_string).collect();
                if words.is_empty() {
                    return Err(invalid(
                        "name a program that prints where records start: plugin:./starts, or plugin:@starts for a component",
                    ));
                }
                Ok(Self::Plugin(words))
            }
            _ => Err(invalid("use lines, fixed:BYTES, delimiter:TEXT, bam, plugin:PROGRAM or whole")),
        }
    }

    /// The first byte at or after `offset` at which a record of the file starts, or the file's
    /// length.
    ///
    /// # Errors
    /// Those of reading.
    pub fn start_at(&self, reader: &Reader<'_>, root: &Root, offset: u64) -> Result<u64> {
        let len = root.len();
        if offset == 0 || offset >= len {
            return Ok(offset.min(len));
        }
        match self {
            Self::Whole => Ok(len),
            // The index makes a nominal offset exact, when it is read.
            Self::Bam => Ok(offset),
            // The file was cut where records start.
            Self::Plugin(_) => Ok(offset),
            Self::Fixed(size) => Ok(offset.div_ceil(*size).saturating_mul(*size).min(len)),
            Self::Delimited(delimiter) => {
                let read = |at, step, sink: Sink<'_>| reader.read(root, at, step, sink);
                let from = offset.saturating_sub(delimiter.len() as u64);
                start_after(delimiter, from, len, read, |at| hole_end(reader, root, at))
            }
        }
    }
}

/// Counts the records of a range of a file as its bytes go by: lines, other delimited records and
/// those of a fixed length. This costs nothing beside reading them.
pub(crate) struct Count<'a> {
    records: &'a Records,
    /// Bytes of a record that has begun.
    begun: u64,
    /// The last bytes, which may begin a delimiter.
    tail: Vec<u8>,
}

impl<'a> Count<'a> {
    /// A counter, if such records can be counted this way.
    pub fn new(records: &'a Records) -> Option<Self> {
        let can = matches!(records, Records::Fixed(_) | Records::Delimited(_));
        can.then(|| Self { records, begun: 0, tail: Vec::new() })
    }

    /// How many records end in these bytes, which follow those before.
    pub fn feed(&mut self, bytes: &[u8]) -> u64 {
        match self.records {
            Records::Fixed(size) => {
                let all = self.begun + bytes.len() as u64;
                self.begun = all % size;
                all / size
            }
            Records::Delimited(delimiter) if delimiter.len() == 1 => {
                let first = delimiter[0];
                self.begun = u64::from(bytes.last().map_or(self.begun > 0, |last| *last != first));
                bytes.iter().filter(|byte| **byte == first).count() as u64
            }
            Records::Delimited(delimiter) => {
                // A delimiter that begins in the tail ends in these bytes, or it would have been
                // counted.
                self.tail.extend_from_slice(bytes);
                let ends = self.tail.windows(delimiter.len()).filter(|window| window == delimiter).count();
                self.begun = u64::from(!self.tail.ends_with(delimiter));
                let keep = self.tail.len().min(delimiter.len() - 1);
                self.tail.drain(..self.tail.len() - keep);
                ends as u64
            }
            Records::Whole | Records::Bam | Records::Plugin(_) => 0,
        }
    }

    /// At the end of the range: the record that has begun, if one has.
    pub fn end(&self) -> u64 {
        u64::from(self.begun > 0)
    }
}

/// Takes bytes as they are read.
type Sink<'a> = &'a mut dyn FnMut(&[u8]) -> Result<()>;

/// Entries of a manifest that are looked at for a hole's end.
const HOLES_MAX: usize = 1 << 16;

/// Where the hole ends that `at` lies in; `at` where it lies in none.
fn hole_end(reader: &Reader<'_>, root: &Root, at: u64) -> Result<u64> {
    let (mut end, mut holes) = (at, 0);
    reader.entries(root, at, u64::MAX, &mut |start, entry| {
        let is_hole = matches!(entry, Entry::Hole { .. });
        if is_hole {
            end = start + entry.len();
            holes += 1;
        }
        Ok(is_hole && holes < HOLES_MAX)
    })?;
    Ok(end)
}

/// The end of the first delimiter that begins at or after `at`, or `len`. `read` reads so many
/// bytes from a place on. `hole_end` returns the end of the hole at a place: holes are skipped,
/// since a manifest of some bytes may have one of 2^62.
fn start_after(
    delimiter: &[u8],
    mut at: u64,
    len: u64,
    mut read: impl FnMut(u64, u64, Sink<'_>) -> Result<()>,
    mut hole_end: impl FnMut(u64) -> Result<u64>,
) -> Result<u64> {
    let (mut search, mut step) = (Search::new(delimiter, at), STEP_MIN);
    while at < len {
        let (mut found, mut last) = (None, None);
        let done = read(at, step.min(len - at), &mut |bytes| {
            found = search.feed(bytes);
            last = bytes.last().copied();
            // The rest is not wanted.
            if found.is_some() { Err(Error::new(ErrorKind::Cancelled, "found")) } else { Ok(()) }
        });
        if let Some(start) = found {
            return Ok(start);
        }
        done?;
        at = at.saturating_add(step);
        if step == STEP_MAX && last == Some(0) {
            // Up to the hole's end there are zeros, more of them than the delimiter is long: no
            // delimiter begins among them and ends there, or it would have been found.
            let end = hole_end(at - delimiter.len() as u64)?.saturating_sub(delimiter.len() as u64);
            if end > at {
                at = end;
                search = Search::new(delimiter, at);
            }
        }
        step = (step * 2).min(STEP_MAX);
    }
    Ok(len)
}

/// Looks for a delimiter in bytes that come in pieces.
struct Search<'a> {
    delimiter: &'a [u8],
    /// Position of the next byte.
    at: u64,
    /// The last bytes, which may begin a delimiter.
    tail: Vec<u8>,
}

impl<'a> Search<'a> {
    fn new(delimiter: &'a [u8], at: u64) -> Self {
        Self { delimiter, at, tail: Vec::new() }
    }

    /// Where the first delimiter ends, if it ends in `bytes`.
    fn feed(&mut self, bytes: &[u8]) -> Option<u64> {
        let begin = self.at - self.tail.len() as u64;
        self.at += bytes.len() as u64;
        if let [byte] = self.delimiter {
            let found = bytes.iter().position(|candidate| candidate == byte);
            return found.map(|at| begin + at as u64 + 1);
        }
        self.tail.extend_from_slice(bytes);
        let found = self.tail.windows(self.delimiter.len()).position(|window| window == self.delimiter);
        if let Some(at) = found {
            return Some(begin + (at + self.delimiter.len()) as u64);
        }
        let keep = self.tail.len().min(self.delimiter.len() - 1);
        self.tail.drain(..self.tail.len() - keep);
        None
    }
}

fn overlaps_itself(delimiter: &[u8]) -> bool {
    (1..delimiter.len()).any(|len| delimiter[..len] == delimiter[delimiter.len() - len..])
}

fn unescape(text: &str) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        if byte != b'\\' {
            out.push(byte);
            continue;
        }
        out.push(match bytes.next()? {
            b'n' => b'\n',
            b'r' => b'\r',
            b't' => b'\t',
            b'0' => 0,
            b'\\' => b'\\',
            b'x' => {
                let digit = |byte: u8| char::from(byte).to_digit(16);
                (digit(bytes.next()?)? * 16 + digit(bytes.next()?)?) as u8
            }
            _ => return None,
        });
    }
    Some(out)
}

/// Nominal splits of `len` bytes: `count` of about the same length, none of them empty.
pub fn nominal(len: u64, count: u64) -> Vec<(u64, u64)> {
    let count = count.clamp(1, len.max(1));
    let cut = |number: u64| (u128::from(len) * u128::from(number) / u128::from(count)) as u64;
    (0..count).map(|number| (cut(number), cut(number + 1))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_parsed() {
        assert_eq!(Records::parse("lines").unwrap(), Records::Delimited(b"\n".to_vec()));
        assert_eq!(Records::parse("fixed:4K").unwrap(), Records::Fixed(4096));
        assert_eq!(Records::parse("delimiter:\\r\\n\\x00").unwrap(), Records::Delimited(b"\r\n\0".to_vec()));
        let words = ["./starts".to_string(), "-v".to_string()];
        assert_eq!(Records::parse("plugin:./starts  -v").unwrap(), Records::Plugin(words.to_vec()));
        for wrong in [
            "",
            "plugin:",
            "plugin: ",
            "line",
            "fixed:0",
            "fixed:x",
            "delimiter:",
            "delimiter:\\q",
            "delimiter:abab",
            "delimiter:aa",
        ] {
            assert_eq!(Records::parse(wrong).unwrap_err().kind(), ErrorKind::Invalid, "{wrong}");
        }
    }

    #[test]
    fn a_delimiter_is_found_however_the_bytes_come() {
        let text = b"one--two-three--";
        for step in 1..=text.len() {
            let mut search = Search::new(b"--", 0);
            let found = text.chunks(step).find_map(|piece| search.feed(piece));
            assert_eq!(found, Some(5), "in pieces of {step}");
        }
        let mut search = Search::new(b"\n", 100);
        assert_eq!((search.feed(b"abc"), search.feed(b"d\ne")), (None, Some(105)));
    }

    #[test]
    fn records_are_counted_however_the_bytes_come() {
        let count = |records: &Records, text: &[u8], step: usize| {
            let mut count = Count::new(records).unwrap();
            let ended: u64 = text.chunks(step).map(|piece| count.feed(piece)).sum();
            ended + count.end()
        };
        for step in 1..20 {
            let lines = Records::parse("lines").unwrap();
            for (text, wanted) in [("", 0), ("a\nb\n", 2), ("a\n\nb", 3), ("\n", 1), ("a", 1)] {
                assert_eq!(count(&lines, text.as_bytes(), step), wanted, "{text:?} in pieces of {step}");
            }
            let dashes = Records::parse("delimiter:-+").unwrap();
            for (text, wanted) in [("", 0), ("a-+b-+", 2), ("a--+-+b", 3), ("-", 1), ("-+", 1)] {
                assert_eq!(count(&dashes, text.as_bytes(), step), wanted, "{text:?} in pieces of {step}");
            }
            let fixed = Records::Fixed(3);
            assert_eq!((count(&fixed, b"123456", step), count(&fixed, b"1234567", step)), (2, 3));
        }
        for other in [Records::Whole, Records::Bam, Records::Plugin(Vec::new())] {
            assert!(Count::new(&other).is_none());
        }
    }

    #[test]
    fn no_more_is_read_than_it_takes_to_find_a_delimiter() {
        let mut text = vec![b'x'; 1 << 20];
        let looked_at = |text: &[u8], at: u64| {
            let mut bytes = 0;
            let found = start_after(
                b"--",
                at,
                text.len() as u64,
                |at, step, sink| {
                    bytes += step;
                    // In small pieces, as of small chunks.
                    text[at as usize..(at + step) as usize].chunks(1000).try_for_each(&mut *sink)
                },
                Ok,
            );
            (found.unwrap(), bytes)
        };
        for (place, looked) in
            [(100_u64, 4 << 10), (4145, 12 << 10), (10_000, 12 << 10), (900_000, 1020 << 10)]
        {
            text[place as usize..place as usize + 2].copy_from_slice(b"--");
            assert_eq!(looked_at(&text, 50), (place + 2, looked), "at {place}");
            text[place as usize..place as usize + 2].copy_from_slice(b"xx");
        }
        assert_eq!(looked_at(&text, 0).0, 1 << 20);
        let failed = start_after(b"\n", 0, 10, |_, _, _| Err(Error::damaged("pack 1")), Ok);
        assert_eq!(failed.unwrap_err().kind(), ErrorKind::Damaged);
    }

    #[test]
    fn holes_are_passed_by() {
        const HOLE: std::ops::Range<u64> = 100_000..(1 << 62);
        let len = HOLE.end + 1000;
        // Bytes before the hole, and after it; where the delimiter ends.
        type Case<'a> = (&'a [u8], &'a [u8], &'a [u8], u64);
        let cases: [Case<'_>; 5] = [
            (b"\n", b"", b"ab\nc", HOLE.end + 3),
            (b"\n", b"", b"", len),
            (b"\0-", b"", b"-", HOLE.end + 1),
            (b"x\0", b"x", b"", HOLE.start + 1),
            (b"\0", b"", b"", HOLE.start + 1),
        ];
        for (delimiter, before, after, wanted) in cases {
            let of = |bytes: &[u8], at: Option<u64>| at.and_then(|at| bytes.get(at as usize)).copied();
            let byte = |at: u64| match at {
                _ if HOLE.contains(&at) => 0,
                _ if at < HOLE.start => {
                    of(before, at.checked_sub(HOLE.start - before.len() as u64)).unwrap_or(b'-')
                }
                _ => of(after, Some(at - HOLE.end)).unwrap_or(b'-'),
            };
            let mut looked = 0;
            let read = |at, step, sink: Sink<'_>| {
                looked += step;
                assert!(looked < 4 << 20, "it looks at the hole");
                sink(&(at..at + step).map(byte).collect::<Vec<_>>())
            };
            let end = |at| Ok(if HOLE.contains(&at) { HOLE.end } else { at });
            assert_eq!(start_after(delimiter, 10, len, read, end).unwrap(), wanted, "{delimiter:?}");
        }
    }

    #[test]
    fn nominal_splits_cover_all_and_none_is_empty() {
        for (len, count) in [(0, 3), (1, 3), (10, 3), (1 << 40, 10_000), (44, 4)] {
            let splits = nominal(len, count);
            assert_eq!((splits[0].0, splits.last().unwrap().1), (0, len));
            assert!(splits.windows(2).all(|pair| pair[0].1 == pair[1].0));
            assert!(len == 0 || splits.iter().all(|(from, to)| from < to));
        }
        assert_eq!(nominal(44, 4).len(), 4);
    }
}
