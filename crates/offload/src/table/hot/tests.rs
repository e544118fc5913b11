use std::sync::atomic::AtomicU64;

use outrigger_format::{ChunkerSpec, FingerprintKind};

use super::*;
use crate::op::Stream;
use crate::runtime::Runtime;
use crate::sim::{SimDevice, SimOptions, Speed};
use crate::work::Request;

fn key(n: u32) -> Fingerprint {
    crate::hash(FingerprintKind::Blake3, &n.to_le_bytes())
}

fn options(entries: usize) -> HotOptions {
    HotOptions { entries, counters: 4 * entries, refresh_hits: 10 }
}

/// Counts `key(n)` `times` times at place `n`.
fn hit(hot: &HotTable, n: u32, times: usize) {
    hot.count(&vec![(key(n), n.into()); times]);
}

fn known(hot: &HotTable, keys: impl IntoIterator<Item = u32>) -> Vec<Option<u64>> {
    let (table, mut out) = (hot.table(), Vec::new());
    table.lookup_many(&keys.into_iter().map(key).collect::<Vec<_>>(), &mut out);
    out
}

#[test]
fn the_hottest_are_in_it_and_nothing_else_passes_its_summary() {
    let hot = HotTable::new(options(100));
    (0..300).for_each(|n| hit(&hot, n, 1 + n as usize / 10));
    assert_eq!(known(&hot, [299]), [None], "not before a refresh");
    let asked = AtomicU64::new(0);
    let done = hot.refresh(&|hot: &Hot| {
        asked.fetch_add(1, Ordering::Relaxed);
        Some(hot.place)
    });
    assert_eq!(done, Some(Refreshed { entries: 100, gone: 0 }));
    assert_eq!(asked.into_inner(), 100, "nobody is asked about what will not be in it");
    assert!(known(&hot, 200..300).into_iter().zip(200..).all(|(place, n)| place == Some(n)));
    assert!(known(&hot, 0..200).iter().all(Option::is_none));
    // Other fingerprints become hot, and the summary vector has no old ones.
    let old = hot.table();
    for _ in 0..3 {
        (1000..1100).for_each(|n| hit(&hot, n, 50));
        hot.refresh(&|hot: &Hot| Some(hot.place));
    }
    assert!(known(&hot, 1000..1100).iter().all(Option::is_some));
    let passing = (200..300).filter(|&n| hot.table().may_hold(&key(n))).count();
    assert!(passing < 10, "{passing} of 100");
    assert_eq!(old.get(&key(299)), Some(299), "who has the old table goes on with it");
}

#[test]
fn what_is_gone_makes_room_and_what_has_moved_is_known_there() {
    let hot = HotTable::new(options(8));
    (0..10).for_each(|n| hit(&hot, n, 100 - n as usize));
    let store = |hot: &Hot| (!hot.place.is_multiple_of(2) || hot.place >= 100).then_some(hot.place + 100);
    assert_eq!(hot.refresh(&store), Some(Refreshed { entries: 5, gone: 5 }));
    let odd = [1, 3, 5, 7, 9];
    assert_eq!(known(&hot, odd), odd.map(|n| Some(u64::from(n) + 100)));
    assert!(known(&hot, [0, 2, 4, 6, 8]).iter().all(Option::is_none));
    // The store is asked for present places only, and no more for missing chunks.
    let again = hot.refresh(&|hot: &Hot| {
        assert!(hot.place > 100, "{hot:?}");
        Some(hot.place)
    });
    assert_eq!(again, Some(Refreshed { entries: 5, gone: 0 }));
}

#[test]
fn it_is_due_after_enough_hits() {
    let hot = HotTable::new(options(8));
    hit(&hot, 1, 9);
    assert!(!hot.is_due() && hot.is_unsaved());
    hit(&hot, 1, 1);
    assert!(hot.is_due());
    hot.refresh(&|hot: &Hot| Some(hot.place));
    assert!(!hot.is_due());
}

#[test]
fn it_comes_back_from_its_bytes() {
    let hot = HotTable::new(options(50));
    // The counts are even, so that they still differ after halving.
    (0..180).for_each(|n| hit(&hot, n, 2 + 2 * n as usize));
    hot.refresh(&|hot: &Hot| Some(hot.place + 7));
    let mut bytes = vec![1, 2, 3];
    hot.save(&mut bytes);
    assert!(!hot.is_unsaved());
    let bytes = &bytes[3..];
    let back = HotTable::load(bytes, options(50)).expect("whole");
    assert_eq!(known(&back, 0..180), known(&hot, 0..180), "loaded, it is what it was without a refresh");
    // Counts are loaded too, so a few more hits decide.
    let smaller = HotTable::load(bytes, options(5)).expect("whole");
    assert_eq!(known(&smaller, 174..180), [None, Some(182), Some(183), Some(184), Some(185), Some(186)]);
    for at in (0..bytes.len()).step_by(97).chain([bytes.len() - 1]) {
        let mut flipped = bytes.to_vec();
        flipped[at] ^= 4;
        assert!(HotTable::load(&flipped, options(50)).is_err(), "byte {at}");
        assert!(HotTable::load(&bytes[..at], options(50)).is_err(), "cut at {at}");
    }
    let (empty, why) = HotTable::load_or_empty(b"", options(50));
    assert!(empty.table().is_empty() && why == Some(LoadError::Magic));
}

