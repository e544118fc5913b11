//! fio through the mount: patterns, blocks, codecs, and what holds it up.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use serde_json::Value;

use crate::experiment::{Failed, Lab, check};
use crate::machine::ticks;
use crate::measure::Spread;
use crate::mounted::{Mount, needs, run};
use crate::record::{Axis, Form, Limit, Outcome, Plot, Series};
use crate::similarity::memory_rate;
use crate::wrote::disk_rate;

/// One job of fio, its sync included: bytes a second.
fn job(point: &Path, rw: &str, block: u64, bytes: u64) -> Result<f64, Failed> {
    let write = rw.ends_with("write");
    let out = run(Command::new("fio")
        .args(["--name=job", "--ioengine=psync", "--output-format=json", "--randrepeat=1"])
        .args(["--buffer_compress_percentage=75", "--buffer_compress_chunk=4096", "--refill_buffers=1"])
        .arg(format!("--rw={rw}"))
        .arg(format!("--bs={block}"))
        .arg(format!("--size={bytes}"))
        .arg(format!("--filename={}", point.join("file").display()))
        .args(if write { ["--end_fsync=1", "--randseed=11"] } else { ["--invalidate=1", "--randseed=12"] }))?;
    let from = out.find('{').unwrap_or(0);
    let json: Value = serde_json::from_str(&out[from..]).map_err(std::io::Error::from)?;
    let job = &json["jobs"][0];
    let side = &job[if write { "write" } else { "read" }];
    let (done, millis) =
        (side["io_bytes"].as_f64().unwrap_or(0.0), job["job_runtime"].as_f64().unwrap_or(1.0));
    check(done >= bytes as f64 * 0.99, format!("fio did {done} of {bytes} bytes"))?;
    Ok(done / (millis.max(1.0) / 1e3))
}

/// What one file did, written and read again.
#[derive(Default)]
struct Rounds {
    /// MB/s until all was in packs, until fsync came back, and reading from a new mount.
    stored: Vec<f64>,
    synced: Vec<f64>,
    read: Vec<f64>,
    /// Processor seconds of the mount for a GB written and read.
    write_cost: Vec<f64>,
    read_cost: Vec<f64>,
    /// Raw over stored.
    ratio: f64,
    /// Of the machine's processors, while it was written, percent.
    busy: Vec<f64>,
}

/// So many rounds of `codec`, in a new store each, at random or in sequence.
fn rounds(
    lab: &Lab,
    codec: &str,
    random: bool,
    block: u64,
    bytes: u64,
    count: usize,
) -> Result<Rounds, Failed> {
    let (write, read) = if random { ("randwrite", "randread") } else { ("write", "read") };
    let (mut found, gigabytes) = (Rounds::default(), bytes as f64 / 1e9);
    for _ in 0..count {
        let room = lab.room()?;
        let mount = Mount::new(lab, room.path(), &["--codec", codec])?;
        let (idle, begun, started) = (mount.processor(), Instant::now(), ticks());
        found.synced.push(job(&mount.point, write, block, bytes)? / 1e6);
        let spent = mount.end()?;
        let seconds = begun.elapsed().as_secs_f64();
        found.busy.push(100.0 * ticks().busy_since(started));
        found.stored.push(bytes as f64 / seconds / 1e6);
        found.write_cost.push((spent - idle) / gigabytes);
        found.ratio = ratio(lab, room.path())?;
        let mount = Mount::again(lab, room.path())?;
        let idle = mount.processor();
        found.read.push(job(&mount.point, read, block, bytes)? / 1e6);
        found.read_cost.push((mount.end()? - idle) / gigabytes);
    }
    Ok(found)
}

/// What is stored of what was new, as the program says.
fn ratio(lab: &Lab, base: &Path) -> Result<f64, Failed> {
    let Some(program) = &lab.outrigger else { return Ok(1.0) };
    let out = run(Command::new(program).arg("-s").arg(base.join("store")).args(["stats", "--json"]))?;
    let stats: Value = serde_json::from_str(&out).map_err(std::io::Error::from)?;
    let of = |name: &str| stats[name].as_f64().unwrap_or(0.0);
    Ok(of("unique_bytes") / of("stored_data_bytes").max(1.0))
}

