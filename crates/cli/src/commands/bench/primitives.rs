//! `bench hash`, `scan`, `windows`, `ingest`: the primitives of the papers, on each device.

use clap::Args;
use outrigger_offload::Missing;
use outrigger_offload::accelerator::Identity;
use outrigger_offload::calibrate::Case;
use outrigger_offload::runtime::Runtime;
use serde_json::Value;

use crate::args;
use crate::commands::Context;
use crate::commands::devices::{Simulated, machine, missing_json};
use crate::commands::rates::{at, stream};
use crate::exit::{Exit, Failure, Outcome};
use crate::json::Object;
use crate::output::{bar, print_json, print_text};

const EXAMPLES: &str = "\
Examples:
  outrigger bench hash
  outrigger bench windows --tasks 1M --json
  outrigger bench ingest --sim pcie5-gpu

Rates are GB/s (10^9 bytes of source a second), of data in memory. A thread has one task at a time;
all threads and devices have several. A simulated device's times are a model's, and marked so.
Measure on an idle machine.";

/// Options of each primitive.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct PrimitiveArgs {
    /// Bytes of a task
    #[arg(long, value_name = "SIZES", value_delimiter = ',', default_value = "64K,1M", value_parser = task)]
    tasks: Vec<usize>,
    #[command(flatten)]
    simulated: Simulated,
}

fn task(text: &str) -> Result<usize, String> {
    let size = args::size(text)?;
    let fits = usize::try_from(size).ok().filter(|size| (4 << 10..=64 << 20).contains(size));
    fits.ok_or_else(|| format!("`{text}`: tasks are from 4K to 64M"))
}

/// The operations of a primitive, as `outrigger devices` names them.
pub type Operations = &'static [&'static str];

/// Naming chunks, and StoreGPU's parallel Merkle-Damgård hashing of whole blocks.
pub const HASH: Operations = &[
    "hash_many/blake3",
    "hash_many/sha256",
    "hash_many/sha1",
    "hash_many/md5",
    "pmd_hash/sha256",
    "pmd_hash/sha1",
    "pmd_hash/md5",
];
/// Finding boundaries.
pub const SCAN: Operations = &["scan"];
/// StoreGPU's sliding windows: of 20 bytes, at every fourth or every byte.
pub const WINDOWS: Operations = &["window_hash/md5:20/4/4", "window_hash/sha1:20/4/4"];
/// All of a writer's work on a batch.
pub const INGEST: Operations = &["ingest/gear32:4K/16K/64K/blake3", "ingest/gear32:4K/16K/64K/blake3+lookup"];

/// An operation's rates at one size, in bytes a second.
struct Row {
    operation: String,
    bytes: usize,
    one_thread: f64,
    all_threads: f64,
    devices: Vec<(Identity, f64)>,
}

impl Row {
    /// Each rate with its name.
    fn rates(&self, threads: usize) -> Vec<(String, f64)> {
        let mut rates = vec![("one thread".to_string(), self.one_thread)];
        if threads > 1 {
            rates.push((format!("{threads} threads"), self.all_threads));
        }
        rates.extend(self.devices.iter().map(|(device, rate)| {
            let note = if device.is_modelled() { ", a model" } else { "" };
            (format!("{}{note}", device.name), *rate)
        }));
        rates
    }
}

/// Measures `operations`, and prints a line for each processor and device.
///
/// # Errors
/// When an operation fails.
pub fn run(context: &Context, args: &PrimitiveArgs, operations: Operations) -> Outcome {
    let (runtime, missing) = machine(context, &args.simulated)?;
    let mut rows = Vec::new();
    for case in operations.iter().filter_map(|name| Case::parse(name)) {
        for &bytes in args.tasks.iter().filter(|&&bytes| bytes <= case.max_bytes()) {
            rows.extend(row(&runtime, &case, bytes, context.threads)?);
        }
    }
    if context.json {
        print_json(json(&rows, context.threads, &missing))?;
    } else {
        print_text(&describe(&rows, context.threads, &missing))?;
    }
    Ok(Exit::Done)
}

fn row(runtime: &Runtime, case: &Case, bytes: usize, threads: usize) -> Result<Option<Row>, Failure> {
    let Some(point) = at(runtime, case, 0, bytes)? else { return Ok(None) };
    let mut devices = Vec::new();
    for (device, metrics) in runtime.metrics().devices.into_iter().enumerate().skip(1) {
        if at(runtime, case, device, bytes)?.is_some() {
            devices.push((metrics.identity, stream(runtime, case, device, bytes, 8)?));
        }
    }
    Ok(Some(Row {
        operation: case.name(),
        bytes,
        one_thread: bytes as f64 / point.stages.latency() * 1e9,
        all_threads: stream(runtime, case, 0, bytes, 2 * threads)?,
        devices,
    }))
}

fn describe(rows: &[Row], threads: usize, missing: &[Missing]) -> String {
    let mut text = String::new();
    for missing in missing {
        text += &format!("{}: missing: {}\n", missing.kind, missing.why);
    }
    let most = rows.iter().flat_map(|row| row.rates(threads)).map(|(_, rate)| rate).fold(0.0, f64::max);
    for row in rows {
        text += &format!("{}, tasks of {}\n", row.operation, outrigger_format::print_size(row.bytes as u64));
        for (name, rate) in row.rates(threads) {
            text += &format!("  {name:20} {:>8.2} GB/s  {}\n", rate / 1e9, bar(rate / most, 40));
        }
    }
    text
}

fn json(rows: &[Row], threads: usize, missing: &[Missing]) -> Object {
    let rows: Vec<Value> = rows
        .iter()
        .map(|row| {
            let devices: Vec<Value> = row
                .devices
                .iter()
                .map(|(device, rate)| {
                    Object::new()
                        .with("name", device.name.as_str())
                        .with("model", device.model.as_str())
                        .with("is_modelled", device.is_modelled())
                        .with("bytes_per_second", *rate)
                        .into()
                })
                .collect();
            Object::new()
                .with("operation", row.operation.as_str())
                .with("task_bytes", row.bytes)
                .with("one_thread_bytes_per_second", row.one_thread)
                .with("all_threads_bytes_per_second", row.all_threads)
                .with("devices", devices)
                .into()
        })
        .collect();
    Object::new().with("threads", threads).with("rows", rows).with("missing", missing_json(missing))
}
