//! OSDs and the database server are killed, stopped and taken away while two hosts write and read.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use super::{Cluster, Host, ceph, limited, wait_until};
use crate::run::noise;

/// Runs a command of `scripts/cluster.sh`, within its longest time: a database that was killed
/// under load reads its log first.
pub fn script(args: &[&str]) {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/cluster.sh");
    let output = limited(180, script, args).output().unwrap();
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
}

fn status() -> serde_json::Value {
    serde_json::from_str(&ceph("ceph", &["status", "--format", "json"])).unwrap()
}

/// Waits until so many OSDs are up and hold all the data that they should.
fn healed(osds: u64) {
    wait_until("Ceph has healed", || {
        let status = status();
        let states = status["pgmap"]["pgs_by_state"].as_array().unwrap();
        status["osdmap"]["num_up_osds"] == osds
            && status["osdmap"]["num_in_osds"] == osds
            && states.iter().all(|state| state["state_name"] == "active+clean")
    });
}

/// Restarts everything, even if a test failed, before its mounts are ended: the next test needs it.
struct Mends;

impl Drop for Mends {
    fn drop(&mut self) {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/cluster.sh");
        let run = |args: &[&str]| limited(180, script, args).output().is_ok_and(|done| done.status.success());
        for osd in ["0", "1", "2"] {
            // An OSD that runs does not start again.
            let _ = (run(&["osd", osd, "continue"]) || run(&["osd", osd, "start"]), run(&["osd", osd, "in"]));
        }
        run(&["postgres", "start"]);
    }
}

/// Ends the writers, also after a panic. Once their mounts' processes are gone, nothing of them
/// waits.
struct Ends<'a> {
    over: &'a AtomicBool,
    mounts: Vec<Pid>,
}

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.over.store(true, Ordering::SeqCst);
        if std::thread::panicking() {
            for mount in &self.mounts {
                let _ = kill_process(*mount, Signal::KILL);
            }
        }
    }
}

/// The content of a host's file `number`. Every third one is small.
fn content(host: &str, number: u64) -> Vec<u8> {
    let seed = number * 7 + u64::from(host.as_bytes()[1]);
    noise(seed, if number % 3 == 2 { 9_000 } else { 700_000 + number as usize })
}

