//! Frames compressed and decompressed by a card, in its stand-in
//! (`offload/tests/it/qat/standin.c`): whatever the card does, everything comes back byte for byte,
//! by the processor alone, and the statistics say who did it and why.

use crate::checking;
#[allow(dead_code, unused_imports, reason = "of what tests of devices have in common, some is enough here")]
#[path = "../../../offload/tests/it/common/mod.rs"]
pub mod common;
#[allow(dead_code, reason = "as above")]
#[path = "../../../offload/tests/it/qat/standin.rs"]
mod standin;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use outrigger_format::{CodecChoice, Reason};
use outrigger_offload::placement::{Objective, Policy};
use outrigger_offload::qat::QatDevice;
use outrigger_offload::runtime::{DeviceMetrics, Runtime};
use outrigger_store::check::{CheckOptions, CheckProgress, check};
use outrigger_store::gc::{GcOptions, GcProgress, Recompress, recompress};
use outrigger_store::local::{get, put};
use outrigger_store::meta::At;
use outrigger_store::ops::stats::stats;
use outrigger_store::tree::{StorePath, require};
use outrigger_store::write::Progress;
use outrigger_store::{ErrorKind, Profile, Store, StoreConfig};
use outrigger_workload::{NastyOptions, Rng, TreeOptions, compare_trees, nasty_tree, source_tree};

use checking::pack_files;
use common::{data, device, impatient, strict};
use standin::StandIn;

/// Files of all sizes and kinds.
fn source(dir: &Path, seed: u64) {
    nasty_tree(&dir.join("nasty"), &NastyOptions::new(seed)).unwrap();
    source_tree(&dir.join("code"), &TreeOptions::new(seed, 200)).unwrap();
    let mut noise = vec![0; 3 << 20];
    Rng::new(seed).fill(&mut noise);
    std::fs::write(dir.join("noise"), &noise).unwrap();
    std::fs::write(dir.join("log"), data(seed as u32, 12 << 20)).unwrap();
    let counters: Vec<u8> = (0..1 << 20)
        .flat_map(|n: u32| n.wrapping_mul(2_654_435_761).rotate_right(13).to_le_bytes())
        .collect();
    std::fs::write(dir.join("counters"), counters).unwrap();
}

fn new_store(dir: &Path, codec: &str) -> Store {
    framed_store(dir, codec, Profile::Default.config().unwrap().frame_size)
}

fn framed_store(dir: &Path, codec: &str, frame_size: u32) -> Store {
    let codec = CodecChoice::parse(codec).unwrap();
    let config = StoreConfig { codec, pack_size: 4 << 20, frame_size, ..Profile::Default.config().unwrap() };
    Store::init(dir, &config).unwrap()
}

fn use_card(store: &Store, standin: &StandIn, sessions: usize, policy: Policy) -> Arc<Runtime> {
    let card = QatDevice::open(&standin.options(sessions)).expect("the stand-in has hardware");
    let runtime = Runtime::builder().cpu_threads(2).device(Box::new(card)).policy(policy).build();
    let runtime = Arc::new(runtime);
    store.use_devices(Arc::clone(&runtime), None);
    runtime
}

fn put_all(store: &Store, source: &Path, to: &str, threads: usize) {
    let progress = Arc::new(Progress::default());
    let options = put::PutOptions { rescan: true, ..put::PutOptions::default() };
    let sources = vec![(put::Source::Path(source.to_path_buf()), StorePath::parse(to.as_bytes()).unwrap())];
    put::put(store, sources, &options, threads, &progress).unwrap();
    assert_eq!(*progress.skipped.lock().unwrap(), []);
}

fn get_all(store: &Store, from: &str, dest: &Path) {
    let inode = require(&*store.meta, At::Now, &StorePath::parse(from.as_bytes()).unwrap()).unwrap();
    let options = get::GetOptions { special: true, threads: 2, ..get::GetOptions::default() };
    get::restore(store, At::Now, &inode, dest, None, options, &Progress::default()).unwrap();
}

/// `from` equals `source`, read by the processor alone, and nothing in the store is damaged.
fn assert_whole(path: &Path, from: &str, source: &Path, dest: &Path) {
    let store = Store::open(path, false).unwrap();
    get_all(&store, from, dest);
    assert_eq!(compare_trees(source, dest).unwrap(), []);
    let options = CheckOptions { read_data: true, repair: false, threads: 2 };
    let report = check(&store, &options, &CheckProgress::default()).unwrap();
    assert_eq!(report.damaged, 0, "{:?}", report.findings);
}

