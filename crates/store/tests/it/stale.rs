//! A database that is older than its packs loses nothing: not by the collector, not by repairs, not
//! by puts into it.
#![cfg(feature = "testing")]

use crate::gc_support;

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use gc_support::{collect, init, open, put_bytes, read, remove, scratch, small_packs, thorough, unique};
use outrigger_format::catalogue::Record;
use outrigger_format::{PackId, PackKind};
use outrigger_store::backend::Location;
use outrigger_store::check::{CheckOptions, CheckProgress, CheckReport, check};
use outrigger_store::copy::{CopyOptions, CopyProgress, copy};
use outrigger_store::gc::GcOptions;
use outrigger_store::meta::SessionKind;
use outrigger_store::recover::{RecoverProgress, recover};
use outrigger_store::session::Session;
use outrigger_store::testing::{Fault, FaultyBackend, Op, Plan, Wrapped};
use outrigger_store::write::append_records;
use outrigger_store::{ErrorKind, Store, StoreConfig};

fn keep_database(dir: &Path) -> Vec<u8> {
    let store = open(dir);
    store.meta.tidy().unwrap();
    drop(store);
    std::fs::read(dir.join("store/meta.db")).unwrap()
}

fn put_back(dir: &Path, database: &[u8]) {
    for name in ["meta.db-wal", "meta.db-shm"] {
        let _ = std::fs::remove_file(dir.join("store").join(name));
    }
    std::fs::write(dir.join("store/meta.db"), database).unwrap();
}

fn run_check(store: &Store, repair: bool) -> CheckReport {
    let options = CheckOptions { read_data: true, repair, threads: 2 };
    check(store, &options, &CheckProgress::default()).unwrap()
}

/// A store in which `a` was stored, then a copy of the database made, then `b` stored and `a`
/// stored again under another name; and the copy put back.
fn aged(dir: &Path) -> Vec<PackId> {
    let store = init(dir);
    put_bytes(&store, "a", unique(1, 300_000)).unwrap();
    put_bytes(&store, "gone", unique(3, 300_000)).unwrap();
    remove(&store, "gone").unwrap();
    drop(store);
    let database = keep_database(dir);
    let store = open(dir);
    put_bytes(&store, "b", unique(2, 300_000)).unwrap();
    // Garbage of the old database is in use in the new one.
    put_bytes(&store, "again", unique(3, 300_000)).unwrap();
    let packs = store.backend.list().unwrap();
    drop(store);
    put_back(dir, &database);
    packs
}

fn recovered(dir: &Path) -> Store {
    let report = recover(&dir.join("store"), &RecoverProgress::default()).unwrap();
    assert!(report.problems.is_empty(), "{report:?}");
    let store = open(dir);
    assert_eq!(read(&store, "a"), unique(1, 300_000));
    assert_eq!(read(&store, "b"), unique(2, 300_000));
    assert_eq!(read(&store, "again"), unique(3, 300_000));
    assert_eq!(run_check(&store, false).damaged, 0);
    store
}

#[test]
fn nothing_is_reclaimed_and_recover_has_it_all() {
    let dir = scratch();
    let packs = aged(dir.path());
    let store = open(dir.path());
    for options in [thorough(), thorough(), GcOptions { dry_run: true, ..thorough() }] {
        let error = collect(&store, &options).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Damaged);
        assert!(error.to_string().contains("recover"), "{error}");
        assert_eq!(store.backend.list().unwrap(), packs);
    }
    for repair in [false, true, true] {
        let report = run_check(&store, repair);
        assert_eq!(report.damaged, 1, "{report:?}");
        assert!(report.findings[0].what.contains("recover"), "{report:?}");
        assert_eq!(store.backend.list().unwrap(), packs);
    }
    let options = CopyOptions {
        to: dir.path().join("copy"),
        packs: None,
        threads: 1,
        verify: false,
        encryption: Default::default(),
    };
    let refused = copy(&store, &options, &CopyProgress::default()).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Damaged);
    drop(store);
    let store = recovered(dir.path());
    collect(&store, &thorough()).unwrap();
    assert_eq!(read(&store, "b"), unique(2, 300_000));
}

#[test]
fn what_is_stored_meanwhile_takes_no_number_twice() {
    let dir = scratch();
    let packs = aged(dir.path());
    let store = open(dir.path());
    for number in 10..13 {
        put_bytes(&store, &format!("new{number}"), unique(number, 100_000)).unwrap();
        assert!(collect(&store, &thorough()).is_err());
    }
    let all = store.backend.list().unwrap();
    assert!(packs.iter().all(|pack| all.contains(pack)), "{packs:?} in {all:?}");
    let new = all.iter().filter(|id| !packs.contains(id));
    assert!(new.clone().count() >= 6 && new.into_iter().all(|id| id > packs.last().unwrap()), "{all:?}");
    drop(store);
    let store = recovered(dir.path());
    for number in 10..13 {
        assert_eq!(read(&store, &format!("new{number}")), unique(number, 100_000));
    }
}

#[test]
fn intents_for_packs_of_a_lost_history_do_not_sweep_them() {
    let dir = scratch();
    let packs = aged(dir.path());
    let store = open(dir.path());
    // As a program did that did not look: it announced ids that were taken, and failed.
    let session = Session::open(&store.meta, SessionKind::Writer, None, "failed".into()).unwrap();
    let next = store.meta.counters().unwrap().next_pack;
    let lost: Vec<PackId> = packs.iter().copied().filter(|id| id.0 >= next).collect();
    let announced = store.meta.announce_packs(session.id(), PackKind::Meta, lost.len() as u32, 0).unwrap();
    assert_eq!(announced, lost);
    drop(session);
    for _ in 0..2 {
        assert_eq!(collect(&store, &thorough()).unwrap_err().kind(), ErrorKind::Damaged);
        assert_eq!(run_check(&store, true).damaged, 1);
        assert_eq!(store.backend.list().unwrap(), packs);
    }
    drop(store);
    recovered(dir.path());
}

