//! Each stage's share of one call on a device, by block size.

use outrigger_offload::sim::Speed;
use outrigger_offload::work::Request;

use crate::lab::{Failed, Lab, check};
use crate::record::{Axis, Form, Limit, Plot, Series};
use crate::rig::{Buffers, Rig};

/// In the order of [`Shares::largest`].
const STAGES: [&str; 5] = ["allocation", "copy in", "kernel", "copy out", "the rest"];

/// The result of [`measure`].
pub struct Shares {
    pub plot: Plot,
    /// The same calls in milliseconds.
    pub times: Plot,
    /// The shares at the last size, in percent: allocation, copy in, kernel, copy out, the rest.
    pub largest: [f64; 5],
}

/// The median call of each size on a modelled device. The buffer is allocated for the call: a
/// reused one would have no allocation.
///
/// # Errors
/// When the stages do not fit into the whole.
pub fn modelled(
    lab: &Lab,
    speed: Speed,
    request: &Request,
    sizes: &[usize],
    title: String,
) -> Result<Shares, Failed> {
    let rig = || Rig::modelled(&[speed], 1, Buffers::Fresh);
    measure(lab, &rig, 1, Some(speed.in_rate), request, sizes, title)
}

/// The same for the devices of this machine, each with its name; `title` begins their titles.
///
/// # Errors
/// As [`modelled`].
pub fn real(
    lab: &Lab,
    request: &Request,
    sizes: &[usize],
    title: &str,
) -> Result<Vec<(String, Shares)>, Failed> {
    let all = Rig::real(lab);
    let of = |(device, name): (usize, &str)| {
        let rig = || Rig::real_with(lab, Buffers::Fresh);
        Ok((name.to_string(), measure(lab, &rig, device, None, request, sizes, format!("{title}: {name}"))?))
    };
    all.devices().map(of).collect()
}

/// If the bus' rate is unknown, the best observed rate counts.
fn measure(
    lab: &Lab,
    make: &dyn Fn() -> Rig,
    device: usize,
    in_rate: Option<f64>,
    request: &Request,
    sizes: &[usize],
    title: String,
) -> Result<Shares, Failed> {
    let line = if in_rate.is_some() { Series::model } else { Series::measured };
    let mut series: Vec<Series> = STAGES.map(line).into();
    let mut times: Vec<Series> = STAGES.map(line).into();
    let mut bus = Series::limit("copying in at the bus' rate", &[]);
    let (mut largest, mut copied) = ([0.0; 5], 0.0_f64);
    for (at, &bytes) in sizes.iter().enumerate() {
        let rig = make();
        rig.call(device, request, bytes);
        let mut calls: Vec<_> = (0..lab.rounds()).map(|_| rig.call(device, request, bytes)).collect();
        calls.sort_by_key(|call| call.1);
        let (made, total, stages) = calls[calls.len() / 2];
        check(total >= stages.sum(), "stages take longer than the whole")?;
        let rest = total.saturating_sub(made + stages.sum());
        let parts = [made, stages.copy_in, stages.kernel, stages.copy_out, rest];
        largest = parts.map(|part| 100.0 * part.as_secs_f64() / total.as_secs_f64());
        series.iter_mut().zip(largest).for_each(|(series, percent)| series.exact(at as f64, percent));
        // A stage that takes no time has no place on a logarithmic axis.
        let millis = parts.map(|part| part.as_secs_f64() * 1e3);
        times
            .iter_mut()
            .zip(millis)
            .filter(|(_, millis)| *millis > 1e-5)
            .for_each(|(line, millis)| line.exact(bytes as f64, millis));
        copied = copied.max(bytes as f64 / stages.copy_in.as_secs_f64().max(1e-9));
    }
    for &bytes in sizes {
        bus.exact(bytes as f64, bytes as f64 / in_rate.unwrap_or(copied) * 1e3);
    }
    times.push(bus);
    times.retain(|line| !line.points.is_empty());
    let times = Plot {
        title: format!("{title}: times"),
        form: Form::Lines,
        x: Axis::log("block", "bytes"),
        y: Axis::log("time", "ms"),
        series: times,
        limits: Vec::new(),
    };
    let plot = Plot {
        title,
        form: Form::Stacked,
        x: Axis::of("block", sizes.iter().map(|&bytes| crate::plot::bytes(bytes as f64))),
        y: Axis::new("share of the time", "%"),
        series,
        limits: vec![Limit { name: "all of it".into(), y: 100.0 }],
    };
    Ok(Shares { plot, times, largest })
}
