//! A run: hosts follow a script, faults happen meanwhile, and everything is checked at the end.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use outrigger_store::Profile;
use outrigger_store::meta::{OpenMode, SqliteMeta};

use crate::cluster::{Cluster, Line, Machine, collect_and_check, told};
use crate::disks;
use crate::host::Host;
use crate::life::{Life, final_looks};
use crate::program;
use crate::real::close_below;
use crate::rot;
use crate::scheduler::{self, Ran};
use crate::script::{Op, PROGRAMS, Step, Trouble, What};
use crate::servers::Servers;
use crate::work;

/// No operation of a program may take longer.
const BOUND: Duration = Duration::from_secs(3600);

/// The result of a run.
#[derive(Debug)]
pub struct Outcome {
    /// The schedule of the run.
    pub ran: Ran,
    /// Violations; none if all is well.
    pub found: Vec<String>,
    /// Numbers of operations that succeeded, and that failed.
    pub done: (usize, usize),
}

/// Runs a script in the order of a seed.
///
/// # Panics
/// When there is no room for the run's files.
pub fn run(seed: u64, hosts: usize, script: &[Step]) -> Outcome {
    let top = tempfile::Builder::new().prefix("sim-").tempdir_in(place()).expect("room for a run's files");
    let dir = top.path().to_path_buf();
    let scratch = scratch();
    std::fs::create_dir_all(&scratch).expect("room for what agents' attempts make");
    outrigger_active::instead::run_instead(work::function);
    work::begin_run();
    disks::begin_run();
    let outcome = scheduler::run(seed, || simulate(dir, hosts, script));
    // Stopped hosts still have files open.
    close_below(top.path());
    close_below(&scratch);
    let _ = std::fs::remove_dir_all(scratch);
    outcome
}

/// The directory for agents' attempts.
fn scratch() -> PathBuf {
    let scratch = place().join(format!("sim-scratch-{}", std::process::id()));
    // Only the first call has an effect, and the value is always the same.
    let _ = tempfile::env::override_temp_dir(Box::leak(Box::new(scratch.clone())));
    scratch
}

/// A directory in memory, if there is one.
fn place() -> PathBuf {
    let memory = PathBuf::from("/dev/shm");
    if memory.is_dir() { memory } else { std::env::temp_dir() }
}

fn simulate(dir: PathBuf, hosts: usize, script: &[Step]) -> Outcome {
    let path = dir.join("database");
    let database = SqliteMeta::open_with_clock(&path, OpenMode::Create, Arc::new(scheduler::database_time));
    let mut config = Profile::Default.config().expect("a profile of ours");
    config.packs = None;
    // Small frames, so that files have several.
    config.frame_size = 64 << 10;
    let machines = (0..hosts).map(|host| Machine {
        id: AtomicUsize::new(scheduler::add_host()),
        dir: dir.join(format!("host{host}")),
        condition: Arc::default(),
        lines: std::array::from_fn(|program| Line { ops: ops_of(script, host, program), ..Line::default() }),
        lives: AtomicUsize::new(0),
    });
    let cluster = Arc::new(Cluster {
        servers: Arc::new(Servers::new(database.expect("a database"), config)),
        machines: machines.collect(),
        history: Mutex::default(),
    });
    let world =
        Host::mount(&cluster.servers, &dir.join("world"), &Arc::default()).expect("nothing fails yet");
    program::prepare(&world).expect("nothing fails yet");
    world.volume.close(|| ()).expect("nothing fails yet");
    drop(world);
    for host in 0..hosts {
        start(&cluster, host);
    }
    let began = scheduler::elapsed();
    for step in script {
        if let What::Trouble(trouble) = &step.what {
            outrigger_clock::sleep((began + step.at).saturating_sub(scheduler::elapsed()));
            make(&cluster, step.host, trouble);
        }
    }
    if let Some(stuck) = await_all(&cluster) {
        cluster.history().found.push(stuck);
    } else {
        look_at_the_end(&cluster, &dir);
    }
    let history = std::mem::take(&mut *cluster.history());
    let (ran, done) = (scheduler::ran(), history.done);
    Outcome { ran, found: history.violations(), done }
}

fn ops_of(script: &[Step], host: usize, program: usize) -> Vec<(Duration, Op)> {
    let own = script.iter().filter(|step| step.host == host);
    own.filter_map(|step| match &step.what {
        What::Op(number, op) if *number == program => Some((step.at, op.clone())),
        _ => None,
    })
    .collect()
}

