//! Figures 8 and 12: cutting, fingerprinting and looking up as one operation.

use std::hint::black_box;
use std::sync::Arc;

use outrigger_format::{Fingerprint, FingerprintKind};
use outrigger_offload::op::Stream;
use outrigger_offload::table::Table;
use outrigger_offload::work::Request;
use outrigger_offload::{hash, reference};
use outrigger_workload::stream;

use super::compute::{data, fixed};
use crate::lab::{Failed, Lab, check};
use crate::measure::Spread;
use crate::models;
use crate::record::{Axis, Form, Limit, Outcome, Plot, Series};
use crate::rig::{Buffers, Rig};
use crate::similarity::memory_rate;

/// The paper's operation: SHA-1 of fixed segments, looked up.
fn ingest(len: usize, segment: usize, table: &Arc<Table>) -> Result<Request, Failed> {
    let (chunker, kind) = (fixed(segment)?, FingerprintKind::Sha1);
    let streams = vec![Stream { range: 0..len as u32, last: true }];
    Ok(Request::Ingest { streams, chunker, kind, table: Some(Arc::clone(table)) })
}

fn same_as_reference(rig: &Rig, request: &Request, bytes: &[u8]) -> Result<(), Failed> {
    let Request::Ingest { streams, chunker, kind, .. } = request else { return Ok(()) };
    let (expected, _) = reference::ingest(bytes, streams, *chunker, *kind, &Default::default());
    let (_, done) = rig.once(0, request, &rig.buffer(bytes));
    let same = expected
        .iter()
        .zip(&done.output().chunks)
        .all(|(a, b)| a.end == b.end && a.fingerprint == b.fingerprint);
    check(same && expected.len() == done.output().chunks.len(), "ingestion differs from its reference")
}

/// Figure 8.
pub fn batch(lab: &Lab) -> Result<Outcome, Failed> {
    let sizes: &[usize] = lab.scale.pick(
        &[1 << 20],
        &[128 << 10, 1 << 20, 8 << 20, 32 << 20, 128 << 20],
        &[128 << 10, 512 << 10, 2 << 20, 8 << 20, 32 << 20, 64 << 20, 128 << 20, 256 << 20],
    );
    let table = Arc::new(Table::with_capacity(1000));
    let all = Rig::processor(lab.threads);
    let mut series = vec![
        Series::measured("all cores"),
        Series::model("GTX 480, one batch"),
        Series::model("GTX 480, four in flight"),
    ];
    let real = Rig::real(lab);
    for (_, name) in real.devices() {
        series.extend(["one batch", "four in flight"].map(|how| Series::measured(format!("{name}, {how}"))));
    }
    for &bytes in sizes {
        let (x, request) = (bytes as f64, ingest(bytes, 32 << 10, &table)?);
        let buffer = all.buffer(&data(bytes));
        if bytes <= 1 << 20 {
            same_as_reference(&all, &request, &buffer)?;
        }
        series[0].push(
            x,
            lab.rate(bytes, || drop(black_box(all.once(0, &request, &buffer)))).map(|rate| rate / 1e6),
        );
        drop(buffer);
        let streamed = |rig: &Rig, device: usize, in_flight: usize| {
            rig.stream(&[device], in_flight, in_flight, &request, bytes);
            let tasks = in_flight * 2;
            let run = || rig.stream(&[device], in_flight, tasks, &request, bytes).as_secs_f64();
            lab.spread(lab.rounds().min(5), run).map(|seconds| (tasks * bytes) as f64 / seconds / 1e6)
        };
        for (at, in_flight) in [(1, 1), (2, 4)] {
            let rig = Rig::modelled(&[models::GTX_480], in_flight, Buffers::Reused);
            series[at].push(x, streamed(&rig, 1, in_flight));
            for (device, _) in real.devices() {
                series[2 * device + at].push(x, streamed(&real, device, in_flight));
            }
        }
    }
    let mut outcome = Outcome::default();
    let enough = |line: &Series| {
        line.points.iter().find(|point| point.y > 0.9 * line.most()).map_or(0.0, |point| point.x)
    };
    outcome.find(
        "one batch at a time: 90 % of the best from",
        enough(&series[1]) / 1048576.0,
        "MiB on",
        Some(128.0),
    );
    outcome.find("four in flight: 90 % of the best from", enough(&series[2]) / 1048576.0, "MiB on", None);
    outcome.find("all cores: 90 % of the best from", enough(&series[0]) / 1048576.0, "MiB on", None);
    outcome.plots.push(Plot {
        title: "Deduplication (SHA-1 of 32 KB, all unique), by the amount offloaded at once".into(),
        form: Form::Lines,
        x: Axis::log("batch", "bytes"),
        y: Axis::log("rate", "MB/s"),
        series,
        limits: vec![
            Limit { name: "memory, read by all cores".into(), y: memory_rate(lab) / 1e6 },
            Limit { name: "the paper's bus".into(), y: 2756.0 },
        ],
    });
    models::note(&mut outcome);
    Ok(outcome)
}

