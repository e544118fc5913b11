//! BAM: a compressed format whose records are found by an index (`.bai`), as an example of a binary
//! format.
//!
//! A BAM file is a row of gzip members of up to 64 KiB (BGZF); a record may begin in one and end in
//! the next. The index lists places where records begin, as *virtual offsets*: where a member
//! begins in the file, and how far into its data. A split begins at the first such place at or
//! after its nominal first byte, and ends at the first at or after its end. So neighbours agree
//! without talking to each other. The program reads a BAM file again: the header, the rest of the
//! first member, all whole members as they are stored, the head of the last one, and the end mark.
//! Nothing is compressed or decompressed again.

use outrigger_format::Root;
use outrigger_store::read::Reader;
use outrigger_store::{Error, ErrorKind, Result};

/// The longest member, bytes.
const MEMBER_MAX: u64 = 1 << 16;
/// Bytes that a member of our own holds: with its frame it must not exceed [`MEMBER_MAX`].
const STORED_MAX: usize = 0xff00;
/// A header longer than this is none.
const HEADER_MAX: usize = 256 << 20;
/// An index longer than this is none.
const INDEX_MAX: u64 = 1 << 30;
/// The bin of the index that holds counts and no places.
const COUNTS_BIN: u32 = 37450;
/// An empty member: the end of every BAM file.
const END: [u8; 28] =
    [0x1f, 0x8b, 8, 4, 0, 0, 0, 0, 0, 0xff, 6, 0, b'B', b'C', 2, 0, 0x1b, 0, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0];

/// Advice about the index, for messages.
pub const ADVICE: &str = "make it with `samtools index`, and store it beside the file as FILE.bam.bai";

/// Where a record begins: a member's place in the file << 16 | an offset into its data.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Place(u64);

impl Place {
    fn member(self) -> u64 {
        self.0 >> 16
    }

    fn within(self) -> usize {
        (self.0 & 0xffff) as usize
    }
}

/// A split of a BAM file.
pub struct Part {
    /// As it is uncompressed.
    header: Vec<u8>,
    /// `None`: no record is known to begin in it.
    begin: Option<Place>,
    /// `None`: the file's end.
    end: Option<Place>,
}

fn invalid(why: &str) -> Error {
    Error::new(ErrorKind::Invalid, why.to_string())
}

fn fetch(reader: &Reader<'_>, root: &Root, from: u64, len: u64) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    reader.read(root, from, len.min(root.len().saturating_sub(from)), &mut |some| {
        bytes.extend_from_slice(some);
        Ok(())
    })?;
    Ok(bytes)
}

impl Part {
    /// The records of `root` that belong to the nominal bytes `from..to`, by the index.
    ///
    /// # Errors
    /// `Invalid` when the one is no BAM file, or the other no index of it.
    pub fn find(reader: &Reader<'_>, root: &Root, index: &Root, from: u64, to: u64) -> Result<Self> {
        if index.len() > INDEX_MAX {
            return Err(invalid("the index is too long to be one"));
        }
        let starts = starts(&fetch(reader, index, 0, index.len())?)?;
        let (header, first) = header(reader, root)?;
        let at = |offset: u64| match offset {
            0 => Some(first),
            _ => starts.iter().copied().find(|start| start.member() >= offset),
        };
        if starts.last().is_some_and(|last| last.member() >= root.len()) {
            return Err(invalid("the index is of another file"));
        }
        Ok(Self { header, begin: at(from), end: if to >= root.len() { None } else { at(to) } })
    }

    /// Writes it as a BAM file.
    ///
    /// # Errors
    /// Those of reading and of `out`.
    pub fn write(
        &self,
        reader: &Reader<'_>,
        root: &Root,
        out: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        stored(&self.header, out)?;
        let (Some(begin), end) = (self.begin, self.end) else { return out(&END) };
        if Some(begin) == end {
            return out(&END);
        }
        let mut whole = begin.member();
        if end.is_some_and(|end| end.member() == whole) {
            let member = Member::read(reader, root, whole)?;
            let to = end.map_or(member.data.len(), Place::within);
            stored(member.slice(begin.within(), to)?, out)?;
            return out(&END);
        }
        if begin.within() > 0 {
            let member = Member::read(reader, root, whole)?;
            stored(member.slice(begin.within(), member.data.len())?, out)?;
            whole += member.len;
        }
        let to = end.map_or(root.len(), Place::member);
        reader.read(root, whole, to.saturating_sub(whole), out)?;
        // The rest of the file has its own end mark.
        let Some(end) = end else { return Ok(()) };
        if end.within() > 0 {
            stored(Member::read(reader, root, end.member())?.slice(0, end.within())?, out)?;
        }
        out(&END)
    }
}

