//! Watches running attempts: ends those that use more than they may, and all when the job is
//! stopped.
//!
//! ```text
//!  clock     every EVERY: whose time is over? Whose group ran into a limit? Is the measurer still there? If not, another one takes its place
//!  measurer  every EVERY: what does each use whose group does not limit it (tree.rs)? Every DISK_EVERY: what does it hold of files that were removed?
//!  disk      every DISK_EVERY: what lies in the work directory of each (disk.rs)?
//!  anybody   Live::kill: a signal, which waits for nobody
//! ```
//!
//! Rlimits hold for one process each; this holds for an attempt's processes together. If an attempt
//! has a control group ([`crate::cgroup`]), the kernel enforces the limits of memory and processes,
//! as far as the controllers exist, and the watch ends programs that ran into one. Otherwise the
//! watch counts the processes.
//!
//! Reading `/proc` may block for ever: if a process hangs in a file system whose server is gone,
//! its reader hangs as well. So neither the time limit nor stopping an attempt depends on such a
//! read: the clock reads nothing, and the measurer reads without holding a lock. If a measurer does
//! not return within [`STUCK`], it is abandoned with its attempt, which is not measured any more. A
//! new one measures all others; the old one ends when it returns.

use std::path::PathBuf;
use std::process::Child;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, Weak};
use std::time::Duration;

use outrigger_clock::Instant;
use rustix::process::{Pid, Signal, kill_process_group};

use super::disk;
use super::tree::{self, TOO_MANY_PROCESSES, TOO_MUCH_MEMORY, TOO_MUCH_PROCESSOR, Used};
use crate::cgroup::{Exceeded, Group};
use crate::foreground::STILL_MAX;
use crate::job::limits::Limits;

/// How often attempts are looked at.
const EVERY: Duration = Duration::from_millis(50);
/// How often their files are looked at.
const DISK_EVERY: Duration = Duration::from_secs(1);
/// How long measuring one attempt may take.
const STUCK: Duration = Duration::from_secs(1);

/// An attempt as the watch sees it.
pub(super) struct Live {
    /// `None`: no process, but a function.
    pid: Option<Pid>,
    started: Instant,
    limits: Limits,
    /// The place of its files, if they are measured.
    work: Option<PathBuf>,
    /// Its control group, if it has one.
    group: Option<Arc<Group>>,
    /// The limits that are enforced by counting processes.
    counted: Limits,
    state: Mutex<State>,
    /// A measurer is measuring it and has not returned yet.
    is_measured: AtomicBool,
    /// When the measurer last looked at its removed files.
    removed_seen: Mutex<Instant>,
}

#[derive(Default)]
struct State {
    /// Reaped, or about to be: its number may be reused.
    over: bool,
    killed: Option<String>,
    /// Since when it is frozen.
    frozen: Option<Instant>,
    /// How long it was frozen before.
    frozen_for: Duration,
}

impl Live {
    fn new(pid: Option<Pid>, limits: Limits, group: Option<Arc<Group>>, work: Option<PathBuf>) -> Self {
        let is = |bounds: fn(&Group) -> bool| group.as_deref().is_some_and(bounds);
        let memory = limits.memory.filter(|_| !is(Group::bounds_memory));
        let processes = limits.processes.filter(|_| !is(Group::bounds_processes));
        let cpu = limits.cpu.filter(|_| !is(|group| group.usage().cpu.is_some()));
        Self {
            pid,
            started: Instant::now(),
            limits,
            counted: Limits { memory, processes, cpu, ..limits },
            work,
            group,
            state: Mutex::default(),
            is_measured: AtomicBool::new(false),
            removed_seen: Mutex::new(Instant::now()),
        }
    }

    /// Kills all its processes; the first reason counts.
    pub fn kill(&self, why: &str) {
        let mut state = self.state.lock().expect("no panic while held");
        if state.over {
            return;
        }
        state.killed.get_or_insert_with(|| why.to_string());
        if let Some(group) = &self.group {
            group.kill();
        }
        // It leads its session's process group, and was not waited for yet. Processes that left the
        // group die with the name space, or with the control group.
        if let Some(pid) = self.pid {
            let _ = kill_process_group(pid, Signal::KILL);
        }
    }

