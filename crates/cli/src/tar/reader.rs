//! Reads archives from any source. An archive is untrusted: nothing in it is believed beyond what a
//! header can say, and extended headers are bounded.

use std::collections::VecDeque;
use std::io::Read;

use outrigger_format::catalogue::{Time, Xattrs};
use outrigger_store::file::Extent;
use outrigger_store::local::acl::{ACCESS, mode_without};
use tar::{EntryType, GnuExtSparseHeader, Header};

use super::sparse::Sparse;
use super::{BLOCK, acl, pax};

/// The kind of an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "they are what they are called")]
pub enum Kind {
    File,
    HardLink,
    Symlink,
    CharDevice,
    BlockDevice,
    Directory,
    Fifo,
    /// A kind that is not known, by its letter.
    Other(u8),
}

/// An entry; its bytes are read with [`Archive::read`].
#[derive(Clone, Debug)]
pub struct Entry {
    /// Its path, as the archive has it.
    pub path: Vec<u8>,
    /// The target of a link.
    pub link: Vec<u8>,
    /// Its kind.
    pub kind: Kind,
    /// Permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Time of the last modification.
    pub mtime: Time,
    /// Device number, major and minor.
    pub device: (u32, u32),
    /// Extended attributes, sorted.
    pub xattrs: Xattrs,
    /// The parts that cannot be imported, and why.
    pub left_out: Option<String>,
    /// Length, holes included.
    pub size: u64,
}

/// Why an archive cannot be read further.
#[derive(Debug)]
pub enum TarError {
    /// Reading failed.
    Io(std::io::Error),
    /// It is not, or no longer, an archive.
    Format(String),
}

impl From<std::io::Error> for TarError {
    fn from(error: std::io::Error) -> Self {
        Self::Io(error)
    }
}

pub(super) fn bad<T>(why: impl Into<String>) -> Result<T, TarError> {
    Err(TarError::Format(why.into()))
}

pub(super) type Result<T, E = TarError> = std::result::Result<T, E>;

/// Keys and values of extended headers.
type Records = Vec<(Vec<u8>, Vec<u8>)>;

/// An archive being read.
pub struct Archive<R: Read> {
    input: R,
    /// Blocks read, for messages.
    position: u64,
    /// Stored bytes of the current entry that are still unread, and its padding.
    left: u64,
    padding: u64,
    /// Data of the current entry that is still unread: (offset, length), rising; and its size.
    extents: VecDeque<(u64, u64)>,
    size: u64,
    global: Records,
}

/// The bound on all extended headers and long names before one entry, in bytes.
const EXTENDED_MAX: u64 = 1 << 20;
/// The bound on all global headers, in bytes: each entry gets a copy.
const GLOBAL_MAX: usize = 64 << 10;
/// The bound on extents of a sparse file.
const EXTENTS_MAX: usize = 1 << 20;

impl<R: Read> Archive<R> {
    /// Begins to read.
    pub fn new(input: R) -> Self {
        Self {
            input,
            position: 0,
            left: 0,
            padding: 0,
            extents: Default::default(),
            size: 0,
            global: Records::new(),
        }
    }

    fn fill(&mut self, bytes: &mut [u8]) -> Result<()> {
        match self.input.read_exact(bytes) {
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => bad("the archive ends early"),
            read => {
                self.position += bytes.len() as u64;
                Ok(read?)
            }
        }
    }

