//! The documented rules of `Change::Name` and `Change::Node`, and of the times that come with them.

use outrigger_format::Root;
use outrigger_format::catalogue::{Attributes, FileKind, OtherTimes, Time};
use outrigger_store::ErrorKind;
use outrigger_store::meta::{At, Change, ROOT_INODE, TreeTotals};

use super::{
    Fixture, attributes, commit, dir, dir_node, dump, file, kind, link, name, node, node_kept, paths, put,
    remove, root,
};

const R: u64 = ROOT_INODE;

fn numbers(engine: &Fixture) {
    engine.meta.raise_counters(1, 10_000, 1).unwrap();
}

fn at(engine: &Fixture, parent: u64, name: &str) -> Option<u64> {
    engine.meta.lookup(At::Now, parent, name.as_bytes()).unwrap().map(|inode| inode.number)
}

fn links(engine: &Fixture, inode: u64) -> Option<u32> {
    engine.meta.inode(At::Now, inode).unwrap().map(|inode| inode.links)
}

pub fn names_and_inodes_are_set_whatever_they_were(engine: &Fixture) {
    numbers(engine);
    let writer = engine.writer();
    let new = vec![
        dir_node(R, 10),
        name(R, "d", 10),
        node(10, 11, 1),
        name(10, "f", 11),
        name(R, "l", 11),
        node(R, 12, 2),
        name(R, "g", 12),
    ];
    let done = engine.commit(writer, new.clone()).unwrap();
    assert_eq!((done.created, done.changed, done.removed), (4, 0, 0));
    assert_eq!(done.aliases.len(), 0);
    assert_eq!(paths(&*engine.meta, At::Now), ["/d", "/d/f", "/g", "/l"]);
    assert_eq!((links(engine, 10), links(engine, 11), links(engine, 12)), (Some(1), Some(2), Some(1)));
    let totals = TreeTotals { files: 2, directories: 2, others: 0, bytes: 101 + 102 };
    assert_eq!(engine.meta.totals().unwrap(), totals);
    let before = dump(&*engine.meta, At::Now);
    let again = engine.commit(writer, new).unwrap();
    assert_eq!((again.created, again.changed, again.removed), (0, 0, 0), "twice is the same as once");
    assert_eq!(dump(&*engine.meta, At::Now), before);
    // An existing entry goes; a missing one may go again.
    let states = vec![
        name(R, "g", 11),
        name(R, "l", None),
        node(R, 11, 3),
        name(R, "never", None),
        name(99, "never", None),
    ];
    for wanted in [(0, 2, 1), (0, 0, 0)] {
        let done = engine.commit(writer, states.clone()).unwrap();
        assert_eq!((done.created, done.changed, done.removed), wanted);
        assert_eq!(paths(&*engine.meta, At::Now), ["/d", "/d/f", "/g"]);
        assert_eq!((links(engine, 11), links(engine, 12)), (Some(2), None));
        assert_eq!(engine.meta.inode(At::Now, 11).unwrap().unwrap().root, root(3));
        assert_eq!(engine.meta.totals().unwrap().bytes, 103);
    }
    // If two set the same, the last one decides.
    engine
        .commit(writer, vec![name(R, "x", 11), name(R, "x", None), node(R, 11, 4), node(R, 11, 5)])
        .unwrap();
    assert_eq!((at(engine, R, "x"), links(engine, 11)), (None, Some(2)));
    let tried = vec![dir_node(R, 13), name(R, "e", 13), name(13, "d", 10), name(13, "d", None)];
    engine.commit(writer, tried).unwrap();
    assert_eq!(engine.meta.parent_of(10).unwrap(), Some(R), "a directory that did not move after all");
    assert_eq!(engine.meta.inode(At::Now, 11).unwrap().unwrap().root, root(5));
}

/// All orders of `changes`.
fn orders(changes: &[Change]) -> Vec<Vec<Change>> {
    if changes.is_empty() {
        return vec![Vec::new()];
    }
    let mut all = Vec::new();
    for first in 0..changes.len() {
        let mut rest = changes.to_vec();
        let change = rest.remove(first);
        all.extend(orders(&rest).into_iter().map(|mut order| {
            order.push(change.clone());
            order
        }));
    }
    all
}

