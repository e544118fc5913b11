//! Placement through the whole runtime: the chosen device, for given known speeds. The tests check
//! decisions, never times. The operation does nothing, and speeds come from models.

use std::sync::Arc;

use outrigger_offload::accelerator::{Accelerator, Fault, StageTimes};
use outrigger_offload::placement::{Objective, Point, Policy, Stages};
use outrigger_offload::runtime::Runtime;
use outrigger_offload::sim::{Execute, SimDevice, SimOptions, Speed};
use outrigger_offload::work::{Output, Request, UserOperation, Work};

use crate::common::strict;
use crate::runtime::common::Gate;

/// Returns no output, at once.
struct Nothing;

impl Execute for Nothing {
    fn execute(&mut self, _: &Work, _: &mut Output) -> Result<(), Fault> {
        Ok(())
    }
}

const SIZES: [usize; 16] = {
    let mut sizes = [0; 16];
    let mut step = 0;
    while step < 16 {
        sizes[step] = (4 << 10) << step;
        step += 1;
    }
    sizes
};

/// The processor's modelled rate: a gigabyte a second.
const PROCESSOR: f64 = 1e9;

fn stages(times: StageTimes) -> Stages {
    let nanos = |time: std::time::Duration| time.as_nanos() as f64;
    Stages {
        overhead: 0.0,
        copy_in: nanos(times.copy_in),
        work: nanos(times.kernel),
        copy_out: nanos(times.copy_out),
    }
}

fn on_processor(bytes: usize) -> Stages {
    Stages { work: bytes as f64 / PROCESSOR * 1e9, ..Stages::default() }
}

/// A runtime with these speeds, which learns nothing from its tasks.
fn runtime(speeds: &[Speed], policy: Policy, operation: &Arc<UserOperation>) -> Runtime {
    let policy = Policy { learn: 0.0, check_every: 0, check_first: 0, ..policy };
    let mut builder = Runtime::builder().cpu_threads(1).policy(policy);
    for (n, speed) in speeds.iter().enumerate() {
        // Sleeps a thousandth of the modelled time.
        let options = SimOptions {
            time_scale: 1e-3,
            execute: Some(Box::new(Nothing)),
            ..SimOptions::new(format!("sim:{n}"), *speed)
        };
        builder = builder.device(Box::new(SimDevice::new(options)));
    }
    let runtime = builder.build();
    let class = Request::User { operation: Arc::clone(operation), parameters: Vec::new() }.class();
    for bytes in [1 << 12, 1 << 15, 1 << 18, 1 << 21, 1 << 24, 1 << 27] {
        let point = |stages| Point { bytes: bytes as f64, stages, samples: u32::MAX, error: 0.0 };
        runtime.model().put(0, class, point(on_processor(bytes)));
        for (lane, speed) in (1..).zip(speeds) {
            runtime.model().put(lane, class, point(stages(speed.times(class, bytes, 0))));
        }
    }
    runtime
}

fn nothing() -> Arc<UserOperation> {
    UserOperation::new("nothing", |_, _, _| Ok(()), |_, _| 0).shared()
}

/// The device that does a task of this size.
fn place(runtime: &Runtime, operation: &Arc<UserOperation>, bytes: usize) -> usize {
    let mut draft = runtime.draft(bytes);
    draft.input().set_len(bytes);
    draft.set_request(Request::User { operation: Arc::clone(operation), parameters: Vec::new() });
    runtime.submit(draft).unwrap().wait().unwrap().report().device
}

