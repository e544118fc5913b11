//! Whole puts into new stores, compared:
//!
//! ```text
//! TMPDIR=/dev/shm cargo bench -p outrigger-store --bench puts -- offload|codecs [PATH...]
//! ```
//!
//! `offload`: with the devices that may work (`--offload auto`, and simulated ones, which are a
//! model's) against without, in pairs that take turns. A put that may use devices should never be
//! slower. `codecs`: `auto` in each objective against fixed levels of Zstandard: rate, ratio and
//! processor time, in rounds that take turns, and each beside `zstd:3` of the same round.
//!
//! Without paths it is mixed data: `/usr/include` (sources), `/usr/bin` (programs),
//! `/usr/share/doc` (text), and numbers and noise that are generated. `ROUNDS=n` for another number
//! of rounds. Without `--bench`, as under `cargo test`, a tiny tree, once: then only the answers
//! matter, and they are checked: every store is read back.
#![allow(clippy::disallowed_methods, reason = "tests wait and measure in real time")]

mod support;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use outrigger_offload::discover;
use outrigger_offload::placement::Policy;
use outrigger_offload::runtime::Runtime;
use outrigger_offload::sim::{SimDevice, SimOptions, Speed};
use outrigger_store::Store;
use outrigger_store::meta::{ROOT_INODE, SessionKind};
use outrigger_store::table_cache::TableCacheOptions;
use outrigger_store::write::set_policy;
use outrigger_workload::{Rng, TreeOptions, source_tree};

use support::{Run, whole_put};

/// `zstd:3` without filters.
const PLAIN: &str = "zstd:3 plain";

/// Number of rounds; their median counts.
const ROUNDS: usize = 7;

struct Bench {
    scratch: tempfile::TempDir,
    threads: usize,
    rounds: usize,
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let full = arguments.iter().any(|argument| argument == "--bench");
    let words = || arguments.iter().filter(|argument| !argument.starts_with('-'));
    let wanted = |name: &str| {
        let named = |word: &&String| ["offload", "codecs"].contains(&word.as_str());
        words().any(|word| word == name) || !words().any(|word| named(&word))
    };
    let given: Vec<PathBuf> =
        words().filter(|word| !["offload", "codecs"].contains(&word.as_str())).map(PathBuf::from).collect();
    let rounds = std::env::var("ROUNDS").ok().and_then(|rounds| rounds.parse().ok());
    let bench = Bench {
        scratch: tempfile::tempdir().expect("a temporary directory"),
        threads: std::thread::available_parallelism().map_or(1, usize::from),
        rounds: rounds.unwrap_or(if full { ROUNDS } else { 1 }),
    };
    let inputs = inputs(&bench.scratch.path().join("data"), given, full);
    if wanted("offload") {
        bench.offload(&inputs);
    }
    if wanted("codecs") {
        bench.codecs(&inputs);
    }
}

/// The inputs: each kind by itself, and all of them together.
fn inputs(made: &Path, given: Vec<PathBuf>, full: bool) -> Vec<(String, Vec<PathBuf>)> {
    let name = |path: &PathBuf| path.display().to_string();
    let mut kinds: Vec<(String, Vec<PathBuf>)> =
        given.into_iter().map(|path| (name(&path), vec![path])).collect();
    if kinds.is_empty() {
        if full {
            for (kind, path) in
                [("sources", "/usr/include"), ("programs", "/usr/bin"), ("text", "/usr/share/doc")]
            {
                kinds.push((kind.to_string(), vec![PathBuf::from(path)]));
            }
        } else {
            source_tree(&made.join("sources"), &TreeOptions::new(1, 60)).expect("a generated tree");
            kinds.push(("sources".to_string(), vec![made.join("sources")]));
        }
        let len = if full { 48 << 20 } else { 2 << 20 };
        for (kind, bytes) in [("numbers", numbers(len)), ("noise", noise(len))] {
            let path = made.join(kind);
            std::fs::create_dir_all(made).expect("a directory");
            std::fs::write(&path, bytes).expect("a file");
            kinds.push((kind.to_string(), vec![path]));
        }
    }
    if kinds.len() > 1 {
        let all = kinds.iter().flat_map(|(_, paths)| paths.clone()).collect();
        kinds.push(("all of it".to_string(), all));
    }
    kinds
}

/// Normally distributed numbers, as weights are: half of the bytes float32, half bfloat16.
fn numbers(len: usize) -> Vec<u8> {
    let mut rng = Rng::new(1);
    // Twelve uniform numbers added up are nearly normal.
    let mut normal = || (0..12).map(|_| rng.below(1 << 24) as f32 / (1 << 24) as f32).sum::<f32>() - 6.0;
    let float32 = (0..len / 8).flat_map(|_| (0.02 * normal()).to_le_bytes()).collect::<Vec<u8>>();
    let bfloat16 =
        (0..len / 4).flat_map(|_| ((0.02 * normal()).to_bits().wrapping_shr(16) as u16).to_le_bytes());
    float32.iter().copied().chain(bfloat16).collect()
}

fn noise(len: usize) -> Vec<u8> {
    Rng::new(2).bytes(len)
}

/// The middle one.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

impl Bench {
    fn put(&self, codec: &str, sources: &[PathBuf], prepare: impl FnOnce(&Store)) -> Run {
        whole_put(&self.scratch.path().join("store"), codec, sources, self.threads, prepare)
    }

