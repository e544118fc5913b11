//! Rates of the processor's operations, compared with `memcpy`, the `gearhash` crate, and the
//! scalar loops of the `md-5` and `sha1` crates:
//!
//! ```text
//! cargo bench -p outrigger-offload [-- scan|hash|primitives|lookup|codec]     (OUTRIGGER_BENCH_FILE=FILE: what codecs compress)
//! ```
//!
//! Figures are GB/s of raw bytes, the best of several runs. `cargo test --benches` runs everything
//! once on little data. The conformance tests check the operations, and this benchmark compares
//! counts again.
#![allow(clippy::disallowed_methods, reason = "tests wait and measure in real time")]

mod primitives;

use std::hint::black_box;
use std::time::Instant;

use outrigger_format::boundary::{GearMasks, scan_reference};
use outrigger_format::{Codec, CodecSpec, FingerprintKind};
use outrigger_offload::{Compressor, Decompressor, SimdLevel, hash_many, scan_with};

/// The best rate of several runs, in GB/s.
fn rate(bytes: usize, quick: bool, mut run: impl FnMut()) -> f64 {
    // Many short runs, so that on a busy machine some are not interrupted.
    let calls = if quick { 1 } else { (1 << 20) / bytes.max(1) + 1 };
    let mut best = 0f64;
    let started = Instant::now();
    while best == 0.0 || (!quick && started.elapsed().as_millis() < 400) {
        let begin = Instant::now();
        (0..calls).for_each(|_| run());
        best = best.max((bytes * calls) as f64 / begin.elapsed().as_secs_f64() / 1e9);
    }
    best
}

/// The rate over all `frames`, each at its best of several passes, in GB/s.
fn rate_of_frames(frames: &[&[u8]], quick: bool, mut run: impl FnMut(usize)) -> f64 {
    let mut best = vec![f64::MAX; frames.len()];
    for _ in 0..if quick { 1 } else { 9 } {
        for (frame, best) in best.iter_mut().enumerate() {
            let begin = Instant::now();
            run(frame);
            *best = best.min(begin.elapsed().as_secs_f64());
        }
    }
    frames.iter().map(|frame| frame.len()).sum::<usize>() as f64 / best.iter().sum::<f64>() / 1e9
}

/// Bytes that no codec compresses.
fn random(len: usize) -> Vec<u8> {
    let mut state = 1u64;
    let next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    std::iter::repeat_with(next).take(len).collect()
}

fn main() {
    // Cargo passes `--bench` when benchmarking and nothing when testing.
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let quick = !arguments.iter().any(|argument| argument == "--bench");
    let wanted = |name: &str| {
        let mut names = arguments.iter().filter(|argument| !argument.starts_with('-')).peekable();
        names.peek().is_none() || names.any(|argument| argument == name)
    };
    let data = random(if quick { 300_000 } else { 32 << 20 });
    if wanted("scan") {
        bench_scan(&data, quick);
    }
    if wanted("hash") {
        bench_hash(&data, quick);
    }
    if wanted("primitives") {
        primitives::bench(&data, quick);
    }
    if wanted("lookup") {
        primitives::bench_lookup(quick);
    }
    if wanted("codec") {
        bench_codec(&data, quick);
    }
}

