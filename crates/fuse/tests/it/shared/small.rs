//! Small files: committed at close with no pack of their own, packed together later, by whoever is
//! there.

use std::time::{Duration, Instant};

use outrigger_format::PackKind;
use outrigger_fuse::fs::{FileSystem, SetAttr};
use outrigger_fuse::measures::{Status, Watched};
use outrigger_fuse::shared::SharedOptions;
use outrigger_store::meta::PackRow;
use outrigger_store::policy::Overrides;
use rustix::fs::OFlags;

use super::hosts::{Cluster, Host, USER};
use super::{RDWR, random, reclaim};

/// Packs of data that are committed.
fn packs(host: &Host) -> usize {
    let packs = host.store.meta.packs().unwrap();
    let is_data = |pack: &&PackRow| pack.kind == PackKind::Data;
    packs.iter().filter(is_data).filter(|pack| pack.is_committed()).count()
}

/// Chunks that wait to be packed, and of how many sessions.
fn inline(host: &Host) -> (u64, usize) {
    let owners = host.store.meta.inline().inline_owners().unwrap();
    (owners.iter().map(|owner| owner.chunks).sum(), owners.len())
}

fn content(number: u64) -> Vec<u8> {
    random(100 + number, 10 + (number as usize * 613) % 30_000)
}

fn names(count: u64) -> impl Iterator<Item = (u64, String)> {
    (0..count).map(|number| (number, format!("d/{number}")))
}

#[test]
fn many_small_files_are_seen_at_once_and_make_few_packs() {
    let Some(cluster) = Cluster::new() else { return };
    let (one, two) = (cluster.mount(), cluster.mount());
    const FILES: u64 = 250;
    one.mkdir("d").unwrap();
    for (number, name) in names(FILES) {
        one.put(&name, &content(number)).unwrap();
        assert!(two.cat(&name).unwrap() == content(number), "{name}");
    }
    // Some 4 MB: what has been packed meanwhile was packed together.
    assert!(packs(&one) <= 8, "{} packs", packs(&one));
    cluster.check();
    let mut status = Status::default();
    one.volume.watch(&mut status);
    assert!(status.new_bytes > 3_000_000 && status.destage_failures == 0, "{status:?}");
    one.volume.close(|| ()).unwrap();
    assert_eq!(inline(&two), (0, 0), "an unmount packs what is left");
    assert!((1..=9).contains(&packs(&two)), "{} packs", packs(&two));
    two.store.packs.set_cache_bytes(0);
    for (number, name) in names(FILES) {
        assert!(two.cat(&name).unwrap() == content(number), "{name}");
    }
    drop(one);
    assert_eq!(*cluster.said.lock().unwrap(), [""; 0]);
    cluster.check();
}

