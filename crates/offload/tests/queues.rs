//! Tests the outstanding queue, and the cell on which a submitter waits, under many schedules. It
//! compiles the runtime's own files with locks that a model checker schedules. A timed wait is
//! without limit here, so nothing may depend on a clock.
#![allow(clippy::disallowed_methods, reason = "tests wait and measure in real time")]
#![allow(dead_code, reason = "the files are the runtime's, and it uses more of them")]

#[path = "../src/runtime/cell.rs"]
mod cell;
#[path = "../src/runtime/queue/mod.rs"]
mod queue;

mod sync {
    use outrigger_clock::Instant;
    pub(super) use shuttle::sync::{Arc, Condvar, Mutex, MutexGuard};

    pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
        mutex.lock().expect("nobody panics with a lock")
    }

    /// A moment has no length here.
    pub(super) fn glance(_: impl Fn() -> bool) {}

    pub(super) fn wait<'a, T>(condvar: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        condvar.wait(guard).expect("nobody panics with a lock")
    }

    pub(super) fn wait_until<'a, T>(
        condvar: &Condvar,
        guard: MutexGuard<'a, T>,
        _: Option<Instant>,
    ) -> (MutexGuard<'a, T>, bool) {
        (wait(condvar, guard), false)
    }
}

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use cell::Cell;
use queue::{Board, Costs, NEVER, Next, Refusal};
use shuttle::thread;
use sync::{Arc, Mutex};

/// The number of schedules for each test.
const SCHEDULES: usize = 3000;

fn costs(of: &[u64]) -> Costs {
    let costs = std::array::from_fn(|lane| of.get(lane).copied().unwrap_or(NEVER));
    Costs { occupies: costs, alone: costs }
}

/// Runs random schedules, and schedules with few thread switches at critical moments.
fn explore(test: impl Fn() + Send + Sync + Clone + 'static) {
    shuttle::check_random(test.clone(), SCHEDULES);
    shuttle::check_pct(test, SCHEDULES, 3);
}

/// Takes items from a lane until it ends, and records them.
fn worker(board: &Board<u64>, lane: usize, done: &Mutex<Vec<u64>>) {
    loop {
        match board.next(lane, true, None) {
            Next::Item(value, cost) => {
                board.finished(lane, cost, false);
                sync::lock(done).push(value);
                board.settled();
            }
            Next::Woken | Next::Called | Next::Elapsed => {}
            Next::Ended => return,
        }
    }
}

#[test]
fn whatever_is_admitted_is_done_once_though_there_is_little_room() {
    explore(|| {
        // Two lanes that take from each other, room for two items, two submitters, a canceller, an
        // evicting failure.
        let board = Arc::new(Board::new(&[(1, true), (1, true)], 2));
        let done = Arc::new(Mutex::new(Vec::new()));
        let workers: Vec<_> = (0..2)
            .map(|lane| {
                let (board, done) = (Arc::clone(&board), Arc::clone(&done));
                thread::spawn(move || worker(&board, lane, &done))
            })
            .collect();
        let submitters: Vec<_> = (0..2u64)
            .map(|who| {
                let board = Arc::clone(&board);
                thread::spawn(move || {
                    for n in 0..3 {
                        let id = who * 10 + n;
                        let lane = (id % 2) as usize;
                        let choose =
                            move |_: &mut dyn Iterator<Item = _>, _: &mut u64| (lane, costs(&[5, 5]));
                        board.submit(id, n as usize, id, true, choose).expect("it is not closed");
                    }
                })
            })
            .collect();
        let canceller = {
            let (board, done) = (Arc::clone(&board), Arc::clone(&done));
            thread::spawn(move || {
                if let Some(value) = board.withdraw(1) {
                    sync::lock(&done).push(value);
                    board.settled();
                }
                // A device fails: what waits for it goes to the other one.
                while let Some(value) = board.evict(1) {
                    board.put_back(0, value, 0, costs(&[5]), value);
                }
            })
        };
        submitters.into_iter().chain([canceller]).for_each(|thread| thread.join().unwrap());
        board.close();
        assert!(matches!(board.submit(99, 0, 99, true, |_, _| (0, costs(&[1]))), Err((99, Refusal::Closed))));
        board.drain();
        board.end();
        workers.into_iter().for_each(|thread| thread.join().unwrap());
        let mut done = std::mem::take(&mut *sync::lock(&done));
        done.sort_unstable();
        assert_eq!(done, [0, 1, 2, 10, 11, 12]);
        assert!(board.loads().iter().all(|load| *load == queue::Load::default()), "{:?}", board.loads());
    });
}

#[test]
fn those_who_wait_for_room_are_let_in_or_turned_away_when_it_closes() {
    explore(|| {
        let board = Arc::new(Board::new(&[(1, false)], 1));
        let submitters: Vec<_> = (0..3u64)
            .map(|id| {
                let board = Arc::clone(&board);
                thread::spawn(move || board.submit(id, 0, id, true, |_, _| (0, costs(&[1]))).is_ok())
            })
            .collect();
        let closer = {
            let board = Arc::clone(&board);
            thread::spawn(move || board.close())
        };
        let done = Arc::new(Mutex::new(Vec::new()));
        let taker = {
            let (board, done) = (Arc::clone(&board), Arc::clone(&done));
            thread::spawn(move || worker(&board, 0, &done))
        };
        let admitted = submitters.into_iter().map(|thread| thread.join().unwrap());
        let admitted = admitted.filter(|admitted| *admitted).count();
        closer.join().unwrap();
        board.drain();
        board.end();
        taker.join().unwrap();
        assert_eq!(sync::lock(&done).len(), admitted);
    });
}

