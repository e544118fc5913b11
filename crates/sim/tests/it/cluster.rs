//! Hosts on one simulated store: the same seed gives the same run, many runs find nothing, and
//! planted faults are found.

use std::process::{Command, Output};
use std::time::Duration;

use outrigger_sim::planted::{self, Planted};
use outrigger_sim::{run, script};

/// Runs seeds in separate processes, on all processors.
fn simulate(seeds: u64, hours: f64, hosts: usize, fault: Option<Planted>) -> Output {
    let mut program = Command::new(env!("CARGO_BIN_EXE_outrigger-sim"));
    program.args(["1", &seeds.to_string(), &hours.to_string(), &hosts.to_string()]);
    program.args(fault.map(|fault| format!("{fault:?}"))).output().unwrap()
}

fn said(output: &Output) -> String {
    [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes)).concat()
}

#[test]
fn the_same_seed_is_the_same_run() {
    let _turn = crate::turn();
    let script = script::draw(1, 2, Duration::from_secs(600));
    let (one, again) = (run::run(1, 2, &script), run::run(1, 2, &script));
    assert_eq!(one.found, [""; 0]);
    assert!(one.done.0 > 60, "{:?}", one.done);
    assert_eq!(one.ran, again.ran);
}

#[test]
fn nothing_is_wrong_in_a_hundred_seeds() {
    let output = simulate(100, 0.25, 3, None);
    assert!(output.status.success(), "{}", said(&output));
}

/// Faults in the simulated servers are found within a few seeds.
#[test]
fn planted_faults_are_found() {
    let mut missed = Vec::new();
    for fault in planted::ALL {
        let output = simulate(24, 0.5, 3, Some(fault));
        let text = said(&output);
        let found = text.lines().find(|line| line.starts_with("FAILED"));
        println!("{fault:?}: {found:?}");
        if output.status.success() || found.is_none() {
            missed.push((fault, text));
        }
    }
    assert!(missed.is_empty(), "{missed:?}");
}
