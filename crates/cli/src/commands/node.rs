//! `node`, the agent, and `node list|drain`.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use clap::{Args, Subcommand};
use outrigger_active::agent::{self, Event, NodeOptions};
use outrigger_active::cgroup::{Groups, Where};
use outrigger_active::foreground::{Busy, of_mounts};
use outrigger_active::node::{self, Node};
use outrigger_clock::Instant;
use outrigger_fuse::control::dirs_of;
use outrigger_store::meta::jobs::JobState;
use outrigger_store::ops::errors::{self, Noting};
use outrigger_store::{ErrorKind, Store, host};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::job::{state_text, writable};
use super::trust::TrustArgs;
use super::{Context, run::holder};
use crate::exit::{Exit, Failure, Outcome};
use crate::interrupt;
use crate::json::Object;
use crate::operation;
use crate::output::{Out, complain, counted, print_text};

const EXAMPLES: &str = "\
Examples:
  outrigger node                          Ctrl-C: finish running splits; twice: stop at once
  outrigger node --name big --slots 32    set the agent's name, and how many splits run at once
  outrigger node --idle --yield-above 5   yield as much as possible
  outrigger node --until-idle             work off the queue, and end
  outrigger node --cgroup /sys/fs/cgroup/jobs       make the programs' control groups there
  outrigger node --run-as jobs --sandbox strict     run every program as this user, in a sandbox
  outrigger node --map /etc/outrigger/roles --users ann,bob     only the jobs of these users
  systemd-run --scope --property Delegate=yes outrigger node    in a delegated control group
  outrigger run --detach … ; outrigger job wait 7
  outrigger node list
  outrigger node drain big --wait

An agent runs queued jobs (of `run --detach` and of rules), and helps with jobs that `run` works on.
Several agents may share a store: on one machine, or on many if its metadata is in PostgreSQL.
If an agent is killed, the others take its splits. If a split is slow, another agent runs a
speculative attempt at it.

An agent of root runs each program as the user who submitted the job, if this host knows that user.
It runs sandboxed programs of root as nobody (see --allow-root). Any other agent runs only its own
user's jobs. The submitter is the database role that made the job (see --map). In a store in a
directory, it is the directory's owner.";

/// Run an agent: a process that works on queued jobs
#[derive(Args)]
#[command(after_help = EXAMPLES, args_conflicts_with_subcommands = true)]
pub struct NodeArgs {
    #[command(subcommand)]
    command: Option<NodeCommand>,
    /// The agent's name [default: the host's name, with a number if that is taken]
    #[arg(long)]
    name: Option<String>,
    /// Splits that run at once [default: one per processor]
    #[arg(long, value_name = "N")]
    slots: Option<usize>,
    /// Niceness of the agent and its programs, 0 to 19: how far they yield the processor to others,
    /// and the disk with I/O schedulers that honour it
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(i32).range(0..=19))]
    nice: i32,
    /// Give programs only processor and disk time that nobody else wants; on a machine that is
    /// never idle they hardly progress
    #[arg(long)]
    idle: bool,
    /// Start nothing while reads and writes in a mount of the store on this host take longer than
    /// so many milliseconds on average, or wait for room. After half a minute one split starts all
    /// the same. 0 turns this off
    #[arg(long, value_name = "MS", default_value_t = 20)]
    yield_above: u64,
    /// Where each program gets its own control group (version 2). The group enforces the program's
    /// limits, counts what it uses, and freezes it for two seconds at a time while others wait
    /// (--yield-above). auto: in the agent's own group, if that is root's or delegated to it; DIR:
    /// in that one; off: no groups
    #[arg(long, value_name = "auto|off|DIR", default_value = "auto")]
    cgroup: Where,
    #[command(flatten)]
    trust: TrustArgs,
    /// End when there is nothing to do
    #[arg(long)]
    until_idle: bool,
}

