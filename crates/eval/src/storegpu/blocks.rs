//! Blocks of all sizes: the speed of each way, relative to one core that runs the ordinary
//! function.

use std::hint::black_box;

use outrigger_format::FingerprintKind;
use outrigger_offload::op::{Digest, WindowFunction, WindowSpec};
use outrigger_offload::sim::Speed;
use outrigger_offload::work::Request;
use outrigger_offload::{SimdLevel, hash, pmd_hash_with, reference, window_hash, window_hash_with};

use super::{data, devices as modelled, direct, ordinary, sizes, window};
use crate::lab::{Failed, Lab, Scale, check};
use crate::measure::Spread;
use crate::models;
use crate::record::{Axis, Form, Limit, Outcome, Plot, Series, SeriesKind};
use crate::rig::{Buffers, Rig};
use crate::similarity::memory_rate;

/// The paper's card with each of its optimisations on and off.
const OPTIMISATIONS: [(&str, Speed); 4] = [
    ("8800, neither", models::GEFORCE_8800_BARE),
    ("8800, page-locked", models::GEFORCE_8800_UNSHARED),
    ("8800, shared memory", models::GEFORCE_8800_UNPINNED),
    ("8800, both", models::GEFORCE_8800),
];

/// Measures the rate at blocks of so many bytes.
type Rate = Box<dyn Fn(&Lab, usize) -> Spread>;

/// A line of a plot: one way to hash.
struct Way {
    series: Series,
    rate: Rate,
}

impl Way {
    fn measured(name: &str, rate: impl Fn(&Lab, usize) -> Spread + 'static) -> Self {
        Self { series: Series::measured(name), rate: Box::new(rate) }
    }

    fn model(name: &str, speed: Speed, buffers: Buffers, request: Request) -> Self {
        let rig = Rig::modelled(&[speed], 1, buffers);
        let rate = move |lab: &Lab, bytes: usize| {
            // The first call computes the result, and is no measurement.
            rig.call(1, &request, bytes);
            lab.rate(bytes, || {
                black_box(rig.call(1, &request, bytes));
            })
        };
        Self { series: Series::model(name), rate: Box::new(rate) }
    }

    fn cores(name: &str, lab: &Lab, request: Request) -> Self {
        let rig = Rig::processor(lab.threads);
        Self::measured(name, move |lab, bytes| {
            let data = rig.buffer(&data(bytes));
            lab.rate(bytes, || drop(black_box(rig.once(0, &request, &data))))
        })
    }
}

/// All ways at all sizes, relative to `baseline`, whose own rate goes to the findings.
fn speedups(
    lab: &Lab,
    title: &str,
    sizes: &[usize],
    baseline: impl Fn(&[u8]),
    mut ways: Vec<Way>,
) -> (Outcome, Vec<Series>) {
    let mut base = 0.0;
    for &bytes in sizes {
        let data = data(bytes);
        base = lab.rate(bytes, || baseline(&data)).median;
        for way in &mut ways {
            let rate = (way.rate)(lab, bytes);
            way.series.push(bytes as f64, rate.map(|rate| rate / base));
        }
    }
    let mut outcome = Outcome::default();
    outcome.find("one core, ordinary function", base / 1e6, "MB/s", None);
    let series: Vec<Series> = ways.into_iter().map(|way| way.series).collect();
    for line in &series {
        outcome.find(format!("{}, largest block", line.name), line.last(), "x", None);
    }
    // The same relative to all cores.
    let cores = series.iter().find(|line| line.name.starts_with("all cores")).map_or(0.0, Series::last);
    for line in series.iter().filter(|line| line.kind == SeriesKind::Model && cores > 0.0) {
        outcome.find(format!("{}, largest block, over all cores", line.name), line.last() / cores, "x", None);
    }
    outcome.plots.push(Plot {
        title: title.into(),
        form: Form::Lines,
        x: Axis::log("block", "bytes"),
        y: Axis::log("speed-up over one core with the ordinary function", "x"),
        limits: vec![
            Limit { name: "one core, ordinary function".into(), y: 1.0 },
            Limit { name: "memory, read by all cores".into(), y: memory_rate(lab) / base },
        ],
        series: series.clone(),
    });
    models::note(&mut outcome);
    (outcome, series)
}

fn duel(outcome: &mut Outcome, what: &str, series: &[Series], cores: &str, device: &str, device_is: &str) {
    let of = |name: &str| series.iter().find(|series| series.name == name).map_or(0.0, Series::last);
    let base = outcome.findings[0].value;
    outcome.duel(what, of(cores) * base, of(device) * base, device_is, "MB/s");
}

