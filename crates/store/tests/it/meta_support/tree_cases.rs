//! The documented rules of `Meta` for the tree, versions, snapshots and policies.

use outrigger_format::Root;
use outrigger_format::catalogue::{FileKind, Time};
use outrigger_store::ErrorKind;
use outrigger_store::meta::{
    At, Change, Commit, DirEntry, Era, Inode, PackRow, PinTarget, ROOT_INODE, SnapshotRow,
};

use super::{
    Fixture, attributes, dir, dump, file, kind, link, paths, put, remove, remove_all, rename, replacing, root,
};

const R: u64 = ROOT_INODE;

/// Every number up to 100 may be used.
fn numbers(engine: &Fixture) {
    engine.meta.raise_counters(1, 100, 1).unwrap();
}

pub fn a_new_store_has_a_root_directory_and_nothing_else(engine: &Fixture) {
    let root = engine.meta.inode(At::Now, R).unwrap().unwrap();
    assert_eq!((root.attributes.kind, root.attributes.mode, root.links), (FileKind::Directory, 0o755, 1));
    assert_eq!(engine.meta.read_dir(At::Now, R, None, 10).unwrap(), []);
    assert_eq!(engine.meta.read_dir(At::Now, 77, None, 10).unwrap(), []);
    assert_eq!(engine.meta.lookup(At::Now, R, b"x").unwrap(), None);
    assert_eq!(engine.meta.inode(At::Now, 2).unwrap(), None);
    let totals = engine.meta.totals().unwrap();
    assert_eq!((totals.files, totals.directories, totals.others, totals.bytes), (0, 1, 0, 0));
}

pub fn reserved_ranges_never_overlap(engine: &Fixture) {
    let first = engine.meta.reserve_inodes(5).unwrap();
    let second = engine.another().reserve_inodes(1).unwrap();
    assert!(first.start > R && first.end - first.start == 5 && second.start >= first.end);
    let writer = engine.writer();
    for inode in [0, second.end, u64::MAX] {
        assert_eq!(kind(engine.commit(writer, vec![file(R, "x", inode, 1)])), ErrorKind::Invalid);
    }
}

pub fn everything_about_a_file_reads_back(engine: &Fixture) {
    numbers(engine);
    let writer = engine.writer();
    let mut link = attributes(FileKind::Symlink, 0o777);
    link.target = b"../\xff there".to_vec();
    link.mtime = Time { secs: i64::MIN, nanos: 999_999_999 };
    let mut device = attributes(FileKind::BlockDevice, 0o7777);
    (device.rdev, device.uid, device.gid) = (u64::MAX, u32::MAX, u32::MAX);
    let mut file = attributes(FileKind::File, 0);
    file.xattrs = vec![(b"user.a".to_vec(), vec![0; 3000]), (b"user.b".to_vec(), Vec::new())];
    let tree =
        Root::Tree { level: 3, len: u64::MAX / 4, fingerprint: outrigger_format::Fingerprint([9; 32]) };
    let puts = [(10, link, Root::Empty), (11, device, Root::Empty), (12, file, tree)];
    let changes = puts.iter().map(|(inode, attributes, root)| Change::Put {
        parent: R,
        name: vec![0xff, *inode as u8],
        inode: *inode,
        attributes: attributes.clone(),
        root: root.clone(),
        stamp: u64::MAX - inode,
        replace: false,
    });
    assert_eq!(engine.commit(writer, changes.collect()).unwrap().created, 3);
    for (inode, attributes, root) in puts {
        let found = engine.another().lookup(At::Now, R, &[0xff, inode as u8]).unwrap().unwrap();
        assert_eq!((found.number, found.attributes, found.root), (inode, attributes, root));
        assert_eq!((found.links, found.stamp), (1, u64::MAX - inode));
    }
    let totals = engine.meta.totals().unwrap();
    assert_eq!((totals.files, totals.directories, totals.others, totals.bytes), (1, 1, 2, u64::MAX / 4));
}

