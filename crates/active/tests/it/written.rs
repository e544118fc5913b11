//! Tailed files: rules, mount, socket, runner and programs together, without a kernel.

use crate::support;

use std::any::Any;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use outrigger_active::identity::Submitter;
use outrigger_active::job::Attach;
use outrigger_active::job::spec::Spec;
use outrigger_active::maker::Maker;
use outrigger_active::pattern::Pattern::{self, WriteToFile, WriteToNothing, WriteToTwo};
use outrigger_active::plan::Splits;
use outrigger_active::progress::Counters;
use outrigger_active::rules::{self, Trigger};
use outrigger_active::runner::{self, Report, RunOptions};
use outrigger_active::trust::Trust;
use outrigger_format::catalogue::FileKind;
use outrigger_fuse::control::{Client, Server};
use outrigger_fuse::fs::{Caller, Counted, FileSystem, Found, Handle, NewNode, OpenFlags, ROOT};
use outrigger_fuse::live::{LiveOptions, LiveVolume, Stale};
use outrigger_fuse::report::Reports;
use outrigger_store::meta::jobs::{JobId, JobState};
use outrigger_store::{Result, Store};
use outrigger_workload::Rng;
use rustix::fs::OFlags;
use support::{Place, spec};

const ME: Caller = Caller { uid: 0, gid: 0, pid: 1 };

/// A store that is mounted, except for the kernel.
struct Mounted {
    volume: Arc<LiveVolume>,
    _counted: Arc<Counted<LiveVolume>>,
    _server: Server,
}

impl Mounted {
    fn new(place: &Place) -> Self {
        let dir = place.dir.path().join("store");
        let store = Arc::new(Store::open(&dir, false).unwrap());
        let options = LiveOptions { idle: Duration::from_secs(3600), ..LiveOptions::new(2) };
        let reports = Reports::new(|text| println!("{text}"));
        let volume = Arc::new(LiveVolume::open(Arc::clone(&store), options, reports).unwrap());
        volume.set_tail_rules(Arc::new(Maker::new(&store))).unwrap();
        let counted = Arc::new(Counted::new(Arc::clone(&volume)));
        let server = Server::start(&counted, &dir, Arc::new(|_: &Stale| {})).unwrap();
        Self { volume, _counted: counted, _server: server }
    }

    fn directory(&self, name: &str) -> u64 {
        let new = NewNode { kind: FileKind::Directory, mode: 0o755, umask: 0, rdev: 0 };
        self.volume.make(ME, ROOT, name.as_bytes(), new).unwrap().attr.number
    }

    fn create(&self, directory: u64, name: &str) -> (u64, Handle) {
        let new = NewNode { kind: FileKind::File, mode: 0o644, umask: 0, rdev: 0 };
        let flags = OpenFlags::RDWR | OFlags::CREATE;
        let (entry, opened) = self.volume.create(ME, directory, name.as_bytes(), new, flags).unwrap();
        (entry.attr.number, opened.handle)
    }

    fn write(&self, (number, handle): (u64, Handle), offset: u64, data: &[u8]) {
        self.volume.write(ME, number, handle, offset, data, false).unwrap();
    }

    fn close(&self, (number, handle): (u64, Handle)) {
        self.volume.release(number, handle);
    }
}

/// Lets the mount go on when it is dropped.
struct Held(Client);

impl Drop for Held {
    fn drop(&mut self) {
        let _ = self.0.ask("release");
    }
}

/// Has a mount, if there is one, stop changes.
fn quiet(dir: PathBuf) -> impl Fn() -> Result<Box<dyn Any>> + Sync {
    move || {
        let Some(mut mount) = Client::connect(&dir)? else { return Ok(Box::new(()) as Box<dyn Any>) };
        mount.ask("hold")?;
        Ok(Box::new(Held(mount)))
    }
}

fn run(place: &Place, job: JobId) -> Report {
    let quiet = quiet(place.dir.path().join("store"));
    let options = RunOptions {
        slots: 1,
        threads: 2,
        before_publish: &quiet,
        prints: false,
        drain: None,
        leave_rest: false,
        make_way: None,
        idle: false,
        groups: None,
        trust: Arc::new(Trust::own()),
    };
    runner::run(&place.store, job, &options, &Arc::new(Counters::default())).unwrap()
}

