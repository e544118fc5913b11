//! The collector beside everything else: puts, removals, reads and other collectors, in threads and
//! in processes.
#![cfg(feature = "testing")]

use crate::gc_support;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use gc_support::*;
use outrigger_clock::{self as clock, Clock, NoRandom};
use outrigger_store::gc::{GcOptions, GcReport};
use outrigger_store::meta::{At, PinTarget, SessionKind};
use outrigger_store::{ErrorKind, Result, Store, ops};
use outrigger_workload::Rng;

/// The seed of a random test: from `OUTRIGGER_SEED`, or new; printed, so that a failure can be
/// repeated.
fn seed() -> u64 {
    let given = std::env::var("OUTRIGGER_SEED").ok().and_then(|text| text.parse().ok());
    let seed = given.unwrap_or_else(|| outrigger_clock::now_nanos() % 1_000_000);
    println!("OUTRIGGER_SEED={seed}");
    seed
}

/// A stream that ends on request.
struct Gated {
    bytes: std::io::Cursor<Vec<u8>>,
    reached_end: std::sync::mpsc::Sender<()>,
    gate: std::sync::Mutex<Receiver<()>>,
}

impl Read for Gated {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        let n = self.bytes.read(buf)?;
        if n == 0 && !buf.is_empty() {
            let _ = self.reached_end.send(());
            let _ = self.gate.lock().unwrap().recv();
        }
        Ok(n)
    }
}

#[test]
fn a_put_takes_back_the_garbage_it_found_useful() {
    let dir = scratch();
    let store = init(dir.path());
    put_bytes(&store, "old", unique(1, 4_000_000)).unwrap();
    put_bytes(&store, "other", unique(2, 4_000_000)).unwrap();
    remove(&store, "old").unwrap();
    remove(&store, "other").unwrap();
    let (reached_end, at_end) = channel();
    let (open_gate, gate) = channel();
    let stream = Gated { bytes: std::io::Cursor::new(unique(1, 4_000_000)), reached_end, gate: gate.into() };
    std::thread::scope(|scope| {
        // Its chunks are all found in packs that nothing refers to; it is not committed while the
        // collector runs.
        let putting = scope.spawn(|| put_stream(&open(dir.path()), "new", stream).unwrap());
        at_end.recv().unwrap();
        std::thread::sleep(Duration::from_millis(300));
        let report = collect(&store, &thorough()).unwrap();
        open_gate.send(()).unwrap();
        let put = putting.join().unwrap();
        assert!(put.write.progress.bytes_new < 2_000_000, "it was mostly deduplicated: {put:?}");
        assert!(report.packs_reprieved > 0, "{report:?}");
        assert!(report.packs_buried > 0, "what nobody wanted went: {report:?}");
    });
    for store in [&store, &open(dir.path())] {
        assert_eq!(read(store, "new"), unique(1, 4_000_000));
    }
    collect(&store, &thorough()).unwrap();
    assert_eq!(read(&store, "new"), unique(1, 4_000_000));
    assert!(disk(&store) < 4_600_000);
}

#[test]
fn a_pinned_reader_does_not_notice_the_collector() {
    let dir = scratch();
    let (store, reading) = (init(dir.path()), open(dir.path()));
    for n in 0..30 {
        put_bytes(&store, &format!("d/{n}"), content(n, 8)).unwrap();
    }
    let session = reading.session(SessionKind::Reader, "get").unwrap();
    let (epoch, _) = session.pin(&PinTarget::Now).unwrap();
    let names = files(&reading, At::Epoch(epoch)).unwrap();
    assert_eq!(names.len(), 30);
    for (n, name) in names.iter().enumerate() {
        if n % 5 == 0 {
            for gone in 0..6 {
                remove(&store, &format!("d/{}", n + gone)).ok();
            }
            put_bytes(&store, &format!("new/{n}"), content(1000 + n as u64, 8)).unwrap();
            collect(&store, &thorough()).unwrap();
        }
        let bytes = read_at(&reading, At::Epoch(epoch), name).unwrap().unwrap();
        assert_eq!(judge(&bytes), None, "{name}");
    }
    drop(session);
    remove(&store, "d").ok();
    collect(&store, &thorough()).unwrap();
    verify_all(&store).unwrap();
    assert_eq!(files(&store, At::Now).unwrap().len(), 6);
}

