//! `devices`: the devices of this machine, those that are missing, their rates, and how good
//! predictions are.

use std::time::Duration;

use clap::Args;
use outrigger_offload::accelerator::{Accelerator, Identity};
use outrigger_offload::calibrate::{CalibrateOptions, Case, builtin_cases, measure, sizes};
use outrigger_offload::placement::{Calibration, Point, Policy, default_path};
use outrigger_offload::runtime::Runtime;
use outrigger_offload::sim::{SimDevice, SimOptions, Speed};
use outrigger_offload::{Missing, discover};
use serde_json::Value;

use super::Context;
use crate::exit::{Exit, Failure, Outcome};
use crate::json::Object;
use crate::output::{complain, counted, print_json, print_text, size};

const EXAMPLES: &str = "\
Examples:
  outrigger calibrate && outrigger devices
  outrigger devices --check                   also run tasks now, and compare predicted times
  outrigger devices --json | jq '.missing[]'

Rates: GB/s (10^9 bytes a second) of data read, for one task at a time of about the size in the
heading. The processor's rate is that of one thread. With --check, all its threads share a large
task.
`off` after rates: the mean difference between predicted and actual times, from submission to end,
with the wake-up of threads, at the size where it is largest.
`off` after a check: the difference for that one task, without the wake-up.
The calibration file is $OUTRIGGER_CALIBRATION, or outrigger/calibration in the user's cache
directory.";

/// Show the devices, their rates, and how well these are predicted
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct DevicesArgs {
    /// Run tasks of sizes between the calibrated ones, and compare the times with the predictions
    #[arg(long)]
    check: bool,
    #[command(flatten)]
    simulated: Simulated,
}

/// Simulated devices beside the real ones.
#[derive(Args, Clone)]
pub struct Simulated {
    /// Add a simulated device: geforce-8800, pcie5-gpu, integrated or slow; its times are a model's
    #[arg(long, value_name = "PRESET", value_parser = preset)]
    pub sim: Vec<Speed>,
}

fn preset(text: &str) -> Result<Speed, String> {
    named_preset(text).map(|(_, speed)| speed)
}

/// Parses the name of a simulated device. Returns the name with its speed.
pub fn named_preset(text: &str) -> Result<(&'static str, Speed), String> {
    let names = || Speed::PRESETS.map(|(name, _)| name).join(", ");
    let known = Speed::PRESETS.into_iter().find(|(name, _)| *name == text);
    known.ok_or_else(|| format!("`{text}` is no preset; use one of {}", names()))
}

/// A runtime with all devices, and the list of missing ones. It compares no results and tries
/// nothing out of turn, because its times are measured.
pub fn machine(context: &Context, simulated: &Simulated) -> Result<(Runtime, Vec<Missing>), Failure> {
    let mut found = discover();
    let mut policy = Policy::default();
    (policy.check_every, policy.check_first, policy.explore_every, policy.first_tasks) = (0, 0, 0, 0);
    for (n, speed) in simulated.sim.iter().enumerate() {
        // The first result of a size is computed and later ones repeat it: the data is the same.
        let options = SimOptions { replay: true, ..SimOptions::new(format!("sim:{n}"), *speed) };
        found.devices.push(Box::new(SimDevice::new(options)));
    }
    Ok((runtime_of(context.threads, found.devices, policy)?, found.missing))
}

/// A runtime of the processor and these devices, with their saved calibration.
pub fn runtime_of(
    threads: usize,
    devices: Vec<Box<dyn Accelerator>>,
    policy: Policy,
) -> Result<Runtime, Failure> {
    let builder = Runtime::builder().cpu_threads(threads).calibration(saved()?).policy(policy);
    Ok(devices.into_iter().fold(builder, |builder, device| builder.device(device)).build())
}

/// The saved calibration. It is empty if this machine has no place for one.
pub fn saved() -> Result<Calibration, Failure> {
    let Some(path) = default_path() else { return Ok(Calibration::default()) };
    let (known, strange) = Calibration::load_counting(&path)
        .map_err(|error| Failure::io(format!("cannot read {}", path.display()), &error))?;
    if strange > 0 {
        complain(&format!(
            "{}: {} from another version, and ignored; run `outrigger calibrate` to measure again",
            path.display(),
            counted(strange as u64, "line is", "lines are")
        ));
    }
    Ok(known)
}

pub fn run(context: &Context, args: DevicesArgs) -> Outcome {
    let (runtime, missing) = machine(context, &args.simulated)?;
    let checked = if args.check { check(&runtime)? } else { Vec::new() };
    let identities: Vec<Identity> =
        runtime.metrics().devices.into_iter().map(|device| device.identity).collect();
    // Read after the check, which adds to the record of predictions.
    let calibration = runtime.calibration();
    if context.json {
        print_json(json(&identities, &missing, &calibration, &checked))?;
    } else {
        print_text(&describe(&identities, &missing, &calibration, &checked))?;
    }
    Ok(Exit::Done)
}

/// A prediction and what happened.
struct Checked {
    operation: String,
    device: usize,
    bytes: usize,
    predicted_ns: f64,
    actual_ns: f64,
}

/// Runs each operation, on each device that is calibrated for it, between two calibrated sizes.
fn check(runtime: &Runtime) -> Result<Vec<Checked>, Failure> {
    let mut checked = Vec::new();
    for case in builtin_cases() {
        for device in 0..runtime.device_count() {
            for bytes in sizes(2 << 20).map(|bytes| bytes * 3) {
                checked.extend(check_one(runtime, &case, device, bytes)?);
            }
        }
    }
    Ok(checked)
}

