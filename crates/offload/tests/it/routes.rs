//! Tests the choice of a frame's compressor: the order of the list, each threshold by its name, and
//! that the processor reads a device's output.

use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use outrigger_format::{Codec, CodecChoice, Filter, Reason};
use outrigger_offload::placement::{Objective, Policy, Stages};
use outrigger_offload::runtime::Runtime;
use outrigger_offload::sim::{Faults, SimDevice, SimOptions, Speed};
use outrigger_offload::work::Class;
use outrigger_offload::{
    Auto, Backlog, Compression, Decoded, Encoder, FrameDecoder, FrameDevices, Planned, Route, Wanted,
};
use outrigger_workload::{Rng, eventually};

/// A policy that never explores and takes no task for hung.
fn calm() -> Policy {
    Policy { first_tasks: 0, explore_every: 0, hang_floor: Duration::from_secs(3600), ..Policy::default() }
}

/// A runtime with a device that supports only gzip.
fn runtime(policy: Policy, faults: Faults, time_scale: f64) -> Arc<Runtime> {
    let gzip = |class| matches!(class, Class::Compress(Codec::Gzip, _) | Class::Decompress(Codec::Gzip));
    let options = SimOptions {
        supports: Arc::new(gzip),
        faults,
        time_scale,
        ..SimOptions::new("sim:0", Speed::INTEGRATED)
    };
    let device = Box::new(SimDevice::new(options));
    Arc::new(Runtime::builder().cpu_threads(1).device(device).policy(policy).build())
}

fn devices(policy: Policy) -> Arc<FrameDevices> {
    FrameDevices::of(&runtime(policy, Faults::default(), 0.01)).expect("it compresses")
}

fn choice(text: &str) -> Compression {
    CodecChoice::parse(text).unwrap().into()
}

/// Device, codec and reason.
fn told(devices: &FrameDevices, codec: &str, len: usize) -> (usize, String, Reason) {
    let Route { device, wanted, .. } = devices.route(choice(codec), &Auto::new(), len, Backlog::default());
    (device, wanted.spec.to_string(), wanted.reason)
}

fn text(len: usize) -> Vec<u8> {
    let mut rng = Rng::new(len as u64);
    let mut bytes = Vec::new();
    while bytes.len() < len {
        bytes.extend(format!("{:06} said {}, and so on; ", rng.below(5000), rng.below(90)).into_bytes());
    }
    bytes.truncate(len);
    bytes
}

#[test]
fn the_list_is_followed_in_its_order() {
    let devices = devices(calm());
    let frame = 256 << 10;
    for (codec, expected) in [
        ("gzip:6@sim,zstd:1@cpu", (1, "gzip:6", Reason::Device)),
        ("gzip:6@qat,gzip:1@sim,zstd:1@cpu", (1, "gzip:1", Reason::Device)),
        ("gzip:6@qat,zstd:1@cpu", (0, "zstd:1", Reason::Absent)),
        ("gzip:6@qat", (0, "gzip:6", Reason::Absent)),
        ("zstd:3@sim,lz4", (0, "lz4", Reason::Absent)),
        ("zstd:1@cpu,gzip:6@sim", (0, "zstd:1", Reason::Policy)),
        ("gzip:1@qat,auto:cpu", (0, "zstd:1", Reason::Absent)),
        // Without a device's name, the best one is chosen. While nothing is known, that is the
        // processor.
        ("gzip:6", (0, "gzip:6", Reason::Slower)),
        ("zstd:3", (0, "zstd:3", Reason::Policy)),
        ("auto", (0, "zstd:1", Reason::Objective)),
        ("none", (0, "none", Reason::Policy)),
    ] {
        let (device, spec, reason) = told(&devices, codec, frame);
        assert_eq!((device, &*spec, reason), expected, "{codec}");
    }
}