#[test]
fn what_is_recalled_counts_but_is_nowhere_until_a_refresh() {
    let old = HotTable::new(options(50));
    (0..40).for_each(|n| hit(&old, n, 4));
    let mut bytes = Vec::new();
    old.save(&mut bytes);
    let hot = HotTable::new(options(50));
    hit(&hot, 39, 2);
    hit(&hot, 100, 1);
    hot.recall(&bytes).expect("whole");
    assert!(hot.is_due() && hot.table().is_empty());
    // Loaded places are not trusted: the store returns others.
    hot.refresh(&|hot: &Hot| Some(hot.place + 1000)).expect("alone");
    assert_eq!(known(&hot, [0, 39, 100, 101]), [Some(1000), Some(1039), Some(1100), None]);
    bytes[30] ^= 1;
    assert_eq!(hot.recall(&bytes), Err(LoadError::Damaged));
    assert_eq!(hot.recall(b"else"), Err(LoadError::Magic));
    assert_eq!(hot.view().len(), 41);
}

#[test]
fn a_refresh_that_is_given_up_changes_nothing() {
    struct Stopped;
    impl Whereabouts for Stopped {
        fn place_of(&self, hot: &Hot) -> Option<u64> {
            Some(hot.place)
        }
        fn places_of(&self, _: &[Hot]) -> Option<Vec<Option<u64>>> {
            None
        }
    }
    let hot = HotTable::new(options(8));
    hit(&hot, 1, 20);
    assert_eq!(hot.refresh(&Stopped), None);
    assert!(hot.is_due() && hot.table().is_empty());
    assert!(hot.refresh(&|hot: &Hot| Some(hot.place)).is_some(), "another may follow");
}

#[test]
fn a_view_confirms_what_is_in_its_table_by_the_whole_fingerprint() {
    let hot = HotTable::new(options(8));
    hit(&hot, 1, 3);
    hot.refresh(&|hot: &Hot| Some(hot.place));
    let (view, mut twin) = (hot.view(), key(1));
    assert!(view.confirms(&key(1), 1) && !view.confirms(&key(1), 2) && !view.confirms(&key(2), 1));
    // A table keeps 16 bytes, so this fingerprint deceives it.
    twin.0[20] ^= 1;
    assert_eq!(view.table().get(&twin), Some(1));
    assert!(!view.confirms(&twin, 1));
}

#[test]
fn counting_goes_on_during_a_refresh_and_there_is_one_at_a_time() {
    let hot = HotTable::new(options(70));
    (0..64).for_each(|n| hit(&hot, n, 4));
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let hot = &hot;
            scope.spawn(move || (0..5000).for_each(|n| hit(hot, n % 64 + thread, 1)));
        }
        for _ in 0..20 {
            let done = hot.refresh(&|found: &Hot| {
                assert_eq!(hot.refresh(&|_: &Hot| None), None, "another one at a time");
                Some(found.place)
            });
            assert!(done.is_some_and(|done| done.gone == 0));
        }
    });
    hot.refresh(&|hot: &Hot| Some(hot.place));
    assert!(known(&hot, 1..64).into_iter().zip(1..).all(|(place, n)| place == Some(n)));
}

/// The steps of the store: a batch goes to a device with the hot table, its hits are counted, the
/// table is refreshed, and the next batch follows.
#[test]
fn a_device_finds_what_was_hot() {
    let sim = SimDevice::new(SimOptions::new("sim:0", Speed::INTEGRATED));
    let runtime = Runtime::builder().cpu_threads(1).device(Box::new(sim)).build();
    let hot = HotTable::new(options(1000));
    let data: Vec<u8> = (0..300_000u32).map(|n| (n.wrapping_mul(0x9e37_79b9) >> 13) as u8).collect();
    let ingest = || {
        let mut draft = runtime.draft(data.len());
        draft.input().extend_from_slice(&data);
        let streams = vec![Stream { range: 0..data.len() as u32, last: true }];
        let (chunker, kind, table) = (ChunkerSpec::DEFAULT, FingerprintKind::Blake3, Some(hot.table()));
        draft.set_request(Request::Ingest { streams, chunker, kind, table }).pin(1);
        let done = runtime.submit(draft).expect("admitted").wait().expect("done");
        assert_eq!(done.report().device, 1);
        done.output().chunks.clone()
    };
    let first = ingest();
    assert!(first.len() > 5 && first.iter().all(|chunk| chunk.place.is_none()), "ask the host");
    let place = |n: u64| PackPlace { pack: PackId(n), generation: 3 }.number();
    let hits: Vec<_> = first.iter().zip(0..).map(|(chunk, n)| (chunk.fingerprint, place(n))).collect();
    hot.count(&hits);
    // A task's waiter is notified a moment before the runtime is idle.
    while !runtime.is_idle() {
        std::thread::yield_now();
    }
    hot.refresh(&|hot: &Hot| Some(hot.place));
    let places: Vec<_> = ingest().iter().map(|chunk| chunk.place.map(PackPlace::from_number)).collect();
    let expected = (0..first.len() as u64).map(|n| Some(PackPlace { pack: PackId(n), generation: 3 }));
    assert_eq!(places, expected.collect::<Vec<_>>());
}