/// Starts the programs of a host. The first one that needs a mount makes it.
fn start(cluster: &Arc<Cluster>, host: usize) {
    let machine = &cluster.machines[host];
    let id = machine.id.load(Relaxed);
    let life = Arc::new(Life::new(Arc::clone(cluster), host, machine.lives.fetch_add(1, Relaxed)));
    for program in 0..=PROGRAMS {
        let (life, cluster) = (Arc::clone(&life), Arc::clone(cluster));
        scheduler::spawn_on(id, move || {
            life.work(program);
            cluster.machines[host].lines[program].finished.store(true, Relaxed);
        });
    }
}

fn until(secs: u64) -> u64 {
    (scheduler::elapsed() + Duration::from_secs(secs)).as_nanos() as u64
}

/// Starts a trouble.
fn make(cluster: &Arc<Cluster>, host: usize, trouble: &Trouble) {
    let machine = &cluster.machines[host];
    let (id, condition) = (machine.id.load(Relaxed), &machine.condition);
    match *trouble {
        Trouble::Link { secs, delay_micros, refused, lost, packs_fail } => {
            condition.delay_micros.store(delay_micros, Relaxed);
            condition.refused.store(refused, Relaxed);
            condition.lost.store(lost, Relaxed);
            condition.packs_fail.store(packs_fail, Relaxed);
            condition.bad_until.store(until(secs), Relaxed);
        }
        Trouble::Away(secs) => condition.away_until.store(until(secs), Relaxed),
        Trouble::AllAway(secs) => {
            for machine in &cluster.machines {
                machine.condition.away_until.store(until(secs), Relaxed);
            }
        }
        Trouble::PacksAway(secs) => condition.packs_away_until.store(until(secs), Relaxed),
        Trouble::Pause(secs) => scheduler::pause_for(id, Duration::from_secs(secs)),
        Trouble::Stall(secs) => condition.stall.store(secs, Relaxed),
        Trouble::Kill => restart(cluster, host),
        Trouble::Skew(secs) => scheduler::skew(id, secs * 1_000_000_000),
        Trouble::DiskFull(secs) => disks::fill(id, scheduler::elapsed() + Duration::from_secs(secs)),
        Trouble::Flips(secs) => condition.flips_until.store(until(secs), Relaxed),
        Trouble::Rot(bits) => scheduler::whole(|| cluster.servers.rot(bits)).expect("it is in memory"),
    }
}

fn restart(cluster: &Arc<Cluster>, host: usize) {
    let machine = &cluster.machines[host];
    let (before, again) = (machine.id.load(Relaxed), scheduler::add_host());
    scheduler::kill(before);
    close_below(&machine.dir);
    disks::inherit(before, again);
    machine.id.store(again, Relaxed);
    machine.lines.iter().for_each(|line| line.since.store(0, Relaxed));
    start(cluster, host);
}

/// Ends all troubles, and waits until all hosts are done. Names a host that never gets there.
fn await_all(cluster: &Cluster) -> Option<String> {
    for machine in &cluster.machines {
        machine.condition.heal();
        disks::fill(machine.id.load(Relaxed), Duration::ZERO);
    }
    loop {
        outrigger_clock::sleep(Duration::from_secs(10));
        let lines = cluster.machines.iter().flat_map(|machine| &machine.lines);
        let left: Vec<&Line> = lines.filter(|line| !line.finished.load(Relaxed)).collect();
        if left.is_empty() {
            return None;
        }
        for line in left {
            let since = Duration::from_micros(line.since.load(Relaxed) as u64);
            if !since.is_zero() && scheduler::elapsed().saturating_sub(since) > BOUND {
                let op = line.ops.get(line.next.load(Relaxed).wrapping_sub(1));
                return Some(format!("an operation has waited since {since:?}: {op:?}"));
            }
        }
    }
}

/// New hosts read everything that was ever published, and everything is checked: rotten packs first
/// as they are, and then restored.
fn look_at_the_end(cluster: &Cluster, dir: &Path) {
    let mut looked = Ok(());
    if !cluster.servers.rotten().packs.is_empty() {
        looked = rot::look(cluster, &dir.join("rotten"));
        cluster.servers.mend().expect("it is in memory");
    }
    looked = looked.and_then(|()| {
        let host = Host::mount(&cluster.servers, &dir.join("end"), &Arc::default()).map_err(told)?;
        work::finish(&host)?;
        final_looks(cluster, &host, "end.0", &|_| false)?;
        work::judge(cluster, &host)?;
        let findings = collect_and_check(&host).and_then(|(collected, findings)| {
            collected?;
            Ok(findings)
        });
        let findings = findings.map_err(told)?;
        host.volume.close(|| ()).map_err(told)?;
        if findings.is_empty() { Ok(()) } else { Err(format!("check finds: {findings:?}")) }
    });
    if let Err(why) = looked {
        cluster.history().found.push(format!("at the end: {why}"));
    }
}
