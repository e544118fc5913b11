//! Equation 1, fitted to the ends and compared in between.

use outrigger_offload::op::{Digest, WindowFunction};
use outrigger_offload::placement::{Curve, EquationOne, Line, Point, Stages};
use outrigger_offload::sim::Speed;
use outrigger_offload::work::Request;

use super::{data, direct, window};
use crate::lab::{Failed, Lab};
use crate::models;
use crate::record::{Axis, Form, Limit, Outcome, Plot, Series};
use crate::rig::{Buffers, Rig};

/// Predicted over measured, by size, for two operations on the processor and two models.
pub fn predictions(lab: &Lab) -> Result<Outcome, Failed> {
    let spec = window(WindowFunction::Md5, 20, 4, 4);
    let mut outcome = Outcome::default();
    let (mut plots, mut worst) = (Vec::new(), Vec::new());
    for (what, request) in
        [("MD5 of a block", direct(Digest::Md5)), ("MD5 of windows", Request::WindowHash { spec })]
    {
        let mut series = Vec::new();
        let mut add = |name: &str, rig: &Rig, device: usize, mut line: Series| {
            let curve = curve(lab, rig, device, &request);
            // Buffers are reused: nothing is allocated.
            let Some(equation) = EquationOne::fit(&curve, Line::default()) else { return };
            let mut off: f64 = 0.0;
            for (bytes, predicted, measured) in equation.errors(&curve) {
                line.exact(bytes, predicted / measured);
                off = off.max((predicted / measured).ln().abs());
            }
            worst.push((format!("{what}, {name}: furthest off"), 100.0 * (off.exp() - 1.0)));
            series.push(line);
        };
        let one = Rig::processor(1);
        add("one core", &one, 0, Series::measured("one core"));
        let cores = Rig::processor(lab.threads);
        add("all cores", &cores, 0, Series::measured("all cores"));
        for (name, speed) in [("GeForce 8800", models::GEFORCE_8800), ("GPU on PCIe 5.0", Speed::PCIE5_GPU)] {
            add(name, &Rig::modelled(&[speed], 1, Buffers::Reused), 1, Series::model(name));
        }
        let real = Rig::real(lab);
        for (device, name) in real.devices() {
            add(name, &real, device, Series::measured(name));
        }
        plots.push(Plot {
            title: format!("Equation 1, fitted to the ends: {what}"),
            form: Form::Lines,
            x: Axis::log("block", "bytes"),
            y: Axis::log("time predicted / measured", "x"),
            series,
            limits: vec![Limit { name: "exact".into(), y: 1.0 }],
        });
    }
    outcome.plots = plots;
    worst.into_iter().for_each(|(name, off)| outcome.find(name, off, "%", None));
    models::note(&mut outcome);
    Ok(outcome)
}

/// Median stages at each size.
fn curve(lab: &Lab, rig: &Rig, device: usize, request: &Request) -> Curve {
    let sizes: &[usize] = lab.scale.pick(
        &[4 << 10, 32 << 10, 256 << 10],
        &[4 << 10, 32 << 10, 256 << 10, 2 << 20, 16 << 20],
        &[4 << 10, 32 << 10, 256 << 10, 2 << 20, 16 << 20, 128 << 20],
    );
    let mut curve = Curve::default();
    for &bytes in sizes {
        let buffer = rig.buffer(&data(bytes));
        rig.once(device, request, &buffer);
        let mut runs: Vec<Stages> = (0..lab.scale.pick(1, 9, 21))
            .map(|_| {
                let (total, done) = rig.once(device, request, &buffer);
                let (stages, nanos) =
                    (done.report().stages, |time: std::time::Duration| time.as_nanos() as f64);
                if device == 0 {
                    // Time that threads share is counted once: the whole call is work.
                    return Stages { work: nanos(total), ..Stages::default() };
                }
                Stages {
                    overhead: nanos(total.saturating_sub(stages.sum())),
                    copy_in: nanos(stages.copy_in),
                    work: nanos(stages.kernel),
                    copy_out: nanos(stages.copy_out),
                }
            })
            .collect();
        runs.sort_by(|a, b| a.latency().total_cmp(&b.latency()));
        curve.set(Point { bytes: bytes as f64, stages: runs[runs.len() / 2], samples: 1, error: 0.0 });
    }
    curve
}
