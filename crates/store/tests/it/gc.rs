//! The collector alone with a store: what it frees, what it keeps, and what it does when something
//! is wrong.
#![cfg(feature = "testing")]

use crate::gc_support;

use std::sync::Arc;

use gc_support::*;
use outrigger_format::{PackId, PackKind};
use outrigger_store::backend::LocalBackend;
use outrigger_store::gc::GcOptions;
use outrigger_store::meta::{At, Meta, PackState, SessionKind};
use outrigger_store::packs::PackReader;
use outrigger_store::session::Session;
use outrigger_store::testing::{Fault, FaultyBackend, Op, Plan};
use outrigger_store::{ErrorKind, Store, ops};
use outrigger_workload::{eventually, spaced};

const MIB: u64 = 1 << 20;

#[test]
fn removed_files_leave_the_disk() {
    let dir = scratch();
    let store = init(dir.path());
    for n in 0..8 {
        put_bytes(&store, &format!("keep/{n}"), unique(n, 300_000)).unwrap();
        put_bytes(&store, &format!("go/{n}"), unique(100 + n, 2_000_000)).unwrap();
    }
    let before = disk(&store);
    assert!(before > 18_000_000);
    remove(&store, "go").unwrap();
    let report = collect(&store, &thorough()).unwrap();
    let after = disk(&store);
    assert!(after < 2_400_000 + 300_000, "{after} bytes are left of {before}: {report:?}");
    assert!(report.bytes_freed >= before - after, "{report:?}");
    assert_eq!(report.bytes_after, after);
    for n in 0..8 {
        assert_eq!(read(&store, &format!("keep/{n}")), unique(n, 300_000));
    }
    // A store that is opened again finds everything, and there is nothing left to do.
    let store = open(dir.path());
    for n in 0..8 {
        assert_eq!(read(&store, &format!("keep/{n}")), unique(n, 300_000));
    }
    let again = collect(&store, &thorough()).unwrap();
    assert_eq!((again.packs_marked, again.bytes_freed), (0, 0), "{again:?}");
    assert!(store.meta.packs().unwrap().iter().all(|row| row.state == PackState::Live));
    assert!(store.meta.sessions().unwrap().is_empty());
}

#[test]
fn snapshots_and_versions_keep_what_they_show() {
    let dir = scratch();
    let store = init(dir.path());
    put_bytes(&store, "file", unique(1, 3_000_000)).unwrap();
    let snapshot = ops::snapshots::create(&store, Some("first"), "", &[]).unwrap();
    put_bytes(&store, "file", unique(2, 3_000_000)).unwrap();
    put_bytes(&store, "file", unique(3, 3_000_000)).unwrap();
    collect(&store, &thorough()).unwrap();
    assert_eq!(read_at(&store, At::Epoch(snapshot.epoch), "file").unwrap().unwrap(), unique(1, 3_000_000));
    assert!(disk(&store) > 9_000_000, "two versions and the present content");

    store.meta.set_policy(1, "versions", Some("0")).unwrap();
    put_bytes(&store, "file", unique(4, 3_000_000)).unwrap();
    collect(&store, &thorough()).unwrap();
    let size = disk(&store);
    assert!((6_000_000..6_500_000).contains(&size), "the snapshot's and the present: {size}");
    assert_eq!(read_at(&store, At::Epoch(snapshot.epoch), "file").unwrap().unwrap(), unique(1, 3_000_000));

    ops::snapshots::delete(&store, &["first".to_string()]).unwrap();
    let report = collect(&store, &thorough()).unwrap();
    assert!(report.history_rows > 0);
    let size = disk(&store);
    assert!(size < 3_500_000, "the present: {size}");
    assert_eq!(read(&store, "file"), unique(4, 3_000_000));
}

