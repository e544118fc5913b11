//! Clients on several hosts whose mounts are killed, stopped, cut off and fenced, and whose
//! database is killed. When everything has healed, `outrigger_workload::history` judges all answers
//! that the clients got.
//!
//! `OUTRIGGER_HISTORY_SECONDS` makes it longer. `OUTRIGGER_HISTORY_SEED` repeats the choices of
//! another run, but not its timing. From `LEASES_LAST` seconds on some faults last longer than a
//! lease; shorter runs end leases in the database. Logs of a wrong history are kept, and
//! `outrigger-workload judge` judges them again.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use outrigger_workload::Rng;
use outrigger_workload::history::{Client, check, faults, load, note_fault, now, prepare};
use rustix::process::{Pid, Signal, kill_process};

use super::servers::script;
use super::{Cluster, Host, Site};

/// Clients on each host.
const CLIENTS: usize = 3;
/// Runs of at least so many seconds have faults that last longer than a lease.
const LEASES_LAST: u64 = 300;
const LEASE: Duration = Duration::from_secs(66);
/// How long a client may wait at the end: for a killed client's lease, and then the minute after
/// which an operation gives up.
const PATIENCE: Duration = Duration::from_secs(240);

#[derive(Clone, Copy, Debug)]
enum Fault {
    /// The mount's process is killed and the store mounted again.
    Kill,
    /// It is killed while its cable is pulled.
    KillCutOff,
    /// The process is stopped for a while.
    Stop,
    /// The process is stopped until its lease is over. Then the store is mounted again.
    StopPastLease,
    /// Its cable is pulled for a while.
    CutOff,
    /// Its cable is pulled until its lease is over.
    CutOffPastLease,
    /// The database's processes are killed, and it is started again.
    Database,
}

const FAULTS: [Fault; 7] = [
    Fault::Kill,
    Fault::Stop,
    Fault::CutOff,
    Fault::Database,
    Fault::StopPastLease,
    Fault::CutOffPastLease,
    Fault::KillCutOff,
];

/// Client processes, which end when this is dropped.
struct Clients(Vec<(String, Child)>);

impl Drop for Clients {
    fn drop(&mut self) {
        for (_, child) in &mut self.0 {
            let _ = child.kill();
        }
    }
}

impl Clients {
    /// Starts some clients on each host.
    fn start(hosts: &[Host], logs: &Path, seed: u64, seconds: u64) -> Self {
        let program = Path::new(env!("CARGO_BIN_EXE_outrigger")).with_file_name("outrigger-workload");
        assert!(program.exists(), "{} is not built", program.display());
        let start = now();
        let client = |host: &Host, number: usize| {
            let name = format!("{}.{number}", host.name);
            let numbers = [("--seed", seed), ("--start", start), ("--seconds", seconds)];
            let mut command = Command::new(&program);
            command.arg("client").args([host.path(""), logs.to_owned()]).args(["--name", &name]);
            command
                .args(numbers.iter().flat_map(|(option, value)| [(*option).to_owned(), value.to_string()]));
            (name, command.stdin(Stdio::null()).spawn().unwrap())
        };
        Self(hosts.iter().flat_map(|host| (0..CLIENTS).map(move |number| client(host, number))).collect())
    }

    /// Waits for all clients. None may wait for ever.
    fn end(mut self) {
        let until = Instant::now() + PATIENCE;
        for (name, child) in &mut self.0 {
            while child.try_wait().unwrap().is_none() {
                assert!(Instant::now() < until, "client {name} waits for ever");
                std::thread::sleep(Duration::from_millis(50));
            }
            assert!(child.wait().unwrap().success(), "client {name} failed");
        }
    }
}

/// The nemesis brings about faults, and ends them.
struct Nemesis<'a> {
    site: &'a Site,
    hosts: &'a mut [Host],
    logs: &'a Path,
    rng: Rng,
    leases_last: bool,
    counts: BTreeMap<String, u64>,
}

