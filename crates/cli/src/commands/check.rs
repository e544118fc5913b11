//! `check`: are all data there, and undamaged?

use std::sync::Arc;
use std::sync::atomic::Ordering;

use clap::Args;
use outrigger_clock::Instant;
use outrigger_store::check::{CheckOptions, CheckProgress, CheckReport, Finding, Severity, check};

use super::Context;
use crate::exit::{Exit, Outcome};
use crate::operation;
use crate::output::{count, counted, print_report, print_text, size};
use crate::progress::{Bar, duration};

const EXAMPLES: &str = "\
Examples:
  outrigger check                    structures: database, packs, manifests, index
  outrigger check --read-data        also every byte
  outrigger check --repair           finds all of that, mends what can be mended, and says what to do about the rest

Exit code 3 says that damage was found and is still there. What is not touched by it can be read all the same.";

const REST: &str = "
what is lost is stored again where its source still has it: `outrigger put --rescan SOURCE`; \
`outrigger get --salvage` restores what is left of a damaged file";

/// Check that everything is there and undamaged
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct CheckArgs {
    /// Read every frame, and compute every chunk's fingerprint
    #[arg(long)]
    read_data: bool,
    /// Read every frame, too, and repair damage where an undamaged copy exists
    #[arg(long)]
    repair: bool,
}

pub fn run(context: &Context, args: CheckArgs) -> Outcome {
    let started = Instant::now();
    let store = if args.repair { context.open_for_changes()? } else { context.open()? };
    crate::interrupt::arm(&store, "nothing was changed that is not finished, run it again");
    let progress = Arc::new(CheckProgress::default());
    let shown = Arc::clone(&progress);
    let bar = Bar::with(context.quiet, move |elapsed| {
        let get = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        let done = get(&shown.bytes_done);
        let rate = size((done as f64 / elapsed.as_secs_f64().max(0.001)) as u64);
        format!(
            "checked {}, {} of {}, {rate}/s",
            counted(get(&shown.roots), "file", "files"),
            size(done),
            size(get(&shown.bytes_expected))
        )
    });
    let args = CheckArgs { read_data: args.read_data || args.repair, ..args };
    let options = CheckOptions { read_data: args.read_data, repair: args.repair, threads: context.threads };
    let report = check(&store, &options, &progress);
    drop(bar);
    let report = report?;
    operation::step("done", &describe(&report, &args, false, started.elapsed().as_secs_f64()));
    if args.repair {
        context.settle(&store);
    }
    if context.json {
        print_report(&report)?;
    } else {
        print_text(&describe(&report, &args, context.quiet, started.elapsed().as_secs_f64()))?;
    }
    Ok(if report.damaged > 0 { Exit::Damaged } else { Exit::Done })
}

fn describe(report: &CheckReport, args: &CheckArgs, quiet: bool, secs: f64) -> String {
    let mut text = String::new();
    for finding in &report.findings {
        if finding.severity == Severity::Damage || !quiet {
            text += &one(finding);
        }
    }
    if report.damaged > 0 {
        text += &format!("{} found", counted(report.damaged, "damage", "damages"));
        if report.mended > 0 {
            text += &format!(", {} mended", count(report.mended));
        }
        let mendable = report.findings.iter().any(|finding| finding.mendable && !finding.mended);
        if mendable && !args.repair {
            text += "; `outrigger check --repair` mends what can be mended";
        }
        if args.repair && report.damaged > report.mended {
            text += REST;
        }
        return text + "\n";
    }
    if !quiet {
        let what = if args.read_data { format!(", {} read", size(report.bytes)) } else { String::new() };
        let mended =
            if report.mended > 0 { format!("; {} mended", count(report.mended)) } else { String::new() };
        text += &format!(
            "no damage: {}, {}, {}{what} in {}{mended}\n",
            counted(report.packs, "pack", "packs"),
            counted(report.roots, "file", "files"),
            counted(report.nodes, "manifest node", "manifest nodes"),
            duration(secs)
        );
    }
    text
}

fn one(finding: &Finding) -> String {
    let state = match (finding.severity, finding.mended) {
        (_, true) => "mended",
        (Severity::Damage, _) => "damage",
        (Severity::Note, _) => "note",
    };
    let mut text = format!("{state}: {}\n", finding.what);
    for file in &finding.files {
        let mut place = String::new();
        if let Some(version) = file.version {
            place += &format!(", version {version}");
        }
        if let Some(snapshot) = &file.snapshot {
            place += &format!(", snapshot {snapshot}");
        }
        text += &format!("  {}{place}: {} from byte {}\n", file.path, size(file.bytes), count(file.offset));
    }
    if finding.files_more > 0 {
        text += &format!("  and {}\n", counted(finding.files_more, "more file", "more files"));
    }
    text
}
