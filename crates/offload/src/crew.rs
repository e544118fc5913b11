//! A crew: threads that call a driver which blocks, as one device.
//!
//! ```text
//!   manager ── submit ──▶ queued ──▶ hand 0: its own session, one call at a time ──▶ ready ──▶ waker, poll
//!                            └─────▶ hand 1 ...
//! ```
//!
//! Each thread (a *hand*) sets its session up itself and tears it down itself: sessions never change threads. Idle hands take turns, first come, first
//! served.
//!
//! A reset dismisses the whole crew and hires another. A hand that is stuck in the driver cannot be called back: it keeps its desk, its session and
//! what it was given, and whatever it says later is read by nobody. When too many are stuck, no more are hired.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Duration;

use outrigger_clock::Instant;

use crate::accelerator::{Completion, Fault, StageTimes, Submission};

/// What one thread does its work with.
pub(crate) trait Hand {
    /// Does all of `batch`, in place, and says of each what became of it, in order. Blocks.
    fn work(&mut self, batch: &mut [Submission]) -> Vec<Result<StageTimes, Fault>>;
}

/// Makes a hand, on its thread.
pub(crate) type Hire = Arc<dyn Fn() -> Result<Box<dyn Hand>, Fault> + Send + Sync>;

/// How long setting sessions up may take.
const HIRING: Duration = Duration::from_secs(10);
/// How long a crew that is dismissed is waited for.
const LEAVING: Duration = Duration::from_millis(300);
/// With so many hands stuck for ever, the device is left alone.
const STUCK_MAX: usize = 64;

pub(crate) struct Crew {
    name: String,
    hands: usize,
    batch_max: usize,
    hire: Hire,
    waker: Option<Waker>,
    desk: Arc<Desk>,
    /// Threads that have not ended, of all crews so far.
    present: Arc<AtomicUsize>,
    /// How many of them were stuck when the last crew was dismissed.
    stuck: usize,
}

/// What one crew and its manager share.
struct Desk {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    queued: VecDeque<Submission>,
    ready: Vec<Completion>,
    hired: usize,
    refused: usize,
    /// Why the first one was refused.
    why: Option<Fault>,
    ended: bool,
}

impl Desk {
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

impl Crew {
    /// A crew to be, of so many hands, each of which takes up to `batch_max` tasks of a class at once.
    pub(crate) fn new(name: &str, hands: usize, batch_max: usize, hire: Hire) -> Self {
        let (desk, present) = (Desk::new(), Arc::default());
        Self { name: name.into(), hands, batch_max, hire, waker: None, desk, present, stuck: 0 }
    }

    /// Who is to be woken when there is something to poll.
    pub(crate) fn set_waker(&mut self, waker: Waker) {
        self.waker = Some(waker);
    }

    /// Dismisses whoever is there, hires anew, and waits until their sessions stand. Fewer hands than wanted will do.
    ///
    /// # Errors
    /// Why nobody could be hired.
    pub(crate) fn start(&mut self) -> Result<(), Fault> {
        self.dismiss(LEAVING);
        if self.stuck > STUCK_MAX {
            return Err(Fault::Lost("too many calls have never come back".into()));
        }
        self.desk = Desk::new();
        for number in 0..self.hands {
            self.spawn(number)?;
        }
        let state = self.desk.lock();
        let waiting = |state: &mut State| state.hired + state.refused < self.hands;
        let (mut state, _) = self
            .desk
            .changed
            .wait_timeout_while(state, HIRING, waiting)
            .unwrap_or_else(PoisonError::into_inner);
        match (state.hired, state.why.take()) {
            (0, Some(why)) => Err(why),
            (0, None) => Err(Fault::Lost("no session in time".into())),
            _ => Ok(()),
        }
    }

    fn spawn(&self, number: usize) -> Result<(), Fault> {
        let (desk, hire) = (Arc::clone(&self.desk), Arc::clone(&self.hire));
        let (waker, batch_max) = (self.waker.clone(), self.batch_max);
        self.present.fetch_add(1, Ordering::SeqCst);
        let gone = Gone(Arc::clone(&self.present));
        let run = move || {
            let _gone = gone;
            run(&desk, &hire, waker.as_ref(), batch_max);
        };
        let thread = std::thread::Builder::new().name(format!("{}-{number}", self.name)).spawn(run);
        thread.map(drop).map_err(|error| Fault::Failed(format!("no thread: {error}").into()))
    }

    /// See [`crate::accelerator::Accelerator::submit`].
    pub(crate) fn submit(&self, submission: Submission) {
        self.desk.lock().queued.push_back(submission);
        // All of them: one may be the manager's, in `start`.
        self.desk.changed.notify_all();
    }

    /// See [`crate::accelerator::Accelerator::poll`].
    pub(crate) fn poll(&self, done: &mut Vec<Completion>) {
        done.append(&mut self.desk.lock().ready);
    }

    /// Whether anybody is there.
    pub(crate) fn is_hired(&self) -> bool {
        self.desk.lock().hired > 0
    }

