//! Several threads, several faulty devices, all operations at once. Every result is compared.
//! `OUTRIGGER_SOAK_SECONDS` makes it longer.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use outrigger_offload::placement::Policy;
use outrigger_offload::runtime::{Failure, Metrics, Priority, Runtime};
use outrigger_offload::sim::{Faults, SimDevice, SimOptions, Speed};
use outrigger_workload::Rng;

use crate::common::impatient;
use crate::runtime::common::task;

fn device(name: &str, speed: Speed, faults: Faults) -> Box<SimDevice> {
    Box::new(SimDevice::new(SimOptions { faults, time_scale: 0.1, ..SimOptions::new(name, speed) }))
}

/// True if each kind of failure occurred, and the device with all of them was admitted again and
/// again.
fn all_happened(metrics: &Metrics) -> bool {
    let met = |name: &str| metrics.devices.iter().any(|device| device.faults_named(name) > 0);
    let all = ["lost", "wrong", "failed", "busy", "out_of_memory", "hung"].into_iter().all(met);
    all && metrics.devices[1].resets > 2 && metrics.devices[1].tasks > 0
}

/// Submits tasks, drops and cancels some, and checks the results of all others.
fn submit_and_check(runtime: &Runtime, over: &AtomicBool, seed: u64) {
    let mut numbers = Rng::new(seed);
    let mut held = Vec::new();
    while !over.load(Ordering::Relaxed) {
        let len = [0, 100, 4096, 20_000, 70_000][numbers.index(5)];
        let (mut draft, expected) = task(runtime, &mut numbers, len);
        draft.set_priority([Priority::High, Priority::Normal, Priority::Low][numbers.index(3)]);
        match numbers.index(4) {
            0 => {}
            place => {
                draft.pin(place);
            }
        }
        let ticket = runtime.submit(draft).expect("it is open");
        match numbers.index(10) {
            0 => drop(ticket),
            1 => {
                let cancelled = ticket.cancel();
                match ticket.wait() {
                    Ok(done) => expected.check(&done),
                    Err(failed) => {
                        assert!(cancelled);
                        assert_eq!(failed.reason, Failure::Cancelled);
                    }
                }
            }
            _ => held.push((ticket, expected)),
        }
        if held.len() >= 6 {
            for (ticket, expected) in held.drain(..) {
                expected.check(&ticket.wait().expect("done"));
            }
        }
    }
    for (ticket, expected) in held {
        expected.check(&ticket.wait().expect("done"));
    }
}

#[test]
fn every_result_is_right_whatever_goes_wrong() {
    let seconds =
        std::env::var("OUTRIGGER_SOAK_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(3.0);
    let every = Faults {
        lost_every: 401,
        hang_every: 211,
        wrong_every: 17,
        stale_every: 23,
        lie_every: 29,
        fail_every: 11,
        busy_every: 13,
        memory_every: 19,
        resets_failing: 2,
    };
    // Everything is checked, so no wrong byte is ever returned.
    let policy =
        Policy { explore_every: 8, first_tasks: 2, outstanding_max: 16, failures_max: 5, ..impatient() };
    let runtime = Runtime::builder()
        .cpu_threads(2)
        .device(device("sim:0", Speed::PCIE5_GPU, every))
        .device(device("sim:1", Speed::INTEGRATED, Faults { wrong_every: 0, lost_every: 97, ..every }))
        .device(device("sim:2", Speed::SLOW, Faults { hang_every: 29, ..Faults::default() }))
        .policy(policy)
        .build();
    let over = AtomicBool::new(false);
    let seed = 0x5eed;
    std::thread::scope(|scope| {
        for who in 0..4 {
            let (runtime, over) = (&runtime, &over);
            scope.spawn(move || submit_and_check(runtime, over, seed + who));
        }
        let begun = Instant::now();
        let at_least = Duration::from_secs_f64(seconds);
        // A slow machine takes longer until everything has happened. Two minutes should be more
        // than enough.
        while (begun.elapsed() < at_least || !all_happened(&runtime.metrics()))
            && begun.elapsed() < at_least + Duration::from_secs(120)
        {
            std::thread::sleep(Duration::from_millis(50));
        }
        over.store(true, Ordering::Relaxed);
    });
    // Tasks with dropped tickets may still be in flight, as nobody waited for them.
    let left = |metrics: &Metrics| {
        metrics.devices.iter().map(|device| device.waiting + device.running).sum::<usize>()
    };
    let begun = Instant::now();
    while left(&runtime.metrics()) > 0 && begun.elapsed() < Duration::from_secs(120) {
        std::thread::sleep(Duration::from_millis(10));
    }
    let metrics = runtime.metrics();
    println!("seed {seed:#x}: {metrics:#?}");
    assert!(all_happened(&metrics));
    assert_eq!(left(&metrics), 0);
}
