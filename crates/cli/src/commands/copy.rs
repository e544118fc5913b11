//! `copy`: copies a store to another place, on any engine. `--follow` keeps the copy up to date.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use clap::Args;
use outrigger_clock::Instant;
use outrigger_fuse::mounts;
use outrigger_store::backend::Location;
use outrigger_store::copy::{CopyEncryption, CopyOptions, CopyProgress, CopyReport, copy};
use outrigger_store::keys::{NewKeys, slots};
use outrigger_store::{Error, ErrorKind, Store};

use super::{Context, init};
use crate::args;
use crate::exit::{Exit, Failure, Outcome};
use crate::interrupt;
use crate::operation;
use crate::output::{complain, count, counted, print_report, print_text, size};
use crate::progress::{Bar, duration};

const EXAMPLES: &str = "\
Examples:
  outrigger copy ./store /mnt/backup/store                     to another disk
  outrigger copy ./store ./big --packs 's3://bucket/store?endpoint=http://gateway:7480'
  outrigger copy ./store ./big --packs rados://pool/store      packs in a Ceph pool
  outrigger copy ./store 'postgres://me@db/data?schema=team' --packs s3://bucket/team
                                                               packs and metadata: hosts share the copy
  outrigger copy ./plain ./store --encrypt                     an encrypted copy of a plain store
  outrigger copy 'postgres://me@db/data?schema=team' ./small   and back
  outrigger copy ./store ./replica --follow 60                 copy changes every minute

The copy is a mirror: it loses files and snapshots that the source has deleted. Versions, snapshots,
policies and rules are copied, too, and each pack is checked. Writers of the source do not wait.
After an interruption, the same command continues.

To use the copy instead of the source, end `copy --follow` and name the copy: `outrigger -s
./replica ...`. Write to one of the two only. A copy that was written to is a store of its own,
and takes no further `copy`.

With --follow every round copies the state of one moment, says how old that is, and tries again
when the source or the copy does not answer. `outrigger status` of the copy says how far it is
behind.";

/// Copy a store to another place, checked
///
/// The copy becomes equal to the source, and loses what the source has deleted. The copy's packs
/// and metadata may lie on any engine.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct CopyArgs {
    /// The store: its directory, or the URL of its database
    source: PathBuf,
    /// The copy, new or of an earlier run: a directory or postgres://user@host/database?schema=NAME
    destination: PathBuf,
    /// Where the copy's packs go: file:/DIR, s3://BUCKET/PREFIX?endpoint=URL or
    /// rados://POOL/NAMESPACE [default: the copy's directory]
    #[arg(long, value_name = "URL")]
    packs: Option<String>,
    /// Encrypt a new copy of a store that is not encrypted: with the key in --key-file, which is made
    /// if it is not there, or in ~/.config/outrigger/keys
    #[arg(long, conflicts_with = "no_encryption")]
    encrypt: bool,
    /// Do not encrypt a new copy of an encrypted store [default: it has the source's keys]
    #[arg(long)]
    no_encryption: bool,
    /// Read all packs of the copy again when it is done
    #[arg(long)]
    verify: bool,
    /// Repeat until interrupted: copy every so many seconds what has changed
    #[arg(long, value_name = "SECS", num_args = 0..=1, default_missing_value = "60")]
    follow: Option<u64>,
}

/// Why a round of copying failed.
struct Failed {
    failure: Failure,
    /// A later attempt may succeed.
    passes: bool,
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        let passes = matches!(
            error.kind(),
            ErrorKind::Busy | ErrorKind::Io | ErrorKind::Fenced | ErrorKind::Changed | ErrorKind::Full
        );
        Self { failure: error.into(), passes }
    }
}

impl From<Failure> for Failed {
    fn from(failure: Failure) -> Self {
        let passes = failure.exit == Exit::Failed;
        Self { failure, passes }
    }
}

