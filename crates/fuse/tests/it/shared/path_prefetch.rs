//! Path prefetch: a path's directories cost one round trip instead of one each, and no answer is
//! older than another host's change.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use outrigger_fuse::fs::{FileSystem, Found};
use outrigger_fuse::shared::SharedOptions;
use outrigger_workload::postgres::{Piece, Proxy};
use rustix::fs::{OFlags, RenameFlags};
use rustix::io::Errno;

use super::hosts::{Cluster, Host, walker};

/// A mount whose round trips to the database are counted.
struct Counted {
    host: Host,
    pieces: Arc<AtomicI64>,
    _proxy: Proxy,
}

impl Counted {
    fn new(cluster: &Cluster, options: SharedOptions) -> Self {
        let pieces = Arc::new(AtomicI64::new(0));
        let count = Arc::clone(&pieces);
        let judge = move || {
            count.fetch_add(1, Ordering::SeqCst);
            Piece::Pass
        };
        let proxy = Proxy::start(cluster.server, judge).unwrap();
        let host = cluster.mount_through(&proxy.url(&cluster.schema), options);
        Self { host, pieces, _proxy: proxy }
    }

    /// How many there are for this at least: other threads of the mount speak to the database, too,
    /// and a walk may have been too slow.
    fn round_trips(&self, mut work: impl FnMut(&Host)) -> i64 {
        let once = || {
            let before = self.pieces.load(Ordering::SeqCst);
            work(&self.host);
            self.pieces.load(Ordering::SeqCst) - before
        };
        std::iter::repeat_with(once).take(50).min().unwrap() / 2
    }
}

#[test]
fn a_path_that_was_gone_before_is_two_round_trips() {
    let Some(cluster) = Cluster::new() else { return };
    let counted = Counted::new(&cluster, SharedOptions::new(2));
    let host = &counted.host;
    for directory in ["a", "a/b", "a/b/c", "a/b/c/d"] {
        host.mkdir(directory).unwrap();
    }
    for name in ["f", "g"] {
        host.put(&format!("a/b/c/d/{name}"), b"x").unwrap();
    }
    let round_trips = |path: &str| {
        counted.round_trips(|host| {
            host.stat(path).unwrap();
        })
    };
    assert_eq!(round_trips("a/b/c/d/f"), 2, "the directories, and the file");
    assert_eq!(round_trips("a/b/c/d/g"), 2);
    // A directory at the end of the way that nobody has gone through is asked for in its turn.
    host.mkdir("a/b/c/d/e").unwrap();
    assert_eq!(round_trips("a/b/c/d/e"), 2);
    assert_eq!(round_trips("a"), 1);
    cluster.check();
}

#[test]
fn another_hosts_changes_on_a_path_are_seen_at_once() {
    let Some(cluster) = Cluster::new() else { return };
    let (one, two) = (cluster.mount(), cluster.mount());
    for directory in ["a", "a/b", "a/b/c", "other", "other/c"] {
        two.mkdir(directory).unwrap();
    }
    two.put("a/b/c/f", b"").unwrap();
    two.put("other/c/g", b"").unwrap();
    for round in 0..60 {
        assert!(one.stat("a/b/c/f").is_ok(), "{round}");
        match round % 4 {
            0 => two.rename("a/b", "other", RenameFlags::EXCHANGE).unwrap(),
            1 => two.rename("a/b/c", "a/b/moved", RenameFlags::empty()).unwrap(),
            2 => two.rename("a", "away", RenameFlags::empty()).unwrap(),
            _ => {
                two.unlink("a/b/c/f").unwrap();
                two.rmdir("a/b/c").unwrap();
                two.put("a/b/c", b"a file").unwrap();
            }
        }
        let seen = one.stat("a/b/c/f");
        assert!(matches!(seen, Err(Errno::NOENT | Errno::NOTDIR)), "{round}: {seen:?}");
        match round % 4 {
            0 => {
                assert!(one.stat("a/b/c/g").is_ok(), "{round}");
                two.rename("a/b", "other", RenameFlags::EXCHANGE).unwrap();
            }
            1 => two.rename("a/b/moved", "a/b/c", RenameFlags::empty()).unwrap(),
            2 => two.rename("away", "a", RenameFlags::empty()).unwrap(),
            _ => {
                two.unlink("a/b/c").unwrap();
                two.mkdir("a/b/c").unwrap();
                two.put("a/b/c/f", b"").unwrap();
            }
        }
    }
    cluster.check();
}

