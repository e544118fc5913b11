//! `jobs`, and what the row of a job says in words and in JSON: its state, whether any process is
//! left that runs it, and its program.

use clap::Args;
use outrigger_active::job::spec::{Output, Spec};
use outrigger_active::node::is_served;
use outrigger_active::runner::left_of;
use outrigger_format::catalogue::Time;
use outrigger_store::Store;
use outrigger_store::meta::jobs::{JobId, JobRow, JobState, SplitState};

use crate::commands::Context;
use crate::exit::{Exit, Failure, Outcome};
use crate::json::{Object, rfc3339_nanos};
use crate::output::{Out, complain, local};

/// List jobs, newest first
#[derive(Args)]
#[command(after_help = "Examples:\n  outrigger jobs\n  outrigger jobs --limit 5 --json")]
pub struct JobsArgs {
    /// List at most so many
    #[arg(long, default_value_t = 20, value_name = "N")]
    limit: usize,
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
            Ok(spec) => (spec.pattern.text(), spec.describe()),
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

/// A split's state, in words.
pub(super) fn split_text(state: SplitState) -> &'static str {
    match state {
        SplitState::Waiting => "waiting",
        SplitState::Running => "running",
        SplitState::Done => "done",
        SplitState::SetAside => "set aside",
    }
}

/// Jobs that have begun and that no process runs any more.
pub(super) fn left_among(store: &Store, rows: &[JobRow]) -> Result<Vec<JobId>, Failure> {
    let running = rows.iter().filter(|row| row.state == JobState::Running);
    Ok(left_of(store, running.map(|row| row.id).collect())?)
}

/// True if a live agent will continue the job.
pub fn has_agent(store: &Store, row: &JobRow) -> bool {
    Spec::decode(&row.spec).is_ok_and(|spec| is_served(store, &spec).unwrap_or(false))
}

/// The text about a job that no process runs any more.
pub(super) fn left_text(store: &Store, row: &JobRow) -> String {
    if has_agent(store, row) {
        return "its process has ended; an agent continues it".to_string();
    }
    format!("its process has ended; run `outrigger job retry {}` to continue it", row.id)
}

/// What a job's row says of it.
pub(super) fn about(row: &JobRow) -> Object {
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

/// The outputs of a job, or of each job of a rule.
pub fn outputs_json(spec: &Spec) -> Vec<serde_json::Value> {
    let output = |output: &Output| {
        let object = Object::new().with("name", output.name.clone());
        object.with("template", output.template.clone()).with("program", output.program).into()
    };
    spec.outputs.iter().map(output).collect()
}
