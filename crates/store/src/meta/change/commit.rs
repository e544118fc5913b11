//! The meaning of each change. A commit's changes are applied in order, in the transaction that the
//! editor works in.

use outrigger_format::Root;
use outrigger_format::catalogue::{Attributes, FileKind};

use super::edit::{Arrival, Editor};
use super::exact;
use super::row::Stored;
use super::rows::Rows;
use crate::error::ErrorKind;
use crate::meta::fault::{Fault, Outcome, refuse};
use crate::meta::{Change, ROOT_INODE};

/// Names are at most this long, bytes.
const NAME_MAX: usize = 255;

/// Applies the changes of a commit.
pub(in crate::meta) fn apply_all<R: Rows>(editor: &mut Editor<R>, changes: &[Change]) -> Outcome<()> {
    if changes.iter().any(exact::is_exact) {
        return exact::apply(editor, changes);
    }
    changes.iter().try_for_each(|change| apply(editor, change))
}

fn apply<R: Rows>(editor: &mut Editor<R>, change: &Change) -> Outcome<()> {
    match change {
        Change::Put { parent, name, inode, attributes, root, stamp, replace } => {
            if name.is_empty() && (*parent, *inode) == (ROOT_INODE, ROOT_INODE) {
                return put_root(editor, attributes, root, *stamp);
            }
            check_name(name)?;
            let parent = editor.directory(*parent)?;
            let new = match editor.arrival(attributes, root, *stamp) {
                Ok(new) => new,
                Err(fault) => return Err(at(editor, parent, name, fault)),
            };
            put(editor, parent, name, *inode, &new, *replace)
        }
        Change::Link { parent, name, inode } => {
            check_name(name)?;
            let parent = editor.directory(*parent)?;
            link(editor, parent, name, *inode)
        }
        Change::Remove { parent, name, recursive } => {
            check_name(name)?;
            let found = match editor.directory(*parent) {
                Ok(parent) => editor.find(parent, name)?.map(|(since, old)| (parent, since, old)),
                Err(Fault::Store(error)) if error.kind() == ErrorKind::NotFound => None,
                Err(fault) => return Err(fault),
            };
            let (parent, since, old) = match found {
                Some(found) => found,
                // Somebody else has removed it, or what it was in.
                None if *recursive => return Ok(()),
                None => {
                    let parent = editor.directory(*parent)?;
                    return Err(told(editor, ErrorKind::NotFound, parent, name, "there is no such entry"));
                }
            };
            if old.is_directory() && !recursive && !editor.is_empty(old.number)? {
                return Err(told(editor, ErrorKind::Exists, parent, name, "the directory is not empty"));
            }
            editor.remove(parent, name, since, &old)
        }
        Change::Rename { parent, name, new_parent, new_name } => {
            check_name(name)?;
            check_name(new_name)?;
            let parent = editor.directory(*parent)?;
            let new_parent = editor.directory(*new_parent)?;
            rename(editor, (parent, name), (new_parent, new_name))
        }
        Change::IfName { parent, name, inode } => {
            check_name(name)?;
            let parent = editor.directory(*parent)?;
            expect(editor, parent, name, *inode)
        }
        Change::IfAttributes { inode, attributes } => like(editor, *inode, attributes),
        Change::CompareAndSwap { inode, parent, was, attributes, root, keep } => {
            let keeper = keep.then_some(*parent as i64);
            swap(editor, *inode, was, (attributes, root), keeper)
        }
        Change::Touch { inode, modified, time } => {
            let number = editor.resolve(*inode)?;
            editor.touch(number, *modified, *time)
        }
        Change::PinContent { inode, links, root } => {
            let number = editor.resolve(*inode)?;
            match editor.stored(number)? {
                Some(old)
                    if old.links == i64::from(*links)
                        && old.content.root == super::row::root_column(root) =>
                {
                    // The engine pins it, in this transaction.
                    Ok(())
                }
                _ => Err(refuse(ErrorKind::Changed, format!("another client has changed inode {inode}"))),
            }
        }
        Change::Name { .. } | Change::Node { .. } | Change::Orphan { .. } => Err(exact::mixed()),
        // No part of the tree: the engine has seen to it.
        Change::Job(_) | Change::InlineChunks(_) => Ok(()),
    }
}

