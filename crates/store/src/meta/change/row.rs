//! The contents of an inode's row, for every engine.

use outrigger_format::catalogue::{Attributes, FileKind, Time, decode_xattrs, domain_in, encode_xattrs};
use outrigger_format::{Cursor, Domain, FormatError, Root};

use crate::error::ErrorKind;
use crate::meta::fault::{Outcome, refuse};

/// Permissions with the kind, owner, group, encoded extended attributes.
pub(in crate::meta) type TraitsKey = (i64, i64, i64, Option<Vec<u8>>);

/// Mode column, owner and group of a new store's root directory. It belongs to the user who makes
/// the store, who could not work in a mount of it otherwise.
pub(in crate::meta) fn root_attributes() -> (i64, i64, i64) {
    let (owner, group) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    (mode_column(FileKind::Directory, 0o755), owner.into(), group.into())
}

/// `kind << 12 | permission bits`.
pub(in crate::meta) const fn mode_column(kind: FileKind, mode: u32) -> i64 {
    ((kind as i64) << 12) | mode as i64
}

/// The kind in a mode column.
pub(in crate::meta) fn kind_of(mode: i64) -> Result<FileKind, FormatError> {
    FileKind::from_byte(u8::try_from(mode >> 12).unwrap_or(u8::MAX))
}

/// True for a directory's mode column.
pub(in crate::meta) fn is_directory(mode: i64) -> bool {
    mode >> 12 == FileKind::Directory as i64
}

/// True for a regular file's mode column.
pub(in crate::meta) fn is_file(mode: i64) -> bool {
    mode >> 12 == FileKind::File as i64
}

/// The domain in an encoded list of extended attributes.
pub(in crate::meta) fn domain_of(xattrs: Option<&[u8]>) -> Outcome<Domain> {
    let Some(bytes) = xattrs else { return Ok(Domain::COMMON) };
    let wrong = |error| refuse(ErrorKind::Damaged, format!("extended attributes: {error}"));
    decode_xattrs(&mut Cursor::new("extended attributes", bytes))
        .map(|xattrs| domain_in(&xattrs))
        .map_err(wrong)
}

/// The column value of a root.
pub(in crate::meta) fn root_column(root: &Root) -> Option<Vec<u8>> {
    (*root != Root::Empty).then(|| root.encode())
}

/// An inode as the editor compares and changes it; `T` is the engine's stand-in for the traits.
#[derive(Clone, PartialEq, Debug)]
pub(in crate::meta) struct Stored<T> {
    pub number: i64,
    /// The row is valid from this epoch on.
    pub epoch: i64,
    /// Names it has; 1 for a directory.
    pub links: i64,
    /// Number of its present content, from 1.
    pub version: i64,
    /// When its content was committed.
    pub time: i64,
    pub stamp: i64,
    /// Kind and permissions; part of the traits, too.
    pub mode: i64,
    pub content: Content<T>,
}

/// The columns that a put sets.
#[derive(Clone, PartialEq, Debug)]
pub(in crate::meta) struct Content<T> {
    pub traits: T,
    pub mtime: Time,
    pub special: Special,
    pub root: Option<Vec<u8>>,
    /// As `times.rs` encodes them, so relative to `mtime`.
    pub times: Option<Vec<u8>>,
}

/// The properties of special files.
#[derive(Clone, PartialEq, Debug)]
pub(in crate::meta) enum Special {
    None,
    /// Of a symlink.
    Target(Vec<u8>),
    /// Of a device.
    Device(i64),
}

impl<T> Stored<T> {
    pub fn is_directory(&self) -> bool {
        is_directory(self.mode)
    }
}

/// Attributes that can be kept: the mode column, `special`, and the encoded extended attributes.
pub(in crate::meta) fn columns(
    attributes: &Attributes,
    root: &Root,
) -> Outcome<(i64, Special, Option<Vec<u8>>)> {
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
pub(in crate::meta) fn length(root: &Option<Vec<u8>>) -> Outcome<u64> {
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
