//! Devices that fail, hang, lie, vanish or are stuck. Every task must have its right result, and
//! the metrics must say what happened.

use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::task::Waker;
use std::time::Duration;

use outrigger_offload::accelerator::{Accelerator, Completion, Fault, Identity, Submission};
use outrigger_offload::placement::Policy;
use outrigger_offload::runtime::{BreakerState, DeviceMetrics, Runtime};
use outrigger_offload::sim::{Faults, SimControl, SimDevice, SimOptions, Speed};
use outrigger_offload::work::Work;

use outrigger_workload::eventually;

use crate::common::{device, impatient, strict};
use crate::runtime::common::{hash_task, is_right};

fn faulty(faults: Faults, policy: Policy) -> (Runtime, SimControl) {
    let sim = SimDevice::new(SimOptions { faults, ..SimOptions::new("sim:0", Speed::INTEGRATED) });
    let control = sim.control();
    (Runtime::builder().cpu_threads(2).device(Box::new(sim)).policy(policy).build(), control)
}

/// Runs `count` tasks on the device, four at a time. All results must be right.
fn run(runtime: &Runtime, count: u32) {
    let all: Vec<u32> = (0..count).collect();
    for some in all.chunks(4) {
        let tickets: Vec<_> = some
            .iter()
            .map(|n| {
                let mut draft = hash_task(runtime, &n.to_le_bytes().repeat(1500));
                draft.pin(1);
                runtime.submit(draft).unwrap()
            })
            .collect();
        tickets.into_iter().for_each(|ticket| assert!(is_right(&ticket.wait().unwrap())));
    }
}

/// Runs tasks until `is_so` holds for the device.
fn run_until(runtime: &Runtime, what: &str, is_so: impl Fn(&DeviceMetrics) -> bool) {
    crate::common::run_until(runtime, what, || run(runtime, 4), is_so);
}

#[test]
fn a_result_that_nobody_waits_for_is_not_taken_for_wrong() {
    let (runtime, _) = faulty(Faults::default(), strict());
    for n in 0..8_u32 {
        // Large, so that its check stops when the task is cancelled.
        let mut draft = hash_task(&runtime, &n.to_le_bytes().repeat(1 << 19));
        draft.pin(1);
        drop(runtime.submit(draft).unwrap());
    }
    eventually("all are done", || runtime.is_idle());
    let device = device(&runtime);
    assert_eq!((device.tasks, device.trips, device.given_up), (8, 0, 0), "{device:?}");
}

#[test]
fn single_failures_go_to_the_processor_and_cost_no_trust() {
    let each = [
        ("failed", Faults { fail_every: 3, ..Faults::default() }),
        ("busy", Faults { busy_every: 3, ..Faults::default() }),
        ("out_of_memory", Faults { memory_every: 3, ..Faults::default() }),
    ];
    for (name, faults) in each {
        let (runtime, control) = faulty(faults, Policy { failures_max: 1000, ..strict() });
        run(&runtime, 60);
        let device = device(&runtime);
        assert_eq!((device.breaker, device.trips), (BreakerState::Closed, 0), "{name}");
        assert_eq!(device.faults_named(name), 20, "{name}");
        assert_eq!((device.given_up, device.tasks), (20, 40), "{name}");
        assert_eq!((control.submissions(), control.injected()), (60, 20), "{name}");
    }
}

#[test]
fn failures_in_a_row_cut_it_off_and_it_comes_back() {
    let faults = Faults { fail_every: 1, resets_failing: 2, ..Faults::default() };
    let (runtime, control) = faulty(faults, strict());
    run_until(&runtime, "it is cut off", |device| device.trips > 0);
    assert!(device(&runtime).faults_named("failed") >= 3);
    // The device is not admitted while it fails. Afterwards it is, on trial.
    run_until(&runtime, "resets fail", |device| device.resets > 3);
    assert_ne!(device(&runtime).breaker, BreakerState::Closed);
    control.set(Faults::default());
    run_until(&runtime, "it is trusted again", |device| device.breaker == BreakerState::Closed);
    let before = device(&runtime);
    run(&runtime, 20);
    let after = device(&runtime);
    assert_eq!((after.given_up, after.tasks), (before.given_up, before.tasks + 20));
}

#[test]
fn wrong_results_are_noticed_and_never_handed_out() {
    let (runtime, control) = faulty(Faults { wrong_every: 7, ..Faults::default() }, strict());
    run_until(&runtime, "it is caught several times", |device| device.faults_named("wrong") >= 3);
    let device = device(&runtime);
    assert!(device.trips >= 3 && device.resets >= 2, "{device:?}");
    assert!(device.checked >= device.faults_named("wrong"));
    assert!(control.injected() >= 3);
}

