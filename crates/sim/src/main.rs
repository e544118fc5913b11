//! `outrigger-sim SEED [COUNT] [HOURS] [HOSTS]`: runs so many seeds from SEED on, each so long; says what is wrong, and the shortest script that shows it.

use std::time::{Duration, Instant};

use outrigger_sim::cluster::{self, Outcome};
use outrigger_sim::script::{self, Step};

fn main() {
    let arguments: Vec<f64> = std::env::args().skip(1).map(|text| text.parse().expect("a number")).collect();
    let argument = |at: usize, default: f64| arguments.get(at).copied().unwrap_or(default);
    let (first, count) = (argument(0, 1.0) as u64, argument(1, 1.0) as u64);
    let (time, hosts) = (Duration::from_secs_f64(argument(2, 1.0) * 3600.0), argument(3, 4.0) as usize);
    #[expect(clippy::disallowed_methods, reason = "the real time that the runs take")]
    let (began, mut virtual_time) = (Instant::now(), Duration::ZERO);
    for seed in first..first + count {
        let script = script::draw(seed, hosts, time);
        let outcome = cluster::run(seed, hosts, &script);
        virtual_time += outcome.ran.time;
        let (done, failed) = outcome.done;
        println!("seed {seed}: {:?}, {done} operations done, {failed} failed", outcome.ran);
        if !outcome.found.is_empty() {
            report(seed, hosts, &script, &outcome);
            println!("repeat it with: make simulate SEED={seed} HOURS={}", time.as_secs_f64() / 3600.0);
            std::process::exit(1);
        }
    }
    println!(
        "{count} seeds: {:.1} virtual hours in {:?}",
        virtual_time.as_secs_f64() / 3600.0,
        began.elapsed()
    );
}

fn report(seed: u64, hosts: usize, script: &[Step], outcome: &Outcome) {
    outcome.found.iter().for_each(|found| println!("FAILED: {found}"));
    let shortest = shorten(seed, hosts, script.to_vec());
    println!("the shortest script of {} steps that fails:", shortest.len());
    shortest.iter().for_each(|step| println!("  {step:?}"));
}

/// Leaves out whatever it still fails without: halves first, then ever smaller parts.
fn shorten(seed: u64, hosts: usize, mut script: Vec<Step>) -> Vec<Step> {
    let mut part = script.len() / 2;
    while part > 0 {
        let mut at = 0;
        while at < script.len() {
            let mut without = script.clone();
            without.drain(at..(at + part).min(script.len()));
            if cluster::run(seed, hosts, &without).found.is_empty() {
                at += part;
            } else {
                script = without;
            }
        }
        part /= 2;
    }
    script
}
