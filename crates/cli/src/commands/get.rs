//! `get`: restores files and trees.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use clap::Args;
use outrigger_clock::Instant;
use outrigger_format::catalogue::FileKind;
use outrigger_store::Store;
use outrigger_store::local::get::{GetOptions, restore};
use outrigger_store::meta::{At, Inode};
use outrigger_store::ops::View;
use outrigger_store::patterns::Patterns;
use outrigger_store::tree::selection::Selection;
use outrigger_store::tree::{StorePath, find, listing};
use outrigger_store::write::{ProgressView, Step};

use super::offload::{self, Offload};
use super::{Context, report_skipped, say_entry, skipped_json};
use crate::args;
use crate::exit::{Exit, Failure, Outcome};
use crate::json::Object;
use crate::output::{count, counted, print_json, print_text, size};
use crate::progress::{Bar, Total, duration};
use crate::{interrupt, when};

const EXAMPLES: &str = "\
Examples:
  outrigger get tree out                   the contents of tree become those of out
  outrigger get notes.txt .                one file, as ./notes.txt
  outrigger get notes.txt old.txt          one file, as old.txt
  outrigger get a b out                    several, as out/a and out/b
  outrigger get 'logs/*.txt' out           a quoted pattern: stored names that match
  outrigger get tree out --include '*.rs'  a part of it; -n says what that would be
  outrigger get --at nightly tree out      as it was in the newest snapshot tagged nightly
  outrigger get --version 3 notes.txt n3   an earlier version; `outrigger versions` lists them
  outrigger get / out                      the whole store
  outrigger find notes.txt                 which snapshots have a deleted file; then:
  outrigger get --at before-rm-20261127-121500.123 docs/notes.txt .
  outrigger get --salvage disk.img out     with zeros where the store is damaged

After an interruption, run the same command again: without --overwrite it restores the rest, and
names what exists; with it, it replaces all files, also those that you have changed since.";

/// Restore files and trees
///
/// Modes, times, links, holes, extended attributes and, for root, owners are restored. Files that
/// exist are skipped and named (exit code 4), unless --overwrite is given. Attributes that cannot
/// be restored, or only with --special, are named, too. Nothing is ever written outside DEST.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct GetArgs {
    /// Paths in the store, or quoted patterns; then the directory or file to restore to
    #[arg(required = true, value_name = "PATH> <DEST")]
    paths: Vec<OsString>,
    #[arg(long, value_name = "WHEN", help = when::HELP, allow_hyphen_values = true)]
    at: Option<String>,
    /// An earlier version of a single file, by its number
    #[arg(long, value_name = "N", conflicts_with = "at")]
    version: Option<u64>,
    /// Replace files and symlinks that exist, also newer ones; nothing keeps what they contained
    #[arg(long)]
    overwrite: bool,
    /// Also restore what gives rights: devices, set-user-id and set-group-id bits, attributes in
    /// `security.` and `trusted.`; with --overwrite, also replace devices, FIFOs and sockets
    #[arg(long)]
    special: bool,
    /// From directories, restore only matching entries and everything below them; patterns as of
    /// `put --exclude`
    #[arg(long, short = 'i', value_name = "GLOB")]
    include: Vec<OsString>,
    /// From directories, restore no matching entries and nothing below them
    #[arg(long, short = 'e', value_name = "GLOB")]
    exclude: Vec<OsString>,
    /// Only say what would be restored, and which of it exists already
    #[arg(long, short = 'n')]
    dry_run: bool,
    /// Also restore the rest of damaged files, with zeros in place of what cannot be read; each
    /// such range is named
    #[arg(long)]
    salvage: bool,
    #[command(flatten)]
    offload: Offload,
}

/// An entry to restore, and the destination: as `name` in `dir`, or without a name as `dir` itself.
struct Plan {
    inode: Inode,
    dir: PathBuf,
    name: Option<Vec<u8>>,
}

