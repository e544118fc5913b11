//! Writes pax archives: a ustar header, and before it an extended one if the ustar header cannot
//! say everything.

use std::io::{self, Write};

use outrigger_format::catalogue::{Attributes, DOMAIN_XATTR, FileKind};
use outrigger_store::file::Extent;
use tar::{EntryType, Header};

use super::{BLOCK, acl, pax};

/// The content of an entry's headers.
pub struct Fields<'a> {
    /// Its path in the archive; a directory's with a slash at its end.
    pub path: &'a [u8],
    /// Its attributes.
    pub attributes: &'a Attributes,
    /// Another entry that it is a hard link to.
    pub link: Option<&'a [u8]>,
    /// Length, holes included.
    pub size: u64,
    /// Data and holes, if the holes are to be left out; else `size` bytes follow.
    pub extents: Option<&'a [Extent]>,
}

/// An archive being written.
pub struct TarWriter<W: Write> {
    out: W,
    /// Bytes of the current entry so far.
    written: u64,
}

/// Longest name and link in a ustar header.
const NAME_MAX: usize = 100;
/// Largest number in twelve and in eight octal digits.
const OCTAL_12: u64 = 0o77_777_777_777;
const OCTAL_8: u32 = 0o7_777_777;

impl<W: Write> TarWriter<W> {
    /// Begins an archive.
    pub fn new(out: W) -> Self {
        Self { out, written: 0 }
    }

    /// Writes an entry's headers. Its bytes must follow (those of its extents, or all), then
    /// [`TarWriter::end_entry`].
    ///
    /// # Errors
    /// Those of writing.
    pub fn begin_entry(&mut self, fields: &Fields<'_>) -> io::Result<()> {
        let records = records(fields);
        if !records.is_empty() {
            let mut header = Header::new_ustar();
            header.set_entry_type(EntryType::XHeader);
            header.set_size(records.len() as u64);
            header.set_mode(0o644);
            self.header(header, b"././@PaxHeader", b"")?;
            self.data(&records)?;
            self.end_entry()?;
        }
        let (attributes, map) = (fields.attributes, fields.extents.map(sparse_map));
        let stored = stored_len(fields);
        let mut header = Header::new_ustar();
        header.set_entry_type(entry_type(fields));
        header.set_size(if stored > OCTAL_12 { 0 } else { stored });
        header.set_mode(attributes.mode);
        header.set_uid(if attributes.uid > OCTAL_8 { 0 } else { attributes.uid.into() });
        header.set_gid(if attributes.gid > OCTAL_8 { 0 } else { attributes.gid.into() });
        header.set_mtime(u64::try_from(attributes.mtime.secs).unwrap_or(0).min(OCTAL_12));
        if matches!(attributes.kind, FileKind::CharDevice | FileKind::BlockDevice) {
            header.set_device_major(rustix::fs::major(attributes.rdev))?;
            header.set_device_minor(rustix::fs::minor(attributes.rdev))?;
        }
        let Some(map) = map else { return self.header(header, fields.path, link_of(fields)) };
        // A program that does not know sparse files unpacks map and data. Under this name nobody
        // takes the result for the file.
        let name = fields.path.rsplit(|&byte| byte == b'/').next().unwrap_or_default();
        self.header(header, &[b"GNUSparseFile.0/", name].concat(), b"")?;
        self.data(&map)
    }

    fn header(&mut self, mut header: Header, path: &[u8], link: &[u8]) -> io::Result<()> {
        let ustar = header.as_ustar_mut().expect("made as one");
        let (name, link) = (&path[..path.len().min(NAME_MAX)], &link[..link.len().min(NAME_MAX)]);
        ustar.name[..name.len()].copy_from_slice(name);
        ustar.linkname[..link.len()].copy_from_slice(link);
        header.set_cksum();
        self.written = 0;
        self.out.write_all(header.as_bytes())
    }