pub fn several_names_are_looked_up_at_once(engine: &Fixture) {
    numbers(engine);
    let writer = engine.writer();
    let made = vec![dir(R, "d", 10), dir(10, "d", 11), file(11, "f", 12, 1), file(R, "f", 13, 2)];
    engine.commit(writer, made).unwrap();
    let look = |names: &[(u64, &str)]| -> Vec<Option<u64>> {
        let names: Vec<(u64, &[u8])> =
            names.iter().map(|(parent, name)| (*parent, name.as_bytes())).collect();
        let found = engine.meta.lookup_each(&names).unwrap();
        for ((parent, name), found) in names.iter().zip(&found) {
            assert_eq!(*found, engine.meta.lookup(At::Now, *parent, name).unwrap());
        }
        found.into_iter().map(|found| found.map(|inode| inode.number)).collect()
    };
    assert_eq!(look(&[(R, "d"), (10, "d"), (11, "f")]), [Some(10), Some(11), Some(12)]);
    // In the order in which they were asked for, and with those that are not there.
    assert_eq!(
        look(&[(11, "f"), (10, "f"), (R, "f"), (99, "d"), (R, "")]),
        [Some(12), None, Some(13), None, None]
    );
    assert_eq!(look(&[(R, "d"), (R, "d")]), [Some(10), Some(10)]);
    assert_eq!(look(&[]), []);
}

pub fn directories_are_read_in_pages_in_the_order_of_bytes(engine: &Fixture) {
    numbers(engine);
    let writer = engine.writer();
    let names = ["b", "a", "ab", "a\u{1}", "Z", "é", "z"];
    let changes = names.iter().zip(10..).map(|(name, inode)| file(R, name, inode, 1)).collect();
    engine.commit(writer, changes).unwrap();
    let mut sorted = names.map(|name| name.as_bytes().to_vec());
    sorted.sort();
    let read = |after: Option<&[u8]>, limit| -> Vec<Vec<u8>> {
        let entries = engine.meta.read_dir(At::Now, R, after, limit).unwrap();
        entries.into_iter().map(|entry| entry.name).collect()
    };
    assert_eq!(read(None, usize::MAX), sorted);
    assert_eq!(read(None, 3), sorted[..3]);
    assert_eq!(read(Some(&sorted[2]), 2), sorted[3..5]);
    assert_eq!(read(Some(b"a\x00"), 1), [b"a\x01".to_vec()], "the name after which to go on need not exist");
    assert_eq!(read(Some(&sorted[6]), 1), [b""; 0]);
    assert_eq!(read(None, 0), [b""; 0]);
}

pub fn names_that_cannot_be_names_are_refused(engine: &Fixture) {
    numbers(engine);
    let writer = engine.writer();
    for name in ["", ".", "..", "a/b", "a\0b", &"x".repeat(256)] {
        assert_eq!(kind(engine.commit(writer, vec![file(R, name, 10, 1)])), ErrorKind::Invalid, "{name:?}");
    }
    engine.commit(writer, vec![file(R, &"x".repeat(255), 10, 1), file(R, "...", 11, 1)]).unwrap();
    let mut wrong = attributes(FileKind::File, 0o10000);
    assert_eq!(
        kind(engine.commit(writer, vec![put(R, "a", 12, wrong.clone(), root(1))])),
        ErrorKind::Invalid
    );
    (wrong.mode, wrong.mtime.nanos) = (0, 1_000_000_000);
    assert_eq!(kind(engine.commit(writer, vec![put(R, "a", 12, wrong, root(1))])), ErrorKind::Invalid);
    let directory = attributes(FileKind::Directory, 0);
    assert_eq!(kind(engine.commit(writer, vec![put(R, "a", 12, directory, root(1))])), ErrorKind::Invalid);
}

pub fn a_put_over_the_same_kind_keeps_the_inode(engine: &Fixture) {
    numbers(engine);
    let writer = engine.writer();
    engine.commit(writer, vec![dir(R, "d", 10), file(10, "f", 11, 1)]).unwrap();
    // Children of an alias land in the directory that was kept, in the same commit.
    let again =
        engine.commit(writer, vec![dir(R, "d", 20), file(20, "f", 21, 2), file(20, "g", 22, 3)]).unwrap();
    assert_eq!(again.aliases.into_iter().collect::<Vec<_>>(), [(20, 10), (21, 11)]);
    assert_eq!((again.created, again.changed), (1, 1));
    assert_eq!(paths(&*engine.meta, At::Now), ["/d", "/d/f", "/d/g"]);
    assert_eq!(engine.meta.inode(At::Now, 11).unwrap().unwrap().root, root(2));
    assert_eq!(kind(engine.commit(writer, vec![file(21, "x", 23, 1)])), ErrorKind::NotFound);
}

