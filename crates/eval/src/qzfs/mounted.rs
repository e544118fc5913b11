//! Through a mount: fio, and samtools where it is installed.

use std::fs::File;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use outrigger_workload::{ReadFormat, reads};
use serde_json::Value;

use crate::experiment::{Failed, Lab, check};
use crate::measure::Spread;
use crate::mounted::{Mount, needs, run};
use crate::record::{Axis, Form, Limit, Outcome, Plot, Series};
use crate::wrote::disk_rate;

/// Bytes a second of one job, its sync included.
fn job(point: &Path, name: &str, rw: &str, bytes: u64) -> Result<f64, Failed> {
    let write = rw.ends_with("write");
    let out = run(Command::new("fio")
        .args(["--name=job", "--ioengine=psync", "--output-format=json", "--bs=128k", "--randrepeat=1"])
        .args(["--buffer_compress_percentage=75", "--buffer_compress_chunk=4096", "--refill_buffers=1"])
        .arg(format!("--rw={rw}"))
        .arg(format!("--size={bytes}"))
        .arg(format!("--filename={}", point.join(name).display()))
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

/// Figure 7a through the mount.
pub fn fio(lab: &Lab) -> Result<Outcome, Failed> {
    needs("fio", "fio")?;
    let codecs = ["none", "gzip:6", "lz4", "zstd:1", "auto"];
    let ways = [("SeqW", "write"), ("RandW", "randwrite"), ("SeqR", "read"), ("RandR", "randread")];
    let bytes = lab.scale.pick(2 << 20, 192 << 20, 2 << 30);
    let mut series: Vec<Series> = ways.map(|(name, _)| Series::measured(name)).into();
    let mut processor = Series::measured("sequential writing");
    let mut outcome = Outcome::default();
    for (at, codec) in codecs.iter().enumerate() {
        let mut rates: [Vec<f64>; 4] = Default::default();
        let mut spent = Vec::new();
        for _ in 0..lab.scale.pick(1, 2, 5) {
            let room = lab.room()?;
            let mount = Mount::new(lab, room.path(), &["--codec", codec])?;
            for (rates, (_, rw)) in rates.iter_mut().zip(ways) {
                // Each way of reading reads what the same way of writing wrote.
                let name = if rw.starts_with("rand") { "random" } else { "sequence" };
                rates.push(job(&mount.point, name, rw, bytes)? / 1e6);
                if rw == "write" {
                    spent.push(mount.processor() / (bytes as f64 / 1e9));
                }
            }
            mount.end()?;
        }
        for (line, rates) in series.iter_mut().zip(rates) {
            line.push(at as f64, Spread::of(rates));
        }
        processor.push(at as f64, Spread::of(spent));
    }
    let gain = series[0].points[3].y / series[0].points[1].y;
    outcome.find("zstd:1 over gzip, sequential writing", gain, "x", Some(5.0));
    outcome.find(
        "auto over none, sequential writing",
        series[0].points[4].y / series[0].points[0].y,
        "x",
        Some(1.28),
    );
    outcome.plots.push(Plot {
        title: format!("fio through the mount, {} a job, 128 KiB", crate::plot::bytes(bytes as f64)),
        form: Form::Bars,
        x: Axis::of("codec", codecs),
        y: Axis::log("throughput", "MB/s"),
        series,
        limits: vec![Limit {
            name: "the file system below, one file made durable".into(),
            y: disk_rate(lab)? / 1e6,
        }],
    });
    outcome.plots.push(Plot {
        title: "Processor time of the mount while it writes".into(),
        form: Form::Bars,
        x: Axis::of("codec", codecs),
        y: Axis::new("processor time", "s/GB"),
        series: vec![processor],
        limits: Vec::new(),
    });
    outcome.note("A new store and mount for each round; fio's buffers compress to about a quarter. Reads come after the writes of the same mount, the page cache of the file dropped, so part of what is read \
                  is still in the mount's own memory.");
    Ok(outcome)
}

/// Five operations.
pub fn samtools(lab: &Lab) -> Result<Outcome, Failed> {
    needs("samtools", "samtools")?;
    let codecs = ["none", "gzip:6", "zstd:1"];
    let names = ["converting", "viewing", "sorting", "merging", "indexing"];
    let mut series: Vec<Series> = codecs.map(Series::measured).into();
    let mut outcome = Outcome::default();
    for (line, codec) in series.iter_mut().zip(codecs) {
        let mut times: [Vec<f64>; 5] = Default::default();
        for _ in 0..lab.scale.pick(1, 2, 5) {
            let room = lab.room()?;
            let mount = Mount::new(lab, room.path(), &["--codec", codec])?;
            let at = &mount.point;
            let count = lab.scale.pick(200, 60_000, 1_000_000);
            reads(1, count, ReadFormat::Sam, &mut std::io::BufWriter::new(File::create(at.join("a.sam"))?))?;
            // Uncompressed BAM: compression is the file system's.
            let operations: [&[&str]; 5] = [
                &["view", "-u", "-o", "a.bam", "a.sam"],
                &["view", "-o", "viewed.sam", "a.bam"],
                &["sort", "-l", "0", "-o", "sorted.bam", "a.bam"],
                &["merge", "-u", "-f", "merged.bam", "sorted.bam", "sorted.bam"],
                &["index", "indexed.bam"],
            ];
            for (times, operation) in times.iter_mut().zip(operations) {
                if operation[0] == "index" {
                    // It wants blocks that are compressed, or at least framed so.
                    run(Command::new("samtools")
                        .args(["view", "-b", "-o", "indexed.bam", "sorted.bam"])
                        .current_dir(at))?;
                }
                let begun = Instant::now();
                run(Command::new("samtools").args(operation).current_dir(at))?;
                times.push(begun.elapsed().as_secs_f64());
            }
            let lines = run(Command::new("samtools").args(["view", "-c", "sorted.bam"]).current_dir(at))?;
            check(lines.trim() == count.to_string(), format!("{} of {count} reads are left", lines.trim()))?;
            mount.end()?;
        }
        for (at, times) in times.into_iter().enumerate() {
            line.push(at as f64, Spread::of(times));
        }
    }
    let all = |line: &Series| line.points.iter().map(|point| point.y).sum::<f64>();
    outcome.find("zstd:1 over gzip, all five", all(&series[2]) / all(&series[1]), "x", Some(0.37));
    let floor = series[0].points.iter().map(|point| point.y).fold(f64::MAX, f64::min);
    outcome.plots.push(Plot {
        title: "samtools in the mount, by codec".into(),
        form: Form::Bars,
        x: Axis::of("operation", names),
        y: Axis::new("time", "s"),
        series,
        limits: vec![Limit { name: "the quickest without codec".into(), y: floor }],
    });
    outcome.note("BAM is written uncompressed, so that the file system has something to compress; only the file to be indexed is not.");
    Ok(outcome)
}