#[test]
fn what_the_mount_changes_itself_on_a_path_is_seen_at_once() {
    let Some(cluster) = Cluster::new() else { return };
    let host = cluster.mount();
    for directory in ["a", "a/b", "a/b/c"] {
        host.mkdir(directory).unwrap();
    }
    host.put("a/b/c/f", b"").unwrap();
    for round in 0..20 {
        assert!(host.stat("a/b/c/f").is_ok(), "{round}");
        host.rename("a/b", "a/moved", RenameFlags::empty()).unwrap();
        assert_eq!(host.stat("a/b/c/f").err(), Some(Errno::NOENT), "{round}");
        host.rename("a/moved", "a/b", RenameFlags::empty()).unwrap();
    }
    cluster.check();
}

#[test]
fn who_believes_names_need_not_ask_for_what_is_not_in_a_directory_just_made() {
    let Some(cluster) = Cluster::new() else { return };
    let long = SharedOptions { names_for: Duration::from_secs(3600), ..SharedOptions::new(2) };
    let (counted, two) = (Counted::new(&cluster, long), cluster.mount());
    let one = &counted.host;
    two.mkdir("old").unwrap();
    one.mkdir("d").unwrap();
    let number = one.find("d").unwrap();
    let missing = |host: &Host, parent, name: &[u8]| {
        let found = host.volume.lookup(walker(), parent, name).unwrap();
        assert!(matches!(found, Found::Missing { .. }));
    };
    assert_eq!(counted.round_trips(|host| missing(host, number, b"f")), 0);
    let (root, old) = (one.find("").unwrap(), one.find("old").unwrap());
    for parent in [root, old] {
        assert_eq!(counted.round_trips(|host| missing(host, parent, b"f")), 1, "others made it");
    }
    // With whatever this mount has put into it.
    one.put("d/f", b"made").unwrap();
    one.link("d/f", "d/linked").unwrap();
    one.publish("d/named", b"later").unwrap();
    one.put("moved", b"").unwrap();
    one.rename("moved", "d/moved", RenameFlags::empty()).unwrap();
    for name in ["f", "linked", "named", "moved"] {
        assert!(one.stat(&format!("d/{name}")).is_ok(), "{name}");
    }
    one.unlink("d/f").unwrap();
    assert_eq!(one.stat("d/f").err(), Some(Errno::NOENT));
    // A file that another host has put there may be overlooked, but not made once more, nor
    // overwritten unseen.
    two.put("d/theirs", b"theirs").unwrap();
    two.put("d/more", b"more").unwrap();
    missing(one, number, b"theirs");
    let made = one.open("d/theirs", OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL);
    assert_eq!(made.err(), Some(Errno::EXIST));
    assert_eq!(one.mkdir("d/theirs").err(), Some(Errno::EXIST));
    assert_eq!(one.link("d/linked", "d/theirs").err(), Some(Errno::EXIST));
    assert_eq!(one.publish("d/theirs", b"").err(), Some(Errno::EXIST));
    one.append("d/theirs", b", and ours").unwrap();
    assert_eq!(two.cat("d/theirs").unwrap(), b"theirs, and ours");
    assert_eq!(one.rmdir("d").err(), Some(Errno::NOTEMPTY));
    one.unlink("d/more").unwrap();
    // A listed name is found.
    two.put("d/late", b"late").unwrap();
    assert!(one.list("d").unwrap().contains(&"late".to_owned()));
    assert_eq!(one.cat("d/late").unwrap(), b"late");
    cluster.check();
}

#[test]
fn what_others_put_into_a_directory_just_made_is_found_in_the_end() {
    let Some(cluster) = Cluster::new() else { return };
    let names_for = Duration::from_millis(200);
    let one = cluster.mount_with(SharedOptions { names_for, ..SharedOptions::new(2) });
    let two = cluster.mount();
    one.mkdir("d").unwrap();
    two.put("d/theirs", b"theirs").unwrap();
    std::thread::sleep(names_for);
    assert_eq!(one.cat("d/theirs").unwrap(), b"theirs");
    cluster.check();
}
