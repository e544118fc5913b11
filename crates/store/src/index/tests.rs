//! Tests of the index as a whole: against a model, over damaged files, with several handles, with equal prefixes.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use outrigger_clock::{Clock, NoRandom};
use outrigger_format::{ChunkKind, Fingerprint, Footer, FooterBuilder, PackId, Place, StoreId};

use super::{Index, IndexOptions, LoadFooter};
use crate::error::{Error, ErrorKind, Result};

/// SplitMix64: small, seeded, good enough.
pub(super) struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}

/// A fingerprint that differs with `n`; its prefix is one of `prefixes` many.
fn fingerprint(n: u64, prefixes: u64) -> Fingerprint {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&Rng(n % prefixes).next().to_be_bytes());
    bytes[8..16].copy_from_slice(&n.to_be_bytes());
    Fingerprint(bytes)
}

fn footer(id: PackId, fingerprints: &[Fingerprint]) -> Arc<Footer> {
    let mut builder = FooterBuilder::default();
    for (at, frame) in fingerprints.chunks(50).enumerate() {
        builder.push(64 + at as u32 * 100, ChunkKind::Data, frame);
    }
    Arc::new(builder.finish(id, 1 << 30).0)
}

/// The packs of a store, as its backend and database would know them.
#[derive(Clone, Default)]
struct Packs {
    live: Arc<Mutex<BTreeMap<PackId, Arc<Footer>>>>,
    dead: Arc<Mutex<BTreeSet<PackId>>>,
}

impl Packs {
    fn add(&self, id: u64, fingerprints: &[Fingerprint]) -> Arc<Footer> {
        let footer = footer(PackId(id), fingerprints);
        self.live.lock().unwrap().insert(PackId(id), footer.clone());
        footer
    }

    fn remove(&self, id: PackId) {
        self.live.lock().unwrap().remove(&id);
        self.dead.lock().unwrap().insert(id);
    }

    fn ids(&self) -> Vec<PackId> {
        self.live.lock().unwrap().keys().copied().collect()
    }

    /// Where `fingerprint` lies, lowest pack first.
    fn places(&self, fingerprint: &Fingerprint) -> Vec<Place> {
        let live = self.live.lock().unwrap();
        live.iter()
            .filter_map(|(&pack, footer)| Some(Place { pack, slot: footer.find(fingerprint)? }))
            .collect()
    }

    fn open(&self, dir: Option<&Path>, options: IndexOptions) -> Index {
        let (live, dead) = (self.live.clone(), self.dead.clone());
        let load = move |pack| {
            let footer = live.lock().unwrap().get(&pack).map(|footer| Footer::clone(footer));
            footer.ok_or_else(|| Error::new(ErrorKind::NotFound, "no such pack"))
        };
        Index::open(dir, STORE, options, move |pack| !dead.lock().unwrap().contains(&pack), load).unwrap()
    }

    /// Every fingerprint below `count`, looked up in several ways, is found where it is and nowhere else.
    fn check(&self, index: &Index, count: u64, prefixes: u64) {
        let all: Vec<Fingerprint> = (0..count).map(|n| fingerprint(n, prefixes)).collect();
        let (mut found, mut candidates) = (Vec::new(), Vec::new());
        index.resolve_batch(&all, |_| true, &mut found).unwrap();
        index.lookup_batch(&all, &mut candidates);
        for ((fingerprint, found), candidates) in all.iter().zip(&found).zip(&candidates) {
            let places = self.places(fingerprint);
            assert_eq!(
                found.is_some(),
                !places.is_empty(),
                "{fingerprint:?}: {found:?}, expected {places:?}"
            );
            assert!(found.is_none_or(|found| places.contains(&found)));
            let candidates: Vec<Place> = candidates.iter().collect();
            assert!(candidates.is_sorted_by(|a, b| a < b));
            assert!(
                places.iter().all(|place| candidates.contains(place)),
                "{candidates:?} lack some of {places:?}"
            );
            let odd = |pack: PackId| pack.0 % 2 == 1;
            let lowest = index.resolve_lowest(fingerprint, odd).unwrap();
            assert_eq!(lowest, places.into_iter().find(|place| odd(place.pack)));
        }
    }
}

