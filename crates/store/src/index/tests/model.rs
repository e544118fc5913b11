//! The index against a model of it, over flushes, merges, reopenings, several handles and threads;
//! and the pages and memory that it takes.

use outrigger_format::{Fingerprint, PackId};

use super::{Packs, Rng, fingerprint, keyed, runs_in, scratch, small};
use crate::index::IndexOptions;

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

/// Random packs, some sharing chunks, are added and removed, with flushes, merges, refreshes and
/// reopenings between.
fn run_model(options: IndexOptions, seed: u64, prefixes: u64, count: u64, background: bool) {
    let dir = scratch();
    let (mut rng, packs) = (Rng(seed), Packs::default());
    let options = IndexOptions { merge_in_background: background, ..options };
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
    for options in [small(), keyed()] {
        (0..6).for_each(|seed| run_model(options.clone(), seed, u64::MAX, 1000, seed % 2 == 1));
    }
}

#[test]
fn equal_prefixes_are_told_apart_by_the_footer() {
    for options in [small(), keyed()] {
        let prefixes = |seed: u64| [7, 30, 100][seed as usize];
        (0..3).for_each(|seed| run_model(options.clone(), 100 + seed, prefixes(seed), 150, false));
    }
}

#[test]
fn one_prefix_may_fill_many_pages() {
    for options in [small(), keyed()] {
        let dir = scratch();
        let packs = Packs::default();
        let index = packs.open(Some(dir.path()), options.clone());
        let same: Vec<_> = (0..600).map(|n| fingerprint(n, 1)).collect();
        let others: Vec<_> = (600..1500).map(|n| fingerprint(n, u64::MAX)).collect();
        index.add_pack(PackId(1), &packs.add(1, &others));
        index.add_pack(PackId(2), &packs.add(2, &same));
        index.flush().unwrap();
        let all: Vec<Fingerprint> = others.iter().chain(&same[..40]).copied().collect();
        let mut candidates = Vec::new();
        index.lookup_batch(&all, &mut candidates);
        for (fingerprint, candidates) in all.iter().zip(&candidates) {
            assert!(
                packs.places(fingerprint).iter().all(|place| candidates.iter().any(|other| other == *place))
            );
            assert_eq!(
                candidates.iter().count(),
                if fingerprint.prefix() == same[0].prefix() { 600 } else { 1 }
            );
        }
        assert_eq!(index.resolve(&same[599], |_| true).unwrap(), packs.places(&same[599]).pop());
    }
}

#[test]
fn removed_packs_leave_filters_and_files_when_runs_merge() {
    for options in [small(), keyed()] {
        let dir = tempfile::tempdir().unwrap();
        let packs = Packs::default();
        let index = packs.open(Some(dir.path()), options.clone());
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
        let index = packs.open(Some(dir.path()), options.clone());
        index.merge().unwrap();
        assert_eq!(index.stats().run_entries, before / 2);
        packs.check(&index, 4200, u64::MAX);
        assert!((100..2100).all(|n| index.lookup(&fingerprint(n, u64::MAX)).is_empty()));
        packs.ids().into_iter().for_each(|id| packs.remove(id));
        let index = packs.open(Some(dir.path()), options.clone());
        index.merge().unwrap();
        assert_eq!((index.stats().runs, runs_in(dir.path()).len()), (0, 0));
    }
}

#[test]
fn several_handles_flush_and_merge_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let packs = Packs::default();
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let (packs, dir) = (&packs, dir.path());
            scope.spawn(move || {
                // Two threads share a handle's directory object, all share the files, as processes
                // would.
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
    // The first hits in a pack come one by one, until its footer is worth loading: not once for
    // each of its 1000.
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
