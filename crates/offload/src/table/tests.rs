//! Tests the table against a plain map, its saved form against damage, and the sketch against exact
//! counts.

use std::collections::{BTreeMap, HashMap};

use proptest::prelude::*;

use super::*;

/// Fingerprints that share a few buckets, so that they collide, wrap around and fill up.
fn crowded(n: u16) -> Fingerprint {
    let mut fingerprint = Fingerprint([0; 32]);
    fingerprint.0[0] = if n.is_multiple_of(3) { 0xff } else { n as u8 & 3 };
    fingerprint.0[8..10].copy_from_slice(&n.to_le_bytes());
    fingerprint
}

fn random(seed: u64) -> Fingerprint {
    crate::hash(outrigger_format::FingerprintKind::Blake3, &seed.to_le_bytes())
}

#[derive(Clone, Debug)]
enum Step {
    Insert(Vec<(u16, u64)>),
    Remove(Vec<u16>),
    Refresh,
    Clear,
    Reload,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => proptest::collection::vec((0u16..150, any::<u64>()), 0..40).prop_map(Step::Insert),
        4 => proptest::collection::vec(0u16..150, 0..40).prop_map(Step::Remove),
        1 => Just(Step::Refresh),
        1 => Just(Step::Reload),
        1 => Just(Step::Clear),
    ]
}

proptest! {
    #[test]
    fn it_is_a_map_of_bounded_size(capacity in 0usize..100, steps in proptest::collection::vec(step(), 0..40)) {
        let (mut table, mut map) = (Table::with_capacity(capacity), BTreeMap::new());
        for step in steps {
            match step {
                Step::Insert(entries) => {
                    let batch: Vec<_> = entries.iter().map(|&(n, place)| (crowded(n), place)).collect();
                    let mut fits = Ok(());
                    for (inserted, &(n, place)) in entries.iter().enumerate() {
                        if map.len() == capacity && !map.contains_key(&n) {
                            fits = Err(TableFull { capacity, inserted });
                            break;
                        }
                        map.insert(n, place);
                    }
                    prop_assert_eq!(table.insert_many(&batch), fits);
                }
                Step::Remove(keys) => {
                    let batch: Vec<_> = keys.iter().map(|&n| crowded(n)).collect();
                    let there = keys.iter().filter(|n| map.remove(n).is_some()).count();
                    prop_assert_eq!(table.remove_many(&batch), there);
                }
                Step::Refresh => table.refresh(),
                Step::Clear => {
                    table.clear();
                    map.clear();
                }
                Step::Reload => {
                    let mut bytes = Vec::new();
                    table.save(&mut bytes);
                    table = Table::load(&bytes, capacity).expect("what was saved");
                }
            }
            prop_assert_eq!(table.len(), map.len());
            let keys: Vec<Fingerprint> = (0..170).map(crowded).collect();
            let mut got = Vec::new();
            table.lookup_many(&keys, &mut got);
            for (n, (key, got)) in (0u16..).zip(keys.iter().zip(&got)) {
                prop_assert_eq!(*got, map.get(&n).copied());
                prop_assert_eq!(table.get(key), *got);
                prop_assert!(got.is_none() || table.may_hold(key));
            }
        }
    }
}

#[test]
fn a_full_table_ends_every_probe() {
    for capacity in [0, 1, 2, 3, 5, 6, 7, 48, 1000] {
        let mut table = Table::with_capacity(capacity);
        let entries: Vec<_> = (0..capacity as u64 + 1).map(|n| (random(n), n)).collect();
        let full = table.insert_many(&entries).expect_err("one too many");
        assert_eq!(full, TableFull { capacity, inserted: capacity });
        // Marks many slots. Marks must not use up the slots that end a probe.
        for round in 0..20 {
            for n in 0..capacity as u64 {
                table.remove_many(&[random(n + 1000 * round)]);
                table.insert_many(&[(random(n + 1000 * (round + 1)), n)]).expect("room was made");
            }
            assert_eq!((table.len(), table.get(&random(u64::MAX))), (capacity, None));
        }
    }
}

#[test]
fn the_summary_vector_forgets_when_refreshed() {
    let mut table = Table::with_capacity(20_000);
    let entries: Vec<_> = (0..20_000).map(|n| (random(n), n)).collect();
    table.insert_many(&entries).expect("room");
    let passing =
        |table: &Table, from: u64| (from..from + 20_000).filter(|&n| table.may_hold(&random(n))).count();
    assert_eq!(passing(&table, 0), 20_000);
    // One in a few thousand for so many bits a key. The inputs are fixed, so the result is not left
    // to chance.
    assert!(passing(&table, 1 << 32) < 40, "{}", passing(&table, 1 << 32));
    let keys: Vec<_> = entries.iter().map(|entry| entry.0).collect();
    assert_eq!(table.remove_many(&keys), 20_000);
    assert_eq!(passing(&table, 0), 20_000);
    table.refresh();
    assert_eq!(passing(&table, 0), 0);
}