/// Frames of data, by codec and reason.
fn frames(store: &Store) -> BTreeMap<(&'static str, Reason), u64> {
    let mut all = BTreeMap::new();
    for (key, totals) in stats(store, usize::MAX).unwrap().frames {
        if key.kind == "data" {
            *all.entry((key.codec, key.reason)).or_default() += totals.frames;
        }
    }
    all
}

fn card(runtime: &Runtime) -> DeviceMetrics {
    device(runtime)
}

#[test]
fn the_card_compresses_and_the_processor_reads() {
    let dir = tempfile::tempdir().unwrap();
    let (tree, path) = (dir.path().join("source"), dir.path().join("store"));
    source(&tree, 1);
    let standin = StandIn::new();
    let store = new_store(&path, "gzip:1@qat,zstd:1@cpu");
    let runtime = use_card(&store, &standin, 4, Policy { codec_slack: 1e6, ..strict() });
    put_all(&store, &tree, "tree", 2);
    let found = frames(&store);
    let made = found.get(&("gzip", Reason::Qat)).copied().unwrap_or_default();
    assert!(made >= 20, "{found:?}");
    assert!(found.contains_key(&("none", Reason::Random)), "noise is not offered to the card: {found:?}");
    assert_eq!((card(&runtime).given_up, card(&runtime).trips), (0, 0));
    assert_eq!(standin.get("software"), 0);
    // The card has read where the data lay, and written where it is appended from.
    assert_eq!(runtime.metrics().pool.not_locked, 0);
    drop(store);
    assert_whole(&path, "tree", &tree, &dir.path().join("restored"));
}

#[test]
fn one_worker_keeps_all_instances_at_work() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("log");
    std::fs::write(&file, data(7, 16 << 20)).unwrap();
    let standin = StandIn::new();
    // Slow enough that a second frame comes while the first is under way.
    standin.set("rate", 40_000_000);
    let store = new_store(&dir.path().join("store"), "gzip:1@qat");
    let _runtime = use_card(&store, &standin, 4, Policy { codec_slack: 1e6, ..strict() });
    put_all(&store, &file, "log", 1);
    assert_eq!(standin.get("used").count_ones(), 4, "one after the other would need one");
}

#[test]
fn what_the_card_has_no_room_for_goes_to_the_next_of_the_list() {
    let dir = tempfile::tempdir().unwrap();
    let (tree, path) = (dir.path().join("source"), dir.path().join("store"));
    source(&tree, 2);
    let standin = StandIn::new();
    standin.set("instances", 1);
    standin.set("rate", 20_000_000);
    let store = new_store(&path, "gzip:1@qat,lz4@cpu");
    let runtime = use_card(&store, &standin, 1, Policy { codec_slack: 1e6, codec_queue_max: 1, ..strict() });
    put_all(&store, &tree, "tree", 2);
    let found = frames(&store);
    assert!(found.contains_key(&("gzip", Reason::Qat)), "{found:?}");
    assert!(found.contains_key(&("lz4", Reason::Overflow)), "{found:?}");
    assert_eq!(card(&runtime).given_up, 0);
    drop(store);
    assert_whole(&path, "tree", &tree, &dir.path().join("restored"));
}

#[test]
fn no_failure_of_the_card_loses_anything() {
    let dir = tempfile::tempdir().unwrap();
    let tree = dir.path().join("source");
    source(&tree, 3);
    for (what, to, every) in [
        ("code", -2, 3),
        ("code", -103, 2),
        ("code", -104, 3),
        ("code", -3, 4),
        ("code", -101, 9),
        ("corrupt", 1, 4),
        ("short", 1, 5),
        ("hang", 1, 11),
        ("extended", 16, 6),
    ] {
        let standin = StandIn::new();
        standin.set(what, to);
        standin.set("every", every);
        let path = dir.path().join(format!("store{what}{to}"));
        let store = new_store(&path, "gzip:1@qat,zstd:1@cpu");
        let runtime = use_card(&store, &standin, 2, Policy { codec_slack: 1e6, ..impatient() });
        put_all(&store, &tree, "tree", 2);
        let card = card(&runtime);
        // Also a card that gives up on data that the processor makes much smaller.
        assert!(card.given_up > 0, "{what} {to}: {card:?}");
        drop(store);
        assert_whole(&path, "tree", &tree, &dir.path().join(format!("restored{what}{to}")));
        standin.set("hang", 0);
    }
}

