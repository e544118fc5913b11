//! Searches for zstd parameters that beat the stock levels on small frames, for the tables of
//! `docs/decisions/0002-zstd-parameters.md`.
//!
//! ```text
//! cargo run --release -p outrigger-offload --example tune_zstd -- FRAME_KIB FILE...
//! ```
//!
//! Each file is cut into frames, which are compressed separately. Times are the thread's processor
//! time, the best of several rounds, to limit the effect of other load. `*` marks results that no
//! other beats in both rate and size.
#![allow(clippy::disallowed_methods, reason = "tests wait and measure in real time")]

use std::time::Duration;

use zstd_safe::{CCtx, CParameter, DCtx, ParamSwitch, Strategy};

const ROUNDS: usize = 4;

/// Chain, hash, search, minimum match, strategy, row-based search. `None` is the stock level.
struct Point {
    name: String,
    level: i32,
    advanced: Option<(u32, u32, u32, u32, Strategy, ParamSwitch)>,
}

fn points() -> Vec<Point> {
    use Strategy::{ZSTD_dfast, ZSTD_fast, ZSTD_greedy};
    let mut points = Vec::new();
    for level in [-1, 1, 2, 3, 4, 5] {
        points.push(Point { name: format!("stock {level}"), level, advanced: None });
    }
    let mut add = |name: &str, c, h, s, m, strategy, row| {
        let name = format!("{name} C{c} H{h} S{s} M{m}");
        points.push(Point { name, level: 1, advanced: Some((c, h, s, m, strategy, row)) });
    };
    for (hash, min) in [(13, 6), (14, 6), (15, 5), (15, 6), (16, 5)] {
        add("fast", 12, hash, 1, min, ZSTD_fast, ParamSwitch::Auto);
    }
    for (chain, hash, min) in [(13, 14, 5), (14, 15, 5), (14, 15, 4), (15, 16, 5), (15, 16, 4), (16, 17, 5)] {
        add("dfast", chain, hash, 1, min, ZSTD_dfast, ParamSwitch::Auto);
    }
    for (hash, search) in [(15, 2), (16, 3), (17, 4)] {
        add("greedy", 14, hash, search, 5, ZSTD_greedy, ParamSwitch::Enable);
    }
    points
}

/// The processor time of this thread.
fn thread_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux");
    Duration::from_nanos(stat.split(' ').next().and_then(|nanos| nanos.parse().ok()).expect("nanoseconds"))
}

fn context(point: &Point) -> CCtx<'static> {
    let mut context = CCtx::create();
    let mut set = |parameter| context.set_parameter(parameter).expect("a valid parameter");
    set(CParameter::CompressionLevel(point.level));
    set(CParameter::ContentSizeFlag(false));
    if let Some((chain, hash, search, min, strategy, row)) = point.advanced {
        set(CParameter::ChainLog(chain));
        set(CParameter::HashLog(hash));
        set(CParameter::SearchLog(search));
        set(CParameter::MinMatch(min));
        set(CParameter::TargetLength(0));
        // The library lowers it to the frame's need. Level 1's own would be 2^19.
        set(CParameter::WindowLog(21));
        set(CParameter::Strategy(strategy));
        set(CParameter::UseRowMatchFinder(row));
    }
    context
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let frame: usize = arguments.next().and_then(|kib| kib.parse().ok()).expect("FRAME_KIB FILE...");
    for file in arguments {
        let data = std::fs::read(&file).expect("a readable file");
        let frames: Vec<&[u8]> = data.chunks(frame << 10).collect();
        println!("\n{file}: {} MB in frames of {frame} KiB", data.len() / 1_000_000);
        println!("  {:<24} {:>6} {:>9} {:>9}", "parameters", "ratio", "MB/s in", "MB/s out");
        let mut points: Vec<_> =
            points().into_iter().map(|point| (context(&point), point, [f64::MAX; 2], 0)).collect();
        let mut stored: Vec<Vec<u8>> =
            frames.iter().map(|frame| Vec::with_capacity(zstd_safe::compress_bound(frame.len()))).collect();
        let mut raw = Vec::with_capacity(frame << 10);
        let mut decoder = DCtx::create();
        // In turns, so that a noisy minute affects all alike.
        for _ in 0..ROUNDS {
            for (context, point, best, size) in &mut points {
                let begin = thread_time();
                for (frame, stored) in frames.iter().zip(&mut stored) {
                    context.compress2(stored, frame).expect("enough room");
                }
                let middle = thread_time();
                for stored in &stored {
                    decoder.decompress(&mut raw, stored).expect("what was compressed");
                }
                *best = [
                    best[0].min((middle - begin).as_secs_f64()),
                    best[1].min((thread_time() - middle).as_secs_f64()),
                ];
                *size = stored.iter().map(Vec::len).sum();
                assert_eq!(&raw, frames.last().expect("a frame"), "{}", point.name);
            }
        }
        let rate = |time: f64| data.len() as f64 / time / 1e6;
        let mut rows: Vec<_> = points
            .into_iter()
            .map(|(_, point, best, size)| {
                (data.len() as f64 / size as f64, rate(best[0]), rate(best[1]), point.name)
            })
            .collect();
        rows.sort_by(|a, b| b.1.total_cmp(&a.1));
        let mut ratio_so_far = 0.0;
        for (ratio, rate_in, rate_out, name) in rows {
            let best = ratio > ratio_so_far;
            ratio_so_far = f64::max(ratio_so_far, ratio);
            let mark = if best { '*' } else { ' ' };
            println!("{mark} {name:<24} {ratio:>6.3} {rate_in:>9.0} {rate_out:>9.0}");
        }
    }
}
