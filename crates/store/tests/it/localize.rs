//! Gathering data on one host: it gets there, and nothing else of it changes; failures lose
//! nothing, and the next run goes on; and an engine that cannot place packs is reported.
#![cfg(feature = "testing")]

use crate::gc_support;

use std::io::Cursor;
use std::sync::Arc;

use gc_support::*;
use outrigger_store::backend::LocalBackend;
use outrigger_store::gc::{GcProgress, Localize, LocalizeReport, localize};
use outrigger_store::local::put::{PutOptions, Source, put};
use outrigger_store::meta::At;
use outrigger_store::read::whereabouts::whereabouts;
use outrigger_store::testing::{Fault, FaultyBackend, Op, Plan, Wrapped, spread};
use outrigger_store::tree::require;
use outrigger_store::write::Progress;
use outrigger_store::{ErrorKind, Result, Store};

const HOSTS: [&str; 3] = ["h0", "h1", "h2"];

/// Bytes at `target`, and those of them for which `host` is the first.
fn share(store: &Store, target: &str, host: &str) -> (u64, u64) {
    let found = whereabouts(store, At::Now, &require(&*store.meta, At::Now, &path(target)).unwrap()).unwrap();
    (found.bytes, found.hosts.get(host).map_or(0, |share| share.bytes_first))
}

fn gather(store: &Store, target: &str, host: Option<&str>) -> Result<LocalizeReport> {
    let how = Localize::new(store, &path(target), host)?;
    localize(store, &how, &thorough(), &GcProgress::default())
}

/// Files of two trees, each put stored by itself, and two in one pack.
fn filled(store: &Store) {
    for seed in 0..6 {
        put_bytes(store, &format!("d/{seed}"), content(seed, 40)).unwrap();
        put_bytes(store, &format!("e/{seed}"), unique(100 + seed, 200_000)).unwrap();
    }
    let together = [("d/with", 7), ("e/with", 8)]
        .map(|(target, seed)| (Source::Stream(Box::new(Cursor::new(content(seed, 30)))), path(target)));
    put(store, together.into(), &PutOptions::default(), 2, &Arc::new(Progress::default())).unwrap();
}

fn assert_content(store: &Store) {
    for seed in 0..6 {
        assert!(read(store, &format!("d/{seed}")) == content(seed, 40), "{seed}");
        assert!(read(store, &format!("e/{seed}")) == unique(100 + seed, 200_000), "{seed}");
    }
    assert!(read(store, "d/with") == content(7, 30) && read(store, "e/with") == content(8, 30));
}

#[test]
fn a_tree_is_gathered_and_its_contents_are_what_they_were() {
    let dir = scratch();
    let mut store = init(dir.path());
    spread(&mut store, &HOSTS);
    filled(&store);
    outrigger_store::ops::snapshots::create(&store, Some("before"), "before", &[]).unwrap();
    put_bytes(&store, "d/0", content(50, 40)).unwrap();
    let (bytes, first) = share(&store, "d", "h1");
    assert!(first < bytes, "it is scattered");
    let inode = |target: &str| require(&*store.meta, At::Now, &path(target)).unwrap();
    let before = inode("d/1");
    let how = Localize::new(&store, &path("d"), Some("h1")).unwrap();
    let dry = localize(
        &store,
        &how,
        &outrigger_store::gc::GcOptions { dry_run: true, ..thorough() },
        &GcProgress::default(),
    )
    .unwrap();
    assert!(dry.dry_run && dry.packs_left > 0 && dry.before == dry.after, "{dry:?}");
    assert_eq!(share(&store, "d", "h1"), (bytes, first), "nothing has moved");

    let report = gather(&store, "d", Some("h1")).unwrap();
    assert_eq!((report.host.as_str(), report.packs_left), ("h1", 0), "{report:?}");
    assert!(report.packs > 0 && report.unreadable.is_empty(), "{report:?}");
    assert_eq!(report.before.hosts["h1"].bytes_first, first);
    assert_eq!((report.after.bytes, report.after.hosts["h1"].bytes_first), (bytes, bytes));
    assert_eq!(share(&store, "d", "h1"), (bytes, bytes));
    // Chunks outside the tree are not moved along, though they lay beside it.
    let (all, there) = share(&store, "e", "h1");
    assert!(there < all);
    let (beside, dragged) = share(&store, "e/with", "h1");
    println!("of what lay in one pack with the tree: {dragged} of {beside}");
    let after = inode("d/1");
    assert_eq!((after.root, after.stamp), (before.root, before.stamp));
    assert!(read(&store, "d/0") == content(50, 40));
    put_bytes(&store, "d/0", content(0, 40)).unwrap();
    assert_content(&store);
    let then = At::Epoch(store.meta.snapshots().unwrap()[0].epoch);
    assert!(read_at(&store, then, "d/0").unwrap().unwrap() == content(0, 40), "an earlier version");
    assert_eq!(store.meta.check().unwrap(), [""; 0]);
    let again = gather(&store, "d/with", Some("h1")).unwrap();
    assert_eq!((again.packs, again.runs, again.before == again.after), (0, 1, true), "{again:?}");
    // A file, and the host that has most of it: it has all.
    assert_eq!(gather(&store, "d/1", None).unwrap().host, "h1");
    drop(store);
    assert_content(&open(dir.path()));
}

