//! `jobs`, and `job show|logs|wait|cancel|retry|forget`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, Subcommand};
use outrigger_active::component::SHORT;
use outrigger_active::job::Held;
use outrigger_active::job::spec::{Output, Spec};
use outrigger_active::node::is_served;
use outrigger_active::runner::{Forecast, Measured, left_of, made, measured, runner_of, set_aside};
use outrigger_active::trust::Trust;
use outrigger_active::written::host_of;
use outrigger_clock::Instant;
use outrigger_format::catalogue::Time;
use outrigger_store::meta::jobs::{JobId, JobInput, JobRow, JobState, SplitRow, SplitState};
use outrigger_store::text::show;
use outrigger_store::{Error, ErrorKind, Store};

use super::job_hosts::Hosts;
use super::nearby::{describe_nearby, nearby_json, nearby_of};
use super::trust::TrustArgs;
use super::{Context, beside, run};
use crate::exit::{Exit, Failure, Outcome};
use crate::json::{Object, rfc3339_nanos};
use crate::output::{Out, complain, count, local, print_json, print_text, size};
use crate::progress::duration;

/// List jobs, newest first
#[derive(Args)]
#[command(after_help = "Examples:\n  outrigger jobs\n  outrigger jobs --limit 5 --json")]
pub struct JobsArgs {
    /// List at most so many
    #[arg(long, default_value_t = 20, value_name = "N")]
    limit: usize,
}

/// Show, wait for, stop, retry or forget a job
#[derive(Subcommand)]
#[command(after_help = "Examples:\n  outrigger job show 7\n  outrigger job wait 7 && outrigger job logs 7")]
pub enum JobCommand {
    /// Show what a job does and how far it is
    #[command(after_help = "Examples:\n  outrigger job show 7\n  outrigger job show 7 --json")]
    Show(JobArgs),
    /// Show what its programs wrote to standard error
    #[command(after_help = "Examples:\n  outrigger job logs 7\n  outrigger job logs 7 --split 3")]
    Logs {
        #[command(flatten)]
        job: JobArgs,
        /// Only of this split
        #[arg(long, value_name = "N")]
        split: Option<u64>,
    },
    /// Wait until a job has ended; the exit code is the job's
    #[command(after_help = "Examples:\n  outrigger job wait 7 --timeout 60")]
    Wait {
        #[command(flatten)]
        job: JobArgs,
        /// At most so many seconds
        #[arg(long, value_name = "SECONDS")]
        timeout: Option<f64>,
    },
    /// Stop a job; none of its results becomes visible
    #[command(after_help = "Examples:\n  outrigger job cancel 7")]
    Cancel(JobArgs),
    /// Run a job again that failed, was cancelled or lost its process; finished splits stay
    #[command(after_help = "Examples:\n  outrigger job retry 7\n  outrigger job retry 7 --detach")]
    Retry {
        #[command(flatten)]
        job: JobArgs,
        /// Splits that run at once [default: one per processor]
        #[arg(long, value_name = "N")]
        slots: Option<usize>,
        /// Do not wait: leave the job to agents or, if none is running, to a background process
        #[arg(long)]
        detach: bool,
        /// End the job if it cannot be run here; for the process that runs it in the background
        #[arg(long, hide = true)]
        ends: bool,
        /// The process that starts this one has made the job
        #[arg(long, hide = true)]
        own: bool,
        #[command(flatten)]
        trust: TrustArgs,
    },
    /// Forget a job that has ended, and its finished results that did not become visible
    #[command(after_help = "Examples:\n  outrigger job forget 7")]
    Forget(JobArgs),
}

/// The job that a command is about.
#[derive(Args)]
pub struct JobArgs {
    /// The job's number
    #[arg(value_name = "JOB")]
    number: u64,
}

impl JobArgs {
    fn id(&self) -> JobId {
        JobId(self.number)
    }

