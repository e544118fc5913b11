//! `rm`, `mv`, `cp`: changes that carry no data.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

use clap::Args;
use outrigger_format::Domain;
use outrigger_format::catalogue::FileKind;
use outrigger_store::Store;
use outrigger_store::meta::At;
use outrigger_store::ops::edit::{EditReport, copy, remove, rename, targets};
use outrigger_store::snapshot::BeforeSnapshot;
use outrigger_store::tree::listing::walk;
use outrigger_store::tree::{StorePath, find};
use outrigger_store::write::Step;

use super::before::{self, Before};
use super::{Context, say_entry};
use crate::args;
use crate::exit::{Exit, Failure, Outcome};
use crate::json::Object;
use crate::output::{complain, counted, print_json, print_text, size};
use crate::when;

const RM_EXAMPLES: &str = "\
Examples:
  outrigger rm notes.txt
  outrigger rm -r tree old
  outrigger rm 'tree/*.bak'                 a quoted pattern: stored names that match
  outrigger rm -r tree && outrigger undo    undo works for 30 days
  outrigger find letter.txt                 which snapshots have a removed file; then:
  outrigger cp --at before-rm-20261127-121500.123 tree/letter.txt .
  outrigger rm -r --no-snapshot tree && outrigger gc    no undo; frees the space at once";

const MV_EXAMPLES: &str = "\
Examples:
  outrigger mv notes.txt notes.old
  outrigger mv a b archive                  into the directory archive";

const CP_EXAMPLES: &str = "\
Examples:
  outrigger cp -r tree tree.before          takes no space
  outrigger cp --at nightly notes.txt .     copies a file back from a snapshot";

/// Remove files and trees
///
/// A snapshot is taken first; `outrigger undo` goes back to it. `outrigger gc` deletes the snapshot
/// after 30 days (`keep --automatic`) and frees the space. `snapshot delete` and `gc` free it at
/// once. Earlier versions of a file are removed with its last name.
#[derive(Args)]
#[command(after_help = RM_EXAMPLES)]
pub struct RmArgs {
    /// Paths in the store, or quoted patterns
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<OsString>,
    /// Also directories, with everything below them
    #[arg(short, long)]
    recursive: bool,
    #[command(flatten)]
    before: Before,
}

/// Move or rename
///
/// An existing file at the new name is replaced, and its earlier versions go with it. `put` and
/// `cp` keep the versions of a file that they replace. A snapshot is taken first; `outrigger undo`
/// goes back to it.
#[derive(Args)]
#[command(after_help = MV_EXAMPLES)]
pub struct MvArgs {
    /// Paths in the store, then the new name, or a directory to move them into
    #[arg(required = true, value_name = "PATH> <NEW")]
    paths: Vec<OsString>,
    #[command(flatten)]
    before: Before,
}

/// Copy within the store, without copying data
#[derive(Args)]
#[command(after_help = CP_EXAMPLES)]
pub struct CpArgs {
    /// Paths in the store, then the copy's name, or a directory to copy them into
    #[arg(required = true, value_name = "PATH> <COPY")]
    paths: Vec<OsString>,
    /// Also directories, with everything below them
    #[arg(short, long)]
    recursive: bool,
    #[arg(long, value_name = "WHEN", help = when::HELP, allow_hyphen_values = true)]
    at: Option<String>,
    #[command(flatten)]
    before: Before,
}

/// Takes the last of at least two paths.
fn last(paths: &mut Vec<StorePath>, missing: &str) -> Result<StorePath, Failure> {
    paths.pop().filter(|_| !paths.is_empty()).ok_or_else(|| Failure::usage(missing))
}

/// A name that ends with a slash means a directory. A missing one is neither created nor taken as a
/// file's name.
fn check_slash(store: &Store, given: Option<&OsString>, to: &StorePath) -> Result<(), Failure> {
    let slash = given.is_some_and(|given| given.as_bytes().ends_with(b"/"));
    let is_directory = || {
        Ok::<_, Failure>(
            find(&*store.meta, At::Now, to)?
                .is_some_and(|found| found.attributes.kind == FileKind::Directory),
        )
    };
    if slash && !is_directory()? {
        return Err(Failure::usage(format!(
            "`{to}/` is not a directory; to give a new name, leave out the slash"
        )));
    }
    Ok(())
}