#[test]
fn every_threshold_has_its_name() {
    let with = |name: &str, value: &str| {
        let mut policy = calm();
        policy.set(name, value).unwrap();
        devices(policy)
    };
    let list = "gzip:6@sim,zstd:1@cpu";
    let reason = |devices: &FrameDevices, len| told(devices, list, len).2;
    assert_eq!(reason(&with("codec_min_bytes", "64K"), (64 << 10) - 1), Reason::Unsuitable);
    assert_eq!(reason(&with("codec_min_bytes", "64K"), 64 << 10), Reason::Device);
    assert_eq!(reason(&with("codec_max_bytes", "64K"), (64 << 10) + 1), Reason::Unsuitable);
    // Predictions: 10 ms on the device, and 1 ms on the processor for the codec that it would use.
    for (slack, expected) in [("4", Reason::Slower), ("20", Reason::Device)] {
        let devices = with("codec_slack", slack);
        let model = devices.runtime().model();
        let took = |ms: f64| Stages { work: ms * 1e6, ..Stages::default() };
        model.observe(1, Class::Compress(Codec::Gzip, 6), 100_000, took(10.0), true, 0.2);
        assert_eq!(reason(&devices, 100_000), Reason::Device, "nothing is known of the processor");
        model.observe(0, Class::Compress(Codec::Zstd, 1), 100_000, took(1.0), true, 0.2);
        assert_eq!(reason(&devices, 100_000), expected, "{slack}");
    }
    let dense = with("codec_max_bits", "7");
    let plan = |devices: &FrameDevices, codec: &str, raw: &[u8]| {
        let (route, planned) =
            devices.plan(&mut Encoder::new(), choice(codec), &Auto::new(), raw, Backlog::default(), None);
        let Planned::Compress(plan) = planned else { panic!("it compresses") };
        assert_eq!(route.wanted.spec, plan.spec);
        (route.device, plan.spec.to_string(), plan.reason)
    };
    let raw = text(100_000);
    assert_eq!(plan(&dense, list, &raw), (1, "gzip:6".into(), Reason::Device));
    // The processor uses its own entry of the list, not the device's.
    let dense = with("codec_max_bits", "3");
    assert_eq!(plan(&dense, list, &raw), (0, "zstd:1".into(), Reason::Unsuitable));
    assert_eq!(plan(&dense, "gzip:6@sim,gzip:9@qat,lz4", &raw), (0, "lz4".into(), Reason::Absent));
}

#[test]
fn a_device_that_nobody_names_gets_what_it_brings_back_before_the_processor_would() {
    let devices = devices(Policy { first_tasks: 1, ..calm() });
    let (len, auto) = (100_000, Auto::new());
    let wanted = Wanted::of(choice("gzip:6"), &auto);
    let by_device = |is_idle: bool, ahead_ms: u64| {
        let backlog = Backlog { is_idle, ahead: Duration::from_millis(ahead_ms) };
        devices.route(choice("gzip:6"), &auto, len, backlog).device == 1
    };
    assert!(!by_device(false, 1_000_000), "nothing is known");
    assert_eq!(told(&devices, "gzip:6@sim", len).2, Reason::Device);
    devices.observe_processor(&wanted, len, Duration::from_millis(5));
    assert!(!by_device(false, 1_000_000), "nothing is known of the device");
    // A task returned after 20 ms from a device with three others. A thread of the processor needs
    // 5 ms.
    let class = Class::Compress(Codec::Gzip, 6);
    devices.runtime().model().returned(1, class, len, 20e6, 3, 0.2);
    assert!(!by_device(false, 0) && !by_device(false, 19), "the processor would have done it");
    assert!(by_device(false, 21), "so much waits for the processor");
    assert!(!by_device(true, 21), "a thread is idle");
    devices.runtime().model().returned(1, class, len, 4e6, 3, 0.2);
    assert!(by_device(false, 0), "sooner than one thread");
}

