//! `advise`: would another processor or a GPU speed up this machine for this workload? The papers
//! ask the same.
//!
//! The devices of this machine are measured. StoreGPU's equation 1 models a device; its terms are
//! fitted to measurements of the smallest and the largest size. The output states the error in
//! between.

use clap::Args;
use outrigger_clock::Instant;
use outrigger_offload::calibrate::{Case, builtin_cases, sizes};
use outrigger_offload::placement::{Curve, EquationOne, Line, Point, break_even};
use outrigger_offload::runtime::Runtime;

use super::Context;
use super::advise_text::{describe, json};
use super::devices::{Simulated, machine};
use super::rates::{at, stream};
use crate::args::size as size_of;
use crate::exit::{Exit, Failure, Outcome};
use crate::output::{print_json, print_text, size};

const EXAMPLES: &str = "\
Examples:
  outrigger advise --sim pcie5-gpu                            with a simulated GPU, if there is none
  outrigger advise --operation hash_many/sha256 --rate 2 --sim pcie5-gpu    for 2 GB/s of hashes
  outrigger advise --cpu-cores 16 --cpu-price 900 --gpu-price 1500 --sim pcie5-gpu
  outrigger advise --operation compress/gzip:6 --operation decompress/gzip --block 512K

The throughput of more processors is the one measured here, times their number: memory may not keep
up. A GPU's throughput is that of its slowest stage when copies and kernels of several tasks
overlap, or that measured of such a stream if it is lower; the present processors work beside it.
A simulated GPU's rates are assumed, for each operation alike; they are no reason to buy one.
Measure on an idle machine.";

/// Estimate what another processor or a GPU would bring
///
/// Prints throughput, freed cores and break-even sizes, from measurements on this machine.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct AdviseArgs {
    /// The operations of the workload, as `outrigger devices` names them: hash_many/blake3,
    /// compress/zstd:7, lookup [default: the store's own, and the papers' primitives]
    #[arg(long, value_name = "NAME")]
    operation: Vec<String>,
    /// Bytes per task
    #[arg(long, value_name = "SIZE", value_parser = size_of, default_value = "1M")]
    block: u64,
    /// The rate that the workload needs, in GB/s; the output then says how many cores a GPU would
    /// free
    #[arg(long, value_name = "GB/S", value_parser = positive)]
    rate: Option<f64>,
    /// Cores of the processor that could be added [default: as many as --threads]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=4096))]
    cpu_cores: Option<u64>,
    /// The price of that processor, in any currency
    #[arg(long, value_name = "PRICE", value_parser = positive, requires = "gpu_price")]
    cpu_price: Option<f64>,
    /// The price of the GPU, in the same currency
    #[arg(long, value_name = "PRICE", value_parser = positive, requires = "cpu_price")]
    gpu_price: Option<f64>,
    #[command(flatten)]
    simulated: Simulated,
}

fn positive(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number: &f64| number.is_finite() && *number > 0.0);
    number.ok_or_else(|| format!("`{text}` is not a number above 0"))
}

/// The workload, and what could be bought for it.
pub struct Question {
    pub block: f64,
    /// Bytes a second.
    pub rate: Option<f64>,
    pub threads: usize,
    pub cpu_cores: f64,
    /// Prices of the processor and of the GPU.
    pub prices: Option<(f64, f64)>,
}

/// The answer for one operation; rates in bytes a second.
pub struct Answer {
    pub operation: String,
    pub one_thread: f64,
    pub all_threads: f64,
    pub with_cpu: f64,
    pub gpus: Vec<Gpu>,
}

impl Answer {
    /// True if another program used the processors: all threads together are never slower than one.
    pub fn was_busy(&self) -> bool {
        self.all_threads < 0.9 * self.one_thread
    }
}

/// Measurements and predictions for one device.
pub struct Gpu {
    pub name: String,
    pub model: String,
    /// No device was measured: its rates are a model's.
    pub is_modelled: bool,
    pub equation: EquationOne,
    /// Bytes, predicted and measured nanoseconds, of sizes that the equation was not fitted to.
    pub errors: Vec<(f64, f64, f64)>,
    /// Predicted for a stream of tasks whose stages overlap.
    pub stream: f64,
    /// The rate of such a stream as it was measured.
    pub stream_measured: f64,
    /// All threads together with the device, at the lower of the two rates.
    pub with_gpu: f64,
    /// Threads whose work the device takes over.
    pub freed: f64,
    /// The task size from which the device finishes earlier than one thread, and than all threads.
    pub even_one: Option<u64>,
    pub even_all: Option<u64>,
    /// As `even_one`, if buffers were not reused.
    pub even_one_fresh: Option<u64>,
}

