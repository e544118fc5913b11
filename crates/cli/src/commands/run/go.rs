//! A job that was made is run in this process, with a bar and with a report at its end. Or it is
//! left to agents or, without any, to a process of this program in the background.

use std::any::Any;
use std::ffi::OsString;
use std::process::{Command, Stdio};
use std::sync::Arc;

use outrigger_active::cgroup::{Groups, Where};
use outrigger_active::progress::Counters;
use outrigger_active::runner::{self, Nearby, Report, RunOptions};
use outrigger_active::trust::Trust;
use outrigger_clock::Instant;
use outrigger_fuse::beside::Neighbour;
use outrigger_store::meta::jobs::JobId;
use outrigger_store::{Error, ErrorKind, Store};

use super::end::{describe, not_run, say, stopped};
use super::printed::Printer;
use crate::commands::Context;
use crate::commands::nearby::{describe_nearby, nearby_of};
use crate::exit::{Exit, Failure, Outcome};
use crate::interrupt;
use crate::json::Object;
use crate::output::{complain, print_json, print_text};
use crate::progress::Bar;

/// The means that a job is run with.
pub(super) struct Means {
    pub(super) slots: Option<usize>,
    pub(super) groups: Result<Groups, String>,
    pub(super) trust: Trust,
    /// Results go to standard output.
    pub(super) prints: bool,
}

/// Runs a job in this process and reports it. If the process itself fails, `ends` ends the job,
/// too.
pub fn go(
    context: &Context,
    store: &Arc<Store>,
    (job, slots, trust): (JobId, Option<usize>, Trust),
    started: Instant,
    ends: bool,
) -> Outcome {
    interrupt::arm_saying(store, stopped(store, job, false), || ());
    let means = Means { slots, groups: Groups::begin(&Where::Auto, 0, false), trust, prints: false };
    go_armed(context, store, job, means, started, ends)
}

/// As [`go`], if the signal handler is installed already.
pub(super) fn go_armed(
    context: &Context,
    store: &Arc<Store>,
    job: JobId,
    means: Means,
    started: Instant,
    ends: bool,
) -> Outcome {
    let nearby = nearby_of(store, job);
    if let Some(nearby) = nearby.as_ref().filter(|_| !context.quiet && !context.json) {
        complain(&describe_nearby(nearby));
    }
    let printer = means.prints.then(|| Printer::new(store, job));
    with_options(context, store, nearby, (means, printer), started, |options, counters| {
        runner::run(store, job, options, counters).map_err(|error| not_run(store, job, ends, error))
    })
}

/// Has `run` run a job with a progress bar, and reports the outcome.
pub(super) fn with_options(
    context: &Context,
    store: &Arc<Store>,
    nearby: Option<Nearby>,
    (Means { slots, groups, trust, .. }, printer): (Means, Option<Arc<Printer>>),
    started: Instant,
    run: impl FnOnce(&RunOptions<'_>, &Arc<Counters>) -> Result<Report, Failure>,
) -> Outcome {
    let counters: Arc<Counters> = Arc::default();
    let told = Arc::clone(&counters);
    let mut last = 0;
    let bar = Bar::with(context.quiet, move |elapsed| {
        let mut view = told.view();
        // A flowing stream waits for almost no time between two blocks, so that is not shown.
        view.waits_for_writer &= view.bytes_read == last;
        last = view.bytes_read;
        describe(&view, elapsed)
    });
    let hold = holder(store, context.neighbour());
    let before_publish = || {
        printer.as_ref().map_or(Ok(()), |printer| printer.print(true))?;
        hold()
    };
    let slots = slots.unwrap_or_else(|| std::thread::available_parallelism().map_or(2, usize::from));
    let (groups, without) = match groups {
        Ok(groups) => (Some(Arc::new(groups)), None),
        Err(why) => (None, Some(why)),
    };
    let options = RunOptions {
        slots,
        threads: context.threads,
        before_publish: &before_publish,
        prints: printer.is_some(),
        drain: None,
        leave_rest: false,
        make_way: None,
        idle: false,
        groups,
        trust: Arc::new(trust),
    };
    let report = std::thread::scope(|scope| {
        let prints = printer.as_ref().map(|printer| scope.spawn(|| printer.run()));
        let report = run(&options, &counters);
        if let (Some(printer), Some(prints)) = (&printer, &prints) {
            printer.end();
            prints.thread().unpark();
        }
        report
    });
    drop(bar);
    let report = report?;
    context.settle(store);
    // Standard output has the results.
    let quiet = context.quiet || printer.is_some();
    say(
        context,
        quiet,
        (&report, without.as_deref(), nearby),
        &counters.view(),
        started.elapsed().as_secs_f64(),
    )
}

/// Stops a mount of the store while outputs become visible.
pub fn holder(
    store: &Arc<Store>,
    neighbour: Neighbour,
) -> impl Fn() -> outrigger_store::Result<Box<dyn Any>> {
    let store = Arc::clone(store);
    move || {
        let held = neighbour.hold(store.name());
        Ok(Box::new(held.map_err(|error| Error::new(ErrorKind::Busy, error.to_string()))?))
    }
}

/// Leaves the job to agents or, if there are none, to another process of this program.
pub(super) fn detach(context: &Context, job: JobId, slots: Option<usize>, served: bool) -> Outcome {
    if !served {
        spawn_runner(context, job, slots, &["--own".into()])?;
    }
    if context.json {
        print_json(Object::new().with("job", job.0))?;
    } else {
        print_text(&format!("{job}\n"))?;
    }
    Ok(Exit::Done)
}

/// Starts `job retry JOB` in the background, with these options.
pub fn spawn_runner(
    context: &Context,
    job: JobId,
    slots: Option<usize>,
    options: &[OsString],
) -> Result<(), Failure> {
    use std::os::unix::process::CommandExt as _;
    let at = |error: std::io::Error| Failure::io("cannot start a process for the job", &error);
    let mut command = Command::new(std::env::current_exe().map_err(at)?);
    command.arg("--store").arg(context.store_dir()?).arg("--quiet");
    if let Some(path) = outrigger_store::keys::secrets::named_key_file() {
        command.arg("--key-file").arg(path);
    }
    command.args(["job", "retry", &job.to_string(), "--ends"]).args(options);
    if let Some(slots) = slots {
        command.args(["--slots", &slots.to_string()]);
    }
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
    command.spawn().map(drop).map_err(at)
}
