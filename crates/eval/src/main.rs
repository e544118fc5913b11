//! `outrigger-eval`: runs experiments, keeps records, writes the report.
#![allow(clippy::disallowed_methods, reason = "it measures, and waits, in real time")]

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use clap::{Parser, Subcommand};
use outrigger_eval::record::{SCHEMA, command};
use outrigger_eval::{Experiment, Failed, Lab, Machine, Record, Scale, registry, report};

const RECORDS: &str = "docs/evaluation/records";
const REPORT: &str = "target/evaluation";

/// Every experiment of the papers that Outrigger grew from
#[derive(Parser)]
#[command(name = "outrigger-eval", version)]
struct Arguments {
    #[command(subcommand)]
    command: What,
}

#[derive(Subcommand)]
enum What {
    /// List the experiments
    List,
    /// Run experiments (all, if none is named), and keep a record of each
    Run {
        /// Their names, or beginnings of names: `ghost`, `storegpu-4`
        ids: Vec<String>,
        /// tiny (answers only), short (20 minutes in all), full (the papers' sizes, as far as this
        /// machine has room: two hours and a half)
        #[arg(long, default_value = "short", value_parser = Scale::parse)]
        scale: Scale,
        /// Resume an interrupted run: skip experiments that have a record of this machine and
        /// scale, from a commit with the same sources
        #[arg(long)]
        resume: bool,
        /// Where records are kept, one directory per machine
        #[arg(long, default_value = RECORDS)]
        records: PathBuf,
        /// A directory on the file system to be measured [default: that of temporary files]
        #[arg(long)]
        work: Option<PathBuf>,
        /// The output of `bench/data.sh`, for real images and trees
        #[arg(long, env = "BENCH_DATA")]
        data: Option<PathBuf>,
        /// The program `outrigger` [default: beside this one]
        #[arg(long)]
        outrigger: Option<PathBuf>,
    },
    /// Write report.md and report.html from the existing records, without measuring
    Report {
        /// Where the records are
        #[arg(long, default_value = RECORDS)]
        records: PathBuf,
        /// Where the report goes
        #[arg(long, default_value = REPORT)]
        out: PathBuf,
        /// Also write each plot to its own file, light and dark
        #[arg(long, value_name = "DIR")]
        svg: Option<PathBuf>,
    },
}

