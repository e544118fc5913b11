//! The result is the same on every device. Compared are the processor with each of its instruction
//! sets, its threads on a shared large task, a simulated device behind the runtime's queues and
//! buffers, and the CUDA kernels on the host's grid.
//!
//! A device may also cut segments of a large file as if a chunk began with each. Their cuts join
//! those of one walk through the whole file.
#![no_main]

use std::ops::Range;
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use outrigger_format::boundary::{CutWalk, GearMasks};
use outrigger_format::{ChunkerSpec, Fingerprint, FingerprintKind};
use outrigger_offload::cuda::{HostGrid, Order};
use outrigger_offload::op::{Digest, Stream, WindowFunction, WindowSpec};
use outrigger_offload::placement::Policy;
use outrigger_offload::pool::Buffer;
use outrigger_offload::runtime::Runtime;
use outrigger_offload::sim::{SimDevice, SimOptions, Speed};
use outrigger_offload::table::Table;
use outrigger_offload::work::{Input, Output, Request, Work};
use outrigger_offload::{CpuDevice, Device, SimdLevel, candidates};
use outrigger_store::testing::cut_in_segments;

/// The runtime's devices: the processor, one with the processor's results, and one with the
/// kernels' results.
const PROCESSOR: usize = 0;
const SIMULATED: usize = 1;
const KERNELS: usize = 2;

/// The grid runs one thread after the other, so it gets only little data.
const GRID_MAX: usize = 8_000;
/// From this length on, threads share a task.
const SHARED: usize = 1 << 20;

struct Devices {
    portable: CpuDevice,
    /// They run on the calling thread.
    others: Vec<(SimdLevel, CpuDevice)>,
    grids: Vec<(Order, HostGrid)>,
    runtime: Runtime,
}

static DEVICES: LazyLock<Mutex<Devices>> = LazyLock::new(|| {
    // The device needs no modelled time, and no result is replaced by the processor's, because the
    // device's own results are compared here.
    let speed = Speed { launch: Duration::ZERO, kernel_rate: f64::INFINITY, ..Speed::INTEGRATED };
    let policy = Policy {
        check_every: 0,
        check_first: 0,
        offload_min_bytes: 0,
        hang_floor: Duration::from_secs(3600),
        ..Policy::default()
    };
    let kernels = SimOptions {
        execute: Some(Box::new(HostGrid::new(Order::Shuffled))),
        ..SimOptions::new("kernels", speed)
    };
    let runtime = Runtime::builder()
        .cpu_threads(3)
        .policy(policy)
        .device(Box::new(SimDevice::new(SimOptions::new("sim:0", speed))))
        .device(Box::new(SimDevice::new(kernels)))
        .build();
    let others = SimdLevel::available().filter(|level| *level != SimdLevel::Portable);
    Mutex::new(Devices {
        portable: CpuDevice::with_level(SimdLevel::Portable),
        others: others.map(|level| (level, CpuDevice::with_level(level))).collect(),
        grids: [Order::Forward, Order::Backward].map(|order| (order, HostGrid::new(order))).into(),
        runtime,
    })
});

libfuzzer_sys::fuzz_target!(|input: (u8, u8, u16, u16, u32, &[u8])| {
    let (what, choice, a, b, len, seed) = input;
    if seed.is_empty() {
        return;
    }
    // One of 64 inputs is long enough to be shared.
    let len = if len % 64 == 0 { SHARED + len as usize % 300_000 } else { len as usize % 60_000 };
    let data = grown(seed, len, b);
    let mut devices = DEVICES.lock().expect("no panic goes on");
    let mut buffer = devices.runtime.pool().alloc(len);
    buffer.extend_from_slice(&data);
    let buffer = Arc::new(buffer);
    let (request, range) = request(what, choice, a, b, &data);
    devices.compare(&request, &buffer, range);
    if what >= 128 {
        devices.meet(chunker(choice), a, b, &data, &buffer);
    }
});