#[test]
fn held_roots_are_kept_until_they_are_released() {
    let dir = scratch();
    let store = init(dir.path());
    store.meta.set_policy(1, "versions", Some("none")).unwrap();
    put_bytes(&store, "staged", unique(1, 3_000_000)).unwrap();
    put_bytes(&store, "garbage", unique(2, 3_000_000)).unwrap();
    let root = outrigger_store::tree::require(&*store.meta, At::Now, &path("staged")).unwrap().root;
    // As a mount does that clones from a file, is killed, and had its session fenced.
    let session = store.session(SessionKind::Writer, "mount").unwrap();
    store.meta.hold("mount", std::slice::from_ref(&root)).unwrap();
    drop(session);
    remove(&store, "staged").unwrap();
    remove(&store, "garbage").unwrap();
    for _ in 0..2 {
        collect(&store, &thorough()).unwrap();
        let size = disk(&store);
        assert!((3_000_000..3_300_000).contains(&size), "what is held: {size}");
    }
    let mut bytes = Vec::new();
    let reader = outrigger_store::read::Reader::new(&store);
    let mut take = |part: &[u8]| {
        bytes.extend_from_slice(part);
        Ok(())
    };
    reader.read(&root, 0, u64::MAX, &mut take).unwrap();
    assert_eq!(bytes, unique(1, 3_000_000));
    store.meta.release("mount", None).unwrap();
    collect(&store, &thorough()).unwrap();
    assert!(disk(&store) < 300_000, "{} bytes are left", disk(&store));
}

#[test]
fn the_live_ratio_decides_about_half_empty_packs() {
    let dir = scratch();
    let store = init(dir.path());
    // Both files' chunks share every pack.
    let tree = tempfile::tempdir().unwrap();
    for n in 0..40 {
        std::fs::write(tree.path().join(format!("{n:02}")), unique(n, 100_000)).unwrap();
    }
    let source = outrigger_store::local::put::Source::Path(tree.path().to_path_buf());
    let progress = Arc::default();
    outrigger_store::local::put::put(&store, vec![(source, path("tree"))], &Default::default(), 2, &progress)
        .unwrap();
    for n in (0..40).step_by(2) {
        remove(&store, &format!("tree/{n:02}")).unwrap();
    }
    let options = |live_ratio| GcOptions { live_ratio, merge_small: false, ..thorough() };
    let lazy = collect(&store, &options(0.3)).unwrap();
    assert_eq!(lazy.bytes_copied, 0, "{lazy:?}");
    assert!(lazy.dead_bytes > 1_900_000, "{lazy:?}");
    let eager = collect(&store, &options(0.7)).unwrap();
    assert!(eager.bytes_copied > 1_900_000 && eager.bytes_freed > 3_900_000, "{eager:?}");
    assert!(disk(&store) < 2_300_000);
    for n in (1..40).step_by(2) {
        assert_eq!(read(&store, &format!("tree/{n:02}")), unique(n, 100_000));
    }
}

#[test]
fn many_small_packs_become_few() {
    let dir = scratch();
    let store = init(dir.path());
    for n in 0..40 {
        put_bytes(&store, &format!("{n}"), unique(n, 9_000)).unwrap();
    }
    assert_eq!(committed(&store).len(), 80);
    let off = collect(&store, &GcOptions { merge_small: false, ..GcOptions::default() }).unwrap();
    assert_eq!(off.packs_marked, 0);
    let report = collect(&store, &GcOptions::default()).unwrap();
    assert_eq!(report.packs_buried, 80);
    let packs = committed(&store);
    assert_eq!(packs.len(), 2, "{report:?}");
    let data = packs.iter().find(|row| row.kind == PackKind::Data).unwrap();
    let footer = store.packs.read_footer(data.id).unwrap();
    assert!(footer.frames().len() <= 4, "small frames were joined: {}", footer.frames().len());
    for n in 0..40 {
        assert_eq!(read(&store, &format!("{n}")), unique(n, 9_000));
    }
    assert_eq!(collect(&store, &GcOptions::default()).unwrap().packs_marked, 0);
}

