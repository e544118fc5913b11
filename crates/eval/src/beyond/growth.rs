//! One store, written to step by step.

use std::io::Read;
use std::time::Instant;

use outrigger_store::meta::At;
use outrigger_store::tree::{StorePath, require};
use outrigger_workload::{StreamOptions, stream};

use crate::experiment::{Failed, Lab, Scale, check};
use crate::measure::Spread;
use crate::record::{Axis, Form, Limit, Outcome, Plot, Series};
use crate::wrote::{Way, chunker, disk_rate, store, write};

/// Throughput, memory and latency by size.
pub fn steps(lab: &Lab) -> Result<Outcome, Failed> {
    let (step, most) = match lab.scale {
        Scale::Tiny => (1_u64 << 20, 4_u64 << 20),
        Scale::Short => (128 << 20, 2 << 30),
        Scale::Full => (1 << 30, largest(&lab.work)?),
    };
    let room = lab.room()?;
    let store = store(&room.path().join("store"), "zstd:1")?;
    let options =
        StreamOptions { seed: 21, len: most, dedup_rate: 0.3, compressibility: 0.5, segment: 256 << 10 };
    let mut data =
        stream(options.seed, options.len, options.dedup_rate, options.compressibility, options.segment);
    let (source, spec) = (room.path().join("source"), chunker("gear32:4K/16K/64K")?);
    std::fs::create_dir(&source)?;
    let mut rate = Series::measured("put");
    let mut memory =
        [Series::measured("all of the process"), Series::measured("of it, the index' filter and fences")];
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
        memory[0].exact(x, resident_bytes("VmRSS:") as f64 / 1e6);
        memory[1].exact(x, index_bytes(&store) as f64 / 1e6);
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
    outcome.find("memory of the process, first step", memory[0].points[0].y, "MB", None);
    outcome.find("memory of the process, last step", memory[0].last(), "MB", None);
    let longer = |line: &Series| line.last() / line.points[0].y;
    outcome.find("a path looked up, last step over the first", longer(&latency[0]), "x", None);
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
        vec![
            Limit { name: "the file system, for what is new".into(), y: limit },
            Limit { name: "memory, read by all cores".into(), y: crate::similarity::memory_rate(lab) / 1e6 },
        ],
    ));
    let sync = Limit { name: "4 KiB made durable by the file system".into(), y: sync_ms(lab)? };
    outcome.plots.push(plot("Latency of names", Axis::log("latency", "ms"), latency.into(), vec![sync]));
    // What was asked of the index, for the largest of these.
    let asked = 100.0 * most as f64 / 1e12;
    outcome.plots.push(plot(
        "Memory",
        Axis::new("memory", "MB"),
        memory.into(),
        vec![Limit { name: "what was asked of the index: 100 MB a TB".into(), y: asked }],
    ));
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

/// As much as leaves two fifths of what the disk has free: of what is put, 30 % repeats, and half of the rest compresses away.
fn largest(work: &std::path::Path) -> Result<u64, Failed> {
    let system = rustix::fs::statvfs(work).map_err(std::io::Error::from)?;
    let free = system.f_bavail * system.f_frsize;
    let most = ((free as f64 * 0.6 / 0.4) as u64).min(256 << 30) >> 30;
    check(most >= 2, "the disk has no room for a store that grows")?;
    Ok(most << 30)
}

/// Milliseconds until 4 KiB more of a file are durable.
fn sync_ms(lab: &Lab) -> Result<f64, Failed> {
    use std::io::Write;
    let room = lab.room()?;
    let mut file = std::fs::File::create(room.path().join("file"))?;
    let mut times = Vec::new();
    for _ in 0..lab.scale.pick(1, 31, 101) {
        file.write_all(&[7; 4096])?;
        let begun = Instant::now();
        file.sync_all()?;
        times.push(begun.elapsed().as_secs_f64() * 1e3);
    }
    Ok(Spread::of(times).median)
}

/// What this process has in memory.
fn resident_bytes(which: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(which));
    line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()).unwrap_or(0) * 1024
}
