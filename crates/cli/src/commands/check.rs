//! `check`: are all data there, and undamaged?

use std::sync::Arc;
use std::sync::atomic::Ordering;

use clap::Args;
use outrigger_clock::Instant;
use outrigger_store::catalogue::Head;
use outrigger_store::check::{
    CheckOptions, CheckProgress, CheckReport, Finding, Severity, Trust, check_since,
};

use super::Context;
use crate::exit::{Exit, Outcome};
use crate::operation;
use crate::output::{count, counted, print_report, print_text, size};
use crate::progress::{Bar, duration};

const EXAMPLES: &str = "\
Examples:
  outrigger check                    structures: database, packs, manifests, index; no bytes of files
  outrigger check --read-data        also every byte
  outrigger check --repair           also every byte; repairs what it can
  outrigger check --head             also the database against the catalogue in the packs; prints a head
  outrigger check --trust OHEAD1-... also that the store still has all that this head stands for

Keep a head where nobody can change it who can change the store: on paper, or on another host. With it
you find out later whether packs or the database were set back, exchanged or taken away, in part or as
a whole. Comparing takes about as long as `recover` does, and space for a database in TMPDIR.

Exit code 3: damage was found, and some of it is still there. Undamaged data can still be read.";

const REST: &str = "
to store lost data again, run `outrigger put --rescan SOURCE` on a source that still has it; \
to restore the undamaged parts of a file, run `outrigger get --salvage`";

/// Check that everything is there and undamaged
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct CheckArgs {
    /// Read every frame, and compute every chunk's fingerprint
    #[arg(long)]
    read_data: bool,
    /// Read every frame, too, and repair damage where an undamaged copy or parity exists
    #[arg(long)]
    repair: bool,
    /// Compare the database with the catalogue in the packs, and print a head to keep elsewhere
    #[arg(long)]
    head: bool,
    /// Compare, too, and verify that the store still has what this head stands for
    #[arg(long, value_name = "HEAD")]
    trust: Option<String>,
}

impl CheckArgs {
    fn trust(&self) -> Result<Trust, outrigger_store::Error> {
        Ok(match &self.trust {
            Some(head) => Trust::Since(head.parse::<Head>()?),
            None if self.head => Trust::Present,
            None => Trust::No,
        })
    }
}

pub fn run(context: &Context, args: CheckArgs) -> Outcome {
    let started = Instant::now();
    let trust = args.trust()?;
    let store = if args.repair { context.open_for_changes()? } else { context.open()? };
    crate::interrupt::arm(&store, "no repair is left half done; run it again");
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
    let report = check_since(&store, &options, trust, &progress);
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
        text += &format!("{} found", counted(report.damaged, "damaged object", "damaged objects"));
        if report.mended > 0 {
            text += &format!(", {} repaired", count(report.mended));
        }
        let mendable = report.findings.iter().any(|finding| finding.mendable && !finding.mended);
        if mendable && !args.repair {
            text += "; run `outrigger check --repair` to repair it";
        }
        if args.repair && report.damaged > report.mended {
            text += REST;
        }
        return text + "\n";
    }
    if !quiet {
        let (outcome, what, rest) = match args.read_data {
            true => ("no damage", format!(", {} read", size(report.bytes)), ""),
            false => {
                ("structures are whole", String::new(), "; bytes were not read (--read-data reads them)")
            }
        };
        let mended =
            if report.mended > 0 { format!("; {} repaired", count(report.mended)) } else { String::new() };
        let parity = report.parity.map_or_else(String::new, |parity| {
            format!("; parity protects {}", counted(parity.packs_protected, "pack", "packs"))
        });
        text += &format!(
            "{outcome}: {}, {}, {}{what} in {}{mended}{rest}{parity}\n",
            counted(report.packs, "pack", "packs"),
            counted(report.roots, "file", "files"),
            counted(report.nodes, "manifest node", "manifest nodes"),
            duration(secs)
        );
    }
    if let Some(head) = &report.head {
        text += &if quiet { format!("{head}\n") } else { format!("head: {head}\n") };
    }
    text
}

fn one(finding: &Finding) -> String {
    let state = match (finding.severity, finding.mended) {
        (_, true) => "repaired",
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