#[test]
fn a_wake_up_is_never_lost() {
    explore(|| {
        let board: Arc<Board<u64>> = Arc::new(Board::new(&[(1, false)], 1));
        let waker = {
            let board = Arc::clone(&board);
            thread::spawn(move || board.wake(0))
        };
        // Without the wake-up this would wait for ever.
        assert!(matches!(board.next(0, false, None), Next::Woken));
        waker.join().unwrap();
        board.end();
        assert!(matches!(board.next(0, true, None), Next::Ended));
    });
}

#[test]
fn a_call_for_help_reaches_the_idle_until_it_is_called_off() {
    explore(|| {
        let board: Arc<Board<u64>> = Arc::new(Board::new(&[(2, false)], 4));
        // The tasks to help with. As in the helpers, the board is notified under their lock.
        let jobs: Arc<Mutex<u32>> = Arc::new(Mutex::new(0));
        let helped = Arc::new(Mutex::new(0));
        let helpers: Vec<_> = (0..2)
            .map(|_| {
                let (board, jobs, helped) = (Arc::clone(&board), Arc::clone(&jobs), Arc::clone(&helped));
                thread::spawn(move || {
                    loop {
                        match board.next(0, true, None) {
                            Next::Called => {
                                let mut jobs = sync::lock(&jobs);
                                if *jobs == 0 {
                                    board.call_off(0);
                                } else {
                                    *jobs -= 1;
                                    *sync::lock(&helped) += 1;
                                }
                            }
                            Next::Item(_, cost) => {
                                board.finished(0, cost, false);
                                board.settled();
                            }
                            Next::Woken | Next::Elapsed => {}
                            Next::Ended => return,
                        }
                    }
                })
            })
            .collect();
        for id in 0..2 {
            let mut jobs = sync::lock(&jobs);
            *jobs += 1;
            board.call(0);
            drop(jobs);
            board.submit(id, 1, id, true, |_, _| (0, costs(&[1]))).expect("it is not closed");
        }
        // If a call were lost, this would wait for ever.
        while *sync::lock(&helped) < 2 {
            thread::yield_now();
        }
        board.close();
        board.drain();
        board.end();
        helpers.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

#[test]
fn only_what_is_more_urgent_comes_before_helping() {
    // With one thread there is a single schedule.
    let once = || {
        let board: Board<u64> = Board::new(&[(1, false), (1, false)], 4);
        for (id, priority, lane) in [(1, 1, 0), (2, 0, 1)] {
            board.submit(id, priority, id, true, |_, _| (lane, costs(&[1, 1]))).expect("there is room");
        }
        assert!(!board.has_more_urgent(0, 1) && board.has_more_urgent(0, 2) && board.has_more_urgent(1, 1));
        board.call(0);
        assert!(matches!(board.next(0, true, None), Next::Item(1, _)), "an item comes first");
        assert!(matches!(board.next(0, true, None), Next::Called));
        board.call_off(0);
        assert!(!board.is_idle());
    };
    shuttle::check_random(once, 1);
}

#[test]
fn an_outcome_reaches_whoever_waits_and_nobody_else() {
    explore(|| {
        let cell = Arc::new(Cell::new());
        cell.begin(1);
        let ender = {
            let cell = Arc::clone(&cell);
            thread::spawn(move || cell.end(1, "first"))
        };
        let got = cell.wait(1);
        assert_eq!((got, ender.join().unwrap()), (Some("first"), Ok(())));
        // Another task in the same cell. Late calls for the first get nothing, and do no harm.
        cell.begin(2);
        let late = {
            let cell = Arc::clone(&cell);
            thread::spawn(move || {
                assert_eq!(cell.end(1, "late"), Err("late"));
                assert_eq!(cell.give_up(1), None);
                assert!(!cell.close(1));
            })
        };
        let ender = {
            let cell = Arc::clone(&cell);
            thread::spawn(move || cell.end(2, "second"))
        };
        let closed = cell.close(2);
        let ended = ender.join().unwrap();
        // Exactly one of the two came first.
        assert_eq!(closed, ended.is_err());
        assert_eq!(cell.wait(2), ended.ok().map(|()| "second"));
        late.join().unwrap();
    });
}

struct Wait(Arc<Cell<&'static str>>, u64);

impl Future for Wait {
    type Output = Option<&'static str>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.poll(self.1, context)
    }
}

#[test]
fn a_future_is_woken() {
    explore(|| {
        let cell = Arc::new(Cell::new());
        cell.begin(7);
        let ender = {
            let cell = Arc::clone(&cell);
            thread::spawn(move || cell.end(7, "done"))
        };
        assert_eq!(shuttle::future::block_on(Wait(Arc::clone(&cell), 7)), Some("done"));
        ender.join().unwrap().unwrap();
    });
}
