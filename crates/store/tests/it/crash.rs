//! Power loss at every step of small workloads, the database included: the store opens,
//! acknowledged data is there, and every file reads back.
//!
//! A workload runs under `strace` (`testing::crash`) and prints what was acknowledged. Then each
//! legal state of the disk after a power loss is made in a directory and checked.
#![cfg(feature = "testing")]

use crate::gc_support;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use gc_support::*;
use outrigger_store::gc::GcOptions;
use outrigger_store::meta::At;
use outrigger_store::recover::{RecoverProgress, recover};
use outrigger_store::testing::crash::{CrashState, Exploration, Mode, Trace, record, unavailable};
use outrigger_store::{ErrorKind, Store, StoreConfig, ops};

/// Runs the workload `variant` in `dir`, recorded.
fn record_workload(dir: &Path, variant: &str) -> Trace {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "crash::workload", "--nocapture"]);
    command.env("CRASH_DIR", dir).env("CRASH_VARIANT", variant);
    let trace = record(&command, dir).unwrap();
    let stderr = String::from_utf8_lossy(&trace.stderr);
    assert!(trace.status.unwrap().success(), "the workload failed: {stderr}");
    trace
}

/// The workload of the recorded process.
#[test]
fn workload() {
    let (Some(dir), Ok(variant)) =
        (std::env::var_os("CRASH_DIR").map(PathBuf::from), std::env::var("CRASH_VARIANT"))
    else {
        return;
    };
    let say = |what: &str| println!("\n{what}");
    if variant == "init" {
        Store::init(&dir.join("store"), &small_packs()).unwrap();
        return say("init");
    }
    let store = open(&dir);
    let put = |name: &str, seed: u64, blocks: u32| {
        say(&format!("begin {name} {seed}"));
        put_bytes(&store, name, content(seed, blocks)).unwrap();
        say(&format!("holds {name} {seed}"));
    };
    let rm = |name: &str| {
        say(&format!("begin {name} -"));
        remove(&store, name).unwrap();
        say(&format!("holds {name} -"));
    };
    match variant.as_str() {
        "put" => {
            put("a", 1, 3);
            put("d/b", 2, 2);
            put("a", 3, 3);
            rm("d/b");
        }
        "gc" => {
            put("new", 40, 2);
            rm("0");
            ops::snapshots::delete(&store, &["old".to_string()]).unwrap();
            collect(&store, &thorough()).unwrap();
            say("gc");
            put("after", 41, 1);
        }
        "snapshot" => {
            ops::snapshots::create(&store, Some("s"), "", &[]).unwrap();
            say("snapshot");
            put("1", 50, 2);
            collect(&store, &thorough()).unwrap();
            say("gc");
        }
        "compact" => {
            put("1", 60, 1);
            assert!(
                collect(&store, &GcOptions { catalogue_min: 0, ..thorough() }).unwrap().catalogue_compacted
            );
            say("gc");
            put("2", 61, 1);
        }
        _ => panic!("{variant}"),
    }
}

/// Checks the store after a crash. `before` are its contents when the recording began; `again`
/// checks once more, after a collection or a recovery.
fn inspect(
    dir: &Path,
    state: &CrashState,
    before: &BTreeMap<String, u64>,
    variant: &str,
    again: bool,
) -> Result<(), String> {
    let text = |error: outrigger_store::Error| error.to_string();
    let lines = state.acknowledged_lines();
    // Name → the contents it may have: the last acknowledged one, and those begun after that.
    let mut allowed: BTreeMap<String, Vec<Option<u64>>> =
        before.iter().map(|(name, seed)| (name.clone(), vec![Some(*seed)])).collect();
    for line in &lines {
        match line.split(' ').collect::<Vec<_>>()[..] {
            ["begin", name, seed] => {
                allowed.entry(name.into()).or_insert_with(|| vec![None]).push(seed.parse().ok())
            }
            ["holds", name, seed] => drop(allowed.insert(name.into(), vec![seed.parse().ok()])),
            _ => {}
        }
    }
    let mut store = Store::open(&dir.join("store"), false).map_err(text)?;
    let look = |store: &Store, when: &str| -> Result<(), String> {
        for (name, allowed) in &allowed {
            let bytes = read_at(store, At::Now, name).map_err(|error| format!("{when} {name}: {error}"))?;
            let held = bytes.as_deref().map(seed_of);
            if !allowed.contains(&held) {
                return Err(format!("{when} {name} holds {held:?}, not one of {allowed:?}"));
            }
        }
        verify_all(store).map(drop).map_err(|wrong| format!("{when} {wrong}"))?;
        if lines.iter().any(|line| line == "snapshot") {
            let snapshots = store.meta.snapshots().map_err(text)?;
            let snapshot =
                snapshots.iter().find(|snapshot| snapshot.name == "s").ok_or("the snapshot is lost")?;
            for (name, seed) in before {
                let bytes = read_at(store, At::Epoch(snapshot.epoch), name).map_err(text)?;
                if bytes.as_deref().map(seed_of) != Some(*seed) {
                    return Err(format!("{when} {name} of the snapshot is another"));
                }
            }
        }
        Ok(())
    };
    look(&store, "then")?;
    if variant == "compact" && again {
        // The packs alone must give the same, whichever part of the new catalogue is there.
        drop(store);
        for name in ["meta.db", "meta.db-wal", "meta.db-shm"] {
            let _ = std::fs::remove_file(dir.join("store").join(name));
        }
        recover(&dir.join("store"), &RecoverProgress::default())
            .map_err(|error| format!("recover: {error}"))?;
        store = Store::open(&dir.join("store"), false).map_err(text)?;
        return look(&store, "recovered");
    }
    if again {
        // Sessions of the lost run may still count as alive for a minute.
        for session in store.meta.sessions().map_err(text)? {
            store.meta.fence(session.id).map_err(text)?;
        }
        collect(&store, &thorough()).map_err(|error| format!("gc: {error}"))?;
        look(&store, "after gc")?;
    }
    Ok(())
}

