//! `calibrate`: measures every device and saves the result, so that no device is tried during real
//! work.

use std::time::Duration;

use clap::Args;
use outrigger_offload::calibrate::{CalibrateOptions, builtin_cases, calibrate, sizes};
use outrigger_offload::placement::default_path;
use serde_json::Value;

use super::Context;
use super::devices::{Simulated, machine, point_json, rate, rates_head};
use crate::args::size as size_of;
use crate::exit::{Exit, Failure, Outcome};
use crate::json::Object;
use crate::output::{complain, print_json, print_text};

const EXAMPLES: &str = "\
Examples:
  outrigger calibrate                       everything
  outrigger calibrate --device cpu --max-bytes 2M
  OUTRIGGER_CALIBRATION=here outrigger calibrate --sim pcie5-gpu";

/// Measure how fast each device does each operation, and save it
///
/// Each operation is measured at one size per decade.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct CalibrateArgs {
    /// Only this device, such as cpu or cuda:0
    #[arg(long, value_name = "NAME")]
    device: Vec<String>,
    /// The largest task, 4K to 1G
    #[arg(long, value_name = "SIZE", value_parser = size_of, default_value = "128M")]
    max_bytes: u64,
    #[command(flatten)]
    simulated: Simulated,
}

pub fn run(context: &Context, args: CalibrateArgs) -> Outcome {
    if !(4 << 10..=1 << 30).contains(&args.max_bytes) {
        return Err(Failure::usage("--max-bytes must be from 4K to 1G"));
    }
    let path = default_path().ok_or_else(|| {
        Failure::usage("there is no place for the calibration file; set OUTRIGGER_CALIBRATION, or HOME")
    })?;
    let (runtime, _) = machine(context, &args.simulated)?;
    let names: Vec<String> =
        runtime.metrics().devices.into_iter().map(|device| device.identity.name).collect();
    if let Some(unknown) = args.device.iter().find(|wanted| !names.contains(wanted)) {
        return Err(Failure::usage(format!("there is no device {unknown}; there are {}", names.join(", "))));
    }
    let max_bytes = usize::try_from(args.max_bytes).unwrap_or(usize::MAX);
    let options = CalibrateOptions { max_bytes, at_least: Duration::from_millis(20), ..Default::default() };
    let (mut lines, mut points) = (String::new(), Vec::<Value>::new());
    for (device, name) in names.iter().enumerate() {
        if !args.device.is_empty() && !args.device.contains(name) {
            continue;
        }
        for case in builtin_cases() {
            let mut line = format!("{:40} {name:8}", case.name());
            for bytes in sizes(options.max_bytes) {
                let point = calibrate(&runtime, device, &case, bytes, &options);
                let point = point.map_err(|failed| Failure::failed(format!("{}: {failed}", case.name())))?;
                line += &match point {
                    Some(point) => format!(" {:>8.3}", rate(&point)),
                    None => format!(" {:>8}", "-"),
                };
                points.extend(point.map(|point| {
                    let Value::Object(fields) = point_json(&case.name(), &point) else { return Value::Null };
                    fields.into_iter().chain([("device".to_string(), name.as_str().into())]).collect()
                }));
            }
            lines += &(line + "\n");
        }
    }
    runtime
        .calibration()
        .save(&path)
        .map_err(|error| Failure::io(format!("cannot write {}", path.display()), &error))?;
    if context.json {
        print_json(
            Object::new().with("points", points).with("calibration_file", path.display().to_string()),
        )?;
    } else if !context.quiet {
        print_text(&format!("{}\n{lines}", rates_head(max_bytes)))?;
    }
    let broken = runtime.metrics().devices.into_iter().filter(|device| device.trips > 0);
    let broken: Vec<String> = broken.map(|device| device.identity.name).collect();
    if !broken.is_empty() {
        complain(&format!("some measurements failed and are missing: {}", broken.join(", ")));
        return Ok(Exit::Partial);
    }
    Ok(Exit::Done)
}
