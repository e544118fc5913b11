//! kill -9 at random moments of real puts, removals, snapshots and collections, again and again on
//! one store.
//!
//! A child process (this program again, or the `outrigger` binary of `OUTRIGGER_BIN`) works until
//! it is killed, and reports what it begins and what was acknowledged. After each kill the store is
//! opened and every file of it is read back. Each name must have the content of its last
//! acknowledged operation, or that of the interrupted one. `OUTRIGGER_KILL_ROUNDS` sets the number
//! of rounds, `OUTRIGGER_SEED` repeats a run's choices (not its timing).
#![cfg(feature = "testing")]

use crate::gc_support;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use gc_support::*;
use outrigger_store::check::{CheckOptions, CheckProgress, check};
use outrigger_store::meta::At;
use outrigger_store::{Store, gc, ops};
use outrigger_workload::Rng;

/// The possible content of a name: a seed, or nothing.
type Held = Option<u64>;

/// The expected contents: the last acknowledged state of each name, and the one that may have
/// replaced it.
#[derive(Default)]
struct Model {
    files: BTreeMap<String, Held>,
    begun: Option<(String, Held)>,
    snapshots: Vec<String>,
}

impl Model {
    /// Learns from a line that the child printed.
    fn learn(&mut self, line: &str) {
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["begin", "put", name, seed] => self.begun = Some((name.into(), seed.parse().ok())),
            ["begin", "rm", name] => self.begun = Some((name.into(), None)),
            ["begin", "unsnapshot", name] => self.snapshots.retain(|known| known != name),
            ["done", "snapshot", name] => self.snapshots.push(name.into()),
            ["done", "edit"] => {
                let (name, held) = self.begun.take().expect("it was begun");
                self.files.insert(name, held);
            }
            _ => {}
        }
    }

    /// Compares it with the store, and takes over which way the interrupted operation went.
    fn compare(&mut self, store: &Store) -> Result<(), String> {
        let found = files(store, At::Now).map_err(|error| error.to_string())?;
        let mut held = BTreeMap::new();
        for name in &found {
            let bytes = read_at(store, At::Now, name)
                .map_err(|error| format!("{name}: {error}"))?
                .unwrap_or_default();
            if let Some(wrong) = judge(&bytes) {
                return Err(format!("{name}: {wrong}"));
            }
            held.insert(name.clone(), seed_of(&bytes));
        }
        if let Some((name, wanted)) = self.begun.take()
            && held.get(&name).copied() == wanted
        {
            self.files.insert(name, wanted);
        }
        let expected: BTreeMap<String, u64> =
            self.files.iter().filter_map(|(name, seed)| Some((name.clone(), (*seed)?))).collect();
        if held != expected {
            return Err(format!("the store holds {held:?}, acknowledged was {expected:?}"));
        }
        let snapshots = store.meta.snapshots().map_err(|error| error.to_string())?;
        match self.snapshots.iter().find(|name| !snapshots.iter().any(|snapshot| snapshot.name == **name)) {
            Some(lost) => Err(format!("snapshot {lost} is lost")),
            None => verify_all(store).map(drop),
        }
    }
}

fn say(line: &str) {
    // A line of its own, whatever the test runner prints before it; written at once, so that it is
    // whole or missing.
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(format!("\n{line}\n").as_bytes()).and_then(|()| out.flush());
}

/// The child's work: endless.
#[test]
fn child() {
    let (Ok(seed), Some(dir)) = (std::env::var("KILL_CHILD_SEED"), std::env::var_os("KILL_CHILD_DIR")) else {
        return;
    };
    let seed: u64 = seed.parse().unwrap();
    let mut rng = Rng::new(seed);
    let mut runner = Runner::new(Path::new(&dir));
    say("ready");
    for n in 0.. {
        let name = format!("d{}/{}", rng.below(3), rng.below(6));
        match rng.below(12) {
            0..6 => {
                let (seed, blocks) = (rng.below(300), rng.below(30) as u32);
                say(&format!("begin put {name} {seed}"));
                runner.put(&name, content(seed, blocks));
                say("done edit");
            }
            6..8 => {
                let store = runner.store();
                if files(store, At::Now).unwrap().contains(&name) {
                    say(&format!("begin rm {name}"));
                    runner.remove(&name);
                    say("done edit");
                }
            }
            8 => {
                let snapshots = runner.store().meta.snapshots().unwrap();
                if let (Some(oldest), true) = (snapshots.first(), snapshots.len() > 3) {
                    say(&format!("begin unsnapshot {}", oldest.name));
                    runner.forget(&oldest.name);
                } else {
                    let name = format!("s{seed}-{n}");
                    runner.snapshot(&name);
                    say(&format!("done snapshot {name}"));
                }
            }
            _ => {
                runner.collect(rng.below(2) == 0);
                say("done gc");
            }
        }
    }
}