/// Refuses an impossible name.
pub(in crate::meta) fn check_name(name: &[u8]) -> Outcome<()> {
    let bad = match name {
        b"" => "it is empty",
        b"." | b".." => "it is reserved",
        _ if name.len() > NAME_MAX => "it is longer than 255 bytes",
        _ if name.contains(&b'/') || name.contains(&0) => "it contains a slash or a zero byte",
        _ => return Ok(()),
    };
    Err(refuse(ErrorKind::Invalid, format!("`{}` cannot be a name: {bad}", name.escape_ascii())))
}

/// An error about an entry.
pub(super) fn told<R: Rows>(
    editor: &mut Editor<R>,
    kind: ErrorKind,
    parent: i64,
    name: &[u8],
    what: &str,
) -> Fault {
    refuse(kind, format!("{}: {what}", editor.path(parent, name)))
}

/// Puts the path of an entry before an error.
fn at<R: Rows>(editor: &mut Editor<R>, parent: i64, name: &[u8], fault: Fault) -> Fault {
    match fault {
        Fault::Store(error) => error.context(editor.path(parent, name)).into(),
        fault => fault,
    }
}

fn existing<R: Rows>(editor: &mut Editor<R>, parent: i64, name: &[u8]) -> Outcome<(i64, Stored<R::Traits>)> {
    match editor.find(parent, name)? {
        Some(found) => Ok(found),
        None => Err(told(editor, ErrorKind::NotFound, parent, name, "there is no such entry")),
    }
}

fn expect<R: Rows>(editor: &mut Editor<R>, parent: i64, name: &[u8], inode: Option<u64>) -> Outcome<()> {
    let found = editor.find(parent, name)?.map(|(_, old)| old.number as u64);
    if found == inode {
        return Ok(());
    }
    Err(told(editor, ErrorKind::Changed, parent, name, "another client has changed this name"))
}

fn like<R: Rows>(editor: &mut Editor<R>, inode: u64, attributes: &Attributes) -> Outcome<()> {
    let number = editor.resolve(inode)?;
    let expected = editor.arrival(attributes, &Root::Empty, 0)?;
    match editor.rows.glance(number)? {
        Some(old) if old.content.traits == expected.content.traits => Ok(()),
        _ => Err(refuse(ErrorKind::Changed, format!("another client has changed inode {inode}"))),
    }
}

fn swap<R: Rows>(
    editor: &mut Editor<R>,
    inode: u64,
    was: &(Attributes, Root),
    new: (&Attributes, &Root),
    keeper: Option<i64>,
) -> Outcome<()> {
    let number = editor.resolve(inode)?;
    let Some(old) = editor.stored(number)? else {
        return Err(refuse(ErrorKind::NotFound, format!("inode {inode} is gone")));
    };
    let was = editor.arrival(&was.0, &was.1, 0)?;
    let new = editor.arrival(new.0, new.1, 0)?;
    if old.content != was.content {
        return Err(refuse(ErrorKind::Changed, format!("another client has changed inode {inode}")));
    }
    if was.mode >> 12 != new.mode >> 12 {
        return Err(refuse(ErrorKind::Invalid, format!("inode {inode} cannot become something else")));
    }
    editor.done.changed += u64::from(editor.rewrite(&old, &new, 0, keeper)?);
    Ok(())
}

fn put_root<R: Rows>(
    editor: &mut Editor<R>,
    attributes: &Attributes,
    root: &Root,
    stamp: u64,
) -> Outcome<()> {
    let new = editor.arrival(attributes, root, stamp)?;
    let number = ROOT_INODE as i64;
    let old = editor.stored(number)?.filter(|_| attributes.kind == FileKind::Directory);
    let old = old.ok_or_else(|| refuse(ErrorKind::Invalid, "the root is a directory"))?;
    editor.done.changed += u64::from(editor.rewrite(&old, &new, 0, Some(number))?);
    Ok(())
}

