//! The agent: a process that runs the queued jobs of a store until it is stopped.
//!
//! ```text
//!  register: a session whose role is an agent's ─ its lease is the agent's
//!     │ each round
//!     ├─▶ rules.rs: files that rules wait for become jobs
//!     ├─▶ open jobs, oldest first, one at a time ─ runner/: claims splits that nobody has ─ whoever finds none left publishes
//!     ├─▶ when nothing is left: a second attempt at a split that takes another agent long ([`crate::runner`])
//!     └─▶ jobs whose file is still being written, in a mount of this host: each in a thread of its own, as long as its writer takes
//!  beside it a thread asks whether somebody wants it to drain
//! ```
//!
//! An agent has no state of its own: its claims are rows, free once its sessions are over. Agents
//! on its host notice that at once, by lock files; others, when the lease is over. The first agent
//! to claim a split runs it; each begins with its own host's ([`crate::runner`]).

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{Scope, ScopedJoinHandle, Thread};
use std::time::Duration;

use outrigger_clock::Instant;
use outrigger_fuse::control::place;
use outrigger_store::host;
use outrigger_store::meta::jobs::{JobId, JobInput, JobRow, SplitState};
use outrigger_store::meta::{AgentRole, Role, SessionKind};
use outrigger_store::session::Session;
use outrigger_store::{Error, ErrorKind, Result, Store};

use crate::cgroup::Groups;
use crate::foreground::Busy;
use crate::job::Written;
use crate::job::spec::Spec;
use crate::node::{Drain, Named, Yields, nodes};
use crate::progress::Counters;
use crate::rules::Watcher;
use crate::runner::{self, Report, RunOptions, Speculative, Stragglers, runner_of};
use crate::trust::Trust;
use crate::written::{self, Access, Quiet};

/// How often to look for open jobs when there are none.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// How often while a file is being written that no agent reads yet …
const LOOK_SOON: Duration = Duration::from_millis(100);
/// … and for how long, as it may soon be for this agent.
const SOON_FOR: Duration = Duration::from_secs(10);
/// Pause after a job could not be run here, and after errors that concern no job.
const REST: Duration = Duration::from_secs(10);
/// Tailed files at most: each takes a thread, which mostly waits.
const FOLLOWED_MAX: usize = 32;

/// How an agent works.
pub struct NodeOptions<'a> {
    /// Its name; no other live agent of the store may have it.
    pub name: String,
    /// Splits that run at once.
    pub slots: usize,
    /// Threads of the write pipelines, together.
    pub threads: usize,
    /// See [`RunOptions::before_publish`].
    pub before_publish: Quiet<'a>,
    /// True: it ends when there is nothing to do.
    pub until_idle: bool,
    /// See [`RunOptions::make_way`].
    pub make_way: Option<Busy>,
    /// See [`RunOptions::idle`].
    pub idle: bool,
    /// See [`RunOptions::groups`].
    pub groups: Option<Arc<Groups>>,
    /// See [`RunOptions::trust`].
    pub trust: Arc<Trust>,
}

