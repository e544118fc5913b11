//! fio through the mount: patterns, blocks and codecs, with its data and with others (`data.rs`).

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use serde_json::Value;

use super::apart;
use super::data::{self, Kind};
use crate::lab::{Failed, Lab, Scale, check};
use crate::measure::Spread;
use crate::mounted::{Mount, needs, run};
use crate::record::{Axis, Form, Limit, Outcome, Plot, Series};
use crate::similarity::memory_rate;
use crate::wrote::disk_rate;

/// The options of all jobs of fio: their data compresses to a quarter. In tiny runs, where the cost
/// does not matter, each written block has a checksum.
pub(super) fn command(lab: &Lab, rw: &str, block: u64) -> Command {
    let mut command = Command::new("fio");
    command
        .args(["--name=job", "--ioengine=psync", "--output-format=json", "--randrepeat=1"])
        .args(["--buffer_compress_percentage=75", "--buffer_compress_chunk=4096", "--refill_buffers=1"])
        .arg(format!("--rw={rw}"))
        .arg(format!("--bs={block}"));
    if rw.ends_with("write") {
        command.arg("--randseed=11");
        if lab.scale == Scale::Tiny {
            command.args(["--verify=crc32c", "--verify_state_save=0"]);
        }
    }
    command
}

/// In tiny runs, lets fio read back and compare what this command wrote.
pub(super) fn verify(lab: &Lab, mut written: Command) -> Result<(), Failed> {
    if lab.scale == Scale::Tiny {
        run(written.arg("--verify_only=1"))?;
    }
    Ok(())
}

/// The report of each job.
fn jobs(command: &mut Command) -> Result<Vec<Value>, Failed> {
    parsed(&run(command)?)
}

/// Parses the jobs from fio's output, which may begin with warnings.
pub(super) fn parsed(out: &str) -> Result<Vec<Value>, Failed> {
    let from = out.find('{').unwrap_or(0);
    let json: Value = serde_json::from_str(&out[from..]).map_err(std::io::Error::from)?;
    Ok(json["jobs"].as_array().cloned().unwrap_or_default())
}

/// A job of fio on a file of the mount.
fn on_file(lab: &Lab, point: &Path, rw: &str, block: u64, bytes: u64) -> Command {
    let mut command = command(lab, rw, block);
    command.arg(format!("--size={bytes}")).arg(format!("--filename={}", point.join("file").display()));
    command
}

/// Runs one job of fio, its sync included. Returns bytes per second.
fn job(lab: &Lab, point: &Path, rw: &str, block: u64, bytes: u64) -> Result<f64, Failed> {
    let write = rw.ends_with("write");
    let jobs = jobs(on_file(lab, point, rw, block, bytes).args(if write {
        ["--end_fsync=1", "--do_verify=0"]
    } else {
        ["--invalidate=1", "--randseed=12"]
    }))?;
    let job = jobs.first().unwrap_or(&Value::Null);
    let side = &job[if write { "write" } else { "read" }];
    let (done, millis) =
        (side["io_bytes"].as_f64().unwrap_or(0.0), job["job_runtime"].as_f64().unwrap_or(1.0));
    check(done >= bytes as f64 * 0.99, format!("fio did {done} of {bytes} bytes"))?;
    Ok(done / (millis.max(1.0) / 1e3))
}

/// Results of one file, written and read again.
#[derive(Default)]
pub(super) struct Rounds {
    /// MB/s until all data was in packs, until fsync returned, and of reads in a new mount.
    pub stored: Vec<f64>,
    synced: Vec<f64>,
    pub read: Vec<f64>,
    /// Processor seconds of the mount per GB written and read.
    pub write_cost: Vec<f64>,
    read_cost: Vec<f64>,
    /// Raw over stored.
    pub ratio: f64,
}

