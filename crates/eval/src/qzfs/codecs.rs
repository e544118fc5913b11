//! Figures 7a to 7c: the results of `outrigger bench compress` on genomic reads.

use std::process::Command;

use outrigger_offload::Compressor;
use outrigger_workload::{ReadFormat, reads};
use serde_json::Value;

use super::tiers::codec;
use crate::lab::{Failed, Lab, check};
use crate::record::{Axis, Form, Limit, Outcome, Plot, Series};
use crate::similarity::memory_rate;

/// One codec with one block size.
struct Row {
    block: f64,
    codec: String,
    value: Value,
}

impl Row {
    fn get(&self, name: &str) -> f64 {
        self.value[name].as_f64().unwrap_or(0.0)
    }

    /// Ratio divided by the processor seconds per GB: the paper's metric, for one amount of data.
    fn efficiency(&self, direction: &str) -> f64 {
        self.get("ratio") / self.get(&format!("{direction}_processor_s_per_gb")).max(1e-3)
    }
}

/// Bounds that no codec passes: the best ratio of all, at the least time of any.
fn bounds(rows: &[Row]) -> Vec<Limit> {
    let ratio = rows.iter().map(|row| row.get("ratio")).fold(0.0, f64::max);
    let least = |direction: &str| {
        let each = rows.iter().map(|row| row.get(&format!("{direction}_processor_s_per_gb")));
        Limit {
            name: format!("best ratio at the least processor time, {direction}"),
            y: ratio / each.fold(f64::MAX, f64::min).max(1e-3),
        }
    };
    vec![least("write"), least("read")]
}

/// Runs the program's own comparison on reads.
fn compare(lab: &Lab, codecs: &str, blocks: &str) -> Result<Vec<Row>, Failed> {
    let Some(program) = &lab.outrigger else {
        return Err(Failed::Missing(
            "the program `outrigger` is not beside this one: build it, or give --outrigger".into(),
        ));
    };
    let room = lab.room()?;
    let (path, count) = (room.path().join("reads.fastq"), lab.scale.pick(2000, 250_000, 1_000_000));
    let mut file = std::io::BufWriter::new(std::fs::File::create(&path)?);
    reads(1, count, ReadFormat::Fastq, &mut file)?;
    drop(file);
    let out = Command::new(program)
        .args(["bench", "compress", "--json", "--size", "256M", "--codecs", codecs, "--blocks", blocks])
        .arg(&path)
        .output()?;
    if !out.status.success() {
        return Err(Failed::Program(format!("outrigger bench: {}", String::from_utf8_lossy(&out.stderr))));
    }
    let json: Value = serde_json::from_slice(&out.stdout).map_err(std::io::Error::from)?;
    let rows = json["rows"].as_array().into_iter().flatten();
    let rows: Vec<Row> = rows
        .map(|row| Row {
            block: row["block"].as_f64().unwrap_or(0.0),
            codec: row["codec"].as_str().unwrap_or_default().to_string(),
            value: row.clone(),
        })
        .collect();
    check(rows.len() == codecs.split(',').count() * blocks.split(',').count(), "rows are missing")?;
    for row in &rows {
        let fine = row.get("ratio") >= 0.99 && (row.codec != "gzip:6" || row.get("ratio") > 1.5);
        check(fine, format!("{} has ratio {}", row.codec, row.get("ratio")))?;
    }
    Ok(rows)
}

fn note(outcome: &mut Outcome) {
    outcome.note("`outrigger bench compress` on generated FASTQ, in memory, all cores; every block is decoded and compared. Cost efficiency is ratio over processor seconds for a GB.");
}

/// Figure 7a.
pub fn patterns(lab: &Lab) -> Result<Outcome, Failed> {
    let codecs = ["none", "gzip:6", "lz4", "zstd:1", "zstd:3", "auto"];
    let rows = compare(lab, &codecs.join(","), "128K")?;
    let mut outcome = Outcome::default();
    let ways = [("SeqW", "write"), ("RandW", "write_random"), ("SeqR", "read"), ("RandR", "read_random")];
    let mut series: Vec<Series> = ways.map(|(name, _)| Series::measured(name)).into();
    let mut cost = [Series::measured("writing"), Series::measured("reading")];
    for (at, row) in rows.iter().enumerate() {
        for (line, (_, way)) in series.iter_mut().zip(ways) {
            line.exact(at as f64, row.get(&format!("{way}_mb_per_s")));
        }
        cost[0].exact(at as f64, row.efficiency("write"));
        cost[1].exact(at as f64, row.efficiency("read"));
        let paper = [("gzip:6", 3.78)].iter().find(|(name, _)| *name == row.codec).map(|(_, ratio)| *ratio);
        outcome.find(format!("{}: ratio", row.codec), row.get("ratio"), "x", paper);
        outcome.find(format!("{}: writing", row.codec), row.get("write_mb_per_s"), "MB/s", None);
    }
    let of = |name: &str| rows.iter().find(|row| row.codec == name);
    if let (Some(gzip), Some(zstd)) = (of("gzip:6"), of("zstd:1")) {
        outcome.find(
            "zstd:1 over gzip, writing",
            zstd.get("write_mb_per_s") / gzip.get("write_mb_per_s"),
            "x",
            Some(5.0),
        );
        outcome.find(
            "zstd:1 over gzip, cost efficiency",
            zstd.efficiency("write") / gzip.efficiency("write"),
            "x",
            Some(4.0),
        );
        outcome.find(
            "gzip, reading over writing",
            gzip.get("read_mb_per_s") / gzip.get("write_mb_per_s"),
            "x",
            Some(4.5),
        );
    }
    outcome.plots.push(Plot {
        title: "Codecs in memory, blocks of 128 KiB, all cores".into(),
        form: Form::Bars,
        x: Axis::of("codec", codecs),
        y: Axis::log("throughput", "MB/s"),
        series,
        limits: vec![Limit { name: "memory, read by all cores".into(), y: memory_rate(lab) / 1e6 }],
    });
    let cost: Vec<Series> = cost.into_iter().map(without_first).collect();
    outcome.plots.push(Plot {
        title: "Cost efficiency: ratio over processor seconds for a GB".into(),
        form: Form::Bars,
        x: Axis::of("codec", codecs[1..].iter().copied()),
        y: Axis::log("cost efficiency", "ratio / (s/GB)"),
        series: cost,
        limits: bounds(&rows),
    });
    note(&mut outcome);
    Ok(outcome)
}

