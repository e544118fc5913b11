//! `copy`: a store into another place, on any engine; `--follow` keeps the copy up to date.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::Args;
use outrigger_store::Store;
use outrigger_store::backend::Location;
use outrigger_store::copy::{CopyOptions, CopyProgress, CopyReport, copy};

use super::{Context, beside};
use crate::exit::{Exit, Outcome};
use crate::output::{complain, count, counted, print_report, print_text, size};
use crate::progress::{Bar, duration};

const EXAMPLES: &str = "\
Examples:
  outrigger copy ./store /mnt/backup/store                     to another disk
  outrigger copy ./store ./big --packs 's3://bucket/store?endpoint=http://gateway:7480'
  outrigger copy ./store ./big --packs rados://pool/store      out of this machine
  outrigger copy ./big ./small                                 and back
  outrigger copy ./store ./replica --follow 60                 every minute what has changed

Packs go over as they are, each checked on its way; versions, snapshots and policies come with them. Interrupted, the same command goes
on where it was. The copy is the same store in another place: use one of the two from then on. A copy that was written to is refused by
the next copy into it.";

/// Copy a store to another place, on any engine for packs
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct CopyArgs {
    /// The store's directory
    source: PathBuf,
    /// The copy's directory: new, or that of an earlier copy
    destination: PathBuf,
    /// Where the copy's packs go: file:/DIR, s3://BUCKET/PREFIX?endpoint=URL or rados://POOL/NAMESPACE; into its directory if not given
    #[arg(long, value_name = "URL")]
    packs: Option<String>,
    /// Read all packs of the copy again when it is done
    #[arg(long)]
    verify: bool,
    /// Go on: copy what has changed every so many seconds, until interrupted
    #[arg(long, value_name = "SECS", num_args = 0..=1, default_missing_value = "60")]
    follow: Option<u64>,
}

pub fn run(context: &Context, args: CopyArgs) -> Outcome {
    let packs = args.packs.as_deref().map(Location::parse).transpose()?;
    let options = CopyOptions { to: args.destination, packs, threads: context.threads, verify: args.verify };
    loop {
        let exit = once(context, &args.source, &options)?;
        match args.follow {
            Some(secs) if exit == Exit::Done => std::thread::sleep(Duration::from_secs(secs.max(1))),
            _ => return Ok(exit),
        }
    }
}

fn once(context: &Context, source: &std::path::Path, options: &CopyOptions) -> Outcome {
    let started = Instant::now();
    beside::stored(source, context.threads)?;
    let store = Store::open(source, false)?;
    let progress = Arc::new(CopyProgress::default());
    let shown = Arc::clone(&progress);
    let bar = Bar::with(context.quiet, move |elapsed| {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let done = get(&shown.bytes_done);
        let rate = done as f64 / elapsed.as_secs_f64().max(0.001);
        format!(
            "{} of {} packs, {} of {}, {}/s",
            count(get(&shown.packs_done)),
            count(get(&shown.packs_expected)),
            size(done),
            size(get(&shown.bytes_expected)),
            size(rate as u64)
        )
    });
    let report = copy(&store, options, &progress);
    drop(bar);
    let report = report?;
    if context.json {
        print_report(&report)?;
    } else if !context.quiet {
        print_text(&describe(&report, started.elapsed().as_secs_f64()))?;
    }
    for problem in &report.problems {
        complain(problem);
    }
    Ok(if report.problems.is_empty() { Exit::Done } else { Exit::Damaged })
}

fn describe(report: &CopyReport, secs: f64) -> String {
    let mut text = format!(
        "copied {} ({}), {} there already",
        counted(report.packs_copied, "pack", "packs"),
        size(report.bytes_copied),
        counted(report.packs_kept, "was", "were"),
    );
    if report.packs_verified > 0 {
        text += &format!(", {} read again", count(report.packs_verified));
    }
    if report.problems.is_empty() {
        text += &format!(
            "; {} and {} in the copy",
            counted(report.files, "file", "files"),
            counted(report.snapshots, "snapshot", "snapshots")
        );
    } else {
        text += "; the copy is not whole, and not a store yet";
    }
    format!("{text}, in {}\n", duration(secs))
}
