//! `ls`: lists what is stored.

use std::ffi::OsString;

use clap::Args;
use outrigger_format::catalogue::{DOMAIN_XATTR, FileKind};
use outrigger_store::Store;
use outrigger_store::meta::{At, DirEntry, Inode};
use outrigger_store::text::show;
use outrigger_store::tree::{check_name, listing};

use super::Context;
use crate::args;
use crate::exit::{Exit, Failure, Outcome};
use crate::json::{Object, rfc3339};
use crate::output::{JsonList, Out, complain, local, size};
use crate::when;

const EXAMPLES: &str = "\
Examples:
  outrigger ls
  outrigger ls -l tree
  outrigger ls -lhS tree                      sizes as people read them, the largest first
  outrigger ls -ltr                           the newest last
  outrigger ls -l 'tree/*.txt'                a quoted pattern: stored names that match
  outrigger ls -R --at nightly tree
  outrigger ls -R -0 tree | xargs -0 -n1 echo
  outrigger ls -R --json | jq '.entries[] | select(.size > 1e9) | .path'";

/// List what is stored
///
/// Names are printed as they are; on a terminal, unprintable characters are escaped. A pattern
/// lists its matches, and directories among them without their entries.
#[derive(Args)]
#[command(after_help = EXAMPLES, disable_help_flag = true)]
pub struct LsArgs {
    /// A directory or file in the store, or a quoted pattern
    #[arg(default_value = "/", hide_default_value = true)]
    path: OsString,
    /// Also show mode, links, owner, group, size and time
    #[arg(short, long)]
    long: bool,
    /// Also list everything below directories
    #[arg(short = 'R', long)]
    recursive: bool,
    /// Print sizes as 1.24 GiB
    #[arg(short = 'h', long)]
    human_readable: bool,
    /// List the largest first
    #[arg(short = 'S', conflicts_with = "by_time")]
    by_size: bool,
    /// List the newest first
    #[arg(short = 't')]
    by_time: bool,
    /// Reverse the order
    #[arg(short, long)]
    reverse: bool,
    /// End each name with a zero byte, and escape nothing
    #[arg(short = '0', long)]
    null: bool,
    #[arg(long, value_name = "WHEN", help = when::HELP, allow_hyphen_values = true)]
    at: Option<String>,
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
}

impl LsArgs {
    fn is_sorted(&self) -> bool {
        self.by_size || self.by_time || self.reverse
    }
}

/// A listed entry with its path.
type Listed = (Vec<u8>, DirEntry);

pub fn run(context: &Context, args: LsArgs) -> Outcome {
    let store = context.open()?;
    let view = context.view(&store, "ls", args.at.as_deref())?;
    let named = args::expand_one(&store, view.at, &args.path)?;
    let head = match &named {
        args::Named::Path(path, _) => path.to_bytes(),
        args::Named::Matches(_) => args.path.as_encoded_bytes().to_vec(),
    };
    let mut out = Out::new();
    let mut list = if context.json {
        Some(JsonList::begin(&mut out, Object::new().with_name("path", &head), "entries")?)
    } else {
        None
    };
    let mut bad = Vec::new();
    let mut print = |below: &[u8], entry: &DirEntry| -> Result<(), Failure> {
        if let Err(error) = check_name(&entry.name) {
            bad.push(format!("`{}`: {error}", show(below)));
        }
        match &mut list {
            Some(list) => list.push(&mut out, json(below, &entry.inode)),
            None => print(&mut out, below, &entry.inode, &args),
        }
    };
    let mut kept: Vec<Listed> = Vec::new();
    list_all(&store, view.at, named, args.recursive, &mut |below, entry| {
        if args.is_sorted() {
            kept.push((below.to_vec(), entry.clone()));
            return Ok(());
        }
        print(below, entry)
    })?;
    sort(&mut kept, &args);
    kept.iter().try_for_each(|(below, entry)| print(below, entry))?;
    if let Some(list) = list {
        list.end(&mut out)?;
    }
    out.finish()?;
    if bad.is_empty() {
        return Ok(Exit::Done);
    }
    bad.iter().for_each(|why| complain(why));
    complain(
        "names that no file can have: the store is damaged or malicious; `outrigger check` lists all damage",
    );
    Ok(Exit::Damaged)
}

/// Calls `visit` with each entry to list.
fn list_all(
    store: &Store,
    at: At,
    named: args::Named,
    recursive: bool,
    visit: &mut listing::Visit<'_, Failure>,
) -> Result<(), Failure> {
    match named {
        args::Named::Path(_, top) if top.attributes.kind == FileKind::Directory => {
            listing::walk(&*store.meta, at, top.number, recursive, visit)
        }
        args::Named::Path(path, inode) => {
            let name = path.name().unwrap_or_default().to_vec();
            visit(&name.clone(), &DirEntry { name, inode })
        }
        args::Named::Matches(found) => found.into_iter().try_for_each(|(path, inode)| {
            let (bytes, number) = (path.to_bytes(), inode.number);
            let name = path.name().unwrap_or_default().to_vec();
            let is_directory = inode.attributes.kind == FileKind::Directory;
            visit(&bytes, &DirEntry { name, inode })?;
            if !recursive || !is_directory {
                return Ok(());
            }
            let mut below = bytes;
            below.push(b'/');
            let prefix = below.len();
            listing::walk(&*store.meta, at, number, true, &mut |path, entry| {
                below.truncate(prefix);
                below.extend_from_slice(path);
                visit(&below, entry)
            })
        }),
    }
}