pub fn run(context: &Context, args: GetArgs) -> Outcome {
    let started = Instant::now();
    let Some((dest, paths)) = args.paths.split_last().filter(|(_, paths)| !paths.is_empty()) else {
        return Err(Failure::usage("where to? Give at least one path, then the destination"));
    };
    let dest = PathBuf::from(dest);
    let selection = selection(&args)?;
    let store = context.open()?;
    store.require_contents()?;
    offload::use_decompressors(context, &store, &args.offload)?;
    let view = context.view(&store, "get", args.at.as_deref())?;
    let named = named(&store, view.at, paths)?;
    let mut plans = plan(&named, &dest)?;
    if let Some(number) = args.version {
        take_version(&store, &view, &named, &mut plans, number)?;
    }
    if args.dry_run {
        return planned(context, &store, view.at, &plans, &selection);
    }
    let progress =
        context.progress(&store, "restored files are whole; run the same command again for the rest");
    let total = Total::default();
    let bar = Bar::start(&progress, context.has_no_bar(), Arc::clone(&total), false);
    if bar.is_some() {
        let mut bytes = 0;
        for plan in &plans {
            bytes += stored_bytes(&store, view.at, &plan.inode)?;
        }
        let _ = total.set(bytes);
    }
    let GetArgs { overwrite, special, salvage, .. } = args;
    let options = GetOptions { overwrite, special, salvage, threads: context.threads, selection };
    let mut restored = Ok(());
    for Plan { inode, dir, name } in &plans {
        restored = restore(&store, view.at, inode, dir, name.as_deref(), options.clone(), &progress);
        if restored.is_err() {
            break;
        }
    }
    drop(bar);
    if progress.is_cancelled() {
        interrupt::wait_for_the_end();
    }
    restored?;
    let (secs, counters) = (started.elapsed().as_secs_f64(), progress.view());
    let (replaced, newer) =
        (progress.replaced.load(Ordering::Relaxed), progress.replaced_newer.load(Ordering::Relaxed));
    if context.json {
        let object = Object::new()
            .with("files", counters.files_done)
            .with("bytes", counters.bytes_done)
            .with("replaced", replaced)
            .with("replaced_newer", newer)
            .with("seconds", secs)
            .with("skipped", skipped_json(&progress));
        print_json(object)?;
    } else if !context.quiet {
        print_text(&(summary(&counters, secs) + &told_of_replaced(replaced, newer) + "\n"))?;
    }
    Ok(report_skipped(&progress))
}

fn selection(args: &GetArgs) -> Result<Selection, Failure> {
    let patterns = |what: &str, given: &[OsString]| {
        Patterns::new(what, &given.iter().map(|pattern| pattern.as_bytes()).collect::<Vec<_>>())
    };
    Ok(Selection {
        include: patterns("--include", &args.include)?,
        exclude: patterns("--exclude", &args.exclude)?,
    })
}

/// Says what would be restored.
fn planned(context: &Context, store: &Store, at: At, plans: &[Plan], selection: &Selection) -> Outcome {
    let (mut entries, mut bytes, mut existing) = (0_u64, 0_u64, 0_u64);
    let mut one = |path: &Path, inode: &Inode| {
        let is_there = std::fs::symlink_metadata(path)
            .is_ok_and(|found| !(found.is_dir() && inode.attributes.kind == FileKind::Directory));
        entries += 1;
        bytes += inode.root.len();
        existing += u64::from(is_there);
        if context.verbose {
            let step = if is_there { Step::Changed } else { Step::Added };
            say_entry(context.json, step, path.as_os_str().as_bytes());
        }
    };
    for Plan { inode, dir, name } in plans {
        let top = match name {
            Some(name) => dir.join(OsStr::from_bytes(name)),
            None => dir.clone(),
        };
        if inode.attributes.kind != FileKind::Directory {
            one(&top, inode);
            continue;
        }
        selection.walk::<Failure>(&*store.meta, at, inode.number, &mut |path, entry| {
            one(&top.join(OsStr::from_bytes(path)), &entry.inode);
            Ok(())
        })?;
    }
    if context.json {
        let object = Object::new().with("dry_run", true).with("entries", entries).with("bytes", bytes);
        print_json(object.with("existing", existing))?;
    } else if !context.quiet {
        let entries = counted(entries, "entry", "entries");
        let (bytes, existing) = (size(bytes), count(existing));
        print_text(&format!(
            "would restore {entries}, {bytes}; {existing} of them exist already; nothing was changed\n"
        ))?;
    }
    Ok(Exit::Done)
}

/// Bytes of a file, or of all files below a directory.
pub(super) fn stored_bytes(store: &Store, at: At, inode: &Inode) -> Result<u64, Failure> {
    let mut bytes = inode.root.len();
    if inode.attributes.kind == FileKind::Directory {
        listing::walk::<Failure>(&*store.meta, at, inode.number, true, &mut |_, entry| {
            bytes += entry.inode.root.len();
            Ok(())
        })?;
    }
    Ok(bytes)
}

