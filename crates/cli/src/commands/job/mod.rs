//! `jobs`, and `job show|logs|wait|cancel|retry|forget`.
//!
//! Each reads or changes the rows of a job. Only `retry` runs programs: in this process, or in one
//! that it leaves in the background. A job whose process has ended is "left" until an agent or a
//! retry continues it.

mod hosts;
mod rows;
mod show;

use std::sync::Arc;
use std::time::Duration;

use clap::{Args, Subcommand};
use outrigger_active::runner::runner_of;
use outrigger_active::trust::Trust;
use outrigger_clock::Instant;
use outrigger_store::meta::jobs::{JobId, JobRow, JobState, SplitRow, SplitState};
use outrigger_store::{Error, ErrorKind, Store};

pub use self::rows::{JobsArgs, has_agent, jobs, outputs_json, state_text};
use self::rows::{left_among, left_text, split_text};
use self::show::show_job;
use super::trust::TrustArgs;
use super::{Context, run};
use crate::exit::{Exit, Failure, Outcome};
use crate::json::Object;
use crate::output::Out;

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
    store.require_all_rights()?;
    Ok(store)
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
                let _ = context.neighbour().stored(context.store_dir()?);
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
    store.require_all_rights()?;
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