pub fn their_order_does_not_matter(engine: &Fixture) {
    numbers(engine);
    let writer = engine.writer();
    // In directory 10: files 11 and 12, directories 13 and 14, a file 15 in 13.
    let scene = [
        ("x", vec![name(10, "x", None), name(10, "b", 11), name(10, "a", 12)], "/a /b /d /d/f /e"),
        (
            "a directory moves into a new one, which takes its name",
            vec![
                dir_node(10, 16),
                name(10, "d", 16),
                name(16, "d", 13),
                name(14, "g", 11),
                name(10, "a", None),
            ],
            "/b /d /d/d /d/d/f /e /e/g",
        ),
        (
            "two directories are exchanged, one goes, with what is in it",
            vec![name(10, "d", 14), name(10, "e", None), name(13, "f", None), name(14, "b", 12)],
            "/a /b /d /d/b",
        ),
        (
            "a directory and the one in it change places",
            vec![
                name(13, "in", None),
                name(17, "in", 13),
                name(10, "d", 17),
                dir_node(10, 17),
                name(17, "f", 15),
            ],
            "/a /b /d /d/f /d/in /d/in/f /e",
        ),
    ];
    for (what, changes, wanted) in scene {
        for (number, order) in orders(&changes).into_iter().enumerate() {
            let made = vec![
                dir(R, "top", 10),
                file(10, "a", 11, 1),
                file(10, "b", 12, 2),
                dir(10, "d", 13),
                dir(10, "e", 14),
                file(13, "f", 15, 3),
            ];
            engine.commit(writer, made).unwrap();
            engine.commit(writer, order.clone()).unwrap_or_else(|error| panic!("{what}: {order:?}: {error}"));
            let found: Vec<String> = paths(&*engine.meta, At::Now);
            let found: Vec<&str> = found.iter().filter_map(|path| path.strip_prefix("/top")).collect();
            assert_eq!(found[1..].join(" "), wanted, "{what}: {order:?}");
            for directory in [13, 14, 16, 17] {
                let hangs = engine.meta.parent_of(directory).unwrap();
                assert!(
                    hangs.is_none_or(|above| above == R || engine.meta.parent_of(above).unwrap().is_some())
                );
            }
            if number % 16 == 0 {
                assert_eq!(engine.findings(), [""; 0], "{what}: {order:?}");
            }
            engine.commit(writer, vec![super::remove_all(R, "top")]).unwrap();
        }
    }
}

pub fn what_has_no_name_at_the_end_goes(engine: &Fixture) {
    numbers(engine);
    let (meta, writer) = (&*engine.meta, engine.writer());
    engine.commit(writer, vec![dir(R, "d", 10), file(R, "f", 11, 1), dir(10, "e", 12)]).unwrap();
    engine.commit(writer, vec![file(R, "f", 11, 2)]).unwrap();
    meta.set_policy(12, "codec", Some("lz4")).unwrap();
    // Without a name in between: it stays, with all that belongs to it.
    engine
        .commit(writer, vec![name(R, "f", None), name(10, "e", None), name(R, "e", 12), name(12, "f", 11)])
        .unwrap();
    assert_eq!((meta.versions(11).unwrap().len(), meta.policies(12).unwrap().len()), (1, 1));
    assert_eq!((meta.parent_of(12).unwrap(), links(engine, 11)), (Some(R), Some(1)));
    let done = engine
        .commit(writer, vec![name(R, "e", None), name(12, "f", None), name(R, "d", None), node(12, 11, 7)])
        .unwrap();
    assert_eq!((done.created, done.changed, done.removed), (0, 0, 3));
    assert_eq!(paths(meta, At::Now), [""; 0]);
    for gone in [10, 11, 12] {
        assert_eq!((meta.inode(At::Now, gone).unwrap(), meta.parent_of(gone).unwrap()), (None, None));
    }
    assert_eq!((meta.versions(11).unwrap().len(), meta.all_policies().unwrap().len()), (0, 0));
    let totals = TreeTotals { directories: 1, ..TreeTotals::default() };
    assert_eq!(meta.totals().unwrap(), totals);
    // An inode that never gets a name was never there.
    engine.commit(writer, vec![node(R, 20, 1), dir_node(R, 21)]).unwrap();
    assert_eq!((meta.inode(At::Now, 20).unwrap(), meta.inode(At::Now, 21).unwrap()), (None, None));
    assert_eq!(meta.totals().unwrap(), totals);
}

