//! Hosts on one simulated store: the same seed is the same run, and nothing is wrong in it.

use std::sync::Mutex;
use std::time::Duration;

use outrigger_sim::planted::{self, Planted};
use outrigger_sim::{cluster, script};

static TURN: Mutex<()> = Mutex::new(());

#[test]
fn the_same_seed_is_the_same_run() {
    let _turn = TURN.lock().unwrap();
    let script = script::draw(1, 2, Duration::from_secs(600));
    let (one, again) = (cluster::run(1, 2, &script), cluster::run(1, 2, &script));
    assert_eq!(one.found, [""; 0]);
    assert!(one.done.0 > 20, "{:?}", one.done);
    assert_eq!(one.ran, again.ran);
}

/// Faults in the simulated servers are found within a few seeds.
#[test]
fn planted_faults_are_found() {
    let _turn = TURN.lock().unwrap();
    // The script does not reach the others yet: see docs/simulation.md.
    let missed: Vec<_> = [Planted::LostExpectation, Planted::AcknowledgedBeforeCommit, Planted::WrongBytes]
        .into_iter()
        .filter(|&fault| {
            planted::plant(fault);
            let found = (1..=4).find(|&seed| {
                let script = script::draw(seed, 3, Duration::from_secs(900));
                !cluster::run(seed, 3, &script).found.is_empty()
            });
            println!("{fault:?}: {found:?}");
            found.is_none()
        })
        .collect();
    planted::plant(Planted::Nothing);
    assert_eq!(missed, []);
}
