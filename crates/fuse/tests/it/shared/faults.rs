//! Faults while a file is open: hosts add and remove its names at the same moment, its content is
//! reclaimed, or packs are damaged.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};

use outrigger_fuse::fs::{FileSystem, Part, ROOT, SetAttr};
use outrigger_fuse::measures::{Status, Watched};
use outrigger_store::meta::SessionKind;
use rustix::fs::{FallocateFlags, OFlags, RenameFlags};
use rustix::io::Errno;

use super::hosts::{Cluster, USER};
use super::{RDWR, random, reclaim};

/// Data of an acknowledged close is under every name that the file has then, even if another host
/// gave it that name at any time.
#[test]
fn what_is_closed_is_kept_if_another_host_links_the_file_while_its_name_is_removed() {
    let Some(cluster) = Cluster::new() else { return };
    let (one, two) = (cluster.mount(), cluster.mount());
    let mut linked = 0;
    for round in 0..40 {
        let (f, g) = (format!("f{round}"), format!("g{round}"));
        one.put(&f, b"before").unwrap();
        let number = two.find(&f).unwrap();
        let open = one.open(&f, RDWR).unwrap();
        open.write(0, b"after!").unwrap();
        let start = Barrier::new(2);
        let made = std::thread::scope(|scope| {
            let link = scope.spawn(|| {
                start.wait();
                two.volume.link(USER, number, ROOT, g.as_bytes())
            });
            start.wait();
            match round % 2 {
                0 => one.unlink(&f).unwrap(),
                _ => {
                    one.put("over", b"over").unwrap();
                    one.rename("over", &f, RenameFlags::empty()).unwrap();
                }
            }
            link.join().unwrap()
        });
        open.close().unwrap();
        match made {
            Ok(_) => {
                linked += 1;
                assert_eq!(two.cat(&g).unwrap(), b"after!", "{round}");
                assert_eq!(two.stat(&g).unwrap().links, 1);
            }
            Err(errno) => assert!(matches!(errno, Errno::NOENT | Errno::STALE), "{errno}"),
        }
    }
    println!("{linked} of 40 were linked");
    cluster.check();
}

#[test]
fn what_is_written_over_a_content_that_is_reclaimed_meanwhile_is_laid_over_the_new_one() {
    let Some(cluster) = Cluster::new() else { return };
    let (one, two) = (cluster.mount(), cluster.mount());
    let other = two.open("f", RDWR | OFlags::CREATE).unwrap();
    other.write(0, &random(1, 500_000)).unwrap();
    other.sync().unwrap();
    let open = one.open("f", RDWR).unwrap();
    open.write(1000, b"over it").unwrap();
    let mut wanted = random(2, 500_000);
    other.write(0, &wanted).unwrap();
    other.close().unwrap();
    reclaim(&cluster);
    one.store.packs.set_cache_bytes(0);
    open.close().unwrap();
    wanted[1000..1007].copy_from_slice(b"over it");
    assert!(two.cat("f").unwrap() == wanted);
    assert_eq!(*cluster.said.lock().unwrap(), [""; 0]);
    cluster.check();
}

#[test]
fn rights_that_are_set_after_a_write_stay() {
    let Some(cluster) = Cluster::new() else { return };
    let (one, two) = (cluster.mount(), cluster.mount());
    one.put("f", b"x").unwrap();
    one.chmod("f", 0o4755).unwrap();
    let open = one.open("f", RDWR).unwrap();
    one.volume.write(USER, open.number, open.handle, 0, b"y", true).unwrap();
    let set = |mode| SetAttr { mode: Some(mode), handle: Some(open.handle), ..SetAttr::default() };
    one.volume.set_attributes(USER, open.number, &set(0o4711)).unwrap();
    assert_eq!(one.stat("f").unwrap().mode, 0o4711);
    open.sync().unwrap();
    assert_eq!((two.stat("f").unwrap().mode, two.cat("f").unwrap()), (0o4711, b"y".to_vec()));
    // And what is written after that takes them again.
    one.volume.write(USER, open.number, open.handle, 0, b"z", true).unwrap();
    open.close().unwrap();
    assert_eq!((two.stat("f").unwrap().mode, two.cat("f").unwrap()), (0o711, b"z".to_vec()));
    cluster.check();
}

#[test]
fn room_that_is_reserved_cuts_nothing_off() {
    let Some(cluster) = Cluster::new() else { return };
    let one = cluster.mount();
    one.put("f", b"").unwrap();
    let (writer, other) = (one.open("f", RDWR).unwrap(), one.open("f", RDWR).unwrap());
    const LEN: usize = 4000;
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            (0..LEN).for_each(|at| writer.write(at as u64, b"w").unwrap());
            is_done.store(true, Ordering::SeqCst);
        });
        while !is_done.load(Ordering::SeqCst) {
            let end = other.read().unwrap().len() as u64 + 1;
            let part = Part { number: other.number, handle: other.handle, offset: 0 };
            one.volume.allocate(USER, part, end, FallocateFlags::empty()).unwrap();
        }
    });
    let bytes = writer.read().unwrap();
    assert!(bytes[..LEN].iter().all(|byte| *byte == b'w'), "all that was written is there");
    writer.close().unwrap();
    other.close().unwrap();
    cluster.check();
}

