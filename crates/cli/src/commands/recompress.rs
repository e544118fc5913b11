//! `recompress`: rewrites old data with the codec that policies now ask for.

use std::sync::Arc;

use clap::Args;
use outrigger_clock::Instant;
use outrigger_format::CodecChoice;
use outrigger_store::gc::{GcOptions, GcProgress, Recompress, RecompressReport, recompress};

use super::offload::{self, Offload};
use super::{Context, gc};
use crate::args;
use crate::exit::{Exit, Outcome};
use crate::output::{complain, counted, print_report, print_text, size};
use crate::progress::duration;

const EXAMPLES: &str = "\
Examples:
  outrigger policy set / codec=zstd:9 && outrigger recompress
  outrigger recompress --codec zstd:19 --limit 50M
  outrigger recompress --dry-run
  outrigger key rotate && outrigger recompress --rekey      new keys for old data, too

Puts and gets may run meanwhile. Finished work is kept after an interruption, and the next run
continues from there. It needs room for a few packs.";

/// Bring old data to the codec that policies ask for now
///
/// A policy applies to files that are put after it is set. This command converts older data: it
/// writes new packs in place of the old ones.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct RecompressArgs {
    /// Bring all data to this codec, whatever policies say
    #[arg(long, value_parser = args::codec)]
    codec: Option<CodecChoice>,
    /// Keep codecs, and write anew what is encrypted with keys from before `key rotate`
    #[arg(long, conflicts_with = "codec")]
    rekey: bool,
    /// Read at most so many bytes of source per second
    #[arg(long, value_name = "SIZE", value_parser = args::size)]
    limit: Option<u64>,
    /// Only say what the first run would do
    #[arg(long, short = 'n')]
    dry_run: bool,
    #[command(flatten)]
    offload: Offload,
}

pub fn run(context: &Context, args: RecompressArgs) -> Outcome {
    let started = Instant::now();
    let store = if args.dry_run { context.open()? } else { context.open_for_upkeep()? };
    offload::use_devices(context, &store, &args.offload)?;
    crate::interrupt::arm(&store, "finished work is kept; run it again to continue");
    let progress = Arc::new(GcProgress::default());
    let bar = gc::shown(context, &progress);
    let options = GcOptions { dry_run: args.dry_run, threads: context.threads, ..GcOptions::default() };
    let how = Recompress {
        to: args.codec,
        rekey: args.rekey,
        bytes_per_sec: args.limit.unwrap_or(0),
        ..Recompress::default()
    };
    let report = recompress(&store, &how, &options, &progress);
    drop(bar);
    let report = report?;
    if !args.dry_run {
        context.settle(&store);
    }
    if context.json {
        print_report(&report)?;
    } else if !context.quiet {
        print_text(&describe(&report, &args, started.elapsed().as_secs_f64()))?;
    }
    let exit = gc::left_alone(&report.unreadable);
    if exit == Exit::Done && report.packs_left > 0 && !args.dry_run {
        complain("writers use the remaining packs; run it again when they have finished");
        return Ok(Exit::Partial);
    }
    Ok(exit)
}

fn describe(report: &RecompressReport, args: &RecompressArgs, secs: f64) -> String {
    match (args.dry_run, report.packs_left) {
        (true, 0) if args.rekey => return "all packs have the newest keys already\n".to_string(),
        (true, 0) => return "all data has its policies' codec already\n".to_string(),
        (true, left) => return format!("the first run would take {}\n", counted(left, "pack", "packs")),
        (false, _) => {}
    }
    if args.rekey {
        let packs = counted(report.packs, "pack", "packs");
        return format!("{packs} written anew with the newest keys in {}\n", duration(secs));
    }
    format!(
        "{}, {} of source, from {} to {} in {}\n",
        counted(report.frames, "frame", "frames"),
        size(report.raw_bytes),
        size(report.stored_before),
        size(report.stored_after),
        duration(secs)
    )
}
