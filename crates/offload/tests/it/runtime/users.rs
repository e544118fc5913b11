//! Users' operations, on the processor and on a device with their kernel.

use std::sync::Arc;
use std::time::Duration;

use outrigger_offload::TaskError;
use outrigger_offload::accelerator::Fault;
use outrigger_offload::placement::{Point, Policy, Stages};
use outrigger_offload::runtime::{Failure, Runtime};
use outrigger_offload::sim::{Execute, SimDevice, SimOptions, Speed};
use outrigger_offload::work::{Class, Kernel, KernelCode, Output, Request, UserOperation, Work};
use outrigger_workload::Rng;

use crate::common::strict;
use crate::runtime::common::{bytes, reverse};

/// Stands for the user's kernel: other code than the processor's function, with the same result.
struct Kernels;

impl Execute for Kernels {
    fn execute(&mut self, work: &Work, output: &mut Output) -> Result<(), Fault> {
        let Request::User { operation, parameters } = &work.request else { return Err(Fault::Unsupported) };
        let kernel = operation.kernel().ok_or(Fault::Unsupported)?;
        assert_eq!(kernel.name, "reverse");
        let data = work.data();
        if data.is_empty() {
            return Ok(());
        }
        let out = output.bytes.buffer().expect("a page-locked buffer is provided");
        out.set_len(operation.output_len(parameters, data.len()));
        for (at, byte) in out.iter_mut().enumerate() {
            *byte = data[data.len() - 1 - at] ^ parameters[0];
        }
        Ok(())
    }
}

fn with_kernel() -> Arc<UserOperation> {
    let run = |parameters: &[u8], data: &[u8], out: &mut Vec<u8>| {
        out.extend(data.iter().rev().map(|byte| byte ^ parameters[0]));
        Ok(())
    };
    let kernel = Kernel {
        code: KernelCode::Cuda("extern \"C\" __global__ void reverse() {}".into()),
        name: "reverse".into(),
        block_threads: 256,
        bytes_per_thread: 1,
    };
    UserOperation::new("reverse", run, |_, len| len).with_kernel(kernel).shared()
}

#[test]
fn a_users_operation_runs_anywhere_and_is_checked_like_any_other() {
    let options =
        SimOptions { execute: Some(Box::new(Kernels)), ..SimOptions::new("sim:0", Speed::PCIE5_GPU) };
    let sim = Box::new(SimDevice::new(options));
    let runtime = Runtime::builder().cpu_threads(1).device(sim).policy(strict()).build();
    let operation = with_kernel();
    let mut numbers = Rng::new(11);
    for (round, len) in [0, 1, 4096, 100_000].into_iter().cycle().take(16).enumerate() {
        let data = bytes(&mut numbers, len);
        let mut draft = runtime.draft(len);
        draft.input().extend_from_slice(&data);
        let request = Request::User { operation: Arc::clone(&operation), parameters: vec![round as u8] };
        draft.set_request(request).pin(round / 4 % 2);
        let done = runtime.submit(draft).unwrap().wait().unwrap();
        assert_eq!(done.report().device, round / 4 % 2);
        assert!(
            done.output().bytes.iter().eq(data
                .iter()
                .rev()
                .map(|byte| byte ^ round as u8)
                .collect::<Vec<_>>()
                .iter())
        );
    }
    let device = runtime.metrics().devices.swap_remove(1);
    assert_eq!((device.tasks, device.checked, device.trips), (8, 8, 0));
    // Without a kernel the device declines, the processor executes the task, and the device gets no
    // fault.
    let mut draft = runtime.draft(2);
    draft.input().extend_from_slice(b"ab");
    draft.set_request(Request::User { operation: reverse(), parameters: vec![0] }).pin(1);
    let done = runtime.submit(draft).unwrap().wait().unwrap();
    assert_eq!((&*done.output().bytes, done.report().device), (&b"ba"[..], 0));
    let device = runtime.metrics().devices.swap_remove(1);
    assert_eq!((device.faults_named("unsupported"), device.trips), (1, 0));
}

#[test]
fn what_a_users_function_says_or_does_reaches_the_submitter() {
    let runtime = Runtime::builder().cpu_threads(1).build();
    let picky = UserOperation::new(
        "picky",
        |_, data, out| match data {
            b"bad" => Err("I do not like it".into()),
            b"panic" => panic!("as told"),
            data => {
                out.extend_from_slice(data);
                Ok(())
            }
        },
        |_, len| len,
    )
    .shared();
    let run = |data: &[u8]| {
        let mut draft = runtime.draft(data.len());
        draft.input().extend_from_slice(data);
        draft.set_request(Request::User { operation: Arc::clone(&picky), parameters: Vec::new() });
        runtime.submit(draft).unwrap().wait()
    };
    let said = TaskError::User { operation: "picky".into(), message: "I do not like it".into() };
    assert_eq!(run(b"bad").unwrap_err().reason, Failure::Task(said));
    assert_eq!(run(b"panic").unwrap_err().reason, Failure::Panicked);
    // The thread continues.
    assert_eq!(&*run(b"good").unwrap().output().bytes, b"good");
    assert_eq!(runtime.metrics().failed, 2);
}