pub fn a_put_over_another_kind_replaces(engine: &Fixture) {
    numbers(engine);
    let writer = engine.writer();
    engine.commit(writer, vec![dir(R, "x", 10), dir(10, "y", 11), file(11, "z", 12, 1)]).unwrap();
    let done = engine.commit(writer, vec![file(R, "x", 20, 2)]).unwrap();
    assert_eq!((done.created, done.changed, done.removed), (0, 1, 3));
    assert_eq!(paths(&*engine.meta, At::Now), ["/x"]);
    engine.commit(writer, vec![dir(R, "x", 30), file(30, "y", 31, 1)]).unwrap();
    assert_eq!(paths(&*engine.meta, At::Now), ["/x", "/x/y"]);
    assert_eq!(engine.meta.inode(At::Now, 12).unwrap(), None);
}

pub fn a_number_in_use_under_another_name_is_a_hard_link(engine: &Fixture) {
    numbers(engine);
    let writer = engine.writer();
    let links = |inode| engine.meta.inode(At::Now, inode).unwrap().map(|inode| inode.links);
    engine.commit(writer, vec![file(R, "a", 10, 1), file(R, "b", 10, 2), file(R, "c", 11, 3)]).unwrap();
    assert_eq!((links(10), links(11)), (Some(2), Some(1)));
    assert_eq!(engine.meta.lookup(At::Now, R, b"a").unwrap().unwrap().root, root(2));
    // Even over a name of another file, whose number goes with its last name.
    engine.commit(writer, vec![file(R, "c", 10, 2)]).unwrap();
    assert_eq!((links(10), links(11)), (Some(3), None));
    // And through an alias.
    engine.commit(writer, vec![file(R, "a", 20, 4), file(R, "d", 20, 4)]).unwrap();
    assert_eq!(links(10), Some(4));
    // `replace` takes a name away from it.
    engine.commit(writer, vec![replacing(file(R, "b", 30, 5)), replacing(file(R, "a", 10, 6))]).unwrap();
    assert_eq!((links(10), links(30)), (Some(3), Some(1)));
    assert_eq!(engine.meta.lookup(At::Now, R, b"c").unwrap().unwrap().root, root(6));
    for change in [dir(R, "e", 10), dir(R, "e", R), file(R, "e", R, 1)] {
        assert_eq!(kind(engine.commit(writer, vec![change])), ErrorKind::Invalid);
    }
}

pub fn links_and_removals_are_counted(engine: &Fixture) {
    numbers(engine);
    let writer = engine.writer();
    engine.commit(writer, vec![dir(R, "d", 10), file(10, "f", 11, 1), link(R, "l", 11)]).unwrap();
    assert_eq!(engine.meta.inode(At::Now, 11).unwrap().unwrap().links, 2);
    for (change, wanted) in [
        (link(R, "l", 11), ErrorKind::Exists),
        (link(R, "m", 99), ErrorKind::NotFound),
        (link(R, "m", 10), ErrorKind::Invalid),
        (link(99, "m", 11), ErrorKind::NotFound),
        (remove(R, "d"), ErrorKind::Exists),
        (remove(R, "m"), ErrorKind::NotFound),
        (remove(11, "m"), ErrorKind::NotFound),
    ] {
        assert_eq!(kind(engine.commit(writer, vec![change.clone()])), wanted, "{change:?}");
    }
    assert_eq!(engine.commit(writer, vec![remove_all(R, "d")]).unwrap().removed, 2);
    assert_eq!(engine.meta.inode(At::Now, 11).unwrap().unwrap().links, 1);
    engine.commit(writer, vec![remove(R, "l")]).unwrap();
    assert_eq!(engine.meta.inode(At::Now, 11).unwrap(), None);
    assert_eq!(engine.meta.totals().unwrap().bytes, 0);
}