/// Changes bytes in the middle of all packs; the returned function restores them.
pub fn damage(cluster: &Cluster) -> impl FnOnce() {
    let mut before = Vec::new();
    let mut above = vec![cluster.packs.path().to_path_buf()];
    while let Some(dir) = above.pop() {
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                above.push(path);
                continue;
            }
            let bytes = std::fs::read(&path).unwrap();
            if bytes.len() > 100_000 {
                let mut other = bytes.clone();
                let len = bytes.len();
                other[len / 8..len / 2].iter_mut().for_each(|byte| *byte ^= 0x55);
                std::fs::write(&path, other).unwrap();
                before.push((path, bytes));
            }
        }
    }
    assert!(!before.is_empty());
    move || before.into_iter().for_each(|(path, bytes)| std::fs::write(path, bytes).unwrap())
}

#[test]
fn a_file_that_cannot_be_stored_fails_no_other_and_stays_until_it_can_be() {
    let Some(cluster) = Cluster::new() else { return };
    let (one, two) = (cluster.mount(), cluster.mount());
    let mut wanted = random(3, 400_000);
    two.put("bad", &wanted).unwrap();
    let repair = damage(&cluster);
    one.store.packs.set_cache_bytes(0);
    let bad = one.open("bad", RDWR).unwrap();
    let others = ["a", "b", "c"].map(|name| one.open(name, RDWR | OFlags::CREATE).unwrap());
    // Each part of it needs the rest of its chunk.
    (0..8).for_each(|at| bad.write(at * 50_000 + 7, b"new").unwrap());
    others.iter().for_each(|open| open.write(0, b"good").unwrap());
    assert!(one.volume.store_all().is_err());
    for name in ["a", "b", "c"] {
        assert_eq!(two.cat(name).unwrap(), b"good", "{name}");
    }
    others.into_iter().for_each(|open| open.close().unwrap());
    assert_eq!(bad.close(), Err(Errno::IO));
    // It is not lost.
    one.put("d", b"more").unwrap();
    let watched = || {
        let mut status = Status::default();
        one.volume.watch(&mut status);
        status.dirty_inodes
    };
    assert_eq!(watched(), 1);
    repair();
    one.volume.store_all().unwrap();
    assert_eq!(watched(), 0);
    (0..8).for_each(|at| wanted[at * 50_000 + 7..][..3].copy_from_slice(b"new"));
    assert!(two.cat("bad").unwrap() == wanted);
    assert_eq!(one.volume.close(|| ()).map_err(|error| error.to_string()), Ok(()));
    cluster.check();
}

#[test]
fn files_that_many_sync_at_once_do_not_get_in_each_others_way() {
    let Some(cluster) = Cluster::new() else { return };
    let one = cluster.mount();
    let names = ["a", "b", "c"];
    names.iter().for_each(|name| one.put(name, b"").unwrap());
    let start = Barrier::new(9);
    std::thread::scope(|scope| {
        for thread in 0..9_usize {
            let (one, start) = (&one, &start);
            scope.spawn(move || {
                let open = one.open(names[thread % 3], RDWR).unwrap();
                start.wait();
                for round in 0..15_u8 {
                    open.write(thread as u64, &[round]).unwrap();
                    open.sync().unwrap();
                }
                open.close().unwrap();
            });
        }
    });
    let mut status = Status::default();
    one.volume.watch(&mut status);
    assert_eq!((status.outside_changes, status.destage_failures), (0, 0), "there is no other host");
    for (at, name) in names.iter().enumerate() {
        let bytes = one.cat(name).unwrap();
        assert!((0..3).all(|of| bytes[at + 3 * of] == 14), "{bytes:?}");
    }
    cluster.check();
}

#[test]
fn a_log_is_removed_when_its_session_is_over_and_not_before() {
    let Some(cluster) = Cluster::new() else { return };
    let store = cluster.store();
    let session = store
        .meta
        .open_session(SessionKind::Writer, &outrigger_store::testing::owner("a mount that begins"), 1000)
        .unwrap()
        .0;
    // It has made the directory, and not locked it yet.
    let dir = store.dir().join("mounts").join(format!("{:x}", session.0));
    std::fs::create_dir_all(&dir).unwrap();
    drop(cluster.mount());
    assert!(dir.exists());
    store.meta.close_session(session).unwrap();
    drop(cluster.mount());
    assert!(!dir.exists());
}

/// A flush of this host's bytes may be in flight that lies over an older content. A program that
/// opens the file here reads what another host has stored all the same.
#[test]
fn bytes_that_another_host_has_stored_are_read_while_flushes_are_in_flight_here() {
    let Some(cluster) = Cluster::new() else { return };
    let (one, two) = (cluster.mount(), cluster.mount());
    one.put("f", b"").unwrap();
    let over = AtomicBool::new(false);
    let missing = std::thread::scope(|scope| {
        let appends = scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                one.append("f", b"of one\n")?;
            }
            Ok(())
        });
        let is_missing = |number: u32| {
            let line = format!("of two: {number}\n");
            two.append("f", line.as_bytes())?;
            let read = String::from_utf8(one.cat("f")?).unwrap();
            Ok(!read.contains(&line))
        };
        let missing: Result<Vec<bool>, Errno> = (0..100).map(is_missing).collect();
        over.store(true, Ordering::Relaxed);
        appends.join().unwrap().and(missing)
    });
    assert_eq!(missing.unwrap().into_iter().filter(|&is_missing| is_missing).count(), 0);
    cluster.check();
}
