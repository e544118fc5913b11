//! The documented rules of `Change::IfName`, `Change::IfAttributes`, `Change::CompareAndSwap`,
//! `Change::Touch` and `Change::PinContent`.

use outrigger_format::catalogue::{Attributes, OtherTimes, Time};
use outrigger_format::{Domain, Root};
use outrigger_store::ErrorKind;
use outrigger_store::meta::{At, Change, Inode, ROOT_INODE};

use super::{Fixture, commit, dir, dir_node, dump, file, kind, link, name, node, remove_all, rename, root};

const R: u64 = ROOT_INODE;

fn numbers(engine: &Fixture) {
    engine.meta.raise_counters(1, 10_000, 1).unwrap();
}

fn expect(parent: u64, name: &str, inode: Option<u64>) -> Change {
    Change::IfName { parent, name: name.as_bytes().to_vec(), inode }
}

fn inode(engine: &Fixture, number: u64) -> Inode {
    engine.meta.inode(At::Now, number).unwrap().unwrap()
}

fn swap(was: &Inode, attributes: &Attributes, root: &Root, keep: bool) -> Change {
    let before = Box::new((was.attributes.clone(), was.root.clone()));
    let (attributes, root) = (attributes.clone(), root.clone());
    Change::CompareAndSwap { inode: was.number, parent: R, was: before, attributes, root, keep }
}

pub fn a_name_that_is_not_as_expected_refuses_the_commit(engine: &Fixture) {
    numbers(engine);
    let writer = engine.writer();
    engine.commit(writer, vec![expect(R, "a", None), file(R, "a", 10, 1), expect(R, "a", Some(10))]).unwrap();
    let before = dump(&*engine.meta, At::Now);
    for refused in [
        vec![expect(R, "a", None), file(R, "a", 11, 2)],
        vec![file(R, "b", 11, 2), expect(R, "a", Some(11))],
        vec![file(R, "b", 11, 2), expect(R, "c", Some(10))],
    ] {
        assert_eq!(kind(engine.commit(writer, refused)), ErrorKind::Changed);
    }
    assert_eq!(kind(engine.commit(writer, vec![expect(99, "a", None)])), ErrorKind::NotFound);
    assert_eq!(kind(engine.commit(writer, vec![expect(R, "..", None)])), ErrorKind::Invalid);
    assert_eq!(dump(&*engine.meta, At::Now), before, "all of it or nothing");
}

pub fn what_is_inherited_is_what_the_directory_has(engine: &Fixture) {
    numbers(engine);
    let writer = engine.writer();
    engine.commit(writer, vec![dir(R, "d", 10), dir(R, "e", 11)]).unwrap();
    let like = |attributes: &Attributes| Change::IfAttributes {
        inode: 10,
        attributes: Box::new(attributes.clone()),
    };
    let seen = inode(engine, 10).attributes;
    // Times do not count, and it may be changed in the same commit.
    let touch = Change::Touch { inode: 10, modified: true, time: Time { secs: 1 << 33, nanos: 0 } };
    engine.commit(writer, vec![like(&seen), file(10, "a", 12, 1), touch.clone()]).unwrap();
    engine.commit(writer, vec![like(&seen), file(10, "b", 13, 1)]).unwrap();
    let changed = Attributes { mode: seen.mode ^ 0o2000, ..inode(engine, 10).attributes };
    let others = [
        Attributes { gid: seen.gid + 1, ..changed.clone() },
        Attributes { xattrs: vec![(b"system.posix_acl_default".to_vec(), b"x".to_vec())], ..changed.clone() },
        seen.clone(),
    ];
    engine.commit(writer, vec![swap(&inode(engine, 10), &changed, &Root::Empty, false)]).unwrap();
    let before = dump(&*engine.meta, At::Now);
    for other in &others {
        let late = vec![file(10, "c", 14, 1), like(other), touch.clone()];
        assert_eq!(kind(engine.commit(writer, late)), ErrorKind::Changed);
    }
    // It is not there at all.
    engine.commit(writer, vec![Change::Remove { parent: R, name: b"e".to_vec(), recursive: false }]).unwrap();
    let gone = Change::IfAttributes { inode: 11, attributes: Box::new(seen) };
    assert_eq!(kind(engine.commit(writer, vec![gone])), ErrorKind::Changed);
    engine.commit(writer, vec![dir(R, "e", 11)]).unwrap();
    assert_eq!(dump(&*engine.meta, At::Now), before, "all of it or nothing");
    engine.commit(writer, vec![like(&changed), file(10, "c", 14, 1)]).unwrap();
}