#[test]
fn two_collectors_do_not_meet() {
    let dir = scratch();
    let store = init(dir.path());
    for n in 0..10 {
        put_bytes(&store, &format!("{n}"), content(n, 30)).unwrap();
    }
    for n in 0..5 {
        remove(&store, &format!("{n}")).unwrap();
    }
    let ended: Vec<Result<GcReport>> = std::thread::scope(|scope| {
        let runs: Vec<_> = (0..4)
            .map(|n| {
                let dir = dir.path();
                scope.spawn(move || {
                    std::thread::sleep(Duration::from_millis(5 * n));
                    collect(&open(dir), &thorough())
                })
            })
            .collect();
        runs.into_iter().map(|run| run.join().unwrap()).collect()
    });
    assert!(ended.iter().any(Result::is_ok));
    for error in ended.into_iter().filter_map(Result::err) {
        assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
    }
    verify_all(&store).unwrap();
}

/// One thread's or process's random edits in a directory of its own. Returns the expected contents
/// of the directory.
fn edit(store: &Store, own: &str, rng: &mut Rng, steps: u32) -> BTreeMap<String, u64> {
    let mut model = BTreeMap::new();
    for _ in 0..steps {
        let name = format!("{own}/{}", rng.below(8));
        if rng.below(3) == 0 && model.contains_key(&name) {
            remove(store, &name).unwrap();
            model.remove(&name);
        } else {
            let seed = rng.below(400);
            put_bytes(store, &name, content(seed, rng.below(20) as u32)).unwrap();
            model.insert(name, seed);
        }
    }
    model
}

/// Ends a collecting thread, also when the test fails.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Collects until told to stop; returns the number of runs.
fn keep_collecting(store: &Store, stop: &AtomicBool) -> u64 {
    let mut runs = 0;
    let mut last = false;
    while !last {
        last = stop.load(Ordering::Relaxed);
        match collect(store, &GcOptions { live_ratio: 0.9, catalogue_min: 0, ..thorough() }) {
            Ok(report) => {
                assert_eq!(report.unreadable, Vec::<String>::new());
                runs += 1;
            }
            Err(error) => panic!("gc: {error}"),
        }
    }
    runs
}

#[test]
fn random_work_of_many_threads() {
    let seed = seed();
    let dir = scratch();
    let (first, second) = (init(dir.path()), open(dir.path()));
    first.meta.set_policy(1, "versions", Some("1")).unwrap();
    let (stop, running, reads) = (AtomicBool::new(false), AtomicU64::new(3), AtomicU64::new(0));
    let models: Vec<BTreeMap<String, u64>> = std::thread::scope(|scope| {
        let writers: Vec<_> = (0..3)
            .map(|n| {
                let (store, running, stop) = (if n == 0 { &first } else { &second }, &running, &stop);
                scope.spawn(move || {
                    let ending = Stop(stop);
                    let model = edit(store, &format!("w{n}"), &mut Rng::part(seed, n), 40);
                    // The last one to finish ends the rest; one that fails does so at once.
                    if running.fetch_sub(1, Ordering::Relaxed) > 1 {
                        std::mem::forget(ending);
                    }
                    model
                })
            })
            .collect();
        let collector = scope.spawn(|| keep_collecting(&first, &stop));
        scope.spawn(|| {
            let mut rng = Rng::part(seed, 100);
            let mut taken: Vec<String> = Vec::new();
            for n in 0.. {
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                std::thread::sleep(Duration::from_millis(50 + rng.below(200)));
                if taken.len() > 3 {
                    let name = taken.swap_remove(rng.index(taken.len()));
                    ops::snapshots::delete(&second, &[name]).unwrap();
                } else {
                    let name = format!("s{n}");
                    ops::snapshots::create(&first, Some(&name), "", &[]).unwrap();
                    taken.push(name);
                }
            }
        });
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let session = second.session(SessionKind::Reader, "get").unwrap();
                let (epoch, _) = session.pin(&PinTarget::Now).unwrap();
                for name in files(&second, At::Epoch(epoch)).unwrap() {
                    let bytes = read_at(&second, At::Epoch(epoch), &name).unwrap().unwrap();
                    assert_eq!(judge(&bytes), None, "{name} at epoch {epoch}, seed {seed}");
                    reads.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        let models = writers.into_iter().map(|writer| writer.join().unwrap()).collect();
        println!("{} runs of the collector", collector.join().unwrap());
        models
    });
    println!("{} files read meanwhile", reads.load(Ordering::Relaxed));
    for store in [first, second, open(dir.path())] {
        let expected: BTreeMap<String, u64> =
            models.iter().flatten().map(|(name, seed)| (name.clone(), *seed)).collect();
        let found = files(&store, At::Now).unwrap();
        assert_eq!(found, expected.keys().cloned().collect::<Vec<_>>(), "seed {seed}");
        verify_all(&store).unwrap_or_else(|wrong| panic!("{wrong}, seed {seed}"));
        for (name, wanted) in &expected {
            assert_eq!(seed_of(&read(&store, name)), *wanted, "{name}, seed {seed}");
        }
        collect(&store, &thorough()).unwrap();
        verify_all(&store).unwrap_or_else(|wrong| panic!("{wrong}, seed {seed}"));
    }
}

/// Runs the function `child` of this program as a process of its own.
fn spawn(dir: &Path, role: &str) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "concurrent::child", "--nocapture", "--include-ignored"])
        .env("GC_CHILD_ROLE", role)
        .env("GC_CHILD_DIR", dir)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// The work of a child process, by its role.
