//! `ls`: lists what is stored.

use std::ffi::OsString;

use clap::Args;
use outrigger_format::catalogue::FileKind;
use outrigger_store::meta::{DirEntry, Inode};
use outrigger_store::ops::listing;
use outrigger_store::tree::{check_name, require, show};

use super::Context;
use crate::args;
use crate::exit::{Exit, Failure, Outcome};
use crate::output::{JsonList, Object, Out, complain, local, rfc3339};
use crate::when;

const EXAMPLES: &str = "\
Examples:
  outrigger ls
  outrigger ls -l tree
  outrigger ls -R --at nightly tree
  outrigger ls -R -0 tree | xargs -0 -n1 echo
  outrigger ls -R --json | jq '.entries[] | select(.size > 1e9) | .path'";

/// List what is stored
///
/// Names are printed as they are; on a terminal what is not printable is escaped.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct LsArgs {
    /// A directory or file in the store
    #[arg(default_value = "/", hide_default_value = true)]
    path: OsString,
    /// Also mode, links, owner, group, size and time
    #[arg(short, long)]
    long: bool,
    /// Also everything below directories
    #[arg(short = 'R', long)]
    recursive: bool,
    /// End each name with a zero byte, and escape nothing
    #[arg(short = '0', long)]
    null: bool,
    #[arg(long, value_name = "WHEN", help = when::HELP, allow_hyphen_values = true)]
    at: Option<String>,
}

pub fn run(context: &Context, args: LsArgs) -> Outcome {
    let path = args::store_path(&args.path)?;
    let store = context.open()?;
    let view = context.view(&store, "ls", args.at.as_deref())?;
    let top = require(&*store.meta, view.at, &path)?;
    let mut out = Out::new();
    let mut list = if context.json {
        Some(JsonList::begin(&mut out, Object::new().with_name("path", &path.to_bytes()), "entries")?)
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
    if top.attributes.kind == FileKind::Directory {
        listing::walk(&*store.meta, view.at, top.number, args.recursive, &mut print)?;
    } else {
        let name = path.name().unwrap_or_default().to_vec();
        print(&name.clone(), &DirEntry { name, inode: top })?;
    }
    if let Some(list) = list {
        list.end(&mut out)?;
    }
    out.finish()?;
    if bad.is_empty() {
        return Ok(Exit::Done);
    }
    bad.iter().for_each(|why| complain(why));
    complain(
        "names that no file can have: the store is damaged, or was made to harm; `outrigger check` lists all damage",
    );
    Ok(Exit::Damaged)
}

fn print(out: &mut Out, path: &[u8], inode: &Inode, args: &LsArgs) -> Result<(), Failure> {
    let attributes = &inode.attributes;
    if args.long {
        let size = match attributes.kind {
            FileKind::CharDevice | FileKind::BlockDevice => {
                let device = attributes.rdev;
                format!("{},{}", rustix::fs::major(device), rustix::fs::minor(device))
            }
            _ => inode.root.len().to_string(),
        };
        out.bytes(
            format!(
                "{} {:>2} {:>5} {:>5} {:>12} {} ",
                mode(attributes.kind, attributes.mode),
                inode.links,
                attributes.uid,
                attributes.gid,
                size,
                local(attributes.mtime)
            )
            .as_bytes(),
        )?;
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

/// A kind's name in JSON.
pub fn kind_name(kind: FileKind) -> &'static str {
    match kind {
        FileKind::File => "file",
        FileKind::Directory => "directory",
        FileKind::Symlink => "symlink",
        FileKind::Fifo => "fifo",
        FileKind::Socket => "socket",
        FileKind::CharDevice => "char_device",
        FileKind::BlockDevice => "block_device",
    }
}

fn json(path: &[u8], inode: &Inode) -> Object {
    let attributes = &inode.attributes;
    let mut object = Object::new()
        .with_name("path", path)
        .with("kind", kind_name(attributes.kind))
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
        let names: Vec<String> = attributes.xattrs.iter().map(|(name, _)| show(name)).collect();
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
