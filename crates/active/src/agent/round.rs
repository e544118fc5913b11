//! An agent's rounds: each checks all open jobs, begins those that this agent can run, and reports
//! those that have ended. A job runs in a thread of its own, which wakes the agent's when it ends.
//! Only one job over stored files runs at a time; jobs on files that are being written run beside
//! it.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Scope, ScopedJoinHandle, Thread};
use std::time::Duration;

use outrigger_clock::Instant;
use outrigger_store::host;
use outrigger_store::meta::jobs::{JobId, JobInput, JobRow, SplitState};
use outrigger_store::session::Session;
use outrigger_store::{Error, ErrorKind, Result, Store};

use super::{Event, LOOK_EVERY, NodeOptions, register};
use crate::job::Written;
use crate::job::spec::Spec;
use crate::progress::Counters;
use crate::rules::Watcher;
use crate::runner::{self, Report, RunOptions, Speculative, Stragglers, runner_of};
use crate::written::{self, Access};

/// How often while a file is being written that no agent reads yet …
const LOOK_SOON: Duration = Duration::from_millis(100);
/// … and for how long, as it may soon be for this agent.
const SOON_FOR: Duration = Duration::from_secs(10);
/// Pause after a job could not be run here, and after errors that concern no job.
const REST: Duration = Duration::from_secs(10);
/// Tailed files at most: each takes a thread, which mostly waits.
const TAILED_MAX: usize = 32;

/// The jobs of one agent, and what it knows of them between two rounds.
pub(super) struct Agent<'scope, 'env> {
    store: &'env Arc<Store>,
    options: &'env NodeOptions<'env>,
    stop: &'env Arc<AtomicBool>,
    rules: Watcher,
    /// Jobs that were checked: can they be run here?
    fits: HashMap<JobId, Fits>,
    /// Jobs that could not be run here just now.
    resting: HashMap<JobId, Instant>,
    /// Since when no agent has had a file that is being written.
    free: HashMap<JobId, Instant>,
    scope: &'scope Scope<'scope, 'env>,
    running: Vec<Running<'scope>>,
    /// The thread to wake when one of these has ended.
    main: Thread,
    /// Jobs that this agent refuses, to be reported.
    refused: Vec<(JobId, Error)>,
    stragglers: Stragglers,
    /// Duration of the longest attempt at each job here.
    longest: HashMap<JobId, Duration>,
    /// A file may soon be for this agent to read.
    is_soon: bool,
}

/// A job that is run here.
struct Running<'scope> {
    job: JobId,
    /// It was begun while its file was still being written, and lasts as long as the writer.
    tails: bool,
    thread: ScopedJoinHandle<'scope, Result<Report>>,
    has_ended: Arc<AtomicBool>,
}

/// An agent's part in a job.
#[derive(Clone)]
enum Fits {
    /// None.
    No,
    /// Run it.
    Runs,
    /// Runs it, also while its file is being written, if readable here. The spec is read once.
    TailRules(Written, Arc<Spec>),
}

fn rest(stop: &AtomicBool) {
    let until = Instant::now() + REST;
    while Instant::now() < until && !stop.load(Ordering::Relaxed) {
        std::thread::park_timeout(LOOK_EVERY);
    }
}

fn run_job(
    store: &Arc<Store>,
    options: &NodeOptions<'_>,
    stop: &Arc<AtomicBool>,
    job: JobId,
    slots: usize,
    beside: Option<Speculative>,
) -> Result<Report> {
    let options = RunOptions {
        slots,
        threads: options.threads,
        before_publish: options.before_publish,
        prints: false,
        drain: Some(Arc::clone(stop)),
        leave_rest: true,
        make_way: options.make_way.clone(),
        idle: options.idle,
        groups: options.groups.clone(),
        trust: Arc::clone(&options.trust),
    };
    let counters = Arc::new(Counters::default());
    match beside {
        None => runner::run(store, job, &options, &counters),
        Some(beside) => runner::run_speculative(store, job, &options, &counters, beside),
    }
}

impl<'scope, 'env> Agent<'scope, 'env> {
    /// One that has no jobs yet. Threads for its jobs begin in `scope`, and wake this thread.
    pub(super) fn new(
        store: &'env Arc<Store>,
        options: &'env NodeOptions<'env>,
        stop: &'env Arc<AtomicBool>,
        scope: &'scope Scope<'scope, 'env>,
    ) -> Self {
        Self {
            store,
            options,
            stop,
            rules: Watcher::default(),
            fits: HashMap::new(),
            resting: HashMap::new(),
            free: HashMap::new(),
            scope,
            running: Vec::new(),
            main: std::thread::current(),
            refused: Vec::new(),
            stragglers: Stragglers::default(),
            longest: HashMap::new(),
            is_soon: false,
        }
    }

