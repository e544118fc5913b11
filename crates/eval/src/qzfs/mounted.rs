//! samtools in a mount, where it is installed.

use std::fs::File;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use outrigger_workload::{ReadFormat, reads};

use crate::lab::{Failed, Lab, check};
use crate::measure::Spread;
use crate::mounted::{Mount, needs, run};
use crate::record::{Axis, Form, Outcome, Plot, Series};

const NAMES: [&str; 5] = ["converting", "viewing", "sorting", "merging", "indexing"];

/// Seconds of each operation on reads made in this directory.
fn operations(at: &Path, count: u64) -> Result<[f64; 5], Failed> {
    reads(1, count, ReadFormat::Sam, &mut std::io::BufWriter::new(File::create(at.join("a.sam"))?))?;
    // Uncompressed BAM: compression is the file system's.
    let operations: [&[&str]; 5] = [
        &["view", "-u", "-o", "a.bam", "a.sam"],
        &["view", "-o", "viewed.sam", "a.bam"],
        &["sort", "-l", "0", "-o", "sorted.bam", "a.bam"],
        &["merge", "-u", "-f", "merged.bam", "sorted.bam", "sorted.bam"],
        &["index", "sorted.bam"],
    ];
    let mut times = [0.0; 5];
    for (time, operation) in times.iter_mut().zip(operations) {
        let begun = Instant::now();
        run(Command::new("samtools").args(operation).current_dir(at))?;
        *time = begun.elapsed().as_secs_f64();
    }
    let lines = run(Command::new("samtools").args(["view", "-c", "sorted.bam"]).current_dir(at))?;
    check(lines.trim() == count.to_string(), format!("{} of {count} reads are left", lines.trim()))?;
    Ok(times)
}

/// Five operations.
pub fn samtools(lab: &Lab) -> Result<Outcome, Failed> {
    needs("samtools", "samtools")?;
    let codecs = ["none", "gzip:6", "zstd:1"];
    let (count, rounds) = (lab.scale.pick(200, 60_000, 1_000_000), lab.scale.pick(1, 3, 3));
    let spreads = |runs: Vec<[f64; 5]>| {
        (0..NAMES.len()).map(|at| Spread::of(runs.iter().map(|run| run[at]).collect())).collect::<Vec<_>>()
    };
    let mut series: Vec<Series> = codecs.map(Series::measured).into();
    for (line, codec) in series.iter_mut().zip(codecs) {
        let mut runs = Vec::new();
        for _ in 0..rounds {
            let room = lab.room()?;
            let mount = Mount::new(lab, room.path(), &["--codec", codec])?;
            runs.push(operations(&mount.point, count)?);
            mount.end()?;
        }
        spreads(runs).into_iter().enumerate().for_each(|(at, spread)| line.push(at as f64, spread));
    }
    let mut below = Series::limit("file system below", &[]);
    let runs: Vec<[f64; 5]> =
        (0..rounds).map(|_| operations(lab.room()?.path(), count)).collect::<Result<_, _>>()?;
    spreads(runs).into_iter().enumerate().for_each(|(at, spread)| below.exact(at as f64, spread.median));
    let mut outcome = Outcome::default();
    let all = |line: &Series| line.points.iter().map(|point| point.y).sum::<f64>();
    outcome.find("zstd:1 over gzip, all five", all(&series[2]) / all(&series[1]), "x", Some(0.37));
    outcome.find("zstd:1 over the file system below, all five", all(&series[2]) / all(&below), "x", None);
    series.push(below);
    outcome.plots.push(Plot {
        title: "samtools in the mount, by codec".into(),
        form: Form::Bars,
        x: Axis::of("operation", NAMES),
        y: Axis::new("time", "s"),
        series,
        limits: Vec::new(),
    });
    outcome.note("BAM is written uncompressed, so that the file system has something to compress.");
    Ok(outcome)
}
