//! Tests the CUDA kernels and their plans on the host's grid, against the processor's references.
//! Threads run in every order, so that a missing barrier shows.

#![cfg(feature = "grid")]

use std::collections::HashMap;

use outrigger_format::{ChunkerSpec, Fingerprint, FingerprintKind};
use outrigger_offload::cuda::{HostGrid, HostTable, Order};
use outrigger_offload::op::{
    HashMany, Ingest, Ingested, PmdHash, Scan, Stream, WindowFunction, WindowHash, WindowSpec,
};
use outrigger_offload::runtime::Runtime;
use outrigger_offload::sim::{SimDevice, SimOptions, Speed};
use outrigger_offload::table::Table;
use outrigger_offload::{Device, Operation, Task, conformance, hash, reference};
use outrigger_workload::Rng;
use proptest::prelude::*;

/// All operations with kernels.
const OPERATIONS: [Operation; 6] = [
    Operation::Scan,
    Operation::HashMany,
    Operation::WindowHash,
    Operation::PmdHash,
    Operation::Lookup,
    Operation::Ingest,
];

const ORDERS: [Order; 3] = [Order::Forward, Order::Backward, Order::Shuffled];

fn conforms(mut grid: HostGrid) {
    for operation in OPERATIONS {
        assert!(grid.supports(operation), "{operation}");
    }
    conformance::check(&mut grid);
    assert!(grid.launches() > 1000, "kernels ran");
}

#[test]
#[ignore = "slow: 20 s of the processor; single kernels are in the quick tests"]
fn conforms_forward() {
    conforms(HostGrid::new(Order::Forward));
}

#[test]
#[ignore = "slow: 20 s of the processor; single kernels are in the quick tests"]
fn conforms_backward() {
    conforms(HostGrid::new(Order::Backward));
}

#[test]
#[ignore = "slow: 15 s of the processor; single kernels are in the quick tests"]
fn conforms_shuffled() {
    conforms(HostGrid::new(Order::Shuffled));
}

#[test]
#[ignore = "slow: 15 s of the processor; single kernels are in the quick tests"]
fn conforms_without_staging() {
    conforms(HostGrid::new(Order::Forward).without_staging());
}

/// Bytes without repetition.
fn bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    Rng::new(seed).fill(&mut bytes);
    bytes
}

fn ingest(
    grid: &mut HostGrid,
    data: &[u8],
    streams: &[Stream],
    chunker: ChunkerSpec,
    kind: FingerprintKind,
) -> (Vec<Ingested>, Vec<u32>) {
    let (mut out, mut counts) = (Vec::new(), Vec::new());
    let task = Ingest { data, streams, chunker, kind, table: None, out: &mut out, counts: &mut counts };
    grid.run(&mut Task::Ingest(task)).expect("ingest");
    (out, counts)
}

/// BLAKE3 of chunks that are cut into pieces of 64 KiB, whose values are joined. The numbers of
/// pieces lie on both sides of every power of two. Other chunks are not cut.
#[test]
fn large_chunks_are_hashed_in_pieces() {
    let data = bytes(1, 3 << 20);
    let piece = 64 << 10;
    let mut ranges: Vec<_> = [1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 33]
        .into_iter()
        .flat_map(|pieces| [-1025i32, -1, 0, 1, 1023, 1024, 1025].map(|by| (pieces * piece + by) as u32))
        .enumerate()
        .map(|(n, len)| n as u32..n as u32 + len)
        .collect();
    ranges.extend([5..5, 9..10, 100..1124, 1 << 20..(1 << 20) + 65_536]);
    let mut got = Vec::new();
    let kind = FingerprintKind::Blake3;
    let task = HashMany { kind, data: &data, ranges: &ranges, out: &mut got };
    HostGrid::new(Order::Shuffled).run(&mut Task::HashMany(task)).expect("hash_many");
    for (range, got) in ranges.iter().zip(&got) {
        assert_eq!(*got, hash(kind, &data[range.start as usize..range.end as usize]), "{range:?}");
    }
    assert_eq!(got.len(), ranges.len());
}

/// One block hashes a chunk of ingest, however long. It takes more than one round of 32 leaves.
#[test]
fn long_chunks_of_a_batch_are_hashed_by_one_block() {
    let data = bytes(2, 2_500_000);
    let chunker = ChunkerSpec::parse("fixed:600000").expect("a chunker");
    for kind in FingerprintKind::ALL {
        let streams = [Stream { range: 3..2_400_000, last: true }];
        let got = ingest(&mut HostGrid::new(Order::Backward), &data, &streams, chunker, kind);
        assert_eq!(got, reference::ingest(&data, &streams, chunker, kind, &HashMap::new()));
    }
}