    /// Makes rounds until `stop` is set or, if told so, there is nothing to do. It goes on after
    /// errors, unless it ends when there is nothing to do.
    pub(super) fn work(&mut self, session: &mut Arc<Session>, tell: &mut dyn FnMut(Event<'_>)) -> Result<()> {
        let mut reported = String::new();
        while !self.stop.load(Ordering::Relaxed) {
            // A host that slept has lost session and claims. It goes on like a new agent.
            let registered = match session.check() {
                Ok(()) => Ok(()),
                Err(_) => register(self.store, self.options).map(|again| *session = again),
            };
            match registered.and_then(|()| self.round(tell)) {
                Ok(works) => {
                    reported.clear();
                    if self.options.until_idle && !works {
                        return Ok(());
                    }
                }
                Err(error) if self.options.until_idle => return Err(error),
                // Every other agent would get the same error, and end as well.
                Err(error) => {
                    let why = error.to_string();
                    if why != reported {
                        tell(Event::Rests(&error));
                        reported = why;
                    }
                    rest(self.stop);
                    continue;
                }
            }
            std::thread::park_timeout(if self.is_soon { LOOK_SOON } else { LOOK_EVERY });
        }
        Ok(())
    }
}

impl Agent<'_, '_> {
    /// Checks all open jobs once, and begins what it can: one job over stored files at a time, and
    /// beside it jobs on files that are being written. True if it has something to do.
    fn round(&mut self, tell: &mut dyn FnMut(Event<'_>)) -> Result<bool> {
        self.reap(false, tell);
        self.is_soon = false;
        let looked = self.rules.look(self.store)?;
        looked.made.iter().for_each(|(rule, job)| tell(Event::Fired(rule, *job)));
        looked.trouble.iter().for_each(|(rule, error)| tell(Event::Trouble(rule, error)));
        let mut open = self.store.jobs().open_jobs()?;
        open.reverse();
        self.fits.retain(|job, _| open.iter().any(|row| row.id == *job));
        self.longest.retain(|job, _| open.iter().any(|row| row.id == *job));
        self.free.retain(|job, _| open.iter().any(|row| row.id == *job));
        for row in &open {
            if self.stop.load(Ordering::Relaxed) {
                break;
            }
            if self.resting.get(&row.id).is_some_and(|until| *until > Instant::now()) {
                continue;
            }
            match self.wants(row) {
                Ok(Some(tails)) => {
                    tell(Event::Began(row.id));
                    self.begin(row.id, tails, None);
                }
                Ok(None) => {}
                Err(error) if matches!(error.kind(), ErrorKind::Io | ErrorKind::Busy) => return Err(error),
                // Damaged rows of one job must not keep all others waiting.
                Err(error) => {
                    self.resting.insert(row.id, Instant::now() + REST);
                    tell(Event::Refused(row.id, &error));
                }
            }
        }
        for (job, error) in self.refused.drain(..) {
            tell(Event::Refused(job, &error));
        }
        if !self.stop.load(Ordering::Relaxed)
            && let Some((job, beside)) = self.straggler(&open)?
        {
            tell(Event::Began(job));
            self.begin(job, false, Some(beside));
        }
        Ok(!self.running.is_empty())
    }

    /// A split that takes another agent long, if there is nothing else to do here.
    fn straggler(&mut self, open: &[JobRow]) -> Result<Option<(JobId, Speculative)>> {
        if self.running.iter().any(|one| !one.tails) {
            return Ok(None);
        }
        let is_left = |row: &&JobRow| {
            row.splits[SplitState::Waiting as usize] == 0 && row.splits[SplitState::Running as usize] > 0
        };
        for row in open.iter().filter(is_left) {
            let fits = self.fits.get(&row.id).is_some_and(|fits| !matches!(fits, Fits::No));
            if !fits || self.resting.get(&row.id).is_some_and(|until| *until > Instant::now()) {
                continue;
            }
            let longest = self.longest.get(&row.id).copied();
            if let Some(beside) = self.stragglers.find(self.store, row.id, longest)? {
                return Ok(Some((row.id, beside)));
            }
        }
        Ok(None)
    }

    /// This agent's part in a job whose program is here.
    fn fits(&mut self, row: &JobRow, spec: Spec) -> Result<Fits> {
        let inputs = self.store.jobs().inputs(row.id)?;
        if inputs.len() <= spec.inputs_besides() || self.refuses(row, &inputs, &spec) {
            return Ok(Fits::No);
        }
        Ok(match spec.written {
            Some(written) => Fits::TailRules(written, Arc::new(spec)),
            None => Fits::Runs,
        })
    }

    /// True if the row shows that the job is not for this agent; reported once.
    fn refuses(&mut self, row: &JobRow, inputs: &[JobInput], spec: &Spec) -> bool {
        let refused = self.options.trust.admit(self.store, row, inputs, &mut spec.clone()).err();
        let refuses = refused.is_some();
        self.refused.extend(refused.map(|error| (row.id, error)));
        refuses
    }

    fn begin(&mut self, job: JobId, tails: bool, beside: Option<Speculative>) {
        let (store, options, stop) = (self.store, self.options, self.stop);
        let slots = if tails || beside.is_some() { 1 } else { options.slots };
        let has_ended = Arc::new(AtomicBool::new(false));
        let tells = Tells { main: self.main.clone(), has_ended: Arc::clone(&has_ended) };
        let thread = self.scope.spawn(move || {
            let _tells = tells;
            run_job(store, options, stop, job, slots, beside)
        });
        self.running.push(Running { job, tails, thread, has_ended });
    }

    /// Reports jobs that have ended; with `all`, waits for them.
    pub(super) fn reap(&mut self, all: bool, tell: &mut dyn FnMut(Event<'_>)) {
        let running = std::mem::take(&mut self.running).into_iter();
        let has_ended = |one: &Running<'_>| all || one.has_ended.load(Ordering::SeqCst);
        let (ended, left): (Vec<_>, Vec<_>) = running.partition(has_ended);
        self.running = left;
        for Running { job, thread, .. } in ended {
            let ran = thread.join().unwrap_or_else(|_| {
                Err(Error::new(ErrorKind::Io, "the thread that ran it panicked: please report this"))
            });
            match ran {
                Ok(report) => {
                    if let Some(longest) = report.longest {
                        let known = self.longest.entry(job).or_default();
                        *known = longest.max(*known);
                    }
                    tell(Event::Ended(&report));
                }
                Err(error) => {
                    self.resting.insert(job, Instant::now() + REST);
                    tell(Event::Refused(job, &error));
                }
            }
        }
    }

    /// If this job can be worked on here now: whether its file is still being written.
    fn wants(&mut self, row: &JobRow) -> Result<Option<bool>> {
        if self.running.iter().any(|one| one.job == row.id) {
            return Ok(None);
        }
        let fits = match self.fits.get(&row.id) {
            Some(fits) => fits.clone(),
            None => {
                // Others run jobs of newer programs, on streams, or with other hosts' programs.
                let here = Spec::decode(&row.spec)
                    .ok()
                    .filter(|spec| spec.host.as_ref().is_none_or(|host| *host == host::name()))
                    .filter(|spec| !spec.prints());
                let fits = match here {
                    Some(spec) => self.fits(row, spec)?,
                    None => Fits::No,
                };
                self.fits.insert(row.id, fits.clone());
                fits
            }
        };
        let is_open = || -> Result<bool> {
            Ok(self.store.jobs().split(row.id, 0)?.is_some_and(|split| split.range.is_open()))
        };
        let written = match fits {
            Fits::No => return Ok(None),
            Fits::Runs => None,
            Fits::TailRules(written, spec) => Some((written, spec)),
        };
        let tails = written.is_some() && is_open()?;
        let most = if tails { TAILED_MAX } else { 1 };
        if self.running.iter().filter(|one| one.tails == tails).count() >= most {
            return Ok(None);
        }
        let is_left =
            row.splits[SplitState::Waiting as usize] > 0 || runner_of(self.store, row.id)?.is_none();
        let tails_here = match written.filter(|_| tails && is_left) {
            Some((written, spec)) => self.tails_here(row.id, written, &spec)?,
            None => {
                self.free.remove(&row.id);
                true
            }
        };
        Ok((is_left && tails_here).then_some(tails))
    }

    /// True if this agent is to read a file now that is being written and that no agent reads.
    fn tails_here(&mut self, job: JobId, written: Written, spec: &Spec) -> Result<bool> {
        let free = self.free.entry(job).or_insert_with(Instant::now).elapsed();
        self.is_soon |= free < SOON_FOR;
        let access = Access::find(self.store, written, spec)?;
        if !written::may_begin(self.store, written, spec, &access)? {
            // Its mount's host runs it; other hosts once some of it is stored, or it is closed.
            return Ok(false);
        }
        // Each file has another agent in-line.
        if free < written::waits_for(self.store, written, spec, &access, Some(&self.options.name))? {
            return Ok(false);
        }
        let is_reached = access.is_here || access.offer.is_none_or(|offer| offer.is_reached());
        if !is_reached {
            self.resting.insert(job, Instant::now() + REST);
        }
        Ok(is_reached)
    }
}

/// Wakes the agent's thread when dropped.
struct Tells {
    main: Thread,
    has_ended: Arc<AtomicBool>,
}

impl Drop for Tells {
    fn drop(&mut self) {
        self.has_ended.store(true, Ordering::SeqCst);
        self.main.unpark();
    }
}
