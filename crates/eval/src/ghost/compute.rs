//! Figures 3 and 4: cutting and fingerprinting, by the amount of data at once.

use std::hint::black_box;
use std::sync::Arc;

use outrigger_format::boundary::RABIN_POLYNOMIAL;
use outrigger_format::{ChunkerSpec, FingerprintKind};
use outrigger_offload::op::Stream;
use outrigger_offload::pool::Buffer;
use outrigger_offload::work::Request;
use outrigger_offload::{cut, hash, reference};
use outrigger_workload::Rng;

use crate::lab::{Failed, Lab, check};
use crate::measure::Spread;
use crate::models;
use crate::record::{Axis, Form, Limit, Outcome, Plot, Series};
use crate::rig::{Buffers, Rig};
use crate::similarity::memory_rate;
use crate::wrote::chunker;

pub(super) const SEGMENT: usize = 4096;

fn amounts(lab: &Lab) -> &'static [usize] {
    lab.scale.pick(
        &[128 << 10],
        &[128 << 10, 1 << 20, 8 << 20, 64 << 20],
        &[128 << 10, 512 << 10, 2 << 20, 8 << 20, 32 << 20, 128 << 20, 256 << 20],
    )
}

pub(super) fn data(len: usize) -> Vec<u8> {
    let mut data = vec![0; len];
    Rng::new(4).fill(&mut data);
    data
}

/// MB/s of `request` on a device of a rig.
fn on(lab: &Lab, rig: &Rig, device: usize, request: &Request, data: &Arc<Buffer>) -> Spread {
    rig.once(device, request, data);
    lab.rate(data.len(), || drop(black_box(rig.once(device, request, data)))).map(|rate| rate / 1e6)
}

/// Bytes of the paper's window.
const WINDOW: usize = 63;

/// The Rabin fingerprint of every window, each computed from its bytes alone with a table. This is
/// the paper's way, which a device's threads can do side by side.
struct Anew([u64; 256]);

impl Anew {
    fn new() -> Self {
        let degree = RABIN_POLYNOMIAL.ilog2();
        let mut table = [0; 256];
        for (top, entry) in table.iter_mut().enumerate() {
            // The remainder of the eight bits above.
            let mut value = (top as u64) << (degree - 8);
            for _ in 0..8 {
                value <<= 1;
                if value >> degree & 1 == 1 {
                    value ^= RABIN_POLYNOMIAL;
                }
            }
            *entry = value;
        }
        Self(table)
    }

    fn of(&self, window: &[u8]) -> u64 {
        let degree = RABIN_POLYNOMIAL.ilog2();
        window.iter().fold(0, |hash, &byte| {
            let shifted = (hash << 8 | u64::from(byte)) & ((1 << degree) - 1);
            shifted ^ self.0[(hash >> (degree - 8)) as usize]
        })
    }

    /// The number of windows that end a segment, which is 4 KB on average.
    fn candidates(&self, data: &[u8]) -> usize {
        data.windows(WINDOW).filter(|window| self.of(window) & 4095 == 4095).count()
    }
}

/// Figure 3.
pub fn segmentation(lab: &Lab) -> Result<Outcome, Failed> {
    let (rabin, gear) = (chunker("rabin:1K/4K/16K")?, chunker("gear32:1K/4K/16K")?);
    let sample = data(100_000);
    for spec in [rabin, gear] {
        let (found, _) = reference::ingest(
            &sample,
            &[Stream { range: 0..sample.len() as u32, last: true }],
            spec,
            FingerprintKind::Sha1,
            &Default::default(),
        );
        let ends: Vec<usize> = found.iter().map(|chunk| chunk.end as usize).collect();
        check(cut(spec, &sample) == ends, format!("{spec} cuts elsewhere than its reference"))?;
    }
    let anew = Anew::new();
    check(
        sample[..2000].windows(WINDOW).all(|window| anew.of(window) == reference::rabin(window)),
        "a window computed anew is not its reference",
    )?;
    let mut series = vec![
        Series::measured("rabin, one core"),
        Series::measured("rabin, all cores"),
        Series::measured("gear32, one core"),
        Series::measured("gear32, all cores"),
        Series::model("GTX 480"),
        Series::measured("rabin of 63 bytes anew at each byte, one core"),
    ];
    let real = Rig::real(lab);
    series.extend(real.lines());
    for &bytes in amounts(lab) {
        let (x, data) = (bytes as f64, data(bytes));
        for (at, spec) in [(0, rabin), (2, gear)] {
            series[at].push(x, lab.rate(bytes, || drop(black_box(cut(spec, &data)))).map(|rate| rate / 1e6));
            // Streams of 128 KiB side by side, the paper's division.
            let all = || {
                std::thread::scope(|scope| {
                    for part in data.chunks(bytes.div_ceil(lab.threads)) {
                        scope.spawn(move || {
                            part.chunks(128 << 10).for_each(|stream| drop(black_box(cut(spec, stream))))
                        });
                    }
                });
            };
            series[at + 1].push(x, lab.rate(bytes, all).map(|rate| rate / 1e6));
        }
        let rig = Rig::modelled(&[models::GTX_480], 4, Buffers::Reused);
        let masks = outrigger_format::boundary::GearMasks::for_average(4096);
        let scan = Request::Scan { history: 0, masks };
        series[4].push(x, on(lab, &rig, 1, &scan, &rig.buffer(&data)));
        // This is slow, and the same at every amount. So it measures only a part of the largest.
        let part = &data[..bytes.min(8 << 20)];
        series[5].push(
            x,
            lab.rate(part.len(), || {
                black_box(anew.candidates(part));
            })
            .map(|rate| rate / 1e6),
        );
        for (device, _) in real.devices() {
            series[5 + device].push(x, on(lab, &real, device, &scan, &real.buffer(&data)));
        }
    }
    let mut outcome = Outcome::default();
    outcome.find("rabin of 63 bytes anew at each byte, one core", series[5].last(), "MB/s", Some(25.0));
    outcome.find("rabin, one core, most data", series[0].last(), "MB/s", None);
    outcome.find("gear32, all cores, most data", series[3].last(), "MB/s", None);
    outcome.find("GTX 480 (model), most data", series[4].last(), "MB/s", Some(2600.0));
    outcome.plots.push(by_amount(lab, "Segmentation, 4 KB on average", series));
    models::note(&mut outcome);
    Ok(outcome)
}

