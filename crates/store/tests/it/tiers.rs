//! Stores whose packs lie in several tiers: filled in order, moved down while others read and
//! write, and whole after any interruption of a run.
#![cfg(feature = "testing")]

use crate::gc_support;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use gc_support::{
    collect, committed, content, judge, put_bytes, read, remove, scratch, small_packs, thorough,
};
use outrigger_format::PackId;
use outrigger_store::backend::{
    Access, Backend, LocalBackend, Location, Place as Opened, Tier, TieredBackend,
};
use outrigger_store::check::{CheckOptions, CheckProgress, check};
use outrigger_store::meta::At;
use outrigger_store::read::whereabouts::packs_of;
use outrigger_store::rebalance::{RebalanceOptions, RebalanceProgress, RebalanceReport, rebalance};
use outrigger_store::testing::{Fault, FaultyBackend, Op, Plan};
use outrigger_store::tree::StorePath;
use outrigger_store::{ErrorKind, Result, Store, StoreConfig};
use outrigger_workload::postgres::Server;
use outrigger_workload::spaced;

/// A store with a fast and a large tier.
struct Place {
    dir: tempfile::TempDir,
    postgres: Option<(&'static Server, String)>,
}

/// One for each engine of metadata that there is here.
fn places(fill: &str) -> Vec<Place> {
    let mut places = vec![Place { dir: scratch(), postgres: None }];
    if let Some(server) = Server::shared() {
        places.push(Place { dir: scratch(), postgres: Some((server, server.fresh())) });
    }
    for place in &places {
        let texts = [
            format!("file:{}?fill={fill}", place.fast().display()),
            format!("file:{}", place.large().display()),
        ];
        let packs = Some(Location::parse_all(&texts).unwrap());
        drop(Store::init(&place.url(), &StoreConfig { packs, ..small_packs() }).unwrap());
    }
    places
}

impl Place {
    fn url(&self) -> PathBuf {
        match &self.postgres {
            Some((server, schema)) => server.url(schema).into(),
            None => self.dir.path().join("store"),
        }
    }

    fn open(&self) -> Store {
        Store::open(&self.url(), false).unwrap()
    }

    fn fast(&self) -> PathBuf {
        self.dir.path().join("fast")
    }

    fn large(&self) -> PathBuf {
        self.dir.path().join("large")
    }

    fn packs(&self) -> (BTreeSet<PackId>, BTreeSet<PackId>) {
        (ids(&self.fast()), ids(&self.large()))
    }

