//! Measures the cost of the runtime, the decisions of placement, and the benefit of reuse and
//! overlap:
//!
//! ```text
//! cargo bench -p outrigger-offload --bench runtime [-- overhead|split|auto|ablation]
//! ```
//!
//! `auto` and `ablation` run on simulated devices (`outrigger_offload::sim`). Their times come from
//! a model, those of the processor and the runtime from this machine. `cargo test --benches` runs
//! everything once on little data.
#![allow(clippy::disallowed_methods, reason = "tests wait and measure in real time")]

mod split;

use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

use outrigger_format::FingerprintKind;
use outrigger_offload::accelerator::{Accelerator, Completion, Fault, Identity, StageTimes, Submission};
use outrigger_offload::calibrate::sizes;
use outrigger_offload::op::{Digest, WindowFunction, WindowSpec};
use outrigger_offload::placement::Policy;
use outrigger_offload::pool::Buffer;
use outrigger_offload::runtime::{Draft, Runtime, Ticket};
use outrigger_offload::sim::{SimDevice, SimOptions, Speed};
use outrigger_offload::work::{Request, UserOperation, Work};

fn main() {
    // Cargo passes `--bench` when benchmarking and nothing when testing.
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let quick = !arguments.iter().any(|argument| argument == "--bench");
    let wanted = |name: &str| {
        let mut names = arguments.iter().filter(|argument| !argument.starts_with('-')).peekable();
        names.peek().is_none() || names.any(|argument| argument == name)
    };
    if wanted("overhead") {
        overhead(quick);
    }
    if wanted("split") {
        split::split(quick);
    }
    if wanted("auto") {
        auto(quick);
    }
    if wanted("ablation") {
        ablation(quick);
    }
}

/// The median.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Submits `count` tasks with at most `window` in flight, and waits for them in order.
fn stream(count: usize, window: usize, submit: impl Fn() -> Ticket) -> Duration {
    let begun = Instant::now();
    let mut under_way = std::collections::VecDeque::with_capacity(window);
    for _ in 0..count {
        if under_way.len() == window
            && let Some(ticket) = under_way.pop_front()
        {
            Ticket::wait(ticket).expect("done");
        }
        under_way.push_back(submit());
    }
    under_way.into_iter().for_each(|ticket| drop(ticket.wait().expect("done")));
    begun.elapsed()
}

/// A device that finishes every task at once. The remaining time is the runtime's.
struct AtOnce {
    identity: Identity,
    done: Vec<Completion>,
}

impl AtOnce {
    fn new() -> Self {
        let identity = Identity {
            name: "at-once:0".into(),
            model: "nothing".into(),
            driver: String::new(),
            memory_bytes: 0,
            zero_copy: true,
        };
        Self { identity, done: Vec::with_capacity(4) }
    }
}

impl Accelerator for AtOnce {
    fn identity(&self) -> &Identity {
        &self.identity
    }

    fn in_flight_max(&self) -> usize {
        4
    }

    fn attach(&mut self, _: Waker) -> Result<(), Fault> {
        Ok(())
    }

    fn capabilities(&self) -> Arc<dyn Fn(&Work) -> bool + Send + Sync> {
        Arc::new(|_| true)
    }

    fn submit(&mut self, submission: Submission) {
        self.done.push(Completion { submission, result: Ok(StageTimes::default()) });
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        done.append(&mut self.done);
    }

    fn probe(&mut self) -> Result<(), Fault> {
        Ok(())
    }

    fn reset(&mut self) -> Result<(), Fault> {
        Ok(())
    }
}

