//! The tasks to measure.

use std::sync::Arc;

use md5::Digest as _;
use outrigger_format::boundary::{GearMasks, scan_reference};
use outrigger_format::{ChunkerSpec, FingerprintKind};
use outrigger_offload::op::{Digest, Stream, WindowFunction, WindowSpec};
use outrigger_offload::pool::Pool;
use outrigger_offload::table::Table;
use outrigger_offload::work::{Input, Request, Work};
use outrigger_offload::{hash, reference};
use outrigger_workload::Rng;

/// Alternating inputs, so that no cache holds them all.
const INPUTS: usize = 8;
/// The bound of their bytes.
const INPUT_BYTES: usize = 1 << 30;

/// An operation with its parameters.
pub struct Class {
    pub name: &'static str,
    /// Makes the request for so many bytes. `None` if it does not exist for that size.
    pub request: Box<dyn Fn(usize) -> Option<Request>>,
}

fn chunks(len: usize) -> Vec<std::ops::Range<u32>> {
    let size = 16 << 10;
    (0..len).step_by(size).map(|start| start as u32..(start + size).min(len) as u32).collect()
}

fn class(name: &'static str, request: impl Fn(usize) -> Option<Request> + 'static) -> Class {
    Class { name, request: Box::new(request) }
}

/// A table of ten million fingerprints. It is 16 times as large as the last-level cache of present
/// GPUs.
fn table() -> Arc<Table> {
    let entries: Vec<_> = (0..10_000_000u64).map(|n| (key(n), n)).collect();
    let mut table = Table::with_capacity(entries.len());
    table.insert_many(&entries).expect("room");
    Arc::new(table)
}

/// A cheap fingerprint that is spread evenly.
fn key(n: u64) -> outrigger_format::Fingerprint {
    let mut fingerprint = outrigger_format::Fingerprint([0; 32]);
    Rng::new(n).fill(&mut fingerprint.0);
    fingerprint
}

/// All tasks to measure.
pub fn classes() -> Vec<Class> {
    let windows = |function, window, step, keep| {
        // With results of 256 MiB and more, the copy back would dominate.
        move |len: usize| {
            (len <= 64 << 20)
                .then_some(Request::WindowHash { spec: WindowSpec { function, window, step, keep } })
        }
    };
    let table = table();
    let known = table.clone();
    let mut classes = vec![
        class("scan", |_| Some(Request::Scan { history: 32, masks: GearMasks::for_average(16 << 10) })),
        class("pmd_hash md5", |_| Some(Request::PmdHash { digest: Digest::Md5 })),
        class("pmd_hash sha1", |_| Some(Request::PmdHash { digest: Digest::Sha1 })),
        class("pmd_hash sha256", |_| Some(Request::PmdHash { digest: Digest::Sha256 })),
        class("window_hash md5 20/4/4", windows(WindowFunction::Md5, 20, 4, 4)),
        class("window_hash sha1 20/4/4", windows(WindowFunction::Sha1, 20, 4, 4)),
        class("window_hash rabin 48/4/4", windows(WindowFunction::Rabin, 48, 4, 4)),
        class("lookup", move |len| {
            // As many keys as fit in so many bytes. Every other one is known.
            let keys = (0..len as u64 / 32).map(|n| key(n * 20_011 % 20_000_000)).collect();
            Some(Request::Lookup { table: table.clone(), keys })
        }),
    ];
    for (name, kind) in [
        ("hash_many blake3 16K", FingerprintKind::Blake3),
        ("hash_many sha256 16K", FingerprintKind::Sha256),
        ("hash_many sha1 16K", FingerprintKind::Sha1),
        ("hash_many md5 16K", FingerprintKind::Md5),
    ] {
        classes.push(class(name, move |len| Some(Request::HashMany { kind, ranges: chunks(len) })));
    }
    for (name, kind) in [
        ("ingest blake3 + lookup", FingerprintKind::Blake3),
        ("ingest sha256 + lookup", FingerprintKind::Sha256),
    ] {
        let known = known.clone();
        classes.push(class(name, move |len| {
            let streams = vec![Stream { range: 0..len as u32, last: true }];
            let (chunker, table) = (ChunkerSpec::DEFAULT, Some(known.clone()));
            Some(Request::Ingest { streams, chunker, kind, table })
        }));
    }
    classes
}

/// Tasks of a class over `size` random bytes each.
pub fn works(class: &Class, size: usize, pool: &Pool) -> Option<Vec<Arc<Work>>> {
    (class.request)(size)?;
    let count = INPUTS.min(INPUT_BYTES / size).max(2);
    let make = |n: usize| {
        let mut buffer = pool.alloc(size + 32);
        buffer.set_len(size + 32);
        Rng::new(n as u64).fill(&mut buffer);
        let request = (class.request)(size)?;
        Some(Arc::new(Work { request, input: Input::Own(buffer), range: 32..size + 32 }))
    };
    (0..count).map(make).collect()
}

/// Runs plain code on one core, one window, segment or chunk after the other, as the papers'
/// baseline. Returns the bytes of input. `None` if there is no such code.
pub fn scalar(work: &Work) -> Option<usize> {
    // An amount that takes a moment.
    let part = &work.data()[..work.data().len().min(1 << 20)];
    let mut out = Vec::new();
    match &work.request {
        Request::WindowHash { spec } => {
            let windows = part.windows(spec.window).step_by(spec.step);
            match spec.function {
                WindowFunction::Md5 => {
                    windows.for_each(|window| out.extend_from_slice(&md5::Md5::digest(window)[..spec.keep]));
                }
                WindowFunction::Sha1 => {
                    windows
                        .for_each(|window| out.extend_from_slice(&sha1::Sha1::digest(window)[..spec.keep]));
                }
                WindowFunction::Rabin | WindowFunction::Gear32 => return None,
            }
        }
        Request::PmdHash { digest } => out = reference::pmd_hash(*digest, part),
        Request::HashMany { kind, .. } => {
            part.chunks(16 << 10).for_each(|chunk| out.extend_from_slice(&hash(*kind, chunk).0));
        }
        Request::Scan { masks, .. } => {
            let mut candidates = Vec::new();
            scan_reference(&[], part, *masks, &mut candidates);
            out.push(candidates.len() as u8);
        }
        _ => return None,
    }
    std::hint::black_box(out);
    Some(part.len())
}
