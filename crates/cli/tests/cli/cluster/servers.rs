//! OSDs and the database's server, which are killed, stopped and taken away while two hosts write.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::{Cluster, Host, healed, script, wait_until};
use crate::run::noise;

/// Says that it is over when it goes, by a panic too.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// What file `number` of a host is to hold: every third one is small.
fn content(host: &Host, number: u64) -> Vec<u8> {
    let seed = number * 7 + u64::from(host.name.as_bytes()[1]);
    noise(seed, if number % 3 == 2 { 9_000 } else { 700_000 + number as usize })
}

/// Two hosts write and sync files while `faults` happen, and for a moment longer. None of it may fail, and all of it is there on the other host.
fn write_through(faults: impl FnOnce()) {
    let Some(cluster) = Cluster::here() else { return };
    healed();
    let site = cluster.in_pool();
    let hosts = [site.mount("c0"), site.mount("c1")];
    let over = AtomicBool::new(false);
    let counts: Vec<u64> = std::thread::scope(|scope| {
        let writers: Vec<_> = hosts
            .iter()
            .map(|host| {
                let over = &over;
                scope.spawn(move || {
                    let mut number = 0;
                    while !over.load(Ordering::SeqCst) {
                        let bytes = content(host, number);
                        host.synced(&format!("{}-{number}", host.name), &bytes).unwrap_or_else(|error| {
                            panic!("{} {number}: {error}; {}", host.name, host.said())
                        });
                        host.must_read(&format!("{}-{number}", host.name), &bytes);
                        number += 1;
                        std::thread::sleep(Duration::from_millis(100));
                    }
                    number
                })
            })
            .collect();
        let ends = Ends(&over);
        std::thread::sleep(Duration::from_millis(500));
        faults();
        std::thread::sleep(Duration::from_millis(500));
        drop(ends);
        writers.into_iter().map(|writer| writer.join().unwrap()).collect()
    });
    for (host, other, count) in [(&hosts[0], &hosts[1], counts[0]), (&hosts[1], &hosts[0], counts[1])] {
        assert!(count > 4, "{} wrote {count} files", host.name);
        for number in 0..count {
            other.must_read(&format!("{}-{number}", host.name), &content(host, number));
        }
    }
    println!("{counts:?} files");
    site.check(&hosts[0]);
    for mut host in hosts {
        host.unmount();
    }
    assert_eq!(site.sql(&format!("SELECT count(*) FROM {}.session", site.schema)), "0");
}

#[test]
fn osds_are_killed_and_stopped_while_hosts_write() {
    write_through(|| {
        script(&["osd", "0", "kill"]);
        std::thread::sleep(Duration::from_secs(6));
        script(&["osd", "0", "start"]);
        healed();
        // It holds its connections, and answers nothing.
        script(&["osd", "1", "pause"]);
        std::thread::sleep(Duration::from_secs(10));
        script(&["osd", "1", "continue"]);
        healed();
    });
}

/// What it held is made anew on the others from what they have, and it is never needed again.
#[test]
fn an_osd_is_taken_away_while_hosts_write() {
    write_through(|| {
        script(&["osd", "2", "out"]);
        script(&["osd", "2", "kill"]);
        wait_until("the other two hold all of it", || {
            let told = super::ceph("ceph", &["status", "--format", "json"]);
            let status: serde_json::Value = serde_json::from_str(&told).unwrap();
            let states = status["pgmap"]["pgs_by_state"].as_array().unwrap();
            status["osdmap"]["num_up_osds"] == 2
                && states.iter().all(|state| state["state_name"] == "active+clean")
        });
        std::thread::sleep(Duration::from_secs(2));
        script(&["osd", "2", "start"]);
        script(&["osd", "2", "in"]);
        healed();
    });
}

#[test]
fn the_database_is_killed_in_the_middle_of_commits_while_hosts_write() {
    write_through(|| {
        for pause in [700, 1500, 3000] {
            script(&["postgres", "kill"]);
            std::thread::sleep(Duration::from_millis(pause));
            script(&["postgres", "start"]);
            std::thread::sleep(Duration::from_secs(3));
        }
    });
}
