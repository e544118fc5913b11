//! One store, written to step by step.

use std::io::Read;
use std::time::Instant;

use outrigger_store::meta::At;
use outrigger_store::tree::{StorePath, require};
use outrigger_workload::{StreamOptions, stream};

use crate::experiment::{Failed, Lab, check};
use crate::measure::Spread;
use crate::record::{Axis, Form, Limit, Outcome, Plot, Series};
use crate::wrote::{Way, chunker, disk_rate, store, write};

/// Throughput, memory and latency by size.
pub fn steps(lab: &Lab) -> Result<Outcome, Failed> {
    let (step, most) = lab.scale.pick((1_u64 << 20, 4_u64 << 20), (128 << 20, 2 << 30), (1 << 30, 64 << 30));
    let room = lab.room()?;
    let store = store(&room.path().join("store"), "zstd:1")?;
    let options =
        StreamOptions { seed: 21, len: most, dedup_rate: 0.3, compressibility: 0.5, segment: 256 << 10 };
    let mut data =
        stream(options.seed, options.len, options.dedup_rate, options.compressibility, options.segment);
    let (source, spec) = (room.path().join("source"), chunker("gear32:4K/16K/64K")?);
    std::fs::create_dir(&source)?;
    let mut rate = Series::measured("put");
    let mut filters = Series::measured("index in memory");
    let mut latency =
        [Series::measured("a path looked up"), Series::measured("a file of 4 KiB put, durably")];
    let (mut at, mut new) = (0, 0);
    while at < most {
        let mut file = std::fs::File::create(source.join("part"))?;
        std::io::copy(&mut (&mut data).take(step), &mut file)?;
        drop(file);
        let put = write(lab, &store, &source, &format!("part{at}"), spec, Way::Cpu, room.path())?;
        (at, new) = (at + step, new + put.new);
        let x = at as f64;
        rate.exact(x, put.bytes as f64 / put.seconds / 1e6);
        filters.exact(x, index_bytes(&store) as f64 / 1e6);
        let path = StorePath::parse(b"part0/part")?;
        let look = || {
            let begun = Instant::now();
            let found = require(&*store.meta, At::Now, &path);
            (begun.elapsed().as_secs_f64() * 1e3, found.is_ok())
        };
        let found: Vec<_> = (0..lab.scale.pick(1, 31, 101)).map(|_| look()).collect();
        check(found.iter().all(|(_, found)| *found), "a file that was put is not found")?;
        latency[0].push(x, Spread::of(found.iter().map(|(millis, _)| *millis).collect()));
        std::fs::write(source.join("part"), at.to_le_bytes().repeat(512))?;
        let tiny = write(lab, &store, &source, &format!("tiny{at}"), spec, Way::Cpu, room.path())?;
        latency[1].exact(x, tiny.seconds * 1e3);
    }
    let mut outcome = Outcome::default();
    let quarter = (rate.points.len() / 4).max(1);
    let mean = |points: &[crate::record::Point]| {
        points.iter().map(|point| point.y).sum::<f64>() / points.len() as f64
    };
    outcome.find(
        "throughput, last quarter of the first",
        100.0 * mean(&rate.points[rate.points.len() - quarter..]) / mean(&rate.points[..quarter]),
        "%",
        None,
    );
    outcome.find("new, of what was put", 100.0 * new as f64 / most as f64, "%", None);
    outcome.find("peak memory of the process", peak_bytes() as f64 / 1e6, "MB", None);
    let limit = disk_rate(lab)? / 1e6;
    let bytes = Axis { label: "put so far".into(), unit: "bytes".into(), log: false, names: Vec::new() };
    let plot = |title: &str, y: Axis, series: Vec<Series>, limits: Vec<Limit>| Plot {
        title: title.into(),
        form: Form::Lines,
        x: Axis { log: true, ..bytes.clone() },
        y,
        series,
        limits,
    };
    outcome.plots.push(plot(
        "Throughput of each step",
        Axis::new("throughput", "MB/s"),
        vec![rate],
        vec![Limit { name: "the file system, one file made durable".into(), y: limit }],
    ));
    outcome.plots.push(plot("Latency of names", Axis::log("latency", "ms"), latency.into(), Vec::new()));
    if filters.most() > 0.0 {
        outcome.plots.push(plot("The index in memory", Axis::new("memory", "MB"), vec![filters], Vec::new()));
    }
    outcome.note(format!(
        "Steps of {}; each is one file, put by one call that ends when it is durable.",
        crate::plot::bytes(step as f64)
    ));
    Ok(outcome)
}

fn index_bytes(store: &outrigger_store::Store) -> usize {
    let memory = store.index.memory();
    memory.filter + memory.fences
}

/// The most that this process had in memory so far.
fn peak_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()).unwrap_or(0) * 1024
}