impl Nemesis<'_> {
    fn note(&self, what: &str) {
        note_fault(self.logs, what).unwrap();
    }

    fn sleep(&mut self, millis: u64) {
        std::thread::sleep(Duration::from_millis(self.rng.between(millis / 3, millis)));
    }

    /// Waits until the lease of a mount is over, or ends the lease in the database.
    fn outlast_lease(&mut self, host: usize) {
        if self.leases_last && self.rng.permille(500) {
            std::thread::sleep(LEASE);
        } else {
            self.site.expire(&format!("process = {}", self.hosts[host].process()));
            self.sleep(8000);
        }
    }

    fn signal(&self, host: usize, signal: Signal) {
        kill_process(Pid::from_child(self.hosts[host].child.as_ref().unwrap()), signal).unwrap();
    }

    fn cable(&self, host: usize, state: &str) {
        self.hosts[host].cable(state);
        self.note(&format!("cable of {} {state}", self.hosts[host].name));
    }

    /// Kills a mount, and mounts the store again.
    fn mount_again(&mut self, host: usize, is_cut_off: bool) {
        let process = self.hosts[host].process();
        self.note(&format!("{} killed", self.hosts[host].name));
        self.hosts[host].kill();
        // The others wait for its lease, or the lease is over already.
        if !self.leases_last || self.rng.permille(600) {
            self.sleep(1000);
            self.site.expire(&format!("process = {process}"));
        }
        if is_cut_off {
            self.cable(host, "up");
        }
        self.hosts[host].mount();
        self.note(&format!("{} mounted again", self.hosts[host].name));
    }

    fn act(&mut self, fault: Fault) {
        let host = self.rng.index(self.hosts.len());
        let name = self.hosts[host].name.clone();
        match fault {
            Fault::Kill => self.mount_again(host, false),
            Fault::KillCutOff => {
                self.cable(host, "down");
                self.sleep(2000);
                self.mount_again(host, true);
            }
            Fault::Stop | Fault::StopPastLease => {
                self.signal(host, Signal::STOP);
                self.note(&format!("{name} stopped"));
                if matches!(fault, Fault::Stop) {
                    self.sleep(6000)
                } else {
                    self.outlast_lease(host)
                }
                self.signal(host, Signal::CONT);
                self.note(&format!("{name} goes on"));
            }
            Fault::CutOff | Fault::CutOffPastLease => {
                self.cable(host, "down");
                if matches!(fault, Fault::CutOff) {
                    self.sleep(9000)
                } else {
                    self.outlast_lease(host)
                }
                self.cable(host, "up");
            }
            Fault::Database => {
                self.note("database killed");
                script(&["postgres", "kill"]);
                self.sleep(2000);
                script(&["postgres", "start"]);
                self.note("database started");
            }
        }
        if matches!(fault, Fault::StopPastLease | Fault::CutOffPastLease) {
            // The old mount can change nothing any more, and says so.
            self.sleep(3000);
            self.mount_again(host, false);
        }
        *self.counts.entry(format!("{fault:?}")).or_default() += 1;
    }

    /// Causes each fault once, and then random ones until the time is over.
    fn rage(mut self, until: Instant) -> BTreeMap<String, u64> {
        let mut first: Vec<_> = FAULTS.into_iter().rev().collect();
        self.sleep(3000);
        while Instant::now() < until {
            let any = FAULTS[self.rng.index(FAULTS.len())];
            self.act(first.pop().unwrap_or(any));
            self.sleep(4000);
        }
        self.counts
    }
}

impl Site {
    /// Ends the leases of some sessions.
    fn expire(&self, which: &str) {
        self.sql(&format!(
            "UPDATE {}.session SET lease_until = 1, lease_secs = 0 WHERE {which}",
            self.schema
        ));
    }

    fn count(&self, table: &str) -> String {
        self.sql(&format!("SELECT count(*) FROM {}.{table}", self.schema))
    }
}

impl Host {
    fn process(&self) -> u32 {
        self.child.as_ref().unwrap().id()
    }

    /// Kills the server like a power loss, with the clients' connections to it.
    fn kill(&mut self) {
        let mut child = self.child.take().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(Command::new("umount").arg("-l").arg(self.path("")).status().unwrap().success());
    }
}