/// `len` bytes: the seed many times, a little different each time, and perhaps a run of one byte in
/// the middle.
fn grown(seed: &[u8], len: usize, run: u16) -> Vec<u8> {
    let turns = (0..).flat_map(|turn: usize| seed.iter().map(move |byte| byte.wrapping_add((turn / 3) as u8)));
    let mut data: Vec<u8> = turns.take(len).collect();
    if run % 4 == 0 {
        data[len / 3..(len / 3 + usize::from(run) * 2).min(len)].fill(seed[0]);
    }
    data
}

fn chunker(choice: u8) -> ChunkerSpec {
    let all = [
        "gear32:64/256/1K", "gear32:1K/4K/16K", "gear32:4K/16K/64K", "rabin:64/256/1K", "lbfs-md5:64/256/1K",
        "lbfs-sha1:256/1K/4K", "fixed:512", "fixed:4K",
    ];
    ChunkerSpec::parse(all[choice as usize % all.len()]).expect("a chunker")
}

fn request(what: u8, choice: u8, a: u16, b: u16, data: &[u8]) -> (Request, Range<usize>) {
    let kind = FingerprintKind::ALL[choice as usize % FingerprintKind::ALL.len()];
    let cut = |at: u32| (at as usize * 7919 * (usize::from(b) + 1) % (data.len() + 1)) as u32;
    let piece = |n: u32, other: u32| cut(n).min(cut(other))..cut(n).max(cut(other));
    let pieces = || (0..u32::from(a % 70)).map(|n| piece(n, n + 1));
    let whole = 0..data.len();
    match what % 6 {
        0 => {
            let history = usize::from(a) % 80;
            let history = history.min(data.len());
            let masks = GearMasks::for_average(1 << (7 + choice % 12));
            (Request::Scan { history, masks }, history..data.len())
        }
        1 => (Request::HashMany { kind, ranges: pieces().collect() }, whole),
        2 => {
            let function = WindowFunction::ALL[choice as usize % WindowFunction::ALL.len()];
            let (window, step) = (usize::from(a) % 300 + 1, usize::from(b) % 80 + 1);
            let keep = choice as usize / 4 % function.len() + 1;
            (Request::WindowHash { spec: WindowSpec { function, window, step, keep } }, whole)
        }
        3 => (Request::PmdHash { digest: [Digest::Md5, Digest::Sha1, Digest::Sha256][choice as usize % 3] }, whole),
        4 => {
            let streams = (0..u32::from(a % 7)).map(|n| Stream { range: piece(n, n + 3), last: n % 2 == 0 });
            let (streams, chunker) = (streams.collect(), chunker(choice / 8));
            let table = (a % 3 > 0).then(|| known(data, pieces(), kind, b).0);
            (Request::Ingest { streams, chunker, kind, table }, whole)
        }
        _ => {
            let (table, keys) = known(data, pieces(), kind, b);
            (Request::Lookup { table, keys }, whole)
        }
    }
}

/// A table of some of these pieces, some of which were removed, and lookups. Half of them ask for
/// fingerprints that were never inserted.
fn known(
    data: &[u8],
    pieces: impl Iterator<Item = Range<u32>>,
    kind: FingerprintKind,
    how: u16,
) -> (Arc<Table>, Vec<Fingerprint>) {
    let name = |piece: Range<u32>| outrigger_offload::hash(kind, &data[piece.start as usize..piece.end as usize]);
    let mut keys: Vec<Fingerprint> = pieces.map(name).collect();
    let mut table = Table::with_capacity(keys.len());
    let entries: Vec<_> = keys.iter().zip(1..).map(|(&key, place)| (key, place << 20 | 3)).collect();
    table.insert_many(&entries).expect("room");
    let gone: Vec<_> = keys.iter().copied().step_by(usize::from(how % 5) + 2).collect();
    table.remove_many(&gone);
    if how % 2 == 0 {
        table.refresh();
    }
    // In the bucket of an existing key, but different from it.
    let others = keys.clone().into_iter().map(|mut key| {
        key.0[usize::from(how) % 32] ^= 1 << (how % 8);
        key
    });
    keys.extend(others);
    (Arc::new(table), keys)
}