/// Without `none`, which costs nothing and shows nothing.
fn without_first(mut series: Series) -> Series {
    series.points.remove(0);
    series.points.iter_mut().for_each(|point| point.x -= 1.0);
    series
}

/// The ratio of the slowest codec on much data at once.
fn best_ratio(lab: &Lab) -> Result<f64, Failed> {
    let mut data = Vec::new();
    reads(1, lab.scale.pick(2000, 40_000, 40_000), ReadFormat::Fastq, &mut data)?;
    data.truncate(8 << 20);
    let mut stored = Vec::new();
    Compressor::new().compress(codec("zstd:19")?, &data, &mut stored);
    Ok(data.len() as f64 / stored.len().max(1) as f64)
}

/// Figure 7b.
pub fn blocks(lab: &Lab) -> Result<Outcome, Failed> {
    let codecs = ["gzip:6", "lz4", "zstd:1"];
    let rows = compare(
        lab,
        &codecs.join(","),
        lab.scale.pick("16K,64K", "4K,16K,64K,256K,1M", "4K,8K,16K,32K,64K,128K,256K,512K,1M"),
    )?;
    let mut outcome = Outcome::default();
    let (mut series, mut cost) = (Vec::new(), Vec::new());
    for codec in codecs {
        let (mut line, mut ratio) = (Series::measured(codec), Series::measured(codec));
        for row in rows.iter().filter(|row| row.codec == codec) {
            let (write, read) = (row.get("write_mb_per_s"), row.get("read_mb_per_s"));
            // The same number of bytes each way: the harmonic mean.
            line.exact(row.block, 2.0 / (1.0 / write + 1.0 / read));
            ratio.exact(row.block, row.get("ratio"));
        }
        outcome.find(
            format!("{codec}: 1 MiB over the smallest block"),
            line.last() / line.points[0].y,
            "x",
            None,
        );
        series.push(line);
        cost.push(ratio);
    }
    outcome.plots.push(Plot {
        title: "Codecs in memory, as much read as written".into(),
        form: Form::Lines,
        x: Axis::log("block", "bytes"),
        y: Axis::log("throughput", "MB/s"),
        series,
        limits: vec![Limit { name: "memory, read by all cores".into(), y: memory_rate(lab) / 1e6 }],
    });
    outcome.plots.push(Plot {
        title: "Ratio by block size".into(),
        form: Form::Lines,
        x: Axis::log("block", "bytes"),
        y: Axis::new("raw / stored", "x"),
        series: cost,
        limits: vec![Limit { name: "zstd:19, 8 MiB at once".into(), y: best_ratio(lab)? }],
    });
    note(&mut outcome);
    Ok(outcome)
}

/// Figure 7c.
pub fn fast(lab: &Lab) -> Result<Outcome, Failed> {
    let codecs = ["gzip:6", "lz4", "lzjb", "zle", "zstd:-1", "zstd:1", "auto"];
    let rows = compare(lab, &codecs.join(","), "128K")?;
    let mut outcome = Outcome::default();
    let mut rate = [Series::measured("SeqW"), Series::measured("SeqR")];
    let mut cost = [Series::measured("SeqW"), Series::measured("SeqR")];
    for (at, row) in rows.iter().enumerate() {
        for (n, way) in ["write", "read"].into_iter().enumerate() {
            rate[n].exact(at as f64, row.get(&format!("{way}_mb_per_s")));
            cost[n].exact(at as f64, row.efficiency(way));
        }
        outcome.find(format!("{}: ratio", row.codec), row.get("ratio"), "x", None);
    }
    outcome.plots.push(Plot {
        title: "Fast codecs in memory, blocks of 128 KiB".into(),
        form: Form::Bars,
        x: Axis::of("codec", codecs),
        y: Axis::log("throughput", "MB/s"),
        series: rate.into(),
        limits: vec![Limit { name: "memory, read by all cores".into(), y: memory_rate(lab) / 1e6 }],
    });
    outcome.plots.push(Plot {
        title: "Cost efficiency of fast codecs".into(),
        form: Form::Bars,
        x: Axis::of("codec", codecs),
        y: Axis::log("cost efficiency", "ratio / (s/GB)"),
        series: cost.into(),
        limits: bounds(&rows),
    });
    note(&mut outcome);
    Ok(outcome)
}