#[test]
fn a_sample_of_results_is_enough_to_notice() {
    // The first two results and then one in ten are checked. From some moment on, all results are
    // wrong.
    let policy =
        Policy { check_first: 2, check_every: 10, retry_first: Duration::from_secs(3600), ..strict() };
    let (runtime, control) =
        faulty(Faults::default(), Policy { retry_last: Duration::from_secs(3600), ..policy });
    run(&runtime, 12);
    control.set(Faults { wrong_every: 1, ..Faults::default() });
    // These may be wrong, as only a sample is checked.
    let mut unnoticed = 0;
    while device(&runtime).trips == 0 {
        let mut draft = hash_task(&runtime, &[unnoticed; 6000]);
        draft.pin(1);
        let done = runtime.submit(draft).unwrap().wait().unwrap();
        assert!(is_right(&done) == done.report().checked, "a compared result is right");
        unnoticed += 1;
        assert!(unnoticed < 20, "one in ten is compared");
    }
    run(&runtime, 20);
    assert_eq!(device(&runtime).breaker, BreakerState::Open);
}

#[test]
fn a_lost_device_loses_no_task() {
    let (runtime, control) = faulty(Faults::default(), strict());
    run(&runtime, 12);
    control.lose();
    run_until(&runtime, "it is missed", |device| device.faults_named("lost") > 0);
    run_until(&runtime, "it is re-initialised", |device| device.breaker == BreakerState::Closed);
    assert_eq!(device(&runtime).trips, 1);
    assert!(control.resets() >= 1);
}

#[test]
fn a_device_that_says_nothing_is_not_waited_for() {
    let (runtime, control) = faulty(Faults { hang_every: 6, ..Faults::default() }, impatient());
    run_until(&runtime, "it hangs twice", |device| device.faults_named("hung") >= 2);
    control.set(Faults::default());
    run_until(&runtime, "it is trusted again", |device| device.breaker == BreakerState::Closed);
    assert!(device(&runtime).given_up >= 2);
}

/// A device whose driver does not return from `submit` until the test releases it. On request it
/// cannot be attached at first.
struct Stuck {
    identity: Identity,
    attaches: bool,
    go: Mutex<Receiver<()>>,
    kept: Vec<Submission>,
}

impl Stuck {
    fn new(attaches: bool, go: Receiver<()>) -> Self {
        let identity = Identity {
            name: "stuck:0".into(),
            model: "a driver that does not return".into(),
            driver: String::new(),
            memory_bytes: 0,
            zero_copy: true,
        };
        Self { identity, attaches, go: Mutex::new(go), kept: Vec::new() }
    }
}

impl Accelerator for Stuck {
    fn identity(&self) -> &Identity {
        &self.identity
    }

    fn in_flight_max(&self) -> usize {
        2
    }

    fn attach(&mut self, _: Waker) -> Result<(), Fault> {
        if self.attaches { Ok(()) } else { Err(Fault::Busy) }
    }

    fn capabilities(&self) -> Arc<dyn Fn(&Work) -> bool + Send + Sync> {
        Arc::new(|_| true)
    }

    fn submit(&mut self, submission: Submission) {
        self.kept.push(submission);
        let _ = self.go.lock().unwrap().recv();
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        // Very late and wrong answers, which nobody may see.
        let late =
            self.kept.drain(..).map(|submission| Completion { submission, result: Ok(Default::default()) });
        done.extend(late);
    }

    fn probe(&mut self) -> Result<(), Fault> {
        Err(Fault::Lost("it stays away".into()))
    }

    fn reset(&mut self) -> Result<(), Fault> {
        self.probe()
    }
}

#[test]
fn a_driver_that_does_not_return_holds_nobody_up() {
    let (go, waits) = channel();
    let device = Box::new(Stuck::new(true, waits));
    let runtime = Runtime::builder().cpu_threads(1).device(device).policy(impatient()).build();
    run(&runtime, 8);
    let metrics = runtime.metrics().devices.swap_remove(1);
    assert_eq!((metrics.breaker, metrics.faults_named("hung")), (BreakerState::Open, 1));
    // Tasks that waited after the stuck one went to the processor too.
    assert_eq!(metrics.given_up + metrics.tasks, metrics.given_up);
    drop(go);
    run(&runtime, 8);
    // The device never finished a task. There are more tasks than buffers, so late answers cannot
    // have taken any.
    assert_eq!(runtime.metrics().devices[1].tasks, 0);
}

#[test]
fn a_device_that_cannot_be_attached_is_left_out() {
    let (_go, waits) = channel();
    let runtime =
        Runtime::builder().cpu_threads(1).device(Box::new(Stuck::new(false, waits))).policy(strict()).build();
    run_until(&runtime, "it is left out", |device| device.breaker == BreakerState::Open);
    run(&runtime, 8);
    assert_eq!(device(&runtime).tasks, 0);
}
