//! Rules for files that are opened to be read: what a mount tells, and what agents make of it.

use crate::support;

use std::sync::Arc;
use std::time::Duration;

use outrigger_active::job::spec::Spec;
use outrigger_active::pattern::Pattern::{ReadToFile, ReadToNothing, WriteToTwo};
use outrigger_active::plan::Splits;
use outrigger_active::rules::{self, Looked, READ_EVERY, Readers, Rule, Trigger, Watcher};
use outrigger_clock::now_nanos;
use outrigger_format::catalogue::FileKind;
use outrigger_fuse::fs::{Caller, FileSystem, Found, NewNode, OpenFlags, ROOT};
use outrigger_fuse::live::{LiveOptions, LiveVolume};
use outrigger_fuse::report::Reports;
use outrigger_store::Store;
use outrigger_store::meta::At;
use outrigger_store::meta::jobs::{JobId, JobState};
use outrigger_store::meta::records::RecordRow;
use outrigger_store::tree::{StorePath, find};
use outrigger_workload::eventually;
use rustix::fs::OFlags;
use support::{Place, spec};

/// This process, which no job runs.
fn me() -> Caller {
    Caller { uid: 0, gid: 0, pid: std::process::id() }
}

fn add(place: &Place, name: &str, glob: &str, spec: Spec) -> Rule {
    rules::add(&place.store, name, Trigger::Read, (glob, Vec::new()), spec, Splits::Auto, false).unwrap();
    rules::list(&place.store).unwrap().into_iter().find(|(other, _)| other == name).unwrap().1.unwrap()
}

fn look(place: &Place) -> Looked {
    Watcher::default().look(&place.store).unwrap()
}

/// The jobs that a look makes.
fn made(place: &Place) -> Vec<JobId> {
    let looked = look(place);
    assert!(looked.trouble.is_empty());
    looked.made.into_iter().map(|(_, job)| job).collect()
}

fn notes(place: &Place) -> Vec<RecordRow> {
    place.store.meta.records().records("rule-read").unwrap()
}

fn inode(place: &Place, path: &str) -> u64 {
    find(&*place.store.meta, At::Now, &StorePath::parse(path.as_bytes()).unwrap()).unwrap().unwrap().number
}

/// As a mount notes it.
fn note(place: &Place, rule: &Rule, path: &str, when: u64) {
    let inode = inode(place, path);
    let value = serde_json::json!({"rule": rule.id, "inode": inode, "when": when}).to_string();
    let name = format!("{}/{inode}", rule.id);
    place.store.meta.records().set_record("rule-read", &name, Some(&value)).unwrap();
}

#[test]
fn each_event_makes_one_job_whoever_looks_and_however_often() {
    let place = Place::new();
    place.put("in/a", b"first");
    place.put("other/a", b"x");
    let rule = add(&place, "r", "in/*", spec(ReadToFile, &["tr", "a-z", "A-Z"]).output("up/{name}"));
    assert_eq!(made(&place), [], "nobody has read it");
    let (now, while_) = (now_nanos(), READ_EVERY.as_nanos() as u64);
    note(&place, &rule, "in/a", now);
    let jobs = made(&place);
    assert_eq!((jobs.len(), notes(&place).len()), (1, 0));
    // While the job is open what is read waits; an agent that was killed before the note went makes
    // no second one.
    note(&place, &rule, "in/a", now + 2 * while_);
    assert_eq!((made(&place), notes(&place).len()), (vec![], 1));
    assert_eq!(place.go(jobs[0]).unwrap().job.state, JobState::Done);
    assert_eq!(place.text("up/a"), "FIRST");
    note(&place, &rule, "in/a", now);
    assert_eq!((made(&place), notes(&place).len()), (vec![], 0), "the same event");
    note(&place, &rule, "in/a", now + while_ - 1);
    assert_eq!((made(&place), notes(&place).len()), (vec![], 0), "too soon");
    note(&place, &rule, "in/a", now + while_);
    let jobs = made(&place);
    assert_eq!(jobs.len(), 1, "after a while");
    place.go(jobs[0]).unwrap();
    // Another content counts at once.
    place.put("in/a", b"second");
    note(&place, &rule, "in/a", now + while_ + 1);
    let jobs = made(&place);
    assert_eq!(jobs.len(), 1);
    place.go(jobs[0]).unwrap();
    assert_eq!(place.text("up/a"), "SECOND");
    // Several agents that look at once; paused; gone.
    place.put("in/b", b"b");
    note(&place, &rule, "in/b", now);
    rules::pause(&place.store, "r", true).unwrap();
    assert_eq!((made(&place), notes(&place).len()), (vec![], 1));
    rules::pause(&place.store, "r", false).unwrap();
    let all: usize = std::thread::scope(|scope| {
        let lookers: Vec<_> = (0..4).map(|_| scope.spawn(|| made(&place).len())).collect();
        lookers.into_iter().map(|looker| looker.join().unwrap()).sum()
    });
    assert_eq!(all, 1);
    note(&place, &rule, "other/a", now);
    assert_eq!((made(&place), notes(&place).len()), (vec![], 0), "it is none of the rule's");
    note(&place, &rule, "in/a", now + 9 * while_);
    rules::remove(&place.store, "r").unwrap();
    assert_eq!((made(&place), notes(&place).len()), (vec![], 0));
    place.assert_sound();
}