/// The layout that devices rely on, read from the words alone.
#[test]
fn words_are_as_described() {
    let mut table = Table::with_capacity(1000);
    let entries: Vec<_> = (0..1000).map(|n| (random(n), n * n)).collect();
    table.insert_many(&entries).expect("room");
    table.remove_many(&[entries[7].0, entries[8].0]);
    let (slots, blocks) = (table.slot_words(), table.summary_words());
    assert_eq!((slots.len(), blocks.len()), (2048 * 4, 128 * 8));
    assert!(slots.as_ptr().addr().is_multiple_of(64) && blocks.as_ptr().addr().is_multiple_of(32));
    let find = |fingerprint: &Fingerprint| {
        let words = fingerprint.0.as_chunks::<8>().0;
        let (a, b) = (u64::from_le_bytes(words[0]), u64::from_le_bytes(words[1]));
        let block = (a >> 32) as usize % 128;
        if (0..8).any(|i| blocks[8 * block + i] >> (b >> (5 * i) & 31) & 1 == 0) {
            return None;
        }
        let mut slot = a as usize % 1024 * 2;
        loop {
            match slots[4 * slot..][..4] {
                [_, _, _, 0] => return None,
                [x, y, place, 1] if x == a && y == b => return Some(place),
                _ => slot = (slot + 1) % 2048,
            }
        }
    };
    for (n, (fingerprint, place)) in entries.iter().enumerate() {
        assert_eq!(find(fingerprint), (n != 7 && n != 8).then_some(*place));
    }
    assert!((5000..6000).all(|n| find(&random(n)).is_none()));
}

#[test]
fn every_cut_and_every_flipped_bit_is_noticed() {
    let mut table = Table::with_capacity(40);
    table.insert_many(&(0..30).map(|n| (random(n), n)).collect::<Vec<_>>()).expect("room");
    let mut bytes = Vec::new();
    table.save(&mut bytes);
    let mut entries: Vec<_> = Table::load(&bytes, 40).expect("what was saved").iter().collect();
    let mut expected: Vec<_> = table.iter().collect();
    entries.sort_unstable();
    expected.sort_unstable();
    assert_eq!(entries, expected);
    assert_eq!(Table::load(&bytes, 7).expect("a smaller one").len(), 7);
    for cut in 0..bytes.len() {
        let (empty, why) = Table::load_or_empty(&bytes[..cut], 40);
        assert!(empty.is_empty() && why.is_some(), "cut after {cut} bytes");
    }
    for bit in 0..bytes.len() * 8 {
        let mut flipped = bytes.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        assert!(Table::load(&flipped, 40).is_err(), "bit {bit} flipped");
    }
    bytes.push(0);
    assert_eq!(Table::load(&bytes, 40).err(), Some(LoadError::Damaged), "a byte too many");
}

#[test]
fn the_sketch_keeps_what_is_hot() {
    // Fingerprint n comes about 3000 / (n + 1) times, among very many that come once.
    let (mut sketch, mut exact) = (HotSketch::new(500), HashMap::new());
    let mut state = 1u64;
    let mut total = 0;
    for round in 0..60_000u64 {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let n =
            if round % 3 == 0 { 1_000_000 + round } else { (40_000 / ((state >> 33) % 40_000 + 1)).min(999) };
        sketch.count(random(n), n);
        *exact.entry(n).or_insert(0u64) += 1;
        total += 1;
    }
    assert_eq!(sketch.len(), 500);
    for hot in sketch.hottest(500) {
        let count = exact[&hot.place];
        assert!(hot.count >= count && hot.count - hot.error <= count, "{hot:?}: {count}");
        assert_eq!(hot.fingerprint, random(hot.place));
    }
    let known: Vec<u64> = sketch.hottest(500).iter().map(|hot| hot.place).collect();
    for (n, count) in exact {
        assert!(count <= total / 500 || known.contains(&n), "{n} came {count} times");
    }
    let mut order: Vec<u64> = sketch.hottest(3).iter().map(|hot| hot.place).collect();
    order.sort_unstable();
    assert_eq!(order, [1, 2, 3]);
    let before = sketch.hottest(1)[0].count;
    sketch.age();
    assert_eq!(sketch.hottest(1)[0].count, before / 2);
    sketch.count(random(1), 1);
    assert_eq!(sketch.len(), 500);
}