fn main() -> ExitCode {
    match run(Arguments::parse().command) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("outrigger-eval: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: What) -> Result<ExitCode, Failed> {
    match command {
        What::List => {
            for experiment in registry::all() {
                println!("{:24} {:22} {}", experiment.id, experiment.figure, experiment.title);
            }
        }
        What::Run { ids, scale, resume, records, work, data, outrigger } => {
            let work = work.unwrap_or_else(std::env::temp_dir);
            let room = tempfile::tempdir_in(&work)?;
            let threads = std::thread::available_parallelism().map_or(1, usize::from);
            let outrigger = outrigger.or_else(beside).map(std::path::absolute).transpose()?;
            let lab = Lab { scale, work: room.path().to_path_buf(), outrigger, data, threads };
            return run_all(&lab, &chosen(&ids)?, &records, resume);
        }
        What::Report { records, out, svg } => {
            let records = Record::load_all(&records)?;
            report::write(&registry::all(), &records, &out)?;
            println!("{} records; wrote {}", records.len(), out.join("report.md").display());
            if let Some(svg) = svg {
                report::write_plots(&registry::all(), &records, &svg)?;
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn chosen(ids: &[String]) -> Result<Vec<Experiment>, Failed> {
    let all = registry::all();
    if let Some(unknown) = ids.iter().find(|id| !all.iter().any(|one| one.id.starts_with(&**id))) {
        return Err(Failed::Program(format!(
            "no experiment is called `{unknown}`; `outrigger-eval list` has them"
        )));
    }
    // A whole name selects only that experiment.
    let wanted = |one: &Experiment| {
        ids.iter().any(|id| one.id == id || !all_ids().contains(&id.as_str()) && one.id.starts_with(&**id))
    };
    Ok(registry::all().into_iter().filter(|one| ids.is_empty() || wanted(one)).collect())
}

fn all_ids() -> Vec<&'static str> {
    registry::all().iter().map(|one| one.id).collect()
}

/// Runs experiments one after the other. It reports missing programs and failures; failures set the
/// exit code.
fn run_all(
    lab: &Lab,
    experiments: &[Experiment],
    records: &std::path::Path,
    resume: bool,
) -> Result<ExitCode, Failed> {
    let machine = Machine::here(&lab.work);
    let commit = commit();
    println!("{}", machine.describe());
    if !is_whole(&commit) && lab.scale != Scale::Tiny {
        println!(
            "warning: files were changed since the last commit, or there is none: these records cannot be told from others of commit `{commit}`; commit before you keep them"
        );
    }
    if resume && !is_whole(&commit) {
        println!(
            "--resume: files were changed since the last commit, or there is none: everything is run again"
        );
    }
    let (mut ran, mut left_out, begun) = (0, 0, Instant::now());
    let (mut skipped, mut failed): (Vec<String>, Vec<String>) = (Vec::new(), Vec::new());
    for (n, experiment) in experiments.iter().enumerate() {
        let place = format!("[{}/{}] {:24}", n + 1, experiments.len(), experiment.id);
        let before = Record::of(records, &machine, experiment.id)?.filter(|record| record.scale == lab.scale);
        if let Some(before) = before.as_ref().filter(|_| resume && is_whole(&commit))
            && same_sources(&before.commit, &commit)
            // A script's record may be new.
            && before.outcome.drawn_from.is_none()
        {
            left_out += 1;
            println!("{place} there already, of {}", before.date);
            continue;
        }
        // The last run's time, so that a hang is noticed.
        let before =
            before.map_or_else(String::new, |before| format!(" (last time {:.0} s)", before.seconds));
        print!("{place} runs{before} ... ");
        std::io::stdout().flush()?;
        // At this moment nothing of this program runs.
        let others = Machine::busy(Duration::from_millis(500));
        let started = Instant::now();
        let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
        let result = (experiment.run)(lab).and_then(|outcome| outcome.check().map(|()| outcome));
        let seconds = started.elapsed().as_secs_f64();
        match result {
            Ok(outcome) => {
                let record = Record {
                    schema: SCHEMA,
                    experiment: experiment.id.to_string(),
                    scale: lab.scale,
                    date: jiff::Timestamp::now().strftime("%Y-%m-%d").to_string(),
                    version: env!("CARGO_PKG_VERSION").to_string(),
                    commit: commit.clone(),
                    machine: machine.clone(),
                    others: outcome.drawn_from.is_none().then_some(others),
                    load: load.split(' ').next().and_then(|load| load.parse().ok()).unwrap_or(0.0),
                    command: command(experiment.id, lab.scale, lab.data.is_some()),
                    seconds,
                    outcome,
                };
                record.save(records)?;
                ran += 1;
                println!("{seconds:.1} s; {:.0} min so far", begun.elapsed().as_secs_f64() / 60.0);
            }
            Err(Failed::Missing(why)) => {
                println!("skipped: {why}");
                skipped.push(format!("{} ({why})", experiment.id));
            }
            Err(error) => {
                println!("FAILED: {error}");
                failed.push(experiment.id.to_string());
            }
        }
    }
    println!(
        "{ran} of {} experiments ran, in {:.0} s{}{}{}; records are in {}",
        experiments.len(),
        begun.elapsed().as_secs_f64(),
        if left_out > 0 { format!("; {left_out} were there already") } else { String::new() },
        told("skipped", &skipped),
        told("FAILED", &failed),
        records.join(machine.slug()).display()
    );
    Ok(if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// `; skipped: a (why), b (why)`, or nothing.
fn told(what: &str, which: &[String]) -> String {
    if which.is_empty() { String::new() } else { format!("; {what}: {}", which.join(", ")) }
}

/// True if a commit fully determines the sources.
fn is_whole(commit: &str) -> bool {
    !commit.is_empty() && !commit.ends_with('+')
}

/// True if the measured sources were the same then: documents and other records may have been
/// committed since.
fn same_sources(before: &str, commit: &str) -> bool {
    let unchanged = || {
        let mut git = Command::new("git");
        git.args(["diff", "--quiet", before, commit, "--", "crates", "Cargo.lock"]);
        git.output().is_ok_and(|out| out.status.success())
    };
    before == commit || is_whole(before) && unchanged()
}

/// The program of the same build.
fn beside() -> Option<PathBuf> {
    let path = std::env::current_exe().ok()?.with_file_name("outrigger");
    path.exists().then_some(path)
}

/// The commit of the checkout in the working directory; empty elsewhere. `+` means that files have
/// changed since.
fn commit() -> String {
    let git = |arguments: &[&str]| {
        let out = Command::new("git").args(arguments).output().ok().filter(|out| out.status.success())?;
        Some(String::from_utf8_lossy(&out.stdout).trim().to_string())
    };
    let Some(commit) = git(&["rev-parse", "--short", "HEAD"]) else { return String::new() };
    let changed = git(&["status", "--porcelain", "--untracked-files=no", "--", "crates", "Cargo.lock"]);
    if changed.is_none_or(|changed| changed.is_empty()) { commit } else { commit + "+" }
}
