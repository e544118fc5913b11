//! Large tasks, which idle threads share: results, other tasks meanwhile, cancelling.

use std::sync::Arc;

use outrigger_format::boundary::GearMasks;
use outrigger_format::{ChunkerSpec, FingerprintKind};
use outrigger_offload::CpuDevice;
use outrigger_offload::op::{Digest, Stream, WindowFunction, WindowSpec};
use outrigger_offload::pool::Buffer;
use outrigger_offload::runtime::{Draft, Failure, Priority, Runtime, Ticket};
use outrigger_offload::work::{Output, Request, same_result};
use outrigger_workload::Rng;

use crate::runtime::common::{bytes, task};

fn buffer(runtime: &Runtime, len: usize) -> Arc<Buffer> {
    let mut buffer = runtime.pool().alloc(len);
    buffer.extend_from_slice(&bytes(&mut Rng::new(11), len));
    Arc::new(buffer)
}

fn requests(len: u32) -> Vec<Request> {
    let ranges = (0..len / 10_000).map(|n| n * 10_000..n * 10_000 + 9_000 + n).collect();
    let (chunker, kind) = (ChunkerSpec::DEFAULT, FingerprintKind::Blake3);
    let streams = vec![Stream { range: 0..len / 3, last: true }, Stream { range: len / 3..len, last: false }];
    vec![
        Request::Scan { history: 0, masks: GearMasks::for_average(4096) },
        Request::HashMany { kind: FingerprintKind::Sha256, ranges },
        Request::PmdHash { digest: Digest::Md5 },
        Request::Ingest { streams, chunker, kind, table: None },
    ]
}

fn submit(runtime: &Runtime, fill: impl FnOnce(&mut Draft)) -> Ticket {
    let mut draft = runtime.draft(0);
    fill(&mut draft);
    runtime.submit(draft).expect("admitted")
}

#[test]
fn they_give_what_one_thread_gives_with_others_beside_them() {
    let runtime = Runtime::builder().cpu_threads(4).build();
    let len = 3_000_000;
    let (data, requests) = (buffer(&runtime, len), requests(len as u32));
    let mut cpu = CpuDevice::new();
    let mut numbers = Rng::new(5);
    for round in 0..3 {
        let priorities = [Priority::High, Priority::Normal, Priority::Low];
        let large: Vec<_> = requests
            .iter()
            .zip(round..)
            .map(|(request, n)| {
                submit(&runtime, |draft| {
                    draft
                        .share(Arc::clone(&data), 0..len)
                        .set_request(request.clone())
                        .set_priority(priorities[n % 3]);
                })
            })
            .collect();
        let small: Vec<_> = (0..40)
            .map(|_| {
                let len = 1000 + numbers.index(100_000);
                let (mut draft, expected) = task(&runtime, &mut numbers, len);
                draft.set_priority(priorities[numbers.index(3)]);
                (runtime.submit(draft).expect("admitted"), expected)
            })
            .collect();
        for (ticket, expected) in small {
            expected.check(&ticket.wait().expect("done"));
        }
        for ticket in large {
            let done = ticket.wait().expect("done");
            let mut expected = Output::default();
            done.work().run_on(&mut cpu, &mut expected).expect("done");
            assert!(
                same_result(done.work(), &expected, done.output(), &mut cpu),
                "{:?}",
                done.work().class()
            );
        }
    }
}

#[test]
fn all_threads_time_is_reported() {
    let runtime = Runtime::builder().cpu_threads(2).build();
    let data = buffer(&runtime, 8 << 20);
    let spec = WindowSpec { function: WindowFunction::Sha1, window: 52, step: 4, keep: 4 };
    let report = |range: std::ops::Range<usize>| {
        let ticket = submit(&runtime, |draft| {
            draft.share(Arc::clone(&data), range).set_request(Request::WindowHash { spec });
        });
        *ticket.wait().expect("done").report()
    };
    let report = report(0..data.len());
    assert!(report.stages.kernel > std::time::Duration::ZERO && report.stages.copy_in.is_zero());
    // However two threads share the task, they cannot have worked for more than twice the elapsed
    // time.
    assert!(report.stages.kernel <= 2 * report.total, "{report:?}");
}

#[test]
fn a_cancelled_one_stops_and_what_is_beside_it_goes_on() {
    let runtime = Runtime::builder().cpu_threads(2).build();
    let data = buffer(&runtime, 16 << 20);
    let spec = WindowSpec { function: WindowFunction::Sha1, window: 52, step: 1, keep: 1 };
    let ask = |priority| {
        submit(&runtime, |draft| {
            draft.share(Arc::clone(&data), 0..data.len()).set_request(Request::WindowHash { spec });
            draft.set_priority(priority);
        })
    };
    let mut numbers = Rng::new(3);
    for _ in 0..4 {
        let (cancelled, other) = (ask(Priority::Low), ask(Priority::Low));
        let (draft, expected) = task(&runtime, &mut numbers, 20_000);
        let small = runtime.submit(draft).expect("admitted");
        // The task takes far longer than getting here, but on a machine that stopped meanwhile it
        // may be done.
        if cancelled.cancel() {
            let failed = cancelled.wait().expect_err("cancelled");
            assert_eq!(failed.reason, Failure::Cancelled);
        } else {
            cancelled.wait().expect("done");
        }
        expected.check(&small.wait().expect("done"));
        assert!(other.cancel() || other.has_ended());
    }
    // Nothing remains: the runtime ends at once, and the pool has all buffers but ours.
    while !runtime.is_idle() {
        std::thread::yield_now();
    }
    assert_eq!(Arc::strong_count(&data), 1);
}