pub fn states_that_cannot_be_are_refused(engine: &Fixture) {
    numbers(engine);
    let (meta, writer) = (&*engine.meta, engine.writer());
    let tree =
        vec![dir(R, "a", 10), dir(10, "b", 11), file(11, "f", 12, 1), file(R, "g", 13, 2), dir(R, "e", 14)];
    engine.commit(writer, tree).unwrap();
    meta.create_snapshot("s", 1, &[]).unwrap();
    let (before, totals) = (dump(meta, At::Now), meta.totals().unwrap());
    let mut mode = attributes(FileKind::File, 0o10000);
    let bad = |attributes: &Attributes, root| {
        let (attributes, keep) = (attributes.clone(), false);
        vec![Change::Node { inode: 13, parent: R, attributes, root, keep }]
    };
    let (bad_mode, mut bad_time) = (bad(&mode, root(1)), Vec::new());
    mode.mode = 0;
    let late = Time { secs: 0, nanos: 1_000_000_000 };
    for times in [
        OtherTimes { atime: late, ctime: Time::default() },
        OtherTimes { atime: Time::default(), ctime: late },
    ] {
        mode.times = Some(times);
        bad_time.extend(bad(&mode, root(1)));
    }
    for (changes, wanted) in [
        // A directory has one name, or none and no entries.
        (vec![name(R, "x", 10)], ErrorKind::Invalid),
        (vec![name(R, "x", 14), name(10, "y", 14), name(R, "e", None)], ErrorKind::Invalid),
        (vec![dir_node(R, 20), name(R, "x", 20), name(R, "y", 20)], ErrorKind::Invalid),
        (vec![name(R, "a", None)], ErrorKind::Invalid),
        (vec![name(R, "e", None), name(14, "x", 13)], ErrorKind::Invalid),
        (vec![name(R, "x", 1)], ErrorKind::Invalid),
        // Names stand for existing inodes …
        (vec![name(R, "x", 20)], ErrorKind::Invalid),
        (vec![name(R, "x", 13), name(R, "y", 20)], ErrorKind::Invalid),
        (vec![name(R, "x", 10_000)], ErrorKind::Invalid),
        (vec![node(R, 10_000, 1), name(R, "x", 10_000)], ErrorKind::Invalid),
        (vec![node(R, 0, 1)], ErrorKind::Invalid),
        // … and lie in directories, which lie in others.
        (vec![name(99, "x", 13)], ErrorKind::NotFound),
        (vec![name(13, "x", 12)], ErrorKind::NotFound),
        (vec![node(R, 20, 1), name(20, "x", 20)], ErrorKind::NotFound),
        (vec![name(R, "a", None), name(11, "x", 10)], ErrorKind::Invalid),
        (vec![name(R, "a", None), name(10, "x", 10)], ErrorKind::Invalid),
        (vec![dir_node(R, 20), dir_node(R, 21), name(20, "x", 21), name(21, "y", 20)], ErrorKind::Invalid),
        // A directory is below two that contain each other.
        (
            vec![name(R, "a", None), name(R, "e", None), name(10, "e", 14), name(14, "a", 10)],
            ErrorKind::Invalid,
        ),
        // An inode keeps its kind.
        (vec![dir_node(R, 13)], ErrorKind::Invalid),
        (vec![node(R, 14, 1)], ErrorKind::Invalid),
        (vec![node(R, R, 1)], ErrorKind::Invalid),
        (vec![node(R, 20, 1), dir_node(R, 20), name(R, "x", 20)], ErrorKind::Invalid),
        // Names, attributes, contents.
        (vec![name(R, "", 13)], ErrorKind::Invalid),
        (vec![name(R, "a/b", None)], ErrorKind::Invalid),
        (vec![name(R, "..", 13)], ErrorKind::Invalid),
        (bad_mode, ErrorKind::Invalid),
        (bad_time[..1].to_vec(), ErrorKind::Invalid),
        (bad_time[1..].to_vec(), ErrorKind::Invalid),
        (bad(&attributes(FileKind::Symlink, 0), root(1)), ErrorKind::Invalid),
        // One kind of changes or the other.
        (vec![name(R, "x", 13), file(R, "y", 20, 1)], ErrorKind::Invalid),
        (vec![file(R, "y", 20, 1), node(R, 13, 1)], ErrorKind::Invalid),
        (vec![name(R, "x", 13), link(R, "y", 13)], ErrorKind::Invalid),
        (vec![remove(R, "g"), name(R, "x", 12)], ErrorKind::Invalid),
    ] {
        // None of the valid changes has happened.
        let changes = [vec![name(R, "right", 13)], changes].concat();
        assert_eq!(kind(engine.commit(writer, changes.clone())), wanted, "{changes:?}");
        assert_eq!(dump(meta, At::Now), before, "{changes:?}");
    }
    assert_eq!(meta.totals().unwrap(), totals);
    // Its kind may change otherwise.
    let symlink = Attributes { target: b"t".to_vec(), ..attributes(FileKind::Symlink, 0o777) };
    let change = Change::Node { inode: 13, parent: R, attributes: symlink, root: Root::Empty, keep: true };
    engine.commit(writer, vec![change]).unwrap();
    assert_eq!((meta.totals().unwrap().others, meta.versions(13).unwrap().len()), (1, 1));
}