pub fn renames_follow_posix(engine: &Fixture) {
    numbers(engine);
    let writer = engine.writer();
    let tree =
        vec![dir(R, "a", 10), dir(10, "b", 11), file(11, "f", 12, 1), dir(R, "e", 13), file(R, "g", 14, 2)];
    engine.commit(writer, tree).unwrap();
    for (change, wanted) in [
        (rename(R, "a", 11, "x"), ErrorKind::Invalid),
        (rename(R, "a", 10, "x"), ErrorKind::Invalid),
        (rename(R, "x", R, "y"), ErrorKind::NotFound),
        (rename(R, "e", R, "a"), ErrorKind::Exists),
        (rename(R, "g", R, "e"), ErrorKind::Invalid),
        (rename(R, "e", R, "g"), ErrorKind::Invalid),
        (rename(R, "e", 14, "x"), ErrorKind::NotFound),
    ] {
        assert_eq!(kind(engine.commit(writer, vec![change.clone()])), wanted, "{change:?}");
    }
    // Onto itself, and onto another name of the same file: nothing happens.
    engine.commit(writer, vec![rename(R, "g", R, "g"), link(R, "h", 14), rename(R, "g", R, "h")]).unwrap();
    assert_eq!(engine.meta.inode(At::Now, 14).unwrap().unwrap().links, 2);
    // A file over a file, a directory over an empty directory, and deep into another.
    engine
        .commit(writer, vec![rename(R, "h", 11, "f"), rename(10, "b", R, "e"), rename(R, "a", 11, "a")])
        .unwrap();
    assert_eq!(paths(&*engine.meta, At::Now), ["/e", "/e/a", "/e/f", "/g"]);
    assert_eq!(engine.meta.inode(At::Now, 12).unwrap(), None);
}

pub fn a_commit_happens_wholly_or_not_at_all(engine: &Fixture) {
    numbers(engine);
    let writer = engine.writer();
    engine.commit(writer, vec![dir(R, "d", 10), file(10, "f", 11, 1)]).unwrap();
    let pack = engine.meta.announce_packs(writer, outrigger_format::PackKind::Data, 1, 0).unwrap()[0];
    let row = engine.meta.packs().unwrap()[0].clone();
    engine.meta.packs_sealed(writer, &[PackRow { bytes: 5, ..row }]).unwrap();
    let (before, packs, totals) =
        (dump(&*engine.meta, At::Now), engine.meta.packs().unwrap(), engine.meta.totals());
    let changes =
        vec![file(10, "f", 20, 2), dir(R, "e", 21), remove_all(R, "d"), rename(R, "nothing", R, "x")];
    let refused = engine.meta.commit(writer, &Commit { packs: vec![pack], changes, time: 9 });
    let error = refused.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(error.to_string().contains("/nothing"), "{error}");
    assert_eq!(dump(&*engine.meta, At::Now), before);
    assert_eq!(engine.meta.packs().unwrap(), packs);
    assert_eq!(engine.meta.totals().unwrap(), totals.unwrap());
    assert_eq!(engine.meta.versions(11).unwrap(), []);
}

pub fn the_root_directory_has_attributes_too(engine: &Fixture) {
    let writer = engine.writer();
    let wanted = attributes(FileKind::Directory, 0o700);
    let snapshot = engine.meta.create_snapshot("before", 1, &[]).unwrap();
    let done = engine.commit(writer, vec![put(R, "", R, wanted.clone(), Root::Empty)]).unwrap();
    assert_eq!((done.created, done.changed), (0, 1));
    assert_eq!(engine.meta.inode(At::Now, R).unwrap().unwrap().attributes, wanted);
    let before = engine.meta.inode(At::Epoch(snapshot.epoch), R).unwrap().unwrap();
    assert_eq!(before.attributes.mode, 0o755);
}