#[test]
fn what_was_closed_is_packed_without_an_unmount() {
    let Some(cluster) = Cluster::new() else { return };
    let one = cluster.mount();
    one.put("f", b"a few bytes").unwrap();
    assert_eq!(packs(&one), 0);
    let until = Instant::now() + Duration::from_secs(60);
    while inline(&one) != (0, 0) {
        assert!(Instant::now() < until, "it is never packed");
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!((packs(&one), one.cat("f").unwrap()), (1, b"a few bytes".to_vec()));
    cluster.check();
}

#[test]
fn what_a_mount_that_is_gone_has_left_is_packed_by_the_next_one_and_by_gc() {
    let Some(cluster) = Cluster::new() else { return };
    for (round, by_gc) in [false, true].into_iter().enumerate() {
        let name = |number: u64| format!("{round}-{number}");
        let (one, two) = (cluster.mount(), cluster.mount());
        for number in 0..40 {
            one.put(&name(number), &content(number)).unwrap();
        }
        // Not closed: as if its host had lost power; and its leases are over.
        drop(one);
        let (left, _) = inline(&two);
        if by_gc {
            reclaim(&cluster);
        } else {
            drop(two);
            let three = cluster.mount();
            let until = Instant::now() + Duration::from_secs(60);
            while inline(&three) != (0, 0) {
                assert!(Instant::now() < until, "it is never packed");
                std::thread::sleep(Duration::from_millis(50));
            }
        }
        let four = cluster.mount();
        assert_eq!(inline(&four), (0, 0), "{left} were left");
        for number in 0..40 {
            assert!(four.cat(&name(number)).unwrap() == content(number));
        }
        assert!(packs(&four) <= 4 * (round + 1), "{} packs", packs(&four));
        cluster.check();
    }
    assert_eq!(*cluster.said.lock().unwrap(), [""; 0]);
}

#[test]
fn whatever_is_done_to_a_small_file_it_is_what_it_should_be() {
    let Some(cluster) = Cluster::new() else { return };
    let (one, two) = (cluster.mount(), cluster.mount());
    // Appended to again and again, past what is small, by both.
    let mut wanted = Vec::new();
    for round in 0..30 {
        let bytes = random(round, 1 + (round as usize * 577) % 5_000);
        [&one, &two][round as usize % 2].append("log", &bytes).unwrap();
        wanted.extend(bytes);
        if round % 7 == 3 {
            reclaim(&cluster);
        }
    }
    assert!(wanted.len() > 64_000 && two.cat("log").unwrap() == wanted);
    // Overwritten in the middle, cut off, made longer by nothing, emptied.
    one.put("f", &content(20)).unwrap();
    let mut wanted = content(20);
    let open = two.open("f", RDWR).unwrap();
    open.write(700, b"in the middle").unwrap();
    open.close().unwrap();
    wanted[700..713].copy_from_slice(b"in the middle");
    assert!(one.cat("f").unwrap() == wanted);
    one.truncate("f", 5_000).unwrap();
    wanted.truncate(5_000);
    assert!(two.cat("f").unwrap() == wanted);
    two.truncate("f", 1 << 30).unwrap();
    assert_eq!(one.stat("f").unwrap().size, 1 << 30);
    assert!(one.stat("f").unwrap().allocated < 100_000, "nothing is not stored");
    one.truncate("f", 20_000).unwrap();
    wanted.resize(20_000, 0);
    assert!(two.cat("f").unwrap() == wanted);
    one.truncate("f", 0).unwrap();
    assert_eq!((two.cat("f").unwrap(), two.stat("f").unwrap().size), (Vec::new(), 0));
    // Each close was a version.
    let number = two.find("f").unwrap();
    assert!(two.store.meta.versions(number).unwrap().len() >= 4);
    // An open one that is removed is read to its end.
    one.put("g", &content(30)).unwrap();
    let open = one.open("g", RDWR).unwrap();
    one.unlink("g").unwrap();
    reclaim(&cluster);
    assert!(open.read().unwrap() == content(30));
    open.close().unwrap();
    let set = SetAttr { mode: Some(0o600), ..SetAttr::default() };
    one.volume.set_attributes(USER, one.find("log").unwrap(), &set).unwrap();
    assert_eq!(*cluster.said.lock().unwrap(), [""; 0]);
    cluster.check();
}

#[test]
fn many_that_close_at_once_and_a_collector_lose_nothing() {
    let Some(cluster) = Cluster::new() else { return };
    let (one, two) = (cluster.mount(), cluster.mount());
    const THREADS: u64 = 4;
    const ROUNDS: u64 = 12;
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let host = [&one, &two][thread as usize % 2];
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    for file in 0..4 {
                        host.put(&format!("{thread}-{file}"), &content(thread + 7 * file + 31 * round))
                            .unwrap();
                    }
                    host.unlink(&format!("{thread}-{}", round % 4)).unwrap();
                }
            });
        }
        scope.spawn(|| (0..6).for_each(|_| reclaim(&cluster)));
    });
    for thread in 0..THREADS {
        for file in (0..4).filter(|file| *file != (ROUNDS - 1) % 4) {
            let wanted = content(thread + 7 * file + 31 * (ROUNDS - 1));
            assert!(two.cat(&format!("{thread}-{file}")).unwrap() == wanted);
        }
    }
    one.volume.close(|| ()).unwrap();
    drop(one);
    reclaim(&cluster);
    two.store.packs.set_cache_bytes(0);
    assert!(two.cat("0-0").unwrap() == content(31 * (ROUNDS - 1)));
    assert_eq!(*cluster.said.lock().unwrap(), [""; 0]);
    cluster.check();
}

#[test]
fn what_a_row_cannot_say_gets_packs() {
    let Some(cluster) = Cluster::new() else { return };
    let undeduplicated = Overrides { dedup: Some(false), ..Overrides::default() };
    let one = cluster.mount_with(SharedOptions { overrides: undeduplicated, ..SharedOptions::new(2) });
    one.put("f", b"stored apart").unwrap();
    assert_eq!((inline(&one), packs(&one) > 0), ((0, 0), true));
    let two = cluster.mount();
    let before = packs(&two);
    two.put("large", &random(1, 400_000)).unwrap();
    assert_eq!((inline(&two), packs(&two) > before), ((0, 0), true));
    let open = two.open("hole", RDWR | OFlags::CREATE).unwrap();
    open.write(1 << 20, b"behind a hole").unwrap();
    open.close().unwrap();
    assert_eq!(inline(&two).0, 1);
    assert_eq!(&one.cat("hole").unwrap()[1 << 20..], b"behind a hole");
    cluster.check();
}
