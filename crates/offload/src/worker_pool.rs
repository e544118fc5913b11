//! A pool of threads that call a blocking driver, as one device.
//!
//! ```text
//!   manager ── submit ──▶ queued ──▶ worker 0: its own session, one call at a time ──▶ ready ──▶ waker, poll
//!                            └─────▶ worker 1 ...
//! ```
//!
//! Each thread (a *worker*) sets up and tears down its own session, as sessions never change
//! threads. Idle workers take turns, first come, first served.
//!
//! A reset retires the whole pool and spawns another. A worker that is stuck in the driver cannot
//! be stopped. It keeps its queue, its session and its tasks, and nobody reads its later answers.
//! If too many are stuck, no more are spawned.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Duration;

use outrigger_clock::Instant;

use crate::accelerator::{Completion, Fault, StageTimes, Submission};

/// The work of one thread.
pub(crate) trait Worker {
    /// Executes all of `batch` in place, and returns the result of each task in order. Blocks.
    fn work(&mut self, batch: &mut [Submission]) -> Vec<Result<StageTimes, Fault>>;
}

/// Makes a worker, on its thread.
pub(crate) type Spawn = Arc<dyn Fn() -> Result<Box<dyn Worker>, Fault> + Send + Sync>;

/// The time limit for setting up the sessions.
const SPAWNING: Duration = Duration::from_secs(10);
/// How long to wait for a retired pool.
const LEAVING: Duration = Duration::from_millis(300);
/// If more workers than this are stuck for good, the device is not used any more.
const STUCK_MAX: usize = 64;

pub(crate) struct WorkerPool {
    name: String,
    workers: usize,
    batch_max: usize,
    spawn: Spawn,
    waker: Option<Waker>,
    queue: Arc<Queue>,
    /// Threads of all pools that have not ended.
    present: Arc<AtomicUsize>,
    /// How many of them were stuck when the last pool was retired.
    stuck: usize,
}

/// The state that a pool and its manager share.
struct Queue {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    queued: VecDeque<Submission>,
    ready: Vec<Completion>,
    spawned: usize,
    refused: usize,
    /// The first worker's reason.
    why: Option<Fault>,
    ended: bool,
}

