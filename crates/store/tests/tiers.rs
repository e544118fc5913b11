//! Stores whose packs lie in several tiers: filled in order, moved down while others read and write, and whole whatever a run was interrupted by.
#![cfg(feature = "testing")]

mod gc_support;

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
use outrigger_store::rebalance::{RebalanceOptions, RebalanceProgress, RebalanceReport, rebalance};
use outrigger_store::testing::{Fault, FaultyBackend, Op, Plan};
use outrigger_store::{ErrorKind, Result, Store, StoreConfig};
use outrigger_workload::postgres::Server;

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
        // What would be done, and what is done.
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

/// Each call to either tier fails once, before or after it was done; afterwards everything is readable, and the next run finishes.
#[test]
fn interrupted_anywhere_it_goes_on() {
    let place = places("1G").swap_remove(0);
    let store = place.open();
    fill(&store);
    drop(store);
    let all = place.packs().0;
    assert!(all.len() > 4);
    let back = || {
        // Up again, for the next round.
        let (_, large) = place.packs();
        for id in large {
            let name = format!("packs/{:02x}/{id}.pack", id.0 & 0xff);
            std::fs::create_dir_all(place.fast().join(&name).parent().unwrap()).unwrap();
            std::fs::rename(place.large().join(&name), place.fast().join(&name)).unwrap();
        }
    };
    let mut rounds = 0;
    for (is_above, op) in [
        (true, Op::Read),
        (true, Op::Remove),
        (true, Op::Len),
        (false, Op::Create),
        (false, Op::Append),
        (false, Op::Seal),
        (false, Op::Len),
    ] {
        for n in 1..=3 {
            for fault in [Fault::Fail(ErrorKind::Io), Fault::FailAfter(ErrorKind::Io)] {
                let plan = Plan::new(1).nth(op, n, fault);
                let plans = if is_above { (plan, Plan::new(1)) } else { (Plan::new(1), plan) };
                let store = place.failing(plans.0, plans.1);
                let failed = run(&store, Some(0)).is_err();
                rounds += u32::from(failed);
                drop(store);
                // A crash leaves no more than what is there now.
                let store = place.open();
                has_all(&store);
                let report = run(&store, Some(0)).unwrap();
                assert_eq!(report.problems, [""; 0]);
                assert_eq!(place.packs(), (BTreeSet::new(), all.clone()), "{op:?} {n} {fault:?}");
                has_all(&store);
                drop(store);
                back();
            }
        }
    }
    assert!(rounds > 30, "only {rounds} runs failed");
    is_clean(&place.open());
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
    // Whatever is to be moved, this is finished.
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
            for _ in 0..6 {
                run(&store, Some(0)).unwrap();
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
