//! Hosts on one simulated store: the same seed is the same run, and nothing is wrong in it.

use std::sync::Mutex;
use std::time::Duration;

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
