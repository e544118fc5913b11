//! Jobs and agents: the function that stands in for programs, and the invariants of jobs.

use std::any::Any;
use std::collections::BTreeSet;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use outrigger_active::agent::{self, Event, NodeOptions};
use outrigger_active::instead::Call;
use outrigger_active::job::records::Records;
use outrigger_active::job::spec::Spec;
use outrigger_active::pattern::Pattern;
use outrigger_active::plan::{Splits, submit};
use outrigger_active::trust::Trust;
use outrigger_store::meta::jobs::{JobId, JobRow, JobState};
use outrigger_store::{Error, Store};
use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::cluster::{Cluster, told};
use crate::history::AskedJob;
use crate::host::{Done, Host};
use crate::scheduler;
use crate::script::{Asked, INPUTS};

/// The directory of jobs' outputs.
pub const OUTPUTS: &str = "jobs";
/// Attempts at a split before it is set aside.
const TRIES: u32 = 4;
/// How often open jobs are checked at the end, …
const ROUNDS: u32 = 200;
/// … with this pause: a lease is 60 s.
const PAUSE: Duration = Duration::from_secs(10);

/// Attempts that were begun: job, split, attempt. It is a static, because a plain function stands
/// in for programs.
static BEGUN: Mutex<Vec<(JobId, u64, u64)>> = Mutex::new(Vec::new());

/// Forgets the attempts of an earlier run.
pub fn begin_run() {
    BEGUN.lock().expect("no panic while held").clear();
}

/// The content of an input.
pub fn input(number: usize) -> Vec<u8> {
    let line = |line: u64| {
        format!("{number} {line} {:0width$}\n", line * 7919 % 104_729, width = (line % 40) as usize)
    };
    (0..INPUTS[number]).flat_map(|number| line(number).into_bytes()).collect()
}

/// The output for whole lines.
fn of(bytes: &[u8], times: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len() * times);
    for line in bytes.split_inclusive(|byte| *byte == b'\n') {
        let sum = outrigger_format::checksum(&[line]);
        for _ in 0..times {
            out.extend_from_slice(format!("{sum:016x} ").as_bytes());
            out.extend_from_slice(line);
        }
    }
    out
}

/// Stands in for programs: it takes time, and sometimes fails.
///
/// # Errors
/// That it was killed, or has failed.
pub fn function(call: &Call<'_>) -> Result<Vec<u8>, String> {
    BEGUN.lock().expect("no panic while held").push((call.job, call.claimed.number, call.claimed.attempt));
    let secs = match scheduler::below(24) {
        0 => 90,
        1..6 => 10 + scheduler::below(20),
        _ => scheduler::below(3),
    };
    for _ in 0..secs {
        outrigger_clock::sleep(Duration::from_secs(1));
        if (call.is_killed)() {
            return Err("it was killed".into());
        }
    }
    if scheduler::below(30) == 0 {
        return Err("it does not feel like it".into());
    }
    let times = call.program.get(1).and_then(|word| word.parse().ok()).unwrap_or(1);
    Ok(of(&call.input, times))
}

impl Asked {
    fn outputs(&self) -> Vec<String> {
        match self.apart {
            true => (0..self.splits).map(|split| format!("{}-{split:05}", self.id)).collect(),
            false => vec![self.id.to_string()],
        }
    }

    fn spec(&self) -> Spec {
        let pattern = if self.apart { Pattern::FileToMany } else { Pattern::ReadToFile };
        let program = vec!["cat".to_string(), self.times.to_string()];
        let template = format!("{OUTPUTS}/{}{}", self.id, if self.apart { "-{split}" } else { "" });
        let spec =
            Spec { records: Records::Delimited(b"\n".to_vec()), tries: TRIES, ..Spec::new(pattern, program) };
        spec.output(&template)
    }
}

fn errno(_: Error) -> Errno {
    Errno::IO
}

/// Submits a job.
///
/// # Errors
/// `EIO`: it may exist all the same.
pub(crate) fn ask(cluster: &Cluster, host: &Host, asked: &Asked) -> Done<()> {
    let known = AskedJob { asked: asked.clone(), job: None, cancelled: None };
    cluster.history().jobs.0.insert(asked.id, known);
    let inputs = [format!("in/{}", asked.input)];
    let made = submit(&host.store, &asked.spec(), &inputs, &[], Splits::Count(asked.splits));
    let mut history = cluster.history();
    let known = history.jobs.0.get_mut(&asked.id).expect("it was put there");
    known.job = made.as_ref().ok().copied();
    made.map(drop).map_err(errno)
}

/// Cancels a job, if its number is known.
///
/// # Errors
/// `EIO`: it may be cancelled all the same.
pub(crate) fn cancel(cluster: &Cluster, host: &Host, id: u64) -> Done<()> {
    let job = cluster.history().jobs.0.get(&id).and_then(|known| known.job);
    let Some(job) = job else { return Ok(()) };
    let note = |told: bool| {
        let mut history = cluster.history();
        let known = history.jobs.0.get_mut(&id).expect("it is there");
        known.cancelled = Some(known.cancelled.unwrap_or(false) || told);
    };
    note(false);
    let ended = host.store.jobs().end_job(job, JobState::Cancelled, "cancelled");
    ended.map(note).map_err(errno)
}

