//! A host whose cable is pulled.

use std::fs;
use std::io::Write as _;
use std::process::Command;
use std::time::Duration;

use outrigger_workload::{TreeOptions, compare_trees, eventually, source_tree};

use super::Cluster;
use crate::run::noise;

/// Longer than a lease.
const CUT_OFF: Duration = Duration::from_secs(75);
/// Shorter than a lease, and long enough for connections to notice.
const GLITCH: Duration = Duration::from_secs(12);

#[test]
#[ignore = "slow: needs a cluster, `make test-cluster`"]
fn a_host_that_is_cut_off_for_longer_than_its_lease_goes_on_when_it_is_back() {
    let Some(cluster) = Cluster::here() else { return };
    let site = cluster.in_pool();
    let (one, two) = (site.mount("c0"), site.mount("c1"));
    let tree = one.place.path("tree");
    source_tree(&tree, &TreeOptions::new(3, 12)).unwrap();
    assert!(Command::new("cp").arg("-a").arg(&tree).arg(one.path("tree")).status().unwrap().success());
    assert_eq!(compare_trees(&tree, &two.path("tree")).unwrap(), []);
    fs::write(one.path("f"), "before").unwrap();
    let mut open = fs::OpenOptions::new().write(true).open(one.path("f")).unwrap();
    let (synced, unsynced) = (noise(1, 700_000), noise(2, 300_000));
    let mut half = fs::File::create(one.path("half")).unwrap();
    half.write_all(&synced).unwrap();
    half.sync_all().unwrap();
    one.cable("down");
    open.write_all(b"after!").unwrap();
    half.write_all(&unsynced).unwrap();
    std::thread::sleep(CUT_OFF);
    // The others go on, and a collector ends its session.
    fs::write(two.path("g"), "meanwhile").unwrap();
    two.done(&["gc"]);
    one.cable("up");
    // It may still wait for a connection that is gone.
    for file in [&open, &half] {
        eventually("what was written is stored", || file.sync_all().is_ok());
    }
    two.must_read("f", b"after!");
    two.must_read("half", &[synced, unsynced].concat());
    fs::write(one.path("new"), "x").unwrap();
    two.must_read("new", b"x");
    one.must_read("g", b"meanwhile");
    drop((open, half));
    assert!(one.said().contains("the mount continues"), "{}", one.said());
    site.check(&two);
}

#[test]
#[ignore = "slow: needs a cluster, `make test-cluster`"]
fn a_host_that_is_cut_off_for_a_moment_goes_on_where_it_was() {
    let Some(cluster) = Cluster::here() else { return };
    let site = cluster.in_pool();
    let (one, two) = (site.mount("c0"), site.mount("c1"));
    let bytes: Vec<_> = (0..6).map(|seed| noise(seed, 900_000)).collect();
    std::thread::scope(|scope| {
        let writing = scope.spawn(|| {
            for (at, bytes) in bytes.iter().enumerate() {
                one.synced(&format!("f{at}"), bytes).unwrap();
            }
        });
        std::thread::sleep(Duration::from_millis(400));
        one.cable("down");
        std::thread::sleep(GLITCH);
        // Nobody waits for it.
        two.synced("other", &bytes[0]).unwrap();
        one.cable("up");
        writing.join().unwrap();
    });
    for (at, bytes) in bytes.iter().enumerate() {
        two.must_read(&format!("f{at}"), bytes);
    }
    one.must_read("other", &bytes[0]);
    site.check(&two);
}
