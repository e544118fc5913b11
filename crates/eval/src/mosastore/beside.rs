//! Figures 12 to 17: a program beside a writer that never rests, and how much each slows the other.

use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use crate::lab::{Failed, Lab, check};
use crate::measure::Spread;
use crate::record::{Axis, Form, Limit, Outcome, Plot, Series};
use crate::similarity::{checkpoints, memory_rate};
use crate::wrote::{Put, Way, chunker, disk_rate, files, record, store, write};

/// The paper's three workloads.
const WORKLOADS: [&str; 3] = ["different", "similar", "checkpoint"];

/// Beside a search for primes on all threads.
pub fn compute(lab: &Lab) -> Result<Outcome, Failed> {
    let limit = lab.scale.pick(20_000, 6_000_000, 20_000_000);
    let expected = if limit == 20_000 { Some(2262) } else { None };
    let program = |lab: &Lab, _: &Path| {
        let found = primes(limit, lab.threads);
        check(expected.is_none_or(|expected| expected == found), format!("{found} primes below {limit}"))
    };
    beside(lab, "a prime search on all threads", program)
}

/// The number of primes below `limit`, by division, on so many threads.
fn primes(limit: u64, threads: usize) -> u64 {
    let next = AtomicU64::new(0);
    let found = AtomicU64::new(0);
    let is_prime = |n: u64| n > 1 && (2..).take_while(|d| d * d <= n).all(|d| !n.is_multiple_of(d));
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let start = next.fetch_add(1000, Ordering::Relaxed);
                    if start >= limit {
                        break;
                    }
                    let count = (start..limit.min(start + 1000)).filter(|&n| is_prime(n)).count();
                    found.fetch_add(count as u64, Ordering::Relaxed);
                }
            });
        }
    });
    found.into_inner()
}

/// Beside a compilation.
pub fn files_bound(lab: &Lab) -> Result<Outcome, Failed> {
    if Command::new("cc").arg("--version").output().is_err() {
        return Err(Failed::Missing(
            "there is no C compiler `cc` to be run beside (package build-essential)".into(),
        ));
    }
    let sources = lab.scale.pick(2, 24, 60);
    let program = move |lab: &Lab, room: &Path| compile(lab, room, sources);
    beside(lab, "a compilation, as many at once as there are threads", program)
}