    /// True once it was killed.
    #[cfg(feature = "testing")]
    pub fn is_killed(&self) -> bool {
        let state = self.state.lock().expect("no panic while held");
        state.over || state.killed.is_some()
    }

    fn look(&self) {
        if self.limits.time.is_some_and(|time| self.ran() > time) {
            self.kill("it took longer than it may (--limits time=TIME)");
        } else if let Some(why) = self.exceeded() {
            self.kill(why);
        }
        // The thread that froze it may be blocked by its own question.
        if self.is_still_for_long() {
            self.freeze(false);
        }
    }

    fn is_still_for_long(&self) -> bool {
        let state = self.state.lock().expect("no panic while held");
        state.frozen.is_some_and(|since| since.elapsed() > STILL_MAX + EVERY)
    }

    /// How long it has been running, not counting the time that it was frozen, which is not its
    /// fault.
    fn ran(&self) -> Duration {
        let state = self.state.lock().expect("no panic while held");
        let frozen = state.frozen_for + state.frozen.map_or(Duration::ZERO, |since| since.elapsed());
        self.started.elapsed().saturating_sub(frozen)
    }

    /// The limit that its group ran into.
    pub fn exceeded(&self) -> Option<&'static str> {
        let group = self.group.as_ref()?;
        let used = self.limits.cpu.and_then(|most| Some(group.usage().cpu? > most));
        match group.exceeded() {
            Some(Exceeded::Memory) => Some(TOO_MUCH_MEMORY),
            Some(Exceeded::Processes) => Some(TOO_MANY_PROCESSES),
            None => (used == Some(true)).then_some(TOO_MUCH_PROCESSOR),
        }
    }

    /// Freezes it, or lets it go on.
    fn freeze(&self, still: bool) {
        let Some(group) = &self.group else { return };
        let mut state = self.state.lock().expect("no panic while held");
        if state.over || state.frozen.is_some() == still || !group.freeze(still) {
            return;
        }
        match state.frozen.take() {
            Some(since) => state.frozen_for += since.elapsed(),
            None => state.frozen = Some(Instant::now()),
        }
    }

    /// Most attempts are over sooner than they are measured.
    fn is_to_be_measured(&self) -> bool {
        let Limits { memory, processes, cpu, output, .. } = self.counted;
        (memory.is_some() || processes.is_some() || cpu.is_some() || output.is_some())
            && self.started.elapsed() >= EVERY
            && !self.is_measured.load(Ordering::SeqCst)
    }
}

impl Live {
    /// True if it is time to measure the files that its processes have removed but not closed.
    fn is_removed_due(&self) -> bool {
        let seen = self.removed_seen.lock().expect("no panic while held");
        self.work.is_some() && seen.elapsed() >= DISK_EVERY
    }

    /// Measures those files. Returns the limit that they exceed.
    fn measure_removed(&self) -> Option<&'static str> {
        *self.removed_seen.lock().expect("no panic while held") = Instant::now();
        let (work, most) = (self.work.as_deref()?, self.limits.output?);
        disk::exceeds_removed(work, tree::pids_below(self.pid?.as_raw_nonzero().get()), most)
    }

    fn exceeds_disk(&self) -> Option<&'static str> {
        disk::exceeds(self.work.as_deref()?, self.limits.output?)
    }
}

/// Measures a process and its descendants, at least as far as they exceed the limits.
type Measure = dyn Fn(i32, &Limits) -> Used + Send + Sync;

/// The present measurer.
#[derive(Default)]
struct Turn {
    /// Rises with every new measurer; those of earlier numbers end.
    number: u64,
    /// Since when it has been measuring one attempt.
    since: Option<Instant>,
}

/// Watches all attempts of a runner.
pub struct Watch {
    live: Mutex<Vec<Arc<Live>>>,
    changed: Condvar,
    stopped: AtomicBool,
    measure: Arc<Measure>,
    turn: Arc<Mutex<Turn>>,
}

impl Watch {
    /// Starts watching; ends when the last reference to it is dropped.
    pub fn start() -> Arc<Self> {
        let measure = Arc::new(tree::below);
        // A function has no limits and no processes.
        #[cfg(feature = "testing")]
        if crate::instead::function().is_some() {
            return Arc::new(Self::new(measure));
        }
        Self::measuring(measure)
    }

