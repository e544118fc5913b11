//! Attempts in control groups: what is in them, what becomes of that, and how it yields. Needs a
//! group of version 2 that this process may make groups in; says so where there is none.

use crate::support;

use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use outrigger_active::cgroup::{Groups, Where};
use outrigger_active::job::Mode;
use outrigger_active::job::spec::Spec;
use outrigger_active::pattern::Pattern::{ReadToFile, ReadToNothing};
use outrigger_active::plan::Splits;
use outrigger_active::progress::Counters;
use outrigger_active::runner::{self, Report, RunOptions, measured};
use outrigger_store::meta::jobs::JobState;
use outrigger_workload::eventually;
use support::{Place, can_sandbox, options, spec};

/// A group of the test's own, to make groups in.
struct Above(PathBuf);

impl Drop for Above {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.0);
    }
}

/// Groups to run attempts in; says why, if there are none here.
fn groups(name: &str) -> Option<(Above, Arc<Groups>)> {
    // Those of a process that may: what lies above them is where it is.
    let probe = Groups::begin(&Where::Auto, 0, false)
        .inspect_err(|why| outrigger_workload::lacking!("{why}"))
        .ok()?;
    let above = probe.path().parent().unwrap().join(format!("test-{}-{name}", std::process::id()));
    if let Err(error) = std::fs::create_dir(&above) {
        outrigger_workload::lacking!("{}: {error}", above.display());
        return None;
    }
    let above = Above(above);
    match Groups::begin(&Where::At(above.0.clone()), 0, false) {
        Ok(groups) => Some((above, Arc::new(groups))),
        Err(why) => {
            outrigger_workload::lacking!("{why}");
            None
        }
    }
}

fn place() -> Place {
    let place = Place::new();
    place.put("in", b"input\n");
    place
}

fn run(place: &Place, groups: &Arc<Groups>, job: &Spec) -> Report {
    let job = place.submit(job, &["in"], Splits::Auto).unwrap();
    let options = RunOptions { groups: Some(Arc::clone(groups)), ..options(2) };
    runner::run(&place.store, job, &options, &Arc::new(Counters::default())).unwrap()
}

/// The groups of attempts that there are now.
fn attempts(groups: &Groups) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(groups.path()).unwrap().map(|entry| entry.unwrap().path());
    entries.filter(|path| path.is_dir()).collect()
}

fn is_frozen(group: &Path) -> bool {
    let events = std::fs::read_to_string(group.join("cgroup.events")).unwrap_or_default();
    events.lines().any(|line| line == "frozen 1")
}

#[test]
fn an_attempt_has_a_group_of_its_own_which_goes_with_it_and_says_what_it_used() {
    let Some((above, groups)) = groups("own") else { return };
    let place = place();
    let count = "cat /proc/self/cgroup; i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done";
    let report = run(&place, &groups, &spec(ReadToFile, &["sh", "-c", count]).output("out"));
    assert_eq!(report.job.state, JobState::Done, "{}", report.job.why);
    let told = place.text("out");
    let name = groups.path().file_name().unwrap().to_string_lossy().into_owned();
    assert!(
        told.lines().any(|line| line.starts_with("0::") && line.contains(&format!("/{name}/"))),
        "{told}"
    );
    let used = &measured(&place.store, report.job.id).unwrap()[&0];
    assert!(used.cpu_secs.unwrap() > 0.0 && used.secs > 0.0, "{used:?}");
    assert_eq!(attempts(&groups), Vec::<PathBuf>::new());
    if can_sandbox() {
        // Root's attempts run as somebody who may not change groups.
        let job = Spec { sandbox: Mode::Strict, ..spec(ReadToFile, &["sh", "-c", count]).output("kept") };
        let report = run(&place, &groups, &job);
        assert_eq!(report.job.state, JobState::Done, "{}", report.job.why);
        let used = &measured(&place.store, report.job.id).unwrap()[&0];
        assert!(used.cpu_secs.unwrap() > 0.0, "{used:?}");
    }
    let base = groups.path().to_path_buf();
    drop(groups);
    assert!(above.0.exists() && !base.exists());
}

#[test]
fn what_a_program_leaves_running_ends_with_it() {
    let Some((_above, groups)) = groups("left") else { return };
    let place = place();
    let leave = "setsid sleep 600 < /dev/null > /dev/null 2>&1 & echo $!";
    let report = run(&place, &groups, &spec(ReadToFile, &["sh", "-c", leave]).output("out"));
    assert_eq!(report.job.state, JobState::Done, "{}", report.job.why);
    let stat = format!("/proc/{}/stat", place.text("out").trim());
    // Nobody may have waited for it yet.
    let is_over = || std::fs::read_to_string(&stat).map_or(true, |stat| stat.contains(") Z "));
    assert!(is_over(), "{:?}", std::fs::read_to_string(&stat));
}