fn sort(kept: &mut [Listed], args: &LsArgs) {
    // Entries come sorted by name, and a stable sort keeps that order among equal ones.
    if args.by_size {
        kept.sort_by_key(|(_, entry)| std::cmp::Reverse(entry.inode.root.len()));
    } else if args.by_time {
        kept.sort_by_key(|(_, entry)| std::cmp::Reverse(entry.inode.attributes.mtime));
    }
    if args.reverse {
        kept.reverse();
    }
}

/// Prints all of a long line but the name.
pub fn line(out: &mut Out, inode: &Inode, human: bool) -> Result<(), Failure> {
    let attributes = &inode.attributes;
    let size = match attributes.kind {
        FileKind::CharDevice | FileKind::BlockDevice => {
            let device = attributes.rdev;
            format!("{},{}", rustix::fs::major(device), rustix::fs::minor(device))
        }
        _ if human => size(inode.root.len()),
        _ => inode.root.len().to_string(),
    };
    let (mode, time) = (mode(attributes.kind, attributes.mode), local(attributes.mtime));
    let (links, uid, gid) = (inode.links, attributes.uid, attributes.gid);
    out.bytes(format!("{mode} {links:>2} {uid:>5} {gid:>5} {size:>12} {time} ").as_bytes())
}

fn print(out: &mut Out, path: &[u8], inode: &Inode, args: &LsArgs) -> Result<(), Failure> {
    let attributes = &inode.attributes;
    if args.long {
        line(out, inode, args.human_readable)?;
    }
    if args.null {
        out.bytes(path)?;
        return out.bytes(b"\0");
    }
    out.name(path)?;
    if args.long && attributes.kind == FileKind::Symlink {
        out.bytes(b" -> ")?;
        out.name(&attributes.target)?;
    }
    out.bytes(b"\n")
}

/// `drwxr-xr-x`, as `ls -l` has it.
fn mode(kind: FileKind, mode: u32) -> String {
    let mut text = String::from(match kind {
        FileKind::File => '-',
        FileKind::Directory => 'd',
        FileKind::Symlink => 'l',
        FileKind::Fifo => 'p',
        FileKind::Socket => 's',
        FileKind::CharDevice => 'c',
        FileKind::BlockDevice => 'b',
    });
    for (shift, special, set) in [(6, 0o4000, 's'), (3, 0o2000, 's'), (0, 0o1000, 't')] {
        let bits = mode >> shift;
        text.push(if bits & 4 != 0 { 'r' } else { '-' });
        text.push(if bits & 2 != 0 { 'w' } else { '-' });
        text.push(match (mode & special != 0, bits & 1 != 0) {
            (true, true) => set,
            (true, false) => set.to_ascii_uppercase(),
            (false, true) => 'x',
            (false, false) => '-',
        });
    }
    text
}

/// An entry's facts.
pub fn json(path: &[u8], inode: &Inode) -> Object {
    let attributes = &inode.attributes;
    let mut object = Object::new()
        .with_name("path", path)
        .with("kind", attributes.kind.name())
        .with("size", inode.root.len())
        .with("mode", format!("{:04o}", attributes.mode))
        .with("uid", attributes.uid)
        .with("gid", attributes.gid)
        .with("mtime", rfc3339(attributes.mtime))
        .with("links", inode.links)
        .with("inode", inode.number);
    if attributes.kind == FileKind::Symlink {
        object = object.with_name("target", &attributes.target);
    }
    if matches!(attributes.kind, FileKind::CharDevice | FileKind::BlockDevice) {
        let (major, minor) = (rustix::fs::major(attributes.rdev), rustix::fs::minor(attributes.rdev));
        object = object.with("device_major", major).with("device_minor", minor);
    }
    if !attributes.xattrs.is_empty() {
        let names = attributes.xattrs.iter().filter(|(name, _)| name != DOMAIN_XATTR);
        let names: Vec<String> = names.map(|(name, _)| show(name)).collect();
        object = object.with("xattrs", names);
    }
    object
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_read_as_in_ls() {
        assert_eq!(mode(FileKind::Directory, 0o755), "drwxr-xr-x");
        assert_eq!(mode(FileKind::File, 0o4711), "-rws--x--x");
        assert_eq!(mode(FileKind::Directory, 0o1776), "drwxrwxrwT");
    }
}
