//! Writers that give cutting, hashing and looking up to devices store the same as those that do
//! not, whatever the devices do.
#![cfg(feature = "testing")]

use crate::gc_support;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use gc_support::{collect, disk, put_bytes, read, remove, scratch, thorough, unique};
use outrigger_format::catalogue::FileKind;
use outrigger_format::{ChunkerSpec, FingerprintKind, Root};

use outrigger_offload::placement::{Objective, Policy};
use outrigger_offload::runtime::Runtime;
use outrigger_offload::sim::{Faults, SimDevice, SimOptions, Speed};
use outrigger_store::check::{CheckOptions, CheckProgress, check};
use outrigger_store::local::{get, put};
use outrigger_store::meta::{At, ROOT_INODE};
use outrigger_store::table_cache::{Sharing, TABLE_CACHE_FILE, TableCacheOptions};
use outrigger_store::tree::{StorePath, require};
use outrigger_store::write::Progress;
use outrigger_store::{Profile, Store, StoreConfig};
use outrigger_workload::{NastyOptions, Rng, TreeOptions, compare_trees, nasty_tree, source_tree};

/// Files of all sizes: small ones in batches, large ones in segments, and one with holes.
fn source(dir: &Path) {
    nasty_tree(&dir.join("nasty"), &NastyOptions::new(3)).unwrap();
    source_tree(&dir.join("code"), &TreeOptions::new(3, 300)).unwrap();
    let mut bytes = vec![0; 24 << 20];
    Rng::new(3).fill(&mut bytes);
    std::fs::write(dir.join("large"), &bytes).unwrap();
}

/// A runtime that spares the processor wherever it can.
fn runtime(faults: Faults, policy: Policy) -> Arc<Runtime> {
    runtime_of(Speed::PCIE5_GPU, faults, policy)
}

fn runtime_of(speed: Speed, faults: Faults, policy: Policy) -> Arc<Runtime> {
    let options = SimOptions { faults, time_scale: 0.1, ..SimOptions::new("sim:0", speed) };
    let policy = Policy { objective: Objective::Cpu, cpu_slack: 1000.0, ..policy };
    Arc::new(
        Runtime::builder().cpu_threads(2).device(Box::new(SimDevice::new(options))).policy(policy).build(),
    )
}

fn put_all(store: &Store, source: &Path) -> put::PutReport {
    let progress = Arc::new(Progress::default());
    let options = put::PutOptions { rescan: true, ..put::PutOptions::default() };
    let target = StorePath::parse(b"tree").unwrap();
    let sources = vec![(put::Source::Path(source.to_path_buf()), target)];
    let report = put::put(store, sources, &options, 2, &progress).unwrap();
    assert_eq!(*progress.skipped.lock().unwrap(), []);
    report
}

/// The tree comes out of `store` as it went in, and nothing in it is damaged.
fn assert_whole(store: &Store, source: &Path, dest: &Path) {
    let inode = require(&*store.meta, At::Now, &StorePath::parse(b"tree").unwrap()).unwrap();
    let options = get::GetOptions { special: true, threads: 2, ..get::GetOptions::default() };
    get::restore(store, At::Now, &inode, dest, None, options, &Progress::default()).unwrap();
    assert_eq!(compare_trees(source, dest).unwrap(), []);
    let options = CheckOptions { read_data: true, repair: false, threads: 2 };
    let report = check(store, &options, &CheckProgress::default()).unwrap();
    assert_eq!(report.damaged, 0, "{:?}", report.findings);
}

#[test]
fn the_same_is_stored_with_devices_and_without() {
    let dir = tempfile::tempdir().unwrap();
    let tree = dir.path().join("source");
    source(&tree);
    for (name, first_by_device) in [("one", true), ("other", false)] {
        let path = dir.path().join(name);
        drop(Store::init(&path, &Profile::Default.config().unwrap()).unwrap());
        let runtime = runtime(Faults::default(), Policy::default());
        for by_device in [first_by_device, !first_by_device] {
            let store = Store::open(&path, false).unwrap();
            if by_device {
                store.use_devices(Arc::clone(&runtime), Some(TableCacheOptions::default()));
            }
            let report = put_all(&store, &tree);
            // The second put finds all that the first has named.
            assert_eq!(report.write.progress.bytes_new == 0, by_device != first_by_device, "{by_device}");
        }
        let device = &runtime.metrics().devices[1];
        assert!(device.tasks > 10 && device.bytes > 20 << 20, "{device:?}");
        assert_whole(
            &Store::open(&path, false).unwrap(),
            &tree,
            &dir.path().join(format!("{name}-restored")),
        );
    }
}