#[derive(Subcommand)]
pub enum NodeCommand {
    /// Show the agents that are running, and what they work on
    #[command(after_help = "Examples:\n  outrigger node list\n  outrigger node list --json")]
    List,
    /// Have an agent finish its running splits, leave the rest to others, and end
    #[command(after_help = "Examples:\n  outrigger node drain rack7\n  outrigger node drain rack7 --wait")]
    Drain {
        /// The agent's name
        name: String,
        /// Wait until it has ended
        #[arg(long)]
        wait: bool,
    },
}

pub fn run(context: &Context, args: NodeArgs) -> Outcome {
    match args.command {
        None => {
            outrigger_active::sandbox::keep_inherited()?;
            agent(context, args)
        }
        Some(NodeCommand::List) => list(context),
        Some(NodeCommand::Drain { name, wait }) => drain(context, &name, wait),
    }
}

fn agent(context: &Context, args: NodeArgs) -> Outcome {
    let trust = Arc::new(args.trust.trust()?);
    let store = Arc::new(context.open()?);
    store.require_writable()?;
    store.require_all_rights()?;
    let name = match args.name {
        Some(name) => name,
        None => free_name(&store)?,
    };
    // Set before any thread starts, so that all threads and programs inherit it.
    rustix::process::nice(args.nice).map_err(|error| {
        Failure::io("cannot lower the priority (give --nice 0 to keep it)", &error.into())
    })?;
    let groups = Groups::begin(&args.cgroup, args.nice, args.idle);
    let contained = match (&groups, &args.cgroup) {
        (Ok(groups), _) => format!("each in a control group of its own ({})", groups.describe()),
        (Err(why), Where::At(_)) => return Err(Failure::failed(format!("--cgroup: {why}"))),
        (Err(why), _) => format!("without control groups: {why}"),
    };
    let stop = Arc::new(AtomicBool::new(false));
    stop_on_signal(&store, &stop);
    let hold = holder(&store, context.neighbour());
    let slots = args.slots.unwrap_or_else(|| std::thread::available_parallelism().map_or(2, usize::from));
    let make_way = (args.yield_above > 0).then(|| {
        let store = Arc::clone(&store);
        let busy = of_mounts(move || dirs_of(&store), Duration::from_millis(args.yield_above));
        if context.quiet { busy } else { publishing(busy) }
    });
    let options = NodeOptions {
        name: name.clone(),
        slots: slots.max(1),
        threads: context.threads,
        before_publish: &hold,
        until_idle: args.until_idle,
        make_way,
        idle: args.idle,
        groups: groups.ok().map(Arc::new),
        trust,
    };
    let noting = Noting::begin(&store);
    say(context, &format!("agent {name}: {} at once, {contained}", counted(slots as u64, "split", "splits")));
    agent::run(&store, &options, &stop, &mut |event| tell(context, &store, &event))?;
    drop(noting);
    say(context, &format!("agent {name} has ended"));
    Ok(Exit::Done)
}

/// How often the agent says that it yields.
const SAY_EVERY: Duration = Duration::from_secs(60);

/// Wraps `busy` so that it prints a line when others wait.
fn publishing(busy: Busy) -> Busy {
    let said = Mutex::new(None::<Instant>);
    Arc::new(move || {
        let waits = busy();
        let mut said = said.lock().expect("no panic while held");
        if waits && said.is_none_or(|said| said.elapsed() > SAY_EVERY) {
            *said = Some(Instant::now());
            let _ = print_text("yielding: requests wait in a mount of the store on this host\n");
        }
        waits
    })
}

/// Prints a line. A failure is ignored, because the agent's work does not depend on a reader.
fn say(context: &Context, line: &str) {
    operation::step("agent", line);
    if !context.quiet {
        let _ = print_text(&format!("{line}\n"));
    }
}