    /// A store whose tiers fail as planned.
    fn failing(&self, above: Plan, below: Plan) -> Store {
        let mut store = self.open();
        let Some(Location::Tiers(tiers)) = store.config.packs.clone() else { panic!("it has tiers") };
        let open = |path: &Path, plan: Plan| -> Arc<dyn Backend> {
            Arc::new(FaultyBackend::new(LocalBackend::open_shared(path, Access::default()).unwrap(), plan))
        };
        let opened = |tier: &Tier, backend| Opened::new(tier.clone(), backend);
        let places =
            vec![opened(&tiers[0], open(&self.fast(), above)), opened(&tiers[1], open(&self.large(), below))];
        store.backend = Arc::new(TieredBackend::new(places));
        store
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.postgres.is_some()
            && let Ok(store) = Store::open(&self.url(), true)
        {
            let _ = std::fs::remove_dir_all(store.dir());
        }
    }
}

fn ids(dir: &Path) -> BTreeSet<PackId> {
    let backend = LocalBackend::open_shared(dir, Access::default()).unwrap();
    backend.list().unwrap().into_iter().collect()
}

fn run(store: &Store, to_fill: Option<u64>) -> Result<RebalanceReport> {
    let options = RebalanceOptions { to_fill, ..RebalanceOptions::default() };
    rebalance(store, &options, &RebalanceProgress::default())
}

fn is_clean(store: &Store) {
    let options = CheckOptions { read_data: true, repair: false, threads: 2 };
    let report = check(store, &options, &CheckProgress::default()).unwrap();
    assert!(report.findings.is_empty(), "{:?}", report.findings);
}

fn fill(store: &Store) {
    for seed in 0..6 {
        put_bytes(store, &format!("f{seed}"), content(seed, 30)).unwrap();
    }
}

fn has_all(store: &Store) {
    for seed in 0..6 {
        assert_eq!(judge(&read(store, &format!("f{seed}"))), None, "f{seed}");
    }
}

#[test]
fn the_fast_tier_is_filled_first_and_emptied_downwards() {
    for place in places("1M") {
        let store = place.open();
        fill(&store);
        let (fast, large) = place.packs();
        assert!(!fast.is_empty() && !large.is_empty(), "{fast:?} {large:?}");
        assert!(fast.is_disjoint(&large));
        assert!(fast.first() < large.first(), "the first ones went there");
        has_all(&store);
        // The dry run, and the real one.
        let options = RebalanceOptions { dry_run: true, to_fill: Some(0), ..RebalanceOptions::default() };
        let told = rebalance(&store, &options, &RebalanceProgress::default()).unwrap();
        assert_eq!((place.packs(), told.packs), ((fast.clone(), large.clone()), fast.len() as u64));
        let done = run(&store, Some(0)).unwrap();
        assert_eq!((done.packs, done.bytes), (told.packs, told.bytes));
        assert_eq!(done.tiers, told.tiers);
        assert_eq!(done.problems, [""; 0]);
        assert_eq!(place.packs(), (BTreeSet::new(), &fast | &large));
        has_all(&store);
        assert_eq!(run(&store, Some(0)).unwrap().packs, 0);
        drop(store);
        let store = place.open();
        has_all(&store);
        is_clean(&store);
        // There is room above again.
        put_bytes(&store, "new", content(99, 3)).unwrap();
        assert!(!place.packs().0.is_empty());
        remove(&store, "f0").unwrap();
        remove(&store, "f1").unwrap();
        collect(&store, &thorough()).unwrap();
        let kept: BTreeSet<PackId> = committed(&store).iter().map(|row| row.id).collect();
        let (fast, large) = place.packs();
        assert_eq!(&fast | &large, kept, "what was reclaimed is gone from all tiers");
        is_clean(&store);
    }
}

#[test]
fn a_store_with_one_place_has_nothing_to_move() {
    let dir = scratch();
    let store = gc_support::init(dir.path());
    assert_eq!(run(&store, None).unwrap_err().kind(), ErrorKind::Invalid);
}

/// Which way packs are moved.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    Down,
    Up,
}

fn move_all(store: &Store, way: Way) -> Result<RebalanceReport> {
    let (up, to_fill) = match way {
        Way::Down => (false, Some(0)),
        Way::Up => (true, None),
    };
    rebalance(
        store,
        &RebalanceOptions { up, to_fill, ..RebalanceOptions::default() },
        &RebalanceProgress::default(),
    )
}

/// Each call to either tier fails once, before or after it was done; afterwards everything is
/// readable, and the next run finishes. Over both engines of metadata, in both directions.
#[test]
fn interrupted_anywhere_it_goes_on() {
    for place in places("1G") {
        fill(&place.open());
        let all = place.packs().0;
        assert!(all.len() > 4);
        interrupted(&place, &all, Way::Down);
        move_all(&place.open(), Way::Down).unwrap();
        interrupted(&place, &all, Way::Up);
        is_clean(&place.open());
    }
}

/// All packs lie in one tier, and do so again at the end.
fn interrupted(place: &Place, all: &BTreeSet<PackId>, way: Way) {
    let other = if way == Way::Down { Way::Up } else { Way::Down };
    let mut rounds = 0;
    for (is_from, op) in [
        (true, Op::Read),
        (true, Op::Remove),
        (true, Op::Len),
        (false, Op::Create),
        (false, Op::Append),
        (false, Op::Seal),
        (false, Op::Len),
    ] {
        for n in (1..=3).step_by(spaced(2)) {
            for fault in [Fault::Fail(ErrorKind::Io), Fault::FailAfter(ErrorKind::Io)] {
                let plan = Plan::new(1).nth(op, n, fault);
                let is_above = is_from == (way == Way::Down);
                let plans = if is_above { (plan, Plan::new(1)) } else { (Plan::new(1), plan) };
                let store = place.failing(plans.0, plans.1);
                rounds += u32::from(move_all(&store, way).is_err());
                drop(store);
                // A crash leaves exactly the present state.
                let store = place.open();
                let (above, below) = place.packs();
                assert_eq!(&above | &below, *all, "{way:?} {op:?} {n} {fault:?}");
                has_all(&store);
                let report = move_all(&store, way).unwrap();
                assert_eq!(report.problems, [""; 0]);
                let done = if way == Way::Down {
                    (BTreeSet::new(), all.clone())
                } else {
                    (all.clone(), BTreeSet::new())
                };
                assert_eq!(place.packs(), done, "{way:?} {op:?} {n} {fault:?}");
                has_all(&store);
                // Back again, for the next round.
                move_all(&store, other).unwrap();
                has_all(&store);
            }
        }
    }
    assert!(rounds > 20, "only {rounds} runs failed");
}