    fn row(&self, store: &Store) -> Result<JobRow, Failure> {
        let missing = || {
            Error::new(
                ErrorKind::NotFound,
                format!("there is no job {}; `outrigger jobs` lists them", self.number),
            )
        };
        Ok(store.jobs().job(self.id())?.ok_or_else(missing)?)
    }
}

/// A state, in words.
pub fn state_text(state: JobState) -> &'static str {
    match state {
        JobState::Waiting => "waiting",
        JobState::Running => "running",
        JobState::Done => "done",
        JobState::Failed => "failed",
        JobState::Cancelled => "cancelled",
    }
}

fn split_text(state: SplitState) -> &'static str {
    match state {
        SplitState::Waiting => "waiting",
        SplitState::Running => "running",
        SplitState::Done => "done",
        SplitState::SetAside => "set aside",
    }
}

pub fn jobs(context: &Context, args: JobsArgs) -> Outcome {
    let store = Store::open(context.store_dir()?, true)?;
    let rows = store.jobs().jobs(args.limit)?;
    let left = left_among(&store, &rows)?;
    let mut out = Out::new();
    if context.json {
        let about = |row: &JobRow| about(row).with("is_left", left.contains(&row.id)).into();
        let list: Vec<serde_json::Value> = rows.iter().map(about).collect();
        out.json(Object::new().with("jobs", list))?;
        out.finish()?;
        return Ok(Exit::Done);
    }
    if rows.is_empty() && !context.quiet {
        complain("no jobs");
    }
    for row in rows {
        let (done, all) = (row.splits[SplitState::Done as usize], row.splits.iter().sum::<u64>());
        let when = local(Time::from_nanos(row.created));
        let (pattern, told) = match Spec::decode(&row.spec) {
            Ok(spec) => (spec.pattern.text(), spec.told()),
            Err(_) => ("?", "(made by another version of outrigger)".to_string()),
        };
        let line = format!(
            "{:>5}  {:<9}  {when}  {pattern:<6}  {done}/{all}  {told}{}",
            row.id,
            state_text(row.state),
            if left.contains(&row.id) { format!("  ({})", left_text(&store, &row)) } else { String::new() }
        );
        out.line(&line)?;
    }
    out.finish()?;
    Ok(Exit::Done)
}

pub fn job(context: &Context, command: JobCommand) -> Outcome {
    match command {
        JobCommand::Show(job) => show_job(context, &job),
        JobCommand::Logs { job, split } => logs(context, &job, split),
        JobCommand::Wait { job, timeout } => wait(context, &job, timeout),
        JobCommand::Cancel(job) => cancel(context, &job),
        JobCommand::Retry { job, slots, detach, ends, own, trust } => {
            retry(context, &job, slots, (detach, ends), (&trust, own))
        }
        JobCommand::Forget(job) => {
            let store = writable(context)?;
            store.jobs().forget_job(job.id())?;
            Ok(Exit::Done)
        }
    }
}

/// Opens the store only to change its jobs. A mount goes on meanwhile.
pub fn writable(context: &Context) -> Result<Store, Failure> {
    let store = Store::open(context.store_dir()?, false)?;
    store.require_writable()?;
    Ok(store)
}

/// Jobs that have begun and that no process runs any more.
fn left_among(store: &Store, rows: &[JobRow]) -> Result<Vec<JobId>, Failure> {
    let running = rows.iter().filter(|row| row.state == JobState::Running);
    Ok(left_of(store, running.map(|row| row.id).collect())?)
}

/// True if a live agent will continue the job.
pub fn has_agent(store: &Store, row: &JobRow) -> bool {
    Spec::decode(&row.spec).is_ok_and(|spec| is_served(store, &spec).unwrap_or(false))
}

/// The text about a job that no process runs any more.
fn left_text(store: &Store, row: &JobRow) -> String {
    if has_agent(store, row) {
        return "its process has ended; an agent continues it".to_string();
    }
    format!("its process has ended; run `outrigger job retry {}` to continue it", row.id)
}

