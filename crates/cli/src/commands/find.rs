//! `find`: names in the present tree and in snapshots.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

use clap::Args;
use outrigger_format::catalogue::FileKind;
use outrigger_store::Store;
use outrigger_store::meta::{At, Inode};
use outrigger_store::ops::find::{NOW, find};
use outrigger_store::patterns::Patterns;
use outrigger_store::tree::{StorePath, find as lookup, listing};

use super::Context;
use super::ls::{json, line};
use crate::args;
use crate::exit::{Exit, Failure, Outcome};
use crate::json::Object;
use crate::output::{JsonList, Out, complain};
use crate::when;

const EXAMPLES: &str = "\
Examples:
  outrigger find notes.txt                    wherever it is or was, and in which snapshots
  outrigger get --at SNAPSHOT docs/notes.txt .    restores it from one of those
  outrigger find '*.pdf' home/me              below one directory
  outrigger find '/src/**/*.rs'               by the path from the directory on
  outrigger find '*.pdf' --at yesterday       in one snapshot only
  outrigger find '*.pdf' --json | jq -r '.entries[] | select(.now | not) | .path'    what is gone";

/// Find names, now and in all snapshots
///
/// Each state of a file is a line: mode, size, time, path, and the first and last snapshot that
/// have it (`now` is the present tree).
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct FindArgs {
    /// A pattern: without `/` it is matched against names, with `/` against the path below PATH
    #[arg(value_name = "GLOB")]
    pattern: OsString,
    /// The directory to look in
    #[arg(default_value = "/", hide_default_value = true)]
    path: OsString,
    #[arg(long, value_name = "WHEN", help = when::HELP, allow_hyphen_values = true)]
    at: Option<String>,
}

/// A searched state of the tree: its epoch, and its snapshot's name, or none for the present.
type Moment = (u64, Option<String>);

pub fn run(context: &Context, args: FindArgs) -> Outcome {
    let pattern = Patterns::new("GLOB", &[args.pattern.as_bytes()])?;
    let path = args::store_path(&args.path)?;
    let store = context.open()?;
    let view = context.view(&store, "find", args.at.as_deref())?;
    let moments = moments(&store, view.at, args.at.as_deref())?;
    let mut out = Out::new();
    let mut list =
        if context.json { Some(JsonList::begin(&mut out, Object::new(), "entries")?) } else { None };
    let mut found = 0_u64;
    let prefix =
        if path.components.is_empty() { Vec::new() } else { [path.to_bytes(), b"/".to_vec()].concat() };
    let mut visit = |below: &[u8], inode: &Inode, at: &[&Moment]| -> Result<(), Failure> {
        let name = below.rsplit(|&byte| byte == b'/').next().unwrap_or_default();
        if !pattern.matches(name, below) {
            return Ok(());
        }
        found += 1;
        let path = [prefix.as_slice(), below].concat();
        match &mut list {
            Some(list) => list.push(&mut out, json(&path, inode).merge(facts(at))),
            None => {
                line(&mut out, inode, false)?;
                out.name(&path)?;
                out.bytes(b"  ")?;
                out.line(&range(at))
            }
        }
    };
    let mut is_there = false;
    for (directory, moments) in directories(&store, view.at, &path, &moments)? {
        is_there = true;
        if let [only] = moments[..] {
            let at = if only.0 == NOW { view.at } else { At::Epoch(only.0) };
            listing::walk(&*store.meta, at, directory, true, &mut |below, entry| {
                visit(below, &entry.inode, &moments)
            })?;
            continue;
        }
        let epochs: Vec<u64> = moments.iter().map(|moment| moment.0).collect();
        find(&*store.meta, directory, &epochs, &mut |below, inode, at| {
            visit(below, inode, &at.iter().map(|&at| moments[at]).collect::<Vec<_>>())
        })?;
    }
    if let Some(list) = list {
        list.end(&mut out)?;
    }
    out.finish()?;
    if !is_there {
        return Err(Failure::failed(format!("`{path}` is no directory, now or in a snapshot")));
    }
    if found == 0 && !context.quiet && !context.json {
        complain("no name matches");
    }
    Ok(Exit::Done)
}

/// The states to search, oldest first.
fn moments(store: &Store, at: At, only: Option<&str>) -> Result<Vec<Moment>, Failure> {
    let epoch = match at {
        At::Epoch(epoch) => epoch,
        At::Now => NOW,
    };
    if let Some(when) = only {
        return Ok(vec![(epoch, Some(when::resolve(store, when)?.name))]);
    }
    let mut moments: Vec<Moment> =
        store.meta.snapshots()?.into_iter().map(|row| (row.epoch, Some(row.name))).collect();
    moments.sort();
    moments.push((epoch, None));
    Ok(moments)
}

/// The directories that a path has meant, each with the states in which it did.
fn directories<'m>(
    store: &Store,
    now: At,
    path: &StorePath,
    moments: &'m [Moment],
) -> Result<Vec<(u64, Vec<&'m Moment>)>, Failure> {
    let mut directories: Vec<(u64, Vec<&Moment>)> = Vec::new();
    for moment in moments {
        let at = if moment.0 == NOW { now } else { At::Epoch(moment.0) };
        let Some(inode) = lookup(&*store.meta, at, path)? else { continue };
        if inode.attributes.kind != FileKind::Directory {
            continue;
        }
        match directories.iter_mut().find(|(number, _)| *number == inode.number) {
            Some((_, all)) => all.push(moment),
            None => directories.push((inode.number, vec![moment])),
        }
    }
    Ok(directories)
}

fn range(at: &[&Moment]) -> String {
    let name = |moment: &Moment| moment.1.clone().unwrap_or_else(|| "now".to_string());
    match at {
        [] => String::new(),
        [one] => name(one),
        [first, .., last] => format!("{}..{}", name(first), name(last)),
    }
}

fn facts(at: &[&Moment]) -> Object {
    let now = at.last().is_some_and(|last| last.1.is_none());
    let snapshots = &at[..at.len() - usize::from(now)];
    let name = |moment: Option<&&Moment>| moment.and_then(|moment| moment.1.clone());
    Object::new()
        .with("first", name(snapshots.first()))
        .with("last", name(snapshots.last()))
        .with("snapshots", snapshots.len())
        .with("now", now)
}