pub fn what_was_seen_is_exchanged_and_nothing_else(engine: &Fixture) {
    numbers(engine);
    let writer = engine.writer();
    engine.commit(writer, vec![file(R, "a", 10, 1), dir(R, "d", 11)]).unwrap();
    let first = inode(engine, 10);
    let longer = Attributes { mode: 0o600, ..first.attributes.clone() };
    engine.commit(writer, vec![swap(&first, &longer, &root(2), true)]).unwrap();
    let second = inode(engine, 10);
    assert_eq!((&second.attributes, &second.root, second.stamp), (&longer, &root(2), 0));
    assert_eq!(engine.meta.versions(10).unwrap().len(), 1, "kept as asked for");
    // A client that saw the first one comes too late, whichever part has changed.
    for (seen, new) in [(&first, root(3)), (&Inode { root: first.root.clone(), ..second.clone() }, root(3))] {
        assert_eq!(kind(engine.commit(writer, vec![swap(seen, &longer, &new, true)])), ErrorKind::Changed);
    }
    engine.commit(writer, vec![swap(&second, &longer, &root(4), false)]).unwrap();
    assert_eq!(engine.meta.versions(10).unwrap().len(), 1, "replaced as asked for");
    let directory = inode(engine, 11);
    let as_file = Attributes { kind: first.attributes.kind, ..directory.attributes.clone() };
    let wrong = swap(&directory, &as_file, &Root::Empty, false);
    assert_eq!(kind(engine.commit(writer, vec![wrong])), ErrorKind::Invalid);
    let gone = Inode { number: 12, ..second };
    assert_eq!(kind(engine.commit(writer, vec![swap(&gone, &longer, &root(2), false)])), ErrorKind::NotFound);
    // If two on two connections saw the same state, one wins.
    let (seen, other) = (inode(engine, 10), engine.another());
    let another = other
        .open_session(outrigger_store::meta::SessionKind::Writer, &outrigger_store::testing::owner("b"), 1000)
        .unwrap()
        .0;
    commit(&*other, another, vec![swap(&seen, &longer, &root(5), false)], 8).unwrap();
    assert_eq!(kind(engine.commit(writer, vec![swap(&seen, &longer, &root(6), false)])), ErrorKind::Changed);
    assert_eq!(inode(engine, 10).root, root(5));
    engine.meta.create_snapshot("s", 9, &[]).unwrap();
    let epoch = engine.meta.snapshots().unwrap()[0].epoch;
    let seen = inode(engine, 10);
    engine.commit(writer, vec![swap(&seen, &first.attributes, &root(7), false)]).unwrap();
    assert_eq!(
        engine.meta.inode(At::Epoch(epoch), 10).unwrap().unwrap().root,
        root(5),
        "snapshots are exact"
    );
}

pub fn times_of_change_never_go_back(engine: &Fixture) {
    numbers(engine);
    let writer = engine.writer();
    engine.commit(writer, vec![dir(R, "d", 11)]).unwrap();
    let time = |secs| Time { secs, nanos: 5 };
    let touch = |modified, secs| Change::Touch { inode: 11, modified, time: time(secs) };
    let times = || {
        let attributes = inode(engine, 11).attributes;
        (attributes.mtime, attributes.times.unwrap())
    };
    let base = inode(engine, 11).attributes.mtime;
    engine.commit(writer, vec![touch(false, base.secs + 10)]).unwrap();
    let atime = base;
    assert_eq!(times(), (base, OtherTimes { atime, ctime: time(base.secs + 10) }));
    engine.commit(writer, vec![touch(true, base.secs + 20)]).unwrap();
    let at = time(base.secs + 20);
    assert_eq!(times(), (at, OtherTimes { atime, ctime: at }));
    engine.commit(writer, vec![touch(true, base.secs + 15), touch(false, base.secs)]).unwrap();
    assert_eq!(times(), (at, OtherTimes { atime, ctime: at }));
    engine.commit(writer, vec![Change::Touch { inode: 12, modified: true, time: at }]).unwrap();
}

/// The contents that a collector would keep.
fn roots(engine: &Fixture) -> Vec<Root> {
    let mut roots = Vec::new();
    engine
        .meta
        .visit_roots(&mut |root| {
            roots.push(root);
            Ok(())
        })
        .unwrap();
    roots
}

