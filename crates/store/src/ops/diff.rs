//! Compares two stored trees by their attributes and manifest roots; no data is read.

use std::cmp::Ordering;

use outrigger_format::catalogue::FileKind;

use crate::error::Error;
use crate::meta::{At, DirEntry, Inode, Meta};

/// How an entry differs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Difference {
    /// Only the second tree has it.
    Added,
    /// Only the first tree has it.
    Removed,
    /// It is of another kind.
    Kind,
    /// Its content differs (a file's roots, a symlink's target, a device's number).
    Content,
    /// Its mode, owner, time or extended attributes differ, and nothing else.
    Attributes,
}

/// A place in one of the trees.
#[derive(Clone, Copy)]
pub struct Side<'a> {
    /// Which tree.
    pub at: At,
    /// What in it.
    pub inode: &'a Inode,
}

/// Told of each difference: the path below both sides (empty for themselves), and the entry of each side that has it.
pub type Visit<'v, E> = dyn FnMut(&[u8], Difference, Option<&Inode>, Option<&Inode>) -> Result<(), E> + 'v;

/// Calls `visit` with each difference, in bytewise order of names; for a directory that only one side has, with everything below it too.
///
/// # Errors
/// Those of `visit` and of the database.
pub fn diff<E: From<Error>>(
    meta: &dyn Meta,
    a: Side<'_>,
    b: Side<'_>,
    visit: &mut Visit<'_, E>,
) -> Result<(), E> {
    let mut path = Vec::new();
    both(meta, &mut path, a, b, 0, visit)
}

const DEPTH_MAX: usize = 4096;

fn both<E: From<Error>>(
    meta: &dyn Meta,
    path: &mut Vec<u8>,
    a: Side<'_>,
    b: Side<'_>,
    depth: usize,
    visit: &mut Visit<'_, E>,
) -> Result<(), E> {
    let (old, new) = (&a.inode.attributes, &b.inode.attributes);
    if depth > DEPTH_MAX {
        return Err(Error::damaged("the stored tree is nested too deeply to be real").into());
    }
    if old.kind != new.kind {
        return visit(path, Difference::Kind, Some(a.inode), Some(b.inode));
    }
    let same_content = a.inode.root == b.inode.root && old.target == new.target && old.rdev == new.rdev;
    if !same_content {
        visit(path, Difference::Content, Some(a.inode), Some(b.inode))?;
    } else if old != new {
        visit(path, Difference::Attributes, Some(a.inode), Some(b.inode))?;
    }
    // The same directory of the same tree cannot differ below.
    if old.kind != FileKind::Directory || (a.at == b.at && a.inode.number == b.inode.number) {
        return Ok(());
    }
    let mut left = meta.read_dir(a.at, a.inode.number, None, usize::MAX)?.into_iter().peekable();
    let mut right = meta.read_dir(b.at, b.inode.number, None, usize::MAX)?.into_iter().peekable();
    loop {
        let order = match (left.peek(), right.peek()) {
            (None, None) => return Ok(()),
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (Some(x), Some(y)) => x.name.cmp(&y.name),
        };
        match (
            order,
            if order.is_le() { left.next() } else { None },
            if order.is_ge() { right.next() } else { None },
        ) {
            (Ordering::Less, Some(x), _) => one(meta, path, a.at, &x, Difference::Removed, visit)?,
            (Ordering::Greater, _, Some(y)) => one(meta, path, b.at, &y, Difference::Added, visit)?,
            (_, Some(x), Some(y)) => {
                let len = push(path, &x.name);
                let (x, y) = (Side { at: a.at, inode: &x.inode }, Side { at: b.at, inode: &y.inode });
                both(meta, path, x, y, depth + 1, visit)?;
                path.truncate(len);
            }
            _ => return Ok(()),
        }
    }
}

/// An entry, and all below it, that only one side has.
fn one<E: From<Error>>(
    meta: &dyn Meta,
    path: &mut Vec<u8>,
    at: At,
    entry: &DirEntry,
    which: Difference,
    visit: &mut Visit<'_, E>,
) -> Result<(), E> {
    let len = push(path, &entry.name);
    let mut tell = |path: &[u8], inode: &Inode| match which {
        Difference::Removed => visit(path, which, Some(inode), None),
        _ => visit(path, which, None, Some(inode)),
    };
    tell(path, &entry.inode)?;
    if entry.inode.attributes.kind == FileKind::Directory {
        let mut below = path.clone();
        below.push(b'/');
        let prefix = below.len();
        super::listing::walk(meta, at, entry.inode.number, true, &mut |path, entry| {
            below.truncate(prefix);
            below.extend_from_slice(path);
            tell(&below, &entry.inode)
        })?;
    }
    path.truncate(len);
    Ok(())
}

/// Appends a name; returns the length to truncate to afterwards.
fn push(path: &mut Vec<u8>, name: &[u8]) -> usize {
    let len = path.len();
    if len > 0 {
        path.push(b'/');
    }
    path.extend_from_slice(name);
    len
}