    /// Sends everybody home, and waits a while for those who can go.
    fn dismiss(&mut self, patience: Duration) {
        self.desk.lock().ended = true;
        self.desk.changed.notify_all();
        let until = Instant::now() + patience;
        while self.present.load(Ordering::SeqCst) > self.stuck && Instant::now() < until {
            outrigger_clock::sleep(Duration::from_micros(200));
        }
        self.stuck = self.present.load(Ordering::SeqCst);
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        self.dismiss(10 * LEAVING);
    }
}

/// Counts a thread as gone, however it ends.
struct Gone(Arc<AtomicUsize>);

impl Drop for Gone {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A hand's life.
fn run(desk: &Desk, hire: &Hire, waker: Option<&Waker>, batch_max: usize) {
    let mut hand = match hire() {
        Ok(hand) => hand,
        Err(fault) => {
            let mut state = desk.lock();
            state.refused += 1;
            state.why.get_or_insert(fault);
            desk.changed.notify_all();
            return;
        }
    };
    desk.lock().hired += 1;
    desk.changed.notify_all();
    let mut batch = Vec::with_capacity(batch_max);
    while desk.take(batch_max, &mut batch) {
        let results = hand.work(&mut batch);
        let done = batch.drain(..).zip(results);
        let done = done.map(|(submission, result)| Completion { submission, result });
        let mut state = desk.lock();
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

    impl Hand for Told {
        fn work(&mut self, batch: &mut [Submission]) -> Vec<Result<StageTimes, Fault>> {
            let _ = self.says.send(batch.len());
            let _ = self.go.lock().unwrap_or_else(PoisonError::into_inner).recv();
            batch.iter().map(|_| Ok(StageTimes::default())).collect()
        }
    }

    fn task(id: u64) -> Submission {
        Submission { id, work: Arc::new(Work::empty()), output: Output::default() }
    }

    fn told(hands: usize, batch_max: usize) -> (Crew, Receiver<usize>, Sender<()>) {
        let ((says, said), (lets, go)) = (channel(), channel());
        let go = Arc::new(Mutex::new(go));
        let says = Mutex::new(says);
        let hire: Hire = Arc::new(move || -> Result<Box<dyn Hand>, Fault> {
            let says = says.lock().unwrap_or_else(PoisonError::into_inner).clone();
            Ok(Box::new(Told { says, go: Arc::clone(&go) }))
        });
        let mut crew = Crew::new("told", hands, batch_max, hire);
        crew.start().expect("they are hired");
        (crew, said, lets)
    }

    fn polled(crew: &Crew, count: usize) -> Vec<u64> {
        let mut done = Vec::new();
        while done.len() < count {
            crew.poll(&mut done);
            std::thread::yield_now();
        }
        done.iter().map(|completion| completion.submission.id).collect()
    }

    #[test]
    fn what_waits_is_taken_together() {
        let (crew, said, lets) = told(1, 3);
        crew.submit(task(1));
        assert_eq!(said.recv(), Ok(1));
        (2..6).for_each(|id| crew.submit(task(id)));
        (0..3).for_each(|_| lets.send(()).expect("somebody waits"));
        assert_eq!(polled(&crew, 5), [1, 2, 3, 4, 5]);
        assert_eq!(said.try_iter().collect::<Vec<_>>(), [3, 1]);
    }

    #[test]
    fn who_is_stuck_is_left_behind_with_what_it_has() {
        let (mut crew, said, lets) = told(2, 1);
        crew.submit(task(1));
        assert_eq!(said.recv(), Ok(1));
        crew.start().expect("others are hired");
        crew.submit(task(2));
        assert_eq!(said.recv(), Ok(1));
        // Both go on; nobody hears of the first.
        lets.send(()).expect("somebody waits");
        lets.send(()).expect("somebody waits");
        assert_eq!(polled(&crew, 1), [2]);
        let mut late = Vec::new();
        outrigger_clock::sleep(Duration::from_millis(5));
        crew.poll(&mut late);
        assert!(late.is_empty());
    }

    #[test]
    fn a_crew_that_nobody_joins_says_why_and_may_be_hired_later() {
        let busy = Arc::new(AtomicBool::new(true));
        let asked = Arc::clone(&busy);
        let hire: Hire = Arc::new(move || -> Result<Box<dyn Hand>, Fault> {
            let (says, _) = channel();
            let (_, go) = channel();
            let hand = Told { says, go: Arc::new(Mutex::new(go)) };
            if asked.load(Ordering::SeqCst) { Err(Fault::Busy) } else { Ok(Box::new(hand)) }
        });
        let mut crew = Crew::new("nobody", 3, 1, hire);
        assert_eq!(crew.start(), Err(Fault::Busy));
        assert!(!crew.is_hired());
        busy.store(false, Ordering::SeqCst);
        assert_eq!(crew.start(), Ok(()));
        crew.submit(task(7));
        assert_eq!(polled(&crew, 1), [7]);
    }
}