/// A directory in memory where there is such a thing: these tests sync thousands of times.
fn scratch() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

const STORE: StoreId = StoreId([7; 16]);

/// A small locality cache, so that most answers come from the index itself.
fn small() -> IndexOptions {
    IndexOptions {
        recent_entries_max: 200,
        recent_packs_max: 20,
        footers_bytes_max: 20_000,
        merge_in_background: false,
    }
}

#[test]
fn an_empty_index_answers_nothing() {
    let dir = tempfile::tempdir().unwrap();
    for dir in [None, Some(dir.path())] {
        let index = Packs::default().open(dir, small());
        assert!(index.lookup(&fingerprint(1, 100)).is_empty());
        assert_eq!(index.resolve(&fingerprint(1, 100), |_| true).unwrap(), None);
        assert!(!index.flush().unwrap());
        index.merge().unwrap();
        assert!(index.covered_packs().is_empty());
        let mut found = vec![None; 3];
        index.resolve_batch(&[], |_| true, &mut found).unwrap();
        assert!(found.is_empty());
        let memory = index.memory();
        assert_eq!(memory.filter + memory.fences + memory.recent + memory.locality, 0);
    }
}

/// Random packs, some sharing chunks, are added and removed, with flushes, merges, refreshes and reopenings between.
fn run_model(seed: u64, prefixes: u64, count: u64, background: bool) {
    let dir = scratch();
    let (mut rng, packs) = (Rng(seed), Packs::default());
    let options = IndexOptions { merge_in_background: background, ..small() };
    let (mut index, mut next) = (packs.open(Some(dir.path()), options.clone()), 1);
    for step in 0..250 {
        match rng.below(20) {
            0..10 => {
                let chunks = 1 + rng.below(60);
                let base = rng.below(count);
                let some: Vec<_> = (0..chunks).map(|n| fingerprint((base + n) % count, prefixes)).collect();
                index.add_pack(PackId(next), &packs.add(next, &some));
                next += 1;
            }
            10..14 => {
                if let Some(&id) = packs.ids().get(rng.below(40) as usize) {
                    index.remove_packs(&[id]);
                    packs.remove(id);
                }
            }
            14 | 15 => drop(index.flush().unwrap()),
            16 => index.merge().unwrap(),
            17 => index.refresh().unwrap(),
            18 => drop(index.flush_if_full().unwrap()),
            _ => {
                drop(index);
                index = packs.open(Some(dir.path()), options.clone());
                let missing = index.missing(&packs.ids());
                assert_eq!(index.cover(&packs.ids()).unwrap(), missing.len());
            }
        }
        assert_eq!(index.covered_packs(), packs.ids(), "seed {seed}, step {step}");
        if step % 25 == 24 {
            packs.check(&index, count + 100, prefixes);
        }
    }
    let stats = index.stats();
    assert_eq!((stats.runs_dropped, stats.merges_failed), (0, 0), "{stats:?}");
}

#[test]
fn it_behaves_as_a_map_through_flushes_merges_and_reopenings() {
    (0..6).for_each(|seed| run_model(seed, u64::MAX, 1000, seed % 2 == 1));
}

#[test]
fn equal_prefixes_are_told_apart_by_the_footer() {
    (0..3).for_each(|seed| run_model(100 + seed, [7, 30, 100][seed as usize], 150, false));
}

#[test]
fn one_prefix_may_fill_many_pages() {
    let dir = scratch();
    let packs = Packs::default();
    let index = packs.open(Some(dir.path()), small());
    let same: Vec<_> = (0..600).map(|n| fingerprint(n, 1)).collect();
    let others: Vec<_> = (600..1500).map(|n| fingerprint(n, u64::MAX)).collect();
    index.add_pack(PackId(1), &packs.add(1, &others));
    index.add_pack(PackId(2), &packs.add(2, &same));
    index.flush().unwrap();
    let all: Vec<Fingerprint> = others.iter().chain(&same[..40]).copied().collect();
    let mut candidates = Vec::new();
    index.lookup_batch(&all, &mut candidates);
    for (fingerprint, candidates) in all.iter().zip(&candidates) {
        assert!(packs.places(fingerprint).iter().all(|place| candidates.iter().any(|other| other == *place)));
        assert_eq!(candidates.iter().count(), if fingerprint.prefix() == same[0].prefix() { 600 } else { 1 });
    }
    assert_eq!(index.resolve(&same[599], |_| true).unwrap(), packs.places(&same[599]).pop());
}

