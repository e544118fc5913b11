//! A file's attributes, apart from its name and content: kind, mode, owner, times and extended
//! attributes.
//!
//! Numbers are varints, seconds in zigzag form. `docs/format.md` has the byte map.

use super::WHAT;
use crate::{Cursor, Domain, FormatError, Put};

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

    /// Its name in JSON and in Python.
    pub fn name(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Directory => "directory",
            Self::Symlink => "symlink",
            Self::Fifo => "fifo",
            Self::Socket => "socket",
            Self::CharDevice => "char_device",
            Self::BlockDevice => "block_device",
        }
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

/// The extended attribute with the [`Domain`] of an inode, 8 bytes. No user sees or sets it: it belongs
/// to none of the kernel's namespaces.
pub const DOMAIN_XATTR: &[u8] = b"outrigger.domain";

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

fn zigzag(value: i64) -> u64 {
    (value << 1 ^ value >> 63) as u64
}

fn unzigzag(value: u64) -> i64 {
    (value >> 1) as i64 ^ -((value & 1) as i64)
}

pub(super) fn put_time(out: &mut Vec<u8>, time: Time) {
    out.put_varint(zigzag(time.secs));
    out.put_varint(time.nanos.into());
}

pub(super) fn get_time(cursor: &mut Cursor<'_>) -> Result<Time, FormatError> {
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

/// The domain in the extended attributes of an inode.
pub fn domain_in(xattrs: &Xattrs) -> Domain {
    let value = xattrs.iter().find(|(name, _)| name == DOMAIN_XATTR);
    // Anything else than eight bytes is a domain whose key nobody has.
    let number = |value: &Vec<u8>| value.as_slice().try_into().map_or(u64::MAX, u64::from_le_bytes);
    value.map_or(Domain::COMMON, |(_, value)| Domain(number(value)))
}

impl Attributes {
    /// The domain that the inode was made in, and stays in.
    pub fn domain(&self) -> Domain {
        domain_in(&self.xattrs)
    }

    /// The same attributes in a domain.
    #[must_use]
    pub fn in_domain(mut self, domain: Domain) -> Self {
        self.xattrs.retain(|(name, _)| name != DOMAIN_XATTR);
        if domain != Domain::COMMON {
            let at = self.xattrs.partition_point(|(name, _)| name.as_slice() < DOMAIN_XATTR);
            self.xattrs.insert(at, (DOMAIN_XATTR.to_vec(), domain.0.to_le_bytes().to_vec()));
        }
        self
    }

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

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::catalogue) fn attributes(kind: FileKind) -> Attributes {
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
