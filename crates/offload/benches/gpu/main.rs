//! Measures a GPU: every operation at every size, compared with the bus that feeds it and with the
//! processor.
//!
//!     cargo bench -p outrigger-offload --bench gpu -- [--quick] [--json FILE] [--device N]
//!
//! It first measures the bandwidth of page-locked copies, as no operation can be faster than its
//! input arrives. Then it runs tasks of 4 KiB to 256 MiB, several in flight, over alternating
//! inputs. Results are compared with the processor's before anything is timed. Then it measures the
//! benefit of reuse, overlap and staging, by leaving each out in turn. For comparison it measures
//! the processor: the plain scalar code on one core, and the best code on all cores. Without a GPU
//! it says so and ends.
#![allow(clippy::disallowed_methods, reason = "tests wait and measure in real time")]

mod measure;
mod report;
mod work;

use outrigger_offload::accelerator::Accelerator;
use outrigger_offload::cuda::{CudaDevice, CudaOptions, device_count};
use outrigger_offload::pool::Pool;

use measure::{Processor, Rate};
use report::{Report, Row};

/// The size for ablations and for the comparison with the processor.
const USUAL: usize = 16 << 20;

struct Arguments {
    quick: bool,
    json: Option<String>,
    device: usize,
}

fn arguments() -> Arguments {
    let mut arguments = Arguments { quick: false, json: None, device: 0 };
    let mut given = std::env::args().skip(1);
    while let Some(argument) = given.next() {
        match &*argument {
            "--quick" => arguments.quick = true,
            "--json" => arguments.json = given.next(),
            "--device" => arguments.device = given.next().and_then(|n| n.parse().ok()).unwrap_or(0),
            // Arguments of cargo.
            "--bench" | "--test" => {}
            other => panic!("unknown argument {other}"),
        }
    }
    arguments
}

fn main() {
    let arguments = arguments();
    if let Err(why) = device_count() {
        println!("no GPU to measure: {why}");
        return;
    }
    let seconds = if arguments.quick { 0.05 } else { 0.4 };
    let sizes: &[usize] = if arguments.quick {
        &[4 << 10, 1 << 20, USUAL]
    } else {
        &[4 << 10, 64 << 10, 1 << 20, 4 << 20, USUAL, 64 << 20, 256 << 20]
    };
    let open =
        |options| CudaDevice::open_with(arguments.device, options).expect("a device that is there opens");
    let mut device = open(CudaOptions::default());
    let identity = device.identity().clone();
    println!(
        "{}: {}, driver {}, {} GiB",
        identity.name,
        identity.model,
        identity.driver,
        identity.memory_bytes >> 30
    );
    // The best of five, as everything is compared with it, and one reading of an H100's bus was a
    // tenth too low.
    let copies = (0..5)
        .map(|_| device.copy_bandwidth(64 << 20, 20).expect("copies"))
        .max_by(|one, other| one.in_gbs.total_cmp(&other.in_gbs))
        .expect("five readings");
    println!(
        "page-locked copies of 64 MiB, the best of five: {:.1} GB/s in, {:.1} GB/s out, {:.1} GB/s each while both go on\n",
        copies.in_gbs, copies.out_gbs, copies.both_gbs
    );
    let mut report = Report::new(identity, copies, arguments.json);
    let classes = work::classes();
    for &size in sizes {
        for class in &classes {
            let pool = Pool::new(device.host_memory(), 4 << 30);
            let Some(works) = work::works(class, size, &pool) else { continue };
            measure::check(&mut device, &works[0]);
            let rate = measure::device(&mut device, &works, seconds);
            report.push(Row::new(class.name, size, "", rate));
        }
    }
    drop(device);
    for (name, options) in [
        ("no overlap", CudaOptions { streams: 1, ..CudaOptions::default() }),
        ("no reuse", CudaOptions { reuse: false, ..CudaOptions::default() }),
        ("staged", CudaOptions { staged: Some(true), ..CudaOptions::default() }),
        ("not staged", CudaOptions { staged: Some(false), ..CudaOptions::default() }),
        ("8 streams", CudaOptions { streams: 8, ..CudaOptions::default() }),
    ] {
        let mut device = open(options);
        for class in &classes {
            let pool = Pool::new(device.host_memory(), 4 << 30);
            let Some(works) = work::works(class, USUAL, &pool) else { continue };
            measure::check(&mut device, &works[0]);
            report.push(Row::new(class.name, USUAL, name, measure::device(&mut device, &works, seconds)));
        }
    }
    measure_processor(&classes, seconds, &mut report);
    report.summarise();
}

/// For comparison.
fn measure_processor(classes: &[work::Class], seconds: f64, report: &mut Report) {
    for class in classes {
        let pool = Pool::new(None, 4 << 30);
        let Some(works) = work::works(class, USUAL, &pool) else { continue };
        for (name, processor) in [
            ("scalar, one core", Processor::Scalar),
            ("best, one core", Processor::OneCore),
            ("best, all cores", Processor::AllCores),
        ] {
            let rate: Option<Rate> = measure::processor(processor, &works, seconds);
            if let Some(rate) = rate {
                report.push(Row::new(class.name, USUAL, name, rate));
            }
        }
    }
}