/// Runs so many rounds of `codec`, each in a new store, at random or in sequence. The data is fio's
/// or `prepared`, which is written in the same way, read by fio, and compared.
pub(super) fn rounds(
    lab: &Lab,
    codec: &str,
    random: bool,
    block: u64,
    bytes: u64,
    count: usize,
    prepared: &[u8],
) -> Result<Rounds, Failed> {
    let (write, read) = if random { ("randwrite", "randread") } else { ("write", "read") };
    let (mut found, gigabytes) = (Rounds::default(), bytes as f64 / 1e9);
    for _ in 0..count {
        let room = lab.room()?;
        let mount = Mount::new(lab, room.path(), &["--codec", codec])?;
        let (idle, begun, file) = (mount.processor(), Instant::now(), mount.point.join("file"));
        let synced = match prepared {
            [] => job(lab, &mount.point, write, block, bytes)?,
            data => data::write(&file, data, block, random)?,
        };
        found.synced.push(synced / 1e6);
        let spent = mount.end()?;
        let seconds = begun.elapsed().as_secs_f64();
        found.stored.push(bytes as f64 / seconds / 1e6);
        found.write_cost.push((spent - idle) / gigabytes);
        found.ratio = ratio(lab, room.path())?;
        let mount = Mount::again(lab, room.path())?;
        let idle = mount.processor();
        found.read.push(job(lab, &mount.point, read, block, bytes)? / 1e6);
        found.read_cost.push((mount.processor() - idle) / gigabytes);
        match prepared {
            [] => verify(lab, on_file(lab, &mount.point, write, block, bytes))?,
            data => data::compare(&file, data)?,
        }
        mount.end()?;
    }
    Ok(found)
}

/// The ratio of stored to new data, as the program reports it.
pub(super) fn ratio(lab: &Lab, base: &Path) -> Result<f64, Failed> {
    let Some(program) = &lab.outrigger else { return Ok(1.0) };
    let out = run(Command::new(program).arg("-s").arg(base.join("store")).args(["stats", "--json"]))?;
    let stats: Value = serde_json::from_str(&out).map_err(std::io::Error::from)?;
    let of = |name: &str| stats[name].as_f64().unwrap_or(0.0);
    Ok(of("unique_bytes") / of("stored_data_bytes").max(1.0))
}

pub(super) fn note(outcome: &mut Outcome) {
    outcome.note(
        "A new store for each round. A mount acknowledges before it compresses: written counts until it has been unmounted and all is in packs, processor time too. Reads come \
         from a new mount of the same store, whose packs are in the machine's page cache. fio's buffers compress to about a quarter.",
    );
}

/// A line's name, and for each codec the ratio and the processor seconds per GB.
pub(super) type Costs<'a> = (&'a str, Vec<(f64, &'a Vec<f64>)>);

/// Ratio over processor time of each line, with the bound that nothing passes: the best ratio at
/// the least time.
pub(super) fn efficiency(title: &str, names: &[&str], lines: Vec<Costs<'_>>) -> Plot {
    let all = || lines.iter().flat_map(|(_, line)| line);
    let best = all().map(|(ratio, _)| *ratio).fold(0.0, f64::max);
    // The counters resolve no less than a hundredth of a second.
    let least = all().map(|(_, cost)| median(cost).max(0.01)).fold(f64::MAX, f64::min);
    let series = |(name, line): Costs<'_>| {
        let mut series = Series::measured(name);
        for (at, (ratio, cost)) in line.into_iter().enumerate() {
            series.push(at as f64, Spread::of(cost.clone()).map(|cost| ratio / cost.max(0.01)));
        }
        series
    };
    Plot {
        title: format!("{title}: ratio over its processor seconds for a GB"),
        form: Form::Bars,
        x: Axis::of("codec", names.iter().copied()),
        y: Axis::log("cost efficiency", "ratio / (s/GB)"),
        series: lines.into_iter().map(series).collect(),
        limits: vec![Limit { name: "best ratio at the least processor time".into(), y: best / least }],
    }
}

/// Costs of writing and of reading one kind of data.
fn both_costs(all: &[Rounds]) -> Vec<Costs<'_>> {
    vec![
        ("writing", all.iter().map(|one| (one.ratio, &one.write_cost)).collect()),
        ("reading", all.iter().map(|one| (one.ratio, &one.read_cost)).collect()),
    ]
}