/// A directory for logs, which stays if the test fails.
fn logs(seed: u64) -> PathBuf {
    let logs = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("history-{seed}-{}", std::process::id()));
    fs::create_dir_all(&logs).unwrap();
    logs
}

/// Each host reads everything, after all changes have ended.
fn look_at_all(hosts: &[Host], logs: &Path) {
    let ops = load(logs).unwrap();
    for host in hosts {
        let mut last = Client::new(&host.path(""), logs, &format!("{}.last", host.name)).unwrap();
        assert!(last.look_at_all(&ops).unwrap(), "{}: {}", host.name, host.said());
    }
}

#[test]
#[ignore = "slow: needs a cluster, `make test-cluster`"]
fn hosts_that_fail_tell_no_client_what_is_not_so() {
    let Some(cluster) = Cluster::here() else { return };
    let number = |variable: &str| std::env::var(variable).ok()?.parse::<u64>().ok();
    let seconds = number("OUTRIGGER_HISTORY_SECONDS").unwrap_or(60);
    let seed = number("OUTRIGGER_HISTORY_SEED").unwrap_or(now() % 1_000_000);
    let logs = logs(seed);
    println!("OUTRIGGER_HISTORY_SEED={seed} OUTRIGGER_HISTORY_SECONDS={seconds}, logs in {}", logs.display());
    let site = cluster.in_pool();
    let mut hosts = ["c0", "c1", "c2"].map(|name| site.mount(name));
    prepare(&hosts[0].path("")).unwrap();
    let clients = Clients::start(&hosts, &logs, seed, seconds);
    let nemesis = Nemesis {
        site: &site,
        hosts: &mut hosts,
        logs: &logs,
        rng: Rng::part(seed, 0),
        leases_last: seconds >= LEASES_LAST,
        counts: BTreeMap::new(),
    };
    let counts = nemesis.rage(Instant::now() + Duration::from_secs(seconds));
    clients.end();
    look_at_all(&hosts, &logs);
    let told = judge(&logs);
    println!("{told}faults: {counts:?}");
    fs::write(logs.join("verdict"), &told).unwrap();
    assert!(check(&load(&logs).unwrap()).violations().next().is_none(), "see {}", logs.display());
    site.check(&hosts[0]);
    nothing_is_left(&site, &mut hosts);
    fs::remove_dir_all(&logs).unwrap();
}

fn judge(logs: &Path) -> String {
    check(&load(logs).unwrap()).told(&faults(logs))
}

/// Checks that no lock, no wait for one, and no session is left once the mounts are gone and the
/// leases of killed ones are over.
fn nothing_is_left(site: &Site, hosts: &mut [Host]) {
    hosts.iter_mut().for_each(Host::unmount);
    site.expire("true");
    let other = site.host("c3");
    other.done(&["gc"]);
    for table in ["session", "file_lock", "file_lock_wait"] {
        assert_eq!(site.count(table), "0", "rows of {table} are left");
    }
    other.done(&["check", "--read-data"]);
}

/// A planted fault: a mount caches names for longer than others allow. The reads of its clients
/// reveal it.
#[test]
#[ignore = "slow: needs a cluster, `make test-cluster`"]
fn a_mount_that_relies_on_old_names_is_found_out() {
    let Some(cluster) = Cluster::here() else { return };
    let (seed, seconds) = (5, 15);
    let logs = logs(seed);
    let site = cluster.in_pool();
    let mut hosts = ["c0", "c1"].map(|name| site.host(name));
    hosts[0].mount();
    hosts[1].mount_with(&["--names-for", "5"]);
    prepare(&hosts[0].path("")).unwrap();
    Clients::start(&hosts, &logs, seed, seconds).end();
    // Until the mount uses none of the cached names any more.
    std::thread::sleep(Duration::from_secs(6));
    look_at_all(&hosts, &logs);
    let report = check(&load(&logs).unwrap());
    println!("planted: a mount that relies on old names\n{}", report.told(&[]));
    assert!(!report.checkers["moved files"].1.is_empty(), "it was not noticed");
    fs::remove_dir_all(&logs).unwrap();
}
