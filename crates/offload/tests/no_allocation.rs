//! In steady state, a task allocates nothing in the runtime: on the processor, even if several
//! threads share a large one, and on a device. Hashing, scanning and ingesting do not allocate
//! either.
#![allow(clippy::disallowed_methods, reason = "tests wait and measure in real time")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use outrigger_format::boundary::GearMasks;
use outrigger_format::{ChunkerSpec, Fingerprint, FingerprintKind};
use outrigger_offload::op::{Digest, Stream, WindowFunction, WindowSpec};
use outrigger_offload::placement::Policy;
use outrigger_offload::runtime::{Finished, Runtime};
use outrigger_offload::sim::{SimDevice, SimOptions, Speed};
use outrigger_offload::table::Table;
use outrigger_offload::work::{Request, UserOperation};

/// Counts the allocations of all threads while `COUNTS` is set.
struct Counting;

static COUNTS: AtomicBool = AtomicBool::new(false);
static ALLOCATED: AtomicU64 = AtomicU64::new(0);

fn count() {
    if COUNTS.load(Ordering::Relaxed) {
        ALLOCATED.fetch_add(1, Ordering::Relaxed);
    }
}

#[allow(unsafe_code)]
// SAFETY: all that is added to the system's allocator is a count.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller keeps the contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: the caller keeps the contract.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// One task, on device `device`.
fn one(runtime: &Runtime, data: &[u8], sum: &Arc<UserOperation>, device: usize, round: usize) -> Finished {
    let mut draft = runtime.draft(data.len());
    draft.input().extend_from_slice(data);
    if round.is_multiple_of(2) {
        draft.set_request(Request::User { operation: Arc::clone(sum), parameters: Vec::new() });
    } else {
        draft.set_request(Request::Scan { history: 0, masks: GearMasks::for_average(4096) });
    }
    draft.pin(device);
    let done = runtime.submit(draft).expect("admitted").wait().expect("done");
    assert_eq!(done.report().device, device);
    done
}

#[test]
fn the_hot_path_allocates_nothing() {
    let sim = SimDevice::new(SimOptions::new("sim:0", Speed::INTEGRATED));
    let policy = Policy { check_first: 2, check_every: 4, ..Policy::default() };
    let runtime = Runtime::builder().cpu_threads(1).device(Box::new(sim)).policy(policy).build();
    let sum = |_: &[u8], data: &[u8], out: &mut Vec<u8>| {
        out.extend(data.iter().map(|&byte| u64::from(byte)).sum::<u64>().to_le_bytes());
        Ok(())
    };
    let sum = UserOperation::new("sum", sum, |_, _| 8).shared();
    // Always the same data, so that the number of candidates does not change.
    let data: Vec<u8> = (0..100_000u32).map(|n| (n.wrapping_mul(0x9e37_79b9) >> 13) as u8).collect();
    let rounds = |rounds: usize| {
        for round in 0..rounds {
            for device in 0..2 {
                one(&runtime, &data, &sum, device, round);
            }
        }
    };
    // Warm-up: vectors grow, classes are new, first results are checked.
    rounds(40);
    COUNTS.store(true, Ordering::Relaxed);
    rounds(200);
    COUNTS.store(false, Ordering::Relaxed);
    assert_eq!(ALLOCATED.load(Ordering::Relaxed), 0, "allocations in 400 tasks");
    let metrics = runtime.metrics();
    assert!(metrics.devices[1].checked > 40, "comparisons were among them: {metrics:?}");
    large_tasks();
    // Checks that the counter works.
    ALLOCATED.store(0, Ordering::Relaxed);
    COUNTS.store(true, Ordering::Relaxed);
    drop(std::hint::black_box(vec![1u8; 100]));
    COUNTS.store(false, Ordering::Relaxed);
    assert_eq!(ALLOCATED.load(Ordering::Relaxed), 1);
}

/// Every operation that hashes or scans, on data that several threads share, and on data for one
/// thread.
fn large_tasks() {
    let runtime = Runtime::builder().cpu_threads(3).build();
    let mut table = Table::with_capacity(1000);
    table.insert_many(&[(Fingerprint([7; 32]), 1)]).expect("room");
    let table = Arc::new(table);
    for len in [100_000, 3_000_000] {
        let data: Vec<u8> = (0..len as u32).map(|n| (n.wrapping_mul(0x9e37_79b9) >> 13) as u8).collect();
        // Of different lengths, so that they must be sorted, with some short ones.
        let pieces: Vec<_> = (0..len as u32 / 9000).map(|n| n * 9000..n * 9000 + 31 * n % 9000).collect();
        let hash = |kind| Request::HashMany { kind, ranges: pieces.clone() };
        let streams = vec![
            Stream { range: 0..len as u32 / 50, last: true },
            Stream { range: len as u32 / 50..len as u32, last: true },
        ];
        let (chunker, kind) = (ChunkerSpec::DEFAULT, FingerprintKind::Blake3);
        let spec = WindowSpec { function: WindowFunction::Md5, window: 20, step: 4, keep: 4 };
        let mut requests: Vec<Request> = FingerprintKind::ALL.into_iter().map(hash).collect();
        requests.extend([
            Request::PmdHash { digest: Digest::Sha1 },
            Request::Scan { history: 0, masks: GearMasks::for_average(4096) },
            Request::WindowHash { spec },
            Request::Ingest { streams, chunker, kind, table: Some(Arc::clone(&table)) },
        ]);
        for request in requests {
            let class = request.class();
            let mut draft = runtime.draft(len);
            draft.input().extend_from_slice(&data);
            draft.set_request(request);
            let mut least = u64::MAX;
            // Each thread's memory grows when it gets its first units, which may be late. At some
            // time, all threads have enough.
            for _ in 0..30 {
                ALLOCATED.store(0, Ordering::Relaxed);
                COUNTS.store(true, Ordering::Relaxed);
                for _ in 0..10 {
                    draft = runtime.submit(draft).expect("admitted").wait().expect("done").again();
                }
                COUNTS.store(false, Ordering::Relaxed);
                least = least.min(ALLOCATED.load(Ordering::Relaxed));
                if least == 0 {
                    break;
                }
            }
            assert_eq!(least, 0, "{class} on {len} bytes: allocations in 10 tasks");
        }
    }
}
