//! Hashing primitives as two ratios: against the plain loop over the functions' crates on one core
//! (the papers' baseline), and of all cores together against the sum of what each does alone.

use std::hint::black_box;
use std::sync::Barrier;
use std::time::Instant;

use outrigger_format::{ChunkerSpec, Fingerprint, FingerprintKind};
use outrigger_offload::op::{Digest, Stream, WindowFunction, WindowSpec};
use outrigger_offload::table::Table;
use outrigger_offload::{
    Ingester, SimdLevel, candidates_with, hash, hash_many_with, pmd_hash_with, reference, window_hash_with,
};

use super::rate;

type Run<'a> = Box<dyn FnMut(&[u8]) + Send + 'a>;

/// One operation: its plain loop, if it has one, and the operation with the instructions of a
/// level.
struct Primitive {
    name: String,
    /// Bytes of input of a run.
    bytes: usize,
    plain: Option<Run<'static>>,
    run: Box<dyn Fn(SimdLevel) -> Run<'static> + Sync>,
}

fn hashing(kind: FingerprintKind) -> Primitive {
    const CHUNK: usize = 16 << 10;
    Primitive {
        name: format!("{} of 16 Ki", kind.name()),
        bytes: 1 << 20,
        plain: Some(Box::new(move |data| {
            for chunk in data.chunks(CHUNK) {
                black_box(reference::fingerprint(kind, chunk));
            }
        })),
        run: Box::new(move |level| {
            let mut out = Vec::new();
            Box::new(move |data| {
                out.clear();
                let ranges = (0..data.len()).step_by(CHUNK).map(|at| at..data.len().min(at + CHUNK));
                hash_many_with(level, kind, data, ranges, &mut out);
                black_box(&out);
            })
        }),
    }
}

fn pmd(digest: Digest) -> Primitive {
    Primitive {
        name: format!("pmd-{} of 16 Mi", digest.name()),
        bytes: 16 << 20,
        // The papers' baseline: the standard digest on one core.
        plain: Some(Box::new(move |data| drop(black_box(reference::digest(digest, data))))),
        run: Box::new(move |level| {
            let mut out = Vec::new();
            Box::new(move |data| {
                out.clear();
                pmd_hash_with(level, digest, data, &mut out);
                black_box(&out);
            })
        }),
    }
}

fn windows(function: WindowFunction, window: usize, step: usize, keep: usize) -> Primitive {
    let spec = WindowSpec { function, window, step, keep };
    Primitive {
        name: format!("{} windows {window}/{step}", function.name()),
        bytes: 1 << 20,
        plain: plain_windows(function, window, step),
        run: Box::new(move |level| {
            let mut out = Vec::new();
            Box::new(move |data| {
                out.clear();
                window_hash_with(level, spec, data, &mut out);
                black_box(&out);
            })
        }),
    }
}

/// The unmodified scalar loop: one window after the other, by the crates. Rabin and gear32 have no
/// such baseline.
fn plain_windows(function: WindowFunction, window: usize, step: usize) -> Option<Run<'static>> {
    use md5::Digest as _;
    let starts = move |data: &[u8]| (0..(data.len() + 1).saturating_sub(window)).step_by(step);
    match function {
        WindowFunction::Md5 => Some(Box::new(move |data| {
            for at in starts(data) {
                black_box(md5::Md5::digest(&data[at..at + window]));
            }
        })),
        WindowFunction::Sha1 => Some(Box::new(move |data| {
            for at in starts(data) {
                black_box(sha1::Sha1::digest(&data[at..at + window]));
            }
        })),
        WindowFunction::Rabin | WindowFunction::Gear32 => None,
    }
}

fn cutting(chunker: &str) -> Primitive {
    let chunker = ChunkerSpec::parse(chunker).expect("a chunker");
    Primitive {
        name: format!("cut {}", chunker.to_string().split(':').next().unwrap_or_default()),
        bytes: 1 << 20,
        plain: None,
        run: Box::new(move |level| {
            let mut out = Vec::new();
            Box::new(move |data| {
                out.clear();
                candidates_with(level, chunker, &[], data, &mut out);
                black_box(&out);
            })
        }),
    }
}

fn ingest(kind: FingerprintKind) -> Primitive {
    Primitive {
        name: format!("ingest, {}", kind.name()),
        bytes: 16 << 20,
        plain: None,
        run: Box::new(move |level| {
            let mut ingester = Ingester::with_level(level, ChunkerSpec::DEFAULT, kind);
            let (mut out, mut counts) = (Vec::new(), Vec::new());
            let mut table = Table::with_capacity(1 << 20);
            let known: Vec<_> = (0..1u64 << 19).map(|n| (uniform(n), n)).collect();
            table.insert_many(&known).expect("room");
            Box::new(move |data| {
                out.clear();
                counts.clear();
                let streams = [Stream { range: 0..data.len() as u32, last: true }];
                ingester.ingest(data, &streams, Some(&table), &mut out, &mut counts);
                black_box(&out);
            })
        }),
    }
}

fn uniform(n: u64) -> Fingerprint {
    hash(FingerprintKind::Blake3, &n.to_le_bytes())
}