#[test]
fn devices_that_fail_in_the_middle_cost_nothing_but_time() {
    let dir = tempfile::tempdir().unwrap();
    let tree = dir.path().join("source");
    source(&tree);
    let (every, hangs) = (
        Faults {
            lost_every: 31,
            wrong_every: 5,
            fail_every: 3,
            busy_every: 7,
            memory_every: 11,
            ..Faults::default()
        },
        Faults { hang_every: 4, ..Faults::default() },
    );
    for (at, faults) in [every, hangs].into_iter().enumerate() {
        // Every result is compared, so that no wrong one gets through; and no thread waits long for
        // one that hangs.
        let policy = Policy {
            check_every: 1,
            hang_floor: Duration::from_millis(100),
            hang_factor: 1.0,
            retry_first: Duration::from_millis(1),
            retry_last: Duration::from_millis(20),
            ..Policy::default()
        };
        let path = dir.path().join(format!("store-{at}"));
        let store = Store::init(&path, &Profile::Default.config().unwrap()).unwrap();
        let runtime = runtime(faults, policy);
        store.use_devices(Arc::clone(&runtime), Some(TableCacheOptions::default()));
        put_all(&store, &tree);
        let device = &runtime.metrics().devices[1];
        assert!(device.given_up > 0 && device.trips > 0, "{device:?}");
        assert_whole(&store, &tree, &dir.path().join(format!("restored-{at}")));
        // Named rightly: a put without devices finds everything.
        drop(store);
        assert_eq!(put_all(&Store::open(&path, false).unwrap(), &tree).write.progress.bytes_new, 0);
    }
}

/// Every file's path and content, as the store names it.
fn roots(store: &Store) -> BTreeMap<Vec<u8>, Root> {
    let (mut found, mut open) = (BTreeMap::new(), vec![(Vec::new(), ROOT_INODE)]);
    while let Some((above, directory)) = open.pop() {
        for entry in store.meta.read_dir(At::Now, directory, None, usize::MAX).unwrap() {
            let name = [&above[..], b"/", &entry.name[..]].concat();
            match entry.inode.attributes.kind {
                FileKind::Directory => open.push((name, entry.inode.number)),
                _ => drop(found.insert(name, entry.inode.root.clone())),
            }
        }
    }
    found
}

#[test]
fn manifests_and_what_is_new_are_the_same_whichever_device() {
    let dir = tempfile::tempdir().unwrap();
    let tree = dir.path().join("source");
    source(&tree);
    // Chunks that come twice within one put, too.
    std::fs::copy(tree.join("large"), tree.join("large again")).unwrap();
    let mut zeros = vec![0; 9 << 20];
    Rng::new(8).fill(&mut zeros[4 << 20..5 << 20]);
    std::fs::write(tree.join("runs"), &zeros).unwrap();
    let configs = [
        Profile::Default.config().unwrap(),
        StoreConfig { fingerprint: FingerprintKind::PmdSha256, ..Profile::Dense.config().unwrap() },
        StoreConfig {
            chunker: ChunkerSpec::parse("rabin:4K/16K/64K").unwrap(),
            ..Profile::Default.config().unwrap()
        },
        StoreConfig {
            chunker: ChunkerSpec::parse("fixed:12K").unwrap(),
            ..Profile::Default.config().unwrap()
        },
    ];
    for (at, config) in configs.iter().enumerate() {
        let put_with = |speed: Option<Speed>| {
            let path = dir.path().join(format!("store-{at}-{}", speed.map_or("none", |speed| speed.name)));
            let store = Store::init(&path, config).unwrap();
            let runtime = speed.map(|speed| runtime_of(speed, Faults::default(), Policy::default()));
            if let Some(runtime) = &runtime {
                store.use_devices(Arc::clone(runtime), Some(TableCacheOptions::default()));
            }
            let first = put_all(&store, &tree).write.progress;
            let second = put_all(&store, &tree).write.progress;
            assert_eq!((second.bytes_new, second.chunks), (0, first.chunks));
            if let Some(runtime) = &runtime {
                assert!(runtime.metrics().devices[1].tasks > 5, "{:?}", runtime.metrics());
            }
            (roots(&store), first.chunks, first.chunks_new, first.bytes_new)
        };
        let expected = put_with(None);
        let presets = if at == 0 { &Speed::PRESETS[..] } else { &Speed::PRESETS[1..2] };
        for (name, speed) in presets {
            assert_eq!(put_with(Some(*speed)), expected, "{name}, {}", config.chunker);
        }
    }
}

