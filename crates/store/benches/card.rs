//! What a card that compresses does for a put: a whole put into a new store, frames compressed by software, then by a card of 24 Gbit/s (the QZFS paper's), which is a
//! model: a stand-in for QATzip that replays results it was shown before and sleeps as long as the card would take. So it costs this machine's processors what a
//! card would cost them, but for its memory traffic: a copy of each result.
//!
//! `cargo bench -p outrigger-store --bench card -- [PATH...]` (default: /usr/bin and /usr/lib/x86_64-linux-gnu; stores are made in $TMPDIR, best a memory file system).
//! With `--storm`, the card fails in another way every second while puts go on for a minute. Without `--bench`, as under `cargo test`, a tiny tree: then only the
//! answers matter, and they are checked: all is read back by the processor.

#[allow(dead_code, unused_imports, reason = "of what tests of devices have in common, some is enough here")]
#[path = "../../offload/tests/common/mod.rs"]
mod common;
#[allow(dead_code, reason = "as above")]
#[path = "../../offload/tests/qat/standin.rs"]
mod standin;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use outrigger_format::CodecChoice;
use outrigger_offload::placement::Policy;
use outrigger_offload::qat::QatDevice;
use outrigger_offload::runtime::Runtime;
use outrigger_store::check::{CheckOptions, CheckProgress, check};
use outrigger_store::clock::process_time;
use outrigger_store::local::put;
use outrigger_store::tree::StorePath;
use outrigger_store::write::Progress;
use outrigger_store::{Profile, Store, StoreConfig};
use outrigger_workload::{TreeOptions, source_tree};

use standin::StandIn;

/// Bytes a second of the whole card: 24 Gbit/s.
const RATE: i64 = 3_000_000_000;
/// Puts of which the median counts.
const ROUNDS: usize = 3;

struct Bench {
    scratch: tempfile::TempDir,
    sources: Vec<PathBuf>,
    threads: usize,
    number: std::cell::Cell<u32>,
}

/// One put.
#[derive(Clone, Copy)]
struct Run {
    wall: f64,
    processor: f64,
    bytes: u64,
    new: u64,
    stored: u64,
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let has = |name: &str| arguments.iter().any(|argument| argument == name);
    let full = has("--bench");
    let mut sources: Vec<PathBuf> =
        arguments.iter().filter(|argument| !argument.starts_with('-')).map(PathBuf::from).collect();
    let scratch = tempfile::tempdir().expect("a temporary directory");
    if sources.is_empty() && full {
        sources = ["/usr/bin", "/usr/lib/x86_64-linux-gnu"].map(PathBuf::from).to_vec();
    } else if sources.is_empty() {
        let tree = scratch.path().join("tree");
        source_tree(&tree, &TreeOptions::new(1, 60)).expect("a generated tree");
        std::fs::write(tree.join("log"), common::data(1, 4 << 20)).expect("a file");
        sources = vec![tree];
    }
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let bench = Bench { scratch, sources, threads, number: std::cell::Cell::new(0) };
    if has("--storm") {
        return bench.storm(Duration::from_secs(60));
    }
    // Twice, so that everything is read from memory.
    bench.put("none", None);
    let rounds = if full { ROUNDS } else { 1 };
    println!("codec               MB/s   processor s/GB   stored MB   ratio   rate x   processor x");
    let none = bench.median(rounds, || bench.put("none", None));
    report("none", none, None);
    for level in [1, 6] {
        let software = bench.median(rounds, || bench.put(&format!("gzip:{level}"), None));
        report(&format!("gzip:{level}"), software, None);
        let standin = StandIn::new();
        // One for each of the device's threads, so that none is refused.
        standin.set("instances", 8);
        let codec = format!("gzip:{level}@qat");
        // What it is shown: computed once, by software, and kept.
        standin.set("record", 1);
        bench.put(&codec, Some(&standin));
        standin.set("record", 0);
        standin.set("rate", RATE);
        let before = (standin.get("calls"), standin.get("replayed"));
        let card = bench.median(rounds, || bench.put(&codec, Some(&standin)));
        let (calls, replayed) = (standin.get("calls") - before.0, standin.get("replayed") - before.1);
        report(&codec, card, Some(software));
        println!("                    of {calls} requests {replayed} were replayed");
        assert!(replayed > 0, "nothing went to the card");
    }
}

fn report(name: &str, run: Run, software: Option<Run>) {
    let (rate, processor) = (run.bytes as f64 / 1e6 / run.wall, run.processor * 1e9 / run.bytes as f64);
    let compared = software.map_or_else(String::new, |software| {
        let wall = software.wall / run.wall;
        format!("   {wall:>6.2}   {:>11.2}", run.processor / software.processor)
    });
    let ratio = run.new as f64 / run.stored.max(1) as f64;
    println!(
        "{name:16} {rate:>7.0}   {processor:>14.2}   {:>9.1}   {ratio:>5.3}{compared}",
        run.stored as f64 / 1e6
    );
}

