//! Figure 1: a data set that does not fit the fast storage.

use std::fs::File;
use std::io::Write;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};

use outrigger_format::CodecSpec;
use outrigger_offload::{Compressor, Decompressor};
use outrigger_workload::{ReadFormat, reads};

use crate::lab::{Failed, Lab, Scale, check};
use crate::measure::Spread;
use crate::record::{Axis, Form, Limit, Outcome, Plot, Series};

/// A ZFS record.
pub(super) const RECORD: usize = 128 << 10;

/// Storage that sleeps for as long as it would take: bytes per second for the first `fast_bytes`,
/// and for all later ones.
pub(super) struct Throttled {
    pub fast: f64,
    pub slow: f64,
    pub fast_bytes: u64,
    written: u64,
    /// The time at which everything written so far would be there.
    due: Duration,
    begun: Instant,
}

impl Throttled {
    pub fn new(fast: f64, slow: f64, fast_bytes: u64) -> Self {
        Self { fast, slow, fast_bytes, written: 0, due: Duration::ZERO, begun: Instant::now() }
    }

    /// Takes so many more bytes, and returns no sooner than the storage could.
    pub fn pass(&mut self, bytes: usize) {
        let rate = if self.written < self.fast_bytes { self.fast } else { self.slow };
        self.written += bytes as u64;
        // Idle time is lost.
        self.due = self.due.max(self.begun.elapsed()) + Duration::from_secs_f64(bytes as f64 / rate);
        let ahead = self.due.saturating_sub(self.begun.elapsed());
        if ahead > Duration::from_millis(2) {
            std::thread::sleep(ahead);
        }
    }
}

/// A codec's specification by its name.
pub(super) fn codec(name: &str) -> Result<CodecSpec, Failed> {
    CodecSpec::parse(name).map_err(|error| Failed::Program(format!("{name}: {error}")))
}

/// Writes all of `data` in records to the storage, compressed by all threads. Returns MB/s and the
/// ratio.
fn write(
    lab: &Lab,
    data: &[u8],
    spec: CodecSpec,
    mut storage: Throttled,
    path: &std::path::Path,
) -> Result<(f64, f64), Failed> {
    let (records, right) = (Mutex::new(data.chunks(RECORD)), AtomicBool::new(true));
    let (out, compressed) = sync_channel::<Vec<u8>>(64);
    let mut file = File::create(path)?;
    let begun = Instant::now();
    let stored: Result<u64, Failed> = std::thread::scope(|scope| {
        for _ in 0..lab.threads {
            let (records, right, out) = (&records, &right, out.clone());
            scope.spawn(move || {
                let mut compressor = Compressor::new();
                loop {
                    let next = records.lock().unwrap_or_else(std::sync::PoisonError::into_inner).next();
                    let Some(record) = next else { break };
                    let mut stored = Vec::new();
                    let codec = compressor.compress(spec, record, &mut stored);
                    if lab.scale == Scale::Tiny {
                        let mut back = Vec::new();
                        let decoded = Decompressor::new().decompress(codec, &stored, record.len(), &mut back);
                        right.fetch_and(decoded.is_ok() && back == record, Ordering::Relaxed);
                    }
                    if out.send(stored).is_err() {
                        break;
                    }
                }
            });
        }
        drop(out);
        let mut total = 0;
        for record in compressed {
            file.write_all(&record)?;
            storage.pass(record.len());
            total += record.len() as u64;
        }
        std::thread::sleep(storage.due.saturating_sub(storage.begun.elapsed()));
        Ok(total)
    });
    let (stored, seconds) = (stored?, begun.elapsed().as_secs_f64());
    check(right.into_inner(), "a record is not decoded as it was")?;
    Ok((data.len() as f64 / seconds / 1e6, data.len() as f64 / stored as f64))
}

/// Throughput by the amount of data.
pub fn capacity(lab: &Lab) -> Result<Outcome, Failed> {
    let (fast, slow) = (400e6, 40e6);
    let capacity: u64 = lab.scale.pick(1 << 18, 24 << 20, 256 << 20);
    let mut data = Vec::new();
    let most = lab.scale.pick(2.0, 6.0, 6.0);
    reads(1, (capacity as f64 * most / 220.0) as u64, ReadFormat::Fastq, &mut data)?;
    let mut series: Vec<Series> = Vec::new();
    let (mut outcome, mut best) = (Outcome::default(), 1.0_f64);
    let room = lab.room()?;
    let points: &[f64] = lab.scale.pick(
        &[0.5, 2.0],
        &[0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0],
        &[0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 5.0, 6.0],
    );
    for (name, paper) in [("none", Some(1.0)), ("lz4", Some(1.9)), ("gzip:6", Some(3.8)), ("zstd:1", None)] {
        let (spec, mut line) = (codec(name)?, Series::measured(name));
        let mut ratio = 1.0;
        for &times in points {
            let part = &data[..data.len().min((times * capacity as f64) as usize)];
            let mut rates = Vec::new();
            for _ in 0..lab.scale.pick(1, 3, 3) {
                let storage = Throttled::new(fast, slow, capacity);
                let (rate, found) = write(lab, part, spec, storage, &room.path().join("stored"))?;
                rates.push(rate);
                ratio = found;
            }
            line.push(times, Spread::of(rates));
        }
        check(ratio > 0.99 && (name != "gzip:6" || ratio > 1.5), format!("{name} has ratio {ratio}"))?;
        best = best.max(ratio);
        outcome.find(format!("{name}: ratio"), ratio, "x", paper);
        outcome.find(format!("{name}: data six times the fast storage"), line.last(), "MB/s", None);
        series.push(line);
    }
    outcome.plots.push(Plot {
        title: "Writing to fast storage that fills up, slow storage behind it (both throttled)".into(),
        form: Form::Lines,
        x: Axis::new("data, in sizes of the fast storage", "x"),
        y: Axis::log("throughput", "MB/s"),
        series,
        limits: vec![
            Limit { name: "fast storage at the best ratio".into(), y: fast * best / 1e6 },
            Limit { name: "fast storage, uncompressed (throttled)".into(), y: fast / 1e6 },
            Limit { name: "slow storage, uncompressed (throttled)".into(), y: slow / 1e6 },
        ],
    });
    outcome.note(format!(
        "The fast part has {}; a writer sleeps for as long as storage of 400 and 40 MB/s would take.",
        crate::plot::bytes(capacity as f64)
    ));
    Ok(outcome)
}