#[test]
fn child() {
    let (Ok(role), Some(dir)) = (std::env::var("GC_CHILD_ROLE"), std::env::var_os("GC_CHILD_DIR")) else {
        return;
    };
    let dir = Path::new(&dir);
    let store = open(dir);
    match role.split_once(' ') {
        Some(("edit", seed)) => {
            let seed: u64 = seed.parse().unwrap();
            for (name, seed) in edit(&store, &format!("p{seed}"), &mut Rng::new(seed), 25) {
                println!("\nholds {name} {seed}");
            }
        }
        Some(("same", own)) => {
            for n in 0..6 {
                put_bytes(&store, &format!("{own}/{n}"), content(n, 40)).unwrap();
            }
        }
        Some(("stopped", _)) => {
            println!("\nready");
            std::io::stdout().flush().unwrap();
            let ended = put_stream(&store, "stopped", std::io::stdin());
            let kind = ended.err().map(|error| error.kind());
            println!("\nended {kind:?}");
        }
        _ => panic!("role {role}"),
    }
}

/// Lines that a child printed, without the test runner's.
fn lines(child: &mut Child) -> impl Iterator<Item = String> + use<> {
    BufReader::new(child.stdout.take().unwrap()).lines().map_while(std::result::Result::ok)
}

#[test]
fn processes_edit_while_this_one_collects() {
    let seed = seed();
    let dir = scratch();
    let store = init(dir.path());
    let children: Vec<Child> = (0..3).map(|n| spawn(dir.path(), &format!("edit {}", seed * 3 + n))).collect();
    let stop = AtomicBool::new(false);
    let mut expected = BTreeMap::new();
    std::thread::scope(|scope| {
        let collector = scope.spawn(|| keep_collecting(&store, &stop));
        let ending = Stop(&stop);
        for mut child in children {
            for line in lines(&mut child) {
                if let Some((name, seed)) = line.strip_prefix("holds ").and_then(|line| line.split_once(' '))
                {
                    expected.insert(name.to_string(), seed.parse::<u64>().unwrap());
                }
            }
            assert!(child.wait().unwrap().success(), "a child failed, seed {seed}");
        }
        drop(ending);
        println!("{} runs of the collector", collector.join().unwrap());
    });
    let store = open(dir.path());
    assert_eq!(files(&store, At::Now).unwrap(), expected.keys().cloned().collect::<Vec<_>>());
    verify_all(&store).unwrap_or_else(|wrong| panic!("{wrong}, seed {seed}"));
    for (name, wanted) in &expected {
        assert_eq!(seed_of(&read(&store, name)), *wanted, "{name}, seed {seed}");
    }
    // The catalogue, moved and rewritten by many runs, gives the same tree.
    let root = store.dir().to_path_buf();
    drop(store);
    for name in ["meta.db", "meta.db-wal", "meta.db-shm"] {
        let _ = std::fs::remove_file(root.join(name));
    }
    let report = outrigger_store::recover::recover(&root, &Default::default()).unwrap();
    assert_eq!(report.problems, Vec::<String>::new(), "seed {seed}");
    let store = open(dir.path());
    assert_eq!(files(&store, At::Now).unwrap(), expected.keys().cloned().collect::<Vec<_>>(), "seed {seed}");
    for (name, wanted) in &expected {
        assert_eq!(seed_of(&read(&store, name)), *wanted, "{name}, seed {seed}, recovered");
    }
}

