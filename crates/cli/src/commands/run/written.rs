//! Jobs over data that is being written. One over standard input runs in this process, which alone
//! has the stream (`through`). With `--follow` each mount of the store on this host is asked for
//! the next file that the job wants. The first to have one makes the job; then the others stop
//! waiting.

use std::sync::{Arc, OnceLock};

use outrigger_active::job::Attach;
use outrigger_active::job::records::Records;
use outrigger_active::job::spec::Spec;
use outrigger_active::node::is_served;
use outrigger_active::pattern::Pattern;
use outrigger_active::plan::Splits;
use outrigger_active::rules::for_next_files;
use outrigger_active::sandbox::Sandbox;
use outrigger_active::trust::Trust;
use outrigger_active::written::leave_to_others;
use outrigger_clock::Instant;
use outrigger_fuse::control::{Client, mounts_of};
use outrigger_store::Store;
use outrigger_store::meta::jobs::JobId;

use super::RunArgs;
use super::end::{not_run, stopped_stream};
use super::go::{Means, detach, go, with_options};
use super::machine::Machine;
use crate::commands::Context;
use crate::exit::{Failure, Outcome};
use crate::interrupt;
use crate::output::complain;

/// Refuses options that need stored files: one program reads a stream once, from start to end.
pub(super) fn refuse_for_stream(args: &RunArgs, spec: &Spec) -> Result<(), Failure> {
    let work = &args.work;
    let why = if args.sign.is_some() {
        "--sign: this process runs the job, no agent does; remove it"
    } else if !work.with.is_empty() {
        "--with: a job over a stream reads no stored files; run it over the stored file (--to) once that exists"
    } else if spec.records != Records::Whole {
        "--records: a stream is not split; remove it"
    } else if work.splits != Splits::Auto {
        "--splits: a stream is not split; remove it"
    } else if spec.attach != Attach::default() {
        "--attach: it needs files in a mount; remove it"
    } else if spec.wants_files() {
        "{in}: there is no file yet; the program reads standard input"
    } else {
        return Ok(());
    };
    Err(Failure::usage(format!("--in - with {why}")))
}

/// Runs a job over standard input while it comes.
pub(super) fn through(
    context: &Context,
    store: &Arc<Store>,
    spec: Spec,
    machine: Machine,
    started: Instant,
) -> Outcome {
    spec.own_variables()?;
    let stdin = Box::new(std::io::stdin());
    let job = Arc::new(OnceLock::new());
    interrupt::arm_saying(store, stopped_stream(store, &job), || ());
    let means = Means { slots: Some(1), groups: machine.groups(), trust: Trust::own(), prints: false };
    with_options(context, store, None, (means, None), started, |options, counters| {
        let begun = |made: JobId| {
            let _ = job.set(made);
        };
        let ran = outrigger_active::through::run(store, spec, stdin, options, counters, &begun);
        ran.map_err(|error| match job.get() {
            Some(job) => not_run(store, *job, true, error),
            None => error.into(),
        })
    })
}

/// Waits for a file that is made in the mount, and runs the job that reads it while it is written.
pub(super) fn follow(context: &Context, args: &RunArgs, spec: Spec) -> Outcome {
    if args.inputs.iter().any(|glob| glob == "-") {
        return Err(Failure::usage("--in - already follows its stream; remove --follow"));
    }
    if args.work.splits == Splits::Hosts {
        return Err(Failure::usage("one program reads a file that is being written; remove --splits hosts"));
    }
    Sandbox::find_for(&spec)?;
    if !args.detach {
        spec.own_variables()?;
    }
    let several = spec.pattern == Pattern::ManyToFile;
    let rule = for_next_files(&args.inputs, args.work.with.clone(), spec)?;
    let store = Arc::new(context.open()?);
    let mounts = mounts_of(&store)?;
    if mounts.is_empty() {
        return Err(Failure::failed(
            "this store is not mounted for writing on this host; run `outrigger mount MOUNTPOINT`, or give a stream with --in -",
        ));
    }
    if several && mounts.len() > 1 {
        return Err(Failure::usage(format!(
            "--follow with #W->1W needs a single mount, but this store is mounted {} times here; unmount the others, or remove --follow and join the files once they are closed",
            mounts.len()
        )));
    }
    let job = await_file(context, mounts, &rule, &args.inputs)?;
    let started = Instant::now();
    if args.detach {
        let row = store.jobs().job(job)?;
        let served = match row.map(|row| Spec::decode(&row.spec)).transpose()? {
            Some(spec) => is_served(&store, &spec)?,
            None => true,
        };
        return detach(context, job, args.slots, served);
    }
    // If an agent is to be in the file's path, it gets the job before this process.
    leave_to_others(&store, job, &|| true)?;
    go(context, &store, (job, Some(1), Trust::own()), started, true)
}

/// The job of the first file that the rule wants in these mounts; then the others stop waiting.
fn await_file(
    context: &Context,
    mounts: Vec<Client>,
    rule: &str,
    wanted: &[String],
) -> outrigger_store::Result<JobId> {
    let (sender, answers) = std::sync::mpsc::channel();
    let mut hang_up = Vec::new();
    for mut mount in mounts {
        hang_up.push(mount.hang_up()?);
        let (sender, rule) = (sender.clone(), rule.to_string());
        std::thread::spawn(move || {
            let awaits = || drop(sender.send(None));
            let answer = mount.next(&rule, awaits);
            drop(sender.send(Some(answer)));
        });
    }
    drop(sender);
    let mut silent = hang_up.len();
    let answer = loop {
        match answers.recv() {
            Ok(Some(answer)) => break answer,
            Ok(None) => silent -= 1,
            Err(_) => {
                let why = "the thread that asked the mount panicked: please report this";
                break Err(outrigger_store::Error::new(outrigger_store::ErrorKind::Io, why));
            }
        }
        if silent == 0 && !context.quiet {
            complain(&format!("waiting for {} to be written in the mount", wanted.join(" and ")));
        }
    };
    hang_up.into_iter().for_each(|hang_up| hang_up());
    answer
}