#[test]
fn a_taken_name_is_passed_by_and_its_intent_withdrawn() {
    let dir = scratch();
    let store = init(dir.path());
    let session = store.session(SessionKind::Writer, "test").unwrap();
    let taken = PackId(store.meta.counters().unwrap().next_pack);
    // Another client's, after the session has looked.
    store.backend.create(taken).unwrap().seal().unwrap();
    let record = Record::Forget { name: b"none".to_vec() };
    append_records(&store, &session, std::iter::once(Ok(record))).unwrap();
    let rows = store.meta.packs().unwrap();
    assert!(!rows.is_empty() && rows.iter().all(|row| row.id > taken), "{rows:?}");
    assert_eq!(store.backend.len(taken).unwrap(), Some(0));
    drop(session);
}

/// Replaces the store's packs by an engine that fails as `plan` says, and counts.
fn by_way_of(store: &mut Store, plan: Plan) -> FaultyBackend {
    let faulty = FaultyBackend::new(Wrapped::over(Arc::clone(&store.backend)), plan);
    store.backend = Arc::new(faulty.clone());
    faulty
}

/// Two databases that were one until something was stored, each with a directory of its own, over
/// the same packs.
fn parted(dir: &Path) -> [Store; 2] {
    let packs = Some(Location::parse(&format!("file:{}", dir.join("packs").display())).unwrap());
    let [one, two] = ["one", "two"].map(|name| dir.join(name));
    let store = Store::init(&one, &StoreConfig { packs, ..small_packs() }).unwrap();
    put_bytes(&store, "common", unique(1, 300_000)).unwrap();
    store.meta.tidy().unwrap();
    drop(store);
    std::fs::create_dir(&two).unwrap();
    for name in ["meta.db", "store.toml"] {
        std::fs::copy(one.join(name), two.join(name)).unwrap();
    }
    [one, two].map(|dir| Store::open(&dir, false).unwrap())
}

#[test]
fn what_another_database_has_stored_under_a_number_that_was_announced_stays() {
    let dir = scratch();
    let [mut one, two] = parted(dir.path());
    // Writers of the one end after they have announced packs and before they have made any …
    let failing = by_way_of(&mut one, Plan::new(0).calls(Op::Create, .., Fault::Fail(ErrorKind::Io)));
    while one.meta.packs().unwrap().iter().filter(|row| !row.is_committed()).count() < 8 {
        put_bytes(&one, "never", unique(2, 100_000)).unwrap_err();
    }
    failing.set_plan(Plan::new(0));
    // … and those of the other get the same numbers.
    let before = two.backend.list().unwrap();
    put_bytes(&two, "b", unique(3, 300_000)).unwrap();
    let mut new = two.backend.list().unwrap();
    new.retain(|id| !before.contains(id));
    let known = one.meta.packs().unwrap();
    assert!(new.len() >= 2 && new.iter().all(|id| known.iter().any(|row| row.id == *id)), "{new:?}");
    let packs = two.backend.list().unwrap();
    for _ in 0..2 {
        let error = collect(&one, &thorough()).unwrap_err();
        assert!(error.kind() == ErrorKind::Damaged && error.to_string().contains("recover"), "{error}");
        assert_eq!(run_check(&one, true).damaged, 1);
        assert_eq!(two.backend.list().unwrap(), packs);
    }
    assert_eq!(run_check(&two, false).damaged, 0);
    collect(&two, &thorough()).unwrap();
    assert_eq!(read(&two, "b"), unique(3, 300_000));
}

#[test]
fn an_open_store_lists_its_packs_for_the_first_writer_alone() {
    let dir = scratch();
    let mut store = init(dir.path());
    put_bytes(&store, "a", unique(1, 100_000)).unwrap();
    drop(store);
    store = open(dir.path());
    let counted = by_way_of(&mut store, Plan::new(0));
    for number in 0..5 {
        drop(store.session(SessionKind::Writer, "test").unwrap());
        put_bytes(&store, &format!("b{number}"), unique(number, 1_000)).unwrap();
    }
    assert_eq!(counted.calls(Op::List), 1);
    // A session that removes packs always looks.
    collect(&store, &thorough()).unwrap();
    assert!(counted.calls(Op::List) > 1);
}

/// The cost of opening a session that writes. For figures: `PACKS=100000 cargo test -p
/// outrigger-store --all-features --test it the_cost_of_a_session -- --nocapture`.
#[test]
fn the_cost_of_a_session_is_not_that_of_the_packs() {
    let packs: u64 = std::env::var("PACKS").ok().and_then(|text| text.parse().ok()).unwrap_or(500);
    let dir = scratch();
    drop(init(dir.path()));
    for id in (1..=packs).map(PackId) {
        let below = dir.path().join("store/packs").join(format!("{:02x}", id.0 as u8));
        std::fs::create_dir_all(&below).unwrap();
        std::fs::write(below.join(format!("{id}.pack")), "").unwrap();
    }
    let store = open(dir.path());
    let mut timed = (0..20).map(|_| {
        let began = Instant::now();
        drop(store.session(SessionKind::Writer, "test").unwrap());
        began.elapsed()
    });
    let (first, later) = (timed.next().unwrap(), timed.min().unwrap());
    println!("{packs} packs: the first session {first:?}, the best of those after it {later:?}");
}
