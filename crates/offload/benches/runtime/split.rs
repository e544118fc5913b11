//! Compares one large task on all threads with one such task on each thread.

use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use outrigger_format::boundary::GearMasks;
use outrigger_format::{ChunkerSpec, FingerprintKind};
use outrigger_offload::CpuDevice;
use outrigger_offload::op::{Digest, Stream};
use outrigger_offload::pool::Buffer;
use outrigger_offload::runtime::Runtime;
use outrigger_offload::work::{Input, Output, Request, Work, same_result};

use crate::median;

/// The requests to measure, on `bytes` bytes.
fn requests(bytes: u32) -> Vec<Request> {
    let chunk = 16 << 10;
    let ranges = || (0..bytes.div_ceil(chunk)).map(|n| n * chunk..bytes.min((n + 1) * chunk)).collect();
    let hash = |kind| Request::HashMany { kind, ranges: ranges() };
    let ingest = |kind| {
        let streams = vec![Stream { range: 0..bytes, last: true }];
        Request::Ingest { streams, chunker: ChunkerSpec::DEFAULT, kind, table: None }
    };
    vec![
        Request::Scan { history: 0, masks: GearMasks::for_average(16 << 10) },
        hash(FingerprintKind::Blake3),
        hash(FingerprintKind::Sha256),
        hash(FingerprintKind::Md5),
        Request::PmdHash { digest: Digest::Md5 },
        Request::PmdHash { digest: Digest::Sha256 },
        ingest(FingerprintKind::Blake3),
        ingest(FingerprintKind::Sha256),
    ]
}

/// Bytes without structure.
fn noise(runtime: &Runtime, bytes: usize) -> Arc<Buffer> {
    let mut buffer = runtime.pool().alloc(bytes);
    buffer.set_len(bytes);
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    for word in buffer.as_chunks_mut::<8>().0 {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        *word = state.to_le_bytes();
    }
    Arc::new(buffer)
}

/// Prints GB/s for each operation: of one thread, of all threads with a task each (the capacity of
/// the cores), and of all threads with one task together. The last number is the ratio of the third
/// to the second, which should be at least 0.9.
pub fn split(quick: bool) {
    let bytes = if quick { 2 << 20 } else { 64 << 20 };
    let rounds = if quick { 1 } else { 9 };
    let threads = std::thread::available_parallelism().map_or(2, usize::from).max(2);
    let runtime = Runtime::builder().cpu_threads(threads).build();
    let each_data: Vec<_> = (0..threads).map(|_| noise(&runtime, bytes)).collect();
    let data = Arc::clone(&each_data[0]);
    println!(
        "\n{:>34} {:>9} {:>9} {:>9} {:>11}",
        format!("{} MiB, {threads} threads, GB/s", bytes >> 20),
        "one",
        "each own",
        "together",
        "together/own"
    );
    let mut cpus: Vec<(CpuDevice, Output)> =
        (0..threads).map(|_| (CpuDevice::new(), Output::default())).collect();
    let mut least = f64::INFINITY;
    for request in requests(bytes as u32) {
        let work = |data: &Arc<Buffer>| {
            let input = Input::Shared(Arc::clone(data));
            Work { request: request.clone(), input, range: 0..bytes }
        };
        let works: Vec<Work> = each_data.iter().map(work).collect();
        let mut draft = runtime.draft(0);
        draft.share(Arc::clone(&data), 0..bytes).set_request(request);
        // Each ratio is of times measured one after the other, while the machine was in one state.
        let (mut times, mut ratios) = ([const { Vec::new() }; 3], Vec::new());
        // The first round warms up.
        for round in 0..=rounds {
            let alone = own(&works[..1], &mut cpus[..1]);
            let each = own(&works, &mut cpus);
            let begun = Instant::now();
            let done = runtime.submit(draft).expect("admitted").wait().expect("done");
            let together = begun.elapsed();
            if round == 0 {
                let (cpu, expected) = &mut cpus[0];
                assert!(same_result(&works[0], expected, done.output(), cpu), "they give the same");
            } else {
                ratios.push(each.as_secs_f64() / threads as f64 / together.as_secs_f64());
                times
                    .iter_mut()
                    .zip([alone, each, together])
                    .for_each(|(times, time)| times.push(time.as_secs_f64()));
            }
            draft = done.again();
        }
        let [alone, each, together] = times.map(median);
        let rate = |tasks: usize, time: f64| (tasks * bytes) as f64 / time / 1e9;
        let ratio = median(ratios);
        let (own, together) = (rate(threads, each), rate(1, together));
        least = least.min(ratio);
        println!(
            "{:>34} {:>9.2} {own:>9.2} {together:>9.2} {:>11.3}",
            works[0].class().to_string(),
            rate(1, alone),
            ratio
        );
    }
    println!("least {least:.3}");
}

/// Runs the work of all `cpus` at once, on a thread each, with separate data, so that no thread
/// finds another's data in a cache.
fn own(works: &[Work], cpus: &mut [(CpuDevice, Output)]) -> Duration {
    let start = Barrier::new(cpus.len() + 1);
    std::thread::scope(|scope| {
        for ((cpu, output), work) in cpus.iter_mut().zip(works) {
            let start = &start;
            scope.spawn(move || {
                start.wait();
                work.run_on(cpu, output).expect("done");
            });
        }
        start.wait();
        Instant::now()
    })
    .elapsed()
}