/// A member of the file.
struct Member {
    /// Its length in the file.
    len: u64,
    /// Its data, uncompressed.
    data: Vec<u8>,
}

impl Member {
    fn read(reader: &Reader<'_>, root: &Root, at: u64) -> Result<Self> {
        Self::decode(&fetch(reader, root, at, MEMBER_MAX)?)
    }

    fn decode(bytes: &[u8]) -> Result<Self> {
        let wrong = || invalid("it is no BAM file (a part of it is no BGZF block)");
        let short = |at: usize| -> Option<usize> {
            Some(usize::from(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?)))
        };
        let long =
            |at: usize| -> Option<u32> { Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?)) };
        if bytes.get(..4) != Some(&[0x1f, 0x8b, 8, 4]) {
            return Err(wrong());
        }
        let extra_end = 12 + short(10).ok_or_else(wrong)?;
        let (mut at, mut len) = (12, None);
        while at + 4 <= extra_end {
            let field = short(at + 2).ok_or_else(wrong)?;
            if bytes.get(at..at + 2) == Some(b"BC") && field == 2 {
                len = short(at + 4).map(|len| len + 1);
            }
            at += 4 + field;
        }
        let len = len.filter(|len| *len <= bytes.len() && *len >= extra_end + 8).ok_or_else(wrong)?;
        let (sum, size) = long(len - 8).zip(long(len - 4)).ok_or_else(wrong)?;
        if u64::from(size) > MEMBER_MAX {
            return Err(wrong());
        }
        let mut data = vec![0; size as usize];
        let inflated =
            libdeflater::Decompressor::new().deflate_decompress(&bytes[extra_end..len - 8], &mut data);
        if inflated != Ok(data.len()) || crc32fast::hash(&data) != sum {
            return Err(wrong());
        }
        Ok(Self { len: len as u64, data })
    }

    fn slice(&self, from: usize, to: usize) -> Result<&[u8]> {
        self.data.get(from..to).ok_or_else(|| invalid("the index is of another file"))
    }
}

/// Writes data as members that are not compressed.
fn stored(data: &[u8], out: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
    for some in data.chunks(STORED_MAX) {
        let len = some.len() as u16;
        let mut member = vec![0x1f, 0x8b, 8, 4, 0, 0, 0, 0, 0, 0xff, 6, 0, b'B', b'C', 2, 0];
        // Frame of 18, the deflate block's 5, the data, 8 at the end; one less is kept.
        member.extend_from_slice(&(len + 18 + 5 + 8 - 1).to_le_bytes());
        member.push(1);
        member.extend_from_slice(&len.to_le_bytes());
        member.extend_from_slice(&(!len).to_le_bytes());
        member.extend_from_slice(some);
        member.extend_from_slice(&crc32fast::hash(some).to_le_bytes());
        member.extend_from_slice(&u32::from(len).to_le_bytes());
        out(&member)?;
    }
    Ok(())
}

/// The file's header, uncompressed, and where the first record begins.
fn header(reader: &Reader<'_>, root: &Root) -> Result<(Vec<u8>, Place)> {
    let (mut data, mut members, mut at) = (Vec::new(), Vec::new(), 0);
    loop {
        if let Some(len) = header_len(&data)? {
            // In which member it ends.
            let end = members.iter().rposition(|(_, from)| *from <= len);
            let place = end.map_or(Place(0), |end| {
                let (member, from): (u64, usize) = members[end];
                Place(member << 16 | (len - from) as u64)
            });
            let (last, from) = members.last().copied().unwrap_or((0, 0));
            let is_whole = place.member() == last && len == data.len() && len > from;
            data.truncate(len);
            return Ok((data, if is_whole { Place(at << 16) } else { place }));
        }
        if at >= root.len() || data.len() > HEADER_MAX {
            return Err(invalid("it is no BAM file (its header has no end)"));
        }
        let member = Member::read(reader, root, at)?;
        members.push((at, data.len()));
        data.extend_from_slice(&member.data);
        at += member.len;
    }
}