fn tell(context: &Context, store: &Store, event: &Event<'_>) {
    match event {
        Event::Began(job) => say(context, &format!("job {job}: begun here")),
        Event::Ended(report) => {
            let job = &report.job;
            let how = match job.state {
                JobState::Waiting | JobState::Running => "others have the rest".to_string(),
                state if job.why.is_empty() => state_text(state).to_string(),
                state => format!("{}: {}", state_text(state), job.why),
            };
            say(context, &format!("job {}: {how}", job.id));
            context.settle(store);
        }
        Event::Fired(rule, job) => say(context, &format!("rule {rule}: made job {job}")),
        Event::Refused(job, error) => {
            errors::met(&format!("job {job}"), error.kind(), &error.to_string());
            complain(&format!("job {job} cannot be run here: {error}"));
        }
        Event::Trouble(rule, error) => {
            errors::met(&format!("rule {rule}"), error.kind(), &error.to_string());
            complain(&format!("rule {rule}: {error}"));
        }
        Event::Rests(error) => {
            errors::met("looking for work", error.kind(), &error.to_string());
            complain(&format!("cannot work now: {error}; retrying"));
        }
    }
}

fn free_name(store: &Store) -> Result<String, Failure> {
    let taken: Vec<String> = node::nodes(store)?.into_iter().map(|node| node.role.name).collect();
    let host = host::name();
    let names = std::iter::once(host.clone()).chain((2..).map(|number| format!("{host}-{number}")));
    Ok(names.into_iter().find(|name| !taken.contains(name)).unwrap_or(host))
}

/// On the first signal the agent finishes what it runs. A second one ends it at once, which is as
/// safe: its splits are free again.
fn stop_on_signal(store: &Arc<Store>, stop: &Arc<AtomicBool>) {
    let Ok(mut signals) = Signals::new([SIGINT, SIGTERM, SIGHUP]) else { return };
    let (store, stop) = (Arc::clone(store), Arc::clone(stop));
    std::thread::spawn(move || {
        for _ in signals.forever() {
            if stop.swap(true, Ordering::Relaxed) {
                interrupt::close_sessions(&store);
                outrigger_offload::end_process(crate::exit::INTERRUPTED);
            }
            complain("finishing what runs; another signal ends it at once");
        }
    });
}

fn list(context: &Context) -> Outcome {
    let store = Store::open(context.store_dir()?, true)?;
    let nodes = node::nodes(&store)?;
    let mut out = Out::new();
    if context.json {
        let object = |node: &Node| -> serde_json::Value {
            let jobs: Vec<u64> = node.jobs.iter().map(|job| job.0).collect();
            Object::new()
                .with("name", node.role.name.clone())
                .with("host", node.host.clone())
                .with("process", node.process)
                .with("slots", node.role.slots)
                .with("drains", node.drains)
                .with("yields", node.yields)
                .with("jobs", jobs)
                .into()
        };
        out.json(Object::new().with("nodes", nodes.iter().map(object).collect::<Vec<_>>()))?;
        out.finish()?;
        return Ok(Exit::Done);
    }
    if nodes.is_empty() && !context.quiet {
        complain("no agents");
    }
    for node in nodes {
        let jobs: Vec<String> = node.jobs.iter().map(|job| format!("job {job}")).collect();
        let does = match (node.drains, jobs.is_empty()) {
            (true, _) => "draining".to_string(),
            (false, true) => "idle".to_string(),
            (false, false) => jobs.join(", "),
        };
        let does = if node.yields && !node.drains { format!("{does}, yields") } else { does };
        let slots = counted(node.role.slots, "slot", "slots");
        out.line(&format!(
            "{:<20}  {:<9}  process {} on {}  {does}",
            node.role.name, slots, node.process, node.host
        ))?;
    }
    out.finish()?;
    Ok(Exit::Done)
}

fn drain(context: &Context, name: &str, wait: bool) -> Outcome {
    let store = writable(context)?;
    match node::drain(&store, name) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Err(Failure::failed(error.to_string())),
        other => other?,
    }
    while wait && node::nodes(&store)?.iter().any(|node| node.role.name == name) {
        outrigger_clock::sleep(Duration::from_millis(100));
    }
    Ok(Exit::Done)
}