fn newest(place: &Place) -> JobId {
    place.store.jobs().jobs(1).unwrap()[0].id
}

fn rule(place: &Place, name: &str, glob: &str, spec: Spec) {
    let nothing = Vec::new();
    rules::add(&place.store, name, Trigger::Write, (glob, nothing), spec, Splits::Auto, false).unwrap();
}

#[test]
fn what_is_published_is_what_the_program_makes_of_the_whole_file() {
    let place = Place::new();
    let upper = |pattern: Pattern| spec(pattern, &["tr", "a-y", "A-Y"]);
    rule(&place, "two", "two/*", upper(WriteToTwo).output("up/{name}"));
    rule(&place, "one", "one/*", Spec { attach: Attach::Path, ..upper(WriteToFile) });
    let mount = Mounted::new(&place);
    let directories = ["two", "one"].map(|name| (name, mount.directory(name)));
    for seed in 0..16 {
        let mut rng = Rng::new(seed);
        let (directory, number) = directories[seed as usize % 2];
        let name = format!("f{seed}");
        let file = mount.create(number, &name);
        let job = newest(&place);
        let mut content = Vec::new();
        let report = std::thread::scope(|scope| {
            let running = scope.spawn(|| run(&place, job));
            let looks_back = seed % 4 < 2;
            for step in 0..rng.below(40) {
                let at = if looks_back && step % 7 == 6 {
                    rng.below(1 + content.len() as u64)
                } else {
                    content.len() as u64
                };
                let mut data = vec![0; 1 + rng.below(60_000) as usize];
                rng.fill(&mut data);
                data.iter_mut().for_each(|byte| *byte = b'a' + *byte % 26);
                mount.write(file, at, &data);
                let end = at as usize + data.len();
                content.resize(content.len().max(end), 0);
                content[at as usize..end].copy_from_slice(&data);
                std::thread::sleep(Duration::from_millis(rng.below(12)));
            }
            mount.close(file);
            running.join().unwrap()
        });
        assert_eq!(report.job.state, JobState::Done, "seed {seed}: {}", report.job.why);
        let made: Vec<u8> =
            content.iter().map(|byte| if *byte == b'z' { b'z' } else { byte.to_ascii_uppercase() }).collect();
        mount.volume.destage_all().unwrap();
        if directory == "two" {
            assert!(place.get(&format!("two/{name}")).unwrap() == content, "seed {seed}");
            assert!(place.get(&format!("up/{name}")).unwrap() == made, "seed {seed}");
        } else {
            assert!(place.get(&format!("one/{name}")).unwrap() == made, "seed {seed}");
            assert!(matches!(
                mount.volume.lookup(ME, number, name.as_bytes()).unwrap(),
                Found::Entry(entry) if entry.attr.number != file.0
            ));
        }
    }
    mount.volume.close().unwrap();
    place.assert_sound();
}

#[test]
fn a_job_whose_mount_has_gone_runs_over_what_the_tree_has_or_fails() {
    let place = Place::new();
    rule(&place, "r", "raw/*", spec(WriteToTwo, &["tr", "a-z", "A-Z"]).output("up/{name}"));
    rule(&place, "h", "hidden/*", spec(WriteToFile, &["cat"]));
    let mount = Mounted::new(&place);
    let (raw, hidden) = (mount.directory("raw"), mount.directory("hidden"));
    let file = mount.create(raw, "a");
    let stored = newest(&place);
    mount.write(file, 0, b"stored");
    let file = mount.create(hidden, "a");
    let lost = newest(&place);
    mount.write(file, 0, b"lost");
    mount.volume.destage_all().unwrap();
    // It ends without a word. The next mount would take over its log.
    drop(mount);
    let report = run(&place, stored);
    assert_eq!((report.job.state, place.text("up/a")), (JobState::Done, "STORED".to_string()));
    let report = run(&place, lost);
    assert!(report.job.state == JobState::Failed && report.job.why.contains("writer was lost"));
    assert_eq!(place.get("hidden/a"), None);
    let mount = Mounted::new(&place);
    mount.volume.close().unwrap();
    place.assert_sound();
}

