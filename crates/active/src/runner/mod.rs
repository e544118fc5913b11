//! Runs a job in this process: slots claim splits, attempts run, the last step publishes.
//!
//! ```text
//!  run ──▶ slot 1 ─┐ claim ▶ attempt ▶ write pipeline ▶ record, in groups      (a thread, a session and a writer each)
//!      ──▶ slot 2 ─┤
//!      ──▶ monitor │ stops all when the job was cancelled; beside it who holds programs still while others wait
//!                  ▼
//!              publish: names for the outputs, one transaction
//! ```
//!
//! Runners in other processes and on other hosts may share a job: each claims free splits, and
//! those of a killed runner once its session is over. One that finds no split left publishes; of
//! several, one succeeds.
//!
//! A slot finishes its writer once a second, and when there is nothing left to claim: recorded
//! splits survive the process. Nothing is visible before the last step, which happens whole or not
//! at all. A runner of a job that another process began goes on with the splits that were recorded.

mod accept;
mod delay_scheduling;
mod launch;
mod left;
mod locality;
mod made;
mod measured;
mod others;
mod publish;
mod slot;
mod stragglers;
mod upkeep;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use outrigger_store::meta::jobs::{JobId, JobRow, JobState, SplitRow, SplitState};
use outrigger_store::tree::StorePath;
use outrigger_store::{Error, ErrorKind, Result, Store};

use crate::attempt::{Feed, Watch};
use crate::cgroup::Groups;
use crate::foreground::{Busy, Yielding};
use crate::job::spec::{Output, RAW, Spec};
use crate::mount::Joined;
use crate::progress::Counters;
use crate::sandbox::Sandbox;
use crate::scratch::Scratch;
use crate::trust::Trust;
use crate::written::Quiet;

use accept::{Accepted, accept};
use delay_scheduling::Placed;
use launch::Inputs;
use locality::Tally;
pub use locality::{Nearby, nearby};
pub use made::{Made, made};
pub use measured::{Forecast, Measured, measured};
use stragglers::Overtaken;
pub(crate) use stragglers::{Speculative, Stragglers};
pub(crate) use upkeep::fence_the_dead;
pub use upkeep::{forget_ended, left_of, runner_of, set_aside};

/// How to run jobs in this process.
pub struct RunOptions<'a> {
    /// Splits that run at once.
    pub slots: usize,
    /// Threads of the write pipelines, together.
    pub threads: usize,
    /// Makes a mount that owns the store, for example, stop changes while outputs become visible,
    /// for as long as the returned value lives.
    pub before_publish: Quiet<'a>,
    /// This process prints the job's results, if it is one whose results are printed
    /// ([`Spec::prints`](crate::job::spec::Spec::prints)): before `before_publish` returns.
    pub prints: bool,
    /// Once set, no more splits are begun: running ones are finished, others run the rest.
    pub drain: Option<Arc<AtomicBool>>,
    /// Do not wait for splits that other runners have.
    pub leave_rest: bool,
    /// While true, nothing is begun, for half a minute at a time at most: others come first.
    pub make_way: Option<Busy>,
    /// Programs get only idle processor and disk time.
    pub idle: bool,
    /// Each attempt runs in a control group of its own, one of these, if there are any.
    pub groups: Option<Arc<Groups>>,
    /// The accepted submitters, and their users here: a job's row alone is not trusted.
    pub trust: Arc<Trust>,
}

/// How a job ended.
#[derive(Debug)]
pub struct Report {
    /// Where it is now.
    pub job: JobRow,
    /// Files that the job made visible. Of another process's, only those it recorded by name.
    pub files: Vec<(StorePath, u64)>,
    /// How many there are, and how long.
    pub made: Made,
    /// Work that other processes did, or this process earlier.
    pub elsewhere: Elsewhere,
    /// Splits that were set aside: input, bytes and reason.
    pub set_aside: Vec<SetAside>,
    /// Protections that the sandbox cannot give here.
    pub missing: Vec<String>,
    /// Duration of the longest successful attempt here.
    pub longest: Option<Duration>,
}

/// Work on a job by other processes, or by this one's predecessors.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Elsewhere {
    /// Splits that were finished there.
    pub splits: u64,
    /// If there are any: bytes of all splits that are finished, as they were cut.
    pub bytes_of_all: u64,
}

/// A split that no attempt could do.
#[derive(Clone, Debug)]
pub struct SetAside {
    /// Its number.
    pub split: u64,
    /// Its input, if it is of one.
    pub input: Option<StorePath>,
    /// Nominal first byte.
    pub from: u64,
    /// Nominal first byte after.
    pub to: u64,
    /// The holder when the job was made, if splits are by host: it has no one place then.
    pub held_by: Option<String>,
    /// Why the last attempt failed.
    pub why: String,
}