fn summary(counters: &ProgressView, secs: f64) -> String {
    let rate = size((counters.bytes_done as f64 / secs.max(0.001)) as u64);
    let files = counted(counters.files_done, "entry", "entries");
    format!("{files}, {} restored in {} ({rate}/s)", size(counters.bytes_done), duration(secs))
}

/// How many files of the user's were replaced.
fn told_of_replaced(replaced: u64, newer: u64) -> String {
    if replaced == 0 {
        return String::new();
    }
    let newer = match newer {
        0 => "none of them newer".to_string(),
        some => format!("{} of them newer than the restored", count(some)),
    };
    format!("; {} replaced, {newer}", counted(replaced, "existing entry", "existing entries"))
}

/// The entries to restore. If a path is a snapshot's name, the error says where that name belongs.
fn named(store: &Store, at: At, paths: &[OsString]) -> Result<Vec<(StorePath, Inode)>, Failure> {
    args::expand(store, at, paths).map_err(|mut failure| {
        let is_snapshot =
            |name: &str| store.meta.snapshots().is_ok_and(|rows| rows.iter().any(|row| row.name == name));
        let is_missing = |name: &str| {
            let path = StorePath::parse(name.as_bytes());
            path.is_ok_and(|path| find(&*store.meta, at, &path).is_ok_and(|found| found.is_none()))
        };
        match paths.first().and_then(|path| path.to_str()).filter(|&name| is_missing(name)) {
            Some("latest") => {
                failure.message = "`latest` is not in the store; `outrigger get --at TAG / DEST` restores the newest snapshot with that tag (`outrigger snapshot list` shows them)".into();
            }
            Some(name) if is_snapshot(name) => {
                failure.message =
                    format!("`{name}` is a snapshot; `outrigger get --at {name} / DEST` restores it");
            }
            _ => {}
        }
        failure
    })
}

fn plan(named: &[(StorePath, Inode)], dest: &Path) -> Result<Vec<Plan>, Failure> {
    let into = dest.is_dir() || dest.as_os_str().as_bytes().ends_with(b"/");
    let mut plans = Vec::new();
    for (path, inode) in named {
        let is_directory = inode.attributes.kind == FileKind::Directory;
        let (dir, name) = match (path.name(), dest.file_name()) {
            _ if is_directory && named.len() == 1 => (dest.to_path_buf(), None),
            (Some(name), _) if into || named.len() > 1 => (dest.to_path_buf(), Some(name.to_vec())),
            (None, _) => return Err(Failure::usage("the root can only be restored alone")),
            (_, Some(name)) => {
                let dir = dest.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
                (dir.to_path_buf(), Some(name.as_bytes().to_vec()))
            }
            (_, None) => return Err(Failure::usage(format!("{} is not a name for a file", dest.display()))),
        };
        plans.push(Plan { inode: inode.clone(), dir, name });
    }
    let mut names: Vec<_> = plans.iter().map(|plan| &plan.name).collect();
    names.sort();
    if names.windows(2).any(|pair| pair[0] == pair[1]) {
        return Err(Failure::usage("two of the paths have the same name; restore them one by one"));
    }
    Ok(plans)
}

fn take_version(
    store: &Store,
    view: &View,
    named: &[(StorePath, Inode)],
    plans: &mut [Plan],
    number: u64,
) -> Result<(), Failure> {
    let ([(path, _)], [plan]) = (named, plans) else {
        return Err(Failure::usage("--version needs exactly one file"));
    };
    plan.inode.root = version_root(store, view, path, &plan.inode, number)?;
    // The restored file is a copy of the past, not another name of the present file.
    plan.inode.links = 1;
    if let Some(version) =
        store.meta.versions(plan.inode.number)?.iter().find(|version| version.number == number)
    {
        plan.inode.attributes.mtime = version.mtime;
    }
    Ok(())
}

/// The content of an earlier version.
pub fn version_root(
    store: &Store,
    view: &View,
    path: &StorePath,
    inode: &Inode,
    number: u64,
) -> Result<outrigger_format::Root, Failure> {
    if inode.attributes.kind != FileKind::File {
        return Err(Failure::usage(format!("`{path}` is not a file, and only files have versions")));
    }
    view.version(store, inode.number, number).map_err(|error| {
        let mut failure = Failure::from(error.context(format!("`{path}`")));
        if failure.exit == Exit::Failed {
            failure.message += &format!("; `outrigger versions {path}` lists the kept ones");
        }
        failure
    })
}