/// Writes and syncs files until `over`, and reads each one and the newest of another host. No step
/// may fail.
fn write(host: &Host, other: &str, counts: [&AtomicU64; 2], over: &AtomicBool) {
    let [own, others] = counts;
    while !over.load(Ordering::SeqCst) {
        let number = own.load(Ordering::SeqCst);
        let (name, bytes) = (format!("{}-{number}", host.name), content(&host.name, number));
        if let Err(error) = host.synced(&name, &bytes) {
            panic!("{name}: {error}; {}", host.said());
        }
        host.must_read(&name, &bytes);
        own.store(number + 1, Ordering::SeqCst);
        if let Some(newest) = others.load(Ordering::SeqCst).checked_sub(1) {
            host.must_read(&format!("{other}-{newest}"), &content(other, newest));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Two hosts write and read while `faults` happen. Each writes some more files whenever `faults`
/// calls its argument, and after the faults. Every synced file is readable on the other host.
fn write_through(faults: impl FnOnce(&dyn Fn())) {
    let Some(cluster) = Cluster::here() else { return };
    healed(3);
    let site = cluster.in_pool();
    let mut hosts = [site.mount("c0"), site.mount("c1")];
    let _mends = Mends;
    let (over, counts) = (AtomicBool::new(false), [AtomicU64::new(0), AtomicU64::new(0)]);
    std::thread::scope(|scope| {
        let mounts = hosts.iter().map(|host| Pid::from_child(host.child.as_ref().unwrap())).collect();
        let ends = Ends { over: &over, mounts };
        let writers = [
            scope.spawn(|| write(&hosts[0], "c1", [&counts[0], &counts[1]], &over)),
            scope.spawn(|| write(&hosts[1], "c0", [&counts[1], &counts[0]], &over)),
        ];
        let more = || {
            let before = counts.each_ref().map(|count| count.load(Ordering::SeqCst));
            wait_until("both have written", || {
                let has_ended = writers.iter().any(|writer| writer.is_finished());
                assert!(!has_ended, "a writer has failed; {} {}", hosts[0].said(), hosts[1].said());
                (0..2).all(|at| counts[at].load(Ordering::SeqCst) > before[at] + 1)
            });
        };
        more();
        faults(&more);
        more();
        over.store(true, Ordering::SeqCst);
        wait_until("the writers have ended", || writers.iter().all(|writer| writer.is_finished()));
        drop(ends);
    });
    let counts = counts.map(AtomicU64::into_inner);
    println!("{counts:?} files");
    for (at, count) in counts.into_iter().enumerate() {
        let (host, other) = (&hosts[at], &hosts[1 - at]);
        for number in 0..count {
            other.must_read(&format!("{}-{number}", host.name), &content(&host.name, number));
        }
    }
    // A new mount has none of it in a cache.
    let later = site.mount("c2");
    later.must_read(&format!("c0-{}", counts[0] - 1), &content("c0", counts[0] - 1));
    site.check(&later);
    hosts.iter_mut().for_each(Host::unmount);
    drop(later);
}

/// One OSD is killed and comes back. One keeps its connections and answers nothing, until Ceph
/// notices.
#[test]
#[ignore = "slow: needs a cluster, `make test-cluster`"]
fn osds_are_killed_and_stopped_while_hosts_write() {
    write_through(|_| {
        script(&["osd", "0", "kill"]);
        wait_until("it is noticed", || status()["osdmap"]["num_up_osds"] == 2);
        script(&["osd", "0", "start"]);
        healed(3);
        script(&["osd", "1", "pause"]);
        wait_until("it is noticed", || status()["osdmap"]["num_up_osds"] == 2);
        script(&["osd", "1", "continue"]);
        healed(3);
    });
}

/// The other OSDs rebuild its data from their copies.
#[test]
#[ignore = "slow: needs a cluster, `make test-cluster`"]
fn an_osd_is_taken_away_for_good_while_hosts_write() {
    write_through(|_| {
        script(&["osd", "2", "kill"]);
        script(&["osd", "2", "out"]);
        healed(2);
    });
}

/// `status` soon reports it. A writer that needs the pool waits and loses nothing. Work without
/// packs goes on.
#[test]
#[ignore = "slow: needs a cluster, `make test-cluster`"]
fn a_pool_that_does_not_answer_is_told_and_waited_for() {
    let Some(cluster) = Cluster::here() else { return };
    healed(3);
    let site = cluster.in_pool();
    let mut hosts = [site.mount("c0"), site.mount("c1")];
    let _mends = Mends;
    let [one, two] = &hosts;
    let trouble = || two.status()["packs_trouble"].clone();
    assert!(trouble().is_null(), "{}", trouble());
    for osd in ["0", "1", "2"] {
        script(&["osd", osd, "pause"]);
    }
    let (large, small) = (noise(1, 700_000), noise(2, 9_000));
    let mut writes = one.sync_beside("waits", &large);
    let told = trouble();
    assert!(told.as_str().is_some_and(|told| told.contains("does not answer")), "{told}");
    // Names and small files are in the database.
    let mut other = two.sync_beside("goes-on", &small);
    wait_until("a small file is stored", || other.try_wait().unwrap().is_some());
    assert!(other.wait().unwrap().success(), "{}", two.said());
    one.must_read("goes-on", &small);
    assert!(writes.try_wait().unwrap().is_none(), "it cannot have been stored; {}", one.said());
    for osd in ["0", "1", "2"] {
        script(&["osd", osd, "continue"]);
    }
    wait_until("the writer has ended", || writes.try_wait().unwrap().is_some());
    assert!(writes.wait().unwrap().success(), "{}", one.said());
    two.must_read("waits", &large);
    wait_until("nothing is wrong any more", || trouble().is_null());
    // OSDs that continued first may have declared the others dead.
    healed(3);
    site.check(two);
    hosts.iter_mut().for_each(Host::unmount);
}

#[test]
#[ignore = "slow: needs a cluster, `make test-cluster`"]
fn the_database_is_killed_in_the_middle_of_commits_while_hosts_write() {
    write_through(|more| {
        for pause in [0, 1500, 4000] {
            script(&["postgres", "kill"]);
            std::thread::sleep(Duration::from_millis(pause));
            script(&["postgres", "start"]);
            // An operation gives up a minute after its start, even if the server was there in
            // between. So each operation ends before the next fault.
            more();
        }
    });
}