/// Every byte of the data is a candidate, so there are more candidates than expected, and then more
/// chunks.
#[test]
fn more_results_than_expected_take_one_more_step() {
    let dense = outrigger_format::boundary::GEAR.iter().enumerate();
    let byte = dense.min_by_key(|(_, g)| g.wrapping_neg()).map(|(byte, _)| byte as u8).expect("256 of them");
    let data = vec![byte; 100_000];
    let chunker = ChunkerSpec::parse("gear32:64/256/1K").expect("a chunker");
    let masks = outrigger_format::boundary::GearMasks::for_average(256);
    let mut expected = Vec::new();
    outrigger_format::boundary::scan_reference(&[], &data, masks, &mut expected);
    assert!(expected.len() > 90_000, "{} candidates", expected.len());
    for order in ORDERS {
        let mut grid = HostGrid::new(order);
        let mut got = Vec::new();
        let task = Scan { history: &[], data: &data, masks, out: &mut got };
        grid.run(&mut Task::Scan(task)).expect("scan");
        assert!(got == expected);
        let streams =
            [Stream { range: 0..50_000, last: false }, Stream { range: 50_000..100_000, last: true }];
        let kind = FingerprintKind::Md5;
        let got = ingest(&mut grid, &data, &streams, chunker, kind);
        assert!(got == reference::ingest(&data, &streams, chunker, kind, &HashMap::new()));
    }
}

/// The chunkers for experiments scan by separate kernels.
#[test]
fn windowed_chunkers_cut_alike_in_every_order() {
    let data = bytes(3, 120_000);
    let streams = [Stream { range: 1..70_001, last: true }, Stream { range: 70_001..120_000, last: false }];
    for order in ORDERS {
        for chunker in ["rabin:256/1K/4K", "lbfs-md5:256/1K/4K", "lbfs-sha1:256/1K/4K"] {
            let chunker = ChunkerSpec::parse(chunker).expect("a chunker");
            let kind = FingerprintKind::Sha1;
            let got = ingest(&mut HostGrid::new(order), &data, &streams, chunker, kind);
            let expected = reference::ingest(&data, &streams, chunker, kind, &HashMap::new());
            assert!(expected.0.len() > 60 && got == expected, "{chunker}");
        }
    }
}

/// More streams and tiles than one round of the prefix sum handles.
#[test]
fn thousands_of_streams_are_added_up() {
    let data = bytes(4, 300_000);
    let streams: Vec<_> =
        (0..6000u32).map(|n| Stream { range: n * 50..(n + 1) * 50 - n % 3, last: n % 5 > 0 }).collect();
    let (chunker, kind) = (ChunkerSpec::DEFAULT, FingerprintKind::Blake3);
    let expected = reference::ingest(&data, &streams, chunker, kind, &HashMap::new());
    for order in ORDERS {
        let got = ingest(&mut HostGrid::new(order), &data, &streams, chunker, kind);
        assert!(got == expected);
    }
}

#[test]
fn a_table_is_changed_by_kernels_as_by_the_processor() {
    let key = |n: u64| hash(FingerprintKind::Blake3, &n.to_le_bytes());
    for order in ORDERS {
        let mut grid = HostGrid::new(order);
        let mut model = Table::with_capacity(3000);
        let mut table = grid.table(&model).expect("memory");
        let check = |grid: &mut HostGrid, table: &HostTable, model: &Table| {
            let keys: Vec<Fingerprint> = (0..4000).map(key).collect();
            let mut expected = Vec::new();
            model.lookup_many(&keys, &mut expected);
            let mut got = Vec::new();
            grid.lookup(table, &keys, &mut got).expect("lookup");
            assert!(got == expected && table.len() == model.len());
        };
        let entries: Vec<_> = (0..1500).map(|n| (key(n), n + 7)).collect();
        model.insert_many(&entries).expect("room");
        assert_eq!(grid.insert(&mut table, &entries), Ok(1500));
        check(&mut grid, &table, &model);
        // Some keys exist and get new places.
        let entries: Vec<_> = (1000..2000).map(|n| (key(n), n << 20)).collect();
        model.insert_many(&entries).expect("room");
        assert_eq!(grid.insert(&mut table, &entries), Ok(500));
        check(&mut grid, &table, &model);
        let gone: Vec<Fingerprint> = (0..3000).step_by(3).map(key).collect();
        assert_eq!(grid.remove(&mut table, &gone), Ok(model.remove_many(&gone)));
        assert_eq!(grid.remove(&mut table, &gone), Ok(0));
        check(&mut grid, &table, &model);
        // The summary vector cannot forget. After a refresh it equals the processor's for the same
        // entries.
        let before = table.summary().to_vec();
        grid.refresh(&mut table).expect("memory");
        model.refresh();
        check(&mut grid, &table, &model);
        assert_ne!(table.summary(), before);
        let words: Vec<u8> = model.summary_words().iter().flat_map(|word| word.to_le_bytes()).collect();
        assert_eq!(table.summary(), words);
        assert_eq!(grid.insert(&mut table, &[(key(0), 1)]), Ok(1));
        model.insert_many(&[(key(0), 1)]).expect("room");
        check(&mut grid, &table, &model);
        // A batch that does not fit is refused as a whole.
        let many: Vec<_> = (10_000..12_000).map(|n| (key(n), n)).collect();
        grid.insert(&mut table, &many).expect_err("more than fits");
        check(&mut grid, &table, &model);
        // Repeated removal and insertion uses up slots by marks, which triggers a refresh.
        for round in 0..20u64 {
            let entries: Vec<_> = (0..1000).map(|n| (key((round + 1) << 32 | n), n)).collect();
            let keys: Vec<_> = entries.iter().map(|(key, _)| *key).collect();
            assert_eq!(grid.insert(&mut table, &entries), Ok(1000));
            let mut got = Vec::new();
            grid.lookup(&table, &keys, &mut got).expect("lookup");
            assert!((0..1000).map(Some).eq(got));
            assert_eq!(grid.remove(&mut table, &keys), Ok(1000));
        }
        check(&mut grid, &table, &model);
    }
}

