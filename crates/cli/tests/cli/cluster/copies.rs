//! A store that outgrows its machine. It is copied from a directory to the cluster's PostgreSQL and
//! pool while it is written to, by a follower that is killed again and again; then back into a
//! directory.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, ChildStdout, Stdio};
use std::time::Duration;

use outrigger_clock as clock;
use outrigger_workload::{TreeOptions, compare_trees, source_tree};

use super::{Cluster, Host, Site};
use crate::run::noise;

/// A `copy --follow`.
struct Follower {
    child: Child,
    lines: std::io::Lines<BufReader<ChildStdout>>,
}

impl Follower {
    fn start(host: &Host, packs: &str) -> Self {
        let args = ["copy", "local", &host.url, "--packs", packs, "--follow", "1", "--json"];
        let mut child = host.command(&args).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    /// The moment whose state its next round has copied.
    fn round(&mut self) -> u64 {
        let line = self.lines.next().expect("it goes on").unwrap();
        let round: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!(round["problems"], serde_json::json!([]), "{line}");
        round["as_of"].as_u64().unwrap()
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The listings of a store's content.
fn about(host: &Host, store: &str) -> String {
    let ask = |args: &[&str]| host.done(&[&["-s", store, "--json"], args].concat()).text();
    ask(&["ls", "-lR", "/"]) + &ask(&["ls", "-lR", "--at", "one", "/"]) + &ask(&["snapshot", "list"])
}

#[test]
#[ignore = "slow: needs a cluster, `make test-cluster`"]
fn a_store_is_copied_to_the_cluster_followed_there_and_copied_back() {
    let Some(cluster) = Cluster::here() else { return };
    let site = Site { database: cluster.database.clone(), schema: Cluster::fresh() };
    let packs = cluster.pool.replacen('?', &format!("/{}?", site.schema), 1);
    let (host, other) = (site.host("c1"), site.host("c2"));
    let local = |args: &[&str]| host.done(&[&["-s", "local"], args].concat());
    let tree = host.place.path("tree");
    source_tree(&tree, &TreeOptions::new(3, 60)).unwrap();
    local(&["init", "--pack-size", "1M"]);
    local(&["put", "tree"]);
    local(&["snapshot", "create", "one"]);

    host.done(&["copy", "local", &host.url, "--packs", &packs]);
    assert_eq!(about(&host, &host.url), about(&host, "local"));
    other.done(&["get", "tree", "out"]);
    assert_eq!(compare_trees(&tree, &other.place.path("out")).unwrap(), []);

    // The follower is killed while it rests, copies packs, or copies rows.
    let mut follower = Follower::start(&host, &packs);
    follower.round();
    for number in 0..5u64 {
        host.place.write(format!("tree/more{number}"), noise(number, 6 << 20));
        local(&["put", "tree"]);
        std::thread::sleep(Duration::from_millis(300 * number));
        drop(follower);
        // The partial copy is a whole store, as of one moment or another.
        other.done(&["ls", "-lR", "/"]);
        follower = Follower::start(&host, &packs);
    }
    let last = clock::now_nanos();
    while follower.round() <= last {}
    drop(follower);
    assert_eq!(about(&host, &host.url), about(&host, "local"));
    site.check(&other);

    host.done(&["copy", &host.url, "back"]);
    assert_eq!(about(&host, "back"), about(&host, "local"));
    host.done(&["-s", "back", "check", "--read-data"]);
    host.done(&["-s", "back", "get", "tree", "returned"]);
    assert_eq!(compare_trees(&tree, &host.place.path("returned")).unwrap(), []);
}