/// State that all threads of a runner share.
pub(crate) struct Shared {
    pub store: Arc<Store>,
    pub job: JobId,
    pub spec: Spec,
    pub inputs: Arc<Inputs>,
    /// See [`Inputs::joined`].
    pub joined: Vec<Arc<Joined>>,
    pub sandbox: Sandbox,
    pub watch: Arc<Watch>,
    pub counters: Arc<Counters>,
    pub scratch: Scratch,
    /// Work directories of attempts that left nothing, for those to come.
    pub spare: std::sync::Mutex<Vec<tempfile::TempDir>>,
    /// Where the one attempt's input comes from, if not from the store.
    pub feed: std::sync::Mutex<Option<Feed>>,
    /// See [`RunOptions::drain`].
    pub drain: Option<Arc<AtomicBool>>,
    /// See [`RunOptions::make_way`].
    pub make_way: Option<Busy>,
    /// See [`RunOptions::groups`].
    pub groups: Option<Arc<Groups>>,
    /// A second attempt to be made, and nothing else.
    pub beside: std::sync::Mutex<Option<Speculative>>,
    /// See [`Report::longest`].
    pub longest: std::sync::Mutex<Option<Duration>>,
    overtaken: Overtaken,
    /// This host's name in the packs' engine, if packs can be placed on it: attempts' outputs are.
    pub place: Option<Arc<str>>,
    /// Where splits lie, if the packs' engine knows which host holds which pack.
    pub placed: Placed,
    /// Fewer splits run at once than there are processors: the free ones decode ahead.
    pub decodes_ahead: bool,
    /// Counts where the programs' inputs lay.
    pub tally: Arc<Tally>,
}

impl Shared {
    /// True if no more splits are to be begun.
    fn is_draining(&self) -> bool {
        self.drain.as_ref().is_some_and(|drain| drain.load(Ordering::Relaxed))
    }

    /// Waits while others on this host wait, within a limit.
    fn make_way(&self) {
        let begun = outrigger_clock::Instant::now();
        while self.make_way.as_ref().is_some_and(|busy| busy())
            && begun.elapsed() < MAKE_WAY_MAX
            && !self.is_draining()
            && !self.watch.is_stopped()
        {
            outrigger_clock::sleep(ASK_EVERY);
        }
    }

    /// The program's outputs, with their numbers: not the raw file of a 1W pattern.
    fn outputs(&self) -> impl Iterator<Item = (usize, &Output)> {
        let written = self.inputs.paths.is_empty();
        self.spec.outputs.iter().enumerate().filter(move |(_, output)| !written || output.name != RAW)
    }
}

/// How long others can keep a split from being begun.
const MAKE_WAY_MAX: Duration = Duration::from_secs(30);
/// How often to check if the job was cancelled.
const ASK_EVERY: Duration = Duration::from_millis(250);

/// Runs a job to its end, perhaps with other runners, and publishes it. If it has ended, only
/// reports.
///
/// # Errors
/// `NotFound`, `Invalid` if it cannot be run again, `Denied` if it cannot be sandboxed as strictly
/// as it says. A job that fails is no error, but a report.
pub fn run(
    store: &Arc<Store>,
    job: JobId,
    options: &RunOptions<'_>,
    counters: &Arc<Counters>,
) -> Result<Report> {
    work(store, job, options, counters, (None, None), &mut || Ok(()))
}

/// Makes a speculative attempt at a split that another runner has, and no more.
///
/// # Errors
/// As [`run`].
pub(crate) fn run_speculative(
    store: &Arc<Store>,
    job: JobId,
    options: &RunOptions<'_>,
    counters: &Arc<Counters>,
    beside: Speculative,
) -> Result<Report> {
    work(store, job, options, counters, (None, Some(beside)), &mut || Ok(()))
}

/// As [`run`], for a job whose one attempt reads `feed`; `before_end` is called when it has ended.
pub(crate) fn run_fed(
    store: &Arc<Store>,
    job: JobId,
    options: &RunOptions<'_>,
    counters: &Arc<Counters>,
    feed: Feed,
    before_end: &mut dyn FnMut() -> Result<()>,
) -> Result<Report> {
    work(store, job, options, counters, (Some(feed), None), before_end)
}