    /// A block, or `None` at the end of the input.
    fn block(&mut self) -> Result<Option<[u8; BLOCK]>> {
        let (mut block, mut filled) = ([0; BLOCK], 0);
        while filled < BLOCK {
            match self.input.read(&mut block[filled..]) {
                Ok(0) if filled == 0 => return Ok(None),
                Ok(0) => return bad("the archive ends early"),
                Ok(read) => filled += read,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        self.position += BLOCK as u64;
        Ok(Some(block))
    }

    fn skip(&mut self) -> Result<()> {
        let mut rest = [0; 8192];
        let mut left = std::mem::take(&mut self.left) + std::mem::take(&mut self.padding);
        while left > 0 {
            let part = left.min(rest.len() as u64) as usize;
            self.fill(&mut rest[..part])?;
            left -= part as u64;
        }
        Ok(())
    }

    /// An extended header's data, with its padding. `left` is how much more the headers of this
    /// entry may take.
    fn extended(&mut self, size: u64, left: &mut u64) -> Result<Vec<u8>> {
        let Some(rest) = left.checked_sub(size.max(BLOCK as u64)) else {
            return bad("the extended headers of an entry are too long");
        };
        *left = rest;
        let mut bytes = vec![0; size as usize];
        self.fill(&mut bytes)?;
        let padding = size.next_multiple_of(BLOCK as u64) - size;
        self.fill(&mut vec![0; padding as usize])?;
        Ok(bytes)
    }

    /// The next entry, or `None` at the end.
    ///
    /// # Errors
    /// When the input cannot be read, or is no archive here.
    pub fn next(&mut self) -> Result<Option<Entry>> {
        self.skip()?;
        let (mut records, mut long_name, mut long_link) = (Records::new(), None, None);
        let mut left = EXTENDED_MAX;
        loop {
            let Some(block) = self.block()? else {
                return if self.position == 0 { bad("it is empty, not a tar archive") } else { Ok(None) };
            };
            if block == [0; BLOCK] {
                return Ok(None);
            }
            let header = Header::from_byte_slice(&block);
            if header.cksum().ok() != Some(checksum(&block)) {
                return bad(not_tar(&block, self.position));
            }
            let size = number(header.entry_size(), "length")?;
            match header.entry_type() {
                EntryType::XGlobalHeader => {
                    let more = self.records(size, &mut left)?;
                    self.add_global(more)?;
                }
                EntryType::XHeader => records.append(&mut self.records(size, &mut left)?),
                EntryType::GNULongName => long_name = Some(until_zero(self.extended(size, &mut left)?)),
                EntryType::GNULongLink => long_link = Some(until_zero(self.extended(size, &mut left)?)),
                _ => {
                    let records = [self.global.clone(), records].concat();
                    return self.entry(header, size, records, long_name, long_link).map(Some);
                }
            }
        }
    }

    /// Reads the rest of the input, which is behind the archive's end.
    ///
    /// # Errors
    /// When it cannot be read.
    pub(super) fn drain(&mut self) -> Result<()> {
        std::io::copy(&mut self.input, &mut std::io::sink())?;
        Ok(())
    }

    fn records(&mut self, size: u64, left: &mut u64) -> Result<Records> {
        match pax::parse(&self.extended(size, left)?) {
            Some(records) => Ok(records),
            None => bad("an extended header is damaged"),
        }
    }

    /// Adds records that hold for all later entries, and replaces those of the same keys.
    fn add_global(&mut self, more: Records) -> Result<()> {
        let len = |(key, value): &(Vec<u8>, Vec<u8>)| key.len() + value.len() + 16;
        let mut sum: usize = self.global.iter().map(len).sum();
        for record in more {
            sum += len(&record);
            if let Some(known) = self.global.iter_mut().find(|(key, _)| *key == record.0) {
                sum -= len(known);
                *known = record;
            } else {
                self.global.push(record);
            }
            if sum > GLOBAL_MAX {
                return bad("the global extended headers are too long");
            }
        }
        Ok(())
    }

    fn entry(
        &mut self,
        header: &Header,
        mut stored: u64,
        records: Vec<(Vec<u8>, Vec<u8>)>,
        long_name: Option<Vec<u8>>,
        long_link: Option<Vec<u8>>,
    ) -> Result<Entry> {
        let kind = match header.entry_type() {
            EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => Kind::File,
            EntryType::Link => Kind::HardLink,
            EntryType::Symlink => Kind::Symlink,
            EntryType::Char => Kind::CharDevice,
            EntryType::Block => Kind::BlockDevice,
            EntryType::Directory => Kind::Directory,
            EntryType::Fifo => Kind::Fifo,
            other => Kind::Other(other.as_byte()),
        };
        let old = header.as_old();
        let device = |number: std::io::Result<Option<u32>>| number.ok().flatten().unwrap_or(0);
        let mut entry = Entry {
            path: long_name.unwrap_or_else(|| header.path_bytes().into_owned()),
            link: long_link.unwrap_or_else(|| header.link_name_bytes().unwrap_or_default().into_owned()),
            kind,
            mode: or_blank(&old.mode, header.mode().map(u64::from), "mode")? as u32 & 0o7777,
            uid: or_blank(&old.uid, header.uid(), "owner")? as u32,
            gid: or_blank(&old.gid, header.gid(), "group")? as u32,
            mtime: Time { secs: header.mtime().map_or(0, |secs| secs as i64), nanos: 0 },
            device: (device(header.device_major()), device(header.device_minor())),
            xattrs: Vec::new(),
            left_out: None,
            size: 0,
        };
        let (mut sparse, mut lists) = (Sparse::default(), Vec::new());
        for (key, value) in records {
            match acl::KEYS.into_iter().find(|(acl, _)| *acl == key.as_slice()) {
                Some((_, attribute)) => lists.push((attribute, value)),
                None => apply(&mut entry, &mut sparse, &mut stored, &key, value)?,
            }
        }
        for (attribute, text) in lists {
            access_list(&mut entry, attribute, &text);
        }
        entry.xattrs.sort();
        entry.xattrs.dedup_by(|b, a| a.0 == b.0);
        // Old archives store a directory as a file with a slash at the end.
        if entry.kind == Kind::File && entry.path.ends_with(b"/") {
            entry.kind = Kind::Directory;
        }
        // A link's header may state the length of its target, but none of those bytes follow.
        self.left = if entry.kind == Kind::File || matches!(entry.kind, Kind::Other(_)) { stored } else { 0 };
        self.padding = self.left.checked_next_multiple_of(BLOCK as u64).map_or(0, |end| end - self.left);
        entry.size = self.left;
        if header.entry_type() == EntryType::GNUSparse {
            self.old_sparse(header, &mut sparse)?;
        } else if sparse.major == Some(1) {
            self.sparse_map(&mut sparse)?;
        }
        self.extents = match sparse.size {
            Some(size) if entry.kind == Kind::File => {
                entry.size = size;
                sparse.extents(size, self.left)?
            }
            _ => [(0, self.left)].into(),
        };
        self.size = entry.size;
        Ok(entry)
    }

    /// The map of GNU's own sparse entries: four extents in the header, more in blocks after it.
    fn old_sparse(&mut self, header: &Header, sparse: &mut Sparse) -> Result<()> {
        let Some(gnu) = header.as_gnu() else { return bad("a sparse entry without a GNU header") };
        sparse.size = Some(number(gnu.real_size(), "length")?);
        let mut more = gnu.is_extended();
        for part in gnu.sparse.iter().filter(|part| !part.is_empty()) {
            sparse.map.push((number(part.offset(), "offset")?, number(part.length(), "length")?));
        }
        while more {
            let mut extended = GnuExtSparseHeader::new();
            self.fill(extended.as_mut_bytes())?;
            more = extended.is_extended();
            for part in extended.sparse().iter().filter(|part| !part.is_empty()) {
                sparse.map.push((number(part.offset(), "offset")?, number(part.length(), "length")?));
            }
            if sparse.map.len() > EXTENTS_MAX {
                return bad("a sparse file has too many extents");
            }
        }
        Ok(())
    }

    /// The map of pax's sparse format 1.0: numbers in lines before the data, padded to a block.
    fn sparse_map(&mut self, sparse: &mut Sparse) -> Result<()> {
        let (mut numbers, mut digits, mut expected) = (Vec::new(), Vec::new(), None);
        while expected != Some(numbers.len()) {
            if self.left < BLOCK as u64 {
                return bad("a sparse file's map is cut off");
            }
            let mut block = [0; BLOCK];
            self.fill(&mut block)?;
            self.left -= BLOCK as u64;
            for byte in block {
                match byte {
                    b'0'..=b'9' if digits.len() < 20 => digits.push(byte),
                    b'\n' if expected != Some(numbers.len()) => {
                        let value =
                            std::str::from_utf8(&digits).ok().and_then(|text| text.parse::<u64>().ok());
                        let Some(value) = value else { return bad("a sparse file's map is damaged") };
                        digits.clear();
                        if expected.is_some() {
                            numbers.push(value);
                        } else if value as usize > EXTENTS_MAX {
                            return bad("a sparse file has too many extents");
                        } else {
                            expected = Some(2 * value as usize);
                        }
                    }
                    _ if expected == Some(numbers.len()) => break,
                    _ => return bad("a sparse file's map is damaged"),
                }
            }
        }
        sparse.map = numbers.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect();
        Ok(())
    }

    /// Data and holes of the current entry; one extent without a hole if it is not sparse. Call it
    /// before reading the entry.
    pub fn extents(&self) -> Vec<Extent> {
        let (mut all, mut at) = (Vec::with_capacity(self.extents.len() + 1), 0);
        for &(start, len) in self.extents.iter().filter(|(_, len)| *len > 0) {
            all.push(Extent { hole_before: start - at, start, len });
            at = start + len;
        }
        if at < self.size {
            all.push(Extent { hole_before: self.size - at, start: self.size, len: 0 });
        }
        all
    }

    /// Fills `buffer` with the entry's next stored bytes, which are its extents one after the
    /// other. It returns less only at their end.
    ///
    /// # Errors
    /// When the archive ends early or cannot be read.
    pub fn read(&mut self, buffer: &mut [u8]) -> Result<usize> {
        let mut filled = 0;
        while filled < buffer.len() {
            let Some((_, len)) = self.extents.front_mut() else { break };
            let part = (*len).min((buffer.len() - filled) as u64);
            *len -= part;
            if *len == 0 {
                self.extents.pop_front();
            }
            self.left -= part;
            self.fill(&mut buffer[filled..filled + part as usize])?;
            filled += part as usize;
        }
        Ok(filled)
    }
}

fn apply(entry: &mut Entry, sparse: &mut Sparse, stored: &mut u64, key: &[u8], value: Vec<u8>) -> Result<()> {
    let text = || std::str::from_utf8(&value).unwrap_or_default();
    let decimal = |what: &str| match text().parse::<u64>() {
        Ok(number) => Ok(number),
        Err(_) => bad(format!("an extended header's {what} is not a number")),
    };
    match key {
        b"path" | b"GNU.sparse.name" => entry.path = value,
        b"linkpath" => entry.link = value,
        b"size" => *stored = decimal("size")?,
        b"uid" => entry.uid = decimal("uid")? as u32,
        b"gid" => entry.gid = decimal("gid")? as u32,
        b"mtime" => match pax::parse_time(&value) {
            Some(time) => entry.mtime = time,
            None => return bad("an extended header's mtime is not a time"),
        },
        b"GNU.sparse.major" => sparse.major = Some(decimal("version")?),
        b"GNU.sparse.realsize" | b"GNU.sparse.size" => sparse.size = Some(decimal("size")?),
        b"GNU.sparse.offset" => sparse.map.push((decimal("offset")?, 0)),
        b"GNU.sparse.numbytes" => {
            if let Some(last) = sparse.map.last_mut() {
                last.1 = decimal("length")?;
            }
        }
        b"GNU.sparse.map" => {
            let numbers: Option<Vec<u64>> = text().split(',').map(|number| number.parse().ok()).collect();
            let Some(numbers) = numbers else { return bad("a sparse file's map is damaged") };
            sparse.map = numbers.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect();
        }
        _ => {
            if let Some(name) = key.strip_prefix(b"SCHILY.xattr.") {
                entry.xattrs.push((name.to_vec(), value));
            }
        }
    }
    Ok(())
}

/// Takes an access control list from text. If the archive also has the kernel's form, that one
/// counts, because it has no names.
fn access_list(entry: &mut Entry, attribute: &[u8], text: &[u8]) {
    let list = acl::parse(text);
    let known = entry.xattrs.iter().any(|(name, _)| name == attribute);
    if known || text.is_empty() || (attribute == ACCESS && list.is_minimal()) {
        return;
    }
    match &list.lacks {
        None => entry.xattrs.push((attribute.to_vec(), list.value())),
        Some(why) => {
            entry.left_out = Some(format!("stored without it: {why}"));
            if attribute == ACCESS {
                entry.mode = mode_without(entry.mode, &list.entries);
            }
        }
    }
}

fn number<T>(parsed: std::io::Result<T>, what: &str) -> Result<T> {
    parsed.or_else(|_| bad(format!("a header's {what} is not a number")))
}

/// As [`number`], for fields that some programs leave blank.
fn or_blank(field: &[u8], parsed: std::io::Result<u64>, what: &str) -> Result<u64> {
    if field.iter().all(|byte| matches!(byte, 0 | b' ')) { Ok(0) } else { number(parsed, what) }
}

fn until_zero(mut bytes: Vec<u8>) -> Vec<u8> {
    bytes.truncate(bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len()));
    bytes
}

/// The sum of a header's bytes, its checksum field counted as blanks.
fn checksum(block: &[u8; BLOCK]) -> u32 {
    let sum = |bytes: &[u8]| bytes.iter().map(|&byte| u32::from(byte)).sum::<u32>();
    sum(&block[..148]) + 8 * 32 + sum(&block[156..])
}

fn not_tar(block: &[u8; BLOCK], position: u64) -> String {
    let compressed = match block {
        [0x1f, 0x8b, ..] => "gzip: decompress it first, as in `zcat FILE | outrigger import - --to PATH`",
        [0x28, 0xb5, 0x2f, 0xfd, ..] => {
            "zstd: decompress it first, as in `zstdcat FILE | outrigger import - --to PATH`"
        }
        [0xfd, b'7', b'z', b'X', b'Z', ..] => {
            "xz: decompress it first, as in `xzcat FILE | outrigger import - --to PATH`"
        }
        [b'B', b'Z', b'h', ..] => {
            "bzip2: decompress it first, as in `bzcat FILE | outrigger import - --to PATH`"
        }
        _ if position == BLOCK as u64 => return "it is not a tar archive".to_string(),
        _ => return format!("the header at byte {} is damaged", position - BLOCK as u64),
    };
    format!("it is compressed with {compressed}")
}

#[cfg(test)]
#[path = "reader_tests.rs"]
mod tests;
