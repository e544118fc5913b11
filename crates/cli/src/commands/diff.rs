//! `diff`: compares two trees by the manifest roots of their files.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use clap::Args;
use outrigger_format::catalogue::FileKind;
use outrigger_store::Store;
use outrigger_store::meta::Inode;
use outrigger_store::ops::View;
use outrigger_store::ops::diff::{Difference, Side, diff};
use outrigger_store::tree::{StorePath, find};

use super::Context;
use crate::args;
use crate::exit::{Exit, Failure, Outcome};
use crate::json::Object;
use crate::output::{JsonList, Out};
use crate::when;

const EXAMPLES: &str = "\
Examples:
  outrigger diff nightly: ''                  the whole tree: then and now
  outrigger diff nightly:src src              one directory: then and now
  outrigger diff 2026-05-01:src 2026-06-01:src
  outrigger diff src src.before               two directories as they are now

Each side is PATH (as it is now) or WHEN:PATH. WHEN is a value of --at; an empty PATH is the root.
Put a colon before a path that contains one: `:a:b`.

Letters: A added, R removed, C content changed, M only attributes changed (mode, owner, time),
T another kind of file.";

/// Show what differs between two trees
///
/// Contents are compared by their manifest roots, so no data is read. Equal contents that were cut
/// by different chunkers count as changed.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct DiffArgs {
    /// The first side, `[WHEN:]PATH`
    a: OsString,
    /// The second side, `[WHEN:]PATH`
    b: OsString,
}

/// A side, looked up.
struct Found {
    view: View,
    inode: Inode,
}

pub fn run(context: &Context, args: DiffArgs) -> Outcome {
    let store = context.open()?;
    let (a, b) = (lookup(context, &store, &args.a)?, lookup(context, &store, &args.b)?);
    let mut out = Out::new();
    let mut list =
        if context.json { Some(JsonList::begin(&mut out, Object::new(), "differences")?) } else { None };
    let sides = (Side { at: a.view.at, inode: &a.inode }, Side { at: b.view.at, inode: &b.inode });
    diff::<Failure>(&*store.meta, sides.0, sides.1, &mut |path, difference, old, new| {
        let is_dir = new.or(old).is_some_and(|inode| inode.attributes.kind == FileKind::Directory);
        match &mut list {
            Some(list) => list.push(&mut out, json(path, difference, old, new)),
            None => {
                out.bytes(&[letter(difference), b' '])?;
                out.name(if path.is_empty() { b"." } else { path })?;
                out.bytes(if is_dir { b"/\n" } else { b"\n" })
            }
        }
    })?;
    if let Some(list) = list {
        list.end(&mut out)?;
    }
    out.finish()?;
    Ok(Exit::Done)
}

fn letter(difference: Difference) -> u8 {
    match difference {
        Difference::Added => b'A',
        Difference::Removed => b'R',
        Difference::Kind => b'T',
        Difference::Content => b'C',
        Difference::Attributes => b'M',
    }
}

fn json(path: &[u8], difference: Difference, old: Option<&Inode>, new: Option<&Inode>) -> Object {
    let what = match difference {
        Difference::Added => "added",
        Difference::Removed => "removed",
        Difference::Kind => "kind",
        Difference::Content => "changed",
        Difference::Attributes => "attributes",
    };
    let mut object = Object::new().with_name("path", path).with("difference", what);
    for (side, inode) in [("a", old), ("b", new)] {
        if let Some(inode) = inode {
            let facts =
                Object::new().with("kind", inode.attributes.kind.name()).with("size", inode.root.len());
            object = object.with(side, facts);
        }
    }
    object
}

/// Splits at the first colon whose left side `--at` accepts, because times contain colons
/// themselves.
fn lookup(context: &Context, store: &Store, side: &OsStr) -> Result<Found, Failure> {
    let bytes = side.as_bytes();
    let mut unknown = None;
    for (colon, _) in bytes.iter().enumerate().filter(|(_, byte)| **byte == b':') {
        let Ok(when) = std::str::from_utf8(&bytes[..colon]) else { break };
        let at = if when.is_empty() { None } else { Some(when) };
        match at.map(|at| when::resolve(store, at)).transpose() {
            Ok(_) => return open(context, store, at, &bytes[colon + 1..]),
            Err(failure) => unknown.get_or_insert(failure),
        };
    }
    args::store_path(side)?;
    match open(context, store, None, bytes) {
        Err(_) if unknown.is_some() => Err(unknown.unwrap_or_else(|| Failure::failed("not found"))),
        found => found,
    }
}

fn open(context: &Context, store: &Store, at: Option<&str>, path: &[u8]) -> Result<Found, Failure> {
    // `daily:` means the whole tree of that snapshot.
    let path = StorePath::parse(path)?;
    let view = context.view(store, "diff", at)?;
    let is_snapshot =
        || Ok::<_, Failure>(store.meta.snapshots()?.iter().any(|row| row.name == path.to_string()));
    if at.is_none() && find(&*store.meta, view.at, &path)?.is_none() && is_snapshot()? {
        let what = format!("`{path}` is not in the store; for the snapshot write `{path}:`");
        return Err(Failure::failed(what));
    }
    let inode = args::entry(store, view.at, &path)?;
    Ok(Found { view, inode })
}
