//! `put`: stores files, trees and standard input.

mod sources;

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use outrigger_clock::Instant;
use outrigger_format::ChunkerSpec;
use outrigger_fuse::mounts;
use outrigger_store::Store;
use outrigger_store::backend::place_on;
use outrigger_store::local::put::{MirrorRules, Plan, PutOptions, PutReport, Source, put};
use outrigger_store::meta::SnapshotRow;
use outrigger_store::ops::snapshots;
use outrigger_store::patterns::Patterns;
use outrigger_store::policy::Overrides;
use outrigger_store::snapshot::facts::Facts;
use outrigger_store::tree::StorePath;
use outrigger_store::write::{OracleMode, Progress};

use super::before::{self, Before};
use super::filter::{self, Filter};
use super::offload::{self, Offload};
use super::{Context, report_skipped, skipped_json, snapshot};
use crate::args;
use crate::exit::{Failure, Outcome};
use crate::json::Object;
use crate::operation;
use crate::output::{count, counted, print_json, print_text, size};
use crate::progress::{Bar, Total, duration};
use crate::when;

const EXAMPLES: &str = "\
Examples:
  outrigger put src --to tree              the contents of src become those of tree
  outrigger put src                        the same, at src
  outrigger put notes.txt                  one file, at notes.txt
  outrigger put a b c --to backup          several, at backup/a, backup/b, backup/c
  outrigger put ~/src --to src -n          only show what it would store, replace and remove
  outrigger put ~/src --to src --exclude target --exclude '*.o' --tag nightly
  outrigger put ~ --to home --exclude-caches --ignore-file .gitignore --exclude-from ~/.excludes
  outrigger put ~/src --exclude /target     ~/src/target, and no other target
  pg_dump db | outrigger put - --to dumps/db.sql
  outrigger put ~/film --no-dedup             do not look for stored copies
  outrigger put data --place osd1             in a Ceph pool: new data goes to that host

A directory is mirrored: PATH loses what the source no longer has. `put -n` lists it, and
--keep-missing keeps it. Files that are left out are neither stored nor removed. Of a file,
--to box/ stores box/NAME; of a directory the slash changes nothing.

Without --tag no snapshot is taken of the result. A put that removes or replaces something takes
a snapshot first: `outrigger undo` takes the put back for 30 days. PATH remembers the host, path
and file system of its source, and takes no other unless --replace-source is given. A file is not
read again if it has the size, mtime, ctime and inode of the last put.";

/// Store files, trees, or standard input
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct PutArgs {
    /// Files and directories; `-` is standard input
    #[arg(required = true, value_name = "SRC")]
    sources: Vec<OsString>,
    /// The target in the store. A single directory's contents become those of PATH. A single file
    /// becomes PATH, or goes into it if it is a directory. Several sources go into PATH by their
    /// names
    #[arg(long, value_name = "PATH")]
    to: Option<OsString>,
    #[command(flatten)]
    filter: Filter,
    /// Take a snapshot afterwards, with this tag; `keep` deletes old ones by its rules
    #[arg(long, value_name = "TAG")]
    tag: Vec<String>,
    /// Read every file, even if it seems unchanged
    #[arg(long)]
    rescan: bool,
    /// Do not remove files that the source no longer has
    #[arg(long)]
    keep_missing: bool,
    /// Only say what would be stored, replaced and removed
    #[arg(long, short = 'n', conflicts_with = "oracle")]
    dry_run: bool,
    /// Put it even if PATH is the root, or holds data from another directory, host or file system;
    /// PATH mirrors this source from now on
    #[arg(long)]
    replace_source: bool,
    /// Let an empty directory replace one that is not empty
    #[arg(long)]
    allow_empty: bool,
    #[command(flatten)]
    before: Before,
    /// Do not enter other file systems
    #[arg(long, short = 'x')]
    one_file_system: bool,
    /// How to cut files, whatever the policies say: gear32:MIN/AVG/MAX or fixed:SIZE
    #[arg(long, value_parser = args::chunker)]
    chunker: Option<ChunkerSpec>,
    /// Store all data without looking for stored copies, whatever the policies say; it is still
    /// hashed, because every read is verified
    #[arg(long)]
    no_dedup: bool,
    /// In a store made for experiments: record:FILE writes down the boundaries and fingerprints of
    /// every file's chunks; replay:FILE believes them instead of computing them. Every file is
    /// read, even if it seems unchanged
    #[arg(long, value_name = "MODE:FILE", value_parser = args::oracle, hide = true)]
    oracle: Option<OracleMode>,
    /// Store new data on this host, if packs lie in a Ceph pool: the host becomes the first to hold
    /// the packs, as far as possible. Data that is stored already stays where it is (`outrigger
    /// where` shows it)
    #[arg(long, value_name = "HOST")]
    place: Option<String>,
    #[command(flatten)]
    offload: Offload,
}

