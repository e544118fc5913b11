//! Watches running attempts: ends those that use more than they may, and all when the job is stopped.
//!
//! One thread looks at all of them every [`EVERY`]. Rlimits hold for one process each; this holds for an attempt's processes together, and needs no
//! control groups, which are not everywhere delegated.

use std::process::Child;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, Weak};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

use super::tree::Look;
use crate::limits::Limits;

/// How often attempts are looked at.
const EVERY: Duration = Duration::from_millis(50);

/// An attempt as the watch sees it.
pub(super) struct Live {
    pid: Pid,
    started: Instant,
    limits: Limits,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Reaped, or about to be: its number may be somebody else's.
    over: bool,
    killed: Option<String>,
}

impl Live {
    /// Kills all its processes; the first reason counts.
    pub fn kill(&self, why: &str) {
        let mut state = self.state.lock().expect("no panic while held");
        if state.over {
            return;
        }
        state.killed.get_or_insert_with(|| why.to_string());
        // It is the leader of its group, and not yet waited for. What left the group dies with its name space.
        let _ = kill_process_group(self.pid, Signal::KILL);
    }

    fn look(&self, look: &Look) {
        let Limits { memory, time, processes, .. } = self.limits;
        if time.is_some_and(|time| self.started.elapsed() > time) {
            return self.kill("it took longer than it may (--limits time=TIME)");
        }
        if memory.is_none() && processes.is_none() {
            return;
        }
        let used = look.below(self.pid.as_raw_nonzero().get());
        if memory.is_some_and(|memory| used.memory > memory) {
            self.kill("it used more memory than it may (--limits memory=SIZE)");
        } else if processes.is_some_and(|processes| used.threads > processes) {
            self.kill("it started more processes than it may (--limits processes=N)");
        }
    }
}

/// Watches all attempts of a runner.
#[derive(Default)]
pub struct Watch {
    live: Mutex<Vec<Arc<Live>>>,
    changed: Condvar,
    stopped: AtomicBool,
}

impl Watch {
    /// Starts watching; ends when the last reference to it is dropped.
    pub fn start() -> Arc<Self> {
        let watch = Arc::new(Self::default());
        let weak = Arc::downgrade(&watch);
        std::thread::spawn(move || run(&weak));
        watch
    }

    /// Ends all attempts, also those to come.
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

    pub(super) fn add(&self, child: &Child, limits: Limits) -> Arc<Live> {
        let (pid, state) = (Pid::from_child(child), Mutex::default());
        let live = Arc::new(Live { pid, started: Instant::now(), limits, state });
        self.live.lock().expect("no panic while held").push(Arc::clone(&live));
        self.changed.notify_all();
        if self.is_stopped() {
            live.kill("stopped");
        }
        live
    }

    /// The attempt is over and about to be waited for; says why it was killed, if it was.
    pub(super) fn remove(&self, live: &Arc<Live>) -> Option<String> {
        self.live.lock().expect("no panic while held").retain(|other| !Arc::ptr_eq(other, live));
        let mut state = live.state.lock().expect("no panic while held");
        state.over = true;
        state.killed.take()
    }
}

fn run(watch: &Weak<Watch>) {
    while let Some(watch) = watch.upgrade() {
        let mut live = watch.live.lock().expect("no panic while held");
        if live.is_empty() {
            live = watch.changed.wait_timeout(live, EVERY).expect("no panic while held").0;
        }
        let all: Vec<Arc<Live>> = live.clone();
        drop(live);
        // Most attempts are over sooner than they are looked at.
        if all.iter().any(|live| live.started.elapsed() >= EVERY) {
            let look = Look::now();
            all.iter().for_each(|live| live.look(&look));
        }
        drop(watch);
        std::thread::sleep(EVERY);
    }
}