/// Does operations in this process, or by the binary.
struct Runner {
    dir: std::path::PathBuf,
    store: Store,
    binary: Option<std::ffi::OsString>,
}

impl Runner {
    fn new(dir: &Path) -> Self {
        Self { dir: dir.to_path_buf(), store: open(dir), binary: std::env::var_os("OUTRIGGER_BIN") }
    }

    fn store(&self) -> &Store {
        &self.store
    }

    fn run(&self, arguments: &[&str], input: Option<Vec<u8>>) -> bool {
        let Some(binary) = &self.binary else { return false };
        let mut command = Command::new(binary);
        command.arg("-s").arg(self.dir.join("store")).args(arguments);
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        if let Some(input) = input {
            process.stdin.take().unwrap().write_all(&input).unwrap();
        }
        assert!(process.wait().unwrap().success(), "{arguments:?}");
        true
    }

    fn put(&mut self, name: &str, bytes: Vec<u8>) {
        if !self.run(&["put", "-", "--to", name], Some(bytes.clone())) {
            put_bytes(&self.store, name, bytes).unwrap();
        }
    }

    fn remove(&mut self, name: &str) {
        if !self.run(&["rm", "-r", name], None) {
            remove(&self.store, name).unwrap();
        }
    }

    fn snapshot(&mut self, name: &str) {
        if !self.run(&["snapshot", "create", name], None) {
            ops::snapshots::create(&self.store, Some(name), "", &[]).unwrap();
        }
    }

    fn forget(&mut self, name: &str) {
        if !self.run(&["snapshot", "delete", name], None) {
            ops::snapshots::delete(&self.store, &[name.to_string()]).unwrap();
        }
    }

    fn collect(&mut self, all: bool) {
        if !self.run(&["gc"], None) {
            let options = if all { thorough() } else { gc::GcOptions::default() };
            collect(&self.store, &options).unwrap();
        }
    }
}

#[test]
#[ignore = "slow: a process is killed many times"]
fn killed_at_any_moment_nothing_is_lost() {
    let rounds = std::env::var("OUTRIGGER_KILL_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(24);
    let given = std::env::var("OUTRIGGER_SEED").ok().and_then(|text| text.parse().ok());
    let seed: u64 = given.unwrap_or_else(|| outrigger_clock::now_nanos() % 1_000_000);
    println!("OUTRIGGER_SEED={seed}, {rounds} rounds");
    let mut rng = Rng::new(seed);
    let dir = scratch();
    init(dir.path()).meta.set_policy(1, "versions", Some("1")).unwrap();
    let (mut model, mut acknowledged) = (Model::default(), 0);
    for round in 0..rounds {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "kill::child", "--nocapture"]);
        command.env("KILL_CHILD_SEED", (seed * 1000 + round).to_string()).env("KILL_CHILD_DIR", dir.path());
        // In a process group of its own, so that the binaries it runs die with it.
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let group = rustix::process::Pid::from_child(&child);
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        assert!(lines.any(|line| line == "ready"), "the child did not start, round {round} of seed {seed}");
        let killer = std::thread::spawn({
            let after = Duration::from_micros(rng.skewed(700_000) + rng.below(40_000));
            move || {
                std::thread::sleep(after);
                rustix::process::kill_process_group(group, rustix::process::Signal::KILL).unwrap();
            }
        });
        for line in lines {
            acknowledged += u32::from(line.starts_with("done"));
            model.learn(&line);
        }
        killer.join().unwrap();
        let status = child.wait().unwrap();
        assert!(
            status.code().is_none(),
            "the child failed by itself, round {round} of seed {seed}: {status}"
        );

        let store = open(dir.path());
        let at = format!("round {round} of seed {seed}");
        model.compare(&store).unwrap_or_else(|wrong| panic!("{at}: {wrong}"));
        if round % 4 == 0 || rounds <= 24 {
            // A collector that was killed is still in the way of a check until its session is
            // fenced, as a run of it does.
            let report = collect(&store, &thorough()).unwrap_or_else(|error| panic!("{at}: gc: {error}"));
            assert_eq!(report.unreadable, Vec::<String>::new(), "{at}");
            let options = CheckOptions { read_data: true, repair: false, threads: 2 };
            let report = check(&store, &options, &CheckProgress::default())
                .unwrap_or_else(|error| panic!("{at}: {error}"));
            assert_eq!(report.damaged, 0, "{at}: {:?}", report.findings);
            model.compare(&store).unwrap_or_else(|wrong| panic!("{at}, after gc: {wrong}"));
        }
    }
    println!("{acknowledged} operations were acknowledged");
    assert!(acknowledged > rounds as u32, "the child was killed too early to do anything");
}