pub fn run(context: &Context, args: AdviseArgs) -> Outcome {
    let cases =
        args.operation.iter().map(|name| Case::parse(name).ok_or(name)).collect::<Result<Vec<_>, _>>();
    let mut cases = cases.map_err(|unknown| {
        let names: Vec<String> = builtin_cases().iter().map(Case::name).collect();
        Failure::usage(format!("`{unknown}` cannot be measured; choose from {}", names.join(", ")))
    })?;
    if cases.is_empty() {
        cases = builtin_cases();
    }
    if !(4096..=128 << 20).contains(&args.block) {
        return Err(Failure::usage("--block must be from 4K to 128M"));
    }
    // The largest task of a codec is smaller than that of hashing.
    let (cases, large): (Vec<Case>, Vec<Case>) =
        cases.into_iter().partition(|case| args.block <= case.max_bytes() as u64);
    let large: Vec<String> = large
        .iter()
        .map(|case| format!("{} takes tasks of {} at most", case.name(), size(case.max_bytes() as u64)))
        .collect();
    if !args.operation.is_empty() && !large.is_empty() {
        return Err(Failure::usage(format!("{}; give a smaller --block", large.join(", "))));
    }
    let question = Question {
        block: args.block as f64,
        rate: args.rate.map(|rate| rate * 1e9),
        threads: context.threads,
        cpu_cores: args.cpu_cores.map_or(context.threads as f64, |cores| cores as f64),
        prices: args.cpu_price.zip(args.gpu_price),
    };
    let (runtime, missing) = machine(context, &args.simulated)?;
    let mut answers = Vec::new();
    for case in cases {
        answers.extend(answer(&runtime, &case, &question)?);
    }
    if context.json {
        print_json(json(&question, &answers, &missing).with("left_out", large))?;
    } else {
        print_text(&describe(&question, &answers, &missing, &large))?;
    }
    Ok(Exit::Done)
}

fn answer(runtime: &Runtime, case: &Case, question: &Question) -> Result<Option<Answer>, Failure> {
    let cpu = measure(runtime, case, 0, question)?;
    let block = question.block as usize;
    // The input of a decompressing task is shorter than the block.
    let Some(Point { bytes: len_in, stages, .. }) = at(runtime, case, 0, block)? else {
        return Ok(None);
    };
    let one_thread = question.block / stages.latency() * 1e9;
    let all_threads = stream(runtime, case, 0, block, 2 * question.threads)?;
    let with_cpu = all_threads * (question.threads as f64 + question.cpu_cores) / question.threads as f64;
    let mut gpus = Vec::new();
    for (device, metrics) in runtime.metrics().devices.into_iter().enumerate().skip(1) {
        let curve = measure(runtime, case, device, question)?;
        let mem_alloc = mem_alloc(runtime);
        let Some(equation) = EquationOne::fit(&curve, mem_alloc) else { continue };
        let stream_rate = question.block / equation.overlapped(len_in) * 1e9;
        let stream_measured = stream(runtime, case, device, block, 8)?;
        let reached = stream_rate.min(stream_measured);
        let cpu_ns =
            |bytes: f64| cpu.predict(bytes as usize).map_or(f64::INFINITY, |stages| stages.latency());
        let scaling = all_threads / one_thread;
        let offloaded = question.rate.map_or(reached, |rate| rate.min(reached));
        gpus.push(Gpu {
            is_modelled: metrics.identity.is_modelled(),
            name: metrics.identity.name,
            model: metrics.identity.model,
            equation,
            errors: equation.errors(&curve),
            stream: stream_rate,
            stream_measured,
            with_gpu: all_threads + reached,
            freed: offloaded / one_thread,
            even_one: break_even(|bytes| equation.total(bytes, true), cpu_ns),
            even_all: break_even(|bytes| equation.total(bytes, true), |bytes| cpu_ns(bytes) / scaling),
            even_one_fresh: break_even(|bytes| equation.total(bytes, false), cpu_ns),
        });
    }
    Ok(Some(Answer { operation: case.name(), one_thread, all_threads, with_cpu, gpus }))
}

/// One operation on one device at all sizes.
fn measure(runtime: &Runtime, case: &Case, device: usize, question: &Question) -> Result<Curve, Failure> {
    let mut curve = Curve::default();
    for bytes in sizes((question.block as usize).max(16 << 20)) {
        at(runtime, case, device, bytes)?.into_iter().for_each(|point| curve.set(point));
    }
    Ok(curve)
}

/// The time to allocate a new buffer, at two sizes. The pool's free buffers are taken first.
fn mem_alloc(runtime: &Runtime) -> Line {
    let time = |bytes: usize| {
        let mut held = Vec::new();
        let fresh = runtime.pool().counts().fresh;
        while runtime.pool().counts().fresh == fresh {
            held.push(runtime.pool().alloc(bytes));
        }
        let begun = Instant::now();
        let buffer = runtime.pool().alloc(bytes);
        let took = begun.elapsed().as_nanos() as f64;
        drop((buffer, held));
        (bytes as f64, took)
    };
    Line::through(time(64 << 10), time(16 << 20))
}
