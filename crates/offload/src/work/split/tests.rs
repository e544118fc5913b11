//! For any sharing of the units and any order of their return, the result equals that of one
//! thread.

use outrigger_format::boundary::GearMasks;
use outrigger_format::{ChunkerSpec, FingerprintKind};
use proptest::prelude::*;

use super::*;
use crate::op::{Digest, Stream, WindowFunction, WindowSpec};
use crate::pool::Pool;
use crate::table::Table;
use crate::work::{Input, same_result};

/// A third noise, a third zeros, a third that repeats, so that some cuts are forced and some are
/// found.
fn data(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    let mut data = vec![0; len];
    data.iter_mut().take(len / 3).for_each(|byte| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        *byte = (state >> 32) as u8;
    });
    let from = 2 * len / 3;
    for at in from..len {
        data[at] = data[at % (len / 3).max(1)];
    }
    data
}

fn work(request: Request, bytes: &[u8], from: usize) -> Arc<Work> {
    let mut buffer = Pool::new(None, 0).alloc(bytes.len());
    buffer.extend_from_slice(bytes);
    Arc::new(Work { request, input: Input::Own(buffer), range: from..bytes.len() })
}

/// Executes it with `hands` units in flight at a time. `turn` chooses the order of their return.
fn by_many(
    split: &mut Split,
    work: &Arc<Work>,
    threads: usize,
    hands: usize,
    mut turn: impl FnMut(usize) -> usize,
) -> Output {
    let (mut cpu, mut output) = (CpuDevice::new(), Output::default());
    split.begin(work, threads);
    let mut held: Vec<Unit> = Vec::new();
    loop {
        while held.len() < hands
            && let Some(unit) = split.next()
        {
            held.push(unit);
        }
        assert_eq!(split.under_way(), held.len());
        if held.is_empty() {
            break;
        }
        let mut unit = held.swap_remove(turn(held.len()));
        unit.run(work, &mut cpu);
        split.done(unit);
    }
    split.finish(&mut cpu, &mut output);
    assert_eq!(Arc::strong_count(work), 1, "nothing is held on to");
    output
}

fn requests(len: u32, table: &Arc<Table>) -> Vec<Request> {
    let mut requests = vec![
        Request::Scan { history: 0, masks: GearMasks::for_average(4096) },
        Request::Scan { history: 100, masks: GearMasks::for_average(256) },
    ];
    for kind in FingerprintKind::ALL {
        let cuts = (0..len / 7001).map(|n| n * 7001..(n * 7001 + n % 9000).min(len));
        requests.push(Request::HashMany { kind, ranges: cuts.chain(std::iter::once(0..len / 2)).collect() });
    }
    for digest in [Digest::Md5, Digest::Sha1, Digest::Sha256] {
        requests.push(Request::PmdHash { digest });
    }
    for (function, window, step, keep) in [
        (WindowFunction::Md5, 20, 4, 4),
        (WindowFunction::Sha1, 52, 52, 20),
        (WindowFunction::Rabin, 48, 1, 8),
    ] {
        requests.push(Request::WindowHash { spec: WindowSpec { function, window, step, keep } });
    }
    let (a, b) = (len / 50, len / 40);
    let stream = |range, last| Stream { range, last };
    let tiny = (0..40).map(|n| stream(b + n * 10..b + n * 10 + n % 11, n % 2 == 0));
    let mixed: Vec<Stream> = [stream(0..a, true), stream(a..b, false)]
        .into_iter()
        .chain(tiny)
        .chain([stream(b + 400..len, true)])
        .collect();
    for chunker in ["gear32:4K/16K/64K", "gear32:64/256/1K", "fixed:16K", "rabin:2K/8K/64K"] {
        let chunker = ChunkerSpec::parse(chunker).expect("a chunker");
        let whole = |last| vec![stream(0..len, last)];
        for (streams, table) in
            [(whole(true), None), (whole(false), Some(table)), (mixed.clone(), Some(table))]
        {
            let (kind, table) = (FingerprintKind::Blake3, table.map(Arc::clone));
            requests.push(Request::Ingest { streams, chunker, kind, table });
        }
    }
    requests
}