pub fn contents_become_versions_if_they_are_to(engine: &Fixture) {
    numbers(engine);
    let (meta, writer) = (&*engine.meta, engine.writer());
    let kept = |inode| meta.versions(inode).unwrap().iter().map(|version| version.number).collect::<Vec<_>>();
    let write = |changes, time| commit(meta, writer, changes, time).unwrap().changed;
    write(vec![node_kept(R, 10, 1), name(R, "f", 10)], 1);
    assert_eq!(write(vec![node_kept(R, 10, 1)], 2), 0, "the same content is no new one");
    assert_eq!(kept(10), [0; 0]);
    write(vec![node(R, 10, 2)], 3);
    write(vec![node_kept(R, 10, 3)], 4);
    let versions = meta.versions(10).unwrap();
    let [version] = &versions[..] else { panic!("{versions:?}") };
    assert_eq!((version.number, version.time, &version.root), (1, 3, &root(2)), "the first one was replaced");
    write(vec![node(R, 10, 4)], 5);
    write(vec![node_kept(R, 10, 5)], 6);
    assert_eq!(kept(10), [2, 1]);
    assert_eq!(meta.versions(10).unwrap()[0].root, root(4));
    // Attributes alone make no version.
    let attributes = attributes(FileKind::File, 0o600);
    let chmod = Change::Node { inode: 10, parent: R, attributes, root: root(5), keep: true };
    assert_eq!(write(vec![chmod], 7), 1);
    assert_eq!(kept(10), [2, 1]);
    // The policy of the directory where it is at the end.
    write(vec![dir_node(R, 11), name(R, "d", 11)], 8);
    meta.set_policy(11, "versions", Some("1")).unwrap();
    write(
        vec![
            node_kept(12, 10, 6),
            name(12, "f", 10),
            name(R, "f", None),
            name(11, "e", 12),
            dir_node(11, 12),
        ],
        9,
    );
    assert_eq!(kept(10), [3]);
    meta.set_policy(12, "versions", Some("all")).unwrap();
    write(vec![name(R, "e", 12), name(11, "e", None), node_kept(12, 10, 7)], 10);
    assert_eq!(kept(10), [4, 3]);
    meta.set_policy(12, "versions", None).unwrap();
    meta.set_policy(R, "versions", Some("none")).unwrap();
    write(vec![node(12, 10, 8)], 11);
    assert_eq!(kept(10), [4, 3], "what is not to be kept leaves the others alone");
    write(vec![node_kept(12, 10, 9)], 12);
    assert_eq!(kept(10), [0; 0]);
}

pub fn an_inode_that_is_set_loses_its_stamp(engine: &Fixture) {
    numbers(engine);
    let writer = engine.writer();
    let Change::Put { parent, name, inode, attributes, root, replace, .. } = file(R, "f", 10, 1) else {
        unreachable!()
    };
    engine
        .commit(writer, vec![Change::Put { parent, name, inode, attributes, root, stamp: 5, replace }])
        .unwrap();
    assert_eq!(engine.commit(writer, vec![node(R, 10, 1)]).unwrap().changed, 0);
    assert_eq!(engine.meta.inode(At::Now, 10).unwrap().unwrap().stamp, 0);
}

