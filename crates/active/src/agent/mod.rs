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

mod round;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use outrigger_fuse::control::place;
use outrigger_store::meta::jobs::JobId;
use outrigger_store::meta::{AgentRole, Role, SessionKind};
use outrigger_store::session::Session;
use outrigger_store::{Error, ErrorKind, Result, Store};

use self::round::Agent;
use crate::cgroup::Groups;
use crate::foreground::Busy;
use crate::node::{Drain, Named, Yields, nodes};
use crate::runner::{self, Report};
use crate::trust::Trust;
use crate::written::Quiet;

/// How often to look for open jobs when there are none.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// How an agent works.
pub struct NodeOptions<'a> {
    /// Its name; no other live agent of the store may have it.
    pub name: String,
    /// Splits that run at once.
    pub slots: usize,
    /// Threads of the write pipelines, together.
    pub threads: usize,
    /// See [`runner::RunOptions::before_publish`].
    pub before_publish: Quiet<'a>,
    /// True: it ends when there is nothing to do.
    pub until_idle: bool,
    /// See [`runner::RunOptions::make_way`].
    pub make_way: Option<Busy>,
    /// See [`runner::RunOptions::idle`].
    pub idle: bool,
    /// See [`runner::RunOptions::groups`].
    pub groups: Option<Arc<Groups>>,
    /// See [`runner::RunOptions::trust`].
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
        let mut agent = Agent::new(store, options, stop, scope);
        let worked = agent.work(&mut session, tell);
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

/// Notes when it is found that others wait, and when they do no more: agents of other hosts leave
/// nothing alone for the sake of one that stands back.
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

/// Takes the agent's name by a session, unless a live agent has it.
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
    // Two that begin at once have both got here. A claim is worth as much as the session that it
    // names.
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

/// Sets `stop` once somebody wants the agent to drain; ends when `done` is set.
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
