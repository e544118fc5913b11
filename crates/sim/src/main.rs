//! `outrigger-sim [SEED [COUNT [HOURS [HOSTS [FAULT]]]]]`: runs COUNT seeds from SEED on, each for
//! HOURS, side by side on all processors. It prints what is wrong, and the shortest script that
//! shows it. FAULT is planted.
//!
//! A process runs one seed at a time, so this one starts others: `outrigger-sim --worker PROCESSOR
//! ...` with the same arguments. Each gets only a few seeds, because threads of killed hosts stay
//! until the process ends.

use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use outrigger_sim::run::{self, Outcome};
use outrigger_sim::script::{self, Step};
use outrigger_sim::{planted, scheduler};

/// The most virtual hours for a worker, unless a single seed is longer.
const WORKER_HOURS: f64 = 10.0;

struct Arguments {
    first: u64,
    count: u64,
    hours: f64,
    hosts: usize,
    fault: Option<String>,
}

impl Arguments {
    fn of(given: &[String]) -> Self {
        let number =
            |at: usize, default: f64| given.get(at).map_or(default, |text| text.parse().expect("a number"));
        let (first, count) = (number(0, 1.0) as u64, number(1, 1.0) as u64);
        let (hours, hosts, fault) = (number(2, 1.0), number(3, 4.0) as usize, given.get(4).cloned());
        Self { first, count, hours, hosts, fault }
    }
}

fn main() -> ExitCode {
    let given: Vec<String> = std::env::args().skip(1).collect();
    let is_well = match given.split_first() {
        Some((flag, rest)) if flag == "--worker" => {
            let (processor, rest) = rest.split_first().expect("a processor");
            scheduler::run_on(processor.parse().expect("a number"));
            work(&Arguments::of(rest))
        }
        _ => spread(&Arguments::of(&given)),
    };
    if is_well { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Gives the seeds to workers. Returns false if one has found something.
fn spread(all: &Arguments) -> bool {
    #[expect(clippy::disallowed_methods, reason = "the real time that the runs take")]
    let began = Instant::now();
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let share = all.count.div_ceil(processors as u64 * 2);
    let at_once = ((WORKER_HOURS / all.hours) as u64).clamp(1, share.max(1));
    let (next, is_well) = (AtomicU64::new(all.first), AtomicBool::new(true));
    let program = std::env::current_exe().expect("this program");
    std::thread::scope(|scope| {
        for processor in 0..processors {
            let (next, is_well, program) = (&next, &is_well, &program);
            scope.spawn(move || {
                while is_well.load(Relaxed) {
                    let first = next.fetch_add(at_once, Relaxed);
                    let count = (all.first + all.count).saturating_sub(first).min(at_once);
                    if count == 0 {
                        break;
                    }
                    let mut worker = Command::new(program);
                    worker.arg("--worker").args([processor as u64, first, count].map(|n| n.to_string()));
                    worker.args([all.hours.to_string(), all.hosts.to_string()]).args(&all.fault);
                    if !worker.status().is_ok_and(|status| status.success()) {
                        is_well.store(false, Relaxed);
                    }
                }
            });
        }
    });
    let (is_well, hours) = (is_well.into_inner(), all.count as f64 * all.hours);
    if is_well {
        println!("{} seeds: {hours:.1} virtual hours in {:?}", all.count, began.elapsed());
    }
    is_well
}

/// Runs seeds, one after the other.
fn work(given: &Arguments) -> bool {
    if let Some(fault) = &given.fault {
        assert!(planted::plant_by_name(fault), "no fault is called {fault}");
    }
    let time = Duration::from_secs_f64(given.hours * 3600.0);
    for seed in given.first..given.first + given.count {
        let script = script::draw(seed, given.hosts, time);
        let outcome = run::run(seed, given.hosts, &script);
        let (done, failed) = outcome.done;
        println!("seed {seed}: {:?}, {done} operations done, {failed} failed", outcome.ran);
        if !outcome.found.is_empty() {
            outcome.found.iter().for_each(|found| println!("FAILED: {found}"));
            println!(
                "repeat it with: make simulate SEED={seed} SEEDS=1 HOURS={} HOSTS={}",
                given.hours, given.hosts
            );
            if given.fault.is_none() && std::env::var_os("SIM_BRIEF").is_none() {
                report(seed, given.hosts, &script);
            }
            return false;
        }
    }
    true
}

fn report(seed: u64, hosts: usize, script: &[Step]) {
    let (shortest, outcome) = shorten(seed, hosts, script.to_vec());
    println!("the shortest script of {} steps that fails:", shortest.len());
    shortest.iter().for_each(|step| println!("  {step:?}"));
    outcome.iter().flat_map(|outcome| &outcome.found).for_each(|found| println!("with it: {found}"));
}

/// Removes every part without which the run still fails: halves first, then ever smaller parts.
fn shorten(seed: u64, hosts: usize, mut script: Vec<Step>) -> (Vec<Step>, Option<Outcome>) {
    let (mut part, mut last) = (script.len() / 2, None);
    while part > 0 {
        let mut at = 0;
        while at < script.len() {
            let mut without = script.clone();
            without.drain(at..(at + part).min(script.len()));
            let outcome = run::run(seed, hosts, &without);
            if outcome.found.is_empty() {
                at += part;
            } else {
                (script, last) = (without, Some(outcome));
            }
        }
        part /= 2;
    }
    (script, last)
}