fn work(
    store: &Arc<Store>,
    job: JobId,
    options: &RunOptions<'_>,
    counters: &Arc<Counters>,
    (feed, beside): (Option<Feed>, Option<Speculative>),
    before_end: &mut dyn FnMut() -> Result<()>,
) -> Result<Report> {
    let jobs = store.jobs();
    let row = jobs.job(job)?.ok_or_else(|| missing(job))?;
    if !matches!(row.state, JobState::Waiting | JobState::Running) {
        // Ended since its caller heard of it, by a faster runner or as its file was given up.
        counters.splits.store(row.splits.iter().sum(), Ordering::Relaxed);
        return report(store, row, None, counters, (Vec::new(), None), false);
    }
    fence_the_dead(store)?;
    let Accepted { spec, inputs, sandbox } = accept(store, &row, options, feed.is_some())?;
    let set = |counter: &std::sync::atomic::AtomicU64, value: u64| counter.store(value, Ordering::Relaxed);
    set(&counters.bytes_expected, inputs.bytes());
    // A program that reads a stream has one split; another split is the raw file's.
    let fed = feed.is_some();
    set(&counters.splits, if fed { 1 } else { row.splits.iter().sum() });
    set(&counters.splits_done, row.splits[SplitState::Done as usize]);
    let scratch = Scratch::new()?;
    sandbox.let_in(scratch.path())?;
    let missing = sandbox.missing.clone();
    let placed = locality::placed(store, job, &spec, &inputs.roots);
    let place = locality::own_place(store);
    let joined = inputs.joined(store, &spec);
    let open = row.splits[SplitState::Waiting as usize] + row.splits[SplitState::Running as usize];
    let most = if fed { 1 } else { usize::try_from(open.max(1)).unwrap_or(usize::MAX) };
    let slots = options.slots.clamp(1, most);
    let shared = Arc::new(Shared {
        store: Arc::clone(store),
        job,
        spec,
        inputs,
        joined,
        sandbox,
        watch: Watch::start(),
        counters: Arc::clone(counters),
        scratch,
        spare: std::sync::Mutex::default(),
        feed: std::sync::Mutex::new(feed),
        drain: options.drain.clone(),
        make_way: options.make_way.clone(),
        groups: options.groups.clone(),
        beside: std::sync::Mutex::new(beside),
        longest: std::sync::Mutex::default(),
        overtaken: Overtaken::default(),
        place,
        placed,
        decodes_ahead: std::thread::available_parallelism().is_ok_and(|processors| processors.get() > slots),
        tally: Tally::new(store, counters),
    });
    let mounted = launch::prepare(&shared)?;
    let threads = (options.threads / slots).max(2);
    let mut stragglers = Stragglers::default();
    loop {
        // A speculative attempt takes one slot.
        let one = shared.beside.lock().expect("no panic while held").is_some();
        run_slots(&shared, if one { 1 } else { slots }, threads, options.before_publish)?;
        before_end()?;
        if let Some((row, files)) = finish(&shared, options, fed, &mut stragglers)? {
            drop(mounted);
            let longest = *shared.longest.lock().expect("no panic while held");
            return report(store, row, files, counters, (missing, longest), fed);
        }
    }
}

/// The report on a job. `files` are those that this process published.
fn report(
    store: &Store,
    row: JobRow,
    files: Option<Vec<(StorePath, u64)>>,
    counters: &Counters,
    (missing, longest): (Vec<String>, Option<Duration>),
    fed: bool,
) -> Result<Report> {
    let set_aside = set_aside(store, row.id)?;
    let (files, made) = match files {
        Some(files) => {
            let made = Made::of(&files);
            (files, made)
        }
        None => {
            let made = made(store, row.id, row.state)?.unwrap_or_default();
            (made.named(), made)
        }
    };
    let done = row.splits[SplitState::Done as usize];
    let mut elsewhere = Elsewhere::default();
    if !fed {
        elsewhere.splits = done.saturating_sub(counters.view().splits_here);
    }
    if elsewhere.splits > 0 {
        let splits = store.jobs().splits(row.id)?;
        let is_done = |split: &&SplitRow| split.state == SplitState::Done && !split.range.is_open();
        elsewhere.bytes_of_all =
            splits.iter().filter(is_done).map(|split| split.range.to.saturating_sub(split.range.from)).sum();
    }
    Ok(Report { job: row, files, made, elsewhere, set_aside, missing, longest })
}

/// Runs splits until there is nothing left to claim.
fn run_slots(shared: &Shared, slots: usize, threads: usize, quiet: Quiet<'_>) -> Result<()> {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let monitor = scope.spawn(|| watch_job(shared, &done));
        let yields = scope.spawn(|| stand_aside(shared, &done));
        let running: Vec<_> = (0..slots).map(|_| scope.spawn(|| slot::run(shared, threads, quiet))).collect();
        let mut ran = Ok(());
        for slot in running {
            let ended = slot
                .join()
                .unwrap_or_else(|_| Err(Error::new(ErrorKind::Io, "a slot panicked: please report this")));
            if ran.is_ok() {
                ran = ended;
            }
        }
        done.store(true, Ordering::SeqCst);
        monitor.thread().unpark();
        yields.thread().unpark();
        let _ = (monitor.join(), yields.join());
        ran
    })
}

