//! Priorities, cancelling, deadlines, back-pressure, and shutdown. A gate blocks the only thread,
//! so the tests are deterministic.

use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use outrigger_clock::Instant;
use outrigger_offload::placement::Policy;
use outrigger_offload::runtime::{Failure, Priority, Runtime, Shutdown};
use outrigger_offload::sim::{Faults, SimDevice, SimOptions, Speed};
use outrigger_offload::work::{Request, UserOperation};

use crate::common::strict;
use crate::runtime::common::{Gate, hash_task, is_right};

#[test]
fn the_urgent_is_done_first() {
    let runtime = Runtime::builder().cpu_threads(1).build();
    let gate = Gate::new();
    let held = runtime.submit(gate.draft(&runtime)).unwrap();
    gate.wait();
    let order = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&order);
    let note = UserOperation::new(
        "note",
        move |parameters, _, _| {
            seen.lock().unwrap().push(parameters[0]);
            Ok(())
        },
        |_, _| 0,
    )
    .shared();
    use Priority::{High, Low, Normal};
    let submitted = [(Low, 6), (Normal, 3), (High, 1), (Low, 7), (Normal, 4), (High, 2), (Normal, 5)];
    let tickets = submitted.map(|(priority, number)| {
        let mut draft = runtime.draft(0);
        let request = Request::User { operation: Arc::clone(&note), parameters: vec![number] };
        draft.set_request(request).set_priority(priority);
        runtime.submit(draft).unwrap()
    });
    gate.open();
    tickets.into_iter().chain([held]).for_each(|ticket| drop(ticket.wait().unwrap()));
    assert_eq!(*order.lock().unwrap(), [1, 2, 3, 4, 5, 6, 7]);
}

#[test]
fn what_waits_can_be_cancelled_and_what_is_done_cannot() {
    let runtime = Runtime::builder().cpu_threads(1).build();
    let gate = Gate::new();
    let held = runtime.submit(gate.draft(&runtime)).unwrap();
    gate.wait();
    let (waits, stays) = (hash_task(&runtime, b"cancelled"), hash_task(&runtime, b"stays"));
    let (waits, stays) = (runtime.submit(waits).unwrap(), runtime.submit(stays).unwrap());
    assert!(waits.cancel());
    assert!(!waits.cancel(), "once is enough");
    let failed = waits.wait().unwrap_err();
    assert_eq!(failed.reason, Failure::Cancelled);
    assert_eq!(failed.draft.unwrap().work().data(), b"cancelled");
    // A running task: cancelling returns at once, although the thread is still blocked.
    assert!(held.cancel());
    assert_eq!(held.wait().unwrap_err().reason, Failure::Cancelled);
    gate.open();
    while !stays.has_ended() {
        std::thread::yield_now();
    }
    assert!(!stays.cancel());
    assert!(is_right(&stays.wait().unwrap()));
}

#[test]
fn what_is_not_begun_by_its_deadline_expires() {
    let runtime = Runtime::builder().cpu_threads(1).build();
    let gate = Gate::new();
    let held = runtime.submit(gate.draft(&runtime)).unwrap();
    gate.wait();
    let mut late = hash_task(&runtime, b"late");
    late.set_deadline(Instant::now() + Duration::from_millis(5));
    let mut in_time = hash_task(&runtime, b"in time");
    in_time.set_deadline(Instant::now() + Duration::from_secs(3600));
    let (late, in_time) = (runtime.submit(late).unwrap(), runtime.submit(in_time).unwrap());
    // The thread is blocked throughout, so only the watchdog can have ended the task.
    let failed = late.wait().unwrap_err();
    assert_eq!(failed.reason, Failure::Expired);
    assert_eq!(failed.draft.unwrap().work().data(), b"late");
    gate.open();
    assert!(is_right(&in_time.wait().unwrap()));
    held.wait().unwrap();
}

