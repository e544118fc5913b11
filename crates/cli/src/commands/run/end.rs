//! How jobs end: messages about a job that is interrupted, that cannot run here, or that is done;
//! and the progress line until then.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use outrigger_active::job::limits::Limits;
use outrigger_active::job::spec::Spec;
use outrigger_active::progress::View;
use outrigger_active::runner::{self, Nearby, Report, SetAside};
use outrigger_store::meta::jobs::{JobId, JobRow, JobState};
use outrigger_store::{ErrorKind, Store};

use crate::commands::Context;
use crate::commands::job::{has_agent, state_text};
use crate::commands::nearby::{describe_here, is_known, nearby_json};
use crate::exit::{Exit, Failure, Outcome};
use crate::json::Object;
use crate::output::{complain, count, counted, print_json, print_text, size};
use crate::progress::duration;

/// Ends an interrupted job over a stream, which cannot be run again, and returns the message about
/// it.
pub(super) fn stopped_stream(
    store: &Arc<Store>,
    job: &Arc<OnceLock<JobId>>,
) -> impl FnOnce() -> String + use<> {
    let (store, job) = (Arc::clone(store), Arc::clone(job));
    move || {
        let Some(&job) = job.get() else { return "no job was made".to_string() };
        let why = "it was interrupted, and its stream was not kept";
        // If the database is away, whoever comes to it next finds that it cannot be run.
        let _ = store.jobs().end_job(job, JobState::Cancelled, why);
        format!(
            "no output of job {job} is visible, and it cannot be retried because its stream was not kept; start again with the whole stream"
        )
    }
}

/// The message when a job over stored files, or over files of a mount, is interrupted.
pub(super) fn stopped(store: &Arc<Store>, job: JobId, prints: bool) -> impl FnOnce() -> String + use<> {
    let store = Arc::clone(store);
    move || {
        if prints {
            let why = "it was interrupted, and nobody else prints its results";
            let _ = store.jobs().end_job(job, JobState::Cancelled, why);
            return format!("job {job} was cancelled; standard output has a part of its results");
        }
        let row = store.jobs().job(job).ok().flatten();
        if row.is_some_and(|row| has_agent(&store, &row)) {
            return format!(
                "an agent continues job {job}; `outrigger job cancel {job}` stops it, `outrigger job retry {job}` continues it here"
            );
        }
        format!(
            "no output of job {job} is visible; `outrigger job retry {job}` or the next agent continues it, `outrigger job cancel {job}` stops it"
        )
    }
}

/// The message when a command is interrupted while it makes a job, or later.
pub(super) fn stopped_making(
    store: &Arc<Store>,
    made: &Arc<OnceLock<JobId>>,
    prints: bool,
) -> impl FnOnce() -> String + use<> {
    let (store, made) = (Arc::clone(store), Arc::clone(made));
    move || match made.get() {
        Some(&job) => stopped(&store, job, prints)(),
        None => "no job was made".to_string(),
    }
}

/// The failure for a job that cannot be run here. The job is ended if it `ends` with this command
/// and no other process runs it, so that it does not stay behind unnoticed.
pub(super) fn not_run(store: &Store, job: JobId, ends: bool, error: outrigger_store::Error) -> Failure {
    let jobs = store.jobs();
    let why = error.to_string();
    let awaits_host = || {
        let spec = jobs.job(job).ok().flatten().and_then(|row| Spec::decode(&row.spec).ok());
        error.kind() == ErrorKind::Busy && spec.is_some_and(|spec| spec.written.is_some())
    };
    let others = runner::runner_of(store, job).is_ok_and(|others| others.is_some());
    let text = if others || awaits_host() {
        format!(
            "job {job} cannot be run here: {why}; another process continues it: `outrigger job wait {job}` waits for it, `outrigger job cancel {job}` stops it"
        )
    } else if !ends {
        if why.contains(&format!("job {job}")) { why } else { format!("job {job} cannot be run here: {why}") }
    } else {
        let ended = jobs.end_job(job, JobState::Failed, &why).and_then(|_| jobs.job(job));
        match ended.map(|row| row.map(|row| row.state)) {
            Ok(Some(JobState::Done)) => format!("job {job} is done, but {why}"),
            Ok(_) => format!(
                "job {job} failed, and none of its output is visible: {why}; `outrigger job retry {job}` tries again"
            ),
            Err(_) => format!("job {job} is unchanged: {why}; `outrigger job retry {job}` continues it"),
        }
    };
    Failure { message: text, ..Failure::from(error) }
}

