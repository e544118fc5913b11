//! One commit: the session is live, its packs become live, the changes are applied in order; or nothing of it.

use outrigger_format::Root;
use outrigger_format::catalogue::{Attributes, FileKind};
use rusqlite::Connection;

use super::edit::{Arrival, Editor};
use super::fault::{Outcome, refuse};
use super::row::Stored;
use super::state::counter;
use super::{exact, jobs, packs, sessions};
use crate::error::ErrorKind;
use crate::meta::{Change, Commit, Committed, ROOT_INODE, SessionId, SessionKind};

/// Names are at most this long, bytes.
const NAME_MAX: usize = 255;

/// Applies `commit` in the transaction that `connection` is in.
pub(super) fn commit(
    connection: &Connection,
    now: u64,
    session: SessionId,
    commit: &Commit,
) -> Outcome<Committed> {
    if sessions::require_live(connection, now, session)? == SessionKind::Reader {
        return Err(refuse(ErrorKind::Invalid, format!("session {} only reads", session.0)));
    }
    packs::make_live(connection, session, &commit.packs)?;
    if commit.changes.is_empty() {
        return Ok(Committed {
            generation: counter(connection, "generation")? as u64,
            ..Committed::default()
        });
    }
    let mut editor = Editor::new(connection, commit.time)?;
    if commit.changes.iter().any(exact::is_exact) {
        exact::apply(&mut editor, &commit.changes)?;
    } else {
        for change in &commit.changes {
            match change {
                Change::Job(change) => jobs::apply(connection, now, session, change)?,
                change => apply(&mut editor, change)?,
            }
        }
    }
    editor.finish()
}

fn apply(editor: &mut Editor<'_>, change: &Change) -> Outcome<()> {
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
            let parent = editor.directory(*parent)?;
            let (since, old) = existing(editor, parent, name)?;
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
        Change::Name { .. } | Change::Node { .. } | Change::Orphan { .. } | Change::Job(_) => {
            Err(exact::mixed())
        }
    }
}

/// Refuses what cannot be a name.
pub(super) fn check_name(name: &[u8]) -> Outcome<()> {
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
pub(super) fn told(
    editor: &mut Editor<'_>,
    kind: ErrorKind,
    parent: i64,
    name: &[u8],
    what: &str,
) -> super::fault::Fault {
    refuse(kind, format!("{}: {what}", editor.path(parent, name)))
}

/// Puts the path of an entry before an error.
fn at(editor: &mut Editor<'_>, parent: i64, name: &[u8], fault: super::fault::Fault) -> super::fault::Fault {
    match fault {
        super::fault::Fault::Store(error) => error.context(editor.path(parent, name)).into(),
        fault => fault,
    }
}

fn existing(editor: &mut Editor<'_>, parent: i64, name: &[u8]) -> Outcome<(i64, Stored)> {
    match editor.find(parent, name)? {
        Some(found) => Ok(found),
        None => Err(told(editor, ErrorKind::NotFound, parent, name, "there is no such entry")),
    }
}

fn put_root(editor: &mut Editor<'_>, attributes: &Attributes, root: &Root, stamp: u64) -> Outcome<()> {
    let new = editor.arrival(attributes, root, stamp)?;
    let number = ROOT_INODE as i64;
    let old = editor.stored(number)?.filter(|_| attributes.kind == FileKind::Directory);
    let old = old.ok_or_else(|| refuse(ErrorKind::Invalid, "the root is a directory"))?;
    editor.done.changed += u64::from(editor.rewrite(&old, &new, 0, Some(number))?);
    Ok(())
}

fn put(
    editor: &mut Editor<'_>,
    parent: i64,
    name: &[u8],
    inode: u64,
    new: &Arrival,
    replace: bool,
) -> Outcome<()> {
    let number = editor.resolve(inode)?;
    // First as if the name were new, which costs one statement less than looking.
    if editor.sql.insert_dentry.execute((parent, name, number, editor.epoch))? == 1 {
        editor.done.created += 1;
        return fill(editor, parent, name, number, new);
    }
    let (since, old) = existing(editor, parent, name)?;
    let is_directory = super::row::is_directory(new.mode);
    let other = old.number != number;
    let exchange = if old.is_directory() != is_directory {
        true
    } else if is_directory || !other {
        // A directory has one name, so a number that is in use elsewhere must not become an alias of this one.
        if other && editor.stored(number)?.is_some() {
            return Err(told(editor, ErrorKind::Invalid, parent, name, "a directory cannot have two names"));
        }
        false
    } else {
        replace || editor.stored(number)?.is_some()
    };
    if exchange {
        editor.remove(parent, name, since, &old)?;
        editor.sql.insert_dentry.execute((parent, name, number, editor.epoch))?;
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
fn fill(editor: &mut Editor<'_>, parent: i64, name: &[u8], number: i64, new: &Arrival) -> Outcome<()> {
    if editor.make(number, parent, new)? {
        return Ok(());
    }
    let old = editor.stored(number)?;
    match old.filter(|old| !old.is_directory() && !super::row::is_directory(new.mode)) {
        Some(old) => editor.rewrite(&old, new, 1, Some(parent)).map(drop),
        None => Err(told(editor, ErrorKind::Invalid, parent, name, "a directory cannot have two names")),
    }
}

fn link(editor: &mut Editor<'_>, parent: i64, name: &[u8], inode: u64) -> Outcome<()> {
    let number = editor.resolve(inode)?;
    let Some(old) = editor.stored(number)? else {
        let what = format!("inode {inode} does not exist");
        return Err(told(editor, ErrorKind::NotFound, parent, name, &what));
    };
    if old.is_directory() {
        return Err(told(editor, ErrorKind::Invalid, parent, name, "a directory cannot have two names"));
    }
    if editor.sql.insert_dentry.execute((parent, name, number, editor.epoch))? == 0 {
        return Err(told(editor, ErrorKind::Exists, parent, name, "the name exists already"));
    }
    editor.done.created += 1;
    editor.relink(&old, 1)
}

fn rename(editor: &mut Editor<'_>, from: (i64, &[u8]), to: (i64, &[u8])) -> Outcome<()> {
    let (since, moved) = existing(editor, from.0, from.1)?;
    if from == to {
        return Ok(());
    }
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
    editor.sql.insert_dentry.execute((to.0, to.1, moved.number, editor.epoch))?;
    if is_directory && from.0 != to.0 {
        editor.sql.move_directory.execute((moved.number, to.0))?;
        editor.forget_policies();
    }
    editor.done.changed += 1;
    Ok(())
}