#[test]
fn a_dry_run_changes_nothing_and_is_right() {
    let dir = scratch();
    let store = init(dir.path());
    for n in 0..4 {
        put_bytes(&store, &format!("{n}"), unique(n, 2_500_000)).unwrap();
    }
    remove(&store, "0").unwrap();
    remove(&store, "1").unwrap();
    let (rows, size) = (store.meta.packs().unwrap(), disk(&store));
    let dry = GcOptions { dry_run: true, ..thorough() };
    let said = collect(&store, &dry).unwrap();
    assert_eq!((store.meta.packs().unwrap(), disk(&store)), (rows, size));
    let read_only = Store::open(store.dir(), true).unwrap();
    assert_eq!(collect(&read_only, &dry).unwrap().packs_marked, said.packs_marked);
    assert_eq!(collect(&read_only, &thorough()).unwrap_err().kind(), ErrorKind::Denied);
    let done = collect(&store, &thorough()).unwrap();
    assert_eq!((said.packs_marked, said.live_bytes), (done.packs_marked, done.live_bytes));
    let (said, done) = (said.bytes_after as f64, done.bytes_after as f64);
    assert!((said / done - 1.0).abs() < 0.05, "said {said}, is {done}");
}

#[test]
fn buried_packs_stay_for_the_grace_period() {
    let dir = scratch();
    let store = init(dir.path());
    put_bytes(&store, "go", unique(1, 2_000_000)).unwrap();
    remove(&store, "go").unwrap();
    let size = disk(&store);
    let report = collect(&store, &GcOptions { grace_secs: 3600, ..thorough() }).unwrap();
    assert!(report.packs_buried > 0 && report.packs_waiting == report.packs_buried, "{report:?}");
    assert!(disk(&store) >= size);
    let report = collect(&store, &thorough()).unwrap();
    assert!(report.packs_unlinked > 0 && report.packs_waiting == 0, "{report:?}");
    assert!(disk(&store) < MIB / 2);
    assert!(store.meta.packs().unwrap().iter().all(|row| row.state == PackState::Live));
}

#[test]
fn a_second_collector_is_refused() {
    let dir = scratch();
    let store = init(dir.path());
    let other = store.session(SessionKind::Collector, "gc").unwrap();
    store.meta.take_collector(other.id()).unwrap();
    assert_eq!(collect(&store, &thorough()).unwrap_err().kind(), ErrorKind::Busy);
    let dry = GcOptions { dry_run: true, ..thorough() };
    assert_eq!(collect(&store, &dry).unwrap_err().kind(), ErrorKind::Busy);
    drop(other);
    collect(&store, &thorough()).unwrap();
}

/// Flips a bit in the middle of the first frame of a pack of `kind`, and returns the pack.
fn damage(store: &Store, kind: PackKind) -> PackId {
    let row = committed(store).into_iter().find(|row| row.kind == kind).unwrap();
    let frame = store.packs.read_footer(row.id).unwrap().frame_range(0).unwrap();
    let name = format!("packs/{:02x}/{}.pack", row.id.0 as u8, row.id);
    let file = store.dir().join(name);
    let mut bytes = std::fs::read(&file).unwrap();
    bytes[(frame.start + frame.end) as usize / 2] ^= 4;
    std::fs::write(&file, bytes).unwrap();
    row.id
}

#[test]
fn a_damaged_manifest_ends_the_run() {
    let dir = scratch();
    let store = init(dir.path());
    put_bytes(&store, "keep", unique(1, 3_000_000)).unwrap();
    put_bytes(&store, "go", unique(2, 3_000_000)).unwrap();
    let pack = damage(&store, PackKind::Meta);
    remove(&store, "go").unwrap();
    let store = open(dir.path());
    let (rows, size) = (store.meta.packs().unwrap(), disk(&store));
    let error = collect(&store, &thorough()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Damaged);
    assert!(error.to_string().contains(&pack.to_string()), "{error}");
    assert_eq!((store.meta.packs().unwrap(), disk(&store)), (rows, size), "nothing was reclaimed");
}

#[test]
fn a_missing_chunk_ends_the_run() {
    let dir = scratch();
    let store = init(dir.path());
    put_bytes(&store, "keep", unique(1, 3_000_000)).unwrap();
    put_bytes(&store, "go", unique(2, 3_000_000)).unwrap();
    remove(&store, "go").unwrap();
    let gone = committed(&store).into_iter().find(|row| row.kind == PackKind::Data).unwrap();
    store.backend.remove(gone.id).unwrap();
    for store in [&store, &open(dir.path())] {
        let error = collect(store, &thorough()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Damaged, "{error}");
    }
    assert!(disk(&store) > 4_500_000, "nothing was reclaimed");
}

