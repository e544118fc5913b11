//! Mounts whose lease is over, and mounts whose session another client has ended.

use std::fs;
use std::path::PathBuf;

use outrigger_fuse::fs::{FileSystem, ROOT};
use outrigger_fuse::measures::{Status, Watched as _};
use outrigger_fuse::shared::{SharedOptions, await_closed, dir_of_mount};
use outrigger_store::meta::SessionId;
use outrigger_store::meta::locks::LockMode::{Exclusive, Shared};
use outrigger_store::ops::mounts;
use outrigger_workload::eventually;
use rustix::fs::OFlags;
use rustix::io::Errno;

use super::anonymous::anonymous;
use super::hosts::{Cluster, Host, USER};
use super::locks::{all, lock, open_both};
use super::{RDWR, random, reclaim};

impl Cluster {
    /// As the server sees a host that was silent for so long.
    fn outlive(&self, host: &Host) {
        let id = host.volume.session_id().0;
        let sql =
            format!("UPDATE {}.session SET lease_until = 1, lease_secs = 0 WHERE id = {id}", self.schema);
        self.server.sql(&sql);
    }

    fn said(&self, what: &str) -> bool {
        self.said.lock().unwrap().iter().any(|said| said.contains(what))
    }
}

/// Ends a host's session, as a collector does to a host that was silent for too long, or a host
/// that wants its locks.
fn end(host: &Host, by: &Host) -> SessionId {
    let session = host.volume.session_id();
    by.store.meta.fence(session).unwrap();
    session
}

fn status(host: &Host) -> Status {
    let mut status = Status::default();
    host.volume.watch(&mut status);
    status
}

fn kept(host: &Host) -> Vec<PathBuf> {
    mounts::unsaved(&host.store)
}

#[test]
fn a_lease_that_is_over_ends_nothing_by_itself() {
    let Some(cluster) = Cluster::new() else { return };
    let (one, two) = (cluster.mount(), cluster.mount());
    let (here, there) = open_both(&one, &two, "f");
    here.try_lock(all(1, Exclusive)).unwrap();
    here.write(0, b"written").unwrap();
    let session = one.volume.session_id();
    cluster.outlive(&one);
    here.sync().unwrap();
    one.mkdir("d").unwrap();
    let is_over = || {
        let sessions = two.store.meta.sessions().unwrap();
        sessions.iter().any(|row| row.id == session && row.lease_is_over)
    };
    eventually("it is renewed", || !is_over());
    assert_eq!(two.cat("f").unwrap(), b"written");
    assert_eq!(there.try_lock(all(1, Shared)), Err(Errno::AGAIN), "it has come back in time");
    here.unlock(all(1, Exclusive)).unwrap();
    here.close().unwrap();
    there.close().unwrap();
    assert_eq!(one.volume.session_id(), session);
    cluster.check();
}

#[test]
fn a_mount_goes_on_when_its_session_was_ended() {
    let Some(cluster) = Cluster::new() else { return };
    let (one, two) = (cluster.mount(), cluster.mount());
    for name in ["f", "gone", "chmod", "large"] {
        one.put(name, b"before").unwrap();
    }
    let (open, reader) = (one.open("f", RDWR).unwrap(), one.open("f", OFlags::RDONLY).unwrap());
    let large = one.open("large", RDWR).unwrap();
    open.write(0, b"after!").unwrap();
    large.write(0, &random(3, 3 << 20)).unwrap();
    for round in 1..4 {
        let ended = end(&one, &two);
        // The first operation after that, whichever it is.
        match round {
            1 => open.sync().unwrap(),
            2 => one.unlink("gone").unwrap(),
            _ => one.chmod("chmod", 0o600).unwrap(),
        }
        one.mkdir(&format!("d{round}")).unwrap();
        assert_eq!(two.cat("f").unwrap(), b"after!");
        assert_eq!(reader.read().unwrap(), b"after!");
        let now = one.volume.session_id();
        assert!(now > ended);
        eventually("it is counted", || status(&one).sessions_lost == round);
        // The mount is found by its new session, and by the earlier one.
        assert!(dir_of_mount(&one.store, now).is_dir() && one.volume.dir().is_dir());
    }
    large.close().unwrap();
    assert!(two.cat("large").unwrap() == random(3, 3 << 20));
    open.close().unwrap();
    reader.close().unwrap();
    assert!(cluster.said("continues with session"), "{:?}", cluster.said.lock().unwrap());
    assert_eq!((status(&one).files_kept_aside, kept(&one)), (0, Vec::new()));
    // An unmount stores what there is, too.
    let late = one.open("late", RDWR | OFlags::CREATE).unwrap();
    late.write(0, b"stored by the unmount").unwrap();
    end(&one, &two);
    let dirs = [one.volume.dir().to_path_buf(), dir_of_mount(&one.store, one.volume.session_id())];
    one.volume.close(|| ()).unwrap();
    assert_eq!(two.cat("late").unwrap(), b"stored by the unmount");
    assert!(dirs.iter().all(|dir| !dir.exists() && !dir.is_symlink()));
    cluster.check();
}