/// A run in the other direction also finishes an interrupted move.
#[test]
fn a_run_in_the_other_direction_finishes_what_was_interrupted() {
    for place in places("1G") {
        fill(&place.open());
        let all = place.packs().0;
        let plan = || Plan::new(1).nth(Op::Remove, 2, Fault::Fail(ErrorKind::Io));
        let both = || {
            let (above, below) = place.packs();
            &above & &below
        };
        assert!(move_all(&place.failing(plan(), Plan::new(1)), Way::Down).is_err());
        assert_eq!(both().len(), 1);
        assert_eq!(move_all(&place.open(), Way::Up).unwrap().problems, [""; 0]);
        assert_eq!(place.packs(), (all.clone(), BTreeSet::new()));
        move_all(&place.open(), Way::Down).unwrap();
        assert!(move_all(&place.failing(Plan::new(1), plan()), Way::Up).is_err());
        assert_eq!(both().len(), 1);
        move_all(&place.open(), Way::Down).unwrap();
        assert_eq!(place.packs(), (BTreeSet::new(), all));
        is_clean(&place.open());
    }
}

/// Up to the bound and no further, so that the next run down has nothing to do.
#[test]
fn the_newest_come_up_as_far_as_there_is_room() {
    for place in places("1M") {
        let store = place.open();
        fill(&store);
        move_all(&store, Way::Down).unwrap();
        let all = place.packs().1;
        let options = RebalanceOptions { up: true, dry_run: true, ..RebalanceOptions::default() };
        let told = rebalance(&store, &options, &RebalanceProgress::default()).unwrap();
        assert_eq!(place.packs().1, all, "nothing was moved");
        let done = move_all(&store, Way::Up).unwrap();
        assert_eq!((done.packs, done.bytes, &done.tiers), (told.packs, told.bytes, &told.tiers));
        let (fast, large) = place.packs();
        assert!(!fast.is_empty() && !large.is_empty(), "{fast:?} {large:?}");
        assert!(fast.first() > large.last(), "the newest ones");
        assert!(done.tiers[0].bytes_after <= 1 << 20, "{done:?}");
        has_all(&store);
        assert_eq!(run(&store, None).unwrap().packs, 0, "it is not above its bound");
        assert_eq!(move_all(&store, Way::Up).unwrap().packs, 0);
        is_clean(&store);
    }
}

/// Only the packs that a file needs, though others are newer.
#[test]
fn what_is_asked_for_comes_up() {
    let place = places("1G").swap_remove(0);
    let store = place.open();
    fill(&store);
    move_all(&store, Way::Down).unwrap();
    let path = StorePath::parse(b"f0").unwrap();
    let inode = outrigger_store::tree::require(&*store.meta, At::Now, &path).unwrap();
    let needed: BTreeSet<_> = packs_of(&store, At::Now, &inode).unwrap().into_iter().collect();
    let options = RebalanceOptions { up: true, path: Some(path), ..RebalanceOptions::default() };
    rebalance(&store, &options, &RebalanceProgress::default()).unwrap();
    let (fast, large) = place.packs();
    assert_eq!(fast, needed);
    assert!(!large.is_empty());
    has_all(&store);
}

/// An unfinished copy of a run that was killed on the way up counts as no pack, and the next run
/// removes it.
#[test]
fn an_unfinished_copy_above_is_never_read() {
    let place = places("1G").swap_remove(0);
    fill(&place.open());
    move_all(&place.open(), Way::Down).unwrap();
    let id = *place.packs().1.first().unwrap();
    let above = LocalBackend::open_shared(&place.fast(), Access::default()).unwrap();
    let mut writer = above.create_unseen(id).unwrap().unwrap();
    writer.append(&[std::io::IoSlice::new(b"half")]).unwrap();
    std::mem::forget(writer);
    let left = place.fast().join(format!("packs/unseen/{id}.pack"));
    assert!(left.exists());
    let store = place.open();
    has_all(&store);
    is_clean(&store);
    assert!(move_all(&store, Way::Up).unwrap().packs > 4);
    assert!(!left.exists() && place.packs().1.is_empty());
    has_all(&store);
}