#[test]
fn a_file_of_which_no_job_can_be_made_is_a_file_unless_nobody_may_see_it() {
    let place = Place::new();
    place.put("taken/x", b"a directory");
    rule(&place, "r", "raw/*", spec(WriteToTwo, &["cat"]).output("taken"));
    rule(&place, "w", "raw/*", spec(WriteToNothing, &["cat"]));
    let mount = Mounted::new(&place);
    let raw = mount.directory("raw");
    let file = mount.create(raw, "a");
    assert_eq!(place.store.jobs().jobs(9).unwrap().len(), 1, "the other rule's");
    let (_, refused) = rules::log(&place.store, "r", 9).unwrap();
    assert!(refused.len() == 1 && refused[0].why.contains("is a directory"), "{refused:?}");
    mount.write(file, 0, b"x");
    mount.close(file);
    assert_eq!(run(&place, newest(&place)).job.state, JobState::Done);
    // A rule that was made since, and one that pauses.
    rules::pause(&place.store, "w", true).unwrap();
    rule(&place, "n", "raw/b", spec(WriteToNothing, &["cat"]));
    mount.volume.refresh_tail_rules().unwrap();
    for name in ["b", "c"] {
        let file = mount.create(raw, name);
        mount.close(file);
    }
    let jobs = place.store.jobs().jobs(9).unwrap();
    assert!(jobs.len() == 2 && jobs[0].spec.contains("\"n\""), "{jobs:?}");
    mount.volume.close().unwrap();
}

#[test]
fn what_the_owner_of_a_rule_may_not_read_is_not_followed_for_it_and_the_log_says_why() {
    let place = Place::new();
    let owner = Submitter { uid: 4321, gid: 4321, groups: Vec::new() };
    let owned = |pattern: Pattern| Spec { submitter: Some(owner.clone()), ..spec(pattern, &["cat"]) };
    rule(&place, "theirs", "in/**", owned(WriteToNothing));
    rule(&place, "ours", "in/open*", spec(WriteToNothing, &["cat"]));
    let mount = Mounted::new(&place);
    let directory = mount.directory("in");
    let closed = NewNode { kind: FileKind::Directory, mode: 0o750, umask: 0, rdev: 0 };
    let inner = mount.volume.make(ME, directory, b"closed", closed).unwrap().attr.number;
    let create = |directory: u64, name: &str, mode: u32| {
        let new = NewNode { kind: FileKind::File, mode, umask: 0, rdev: 0 };
        let flags = OpenFlags::RDWR | OFlags::CREATE;
        let (entry, opened) = mount.volume.create(ME, directory, name.as_bytes(), new, flags).unwrap();
        let file = (entry.attr.number, opened.handle);
        mount.write(file, 0, b"written");
        mount.close(file);
    };
    let made = || place.store.jobs().jobs(100).unwrap().len();
    let log = |name: &str| rules::log(&place.store, name, 100).unwrap();
    create(directory, "open", 0o644);
    assert_eq!((made(), log("theirs").0.len(), log("ours").0.len()), (2, 1, 1));
    // Only its maker may read the file: only one rule makes a job.
    create(directory, "open-not", 0o600);
    assert_eq!((made(), log("theirs").0.len(), log("ours").0.len()), (3, 1, 2));
    let refused = log("theirs").1;
    assert!(
        refused.len() == 1
            && refused[0].why.contains("in/open-not")
            && refused[0].why.contains("may not read it"),
        "{}",
        refused[0].why
    );
    // Nor does a rule get a file in a directory that its owner may not search, and that only the
    // mount knows yet.
    create(inner, "any", 0o644);
    assert_eq!((made(), log("theirs").1.len()), (3, 2));
    assert!(log("theirs").1.iter().any(|refused| refused.why.contains("search the directory `in/closed`")));
    // The file cannot be hidden for this rule, so it is made like any other: a rule keeps nobody
    // from writing.
    rules::remove(&place.store, "theirs").unwrap();
    rule(&place, "hides", "in/secret*", owned(WriteToFile));
    place.store.jobs();
    mount.volume.refresh_tail_rules().unwrap();
    create(directory, "secret", 0o600);
    assert_eq!((made(), log("hides").1.len()), (3, 1));
    assert!(mount.volume.lookup(ME, directory, b"secret").is_ok());
}