fn note(outcome: &mut Outcome) {
    outcome.note(
        "A new store for each round. A mount acknowledges before it compresses: written counts until it has been unmounted and all is in packs, processor time too. Reads come \
         from a new mount of the same store, whose packs are in the machine's page cache. fio's buffers compress to about a quarter.",
    );
}

/// The processor time that nothing passes: the least of all, with the best ratio.
fn efficiency(names: &[&str], all: &[Rounds]) -> Plot {
    let mut series = [Series::measured("writing"), Series::measured("reading")];
    let mut bound: f64 = 0.0;
    let best = all.iter().map(|one| one.ratio).fold(0.0, f64::max);
    for (at, one) in all.iter().enumerate() {
        for (line, cost) in series.iter_mut().zip([&one.write_cost, &one.read_cost]) {
            // A hundredth of a second is the least that is told.
            let cost = Spread::of(cost.clone()).map(|cost| cost.max(0.01));
            bound = bound.max(best / cost.median);
            line.push(at as f64, cost.map(|cost| one.ratio / cost));
        }
    }
    Plot {
        title: "Cost efficiency through the mount: ratio over its processor seconds for a GB".into(),
        form: Form::Bars,
        x: Axis::of("codec", names.iter().copied()),
        y: Axis::log("cost efficiency", "ratio / (s/GB)"),
        series: series.into(),
        limits: vec![Limit { name: "best ratio at the least processor time".into(), y: bound }],
    }
}

/// Bars of rates by codec.
fn rates(
    lab: &Lab,
    title: String,
    names: &[&str],
    lines: Vec<(&str, Vec<&Vec<f64>>)>,
) -> Result<Plot, Failed> {
    let series = lines.into_iter().map(|(name, values)| {
        let mut line = Series::measured(name);
        values
            .into_iter()
            .enumerate()
            .for_each(|(at, values)| line.push(at as f64, Spread::of(values.clone())));
        line
    });
    Ok(Plot {
        title,
        form: Form::Bars,
        x: Axis::of("codec", names.iter().copied()),
        y: Axis::log("throughput", "MB/s"),
        series: series.collect(),
        limits: vec![
            Limit { name: "the file system below, one file made durable".into(), y: disk_rate(lab)? / 1e6 },
            Limit { name: "memory, read by all cores".into(), y: memory_rate(lab) / 1e6 },
        ],
    })
}

fn median(values: &[f64]) -> f64 {
    Spread::of(values.to_vec()).median
}

/// Figure 7a through the mount.
pub fn patterns(lab: &Lab) -> Result<Outcome, Failed> {
    needs("fio", "fio")?;
    let codecs = ["none", "gzip:6", "lz4", "zstd:1", "auto"];
    let (bytes, count) = (lab.scale.pick(2 << 20, 192 << 20, 1 << 30), lab.scale.pick(1, 3, 3));
    let each =
        |random| codecs.iter().map(|codec| rounds(lab, codec, random, 128 << 10, bytes, count)).collect();
    let (sequence, random): (Result<Vec<Rounds>, Failed>, Result<Vec<Rounds>, Failed>) =
        (each(false), each(true));
    let (sequence, random) = (sequence?, random?);
    let mut outcome = Outcome::default();
    for (codec, one) in codecs.iter().zip(&sequence) {
        let paper = (*codec == "gzip:6").then_some(3.78);
        outcome.find(format!("{codec}: ratio"), one.ratio, "x", paper);
        outcome.find(format!("{codec}: SeqW until fsync came back"), median(&one.synced), "MB/s", None);
    }
    let gain = median(&sequence[3].stored) / median(&sequence[1].stored);
    outcome.find("zstd:1 over gzip, writing", gain, "x", Some(5.0));
    let cost = |one: &Rounds| one.ratio / median(&one.write_cost).max(0.01);
    outcome.find(
        "zstd:1 over gzip, cost efficiency",
        cost(&sequence[3]) / cost(&sequence[1]),
        "x",
        Some(4.0),
    );
    let gain = median(&sequence[4].stored) / median(&sequence[0].stored);
    outcome.find("auto over none, writing", gain, "x", Some(1.28));
    let gain = median(&sequence[4].read) / median(&sequence[0].read);
    outcome.find("auto over none, reading", gain, "x", Some(1.1));
    let lines = vec![
        ("SeqW", sequence.iter().map(|one| &one.stored).collect()),
        ("RandW", random.iter().map(|one| &one.stored).collect()),
        ("SeqR", sequence.iter().map(|one| &one.read).collect()),
        ("RandR", random.iter().map(|one| &one.read).collect()),
    ];
    let title = format!("fio through the mount, {} a job, 128 KiB", crate::plot::bytes(bytes as f64));
    outcome.plots.push(rates(lab, title, &codecs, lines)?);
    outcome.plots.push(efficiency(&codecs, &sequence));
    note(&mut outcome);
    Ok(outcome)
}

