//! Writers that give their hashing to devices store the same as those that do not, whatever the devices do.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use outrigger_offload::placement::{Objective, Policy};
use outrigger_offload::runtime::Runtime;
use outrigger_offload::sim::{Faults, SimDevice, SimOptions, Speed};
use outrigger_store::check::{CheckOptions, CheckProgress, check};
use outrigger_store::local::{get, put};
use outrigger_store::meta::At;
use outrigger_store::tree::{StorePath, require};
use outrigger_store::write::Progress;
use outrigger_store::{Profile, Store};
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
    let options = SimOptions { faults, time_scale: 0.1, ..SimOptions::new("sim:0", Speed::PCIE5_GPU) };
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
    let options = get::GetOptions { overwrite: false, special: true, threads: 2 };
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
                store.use_devices(Arc::clone(&runtime));
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
        // Every result is compared, so that no wrong one gets through; and nobody waits long for one that hangs.
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
        store.use_devices(Arc::clone(&runtime));
        put_all(&store, &tree);
        let device = &runtime.metrics().devices[1];
        assert!(device.given_up > 0 && device.trips > 0, "{device:?}");
        assert_whole(&store, &tree, &dir.path().join(format!("restored-{at}")));
        // Named rightly: a put without devices finds everything.
        drop(store);
        assert_eq!(put_all(&Store::open(&path, false).unwrap(), &tree).write.progress.bytes_new, 0);
    }
}
