//! Splits by host (`--splits hosts`), over an engine that knows which host holds which pack.

use crate::support;

use std::sync::Arc;

use outrigger_active::job::records::Records;
use outrigger_active::job::spec::Spec;
use outrigger_active::pattern::Pattern::{ManyToFile, ReadToFile};
use outrigger_active::plan::{Splits, submit};
use outrigger_active::progress::Counters;
use outrigger_active::runner;
use outrigger_store::host;
use outrigger_store::meta::jobs::{JobId, JobState};
use outrigger_store::testing::Wrapped;
use outrigger_store::{ErrorKind, Store};
use support::{Place, go, lines, options, read, spec};

/// Lines without repetitions.
fn text(from: usize, count: usize) -> Vec<u8> {
    (from..from + count).flat_map(|line| format!("{line} {:070}\n", line * 7919).into_bytes()).collect()
}

/// Lines of a part: 6 MB.
const PART: usize = 80_000;

fn part(number: usize) -> Vec<u8> {
    text(number * PART * 10, PART)
}

/// A store in which this host holds the first and third part of `in`, and another host the rest;
/// with its place.
fn striped() -> (Place, Arc<Store>) {
    let place = Place::new();
    place.put("near", &[part(0), part(2)].concat());
    let near = place.store.committed_packs().unwrap();
    place.put("far", &[part(1), part(3)].concat());
    place.put("in", &[part(0), part(1), part(2), part(3)].concat());
    let mut store = Store::open(place.store.dir(), false).unwrap();
    let hosts = move |pack| vec![if near.contains(&pack) { host::name() } else { "far".to_string() }];
    store.backend = Arc::new(Wrapped::over(Arc::clone(&store.backend)).located(hosts));
    (place, Arc::new(store))
}

fn submitted(store: &Arc<Store>, spec: &Spec, inputs: &[&str]) -> JobId {
    let inputs: Vec<String> = inputs.iter().map(ToString::to_string).collect();
    submit(store, spec, &inputs, &[], Splits::Hosts).unwrap()
}

fn sorted(text: &[u8]) -> Vec<&[u8]> {
    let mut lines: Vec<&[u8]> = text.split_inclusive(|byte| *byte == b'\n').collect();
    lines.sort_unstable();
    lines
}

/// Checks that `near` is the first and third part of `in` and `far` the others, record for record,
/// except at the seams.
fn assert_striped(near: &[u8], far: &[u8]) {
    let all = [part(0), part(1), part(2), part(3)].concat();
    assert!(sorted(&[near, far].concat()) == sorted(&all), "each record once, and whole");
    let about = |got: &[u8], wanted: [Vec<u8>; 2]| {
        let (got, wanted) = (sorted(got), wanted.concat());
        let here = sorted(&wanted).into_iter().filter(|line| got.binary_search(line).is_ok()).count();
        assert!(here * 100 > PART * 2 * 80, "{here} of {}", PART * 2);
    };
    about(near, [part(0), part(2)]);
    about(far, [part(1), part(3)]);
}

#[test]
fn each_host_has_one_program_that_reads_what_it_holds_as_one_file() {
    let (place, store) = striped();
    let told = "echo $AS_SPLITS $AS_INPUTS $AS_INPUT $AS_LENGTH ${AS_OFFSET:-nowhere} > $AS_OUTPUT_told; cat";
    let job = Spec {
        pattern: outrigger_active::pattern::Pattern::FileToMany,
        ..spec(ReadToFile, &["sh", "-c", told])
    };
    let job = lines(job).output("out/{split}").output("told=told/{split}");
    let id = submitted(&store, &job, &["in"]);
    let counters = Arc::new(Counters::default());
    assert_eq!(runner::run(&store, id, &options(2), &counters).unwrap().job.state, JobState::Done);
    let (near, far) = (read(&store, "out/00000").unwrap(), read(&store, "out/00001").unwrap());
    assert_striped(&near, &far);
    assert_eq!(counters.view().records_read, PART as u64 * 4, "each line is counted once");
    for (number, out) in [(0, &near), (1, &far)] {
        assert_eq!(place.text(&format!("told/{number:05}")), format!("2 1 in {} nowhere\n", out.len()));
    }
    // Joined outputs are joined host by host.
    let job = lines(spec(ReadToFile, &["cat"])).output("joined");
    let id = submitted(&store, &job, &["in"]);
    // The holders are unknown now: the splits stay as they were cut.
    assert_eq!(go(&place.store, id, 1).unwrap().job.state, JobState::Done);
    assert!(place.get("joined").unwrap() == [near, far].concat());
    place.assert_sound();
}

