//! A run: hosts that do what a script says, and what is looked at afterwards.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use outrigger_store::backend::MemoryBackend;
use outrigger_store::check::{CheckOptions, CheckProgress, check};
use outrigger_store::gc::{GcOptions, GcProgress, collect};
use outrigger_store::meta::{OpenMode, SqliteMeta};
use outrigger_store::{Error, ErrorKind, Profile};
use rustix::io::Errno;

use crate::history::{Did, Event, Held, violations};
use crate::host::{Host, Servers, content, id_of};
use crate::link::Condition;
use crate::scheduler::{self, HostId, Ran};
use crate::script::{Op, Step, Trouble, What};
use crate::shim;

/// No operation of a program may take longer.
const BOUND: Duration = Duration::from_secs(3600);

/// What a run showed.
#[derive(Debug)]
pub struct Outcome {
    /// Who ran when.
    pub ran: Ran,
    /// What must not be; nothing is well.
    pub found: Vec<String>,
    /// Operations that succeeded, and that failed.
    pub done: (usize, usize),
}

/// One machine, and what is the same over its lives.
struct Machine {
    id: AtomicUsize,
    dir: PathBuf,
    condition: Arc<Condition>,
    ops: Vec<(Duration, Op)>,
    /// The next operation.
    next: AtomicUsize,
    /// Since when one is under way: virtual microseconds, 0: none is.
    since: AtomicUsize,
    finished: AtomicBool,
}

#[derive(Default)]
struct Seen {
    events: Vec<Event>,
    found: Vec<String>,
    done: (usize, usize),
}

struct Cluster {
    servers: Servers,
    machines: Vec<Machine>,
    seen: Mutex<Seen>,
}

/// Runs a script as a seed says.
///
/// # Panics
/// When there is no room for the run's files.
pub fn run(seed: u64, hosts: usize, script: &[Step]) -> Outcome {
    let top = tempfile::Builder::new().prefix("sim-").tempdir_in(place()).expect("room for a run's files");
    let dir = top.path().to_path_buf();
    let outcome = scheduler::run(seed, || simulate(dir, hosts, script));
    // Files that hosts which stand still have open.
    shim::close_below(top.path());
    outcome
}

/// In memory, where there is such a place.
fn place() -> PathBuf {
    let memory = PathBuf::from("/dev/shm");
    if memory.is_dir() { memory } else { std::env::temp_dir() }
}

fn simulate(dir: PathBuf, hosts: usize, script: &[Step]) -> Outcome {
    let path = dir.join("database");
    let database = SqliteMeta::open_with_clock(&path, OpenMode::Create, Arc::new(scheduler::database_time));
    let mut config = Profile::Default.config().expect("a profile of ours");
    config.packs = None;
    let servers =
        Servers { database: Arc::new(database.expect("a database")), packs: MemoryBackend::new(), config };
    let machines = (0..hosts).map(|host| Machine {
        id: AtomicUsize::new(scheduler::add_host()),
        dir: dir.join(format!("host{host}")),
        condition: Arc::default(),
        ops: ops_of(script, host),
        next: AtomicUsize::new(0),
        since: AtomicUsize::new(0),
        finished: AtomicBool::new(false),
    });
    let cluster = Arc::new(Cluster { servers, machines: machines.collect(), seen: Mutex::default() });
    for host in 0..hosts {
        start(&cluster, host);
    }
    for step in script {
        if let What::Trouble(trouble) = &step.what {
            outrigger_clock::sleep(step.after);
            make(&cluster, step.host, trouble);
        }
    }
    let stuck = await_all(&cluster);
    if let Some(stuck) = stuck {
        cluster.seen().found.push(stuck);
    } else {
        look_at_the_end(&cluster, dir.join("end"));
    }
    let mut seen = std::mem::take(&mut *cluster.seen());
    seen.found.extend(violations(&seen.events));
    Outcome { ran: scheduler::ran(), found: seen.found, done: seen.done }
}

fn ops_of(script: &[Step], host: usize) -> Vec<(Duration, Op)> {
    let own = script.iter().filter(|step| step.host == host);
    own.filter_map(|step| match &step.what {
        What::Op(op) => Some((step.after, op.clone())),
        What::Trouble(_) => None,
    })
    .collect()
}