/// Figure 4.
pub fn fingerprinting(lab: &Lab) -> Result<Outcome, Failed> {
    let mut series = vec![
        Series::measured("SHA-1, one core, one by one"),
        Series::measured("SHA-1, one core"),
        Series::measured("SHA-1, all cores"),
        Series::measured("BLAKE3, all cores"),
        Series::model("GTX 480, SHA-1"),
    ];
    let real = Rig::real(lab);
    series.extend(real.names.iter().map(|name| Series::measured(format!("{name}, SHA-1"))));
    let (one, all) = (Rig::processor(1), Rig::processor(lab.threads));
    for &bytes in amounts(lab) {
        let (x, data) = (bytes as f64, data(bytes));
        let request = |kind| {
            let end = bytes as u32;
            let ranges = (0..end).step_by(SEGMENT).map(|at| at..end.min(at + SEGMENT as u32)).collect();
            Request::HashMany { kind, ranges }
        };
        let plainly = || {
            data.chunks(SEGMENT).for_each(|segment| {
                black_box(hash(FingerprintKind::Sha1, segment));
            })
        };
        series[0].push(x, lab.rate(bytes, plainly).map(|rate| rate / 1e6));
        let expected: Vec<_> = data.chunks(SEGMENT).take(16).map(sha1).collect();
        let (_, done) = all.once(0, &request(FingerprintKind::Sha1), &all.buffer(&data));
        check(done.output().fingerprints[..expected.len()] == expected, "a fingerprint is not SHA-1's")?;
        for (at, rig, kind) in [
            (1, &one, FingerprintKind::Sha1),
            (2, &all, FingerprintKind::Sha1),
            (3, &all, FingerprintKind::Blake3),
        ] {
            series[at].push(x, on(lab, rig, 0, &request(kind), &rig.buffer(&data)));
        }
        let rig = Rig::modelled(&[models::GTX_480], 4, Buffers::Reused);
        series[4].push(x, on(lab, &rig, 1, &request(FingerprintKind::Sha1), &rig.buffer(&data)));
        for (device, _) in real.devices() {
            let named = real.once(device, &request(FingerprintKind::Sha1), &real.buffer(&data)).1;
            check(
                named.output().fingerprints[..expected.len()] == expected,
                "a device's fingerprint is not SHA-1's",
            )?;
            series[4 + device]
                .push(x, on(lab, &real, device, &request(FingerprintKind::Sha1), &real.buffer(&data)));
        }
    }
    let mut outcome = Outcome::default();
    outcome.find("SHA-1, one core, one by one", series[0].last(), "MB/s", Some(2600.0 / 7.0));
    outcome.find("SHA-1, all cores", series[2].last(), "MB/s", None);
    outcome.find("GTX 480 (model)", series[4].last(), "MB/s", Some(2600.0));
    outcome.plots.push(by_amount(lab, "Fingerprinting segments of 4 KB", series));
    models::note(&mut outcome);
    Ok(outcome)
}

fn sha1(segment: &[u8]) -> outrigger_format::Fingerprint {
    hash(FingerprintKind::Sha1, segment)
}

fn by_amount(lab: &Lab, title: &str, series: Vec<Series>) -> Plot {
    Plot {
        title: title.into(),
        form: Form::Lines,
        x: Axis::log("data at once", "bytes"),
        y: Axis::log("rate", "MB/s"),
        series,
        limits: vec![
            Limit { name: "memory, read by all cores".into(), y: memory_rate(lab) / 1e6 },
            Limit { name: "the paper's bus".into(), y: 2756.0 },
        ],
    }
}

/// The chunker for fixed segments.
pub(super) fn fixed(size: usize) -> Result<ChunkerSpec, Failed> {
    chunker(&format!("fixed:{size}"))
}