impl Devices {
    /// Compares the results of all devices.
    fn compare(&mut self, request: &Request, buffer: &Arc<Buffer>, range: Range<usize>) {
        let len = range.len();
        let work = Work { request: request.clone(), input: Input::Shared(Arc::clone(buffer)), range };
        let mut expected = Output::default();
        work.run_on(&mut self.portable, &mut expected).expect("the processor does everything");
        let mut got = Output::default();
        for (level, device) in &mut self.others {
            work.run_on(device, &mut got).expect("the processor does everything");
            same(&expected, &got, &level.to_string(), request);
        }
        let mut lanes = vec![PROCESSOR, SIMULATED];
        if len <= GRID_MAX {
            lanes.push(KERNELS);
            for (order, grid) in &mut self.grids {
                work.run_on(grid as &mut dyn Device, &mut got).expect("kernels do all of these");
                same(&expected, &got, &format!("grid, {order:?}"), request);
            }
        }
        for lane in lanes {
            let output = self.run(lane, request, buffer, work.range.clone());
            same(&expected, output.output(), &format!("device {lane} of the runtime"), request);
        }
    }

    fn run(
        &self,
        lane: usize,
        request: &Request,
        buffer: &Arc<Buffer>,
        range: Range<usize>,
    ) -> outrigger_offload::runtime::Finished {
        let mut draft = self.runtime.draft(0);
        draft.share(Arc::clone(buffer), range);
        draft.set_request(request.clone()).pin(lane);
        let done = self.runtime.submit(draft).expect("admitted").wait().expect("healthy devices");
        assert_eq!(done.report().device, lane, "it was done by somebody else: {request:?}");
        done
    }

    /// Compares one walk through the data with segments that a device has cut.
    fn meet(&self, chunker: ChunkerSpec, a: u16, b: u16, data: &[u8], buffer: &Arc<Buffer>) {
        let (mut found, mut whole) = (Vec::new(), Vec::new());
        candidates(chunker, &[], data, &mut found);
        let mut walk = CutWalk::new(chunker);
        walk.feed(data.len(), &found, &mut whole);
        whole.extend(walk.finish());
        // Only a few, as each is a task.
        let least = data.len() / 20 + 1;
        let segments = [a, b].map(|len| least + usize::from(len));
        let lane = if data.len() <= GRID_MAX && a % 2 == 0 { KERNELS } else { SIMULATED };
        let by_device = |range: Range<usize>, last| {
            let streams = vec![Stream { range: 0..range.len() as u32, last }];
            let request = Request::Ingest { streams, chunker, kind: FingerprintKind::Blake3, table: None };
            let done = self.run(lane, &request, buffer, range);
            done.output().chunks.iter().map(|chunk| chunk.end as usize).collect()
        };
        let met = cut_in_segments(chunker, data, segments.into_iter().cycle(), by_device).ends;
        assert_eq!(met, whole, "{chunker} in segments of {segments:?}, by device {lane}");
    }
}

fn same(expected: &Output, got: &Output, who: &str, request: &Request) {
    assert_eq!(got.candidates, expected.candidates, "{who}: {request:?}");
    assert_eq!(got.fingerprints, expected.fingerprints, "{who}: {request:?}");
    assert_eq!(got.places, expected.places, "{who}: {request:?}");
    assert_eq!(got.chunks, expected.chunks, "{who}: {request:?}");
    assert_eq!(got.counts, expected.counts, "{who}: {request:?}");
    assert!(*got.bytes == *expected.bytes, "{who}: {request:?}");
}