/// The time of a task that does nothing: one after the other, and with many in flight. The
/// simulated device has threads that must be woken. The device that finishes at once shows the
/// runtime alone. The submitter executes the processor's tasks itself, if it is allowed to.
fn overhead(quick: bool) {
    let nothing = |name: &str| UserOperation::new(name, |_, _, _| Ok(()), |_, _| 0);
    let (brief, handed) = (nothing("brief").brief().shared(), nothing("nothing").shared());
    let rounds = if quick { 1 } else { 9 };
    println!("{:>34} {:>14} {:>14}", "overhead, µs a task", "one by one", "64 under way");
    let sim = SimOptions {
        in_flight: 4,
        speed: Speed { launch: Duration::ZERO, kernel_rate: f64::INFINITY, ..Speed::INTEGRATED },
        ..SimOptions::new("sim:0", Speed::INTEGRATED)
    };
    let policy = Policy { check_every: 0, check_first: 0, ..Policy::default() };
    let builder = Runtime::builder().cpu_threads(1).policy(policy);
    let runtime = builder.device(Box::new(SimDevice::new(sim))).device(Box::new(AtOnce::new())).build();
    let cases = [
        (0, &brief, "processor, by the submitter"),
        (0, &handed, "processor, by its thread"),
        (2, &handed, "device that is through at once"),
        (1, &handed, "simulated device, no time"),
    ];
    for (device, operation, name) in cases {
        let submit = || {
            let mut draft = runtime.draft(0);
            draft
                .set_request(Request::User { operation: Arc::clone(operation), parameters: Vec::new() })
                .pin(device);
            runtime.submit(draft).expect("admitted")
        };
        let count = if quick { 100 } else { 20_000 };
        let micros = |window| {
            let round = |_| stream(count, window, submit).as_secs_f64() * 1e6 / count as f64;
            median((0..rounds).map(round).collect())
        };
        println!("{name:>34} {:>14.2} {:>14.2}", micros(1), micros(64));
    }
}

/// The operation of a stream of tasks.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Hash(FingerprintKind),
    Scan,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Hash(kind) => kind.name(),
            Self::Scan => "scan",
        }
    }

    fn ask(self, draft: &mut Draft, bytes: usize) {
        match self {
            Self::Hash(kind) => {
                let (end, chunk) = (bytes as u32, 16 << 10);
                draft.hash_many(kind, (0..end.div_ceil(chunk)).map(|n| n * chunk..end.min((n + 1) * chunk)));
            }
            Self::Scan => {
                let masks = outrigger_format::boundary::GearMasks::for_average(16 << 10);
                draft.set_request(Request::Scan { history: 0, masks });
            }
        }
    }
}

/// Compares `auto` with sending everything to one device, for each operation and size. The
/// simulated devices are slower and faster than one thread of this processor. Their results are
/// repeated, not computed, so only the processor works.
fn auto(quick: bool) {
    let max = if quick { 256 << 10 } else { 128 << 20 };
    let factors: &[f64] = if quick { &[2.0] } else { &[0.5, 2.0, 8.0] };
    println!(
        "\nauto / best fixed choice, times of a stream with 4 under way (1.00 is equal, less is better)"
    );
    println!(
        "{:>10} {:>7} {:>9} {:>10} {:>10} {:>10} {:>8} {:>9}",
        "operation", "device", "bytes", "cpu ms", "device ms", "auto ms", "ratio", "on device"
    );
    let (mut worst, mut over) = (0f64, 0);
    for kind in [Kind::Hash(FingerprintKind::Blake3), Kind::Hash(FingerprintKind::Sha256), Kind::Scan] {
        for &factor in factors {
            let options = SimOptions {
                replay: true,
                ..SimOptions::new("sim:0", Speed::relative("relative", rate_of(kind, quick), factor))
            };
            let runtime = Runtime::builder()
                .cpu_threads(1)
                .device(Box::new(SimDevice::new(options)))
                .policy(Policy { check_first: 0, ..Policy::default() })
                .build();
            for bytes in sizes(max) {
                let mut buffer = runtime.pool().alloc(bytes);
                buffer.set_len(bytes);
                let buffer = Arc::new(buffer);
                let line = compare(&runtime, kind, &buffer, quick);
                let [cpu, device, auto, share, ratio] = line;
                worst = worst.max(ratio);
                over += u32::from(ratio > 1.03);
                println!(
                    "{:>10} {factor:>6}x {bytes:>9} {:>10.3} {:>10.3} {:>10.3} {ratio:>8.3} {share:>8.0}%",
                    kind.name(),
                    cpu * 1e3,
                    device * 1e3,
                    auto * 1e3,
                );
            }
        }
    }
    println!("worst ratio {worst:.3}; above 1.03: {over}");
}