/// Events of an agent's work.
pub enum Event<'a> {
    /// It has begun a job, or goes on with one.
    Began(JobId),
    /// It has done its part: the job has ended, or other runners have the rest.
    Ended(&'a Report),
    /// A rule has made a job.
    Fired(&'a str, JobId),
    /// It cannot run a job; others may.
    Refused(JobId, &'a Error),
    /// A rule has an error.
    Trouble(&'a str, &'a Error),
    /// An error keeps it from working; it tries again in a while.
    Rests(&'a Error),
}

/// Runs an agent until `stop` is set, it is drained, or (if told so) there is nothing to do. It
/// goes on after errors, such as a database that cannot be reached.
///
/// # Errors
/// `Invalid` for a bad name, `Exists` if an agent of that name lives, and failures of the store at
/// the beginning. Later ones only if it ends when there is nothing to do. Failed jobs are no
/// errors.
pub fn run(
    store: &Arc<Store>,
    options: &NodeOptions<'_>,
    stop: &Arc<AtomicBool>,
    tell: &mut dyn FnMut(Event<'_>),
) -> Result<()> {
    let mut session = register(store, options)?;
    // What was asked of one that had this name before, and what it said.
    forget(store, &options.name)?;
    let make_way = options.make_way.clone().map(|busy| noting(store, &options.name, busy));
    let (groups, trust) = (options.groups.clone(), Arc::clone(&options.trust));
    let options = &NodeOptions { name: options.name.clone(), make_way, groups, trust, ..*options };
    let (name, done) = (options.name.as_str(), AtomicBool::new(false));
    let worked = std::thread::scope(|scope| {
        let asker = scope.spawn(|| ask_for_drain(store, name, stop, &done));
        let mut agent = Agent {
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
        };
        let mut work = || -> Result<()> {
            let mut told = String::new();
            while !stop.load(Ordering::Relaxed) {
                // A host that slept has lost session and claims. It goes on like a new agent.
                let registered = match session.check() {
                    Ok(()) => Ok(()),
                    Err(_) => register(store, options).map(|again| session = again),
                };
                match registered.and_then(|()| agent.round(tell)) {
                    Ok(works) => {
                        told.clear();
                        if options.until_idle && !works {
                            return Ok(());
                        }
                    }
                    Err(error) if options.until_idle => return Err(error),
                    // Every other agent would get the same error, and end as well.
                    Err(error) => {
                        let why = error.to_string();
                        if why != told {
                            tell(Event::Rests(&error));
                            told = why;
                        }
                        rest(stop);
                        continue;
                    }
                }
                std::thread::park_timeout(if agent.is_soon { LOOK_SOON } else { LOOK_EVERY });
            }
            Ok(())
        };
        let worked = work();
        agent.reap(true, tell);
        done.store(true, Ordering::Relaxed);
        asker.thread().unpark();
        let _ = asker.join();
        worked
    });
    let named = Named { agent: options.name.clone(), session: session.id() };
    drop(session);
    forget(store, &options.name)?;
    store.registry().take(&named)?;
    worked
}

/// Removes what was asked of an agent of this name, and what it said of itself.
fn forget(store: &Store, name: &str) -> Result<()> {
    store.registry().remove(&Drain { agent: name.to_owned() })?;
    store.registry().remove(&Yields { agent: name.to_owned() })
}

/// Notes when it is found that others wait, and when they do no more: agents of other hosts leave nothing alone for the sake of one that stands back.
fn noting(store: &Arc<Store>, name: &str, busy: Busy) -> Busy {
    let (store, record, noted) = (Arc::clone(store), Yields { agent: name.to_owned() }, Mutex::new(false));
    Arc::new(move || {
        let waits = busy();
        let mut noted = noted.lock().expect("no panic while held");
        if *noted != waits {
            // Where the database is away it is noted at the next look.
            let registry = store.registry();
            let set = if waits { registry.put(&record) } else { registry.remove(&record) };
            *noted = if set.is_ok() { waits } else { *noted };
        }
        waits
    })
}

fn rest(stop: &AtomicBool) {
    let until = Instant::now() + REST;
    while Instant::now() < until && !stop.load(Ordering::Relaxed) {
        std::thread::park_timeout(LOOK_EVERY);
    }
}

fn register(store: &Arc<Store>, options: &NodeOptions<'_>) -> Result<Arc<Session>> {
    let name = &options.name;
    let fits = |c: char| c.is_ascii_alphanumeric() || "-._:".contains(c);
    if name.is_empty() || !name.chars().all(fits) {
        let why = format!("`{name}` cannot be an agent's name: use letters, digits and -._:");
        return Err(Error::new(ErrorKind::Invalid, why));
    }
    runner::fence_the_dead(store)?;
    let taken = |by: String| {
        let why = format!("an agent `{name}` is running already{by}; give this one another name with --name");
        Error::new(ErrorKind::Exists, why)
    };
    if let Some(other) = nodes(store)?.into_iter().find(|node| node.role.name == *name) {
        return Err(taken(format!(" (process {} on {})", other.process, other.host)));
    }
    // A reader: no collector ever waits for it.
    let (slots, uid) = (options.slots as u64, rustix::process::geteuid().as_raw());
    let role = AgentRole { name: name.clone(), slots, uid, place: place(store) };
    let session = store.session(SessionKind::Reader, Role::Agent(role))?;
    // Two that begin at once have both got here. A claim is worth as much as the session that it names.
    let (registry, own) = (store.registry(), Named { agent: name.clone(), session: session.id() });
    while !registry.add(&own)? {
        let Some(claim) = registry.get::<Named>(name)? else { continue };
        if store.is_live(claim.record.session)? {
            return Err(taken(String::new()));
        }
        if registry.replace(&claim, &own)? {
            break;
        }
    }
    Ok(session)
}

fn ask_for_drain(store: &Store, name: &str, stop: &AtomicBool, done: &AtomicBool) {
    while !done.load(Ordering::Relaxed) {
        std::thread::park_timeout(LOOK_EVERY);
        // A database that is away is asked again.
        let asked = store.registry().find(|drain: &Drain| drain.agent == name);
        if asked.is_ok_and(|asked| asked.is_some()) {
            stop.store(true, Ordering::Relaxed);
        }
    }
}

struct Agent<'scope, 'env> {
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
    follows: bool,
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
    Follows(Written, Arc<Spec>),
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
                Ok(Some(follows)) => {
                    tell(Event::Began(row.id));
                    self.begin(row.id, follows, None);
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
        if self.running.iter().any(|one| !one.follows) {
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
            Some(written) => Fits::Follows(written, Arc::new(spec)),
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

    fn begin(&mut self, job: JobId, follows: bool, beside: Option<Speculative>) {
        let (store, options, stop) = (self.store, self.options, self.stop);
        let slots = if follows || beside.is_some() { 1 } else { options.slots };
        let has_ended = Arc::new(AtomicBool::new(false));
        let tells = Tells { main: self.main.clone(), has_ended: Arc::clone(&has_ended) };
        let thread = self.scope.spawn(move || {
            let _tells = tells;
            run_job(store, options, stop, job, slots, beside)
        });
        self.running.push(Running { job, follows, thread, has_ended });
    }

    /// Reports jobs that have ended; with `all`, waits for them.
    fn reap(&mut self, all: bool, tell: &mut dyn FnMut(Event<'_>)) {
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
                    .filter(|spec| spec.host.as_ref().is_none_or(|host| *host == host::name()));
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
            Fits::Follows(written, spec) => Some((written, spec)),
        };
        let follows = written.is_some() && is_open()?;
        let most = if follows { FOLLOWED_MAX } else { 1 };
        if self.running.iter().filter(|one| one.follows == follows).count() >= most {
            return Ok(None);
        }
        let is_left =
            row.splits[SplitState::Waiting as usize] > 0 || runner_of(self.store, row.id)?.is_none();
        let follows_here = match written.filter(|_| follows && is_left) {
            Some((written, spec)) => self.follows_here(row.id, written, &spec)?,
            None => {
                self.free.remove(&row.id);
                true
            }
        };
        Ok((is_left && follows_here).then_some(follows))
    }

    /// True if this agent is to read a file now that is being written and that no agent reads.
    fn follows_here(&mut self, job: JobId, written: Written, spec: &Spec) -> Result<bool> {
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