/// Each input's length: the input's own while the job holds it, later as far as the splits show it.
fn lengths(inputs: &[JobInput], splits: &[SplitRow], by_host: &[Held], state: JobState) -> Vec<Option<u64>> {
    if state != JobState::Done {
        return inputs.iter().map(|input| Some(input.root.len())).collect();
    }
    let mut lengths = vec![None; inputs.len()];
    for &(input, _, to) in by_host.iter().flat_map(|held| &held.ranges) {
        if let Some(len) = lengths.get_mut(input as usize) {
            *len = Some(len.unwrap_or(0).max(to));
        }
    }
    for split in splits.iter().filter(|_| by_host.is_empty()) {
        let of = match split.range.input {
            Some(input) => lengths.get_mut(input as usize),
            None => lengths.first_mut().filter(|_| inputs.len() == 1),
        };
        if let Some(len) = of {
            *len = Some(len.unwrap_or(0).max(split.range.to));
        }
    }
    lengths
}

/// The outputs of a job, or of each job of a rule.
pub fn outputs_json(spec: &Spec) -> Vec<serde_json::Value> {
    let output = |output: &Output| {
        let object = Object::new().with("name", output.name.clone());
        object.with("template", output.template.clone()).with("program", output.program).into()
    };
    spec.outputs.iter().map(output).collect()
}

fn about(row: &JobRow) -> Object {
    let [waiting, running, done, aside] = row.splits;
    let mut object = Object::new()
        .with("job", row.id.0)
        .with("state", state_text(row.state))
        .with("why", row.why.clone())
        .with("created", rfc3339_nanos(row.created))
        .with("changed", rfc3339_nanos(row.changed))
        .with("splits_waiting", waiting)
        .with("splits_running", running)
        .with("splits_done", done)
        .with("splits_set_aside", aside);
    if let Ok(spec) = Spec::decode(&row.spec) {
        let outputs = outputs_json(&spec);
        object = object
            .with("pattern", spec.pattern.text())
            .with("program", spec.program)
            .with("also", spec.also.into_iter().map(|also| also.program).collect::<Vec<_>>())
            .with("outputs", outputs)
            .with("net", spec.net)
            .with("reach", spec.reach.iter().map(ToString::to_string).collect::<Vec<_>>())
            .with("inherited_variables", spec.env_here)
            .with("tries", spec.tries)
            .with("uid", spec.submitter.map(|submitter| submitter.uid));
    }
    object
}