/// Figure 4.
pub fn devices(lab: &Lab) -> Result<Outcome, Failed> {
    let request = direct(Digest::Md5);
    same_answers(lab, &request, |data| reference::pmd_hash(Digest::Md5, data))?;
    let mut ways = vec![
        Way::measured("one core, 4 KiB segments side by side", |lab, bytes| {
            let data = data(bytes);
            let mut out = Vec::new();
            lab.rate(bytes, move || {
                out.clear();
                pmd_hash_with(SimdLevel::current(), Digest::Md5, &data, &mut out);
            })
        }),
        Way::cores("all cores", lab, request.clone()),
    ];
    for (name, speed) in modelled() {
        ways.push(Way::model(name, speed, Buffers::Reused, request.clone()));
    }
    ways.extend(real(lab, &request));
    let title = "MD5 of one block: speed-up by block size";
    let ordinary = |data: &[u8]| {
        black_box(hash(FingerprintKind::Md5, data));
    };
    let (mut outcome, series) = speedups(lab, title, &sizes(lab), ordinary, ways);
    duel(
        &mut outcome,
        "MD5 of a block of 96 MB",
        &series,
        "all cores",
        "GeForce 8800",
        "model of the paper's card",
    );
    duel(
        &mut outcome,
        "MD5 of a block of 96 MB",
        &series,
        "all cores",
        "GPU on PCIe 5.0",
        "model of a card of today",
    );
    Ok(outcome)
}

/// Devices that are there, as lines.
fn real(lab: &Lab, request: &Request) -> Vec<Way> {
    let count = Rig::real(lab).names.len();
    let way = |device: usize| {
        let rig = Rig::real(lab);
        let (request, name) = (request.clone(), rig.names[device - 1].clone());
        Way::measured(&name, move |lab, bytes| {
            let data = rig.buffer(&data(bytes));
            lab.rate(bytes, || drop(black_box(rig.once(device, &request, &data))))
        })
    };
    (1..=count).map(way).collect()
}

/// Checks that every way gives the reference's result.
fn same_answers(lab: &Lab, request: &Request, expected: impl Fn(&[u8]) -> Vec<u8>) -> Result<(), Failed> {
    let speeds: Vec<Speed> = modelled().into_iter().map(|(_, speed)| speed).collect();
    for len in [0, 1, 4095, 4097, 70_000] {
        let (data, cores) = (data(len), Rig::processor(lab.threads));
        let rigs = [cores, Rig::modelled(&speeds, 2, Buffers::Reused), Rig::real(lab)];
        for rig in rigs {
            let buffer = rig.buffer(&data);
            for device in 0..=rig.names.len() {
                let (_, done) = rig.once(device, request, &buffer);
                check(
                    *done.output().bytes == *expected(&data),
                    format!("{} of {len} bytes", request.class()),
                )?;
            }
        }
    }
    Ok(())
}

/// Figures 5 and 6.
pub fn optimisations(lab: &Lab, digest: Digest) -> Result<Outcome, Failed> {
    let request = direct(digest);
    same_answers(lab, &request, |data| reference::pmd_hash(digest, data))?;
    let level = |name: &str, level: SimdLevel| {
        Way::measured(name, move |lab, bytes| {
            let data = data(bytes);
            let mut out = Vec::new();
            lab.rate(bytes, move || {
                out.clear();
                pmd_hash_with(level, digest, &data, &mut out);
            })
        })
    };
    let mut ways = vec![level("one core, no vectors", SimdLevel::Portable)];
    if SimdLevel::current() > SimdLevel::Portable {
        ways.push(level("one core, vectors", SimdLevel::current()));
    }
    ways.push(Way::cores("all cores, vectors", lab, request.clone()));
    for (name, speed) in OPTIMISATIONS {
        ways.push(Way::model(name, speed, Buffers::Fresh, request.clone()));
    }
    ways.extend(real(lab, &request));
    let name = digest.name().to_uppercase();
    let ordinary = |data: &[u8]| {
        black_box(hash(ordinary(digest), data));
    };
    let (mut outcome, series) =
        speedups(lab, &format!("{name} of one block: optimisations"), &sizes(lab), ordinary, ways);
    outcome.note("Models make and page-lock a buffer for each block, as the paper's calls do; devices that are there use theirs again. On the processor the counterpart of shared memory are vector registers.");
    let best = "all cores, vectors";
    duel(
        &mut outcome,
        &format!("{name} of a block of 96 MB, a buffer for each"),
        &series,
        best,
        "8800, both",
        "model of the paper's card",
    );
    Ok(outcome)
}

/// The ordinary function, window by window.
fn each_window(spec: WindowSpec, data: &[u8]) {
    let kind =
        if spec.function == WindowFunction::Sha1 { FingerprintKind::Sha1 } else { FingerprintKind::Md5 };
    for start in (0..(data.len() + 1).saturating_sub(spec.window)).step_by(spec.step) {
        black_box(hash(kind, &data[start..start + spec.window]));
    }
}

