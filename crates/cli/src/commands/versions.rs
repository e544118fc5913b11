//! `versions`: the earlier contents of a file.

use std::ffi::OsString;

use clap::Args;
use outrigger_format::catalogue::FileKind;
use outrigger_format::catalogue::Time;
use outrigger_store::meta::At;
use serde_json::Value;

use super::Context;
use crate::args;
use crate::exit::{Exit, Failure, Outcome};
use crate::json::{Object, rfc3339, rfc3339_nanos};
use crate::output::{local, print_json, print_text};

const EXAMPLES: &str = "\
Examples:
  outrigger versions notes.txt
  outrigger cat --version 2 notes.txt
  outrigger policy set docs versions=all";

/// List the earlier contents of a file that are kept
///
/// A policy of the directory says how many: `outrigger policy set DIR versions=N`, 10 by default. A
/// file that is removed, or that a rename replaces, loses its versions. Snapshots keep the contents
/// of their time.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct VersionsArgs {
    /// A file in the store
    path: OsString,
}

pub fn run(context: &Context, args: VersionsArgs) -> Outcome {
    let path = args::store_path(&args.path)?;
    let store = context.open()?;
    let inode = args::entry(&store, At::Now, &path)?;
    if inode.attributes.kind != FileKind::File {
        return Err(Failure::usage(format!("`{path}` is not a file, and only files have versions")));
    }
    let versions = store.meta.versions(inode.number)?;
    if context.json {
        let versions: Vec<Value> = versions
            .iter()
            .map(|version| {
                Object::new()
                    .with("version", version.number)
                    .with("committed", rfc3339_nanos(version.time))
                    .with("mtime", rfc3339(version.mtime))
                    .with("size", version.root.len())
                    .into()
            })
            .collect();
        let current =
            Object::new().with("mtime", rfc3339(inode.attributes.mtime)).with("size", inode.root.len());
        let object = Object::new()
            .with_name("path", &path.to_bytes())
            .with("current", current)
            .with("versions", versions);
        print_json(object)?;
        return Ok(Exit::Done);
    }
    let mut text = format!("{:>8}  {:19}  {:19}  {:>12}\n", "version", "committed", "modified", "bytes");
    text +=
        &format!("{:>8}  {:19}  {:19}  {:>12}\n", "now", "", local(inode.attributes.mtime), inode.root.len());
    for version in versions {
        let (committed, modified) = (local(Time::from_nanos(version.time)), local(version.mtime));
        text +=
            &format!("{:>8}  {committed:19}  {modified:19}  {:>12}\n", version.number, version.root.len());
    }
    print_text(&text)?;
    Ok(Exit::Done)
}