#[test]
fn locks_are_taken_over() {
    let Some(cluster) = Cluster::new() else { return };
    let (one, two) = (cluster.mount(), cluster.mount());
    let (here, there) = open_both(&one, &two, "f");
    here.try_lock(lock(1, 0, 9, Exclusive)).unwrap();
    here.try_lock(lock(1, 20, 29, Shared)).unwrap();
    here.try_lock(lock(1, 4, 5, Shared)).unwrap();
    here.unlock(lock(1, 8, 9, Exclusive)).unwrap();
    for round in 1..4 {
        end(&one, &two);
        here.write(0, b"locked").unwrap();
        here.sync().unwrap();
        eventually("it goes on", || status(&one).sessions_lost == round);
    }
    assert_eq!(there.try_lock(lock(2, 0, 0, Shared)), Err(Errno::AGAIN));
    there.try_lock(lock(2, 4, 5, Shared)).unwrap();
    there.unlock(lock(2, 4, 5, Shared)).unwrap();
    there.try_lock(lock(2, 8, 19, Exclusive)).unwrap();
    there.unlock(lock(2, 8, 19, Exclusive)).unwrap();
    let waiting = there.ask(1, all(1, Exclusive), true);
    cluster.becomes("file_lock_wait", 1);
    here.unlock(all(1, Exclusive)).unwrap();
    assert_eq!(waiting.recv().unwrap(), Ok(()));
    there.closed_by(1);
    here.close().unwrap();
    there.close().unwrap();
    assert_eq!(cluster.count("file_lock"), 0);
    cluster.check();
}

#[test]
fn who_has_lost_a_lock_is_told_and_nothing_that_rested_on_it_is_stored() {
    let Some(cluster) = Cluster::new() else { return };
    let (one, two) = (cluster.mount(), cluster.mount());
    let (here, there) = open_both(&one, &two, "f");
    let (beside, other) = (one.open("f", OFlags::RDONLY).unwrap(), one.open("f", RDWR).unwrap());
    here.try_lock(all(1, Exclusive)).unwrap();
    here.write(2, b"never").unwrap();
    let waiting = there.ask(1, all(1, Exclusive), true);
    cluster.becomes("file_lock_wait", 1);
    cluster.outlive(&one);
    // The waiting client ends the session that is in the way.
    assert_eq!(waiting.recv().unwrap(), Ok(()));
    there.write(0, b"after").unwrap();
    there.unlock(all(1, Exclusive)).unwrap();
    assert_eq!(here.unlock(all(1, Exclusive)), Err(Errno::IO));
    assert_eq!(here.try_lock(all(2, Shared)), Err(Errno::IO));
    beside.try_lock(all(3, Shared)).unwrap();
    beside.unlock(all(3, Shared)).unwrap();
    assert_eq!(here.write(0, b"more"), Err(Errno::IO));
    assert_eq!(here.read(), Err(Errno::IO));
    assert_eq!(here.sync(), Err(Errno::IO));
    assert_eq!(other.sync(), Err(Errno::IO), "what it has written may be lost with the rest");
    assert_eq!(beside.read().unwrap(), b"after", "it has lost nothing");
    assert_eq!(here.close(), Err(Errno::IO));
    assert_eq!(other.close(), Err(Errno::IO));
    beside.close().unwrap();
    there.close().unwrap();
    assert_eq!((one.cat("f").unwrap(), two.cat("f").unwrap()), (b"after".to_vec(), b"after".to_vec()));
    let kept = kept(&one);
    assert_eq!(kept.iter().map(|path| fs::read(path).unwrap()).collect::<Vec<_>>(), [b"\0\0never"]);
    assert!(cluster.said(&kept[0].display().to_string()), "{:?}", cluster.said.lock().unwrap());
    assert_eq!(status(&one).files_kept_aside, 1);
    // A program that opens the file anew begins anew.
    one.put("f", b"anew").unwrap();
    assert_eq!(two.cat("f").unwrap(), b"anew");
    drop(one);
    assert_eq!(cluster.count("file_lock"), 0);
    cluster.check();
}