#[test]
fn a_victim_that_cannot_be_read_is_left_alone() {
    let dir = scratch();
    let store = init(dir.path());
    for n in 0..6 {
        put_bytes(&store, &format!("{n}"), [unique(n, 600_000), unique(100 + n, 300_000)].concat()).unwrap();
    }
    // The first third of each file is in use no more.
    for n in 0..6 {
        put_bytes(&store, &format!("{n}"), unique(100 + n, 300_000)).unwrap();
    }
    store.meta.set_policy(1, "versions", Some("0")).unwrap();
    for n in 0..6 {
        put_bytes(&store, &format!("{n}"), [unique(100 + n, 300_000), vec![7; 10]].concat()).unwrap();
    }
    let row = committed(&store).into_iter().find(|row| row.kind == PackKind::Data).unwrap();
    let footer = store.packs.read_footer(row.id).unwrap();
    let file = store.dir().join(format!("packs/{:02x}/{}.pack", row.id.0 as u8, row.id));
    let mut bytes = std::fs::read(&file).unwrap();
    // In every frame, since only some have chunks in use.
    for number in 0..footer.frames().len() as u16 {
        bytes[footer.frame_range(number).unwrap().end as usize - 50] ^= 1;
    }
    std::fs::write(&file, bytes).unwrap();
    let store = open(dir.path());
    let report = collect(&store, &thorough()).unwrap();
    assert_eq!(report.unreadable.len(), 1, "{report:?}");
    assert!(report.unreadable[0].contains(&row.id.to_string()), "{report:?}");
    let rows = store.meta.packs().unwrap();
    assert_eq!(rows.iter().find(|other| other.id == row.id).unwrap().state, PackState::Live);
    assert!(report.packs_buried > 0, "the others went: {report:?}");
    for n in 1..6 {
        assert_eq!(read(&store, &format!("{n}")), [unique(100 + n, 300_000), vec![7; 10]].concat());
    }
}

#[test]
fn torn_objects_that_no_row_knows_go() {
    let dir = scratch();
    let store = init(dir.path());
    put_bytes(&store, "keep", unique(1, 100_000)).unwrap();
    // A fenced writer made its object late: the row is gone already.
    let session = store.session(SessionKind::Writer, "late").unwrap();
    let id = store.meta.announce_packs(session.id(), PackKind::Data, 1, 0).unwrap()[0];
    store.meta.fence(session.id()).unwrap();
    collect(&store, &thorough()).unwrap();
    assert!(!store.meta.packs().unwrap().iter().any(|row| row.id == id));
    let late = store.backend.create(id).unwrap();
    late.seal().unwrap();
    drop(session);
    let report = collect(&store, &thorough()).unwrap();
    assert_eq!(report.strays, 1);
    assert!(!store.backend.list().unwrap().contains(&id));

    // One beyond the counters that was never sealed holds nothing that was committed
    // (`tests/stale.rs` has those that were), but its id is not given out.
    let beyond = PackId(1 << 30);
    store.backend.create(beyond).unwrap().seal().unwrap();
    assert_eq!(collect(&store, &thorough()).unwrap().strays, 1);
    assert!(store.meta.counters().unwrap().next_pack > beyond.0);
    assert_eq!(read(&store, "keep"), unique(1, 100_000));
}

type Picture = std::collections::BTreeMap<
    String,
    (outrigger_format::catalogue::Attributes, outrigger_format::Root, u32, Vec<String>),
>;