/// Length of the header at the beginning of `data`; `None` when more is needed.
fn header_len(data: &[u8]) -> Result<Option<usize>> {
    if data.len() >= 4 && &data[..4] != b"BAM\x01" {
        return Err(invalid("it is no BAM file"));
    }
    let number = |at: usize| -> Option<usize> {
        Some(u32::from_le_bytes(data.get(at..at.checked_add(4)?)?.try_into().ok()?) as usize)
    };
    let measure = || -> Option<usize> {
        let text = number(4)?;
        let mut at = 8usize.checked_add(text)?;
        let references = number(at)?;
        at += 4;
        for _ in 0..references {
            at = at.checked_add(4)?.checked_add(number(at)?)?.checked_add(4)?;
            if at > data.len() {
                return None;
            }
        }
        (at <= data.len()).then_some(at)
    };
    Ok(measure())
}

/// Where records begin, rising, by an index in the format BAI.
fn starts(index: &[u8]) -> Result<Vec<Place>> {
    struct Input<'a>(&'a [u8]);
    impl Input<'_> {
        fn take<const N: usize>(&mut self) -> Result<[u8; N]> {
            let (first, rest) =
                self.0.split_first_chunk().ok_or_else(|| invalid("the index ends too early"))?;
            self.0 = rest;
            Ok(*first)
        }
        fn number(&mut self) -> Result<u32> {
            Ok(u32::from_le_bytes(self.take()?))
        }
        fn place(&mut self) -> Result<Place> {
            Ok(Place(u64::from_le_bytes(self.take()?)))
        }
    }
    let mut input = Input(index);
    if &input.take::<4>()? != b"BAI\x01" {
        return Err(invalid(&format!("its index is not in the format BAI; {ADVICE}")));
    }
    let mut starts = Vec::new();
    for _ in 0..input.number()? {
        for _ in 0..input.number()? {
            let bin = input.number()?;
            for _ in 0..input.number()? {
                let (begin, _end) = (input.place()?, input.place()?);
                if bin != COUNTS_BIN {
                    starts.push(begin);
                }
            }
        }
        for _ in 0..input.number()? {
            let begin = input.place()?;
            // 0: nothing lies there.
            if begin.0 > 0 {
                starts.push(begin);
            }
        }
    }
    starts.sort_unstable();
    starts.dedup();
    Ok(starts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_as_members_reads_back() {
        for len in [0, 1, STORED_MAX - 1, STORED_MAX, STORED_MAX + 1, 3 * STORED_MAX + 7] {
            let data: Vec<u8> = (0..len).map(|at| (at * 31 % 251) as u8).collect();
            let (mut file, mut back) = (Vec::new(), Vec::new());
            stored(&data, &mut |bytes| {
                file.extend_from_slice(bytes);
                Ok(())
            })
            .unwrap();
            let mut at = 0;
            while at < file.len() {
                let member = Member::decode(&file[at..]).unwrap();
                back.extend_from_slice(&member.data);
                at += member.len as usize;
            }
            assert!(back == data, "{len}");
        }
        assert!(Member::decode(&END).unwrap().data.is_empty());
    }

    #[test]
    fn what_is_damaged_is_refused_and_nothing_panics() {
        let mut file = Vec::new();
        stored(b"some bytes that are compressed not at all", &mut |bytes| {
            file.extend_from_slice(bytes);
            Ok(())
        })
        .unwrap();
        for at in 0..file.len() {
            // Flags, time and system say nothing of the data.
            if (4..10).contains(&at) {
                continue;
            }
            let mut harmed = file.clone();
            harmed[at] ^= 0x55;
            assert!(Member::decode(&harmed).is_err(), "byte {at}");
            assert!(Member::decode(&file[..at]).is_err(), "{at} bytes");
        }
        for index in [&b"BAI\x01"[..], b"CSI\x01\0\0\0\0", b"BAI\x01\xff\xff\xff\xff\xff\xff\xff\xff", b""] {
            assert!(starts(index).is_err());
        }
        assert!(starts(b"BAI\x01\0\0\0\0").unwrap().is_empty());
        assert!(header_len(b"SAM\x01").is_err());
        assert_eq!(header_len(b"BAM\x01\xff\xff\xff\xff").unwrap(), None);
    }
}