/// Figure 7b through the mount.
pub fn blocks(lab: &Lab) -> Result<Outcome, Failed> {
    needs("fio", "fio")?;
    let codecs = ["none", "gzip:6", "lz4", "zstd:1"];
    let (bytes, count) = (lab.scale.pick(2 << 20, 96 << 20, 512 << 20), lab.scale.pick(1, 3, 3));
    let sizes: &[u64] = lab.scale.pick(
        &[16 << 10, 64 << 10],
        &[4 << 10, 32 << 10, 128 << 10, 1 << 20],
        &[4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10, 128 << 10, 256 << 10, 512 << 10, 1 << 20],
    );
    let (mut series, mut cost, mut outcome) = (Vec::new(), Vec::new(), Outcome::default());
    let (mut best, mut least) = (0.0_f64, f64::MAX);
    for codec in codecs {
        let (mut line, mut efficient) = (Series::measured(codec), Series::measured(codec));
        for &size in sizes {
            let one = rounds(lab, codec, false, size, bytes, count)?;
            // As many bytes each way: the harmonic mean.
            let both = one.stored.iter().zip(&one.read).map(|(write, read)| 2.0 / (1.0 / write + 1.0 / read));
            line.push(size as f64, Spread::of(both.collect()));
            let spent: Vec<f64> = one
                .write_cost
                .iter()
                .zip(&one.read_cost)
                .map(|(write, read)| (write + read).max(0.01) / 2.0)
                .collect();
            (best, least) = (best.max(one.ratio), least.min(median(&spent)));
            efficient.push(size as f64, Spread::of(spent).map(|cost| one.ratio / cost));
        }
        let paper = (codec == "none").then_some(3213.0 / 1899.0);
        outcome.find(
            format!("{codec}: largest over the smallest block"),
            line.last() / line.points[0].y,
            "x",
            paper,
        );
        series.push(line);
        cost.push(efficient);
    }
    outcome.plots.push(Plot {
        title: "fio through the mount, as much read as written".into(),
        form: Form::Lines,
        x: Axis::log("block", "bytes"),
        y: Axis::log("throughput", "MB/s"),
        series,
        limits: vec![
            Limit { name: "the file system below, one file made durable".into(), y: disk_rate(lab)? / 1e6 },
            Limit { name: "memory, read by all cores".into(), y: memory_rate(lab) / 1e6 },
        ],
    });
    outcome.plots.push(Plot {
        title: "Cost efficiency through the mount, as much read as written".into(),
        form: Form::Lines,
        x: Axis::log("block", "bytes"),
        y: Axis::log("cost efficiency", "ratio / (s/GB)"),
        series: cost,
        limits: vec![Limit { name: "best ratio at the least processor time".into(), y: best / least }],
    });
    note(&mut outcome);
    Ok(outcome)
}

