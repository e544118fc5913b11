//! Trees deeper than any limit that a walk could have, and directories that lie below themselves.

use crate::checking;
use crate::gc_support;

use gc_support::{collect, init, path, remove, thorough};
use outrigger_format::Root;
use outrigger_store::gc::GcOptions;
use outrigger_store::local::get::{GetOptions, restore};
use outrigger_store::meta::{At, Change, ROOT_INODE, SessionKind};
use outrigger_store::ops::diff::{Side, diff};
use outrigger_store::recover::{RecoverProgress, recover};
use outrigger_store::tree::listing;
use outrigger_store::tree::require;
use outrigger_store::write::{CommitWhen, Item, Progress, WriteOptions, Writer};
use outrigger_store::{Error, ErrorKind, Store, ops};

/// Deeper than a thread's stack is by recursion, too.
const DEPTH: u64 = 20_000;

/// Makes `depth` directories, each but `name` in the one before.
fn make_deep(store: &Store, name: &str, depth: u64) {
    let session = store.session(SessionKind::Writer, "test").unwrap();
    let options = WriteOptions { threads: 1, chunk_max: 64 << 10, commit: CommitWhen::AsItComes };
    let progress = std::sync::Arc::new(Progress::default());
    let mut writer = Writer::start(store, &session, &options, &progress);
    let inodes = store.meta.reserve_inodes(depth).unwrap();
    let root = store.meta.inode(At::Now, ROOT_INODE).unwrap().unwrap();
    let (mut parent, mut name) = (ROOT_INODE, name.as_bytes().to_vec());
    for inode in inodes {
        let attributes = root.attributes.clone();
        let (of, root) = (std::mem::replace(&mut name, b"d".to_vec()), Root::Empty);
        let change = Change::Put { parent, name: of, inode, attributes, root, stamp: 0, replace: false };
        writer.submit(Item::Change(change)).unwrap();
        parent = inode;
    }
    writer.finish().unwrap();
}

fn count(store: &Store, at: At) -> u64 {
    let mut entries = 0;
    listing::walk::<Error>(&*store.meta, at, ROOT_INODE, true, &mut |_, _| {
        entries += 1;
        Ok(())
    })
    .unwrap();
    entries
}

#[test]
fn any_depth_is_listed_compared_copied_collected_and_recovered() {
    let dir = gc_support::scratch();
    let store = init(dir.path());
    make_deep(&store, "a", DEPTH);
    let first = ops::snapshots::create(&store, Some("first"), "x", &[]).unwrap();
    ops::edit::copy(&store, None, &[path("a")], &path("b"), true, None).unwrap();
    assert_eq!(count(&store, At::Now), 2 * DEPTH);
    let (now, then) = (At::Now, At::Epoch(first.epoch));
    let (a, b) =
        (require(&*store.meta, now, &path("a")).unwrap(), require(&*store.meta, now, &path("b")).unwrap());
    let mut differences = 0;
    let mut tell = |_: &[u8], _, _: Option<&_>, _: Option<&_>| {
        differences += 1;
        Ok::<_, Error>(())
    };
    diff(&*store.meta, Side { at: now, inode: &a }, Side { at: now, inode: &b }, &mut tell).unwrap();
    diff(&*store.meta, Side { at: then, inode: &a }, Side { at: now, inode: &a }, &mut tell).unwrap();
    assert_eq!(differences, 0);
    // Until the catalogue is worth a rewrite.
    for _ in 0..4 {
        remove(&store, "b").unwrap();
        ops::edit::copy(&store, None, &[path("a")], &path("b"), true, None).unwrap();
    }
    let report = collect(&store, &GcOptions { catalogue_min: 0, ..thorough() }).unwrap();
    assert!(report.catalogue_compacted, "{report:?}");
    drop(store);
    std::fs::remove_file(dir.path().join("store/meta.db")).unwrap();
    let report = recover(&dir.path().join("store"), &RecoverProgress::default()).unwrap();
    assert!(report.problems.is_empty(), "{report:?}");
    let store = gc_support::open(dir.path());
    assert_eq!(count(&store, At::Now), 2 * DEPTH);
    let snapshots = store.meta.snapshots().unwrap();
    assert_eq!(count(&store, At::Epoch(snapshots[0].epoch)), DEPTH);
}

#[test]
fn a_directory_below_itself_ends_every_walk() {
    let dir = checking::scratch();
    let path = checking::make_store(dir.path());
    let store = checking::open(&path);
    let number = |name: &[u8]| {
        let path = outrigger_store::tree::StorePath::parse(name).unwrap();
        require(&*store.meta, At::Now, &path).unwrap().number
    };
    let (deep, er) = (number(b"tree/deep"), number(b"tree/deep/er"));
    drop(store);
    let db = outrigger_store::testing::database(&path.join("meta.db")).unwrap();
    let sql = "INSERT INTO dentry (parent, name, inode, epoch) SELECT ?1, ?2, ?3, epoch FROM dentry WHERE inode = ?1";
    assert_eq!(db.execute(sql, (er as i64, &b"again"[..], deep as i64)).unwrap(), 1);
    drop(db);
    let store = checking::open(&path);
    let tree =
        require(&*store.meta, At::Now, &outrigger_store::tree::StorePath::parse(b"tree").unwrap()).unwrap();
    let target = dir.path().join("target");
    let options = GetOptions { threads: 2, ..GetOptions::default() };
    let error = restore(&store, At::Now, &tree, &target, None, options, &Progress::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Damaged);
    assert!(error.to_string().contains("below itself"), "{error}");
    let walked = listing::walk::<Error>(&*store.meta, At::Now, ROOT_INODE, true, &mut |_, _| Ok(()));
    assert_eq!(walked.unwrap_err().kind(), ErrorKind::Damaged);
    let first = store.meta.snapshots().unwrap()[0].epoch;
    let root = |at| store.meta.inode(at, ROOT_INODE).unwrap().unwrap();
    let (old, new) = (root(At::Epoch(first)), root(At::Now));
    let sides = (Side { at: At::Epoch(first), inode: &old }, Side { at: At::Now, inode: &new });
    let compared = diff::<Error>(&*store.meta, sides.0, sides.1, &mut |_, _, _, _| Ok(()));
    assert_eq!(compared.unwrap_err().kind(), ErrorKind::Damaged);
    assert!(checking::run_check(&store, false).damaged > 0);
}

#[test]
fn what_is_named_below_another_is_removed_with_it() {
    let dir = gc_support::scratch();
    let store = init(dir.path());
    make_deep(&store, "d", 3);
    let all = [path("d"), path("d/d"), path("d"), path("d/d/d")];
    ops::edit::remove(&store, &all, true, None).unwrap();
    assert_eq!(count(&store, At::Now), 0);
}