/// Stops the attempts once the job is not running any more.
fn watch_job(shared: &Shared, done: &AtomicBool) {
    while !done.load(Ordering::SeqCst) {
        std::thread::park_timeout(ASK_EVERY);
        shared.overtaken.end(&shared.store, shared.job);
        let row = shared.store.jobs().job_briefly(shared.job);
        if let Ok(row) = row
            && row.is_none_or(|row| !matches!(row.state, JobState::Waiting | JobState::Running))
        {
            shared.watch.stop();
            return;
        }
    }
}

/// Makes programs yield while others on this host wait. Has a thread, as asking them may block.
fn stand_aside(shared: &Shared, done: &AtomicBool) {
    let (Some(busy), Some(_)) = (&shared.make_way, &shared.groups) else { return };
    let mut yielding = Yielding::default();
    while !done.load(Ordering::SeqCst) {
        std::thread::park_timeout(ASK_EVERY);
        let others_wait = busy();
        let before = yielding;
        yielding = yielding.next(others_wait, outrigger_clock::Instant::now());
        if others_wait || before != yielding {
            // Includes programs that have begun meanwhile.
            shared.watch.stand_back(others_wait);
        }
        shared.watch.freeze(yielding.is_still());
    }
    shared.watch.freeze(false);
}

/// A job's row, and the files that this process made visible, if it did.
type Finished = (JobRow, Option<Vec<(StorePath, u64)>>);

/// Publishes or fails a job without splits to run. `None`: others had some, and left them.
fn finish(
    shared: &Shared,
    options: &RunOptions<'_>,
    fed: bool,
    stragglers: &mut Stragglers,
) -> Result<Option<Finished>> {
    let (jobs, job) = (shared.store.jobs(), shared.job);
    let mut files = None;
    let row = loop {
        let row = jobs.job_briefly(job)?.ok_or_else(|| self::missing(job))?;
        if !matches!(row.state, JobState::Running | JobState::Waiting) {
            break row;
        }
        let (waiting, running) =
            (row.splits[SplitState::Waiting as usize], row.splits[SplitState::Running as usize]);
        if waiting + running > 0 || row.state == JobState::Waiting {
            let someone = runner_of(&shared.store, job)?.is_some();
            if shared.is_draining() || (options.leave_rest && someone) {
                break row;
            }
            // Their runners finish the job, unless they are killed or an attempt fails.
            outrigger_clock::sleep(ASK_EVERY);
            if someone && waiting == 0 && row.state == JobState::Running {
                let longest = *shared.longest.lock().expect("no panic while held");
                let beside = if fed { None } else { stragglers.find(&shared.store, job, longest)? };
                if beside.is_none() {
                    continue;
                }
                *shared.beside.lock().expect("no panic while held") = beside;
                return Ok(None);
            }
            if fed {
                let why = format!("a part of job {job} was lost with the process that ran it");
                return Err(Error::new(ErrorKind::Fenced, why));
            }
            return Ok(None);
        }
        let aside = row.splits[SplitState::SetAside as usize];
        if aside > 0 && !shared.spec.skip {
            let first = jobs.splits(job)?.into_iter().find(|split| split.state == SplitState::SetAside);
            let why =
                first.map(|split| format!(": split {}: {}", split.number, split.why)).unwrap_or_default();
            jobs.end_job(
                job,
                JobState::Failed,
                &format!("{aside} of {} splits failed{why}", row.splits.iter().sum::<u64>()),
            )?;
            continue;
        }
        match publish::publish(shared, options) {
            Ok(made) => files = Some(made),
            // Another runner was first, or the job was cancelled.
            Err(error) if error.kind() == ErrorKind::Fenced => {}
            Err(error) => {
                let is_unwanted = error.kind() == ErrorKind::Cancelled;
                let state = if is_unwanted { JobState::Cancelled } else { JobState::Failed };
                jobs.end_job(job, state, &error.to_string())?;
                return Err(error);
            }
        }
        let row = jobs.job(job)?.ok_or_else(|| self::missing(job))?;
        if row.state == JobState::Running {
            return Err(Error::new(
                ErrorKind::Fenced,
                format!("job {job} could not be published; `outrigger job retry {job}` tries again"),
            ));
        }
        break row;
    };
    let spec = jobs.job(job)?.map(|row| row.spec).unwrap_or_default();
    Ok(Some((JobRow { spec, ..row }, files)))
}

fn missing(job: JobId) -> Error {
    Error::new(ErrorKind::NotFound, format!("there is no job {job}; `outrigger jobs` lists them"))
}