pub fn versions_are_kept_by_the_nearest_policy(engine: &Fixture) {
    numbers(engine);
    let (meta, writer) = (&*engine.meta, engine.writer());
    engine.commit(writer, vec![dir(R, "d", 10), dir(10, "e", 11), file(11, "f", 12, 1)]).unwrap();
    let write =
        |content| super::commit(meta, writer, vec![file(11, "f", 12, content)], content.into()).unwrap();
    let kept = || meta.versions(12).unwrap().iter().map(|version| version.number).collect::<Vec<_>>();
    (2..=14).for_each(|content| drop(write(content)));
    assert_eq!(kept(), (4..=13).rev().collect::<Vec<_>>(), "ten by default");
    let newest = &meta.versions(12).unwrap()[0];
    assert_eq!((newest.time, newest.mtime, &newest.root), (13, Time { secs: -3, nanos: 5 }, &root(13)));
    meta.set_policy(10, "versions", Some("2")).unwrap();
    write(15);
    assert_eq!(kept(), [14, 13]);
    meta.set_policy(R, "versions", Some("all")).unwrap();
    write(16);
    assert_eq!(kept(), [15, 14], "the nearest directory decides");
    meta.set_policy(10, "versions", None).unwrap();
    (17..=30).for_each(|content| drop(write(content)));
    assert_eq!(kept().len(), 16);
    meta.set_policy(11, "versions", Some("none")).unwrap();
    write(31);
    assert_eq!(kept(), [0; 0]);
    // Nothing new: nothing is written, and no version made.
    assert_eq!(write(31).changed, 0);
    meta.set_policy(11, "versions", Some("5")).unwrap();
    let chmod = put(11, "f", 12, attributes(FileKind::File, 0o600), root(31));
    assert_eq!(engine.commit(writer, vec![chmod]).unwrap().changed, 1);
    assert_eq!(kept(), [0; 0]);
    write(32);
    assert_eq!(kept(), [31], "numbers go on where they were");
    engine.commit(writer, vec![remove(11, "f")]).unwrap();
    assert_eq!(kept(), [0; 0]);
}

pub fn policies_are_set_on_directories_and_go_with_them(engine: &Fixture) {
    numbers(engine);
    let (meta, writer) = (&*engine.meta, engine.writer());
    engine.commit(writer, vec![dir(R, "d", 10), file(R, "f", 11, 1)]).unwrap();
    meta.set_policy(10, "codec", Some("zstd:3")).unwrap();
    meta.set_policy(10, "codec", Some("lz4")).unwrap();
    meta.set_policy(10, "versions", Some("0")).unwrap();
    assert_eq!(meta.policies(10).unwrap().into_values().collect::<Vec<_>>(), ["lz4", "0"]);
    assert_eq!(meta.all_policies().unwrap().len(), 1);
    assert_eq!(kind(meta.set_policy(11, "codec", Some("lz4"))), ErrorKind::NotFound);
    assert_eq!(kind(meta.set_policy(10, "versions", Some("many"))), ErrorKind::Invalid);
    meta.set_policy(10, "versions", None).unwrap();
    assert_eq!(meta.policies(10).unwrap().len(), 1);
    engine.commit(writer, vec![remove(R, "d")]).unwrap();
    assert_eq!(meta.all_policies().unwrap().len(), 0);
}

pub fn stamps_change_without_a_change(engine: &Fixture) {
    numbers(engine);
    let writer = engine.writer();
    let stamped = |stamp| match file(R, "f", 10, 1) {
        Change::Put { parent, name, inode, attributes, root, replace, .. } => {
            Change::Put { parent, name, inode, attributes, root, stamp, replace }
        }
        other => other,
    };
    engine.commit(writer, vec![stamped(1)]).unwrap();
    assert_eq!(engine.commit(writer, vec![stamped(2)]).unwrap().changed, 0);
    assert_eq!(engine.meta.inode(At::Now, 10).unwrap().unwrap().stamp, 2);
}