/// One thread's rate of an operation, in bytes a second, measured through the runtime's worker.
fn rate_of(kind: Kind, quick: bool) -> f64 {
    let runtime = Runtime::builder().cpu_threads(1).build();
    let bytes = 2 << 20;
    let mut rates = Vec::new();
    for _ in 0..if quick { 2 } else { 20 } {
        let mut draft = runtime.draft(bytes);
        draft.input().set_len(bytes);
        kind.ask(&mut draft, bytes);
        let done = runtime.submit(draft).expect("admitted").wait().expect("done");
        rates.push(bytes as f64 / done.report().stages.kernel.as_secs_f64());
    }
    median(rates)
}

/// The least duration of a stream in seconds.
const LEAST: f64 = 0.03;

/// Five values: seconds of a stream on the processor, on the device, and with placement; the
/// device's share of the last in per cent; and the ratio of the last to the better of the others.
/// The ratio is the median of all rounds. The three take turns, so that the machine's state affects
/// all alike.
fn compare(runtime: &Runtime, kind: Kind, buffer: &Arc<Buffer>, quick: bool) -> [f64; 5] {
    let bytes = buffer.len();
    let submit = |pinned: Option<usize>| {
        let mut draft = runtime.draft(0);
        draft.share(Arc::clone(buffer), 0..bytes);
        kind.ask(&mut draft, bytes);
        if let Some(device) = pinned {
            draft.pin(device);
        }
        runtime.submit(draft).expect("admitted")
    };
    let choices = [Some(0), Some(1), None];
    let mut count = if quick { 4 } else { ((64 << 20) / bytes).clamp(8, 4000) };
    let run = |pinned, count| stream(count, 4, || submit(pinned)).as_secs_f64();
    // First, placement learns what is unknown, with each choice alike. Then the streams are made
    // long enough to exceed the machine's noise.
    let shortest = choices.map(|pinned| run(pinned, count)).into_iter().fold(f64::INFINITY, f64::min);
    if !quick {
        count *= (LEAST / shortest).ceil().clamp(1.0, 100.0) as usize;
        for pinned in choices {
            run(pinned, count);
        }
    }
    let (mut times, mut shares) = ([const { Vec::new() }; 3], Vec::new());
    for round in 0..if quick { 1 } else { 9 } {
        // The order of the three changes, too.
        for at in 0..choices.len() {
            let at = (at + round) % choices.len();
            let before = runtime.metrics().devices[1].tasks;
            times[at].push(run(choices[at], count));
            if choices[at].is_none() {
                shares.push(100.0 * (runtime.metrics().devices[1].tasks - before) as f64 / count as f64);
            }
        }
    }
    let [cpu, device, auto] = times.clone().map(median);
    let best = if cpu <= device { &times[0] } else { &times[1] };
    let ratios = times[2].iter().zip(best).map(|(auto, best)| auto / best).collect();
    [cpu, device, auto, median(shares), median(ratios)]
}

