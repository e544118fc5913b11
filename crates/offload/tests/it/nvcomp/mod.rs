//! Tests nvCOMP through the runtime, on a stand-in with its ABI. Every task must have its right
//! result, whatever the library does, and the metrics must say what happened.

mod standin;

use std::time::Duration;

use outrigger_format::Codec;
use outrigger_offload::Compressor;
use outrigger_offload::nvcomp::{NvcompDevice, NvcompOptions};
use outrigger_offload::placement::Policy;
use outrigger_offload::runtime::{BreakerState, DeviceMetrics, Runtime, Ticket};

use crate::common::{assert_right, compression, data, decompression, device, impatient, noise, spec};
use standin::StandIn;

/// A policy without a tight size limit, which allows many failures in a row.
fn lenient(policy: Policy) -> Policy {
    Policy { failures_max: 1000, codec_max_bytes: 16 << 20, ..policy }
}

fn strict() -> Policy {
    lenient(crate::common::strict())
}

fn runtime_of(options: &NvcompOptions, policy: Policy) -> Runtime {
    let device = NvcompDevice::open(options).expect("the stand-in is there");
    Runtime::builder().cpu_threads(2).device(Box::new(device)).policy(policy).build()
}

fn runtime(standin: &StandIn, policy: Policy) -> Runtime {
    runtime_of(&standin.options(), policy)
}

/// Runs `count` frames of several codecs and sizes at once. All results must be right.
fn run(runtime: &Runtime, count: u32) {
    let codecs = ["zstd:1", "gzip:6", "deflate:1", "lz4"];
    let one = |number: u32| {
        let raw = data(number, 5000 + 777 * number as usize % 50_000);
        runtime.submit(compression(runtime, codecs[number as usize % 4], &raw)).unwrap()
    };
    let tickets: Vec<Ticket> = (0..count).map(one).collect();
    tickets.into_iter().for_each(|ticket| assert_right(&ticket.wait().unwrap()));
}

/// Runs tasks until `is_so` holds for the device.
fn run_until(runtime: &Runtime, what: &str, is_so: impl Fn(&DeviceMetrics) -> bool) {
    crate::common::run_until(runtime, what, || run(runtime, 8), is_so);
}

#[test]
fn frames_of_every_codec_and_size_are_made_and_read_by_both_versions() {
    for standin in [StandIn::new(), StandIn::five()] {
        let runtime = runtime(&standin, strict());
        for codec in ["zstd:1", "zstd:19", "gzip:1", "gzip:12", "deflate:6", "lz4"] {
            for len in [4096, 65_537, 1 << 20] {
                let raw = data(len as u32, len);
                let done = runtime.submit(compression(&runtime, codec, &raw)).unwrap().wait().unwrap();
                assert_eq!(
                    (done.report().device, done.output().codec),
                    (1, spec(codec).codec),
                    "{codec}, {len}"
                );
                assert_right(&done);
                let mut stored = Vec::new();
                Compressor::new().compress(spec(codec), &raw, &mut stored);
                let draft = decompression(&runtime, spec(codec).codec, &stored, len);
                let done = runtime.submit(draft).unwrap().wait().unwrap();
                assert!(*done.output().bytes == raw, "{codec}, {len}");
                assert_eq!(done.report().device, 1, "{codec}, {len}");
            }
        }
        let device = device(&runtime);
        assert_eq!((device.breaker, device.trips, device.given_up), (BreakerState::Closed, 0, 0));
        assert_eq!(standin.get("unaligned"), 0);
    }
}

#[test]
fn what_waits_is_one_batch() {
    let standin = StandIn::new();
    let options = NvcompOptions { streams: 1, batch_max: 16, ..standin.options() };
    let runtime = runtime_of(&options, strict());
    standin.set("gate", 1);
    let one = |number| runtime.submit(compression(&runtime, "zstd:1", &data(number, 20_000))).unwrap();
    let tickets: Vec<Ticket> = (0..17).map(one).collect();
    // The first task may be alone or with others. The rest gathers after it.
    while standin.get("batches") == 0 || runtime.metrics().devices[1].tasks > 0 {
        std::thread::yield_now();
    }
    std::thread::sleep(Duration::from_millis(20));
    standin.set("gate", 0);
    tickets.into_iter().for_each(|ticket| assert_right(&ticket.wait().unwrap()));
    assert_eq!(standin.get("chunks"), 17);
    assert!(standin.get("batches") <= 4 && standin.get("largest") >= 6, "{}", standin.get("batches"));
}