#[test]
fn files_without_names_go_on_if_nobody_has_released_them() {
    let Some(cluster) = Cluster::new() else { return };
    let mut options = SharedOptions::new(2);
    options.staging_bytes = 4 << 20;
    let (one, two) = (cluster.mount_with(options), cluster.mount());
    let (small, held) = (anonymous(&one), anonymous(&one));
    small.write(0, b"small").unwrap();
    let large = random(9, 6 << 20);
    held.write(0, &large).unwrap();
    one.put("removed", b"while open").unwrap();
    let removed = one.open("removed", RDWR).unwrap();
    one.unlink("removed").unwrap();
    end(&one, &two);
    one.volume.link(USER, small.number, ROOT, b"small").unwrap();
    one.volume.link(USER, held.number, ROOT, b"held").unwrap();
    reclaim(&cluster);
    assert_eq!(two.cat("small").unwrap(), b"small");
    assert!(two.cat("held").unwrap() == large);
    assert_eq!(removed.read().unwrap(), b"while open");
    for open in [small, held, removed] {
        open.close().unwrap();
    }
    one.volume.close(|| ()).unwrap();
    cluster.check();
}

#[test]
fn snapshots_and_closes_that_come_back_early_go_on() {
    let Some(cluster) = Cluster::new() else { return };
    let mut options = SharedOptions::new(2);
    options.closes_within = std::time::Duration::from_secs(3600);
    let (one, two) = (cluster.mount_with(options), cluster.mount());
    one.put("f", b"in the snapshot").unwrap();
    one.volume.store_closed().unwrap();
    two.store.meta.create_snapshot("s", 1, &[]).unwrap();
    assert_eq!(one.cat(".snapshots/s/f").unwrap(), b"in the snapshot");
    two.store.meta.sessions().unwrap().iter().for_each(|row| two.store.meta.fence(row.id).unwrap());
    one.put("g", b"closed").unwrap();
    await_closed(&two.store, std::time::Duration::from_secs(30)).unwrap();
    assert_eq!(two.cat("g").unwrap(), b"closed");
    eventually("snapshots are pinned again", || one.cat(".snapshots/s/f").is_ok());
    let kept = one.open(".snapshots/s/f", OFlags::RDONLY).unwrap();
    two.store.meta.delete_snapshot("s").unwrap();
    one.put("f", b"changed").unwrap();
    reclaim(&cluster);
    assert_eq!(kept.read().unwrap(), b"in the snapshot");
    kept.close().unwrap();
    one.volume.close(|| ()).unwrap();
    cluster.check();
}

#[test]
fn what_was_given_up_is_not_shown_again() {
    let Some(cluster) = Cluster::new() else { return };
    let (one, two) = (cluster.mount(), cluster.mount());
    let (here, there) = open_both(&one, &two, "f");
    one.put("f", b"before").unwrap();
    assert_eq!(one.cat("f").unwrap(), b"before");
    here.try_lock(all(1, Exclusive)).unwrap();
    here.write(0, b"never!").unwrap();
    // Somebody else has the lock for a moment, and only reads.
    cluster.outlive(&one);
    eventually("it is taken", || there.try_lock(all(1, Shared)).is_ok());
    assert_eq!(there.read().unwrap(), b"before");
    there.unlock(all(1, Shared)).unwrap();
    eventually("it is told", || here.read() == Err(Errno::IO));
    let opened = one.volume.open(USER, here.number, OFlags::RDONLY).unwrap();
    assert!(!opened.keep_cache, "the kernel has what was written");
    one.volume.release(here.number, opened.handle);
    assert_eq!(one.cat("f").unwrap(), b"before");
    assert_eq!(kept(&one).len(), 1);
    assert_eq!(here.close(), Err(Errno::IO));
    there.close().unwrap();
    cluster.check();
}

#[test]
fn a_process_does_not_end_its_own_session() {
    let Some(cluster) = Cluster::new() else { return };
    let one = cluster.mount();
    let session = one.volume.session_id();
    cluster.outlive(&one);
    assert!(one.store.live_sessions(|_| true).unwrap().iter().any(|row| row.id == session));
    one.put("f", b"as ever").unwrap();
    assert_eq!(one.volume.session_id(), session);
    cluster.check();
}