pub fn run(context: &Context, args: CopyArgs) -> Outcome {
    args::check_store(&args.source)?;
    args::check_store(&args.destination)?;
    refuse_own_mount(&args.source, &args.destination)?;
    let packs = args.packs.as_deref().map(Location::parse).transpose()?;
    let encryption = match (args.encrypt, args.no_encryption) {
        (true, _) => CopyEncryption::New(new_keys(&args.source, &args.destination)?),
        (false, true) => CopyEncryption::Plain,
        (false, false) => CopyEncryption::Same,
    };
    let (to, threads, verify) = (args.destination, context.threads, args.verify);
    let options = CopyOptions { to, packs, threads, verify, encryption };
    let mut round = 0u64;
    loop {
        match (once(context, &args.source, &options, round == 0), args.follow) {
            (Ok(Exit::Done), Some(_)) => round += 1,
            (Ok(exit), _) => return Ok(exit),
            // A failure of the first round ends the command: most likely the user meant something
            // else.
            (Err(failed), Some(secs)) if failed.passes && round > 0 => {
                complain(&format!("{}; trying again in {} s", failed.failure.message, secs.max(1)));
            }
            (Err(failed), _) => return Err(failed.failure),
        }
        outrigger_clock::sleep(Duration::from_secs(args.follow.unwrap_or_default().max(1)));
    }
}

/// Keys for a copy of the store `source`, which is not encrypted.
fn new_keys(source: &Path, to: &Path) -> Result<NewKeys, Failure> {
    let store = Store::open_to_look(source)?;
    if store.config.is_encrypted() {
        let why = "the source is encrypted, and a copy has its keys; leave --encrypt out";
        return Err(Failure::usage(why));
    }
    let is_there = slots::ring_of(to).is_some();
    let mut keys = NewKeys::new(store.config.id)?;
    if !is_there {
        init::first_slots(&mut keys, false)?;
    }
    Ok(keys)
}

/// Refuses a destination that lies in a mount of the source.
fn refuse_own_mount(source: &Path, to: &Path) -> Result<(), Failure> {
    let (Ok(source), Ok(to)) = (source.canonicalize(), std::path::absolute(to)) else { return Ok(()) };
    let device = to.ancestors().find_map(|above| rustix::fs::stat(above).ok()).map(|stat| stat.st_dev);
    match mounts::of_store(&source).unwrap_or_default().into_iter().find(|row| Some(row.device) == device) {
        None => Ok(()),
        Some(row) => Err(Failure::usage(format!(
            "the copy would lie in {}, a mount of this store; name a place elsewhere, best on another disk",
            row.point.display()
        ))),
    }
}

fn once(context: &Context, source: &Path, options: &CopyOptions, is_first: bool) -> Result<Exit, Failed> {
    let started = Instant::now();
    context.neighbour().stored(source)?;
    let store = Store::open(source, false)?;
    if is_first {
        // One handler is enough: it also closes the sessions of later rounds, which belong to this
        // process.
        interrupt::arm(&store, "copied packs are kept; run the same command again to continue");
    }
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
    operation::step("round", &describe(&report, started.elapsed().as_secs_f64()));
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
        let mut gone = Vec::new();
        if report.snapshots_removed > 0 {
            gone.push(format!("{} removed", counted(report.snapshots_removed, "snapshot", "snapshots")));
        }
        if report.files_fewer > 0 {
            gone.push(format!("{} fewer than before", counted(report.files_fewer, "file", "files")));
        }
        if !gone.is_empty() {
            text += &format!(" ({})", gone.join(", "));
        }
        text += &format!(", as of {} ago", duration(report.behind_ms as f64 / 1000.0));
        if report.packs_behind > 0 {
            let packs = counted(report.packs_behind, "pack", "packs");
            text += &format!(", {packs} ({}) behind", size(report.bytes_behind));
        }
    } else {
        text += "; the copy is incomplete; only packs were changed";
    }
    format!("{text}, in {}\n", duration(secs))
}