#[test]
fn who_fails_on_the_way_loses_nothing_and_another_run_goes_on() {
    for (op, fault) in [
        (Op::Create, Fault::Fail(ErrorKind::Io)),
        (Op::Append, Fault::Fail(ErrorKind::Full)),
        (Op::Seal, Fault::FailAfter(ErrorKind::Io)),
        (Op::Remove, Fault::Fail(ErrorKind::Io)),
    ] {
        for call in [1, 2, 5] {
            let dir = scratch();
            let mut store = init(dir.path());
            spread(&mut store, &HOSTS);
            filled(&store);
            let faulty = Wrapped::over(Arc::new(LocalBackend::open(store.dir(), false, false).unwrap()))
                .spread_over(&HOSTS, None);
            store.backend = Arc::new(FaultyBackend::new(faulty, Plan::new(1).nth(op, call, fault)));
            let failed = gather(&store, "d", Some("h2"));
            let told = failed.as_ref().err().map(ToString::to_string);
            assert_content(&store);
            drop(store);
            let mut store = open(dir.path());
            spread(&mut store, &HOSTS);
            assert_content(&store);
            let report = gather(&store, "d", Some("h2")).unwrap();
            assert_eq!(report.packs_left, 0, "{op:?} {call} {told:?}: {report:?}");
            let (bytes, first) = share(&store, "d", "h2");
            assert_eq!(first, bytes, "{op:?} {call} {told:?}");
            assert_content(&store);
        }
    }
}

#[test]
fn where_packs_cannot_be_placed_that_is_said() {
    let dir = scratch();
    let mut store = init(dir.path());
    put_bytes(&store, "d/0", content(1, 10)).unwrap();
    for host in [Some("h0"), None] {
        let error = gather(&store, "d", host).unwrap_err();
        assert!(error.kind() == ErrorKind::Invalid && error.to_string().contains("rados://"), "{error}");
    }
    spread(&mut store, &HOSTS);
    let error = gather(&store, "d", Some("h9")).unwrap_err();
    assert!(error.kind() == ErrorKind::Invalid && error.to_string().contains("h0, h1, h2"), "{error}");
    assert_eq!(gather(&store, "nothing", Some("h0")).unwrap_err().kind(), ErrorKind::NotFound);
    // A file without data has it everywhere.
    put_bytes(&store, "empty", Vec::new()).unwrap();
    assert_eq!(gather(&store, "empty", None).unwrap().packs, 0);
}

#[test]
fn a_host_that_gets_no_packs_is_given_up() {
    let dir = scratch();
    let mut store = init(dir.path());
    store.backend = Arc::new(Wrapped::over(Arc::clone(&store.backend)).spread_over(&HOSTS, Some("h1")));
    filled(&store);
    let report = gather(&store, "d", Some("h1")).unwrap();
    assert!(report.packs_left > 0 && report.runs < 10, "{report:?}");
    assert_eq!(share(&store, "d", "h1").1, 0);
    assert_content(&store);
}