/// `3 of 16 splits, 120 MiB of 1.00 GiB read (80 MiB from packs on this host, 40 MiB from others),
/// 1,200,000 records, 64.0 MiB written, 95 MiB/s, 9 s left`. For a file that is still being
/// written: `waiting for the writer, 6 B read, 0 B written`.
pub(super) fn describe(view: &View, elapsed: Duration) -> String {
    if view.waits_for_writer {
        let (read, written) = (size(view.bytes_read), size(view.bytes_written));
        return format!("waiting for the writer, {read} read, {written} written");
    }
    let secs = elapsed.as_secs_f64();
    let rate = view.bytes_read as f64 / secs.max(0.001);
    // The final length of a file that is still being written is unknown.
    let of = match view.bytes_expected {
        0 => String::new(),
        all => format!(" of {}", size(all)),
    };
    let mut text = format!(
        "{} of {} splits, {}{of} read{}{}, {} written, {}/s",
        count(view.splits_done),
        count(view.splits),
        size(view.bytes_read),
        describe_here(view),
        describe_records(view),
        size(view.bytes_written),
        size(rate as u64)
    );
    let left = view.bytes_expected.saturating_sub(view.bytes_read);
    if left > 0 && rate > 1.0 && secs > 1.0 {
        text += &format!(", {} left", duration(left as f64 / rate));
    }
    if view.failures > 0 {
        text += &format!(", {}", counted(view.failures, "attempt failed", "attempts failed"));
    }
    text
}

/// `, 1,200,000 records`; empty if nobody counts them.
fn describe_records(view: &View) -> String {
    match view.records_read {
        0 => String::new(),
        records => format!(", {}", counted(records, "record", "records")),
    }
}

/// `looking for records: 120 MiB of 1.00 GiB read, 95 MiB/s, 9 s left`.
pub(super) fn describe_making(view: &View, elapsed: Duration) -> String {
    let (read, all) = (view.bytes_read, view.bytes_expected);
    if read == 0 {
        return "making the job".to_string();
    }
    let rate = read as f64 / elapsed.as_secs_f64().max(0.001);
    let mut text =
        format!("looking for records: {} of {} read, {}/s", size(read), size(all), size(rate as u64));
    if all > read && rate > 1.0 && elapsed > Duration::from_secs(1) {
        text += &format!(", {} left", duration((all - read) as f64 / rate));
    }
    text
}

/// Prints the outcome of a job, and returns the exit code.
pub(super) fn say(
    context: &Context,
    quiet: bool,
    (report, without, nearby): (&Report, Option<&str>, Option<Nearby>),
    view: &View,
    secs: f64,
) -> Outcome {
    let Report { job, made, elsewhere, set_aside, missing, .. } = report;
    for missing in missing {
        complain(&format!("the sandbox is incomplete: {missing}"));
    }
    set_aside.iter().for_each(complain_of);
    let exit = match job.state {
        JobState::Done if set_aside.is_empty() => Exit::Done,
        JobState::Done => Exit::Partial,
        _ => Exit::Failed,
    };
    // The job's rows have what other processes read and wrote, as far as it is known.
    let (read, written) = match elsewhere.splits > 0 {
        true => (elsewhere.bytes_of_all, made.bytes),
        false => (view.bytes_read, view.bytes_written),
    };
    if context.json {
        let json = json(report, nearby.as_ref(), view, (read, written));
        print_json(json.with("control_groups", without.is_none()).with("seconds", secs))?;
    } else if exit != Exit::Failed && !quiet {
        print_text(&text(report, view, read, secs))?;
    }
    // If limits were asked for, the user should know that control groups did not enforce them.
    let is_limited = || Spec::decode(&job.spec).is_ok_and(|spec| spec.limits != Limits::default());
    if let Some(why) = without
        && !context.json
        && !quiet
        && is_limited()
    {
        print_text(&format!("limits were enforced without control groups: {why}\n"))?;
    }
    if exit == Exit::Failed { Err(failure(job)) } else { Ok(exit) }
}

/// Names a split that was set aside.
fn complain_of(aside: &SetAside) {
    let of =
        aside.input.as_ref().map_or(String::new(), |input| format!(" (`{input}`, from byte {})", aside.from));
    let of = match (&aside.held_by, &aside.input) {
        (Some(host), Some(input)) => format!(" (what {host} held of `{input}`)"),
        (Some(host), None) => format!(" (what {host} held)"),
        (None, _) => of,
    };
    complain(&format!("split {}{of} was set aside: {}", aside.split, aside.why));
}