#[test]
fn the_better_device_is_chosen_at_every_size() {
    let operation = nothing();
    let relative = |factor| Speed::relative("relative", PROCESSOR, factor);
    let models = [
        vec![Speed::SLOW],
        vec![Speed::GEFORCE_8800],
        vec![Speed::PCIE5_GPU],
        vec![Speed::INTEGRATED],
        vec![relative(0.5)],
        vec![relative(1.5)],
        vec![relative(4.0)],
        vec![Speed::SLOW, Speed::INTEGRATED, Speed::GEFORCE_8800],
        vec![relative(3.0), relative(10.0)],
    ];
    let (mut on_cpu, mut on_device) = (0, 0);
    for speeds in models {
        let runtime = runtime(&speeds, strict(), &operation);
        let class = Request::User { operation: Arc::clone(&operation), parameters: Vec::new() }.class();
        for bytes in SIZES {
            let mut latencies = vec![on_processor(bytes).latency()];
            latencies.extend(speeds.iter().map(|speed| stages(speed.times(class, bytes, 0)).latency()));
            let best = latencies.iter().copied().fold(f64::INFINITY, f64::min);
            let chosen = place(&runtime, &operation, bytes);
            // Between measured sizes, predictions are interpolated, so that at a crossing either
            // device is fine.
            assert!(
                latencies[chosen] <= best * 1.10,
                "{bytes} bytes went to {chosen}, of {latencies:?} ns, with {speeds:?}"
            );
            if chosen == 0 { on_cpu += 1 } else { on_device += 1 }
        }
    }
    // Both devices were chosen often.
    assert!(on_cpu > 20 && on_device > 20, "{on_cpu} and {on_device}");
}

#[test]
fn thresholds_hold_whatever_the_speeds() {
    let operation = nothing();
    let policy = Policy { offload_min_bytes: 1 << 20, offload_max_bytes: 16 << 20, ..strict() };
    let runtime = runtime(&[Speed::PCIE5_GPU], policy, &operation);
    let chosen = SIZES.map(|bytes| place(&runtime, &operation, bytes));
    assert_eq!(chosen, SIZES.map(|bytes| usize::from((1 << 20..=16 << 20).contains(&bytes))));
}

#[test]
fn sparing_the_processor_is_worth_some_time_but_not_any() {
    let operation = nothing();
    let slower = Speed::relative("slower", PROCESSOR, 1.5);
    let chosen = |objective, cpu_slack| {
        let runtime = runtime(&[slower], Policy { objective, cpu_slack, ..strict() }, &operation);
        place(&runtime, &operation, 16 << 20)
    };
    // In and work of one task take 1 / 1.5 and 1 / 1.875 of the processor's time, together 1.2
    // times as long.
    assert_eq!(chosen(Objective::Throughput, 2.0), 0);
    assert_eq!(chosen(Objective::Latency, 2.0), 0);
    assert_eq!(chosen(Objective::Cpu, 2.0), 1);
    assert_eq!(chosen(Objective::Cpu, 0.5), 0);
}

#[test]
fn a_busy_processor_sends_work_away_and_takes_it_back() {
    let operation = nothing();
    let runtime = runtime(&[Speed::relative("half", PROCESSOR, 0.5)], strict(), &operation);
    let bytes = 1 << 20;
    assert_eq!(place(&runtime, &operation, bytes), 0);
    // The processor is blocked, and more work waits for it than the device would need.
    let gate = Gate::new();
    let held = runtime.submit(gate.draft(&runtime)).unwrap();
    gate.wait();
    let waiting: Vec<_> = (0..8)
        .map(|_| {
            let mut draft = runtime.draft(bytes);
            draft.input().set_len(bytes);
            draft.set_request(Request::User { operation: Arc::clone(&operation), parameters: Vec::new() });
            draft.pin(0);
            runtime.submit(draft).unwrap()
        })
        .collect();
    assert_eq!(place(&runtime, &operation, bytes), 1);
    gate.open();
    waiting.into_iter().chain([held]).for_each(|ticket| drop(ticket.wait().unwrap()));
    assert_eq!(place(&runtime, &operation, bytes), 0);
}

#[test]
fn devices_that_were_never_measured_are_measured_as_often_as_promised() {
    let operation = nothing();
    let options = SimOptions { execute: Some(Box::new(Nothing)), ..SimOptions::new("sim:0", Speed::SLOW) };
    let sim = SimDevice::new(options);
    let (control, key) = (sim.control(), sim.identity().key());
    let policy = Policy { first_tasks: 3, ..strict() };
    let runtime = Runtime::builder().cpu_threads(1).device(Box::new(sim)).policy(policy).build();
    for _ in 0..50 {
        place(&runtime, &operation, 50_000);
    }
    assert_eq!(control.submissions(), 3);
    assert!(runtime.calibration().get(&key, "user/nothing").is_some());
    // In the decade below, the device takes four times as long as the processor, so a trial in the
    // next is hopeless.
    for _ in 0..10 {
        place(&runtime, &operation, 500_000);
    }
    assert_eq!(control.submissions(), 3);
}
