//! Tests QAT through the runtime, on a stand-in with QATzip's ABI. Every task must have its right
//! result, whatever the card does, and the metrics must say what happened.

mod standin;

use outrigger_format::Codec;
use outrigger_offload::Compressor;
use outrigger_offload::accelerator::Accelerator;
use outrigger_offload::placement::Policy;
use outrigger_offload::qat::QatDevice;
use outrigger_offload::runtime::{BreakerState, DeviceMetrics, Draft, Runtime, Ticket};

use crate::common::{assert_right, compression, data, decompression, device, impatient, noise, spec, strict};
use standin::StandIn;

fn runtime(standin: &StandIn, policy: Policy) -> Runtime {
    let device = QatDevice::open(&standin.options(4)).expect("the stand-in has hardware");
    Runtime::builder().cpu_threads(2).device(Box::new(device)).policy(policy).build()
}

fn submit(runtime: &Runtime, draft: Draft) -> Ticket {
    runtime.submit(draft).unwrap()
}

/// Runs `count` frames on the card, eight at a time. All results must be right.
fn run(runtime: &Runtime, count: u32) {
    let all: Vec<u32> = (0..count).collect();
    for some in all.chunks(8) {
        let one = |number: &u32| submit(runtime, compression(runtime, "gzip:1", &data(*number, 20_000)));
        let tickets: Vec<Ticket> = some.iter().map(one).collect();
        tickets.into_iter().for_each(|ticket| assert_right(&ticket.wait().unwrap()));
    }
}

/// Runs tasks until `is_so` holds for the device.
fn run_until(runtime: &Runtime, what: &str, is_so: impl Fn(&DeviceMetrics) -> bool) {
    crate::common::run_until(runtime, what, || run(runtime, 4), is_so);
}

#[test]
fn frames_of_every_codec_and_size_are_made_and_read() {
    let standin = StandIn::new();
    let runtime = runtime(&standin, strict());
    for (codec, sizes) in [
        ("gzip:1", &[4096, 65_536, 300_001, 524_288][..]),
        ("gzip:9", &[100_000]),
        ("deflate:6", &[5000, 524_288]),
        ("lz4", &[4096, 65_536]),
    ] {
        for &len in sizes {
            let raw = data(7, len);
            let done = submit(&runtime, compression(&runtime, codec, &raw)).wait().unwrap();
            assert_eq!((done.report().device, done.output().codec), (1, spec(codec).codec), "{codec}, {len}");
            assert_right(&done);
            assert!(done.output().bytes.len() < len / 2);
            // And in reverse, if supported, from a frame of the processor.
            let mut stored = Vec::new();
            Compressor::new().compress(spec(codec), &raw, &mut stored);
            let draft = decompression(&runtime, spec(codec).codec, &stored, len);
            let offered = codec != "lz4" && stored.len() >= 1024;
            let done = submit(&runtime, draft).wait().unwrap();
            assert!(*done.output().bytes == raw, "{codec}, {len}");
            assert_eq!(done.report().device, usize::from(offered), "{codec}, {len}");
        }
    }
    let device = device(&runtime);
    assert_eq!((device.breaker, device.trips, device.given_up), (BreakerState::Closed, 0, 0));
    assert_eq!(standin.get("software"), 0, "QATzip's own fallback is off");
    assert!(device.tasks >= 10 && device.checked == device.tasks);
}

#[test]
fn what_it_does_not_do_goes_to_the_processor() {
    let standin = StandIn::new();
    let runtime = runtime(&standin, strict());
    run(&runtime, 4);
    let before = standin.get("calls");
    for (codec, len) in
        [("zstd:1", 50_000), ("gzip:12", 50_000), ("gzip:1", 524_289), ("lz4", 65_537), ("gzip:1", 500)]
    {
        let done = submit(&runtime, compression(&runtime, codec, &data(1, len))).wait().unwrap();
        assert_eq!(done.report().device, 0, "{codec}, {len}");
        assert_right(&done);
    }
    assert_eq!(standin.get("calls"), before);
}

#[test]
fn an_older_card_is_not_asked_for_lz4() {
    let standin = StandIn::new();
    standin.set("lz4", 0);
    let runtime = runtime(&standin, strict());
    run(&runtime, 4);
    for number in 0..8 {
        let done = submit(&runtime, compression(&runtime, "lz4", &data(number, 30_000))).wait().unwrap();
        assert_eq!(done.report().device, 0);
    }
    assert_eq!((device(&runtime).trips, device(&runtime).faults_named("busy")), (0, 0));
}

#[test]
fn what_does_not_compress_is_stored_as_it_is_and_that_is_no_failure() {
    let standin = StandIn::new();
    let runtime = runtime(&standin, strict());
    let noise = noise(100_000);
    for codec in ["gzip:1", "deflate:1"] {
        let done = submit(&runtime, compression(&runtime, codec, &noise)).wait().unwrap();
        assert_eq!((done.report().device, done.output().codec), (1, Codec::None));
        assert!(*done.output().bytes == noise);
    }
    assert_eq!((device(&runtime).given_up, device(&runtime).trips), (0, 0));
}