#[test]
fn processes_put_the_same_data() {
    let dir = scratch();
    let store = init(dir.path());
    let children: Vec<Child> = (0..2).map(|n| spawn(dir.path(), &format!("same {n}"))).collect();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let collector = scope.spawn(|| keep_collecting(&store, &stop));
        let ending = Stop(&stop);
        for mut child in children {
            assert_eq!(lines(&mut child).filter(|line| line.contains("panicked")).count(), 0);
            assert!(child.wait().unwrap().success());
        }
        drop(ending);
        collector.join().unwrap();
    });
    assert_eq!(verify_all(&store).unwrap(), 12);
    collect(&store, &thorough()).unwrap();
    assert_eq!(verify_all(&open(dir.path())).unwrap(), 12);
    // As large as if one had put everything.
    let alone = scratch();
    let other = init(alone.path());
    for n in 0..6 {
        put_bytes(&other, &format!("{n}"), content(n, 40)).unwrap();
    }
    let (size, alone) = (disk(&store), disk(&other));
    assert!(
        size < alone + alone / 20,
        "chunks that were stored twice are stored once: {size}, {alone} by one alone"
    );
}

#[test]
fn a_stopped_put_that_was_fenced_cannot_commit() {
    use rustix::process::{Pid, Signal, kill_process};
    let dir = scratch();
    let store = init(dir.path());
    put_bytes(&store, "old", unique(5, 3_000_000)).unwrap();
    remove(&store, "old").unwrap();
    let mut child = spawn(dir.path(), "stopped put");
    let pid = Pid::from_child(&child);
    let mut printed = lines(&mut child);
    assert!(printed.any(|line| line == "ready"));
    let mut stdin = child.stdin.take().unwrap();
    // It finds removed chunks, and relies on them.
    stdin.write_all(&unique(5, 2_500_000)).unwrap();
    let began = Instant::now();
    let session = loop {
        let sessions = store.meta.sessions().unwrap();
        if let Some(row) = sessions.iter().find(|row| row.kind == SessionKind::Writer)
            && began.elapsed() > Duration::from_millis(500)
        {
            break row.id;
        }
        assert!(began.elapsed() < Duration::from_secs(20));
        std::thread::sleep(Duration::from_millis(20));
    };
    kill_process(pid, Signal::STOP).unwrap();
    // Alive by its lease, it is waited for: this run gives up, and has reclaimed nothing.
    let impatient = GcOptions { wait_secs: 1, ..thorough() };
    let error = collect(&store, &impatient).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy);
    assert!(error.to_string().contains("put"), "{error}");
    assert!(disk(&store) > 3_000_000);
    // As when its lease is over.
    store.meta.fence(session).unwrap();
    let report = collect(&store, &thorough()).unwrap();
    assert!(report.packs_buried > 0);
    assert!(disk(&store) < 300_000, "{}", disk(&store));
    kill_process(pid, Signal::CONT).unwrap();
    // It may notice, and close its end, before it has read all of this.
    let _ = stdin.write_all(&unique(5, 2_500_000));
    drop(stdin);
    let ended: Vec<String> = printed.filter(|line| line.starts_with("ended")).collect();
    assert_eq!(ended, ["ended Some(Fenced)"]);
    child.wait().unwrap();
    assert_eq!(files(&store, At::Now).unwrap(), Vec::<String>::new());
    collect(&store, &thorough()).unwrap();
    assert!(disk(&store) < 300_000, "what it wrote after that was swept: {}", disk(&store));
}

/// The system's time as it is when a machine wakes up: the wall clock went on, the other one did
/// not.
struct Awake(Duration);

impl Clock for Awake {
    fn monotonic(&self) -> Duration {
        Duration::ZERO
    }

    fn wall(&self) -> Duration {
        self.0
    }

    fn sleep(&self, time: Duration) {
        std::thread::sleep(time);
    }

    fn random(&self, _: &mut [u8]) -> Result<(), NoRandom> {
        Err(NoRandom::new("nothing is drawn"))
    }
}

#[test]
fn a_session_that_was_ended_while_its_machine_slept_is_told_before_it_seals_a_pack() {
    let dir = tempfile::tempdir().unwrap();
    let store = init(dir.path());
    let session = store.session(SessionKind::Writer, "put").unwrap();
    let after = |secs| Arc::new(Awake(Duration::from_nanos(clock::now_nanos()) + Duration::from_secs(secs)));
    clock::with(after(3600), || session.confirm()).unwrap();
    store.meta.fence(session.id()).unwrap();
    clock::with(after(7200), || session.confirm()).unwrap_err();
    assert_eq!(session.check().unwrap_err().kind(), ErrorKind::Fenced);
}