impl Queue {
    fn new() -> Arc<Self> {
        Arc::new(Self { state: Mutex::default(), changed: Condvar::new() })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the next batch. Returns false if the worker should end.
    fn take(&self, batch_max: usize, batch: &mut Vec<Submission>) -> bool {
        let mut state = self.lock();
        loop {
            if state.ended {
                return false;
            }
            if let Some(first) = state.queued.pop_front() {
                let class = first.work.class();
                batch.push(first);
                // One call can execute tasks of the same operation with the same parameters.
                while batch.len() < batch_max
                    && state.queued.front().is_some_and(|next| next.work.class() == class)
                {
                    batch.extend(state.queued.pop_front());
                }
                return true;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl WorkerPool {
    /// A pool of `workers`, each of which takes up to `batch_max` tasks of a class at once. They
    /// are not started yet.
    pub(crate) fn new(name: &str, workers: usize, batch_max: usize, spawn: Spawn) -> Self {
        let (queue, present) = (Queue::new(), Arc::default());
        Self { name: name.into(), workers, batch_max, spawn, waker: None, queue, present, stuck: 0 }
    }

    /// Sets the waker for when there is something to poll.
    pub(crate) fn set_waker(&mut self, waker: Waker) {
        self.waker = Some(waker);
    }

    /// Retires the present workers, spawns new ones, and waits until their sessions are set up.
    /// Some may be missing.
    ///
    /// # Errors
    /// The reason why no worker could be spawned.
    pub(crate) fn start(&mut self) -> Result<(), Fault> {
        self.retire(LEAVING);
        if self.stuck > STUCK_MAX {
            return Err(Fault::Lost("too many calls have never come back".into()));
        }
        self.queue = Queue::new();
        for number in 0..self.workers {
            self.spawn(number)?;
        }
        let state = self.queue.lock();
        let waiting = |state: &mut State| state.spawned + state.refused < self.workers;
        let (mut state, _) = self
            .queue
            .changed
            .wait_timeout_while(state, SPAWNING, waiting)
            .unwrap_or_else(PoisonError::into_inner);
        match (state.spawned, state.why.take()) {
            (0, Some(why)) => Err(why),
            (0, None) => Err(Fault::Lost("no session in time".into())),
            _ => Ok(()),
        }
    }

    fn spawn(&self, number: usize) -> Result<(), Fault> {
        let (queue, spawn) = (Arc::clone(&self.queue), Arc::clone(&self.spawn));
        let (waker, batch_max) = (self.waker.clone(), self.batch_max);
        self.present.fetch_add(1, Ordering::SeqCst);
        let gone = Gone(Arc::clone(&self.present));
        let run = move || {
            let _gone = gone;
            run(&queue, &spawn, waker.as_ref(), batch_max);
        };
        let thread = std::thread::Builder::new().name(format!("{}-{number}", self.name)).spawn(run);
        thread.map(drop).map_err(|error| Fault::Failed(format!("no thread: {error}").into()))
    }

    /// See [`crate::accelerator::Accelerator::submit`].
    pub(crate) fn submit(&self, submission: Submission) {
        self.queue.lock().queued.push_back(submission);
        // Notifies all, as one of them may be the manager, in `start`.
        self.queue.changed.notify_all();
    }

    /// See [`crate::accelerator::Accelerator::poll`].
    pub(crate) fn poll(&self, done: &mut Vec<Completion>) {
        done.append(&mut self.queue.lock().ready);
    }

    /// True if the pool has workers.
    pub(crate) fn has_workers(&self) -> bool {
        self.queue.lock().spawned > 0
    }

    /// Tells all workers to end, and waits a while for those that can.
    fn retire(&mut self, patience: Duration) {
        self.queue.lock().ended = true;
        self.queue.changed.notify_all();
        let until = Instant::now() + patience;
        while self.present.load(Ordering::SeqCst) > self.stuck && Instant::now() < until {
            outrigger_clock::sleep(Duration::from_micros(200));
        }
        self.stuck = self.present.load(Ordering::SeqCst);
    }
}

impl Drop for WorkerPool {
    fn drop(&mut self) {
        self.retire(10 * LEAVING);
    }
}

/// Counts a thread as gone, even after a panic.
struct Gone(Arc<AtomicUsize>);

impl Drop for Gone {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// The main loop of a worker.
fn run(queue: &Queue, spawn: &Spawn, waker: Option<&Waker>, batch_max: usize) {
    let mut worker = match spawn() {
        Ok(worker) => worker,
        Err(fault) => {
            let mut state = queue.lock();
            state.refused += 1;
            state.why.get_or_insert(fault);
            queue.changed.notify_all();
            return;
        }
    };
    queue.lock().spawned += 1;
    queue.changed.notify_all();
    let mut batch = Vec::with_capacity(batch_max);
    while queue.take(batch_max, &mut batch) {
        let results = worker.work(&mut batch);
        let done = batch.drain(..).zip(results);
        let done = done.map(|(submission, result)| Completion { submission, result });
        let mut state = queue.lock();
        if !state.ended {
            state.ready.extend(done);
        }
        drop(state);
        if let Some(waker) = waker {
            waker.wake_by_ref();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::*;
    use crate::work::{Output, Work};

    /// Reports the number of tasks in its batch, and then waits for permission to continue.
    struct Told {
        says: Sender<usize>,
        go: Arc<Mutex<Receiver<()>>>,
    }

    impl Worker for Told {
        fn work(&mut self, batch: &mut [Submission]) -> Vec<Result<StageTimes, Fault>> {
            let _ = self.says.send(batch.len());
            let _ = self.go.lock().unwrap_or_else(PoisonError::into_inner).recv();
            batch.iter().map(|_| Ok(StageTimes::default())).collect()
        }
    }

    fn task(id: u64) -> Submission {
        Submission { id, work: Arc::new(Work::empty()), output: Output::default() }
    }

    fn told(workers: usize, batch_max: usize) -> (WorkerPool, Receiver<usize>, Sender<()>) {
        let ((says, said), (lets, go)) = (channel(), channel());
        let go = Arc::new(Mutex::new(go));
        let says = Mutex::new(says);
        let spawn: Spawn = Arc::new(move || -> Result<Box<dyn Worker>, Fault> {
            let says = says.lock().unwrap_or_else(PoisonError::into_inner).clone();
            Ok(Box::new(Told { says, go: Arc::clone(&go) }))
        });
        let mut pool = WorkerPool::new("told", workers, batch_max, spawn);
        pool.start().expect("they are spawned");
        (pool, said, lets)
    }

    fn polled(pool: &WorkerPool, count: usize) -> Vec<u64> {
        let mut done = Vec::new();
        while done.len() < count {
            pool.poll(&mut done);
            std::thread::yield_now();
        }
        done.iter().map(|completion| completion.submission.id).collect()
    }

    #[test]
    fn what_waits_is_taken_together() {
        let (pool, said, lets) = told(1, 3);
        pool.submit(task(1));
        assert_eq!(said.recv(), Ok(1));
        (2..6).for_each(|id| pool.submit(task(id)));
        (0..3).for_each(|_| lets.send(()).expect("somebody waits"));
        assert_eq!(polled(&pool, 5), [1, 2, 3, 4, 5]);
        assert_eq!(said.try_iter().collect::<Vec<_>>(), [3, 1]);
    }

    #[test]
    fn who_is_stuck_is_left_behind_with_what_it_has() {
        let (mut pool, said, lets) = told(2, 1);
        pool.submit(task(1));
        assert_eq!(said.recv(), Ok(1));
        pool.start().expect("others are spawned");
        pool.submit(task(2));
        assert_eq!(said.recv(), Ok(1));
        // Both continue, but the first one's results are not polled.
        lets.send(()).expect("somebody waits");
        lets.send(()).expect("somebody waits");
        assert_eq!(polled(&pool, 1), [2]);
        let mut late = Vec::new();
        outrigger_clock::sleep(Duration::from_millis(5));
        pool.poll(&mut late);
        assert!(late.is_empty());
    }

    #[test]
    fn a_pool_that_nobody_joins_says_why_and_may_be_spawned_later() {
        let busy = Arc::new(AtomicBool::new(true));
        let asked = Arc::clone(&busy);
        let spawn: Spawn = Arc::new(move || -> Result<Box<dyn Worker>, Fault> {
            let (says, _) = channel();
            let (_, go) = channel();
            let worker = Told { says, go: Arc::new(Mutex::new(go)) };
            if asked.load(Ordering::SeqCst) { Err(Fault::Busy) } else { Ok(Box::new(worker)) }
        });
        let mut pool = WorkerPool::new("nobody", 3, 1, spawn);
        assert_eq!(pool.start(), Err(Fault::Busy));
        assert!(!pool.has_workers());
        busy.store(false, Ordering::SeqCst);
        assert_eq!(pool.start(), Ok(()));
        pool.submit(task(7));
        assert_eq!(polled(&pool, 1), [7]);
    }
}
