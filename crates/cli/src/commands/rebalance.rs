//! `rebalance`: moves packs between tiers.

use std::ffi::OsString;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use clap::Args;
use outrigger_clock::Instant;
use outrigger_store::rebalance::{RebalanceOptions, RebalanceProgress, RebalanceReport, rebalance};

use super::Context;
use crate::args;
use crate::exit::{Exit, Outcome};
use crate::json::Object;
use crate::output::{complain, counted, print_json, print_text, size};
use crate::progress::{Bar, duration};

const EXAMPLES: &str = "\
Examples:
  outrigger -s ./store init --packs 'file:/mnt/nvme?fill=200G' --packs file:/mnt/disks
  outrigger rebalance --dry-run
  outrigger rebalance --limit 100M
  outrigger rebalance --to-fill 50G        make room ahead of a large put
  outrigger rebalance --up                 fill free room with the newest packs
  outrigger rebalance --up data/runs       ... or with packs that will be read";

/// Move packs down from tiers that hold more than they should
///
/// The oldest packs go first, one tier down.
///
/// For stores whose packs lie in several places (`init` with several --packs). Others may read and
/// write meanwhile, but `gc` has to wait. If it is interrupted, the next run goes on.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct RebalanceArgs {
    /// Move packs up instead, the newest first, into directories that have room for them
    #[arg(long)]
    up: bool,
    /// With --up: only packs with data of this file, or of files below this directory
    #[arg(requires = "up")]
    path: Option<OsString>,
    /// Leave at most this much in each tier but the last, whatever its bound is; with --up, fill
    /// each up to this much
    #[arg(long, value_name = "SIZE", value_parser = args::size)]
    to_fill: Option<u64>,
    /// Move at most so many bytes per second
    #[arg(long, value_name = "SIZE", value_parser = args::size)]
    limit: Option<u64>,
    /// Say what would be moved, and move nothing
    #[arg(long)]
    dry_run: bool,
}

pub fn run(context: &Context, args: RebalanceArgs) -> Outcome {
    let began = Instant::now();
    let path = args.path.as_deref().map(args::store_path).transpose()?;
    let store = context.open_for_upkeep()?;
    let options = RebalanceOptions {
        up: args.up,
        path,
        dry_run: args.dry_run,
        to_fill: args.to_fill,
        bytes_per_sec: args.limit.unwrap_or(0),
    };
    let progress = Arc::new(RebalanceProgress::default());
    let shown = Arc::clone(&progress);
    let bar = Bar::with(context.quiet, move |_| {
        let (done, all) =
            (shown.bytes_done.load(Ordering::Relaxed), shown.bytes_expected.load(Ordering::Relaxed));
        format!("moving: {} of {}", size(done), size(all))
    });
    let report = rebalance(&store, &options, &progress);
    drop(bar);
    let report = report?;
    if context.json {
        print_json(json(&report))?;
    } else if !context.quiet {
        print_text(&describe(&report, began.elapsed().as_secs_f64()))?;
    }
    report.problems.iter().for_each(|problem| complain(problem));
    Ok(if report.problems.is_empty() { Exit::Done } else { Exit::Damaged })
}

fn json(report: &RebalanceReport) -> Object {
    Object::new()
        .with("dry_run", report.dry_run)
        .with("packs", report.packs)
        .with("bytes", report.bytes)
        .with("tiers", serde_json::to_value(&report.tiers).expect("names and numbers serialise"))
        .with("problems", report.problems.clone())
}

fn describe(report: &RebalanceReport, secs: f64) -> String {
    let what = format!("{}, {}", counted(report.packs, "pack", "packs"), size(report.bytes));
    let mut text = match report.dry_run {
        true => format!("{what} would be moved\n"),
        false => format!("{what} moved in {}\n", duration(secs)),
    };
    for tier in &report.tiers {
        text +=
            &format!("{:>10}, then {:>10}  {}\n", size(tier.bytes_before), size(tier.bytes_after), tier.tier);
    }
    text
}
