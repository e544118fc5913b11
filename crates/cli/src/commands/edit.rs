//! `rm`, `mv`, `cp`: changes that carry no data.

use std::ffi::OsString;

use clap::Args;
use outrigger_store::Store;
use outrigger_store::ops::edit::{EditReport, copy, remove, rename};
use outrigger_store::tree::StorePath;

use super::Context;
use crate::args;
use crate::exit::{Exit, Failure, Outcome};
use crate::output::{Object, counted, print_json, print_text, size};
use crate::when;

const RM_EXAMPLES: &str = "\
Examples:
  outrigger rm notes.txt
  outrigger rm -r tree old
  outrigger rm -r tree && outrigger gc      also gives back the space";

const MV_EXAMPLES: &str = "\
Examples:
  outrigger mv notes.txt notes.old
  outrigger mv a b archive                  into the directory archive";

const CP_EXAMPLES: &str = "\
Examples:
  outrigger cp -r tree tree.before          takes no space
  outrigger cp --at nightly notes.txt .     brings back a file from a snapshot";

/// Remove files and trees
///
/// Earlier versions of a file go with its last name. Snapshots keep what they have. The space comes back with `outrigger gc`.
#[derive(Args)]
#[command(after_help = RM_EXAMPLES)]
pub struct RmArgs {
    /// Paths in the store
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<OsString>,
    /// Directories too, with all that is in them
    #[arg(short, long)]
    recursive: bool,
}

/// Move or rename
///
/// A file that is in the way is replaced, and its earlier versions go with it; `put` and `cp` over it keep them.
#[derive(Args)]
#[command(after_help = MV_EXAMPLES)]
pub struct MvArgs {
    /// Paths in the store, then the new name, or a directory to move them into
    #[arg(required = true, value_name = "PATH> <NEW")]
    paths: Vec<OsString>,
}

/// Copy within the store, without copying data
#[derive(Args)]
#[command(after_help = CP_EXAMPLES)]
pub struct CpArgs {
    /// Paths in the store, then the copy's name, or a directory to copy them into
    #[arg(required = true, value_name = "PATH> <COPY")]
    paths: Vec<OsString>,
    /// Directories too, with all that is in them
    #[arg(short, long)]
    recursive: bool,
    #[arg(long, value_name = "WHEN", help = when::HELP, allow_hyphen_values = true)]
    at: Option<String>,
}

/// Takes the last of at least two paths.
fn last(paths: &mut Vec<StorePath>, missing: &str) -> Result<StorePath, Failure> {
    paths.pop().filter(|_| !paths.is_empty()).ok_or_else(|| Failure::usage(missing))
}

pub fn rm(context: &Context, args: RmArgs) -> Outcome {
    let paths = args::store_paths(&args.paths)?;
    let store = context.open_for_changes()?;
    done(context, &store, "removed", remove(&store, &paths, args.recursive)?)
}

pub fn mv(context: &Context, args: MvArgs) -> Outcome {
    let mut paths = args::store_paths(&args.paths)?;
    let to = last(&mut paths, "where to? Give at least one path, then its new name")?;
    let store = context.open_for_changes()?;
    done(context, &store, "moved", rename(&store, &paths, &to)?)
}

pub fn cp(context: &Context, args: CpArgs) -> Outcome {
    let mut paths = args::store_paths(&args.paths)?;
    let to = last(&mut paths, "where to? Give at least one path, then its copy's name")?;
    let store = context.open_for_changes()?;
    let snapshot = args.at.as_deref().map(|at| when::resolve(&store, at)).transpose()?;
    let snapshot = snapshot.as_ref().map(|snapshot| snapshot.name.as_str());
    done(context, &store, "copied", copy(&store, snapshot, &paths, &to, args.recursive)?)
}

fn done(context: &Context, store: &Store, what: &str, report: EditReport) -> Outcome {
    context.settle(store);
    if context.json {
        print_json(Object::new().with(what, report.entries).with("bytes", report.bytes))?;
    } else if !context.quiet {
        let entries = counted(report.entries, "entry", "entries");
        let bytes = if report.bytes > 0 {
            format!(", {} without copying data", size(report.bytes))
        } else {
            String::new()
        };
        print_text(&format!("{what} {entries}{bytes}\n"))?;
    }
    Ok(Exit::Done)
}
