//! Inodes as rows: what is in which column, and back. Everything read here is checked: a database is untrusted input.

use outrigger_format::catalogue::{Attributes, FileKind, OtherTimes, Time, decode_xattrs, encode_xattrs};
use outrigger_format::{Cursor, FormatError, Root, checksum};
use rusqlite::Row;
use rusqlite::types::{FromSqlError, ToSqlOutput, Type, Value, ValueRef};

use super::fault::{Outcome, refuse};
use super::{sums, times};
use crate::error::ErrorKind;
use crate::meta::Inode;

/// How many columns [`inode`] takes.
pub(super) const INODE_COLUMNS: usize = 13;

/// Columns of an inode for [`inode`], from `i` and `t` (`traits`); which checksum of `sums.rs` says which table `i` is.
macro_rules! inode_columns {
    ($intact:ident) => {
        concat!(
            "i.number, i.links, i.mtime_secs, i.mtime_nanos, i.stamp, i.special, i.root, \
             t.mode, t.uid, t.gid, t.xattrs, i.times, ",
            $crate::meta::sqlite::sums::$intact!(),
            " AND ",
            $crate::meta::sqlite::sums::traits_intact!()
        )
    };
}
pub(super) use inode_columns;

/// Mode column, owner and group of a new store's root directory: it belongs to whoever makes the store, who could not work in a mount of
/// it otherwise.
pub(super) fn root_attributes() -> (i64, i64, i64) {
    let (owner, group) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    (mode_column(FileKind::Directory, 0o755), owner.into(), group.into())
}

/// `kind << 12 | permission bits`.
pub(super) const fn mode_column(kind: FileKind, mode: u32) -> i64 {
    ((kind as i64) << 12) | mode as i64
}

/// The kind in a mode column.
pub(super) fn kind_of(mode: i64) -> Result<FileKind, FormatError> {
    FileKind::from_byte(u8::try_from(mode >> 12).unwrap_or(u8::MAX))
}

/// True for a directory's mode column.
pub(super) fn is_directory(mode: i64) -> bool {
    mode >> 12 == FileKind::Directory as i64
}

/// True for a regular file's mode column.
pub(super) fn is_file(mode: i64) -> bool {
    mode >> 12 == FileKind::File as i64
}

/// Finds a row of `traits`.
pub(super) fn traits_digest(mode: i64, uid: i64, gid: i64, xattrs: &Option<Vec<u8>>) -> i64 {
    let numbers = [mode, uid, gid].map(i64::to_le_bytes).concat();
    checksum(&[&numbers, xattrs.as_deref().unwrap_or_default()]) as i64
}

/// A value that cannot be what we wrote, in column `column`.
fn damaged(column: usize, error: impl std::error::Error + Send + Sync + 'static) -> rusqlite::Error {
    rusqlite::Error::FromSqlConversionFailure(column, Type::Blob, Box::new(error))
}

/// A root column.
pub(super) fn root(value: ValueRef<'_>, column: usize) -> rusqlite::Result<Root> {
    match value.as_blob_or_null() {
        Ok(None) => Ok(Root::Empty),
        Ok(Some(bytes)) => Root::decode(bytes).map_err(|error| damaged(column, error)),
        Err(error) => Err(damaged(column, error)),
    }
}

/// A column of times.
fn times(value: ValueRef<'_>, mtime: Time, column: usize) -> rusqlite::Result<Option<OtherTimes>> {
    match value.as_blob_or_null() {
        Ok(None) => Ok(None),
        Ok(Some(bytes)) => times::decode(bytes, mtime).map(Some).map_err(|error| damaged(column, error)),
        Err(error) => Err(damaged(column, error)),
    }
}

/// What a root is kept as.
pub(super) fn root_column(root: &Root) -> Option<Vec<u8>> {
    (*root != Root::Empty).then(|| root.encode())
}

/// Decodes the inode in columns `first..` of a row, selected as [`inode_columns`].
pub(super) fn inode(row: &Row<'_>, first: usize) -> rusqlite::Result<Inode> {
    sums::require(row, first + 12)?;
    let mode: i64 = row.get(first + 7)?;
    let kind = kind_of(mode).map_err(|error| damaged(first + 7, error))?;
    let nanos: u32 = row.get(first + 3)?;
    if nanos >= 1_000_000_000 {
        return Err(damaged(first + 3, FromSqlError::OutOfRange(nanos.into())));
    }
    let mtime = Time { secs: row.get(first + 2)?, nanos };
    let (mut rdev, mut target) = (0, Vec::new());
    match (kind, row.get_ref(first + 5)?) {
        (FileKind::Symlink, ValueRef::Blob(bytes)) => target = bytes.to_vec(),
        (FileKind::CharDevice | FileKind::BlockDevice, ValueRef::Integer(number)) => rdev = number as u64,
        (FileKind::Symlink | FileKind::CharDevice | FileKind::BlockDevice, _) => {
            return Err(damaged(first + 5, FromSqlError::InvalidType));
        }
        _ => {}
    }
    let xattrs =
        match row.get_ref(first + 10)?.as_blob_or_null().map_err(|error| damaged(first + 10, error))? {
            None => Vec::new(),
            Some(bytes) => decode_xattrs(&mut Cursor::new("extended attributes", bytes))
                .map_err(|error| damaged(first + 10, error))?,
        };
    Ok(Inode {
        number: row.get::<_, i64>(first)? as u64,
        links: row.get(first + 1)?,
        stamp: row.get::<_, i64>(first + 4)? as u64,
        root: root(row.get_ref(first + 6)?, first + 6)?,
        attributes: Attributes {
            kind,
            mode: (mode & 0o7777) as u32,
            uid: row.get(first + 8)?,
            gid: row.get(first + 9)?,
            mtime,
            rdev,
            target,
            xattrs,
            times: times(row.get_ref(first + 11)?, mtime, first + 11)?,
        },
    })
}