#[test]
fn what_makes_no_sense_is_refused() {
    let place = Place::new();
    let add = |spec: Spec, existing: bool| {
        let glob = ("in/*", Vec::new());
        rules::add(&place.store, "r", Trigger::Read, glob, spec, Splits::Auto, existing)
            .unwrap_err()
            .to_string()
    };
    assert!(add(spec(ReadToNothing, &["true"]), true).contains("--existing"));
    assert!(add(spec(WriteToTwo, &["true"]).output("x"), false).contains("1R->1W"));
    // An output that would set off the rule when it is read.
    let rule = self::add(&place, "loop", "in/**", spec(ReadToFile, &["cat"]).output("in/again/{name}"));
    place.put("in/a", b"x");
    note(&place, &rule, "in/a", now_nanos());
    assert_eq!((made(&place), notes(&place).len()), (vec![], 0));
    let (_, refused) = rules::log(&place.store, "loop", 10).unwrap();
    assert!(refused[0].why.contains("set off"), "{}", refused[0].why);
}

#[test]
fn a_mount_tells_what_is_opened_to_be_read_and_nothing_else() {
    let place = Place::new();
    for name in ["in/a", "in/b", "in/c", "other"] {
        place.put(name, b"stored");
    }
    let store = Arc::new(Store::open(&place.dir.path().join("store"), false).unwrap());
    let options = LiveOptions { idle: Duration::from_secs(3600), ..LiveOptions::new(2) };
    let volume = Arc::new(
        LiveVolume::open(Arc::clone(&store), options, Reports::new(|text| panic!("{text}"))).unwrap(),
    );
    volume.set_reads(Arc::new(Readers::new(&store))).unwrap();
    let number = |parent: u64, name: &str| match volume.lookup(me(), parent, name.as_bytes()).unwrap() {
        Found::Entry(entry) => entry.attr.number,
        Found::Missing { .. } => panic!("`{name}` is not there"),
    };
    let directory = number(ROOT, "in");
    let open = |caller: Caller, number: u64, flags: OpenFlags| {
        let opened = volume.open(caller, number, flags).unwrap();
        volume.release(number, opened.handle);
    };
    // Before there is a rule, and by a program of the kernel's own.
    open(me(), number(directory, "c"), OpenFlags::RDONLY);
    let rule = add(&place, "r", "in/*", spec(ReadToFile, &["cat"]).output("copy/{name}"));
    volume.refresh_tail_rules().unwrap();
    open(Caller::default(), number(directory, "c"), OpenFlags::RDONLY);
    open(me(), number(directory, "c"), OpenFlags::RDWR);
    open(me(), number(ROOT, "other"), OpenFlags::RDONLY);
    // One that the mount alone has so far is stored before it is told.
    let new = NewNode { kind: FileKind::File, mode: 0o644, umask: 0, rdev: 0 };
    let flags = OpenFlags::RDWR | OFlags::CREATE;
    let (entry, opened) = volume.create(me(), directory, b"new", new, flags).unwrap();
    volume.write(me(), entry.attr.number, opened.handle, 0, b"fresh", false).unwrap();
    volume.release(entry.attr.number, opened.handle);
    for _ in 0..3 {
        open(me(), number(directory, "a"), OpenFlags::RDONLY);
        open(me(), entry.attr.number, OpenFlags::RDONLY);
    }
    let until = |count: usize| {
        eventually("there are notes of all", || notes(&place).len() >= count);
    };
    until(2);
    let mut jobs = made(&place);
    jobs.iter().for_each(|job| assert_eq!(place.go(*job).unwrap().job.state, JobState::Done));
    assert_eq!((place.text("copy/a"), place.text("copy/new")), ("stored".into(), "fresh".into()));
    // The same content again is not told; what was told before the next one must be there with it.
    open(me(), number(directory, "a"), OpenFlags::RDONLY);
    open(me(), number(directory, "b"), OpenFlags::RDONLY);
    until(1);
    let told: Vec<String> = notes(&place).into_iter().map(|note| note.name).collect();
    assert_eq!(told, [format!("{}/{}", rule.id, inode(&place, "in/b"))]);
    jobs.extend(made(&place));
    assert_eq!(jobs.len(), 3);
    volume.close().unwrap();
}
