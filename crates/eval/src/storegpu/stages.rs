//! Figures 11 to 17: shares of the stages of one call, on modelled devices.

use outrigger_offload::op::Digest;
use outrigger_offload::sim::Speed;

use super::direct;
use crate::experiment::{Failed, Lab, check};
use crate::models;
use crate::record::{Axis, Form, Limit, Outcome, Plot, Series};
use crate::rig::{Buffers, Rig};

const STAGES: [&str; 5] = ["allocation", "copy in", "kernel", "copy out", "the rest"];

/// One plot a device.
pub fn shares(lab: &Lab) -> Result<Outcome, Failed> {
    let mut outcome = Outcome::default();
    outcome.note(models::NOTE);
    for (name, speed, paper) in [
        ("GeForce 8800 without optimisations", models::GEFORCE_8800_BARE, Some(65.0)),
        ("GeForce 8800 with all optimisations", models::GEFORCE_8800, Some(20.0)),
        ("a GPU on PCIe 5.0, all optimisations", Speed::PCIE5_GPU, None),
    ] {
        let sizes: &[usize] = lab.scale.pick(
            &[64 << 10],
            &[1 << 20, 8 << 20, 32 << 20, 96 << 20],
            &[64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20, 96 << 20],
        );
        let request = direct(Digest::Md5);
        let mut series: Vec<Series> = STAGES.map(Series::model).into();
        let mut kernel = 0.0;
        for (at, &bytes) in sizes.iter().enumerate() {
            // Reused buffers would have no allocation in them.
            let rig = Rig::modelled(&[speed], 1, Buffers::Fresh);
            rig.call(1, &request, bytes);
            let mut calls: Vec<_> = (0..lab.rounds()).map(|_| rig.call(1, &request, bytes)).collect();
            calls.sort_by_key(|call| call.1);
            let (made, total, stages) = calls[calls.len() / 2];
            let rest = total.saturating_sub(made + stages.sum());
            let parts = [made, stages.copy_in, stages.kernel, stages.copy_out, rest];
            let percent = parts.map(|part| 100.0 * part.as_secs_f64() / total.as_secs_f64());
            check(total >= stages.sum(), "stages take longer than the whole")?;
            series.iter_mut().zip(percent).for_each(|(series, percent)| series.exact(at as f64, percent));
            kernel = percent[2];
        }
        outcome.find(format!("kernel's share of the largest, {name}"), kernel, "%", paper);
        outcome.plots.push(Plot {
            title: format!("Stages of hashing one block: {name}"),
            form: Form::Stacked,
            x: Axis::of("block", sizes.iter().map(|&bytes| crate::plot::bytes(bytes as f64))),
            y: Axis::new("share of the time", "%"),
            series,
            limits: vec![Limit { name: "all of it".into(), y: 100.0 }],
        });
    }
    Ok(outcome)
}