/// The outcome, with the bytes that all processes read and wrote.
fn json(report: &Report, nearby: Option<&Nearby>, view: &View, (read, written): (u64, u64)) -> Object {
    let Report { job, files, made, set_aside, .. } = report;
    let known = is_known(view);
    let file = |(path, bytes): &(outrigger_store::tree::StorePath, u64)| {
        serde_json::Value::from(Object::new().with_name("path", &path.to_bytes()).with("bytes", *bytes))
    };
    let aside = |aside: &SetAside| {
        let path = aside.input.as_ref().map(ToString::to_string);
        let object = Object::new().with("split", aside.split).with("input", path).with("from", aside.from);
        let object = object.with("to", aside.to).with("held_by", aside.held_by.clone());
        serde_json::Value::from(object.with("why", aside.why.clone()))
    };
    Object::new()
        .with("job", job.id.0)
        .with("state", state_text(job.state))
        .with("why", job.why.clone())
        .with("files", files.iter().map(file).collect::<Vec<_>>())
        .with("files_made", made.files)
        .with("set_aside", set_aside.iter().map(aside).collect::<Vec<_>>())
        .with("splits", view.splits)
        .with("inputs_lie", nearby_json(nearby))
        .with("splits_here", view.splits_here)
        .with("bytes_read", read)
        .with("bytes_read_here", view.bytes_read)
        .with("bytes_here", known.then_some(view.bytes_here))
        .with("bytes_elsewhere", known.then_some(view.bytes_elsewhere))
        .with("records_read_here", (view.records_read > 0).then_some(view.records_read))
        .with("bytes_written", written)
        .with("bytes_written_here", view.bytes_written)
        .with("attempts_failed", view.failures)
}

/// The outcome of a job that is done, in one line.
fn text(report: &Report, view: &View, read: u64, secs: f64) -> String {
    let Report { job, made, elsewhere, .. } = report;
    let has_output = Spec::decode(&job.spec).map_or(true, |spec| spec.pattern.has_output());
    let files = if has_output || made.files > 0 {
        format!(": {}, {}", counted(made.files, "file", "files"), size(made.bytes))
    } else {
        String::new()
    };
    let here = if elsewhere.splits > 0 {
        let (splits, bytes) = (counted(view.splits_here, "split", "splits"), size(view.bytes_read));
        format!("; of it {splits} and {bytes} by this process")
    } else {
        String::new()
    };
    format!(
        "job {}: {}, {} read{} in {} ({}/s){files}{here}\n",
        job.id,
        counted(view.splits, "split", "splits"),
        size(read),
        describe_here(view),
        duration(secs),
        size((read as f64 / secs.max(0.001)) as u64),
    )
}

fn failure(job: &JobRow) -> Failure {
    if Spec::decode(&job.spec).is_ok_and(|spec| spec.prints()) {
        let why = format!("job {} failed after a part of its results: {}", job.id, job.why);
        return Failure::failed(format!("{why}; `outrigger job logs {}` shows its standard error", job.id));
    }
    let how = if job.state == JobState::Cancelled {
        "was cancelled"
    } else {
        "failed, and none of its output is visible"
    };
    let why = if job.why.is_empty() { String::new() } else { format!(": {}", job.why) };
    Failure::failed(format!(
        "job {} {how}{why}; `outrigger job logs {}` shows its standard error, `outrigger job retry {}` tries again",
        job.id, job.id, job.id
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_progress_line_says_what_is_waited_for() {
        let mut view = View { splits: 1, bytes_read: 6, waits_for_writer: true, ..View::default() };
        let second = Duration::from_secs(1);
        assert_eq!(describe(&view, second), "waiting for the writer, 6 B read, 0 B written");
        view.waits_for_writer = false;
        assert_eq!(describe(&view, second), "0 of 1 splits, 6 B read, 0 B written, 6 B/s");
        view.bytes_expected = 12;
        assert_eq!(describe(&view, second), "0 of 1 splits, 6 B of 12 B read, 0 B written, 6 B/s");
        let all = View {
            splits: 16,
            splits_done: 3,
            bytes_expected: 1 << 30,
            bytes_read: 256 << 20,
            bytes_here: 200 << 20,
            bytes_elsewhere: 56 << 20,
            records_read: 1_200_000,
            bytes_written: 64 << 20,
            failures: 1,
            ..View::default()
        };
        assert_eq!(
            describe(&all, Duration::from_secs(4)),
            "3 of 16 splits, 256 MiB of 1.00 GiB read (200 MiB from packs on this host, 56.0 MiB from others), 1,200,000 records, 64.0 MiB written, 64.0 MiB/s, 12 s left, 1 attempt failed"
        );
        let (three, nothing) = (Duration::from_secs(3), View::default());
        assert_eq!(describe_making(&nothing, second), "making the job");
        assert_eq!(describe_making(&view, three), "looking for records: 6 B of 12 B read, 2 B/s, 3.0 s left");
    }
}
