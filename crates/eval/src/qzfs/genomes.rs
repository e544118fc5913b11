//! Figures 2, 8 and 9a: our own sorting and converting of compressed reads, with each part timed
//! separately.

use std::time::Instant;

use outrigger_format::{Codec, CodecSpec};
use outrigger_offload::{Compressor, Decompressor};
use outrigger_workload::{ReadFormat, reads};

use super::tiers::{RECORD, Throttled, codec};
use crate::lab::{Failed, Lab, check};
use crate::measure::Spread;
use crate::record::{Axis, Form, Limit, Outcome, Plot, Series};

/// Bytes per second to which storage is throttled.
const STORAGE: f64 = 400e6;
const CODECS: [&str; 4] = ["none", "lz4", "gzip:6", "zstd:1"];

/// A file in records, as it is stored.
struct Stored {
    records: Vec<(Codec, usize, Vec<u8>)>,
}

/// Seconds spent in each part.
#[derive(Clone, Copy, Default, Debug)]
struct Shares {
    storage: f64,
    work: f64,
    codec: f64,
}

impl Shares {
    fn total(&self) -> f64 {
        self.storage + self.work + self.codec
    }
}

fn timed<T>(into: &mut f64, work: impl FnOnce() -> T) -> T {
    let begun = Instant::now();
    let result = work();
    *into += begun.elapsed().as_secs_f64();
    result
}

impl Stored {
    fn write(data: &[u8], spec: CodecSpec, shares: &mut Shares) -> Self {
        let mut compressor = Compressor::new();
        let compress = |record: &[u8]| {
            let mut out = Vec::new();
            let used = compressor.compress(spec, record, &mut out);
            (used, record.len(), out)
        };
        let records = timed(&mut shares.codec, || data.chunks(RECORD).map(compress).collect());
        let stored = Self { records };
        timed(&mut shares.storage, || stored.pass());
        stored
    }

    fn read(&self, shares: &mut Shares) -> Result<Vec<u8>, Failed> {
        timed(&mut shares.storage, || self.pass());
        let (mut data, mut decompressor, mut record) = (Vec::new(), Decompressor::new(), Vec::new());
        timed(&mut shares.codec, || {
            for (codec, len, stored) in &self.records {
                decompressor
                    .decompress(*codec, stored, *len, &mut record)
                    .map_err(|error| Failed::Wrong(error.to_string()))?;
                data.extend_from_slice(&record);
            }
            Ok(data)
        })
    }

    /// Waits as long as storage would take for these bytes.
    fn pass(&self) {
        let mut storage = Throttled::new(STORAGE, STORAGE, u64::MAX);
        storage.pass(self.len());
    }

    fn len(&self) -> usize {
        self.records.iter().map(|(_, _, stored)| stored.len()).sum()
    }
}

/// Lines of SAM sorted by place; the header stays in front.
fn sorted(sam: &[u8]) -> Vec<u8> {
    let mut lines: Vec<(u64, &[u8])> = sam
        .split_inclusive(|byte| *byte == b'\n')
        .map(|line| {
            let place = if line.starts_with(b"@") {
                0
            } else {
                let field = line.split(|byte| *byte == b'\t').nth(3).unwrap_or_default();
                field.iter().fold(0, |number, digit| number * 10 + u64::from(digit.wrapping_sub(b'0')))
            };
            (place, line)
        })
        .collect();
    lines.sort_by_key(|(place, _)| *place);
    let mut out = Vec::with_capacity(sam.len());
    lines.iter().for_each(|(_, line)| out.extend_from_slice(line));
    out
}

/// FASTQ to FASTA: names and letters.
fn converted(fastq: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(fastq.len() / 2);
    for (n, line) in fastq.split_inclusive(|byte| *byte == b'\n').enumerate() {
        match n % 4 {
            0 => {
                out.push(b'>');
                out.extend_from_slice(&line[1..]);
            }
            1 => out.extend_from_slice(line),
            _ => {}
        }
    }
    out
}

