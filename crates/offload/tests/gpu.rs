//! Tests a CUDA device against the references. Without one, every test says so and passes.
//! `make test-gpu` is for machines with one.
#![allow(clippy::disallowed_methods, reason = "tests wait and measure in real time")]

use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

use outrigger_format::boundary::GearMasks;
use outrigger_format::{ChunkerSpec, FingerprintKind};
use outrigger_offload::accelerator::{Accelerator, Completion, Fault, Submission};
use outrigger_offload::cuda::{CudaDevice, CudaOptions, device_count};
use outrigger_offload::op::{Digest, PmdHash, Stream, WindowFunction, WindowSpec};
use outrigger_offload::pool::Pool;
use outrigger_offload::table::Table;
use outrigger_offload::work::{Input, Kernel, KernelCode, Output, Request, UserOperation, Work, same_result};
use outrigger_offload::{CpuDevice, Task, conformance, hash};
use outrigger_workload::Rng;

/// A device, or `None` if there is none.
fn device(options: CudaOptions) -> Option<CudaDevice> {
    match device_count() {
        Ok(_) => Some(CudaDevice::open_with(0, options).expect("a device that is there opens")),
        Err(why) => {
            outrigger_workload::lacking!("{why}");
            None
        }
    }
}

#[test]
fn without_a_device_opening_one_says_why() {
    if let Err(why) = device_count() {
        let fault = CudaDevice::open(0).err();
        assert_eq!(fault, Some(Fault::Lost(why.into())));
    } else {
        assert!(CudaDevice::open(1 << 20).is_err(), "no machine has so many");
    }
}

/// Devices differ in their default ([`CudaOptions::staged`]), so the tests request both.
#[test]
fn conforms_with_staging() {
    if let Some(mut device) = device(CudaOptions { staged: Some(true), ..CudaOptions::default() }) {
        conformance::check(&mut device);
    }
}

#[test]
fn conforms_without_staging() {
    if let Some(mut device) = device(CudaOptions { staged: Some(false), ..CudaOptions::default() }) {
        conformance::check(&mut device);
    }
}

#[test]
fn conforms_without_staging_and_reuse() {
    if let Some(mut device) = device(CudaOptions { streams: 1, staged: Some(false), reuse: false }) {
        conformance::check(&mut device);
    }
}

fn bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    Rng::new(seed).fill(&mut bytes);
    bytes
}

/// One of each operation over `len` bytes.
fn requests(len: usize) -> Vec<Request> {
    let spec = |function, window, step, keep| WindowSpec { function, window, step, keep };
    let ranges = |size: u32| {
        let starts = (0..len as u32).step_by(size as usize);
        starts.map(|start| start..(start + size).min(len as u32)).collect::<Vec<_>>()
    };
    let keys: Vec<_> = (0..5000u64).map(|n| hash(FingerprintKind::Blake3, &n.to_le_bytes())).collect();
    let mut table = Table::with_capacity(10_000);
    let entries: Vec<_> = keys.iter().step_by(2).map(|&key| (key, u64::from(key.0[5]))).collect();
    table.insert_many(&entries).expect("room");
    let table = Arc::new(table);
    let streams = vec![
        Stream { range: 0..len as u32 / 3, last: true },
        Stream { range: len as u32 / 3..len as u32, last: false },
    ];
    let mut requests = vec![
        Request::Scan { history: 32, masks: GearMasks::for_average(16 << 10) },
        Request::Lookup { table: table.clone(), keys },
        Request::PmdHash { digest: Digest::Sha1 },
        Request::WindowHash { spec: spec(WindowFunction::Md5, 20, 4, 4) },
        Request::WindowHash { spec: spec(WindowFunction::Rabin, 48, 52, 8) },
    ];
    requests.extend(FingerprintKind::ALL.map(|kind| Request::HashMany { kind, ranges: ranges(16 << 10) }));
    requests.extend([FingerprintKind::Blake3, FingerprintKind::Sha256].map(|kind| Request::Ingest {
        streams: streams.clone(),
        chunker: ChunkerSpec::DEFAULT,
        kind,
        table: Some(table.clone()),
    }));
    requests
}

/// Submits works, as many at a time as the device takes, and waits for all.
fn run_all(device: &mut CudaDevice, works: &[Arc<Work>]) -> Vec<Completion> {
    let (mut done, mut next, deadline) = (Vec::new(), 0, Instant::now() + Duration::from_secs(120));
    while done.len() < works.len() {
        while next < works.len() && next - done.len() < device.in_flight_max() {
            let output = Output::default();
            device.submit(Submission { id: next as u64, work: works[next].clone(), output });
            next += 1;
        }
        device.poll(&mut done);
        assert!(Instant::now() < deadline, "{} of {} tasks came back", done.len(), works.len());
    }
    done
}

#[test]
fn tasks_overlap_and_are_right() {
    let Some(mut device) = device(CudaOptions::default()) else { return };
    device.attach(Waker::noop().clone()).expect("a device");
    let pool = Pool::new(device.host_memory(), 1 << 30);
    let mut works = Vec::new();
    for (n, len) in [1usize, 4096, 100_001, 1 << 20, (5 << 20) + 3].into_iter().enumerate() {
        for request in requests(len) {
            let mut buffer = pool.alloc(len + 32);
            assert!(buffer.is_locked(), "page-locked memory");
            buffer.extend_from_slice(&bytes(n as u64, len + 32));
            works.push(Arc::new(Work { request, input: Input::Own(buffer), range: 32..len + 32 }));
        }
    }
    let mut cpu = CpuDevice::new();
    for completion in run_all(&mut device, &works) {
        let work = &works[completion.submission.id as usize];
        let times = completion.result.unwrap_or_else(|fault| panic!("{}: {fault}", work.class()));
        assert!(times.sum() > Duration::ZERO, "events tell time");
        let mut expected = Output::default();
        work.run_on(&mut cpu, &mut expected).expect("the processor does everything");
        assert!(same_result(work, &expected, &completion.submission.output, &mut cpu), "{}", work.class());
    }
}