    /// Some of the entry's bytes.
    ///
    /// # Errors
    /// Those of writing.
    pub fn data(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.written += bytes.len() as u64;
        self.out.write_all(bytes)
    }

    /// Pads the entry.
    ///
    /// # Errors
    /// Those of writing.
    pub fn end_entry(&mut self) -> io::Result<()> {
        let over = (self.written % BLOCK as u64) as usize;
        if over > 0 { self.out.write_all(&[0; BLOCK][over..]) } else { Ok(()) }
    }

    /// Ends the archive.
    ///
    /// # Errors
    /// Those of writing.
    pub fn finish(mut self) -> io::Result<W> {
        self.out.write_all(&[0; 2 * BLOCK])?;
        self.out.flush()?;
        Ok(self.out)
    }
}

fn link_of<'a>(fields: &Fields<'a>) -> &'a [u8] {
    fields.link.unwrap_or(&fields.attributes.target)
}

fn entry_type(fields: &Fields<'_>) -> EntryType {
    match fields.attributes.kind {
        _ if fields.link.is_some() => EntryType::Link,
        FileKind::File | FileKind::Socket => EntryType::Regular,
        FileKind::Directory => EntryType::Directory,
        FileKind::Symlink => EntryType::Symlink,
        FileKind::Fifo => EntryType::Fifo,
        FileKind::CharDevice => EntryType::Char,
        FileKind::BlockDevice => EntryType::Block,
    }
}

/// Bytes that follow the headers, but for padding.
fn stored_len(fields: &Fields<'_>) -> u64 {
    let data = |extents: &[Extent]| extents.iter().map(|extent| extent.len).sum::<u64>();
    fields.extents.map_or(fields.size, |extents| sparse_map(extents).len() as u64 + data(extents))
}

/// The map of pax's sparse format 1.0: the number of extents, then each one's offset and length, in
/// lines, padded to a block.
fn sparse_map(extents: &[Extent]) -> Vec<u8> {
    let mut map = format!("{}\n", extents.len());
    for Extent { start, len, .. } in extents {
        map += &format!("{start}\n{len}\n");
    }
    let mut map = map.into_bytes();
    map.resize(map.len().next_multiple_of(BLOCK), 0);
    map
}

/// The fields that do not fit the ustar header.
fn records(fields: &Fields<'_>) -> Vec<u8> {
    let (attributes, link, mut records) = (fields.attributes, link_of(fields), Vec::new());
    if fields.extents.is_some() {
        pax::append(&mut records, b"GNU.sparse.major", b"1");
        pax::append(&mut records, b"GNU.sparse.minor", b"0");
        pax::append(&mut records, b"GNU.sparse.name", fields.path);
        pax::append(&mut records, b"GNU.sparse.realsize", fields.size.to_string().as_bytes());
    } else if fields.path.len() > NAME_MAX {
        pax::append(&mut records, b"path", fields.path);
    }
    if link.len() > NAME_MAX {
        pax::append(&mut records, b"linkpath", link);
    }
    let stored = stored_len(fields);
    if stored > OCTAL_12 {
        pax::append(&mut records, b"size", stored.to_string().as_bytes());
    }
    for (key, id) in [(b"uid", attributes.uid), (b"gid", attributes.gid)] {
        if id > OCTAL_8 {
            pax::append(&mut records, key, id.to_string().as_bytes());
        }
    }
    let time = attributes.mtime;
    if time.nanos != 0 || !(0..=OCTAL_12 as i64).contains(&time.secs) {
        pax::append(&mut records, b"mtime", pax::print_time(time).as_bytes());
    }
    if fields.link.is_none() {
        for (name, value) in attributes.xattrs.iter().filter(|(name, _)| name != DOMAIN_XATTR) {
            match acl::record(name, value) {
                Some((key, text)) => pax::append(&mut records, key, text.as_bytes()),
                None => pax::append(&mut records, &[b"SCHILY.xattr.", name.as_slice()].concat(), value),
            }
        }
    }
    records
}