pub fn run(context: &Context, args: PutArgs) -> Outcome {
    let started = Instant::now();
    args.tag.iter().try_for_each(|tag| snapshots::check_name("tag", tag))?;
    if args.oracle.is_some() && args.sources.len() > 1 {
        return Err(Failure::usage(
            "--oracle takes one source, because it finds files by their paths in it; put several under one directory",
        ));
    }
    let mut options = options(&args)?;
    if args.to.as_ref().is_some_and(|to| to.is_empty()) {
        return Err(Failure::usage(
            "--to is empty (is a shell variable unset?); name a directory, or give --to / --replace-source to replace the whole store",
        ));
    }
    let to = args.to.as_deref().map(args::store_path).transpose()?;
    let is_into = args.to.as_ref().is_some_and(|to| to.as_bytes().ends_with(b"/"));
    let targets = sources::targets(&args.sources, to.as_ref(), is_into)?;
    if to.is_none() {
        sources::check_there(&args.sources)?;
    }
    let store = if args.dry_run { context.open()? } else { context.open_to_store()? };
    if let Some(host) = &args.place {
        options.host = Some(place_on(&*store.backend, host)?.into());
    }
    if let Ok(dir) = store.dir().canonicalize() {
        options.own_devices =
            mounts::of_store(&dir).unwrap_or_default().into_iter().map(|row| row.device).collect();
    }
    offload::use_devices(context, &store, &args.offload)?;
    // After the put it would be too late.
    when::check_new(&store, None, &args.tag)?;
    let progress = context.progress(&store, "committed data is kept; run the same command again to continue");
    let sources = sources::sources(&store, targets, args.allow_empty, &progress)?;
    filter::skip_missing(&options.leave_out, &args.sources, &progress);
    let paths = sources.iter().filter_map(|(source, _)| match source {
        Source::Path(path) => Some(path.clone()),
        Source::Stream(_) => None,
    });
    let origins: Vec<Vec<u8>> = paths.clone().map(|path| origin(&path)).collect();
    if !args.dry_run {
        let targets: Vec<StorePath> = sources.iter().map(|(_, target)| target.clone()).collect();
        options.before = args.before.snapshot(&store, "put", origins.clone(), &targets)?;
    }
    let total = Total::default();
    let bar = Bar::start(&progress, context.has_no_bar(), Arc::clone(&total), true);
    if bar.is_some() && paths.clone().count() == sources.len() {
        measure(paths.collect(), options.leave_out.patterns.clone(), total);
    }
    let report = put(&store, sources, &options, context.threads, &progress);
    drop(bar);
    let report = report?;
    if let Some(plan) = &report.plan {
        return planned(context, plan, &progress);
    }
    let before = before::settle(&store, options.before.as_deref(), report.write.totals.into());
    let snapshot =
        if args.tag.is_empty() { None } else { Some(snapshot::tagged(&store, &args.tag, "put", origins)?) };
    context.settle(&store);
    offload::remember(&store);
    offload::complain_of_devices(&store, &progress);
    super::complain_of_packs(&store);
    let secs = started.elapsed().as_secs_f64();
    say(context, &store, &report, (snapshot.as_ref(), before), secs, &progress)?;
    Ok(report_skipped(&progress))
}

/// The options that need no store.
fn options(args: &PutArgs) -> Result<PutOptions, Failure> {
    Ok(PutOptions {
        leave_out: args.filter.leave_out(&args.sources)?,
        rescan: args.rescan,
        keep_missing: args.keep_missing,
        one_file_system: args.one_file_system,
        oracle: args.oracle.clone(),
        overrides: Overrides { chunker: args.chunker, dedup: args.no_dedup.then_some(false) },
        host: None,
        mirror: Some(MirrorRules { replace_source: args.replace_source, allow_empty: args.allow_empty }),
        own_devices: Vec::new(),
        dry_run: args.dry_run,
        before: None,
    })
}

/// Reports what was stored. `before` names the snapshot of the tree before it.
fn say(
    context: &Context,
    store: &Store,
    report: &PutReport,
    (snapshot, before): (Option<&SnapshotRow>, Option<String>),
    secs: f64,
    progress: &Progress,
) -> Result<(), Failure> {
    let said = summary(store, report, snapshot, before.as_deref(), secs);
    operation::step("done", &said);
    if context.json {
        let object = json(report, snapshot, secs, progress).with("snapshot_before", before);
        print_json(
            object
                .with("devices", offload::json(store))
                .with("table_cache", offload::json_of_table_cache(store))
                .with("verified", super::verified_json(store)),
        )?;
    } else if !context.quiet {
        print_text(&(said + &offload::told(store)))?;
    }
    Ok(())
}