#[test]
fn removed_packs_leave_filters_and_files_when_runs_merge() {
    let dir = tempfile::tempdir().unwrap();
    let packs = Packs::default();
    let index = packs.open(Some(dir.path()), small());
    for id in 1..=40 {
        let some: Vec<_> = (id * 100..id * 100 + 100).map(|n| fingerprint(n, u64::MAX)).collect();
        index.add_pack(PackId(id), &packs.add(id, &some));
    }
    assert!(index.flush().unwrap());
    let before = index.stats().run_entries;
    for id in 1..=20 {
        packs.remove(PackId(id));
    }
    // The index is told of one half; it learns of the other by asking `live`.
    index.remove_packs(&(1..=10).map(PackId).collect::<Vec<_>>());
    assert_eq!(index.stats().run_entries, before);
    drop(index);
    let index = packs.open(Some(dir.path()), small());
    index.merge().unwrap();
    assert_eq!(index.stats().run_entries, before / 2);
    packs.check(&index, 4200, u64::MAX);
    assert!((100..2100).all(|n| index.lookup(&fingerprint(n, u64::MAX)).is_empty()));
    packs.ids().into_iter().for_each(|id| packs.remove(id));
    let index = packs.open(Some(dir.path()), small());
    index.merge().unwrap();
    assert_eq!((index.stats().runs, runs_in(dir.path()).len()), (0, 0));
}

#[test]
fn several_handles_flush_and_merge_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let packs = Packs::default();
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let (packs, dir) = (&packs, dir.path());
            scope.spawn(move || {
                // Two threads share a handle's directory object, all share the files, as processes would.
                let index =
                    packs.open(Some(dir), IndexOptions { merge_in_background: thread % 2 == 0, ..small() });
                for n in 0..30 {
                    let id = 1 + n * 4 + thread;
                    let some: Vec<_> = (id * 20..id * 20 + 20).map(|n| fingerprint(n, u64::MAX)).collect();
                    index.add_pack(PackId(id), &packs.add(id, &some));
                    if n % 3 == thread % 3 {
                        index.flush().unwrap();
                    }
                    let own = fingerprint(id * 20 + 7, u64::MAX);
                    assert_eq!(index.resolve(&own, |_| true).unwrap(), packs.places(&own).pop());
                }
                index.flush().unwrap();
                assert_eq!(index.stats().runs_dropped, 0);
            });
        }
    });
    let index = packs.open(Some(dir.path()), small());
    assert_eq!(index.covered_packs(), packs.ids());
    packs.check(&index, 121 * 20, u64::MAX);
    index.merge().unwrap();
    packs.check(&index, 121 * 20, u64::MAX);
    assert_eq!(index.stats().run_entries, 120 * 20);
}

#[test]
fn threads_look_up_while_others_add_flush_and_remove() {
    let dir = tempfile::tempdir().unwrap();
    let packs = Packs::default();
    let index = packs.open(Some(dir.path()), IndexOptions { merge_in_background: true, ..small() });
    let stable: Vec<_> = (0..2000).map(|n| fingerprint(n, u64::MAX)).collect();
    for (id, some) in (1..).zip(stable.chunks(100)) {
        index.add_pack(PackId(id), &packs.add(id, some));
    }
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut found = Vec::new();
                for _ in 0..500 {
                    if done.load(std::sync::atomic::Ordering::Relaxed) {
                        break;
                    }
                    index.resolve_batch(&stable, |_| true, &mut found).unwrap();
                    assert!(found.iter().all(Option::is_some));
                }
            });
        }
        for id in 1000..1100 {
            let some: Vec<_> = (id * 50..id * 50 + 50).map(|n| fingerprint(n, u64::MAX)).collect();
            index.add_pack(PackId(id), &packs.add(id, &some));
            index.flush_if_full().unwrap();
            if id % 2 == 0 {
                index.remove_packs(&[PackId(id)]);
                assert_eq!(index.resolve(&some[0], |_| true).unwrap(), None);
            }
        }
        done.store(true, std::sync::atomic::Ordering::Relaxed);
    });
}