/// Starts the program of a host, which mounts first.
fn start(cluster: &Arc<Cluster>, host: usize) {
    let id: HostId = cluster.machines[host].id.load(Relaxed);
    let cluster = Arc::clone(cluster);
    scheduler::spawn_on(id, move || cluster.work(host));
}

/// Something goes wrong.
fn make(cluster: &Arc<Cluster>, host: usize, trouble: &Trouble) {
    let machine = &cluster.machines[host];
    let id = machine.id.load(Relaxed);
    let condition = &machine.condition;
    match *trouble {
        Trouble::Link { delay_micros, refused, packs_fail } => {
            condition.delay_micros.store(delay_micros, Relaxed);
            condition.refused.store(refused, Relaxed);
            condition.packs_fail.store(packs_fail, Relaxed);
        }
        Trouble::Away(secs) => {
            let until = scheduler::elapsed() + Duration::from_secs(secs);
            condition.away_until.store(until.as_nanos() as u64, Relaxed);
        }
        Trouble::Pause(secs) => {
            scheduler::pause(id, true);
            outrigger_clock::sleep(Duration::from_secs(secs));
            scheduler::pause(id, false);
        }
        Trouble::Kill => restart(cluster, host),
        Trouble::Skew(secs) => scheduler::skew(id, secs * 1_000_000_000),
    }
}

fn restart(cluster: &Arc<Cluster>, host: usize) {
    let machine = &cluster.machines[host];
    scheduler::kill(machine.id.load(Relaxed));
    shim::close_below(&machine.dir);
    machine.id.store(scheduler::add_host(), Relaxed);
    machine.since.store(0, Relaxed);
    start(cluster, host);
}

/// Waits until all hosts have done what they had to, with everything well again. Says which one never gets there.
fn await_all(cluster: &Cluster) -> Option<String> {
    for machine in &cluster.machines {
        let Condition { delay_micros, refused, packs_fail, away_until } = &*machine.condition;
        for value in [delay_micros, refused, packs_fail, away_until] {
            value.store(0, Relaxed);
        }
    }
    loop {
        outrigger_clock::sleep(Duration::from_secs(10));
        let left: Vec<&Machine> =
            cluster.machines.iter().filter(|machine| !machine.finished.load(Relaxed)).collect();
        if left.is_empty() {
            return None;
        }
        for machine in left {
            let since = Duration::from_micros(machine.since.load(Relaxed) as u64);
            if !since.is_zero() && scheduler::elapsed().saturating_sub(since) > BOUND {
                let next = machine.next.load(Relaxed);
                let op = machine.ops.get(next.wrapping_sub(1));
                return Some(format!("an operation has waited since {since:?}: {op:?} of {:?}", machine.dir));
            }
        }
    }
}

/// All that was ever published is read by a host that was not there before, and everything is checked.
fn look_at_the_end(cluster: &Cluster, dir: PathBuf) {
    let condition = Arc::default();
    let looked = Host::mount(&cluster.servers, &dir, &condition).map_err(|error| error.to_string());
    let looked = looked.and_then(|host| {
        let mut names: Vec<String> = cluster.seen().events.iter().map(|event| event.name.clone()).collect();
        names.sort_unstable();
        names.dedup();
        for name in names {
            let read = cluster.read(usize::MAX, &host, &name);
            read.map_err(|errno| format!("{name} cannot be read: {errno}"))?;
        }
        let options = GcOptions { live_ratio: 1.0, threads: 1, grace_secs: 0, ..GcOptions::default() };
        let told = |error: Error| error.to_string();
        collect(&host.store, &options, &GcProgress::default()).map_err(told)?;
        let options = CheckOptions { read_data: true, repair: false, threads: 1 };
        let report = check(&host.store, &options, &CheckProgress::default()).map_err(told)?;
        host.volume.close(|| ()).map_err(told)?;
        let findings = report.findings;
        if findings.is_empty() { Ok(()) } else { Err(format!("check finds: {findings:?}")) }
    });
    if let Err(why) = looked {
        cluster.seen().found.push(format!("at the end: {why}"));
    }
}