/// Figure 7c through the mount.
pub fn fast(lab: &Lab) -> Result<Outcome, Failed> {
    needs("fio", "fio")?;
    let codecs = ["gzip:6", "lz4", "lzjb", "zle", "zstd:-1", "zstd:1", "auto"];
    let (bytes, count) = (lab.scale.pick(2 << 20, 96 << 20, 512 << 20), lab.scale.pick(1, 3, 3));
    let all: Vec<Rounds> = codecs
        .iter()
        .map(|codec| rounds(lab, codec, false, 128 << 10, bytes, count))
        .collect::<Result<_, _>>()?;
    let mut outcome = Outcome::default();
    for (codec, one) in codecs.iter().zip(&all) {
        outcome.find(format!("{codec}: ratio"), one.ratio, "x", None);
    }
    // Against the three of the paper.
    let mean = |of: &dyn Fn(&Rounds) -> f64| all[1..4].iter().map(of).sum::<f64>() / 3.0;
    let write = |one: &Rounds| median(&one.stored);
    let read = |one: &Rounds| median(&one.read);
    outcome.find("zstd:1 over lz4, lzjb and zle, writing", write(&all[5]) / mean(&write), "x", Some(1.1271));
    outcome.find("zstd:1 over lz4, lzjb and zle, reading", read(&all[5]) / mean(&read), "x", Some(1.0483));
    let cost = |one: &Rounds| one.ratio / median(&one.write_cost).max(0.01);
    outcome.find(
        "zstd:1 over them, cost efficiency of writing",
        cost(&all[5]) / mean(&cost),
        "x",
        Some(2.25),
    );
    let cost = |one: &Rounds| one.ratio / median(&one.read_cost).max(0.01);
    outcome.find(
        "zstd:1 over them, cost efficiency of reading",
        cost(&all[5]) / mean(&cost),
        "x",
        Some(1.62),
    );
    let lines = vec![
        ("SeqW", all.iter().map(|one| &one.stored).collect()),
        ("SeqR", all.iter().map(|one| &one.read).collect()),
    ];
    outcome.plots.push(rates(lab, "Fast codecs through the mount, 128 KiB".into(), &codecs, lines)?);
    outcome.plots.push(efficiency(&codecs, &all));
    note(&mut outcome);
    Ok(outcome)
}

/// Section 5.4: of what there is, how much is in use while random blocks are written.
pub fn bottleneck(lab: &Lab) -> Result<Outcome, Failed> {
    needs("fio", "fio")?;
    let codecs = ["none", "gzip:6", "lz4", "zstd:1", "auto"];
    let (bytes, count) = (lab.scale.pick(2 << 20, 192 << 20, 2 << 30), lab.scale.pick(1, 3, 3));
    let disk = disk_rate(lab)? / 1e6;
    let mut series = [
        Series::measured("processors"),
        Series::measured("disk, of what it takes"),
        Series::measured("mount, of what it does without codec"),
    ];
    let (mut outcome, mut bare) = (Outcome::default(), 0.0);
    for (at, codec) in codecs.iter().enumerate() {
        let one = rounds(lab, codec, true, 128 << 10, bytes, count)?;
        let rate = Spread::of(one.stored.clone());
        if at == 0 {
            bare = rate.median;
        }
        let busy = Spread::of(one.busy.clone());
        outcome.find(
            format!("{codec}: processors in use"),
            busy.median,
            "%",
            (*codec == "auto").then_some(20.2),
        );
        let taken = rate.map(|rate| 100.0 * rate / one.ratio / disk);
        outcome.find(format!("{codec}: disk in use"), taken.median, "%", (*codec == "auto").then_some(39.8));
        series[0].push(at as f64, busy);
        series[1].push(at as f64, taken);
        series[2].push(at as f64, rate.map(|rate| 100.0 * rate / bare));
    }
    outcome.plots.push(Plot {
        title: "What is in use while random blocks of 128 KiB are written through the mount".into(),
        form: Form::Bars,
        x: Axis::of("codec", codecs),
        y: Axis::new("in use", "%"),
        series: series.into(),
        limits: vec![Limit { name: "mount without codec, or all of it".into(), y: 100.0 }],
    });
    outcome.note("What stands near 100 % is the bottleneck. The paper's numbers are those of its card, which stand beside `auto`; fio's own processor time is in that of the machine.");
    note(&mut outcome);
    Ok(outcome)
}
