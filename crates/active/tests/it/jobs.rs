//! Jobs that are interrupted, cancelled, retried: whole outputs or none, and finished splits are
//! kept.

use crate::support;

use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use outrigger_active::job::records::Records;
use outrigger_active::job::spec::Spec;
use outrigger_active::pattern::Pattern::{ManyToFile, ReadToFile, ReadToNothing};
use outrigger_active::plan::Splits;
use outrigger_active::runner::runner_of;
use outrigger_store::Store;
use outrigger_store::meta::SessionKind;
use outrigger_store::meta::jobs::{JobId, JobState, SplitState};
use outrigger_store::testing::Wrapped;
use outrigger_workload::Rng;
use outrigger_workload::eventually;
use support::{Place, go, lines, numbered, read, spec};

#[test]
fn what_failed_is_tried_again_and_then_set_aside_by_name() {
    let place = Place::new();
    for name in ["good", "bad", "ugly"] {
        place.put(&format!("in/{name}"), name.as_bytes());
    }
    let picky = "read x; case $x in bad) echo \"attempt $AS_ATTEMPT\" >&2; exit 9;; esac; echo $x";
    let mut job = spec(ReadToFile, &["sh", "-c", picky]).output("out/{name}");
    job.tries = 3;
    let report = place.run(&job, &["in/*"], Splits::Auto).unwrap();
    assert_eq!(report.job.state, JobState::Failed);
    assert_eq!(place.get("out/good"), None, "all or nothing");
    assert_eq!(report.set_aside.len(), 1);
    let aside = &report.set_aside[0];
    assert_eq!(aside.input.as_ref().unwrap().to_string(), "in/bad");
    assert!(aside.why.contains("exit code 9: attempt 3"), "{}", aside.why);
    let log = place.store.jobs().split(report.job.id, aside.split).unwrap().unwrap().log;
    assert_eq!(log, b"attempt 3\n");
    job.skip = true;
    let report = place.run(&job, &["in/*"], Splits::Auto).unwrap();
    assert_eq!((report.job.state, report.set_aside.len(), report.files.len()), (JobState::Done, 1, 2));
    assert_eq!((place.text("out/good"), place.get("out/bad")), ("good\n".into(), None));
    place.assert_sound();
}

/// Tiny splits, as many as a debug build runs in a few seconds; the kept state of each is the same
/// for the first hundred as for the last.
#[test]
fn a_job_of_thousands_of_splits_ends_with_each_of_them_once() {
    const SPLITS: u64 = 2000;
    let place = Place::new();
    let text = numbered(SPLITS as usize * 3);
    place.put("in", &text);
    let job = lines(spec(ReadToFile, &["cat"])).output("out");
    let report = place.run(&job, &["in"], Splits::Count(SPLITS)).unwrap();
    assert_eq!(
        (report.job.state, report.job.splits),
        (JobState::Done, [0, 0, SPLITS, 0]),
        "{}",
        report.job.why
    );
    assert!(place.get("out").unwrap() == text);
    let jobs = place.store.jobs();
    let splits = jobs.splits(report.job.id).unwrap();
    assert!(splits.iter().all(|split| split.attempt == 1));
    assert_eq!(jobs.measured(report.job.id).unwrap().len() as u64, SPLITS);
    place.assert_sound();
}