/// Everything that a tree shows: attributes, content, links and, of the present one, versions.
fn picture(store: &Store, at: At) -> Picture {
    let mut picture = Picture::new();
    let root = store.meta.inode(at, 1).unwrap().unwrap();
    picture.insert("/".into(), (root.attributes, root.root, 1, Vec::new()));
    let mut open = vec![(String::new(), 1)];
    while let Some((above, directory)) = open.pop() {
        for entry in store.meta.read_dir(at, directory, None, usize::MAX).unwrap() {
            let path = format!("{above}/{}", String::from_utf8(entry.name).unwrap());
            let inode = entry.inode;
            if inode.attributes.kind == outrigger_format::catalogue::FileKind::Directory {
                open.push((path.clone(), inode.number));
            }
            let versions = match at {
                At::Now => store.meta.versions(inode.number).unwrap(),
                At::Epoch(_) => Vec::new(),
            };
            let versions = versions.iter().map(|version| format!("{version:?}")).collect();
            picture.insert(path, (inode.attributes, inode.root, inode.links, versions));
        }
    }
    picture
}

#[test]
fn a_compacted_catalogue_says_all_that_recover_needs() {
    let dir = scratch();
    let store = init(dir.path());
    let tree = tempfile::tempdir().unwrap();
    let write = |name: &str, seed: u64| {
        let file = tree.path().join(name);
        if std::fs::create_dir_all(file.parent().unwrap()).is_err() {
            // It has become a file.
            return;
        }
        std::fs::write(file, content(seed, (seed % 4) as u32)).unwrap();
    };
    let put_tree = || {
        let source = outrigger_store::local::put::Source::Path(tree.path().to_path_buf());
        let progress = Arc::default();
        outrigger_store::local::put::put(
            &store,
            vec![(source, path("tree"))],
            &Default::default(),
            2,
            &progress,
        )
        .unwrap();
    };
    for n in 0..30 {
        write(&format!("{}/{}/f{n}", n % 3, n % 5), n);
    }
    std::fs::hard_link(tree.path().join("0/0/f0"), tree.path().join("0/linked")).unwrap();
    std::os::unix::fs::symlink("f0", tree.path().join("0/0/sym")).unwrap();
    put_tree();
    for round in 0..6 {
        ops::snapshots::create(&store, Some(&format!("s{round}")), "", &["tag".into()]).unwrap();
        for n in 0..30 {
            if (n + round) % 4 == 0 {
                write(&format!("{}/{}/f{n}", n % 3, n % 5), 100 * round + n);
            }
        }
        match round {
            // A directory moves, one goes, one's name becomes a file, a file moves.
            1 => std::fs::rename(tree.path().join("1/2"), tree.path().join("0/moved")).unwrap(),
            2 => std::fs::remove_dir_all(tree.path().join("2/1")).unwrap(),
            3 => {
                std::fs::remove_dir_all(tree.path().join("2/3")).unwrap();
                write("2/3", 7);
            }
            4 => drop(ops::edit::rename(&store, &[path("tree/0")], &path("tree/9"), None).unwrap()),
            5 => std::fs::rename(tree.path().join("0/0/f15"), tree.path().join("0/renamed")).unwrap(),
            _ => {}
        }
        if round != 4 {
            put_tree();
        }
    }
    ops::snapshots::delete(&store, &["s2".into()]).unwrap();
    store.meta.set_policy(1, "versions", Some("5")).unwrap();

    let snapshots = |store: &Store| store.meta.snapshots().unwrap();
    let pictures = |store: &Store| -> Vec<Picture> {
        let at = snapshots(store).into_iter().map(|snapshot| At::Epoch(snapshot.epoch)).chain([At::Now]);
        at.map(|at| picture(store, at)).collect()
    };
    let (known, seen) = (snapshots(&store), pictures(&store));
    // Another session that might be writing puts it off.
    let options = GcOptions { catalogue_min: 0, ..thorough() };
    let writing = store.session(SessionKind::Writer, "put").unwrap();
    assert!(!collect(&store, &options).unwrap().catalogue_compacted);
    drop(writing);
    let mut compacted = collect(&store, &options).unwrap();
    if !compacted.catalogue_compacted {
        // It has to grow for that.
        for n in 0..60 {
            put_bytes(&store, "more", content(n, 0)).unwrap();
            remove(&store, "more").unwrap();
        }
        compacted = collect(&store, &options).unwrap();
    }
    assert!(compacted.catalogue_compacted, "{compacted:?}");
    assert_eq!(pictures(&store), seen);
    let again = collect(&store, &options).unwrap();
    assert!(!again.catalogue_compacted && again.catalogue_bytes < compacted.catalogue_bytes, "{again:?}");
    put_bytes(&store, "last", content(3, 3)).unwrap();
    let seen = pictures(&store);
    verify_all(&store).unwrap();
    drop(store);

    for name in ["meta.db", "meta.db-wal", "meta.db-shm"] {
        let _ = std::fs::remove_file(dir.path().join("store").join(name));
    }
    let report = outrigger_store::recover::recover(&dir.path().join("store"), &Default::default()).unwrap();
    assert_eq!(report.problems, Vec::<String>::new());
    let store = open(dir.path());
    let names = |snapshots: &[outrigger_store::meta::SnapshotRow]| -> Vec<_> {
        snapshots
            .iter()
            .map(|snapshot| (snapshot.name.clone(), snapshot.time, snapshot.tags.clone()))
            .collect()
    };
    assert_eq!(names(&snapshots(&store)), names(&known));
    for (n, (is, was)) in pictures(&store).iter().zip(&seen).enumerate() {
        for path in was.keys().chain(is.keys()) {
            assert_eq!(is.get(path), was.get(path), "{path} in tree {n}");
        }
    }
    verify_all(&store).unwrap();
    assert_eq!(store.meta.policies(1).unwrap().get("versions").map(String::as_str), Some("5"));
}