fn bench_scan(data: &[u8], quick: bool) {
    println!(
        "{:>16} {:>8} {:>8} {:>8} {:>8} {:>8}  bytes",
        "scan", "1 Ki", "4 Ki", "16 Ki", "256 Ki", "32 Mi"
    );
    let masks = GearMasks::for_average(16 << 10);
    let line = |name: &str, scan: &mut dyn FnMut(&[u8])| {
        print!("{name:>16}");
        for size in [1 << 10, 4 << 10, 16 << 10, 256 << 10, 32 << 20] {
            // At a new position each time, so that small inputs do not train the branch predictor.
            let (size, mut at) = (size.min(data.len()), 0);
            let rate = rate(size, quick, || {
                at = if at + 2 * size <= data.len().min(1 << 20) { at + size } else { 0 };
                scan(&data[at..at + size]);
            });
            print!(" {rate:>8.2}");
        }
        println!();
    };
    let mut copy = vec![0; data.len()];
    line("memcpy", &mut |data| black_box(&mut copy)[..data.len()].copy_from_slice(data));
    line("gearhash crate", &mut |data| {
        let (mut hasher, mut at) = (gearhash::Hasher::default(), 0);
        while let Some(next) = hasher.next_match(&data[at..], 0xfff8_0000_0000_0000) {
            at += next;
        }
        black_box(at);
    });
    let mut found = Vec::new();
    line("reference", &mut |data| {
        found.clear();
        scan_reference(&[], data, masks, &mut found);
    });
    let expected = found.clone();
    for level in SimdLevel::available() {
        line(level.name(), &mut |data| {
            found.clear();
            scan_with(level, &[], data, masks, &mut found);
        });
        assert_eq!(found, expected, "{level}");
    }
}

fn bench_hash(data: &[u8], quick: bool) {
    println!(
        "\n{:>16} {:>8} {:>8} {:>8} {:>8}  bytes a chunk",
        "hash_many", "4 Ki", "~8 Ki", "~20 Ki", "64 Ki"
    );
    for kind in FingerprintKind::ALL {
        print!("{:>16}", kind.name());
        for (size, spread) in [(4 << 10, 1), (6 << 10, 5000), (14 << 10, 12_000), (64 << 10, 1)] {
            let data = &data[..data.len().min(1 << 20)];
            let (mut ranges, mut at, mut out) = (Vec::new(), 0, Vec::new());
            while at < data.len() {
                let end = data.len().min(at + size + at * 7919 % spread);
                ranges.push(at..end);
                at = end;
            }
            let rate = rate(data.len(), quick, || {
                out.clear();
                hash_many(kind, data, ranges.iter().cloned(), &mut out);
            });
            assert_eq!(out.len(), ranges.len());
            print!(" {rate:>8.2}");
        }
        println!();
    }
}

fn bench_codec(random: &[u8], quick: bool) {
    let file = std::env::var("OUTRIGGER_BENCH_FILE").unwrap_or_else(|_| "/proc/self/exe".into());
    let data = std::fs::read(&file).expect("a readable file");
    let data = &data[..data.len().min(if quick { 300_000 } else { 8 << 20 })];
    println!("\n{file}, {} KB in frames of 256 KiB", data.len() / 1000);
    println!("{:>16} {:>8} {:>8} {:>8}  {:>8}", "codec", "ratio", "in", "out", "random in");
    let (mut compressor, mut decompressor) = (Compressor::new(), Decompressor::new());
    for spec in
        ["none", "lz4", "zstd:-1", "zstd:1", "zstd:2", "zstd:3", "zstd:4", "zstd:5", "zstd:7", "zstd:9"]
    {
        let spec = CodecSpec::parse(spec).expect("a codec");
        let frames: Vec<&[u8]> = data.chunks(256 << 10).collect();
        let mut stored: Vec<(Codec, Vec<u8>)> = vec![(Codec::None, Vec::new()); frames.len()];
        let rate_in = rate_of_frames(&frames, quick, |frame| {
            let (used, out) = &mut stored[frame];
            *used = compressor.compress(spec, frames[frame], out);
        });
        let mut back = Vec::new();
        let rate_out = rate_of_frames(&frames, quick, |frame| {
            let (used, out) = &stored[frame];
            decompressor.decompress(*used, out, frames[frame].len(), &mut back).expect("what was compressed");
        });
        assert!(frames.last().is_some_and(|frame| *frame == back));
        let size: usize = stored.iter().map(|(_, out)| out.len()).sum();
        let frame = &random[..256 << 10];
        let rate_random = rate(frame.len(), quick, || {
            assert_eq!(compressor.compress(spec, frame, &mut back), Codec::None);
        });
        let ratio = data.len() as f64 / size as f64;
        println!("{:>16} {ratio:>8.3} {rate_in:>8.2} {rate_out:>8.2}  {rate_random:>8.2}", spec.to_string());
    }
}