#[test]
fn a_storm_of_failures_loses_nothing_and_the_card_comes_back() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let standin = StandIn::new();
    let store = new_store(&path, "gzip:1@qat,zstd:1@cpu");
    let runtime = use_card(&store, &standin, 4, Policy { codec_slack: 1e6, ..impatient() });
    standin.storm(2, Duration::from_millis(20), || {
        for round in 0..4 {
            let tree = dir.path().join(format!("source{round}"));
            source(&tree, 10 + round);
            put_all(&store, &tree, &format!("tree{round}"), 2);
        }
    });
    let metrics = card(&runtime);
    assert!(metrics.trips > 0 && metrics.resets > 0, "{metrics:?}");
    // Once it is left alone, it is let in again, and gets frames.
    let lonely = dir.path().join("lonely");
    let number = Cell::new(100);
    common::run_until(
        &runtime,
        "the card is trusted again",
        || {
            number.set(number.get() + 1);
            std::fs::write(&lonely, data(number.get(), 2 << 20)).unwrap();
            put_all(&store, &lonely, "lonely", 1);
        },
        |now| now.tasks > metrics.tasks && now.breaker == outrigger_offload::runtime::BreakerState::Closed,
    );
    drop(store);
    for round in 0..4 {
        let (tree, restored) = (format!("source{round}"), format!("restored{round}"));
        assert_whole(&path, &format!("tree{round}"), &dir.path().join(tree), &dir.path().join(restored));
    }
}

#[test]
fn the_card_decompresses_what_matches_its_checksum_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let (tree, path) = (dir.path().join("source"), dir.path().join("store"));
    source(&tree, 4);
    // A card takes 512 KiB, which frames that were made without one are a little beyond.
    put_all(&framed_store(&path, "gzip:6", 256 << 10), &tree, "tree", 2);
    let standin = StandIn::new();
    let store = Store::open(&path, false).unwrap();
    // The card does it even if the processor is faster.
    let policy = Policy { objective: Objective::Cpu, cpu_slack: 1e6, ..strict() };
    let runtime = use_card(&store, &standin, 4, policy.clone());
    get_all(&store, "tree", &dir.path().join("restored"));
    assert_eq!(compare_trees(&tree, &dir.path().join("restored")).unwrap(), []);
    assert!(card(&runtime).tasks >= 20, "{:?}", card(&runtime));
    assert_eq!(card(&runtime).given_up, 0);
    drop((store, runtime));
    // One frame, one flipped bit: the card is not asked.
    let (file, path) = (dir.path().join("log"), dir.path().join("small"));
    std::fs::write(&file, data(9, 300_000)).unwrap();
    let store = new_store(&path, "gzip:6");
    put_all(&store, &file, "log", 1);
    drop(store);
    let largest = pack_files(&path).into_iter().max_by_key(|file| std::fs::metadata(file).unwrap().len());
    let pack = largest.unwrap();
    let mut bytes = std::fs::read(&pack).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 16;
    std::fs::write(&pack, bytes).unwrap();
    let store = Store::open(&path, false).unwrap();
    let standin = StandIn::new();
    let _runtime = use_card(&store, &standin, 1, policy);
    let inode = require(&*store.meta, At::Now, &StorePath::parse(b"log").unwrap()).unwrap();
    let reader = outrigger_store::read::Reader::new(&store);
    let error = reader.read(&inode.root, 0, u64::MAX, &mut |_| Ok(())).expect_err("it is damaged");
    assert_eq!(error.kind(), ErrorKind::Damaged);
    assert_eq!(standin.get("decompressed"), 0);
}

#[test]
fn the_collector_has_the_card_recompress() {
    let dir = tempfile::tempdir().unwrap();
    let (tree, path) = (dir.path().join("source"), dir.path().join("store"));
    source(&tree, 5);
    put_all(&framed_store(&path, "lz4", 256 << 10), &tree, "tree", 2);
    let standin = StandIn::new();
    let store = Store::open(&path, false).unwrap();
    let runtime = use_card(&store, &standin, 4, Policy { codec_slack: 1e6, ..strict() });
    let how = Recompress {
        to: Some(CodecChoice::parse("gzip:1@qat,zstd:1@cpu").unwrap()),
        ..Recompress::default()
    };
    let options = GcOptions { threads: 2, ..GcOptions::default() };
    for _ in 0..8 {
        if recompress(&store, &how, &options, &GcProgress::default()).unwrap().packs_left == 0 {
            break;
        }
    }
    let found = frames(&store);
    assert!(
        found.contains_key(&("gzip", Reason::Qat)) && !found.keys().any(|(codec, _)| *codec == "lz4"),
        "{found:?}"
    );
    assert!(card(&runtime).tasks > 10);
    drop(store);
    assert_whole(&path, "tree", &tree, &dir.path().join("restored"));
}
