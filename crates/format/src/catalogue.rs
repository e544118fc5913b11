//! Catalogue blocks: names, attributes and roots in packs, to rebuild a lost database.
//!
//! `docs/format.md` has the byte map. A block is a list of [`Record`]s, which `recover` replays.
//! Blocks follow each other by their sequence.

use crate::{Cursor, FormatError, Put, Root};

const WHAT: &str = "catalogue block";
const VERSION: u16 = 1;
/// A flag in the byte of an inode's kind: two more times follow its attributes.
const HAS_TIMES: u8 = 0x80;

/// The kind of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[repr(u8)]
pub enum FileKind {
    /// A regular file.
    File = 0,
    /// A directory.
    Directory = 1,
    /// A symbolic link.
    Symlink = 2,
    /// A named pipe.
    Fifo = 3,
    /// A socket.
    Socket = 4,
    /// A character device.
    CharDevice = 5,
    /// A block device.
    BlockDevice = 6,
}

impl FileKind {
    /// From its number on disk.
    ///
    /// # Errors
    /// [`FormatError::Range`] for an unknown number.
    pub fn from_byte(byte: u8) -> Result<Self, FormatError> {
        Ok(match byte {
            0 => Self::File,
            1 => Self::Directory,
            2 => Self::Symlink,
            3 => Self::Fifo,
            4 => Self::Socket,
            5 => Self::CharDevice,
            6 => Self::BlockDevice,
            value => return Err(FormatError::Range { what: WHAT, field: "file kind", value: value.into() }),
        })
    }
}

/// A time in the form of `stat`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Hash)]
pub struct Time {
    /// Seconds since 1970, possibly negative.
    pub secs: i64,
    /// Nanoseconds, below 10^9.
    pub nanos: u32,
}

impl Time {
    /// Nanoseconds since 1970 as a time.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self { secs: (nanos / 1_000_000_000) as i64, nanos: (nanos % 1_000_000_000) as u32 }
    }
}

/// Extended attributes, ACLs among them: (name, value), sorted by name.
pub type Xattrs = Vec<(Vec<u8>, Vec<u8>)>;

/// Times that only a mount keeps. Files from `put` have none.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
pub struct OtherTimes {
    /// Last access.
    pub atime: Time,
    /// Last change of the inode.
    pub ctime: Time,
}

/// A file's metadata, apart from its name and content.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Attributes {
    /// Its kind.
    pub kind: FileKind,
    /// Permission bits, set-id bits and the sticky bit (`0o7777`).
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Time of the last modification.
    pub mtime: Time,
    /// Device number of a device (`makedev` encoding of Linux), else 0.
    pub rdev: u64,
    /// Target of a symbolic link, else empty.
    pub target: Vec<u8>,
    /// Extended attributes.
    pub xattrs: Xattrs,
    /// More times. `None`: the time of the last modification stands for them.
    pub times: Option<OtherTimes>,
}

/// One change of the tree.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Record {
    /// An entry was made or its file changed. Entries with the same inode are hard links.
    Upsert {
        /// The file.
        inode: u64,
        /// The directory's inode.
        parent: u64,
        /// The name in it; empty for the root directory itself.
        name: Vec<u8>,
        /// Attributes.
        attributes: Attributes,
        /// Content.
        root: Root,
        /// The name stood for another inode before, which it leaves.
        replace: bool,
    },
    /// Another name for an inode.
    Link {
        /// The directory's inode.
        parent: u64,
        /// The name in it.
        name: Vec<u8>,
        /// The file.
        inode: u64,
    },
    /// An entry was removed, with all below it.
    Unlink {
        /// The directory's inode.
        parent: u64,
        /// The name in it.
        name: Vec<u8>,
    },
    /// An entry was moved and replaced what was there.
    Rename {
        /// The old directory.
        parent: u64,
        /// The old name.
        name: Vec<u8>,
        /// The new directory.
        new_parent: u64,
        /// The new name.
        new_name: Vec<u8>,
    },
    /// A snapshot of the tree as it is at this point of the log.
    Snapshot {
        /// Its name.
        name: Vec<u8>,
        /// When it was taken, nanoseconds since 1970.
        time: u64,
        /// Its tags.
        tags: Vec<Vec<u8>>,
    },
    /// A snapshot got these tags in place of its old ones.
    Tags {
        /// Its name.
        name: Vec<u8>,
        /// Its tags.
        tags: Vec<Vec<u8>>,
    },
    /// A snapshot was deleted.
    Forget {
        /// Its name.
        name: Vec<u8>,
    },
    /// The following records supersede all earlier blocks.
    Reset,
    /// An earlier version that is kept.
    Version {
        /// The file.
        inode: u64,
        /// The version's number, rising from 1.
        number: u64,
        /// When it was committed, nanoseconds since 1970.
        time: u64,
        /// Time of its last modification.
        mtime: Time,
        /// Its content.
        root: Root,
    },
    /// A policy of a directory was set or unset.
    Policy {
        /// The directory.
        inode: u64,
        /// The policy's name.
        key: Vec<u8>,
        /// Its value; `None`: unset.
        value: Option<Vec<u8>>,
    },
    /// Ends the [`Record::Reset`] of the same sequence. Without it the whole sequence is ignored.
    ResetEnd,
    /// The name stands for `inode` or nothing. An inode without a name at the sequence's end goes.
    Name {
        /// The directory's inode.
        parent: u64,
        /// The name in it.
        name: Vec<u8>,
        /// The inode.
        inode: Option<u64>,
    },
    /// An inode's attributes and content. The inode is made if it does not exist.
    Node {
        /// The inode.
        inode: u64,
        /// A directory that has a name for it at the end of the sequence.
        parent: u64,
        /// Attributes.
        attributes: Attributes,
        /// Content.
        root: Root,
        /// The previous content becomes an earlier version.
        keep: bool,
    },
}

