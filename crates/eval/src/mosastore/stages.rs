//! Figures 4 to 6: a stream of blocks on modelled devices, with the runtime and without it.

use outrigger_offload::sim::Speed;
use outrigger_offload::work::Request;

use super::windows;
use crate::lab::{Failed, Lab, Scale};
use crate::measure::Spread;
use crate::record::{Axis, Form, Limit, Outcome, Plot, Series};
use crate::rig::{Buffers, Rig};
use crate::similarity::memory_rate;
use crate::{models, shares};

/// The paper's stream.
const BLOCKS: usize = 10;

fn sizes(lab: &Lab) -> Vec<usize> {
    match lab.scale {
        Scale::Tiny => vec![64 << 10],
        Scale::Short => vec![4 << 10, 64 << 10, 1 << 20, 4 << 20, 16 << 20],
        Scale::Full => (2..17).map(|log| 1 << (log + 10)).chain([96 << 20]).collect(),
    }
}

/// Figure 4.
pub fn shares(lab: &Lab) -> Result<Outcome, Failed> {
    let title = "Stages of hashing the windows of one block, no buffer reused".into();
    let shares = shares::modelled(lab, models::GTX_480, &windows(), &sizes(lab), title)?;
    let [allocation, copy_in, ..] = shares.largest;
    let mut outcome = Outcome::default();
    outcome.find("allocation and copy in, largest block", allocation + copy_in, "%", Some(80.0));
    outcome.plots.push(shares.plot);
    let title = "Stages of hashing the windows of one block, no buffer reused";
    for (name, shares) in shares::real(lab, &windows(), &sizes(lab), title)? {
        let [allocation, copy_in, ..] = shares.largest;
        outcome.find(
            format!("allocation and copy in, largest block, {name}"),
            allocation + copy_in,
            "%",
            None,
        );
        outcome.plots.push(shares.plot);
    }
    models::note(&mut outcome);
    Ok(outcome)
}

/// Bytes per second of a stream of blocks on modelled devices.
fn stream(
    lab: &Lab,
    devices: usize,
    in_flight: usize,
    buffers: Buffers,
    request: &Request,
    bytes: usize,
) -> Spread {
    let rig = Rig::modelled(&[models::GTX_480, models::GTX_480][..devices], in_flight, buffers);
    let which: Vec<usize> = (1..=devices).collect();
    let window = in_flight * devices;
    rig.stream(&which, window, 2 * window, request, bytes);
    let run = || rig.stream(&which, window, BLOCKS * devices, request, bytes).as_secs_f64();
    lab.spread(lab.rounds(), run).map(|seconds| (BLOCKS * devices * bytes) as f64 / seconds)
}