impl Cluster {
    fn seen(&self) -> std::sync::MutexGuard<'_, Seen> {
        self.seen.lock().expect("no panic while held")
    }

    /// A host's program: one operation after the other, on a mount that is made anew once it is of no use any more.
    fn work(&self, host: usize) {
        let machine = &self.machines[host];
        let mut mounted = None;
        while let Some((after, op)) = machine.ops.get(machine.next.fetch_add(1, Relaxed)) {
            outrigger_clock::sleep(*after);
            if mounted.is_none() {
                mounted = Some(self.mount(host));
            }
            let Some(mount) = &mounted else { continue };
            machine.since.store(scheduler::elapsed().as_micros() as usize, Relaxed);
            let done = self.operate(host, mount, op);
            machine.since.store(0, Relaxed);
            match done {
                Ok(()) => self.seen().done.0 += 1,
                Err(errno) => {
                    self.seen().done.1 += 1;
                    if errno == Errno::STALE {
                        // Its session is over: what it had not acknowledged is lost.
                        drop(mounted.take());
                    }
                }
            }
        }
        if let Some(mount) = mounted {
            // What could not be stored was not acknowledged.
            let _ = mount.volume.close(|| ());
        }
        machine.finished.store(true, Relaxed);
    }

    /// Tries until there is a mount.
    fn mount(&self, host: usize) -> Host {
        let machine = &self.machines[host];
        loop {
            match Host::mount(&self.servers, &machine.dir, &machine.condition) {
                Ok(mount) => return mount,
                Err(_) => outrigger_clock::sleep(Duration::from_secs(7)),
            }
        }
    }

    fn operate(&self, host: usize, mount: &Host, op: &Op) -> Result<(), Errno> {
        match *op {
            Op::Publish(name, id) => {
                let own = format!("new{id}");
                mount.create(&own, &content(id))?;
                self.write(host, &format!("f{name}"), Some(id), |name| mount.rename(&own, name))
            }
            Op::Unlink(name) => {
                self.write(host, &format!("f{name}"), None, |name| match mount.unlink(name) {
                    Err(Errno::NOENT) => Ok(()),
                    done => done,
                })
            }
            Op::Claim(name, id) => {
                self.write(host, &format!("c{name}"), Some(id), |name| mount.create(name, &content(id)))
            }
            Op::Read(name) => self.read(host, mount, &format!("f{name}")),
            Op::ReadClaim(name) => self.read(host, mount, &format!("c{name}")),
            Op::List => mount.list().map(drop),
            Op::Snapshot(id) => {
                let time = outrigger_clock::now_nanos();
                let taken = mount.store.meta.create_snapshot(&format!("s{id}"), time, &[]);
                taken.map(drop).map_err(|_| Errno::IO)
            }
            Op::Collect => {
                let options =
                    GcOptions { live_ratio: 0.9, threads: 1, grace_secs: 0, ..GcOptions::default() };
                match collect(&mount.store, &options, &GcProgress::default()) {
                    Err(error) if error.kind() == ErrorKind::Damaged => {
                        self.seen().found.push(format!("gc says: {error}"));
                        Err(Errno::IO)
                    }
                    done => done.map(drop).map_err(|_| Errno::IO),
                }
            }
        }
    }

    /// Writes a name, and remembers that from before it begins.
    fn write(
        &self,
        host: usize,
        name: &str,
        held: Held,
        write: impl FnOnce(&str) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let begun = scheduler::elapsed();
        let number = {
            let mut seen = self.seen();
            let did = Did::Wrote(held);
            seen.events.push(Event { name: name.to_owned(), host, did, begun, ended: None });
            seen.events.len() - 1
        };
        let done = write(name);
        if done.is_ok() {
            let ended = scheduler::elapsed();
            self.seen().events[number].ended = Some(ended);
        }
        done
    }

    fn read(&self, host: usize, mount: &Host, name: &str) -> Result<(), Errno> {
        let begun = scheduler::elapsed();
        let held = match mount.read(name) {
            // A claim whose maker has not closed it yet.
            Ok(bytes) if name.starts_with('c') && bytes.is_empty() => return Ok(()),
            Ok(bytes) => match id_of(&bytes) {
                Ok(id) => Some(id),
                Err(what) => {
                    self.seen().found.push(format!("host {host} read {what} in {name}"));
                    return Ok(());
                }
            },
            Err(Errno::NOENT) => None,
            Err(errno) => return Err(errno),
        };
        let ended = Some(scheduler::elapsed());
        self.seen().events.push(Event { name: name.to_owned(), host, did: Did::Saw(held), begun, ended });
        Ok(())
    }
}