fn runs_in(dir: &Path) -> Vec<PathBuf> {
    let names = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    names.filter(|path| path.extension().is_some_and(|extension| extension == "run")).collect()
}

/// A directory with two runs of some pages each; returns the packs they were made from.
fn two_runs(dir: &Path) -> Packs {
    let packs = Packs::default();
    let index = packs.open(Some(dir), small());
    for (id, chunks) in [(1, 0..1200), (2, 1000..1300)] {
        let some: Vec<_> = chunks.map(|n| fingerprint(n, u64::MAX)).collect();
        index.add_pack(PackId(id), &packs.add(id, &some));
        index.flush().unwrap();
    }
    assert_eq!(index.stats().runs, 2);
    packs
}

#[test]
fn damage_anywhere_hides_chunks_at_most_and_is_healed_from_footers() {
    let pristine = scratch();
    let packs = two_runs(pristine.path());
    let mut names = runs_in(pristine.path());
    names.push(pristine.path().join("CURRENT"));
    let mut rng = Rng(3);
    let apart = outrigger_workload::spaced(4);
    for name in names {
        let len = std::fs::metadata(&name).unwrap().len();
        let mut cuts: Vec<u64> = (0..20).map(|_| rng.below(len)).chain([0, 1, len - 1]).collect();
        cuts.dedup();
        // Flips: one in every byte of the header, and some all over the pages and sections behind it.
        let header = (0..96).map(|byte| byte * 8 + byte % 8);
        let flips = header.chain((0..60).map(|_| rng.below(len * 8))).filter(|bit| bit / 8 < len);
        let damages = flips.map(|bit| (bit, false)).chain(cuts.into_iter().map(|len| (len, true)));
        for (at, cut) in damages.collect::<Vec<_>>().into_iter().step_by(apart) {
            let dir = scratch();
            for entry in std::fs::read_dir(pristine.path()).unwrap() {
                let path = entry.unwrap().path();
                std::fs::copy(&path, dir.path().join(path.file_name().unwrap())).unwrap();
            }
            let damaged = dir.path().join(name.file_name().unwrap());
            let file = std::fs::OpenOptions::new().read(true).write(true).open(&damaged).unwrap();
            if cut {
                file.set_len(at).unwrap();
            } else {
                let mut byte = [0];
                file.read_exact_at(&mut byte, at / 8).unwrap();
                byte[0] ^= 1 << (at % 8);
                file.write_all_at(&byte, at / 8).unwrap();
            }
            let index = packs.open(Some(dir.path()), small());
            let some: Vec<_> = (0..1400).step_by(3).map(|n| fingerprint(n, u64::MAX)).collect();
            let mut found = Vec::new();
            index.resolve_batch(&some, |_| true, &mut found).unwrap();
            for (fingerprint, found) in some.iter().zip(&found) {
                assert!(found.is_none_or(|found| packs.places(fingerprint).contains(&found)));
            }
            let mut candidates = Vec::new();
            index.lookup_batch(&some, &mut candidates);
            index.merge().unwrap();
            index.cover(&packs.ids()).unwrap();
            index.flush().unwrap();
            index.cover(&packs.ids()).unwrap();
            packs.check(&index, 1310, u64::MAX);
            drop(index);
            packs.check(&packs.open(Some(dir.path()), small()), 1310, u64::MAX);
        }
    }
}

#[test]
fn a_missing_run_is_reported_and_leftovers_are_removed() {
    let dir = tempfile::tempdir().unwrap();
    let packs = two_runs(dir.path());
    std::fs::remove_file(&runs_in(dir.path())[0]).unwrap();
    std::fs::write(dir.path().join("00000099.run"), b"left behind").unwrap();
    std::fs::write(dir.path().join("new-1-2.tmp"), b"left behind").unwrap();
    let index = packs.open(Some(dir.path()), small());
    assert_eq!((index.stats().runs_dropped, runs_in(dir.path()).len()), (1, 1));
    assert!(!dir.path().join("new-1-2.tmp").exists());
    assert_eq!(index.missing(&packs.ids()).len(), 1);
    assert_eq!(index.cover(&packs.ids()).unwrap(), 1);
    packs.check(&index, 1310, u64::MAX);
}