#[test]
fn deadlines_of_what_is_done_are_forgotten() {
    let policy = Policy { outstanding_max: 4, ..Policy::default() };
    let runtime = Runtime::builder().cpu_threads(1).policy(policy).build();
    let far = Instant::now() + Duration::from_secs(3600);
    let submit = |data: &[u8], deadline| {
        let mut draft = hash_task(&runtime, data);
        draft.set_deadline(deadline);
        runtime.submit(draft).unwrap()
    };
    for n in 0..100 {
        assert!(is_right(&submit(&[n; 10], far).wait().unwrap()));
    }
    // Deadlines of waiting tasks are kept.
    let gate = Gate::new();
    let held = runtime.submit(gate.draft(&runtime)).unwrap();
    gate.wait();
    let late = submit(b"late", Instant::now() + Duration::from_millis(5));
    let rest = [1, 2].map(|n| submit(&[n; 10], far));
    assert_eq!(late.wait().unwrap_err().reason, Failure::Expired);
    gate.open();
    rest.into_iter().for_each(|ticket| assert!(is_right(&ticket.wait().unwrap())));
    held.wait().unwrap();
}

#[test]
fn who_submits_too_much_waits() {
    let policy = Policy { outstanding_max: 2, ..Policy::default() };
    let runtime = Arc::new(Runtime::builder().cpu_threads(1).policy(policy).build());
    let gate = Gate::new();
    let held = runtime.submit(gate.draft(&runtime)).unwrap();
    gate.wait();
    let waiting = [1, 2].map(|n| runtime.submit(hash_task(&runtime, &[n; 100])).unwrap());
    let refused = runtime.try_submit(hash_task(&runtime, b"no room")).unwrap_err();
    assert!(refused.full);
    assert_eq!(refused.draft.work().data(), b"no room");
    let (sender, submitted) = channel();
    let waits = {
        let runtime = Arc::clone(&runtime);
        std::thread::spawn(move || {
            let ticket = runtime.submit(refused.draft).unwrap();
            sender.send(()).unwrap();
            is_right(&ticket.wait().unwrap())
        })
    };
    assert!(submitted.try_recv().is_err(), "there is no room as long as the gate is shut");
    gate.open();
    assert!(waits.join().unwrap());
    waiting.into_iter().for_each(|ticket| assert!(is_right(&ticket.wait().unwrap())));
    held.wait().unwrap();
}

#[test]
fn a_shutdown_under_load_finishes_everything() {
    let faults = Faults { fail_every: 5, ..Faults::default() };
    let sim = SimDevice::new(SimOptions { faults, ..SimOptions::new("sim:0", Speed::PCIE5_GPU) });
    let runtime = Runtime::builder().cpu_threads(2).device(Box::new(sim)).policy(strict()).build();
    let tickets: Vec<_> = (0..200u8)
        .map(|n| {
            let mut draft = hash_task(&runtime, &vec![n; 6000]);
            draft.pin(usize::from(n % 2));
            runtime.submit(draft).unwrap()
        })
        .collect();
    runtime.shutdown(Shutdown::Finish);
    assert!(tickets.iter().all(outrigger_offload::runtime::Ticket::has_ended));
    tickets.into_iter().for_each(|ticket| assert!(is_right(&ticket.wait().unwrap())));
}

#[test]
fn a_shutdown_can_hand_back_what_is_not_begun() {
    let runtime = Runtime::builder().cpu_threads(1).build();
    let gate = Gate::new();
    let held = runtime.submit(gate.draft(&runtime)).unwrap();
    gate.wait();
    let waiting: Vec<_> = (0..50u8).map(|n| runtime.submit(hash_task(&runtime, &[n; 30])).unwrap()).collect();
    let end = std::thread::spawn(move || runtime.shutdown(Shutdown::HandBack));
    for (n, ticket) in (0u8..).zip(waiting) {
        let failed = ticket.wait().unwrap_err();
        assert_eq!(failed.reason, Failure::Stopped);
        assert_eq!(failed.draft.unwrap().work().data(), [n; 30]);
    }
    // A task that has begun is finished, and the shutdown waits for it.
    gate.open();
    held.wait().unwrap();
    end.join().unwrap();
}
