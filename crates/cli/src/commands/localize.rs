//! `localize`: gathers the data of a file or a tree on one host.

use std::ffi::OsString;
use std::sync::Arc;

use clap::Args;
use outrigger_clock::Instant;
use outrigger_store::gc::{GcOptions, GcProgress, Localize, LocalizeReport, localize};

use super::{Context, gc, whereabouts};
use crate::args;
use crate::exit::{Exit, Outcome};
use crate::json::Object;
use crate::output::{complain, counted, print_json, print_text, size};
use crate::progress::duration;

const EXAMPLES: &str = "\
Examples:
  outrigger localize data/runs --to osd1     programs on osd1 then read it there
  outrigger localize data/film.mkv           to the host that has most of it already
  outrigger localize data --dry-run
  outrigger localize data --to osd1 --limit 50M

This is for packs in a Ceph pool. All data of a store in a directory is on one host already, and an
object store does not let a writer choose the host.
Puts and gets may run meanwhile. Finished work is kept after an interruption, and the next run
continues from there. It needs room for a few packs, and frees space as `gc` does.";

/// Gather the data of files on one host
///
/// Packs on other hosts that hold some of this data are rewritten: these files' data goes into
/// packs on that host, and the rest goes anywhere. Contents and versions do not change.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct LocalizeArgs {
    /// A file or directory in the store
    path: OsString,
    /// The host [default: the one that has most of the data]
    #[arg(long, value_name = "HOST")]
    to: Option<String>,
    /// Read at most so many bytes per second
    #[arg(long, value_name = "SIZE", value_parser = args::size)]
    limit: Option<u64>,
    /// Say where the data lies and what would be moved, and move nothing
    #[arg(long, short = 'n')]
    dry_run: bool,
}

pub fn run(context: &Context, args: LocalizeArgs) -> Outcome {
    let started = Instant::now();
    let path = args::store_path(&args.path)?;
    let store = if args.dry_run { context.open()? } else { context.open_for_upkeep()? };
    crate::interrupt::arm(&store, "finished work is kept; run it again to continue");
    let how = Localize::new(&store, &path, args.to.as_deref())?;
    let how = Localize { bytes_per_sec: args.limit.unwrap_or(0), ..how };
    let progress = Arc::new(GcProgress::default());
    let bar = gc::shown(context, &progress);
    let options = GcOptions { dry_run: args.dry_run, threads: context.threads, ..GcOptions::default() };
    let report = localize(&store, &how, &options, &progress);
    drop(bar);
    let report = report?;
    if !args.dry_run {
        context.settle(&store);
    }
    if context.json {
        print_json(json(&report).with_name("path", &path.to_bytes()))?;
    } else if !context.quiet {
        print_text(&describe(&report, started.elapsed().as_secs_f64()))?;
    }
    let exit = gc::left_alone(&report.unreadable);
    if exit == Exit::Done && report.packs_left > 0 && !args.dry_run {
        complain(
            "some data is still on other hosts: writers use it, or no pack could be stored there; run it again later",
        );
        return Ok(Exit::Partial);
    }
    Ok(exit)
}

fn json(report: &LocalizeReport) -> Object {
    Object::new()
        .with("host", report.host.clone())
        .with("dry_run", report.dry_run)
        .with("before", serde_json::Value::from(whereabouts::json(&report.before)))
        .with("after", serde_json::Value::from(whereabouts::json(&report.after)))
        .with("runs", report.runs)
        .with("packs", report.packs)
        .with("packs_left", report.packs_left)
        .with("bytes_copied", report.bytes_copied)
        .with("unreadable", report.unreadable.clone())
}

fn describe(report: &LocalizeReport, secs: f64) -> String {
    let (before, after) = (&report.before, &report.after);
    let mut text = format!("{}, {}\n", counted(before.files, "file", "files"), size(before.bytes));
    text += &format!("{:<24} {:>10} {:>10}\n", "first to have it", "before", "after");
    for host in before.hosts.keys().chain(after.hosts.keys().filter(|host| !before.hosts.contains_key(*host)))
    {
        let first = |found: &outrigger_store::read::whereabouts::Whereabouts| {
            size(found.hosts.get(host).map_or(0, |share| share.bytes_first))
        };
        let after = if report.dry_run { String::new() } else { first(after) };
        text += &format!("{host:<24} {:>10} {after:>10}\n", first(before));
    }
    if before.bytes_in_database > 0 {
        text += &format!("in the database, until it is packed: {}\n", size(before.bytes_in_database));
    }
    let packs = counted(if report.dry_run { report.packs_left } else { report.packs }, "pack", "packs");
    text += &match report.dry_run {
        true if report.packs_left == 0 => format!("all of it lies on {}\n", report.host),
        true => format!("{packs} would be written anew for {}\n", report.host),
        false => format!(
            "{packs} written anew for {}, {} copied, in {}\n",
            report.host,
            size(report.bytes_copied),
            duration(secs)
        ),
    };
    text
}