/// One core with the vectors of `level`.
fn one_core(name: &str, level: SimdLevel, spec: WindowSpec) -> Way {
    Way::measured(name, move |lab, bytes| {
        let data = data(bytes);
        let mut out = Vec::new();
        lab.rate(bytes, move || {
            out.clear();
            window_hash_with(level, spec, &data, &mut out);
        })
    })
}

/// Figures 7 to 10.
pub fn windows(lab: &Lab, function: WindowFunction, width: usize, step: usize) -> Result<Outcome, Failed> {
    let (reduced, whole) = (window(function, width, step, 4), window(function, width, step, function.len()));
    let request = Request::WindowHash { spec: reduced };
    same_answers(lab, &request, |data| reference::window_hash(reduced, data))?;
    let sizes: Vec<usize> =
        sizes(lab).into_iter().filter(|&bytes| lab.scale == Scale::Full || bytes <= 16 << 20).collect();
    let mut ways = vec![one_core("one core, no vectors", SimdLevel::Portable, reduced)];
    ways.push(one_core("one core", SimdLevel::current(), reduced));
    ways.push(Way::cores("all cores", lab, request.clone()));
    ways.push(Way::cores("all cores, whole hashes", lab, Request::WindowHash { spec: whole }));
    for (name, speed) in modelled() {
        ways.push(Way::model(name, speed, Buffers::Reused, request.clone()));
    }
    ways.extend(real(lab, &request));
    let name = function.name().to_uppercase();
    let title = format!("{name} of windows of {width} bytes, every {step}: speed-up by block size");
    let (mut outcome, series) = speedups(lab, &title, &sizes, |data| each_window(reduced, data), ways);
    let mut ways: Vec<Way> = OPTIMISATIONS
        .into_iter()
        .map(|(name, speed)| Way::model(name, speed, Buffers::Fresh, request.clone()))
        .collect();
    let whole = Request::WindowHash { spec: whole };
    ways.push(Way::model("8800, both, whole hashes", models::GEFORCE_8800, Buffers::Fresh, whole));
    let title = format!("{name}, {width} bytes, every {step}: each optimisation on and off");
    let (each, _) = speedups(lab, &title, &sizes, |data| each_window(reduced, data), ways);
    outcome.plots.extend(each.plots);
    outcome.findings.extend(each.findings.into_iter().filter(|finding| finding.name.starts_with("8800")));
    let what = format!("{name} of windows of {width} bytes, every {step}");
    duel(&mut outcome, &what, &series, "all cores", "GeForce 8800", "model of the paper's card");
    duel(&mut outcome, &what, &series, "all cores", "GPU on PCIe 5.0", "model of a card of today");
    Ok(outcome)
}

/// Table 2: all factors, at one size.
pub fn factors(lab: &Lab) -> Result<Outcome, Failed> {
    let data = data(lab.scale.pick(20_000, 1 << 20, 1 << 20));
    let mut outcome = Outcome::default();
    for function in [WindowFunction::Md5, WindowFunction::Sha1] {
        let ways = ["one core, ordinary function", "one core, no vectors", "one core, vectors"];
        let mut series = ways.map(Series::measured);
        let mut names = Vec::new();
        for (width, step) in [(20, 4), (20, 20), (20, 52), (52, 4), (52, 20), (52, 52)] {
            for keep in [4, function.len()] {
                let (spec, at) = (window(function, width, step, keep), names.len() as f64);
                let mut out = Vec::new();
                window_hash(spec, &data[..20_000], &mut out);
                check(out == reference::window_hash(spec, &data[..20_000]), format!("{spec:?}"))?;
                let mega = |spread: Spread| spread.map(|rate| rate / 1e6);
                series[0].push(at, mega(lab.rate(data.len(), || each_window(spec, &data))));
                for (line, level) in [(1, SimdLevel::Portable), (2, SimdLevel::current())] {
                    let rate = lab.rate(data.len(), || {
                        out.clear();
                        window_hash_with(level, spec, &data, &mut out);
                    });
                    series[line].push(at, mega(rate));
                }
                names.push(format!("{width}/{step} {keep}"));
            }
        }
        let name = function.name().to_uppercase();
        let gains = series[2].points.iter().zip(&series[0].points).map(|(ours, base)| ours.y / base.y);
        let (least, most) =
            gains.fold((f64::MAX, 0.0_f64), |(low, high), gain| (low.min(gain), high.max(gain)));
        outcome.find(format!("{name}: vectors over the ordinary function, least"), least, "x", None);
        outcome.find(format!("{name}: vectors over the ordinary function, most"), most, "x", None);
        outcome.plots.push(Plot {
            title: format!("{name} of sliding windows on one core, 1 MiB"),
            form: Form::Bars,
            x: Axis::of("window/step, bytes kept of each hash", names),
            y: Axis::log("rate", "MB/s"),
            series: series.into(),
            limits: vec![Limit { name: "memory, read by all cores".into(), y: memory_rate(lab) / 1e6 }],
        });
    }
    Ok(outcome)
}