#[test]
fn what_does_not_compress_is_stored_as_it_is() {
    let standin = StandIn::new();
    let runtime = runtime(&standin, strict());
    let noise = noise(100_000);
    for codec in ["zstd:1", "gzip:1", "lz4"] {
        let done = runtime.submit(compression(&runtime, codec, &noise)).unwrap().wait().unwrap();
        assert_eq!((done.report().device, done.output().codec), (1, Codec::None));
        assert!(*done.output().bytes == noise);
    }
}

#[test]
fn statuses_are_faults_and_lose_nothing() {
    for (key, status, name, cut_off) in [
        ("launch", 10, "failed", false),
        ("launch", 11, "unsupported", false),
        ("launch", 1000, "lost", true),
        ("status", 15, "failed", false),
        ("status", 19, "failed", false),
        ("status", 10_000, "lost", true),
    ] {
        let standin = StandIn::new();
        let runtime = runtime(&standin, strict());
        run(&runtime, 8);
        standin.set(key, status);
        standin.set("every", 3);
        run_until(&runtime, "it fails", |device| device.faults_named(name) >= 1);
        assert_eq!(device(&runtime).trips > 0, cut_off, "{status}: {:?}", device(&runtime));
        standin.set("every", 0);
        run_until(&runtime, "it is trusted again", |device| device.breaker == BreakerState::Closed);
    }
}

#[test]
fn wrong_bytes_are_never_handed_out_and_damage_is_the_processors_to_judge() {
    let standin = StandIn::new();
    let runtime = runtime(&standin, strict());
    standin.set("corrupt", 1);
    // Eight batches of known answers follow a reset.
    standin.set("every", 11);
    run_until(&runtime, "it is caught several times", |device| device.faults_named("wrong") >= 3);
    standin.set("every", 0);
    run_until(&runtime, "it is trusted again", |device| device.breaker == BreakerState::Closed);
    let (raw, mut stored) = (data(3, 200_000), Vec::new());
    Compressor::new().compress(spec("gzip:6"), &raw, &mut stored);
    let middle = stored.len() / 2;
    stored[middle] ^= 4;
    let draft = decompression(&runtime, Codec::Gzip, &stored, raw.len());
    runtime.submit(draft).unwrap().wait().expect_err("its checksum is wrong");
    assert!(device(&runtime).faults_named("failed") >= 1);
}

#[test]
fn a_library_that_hangs_is_not_waited_for() {
    let standin = StandIn::new();
    let runtime = runtime(&standin, lenient(impatient()));
    run(&runtime, 8);
    standin.set("hang", 1);
    standin.set("every", 3);
    run_until(&runtime, "it hangs", |device| device.faults_named("hung") >= 1);
    standin.set("every", 0);
    standin.set("hang", 0);
    run_until(&runtime, "it is trusted again", |device| device.breaker == BreakerState::Closed);
}

#[test]
fn decompression_is_off_unless_it_is_asked_for() {
    let standin = StandIn::new();
    let runtime = runtime_of(&NvcompOptions { decompress: false, ..standin.options() }, strict());
    let (raw, mut stored) = (data(3, 200_000), Vec::new());
    Compressor::new().compress(spec("zstd:1"), &raw, &mut stored);
    let done =
        runtime.submit(decompression(&runtime, Codec::Zstd, &stored, raw.len())).unwrap().wait().unwrap();
    assert!(*done.output().bytes == raw);
    assert_eq!((done.report().device, standin.get("batches")), (0, 0));
}

#[test]
fn what_is_missing_is_said() {
    let open = |library: &str| {
        let options = NvcompOptions { library: Some(library.into()), ..NvcompOptions::of_gpu(0) };
        NvcompDevice::open(&options).err().expect("no device")
    };
    assert!(open("/nowhere/libnvcomp.so").contains("/nowhere/libnvcomp.so"));
    assert!(open("libc.so.6").contains("without nvcomp"), "{}", open("libc.so.6"));
    // On a machine without a GPU, opening one fails too. With a GPU, the stand-in would take GPU
    // memory for its own, so nothing is sent there.
    if outrigger_offload::cuda::device_count().is_err() {
        let standin = StandIn::new();
        let options = NvcompOptions { library: standin.options().library, ..NvcompOptions::of_gpu(0) };
        let why = NvcompDevice::open(&options).err().expect("no device");
        assert!(why.contains("no GPU") && why.contains("CUDA"), "{why}");
    }
}
