//! Compares two stored trees by their attributes and manifest roots; no data is read.

use std::cmp::Ordering;

use outrigger_format::catalogue::FileKind;

use crate::error::Error;
use crate::meta::{At, DirEntry, Inode, Meta};
use crate::tree::listing::{Ancestors, walk};

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

/// Told of each difference: the path below both sides (empty for themselves), and the entry of each
/// side that has it.
pub type Visit<'v, E> = dyn FnMut(&[u8], Difference, Option<&Inode>, Option<&Inode>) -> Result<(), E> + 'v;

/// Calls `visit` with each difference, in bytewise order of names; for a directory that only one
/// side has, with everything below it too.
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
    both(meta, &mut path, a, b, visit)
}

/// A pair of directories being compared: the rest of their names, and the length of the path to
/// them.
struct Pair {
    directories: (u64, u64),
    names: (Names, Names),
    prefix: usize,
}

type Names = std::iter::Peekable<std::vec::IntoIter<DirEntry>>;

/// Trees may be deeper than a thread's stack: pairs wait on a stack of their own.
fn both<E: From<Error>>(
    meta: &dyn Meta,
    path: &mut Vec<u8>,
    a: Side<'_>,
    b: Side<'_>,
    visit: &mut Visit<'_, E>,
) -> Result<(), E> {
    let open = |prefix: usize, old: &Inode, new: &Inode| -> Result<Pair, E> {
        let names = |at, inode: &Inode| -> Result<Names, E> {
            Ok(meta.read_dir(at, inode.number, None, usize::MAX)?.into_iter().peekable())
        };
        let names = (names(a.at, old)?, names(b.at, new)?);
        Ok(Pair { directories: (old.number, new.number), names, prefix })
    };
    if !itself(path, a, b, visit)? {
        return Ok(());
    }
    let mut above = (Ancestors::new(a.inode.number), Ancestors::new(b.inode.number));
    let mut pairs = vec![open(path.len(), a.inode, b.inode)?];
    while let Some(Pair { directories, names: (left, right), prefix }) = pairs.last_mut() {
        path.truncate(*prefix);
        let order = match (left.peek(), right.peek()) {
            (None, None) => {
                above.0.leave(directories.0);
                above.1.leave(directories.1);
                pairs.pop();
                continue;
            }
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
                push(path, &x.name);
                let sides = (Side { at: a.at, inode: &x.inode }, Side { at: b.at, inode: &y.inode });
                if itself(path, sides.0, sides.1, visit)? {
                    above.0.enter(x.inode.number)?;
                    above.1.enter(y.inode.number)?;
                    pairs.push(open(path.len(), &x.inode, &y.inode)?);
                }
            }
            _ => {}
        }
    }
    Ok(())
}

/// Compares an entry that both sides have; true when both are directories that may differ below.
fn itself<E: From<Error>>(
    path: &[u8],
    a: Side<'_>,
    b: Side<'_>,
    visit: &mut Visit<'_, E>,
) -> Result<bool, E> {
    let (old, new) = (&a.inode.attributes, &b.inode.attributes);
    if old.kind != new.kind {
        visit(path, Difference::Kind, Some(a.inode), Some(b.inode))?;
        return Ok(false);
    }
    let same_content = a.inode.root == b.inode.root && old.target == new.target && old.rdev == new.rdev;
    if !same_content {
        visit(path, Difference::Content, Some(a.inode), Some(b.inode))?;
    } else if old != new {
        visit(path, Difference::Attributes, Some(a.inode), Some(b.inode))?;
    }
    // The same directory of the same tree cannot differ below.
    Ok(old.kind == FileKind::Directory && (a.at != b.at || a.inode.number != b.inode.number))
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
        walk(meta, at, entry.inode.number, true, &mut |path, entry| {
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