/// A stream of ten blocks, as in the papers: without reuse of buffers and overlap, with reuse, with
/// both, and on two devices. Also how the time of a task without either is divided.
fn ablation(quick: bool) {
    const BLOCKS: usize = 10;
    let window = WindowSpec { function: WindowFunction::Md5, window: 20, step: 4, keep: 4 };
    let tasks = [
        ("window_hash md5 20/4", Request::WindowHash { spec: window }),
        ("pmd_hash md5", Request::PmdHash { digest: Digest::Md5 }),
    ];
    let speed = Speed::GEFORCE_8800;
    for (name, request) in tasks {
        println!(
            "\n{name}, {BLOCKS} blocks, on one and two simulated {} (speed-up over one thread of this processor)",
            speed.name
        );
        println!(
            "{:>10} {:>10} {:>10} {:>10} {:>10} {:>10}   neither: lock in kernel out %",
            "bytes", "cpu ms", "neither", "reuse", "+ overlap", "+ second"
        );
        let max = if quick { 64 << 10 } else { 16 << 20 };
        for bytes in sizes(max) {
            let cpu = on_devices(&request, bytes, 0, 1, true, BLOCKS).0;
            let neither = on_devices(&request, bytes, 1, 1, false, BLOCKS);
            let reuse = on_devices(&request, bytes, 1, 1, true, BLOCKS).0;
            let overlap = on_devices(&request, bytes, 1, 4, true, BLOCKS).0;
            let second = on_devices(&request, bytes, 2, 4, true, BLOCKS).0;
            let faster = |time: Duration| cpu.as_secs_f64() / time.as_secs_f64();
            println!(
                "{bytes:>10} {:>10.3} {:>10.2} {:>10.2} {:>10.2} {:>10.2}   {}",
                cpu.as_secs_f64() * 1e3,
                faster(neither.0),
                faster(reuse),
                faster(overlap),
                faster(second),
                neither.1,
            );
        }
    }
}

/// The time of a stream of `blocks` tasks on the processor (`devices` = 0) or on simulated devices,
/// and the shares of the stages in it.
fn on_devices(
    request: &Request,
    bytes: usize,
    devices: usize,
    in_flight: usize,
    reuse: bool,
    blocks: usize,
) -> (Duration, String) {
    let speed = Speed::GEFORCE_8800;
    let policy = Policy { check_every: 0, check_first: 0, explore_every: 0, ..Policy::default() };
    let keep = if reuse { 4 << 30 } else { 0 };
    let mut builder = Runtime::builder().cpu_threads(1).policy(policy).keep_bytes(keep);
    for n in 0..devices {
        let options = SimOptions { replay: true, in_flight, ..SimOptions::new(format!("sim:{n}"), speed) };
        builder = builder.device(Box::new(SimDevice::new(options)));
    }
    let runtime = builder.build();
    let turn = std::cell::Cell::new(0);
    let submit = || {
        let mut draft = runtime.draft(bytes);
        draft.input().set_len(bytes);
        let device = if devices == 0 { 0 } else { turn.replace(turn.get() + 1) % devices + 1 };
        draft.set_request(request.clone()).pin(device);
        runtime.submit(draft).expect("admitted")
    };
    let window = if devices == 0 { 1 } else { in_flight * devices };
    // Computes the results and makes the buffers once.
    stream(window * 2, window, submit);
    let before = runtime.metrics();
    let time = stream(blocks, window, submit);
    let after = runtime.metrics();
    let busy = |stage: fn(&outrigger_offload::accelerator::StageTimes) -> Duration| {
        let sum = |metrics: &outrigger_offload::runtime::Metrics| {
            metrics.devices.iter().skip(1).map(|device| stage(&device.busy)).sum::<Duration>()
        };
        sum(&after) - sum(&before)
    };
    let percent = |part: Duration| 100.0 * part.as_secs_f64() / time.as_secs_f64();
    let (copy_in, kernel, copy_out) = (busy(|s| s.copy_in), busy(|s| s.kernel), busy(|s| s.copy_out));
    let fresh = (after.pool.fresh - before.pool.fresh) as f64;
    // Page-locking sleeps for the model's time, a little more than once for each buffer of the next
    // power of two.
    let lock = speed.lock.0 + Duration::from_secs_f64(bytes.next_power_of_two() as f64 * speed.lock.1);
    let shares = [percent(lock.mul_f64(fresh)), percent(copy_in), percent(kernel), percent(copy_out)];
    (time, shares.map(|share| format!("{share:.0}")).join(" "))
}