/// Figure 12.
pub fn throughput(lab: &Lab) -> Result<Outcome, Failed> {
    let bytes = lab.scale.pick(1 << 20, 64 << 20, 128 << 20);
    let segments: &[usize] = lab.scale.pick(
        &[4 << 10, 32 << 10],
        &[4 << 10, 16 << 10, 64 << 10, 128 << 10],
        &[4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10, 128 << 10],
    );
    let mut series = vec![
        Series::measured("all cores, nothing known"),
        Series::measured("all cores, all known"),
        Series::model("GTX 480, all known"),
        Series::model("GTX 480, nothing known"),
        Series::measured("all cores, half known"),
        Series::model("GTX 480, half known"),
    ];
    let real = Rig::real(lab);
    for (_, name) in real.devices() {
        let known = ["all known", "nothing known"];
        series.extend(known.map(|known| Series::measured(format!("{name}, {known}"))));
    }
    let all = Rig::processor(lab.threads);
    for &segment in segments {
        let mut bytes_in = Vec::new();
        std::io::Read::read_to_end(&mut stream(6, bytes as u64, 0.0, 0.0, segment), &mut bytes_in)?;
        let mut names: Vec<(Fingerprint, u64)> = Vec::new();
        names.extend(bytes_in.chunks(segment).map(|piece| (hash(FingerprintKind::Sha1, piece), 1)));
        let host = host_table(names.len())?;
        let (mut full, empty) =
            (Table::with_capacity(names.len()), Arc::new(Table::with_capacity(names.len())));
        full.insert_many(&names).map_err(|full| Failed::Wrong(full.to_string()))?;
        let (full, x, buffer) = (Arc::new(full), segment as f64, all.buffer(&bytes_in));
        let none = ingest(bytes, segment, &empty)?;
        let known = ingest(bytes, segment, &full)?;
        let (_, done) = all.once(0, &known, &buffer);
        let hits = done.output().chunks.iter().filter(|chunk| chunk.place.is_some()).count();
        check(hits == names.len(), format!("{hits} of {} segments are found", names.len()))?;
        let done_known = done.output().chunks.clone();
        // The host's table is asked for keys that the device does not know.
        let keys: Vec<Fingerprint> = names.iter().map(|(name, _)| *name).collect();
        let ask = |keys: &[Fingerprint]| {
            let mut out = Vec::with_capacity(keys.len());
            host.lookup_many(keys, &mut out);
            black_box(out);
        };
        let half = &keys[..keys.len().div_ceil(2)];
        let (some, rest) = names.split_at(names.len() / 2);
        let mut half_full = Table::with_capacity(names.len());
        half_full.insert_many(some).map_err(|full| Failed::Wrong(full.to_string()))?;
        let half_known = ingest(bytes, segment, &Arc::new(half_full))?;
        let (_, done) = all.once(0, &half_known, &buffer);
        let hits = done.output().chunks.iter().filter(|chunk| chunk.place.is_some()).count();
        check(hits == some.len(), format!("{hits} of {} segments are found", some.len() + rest.len()))?;
        let mega = |spread: Spread| spread.map(|rate| rate / 1e6);
        series[0].push(
            x,
            mega(lab.rate(bytes, || {
                black_box(all.once(0, &none, &buffer));
                ask(&keys);
            })),
        );
        series[1].push(x, mega(lab.rate(bytes, || drop(black_box(all.once(0, &known, &buffer))))));
        let rig = Rig::modelled(&[models::GTX_480], 4, Buffers::Reused);
        let on_device = rig.buffer(&bytes_in);
        rig.once(1, &known, &on_device);
        series[2].push(x, mega(lab.rate(bytes, || drop(black_box(rig.once(1, &known, &on_device))))));
        series[3].push(
            x,
            mega(lab.rate(bytes, || {
                black_box(rig.once(1, &known, &on_device));
                ask(&keys);
            })),
        );
        series[4].push(
            x,
            mega(lab.rate(bytes, || {
                black_box(all.once(0, &half_known, &buffer));
                ask(half);
            })),
        );
        series[5].push(
            x,
            mega(lab.rate(bytes, || {
                black_box(rig.once(1, &known, &on_device));
                ask(half);
            })),
        );
        for (device, _) in real.devices() {
            let buffer = real.buffer(&bytes_in);
            let (_, found) = real.once(device, &known, &buffer);
            check(found.output().chunks == done_known, "a device's ingestion differs from the processor's")?;
            let at = 4 + 2 * device;
            series[at].push(x, mega(lab.rate(bytes, || drop(black_box(real.once(device, &known, &buffer))))));
            series[at + 1].push(
                x,
                mega(lab.rate(bytes, || {
                    black_box(real.once(device, &none, &buffer));
                    ask(&keys);
                })),
            );
        }
    }
    let mut outcome = Outcome::default();
    outcome.find("all cores, most", series[1].most(), "MB/s", Some(300.0));
    outcome.find("GTX 480 (model), most", series[2].most(), "MB/s", Some(1500.0));
    outcome.duel(
        "GHOST as a whole (SHA-1, fixed segments, look-up)",
        series[1].most(),
        series[2].most(),
        "model of the paper's GTX 480",
        "MB/s",
    );
    outcome.plots.push(Plot {
        title: "Deduplication as a whole, by segment size".into(),
        form: Form::Lines,
        x: Axis::log("segment", "bytes"),
        y: Axis::log("rate", "MB/s"),
        series,
        limits: vec![
            Limit { name: "memory, read by all cores".into(), y: memory_rate(lab) / 1e6 },
            Limit { name: "the paper's bus".into(), y: 2756.0 },
        ],
    });
    outcome.note(format!(
        "Batches of {}; underlying storage is not written to, as in the paper.",
        crate::plot::bytes(bytes as f64)
    ));
    models::note(&mut outcome);
    Ok(outcome)
}

/// A host's table, with the same number of other entries.
fn host_table(entries: usize) -> Result<Table, Failed> {
    let mut table = Table::with_capacity(entries * 2);
    let other: Vec<_> =
        (0..entries as u64).map(|n| (hash(FingerprintKind::Sha1, &n.to_le_bytes()), n)).collect();
    table.insert_many(&other).map_err(|full| Failed::Wrong(full.to_string()))?;
    Ok(table)
}