/// Writes so many C sources, and compiles each to a file.
fn compile(lab: &Lab, room: &Path, sources: usize) -> Result<(), Failed> {
    let dir = tempfile::tempdir_in(room)?;
    let next = AtomicU64::new(0);
    let failed = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..lab.threads {
            scope.spawn(|| {
                loop {
                    let n = next.fetch_add(1, Ordering::Relaxed);
                    if n >= sources as u64 {
                        break;
                    }
                    let source = dir.path().join(format!("s{n}.c"));
                    let functions: String = (0..120)
                        .map(|f| format!("int f{n}_{f}(int a, int b) {{ int s = {f}; for (int i = 0; i < a; i++) s += (i ^ b) * {n}; return s; }}\n"))
                        .collect();
                    let written = std::fs::write(&source, format!("#include <stdio.h>\n#include <stdlib.h>\n{functions}"));
                    let ended = Command::new("cc").args(["-O1", "-c", "-o"]).arg(source.with_extension("o")).arg(&source).status();
                    if written.is_err() || !ended.is_ok_and(|status| status.success()) {
                        failed.store(true, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    check(!failed.into_inner(), "the compiler fails")
}

/// Runs the program alone, and beside each way of writing each workload.
fn beside(
    lab: &Lab,
    what: &str,
    program: impl Fn(&Lab, &Path) -> Result<(), Failed> + Sync,
) -> Result<Outcome, Failed> {
    let (room, mut outcome) = (lab.room()?, Outcome::default());
    let spec = chunker("fixed:1M")?;
    let time = |rounds: usize| -> Result<Spread, Failed> {
        let mut times = Vec::new();
        for _ in 0..rounds {
            let begun = Instant::now();
            program(lab, room.path())?;
            times.push(begun.elapsed().as_secs_f64());
        }
        Ok(Spread::of(times))
    };
    let rounds = lab.scale.pick(1, 3, 3);
    let alone = time(rounds)?.median;
    outcome.find("the program alone", alone, "s", None);
    let ways = Way::all(lab);
    let lines = |what: &str| -> Vec<Series> {
        ways.iter().map(|way| Series::measured(format!("{}{what}", way.name()))).collect()
    };
    let (mut slower, mut rates, mut idle) = (lines(""), lines(", beside"), lines(", alone"));
    for (at, workload) in WORKLOADS.iter().enumerate() {
        let bytes = lab.scale.pick(1 << 20, 32 << 20, 128 << 20);
        let source = match *workload {
            "different" => files(lab, room.path(), 8, bytes, false)?,
            "similar" => files(lab, room.path(), 8, bytes, true)?,
            _ => {
                let dir = room.path().join("images");
                std::fs::create_dir(&dir)?;
                for (n, image) in checkpoints(lab)?.1.iter().enumerate() {
                    std::fs::write(dir.join(format!("i{n}")), image)?;
                }
                dir
            }
        };
        let oracle = room.path().join(format!("oracle-{at}"));
        record(lab, &source, spec, &oracle)?;
        let mut all = 0;
        for file in std::fs::read_dir(&source)? {
            all += file?.metadata()?.len();
        }
        for (n, way) in ways.iter().copied().enumerate() {
            let once = || -> Result<Put, Failed> {
                let path = room.path().join("beside");
                let store = store(&path, "none")?;
                let put = write(lab, &store, &source, "a", spec, way, &oracle)?;
                check(put.bytes == all, format!("{workload}: {} of {all} bytes were read", put.bytes))?;
                drop(store);
                std::fs::remove_dir_all(path)?;
                Ok(put)
            };
            let rate = |put: Put| put.bytes as f64 / put.seconds / 1e6;
            let alone_rates: Vec<f64> = (0..rounds).map(|_| once().map(rate)).collect::<Result<_, _>>()?;
            let stop = AtomicBool::new(false);
            let writer = || -> Result<Vec<f64>, Failed> {
                let mut rates = Vec::new();
                while rates.is_empty() || !stop.load(Ordering::Relaxed) {
                    rates.push(rate(once()?));
                }
                Ok(rates)
            };
            let (times, beside_rates) = std::thread::scope(|scope| {
                let writing = scope.spawn(writer);
                let times = time(rounds);
                stop.store(true, Ordering::Relaxed);
                let rates =
                    writing.join().unwrap_or_else(|_| Err(Failed::Program("the writer panicked".into())));
                (times, rates)
            });
            slower[n].push(at as f64, times?.map(|time| 100.0 * (time / alone - 1.0)));
            idle[n].push(at as f64, Spread::of(alone_rates));
            rates[n].push(at as f64, Spread::of(beside_rates?));
        }
    }
    for (n, way) in ways.iter().copied().enumerate() {
        for (at, workload) in WORKLOADS.iter().enumerate() {
            outcome.find(
                format!("slow-down beside {}, {workload}", way.name()),
                slower[n].points[at].y,
                "%",
                None,
            );
            outcome.find(
                format!("the writer's loss, {}, {workload}", way.name()),
                100.0 * (1.0 - rates[n].points[at].y / idle[n].points[at].y),
                "%",
                None,
            );
        }
    }
    outcome.plots.push(Plot {
        title: format!("How much longer it takes: {what}"),
        form: Form::Bars,
        x: Axis::of("what is written meanwhile", WORKLOADS),
        y: Axis::new("slow-down", "%"),
        series: slower,
        limits: vec![Limit { name: "half of the machine for each".into(), y: 100.0 }],
    });
    outcome.plots.push(Plot {
        title: "How fast the writer is, alone and beside it".into(),
        form: Form::Bars,
        x: Axis::of("what is written", WORKLOADS),
        y: Axis::log("throughput", "MB/s"),
        series: idle.into_iter().zip(rates).flat_map(|(idle, rate)| [idle, rate]).collect(),
        limits: vec![
            Limit { name: "the file system, for what is new".into(), y: disk_rate(lab)? / 1e6 },
            Limit { name: "memory, read by all cores".into(), y: memory_rate(lab) / 1e6 },
        ],
    });
    outcome.note("The writer puts 8 files, or the images, in fixed blocks of 1 MB into a new store, and begins again as soon as they are durable. Nothing is compressed. \
                  Less than nothing is what noise makes of a slow-down or a loss that is small.");
    Ok(outcome)
}

#[cfg(test)]
mod tests {
    #[test]
    fn primes_are_counted_on_any_number_of_threads() {
        assert_eq!([1, 3].map(|threads| super::primes(10_000, threads)), [1229, 1229]);
    }
}
