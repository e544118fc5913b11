//! Runs every experiment at its smallest, so that none rots. Each checks its own answers, and its
//! record must be one that can be kept, read and drawn. No time is asserted.
//!
//! An experiment whose programs are missing is skipped with a line. Those of [`ON_A_CLUSTER`] need
//! hosts of their own.
#![allow(clippy::disallowed_methods, reason = "tests wait and measure in real time")]

use outrigger_eval::record::{Outcome, SCHEMA};
use outrigger_eval::{Failed, Lab, Machine, Record, Scale, papers, registry, report};

/// These measure between hosts, or in a bucket.
const ON_A_CLUSTER: [&str; 2] = ["active-5", "beyond-buckets"];

fn record(id: &str, machine: &Machine, outcome: Outcome) -> Record {
    Record {
        schema: SCHEMA,
        experiment: id.to_string(),
        scale: Scale::Tiny,
        date: "2026-01-02".into(),
        version: "0.1.0".into(),
        commit: "abc".into(),
        machine: machine.clone(),
        load: 0.0,
        others: None,
        command: format!("outrigger-eval run {id} --scale tiny"),
        seconds: 0.0,
        outcome,
    }
}

/// A name without its numbers.
fn uncounted(name: &str) -> String {
    name.replace(|letter: char| letter.is_ascii_digit(), "")
}

/// One test for all, because each experiment uses every core.
#[test]
#[ignore = "slow: every experiment, minutes"]
fn every_experiment_runs_and_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    let (work, records, out) = (dir.path().join("work"), dir.path().join("records"), dir.path().join("out"));
    std::fs::create_dir(&work).unwrap();
    let mut lab = Lab::tiny(&work);
    // The tests' own programs lie one directory below the workspace's.
    let program = std::env::current_exe().unwrap().parent().unwrap().with_file_name("outrigger");
    lab.outrigger = program.exists().then_some(program);
    let machine = Machine::here(&work);
    let experiments = registry::all();
    let mut done = 0;
    for experiment in &experiments {
        let outcome = match (experiment.run)(&lab) {
            Ok(outcome) => outcome,
            Err(Failed::Missing(why)) => {
                if ON_A_CLUSTER.contains(&experiment.id) {
                    outrigger_workload::lacking!("{}: {why}", experiment.id);
                } else {
                    outrigger_workload::skipped!("{}: {why}", experiment.id);
                }
                continue;
            }
            Err(error) => panic!("{}: {error}", experiment.id),
        };
        outcome.check().unwrap_or_else(|error| panic!("{}: {error}", experiment.id));
        // A number of the paper that no finding has the name of would never be shown. Counts of
        // hosts and files differ by scale.
        let found: Vec<String> = outcome.findings.iter().map(|finding| uncounted(&finding.name)).collect();
        for (name, _) in experiment.said {
            // In tiny runs there is one host.
            let of_several = [", 2 hosts: ", ", 4 hosts: "].iter().any(|hosts| name.contains(hosts));
            assert!(
                of_several || found.contains(&uncounted(name)),
                "{}: nothing is called `{name}`: {found:?}",
                experiment.id
            );
        }
        let record = record(experiment.id, &machine, outcome);
        let unplaced = papers::unplaced(&record);
        assert!(
            unplaced.is_empty(),
            "{}: the papers' numbers stand beside nothing: {unplaced:?}",
            experiment.id
        );
        record.save(&records).unwrap();
        done += 1;
    }
    assert!(std::fs::read_dir(&work).unwrap().next().is_none(), "experiments clean up behind themselves");
    let loaded = Record::load_all(&records).unwrap();
    assert_eq!(loaded.len(), done);
    report::write(&experiments, &loaded, &out).unwrap();
    let (page, text) = (out.join("report.html"), out.join("report.md"));
    let (page, text) = (std::fs::read_to_string(page).unwrap(), std::fs::read_to_string(text).unwrap());
    for record in &loaded {
        assert!(page.contains(&format!("id=\"{}\"", record.experiment)), "{}", record.experiment);
        let command = format!("`target/release/outrigger-eval run {} --scale tiny`", record.experiment);
        assert!(text.contains(&command), "{command}");
    }
    let plots: usize = loaded.iter().map(|record| record.outcome.plots.len()).sum();
    assert_eq!(page.matches("<svg ").count(), plots);
    assert!(!page.contains("<script") && !page.contains("src=\"http") && !page.contains("NaN"));
}