    fn offload(&self, inputs: &[(String, Vec<PathBuf>)]) {
        println!("whole puts, time with devices / without: medians of {} pairs (codec auto)", self.rounds);
        println!(
            "{:>14} {:>16} {:>10} {:>10} {:>8} {:>12} {:>12}",
            "data", "devices", "off s", "with s", "ratio", "processor", "on devices"
        );
        let mut worst = 0f64;
        for (kind, sources) in inputs {
            // So that everything is read from memory.
            self.put("auto", sources, |_| ());
            for who in std::iter::once("auto").chain(Speed::PRESETS.map(|(name, _)| name)) {
                // As between one put and the next, the learnt model is kept.
                let runtime = (who != "auto").then(|| self.simulated(who));
                let (mut pairs, mut tasks) = (Vec::new(), (0, 0));
                let with = || {
                    self.put("auto", sources, |store| match &runtime {
                        Some(runtime) => allow(store, Arc::clone(runtime)),
                        None => self.discovered(store),
                    })
                };
                let without = || self.put("auto", sources, |_| ());
                if runtime.is_some() {
                    with();
                }
                for round in 0..self.rounds {
                    let (off, on) = if round % 2 == 0 {
                        let off = without();
                        (off, with())
                    } else {
                        let on = with();
                        (without(), on)
                    };
                    pairs.push((off, on));
                }
                if let Some(runtime) = &runtime {
                    for (at, device) in runtime.metrics().devices.iter().enumerate() {
                        tasks.0 += device.tasks;
                        tasks.1 += if at > 0 { device.tasks } else { 0 };
                    }
                }
                let of = |what: fn(&(Run, Run)) -> f64| median(pairs.iter().map(what).collect());
                let ratio = of(|(off, on)| on.wall / off.wall);
                worst = worst.max(ratio);
                println!(
                    "{kind:>14} {who:>16} {:>10.3} {:>10.3} {ratio:>8.3} {:>12.3} {:>12}",
                    of(|(off, _)| off.wall),
                    of(|(_, on)| on.wall),
                    of(|(off, on)| on.processor / off.processor),
                    format!("{}/{}", tasks.1, tasks.0),
                );
            }
        }
        println!("worst ratio {worst:.3}");
    }

    /// As the program does it: where there are no devices, nothing is started.
    fn discovered(&self, store: &Store) {
        let found = discover().devices;
        if !found.is_empty() {
            let builder = Runtime::builder().cpu_threads(self.threads);
            let builder = found.into_iter().fold(builder, |builder, device| builder.device(device));
            allow(store, Arc::new(builder.build()));
        }
    }

    fn simulated(&self, preset: &str) -> Arc<Runtime> {
        let speed = Speed::preset(preset).expect("a preset");
        let device = Box::new(SimDevice::new(SimOptions::new("sim:0", speed)));
        let builder = Runtime::builder().cpu_threads(self.threads).policy(Policy::default());
        Arc::new(builder.device(device).build())
    }

    fn put_by(&self, codec: &str, sources: &[PathBuf]) -> Run {
        if codec != PLAIN {
            return self.put(codec, sources, |_| ());
        }
        self.put("zstd:3", sources, |store| {
            let session = store.session(SessionKind::Writer, "policy").expect("a session");
            set_policy(store, &session, ROOT_INODE, "filters", Some("off")).expect("a policy");
        })
    }

    fn codecs(&self, inputs: &[(String, Vec<PathBuf>)]) {
        let codecs = ["zstd:1", "zstd:3", PLAIN, "zstd:5", "zstd:7", "auto:cpu", "auto", "auto:ratio"];
        println!(
            "\nwhole puts by codec: medians of {} rounds; x: beside zstd:3 (with filters, as all but one row) of the same round",
            self.rounds
        );
        println!(
            "{:>14} {:>16} {:>8} {:>8} {:>14} {:>10} {:>8} {:>8} {:>12}",
            "data",
            "codec",
            "MB/s",
            "ratio",
            "processor s/GB",
            "stored MB",
            "rate x",
            "ratio x",
            "processor x"
        );
        for (kind, sources) in inputs {
            self.put("none", sources, |_| ());
            let mut runs: BTreeMap<usize, Vec<Run>> = BTreeMap::new();
            for round in 0..self.rounds {
                // The order changes, too.
                for at in 0..codecs.len() {
                    let at = (at + round) % codecs.len();
                    runs.entry(at).or_default().push(self.put_by(codecs[at], sources));
                }
            }
            for (at, codec) in codecs.into_iter().enumerate() {
                let of = |what: fn(&Run) -> f64| median(runs[&at].iter().map(what).collect());
                let beside = |what: fn(&Run, &Run) -> f64| {
                    median(runs[&at].iter().zip(&runs[&1]).map(|(run, base)| what(run, base)).collect())
                };
                println!(
                    "{kind:>14} {:>16} {:>8.0} {:>8.3} {:>14.2} {:>10.1} {:>8.3} {:>8.3} {:>12.3}",
                    codec,
                    of(|run| run.bytes as f64 / 1e6 / run.wall),
                    of(Run::ratio),
                    of(|run| run.processor * 1e9 / run.bytes as f64),
                    of(|run| run.stored as f64 / 1e6),
                    beside(|run, base| base.wall / run.wall),
                    beside(|run, base| run.ratio() / base.ratio()),
                    beside(|run, base| run.processor / base.processor),
                );
            }
        }
    }
}

fn allow(store: &Store, runtime: Arc<Runtime>) {
    store.use_devices(runtime, Some(TableCacheOptions::default()));
}