/// A decoded block.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Block {
    /// Blocks are replayed in this order.
    pub sequence: u64,
    /// When it was committed, nanoseconds since 1970.
    pub time: u64,
    /// The changes, in order.
    pub records: Vec<Record>,
}

fn zigzag(value: i64) -> u64 {
    (value << 1 ^ value >> 63) as u64
}

fn unzigzag(value: u64) -> i64 {
    (value >> 1) as i64 ^ -((value & 1) as i64)
}

fn put_strings(out: &mut Vec<u8>, strings: &[Vec<u8>]) {
    out.put_varint(strings.len() as u64);
    strings.iter().for_each(|string| out.put_bytes(string));
}

fn get_strings(cursor: &mut Cursor<'_>) -> Result<Vec<Vec<u8>>, FormatError> {
    let count = cursor.varint()?;
    let mut strings = Vec::new();
    for _ in 0..count {
        strings.push(cursor.bytes()?.to_vec());
    }
    Ok(strings)
}

fn put_time(out: &mut Vec<u8>, time: Time) {
    out.put_varint(zigzag(time.secs));
    out.put_varint(time.nanos.into());
}

fn get_time(cursor: &mut Cursor<'_>) -> Result<Time, FormatError> {
    let secs = unzigzag(cursor.varint()?);
    let nanos = get_u32(cursor, "nanoseconds")?;
    if nanos >= 1_000_000_000 {
        return Err(cursor.range("nanoseconds", nanos.into()));
    }
    Ok(Time { secs, nanos })
}

fn get_u32(cursor: &mut Cursor<'_>, field: &'static str) -> Result<u32, FormatError> {
    let value = cursor.varint()?;
    u32::try_from(value).map_err(|_| cursor.range(field, value))
}

/// Appends `xattrs`: a count, then name and value of each.
pub fn encode_xattrs(xattrs: &Xattrs, out: &mut Vec<u8>) {
    out.put_varint(xattrs.len() as u64);
    for (name, value) in xattrs {
        out.put_bytes(name);
        out.put_bytes(value);
    }
}

/// The inverse of [`encode_xattrs`].
///
/// # Errors
/// Any [`FormatError`].
pub fn decode_xattrs(cursor: &mut Cursor<'_>) -> Result<Xattrs, FormatError> {
    let count = cursor.varint()?;
    let mut xattrs = Vec::new();
    for _ in 0..count {
        xattrs.push((cursor.bytes()?.to_vec(), cursor.bytes()?.to_vec()));
    }
    Ok(xattrs)
}