#[test]
fn a_table_is_changed_on_the_device() {
    let Some(mut device) = device(CudaOptions::default()) else { return };
    let key = |n: u64| hash(FingerprintKind::Blake3, &n.to_le_bytes());
    let mut model = Table::with_capacity(200_000);
    let mut table = device.table(&model).expect("memory");
    for round in 0..4 {
        let entries: Vec<_> = (0..50_000).map(|n| (key(n + 30_000 * round), n ^ round << 40)).collect();
        let before = model.len();
        model.insert_many(&entries).expect("room");
        assert_eq!(device.insert(&mut table, &entries), Ok(model.len() - before));
        let gone: Vec<_> = (0..150_000).step_by(7).map(key).collect();
        assert_eq!(device.remove(&mut table, &gone), Ok(model.remove_many(&gone)));
        if round % 2 == 1 {
            device.refresh(&mut table).expect("memory");
            model.refresh();
        }
        let keys: Vec<_> = (0..200_000).map(key).collect();
        let (mut got, mut expected) = (Vec::new(), Vec::new());
        model.lookup_many(&keys, &mut expected);
        device.lookup(&table, &keys, &mut got).expect("lookup");
        assert!(got == expected && table.len() == model.len(), "round {round}");
    }
}

#[test]
fn after_a_reset_buffers_still_serve() {
    let Some(mut device) = device(CudaOptions::default()) else { return };
    let pool = Pool::new(device.host_memory(), 1 << 30);
    let data = bytes(9, 1 << 20);
    let work = |pool: &Pool| {
        let mut buffer = pool.alloc(data.len());
        buffer.extend_from_slice(&data);
        let request = Request::PmdHash { digest: Digest::Md5 };
        Arc::new(Work { request, input: Input::Own(buffer), range: 0..data.len() })
    };
    let before = work(&pool);
    let first = run_all(&mut device, std::slice::from_ref(&before)).pop().expect("one");
    device.reset().expect("a healthy device");
    device.probe().expect("a healthy device");
    let again = run_all(&mut device, &[before, work(&pool)]);
    for completion in again {
        assert!(completion.result.is_ok(), "{:?}", completion.result);
        assert_eq!(*completion.submission.output.bytes, *first.submission.output.bytes);
    }
}

/// After such a fault, CUDA leaves the whole process without its GPUs ("any further CUDA work will
/// return the same error": the driver API's manual, `CUDA_ERROR_ILLEGAL_ADDRESS`). So this test has
/// a process of its own.
#[test]
#[ignore = "leaves its process without a GPU: `run.sh test` runs it alone"]
fn a_kernel_that_breaks_the_context_loses_tasks_and_nothing_else() {
    let Some(mut device) = device(CudaOptions::default()) else { return };
    let kernel = Kernel {
        code: KernelCode::Ptx(BAD_PTX.to_string()),
        name: "bad".to_string(),
        block_threads: 32,
        bytes_per_thread: 1024,
    };
    let operation = UserOperation::new("writes-to-nowhere", |_, _, _| Ok(()), |_, _| 8).with_kernel(kernel);
    let pool = Pool::new(device.host_memory(), 1 << 30);
    let mut buffer = pool.alloc(4096);
    buffer.extend_from_slice(&[1; 4096]);
    let request = Request::User { operation: operation.shared(), parameters: Vec::new() };
    let work = Arc::new(Work { request, input: Input::Own(buffer), range: 0..4096 });
    let lost = run_all(&mut device, &[work]).pop().expect("one");
    assert!(matches!(lost.result, Err(Fault::Lost(_))), "{:?}", lost.result);
    device.probe().expect_err("the context is broken");
    // The driver decides whether a new context is possible. Either result is fine, if the device
    // reports it.
    let mut out = Vec::new();
    let task = PmdHash { digest: Digest::Md5, data: b"abc", out: &mut out };
    match device.reset() {
        Ok(()) => {
            device.execute(&mut Task::PmdHash(task)).expect("a healthy device");
            assert_eq!(out, outrigger_offload::reference::pmd_hash(Digest::Md5, b"abc"));
        }
        Err(fault) => {
            assert!(matches!(fault, Fault::Lost(_)), "{fault:?}");
            assert!(device.execute(&mut Task::PmdHash(task)).is_err(), "a device that is lost does nothing");
        }
    }
    // The device's input is intact, so the processor can take the task.
    assert_eq!(lost.submission.work.data(), [1; 4096]);
}

/// Stores to an invalid address.
const BAD_PTX: &str = "
.version 8.0
.target sm_70
.address_size 64
.visible .entry bad(.param .u64 a, .param .u64 b, .param .u64 c, .param .u64 d, .param .u64 e, .param .u64 f)
{
    .reg .b64 %rd<2>;
    mov.u64 %rd1, 64;
    st.global.u64 [%rd1], %rd1;
    ret;
}
";