#[test]
fn runs_of_another_store_are_not_used() {
    let dir = tempfile::tempdir().unwrap();
    let packs = two_runs(dir.path());
    let load = |_| Err(Error::new(ErrorKind::NotFound, "no such pack"));
    let index = Index::open(Some(dir.path()), StoreId([8; 16]), small(), |_| true, load).unwrap();
    assert!(index.covered_packs().is_empty());
    assert!(index.lookup(&fingerprint(1, u64::MAX)).is_empty());
    assert_eq!(index.missing(&packs.ids()), packs.ids());
}

#[test]
fn footers_that_cannot_be_read_count_as_absent_and_other_failures_do_not() {
    let dir = tempfile::tempdir().unwrap();
    let packs = two_runs(dir.path());
    let kind = Arc::new(Mutex::new(ErrorKind::Io));
    let load = {
        let kind = kind.clone();
        move |_| Err(Error::new(*kind.lock().unwrap(), "test"))
    };
    let index = Index::open(Some(dir.path()), STORE, small(), |_| true, load).unwrap();
    let one = fingerprint(5, u64::MAX);
    assert_eq!(index.resolve(&one, |_| true).unwrap_err().kind(), ErrorKind::Io);
    *kind.lock().unwrap() = ErrorKind::Damaged;
    // Single hits are read alone; when there are more, the footer is tried, once.
    for _ in 0..10 {
        assert_eq!(index.resolve(&one, |_| true).unwrap(), None);
    }
    assert_eq!(index.stats().footers_unreadable, 1);
    index.footers().insert(PackId(1), packs.live.lock().unwrap()[&PackId(1)].clone());
    assert_eq!(index.resolve(&one, |_| true).unwrap(), packs.places(&one).pop());
}

/// Time that passes on a test's command.
#[derive(Default)]
struct Passing(Mutex<Duration>);

impl Clock for Passing {
    fn monotonic(&self) -> Duration {
        *self.0.lock().unwrap()
    }

    fn wall(&self) -> Duration {
        self.monotonic()
    }

    fn sleep(&self, time: Duration) {
        *self.0.lock().unwrap() += time;
    }

    fn random(&self, _: &mut [u8]) -> std::result::Result<(), NoRandom> {
        Err(NoRandom::new("none is needed"))
    }
}

#[test]
fn a_footer_that_was_damaged_on_its_way_is_read_again_after_a_while() {
    let packs = Packs::default();
    let footer = packs.add(1, &[fingerprint(5, u64::MAX)]);
    let is_bad = Arc::new(Mutex::new(true));
    let load = {
        let is_bad = Arc::clone(&is_bad);
        move |_| if *is_bad.lock().unwrap() { Err(Error::damaged("test")) } else { Ok((*footer).clone()) }
    };
    // On this thread alone, as the clock is.
    outrigger_clock::with(Arc::new(Passing::default()), || {
        let index = Index::open(None, STORE, small(), |_| true, load).unwrap();
        let is_found = || index.footers().get(PackId(1)).unwrap().is_some();
        assert!(!is_found());
        *is_bad.lock().unwrap() = false;
        assert!(!is_found(), "it costs one attempt");
        outrigger_clock::sleep(Duration::from_secs(60));
        assert!(is_found());
    });
}

#[test]
fn a_duplicate_stream_reads_few_pages_and_one_footer_a_pack() {
    let dir = tempfile::tempdir().unwrap();
    let packs = Packs::default();
    let options = IndexOptions { recent_packs_max: 1000, ..IndexOptions::default() };
    let stream: Vec<_> = (0..40_000).map(|n| fingerprint(n, u64::MAX)).collect();
    {
        let index = packs.open(Some(dir.path()), options.clone());
        for (id, some) in (1..).zip(stream.chunks(1000)) {
            index.add_pack(PackId(id), &packs.add(id, some));
        }
        index.flush().unwrap();
    }
    let index = packs.open(Some(dir.path()), options);
    let mut found = Vec::new();
    for batch in stream.chunks(300) {
        index.resolve_batch(batch, |_| true, &mut found).unwrap();
        assert!(found.iter().all(Option::is_some));
    }
    let stats = index.stats();
    assert_eq!(stats.footers_loaded, 40);
    // The first hits in a pack come one by one, until its footer is worth loading: not once for each of its 1000.
    assert!(stats.probes <= 40 * 16, "{stats:?}");
}