/// Prints a line for each primitive.
pub fn bench(data: &[u8], quick: bool) {
    use WindowFunction::{Gear32, Md5, Rabin, Sha1};
    let mut primitives: Vec<Primitive> = FingerprintKind::ALL.into_iter().map(hashing).collect();
    primitives.extend([Digest::Md5, Digest::Sha1, Digest::Sha256].map(pmd));
    primitives
        .extend([(20, 4), (52, 52), (48, 1), (63, 20)].map(|(window, step)| windows(Md5, window, step, 16)));
    primitives.push(Primitive { name: "md5 20/4, 4 kept".to_string(), ..windows(Md5, 20, 4, 4) });
    primitives.extend([(20, 4), (52, 52), (48, 1)].map(|(window, step)| windows(Sha1, window, step, 20)));
    primitives.extend([(48, 1), (20, 4), (52, 52)].map(|(window, step)| windows(Rabin, window, step, 8)));
    primitives.extend([(48, 1), (20, 4)].map(|(window, step)| windows(Gear32, window, step, 4)));
    primitives.extend(
        ["gear32:4K/16K/64K", "rabin:4K/16K/64K", "lbfs-md5:4K/16K/64K", "lbfs-sha1:4K/16K/64K"].map(cutting),
    );
    primitives.extend([FingerprintKind::Blake3, FingerprintKind::Sha256, FingerprintKind::Sha1].map(ingest));
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let levels: Vec<SimdLevel> = SimdLevel::available()
        .filter(|level| !matches!(level, SimdLevel::Avx2Vaes | SimdLevel::Avx2Gfni))
        .collect();
    print!("\n{:>20} {:>8}", "GB/s of input", "plain");
    levels.iter().for_each(|level| print!(" {:>8}", level.name()));
    println!(" {:>10} {:>8} {:>10}", "× plain", format!("{cores} cores"), "of the sum");
    for Primitive { name, bytes, plain, run } in &mut primitives {
        let data = &data[..data.len().min(*bytes)];
        print!("{name:>20}");
        let baseline = plain.as_mut().map(|plain| rate(data.len(), quick, || plain(data)));
        match baseline {
            Some(baseline) => print!(" {baseline:>8.3}"),
            None => print!(" {:>8}", "-"),
        }
        let mut best = 0f64;
        for &level in &levels {
            let mut run = run(level);
            best = rate(data.len(), quick, || run(data));
            print!(" {best:>8.3}");
        }
        match baseline {
            Some(baseline) => print!(" {:>10.1}", best / baseline),
            None => print!(" {:>10}", "-"),
        }
        let all = all_cores(cores, data, quick, run);
        println!(" {all:>8.3} {:>10.2}", all / (best * cores as f64));
    }
}

/// The rate of all cores, each with its own buffer. It is the best of several runs, which all cores
/// begin together, measured from the first beginning to the last end.
fn all_cores(
    cores: usize,
    data: &[u8],
    quick: bool,
    run: &(dyn Fn(SimdLevel) -> Run<'static> + Sync),
) -> f64 {
    let turns = if quick { 1 } else { 12 };
    let calls = if quick { 1 } else { (16 << 20) / data.len().max(1) + 1 };
    let barrier = Barrier::new(cores);
    let times: Vec<Vec<(Instant, Instant)>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..cores)
            .map(|_| {
                scope.spawn(|| {
                    let (mut run, data) = (run(SimdLevel::current()), data.to_vec());
                    run(&data);
                    let turn = |_| {
                        barrier.wait();
                        let begin = Instant::now();
                        (0..calls).for_each(|_| run(&data));
                        (begin, Instant::now())
                    };
                    (0..turns).map(turn).collect()
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    });
    let spans = (0..turns).map(|turn| {
        let begin = times.iter().map(|times| times[turn].0).min().expect("a core");
        let end = times.iter().map(|times| times[turn].1).max().expect("a core");
        (end - begin).as_secs_f64()
    });
    (data.len() * calls * cores) as f64 / spans.fold(f64::MAX, f64::min) / 1e9
}

/// Prints lookups a second in tables of rising size, one by one and in batches.
pub fn bench_lookup(quick: bool) {
    println!(
        "\n{:>20} {:>10} {:>10} {:>10} {:>10}",
        "M lookups/s", "one by one", "batch", "half known", "unknown"
    );
    let sizes: &[usize] = if quick { &[1000] } else { &[10_000, 1_000_000, 16_000_000] };
    for &size in sizes {
        let mut table = Table::with_capacity(size);
        let known: Vec<_> = (0..size as u64).map(|n| (uniform(n), n)).collect();
        table.insert_many(&known).expect("room");
        let count = if quick { 1000 } else { 1 << 18 };
        let questions = |unknown: u64| -> Vec<Fingerprint> {
            let pick = |n: u64| n.wrapping_mul(0x9e37_79b9_7f4a_7c15) % size as u64;
            (0..count).map(|n| uniform(if n % 4 < unknown { u64::MAX - n } else { pick(n) })).collect()
        };
        let all_known = questions(0);
        // GB/s with one byte for each question are G lookups/s.
        let one_by_one = rate(all_known.len(), quick, || {
            for key in &all_known {
                black_box(table.get(key));
            }
        });
        let mut out = Vec::new();
        let mut batch = |keys: &[Fingerprint]| {
            let rate = rate(keys.len(), quick, || {
                out.clear();
                table.lookup_many(keys, &mut out);
            });
            assert_eq!(out.len(), keys.len());
            rate * 1e3
        };
        let rates = [batch(&all_known), batch(&questions(2)), batch(&questions(4))];
        print!("{:>20} {:>10.1}", format!("{size} entries"), one_by_one * 1e3);
        rates.iter().for_each(|rate| print!(" {rate:>10.1}"));
        println!();
    }
}