fn show_job(context: &Context, args: &JobArgs) -> Outcome {
    let store = Store::open(context.store_dir()?, true)?;
    let row = args.row(&store)?;
    let jobs = store.jobs();
    let inputs = jobs.inputs(row.id)?;
    let aside = set_aside(&store, row.id)?;
    let spec = Spec::decode(&row.spec).ok();
    let (written, by_host) = spec.map(|spec| (spec.written, spec.by_host)).unwrap_or_default();
    let is_open = written.is_some() && jobs.split(row.id, 0)?.is_some_and(|split| split.range.is_open());
    let splits = jobs.splits(row.id)?;
    let is_left = !left_among(&store, std::slice::from_ref(&row))?.is_empty();
    let times = measured(&store, row.id)?;
    let forecast = Forecast::new(&splits, &times);
    let hosts = Hosts::new(&splits, &by_host, &times, &forecast);
    let goes_on = matches!(row.state, JobState::Waiting | JobState::Running) && !is_open;
    let nearby = if goes_on { nearby_of(&store, row.id) } else { None };
    let sum = |of: fn(&Measured) -> Option<u64>| {
        times.values().filter_map(of).fold(None, |sum: Option<u64>, bytes| Some(sum.unwrap_or(0) + bytes))
    };
    let (here, elsewhere) = (sum(|took| took.bytes_here), sum(|took| took.bytes_elsewhere));
    if context.json {
        let input = |(input, len): (&JobInput, Option<u64>)| {
            serde_json::Value::from(Object::new().with_name("path", &input.path).with("bytes", len))
        };
        let aside: Vec<serde_json::Value> = aside
            .iter()
            .map(|aside| {
                let object = Object::new().with("split", aside.split).with("held_by", aside.held_by.clone());
                object.with("why", aside.why.clone()).into()
            })
            .collect();
        let lengths = lengths(&inputs, &splits, &by_host, row.state);
        let inputs: Vec<_> = inputs.iter().zip(lengths).map(input).collect();
        let object = about(&row).with("inputs", inputs).with("being_written", is_open);
        let made = made(&store, row.id, row.state)?;
        let object = object
            .with("is_left", is_left)
            .with("files_made", made.as_ref().map(|made| made.files))
            .with("bytes_made", made.as_ref().map(|made| made.bytes));
        // Ended and running splits have a predicted time.
        let told = |split: &SplitRow| {
            let took = times.get(&split.number);
            let object = Object::new()
                .with("split", split.number)
                .with("state", split_text(split.state))
                .with("attempt", split.attempt)
                .with("bytes", (!split.range.is_open()).then(|| split.range.to - split.range.from))
                .with("held_by", by_host.get(split.number as usize).map(|held| held.host.clone()))
                .with("host", took.map(|took| took.host.clone()))
                .with("seconds", took.map(|took| took.secs))
                .with("seconds_predicted", forecast.secs(split))
                .with("cpu_seconds", took.and_then(|took| took.cpu_secs))
                .with("memory_peak", took.and_then(|took| took.memory))
                .with("bytes_here", took.and_then(|took| took.bytes_here))
                .with("bytes_elsewhere", took.and_then(|took| took.bytes_elsewhere));
            serde_json::Value::from(object)
        };
        let is_told =
            |split: &&SplitRow| times.contains_key(&split.number) || split.state == SplitState::Running;
        let usage: Vec<_> = splits.iter().filter(is_told).map(told).collect();
        let object = object
            .with("inputs_lie", nearby_json(nearby.as_ref()))
            .with("bytes_here", here)
            .with("bytes_elsewhere", elsewhere);
        let (held, ran) = hosts.json();
        let object = object.with("held", held).with("ran", ran);
        print_json(object.with("set_aside", aside).with("attempts", usage))?;
        return Ok(Exit::Done);
    }
    let [waiting, running, done, set_aside] = row.splits.map(count);
    let mut text = format!("job {}: {}", row.id, state_text(row.state));
    if is_left {
        text += &format!(" ({})", left_text(&store, &row));
    }
    if !row.why.is_empty() {
        text += &format!(": {}", show(row.why.as_bytes()));
    }
    text += &format!("\n  made      {}\n", local(Time::from_nanos(row.created)));
    if let Ok(spec) = Spec::decode(&row.spec) {
        text += &format!("  pattern   {}\n  program   {}\n", spec.pattern, show(spec.told().as_bytes()));
        for output in &spec.outputs {
            let name = if output.name.is_empty() { "standard output" } else { &output.name };
            text += &show(format!("  output    {name} to {}", output.template).as_bytes());
            text += "\n";
        }
        for to in &spec.reach {
            text += &format!("  reaches   {to}\n");
        }
        let is_bundled = |program: &[String]| program.first().is_some_and(|word| word.contains('/'));
        let bundled = spec.programs().zip(spec.components()).filter(|(program, _)| is_bundled(program));
        for kept in bundled.filter_map(|(_, kept)| kept) {
            text += &format!("  bundles   {}:{}\n", kept.name, &kept.hash[..SHORT.min(kept.hash.len())]);
        }
        for name in &spec.env_here {
            text += &format!("  inherits  {}\n", show(name.as_bytes()));
        }
    }
    text += &format!("  inputs    {}", count(inputs.len() as u64));
    if is_open {
        text += ", still being written";
        let host = written.map(|written| host_of(&store, written)).transpose()?.flatten();
        text += &host.filter(|_| store.is_shared()).map_or(String::new(), |host| format!(" on {host}"));
    } else if row.state != JobState::Done {
        text += &format!(", {}", size(inputs.iter().map(|input| input.root.len()).sum()));
    }
    text += "\n";
    for input in inputs.iter().take(10) {
        text += &format!("            {}\n", show(&input.path));
    }
    text +=
        &format!("  splits    {done} done, {running} running, {waiting} waiting, {set_aside} set aside\n");
    for aside in aside {
        let held = aside.held_by.map_or(String::new(), |host| format!(" (what {host} held)"));
        text += &show(format!("            split {}{held}: {}", aside.split, aside.why).as_bytes());
        text += "\n";
    }
    if let Some(nearby) = &nearby {
        text += &format!("            {}\n", describe_nearby(nearby));
    }
    if let (Some(here), Some(elsewhere)) = (here, elsewhere) {
        text += &format!(
            "  read      {} from packs on the hosts that ran it, {} from others\n",
            size(here),
            size(elsewhere)
        );
    }
    text += &hosts.text();
    text += &describe_times(&splits, &times, &forecast);
    print_text(&text)?;
    Ok(Exit::Done)
}