#[test]
fn memory_stays_within_its_bounds() {
    let dir = tempfile::tempdir().unwrap();
    let packs = Packs::default();
    let options = IndexOptions { footers_bytes_max: 1 << 20, recent_entries_max: 20_000, ..small() };
    let index = packs.open(Some(dir.path()), options);
    let mut total = 0;
    for id in 1..=200 {
        let some: Vec<_> = (0..500).map(|n| fingerprint(id * 500 + n, u64::MAX)).collect();
        index.add_pack(PackId(id), &packs.add(id, &some));
        index.flush_if_full().unwrap();
        total += some.len();
        let memory = index.memory();
        assert!(memory.locality <= 1 << 20, "{memory:?}");
        assert!(memory.recent <= 20_500 * 32 + 16 * 200, "{memory:?}");
    }
    index.flush().unwrap();
    let memory = index.memory();
    // Small runs get 18 bits a key; large ones are measured by the benchmark.
    assert!(memory.filter + memory.fences <= total * 19 / 8, "{memory:?} for {total} entries");
    assert!(index.stats().runs <= 4, "{:?}", index.stats());
}

/// Distant footers: none is returned before so many were requested.
struct Far {
    packs: Packs,
    together: usize,
    asked: Arc<(Mutex<usize>, Condvar)>,
    expected: Arc<Mutex<Vec<(PackId, u32)>>>,
}

impl LoadFooter for Far {
    fn load(&self, pack: PackId) -> Result<Footer> {
        let (asked, more) = &*self.asked;
        let mut asked = asked.lock().unwrap();
        *asked += 1;
        more.notify_all();
        let patience = Duration::from_secs(60);
        let (_asked, waited) =
            more.wait_timeout_while(asked, patience, |asked| *asked < self.together).unwrap();
        assert!(!waited.timed_out(), "one is asked for after the other");
        let found = self.packs.live.lock().unwrap().get(&pack).cloned();
        found.map(|footer| (*footer).clone()).ok_or_else(|| Error::new(ErrorKind::Io, "the line is cut"))
    }

    fn expect(&self, packs: &[(PackId, u32)]) {
        self.expected.lock().unwrap().extend(packs);
    }

    fn at_once(&self) -> usize {
        self.together
    }
}

#[test]
fn footers_that_are_far_away_are_asked_for_at_once_and_foretold() {
    let packs = Packs::default();
    for id in 1..=12 {
        packs.add(id, &[fingerprint(id, u64::MAX)]);
    }
    let (asked, expected) = (Arc::default(), Arc::default());
    let far = Far { packs: packs.clone(), together: 4, asked, expected: Arc::clone(&expected) };
    let index = Index::open(None, STORE, IndexOptions::default(), |_| true, far).unwrap();
    let counted: Vec<(PackId, u32)> = packs.ids().into_iter().map(|id| (id, id.0 as u32)).collect();
    assert_eq!(index.cover_counted(&counted[..9]).unwrap(), 9);
    assert_eq!(*expected.lock().unwrap(), counted[..9]);
    // A footer that cannot be read for now fails the lookup; known ones are not read again.
    let gone = (PackId(13), 1);
    let error = index.cover_counted(&[&counted[..], &[gone]].concat()).unwrap_err();
    assert!(error.to_string().contains("the line is cut"), "{error}");
    assert_eq!(expected.lock().unwrap()[9..], [&counted[9..], &[gone]].concat());
    let left = index.missing(&packs.ids()).len();
    assert!(left <= 3);
    assert_eq!(index.cover_counted(&counted).unwrap(), left);
    assert_eq!(index.covered_packs(), packs.ids());
}