#[test]
fn a_retry_reads_what_the_first_attempt_would_have() {
    let (place, store) = striped();
    let mark = place.dir.path().join("mark");
    let script = format!("test $AS_SPLIT = 0 || test -e {} || exit 3; cat", mark.display());
    let job = lines(spec(ReadToFile, &["sh", "-c", &script])).output("out");
    let id = submitted(&store, &job, &["in"]);
    let report = go(&store, id, 2).unwrap();
    assert_eq!((report.job.state, report.set_aside.len()), (JobState::Failed, 1));
    assert_eq!(report.set_aside[0].held_by.as_deref(), Some("far"));
    std::fs::write(mark, "").unwrap();
    place.store.jobs().retry_job(id).unwrap();
    assert_eq!(go(&place.store, id, 2).unwrap().job.state, JobState::Done);
    let out = place.get("out").unwrap();
    let all = [part(0), part(1), part(2), part(3)].concat();
    assert!(out != all && sorted(&out) == sorted(&all));
}

#[test]
fn who_reads_files_sees_the_same_as_one_file() {
    if !std::path::Path::new("/dev/fuse").exists() {
        outrigger_workload::skipped!("there is no /dev/fuse");
        return;
    }
    let (place, store) = striped();
    let job = lines(spec(ReadToFile, &["cat", "{in}"])).output("files/{split}");
    let id = submitted(&store, &job, &["in"]);
    let report = match go(&store, id, 2) {
        Err(error) if error.kind() == ErrorKind::Denied => return outrigger_workload::skipped!("{error}"),
        report => report.unwrap(),
    };
    assert_eq!(report.job.state, JobState::Done, "{}", report.job.why);
    assert_striped(&place.get("files/00000").unwrap(), &place.get("files/00001").unwrap());
    // It is a file: it has a length and a name, and can be read from anywhere.
    let script = "wc -c < $1; basename $1; tail -c 100 $1 | tail -n 1; dd if=$1 bs=1 skip=6000000 count=70 2>/dev/null | wc -c";
    let job = lines(spec(ReadToFile, &["sh", "-c", script, "sh", "{in}"])).output("looks/{split}");
    let id = submitted(&store, &job, &["in"]);
    assert_eq!(go(&store, id, 2).unwrap().job.state, JobState::Done);
    for split in ["00000", "00001"] {
        let file = place.get(&format!("files/{split}")).unwrap();
        let last = file.split_inclusive(|byte| *byte == b'\n').next_back().unwrap();
        let wanted = format!("{}\nin\n{}70\n", file.len(), std::str::from_utf8(last).unwrap());
        assert_eq!(place.text(&format!("looks/{split}")), wanted);
    }
}