pub fn rm(context: &Context, args: RmArgs) -> Outcome {
    let store = context.open_for_commits()?;
    let paths = args::expand_paths(&store, At::Now, &args.paths)?;
    let before = args.before.snapshot(&store, "rm", Vec::new(), &paths)?;
    let listed = listed(context, &store, &paths)?;
    let own = own_keys_among(&store, &paths)?;
    let report = remove(&store, &paths, args.recursive, before.as_ref())?;
    for path in own {
        complain(&format!(
            "`{path}` had a key of its own, and a new `{path}` will not: make it with `outrigger key own {path}`. What was in it \
             can be read with the store's keys until `outrigger key destroy` (`outrigger key list` shows its number)"
        ));
    }
    listed.iter().for_each(|path| say_entry(context.json, Step::Removed, path));
    let before = before::settle(&store, before.as_deref(), report.counts);
    context.settle(&store);
    let EditReport { entries, files, directories, .. } = report;
    if context.json {
        print_json(
            Object::new()
                .with("removed", entries)
                .with("files", files)
                .with("directories", directories)
                .with("bytes", 0)
                .with("snapshot_before", before),
        )?;
    } else if !context.quiet {
        let files = counted(files, "file", "files");
        let directories = match directories {
            0 => String::new(),
            some => format!(" and {}", counted(some, "directory", "directories")),
        };
        print_text(&format!("removed {files}{directories}{}\n", before::hint(&store, before.as_deref())))?;
    }
    Ok(Exit::Done)
}

/// Those of the paths that are directories with keys of their own.
fn own_keys_among<'p>(store: &Store, paths: &'p [StorePath]) -> Result<Vec<&'p StorePath>, Failure> {
    let mut own = Vec::new();
    for path in paths {
        let domain = |path: &StorePath| {
            let found = find(&*store.meta, At::Now, path)?;
            Ok::<_, Failure>(found.map_or(Domain::COMMON, |inode| inode.attributes.domain()))
        };
        if domain(path)? != domain(&path.parent())? {
            own.push(path);
        }
    }
    Ok(own)
}

pub fn mv(context: &Context, args: MvArgs) -> Outcome {
    let mut paths = args::store_paths(&args.paths)?;
    let to = last(&mut paths, "where to? Give at least one path, then its new name")?;
    let store = context.open_for_commits()?;
    check_slash(&store, args.paths.last(), &to)?;
    let pairs = targets(&*store.meta, &paths, &to)?;
    let worked_on = pairs.iter().cloned().flat_map(|(from, to)| [from, to]);
    let before = args.before.snapshot(&store, "mv", Vec::new(), &worked_on.collect::<Vec<_>>())?;
    let report = rename(&store, &paths, &to, before.as_ref())?;
    say_pairs(context, &pairs);
    done(context, &store, "moved", report, before.as_deref())
}

pub fn cp(context: &Context, args: CpArgs) -> Outcome {
    let mut paths = args::store_paths(&args.paths)?;
    let to = last(&mut paths, "where to? Give at least one path, then its copy's name")?;
    let store = context.open_for_commits()?;
    check_slash(&store, args.paths.last(), &to)?;
    let snapshot = args.at.as_deref().map(|at| when::resolve(&store, at)).transpose()?;
    let snapshot = snapshot.as_ref().map(|snapshot| snapshot.name.as_str());
    let pairs = targets(&*store.meta, &paths, &to)?;
    let worked_on = pairs.iter().map(|(_, to)| to.clone());
    let before = args.before.snapshot(&store, "cp", Vec::new(), &worked_on.collect::<Vec<_>>())?;
    let report = copy(&store, snapshot, &paths, &to, args.recursive, before.as_ref())?;
    let copies: Vec<StorePath> = pairs.into_iter().map(|(_, to)| to).collect();
    let listed = listed(context, &store, &copies)?;
    listed.iter().for_each(|path| say_entry(context.json, Step::Added, path));
    done(context, &store, "copied", report, before.as_deref())
}

/// With `-v`, these entries and all below them.
fn listed(context: &Context, store: &Store, paths: &[StorePath]) -> Result<Vec<Vec<u8>>, Failure> {
    let mut all = Vec::new();
    for path in paths.iter().filter(|_| context.verbose) {
        let Some(inode) = find(&*store.meta, At::Now, path)? else { continue };
        let top = path.to_bytes();
        all.push(top.clone());
        if inode.attributes.kind == FileKind::Directory {
            walk::<Failure>(&*store.meta, At::Now, inode.number, true, &mut |below, _| {
                all.push([&top, &b"/"[..], below].concat());
                Ok(())
            })?;
        }
    }
    Ok(all)
}

/// With `-v`, says which entries were removed and which were added.
fn say_pairs(context: &Context, pairs: &[(StorePath, StorePath)]) {
    for (from, to) in pairs.iter().filter(|_| context.verbose) {
        say_entry(context.json, Step::Removed, &from.to_bytes());
        say_entry(context.json, Step::Added, &to.to_bytes());
    }
}

fn done(
    context: &Context,
    store: &Store,
    what: &str,
    report: EditReport,
    before: Option<&BeforeSnapshot>,
) -> Outcome {
    let before = before::settle(store, before, report.counts);
    context.settle(store);
    if context.json {
        print_json(
            Object::new()
                .with(what, report.entries)
                .with("bytes", report.bytes)
                .with("snapshot_before", before),
        )?;
    } else if !context.quiet {
        let entries = counted(report.entries, "entry", "entries");
        let bytes = if report.bytes > 0 {
            format!(", {} without copying data", size(report.bytes))
        } else {
            String::new()
        };
        print_text(&format!("{what} {entries}{bytes}{}\n", before::hint(store, before.as_deref())))?;
    }
    Ok(Exit::Done)
}