#[test]
fn every_operation_gives_what_one_thread_gives() {
    let bytes = data(10_000_123, 7);
    let mut table = Table::with_capacity(100);
    let known: Vec<_> =
        (0..20).map(|n| crate::hash(FingerprintKind::Blake3, &bytes[n * 16384..][..16384])).collect();
    let entries: Vec<_> = known.into_iter().zip(0..).collect();
    table.insert_many(&entries).expect("room");
    let table = Arc::new(table);
    let mut split = Split::default();
    let mut cpu = CpuDevice::new();
    for request in requests(bytes.len() as u32 - 1000, &table) {
        let work = work(request, &bytes, 1000);
        work.assert_valid();
        assert!(is_worth_it(&work), "{}", work.class());
        let mut expected = Output::default();
        work.run_on(&mut cpu, &mut expected).expect("done");
        for (threads, hands) in [(2, 1), (2, 2), (16, 5)] {
            let mut state = hands;
            let output = by_many(&mut split, &work, threads, hands, |held| {
                state = (state * 31 + 7) % 1009;
                state % held
            });
            assert!(same_result(&work, &expected, &output, &mut cpu), "{} {threads} {hands}", work.class());
        }
    }
}

#[test]
fn two_levels_of_the_parallel_construction_at_once() {
    let bytes = data((17 << 20) + 5000, 9);
    for digest in [Digest::Md5, Digest::Sha1, Digest::Sha256] {
        let work = work(Request::PmdHash { digest }, &bytes, 0);
        let mut split = Split::default();
        let output = by_many(&mut split, &work, 2, 3, |held| held - 1);
        assert_eq!(split.levels, 2);
        assert_eq!(output.bytes[..], crate::reference::pmd_hash(digest, &bytes));
    }
}

#[test]
fn small_and_invalid_work_is_for_one_thread() {
    let bytes = data(2 << 20, 3);
    let invalid = WindowSpec { function: WindowFunction::Md5, window: 0, step: 1, keep: 1 };
    let scan = Request::Scan { history: 0, masks: GearMasks::for_average(4096) };
    for request in [
        Request::WindowHash { spec: invalid },
        Request::PmdHash { digest: Digest::Blake3 },
        Request::HashMany { kind: FingerprintKind::Md5, ranges: std::iter::once(0..2 << 20).collect() },
        Request::Compress { spec: outrigger_format::CodecSpec::NONE },
    ] {
        assert!(!is_worth_it(&work(request, &bytes, 0)));
    }
    assert!(!is_worth_it(&work(scan.clone(), &bytes, LEAST + 1)) && is_worth_it(&work(scan, &bytes, LEAST)));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn cuts_do_not_depend_on_who_scans_what(
        len in LEAST..3 << 20,
        seed in any::<u64>(),
        threads in 1usize..20,
        hands in 1usize..8,
        turns in proptest::collection::vec(any::<usize>(), 1..50),
        last in any::<bool>(),
        fixed in any::<bool>(),
    ) {
        let bytes = data(len, seed);
        let chunker = if fixed { ChunkerSpec::Fixed { size: 5000 } } else { ChunkerSpec::DEFAULT };
        let (streams, kind) = (vec![Stream { range: 0..len as u32, last }], FingerprintKind::Sha256);
        let work = work(Request::Ingest { streams, chunker, kind, table: None }, &bytes, 0);
        let (mut cpu, mut expected) = (CpuDevice::new(), Output::default());
        work.run_on(&mut cpu, &mut expected).expect("done");
        let mut at = 0;
        let output = by_many(&mut Split::default(), &work, threads, hands, |held| {
            at = (at + 1) % turns.len();
            turns[at] % held
        });
        prop_assert!(same_result(&work, &expected, &output, &mut cpu));
    }
}