fn put<R: Rows>(
    editor: &mut Editor<R>,
    parent: i64,
    name: &[u8],
    inode: u64,
    new: &Arrival<R::Traits>,
    replace: bool,
) -> Outcome<()> {
    let number = editor.resolve(inode)?;
    editor.require_domain(parent, name, &new.content.traits)?;
    // First as if the name were new, which costs one statement less than looking.
    if editor.enter(parent, name, number)? {
        editor.done.created += 1;
        return fill(editor, parent, name, number, new);
    }
    let (since, old) = existing(editor, parent, name)?;
    let is_directory = super::row::is_directory(new.mode);
    let other = old.number != number;
    let exchange = if old.is_directory() != is_directory {
        true
    } else if is_directory && other && replace {
        // A directory with another key comes in its place, with nothing in it.
        editor.rows.domain(&old.content.traits)? != editor.rows.domain(&new.content.traits)?
    } else if is_directory || !other {
        // A directory has one name, so a number that is in use elsewhere must not become an alias
        // of this one.
        if other && editor.stored(number)?.is_some() {
            return Err(told(editor, ErrorKind::Invalid, parent, name, "a directory cannot have two names"));
        }
        false
    } else {
        // A content of another domain is another file.
        replace
            || editor.stored(number)?.is_some()
            || editor.rows.domain(&old.content.traits)? != editor.rows.domain(&new.content.traits)?
    };
    if exchange {
        editor.remove(parent, name, since, &old)?;
        editor.enter(parent, name, number)?;
        editor.done.changed += 1;
        return fill(editor, parent, name, number, new);
    }
    if other {
        editor.done.aliases.insert(inode, old.number as u64);
    }
    editor.done.changed += u64::from(editor.rewrite(&old, new, 0, Some(parent))?);
    Ok(())
}

/// Gives a name that was just made its inode: a new one, or one more name of an old one.
fn fill<R: Rows>(
    editor: &mut Editor<R>,
    parent: i64,
    name: &[u8],
    number: i64,
    new: &Arrival<R::Traits>,
) -> Outcome<()> {
    if editor.make(number, parent, new)? {
        return Ok(());
    }
    let old = editor.stored(number)?;
    match old.filter(|old| !old.is_directory() && !super::row::is_directory(new.mode)) {
        Some(old) => editor.rewrite(&old, new, 1, Some(parent)).map(drop),
        None => Err(told(editor, ErrorKind::Invalid, parent, name, "a directory cannot have two names")),
    }
}

fn link<R: Rows>(editor: &mut Editor<R>, parent: i64, name: &[u8], inode: u64) -> Outcome<()> {
    let number = editor.resolve(inode)?;
    let Some(old) = editor.stored(number)? else {
        let what = format!("inode {inode} does not exist");
        return Err(told(editor, ErrorKind::NotFound, parent, name, &what));
    };
    if old.is_directory() {
        return Err(told(editor, ErrorKind::Invalid, parent, name, "a directory cannot have two names"));
    }
    editor.require_domain(parent, name, &old.content.traits)?;
    if !editor.enter(parent, name, number)? {
        return Err(told(editor, ErrorKind::Exists, parent, name, "the name exists already"));
    }
    editor.done.created += 1;
    editor.relink(&old, 1)
}

fn rename<R: Rows>(editor: &mut Editor<R>, from: (i64, &[u8]), to: (i64, &[u8])) -> Outcome<()> {
    let (since, moved) = existing(editor, from.0, from.1)?;
    if from == to {
        return Ok(());
    }
    editor.require_domain(to.0, to.1, &moved.content.traits)?;
    let is_directory = moved.is_directory();
    if is_directory && from.0 != to.0 && editor.is_within(to.0, moved.number)? {
        return Err(told(editor, ErrorKind::Invalid, from.0, from.1, "a directory cannot move into itself"));
    }
    if let Some((target_since, target)) = editor.find(to.0, to.1)? {
        if target.number == moved.number {
            // Two names of one file: POSIX leaves both.
            return Ok(());
        }
        let refusal = match (is_directory, target.is_directory()) {
            (false, true) => Some((ErrorKind::Invalid, "a file cannot replace a directory")),
            (true, false) => Some((ErrorKind::Invalid, "a directory cannot replace a file")),
            (true, true) if !editor.is_empty(target.number)? => {
                Some((ErrorKind::Exists, "the directory is not empty"))
            }
            _ => None,
        };
        if let Some((kind, what)) = refusal {
            return Err(told(editor, kind, to.0, to.1, what));
        }
        editor.remove(to.0, to.1, target_since, &target)?;
    }
    editor.drop_name(from.0, from.1, since)?;
    editor.enter(to.0, to.1, moved.number)?;
    if is_directory && from.0 != to.0 {
        editor.rows.move_directory(moved.number, to.0)?;
        editor.forget_policies();
    }
    editor.done.changed += 1;
    Ok(())
}