fn generated(lab: &Lab, format: ReadFormat, part: u64) -> Result<Vec<u8>, Failed> {
    let mut data = Vec::new();
    reads(part, lab.scale.pick(500, 120_000, 1_000_000), format, &mut data)?;
    Ok(data)
}

/// Sorts a stored file and stores the result.
fn sort(stored: &Stored, spec: CodecSpec) -> Result<(Shares, Stored), Failed> {
    let mut shares = Shares::default();
    let sam = stored.read(&mut shares)?;
    let out = timed(&mut shares.work, || sorted(&sam));
    let stored = Stored::write(&out, spec, &mut shares);
    Ok((shares, stored))
}

/// Figure 2.
pub fn shares(lab: &Lab) -> Result<Outcome, Failed> {
    let sam = generated(lab, ReadFormat::Sam, 1)?;
    let expected = sorted(&sam);
    let mut series: Vec<Series> = ["storage", "sorting", "codec"].map(Series::measured).into();
    let mut outcome = Outcome::default();
    let paper = [
        (None, 117.21, 231.77, 0.0),
        (Some(2.41), 48.45, 231.77, 24.77),
        (Some(3.56), 35.02, 231.77, 278.02),
    ];
    for (at, name) in CODECS.iter().enumerate() {
        let (spec, mut ignored) = (codec(name)?, Shares::default());
        let stored = Stored::write(&sam, spec, &mut ignored);
        let mut runs = Vec::new();
        for _ in 0..lab.scale.pick(1, 3, 5) {
            let (shares, out) = sort(&stored, spec)?;
            check(out.read(&mut ignored)? == expected, "sorted wrongly")?;
            runs.push(shares);
        }
        runs.sort_by(|a, b| a.total().total_cmp(&b.total()));
        let middle = runs[runs.len() / 2];
        for (line, value) in series.iter_mut().zip([middle.storage, middle.work, middle.codec]) {
            line.exact(at as f64, value);
        }
        let ratio = sam.len() as f64 / stored.len() as f64;
        outcome.find(format!("{name}: ratio"), ratio, "x", paper.get(at).and_then(|paper| paper.0));
        outcome.find(
            format!("{name}: codec's time over sorting's"),
            middle.codec / middle.work,
            "x",
            paper.get(at).map(|paper| paper.3 / paper.2),
        );
    }
    outcome.plots.push(Plot {
        title: format!("Sorting {:.0} MB of SAM on one core", sam.len() as f64 / 1e6),
        form: Form::Stacked,
        x: Axis::of("codec", CODECS),
        y: Axis::new("time", "s"),
        series,
        limits: vec![Limit {
            name: "uncompressed, in and out (throttled)".into(),
            y: 2.0 * sam.len() as f64 / STORAGE,
        }],
    });
    Ok(outcome)
}

/// Figure 8.
pub fn layers(lab: &Lab) -> Result<Outcome, Failed> {
    let fastq = generated(lab, ReadFormat::Fastq, 2)?;
    let expected = converted(&fastq);
    let (gzip, none) = (codec("gzip:6")?, codec("none")?);
    let names =
        ["no codec", "gzip in the application", "gzip in the file system", "zstd:1 in the file system"];
    let mut series: Vec<Series> = ["decompressing to storage", "converting"].map(Series::measured).into();
    let mut outcome = Outcome::default();
    let mut totals = Vec::new();
    for at in 0..names.len() {
        let mut runs = Vec::new();
        for _ in 0..lab.scale.pick(1, 3, 5) {
            let mut ignored = Shares::default();
            let (mut before, mut during) = (Shares::default(), Shares::default());
            let spec = [none, gzip, gzip, codec("zstd:1")?][at];
            let mut stored = Stored::write(&fastq, spec, &mut ignored);
            if at == 1 {
                let plain = stored.read(&mut before)?;
                stored = Stored::write(&plain, none, &mut before);
            }
            let data = stored.read(&mut during)?;
            let fasta = timed(&mut during.work, || converted(&data));
            check(fasta == expected, "converted wrongly")?;
            Stored::write(&fasta, if at == 1 { none } else { spec }, &mut during);
            runs.push((before.total(), during.total()));
        }
        runs.sort_by(|a, b| (a.0 + a.1).total_cmp(&(b.0 + b.1)));
        let middle = runs[runs.len() / 2];
        series[0].exact(at as f64, middle.0);
        series[1].exact(at as f64, middle.1);
        totals.push(middle.0 + middle.1);
    }
    outcome.find("gzip in the file system, over gzip in the application", totals[2] / totals[1], "x", None);
    outcome.find(
        "zstd:1 in the file system, over no codec",
        totals[3] / totals[0],
        "x",
        Some(156.71 / 161.12),
    );
    outcome.plots.push(Plot {
        title: format!("Converting {:.0} MB of FASTQ on one core", fastq.len() as f64 / 1e6),
        form: Form::Stacked,
        x: Axis::of("where the codec is", names),
        y: Axis::new("time", "s"),
        series,
        limits: vec![Limit {
            name: "uncompressed, in and out (throttled)".into(),
            y: (fastq.len() + expected.len()) as f64 / STORAGE,
        }],
    });
    Ok(outcome)
}