#[test]
fn the_kernel_keeps_attempts_within_their_limits() {
    let Some((_above, groups)) = groups("limits") else { return };
    let place = place();
    let limited = |script: &str, limits: &str| {
        let mut job = spec(ReadToFile, &["sh", "-c", script]).output("out");
        job.limits.set(limits).unwrap();
        let report = run(&place, &groups, &job);
        assert_eq!(report.job.state, JobState::Failed);
        report.job.why
    };
    let has = |controller: &str| groups.describe().split(", ").any(|name| name == controller);
    if has("pids") {
        let why = limited("for n in 1 2 3 4 5 6 7 8 9; do sleep 60 & done; wait", "processes=5,time=60s");
        assert!(why.contains("more processes than it may"), "{why}");
    } else {
        outrigger_workload::lacking!("the controller `pids` is not to be had here");
    }
    if has("memory") {
        let grow = "awk 'BEGIN { s = \"x\"; while (1) s = s s }'";
        let mut job = spec(ReadToFile, &["sh", "-c", grow]).output("out");
        job.limits.set("memory=64M,time=60s").unwrap();
        let report = run(&place, &groups, &job);
        assert_eq!(report.job.state, JobState::Failed);
    } else {
        outrigger_workload::lacking!("the controller `memory` is not to be had here");
    }
}

/// A program that counts, slowly, into a file.
fn counting(place: &Place, to: u32) -> (PathBuf, Spec) {
    let ticks = place.dir.path().join("ticks");
    let script = format!(
        "i=0; while [ $i -lt {to} ]; do i=$((i+1)); echo $i >> '{}'; sleep 0.02; done; echo done",
        ticks.display()
    );
    (ticks, spec(ReadToFile, &["sh", "-c", &script]).output("out"))
}

fn count(ticks: &Path) -> usize {
    std::fs::read_to_string(ticks).unwrap_or_default().lines().count()
}

/// Two that compete: whoever works in the mount, and a program.
#[test]
fn a_program_is_held_still_while_others_wait_but_not_for_ever() {
    let Some((_above, groups)) = groups("yields") else { return };
    let place = place();
    let (ticks, job) = counting(&place, 100_000);
    let job = place.submit(&job, &["in"], Splits::Auto).unwrap();
    let others_wait = Arc::new(AtomicBool::new(false));
    let asked = Arc::clone(&others_wait);
    let options = RunOptions {
        groups: Some(Arc::clone(&groups)),
        make_way: Some(Arc::new(move || asked.load(Ordering::SeqCst))),
        ..options(1)
    };
    std::thread::scope(|scope| {
        let ran = scope.spawn(|| runner::run(&place.store, job, &options, &Arc::new(Counters::default())));
        eventually("it begins", || count(&ticks) > 3);
        let group = attempts(&groups).remove(0);
        assert!(!is_frozen(&group));
        others_wait.store(true, Ordering::SeqCst);
        eventually("it is held still", || is_frozen(&group));
        // Once it goes on it does for a second: still at both ends is still in between.
        eventually("it does nothing while it is held still", || {
            let before = count(&ticks);
            std::thread::sleep(Duration::from_millis(200));
            is_frozen(&group) && count(&ticks) == before
        });
        if group.join("cpu.weight").exists() {
            assert_eq!(std::fs::read_to_string(group.join("cpu.weight")).unwrap().trim(), "1");
        }
        let before = count(&ticks);
        eventually("it goes on though others wait", || count(&ticks) > before + 3);
        eventually("it is held still again", || is_frozen(&group));
        others_wait.store(false, Ordering::SeqCst);
        eventually("it goes on when nobody waits", || !is_frozen(&group));
        let before = count(&ticks);
        eventually("and works", || count(&ticks) > before + 3);
        // One that is held still can be stopped.
        others_wait.store(true, Ordering::SeqCst);
        eventually("it is held still for the last time", || is_frozen(&group));
        assert!(place.store.jobs().end_job(job, JobState::Cancelled, "").unwrap());
        assert_eq!(ran.join().unwrap().unwrap().job.state, JobState::Cancelled);
        assert!(!group.exists());
    });
}

fn sleeper() -> Child {
    Command::new("sleep").arg("600").spawn().unwrap()
}

#[test]
fn what_a_killed_process_left_is_ended_by_the_next_and_nothing_else() {
    use std::os::unix::process::ExitStatusExt as _;
    let Some((above, groups)) = groups("swept") else { return };
    let (mut left, mut other) = (sleeper(), sleeper());
    let of_killed = above.0.join("outrigger-attempts-1-0");
    let (attempt, alien) = (of_killed.join("7"), above.0.join("somebody"));
    std::fs::create_dir(&of_killed).unwrap();
    for (dir, child) in [(&attempt, &left), (&alien, &other)] {
        std::fs::create_dir(dir).unwrap();
        std::fs::write(dir.join("cgroup.procs"), child.id().to_string()).unwrap();
    }
    std::fs::write(attempt.join("cgroup.freeze"), "1").unwrap();
    let next = Groups::begin(&Where::At(above.0.clone()), 0, false).unwrap();
    assert_eq!(left.wait().unwrap().signal(), Some(9));
    assert!(!of_killed.exists() && groups.path().exists() && next.path().exists());
    assert_eq!(other.try_wait().unwrap(), None);
    other.kill().unwrap();
    other.wait().unwrap();
    eventually("it is gone", || std::fs::remove_dir(&alien).is_ok());
}

#[test]
fn an_attempt_that_is_not_in_a_group_is_none_the_worse() {
    let place = place();
    let report = place.run(&spec(ReadToNothing, &["true"]), &["in"], Splits::Auto).unwrap();
    assert_eq!(report.job.state, JobState::Done, "{}", report.job.why);
    let used = &measured(&place.store, report.job.id).unwrap()[&0];
    assert!(used.secs > 0.0 && used.cpu_secs.is_none() && used.memory.is_none(), "{used:?}");
}