pub fn the_root_directory_is_set_like_any_other(engine: &Fixture) {
    let (meta, writer) = (&*engine.meta, engine.writer());
    assert_eq!(meta.parent_of(R).unwrap(), Some(R));
    let snapshot = meta.create_snapshot("before", 1, &[]).unwrap();
    assert_eq!(engine.commit(writer, vec![dir_node(R, R)]).unwrap().changed, 1);
    assert_eq!(meta.inode(At::Now, R).unwrap().unwrap().attributes, attributes(FileKind::Directory, 0o755));
    assert_eq!(meta.inode(At::Epoch(snapshot.epoch), R).unwrap().unwrap().attributes.uid, 0);
}

pub fn snapshots_see_what_names_and_inodes_were(engine: &Fixture) {
    numbers(engine);
    let (meta, writer) = (&*engine.meta, engine.writer());
    let tree = vec![
        dir_node(R, 10),
        name(R, "d", 10),
        node(10, 11, 1),
        name(10, "f", 11),
        name(R, "l", 11),
        node(R, 12, 2),
        name(R, "g", 12),
        dir_node(R, 13),
        name(R, "e", 13),
    ];
    engine.commit(writer, tree).unwrap();
    let mut seen = Vec::new();
    let steps = [
        vec![name(R, "l", None), name(R, "g", 11), name(10, "f", 12)],
        vec![name(R, "d", 13), name(R, "e", 10), node_kept(R, 11, 3)],
        vec![name(13, "d", 10), name(R, "e", None), node(10, 12, 4), name(10, "h", 12)],
        vec![name(13, "d", None), name(10, "f", None), name(10, "h", None), dir_node(R, R)],
        vec![name(R, "d", 14), dir_node(R, 14), name(14, "g", 11), name(R, "g", None)],
    ];
    for (number, changes) in steps.into_iter().enumerate() {
        let row = meta.create_snapshot(&format!("s{number}"), 1, &[]).unwrap();
        seen.push((row.epoch, dump(meta, At::Now)));
        // Twice, as after a crash.
        engine.commit(writer, changes.clone()).unwrap();
        engine.commit(writer, changes).unwrap();
        for (epoch, before) in &seen {
            assert_eq!(&dump(meta, At::Epoch(*epoch)), before, "epoch {epoch} after step {number}");
        }
        assert_eq!(engine.findings(), [""; 0]);
    }
    assert_eq!(paths(meta, At::Now), ["/d", "/d/g"]);
    assert_eq!(meta.purge_history().unwrap(), 0);
}

pub fn times_read_back_and_are_history(engine: &Fixture) {
    numbers(engine);
    let (meta, writer) = (&*engine.meta, engine.writer());
    let time = |secs, nanos| Time { secs, nanos };
    let with = |times| Attributes { times, ..attributes(FileKind::File, 0o644) };
    let set =
        |times| Change::Node { inode: 10, parent: R, attributes: with(times), root: root(1), keep: true };
    let mut seen = Vec::new();
    let all = [
        Some(OtherTimes { atime: time(-3, 5), ctime: time(-3, 5) }),
        Some(OtherTimes { atime: time(i64::MAX, 999_999_999), ctime: time(i64::MIN, 0) }),
        None,
        Some(OtherTimes { atime: time(1, 0), ctime: time(1_700_000_000, 999_999_999) }),
    ];
    for times in all {
        let changes = vec![set(times), name(R, "f", 10)];
        let done = engine.commit(writer, changes.clone()).unwrap();
        assert_eq!(done.created + done.changed, 1);
        assert_eq!(engine.commit(writer, changes).unwrap().changed, 0);
        let row = meta.create_snapshot(&format!("{times:?}"), 1, &[]).unwrap();
        seen.push((row.epoch, times));
        assert_eq!(meta.inode(At::Now, 10).unwrap().unwrap().attributes, with(times));
    }
    for (epoch, times) in seen {
        assert_eq!(meta.lookup(At::Epoch(epoch), R, b"f").unwrap().unwrap().attributes, with(times));
    }
    assert_eq!(meta.versions(10).unwrap(), [], "they are no content");
    // A put may bring them, too.
    engine.commit(writer, vec![file(R, "f", 10, 1), put(R, "g", 11, with(all[0]), root(2))]).unwrap();
    assert_eq!(meta.inode(At::Now, 10).unwrap().unwrap().attributes, with(None));
    assert_eq!(meta.inode(At::Now, 11).unwrap().unwrap().attributes, with(all[0]));
}
