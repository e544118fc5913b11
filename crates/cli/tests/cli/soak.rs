//! Many hosts use one store for a while: mounts and commands that write, move, remove and take
//! snapshots, collectors on any host, and processes that are killed. Other threads check meanwhile
//! that all is as it must be.
//!
//! Planted faults show that the soak notices errors (`soak/planted.rs`).
//!
//! `OUTRIGGER_SOAK_SECONDS` makes it longer, `OUTRIGGER_SOAK_SEED` repeats the choices of another
//! run, but not its timing.

mod hosts;
mod model;
mod planted;
mod writers;

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock};
use std::time::{Duration, Instant};

use hosts::{End, Ground, Mount, Shell, read};
use model::{Found, Model, NAMES, name};
use outrigger_workload::Rng;

/// A snapshot that was taken between two moments. A reader of it keeps it from being deleted.
struct Snapshot {
    name: String,
    taken: (u64, u64),
    is_there: RwLock<bool>,
}

/// Numbers of operations.
#[derive(Default)]
struct Counts {
    changes: AtomicU64,
    cut_short: AtomicU64,
    looks: AtomicU64,
    snapshots: AtomicU64,
    collected: AtomicU64,
    kills: AtomicU64,
}

impl Counts {
    fn cut_short(&self) {
        add(&self.cut_short);
    }
}

fn add(count: &AtomicU64) {
    count.fetch_add(1, Ordering::Relaxed);
}

pub struct Soak<'a> {
    model: Model,
    ground: &'a Ground,
    mounts: Vec<Mount<'a>>,
    snapshots: Mutex<Vec<Arc<Snapshot>>>,
    counts: Counts,
    until: Instant,
    failed: AtomicBool,
}