#[test]
fn a_retry_keeps_what_was_finished() {
    let place = Place::new();
    place.put("in", &numbered(1000));
    let ran = place.dir.path().join("ran");
    let stop = place.dir.path().join("stop");
    std::fs::write(&stop, "").unwrap();
    let program = format!(
        "echo $AS_SPLIT >> {}; if [ $AS_SPLIT = 5 -a -e {} ]; then exit 1; fi; cat",
        ran.display(),
        stop.display()
    );
    let job = lines(spec(ReadToFile, &["sh", "-c", &program])).output("out");
    let job = place.submit(&job, &["in"], Splits::Count(8)).unwrap();
    assert_eq!(place.go(job).unwrap().job.state, JobState::Failed);
    assert_eq!(place.get("out"), None);
    let again = place.go(job).unwrap();
    assert_eq!((again.job.state, again.files.len(), again.set_aside.len()), (JobState::Failed, 0, 1));
    assert_eq!(
        std::fs::read_to_string(&ran).unwrap().lines().filter(|line| *line == "5").count(),
        1,
        "it has ended"
    );
    std::fs::remove_file(stop).unwrap();
    place.store.jobs().retry_job(job).unwrap();
    assert_eq!(place.go(job).unwrap().job.state, JobState::Done);
    assert_eq!(place.get("out").unwrap(), numbered(1000));
    let mut ran: Vec<u32> =
        std::fs::read_to_string(ran).unwrap().lines().map(|line| line.parse().unwrap()).collect();
    ran.sort_unstable();
    assert_eq!(ran, [0, 1, 2, 3, 4, 5, 5, 6, 7]);
}

#[test]
fn inputs_are_those_of_the_moment_the_job_was_made() {
    let place = Place::new();
    place.put("in", b"before");
    let job = place.submit(&spec(ReadToFile, &["cat"]).output("out"), &["in"], Splits::Auto).unwrap();
    place.put("in", b"after");
    outrigger_store::ops::edit::remove(
        &place.store,
        &[outrigger_store::tree::StorePath::parse(b"in").unwrap()],
        false,
        None,
    )
    .unwrap();
    place.go(job).unwrap();
    assert_eq!(place.text("out"), "before");
    assert_eq!(place.store.meta.holders().unwrap(), [""; 0], "what it held is let go");
}

#[test]
fn a_cancelled_job_stops_its_programs_and_shows_nothing() {
    let place = Place::new();
    place.put("in", b"x");
    let job = spec(ReadToFile, &["sh", "-c", "echo begun; sleep 600"]).output("out");
    let job = place.submit(&job, &["in"], Splits::Auto).unwrap();
    let jobs = place.store.jobs();
    std::thread::scope(|scope| {
        let running = scope.spawn(|| place.go(job).unwrap());
        let running_splits = || jobs.job(job).unwrap().unwrap().splits[SplitState::Running as usize];
        eventually("a split runs", || running_splits() > 0);
        assert!(runner_of(&place.store, job).unwrap().is_some());
        assert!(jobs.end_job(job, JobState::Cancelled, "enough").unwrap());
        assert!(!jobs.end_job(job, JobState::Cancelled, "again").unwrap());
        let report = running.join().unwrap();
        assert_eq!((report.job.state, report.job.why.as_str()), (JobState::Cancelled, "enough"));
    });
    assert_eq!(place.get("out"), None);
    jobs.forget_job(job).unwrap();
    assert!(jobs.job(job).unwrap().is_none());
    assert_eq!(place.store.meta.holders().unwrap(), [""; 0]);
    place.assert_sound();
}

#[test]
fn a_fenced_attempt_changes_nothing() {
    let place = Place::new();
    place.put("in", b"x");
    let job = place.submit(&spec(ReadToFile, &["cat"]).output("out"), &["in"], Splits::Auto).unwrap();
    let jobs = place.store.jobs();
    let session = place.store.session(SessionKind::Writer, "a slow one").unwrap();
    let claims = jobs.claim_splits(session.id(), job, 1, 2, None).unwrap();
    assert_eq!(claims.claimed.len(), 1);
    let other = place.store.session(SessionKind::Writer, "another").unwrap();
    let none = jobs.claim_splits(other.id(), job, 1, 2, None).unwrap();
    assert_eq!((none.claimed.len(), none.elsewhere), (0, 1), "it is in good hands");
    place.store.meta.fence(session.id()).unwrap();
    let taken = jobs.claim_splits(other.id(), job, 1, 2, None).unwrap();
    assert_eq!(taken.claimed[0].attempt, claims.claimed[0].attempt + 1);
    // All later reports of the first session are ignored.
    assert!(!jobs.fail_split(job, &claims.claimed[0], 1, "late", b"").unwrap());
    assert_eq!(jobs.split(job, 0).unwrap().unwrap().state, SplitState::Running);
    jobs.give_back_splits(job, &taken.claimed).unwrap();
    drop(other);
    assert_eq!(place.go(job).unwrap().job.state, JobState::Done);
}

