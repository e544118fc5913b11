//! Inodes as rows: which value is in which column, and back. Everything read here is checked: a
//! database is untrusted input.

use outrigger_format::catalogue::{Attributes, FileKind, OtherTimes, Time, decode_xattrs};
use outrigger_format::{Cursor, Root, checksum};
use rusqlite::Row;
use rusqlite::types::{FromSqlError, ToSqlOutput, Type, Value, ValueRef};

use super::sums;
use crate::meta::Inode;
use crate::meta::change::row::{Content, Special, kind_of};
use crate::meta::change::{self, times};

/// How many columns [`inode`] takes.
pub(super) const INODE_COLUMNS: usize = 13;

/// Columns of an inode for [`inode`], from `i` and `t` (`traits`); the checksum of `sums.rs` shows
/// which table `i` is.
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

/// Finds a row of `traits`.
pub(super) fn traits_digest(mode: i64, uid: i64, gid: i64, xattrs: &Option<Vec<u8>>) -> i64 {
    let numbers = [mode, uid, gid].map(i64::to_le_bytes).concat();
    checksum(&[&numbers, xattrs.as_deref().unwrap_or_default()]) as i64
}

pub(super) use crate::meta::change::row::root_column;

/// An impossible value in column `column`.
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
pub(super) type Stored = change::row::Stored<i64>;

/// How many columns [`read_stored`] takes.
pub(super) const STORED_COLUMNS: usize = 14;

/// Columns for [`read_stored`].
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

/// Reads columns `first..`, selected as [`stored_columns`].
pub(super) fn read_stored(row: &Row<'_>, first: usize) -> rusqlite::Result<Stored> {
    sums::require(row, first + 13)?;
    Ok(Stored {
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

impl rusqlite::ToSql for Special {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(match self {
            Self::None => ToSqlOutput::Owned(Value::Null),
            Self::Target(target) => ToSqlOutput::Borrowed(ValueRef::Blob(target)),
            Self::Device(device) => ToSqlOutput::Owned(Value::Integer(*device)),
        })
    }
}
