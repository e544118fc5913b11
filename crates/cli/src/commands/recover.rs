//! `recover`: makes a new database from the packs alone.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use clap::Args;
use outrigger_store::backend::Location;
use outrigger_store::catalogue::Head;
use outrigger_store::recover::{RecoverProgress, RecoverReport, adopt, recover_shared, recover_since};
use outrigger_store::{Store, shared};

use super::Context;
use crate::exit::{Exit, Failure, Outcome};
use crate::output::{complain, count, counted, print_report, print_text};
use crate::progress::Bar;

const EXAMPLES: &str = "\
Examples:
  # the database is lost, or cannot be opened
  outrigger -s ./store recover
  # the whole directory is lost
  outrigger -s ./new recover --packs 's3://bucket/store?endpoint=http://gateway:7480'
  # the database is stale (older than its packs)
  outrigger -s 'postgres://me@db/data?schema=team' recover --anyway
  # the database in PostgreSQL is lost
  outrigger -s 'postgres://me@db/data?schema=team' recover --packs s3://bucket/team
  # packs may have been taken away or put back, and a head was kept elsewhere
  outrigger -s ./store recover --trust OHEAD1-...

Every commit is also written into packs, so files, versions and snapshots come back as they were.
The old database is moved aside, never deleted: to a file beside the new one, or in PostgreSQL to a
schema whose name says so. Jobs, rules and grants to roles are not in the packs.

A database in use is refused. So is one that can be opened, without --anyway: it may have changes of
names in shared mounts that are not in the packs yet (those of the last seconds, and those of killed
mounts until `gc` has run).

Files whose directory's name is lost go into /recovered-directories. Exit code 3: something could
not be recovered, or not to its place; the output names it.";

/// Rebuild a lost or damaged database from the packs
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct RecoverArgs {
    /// Where the packs lie, if the store's directory or schema is lost: it is created again
    #[arg(long, value_name = "URL")]
    packs: Option<String>,
    /// Set the database aside even if it can be opened
    #[arg(long)]
    anyway: bool,
    /// Refuse packs that do not have what this head stands for (`outrigger check --head` prints one)
    #[arg(long, value_name = "HEAD")]
    trust: Option<String>,
}

pub fn run(context: &Context, args: RecoverArgs) -> Outcome {
    let dir = context.store_dir()?;
    let packs = args.packs.as_deref().map(Location::parse).transpose()?;
    let head = args.trust.as_deref().map(str::parse::<Head>).transpose()?;
    let url = shared::url(dir);
    if !args.anyway && packs.is_none() && Store::open_to_look(dir).is_ok() {
        return Err(Failure::failed(
            "the database can be opened, and may have more than the packs: jobs, rules, and recent changes of names in shared mounts; if \
             `outrigger check` finds it damaged or stale, `outrigger recover --anyway` sets it aside and rebuilds it",
        ));
    }
    if let (None, Some(packs)) = (url, &packs) {
        adopt(dir, packs)?;
    }
    let progress = Arc::new(RecoverProgress::default());
    let shown = Arc::clone(&progress);
    let bar = Bar::with(context.quiet, move |_| {
        let get = |counter: &std::sync::atomic::AtomicU64| count(counter.load(Ordering::Relaxed));
        format!(
            "{} of {} packs, {} of {} catalogue blocks",
            get(&shown.packs_done),
            get(&shown.packs_expected),
            get(&shown.blocks_done),
            get(&shown.blocks_expected)
        )
    });
    let report = match url {
        Some(url) => recover_shared(url, packs.as_ref(), head.as_ref(), &progress),
        None => recover_since(dir, head.as_ref(), &progress),
    };
    drop(bar);
    let report = report?;
    if context.json {
        print_report(&report)?;
    } else if !context.quiet {
        print_text(&describe(&report))?;
    }
    for problem in &report.problems {
        complain(problem);
    }
    Ok(if report.problems.is_empty() { Exit::Done } else { Exit::Damaged })
}

fn describe(report: &RecoverReport) -> String {
    let mut text = format!(
        "recovered {}, {}, {} from {}",
        counted(report.files, "file", "files"),
        counted(report.directories, "directory", "directories"),
        counted(report.snapshots, "snapshot", "snapshots"),
        counted(report.packs, "pack", "packs"),
    );
    if report.packs_salvaged + report.packs_dropped > 0 {
        text +=
            &format!("; {} salvaged, {} dropped", count(report.packs_salvaged), count(report.packs_dropped));
    }
    if let Some(old) = &report.old_database {
        text += &format!("; the old database is now {}", old.display());
    }
    text + "\n"
}