#[test]
fn a_collector_takes_nothing_that_a_job_needs() {
    let place = Place::new();
    place.put("in", &numbered(200_000));
    let half = place.dir.path().join("half");
    let program =
        format!("if [ $AS_SPLIT = 1 ]; then until [ -e {} ]; do sleep 0.01; done; fi; rev", half.display());
    let job = lines(spec(ReadToFile, &["sh", "-c", &program])).output("out");
    let job = place.submit(&job, &["in"], Splits::Count(2)).unwrap();
    outrigger_store::ops::edit::remove(
        &place.store,
        &[outrigger_store::tree::StorePath::parse(b"in").unwrap()],
        false,
        None,
    )
    .unwrap();
    std::thread::scope(|scope| {
        let running = scope.spawn(|| place.go(job).unwrap());
        let jobs = place.store.jobs();
        let done_splits = || jobs.job(job).unwrap().unwrap().splits[SplitState::Done as usize];
        eventually("a split is done", || done_splits() > 0);
        let options = outrigger_store::gc::GcOptions { grace_secs: 0, ..Default::default() };
        outrigger_store::gc::collect(&place.store, &options, &Default::default()).unwrap();
        std::fs::write(&half, "").unwrap();
        assert_eq!(running.join().unwrap().job.state, JobState::Done);
    });
    let wanted: Vec<u8> = numbered(200_000)
        .split_inclusive(|&byte| byte == b'\n')
        .flat_map(|line| line[..line.len() - 1].iter().rev().copied().chain([b'\n']).collect::<Vec<u8>>())
        .collect();
    assert!(place.get("out").unwrap() == wanted);
    place.assert_sound();
}

const CHILD: &str = "OUTRIGGER_TEST_RUN_JOB";

/// Not a test of its own: [`kill_9_leaves_all_or_nothing`] starts it and kills it.
#[test]
fn child_runs_a_job() {
    let Ok(what) = std::env::var(CHILD) else { return };
    let (dir, job) = what.rsplit_once(':').unwrap();
    let store = Arc::new(Store::open(dir.as_ref(), false).unwrap());
    let report = go(&store, JobId(job.parse().unwrap()), 2).unwrap();
    assert_eq!(report.job.state, JobState::Done, "{}", report.job.why);
}