impl Bench {
    fn median(&self, rounds: usize, run: impl Fn() -> Run) -> Run {
        let mut all: Vec<Run> = (0..rounds).map(|_| run()).collect();
        all.sort_by(|a, b| a.wall.total_cmp(&b.wall));
        all[all.len() / 2]
    }

    fn store(&self, codec: &str) -> (Store, PathBuf) {
        self.number.set(self.number.get() + 1);
        let path = self.scratch.path().join(format!("store{}", self.number.get()));
        let codec = CodecChoice::parse(codec).expect("a codec");
        let config = StoreConfig { codec, ..Profile::Default.config().expect("a profile") };
        (Store::init(&path, &config).expect("a store"), path)
    }

    fn use_card(&self, store: &Store, standin: &StandIn) -> Arc<Runtime> {
        let card = QatDevice::open(&standin.options(8)).expect("the stand-in has hardware");
        // Whatever is predicted: this is about the card.
        let policy = Policy { codec_slack: 1e6, ..Policy::default() };
        let runtime = Arc::new(
            Runtime::builder().cpu_threads(self.threads).device(Box::new(card)).policy(policy).build(),
        );
        store.use_devices(Arc::clone(&runtime), None);
        runtime
    }

    fn put_into(&self, store: &Store) -> put::PutReport {
        let progress = Arc::new(Progress::default());
        let source = |(number, path): (usize, &PathBuf)| {
            let target = StorePath::parse(format!("tree{number}").as_bytes()).expect("a path");
            (put::Source::Path(path.clone()), target)
        };
        let sources = self.sources.iter().enumerate().map(source).collect();
        put::put(store, sources, &put::PutOptions::default(), self.threads, &progress).expect("a put")
    }

    /// A put into a new store, which is then read back and checked, by the processor alone.
    fn put(&self, codec: &str, standin: Option<&StandIn>) -> Run {
        let (store, path) = self.store(codec);
        let runtime = standin.map(|standin| self.use_card(&store, standin));
        let (began, before) = (Instant::now(), process_time());
        let report = self.put_into(&store);
        let (wall, processor) = (began.elapsed().as_secs_f64(), (process_time() - before).as_secs_f64());
        drop((store, runtime));
        sound(&path, self.threads);
        std::fs::remove_dir_all(&path).expect("the store is removed");
        let view = report.write.progress;
        Run { wall, processor, bytes: view.bytes_done, new: view.bytes_new, stored: view.bytes_stored }
    }

    /// Puts, one after the other, while every second something else goes wrong.
    fn storm(&self, how_long: Duration) {
        let standin = StandIn::new();
        standin.set("instances", 8);
        let over = AtomicBool::new(false);
        let (mut puts, began) = (0, Instant::now());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let faults = [("code", -2), ("hang", 1), ("code", -3), ("code", -103), ("corrupt", 1)];
                for (what, to) in faults.into_iter().cycle() {
                    if over.load(Ordering::Relaxed) {
                        break;
                    }
                    standin.set(what, to);
                    standin.set("every", 3);
                    std::thread::sleep(Duration::from_millis(500));
                    standin.set("every", 0);
                    standin.set(what, 0);
                    standin.set("life", standin.get("life") + 1);
                    std::thread::sleep(Duration::from_millis(500));
                }
            });
            while began.elapsed() < how_long {
                let (store, path) = self.store("gzip:1@qat,zstd:1@cpu");
                let card = QatDevice::open(&standin.options(8)).expect("the stand-in has hardware");
                let policy = Policy {
                    check_every: 1,
                    codec_slack: 1e6,
                    hang_floor: Duration::from_millis(200),
                    ..Policy::default()
                };
                let runtime = Runtime::builder()
                    .cpu_threads(self.threads)
                    .device(Box::new(card))
                    .policy(policy)
                    .build();
                let runtime = Arc::new(runtime);
                store.use_devices(Arc::clone(&runtime), None);
                self.put_into(&store);
                let metrics = runtime.metrics().devices.swap_remove(1);
                println!(
                    "{} tasks, {} given up, {} trips, {} resets",
                    metrics.tasks, metrics.given_up, metrics.trips, metrics.resets
                );
                drop((store, runtime));
                sound(&path, self.threads);
                std::fs::remove_dir_all(&path).expect("the store is removed");
                puts += 1;
            }
            over.store(true, Ordering::Relaxed);
        });
        println!("{puts} puts in {:.0} s, each read back whole", began.elapsed().as_secs_f64());
    }
}

/// Everything in the store can be read, and is what its name says.
fn sound(path: &Path, threads: usize) {
    let store = Store::open(path, false).expect("the store opens");
    let options = CheckOptions { read_data: true, repair: false, threads };
    let report = check(&store, &options, &CheckProgress::default()).expect("a check");
    assert_eq!(report.damaged, 0, "{:?}", report.findings);
}