#[test]
fn a_card_that_takes_everything_for_incompressible_is_not_believed() {
    let standin = StandIn::new();
    let runtime = runtime(&standin, strict());
    run(&runtime, 4);
    // A card with a buffer overflow reports that the data does not compress. This one does so for
    // text.
    standin.set("code", -3);
    standin.set("every", 1);
    let done = submit(&runtime, compression(&runtime, "gzip:1", &data(1, 50_000))).wait().unwrap();
    assert_eq!((done.report().device, done.output().codec), (0, Codec::Gzip), "the processor has done it");
    assert_right(&done);
    let metrics = device(&runtime);
    assert_eq!((metrics.faults_named("wrong"), metrics.given_up, metrics.trips), (1, 1, 1));
    // It stays cut off, as its known answers are wrong too.
    run_until(&runtime, "it is asked again, in vain", |device| {
        device.resets > 3 && device.breaker == BreakerState::Open
    });
    standin.set("every", 0);
    run_until(&runtime, "it is trusted again", |device| device.breaker == BreakerState::Closed);
}

#[test]
fn damaged_frames_are_judged_by_the_processor() {
    let standin = StandIn::new();
    let runtime = runtime(&standin, Policy { failures_max: 1000, ..strict() });
    let (raw, mut stored) = (data(3, 200_000), Vec::new());
    Compressor::new().compress(spec("gzip:6"), &raw, &mut stored);
    let decompress = |stored: &[u8]| {
        let draft = decompression(&runtime, Codec::Gzip, stored, raw.len());
        submit(&runtime, draft).wait().map(|done| done.output().bytes.to_vec())
    };
    assert!(decompress(&stored).unwrap() == raw);
    let mut damaged = stored.clone();
    damaged[stored.len() / 2] ^= 4;
    decompress(&damaged).expect_err("its checksum is wrong");
    assert!(decompress(&stored).unwrap() == raw, "the device is not to blame");
    assert_eq!((device(&runtime).faults_named("failed"), device(&runtime).trips), (1, 0));
}

#[test]
fn every_status_code_is_a_fault_of_its_kind_and_loses_nothing() {
    for (code, name, cut_off) in [
        (-2, "failed", false),
        (-1, "failed", false),
        (-4, "failed", false),
        (2, "failed", false),
        (-103, "busy", false),
        (13, "busy", false),
        (-104, "out_of_memory", false),
        (-116, "unsupported", false),
        (-200, "unsupported", false),
        (-5, "lost", true),
        (-100, "lost", true),
        (-101, "lost", true),
        (11, "lost", true),
        (100, "lost", true),
    ] {
        let standin = StandIn::new();
        let runtime = runtime(&standin, Policy { failures_max: 1000, ..strict() });
        run(&runtime, 8);
        standin.set("code", code);
        standin.set("every", 5);
        run(&runtime, 40);
        let metrics = device(&runtime);
        assert!(metrics.faults_named(name) >= 1, "{code}: {metrics:?}");
        assert_eq!(metrics.trips > 0, cut_off, "{code}: {metrics:?}");
        standin.set("every", 0);
        run_until(&runtime, "it is trusted again", |device| device.breaker == BreakerState::Closed);
    }
}

#[test]
fn software_that_stands_in_is_noticed() {
    let standin = StandIn::new();
    let runtime = runtime(&standin, Policy { failures_max: 1000, ..strict() });
    standin.set("extended", 1 << 4);
    standin.set("every", 4);
    run(&runtime, 40);
    assert!(device(&runtime).faults_named("failed") >= 5);
    standin.set("extended", 1 << 8);
    run_until(&runtime, "a time-out is grave", |device| device.faults_named("lost") > 0);
}

#[test]
fn wrong_bytes_are_never_handed_out() {
    let standin = StandIn::new();
    let runtime = runtime(&standin, strict());
    standin.set("corrupt", 1);
    standin.set("every", 7);
    run_until(&runtime, "it is caught several times", |device| device.faults_named("wrong") >= 3);
    standin.set("every", 0);
    run_until(&runtime, "it is trusted again", |device| device.breaker == BreakerState::Closed);
    standin.set("corrupt", 0);
    standin.set("short", 1);
    standin.set("every", 3);
    run_until(&runtime, "a half is no result", |device| device.faults_named("failed") > 0);
}