/// Figure 9a: one file per core, each sorted by one of so many threads.
pub fn threads(lab: &Lab) -> Result<Outcome, Failed> {
    let parts = lab.scale.pick(2, 8, 16);
    let mut files = Vec::new();
    for part in 0..parts {
        let mut sam = Vec::new();
        reads(part, lab.scale.pick(200, 25_000, 100_000), ReadFormat::Sam, &mut sam)?;
        files.push(sam);
    }
    let counts: &[usize] = lab.scale.pick(&[2], &[1, 2, 4, 8], &[1, 2, 4, 8, 16]);
    let mut series = Vec::new();
    let mut outcome = Outcome::default();
    for name in ["none", "gzip:6", "zstd:1"] {
        let (spec, mut line) = (codec(name)?, Series::measured(name));
        let stored: Vec<Stored> =
            files.iter().map(|sam| Stored::write(sam, spec, &mut Shares::default())).collect();
        for &count in counts {
            let mut times = Vec::new();
            for _ in 0..lab.scale.pick(1, 3, 5) {
                let next = std::sync::atomic::AtomicUsize::new(0);
                let begun = Instant::now();
                let done: Result<Vec<()>, Failed> = std::thread::scope(|scope| {
                    let work = || -> Result<(), Failed> {
                        while let Some(stored) =
                            stored.get(next.fetch_add(1, std::sync::atomic::Ordering::Relaxed))
                        {
                            sort(stored, spec)?;
                        }
                        Ok(())
                    };
                    let threads: Vec<_> = (0..count).map(|_| scope.spawn(work)).collect();
                    threads
                        .into_iter()
                        .map(|thread| {
                            thread.join().unwrap_or_else(|_| Err(Failed::Wrong("a thread panicked".into())))
                        })
                        .collect()
                });
                done?;
                times.push(begun.elapsed().as_secs_f64());
            }
            line.push(count as f64, Spread::of(times));
        }
        outcome.find(format!("{name}, most threads"), line.last(), "s", None);
        series.push(line);
    }
    outcome.find("zstd:1 over gzip, most threads", series[2].last() / series[1].last(), "x", Some(0.4));
    let fastest = series[0].points.iter().map(|point| point.y).fold(f64::MAX, f64::min);
    outcome.plots.push(Plot {
        title: format!("Sorting {parts} files of SAM, by threads"),
        form: Form::Lines,
        x: Axis::log("threads", "at once"),
        y: Axis::new("time", "s"),
        series,
        limits: vec![Limit { name: "without codec, at best".into(), y: fastest }],
    });
    Ok(outcome)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_sorted_by_place_behind_the_header() {
        let sam = b"@HD\tx\nb\t0\tc\t20\tz\na\t0\tc\t3\tz\n";
        assert_eq!(sorted(sam), b"@HD\tx\na\t0\tc\t3\tz\nb\t0\tc\t20\tz\n");
        assert_eq!(converted(b"@r\nACGT\n+\nIIII\n"), b">r\nACGT\n");
    }
}
