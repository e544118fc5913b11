//! The effect of a card that compresses on a put: a whole put into a new store, frames compressed
//! by software, then by a card of 24 Gbit/s (the QZFS paper's). The card is a model: a stand-in for
//! QATzip replays earlier results and sleeps as long as the card would take. So it costs this
//! machine's processors as much as a card would, except for its memory traffic: a copy of each
//! result.
//!
//! `cargo bench -p outrigger-store --bench card -- [PATH...]` (default: /usr/bin and
//! /usr/lib/x86_64-linux-gnu; stores are made in $TMPDIR, best a memory file system). With
//! `--storm`, the card fails in another way every second while puts go on for a minute. Without
//! `--bench`, as under `cargo test`, a tiny tree: then only the answers matter, and they are
//! checked: all is read back by the processor.
#![allow(clippy::disallowed_methods, reason = "tests wait and measure in real time")]

#[allow(dead_code, unused_imports, reason = "of what tests of devices have in common, some is enough here")]
#[path = "../../offload/tests/it/common/mod.rs"]
mod common;
#[allow(dead_code, reason = "as above")]
#[path = "../../offload/tests/it/qat/standin.rs"]
mod standin;
mod support;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use outrigger_offload::placement::Policy;
use outrigger_offload::qat::QatDevice;
use outrigger_offload::runtime::Runtime;
use outrigger_workload::{TreeOptions, source_tree};

use standin::StandIn;
use support::{Run, new_store, put_into, sound, whole_put};

/// Bytes a second of the whole card: 24 Gbit/s.
const RATE: i64 = 3_000_000_000;
/// Number of puts; their median counts.
const ROUNDS: usize = 3;

/// Puts that the card is shown.
const RECORDED: usize = 5;

struct Bench {
    scratch: tempfile::TempDir,
    sources: Vec<PathBuf>,
    threads: usize,
    number: std::cell::Cell<u32>,
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
        // Records results for the stand-in, computed by software. The files that share a frame
        // depend on which thread was first, so several puts are recorded.
        standin.set("record", 1);
        for _ in 0..if full { RECORDED } else { 1 } {
            bench.put(&codec, Some(&standin));
        }
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
    let ratio = run.ratio();
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

    fn with_card(&self, standin: &StandIn) -> Arc<Runtime> {
        let card = QatDevice::open(&standin.options(8)).expect("the stand-in has hardware");
        // Whatever is predicted, this measures the card.
        let policy = Policy { codec_slack: 1e6, ..Policy::default() };
        Arc::new(Runtime::builder().cpu_threads(self.threads).device(Box::new(card)).policy(policy).build())
    }

    /// A put into a new store, which is then read back and checked, by the processor alone.
    fn put(&self, codec: &str, standin: Option<&StandIn>) -> Run {
        self.number.set(self.number.get() + 1);
        let path = self.scratch.path().join(format!("store{}", self.number.get()));
        let runtime = standin.map(|standin| self.with_card(standin));
        whole_put(&path, codec, &self.sources, self.threads, |store| {
            runtime.iter().for_each(|runtime| store.use_devices(Arc::clone(runtime), None));
        })
    }

    /// Puts, one after the other, while the card fails in another way every second.
    fn storm(&self, how_long: Duration) {
        let standin = StandIn::new();
        standin.set("instances", 8);
        let (mut puts, began) = (0, Instant::now());
        standin.storm(3, Duration::from_millis(500), || {
            while began.elapsed() < how_long {
                let path = self.scratch.path().join(format!("storm{puts}"));
                let store = new_store(&path, "gzip:1@qat,zstd:1@cpu");
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
                put_into(&store, &self.sources, self.threads);
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
        });
        println!("{puts} puts in {:.0} s, each read back whole", began.elapsed().as_secs_f64());
    }
}
