//! One task after the other, and all the ways to wait for its end.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::task::{Context, Poll, Wake, Waker};

use outrigger_format::FingerprintKind::Blake3;
use outrigger_format::boundary::{GearMasks, scan_reference};
use outrigger_format::{CodecDevice, CodecSpec};
use outrigger_offload::hash;
use outrigger_offload::runtime::{Failure, Runtime};
use outrigger_offload::sim::{SimDevice, SimOptions, Speed};
use outrigger_offload::work::{Class, Request};
use outrigger_offload::{CodecError, FrameDevices, TaskError};
use outrigger_workload::Rng;

use crate::runtime::common::{Gate, bytes, hash_task, is_right, task};

fn with_sim(speed: Speed) -> Runtime {
    let sim = SimDevice::new(SimOptions::new("sim:0", speed));
    Runtime::builder().cpu_threads(2).device(Box::new(sim)).build()
}

#[test]
fn results_are_the_same_wherever_they_come_from() {
    let runtime = with_sim(Speed::PCIE5_GPU);
    let mut numbers = Rng::new(42);
    for len in [0, 1, 4095, 4096, 50_000, 300_001] {
        for device in [0, 1] {
            for _ in 0..8 {
                let (mut draft, expected) = task(&runtime, &mut numbers, len);
                draft.pin(device);
                let done = runtime.submit(draft).unwrap().wait().unwrap();
                assert_eq!(done.report().device, device);
                expected.check(&done);
            }
        }
    }
    let metrics = runtime.metrics();
    assert_eq!(metrics.devices[1].given_up, 0);
    assert_eq!(metrics.devices.iter().map(|device| device.tasks).sum::<u64>(), 96);
}

#[test]
fn eight_gpus_that_hash_and_compress_and_a_card_have_room() {
    let of_class = |name: String, codecs: bool| {
        let supports = Arc::new(move |class: Class| class.is_codec() == codecs);
        let options = SimOptions { supports, time_scale: 0.01, ..SimOptions::new(name, Speed::PCIE5_GPU) };
        Box::new(SimDevice::new(options))
    };
    let hashing = (0..8).map(|n| of_class(format!("cuda:{n}"), false));
    let compressing = (0..8).map(|n| of_class(format!("nvcomp:{n}"), true));
    let builder = Runtime::builder().cpu_threads(1);
    let all = hashing.chain(compressing).chain([of_class("qat:0".into(), true)]);
    let runtime = Arc::new(all.fold(builder, |builder, device| builder.device(device)).build());
    let spec = CodecSpec::parse("zstd:1").unwrap();
    for device in 1..18 {
        let mut draft = hash_task(&runtime, &[device as u8; 50_000]);
        if device > 8 {
            draft.set_request(Request::Compress { spec });
        }
        draft.pin(device);
        assert_eq!(runtime.submit(draft).unwrap().wait().unwrap().report().device, device);
    }
    assert!(runtime.metrics().devices[1..].iter().all(|device| device.tasks == 1 && device.given_up == 0));
    let frames = FrameDevices::of(&runtime).unwrap();
    assert_eq!(frames.kinds().filter(|&kind| kind == CodecDevice::Nvcomp).count(), 8);
    assert_eq!(frames.kinds().filter(|&kind| kind == CodecDevice::Qat).count(), 1);
}

#[test]
fn stages_are_reported() {
    let runtime = with_sim(Speed::GEFORCE_8800);
    let mut draft = hash_task(&runtime, &[5; 100_000]);
    draft.pin(1);
    let done = runtime.submit(draft).unwrap().wait().unwrap();
    // The stages are exactly the model's. The total also includes real time.
    let expected = Speed::GEFORCE_8800.times(done.work().class(), done.work().len_in(), 32);
    let report = *done.report();
    assert_eq!(report.stages, expected);
    assert!(report.total >= report.queue + expected.sum(), "{report:?}");
}