    fn new(measure: Arc<Measure>) -> Self {
        let (live, changed, turn) = (Mutex::default(), Condvar::new(), Arc::default());
        Self { live, changed, stopped: AtomicBool::new(false), measure, turn }
    }

    fn measuring(measure: Arc<Measure>) -> Arc<Self> {
        let watch = Arc::new(Self::new(measure));
        let weak = Arc::downgrade(&watch);
        std::thread::spawn(move || run_clock(&weak));
        let weak = Arc::downgrade(&watch);
        std::thread::spawn(move || run_disk(&weak));
        watch.start_measurer(0);
        watch
    }

    /// Ends all attempts, including future ones.
    pub fn stop(&self) {
        self.stopped.store(true, Ordering::SeqCst);
        for live in self.live.lock().expect("no panic while held").iter() {
            live.kill("stopped");
        }
    }

    /// True once [`Watch::stop`] was called.
    pub fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::SeqCst)
    }

    /// Freezes all attempts that have a control group, or lets them go on.
    pub fn freeze(&self, still: bool) {
        self.all_now().iter().for_each(|live| live.freeze(still));
    }

    /// While `back` is true, all attempts that have a control group get the least share of the
    /// machine.
    pub fn stand_back(&self, back: bool) {
        self.all_now().iter().filter_map(|live| live.group.as_ref()).for_each(|group| group.stand_back(back));
    }

    fn all_now(&self) -> Vec<Arc<Live>> {
        self.live.lock().expect("no panic while held").clone()
    }

    pub(super) fn add(
        &self,
        child: &Child,
        limits: Limits,
        group: Option<Arc<Group>>,
        work: Option<PathBuf>,
    ) -> Arc<Live> {
        self.add_live(Live::new(Some(Pid::from_child(child)), limits, group, work))
    }

    /// A function in the place of a program: it has no limits.
    #[cfg(feature = "testing")]
    pub(super) fn add_function(&self) -> Arc<Live> {
        let limits = Limits { memory: None, time: None, cpu: None, processes: None, output: None };
        self.add_live(Live::new(None, limits, None, None))
    }

    fn add_live(&self, live: Live) -> Arc<Live> {
        let live = Arc::new(live);
        self.live.lock().expect("no panic while held").push(Arc::clone(&live));
        self.changed.notify_all();
        if self.is_stopped() {
            live.kill("stopped");
        }
        live
    }

    /// The attempt is over and about to be waited for; returns why it was killed, if it was.
    pub(super) fn remove(&self, live: &Arc<Live>) -> Option<String> {
        self.live.lock().expect("no panic while held").retain(|other| !Arc::ptr_eq(other, live));
        let mut state = live.state.lock().expect("no panic while held");
        state.over = true;
        state.killed.take()
    }

    /// All running attempts; if there are none, waits a moment for one.
    fn all(&self) -> Vec<Arc<Live>> {
        let mut live = self.live.lock().expect("no panic while held");
        if live.is_empty() {
            live = self.changed.wait_timeout(live, EVERY).expect("no panic while held").0;
        }
        live.clone()
    }

    /// Replaces a measurer that does not return.
    fn replace_stuck(self: &Arc<Self>) {
        let mut turn = self.turn.lock().expect("no panic while held");
        if turn.since.is_some_and(|since| since.elapsed() > STUCK) {
            *turn = Turn { number: turn.number + 1, since: None };
            let number = turn.number;
            drop(turn);
            self.start_measurer(number);
        }
    }

    fn start_measurer(self: &Arc<Self>, number: u64) {
        let weak = Arc::downgrade(self);
        std::thread::spawn(move || run_measurer(&weak, number));
    }
}

fn run_clock(watch: &Weak<Watch>) {
    while let Some(watch) = watch.upgrade() {
        watch.all().iter().for_each(|live| live.look());
        watch.replace_stuck();
        drop(watch);
        outrigger_clock::sleep(EVERY);
    }
}