/// How many of the slowest splits are named.
const SLOWEST: usize = 3;

/// The time of all splits together, and the slowest ones beside their predicted times.
fn describe_times(splits: &[SplitRow], times: &BTreeMap<u64, Measured>, forecast: &Forecast) -> String {
    let mut text = String::new();
    let expected =
        |split: &SplitRow| forecast.secs(split).map(|secs| format!("{} by the others", duration(secs)));
    if !times.is_empty() {
        let secs: f64 = times.values().map(|took| took.secs).sum();
        let cpu: f64 = times.values().filter_map(|took| took.cpu_secs).sum();
        let memory = times.values().filter_map(|took| took.memory).max();
        text += &format!("  took      {} together", duration(secs));
        if times.values().any(|took| took.cpu_secs.is_some()) {
            text += &format!(", {} of the processor", duration(cpu));
        }
        if let Some(memory) = memory {
            text += &format!(", {} of memory at most", size(memory));
        }
        text += "\n";
    }
    let mut ended: Vec<(&SplitRow, &Measured)> =
        splits.iter().filter_map(|split| Some((split, times.get(&split.number)?))).collect();
    ended.sort_by(|one, other| other.1.secs.total_cmp(&one.1.secs));
    for (split, took) in ended.into_iter().filter(|_| times.len() > 1).take(SLOWEST) {
        let expected = expected(split).map_or(String::new(), |expected| format!("; predicted: {expected}"));
        text += &format!(
            "            split {}: {} on {}{expected}\n",
            split.number,
            duration(took.secs),
            took.host
        );
    }
    let running = splits.iter().filter(|split| split.state == SplitState::Running);
    for (split, expected) in running.filter_map(|split| Some((split, expected(split)?))).take(SLOWEST) {
        text += &format!("            split {} is running; predicted: {expected}\n", split.number);
    }
    text
}

fn logs(context: &Context, args: &JobArgs, only: Option<u64>) -> Outcome {
    let store = Store::open(context.store_dir()?, true)?;
    let row = args.row(&store)?;
    let jobs = store.jobs();
    let mut out = Out::new();
    let mut list = Vec::new();
    let splits: Vec<SplitRow> = match only {
        Some(number) => jobs.split(row.id, number)?.into_iter().collect(),
        None => jobs.splits(row.id)?,
    };
    for split in splits {
        let Some(split) = jobs.split(row.id, split.number)? else { continue };
        if context.json {
            list.push(
                Object::new()
                    .with("split", split.number)
                    .with("state", split_text(split.state))
                    .with("attempt", split.attempt)
                    .with("why", split.why.clone())
                    .with("log", String::from_utf8_lossy(&split.log).into_owned())
                    .into(),
            );
            continue;
        }
        if split.log.is_empty() && split.why.is_empty() && only.is_none() {
            continue;
        }
        let why = if split.why.is_empty() { String::new() } else { format!(": {}", split.why) };
        out.line(&format!(
            "--- split {}, attempt {}, {}{why}",
            split.number,
            split.attempt,
            split_text(split.state)
        ))?;
        out.said(&split.log)?;
        if !split.log.is_empty() && !split.log.ends_with(b"\n") {
            out.bytes(b"\n")?;
        }
    }
    if context.json {
        let list: Vec<serde_json::Value> = list;
        out.json(Object::new().with("job", row.id.0).with("splits", list))?;
    }
    out.finish()?;
    Ok(Exit::Done)
}

