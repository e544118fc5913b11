//! A pool: threads that call a driver which blocks, as one device.
//!
//! ```text
//!   manager ── submit ──▶ queued ──▶ worker 0: its own session, one call at a time ──▶ ready ──▶ waker, poll
//!                            └─────▶ worker 1 ...
//! ```
//!
//! Each thread (a *worker*) sets its session up itself and tears it down itself: sessions never change threads. Idle workers take turns, first come, first
//! served.
//!
//! A reset retires the whole pool and spawns another. A worker that is stuck in the driver cannot be called back: it keeps its queue, its session and
//! what it was given, and whatever it says later is read by nobody. When too many are stuck, no more are spawned.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Duration;

use outrigger_clock::Instant;

use crate::accelerator::{Completion, Fault, StageTimes, Submission};

/// What one thread does its work with.
pub(crate) trait Worker {
    /// Does all of `batch`, in place, and says of each what became of it, in order. Blocks.
    fn work(&mut self, batch: &mut [Submission]) -> Vec<Result<StageTimes, Fault>>;
}

/// Makes a worker, on its thread.
pub(crate) type Spawn = Arc<dyn Fn() -> Result<Box<dyn Worker>, Fault> + Send + Sync>;

/// How long setting sessions up may take.
const SPAWNING: Duration = Duration::from_secs(10);
/// How long a pool that is retired is waited for.
const LEAVING: Duration = Duration::from_millis(300);
/// With so many workers stuck for ever, the device is left alone.
const STUCK_MAX: usize = 64;

pub(crate) struct WorkerPool {
    name: String,
    workers: usize,
    batch_max: usize,
    spawn: Spawn,
    waker: Option<Waker>,
    queue: Arc<Queue>,
    /// Threads that have not ended, of all pools so far.
    present: Arc<AtomicUsize>,
    /// How many of them were stuck when the last pool was retired.
    stuck: usize,
}

/// What one pool and its manager share.
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
    /// Why the first one was refused.
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

    /// Waits for the next batch; `false` when all go home.
    fn take(&self, batch_max: usize, batch: &mut Vec<Submission>) -> bool {
        let mut state = self.lock();
        loop {
            if state.ended {
                return false;
            }
            if let Some(first) = state.queued.pop_front() {
                let class = first.work.class();
                batch.push(first);
                // What one call can do together: the same operation with the same parameters.
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
    /// A pool to be, of so many workers, each of which takes up to `batch_max` tasks of a class at once.
    pub(crate) fn new(name: &str, workers: usize, batch_max: usize, spawn: Spawn) -> Self {
        let (queue, present) = (Queue::new(), Arc::default());
        Self { name: name.into(), workers, batch_max, spawn, waker: None, queue, present, stuck: 0 }
    }

    /// Who is to be woken when there is something to poll.
    pub(crate) fn set_waker(&mut self, waker: Waker) {
        self.waker = Some(waker);
    }

    /// Retires whoever is there, spawns anew, and waits until their sessions stand. Fewer workers than wanted will do.
    ///
    /// # Errors
    /// Why nobody could be spawned.
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
        // All of them: one may be the manager's, in `start`.
        self.queue.changed.notify_all();
    }

    /// See [`crate::accelerator::Accelerator::poll`].
    pub(crate) fn poll(&self, done: &mut Vec<Completion>) {
        done.append(&mut self.queue.lock().ready);
    }

    /// Whether anybody is there.
    pub(crate) fn has_workers(&self) -> bool {
        self.queue.lock().spawned > 0
    }

    /// Sends everybody home, and waits a while for those who can go.
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

/// Counts a thread as gone, however it ends.
struct Gone(Arc<AtomicUsize>);

impl Drop for Gone {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A worker's life.
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

    /// Says with how many tasks it begins, and then waits to be let go on.
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
        // Both go on; nobody hears of the first.
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