impl Attributes {
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        out.push(self.kind as u8 | if self.times.is_some() { HAS_TIMES } else { 0 });
        out.put_varint(self.mode.into());
        out.put_varint(self.uid.into());
        out.put_varint(self.gid.into());
        put_time(out, self.mtime);
        match self.kind {
            FileKind::CharDevice | FileKind::BlockDevice => out.put_varint(self.rdev),
            FileKind::Symlink => out.put_bytes(&self.target),
            _ => {}
        }
        encode_xattrs(&self.xattrs, out);
        if let Some(OtherTimes { atime, ctime }) = self.times {
            put_time(out, atime);
            put_time(out, ctime);
        }
    }

    pub(crate) fn decode(cursor: &mut Cursor<'_>) -> Result<Self, FormatError> {
        let first = cursor.u8()?;
        let kind = FileKind::from_byte(first & !HAS_TIMES)?;
        let mode = get_u32(cursor, "mode")?;
        if mode > 0o7777 {
            return Err(cursor.range("mode", mode.into()));
        }
        let (uid, gid) = (get_u32(cursor, "uid")?, get_u32(cursor, "gid")?);
        let mtime = get_time(cursor)?;
        let (mut rdev, mut target) = (0, Vec::new());
        match kind {
            FileKind::CharDevice | FileKind::BlockDevice => rdev = cursor.varint()?,
            FileKind::Symlink => target = cursor.bytes()?.to_vec(),
            _ => {}
        }
        let xattrs = decode_xattrs(cursor)?;
        let times = match first & HAS_TIMES {
            0 => None,
            _ => Some(OtherTimes { atime: get_time(cursor)?, ctime: get_time(cursor)? }),
        };
        Ok(Self { kind, mode, uid, gid, mtime, rdev, target, xattrs, times })
    }
}

impl Record {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Upsert { inode, parent, name, attributes, root, replace } => {
                out.push(if *replace { 9 } else { 1 });
                out.put_varint(*inode);
                out.put_varint(*parent);
                out.put_bytes(name);
                attributes.encode(out);
                out.put_bytes(&root.encode());
            }
            Self::Link { parent, name, inode } => {
                out.push(8);
                out.put_varint(*parent);
                out.put_bytes(name);
                out.put_varint(*inode);
            }
            Self::Unlink { parent, name } => {
                out.push(2);
                out.put_varint(*parent);
                out.put_bytes(name);
            }
            Self::Rename { parent, name, new_parent, new_name } => {
                out.push(3);
                out.put_varint(*parent);
                out.put_bytes(name);
                out.put_varint(*new_parent);
                out.put_bytes(new_name);
            }
            Self::Snapshot { name, time, tags } => {
                out.push(4);
                out.put_bytes(name);
                out.put_varint(*time);
                put_strings(out, tags);
            }
            Self::Tags { name, tags } => {
                out.push(15);
                out.put_bytes(name);
                put_strings(out, tags);
            }
            Self::Forget { name } => {
                out.push(5);
                out.put_bytes(name);
            }
            Self::Reset => out.push(6),
            Self::Version { inode, number, time, mtime, root } => {
                out.push(7);
                out.put_varint(*inode);
                out.put_varint(*number);
                out.put_varint(*time);
                put_time(out, *mtime);
                out.put_bytes(&root.encode());
            }
            Self::Policy { inode, key, value } => {
                out.push(10);
                out.put_varint(*inode);
                out.put_bytes(key);
                out.push(u8::from(value.is_some()));
                value.iter().for_each(|value| out.put_bytes(value));
            }
            Self::ResetEnd => out.push(11),
            Self::Name { parent, name, inode } => {
                out.push(12);
                out.put_varint(*parent);
                out.put_bytes(name);
                out.put_varint(inode.unwrap_or(0));
            }
            Self::Node { inode, parent, attributes, root, keep } => {
                out.push(if *keep { 14 } else { 13 });
                out.put_varint(*inode);
                out.put_varint(*parent);
                attributes.encode(out);
                out.put_bytes(&root.encode());
            }
        }
    }

    fn decode(cursor: &mut Cursor<'_>) -> Result<Self, FormatError> {
        Ok(match cursor.u8()? {
            kind @ (1 | 9) => Self::Upsert {
                inode: cursor.varint()?,
                parent: cursor.varint()?,
                name: cursor.bytes()?.to_vec(),
                attributes: Attributes::decode(cursor)?,
                root: Root::decode(cursor.bytes()?)?,
                replace: kind == 9,
            },
            8 => Self::Link {
                parent: cursor.varint()?,
                name: cursor.bytes()?.to_vec(),
                inode: cursor.varint()?,
            },
            2 => Self::Unlink { parent: cursor.varint()?, name: cursor.bytes()?.to_vec() },
            3 => Self::Rename {
                parent: cursor.varint()?,
                name: cursor.bytes()?.to_vec(),
                new_parent: cursor.varint()?,
                new_name: cursor.bytes()?.to_vec(),
            },
            4 => Self::Snapshot {
                name: cursor.bytes()?.to_vec(),
                time: cursor.varint()?,
                tags: get_strings(cursor)?,
            },
            15 => Self::Tags { name: cursor.bytes()?.to_vec(), tags: get_strings(cursor)? },
            5 => Self::Forget { name: cursor.bytes()?.to_vec() },
            6 => Self::Reset,
            7 => Self::Version {
                inode: cursor.varint()?,
                number: cursor.varint()?,
                time: cursor.varint()?,
                mtime: get_time(cursor)?,
                root: Root::decode(cursor.bytes()?)?,
            },
            10 => Self::Policy {
                inode: cursor.varint()?,
                key: cursor.bytes()?.to_vec(),
                value: match cursor.u8()? {
                    0 => None,
                    1 => Some(cursor.bytes()?.to_vec()),
                    value => return Err(cursor.range("policy", value.into())),
                },
            },
            11 => Self::ResetEnd,
            12 => Self::Name {
                parent: cursor.varint()?,
                name: cursor.bytes()?.to_vec(),
                inode: Some(cursor.varint()?).filter(|&inode| inode != 0),
            },
            kind @ (13 | 14) => Self::Node {
                inode: cursor.varint()?,
                parent: cursor.varint()?,
                attributes: Attributes::decode(cursor)?,
                root: Root::decode(cursor.bytes()?)?,
                keep: kind == 14,
            },
            kind => return Err(cursor.range("record type", kind.into())),
        })
    }
}