/// The one that is damaged is not taken for a copy that was interrupted: the other one may be.
#[test]
fn damage_above_is_not_written_over_on_the_way_up() {
    let place = places("1G").swap_remove(0);
    let store = place.open();
    fill(&store);
    let id = *place.packs().0.first().unwrap();
    let name = format!("packs/{:02x}/{id}.pack", id.0 & 0xff);
    let mut bytes = std::fs::read(place.fast().join(&name)).unwrap();
    std::fs::create_dir_all(place.large().join(&name).parent().unwrap()).unwrap();
    std::fs::write(place.large().join(&name), &bytes[..bytes.len() / 2]).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(place.fast().join(&name), &bytes).unwrap();
    let report = move_all(&store, Way::Up).unwrap();
    assert!(report.problems[0].contains(&id.to_string()), "{report:?}");
    assert!(std::fs::read(place.fast().join(&name)).unwrap() == bytes);
}

/// A copy that a killed run left unfinished below.
#[test]
fn an_unfinished_copy_is_made_anew() {
    let place = places("1G").swap_remove(0);
    let store = place.open();
    fill(&store);
    let id = *place.packs().0.first().unwrap();
    let name = format!("packs/{:02x}/{id}.pack", id.0 & 0xff);
    let whole = std::fs::read(place.fast().join(&name)).unwrap();
    std::fs::create_dir_all(place.large().join(&name).parent().unwrap()).unwrap();
    std::fs::write(place.large().join(&name), &whole[..whole.len() / 2]).unwrap();
    drop(store);
    let store = place.open();
    has_all(&store);
    // This move is finished, whatever else is to be moved.
    let report = run(&store, Some(u64::MAX)).unwrap();
    assert_eq!((report.packs, report.bytes), (1, whole.len() as u64));
    assert_eq!(std::fs::read(place.large().join(&name)).unwrap(), whole);
    assert!(!place.fast().join(&name).exists());
    has_all(&store);
    is_clean(&store);
}

#[test]
fn damage_is_not_moved() {
    let place = places("1G").swap_remove(0);
    let store = place.open();
    fill(&store);
    let id = *place.packs().0.first().unwrap();
    let path = place.fast().join(format!("packs/{:02x}/{id}.pack", id.0 & 0xff));
    let mut bytes = std::fs::read(&path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    let report = run(&store, Some(0)).unwrap();
    assert!(report.problems[0].contains(&id.to_string()), "{report:?}");
    assert_eq!(place.packs().0, BTreeSet::from([id]), "all others were moved");
}

/// Readers and writers go on while packs move, over both engines of metadata.
#[test]
fn others_go_on_meanwhile() {
    for place in places("1G") {
        fill(&place.open());
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let reading = scope.spawn(|| {
                let mut rounds = 0;
                while !stop.load(Ordering::Relaxed) || rounds < 3 {
                    has_all(&place.open());
                    rounds += 1;
                }
            });
            let writing = scope.spawn(|| {
                let store = place.open();
                let mut seed = 100;
                while !stop.load(Ordering::Relaxed) || seed < 104 {
                    put_bytes(&store, &format!("w{seed}"), content(seed, 4)).unwrap();
                    assert_eq!(judge(&read(&store, &format!("w{seed}"))), None);
                    seed += 1;
                }
            });
            let store = place.open();
            for way in [Way::Down, Way::Up, Way::Down, Way::Up, Way::Down, Way::Up, Way::Down] {
                move_all(&store, way).unwrap();
            }
            stop.store(true, Ordering::Relaxed);
            reading.join().unwrap();
            writing.join().unwrap();
        });
        let store = place.open();
        has_all(&store);
        is_clean(&store);
    }
}

/// While a collector is at work nothing is moved, and the other way round.
#[test]
fn the_collector_is_alone() {
    let place = places("1G").swap_remove(0);
    let store = place.open();
    fill(&store);
    let other = place.open();
    let session = other.session(outrigger_store::meta::SessionKind::Collector, "gc").unwrap();
    other.meta.take_collector(session.id()).unwrap();
    assert_eq!(run(&store, Some(0)).unwrap_err().kind(), ErrorKind::Busy);
    other.meta.release_collector(session.id()).unwrap();
    drop(session);
    assert!(run(&store, Some(0)).unwrap().packs > 0);
}
