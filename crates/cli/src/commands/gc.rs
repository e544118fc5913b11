//! `gc`: frees the space of data that nothing refers to any more.

use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use outrigger_active::runner::forget_ended as forget;
use outrigger_clock::Instant;
use outrigger_store::Store;
use outrigger_store::gc::{GcOptions, GcProgress, GcReport, collect};
use outrigger_store::ops::snapshots;
use outrigger_store::parity::Upkeep;
use outrigger_store::snapshot::facts::{Facts, Kind};

use super::Context;
use crate::exit::{Exit, Failure, Outcome};
use crate::operation;
use crate::output::{complain, count, counted, print_report, print_text, size};
use crate::progress::{Bar, duration};

const EXAMPLES: &str = "\
Examples:
  outrigger gc --dry-run
  outrigger gc
  outrigger gc --grace 86400      keep packs another day, for databases restored from a copy

First it deletes automatic snapshots older than 30 days (`outrigger keep --automatic` sets the
age); `undo` cannot undo their commands after that. It lists other snapshots that keep data. Puts
and gets may run meanwhile: they do not wait for it, and it frees nothing that they need.";

/// Free the space of data that nothing refers to any more
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct GcArgs {
    /// Only say what would be freed
    #[arg(long, short = 'n')]
    dry_run: bool,
    /// Seconds between marking a pack for deletion and removing it
    #[arg(long, value_name = "SECS", default_value_t = 0)]
    grace: u64,
    /// Forget jobs that failed or were cancelled so many days ago, and the results of their
    /// finished splits
    #[arg(long, value_name = "DAYS", default_value_t = 30)]
    forget_jobs: u64,
}

pub fn run(context: &Context, args: GcArgs) -> Outcome {
    let started = Instant::now();
    let store = if args.dry_run { context.open()? } else { context.open_for_upkeep()? };
    crate::interrupt::arm(&store, "no data is lost; run it again");
    let forgotten = if args.dry_run { 0 } else { forget_ended(&store, args.forget_jobs)? };
    if forgotten > 0 && !context.quiet && !context.json {
        let jobs = counted(forgotten, "job", "jobs");
        print_text(&format!("forgot {jobs} that had failed or been cancelled\n"))?;
    }
    let expired = snapshots::expired(&store, None)?;
    if !args.dry_run {
        snapshots::delete(&store, &expired)?;
    }
    if !expired.is_empty() && !context.quiet && !context.json {
        let what = if args.dry_run { "would delete" } else { "deleted" };
        let many = counted(expired.len() as u64, "automatic snapshot", "automatic snapshots");
        print_text(&format!("{what} {many} older than {}\n", snapshots::automatic_age(&store)?))?;
    }
    let progress = Arc::new(GcProgress::default());
    let bar = shown(context, &progress);
    let options = GcOptions {
        dry_run: args.dry_run,
        grace_secs: args.grace,
        threads: context.threads,
        ..GcOptions::default()
    };
    let report = collect(&store, &options, &progress);
    drop(bar);
    let report = report?;
    operation::step("done", &describe(&report, started.elapsed().as_secs_f64()));
    if !args.dry_run {
        context.settle(&store);
    }
    if context.json {
        print_report(&report)?;
    } else if !context.quiet {
        print_text(&(describe(&report, started.elapsed().as_secs_f64()) + &holders(&store)?))?;
    }
    if report.catalogue_differs {
        complain(
            "the catalogue in the packs was not written anew, as the database is not what it says: \
             `outrigger check --head` names the differences",
        );
    }
    Ok(left_alone(&report.unreadable))
}