impl Soak<'_> {
    /// Repeats a step. When it fails, all threads stop.
    fn keep(&self, mut step: impl FnMut()) {
        while Instant::now() < self.until && !self.failed.load(Ordering::Relaxed) {
            if let Err(panic) = catch_unwind(AssertUnwindSafe(&mut step)) {
                self.failed.store(true, Ordering::Relaxed);
                resume_unwind(panic);
            }
        }
    }

    fn mount(&self, rng: &mut Rng) -> &Mount<'_> {
        &self.mounts[rng.index(self.mounts.len())]
    }

    /// Reads a name, through a mount or by a command, and checks it.
    fn look(&self, shell: &Shell<'_>, rng: &mut Rng) {
        let slot = rng.index(NAMES);
        let _turns = self.model.turns([slot]);
        let must = self.model.blocks.made(self.model.current(slot).as_ref());
        let found = if rng.permille(250) {
            shell.look(&name(slot))
        } else {
            let mount = self.mount(rng);
            let incarnation = mount.up();
            let found = read(&mount.root.join(name(slot)));
            if !mount.is_still(incarnation) {
                return;
            }
            found.unwrap_or_else(|error| panic!("{}: {error}", name(slot)))
        };
        assert!(found == must, "{}: {} instead of {}", name(slot), model::told(&found), model::told(&must));
        add(&self.counts.looks);
    }

    /// Reads the whole of a snapshot and checks it.
    fn look_at(&self, snapshot: &Snapshot, shell: &Shell<'_>, rng: &mut Rng) {
        let is_there = snapshot.is_there.read().unwrap();
        if !*is_there {
            return;
        }
        let mount = rng.permille(600).then(|| self.mount(rng));
        let incarnation = mount.map(Mount::up);
        let root = match mount {
            Some(mount) => mount.root.join(".snapshots").join(&snapshot.name),
            None => {
                let to = shell.place.path("snapshot");
                let _ = fs::remove_dir_all(&to);
                shell.done(&["get", "--at", &snapshot.name, ".", to.to_str().unwrap()]);
                to
            }
        };
        let found: Vec<_> = (0..NAMES).map(|slot| read(&root.join(name(slot)))).collect();
        if let (Some(mount), Some(incarnation)) = (mount, incarnation)
            && !mount.is_still(incarnation)
        {
            return;
        }
        let what = |slot: usize, error| panic!("snapshot {}, {}: {error}", snapshot.name, name(slot));
        let found: Vec<Found> = found
            .into_iter()
            .enumerate()
            .map(|(slot, found)| found.unwrap_or_else(|error| what(slot, error)))
            .collect();
        let mut once = self.model.lasting(snapshot.taken);
        for (slot, found) in found.iter().enumerate() {
            if let Err(why) = self.model.allows(slot, snapshot.taken, found) {
                panic!("snapshot {}: {why}", snapshot.name);
            }
        }
        // A content that was there all the time, under one name or another, is there once.
        for token in found.iter().filter_map(model::token_of) {
            once.remove(&token);
        }
        assert!(
            once.is_empty(),
            "snapshot {}: {once:?} were being renamed, and are not there",
            snapshot.name
        );
        add(&self.counts.looks);
    }

    fn random_snapshot(&self, rng: &mut Rng) -> Option<Arc<Snapshot>> {
        let snapshots = self.snapshots.lock().unwrap();
        (!snapshots.is_empty()).then(|| Arc::clone(&snapshots[rng.index(snapshots.len())]))
    }

    fn take_or_delete(&self, shell: &Shell<'_>, rng: &mut Rng) {
        let count = self.snapshots.lock().unwrap().len() as u64;
        if count > rng.below(6) {
            let snapshot = self.random_snapshot(rng).unwrap();
            let mut is_there = snapshot.is_there.write().unwrap();
            shell.done(&["snapshot", "delete", &snapshot.name]);
            *is_there = false;
            self.snapshots.lock().unwrap().retain(|other| other.name != snapshot.name);
        } else {
            let name = format!("s{}", self.model.token());
            let from = self.model.now();
            if let End::Done(said) = shell.run_or_kill(&["snapshot", "create", &name], rng) {
                assert_eq!(said.code, 0, "{}", said.err);
            } else if !shell.done(&["snapshot", "list"]).text().contains(&format!("{name} ")) {
                return;
            }
            let taken = (from, self.model.now());
            self.snapshots.lock().unwrap().push(Arc::new(Snapshot {
                name,
                taken,
                is_there: RwLock::new(true),
            }));
            add(&self.counts.snapshots);
        }
        std::thread::sleep(Duration::from_millis(rng.below(500)));
    }

    fn collect(&self, shells: &[Shell<'_>], rng: &mut Rng) {
        let shell = &shells[rng.index(shells.len())];
        let grace = if rng.permille(800) { "0" } else { "2" };
        match shell.run_or_kill(&["gc", "--grace", grace], rng) {
            End::Done(said) if said.code == 0 => add(&self.counts.collected),
            // A client killed elsewhere keeps its lease for a while, and only one collector runs at
            // a time.
            End::Done(said) => assert!(said.code == 1 && said.err.contains("is collecting"), "{}", said.err),
            End::Killed => {}
        }
        std::thread::sleep(Duration::from_millis(rng.below(400)));
    }
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

/// The database, if there is one and FUSE.
fn ground(leases_last: bool) -> Option<Ground> {
    if let Err(error) = fs::File::options().read(true).write(true).open("/dev/fuse") {
        outrigger_workload::skipped!("/dev/fuse cannot be opened: {error}");
        return None;
    }
    Ground::new(leases_last)
}

/// The seed and the seconds from the environment.
fn asked(seconds: u64) -> (u64, u64) {
    let seconds = number("OUTRIGGER_SOAK_SECONDS").unwrap_or(seconds);
    let seed = number("OUTRIGGER_SOAK_SEED")
        .unwrap_or_else(|| std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64 % 1_000_000);
    println!("OUTRIGGER_SOAK_SEED={seed} OUTRIGGER_SOAK_SECONDS={seconds}");
    (seed, seconds)
}

#[test]
#[ignore = "slow: a soak"]
fn hosts_that_do_all_things_at_once_and_die_lose_nothing() {
    let (seed, seconds) = asked(15);
    let Some(ground) = ground(seconds > 60) else { return };
    let packs = tempfile::tempdir().unwrap();
    let last = Shell::new(&ground);
    let soak = Soak::begin(&ground, &last, packs.path(), (seed, seconds), &[]);
    soak.act(seed);
    soak.end(&last, packs.path());
}

impl<'a> Soak<'a> {
    /// A new store with its mounts; `init` are more options of `init`.
    fn begin(
        ground: &'a Ground,
        shell: &Shell<'_>,
        packs: &std::path::Path,
        (seed, seconds): (u64, u64),
        init: &[&str],
    ) -> Self {
        let place = format!("file:{}", packs.display());
        shell.done(&[&["init", "--packs", &place], init].concat());
        let mounts: Vec<_> = (0..2).map(|_| Mount::new(ground)).collect();
        for dir in ["d0", "d1", "d2", "d3", "trees", "tmp"] {
            fs::create_dir(mounts[0].root.join(dir)).unwrap();
        }
        Soak {
            model: Model::new(seed),
            ground,
            mounts,
            snapshots: Mutex::default(),
            counts: Counts::default(),
            until: Instant::now() + Duration::from_secs(seconds),
            failed: AtomicBool::new(false),
        }
    }

    /// Runs all threads at once, until the time is over.
    fn act(&self, seed: u64) {
        std::thread::scope(|scope| {
            let (soak, ground) = (self, self.ground);
            for actor in 0..10 {
                scope.spawn(move || {
                    let (mut rng, shell) = (Rng::part(seed, actor), Shell::new(ground));
                    let shells = [Shell::new(ground), Shell::new(ground)];
                    let mut put_before = vec![None; NAMES];
                    soak.keep(|| match actor {
                        0..3 => {
                            soak.write_in(soak.mount(&mut rng), &shell, &mut rng, actor as usize);
                            add(&soak.counts.changes);
                        }
                        3..5 => {
                            soak.run_in(&shell, &mut rng, &mut put_before);
                            add(&soak.counts.changes);
                        }
                        5 => soak.look(&shell, &mut rng),
                        6 => match soak.random_snapshot(&mut rng) {
                            Some(snapshot) => soak.look_at(&snapshot, &shell, &mut rng),
                            None => std::thread::sleep(Duration::from_millis(50)),
                        },
                        7 => soak.take_or_delete(&shell, &mut rng),
                        8 => soak.collect(&shells, &mut rng),
                        _ => {
                            let patience = Duration::from_millis(rng.between(300, 5000));
                            std::thread::sleep(
                                patience.min(soak.until.saturating_duration_since(Instant::now())),
                            );
                            soak.mount(&mut rng).kill(&mut rng);
                            add(&soak.counts.kills);
                        }
                    });
                });
            }
        });
    }
}

impl Soak<'_> {
    /// Checks that all hosts see the model's contents, now and in each snapshot, and that nothing
    /// is damaged. No thread changes anything meanwhile.
    fn verify(&self, shell: &Shell<'_>) {
        for slot in 0..NAMES {
            let must = self.model.blocks.made(self.model.current(slot).as_ref());
            for mount in &self.mounts {
                let found = read(&mount.root.join(name(slot)));
                let found = found.unwrap_or_else(|error| panic!("{}: {error}", name(slot)));
                assert!(
                    found == must,
                    "{}: {} instead of {}",
                    name(slot),
                    model::told(&found),
                    model::told(&must)
                );
            }
            assert!(shell.look(&name(slot)) == must, "{}, by a command", name(slot));
        }
        let mut rng = Rng::new(0);
        // The lock is released before: an error here is a panic, after which the soak may go on.
        let snapshots = self.snapshots.lock().unwrap().clone();
        for snapshot in &snapshots {
            self.look_at(snapshot, shell, &mut rng);
        }
        shell.done(&["check", "--read-data"]);
    }

    /// After all changes have ended: checks everything, and that the collector frees what nothing
    /// refers to.
    fn end(self, shell: &Shell<'_>, packs: &std::path::Path) {
        let Counts { changes, cut_short, looks, snapshots, collected, kills } = &self.counts;
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        println!(
            "{} changes, {} of them cut short; {} looks, {} snapshots, {} collections; {} mounts killed",
            of(changes),
            of(cut_short),
            of(looks),
            of(snapshots),
            of(collected),
            of(kills)
        );
        self.verify(shell);
        for mount in self.mounts {
            mount.unmount();
        }
        // A killed client's lease may not be over yet.
        self.ground.expire_all();
        shell.done(&["gc"]);
        shell.done(&["check", "--read-data"]);
        assert_eq!(self.ground.count("SCHEMA.session"), 0, "sessions were left");
        for snapshot in self.snapshots.lock().unwrap().iter() {
            shell.done(&["snapshot", "delete", &snapshot.name]);
        }
        for dir in ["d0", "d1", "d2", "d3", "trees", "tmp"] {
            shell.done(&["rm", "-r", dir]);
        }
        shell.done(&["keep", "--automatic", "0h"]);
        // Packs that one run writes are judged by the next one.
        for _ in 0..4 {
            shell.done(&["gc"]);
        }
        shell.done(&["check", "--read-data"]);
        assert_eq!(self.ground.count("pg_locks WHERE locktype = 'advisory'"), 0, "a lock was left");
        assert_eq!(self.ground.count("SCHEMA.session"), 0, "sessions were left");
        let mut left = Vec::new();
        let mut dirs = vec![packs.join("packs")];
        while let Some(dir) = dirs.pop() {
            for entry in fs::read_dir(dir).unwrap() {
                let entry = entry.unwrap();
                if entry.file_type().unwrap().is_dir() {
                    dirs.push(entry.path());
                } else {
                    left.push((entry.file_name(), entry.metadata().unwrap().len()));
                }
            }
        }
        println!("left: {left:?}");
        assert_eq!(left.len() as u64, self.ground.count("SCHEMA.pack"), "{left:?}");
        let bytes: u64 = left.iter().map(|(_, bytes)| bytes).sum();
        // The rest is the catalogue, which is rewritten when it has doubled.
        assert!(bytes < (1 << 20) + of(changes) * 256, "{left:?}");
    }
}