pub fn snapshots_are_exact_and_named_once(engine: &Fixture) {
    numbers(engine);
    let (meta, writer) = (&*engine.meta, engine.writer());
    engine.commit(writer, vec![dir(R, "d", 10), file(10, "f", 11, 1), link(R, "l", 11)]).unwrap();
    let tags = ["daily".to_owned(), "b".to_owned()];
    let one = meta.create_snapshot("one", 5, &tags).unwrap();
    assert_eq!(kind(meta.create_snapshot("one", 6, &[])), ErrorKind::Exists);
    assert_eq!(kind(meta.create_snapshot("", 6, &[])), ErrorKind::Invalid);
    let before = dump(meta, At::Now);
    engine.commit(writer, vec![remove_all(R, "d"), file(R, "l", 11, 2), dir(R, "d", 20)]).unwrap();
    let two = meta.create_snapshot("two", 7, &[]).unwrap();
    assert!(two.epoch > one.epoch);
    let between = dump(meta, At::Now);
    engine.commit(writer, vec![rename(R, "d", R, "n"), file(20, "x", 21, 1)]).unwrap();
    assert_eq!(dump(meta, At::Epoch(one.epoch)), before);
    assert_eq!(dump(meta, At::Epoch(two.epoch)), between);
    assert_eq!(paths(meta, At::Now), ["/l", "/n", "/n/x"]);
    let row = SnapshotRow {
        name: "one".to_owned(),
        epoch: one.epoch,
        time: 5,
        tags: tags.to_vec(),
        role: one.role.clone(),
    };
    assert_eq!(meta.snapshots().unwrap(), [row, two.clone()]);
    // Other tags change nothing else.
    let retagged = ["kind:named".to_owned()];
    meta.set_snapshot_tags("one", &retagged).unwrap();
    assert_eq!(kind(meta.set_snapshot_tags("none", &retagged)), ErrorKind::NotFound);
    let found = meta.snapshots().unwrap();
    assert_eq!((&found[0].tags[..], found[0].epoch, &found[1]), (&retagged[..], one.epoch, &two));
    assert_eq!(dump(meta, At::Epoch(one.epoch)), before);
    // History that only the first one saw goes; the second one stays exact.
    assert_eq!(meta.purge_history().unwrap(), 0);
    meta.delete_snapshot("one").unwrap();
    assert_eq!(kind(meta.delete_snapshot("one")), ErrorKind::NotFound);
    assert!(meta.purge_history().unwrap() > 0);
    assert_eq!(meta.purge_history().unwrap(), 0);
    assert_eq!(dump(meta, At::Epoch(two.epoch)), between);
    assert_eq!(meta.snapshots().unwrap(), [two]);
}

pub fn a_history_is_what_each_epoch_has(engine: &Fixture) {
    numbers(engine);
    let (meta, writer) = (&*engine.meta, engine.writer());
    let steps = [
        vec![dir(R, "d", 10), file(10, "f", 11, 1), link(10, "g", 11), file(R, "gone", 12, 3)],
        vec![file(10, "f", 11, 2), remove(R, "gone"), file(R, "new", 13, 1)],
        vec![rename(10, "g", R, "g"), remove_all(R, "d"), file(R, "d", 14, 4)],
        vec![dir(R, "gone", 20), file(20, "f", 21, 1)],
    ];
    let mut epochs = Vec::new();
    for (at, changes) in steps.into_iter().enumerate() {
        engine.commit(writer, changes).unwrap();
        epochs.push(meta.create_snapshot(&format!("s{at}"), at as u64, &[]).unwrap().epoch);
    }
    let mut rows = 0;
    for directory in [R, 10, 20, 77] {
        let history = meta.history(directory).unwrap();
        rows += history.len();
        let order = |era: &Era| (era.entry.name.clone(), era.from);
        assert!(history.windows(2).all(|pair| order(&pair[0]) < order(&pair[1])), "{history:?}");
        for &epoch in &epochs {
            let then = history.iter().filter(|era| (era.from..era.until).contains(&epoch));
            let then: Vec<_> = then.map(|era| era.entry.clone()).collect();
            let read = meta.read_dir(At::Epoch(epoch), directory, None, 100).unwrap();
            // Stamps are no part of the history.
            let bare = |entries: Vec<DirEntry>| -> Vec<_> {
                entries.into_iter().map(|entry| (entry.name, Inode { stamp: 0, ..entry.inode })).collect()
            };
            assert_eq!(bare(then), bare(read), "directory {directory} at {epoch}");
        }
    }
    assert!(rows > 8, "{rows}");
}