#[test]
fn a_users_operation_has_a_class_of_its_own() {
    let request = |name: &str| Request::User {
        operation: UserOperation::new(name, |_, _, _| Ok(()), |_, _| 0).shared(),
        parameters: Vec::new(),
    };
    let (one, same, other) = (request("one"), request("one"), request("other"));
    assert_eq!(one.class(), same.class());
    assert_ne!(one.class(), other.class());
    assert_eq!((one.class().to_string(), other.class().operation()), ("user/one".into(), "other".into()));
    assert!(matches!(one.class(), Class::User(_)));
}

/// How the submitter learns of the end.
#[derive(Clone, Copy, PartialEq)]
enum Told {
    ByTicket,
    ByCallback,
    Anywhere,
}

/// True if the submitting thread executed the task and it had ended when `submit` returned.
fn done_by_submitter(runtime: &Runtime, operation: &Arc<UserOperation>, bytes: usize, told: Told) -> bool {
    let mut draft = runtime.draft(bytes);
    draft.input().set_len(bytes);
    draft.set_request(Request::User { operation: Arc::clone(operation), parameters: Vec::new() });
    let (tells, tell) = std::sync::mpsc::channel();
    let who = move |done: &outrigger_offload::runtime::Finished| {
        done.output().bytes[..] == *format!("{:?}", std::thread::current().id()).as_bytes()
    };
    if told != Told::ByTicket {
        let here = std::thread::current().id();
        let callback: outrigger_offload::runtime::Callback = Arc::new(move |ended| {
            drop(ended);
            let _ = tells.send(std::thread::current().id() == here);
        });
        if told == Told::Anywhere {
            draft.set_callback_anywhere(callback)
        } else {
            draft.set_callback(callback)
        };
        drop(runtime.submit(draft).expect("admitted"));
        return tell.recv().expect("it is called");
    }
    let ticket = runtime.submit(draft).expect("admitted");
    let ended = ticket.has_ended();
    let here = who(&ticket.wait().expect("done"));
    assert!(ended || !here, "what was done here had ended");
    here
}

#[test]
fn what_is_small_and_brief_is_done_by_who_submits_it() {
    let says_who = |name: &str| {
        let who = |_: &[u8], _: &[u8], out: &mut Vec<u8>| {
            out.extend_from_slice(format!("{:?}", std::thread::current().id()).as_bytes());
            Ok(())
        };
        UserOperation::new(name, who, |_, _| 100)
    };
    let (brief, other) = (says_who("who, briefly").brief().shared(), says_who("who").shared());
    let runtime = |policy: Policy| {
        let runtime = Runtime::builder().cpu_threads(1).policy(Policy { learn: 0.0, ..policy }).build();
        for operation in [&brief, &other] {
            for (bytes, work) in [(1000.0, 1e3), (1e6, 1e6)] {
                let stages = Stages { work, ..Stages::default() };
                let point = Point { bytes, stages, samples: u32::MAX - 1000, error: 0.0 };
                runtime.model().put(0, Class::User(operation.id()), point);
            }
        }
        runtime
    };
    let default = runtime(Policy { explore_every: 0, ..Policy::default() });
    assert!(done_by_submitter(&default, &brief, 1000, Told::ByTicket));
    assert!(
        !done_by_submitter(&default, &brief, 1_000_000, Told::ByTicket),
        "a millisecond is worth handing over"
    );
    assert!(!done_by_submitter(&default, &other, 1000, Told::ByTicket), "it may wait for its submitter");
    let told = Told::ByCallback;
    assert!(!done_by_submitter(&default, &brief, 1000, told), "a callback may want what its submitter holds");
    assert!(done_by_submitter(&default, &brief, 1000, Told::Anywhere), "this one says that it does not");
    assert!(!done_by_submitter(&default, &other, 1000, Told::Anywhere));
    let never = runtime(Policy { inline_max: Duration::ZERO, explore_every: 0, ..Policy::default() });
    assert!(!done_by_submitter(&never, &brief, 1000, Told::ByTicket));
    let metrics = default.metrics();
    assert_eq!((metrics.devices[0].tasks, metrics.failed), (6, 0));
}