#[test]
fn a_device_of_which_nothing_is_known_gets_copies_of_a_few_frames() {
    let policy = Policy { first_tasks: 2, ..calm() };
    let runtime = runtime(policy.clone(), Faults::default(), 0.01);
    let devices = FrameDevices::of(&runtime).unwrap();
    let raw = text(100_000);
    let mut buffer = runtime.pool().alloc(raw.len());
    buffer.extend_from_slice(&raw);
    let buffer = Arc::new(buffer);
    let planned = Encoder::new().plan(Wanted::of(choice("gzip:6"), &Auto::new()), &raw);
    let Planned::Compress(plan) = planned else { panic!("it compresses") };
    let class = Class::Compress(Codec::Gzip, 6);
    for tried in 0..6 {
        let known = runtime.model().expect(&policy, 1, class, raw.len(), 0).is_some();
        assert_eq!(known, tried >= 2);
        devices.try_out(&plan, raw.len(), || (Arc::clone(&buffer), 0..raw.len()));
        let expected = (tried + 1).min(2);
        eventually("it is back", || runtime.metrics().devices[1].tasks == expected && runtime.is_idle());
    }
    assert!(runtime.expect(1, class, raw.len()).is_some());
}

#[test]
fn a_full_queue_leaves_frames_to_the_next() {
    let runtime =
        runtime(Policy { codec_queue_max: 2, ..calm() }, Faults { hang_every: 1, ..Faults::default() }, 1.0);
    let devices = FrameDevices::of(&runtime).unwrap();
    let raw = text(100_000);
    let mut buffer = runtime.pool().alloc(raw.len());
    buffer.extend_from_slice(&raw);
    let buffer = Arc::new(buffer);
    let (mut encoder, list) = (Encoder::new(), "gzip:6@sim,zstd:1@cpu");
    let (send, _receive) = channel();
    for number in 0..2 {
        let route = devices.route(choice(list), &Auto::new(), raw.len(), Backlog::default());
        assert_eq!(route.device, 1, "{number}");
        let Planned::Compress(plan) = encoder.plan(route.wanted, &raw) else { panic!("it compresses") };
        let send = send.clone();
        let back = Arc::new(move |number: u32, _| {
            let _ = send.send(number);
        });
        assert!(devices.submit(1, plan, &buffer, 0..raw.len(), number, back).is_ok());
    }
    assert_eq!(told(&devices, list, raw.len()).2, Reason::Overflow);
    // The reason is that of the last device tried.
    assert_eq!(told(&devices, "gzip:6@qat,gzip:1@sim,zstd:3", raw.len()).2, Reason::Overflow);
    assert_eq!(told(&devices, "gzip:1@sim,gzip:6@qat,zstd:3", raw.len()).2, Reason::Absent);
    // Does not wait for hung tasks.
    std::mem::forget(devices);
    std::mem::forget(runtime);
}

#[test]
fn what_a_device_does_not_take_after_all_goes_to_the_next_of_the_list() {
    let devices = devices(calm());
    let (raw, auto) = (text(100_000), Auto::new());
    let list = choice("gzip:6@sim,gzip:1@sim,lz4@cpu");
    let (mut encoder, mut refused, mut all) = (Encoder::new(), None, Vec::new());
    loop {
        let (route, planned) = devices.plan(&mut encoder, list, &auto, &raw, Backlog::default(), refused);
        let Planned::Compress(plan) = planned else { panic!("it compresses") };
        all.push((route.device, plan.spec.to_string(), plan.reason));
        if route.device == 0 {
            break;
        }
        refused = Some(route);
    }
    let expected =
        [(1, "gzip:6", Reason::Device), (1, "gzip:1", Reason::Device), (0, "lz4", Reason::Overflow)];
    assert_eq!(all, expected.map(|(device, codec, reason)| (device, codec.to_string(), reason)));
}