#[test]
fn a_card_that_hangs_is_not_waited_for_and_comes_back_with_new_sessions() {
    let standin = StandIn::new();
    let policy = impatient();
    let runtime = runtime(&standin, policy);
    run(&runtime, 8);
    standin.set("hang", 1);
    standin.set("every", 3);
    run_until(&runtime, "it hangs", |device| device.faults_named("hung") >= 1);
    let made = standin.get("made");
    standin.set("every", 0);
    standin.set("hang", 0);
    run_until(&runtime, "it is trusted again", |device| device.breaker == BreakerState::Closed);
    assert!(standin.get("made") > made, "sessions are made anew");
    let before = device(&runtime);
    run(&runtime, 16);
    assert_eq!(device(&runtime).tasks, before.tasks + 16);
}

#[test]
fn a_card_that_is_reset_loses_all_sessions_and_no_task() {
    let standin = StandIn::new();
    let runtime = runtime(&standin, strict());
    run(&runtime, 16);
    for life in 1..4 {
        let (made, torn) = (standin.get("made"), standin.get("torn"));
        standin.set("life", life);
        run_until(&runtime, "it is missed", |device| device.faults_named("lost") >= life as u64);
        run_until(&runtime, "it is back", |device| device.breaker == BreakerState::Closed);
        assert!(standin.get("made") > made && standin.get("torn") > torn);
    }
    // The hardware fails for good, so the device stays cut off until it is back.
    standin.set("hardware", 0);
    run_until(&runtime, "it is away", |device| device.resets > 5 && device.breaker == BreakerState::Open);
    run(&runtime, 16);
    standin.set("hardware", 1);
    run_until(&runtime, "it is back", |device| device.breaker == BreakerState::Closed);
    drop(runtime);
    assert_eq!(standin.get("made"), standin.get("torn"), "every session is torn down at the end");
}

#[test]
fn when_no_instance_is_free_the_processor_does_it() {
    let standin = StandIn::new();
    standin.set("instances", 1);
    // Slow enough that four threads compete.
    standin.set("rate", 50_000_000);
    let runtime = runtime(&standin, Policy { failures_max: 1000, ..strict() });
    run(&runtime, 64);
    let metrics = device(&runtime);
    assert!(metrics.faults_named("busy") > 0 && metrics.tasks > 0, "{metrics:?}");
    assert_eq!((metrics.trips, metrics.given_up), (0, metrics.faults_named("busy")));
}

#[test]
fn all_instances_are_used() {
    let standin = StandIn::new();
    standin.set("rate", 100_000_000);
    let runtime = runtime(&standin, strict());
    run(&runtime, 64);
    assert_eq!(standin.get("used"), 0b1111);
    assert_eq!(device(&runtime).given_up, 0);
}

#[test]
fn prepared_results_are_replayed() {
    let standin = StandIn::new();
    let raw = data(5, 100_000);
    let mut stored = Vec::new();
    Compressor::new().compress(spec("gzip:9"), &raw, &mut stored);
    standin.prepare_gzip(&raw, &stored);
    let runtime = runtime(&standin, strict());
    let done = submit(&runtime, compression(&runtime, "gzip:1", &raw)).wait().unwrap();
    assert!(*done.output().bytes == stored);
    assert_eq!(standin.get("replayed"), 1);
}

#[test]
fn pinned_memory_is_used_and_done_without() {
    let standin = StandIn::new();
    let device = QatDevice::open(&standin.options(1)).unwrap();
    let memory = device.host_memory().expect("it has its own");
    let mut region = memory.allocate(10_000).expect("some");
    assert!(region.bytes().len() >= 10_000 && region.bytes().as_ptr().addr().is_multiple_of(4096));
    assert!(region.bytes().iter().all(|&byte| byte == 0));
    region.bytes_mut().fill(7);
    standin.set("memory", 0);
    assert!(memory.allocate(10_000).is_none());
    drop(device);
    assert!(region.bytes().iter().all(|&byte| byte == 7), "it outlives its device");
    let runtime = runtime(&standin, strict());
    run(&runtime, 8);
    assert_eq!(self::device(&runtime).given_up, 0);
}

#[test]
fn without_hardware_and_with_another_library_the_reason_is_said() {
    let why = |standin: &StandIn| QatDevice::open(&standin.options(1)).err().expect("no device");
    let standin = StandIn::new();
    standin.set("hardware", 0);
    let said = why(&standin);
    assert!(said.contains("no QAT hardware") && said.contains("QZ_NOSW_NO_HW (-101)"), "{said}");
    let standin = StandIn::new();
    standin.set("huffman", 1);
    assert!(why(&standin).contains("another ABI"), "{}", why(&standin));
    let options =
        |library: &str| outrigger_offload::qat::QatOptions { library: Some(library.into()), sessions: 1 };
    let said = QatDevice::open(&options("/nowhere/libqatzip.so")).err().expect("no device");
    assert!(said.contains("/nowhere/libqatzip.so"), "{said}");
    let said = QatDevice::open(&options("libc.so.6")).err().expect("no device");
    assert!(said.contains("without qzInit"), "{said}");
}