/// A job counts as abandoned when no process has run it for so long.
const LEFT_FOR: Duration = Duration::from_secs(3);

fn wait(context: &Context, args: &JobArgs, timeout: Option<f64>) -> Outcome {
    let store = Store::open(context.store_dir()?, true)?;
    let (started, mut left, mut is_shown) = (Instant::now(), None, false);
    loop {
        let row = args.row(&store)?;
        let gone = || {
            Failure::failed(format!(
                "job {} {}{}",
                row.id,
                state_text(row.state),
                if row.why.is_empty() { String::new() } else { format!(": {}", row.why) }
            ))
        };
        match row.state {
            JobState::Done | JobState::Failed | JobState::Cancelled if !is_shown => {
                // A mount of this store may not yet show outputs that were committed a moment ago.
                is_shown = true;
                let _ = beside::stored(context.store_dir()?, context.threads);
                continue;
            }
            JobState::Done if row.splits[SplitState::SetAside as usize] > 0 => return Ok(Exit::Partial),
            JobState::Done => return Ok(Exit::Done),
            JobState::Failed | JobState::Cancelled => return Err(gone()),
            JobState::Waiting | JobState::Running => {}
        }
        if !left_among(&store, std::slice::from_ref(&row))?.is_empty() && !has_agent(&store, &row) {
            let since = *left.get_or_insert_with(Instant::now);
            // A new process for the job registers itself once it is ready.
            if since.elapsed() > LEFT_FOR {
                let text = left_text(&store, &row);
                return Err(Failure::failed(format!("job {} is still running ({text})", row.id)));
            }
        } else {
            left = None;
        }
        if timeout.is_some_and(|secs| started.elapsed().as_secs_f64() > secs) {
            return Err(Failure::failed(format!("job {} is still {}", row.id, state_text(row.state))));
        }
        outrigger_clock::sleep(Duration::from_millis(100));
    }
}

fn cancel(context: &Context, args: &JobArgs) -> Outcome {
    let store = writable(context)?;
    let row = args.row(&store)?;
    if !store.jobs().end_job(row.id, JobState::Cancelled, "")? {
        let now = args.row(&store)?;
        return Err(Failure::failed(format!(
            "job {} has ended already: it is {}",
            row.id,
            state_text(now.state)
        )));
    }
    Ok(Exit::Done)
}

fn retry(
    context: &Context,
    args: &JobArgs,
    slots: Option<usize>,
    (detach, mut ends): (bool, bool),
    (trust, own): (&TrustArgs, bool),
) -> Outcome {
    let started = Instant::now();
    let mut believed = if own { Trust::own() } else { trust.trust()? };
    let store = Arc::new(context.open()?);
    store.require_writable()?;
    // In a store in a directory nobody else can name root, because its owner submits all jobs.
    believed.allow_root |= !store.is_shared();
    let row = args.row(&store)?;
    match row.state {
        // The job was cancelled before its background process began.
        JobState::Failed | JobState::Cancelled if ends => return Ok(Exit::Done),
        JobState::Done => return Err(Failure::usage(format!("job {} is done", row.id))),
        JobState::Failed | JobState::Cancelled => {
            store.jobs().retry_job(row.id)?;
            ends = true;
        }
        JobState::Waiting | JobState::Running => {
            if let Some(who) = runner_of(&store, row.id)? {
                return Err(Failure::failed(format!("job {} is running in another process ({who})", row.id)));
            }
        }
    }
    if detach {
        let served = has_agent(&store, &row);
        if !served {
            run::spawn_runner(context, row.id, slots, &trust.words())?;
        }
        return Ok(Exit::Done);
    }
    run::go(context, &store, (row.id, slots, believed), started, ends)
}