/// Runs an agent until it is stopped, or has nothing to do.
///
/// # Errors
/// `EIO`.
pub fn agent(
    store: &Arc<Store>,
    name: &str,
    slots: usize,
    until_idle: bool,
    stop: &Arc<AtomicBool>,
) -> Done<()> {
    let quiet = || Ok(Box::new(()) as Box<dyn Any>);
    let options = NodeOptions {
        name: name.to_string(),
        slots,
        threads: 1,
        before_publish: &quiet,
        until_idle,
        make_way: None,
        idle: false,
        groups: None,
        trust: Arc::new(Trust::own()),
    };
    let verbose = std::env::var_os("SIM_VERBOSE").is_some();
    let mut tell = |event: Event<'_>| {
        if verbose {
            let text = match event {
                Event::Began(job) => format!("begins job {job}"),
                Event::Ended(report) => format!("ends job {}: {:?}", report.job.id, report.job.state),
                Event::Refused(job, error) => format!("cannot run job {job}: {error}"),
                Event::Rests(error) => format!("rests: {error}"),
                Event::Fired(..) | Event::Trouble(..) => "minds rules".to_string(),
            };
            eprintln!("    {:?}: agent {name} {text}", scheduler::elapsed());
        }
    };
    agent::run(store, &options, stop, &mut tell).map_err(errno)
}

/// Asks an agent to stop.
///
/// # Errors
/// `EIO`.
pub fn drain(host: &Host, name: &str) -> Done<()> {
    outrigger_active::node::drain(&host.store, name).map_err(errno)
}

/// Waits until all jobs are done that were not cancelled, with nothing in the way any more.
///
/// # Errors
/// The job that waits for ever.
pub(crate) fn finish(host: &Host) -> Result<(), String> {
    let jobs = host.store.jobs();
    let mut left = Vec::new();
    for _ in 0..ROUNDS {
        let rows = jobs.jobs(usize::MAX >> 1).map_err(told)?;
        for row in rows.iter().filter(|row| row.state == JobState::Failed) {
            jobs.retry_job(row.id).map_err(told)?;
        }
        let is_open = |row: &JobRow| !matches!(row.state, JobState::Done | JobState::Cancelled);
        left = rows.into_iter().filter(is_open).collect();
        if left.is_empty() {
            return Ok(());
        }
        let _ = agent(&host.store, "last", 2, true, &Arc::default());
        outrigger_clock::sleep(PAUSE);
    }
    Err(format!("jobs wait for ever: {left:?}"))
}

/// Checks that every done job has its outputs, once and right. A cancelled job must have left
/// nothing, and no attempt may have begun twice.
///
/// # Errors
/// The first violation.
pub(crate) fn judge(cluster: &Cluster, host: &Host) -> Result<(), String> {
    let mut seen = BTreeSet::new();
    let begun = std::mem::take(&mut *BEGUN.lock().expect("no panic while held"));
    if let Some(twice) = begun.into_iter().find(|attempt| !seen.insert(*attempt)) {
        return Err(format!("an attempt was begun twice: {twice:?}"));
    }
    let rows = host.store.jobs().jobs(usize::MAX >> 1).map_err(told)?;
    let known = std::mem::take(&mut cluster.history().jobs.0);
    let mut wanted = BTreeSet::new();
    for AskedJob { asked, job, cancelled } in known.values() {
        let is_it =
            |row: &&JobRow| Spec::decode(&row.spec).is_ok_and(|spec| spec.outputs == asked.spec().outputs);
        let row = rows.iter().find(is_it);
        match row.map(|row| row.state) {
            None if job.is_none() => {}
            Some(JobState::Cancelled) if cancelled.is_some() => {}
            Some(JobState::Done) if *cancelled != Some(true) => {
                let mut all = Vec::new();
                for name in asked.outputs() {
                    let path = format!("{OUTPUTS}/{name}");
                    let read = host.open(&path, OFlags::RDONLY).and_then(|file| {
                        let read = file.read(0, 1 << 30);
                        let _ = file.close(None);
                        read
                    });
                    all.extend(
                        read.map_err(|errno| {
                            format!("{asked:?} is done, and {path} cannot be read: {errno}")
                        })?,
                    );
                    wanted.insert(name);
                }
                if all != of(&input(asked.input), asked.times) {
                    return Err(format!("{asked:?} is done, and its output is wrong: {} bytes", all.len()));
                }
            }
            state => {
                return Err(format!("{asked:?}, known as {job:?}, cancelled {cancelled:?}, is {state:?}"));
            }
        }
    }
    let mut there = host.list(OUTPUTS).map_err(|errno| errno.to_string())?;
    there.retain(|name| !name.starts_with('.'));
    let there: BTreeSet<String> = there.into_iter().collect();
    if there != wanted {
        return Err(format!("jobs have left {there:?}, and should have {wanted:?}"));
    }
    Ok(())
}