/// Says which snapshots keep content that is no longer in the tree, so that the user looks there
/// for the space.
fn holders(store: &Store) -> Result<String, Failure> {
    let facts: Vec<_> = store.meta.snapshots()?.into_iter().map(|row| (Facts::of(&row), row.name)).collect();
    let of = |kind: Kind| facts.iter().filter(move |(facts, _)| facts.kind == kind);
    let mut parts = Vec::new();
    for (kind, how) in [
        (Kind::Automatic, format!("each for {}", snapshots::automatic_age(store)?)),
        (Kind::Dated, "until `outrigger keep` deletes them".to_string()),
        (Kind::Named, "until they are deleted by name".to_string()),
    ] {
        let names: Vec<&str> = of(kind).map(|(_, name)| name.as_str()).collect();
        if !names.is_empty() {
            let shown = if names.len() > 3 { String::new() } else { format!(" ({})", names.join(", ")) };
            parts.push(format!("{} {}{shown} {how}", count(names.len() as u64), kind.name()));
        }
    }
    if parts.is_empty() {
        return Ok(String::new());
    }
    Ok(format!(
        "snapshots keep removed and replaced data: {}; `outrigger snapshot list` shows them\n",
        parts.join(", ")
    ))
}

fn forget_ended(store: &Store, days: u64) -> Result<u64, Failure> {
    Ok(forget(store, Duration::from_secs(days.saturating_mul(24 * 3600)))?)
}

/// Shows the progress of a run of the collector.
pub fn shown(context: &Context, progress: &Arc<GcProgress>) -> Option<Bar> {
    let shown = Arc::clone(progress);
    Bar::with(context.quiet, move |_| match shown.view() {
        (phase, _, 0) => phase,
        (phase, done, total) => format!("{phase}: {} of {}", count(done), count(total)),
    })
}

/// Names what a run of the collector could not read, and returns the exit code for it.
pub fn left_alone(unreadable: &[String]) -> Exit {
    for why in unreadable {
        complain(&format!("skipped a pack: {why}"));
    }
    if unreadable.is_empty() {
        return Exit::Done;
    }
    complain("run `outrigger check --repair` to find and repair all damage");
    Exit::Damaged
}

/// Describes the work for parity; empty if the store has none.
fn of_parity(parity: &Upkeep) -> String {
    if !parity.is_on {
        return match parity.groups_removed {
            0 => String::new(),
            removed => format!("removed the parity of {}\n", counted(removed, "group", "groups")),
        };
    }
    let mut text = format!("parity protects {}", counted(parity.packs_protected, "pack", "packs"));
    if parity.packs_unprotected > 0 {
        text += &format!(", and not {}", counted(parity.packs_unprotected, "pack", "packs"));
    }
    if parity.groups_made > 0 {
        text += &format!(
            "; made {} ({})",
            counted(parity.groups_made, "group", "groups"),
            size(parity.bytes_written)
        );
    }
    if parity.is_full {
        text += "; the disk has no room for more: free some space and run gc again";
    }
    text + "\n"
}

fn describe(report: &GcReport, secs: f64) -> String {
    let in_use = format!("{} in use, {} not", size(report.live_bytes), size(report.dead_bytes));
    if report.dry_run {
        return format!(
            "{in_use}; {} would be emptied, {} would be freed\n",
            counted(report.packs_marked, "pack", "packs"),
            size(report.bytes_before.saturating_sub(report.bytes_after)),
        );
    }
    // The net gain, as a dry run states it: data still in use in the removed packs was copied into
    // others.
    let mut text = format!(
        "{in_use}; freed {}: removed {} ({}), after copying {} still in use; in {}\n",
        size(report.bytes_freed.saturating_sub(report.bytes_copied)),
        counted(report.packs_unlinked, "pack", "packs"),
        size(report.bytes_freed),
        size(report.bytes_copied),
        duration(secs)
    );
    text += &of_parity(&report.parity);
    if report.chunks_packed > 0 {
        let chunks = counted(report.chunks_packed, "chunk", "chunks");
        text += &format!("packed {chunks} of small files that ended mounts had left in the database\n");
    }
    if report.packs_without_room > 0 {
        text += &format!(
            "{} in part, but the disk has no room to copy the used data; free some space and run gc again\n",
            counted(report.packs_without_room, "pack is used", "packs are used")
        );
    }
    if report.packs_waiting > 0 {
        text += &format!(
            "{} for the end of the grace period; run gc again then\n",
            counted(report.packs_waiting, "pack waits", "packs wait")
        );
    }
    text
}