/// The long run has `OUTRIGGER_CRASH_STATES` states in place of each budget.
fn budget_of(short: usize) -> usize {
    std::env::var("OUTRIGGER_CRASH_STATES").map_or(short, |number| number.parse().expect("a number"))
}

/// At how many crash points every possibility fits the budget, if it is shared out as evenly as can
/// be.
fn covered(trace: &Trace, mode: Mode, budget: usize) -> String {
    let mut counts = trace.possibilities(mode);
    let points = counts.len();
    counts.sort_unstable();
    let mut left = budget as u64;
    let whole = counts.iter().enumerate().take_while(|&(at, &count)| {
        let fits = count <= left / (points - at) as u64;
        left = left.saturating_sub(count);
        fits
    });
    format!("all there are at {} of {points} crash points, a sample at the others", whole.count())
}

fn explore(variant: &str, budget: usize) {
    if let Some(reason) = unavailable() {
        return outrigger_workload::skipped!("{reason}");
    }
    let dir = scratch();
    let before: BTreeMap<String, u64> = (0..4).map(|n| (n.to_string(), n)).collect();
    {
        let store = init(dir.path());
        for (name, seed) in &before {
            put_bytes(&store, name, content(*seed, 2)).unwrap();
        }
        ops::snapshots::create(&store, Some("old"), "", &[]).unwrap();
        if variant == "compact" {
            // Makes the catalogue worth a rewrite.
            for n in 0..40 {
                put_bytes(&store, "more", content(n, 0)).unwrap();
                remove(&store, "more").unwrap();
            }
        }
    }
    let trace = record_workload(dir.path(), variant);
    let unlinked = trace.labels().filter(|label| label.starts_with("remove store/packs/")).count();
    let collects = matches!(variant, "gc" | "compact");
    assert_eq!(unlinked > 0, collects, "{unlinked} packs were unlinked by {variant}");
    for mode in [Mode::Strict, Mode::Ordered] {
        let mut count = 0;
        let budget = budget_of(budget);
        let states = trace.for_each_crash(Exploration { mode, budget, seed: 1 }, |dir, state| {
            count += 1;
            inspect(dir, state, &before, variant, count % 3 == 0)
        });
        println!("{variant}, {mode:?}: {states} states; {}", covered(&trace, mode, budget));
        assert!(states > 50, "only {states} states");
    }
}

#[test]
fn puts_survive() {
    explore("put", 220);
}

#[test]
fn collected_stores_survive() {
    explore("gc", 260);
}

#[test]
fn a_catalogue_written_anew_survives() {
    explore("compact", 160);
}

#[test]
fn snapshots_survive() {
    explore("snapshot", 160);
}

#[test]
fn a_store_is_made_whole_or_not_at_all() {
    if let Some(reason) = unavailable() {
        return outrigger_workload::skipped!("{reason}");
    }
    let dir = scratch();
    let trace = record_workload(dir.path(), "init");
    for mode in [Mode::Strict, Mode::Ordered] {
        let budget = budget_of(300);
        let states = trace.for_each_crash(Exploration { mode, budget, seed: 2 }, |dir, state| {
            let store = dir.join("store");
            match Store::open(&store, false) {
                Ok(opened) => {
                    put_bytes(&opened, "a", content(1, 1)).map(drop).map_err(|error| error.to_string())
                }
                Err(_) if state.acknowledged_lines().iter().any(|line| line == "init") => {
                    Err("the store is lost".into())
                }
                Err(error) if error.kind() == ErrorKind::NotFound => {
                    let config: StoreConfig = small_packs();
                    Store::init(&store, &config).map(drop).map_err(|error| format!("made again: {error}"))
                }
                Err(error) => Err(error.to_string()),
            }
        });
        println!("init, {mode:?}: {states} states; {}", covered(&trace, mode, budget));
    }
}
