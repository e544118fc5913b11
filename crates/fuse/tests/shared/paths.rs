//! Directories on a path that are asked for with its first step: it costs a journey instead of one each, and nobody is told of what another host has changed before.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use outrigger_fuse::shared::SharedOptions;
use outrigger_workload::postgres::{Piece, Proxy};
use rustix::fs::RenameFlags;
use rustix::io::Errno;

use super::hosts::Cluster;

#[test]
fn a_path_that_was_gone_before_is_two_journeys() {
    let Some(cluster) = Cluster::new() else { return };
    let pieces = Arc::new(AtomicI64::new(0));
    let count = Arc::clone(&pieces);
    let judge = move || {
        count.fetch_add(1, Ordering::SeqCst);
        Piece::Pass
    };
    let proxy = Proxy::start(cluster.server, judge).unwrap();
    let host = cluster.mount_through(&proxy.url(&cluster.schema), SharedOptions::new(2));
    for directory in ["a", "a/b", "a/b/c", "a/b/c/d"] {
        host.mkdir(directory).unwrap();
    }
    for name in ["f", "g"] {
        host.put(&format!("a/b/c/d/{name}"), b"x").unwrap();
    }
    // Other threads of the mount speak to the database, too, and the walk may have been too slow.
    let journeys = |path: &str| {
        let once = || {
            let before = pieces.load(Ordering::SeqCst);
            host.stat(path).unwrap();
            pieces.load(Ordering::SeqCst) - before
        };
        (0..50).map(|_| once()).min().unwrap() / 2
    };
    assert_eq!(journeys("a/b/c/d/f"), 2, "the directories, and the file");
    assert_eq!(journeys("a/b/c/d/g"), 2);
    // A directory at the end of the way that nobody has gone through is asked for in its turn.
    host.mkdir("a/b/c/d/e").unwrap();
    assert_eq!(journeys("a/b/c/d/e"), 2);
    assert_eq!(journeys("a"), 1);
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