/// A row of `inode` joined with its mode, as the editor compares and changes it.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Stored {
    pub number: i64,
    pub epoch: i64,
    pub links: i64,
    pub version: i64,
    pub time: i64,
    pub stamp: i64,
    pub mode: i64,
    pub content: Content,
}

/// The columns that a put sets.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Content {
    pub traits: i64,
    pub mtime: Time,
    pub special: Special,
    pub root: Option<Vec<u8>>,
    /// As [`times::encode`] puts them, so relative to `mtime`.
    pub times: Option<Vec<u8>>,
}

/// The column `special`.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Special {
    None,
    Target(Vec<u8>),
    Device(i64),
}

/// How many columns [`Stored::read`] takes.
pub(super) const STORED_COLUMNS: usize = 14;

/// Columns for [`Stored::read`].
macro_rules! stored_columns {
    () => {
        concat!(
            "i.number, i.epoch, i.links, i.version, i.time, i.stamp, t.mode, \
                 i.traits, i.mtime_secs, i.mtime_nanos, i.special, i.root, i.times, ",
            $crate::meta::sqlite::sums::inode_intact!(),
            " AND ",
            $crate::meta::sqlite::sums::traits_intact!()
        )
    };
}
pub(super) use stored_columns;

impl Stored {
    /// Reads columns `first..`, selected as [`stored_columns`].
    pub fn read(row: &Row<'_>, first: usize) -> rusqlite::Result<Self> {
        sums::require(row, first + 13)?;
        Ok(Self {
            number: row.get(first)?,
            epoch: row.get(first + 1)?,
            links: row.get(first + 2)?,
            version: row.get(first + 3)?,
            time: row.get(first + 4)?,
            stamp: row.get(first + 5)?,
            mode: row.get(first + 6)?,
            content: Content {
                traits: row.get(first + 7)?,
                mtime: Time { secs: row.get(first + 8)?, nanos: row.get(first + 9)? },
                special: match row.get_ref(first + 10)? {
                    ValueRef::Null => Special::None,
                    ValueRef::Blob(target) => Special::Target(target.to_vec()),
                    ValueRef::Integer(device) => Special::Device(device),
                    _ => return Err(damaged(first + 10, FromSqlError::InvalidType)),
                },
                root: row.get(first + 11)?,
                times: row.get(first + 12)?,
            },
        })
    }

    pub fn is_directory(&self) -> bool {
        is_directory(self.mode)
    }
}

impl rusqlite::ToSql for Special {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(match self {
            Self::None => ToSqlOutput::Owned(Value::Null),
            Self::Target(target) => ToSqlOutput::Borrowed(ValueRef::Blob(target)),
            Self::Device(device) => ToSqlOutput::Owned(Value::Integer(*device)),
        })
    }
}

/// Attributes that can be kept: the mode column, `special`, and the encoded extended attributes.
pub(super) fn columns(attributes: &Attributes, root: &Root) -> Outcome<(i64, Special, Option<Vec<u8>>)> {
    let refused = |what: &str| refuse(ErrorKind::Invalid, what);
    if attributes.mode > 0o7777 {
        return Err(refused("permission bits beyond 0o7777"));
    }
    let other = attributes.times.unwrap_or_default();
    if [attributes.mtime, other.atime, other.ctime].iter().any(|time| time.nanos >= 1_000_000_000) {
        return Err(refused("a time with 10^9 nanoseconds or more"));
    }
    if attributes.kind != FileKind::File && *root != Root::Empty {
        return Err(refused("content of something that is not a file"));
    }
    let special = match attributes.kind {
        FileKind::Symlink => Special::Target(attributes.target.clone()),
        FileKind::CharDevice | FileKind::BlockDevice => Special::Device(attributes.rdev as i64),
        _ => Special::None,
    };
    let xattrs = (!attributes.xattrs.is_empty()).then(|| {
        let mut bytes = Vec::new();
        encode_xattrs(&attributes.xattrs, &mut bytes);
        bytes
    });
    Ok((mode_column(attributes.kind, attributes.mode), special, xattrs))
}

/// Length of a file whose root column is `root`.
pub(super) fn length(root: &Option<Vec<u8>>) -> Outcome<u64> {
    match root {
        None => Ok(0),
        Some(bytes) => Root::decode(bytes)
            .map(|root| root.len())
            .map_err(|error| refuse(ErrorKind::Damaged, format!("a manifest root: {error}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mode_columns_read_back() {
        for kind in [FileKind::File, FileKind::Directory, FileKind::BlockDevice] {
            let column = mode_column(kind, 0o7755);
            assert_eq!((kind_of(column).unwrap(), column & 0o7777), (kind, 0o7755));
            assert_eq!(is_directory(column), kind == FileKind::Directory);
        }
        assert!(kind_of(7 << 12).is_err());
        assert!(kind_of(-1).is_err());
    }
}