pub fn a_content_is_pinned_with_the_removal_of_its_last_name(engine: &Fixture) {
    numbers(engine);
    let writer = engine.writer();
    let pin = |links, content| Change::PinContent { inode: 10, links, root: root(content) };
    let remove = |name: &str| Change::Remove { parent: R, name: name.as_bytes().to_vec(), recursive: false };
    engine.commit(writer, vec![file(R, "a", 10, 1)]).unwrap();
    engine.commit(writer, vec![Change::Link { parent: R, name: b"b".to_vec(), inode: 10 }]).unwrap();
    for other in [pin(1, 1), pin(3, 1), pin(2, 2)] {
        assert_eq!(kind(engine.commit(writer, vec![other, remove("a")])), ErrorKind::Changed);
    }
    engine.commit(writer, vec![pin(2, 1), remove("a")]).unwrap();
    assert_eq!(roots(engine), [root(1)], "it has another name: nothing but that keeps it");
    assert_eq!(kind(engine.commit(writer, vec![pin(2, 1), remove("b")])), ErrorKind::Changed);
    assert_eq!(roots(engine), [root(1)], "what was refused pins nothing");
    engine.commit(writer, vec![pin(1, 1), remove("b")]).unwrap();
    assert_eq!(roots(engine), [root(1)], "the session keeps it");
    assert_eq!(kind(engine.commit(writer, vec![pin(1, 1)])), ErrorKind::Changed, "it is gone");
    assert_eq!(engine.findings(), [""; 0]);
    engine.meta.close_session(writer).unwrap();
    assert_eq!(roots(engine), []);
}

/// What lies in a directory with a key of its own has that key.
pub fn a_directory_of_a_domain_holds_nothing_else(engine: &Fixture) {
    numbers(engine);
    let writer = engine.writer();
    let within = |domain: u64, change: Change| match change {
        Change::Put { parent, name, inode, attributes, root, .. } => {
            let attributes = attributes.in_domain(Domain(domain));
            Change::Put { parent, name, inode, attributes, root, stamp: 0, replace: false }
        }
        Change::Node { inode, parent, attributes, root, keep } => {
            Change::Node { inode, parent, attributes: attributes.in_domain(Domain(domain)), root, keep }
        }
        other => other,
    };
    let tree = vec![
        within(7, dir(R, "own", 10)),
        within(7, file(10, "f", 11, 1)),
        within(7, dir(10, "d", 12)),
        within(8, dir(R, "other", 13)),
        file(R, "g", 14, 2),
        dir(R, "e", 15),
    ];
    engine.commit(writer, tree).unwrap();
    let cas = |domain: u64| {
        let was = engine.meta.inode(At::Now, 11).unwrap().unwrap();
        let attributes = was.attributes.clone().in_domain(Domain(domain));
        let was = Box::new((was.attributes, was.root));
        Change::CompareAndSwap { inode: 11, parent: 10, was, attributes, root: root(3), keep: false }
    };
    for refused in [
        vec![file(10, "x", 20, 1)],
        vec![within(8, file(10, "x", 20, 1))],
        vec![dir(12, "x", 20)],
        // Over what is there.
        vec![file(10, "f", 20, 3)],
        vec![file(10, "f", 11, 3)],
        vec![dir(10, "d", 12)],
        vec![dir(R, "own", 10)],
        vec![within(8, dir(R, "own", 10))],
        vec![link(10, "x", 14)],
        vec![rename(R, "g", 10, "x")],
        vec![rename(R, "e", 10, "x")],
        vec![rename(R, "other", 12, "x")],
        vec![cas(0)],
        vec![cas(8)],
        vec![within(0, node(10, 11, 3))],
        vec![node(10, 20, 3), name(10, "x", 20)],
        vec![name(10, "x", 14)],
        vec![within(7, dir_node(10, 20)), name(10, "x", 20), node(20, 21, 1), name(20, "y", 21)],
    ] {
        assert_eq!(kind(engine.commit(writer, refused.clone())), ErrorKind::Invalid, "{refused:?}");
    }
    for allowed in [
        vec![within(7, file(10, "x", 20, 1)), link(12, "x", 20), rename(10, "f", 12, "f")],
        vec![within(7, dir_node(10, 22)), name(10, "y", 22), within(7, node(22, 23, 1)), name(22, "y", 23)],
        vec![cas(7)],
        // A directory keeps its key elsewhere, and comes back.
        vec![rename(10, "d", R, "moved"), within(7, file(12, "z", 24, 1)), rename(R, "moved", 10, "d")],
        vec![remove_all(R, "other"), dir(R, "other", 25)],
    ] {
        engine.commit(writer, allowed.clone()).unwrap_or_else(|error| panic!("{allowed:?}: {error}"));
    }
    assert_eq!(engine.meta.inode(At::Now, 23).unwrap().unwrap().attributes.domain(), Domain(7));
}