/// Measures the sources in a thread of its own, so that the bar can estimate the remaining time.
/// The thread ends with the process at the latest.
fn measure(paths: Vec<PathBuf>, exclude: Patterns, total: Total) {
    fn below(path: &Path, top: &Path, exclude: &Patterns) -> u64 {
        let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
        entries
            .filter(|entry| {
                let path = entry.path();
                let below = path.strip_prefix(top).unwrap_or(&path);
                !exclude.matches(entry.file_name().as_bytes(), below.as_os_str().as_bytes())
            })
            .map(|entry| match entry.metadata() {
                Ok(found) if found.is_dir() => below(&entry.path(), top, exclude),
                Ok(found) if found.is_file() => found.len(),
                _ => 0,
            })
            .sum()
    }
    std::thread::spawn(move || {
        let of = |path: &PathBuf| match std::fs::metadata(path) {
            Ok(found) if found.is_file() => found.len(),
            _ => below(path, path, &exclude),
        };
        let _ = total.set(paths.iter().map(of).sum());
    });
}

/// The absolute path of a source, which is recorded in the snapshot.
fn origin(path: &Path) -> Vec<u8> {
    std::fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf()).into_os_string().into_vec()
}

/// At most so many removed paths are listed one by one.
const LISTED: usize = 20;

/// Prints what a put would do.
fn planned(context: &Context, plan: &Plan, progress: &Progress) -> Outcome {
    let removed: Vec<String> = plan.removed.iter().map(StorePath::to_string).collect();
    if context.json {
        print_json(
            Object::new()
                .with("dry_run", true)
                .with("entries_created", plan.created)
                .with("entries_changed", plan.changed)
                .with("bytes", plan.bytes)
                .with("entries_removed", plan.entries_removed)
                .with("removed", removed)
                .with("skipped", skipped_json(progress)),
        )?;
    } else if !context.quiet {
        let mut text: String =
            removed.iter().take(LISTED).map(|path| format!("would remove {path}\n")).collect();
        if removed.len() > LISTED {
            text += &format!("would remove {} more\n", count((removed.len() - LISTED) as u64));
        }
        print_text(&format!(
            "{text}would store {} and replace {}, {} in all; would remove {}; nothing was changed\n",
            counted(plan.created, "new entry", "new entries"),
            count(plan.changed),
            size(plan.bytes),
            counted(plan.entries_removed, "entry", "entries"),
        ))?;
    }
    Ok(report_skipped(progress))
}

fn summary(
    store: &Store,
    report: &PutReport,
    snapshot: Option<&SnapshotRow>,
    before: Option<&str>,
    secs: f64,
) -> String {
    let view = &report.write.progress;
    let (files, bytes) = (view.files_done + view.files_unchanged, view.bytes_done + view.bytes_unchanged);
    let mut text = format!("{}, {} in {}", counted(files, "file", "files"), size(bytes), duration(secs));
    if view.bytes_done > 0 {
        text += &format!(" ({}/s)", size((view.bytes_done as f64 / secs.max(0.001)) as u64));
    }
    text += &format!(": {} new, {} stored", size(view.bytes_new), size(view.bytes_stored));
    if view.bytes_stored > 0 && bytes > view.bytes_stored {
        let times = bytes as f64 / view.bytes_stored as f64;
        text += &if times < 10.0 {
            format!(" ({times:.1} x smaller)")
        } else {
            format!(" ({times:.0} x smaller)")
        };
    }
    if view.files_unchanged > 0 {
        text += &format!("; {} unchanged", count(view.files_unchanged));
    }
    if report.walk.removed > 0 {
        text += &format!("; {} removed", count(report.walk.removed));
        let entries = report.write.totals.removed;
        if entries > report.walk.removed {
            text += &format!(" ({} with all in them)", count(entries));
        }
    }
    text += &before::hint(store, before);
    if let Some(snapshot) = snapshot {
        let tags: Vec<String> = Facts::of(snapshot).tags.iter().map(|tag| format!("`{tag}`")).collect();
        text += &format!("; snapshot {} with the tag {}", snapshot.name, tags.join(", "));
    }
    text + "\n"
}

fn json(report: &PutReport, snapshot: Option<&SnapshotRow>, secs: f64, progress: &Progress) -> Object {
    let (view, totals, walk) = (&report.write.progress, &report.write.totals, &report.walk);
    Object::new()
        .with("files", view.files_done + view.files_unchanged)
        .with("directories", walk.directories)
        .with("others", walk.others)
        .with("bytes", view.bytes_done + view.bytes_unchanged)
        .with("files_read", view.files_done)
        .with("bytes_read", view.bytes_done)
        .with("files_unchanged", view.files_unchanged)
        .with("bytes_unchanged", view.bytes_unchanged)
        .with("chunks", view.chunks)
        .with("chunks_new", view.chunks_new)
        .with("bytes_new", view.bytes_new)
        .with("bytes_stored", view.bytes_stored)
        .with("entries_created", totals.created)
        .with("entries_changed", totals.changed)
        .with("entries_removed", walk.removed)
        .with("seconds", secs)
        .with("snapshot", snapshot.map(|snapshot| snapshot.name.clone()))
        .with("skipped", skipped_json(progress))
}