/// Builds a block record by record.
#[derive(Debug, Default)]
pub struct BlockBuilder {
    records: u32,
    body: Vec<u8>,
}

impl BlockBuilder {
    /// Appends a record.
    pub fn push(&mut self, record: &Record) {
        record.encode(&mut self.body);
        self.records += 1;
    }

    /// Bytes of the block so far.
    pub fn len(&self) -> usize {
        32 + self.body.len()
    }

    /// True when nothing was pushed.
    pub fn is_empty(&self) -> bool {
        self.records == 0
    }

    /// The block's bytes; the builder is empty afterwards.
    pub fn finish(&mut self, sequence: u64, time: u64) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.len());
        out.extend_from_slice(b"OCAT");
        out.put_u16(VERSION);
        out.put_u16(0);
        out.put_u64(sequence);
        out.put_u64(time);
        out.put_u32(self.records);
        out.put_u32(0);
        out.append(&mut self.body);
        self.records = 0;
        out
    }
}

impl Block {
    /// Decodes a block that fills `bytes`.
    ///
    /// # Errors
    /// Any [`FormatError`].
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut cursor = Cursor::new(WHAT, bytes);
        if cursor.array::<4>()? != *b"OCAT" {
            return Err(FormatError::Magic { what: WHAT });
        }
        let version = cursor.u16()?;
        if version != VERSION {
            return Err(FormatError::Newer { what: WHAT, version: version.into(), features: 0 });
        }
        cursor.u16()?;
        let (sequence, time, count) = (cursor.u64()?, cursor.u64()?, cursor.u32()?);
        cursor.u32()?;
        let mut records = Vec::new();
        for _ in 0..count {
            records.push(Record::decode(&mut cursor)?);
        }
        if !cursor.is_empty() {
            return Err(cursor.range("trailing bytes", cursor.rest().len() as u64));
        }
        Ok(Self { sequence, time, records })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Entry, Fingerprint};

    fn attributes(kind: FileKind) -> Attributes {
        Attributes {
            kind,
            mode: 0o4755,
            uid: 1000,
            gid: u32::MAX,
            mtime: Time { secs: -5, nanos: 999_999_999 },
            rdev: if kind == FileKind::CharDevice { 0x501 } else { 0 },
            target: if kind == FileKind::Symlink { b"../\xff".to_vec() } else { Vec::new() },
            xattrs: vec![(b"user.a".to_vec(), vec![0, 1, 2])],
            times: (kind != FileKind::Directory).then_some(OtherTimes {
                atime: Time { secs: i64::MAX, nanos: 0 },
                ctime: Time { secs: -1, nanos: 999_999_999 },
            }),
        }
    }

    #[test]
    fn blocks_read_back() {
        let root = Root::Inline(vec![Entry::Chunk { fingerprint: Fingerprint([4; 32]), len: 9 }]);
        let mut records = vec![
            Record::Reset,
            Record::Unlink { parent: 1, name: b"a\nb".to_vec() },
            Record::Rename { parent: 1, name: b"x".to_vec(), new_parent: 300, new_name: b"y".to_vec() },
            Record::Snapshot { name: b"s".to_vec(), time: 1 << 60, tags: vec![b"t".to_vec()] },
            Record::Tags { name: b"s".to_vec(), tags: vec![b"t".to_vec(), b"u".to_vec()] },
            Record::Forget { name: b"s".to_vec() },
            Record::Version { inode: 5, number: 2, time: 3, mtime: Time::default(), root: root.clone() },
        ];
        for kind in [FileKind::File, FileKind::Directory, FileKind::Symlink, FileKind::CharDevice] {
            let (attributes, root) = (attributes(kind), root.clone());
            records.push(Record::Node {
                inode: 8,
                parent: 300,
                attributes: attributes.clone(),
                root: root.clone(),
                keep: kind == FileKind::File,
            });
            records.push(Record::Upsert {
                inode: 7,
                parent: 1,
                name: b"n\xfe".to_vec(),
                attributes,
                root,
                replace: kind == FileKind::File,
            });
        }
        for value in [None, Some(b"zstd:3".to_vec())] {
            records.push(Record::Policy { inode: 9, key: b"codec".to_vec(), value });
        }
        records.push(Record::ResetEnd);
        for inode in [None, Some(1), Some(u64::MAX)] {
            records.push(Record::Name { parent: 9, name: b"n\xfe".to_vec(), inode });
        }
        records.push(Record::Link { parent: 9, name: b"l".to_vec(), inode: 7 });
        let mut builder = BlockBuilder::default();
        records.iter().for_each(|record| builder.push(record));
        let bytes = builder.finish(42, 43);
        assert_eq!(Block::decode(&bytes), Ok(Block { sequence: 42, time: 43, records }));
        for cut in 0..bytes.len() {
            assert!(Block::decode(&bytes[..cut]).is_err(), "cut at {cut}");
        }
    }

    /// The byte map of docs/format.md.
    #[test]
    fn golden_bytes() {
        let attributes = Attributes {
            kind: FileKind::Symlink,
            mode: 0o777,
            uid: 1,
            gid: 2,
            mtime: Time { secs: -1, nanos: 2 },
            rdev: 0,
            target: b"to".to_vec(),
            xattrs: Vec::new(),
            times: Some(OtherTimes {
                atime: Time { secs: 3, nanos: 4 },
                ctime: Time { secs: 5, nanos: 128 },
            }),
        };
        let node = |keep| {
            let attributes = attributes.clone();
            Record::Node { inode: 300, parent: 1, attributes, root: Root::Empty, keep }
        };
        let name = |inode| Record::Name { parent: 1, name: b"ab".to_vec(), inode };
        let fields = b"\xac\x02\x01\x82\xff\x03\x01\x02\x01\x02\x02to\x00\x06\x04\x0a\x80\x01\x01\x00";
        for (record, golden) in [
            (name(Some(300)), b"\x0c\x01\x02ab\xac\x02".to_vec()),
            (name(None), b"\x0c\x01\x02ab\x00".to_vec()),
            (node(false), [b"\x0d", &fields[..]].concat()),
            (node(true), [b"\x0e", &fields[..]].concat()),
        ] {
            let mut bytes = Vec::new();
            record.encode(&mut bytes);
            assert_eq!(bytes, golden, "{record:?}");
        }
    }

    #[test]
    fn times_out_of_range_are_refused() {
        let mut bytes = Vec::new();
        attributes(FileKind::File).encode(&mut bytes);
        assert!(Attributes::decode(&mut Cursor::new(WHAT, &bytes)).is_ok());
        // The last varint is the nanoseconds of the last change, 999,999,999.
        bytes.truncate(bytes.len() - 5);
        bytes.put_varint(1_000_000_000);
        assert!(Attributes::decode(&mut Cursor::new(WHAT, &bytes)).is_err());
    }

    #[test]
    fn zigzag_turns_back() {
        for value in [0, 1, -1, i64::MAX, i64::MIN] {
            assert_eq!(unzigzag(zigzag(value)), value);
        }
    }
}