/// This thread reads only directories of this machine, which answer; how long that takes depends on
/// the number of files.
fn run_disk(watch: &Weak<Watch>) {
    loop {
        let begun = Instant::now();
        let Some(all) = watch.upgrade().map(|watch| watch.all_now()) else { return };
        for live in &all {
            if let Some(why) = live.exceeds_disk() {
                live.kill(why);
            }
        }
        drop(all);
        // A program that makes many files must not cost half a processor for counting them.
        outrigger_clock::sleep(DISK_EVERY.max(begun.elapsed() * 4));
    }
}

fn run_measurer(watch: &Weak<Watch>, number: u64) {
    loop {
        // While it reads it keeps these, not the watch itself, which must be able to end.
        let Some((all, measure, turn)) =
            watch.upgrade().map(|watch| (watch.all(), Arc::clone(&watch.measure), Arc::clone(&watch.turn)))
        else {
            return;
        };
        let begin = |since: Option<Instant>| {
            let mut turn = turn.lock().expect("no panic while held");
            let is_ours = turn.number == number;
            if is_ours {
                turn.since = since;
            }
            is_ours
        };
        for live in all.iter().filter(|live| live.is_to_be_measured()) {
            if !begin(Some(Instant::now())) {
                return;
            }
            let Some(pid) = live.pid.map(|pid| pid.as_raw_nonzero().get()) else { continue };
            live.is_measured.store(true, Ordering::SeqCst);
            let used = measure(pid, &live.counted);
            let removed = live.is_removed_due().then(|| live.measure_removed()).flatten();
            live.is_measured.store(false, Ordering::SeqCst);
            if let Some(why) = used.exceeds(&live.counted).or(removed) {
                live.kill(why);
            }
        }
        if !begin(None) {
            return;
        }
        drop(all);
        outrigger_clock::sleep(EVERY);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt as _;
    use std::process::Command;
    use std::sync::mpsc::channel;

    use super::*;

    const MANY: Used = Used { memory: 0, threads: 100, cpu: Duration::ZERO };

    fn sleeper() -> Child {
        Command::new("sleep").arg("600").process_group(0).spawn().unwrap()
    }

    /// Waits for a process that the watch is to end; returns the reason.
    fn ended(watch: &Watch, live: &Arc<Live>, mut child: Child) -> String {
        let status = child.wait().unwrap();
        assert!(!status.success());
        watch.remove(live).unwrap()
    }

    #[test]
    fn an_attempt_that_cannot_be_measured_keeps_neither_its_time_nor_others_from_their_limits() {
        let (hung, many, late, last) = (sleeper(), sleeper(), sleeper(), sleeper());
        let (hangs, exceeds) = (hung.id() as i32, many.id() as i32);
        let (asked, was_asked) = channel();
        // Measuring this one blocks until the test is over, as with a process that hangs in a file
        // system.
        let over = Arc::new((Mutex::new(false), Condvar::new()));
        let until = Arc::clone(&over);
        let measure = move |pid: i32, _: &Limits| {
            if pid == hangs {
                asked.send(()).unwrap();
                let mut is_over = until.0.lock().unwrap();
                while !*is_over {
                    is_over = until.1.wait(is_over).unwrap();
                }
            }
            if pid == exceeds { MANY } else { Used::default() }
        };
        let watch = Watch::measuring(Arc::new(measure));
        let limits = Limits { memory: None, time: None, cpu: None, processes: Some(50), output: None };
        let hung_live = watch.add(&hung, limits, None, None);
        was_asked.recv().unwrap();
        // The one measurer hangs.
        let many_live = watch.add(&many, limits, None, None);
        let timed = Limits { time: Some(Duration::from_millis(100)), ..limits };
        let late_live = watch.add(&late, timed, None, None);
        assert!(ended(&watch, &late_live, late).contains("longer than it may"));
        assert!(ended(&watch, &many_live, many).contains("more processes"), "by another measurer");
        let last_live = watch.add(&last, limits, None, None);
        watch.stop();
        assert_eq!(ended(&watch, &hung_live, hung), "stopped");
        assert_eq!(ended(&watch, &last_live, last), "stopped");
        *over.0.lock().unwrap() = true;
        over.1.notify_all();
        assert!(was_asked.try_recv().is_err(), "it is not asked for again");
    }
}