#[test]
fn planes_of_numbers_are_the_processors_and_it_follows_the_list() {
    let options = SimOptions::new("sim:0", Speed::INTEGRATED);
    let runtime = Runtime::builder().cpu_threads(1).device(Box::new(SimDevice::new(options))).policy(calm());
    let runtime = Arc::new(runtime.build());
    let devices = FrameDevices::of(&runtime).unwrap();
    let numbers: Vec<u8> =
        (0..100_000u32).flat_map(|n| (n.wrapping_mul(0x9e37_79b1) >> 12).to_le_bytes()).collect();
    let encode = |codec: &str, raw: &[u8]| {
        let mut out = Vec::new();
        let encoding = devices.encode(&mut Encoder::new(), choice(codec), &Auto::new(), raw, &mut out);
        (encoding.codec, encoding.reason, encoding.filter != Filter::None)
    };
    assert_eq!(encode("zstd:3@sim,lz4@cpu", &text(100_000)), (Codec::Zstd, Reason::Device, false));
    let (codec, reason, _) = encode("zstd:3@sim,lz4@cpu", &numbers);
    assert!(codec != Codec::Zstd && reason != Reason::Device, "{codec:?}, {reason:?}");
    assert_eq!(encode("zstd:3@sim,zstd:1@cpu", &numbers), (Codec::Zstd, Reason::Unsuitable, true));
    assert_eq!(encode("zstd:3@sim,gzip:1@sim,zstd:1@cpu", &numbers).1, Reason::Device);
    let tasks = runtime.metrics().devices[1].tasks;
    assert_eq!(tasks, 2);
}

#[test]
fn what_devices_make_the_processor_reads_and_the_other_way_round() {
    // Makes the device compress, even if it is slower.
    let policy = Policy { objective: Objective::Cpu, cpu_slack: 1e6, codec_slack: 1e6, ..calm() };
    let runtime = runtime(policy, Faults::default(), 0.01);
    let devices = FrameDevices::of(&runtime).unwrap();
    let mut rng = Rng::new(1);
    let mut noise = vec![0; 100_000];
    rng.fill(&mut noise);
    let counters: Vec<u8> = (0..50_000u32).flat_map(|n| (n * 977).to_le_bytes()).collect();
    let half = [&noise[..92_000], &[0; 8000]].concat();
    let (mut encoder, mut stored, mut back) = (Encoder::new(), Vec::new(), Vec::new());
    for (raw, by_device) in [
        (text(300_000), true),
        (counters, true),
        (noise, false),
        (half, false),
        (text(1000), false),
        (Vec::new(), false),
    ] {
        let encoding =
            devices.encode(&mut encoder, choice("gzip:6@sim,zstd:1@cpu"), &Auto::new(), &raw, &mut stored);
        assert_eq!(
            (encoding.codec == Codec::Gzip, encoding.reason == Reason::Device),
            (by_device, by_device),
            "{encoding:?}"
        );
        if encoding.codec == Codec::None {
            continue;
        }
        assert!(stored.len() <= Compression::NONE.budget.room(raw.len()));
        FrameDecoder::new().decode(encoding, &stored, raw.len(), &mut back).unwrap();
        assert!(back == raw);
        if !by_device {
            continue;
        }
        let device = devices.decoder_for(encoding, stored.len(), raw.len());
        let Some(device) = device else {
            assert!(stored.len() < 4096, "a device reads what is not too small");
            continue;
        };
        back.clear();
        assert!(devices.decode_copied(device, encoding, &stored, raw.len(), &mut back));
        assert!(back == raw, "{encoding:?}");
        let mut buffer = runtime.pool().alloc(stored.len());
        buffer.extend_from_slice(&stored);
        let lent = (Arc::new(buffer), 0..stored.len());
        match devices.decode(device, encoding, lent, raw.len(), &mut back).expect("a frame") {
            Decoded::Buffer(buffer) => assert!(*buffer == raw),
            Decoded::Vector => assert!(back == raw),
        }
        // If a frame is damaged, the processor's verdict counts.
        let middle = stored.len() / 2;
        stored[middle] ^= 1;
        assert!(!devices.decode_copied(device, encoding, &stored, raw.len(), &mut back));
    }
}

#[test]
fn a_runtime_without_codecs_has_no_devices_for_frames() {
    let hashes = SimOptions {
        supports: Arc::new(|class| matches!(class, Class::HashMany(_))),
        ..SimOptions::new("sim:0", Speed::INTEGRATED)
    };
    let runtime = Runtime::builder().cpu_threads(1).device(Box::new(SimDevice::new(hashes))).build();
    assert!(FrameDevices::of(&Arc::new(runtime)).is_none());
}