/// A store whose files overlap, with garbage of every kind: whole packs, parts of packs, manifests,
/// small packs.
fn littered(dir: &std::path::Path) {
    let store = init(dir);
    for n in 0..12 {
        put_bytes(&store, &format!("{}/{n}", n % 3), content(n, 12)).unwrap();
    }
    ops::snapshots::create(&store, Some("s"), "", &[]).unwrap();
    for n in 0..8 {
        put_bytes(&store, &format!("{}/{n}", n % 3), content(50 + n, 9)).unwrap();
    }
    for n in 0..20 {
        put_bytes(&store, &format!("tiny/{n}"), content(n, 0)).unwrap();
    }
    // Makes the catalogue worth a rewrite.
    for n in 0..50 {
        put_bytes(&store, "tiny/1", content(n, 0)).unwrap();
    }
    remove(&store, "1").unwrap();
    store.meta.set_policy(1, "versions", Some("0")).unwrap();
    ops::snapshots::delete(&store, &["s".to_string()]).unwrap();
}

fn copy_dir(from: &std::path::Path, to: &std::path::Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy_dir(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

#[test]
fn interrupted_by_any_failing_call_it_can_be_resumed() {
    let origin = scratch();
    littered(origin.path());
    let ideal = {
        let dir = scratch();
        copy_dir(origin.path(), dir.path());
        let store = open(dir.path());
        collect(&store, &thorough()).unwrap();
        disk(&store)
    };
    let (mut failed, mut passed) = (0, 0);
    for op in [Op::Create, Op::Append, Op::Seal, Op::Read, Op::Len, Op::Remove, Op::List] {
        for fault in [Fault::Fail(ErrorKind::Io), Fault::FailAfter(ErrorKind::Full)] {
            let mut n = 1;
            loop {
                let dir = scratch();
                copy_dir(origin.path(), dir.path());
                let mut store = open(dir.path());
                let local = LocalBackend::open(store.dir(), false, false).unwrap();
                let faulty = FaultyBackend::new(local, Plan::new(1).nth(op, n, fault));
                store.backend = Arc::new(faulty.clone());
                store.packs = Arc::new(PackReader::new(
                    Arc::new(faulty.clone()),
                    store.config.id,
                    store.config.fingerprint,
                ));
                let ended = collect(&store, &thorough());
                let hit = faulty.faults() > 0;
                faulty.set_plan(Plan::default());
                match ended {
                    Ok(_) => passed += u32::from(hit),
                    Err(_) => failed += 1,
                }
                let at = format!("{op:?} {n} {fault:?}");
                let count = verify_all(&store).unwrap_or_else(|wrong| panic!("{at}: {wrong}"));
                assert_eq!(count, 28, "{at}");
                if hit {
                    let store = open(dir.path());
                    collect(&store, &thorough()).unwrap_or_else(|error| panic!("{at}: resuming: {error}"));
                    verify_all(&store).unwrap_or_else(|wrong| panic!("{at}: {wrong}"));
                    let size = disk(&store);
                    assert!(
                        size < ideal + ideal / 20,
                        "{at}: {size} bytes, {ideal} without the interruption"
                    );
                } else {
                    break;
                }
                // They are many and alike.
                n += if spaced(2) > 1 { 1 + n / 2 } else { 1 };
            }
        }
    }
    println!("{failed} runs failed, {passed} went on");
    assert!(failed > 20);
}

#[test]
fn interrupted_by_any_failing_transaction_it_can_be_resumed() {
    let origin = scratch();
    littered(origin.path());
    let options = GcOptions { catalogue_min: 0, ..thorough() };
    let ideal = {
        let dir = scratch();
        copy_dir(origin.path(), dir.path());
        let store = open(dir.path());
        assert!(collect(&store, &options).unwrap().catalogue_compacted);
        disk(&store)
    };
    for after in [false, true] {
        let mut next = 1;
        loop {
            // All of the first, then fewer and fewer: they are alike.
            let n = next;
            next += if spaced(2) > 1 { 1 + n / 4 } else { 1 };
            let dir = scratch();
            copy_dir(origin.path(), dir.path());
            let mut store = open(dir.path());
            let real = Arc::clone(&store.meta);
            let faulty = Arc::new(gc_support::faulty_meta::FaultyMeta::new(Arc::clone(&real), n, after));
            store.meta = faulty.clone();
            let ended = collect(&store, &options);
            if !faulty.has_failed() {
                ended.unwrap();
                assert!(n > 25, "only {n} calls were tried");
                break;
            }
            store.meta = real;
            let at =
                format!("call {n}, after: {after}, ended {:?}", ended.err().map(|error| error.to_string()));
            let count = verify_all(&store).unwrap_or_else(|wrong| panic!("{at}: {wrong}"));
            assert_eq!(count, 28, "{at}");
            let store = open(dir.path());
            collect(&store, &options).unwrap_or_else(|error| panic!("{at}: resuming: {error}"));
            verify_all(&store).unwrap_or_else(|wrong| panic!("{at}: {wrong}"));
            let size = disk(&store);
            assert!(size < ideal + ideal / 20, "{at}: {size} bytes, {ideal} without the interruption");
        }
    }
}

#[test]
fn after_an_acknowledgement_of_which_nothing_is_known_no_hit_counts_until_the_next() {
    for after in [false, true] {
        let dir = scratch();
        littered(dir.path());
        let store = open(dir.path());
        let packs = store.committed_packs().unwrap();
        let (marked, live) = (packs[0], packs[1]);
        // Opening the session is the first call, acknowledging the second.
        let faulty = Arc::new(gc_support::faulty_meta::FaultyMeta::new(Arc::clone(&store.meta), 2, after));
        let meta: Arc<dyn Meta> = faulty.clone();
        let session = Session::open(&meta, SessionKind::Writer, None, "unsure".into()).unwrap();
        let counts = |pack: PackId| {
            let mut counted = false;
            let look = |is_usable: &dyn Fn(PackId) -> bool| {
                counted = is_usable(pack);
                Ok(std::iter::empty())
            };
            session.rely(1, look).unwrap();
            counted
        };
        assert!(counts(marked) && counts(live));
        let (collector, _) = store
            .meta
            .open_session(SessionKind::Collector, &outrigger_store::testing::owner("collector"), 60)
            .unwrap();
        store.meta.take_collector(collector).unwrap();
        let generation = store.meta.mark_candidates(collector, &[marked]).unwrap();
        // The session's thread may have been quicker; one of the two has failed.
        let followed = session.follow();
        assert!(faulty.has_failed());
        assert!(!counts(marked), "after: {after}, followed: {followed:?}");
        eventually("it counts", || counts(live));
        assert!(!counts(marked));
        assert!(store.meta.all_acknowledged(generation).unwrap());
    }
}
