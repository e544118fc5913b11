//! Operations of the user's own, on the processor and on a device that has their kernel.

use std::sync::Arc;

use outrigger_offload::TaskError;
use outrigger_offload::device::Fault;
use outrigger_offload::runtime::{Failure, Runtime};
use outrigger_offload::sim::{Execute, SimDevice, SimOptions, Speed};
use outrigger_offload::work::{Class, Kernel, KernelCode, Output, Request, UserOperation, Work};
use outrigger_workload::Rng;

use crate::common::{bytes, reverse};
use crate::policy::strict;

/// Stands for the user's kernel: other code than the processor's function, for the same bytes.
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
    // Without a kernel, the device declines, the processor does it, and nobody is blamed.
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
    // The thread goes on.
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