/// Figures 5 and 6. `paper` has its largest speed-ups: none, reuse, overlap and a second card.
pub fn gains(lab: &Lab, request: Request, what: &str, paper: [f64; 4]) -> Result<Outcome, Failed> {
    let sizes = sizes(lab);
    let names = ["no reuse", "reuse", "reuse and overlap", "and a second GTX 480"];
    let mut cores = Series::measured("all cores");
    let mut series: Vec<Series> = names.map(Series::model).into();
    let (one, all, real) = (Rig::processor(1), Rig::processor(lab.threads), Rig::real(lab));
    // With a real device buffers are always reused, without and with overlap.
    let line = |name: &str, what: &str| Series::measured(format!("{name}, {what}"));
    let mut present: Vec<(Series, Series)> =
        real.devices().map(|(_, name)| (line(name, "reuse"), line(name, "reuse and overlap"))).collect();
    let mut outcome = Outcome::default();
    let (mut base, mut rates) = (0.0, [0.0; 5]);
    for &bytes in &sizes {
        let of = |rig: &Rig, window| {
            let run = || rig.stream(&[0], window, BLOCKS, &request, bytes).as_secs_f64();
            lab.spread(lab.rounds(), run).map(|seconds| (BLOCKS * bytes) as f64 / seconds)
        };
        base = of(&one, 1).median;
        let on_cores = of(&all, lab.threads);
        cores.push(bytes as f64, on_cores.map(|rate| rate / base));
        rates[4] = on_cores.median;
        for (at, (devices, in_flight, buffers)) in [
            (1, 1, Buffers::Fresh),
            (1, 1, Buffers::Reused),
            (1, 4, Buffers::Reused),
            (2, 4, Buffers::Reused),
        ]
        .into_iter()
        .enumerate()
        {
            let rate = stream(lab, devices, in_flight, buffers, &request, bytes);
            series[at].push(bytes as f64, rate.map(|rate| rate / base));
            rates[at] = rate.median;
        }
        for ((device, _), (plain, overlapped)) in real.devices().zip(&mut present) {
            for (line, window) in [(plain, 1), (overlapped, 4)] {
                real.stream(&[device], window, 2 * window, &request, bytes);
                let run = || real.stream(&[device], window, BLOCKS, &request, bytes).as_secs_f64();
                let rate = lab.spread(lab.rounds(), run).map(|seconds| (BLOCKS * bytes) as f64 / seconds);
                line.push(bytes as f64, rate.map(|rate| rate / base));
            }
        }
    }
    outcome.find("one core", base / 1e6, "MB/s", None);
    outcome.find("all cores", cores.last(), "x", Some(8.0));
    for (line, paper) in series.iter().zip(paper) {
        outcome.find(format!("{} (model)", line.name), line.last(), "x", (paper > 0.0).then_some(paper));
    }
    for line in present.iter().flat_map(|(plain, overlapped)| [plain, overlapped]) {
        outcome.find(&*line.name, line.last(), "x", None);
    }
    // Section 4.2: what to buy for the same money.
    outcome.find(
        "a GTX 480 (model), over all of this machine's cores",
        rates[2] / rates[4],
        "x",
        (paper[2] > 0.0).then_some(paper[2] / 8.0),
    );
    outcome.find(
        "a second GTX 480 (model), over the first",
        rates[3] / rates[2],
        "x",
        (paper[3] > 0.0).then_some(paper[3] / paper[2]),
    );
    outcome.duel(
        &format!("{what}, blocks of 16 MiB"),
        rates[4] / 1e6,
        rates[2] / 1e6,
        "model of the papers' GTX 480",
        "MB/s",
    );
    let bus = models::GTX_480.in_rate / base;
    outcome.plots.push(Plot {
        title: format!("A stream of {BLOCKS} blocks, {what}: speed-up over one core of today"),
        form: Form::Lines,
        x: Axis::log("block", "bytes"),
        y: Axis::log("speed-up over one core", "x"),
        series: [cores]
            .into_iter()
            .chain(series)
            .chain(present.into_iter().flat_map(|(plain, overlapped)| [plain, overlapped]))
            .collect(),
        limits: vec![
            Limit { name: "one core of today".into(), y: 1.0 },
            Limit { name: "one GTX 480's bus, 2.8 GB/s".into(), y: bus },
            Limit { name: "memory, read by all cores".into(), y: memory_rate(lab) / base },
        ],
    });
    models::note(&mut outcome);
    Ok(outcome)
}

/// The number of tasks in flight that is enough.
pub fn in_flight(lab: &Lab) -> Result<Outcome, Failed> {
    let mut outcome = Outcome::default();
    let request = windows();
    let (bytes, tasks) = lab.scale.pick((64 << 10, 2..=2), (1 << 20, 1..=10), (4 << 20, 1..=10));
    let mut series = Vec::new();
    let at = |rig: &Rig, device: usize, count: usize| {
        rig.stream(&[device], count, 2 * count, &request, bytes);
        let run = || rig.stream(&[device], count, 4 * BLOCKS, &request, bytes).as_secs_f64();
        lab.spread(lab.rounds(), run).map(|seconds| (4 * BLOCKS * bytes) as f64 / seconds / 1e6)
    };
    let real = Rig::real(lab);
    let mut lines = Vec::new();
    for (name, speed) in [("GTX 480", models::GTX_480), ("GPU on PCIe 5.0", Speed::PCIE5_GPU)] {
        let mut line = Series::model(name);
        for count in tasks.clone() {
            let rig = Rig::modelled(&[speed], count, Buffers::Reused);
            line.push(count as f64, at(&rig, 1, count));
        }
        lines.push(line);
    }
    for ((device, _), mut line) in real.devices().zip(real.lines()) {
        tasks.clone().for_each(|count| line.push(count as f64, at(&real, device, count)));
        lines.push(line);
    }
    for line in lines {
        let name = &line.name;
        let third = line.points.get(2).map_or(0.0, |point| point.y);
        outcome.find(format!("{name}: three in flight, of the most"), 100.0 * third / line.most(), "%", None);
        series.push(line);
    }
    outcome.plots.push(Plot {
        title: format!(
            "Window hashing of blocks of {}, by tasks in flight",
            crate::plot::bytes(bytes as f64)
        ),
        form: Form::Lines,
        x: Axis::new("tasks in flight", "tasks"),
        y: Axis::log("rate", "MB/s"),
        series,
        limits: vec![
            Limit { name: "bus of the GTX 480".into(), y: 2756.0 },
            Limit { name: "bus of PCIe 5.0".into(), y: 55_000.0 },
        ],
    });
    models::note(&mut outcome);
    Ok(outcome)
}