/// Bars of rates by codec.
pub(super) fn rates(
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

pub(super) fn median(values: &[f64]) -> f64 {
    Spread::of(values.to_vec()).median
}

/// Figure 7a through the mount.
pub fn patterns(lab: &Lab) -> Result<Outcome, Failed> {
    needs("fio", "fio")?;
    let codecs = ["none", "gzip:6", "lz4", "zstd:1", "auto"];
    let (bytes, count) = (lab.scale.pick(2 << 20, 192 << 20, 1 << 30), lab.scale.pick(1, 3, 3));
    let each = |random| {
        codecs.iter().map(|codec| rounds(lab, codec, random, 128 << 10, bytes, count, &[])).collect()
    };
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
    outcome.plots.push(efficiency("Cost efficiency through the mount", &codecs, both_costs(&sequence)));
    apart::compare(lab, &codecs, &sequence, &mut outcome)?;
    note(&mut outcome);
    Ok(outcome)
}

/// Figure 7b through the mount.
pub fn blocks(lab: &Lab) -> Result<Outcome, Failed> {
    needs("fio", "fio")?;
    let mut outcome = Outcome::default();
    let (bytes, count) = (lab.scale.pick(2 << 20, 64 << 20, 512 << 20), lab.scale.pick(1, 3, 3));
    by_block(lab, Kind::Fio, bytes, count, &mut outcome)?;
    let (bytes, count) = (lab.scale.pick(2 << 20, 48 << 20, 256 << 20), lab.scale.pick(1, 1, 3));
    by_block(lab, Kind::Reads, bytes, count, &mut outcome)?;
    note(&mut outcome);
    Ok(outcome)
}

/// The same number of bytes each way, by block size.
fn by_block(lab: &Lab, kind: Kind, bytes: u64, count: usize, outcome: &mut Outcome) -> Result<(), Failed> {
    let codecs = ["none", "gzip:6", "lz4", "zstd:1"];
    let sizes: &[u64] = lab.scale.pick(
        &[16 << 10, 64 << 10],
        &[4 << 10, 32 << 10, 128 << 10, 1 << 20],
        &[4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10, 128 << 10, 256 << 10, 512 << 10, 1 << 20],
    );
    let (prepared, of) = (kind.make(bytes)?, if kind == Kind::Fio { "" } else { ", reads" });
    let (mut series, mut cost) = (Vec::new(), Vec::new());
    let (mut best, mut least) = (0.0_f64, f64::MAX);
    for codec in codecs {
        let (mut line, mut efficient) = (Series::measured(codec), Series::measured(codec));
        for &size in sizes {
            let one = rounds(lab, codec, false, size, bytes, count, &prepared)?;
            // The same number of bytes each way: the harmonic mean.
            let both = one.stored.iter().zip(&one.read).map(|(write, read)| 2.0 / (1.0 / write + 1.0 / read));
            line.push(size as f64, Spread::of(both.collect()));
            let costs = one.write_cost.iter().zip(&one.read_cost);
            let spent: Vec<f64> = costs.map(|(write, read)| (write + read).max(0.01) / 2.0).collect();
            (best, least) = (best.max(one.ratio), least.min(median(&spent)));
            efficient.push(size as f64, Spread::of(spent).map(|cost| one.ratio / cost));
            if size == sizes[sizes.len() - 1] && kind != Kind::Fio {
                outcome.find(format!("{codec}: ratio of reads, largest block"), one.ratio, "x", None);
            }
        }
        outcome.find(
            format!("{codec}: largest over the smallest block{of}"),
            line.last() / line.points[0].y,
            "x",
            (codec == "none" && kind == Kind::Fio).then_some(3213.0 / 1899.0),
        );
        series.push(line);
        cost.push(efficient);
    }
    let title = if kind == Kind::Fio { "fio through the mount" } else { "Reads through the mount" };
    outcome.plots.push(Plot {
        title: format!("{title}, as much read as written"),
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
        title: format!("Cost efficiency through the mount, as much read as written{of}"),
        form: Form::Lines,
        x: Axis::log("block", "bytes"),
        y: Axis::log("cost efficiency", "ratio / (s/GB)"),
        series: cost,
        limits: vec![Limit { name: "best ratio at the least processor time".into(), y: best / least }],
    });
    Ok(())
}

/// Figure 7c through the mount.
pub fn fast(lab: &Lab) -> Result<Outcome, Failed> {
    needs("fio", "fio")?;
    let codecs = ["gzip:6", "lz4", "lzjb", "zle", "zstd:-1", "zstd:1", "auto"];
    let (bytes, count) = (lab.scale.pick(2 << 20, 96 << 20, 512 << 20), lab.scale.pick(1, 3, 3));
    let all: Vec<Rounds> = codecs
        .iter()
        .map(|codec| rounds(lab, codec, false, 128 << 10, bytes, count, &[]))
        .collect::<Result<_, _>>()?;
    let mut outcome = Outcome::default();
    for (codec, one) in codecs.iter().zip(&all) {
        outcome.find(format!("{codec}: ratio"), one.ratio, "x", None);
    }
    // Compared with the paper's three.
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
    outcome.plots.push(efficiency("Cost efficiency through the mount", &codecs, both_costs(&all)));
    apart::compare(lab, &codecs, &all, &mut outcome)?;
    note(&mut outcome);
    Ok(outcome)
}