/// A device that does nearly everything, and whose results are not compared.
fn trusted(faults: Faults) -> Arc<Runtime> {
    let policy = Policy { check_every: 0, check_first: 0, trial_tasks: 0, ..Policy::default() };
    runtime(faults, policy)
}

#[test]
fn what_is_found_often_is_found_by_the_device_and_remembered() {
    let dir = scratch();
    let (path, bytes) = (dir.path().join("store"), unique(1, 20 << 20));
    drop(Store::init(&path, &Profile::Default.config().unwrap()).unwrap());
    for sharing in [Sharing::Exclusive, Sharing::Shared] {
        let store = Store::open(&path, false).unwrap();
        let options = TableCacheOptions { sharing, ..TableCacheOptions::default() };
        store.use_devices(trusted(Faults::default()), Some(options));
        let cache = Arc::clone(store.table_cache().unwrap());
        put_bytes(&store, "first", bytes.clone()).unwrap();
        let found = put_bytes(&store, "second", bytes.clone()).unwrap();
        assert_eq!(found.write.progress.bytes_new, 0);
        assert!(cache.stats().counted > 500, "{cache:?}");
        cache.refresh_now();
        let (before, probes) = (cache.stats(), store.index.stats().probes);
        assert!(before.entries > 500, "{before:?}");
        let again = put_bytes(&store, "third", bytes.clone()).unwrap();
        assert_eq!(again.write.progress.bytes_new, 0);
        let after = cache.stats();
        let relied = after.now.relied - before.now.relied;
        assert!(relied > 500 && relied <= again.write.progress.chunks, "{after:?}");
        assert!(after.now.found - before.now.found >= relied && after.now.denied == 0, "{after:?}");
        assert_eq!(store.index.stats().probes, probes, "the index was not asked");
        assert_eq!(read(&store, "third"), bytes);
    }
    // The next process knows what was hot, and looks up again where it is.
    let store = Store::open(&path, false).unwrap();
    store.use_devices(trusted(Faults::default()), Some(TableCacheOptions::default()));
    let cache = Arc::clone(store.table_cache().unwrap());
    while cache.stats().refreshes == 0 {
        std::thread::yield_now();
    }
    assert_eq!(cache.take_complaint(), None);
    put_bytes(&store, "fourth", bytes).unwrap();
    let stats = cache.stats();
    assert!(stats.now.relied > 500 && stats.ever.relied > stats.now.relied, "{stats:?}");
}

#[test]
fn a_table_cache_that_is_damaged_or_foreign_is_dropped_with_a_word() {
    let dir = scratch();
    let init = |name: &str| Store::init(&dir.path().join(name), &Profile::Default.config().unwrap()).unwrap();
    let open = |name: &str| {
        let store = Store::open(&dir.path().join(name), false).unwrap();
        store.use_devices(trusted(Faults::default()), Some(TableCacheOptions::default()));
        store
    };
    let bytes = unique(2, 4 << 20);
    drop((init("one"), init("other")));
    let store = open("one");
    put_bytes(&store, "a", bytes.clone()).unwrap();
    put_bytes(&store, "b", bytes.clone()).unwrap();
    drop(store);
    let file = |name: &str| dir.path().join(name).join(TABLE_CACHE_FILE);
    let saved = std::fs::read(file("one")).unwrap();
    let mut flipped = saved.clone();
    *flipped.last_mut().unwrap() ^= 1;
    let cases = [
        ("other", saved.clone(), "of another store"),
        ("one", flipped, "damaged"),
        ("one", saved[..saved.len() / 2].to_vec(), "damaged"),
        ("one", b"something".to_vec(), "cut off"),
    ];
    for (name, bytes_there, why) in cases {
        std::fs::write(file(name), bytes_there).unwrap();
        let store = open(name);
        let cache = Arc::clone(store.table_cache().unwrap());
        let complaint = loop {
            if let Some(complaint) = cache.take_complaint() {
                break complaint;
            }
            std::thread::yield_now();
        };
        assert!(complaint.contains(why), "{complaint}");
        put_bytes(&store, "c", bytes.clone()).unwrap();
        assert_eq!(read(&store, "c"), bytes);
    }
}