#[test]
fn tasks_share_a_buffer_and_a_scan_looks_back() {
    let runtime = with_sim(Speed::INTEGRATED);
    let data = bytes(&mut Rng::new(7), 100_000);
    let mut buffer = runtime.pool().alloc(data.len());
    buffer.extend_from_slice(&data);
    let buffer = Arc::new(buffer);
    let masks = GearMasks::for_average(512);
    for (device, from) in [(0, 0), (1, 33), (0, 40_000), (1, 99_999)] {
        let mut scan = runtime.draft(0);
        scan.share(Arc::clone(&buffer), from..data.len()).pin(device);
        scan.set_request(Request::Scan { history: from.min(50), masks });
        let mut hashes = runtime.draft(0);
        hashes
            .share(Arc::clone(&buffer), from..data.len())
            .hash_many(Blake3, std::iter::once(0..1))
            .pin(device);
        let tickets = [scan, hashes].map(|draft| runtime.submit(draft).unwrap());
        let [scanned, hashed] = tickets.map(|ticket| ticket.wait().unwrap());
        let mut expected = Vec::new();
        scan_reference(&data[..from], &data[from..], masks, &mut expected);
        assert_eq!(scanned.output().candidates, expected);
        assert_eq!(hashed.output().fingerprints, [hash(Blake3, &data[from..=from])]);
    }
}

#[test]
fn a_task_can_be_done_again_in_its_buffers() {
    let runtime = with_sim(Speed::INTEGRATED);
    let mut draft = hash_task(&runtime, b"again and again");
    for _ in 0..5 {
        let done = runtime.submit(draft).unwrap().wait().unwrap();
        assert!(is_right(&done));
        draft = done.again();
    }
    drop(draft);
    assert!(runtime.pool().counts().handed_out <= 3, "{:?}", runtime.pool().counts());
}

/// A waker that sends a message.
struct Bell(std::sync::Mutex<std::sync::mpsc::Sender<()>>);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        let _ = self.0.lock().unwrap().send(());
    }
}

#[test]
fn a_ticket_is_a_future() {
    let runtime = Runtime::builder().cpu_threads(1).build();
    let gate = Gate::new();
    let held = runtime.submit(gate.draft(&runtime)).unwrap();
    gate.wait();
    let ticket = runtime.submit(hash_task(&runtime, b"awaited")).unwrap();
    let mut ticket = pin!(ticket);
    let (sender, rings) = channel();
    let waker = Waker::from(Arc::new(Bell(std::sync::Mutex::new(sender))));
    let mut context = Context::from_waker(&waker);
    assert!(ticket.as_mut().poll(&mut context).is_pending());
    gate.open();
    rings.recv().unwrap();
    let Poll::Ready(done) = ticket.as_mut().poll(&mut context) else { panic!("it was woken for nothing") };
    assert!(is_right(&done.unwrap()));
    held.wait().unwrap();
}

#[test]
fn a_callback_is_called_once_with_the_end() {
    let runtime = with_sim(Speed::INTEGRATED);
    let (sender, ends) = channel();
    let sender = std::sync::Mutex::new(sender);
    let callback: outrigger_offload::runtime::Callback = Arc::new(move |end| {
        sender.lock().unwrap().send(end.map(|done| is_right(&done)).map_err(|failed| failed.reason)).unwrap();
    });
    for device in [0, 1] {
        let mut draft = hash_task(&runtime, b"called back");
        draft.pin(device).set_callback(Arc::clone(&callback));
        drop(runtime.submit(draft).unwrap());
        assert_eq!(ends.recv().unwrap(), Ok(true));
    }
    drop(runtime);
    assert!(ends.try_recv().is_err());
}

#[test]
fn bad_data_is_the_tasks_failure_and_gives_it_back() {
    let runtime = with_sim(Speed::INTEGRATED);
    for device in [0, 1] {
        let mut draft = runtime.draft(10);
        draft.input().extend_from_slice(b"no frame!!");
        let codec = outrigger_format::Codec::Zstd;
        draft.set_request(Request::Decompress { codec, raw_len: 100 }).pin(device);
        let failed = runtime.submit(draft).unwrap().wait().unwrap_err();
        let damaged = Failure::Task(TaskError::Codec(CodecError::Malformed(codec)));
        assert_eq!(failed.reason, damaged);
        assert_eq!(failed.draft.unwrap().work().data(), b"no frame!!");
    }
}

#[test]
fn dropped_tickets_and_drafts_return_what_they_hold() {
    let runtime = with_sim(Speed::INTEGRATED);
    for _ in 0..20 {
        drop(runtime.draft(5000));
        drop(runtime.submit(hash_task(&runtime, &[1; 5000])).unwrap());
    }
    let pool = runtime.pool().clone();
    drop(runtime);
    assert_eq!(pool.counts().kept_bytes, pool.counts().fresh * 8192, "{:?}", pool.counts());
}