pub fn pins_hold_what_is_deleted_meanwhile(engine: &Fixture) {
    numbers(engine);
    let (meta, writer) = (&*engine.meta, engine.writer());
    let (reader, _) = meta
        .open_session(super::SessionKind::Reader, &outrigger_store::testing::owner("r"), super::LEASE)
        .unwrap();
    engine.commit(writer, vec![file(R, "f", 10, 1)]).unwrap();
    meta.create_snapshot("s", 1, &[]).unwrap();
    let (snapshot, _) = meta.pin(reader, &PinTarget::Snapshot("s".to_owned())).unwrap();
    engine.commit(writer, vec![file(R, "f", 10, 2)]).unwrap();
    let (now, nothing) = meta.pin(reader, &PinTarget::Now).unwrap();
    assert_eq!(nothing, None);
    engine.commit(writer, vec![file(R, "f", 10, 3)]).unwrap();
    let version = PinTarget::Version { inode: 10, number: 2 };
    assert_eq!(meta.pin(reader, &version).unwrap().1, Some(root(2)));
    let missing = [PinTarget::Snapshot("t".to_owned()), PinTarget::Version { inode: 10, number: 9 }];
    for target in missing {
        assert_eq!(kind(meta.pin(reader, &target)), ErrorKind::NotFound);
    }
    meta.delete_snapshot("s").unwrap();
    engine.commit(writer, vec![remove(R, "f")]).unwrap();
    meta.purge_history().unwrap();
    let content = |epoch| meta.lookup(At::Epoch(epoch), R, b"f").unwrap().map(|inode| inode.root);
    assert_eq!((content(snapshot), content(now)), (Some(root(1)), Some(root(2))));
    let roots = || {
        let mut roots = Vec::new();
        meta.visit_roots(&mut |root| {
            roots.push(root.len());
            Ok(())
        })
        .unwrap();
        roots.sort_unstable();
        roots.dedup();
        roots
    };
    assert_eq!(roots(), [101, 102]);
    meta.close_session(reader).unwrap();
    assert_eq!(roots(), [0; 0]);
    meta.purge_history().unwrap();
    assert_eq!((content(snapshot), content(now)), (None, None));
}

/// Two commands that mirror one source remove the same.
pub fn a_tree_that_is_gone_already_counts_as_removed(engine: &Fixture) {
    numbers(engine);
    let writer = engine.writer();
    engine.commit(writer, vec![dir(R, "d", 2), dir(2, "e", 3), file(R, "f", 4, 1)]).unwrap();
    engine.commit(writer, vec![remove_all(R, "d")]).unwrap();
    // The entry is gone, or what it was in; the rest of the commit counts.
    let other = engine.writer();
    engine.commit(other, vec![remove_all(R, "d"), remove_all(2, "e"), remove_all(R, "f")]).unwrap();
    assert_eq!(engine.meta.lookup(At::Now, R, b"f").unwrap(), None);
    assert_eq!(kind(engine.commit(other, vec![remove(R, "f")])), ErrorKind::NotFound);
}

pub fn deep_and_wide_trees_are_removed(engine: &Fixture) {
    let (meta, writer) = (&*engine.meta, engine.writer());
    let numbers = meta.reserve_inodes(3000).unwrap();
    let (mut parent, mut changes) = (R, Vec::new());
    for inode in numbers.clone() {
        let name = format!("n{inode}");
        if inode % 2 == 0 {
            changes.push(dir(parent, &name, inode));
            parent = inode;
        } else {
            changes.push(file(if inode % 3 == 0 { numbers.start } else { parent }, &name, inode, 1));
        }
    }
    engine.commit(writer, changes).unwrap();
    meta.create_snapshot("s", 1, &[]).unwrap();
    let top = meta.read_dir(At::Now, R, None, 1).unwrap()[0].name.clone();
    let top = String::from_utf8(top).unwrap();
    assert_eq!(engine.commit(writer, vec![remove_all(R, &top)]).unwrap().removed, 3000);
    assert_eq!(meta.totals().unwrap().directories, 1);
}