#[test]
fn ids_are_unique_and_texts_are_there() {
    let experiments = registry::all();
    let mut ids: Vec<&str> = experiments.iter().map(|one| one.id).collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), experiments.len());
    for one in experiments {
        assert!(one.found.len() > 20 && one.differs.len() > 20 && !one.figure.is_empty(), "{}", one.id);
    }
}

/// The repository's own records: a line that an older record calls a limit is drawn as what it is
/// today. A noisy machine's measurement beyond a limit is marked in the report. This test does not
/// fail for it: records do not change.
#[test]
fn records_that_are_kept_are_drawn_by_what_is_known_today() {
    let dir = tempfile::tempdir().unwrap();
    let kept = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/evaluation/records");
    report::write(&registry::all(), &Record::load_all(&kept).unwrap(), dir.path()).unwrap();
    let text = std::fs::read_to_string(dir.path().join("report.md")).unwrap();
    // A record without the paper's number gets it from the experiment.
    assert!(text.contains("| GeForce 8800, largest block | x | about 20 |"));
    // Today's numbers of the papers replace those in a record: rates over other networks are not
    // compared, and like is compared with like.
    assert!(!text.contains("245") || !text.contains("writing checkpoint images"));
    let by_rabin = text.lines().find(|line| line.contains("by Rabin as the paper does | "));
    let by_rabin = by_rabin.expect("the lines of a record are compared");
    assert!(by_rabin.contains(" MB/s | 2600 | "), "{by_rabin}");
    assert!(!text.contains("processor alone (paper)") && text.contains("processor alone, at most (paper)"));
    assert!(text.contains("| similarity, gear32:256K/1M/4M | % | 76 to 90 |"));
    // Two machines are distinguished.
    assert!(text.contains("| the paper's GTX 480 | amd-epyc-2cpu-25gb-avx2 | `ghost-3` |"));
    assert!(text.contains("aminogen: time of the client, amd-epyc-2cpu-25gb-avx2:"));
    let page = std::fs::read_to_string(dir.path().join("report.html")).unwrap();
    assert!(page.contains("class=\"reference\"") && page.contains(">1 round<"));
}

/// Records of two machines stand side by side; one from a later version is refused by name.
#[test]
fn records_of_other_machines_can_be_added() {
    let dir = tempfile::tempdir().unwrap();
    let here = Machine::here(dir.path());
    let other =
        Machine { cpu: "Other <CPU>".into(), cpus: 64, devices: vec!["NVIDIA H200".into()], ..here.clone() };
    let mut outcome = Outcome::default();
    outcome.find("rate", 100.0, "MB/s", Some(25.0));
    outcome.duel("hashing", 100.0, 50.0, "measured", "MB/s");
    let experiments = registry::all();
    let id = experiments[0].id;
    record(id, &here, outcome.clone()).save(dir.path()).unwrap();
    outcome.findings[0].value = 200.0;
    let path = record(id, &other, outcome).save(dir.path()).unwrap();
    assert!(path.ends_with(format!(
        "other-cpu-64cpu-{}gb-{}-nvidia-h200/{id}.json",
        (here.memory as f64 / 1e9).round(),
        here.simd
    )));
    let records = Record::load_all(dir.path()).unwrap();
    report::write(&experiments, &records, &dir.path().join("out")).unwrap();
    let text = std::fs::read_to_string(dir.path().join("out/report.md")).unwrap();
    let row = text.lines().find(|line| line.starts_with("| rate |")).unwrap();
    assert!(row.contains("| 25 |") && row.contains("100") && row.contains("200"), "{row}");
    assert!(
        text.find("Where today's processor beats the device").unwrap() < text.find("How to read it").unwrap()
    );
    let newer =
        std::fs::read_to_string(&path).unwrap().replace(&format!("\"schema\": {SCHEMA}"), "\"schema\": 99");
    std::fs::write(&path, newer).unwrap();
    let error = Record::load_all(dir.path()).unwrap_err().to_string();
    assert!(error.contains("newer") && error.contains(id), "{error}");
}