/// The runtime over a simulated device whose results the kernels compute.
#[test]
fn a_simulated_device_computes_with_the_kernels() {
    let mut options = SimOptions::new("sim:0", Speed::INTEGRATED);
    options.execute = Some(Box::new(HostGrid::new(Order::Shuffled)));
    let runtime = Runtime::builder().cpu_threads(1).device(Box::new(SimDevice::new(options))).build();
    let data = bytes(5, 100_000);
    for kind in FingerprintKind::ALL {
        let mut draft = runtime.draft(data.len());
        draft.input().extend_from_slice(&data);
        draft.hash_many(kind, [0..100_000, 17..20_000]).pin(1);
        let done = runtime.submit(draft).expect("room").wait().expect("a healthy device");
        assert_eq!(done.report().device, 1);
        let expected = [hash(kind, &data), hash(kind, &data[17..20_000])];
        assert_eq!(done.output().fingerprints, expected);
    }
}

fn functions() -> impl Strategy<Value = WindowFunction> {
    proptest::sample::select(WindowFunction::ALL.to_vec())
}

proptest! {
    #[test]
    fn any_windows(
        seed in any::<u64>(),
        len in 0usize..6000,
        function in functions(),
        window in prop_oneof![1usize..100, Just(55), Just(56), 1usize..4097],
        step in prop_oneof![1usize..20, 1usize..300, 1usize..5000],
        keep in 1usize..21,
        order in proptest::sample::select(vec![Order::Forward, Order::Backward, Order::Shuffled]),
        staged in any::<bool>(),
    ) {
        let data = bytes(seed, len);
        let spec = WindowSpec { function, window, step, keep: keep.min(function.len()) };
        let mut got = Vec::new();
        let mut grid = HostGrid::new(order);
        if !staged {
            grid = grid.without_staging();
        }
        grid.run(&mut Task::WindowHash(WindowHash { spec, data: &data, out: &mut got })).expect("window_hash");
        prop_assert!(got == reference::window_hash(spec, &data));
    }

    #[test]
    fn any_pieces(
        seed in any::<u64>(),
        kind in proptest::sample::select(FingerprintKind::ALL.to_vec()),
        pieces in proptest::collection::vec((0u32..40_000, prop_oneof![0u32..200, 0u32..20_000]), 0..80),
    ) {
        let data = bytes(seed, 60_000);
        let ranges: Vec<_> = pieces.iter().map(|&(start, len)| start..start + len).collect();
        let mut got = Vec::new();
        let task = HashMany { kind, data: &data, ranges: &ranges, out: &mut got };
        HostGrid::new(Order::Shuffled).run(&mut Task::HashMany(task)).expect("hash_many");
        let expected: Vec<_> =
            ranges.iter().map(|range| reference::fingerprint(kind, &data[range.start as usize..range.end as usize])).collect();
        prop_assert!(got == expected);
    }

    #[test]
    fn any_block(seed in any::<u64>(), len in prop_oneof![0usize..10_000, 0usize..1_500_000], digest in 0usize..3) {
        let data = bytes(seed, len);
        let digest = outrigger_offload::op::Digest::ALL[digest];
        let mut got = Vec::new();
        let task = PmdHash { digest, data: &data, out: &mut got };
        HostGrid::new(Order::Backward).run(&mut Task::PmdHash(task)).expect("pmd_hash");
        prop_assert_eq!(got, reference::pmd_hash(digest, &data));
    }
}