/// Even if the whole table is wrong: a device that claims of every chunk that it is stored where
/// something else is loses nothing.
#[test]
fn hits_that_are_lies_are_not_believed() {
    let dir = scratch();
    let store = Store::init(&dir.path().join("store"), &Profile::Default.config().unwrap()).unwrap();
    let options = SimOptions { time_scale: 0.1, ..SimOptions::new("sim:0", Speed::PCIE5_GPU) };
    let sim = SimDevice::new(options);
    let control = sim.control();
    let policy = Policy {
        objective: Objective::Cpu,
        cpu_slack: 1000.0,
        check_every: 0,
        check_first: 0,
        retry_first: Duration::from_millis(1),
        trial_tasks: 0,
        ..Policy::default()
    };
    let runtime = Arc::new(Runtime::builder().cpu_threads(2).device(Box::new(sim)).policy(policy).build());
    store.use_devices(Arc::clone(&runtime), Some(TableCacheOptions::default()));
    let cache = Arc::clone(store.table_cache().unwrap());
    let known = unique(3, 8 << 20);
    for name in ["a", "b"] {
        put_bytes(&store, name, known.clone()).unwrap();
    }
    cache.refresh_now();
    control.set(Faults { lie_every: 1, ..Faults::default() });
    // New chunks, known chunks, and both in turn.
    let mut mixed = unique(5, 6 << 20);
    mixed.extend_from_slice(&known[1 << 20..3 << 20]);
    let contents = [unique(4, 8 << 20), known, mixed];
    for (at, bytes) in contents.iter().enumerate() {
        let name = format!("lied-{at}");
        put_bytes(&store, &name, bytes.clone()).unwrap();
        assert_eq!(read(&store, &name), *bytes, "{name}");
    }
    let (stats, device) = (cache.stats(), &runtime.metrics().devices[1]);
    assert!(stats.now.denied > 100, "{stats:?}");
    assert!(device.trips > 0 && device.faults_named("wrong") > 0, "{device:?}");
}

#[test]
fn reports_about_other_bytes_are_not_taken_for_these() {
    let dir = scratch();
    let path = dir.path().join("store");
    let store = Store::init(&path, &Profile::Default.config().unwrap()).unwrap();
    let runtime = trusted(Faults { stale_every: 3, ..Faults::default() });
    store.use_devices(Arc::clone(&runtime), Some(TableCacheOptions::default()));
    // Files of one size in blocks, so that the cuts of the task before would do.
    store.meta.set_policy(ROOT_INODE, "chunker", Some("fixed:16K")).unwrap();
    for n in 0..6 {
        let bytes = unique(10 + n, 8 << 20);
        put_bytes(&store, &format!("{n}"), bytes.clone()).unwrap();
        assert_eq!(read(&store, &format!("{n}")), bytes);
    }
    let device = &runtime.metrics().devices[1];
    assert!(device.trips > 0 && device.checked == 0, "{device:?}");
    // Named rightly: without devices, everything is found.
    drop(store);
    let store = Store::open(&path, false).unwrap();
    for n in 0..6 {
        assert_eq!(put_bytes(&store, "again", unique(10 + n, 8 << 20)).unwrap().write.progress.bytes_new, 0);
    }
}

#[test]
fn what_was_collected_is_not_relied_on_though_the_table_still_has_it() {
    let dir = scratch();
    let store = gc_support::init(dir.path());
    store.use_devices(trusted(Faults::default()), Some(TableCacheOptions::default()));
    let cache = Arc::clone(store.table_cache().unwrap());
    let bytes = unique(6, 12 << 20);
    for name in ["a", "b"] {
        put_bytes(&store, name, bytes.clone()).unwrap();
    }
    cache.refresh_now();
    ["a", "b"].iter().for_each(|name| remove(&store, name).unwrap());
    collect(&store, &thorough()).unwrap();
    assert!(disk(&store) < 1 << 20, "nothing is left of it");
    let (before, table) = (cache.stats(), cache.view().len());
    assert!(table > 500);
    let again = put_bytes(&store, "c", bytes.clone()).unwrap();
    assert_eq!(again.write.progress.bytes_new, bytes.len() as u64, "all of it is stored again");
    let after = cache.stats();
    assert!(after.now.found - before.now.found > 500, "the device has found it: {after:?}");
    assert_eq!(after.now.relied, before.now.relied, "and nobody has relied on that");
    assert_eq!(read(&store, "c"), bytes);
    // A refresh drops chunks that are gone, and knows the new places of the others.
    cache.refresh_now();
    assert_eq!(put_bytes(&store, "d", bytes).unwrap().write.progress.bytes_new, 0);
    assert!(cache.stats().now.relied > after.now.relied);
}