fn check_one(
    runtime: &Runtime,
    case: &Case,
    device: usize,
    bytes: usize,
) -> Result<Option<Checked>, Failure> {
    let Some(draft) = case.draft(runtime, bytes) else { return Ok(None) };
    let (class, len) =
        (draft.work().class(), draft.work().input.bytes().len() + draft.work().request.side_len());
    drop(draft);
    let Some(predicted) = runtime.predict(device, class, len) else { return Ok(None) };
    let options = CalibrateOptions { at_least: Duration::from_millis(5), ..Default::default() };
    let measured = measure(runtime, device, case, bytes, &options);
    let measured = measured.map_err(|failed| Failure::failed(format!("{}: {failed}", case.name())))?;
    Ok(measured.map(|(_, measured)| Checked {
        operation: case.name(),
        device,
        bytes,
        predicted_ns: predicted.as_nanos() as f64,
        actual_ns: measured.took_ns,
    }))
}

/// The rate of a point, in GB/s.
pub fn rate(point: &Point) -> f64 {
    point.bytes / point.stages.latency()
}

fn describe(
    identities: &[Identity],
    missing: &[Missing],
    calibration: &Calibration,
    checked: &[Checked],
) -> String {
    let mut text = String::new();
    for identity in identities {
        let memory = match identity.memory_bytes {
            0 => String::new(),
            bytes => format!(", {}", size(bytes)),
        };
        let copy =
            if identity.zero_copy && identity.memory_bytes == 0 { ", in the host's memory" } else { "" };
        text += &format!("{:10} {} ({}){memory}{copy}\n", identity.name, identity.model, identity.driver);
    }
    for Missing { kind, why, .. } in missing {
        text += &format!("{kind:10} missing: {why}\n");
    }
    let known = |identity: &&Identity| calibration.of_device(&identity.key()).next().is_some();
    if !identities.iter().any(|identity| known(&identity)) {
        return text + "\nno device is calibrated; run `outrigger calibrate` to measure their rates\n";
    }
    text += &format!("\n{}      off\n", rates_head(128 << 20));
    for identity in identities.iter().filter(known) {
        for (class, curve) in calibration.of_device(&identity.key()) {
            text += &format!("{class:40} {:8}", identity.name);
            for bytes in sizes(128 << 20) {
                let point = curve.points().find(|point| decade(point.bytes) == decade(bytes as f64));
                text += &point.map_or(format!(" {:>8}", "-"), |point| format!(" {:>8.3}", rate(point)));
            }
            let off = curve.points().map(|point| point.error).fold(0.0, f64::max);
            text += &format!(" {:>7.0}%\n", 100.0 * (off.exp() - 1.0));
        }
    }
    if !checked.is_empty() {
        text += &format!(
            "\n{:40} {:8} {:>9} {:>13} {:>13} {:>7}\n",
            "check", "device", "bytes", "predicted µs", "actual µs", "off"
        );
    }
    for one in checked {
        text += &format!(
            "{:40} {:8} {:>9} {:>13.1} {:>13.1} {:>+6.0}%\n",
            one.operation,
            identities[one.device].name,
            size(one.bytes as u64),
            one.predicted_ns / 1e3,
            one.actual_ns / 1e3,
            100.0 * (one.actual_ns / one.predicted_ns - 1.0)
        );
    }
    text
}

/// The line above a table of rates at all sizes up to `max_bytes`.
pub fn rates_head(max_bytes: usize) -> String {
    let sizes = sizes(max_bytes).map(|bytes| format!(" {:>8}", size(bytes as u64).replace(".00", "")));
    format!("{:40} {:8}", "GB/s", "device") + &sizes.collect::<String>()
}

fn decade(bytes: f64) -> usize {
    outrigger_offload::placement::decade(bytes as usize)
}

fn json(
    identities: &[Identity],
    missing: &[Missing],
    calibration: &Calibration,
    checked: &[Checked],
) -> Object {
    let devices: Vec<Value> = identities
        .iter()
        .map(|identity| {
            let points: Vec<Value> = calibration
                .of_device(&identity.key())
                .flat_map(|(class, curve)| curve.points().map(move |point| point_json(class, point)))
                .collect();
            Object::new()
                .with("name", identity.name.as_str())
                .with("model", identity.model.as_str())
                .with("driver", identity.driver.as_str())
                .with("memory_bytes", identity.memory_bytes)
                .with("zero_copy", identity.zero_copy)
                .with("calibrated", points)
                .into()
        })
        .collect();
    let missing = missing_json(missing);
    let checked: Vec<Value> = checked
        .iter()
        .map(|one| {
            Object::new()
                .with("operation", one.operation.as_str())
                .with("device", identities[one.device].name.as_str())
                .with("bytes", one.bytes)
                .with("predicted_ns", one.predicted_ns)
                .with("actual_ns", one.actual_ns)
                .into()
        })
        .collect();
    Object::new()
        .with("devices", devices)
        .with("missing", missing)
        .with("checked", checked)
        .with("calibration_file", default_path().map(|path| path.display().to_string()))
}

/// The missing devices, and why each is missing.
pub fn missing_json(missing: &[Missing]) -> Vec<Value> {
    let each = missing.iter();
    each.map(|missing| Object::new().with("kind", missing.kind).with("why", missing.why.as_str()).into())
        .collect()
}

/// A calibrated point, as `devices` and `calibrate` print it.
pub fn point_json(class: &str, point: &Point) -> Value {
    Object::new()
        .with("operation", class)
        .with("bytes", point.bytes as u64)
        .with("overhead_ns", point.stages.overhead)
        .with("copy_in_ns", point.stages.copy_in)
        .with("work_ns", point.stages.work)
        .with("copy_out_ns", point.stages.copy_out)
        .with("bytes_per_second", rate(point) * 1e9)
        .with("samples", point.samples)
        .with("off", point.error.exp() - 1.0)
        .into()
}