#[test]
fn of_many_files_each_host_has_one_split_too() {
    let (place, store) = striped();
    let job = lines(spec(ManyToFile, &["sh", "-c", "echo $AS_INPUTS $(wc -l)"])).output("counts");
    // Small inputs are whole splits of the host that holds most of them.
    place.put("small", &text(0, 10_000));
    let id = submitted(&store, &job, &["near", "small", "far", "in"]);
    assert_eq!(go(&store, id, 1).unwrap().job.state, JobState::Done);
    let counts = place.text("counts");
    let counts: Vec<(u64, usize)> = counts
        .lines()
        .map(|line| line.split_once(' ').unwrap())
        .map(|(inputs, lines)| (inputs.parse().unwrap(), lines.trim().parse().unwrap()))
        .collect();
    assert_eq!(counts.len(), 2, "{counts:?}");
    assert_eq!((counts[0].0, counts[1].0), (3, 2), "{counts:?}");
    assert_eq!(counts[0].1 + counts[1].1, PART * 8 + 10_000);
    // With outputs for each input, each of them is cut by itself.
    let job = lines(spec(ReadToFile, &["cat"])).output("each/{name}");
    let id = submitted(&store, &job, &["near", "far", "in"]);
    assert_eq!(store.jobs().splits(id).unwrap().len(), 4);
    assert_eq!(go(&store, id, 2).unwrap().job.state, JobState::Done);
    assert!(place.get("each/near") == place.get("near") && place.get("each/far") == place.get("far"));
}

#[test]
fn where_nobody_says_who_holds_what_it_is_one_split() {
    let place = Place::new();
    place.put("a", &part(0));
    place.put("b", &part(1));
    let job = lines(spec(ReadToFile, &["cat"])).output("out/{name}");
    let id = place.submit(&job, &["a", "b"], Splits::Hosts).unwrap();
    let jobs = place.store.jobs();
    assert_eq!(jobs.splits(id).unwrap().len(), 2);
    let row = jobs.job(id).unwrap().unwrap();
    assert!(Spec::decode(&row.spec).unwrap().by_host.is_empty());
    assert_eq!(place.go(id).unwrap().job.state, JobState::Done);
    assert!(place.get("out/b").unwrap() == part(1));
    let job = lines(spec(ManyToFile, &["cat"])).output("all");
    let id = place.submit(&job, &["a", "b"], Splits::Hosts).unwrap();
    assert_eq!((jobs.splits(id).unwrap().len(), place.go(id).unwrap().job.state), (1, JobState::Done));
    assert!(place.get("all").unwrap() == [part(0), part(1)].concat());
}

#[test]
fn what_cannot_be_one_file_is_refused() {
    let place = Place::new();
    place.put("a", b"1\n");
    let whole = spec(ReadToFile, &["cat"]).output("out");
    for (wrong, says) in [
        (whole.clone(), "--records"),
        (Spec { records: Records::Bam, ..whole.clone() }, "header"),
        (lines(spec(ReadToFile, &["cat", "{in.1}"]).output("out")), "use {in}"),
    ] {
        let error = place.submit(&wrong, &["a"], Splits::Hosts).unwrap_err();
        assert!(error.kind() == ErrorKind::Invalid && error.to_string().contains(says), "{error}");
    }
}

#[test]
fn side_inputs_do_not_lie_where_hosts_splits_do() {
    let (_place, store) = striped();
    let text = b"1\n".to_vec();
    support::put(&store, ".splits/0/in", &text);
    let with = [".splits/**".to_string()];
    let of = |program: &[&str]| {
        let job = lines(spec(ReadToFile, program)).output("out");
        submit(&store, &job, &["in".to_string()], &with, Splits::Hosts)
    };
    let error = of(&["cat", "{in}"]).unwrap_err();
    assert!(error.kind() == ErrorKind::Invalid && error.to_string().contains("other names"), "{error}");
    // Without such files nothing clashes.
    of(&["cat"]).unwrap();
}

#[test]
fn who_says_where_lines_begin_in_a_file_refuses_pieces_of_it() {
    let (place, store) = striped();
    let index = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("components/index");
    let job = lines(spec(ReadToFile, &["sh", index.to_str().unwrap()])).output("index");
    let report = go(&store, submitted(&store, &job, &["in"]), 2).unwrap();
    assert!(report.job.why.contains("use --splits auto"), "{}", report.job.why);
    // An input that one host holds completely has an offset.
    let report = go(&store, submitted(&store, &job, &["near"]), 2).unwrap();
    assert_eq!(report.job.state, JobState::Done);
    assert!(place.text("index").starts_with("0\t0\n1\t"));
}