#[test]
fn kill_9_leaves_all_or_nothing() {
    let rounds: u64 =
        std::env::var("OUTRIGGER_KILL_ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(4);
    let place = Place::new();
    let text = numbered(30_000);
    place.put("in", &text);
    let dir = place.dir.path().join("store");
    let Place { dir: keep, store } = place;
    drop(store);
    for round in 0..rounds {
        let store = Arc::new(Store::open(&dir, false).unwrap());
        let out = format!("out-{round}");
        let job = lines(spec(ReadToFile, &["sh", "-c", "cat; sleep 0.01"])).output(&out);
        let job = Spec { tries: 100, ..job };
        let job = outrigger_active::plan::submit(&store, &job, &["in".to_string()], &[], Splits::Count(40))
            .unwrap();
        drop(store);
        // Killed at moments that differ from round to round, and again while it goes on.
        let mut kills = 0;
        loop {
            let mut child = Command::new(std::env::current_exe().unwrap())
                .args(["jobs::child_runs_a_job", "--exact", "--nocapture"])
                .env(CHILD, format!("{}:{job}", dir.display()))
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .unwrap();
            if kills < 4 {
                std::thread::sleep(Duration::from_millis(60 + (round * 131 + kills * 377) % 900));
                let _ = child.kill();
            }
            let ended = child.wait().unwrap();
            let store = Store::open(&dir, false).unwrap();
            let found = read(&store, &out);
            let state = store.jobs().job(job).unwrap().unwrap().state;
            match state {
                JobState::Done => {
                    assert!(found.as_deref() == Some(&text[..]), "round {round}: done, and not whole")
                }
                _ => assert_eq!(found, None, "round {round}: visible before it is done"),
            }
            assert_eq!(store.meta.check().unwrap(), [""; 0]);
            if state == JobState::Done {
                break;
            }
            assert!(!ended.success() || kills < 4, "round {round}: it ended well, and the job did not");
            kills += 1;
        }
        println!("round {round}: killed {kills} times");
    }
    drop(keep);
}

#[test]
fn a_store_from_before_jobs_has_none_and_gets_them() {
    let place = Place::new();
    let jobs = place.store.jobs();
    assert!(jobs.jobs(10).unwrap().is_empty() && jobs.job(JobId(1)).unwrap().is_none());
    let read_only = Store::open(place.store.dir(), true).unwrap();
    assert!(read_only.jobs().jobs(10).unwrap().is_empty());
    place.put("a", b"1");
    place.run(&spec(ManyToFile, &[]).output("b"), &["a"], Splits::Auto).unwrap();
    assert_eq!(read_only.jobs().jobs(10).unwrap().len(), 1);
    place.assert_sound();
}

#[test]
fn what_lies_on_this_host_is_done_first() {
    let place = Place::new();
    // Nothing in them repeats, so that each has packs of its own.
    let (far, near) = (Rng::new(1).bytes(400_000), Rng::new(2).bytes(400_000));
    place.put("a", &far);
    let before = place.store.committed_packs().unwrap();
    place.put("b", &near);
    let mut near_packs = place.store.committed_packs().unwrap();
    near_packs.retain(|pack| !before.contains(pack));
    // Half of it lies here, half there; nothing of it is new.
    place.put("c", &[&far[..], &near[..]].concat());
    let Place { dir, store } = place;
    let path = dir.path().join("store");
    drop(store);
    let mut store = Store::open(&path, false).unwrap();
    let hosts = move |pack| {
        let near = near_packs.contains(&pack);
        if near { vec![outrigger_store::host::name(), "far".into()] } else { vec!["far".into()] }
    };
    store.backend = Arc::new(Wrapped::over(Arc::clone(&store.backend)).located(hosts));
    let place = Place { dir, store: Arc::new(store) };
    let ran = place.dir.path().join("ran");
    let script = format!("cat > /dev/null; echo $AS_INPUT $AS_SPLIT >> {}", ran.display());
    let job = Spec { records: Records::Fixed(1), ..spec(ReadToNothing, &["sh", "-c", &script]) };
    let job = place.submit(&job, &["a", "b", "c"], Splits::Count(2)).unwrap();
    assert_eq!(go(&place.store, job, 1).unwrap().job.state, JobState::Done);
    let order = std::fs::read_to_string(ran).unwrap();
    assert_eq!(order, "b 2\nb 3\nc 5\na 0\na 1\nc 4\n");
}

#[test]
fn nothing_is_begun_while_others_wait() {
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    let place = Place::new();
    place.put("in", &numbered(100));
    let ran = place.dir.path().join("ran");
    let program = format!("echo >> {}; cat", ran.display());
    let job = lines(spec(ReadToFile, &["sh", "-c", &program])).output("out");
    let job = place.submit(&job, &["in"], Splits::Count(4)).unwrap();
    let (busy, asked) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicU64::new(0)));
    let (is_busy, count) = (Arc::clone(&busy), Arc::clone(&asked));
    let mut options = support::options(1);
    options.make_way = Some(Arc::new(move || {
        count.fetch_add(1, Ordering::SeqCst);
        is_busy.load(Ordering::SeqCst)
    }));
    std::thread::scope(|scope| {
        let running = scope.spawn(|| {
            outrigger_active::runner::run(&place.store, job, &options, &Arc::default()).unwrap().job.state
        });
        eventually("it was asked four times", || asked.load(Ordering::SeqCst) >= 4);
        let row = place.store.jobs().job(job).unwrap().unwrap();
        assert_eq!((row.state, row.splits), (JobState::Waiting, [4, 0, 0, 0]));
        assert!(!ran.exists());
        busy.store(false, Ordering::SeqCst);
        assert_eq!(running.join().unwrap(), JobState::Done);
    });
    assert_eq!(place.get("out").unwrap(), numbered(100));
}
