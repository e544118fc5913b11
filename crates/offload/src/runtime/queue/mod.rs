//! The outstanding queue: tasks that are submitted and have not begun.
//!
//! One lock guards it. It has one lane for each device, and each lane has one queue for each
//! priority. A submitter reads all lanes' loads, chooses one and pushes, in one critical section.
//! So two submitters cannot both take the last free place. It waits on `room` while `limit` items
//! are outstanding.
//!
//! A lane's threads wait on the lane's own condition for an item, a [`Board::wake`], or a time
//! limit. A device has a single thread, which spins for some microseconds before it sleeps.
//! Placement at submission is a guess. To correct it, a thread whose lane is empty takes another
//! lane's last item if this lane would finish it earlier.
//!
//! An item is admitted once. If its device fails, [`Board::put_back`] returns it, without waiting
//! and without a bound. A shutdown waits until all admitted items are finished.

mod lanes;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};

use super::sync::{Condvar, Mutex, MutexGuard, glance, lock, wait, wait_until};

use lanes::{Item, Lane, State};
use outrigger_clock::Instant;

/// Priorities, the most urgent first.
pub(super) const PRIORITIES: usize = 3;
/// Devices of a runtime, the processor included.
pub(super) const LANES_MAX: usize = 24;
/// The cost of an item for a lane that cannot do it.
pub(super) const NEVER: u64 = u64::MAX;

/// The cost of an item for each lane, in nanoseconds. [`NEVER`] if a lane cannot or must not do it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Costs {
    /// How long the item keeps others waiting, where stages overlap. The queue lengths are sums of
    /// it.
    pub occupies: [u64; LANES_MAX],
    /// From its beginning to its end, alone. A lane compares it before it takes another lane's
    /// item.
    pub alone: [u64; LANES_MAX],
}

impl Costs {
    /// No lane can do it.
    pub(super) const NONE: Costs = Costs { occupies: [NEVER; LANES_MAX], alone: [NEVER; LANES_MAX] };

    /// The same costs on one lane only.
    pub(super) fn only(&self, lane: usize) -> Self {
        let mut one = Self::NONE;
        one.occupies[lane] = self.occupies[lane];
        one.alone[lane] = self.alone[lane];
        one
    }
}

/// How loaded a lane is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Load {
    /// Items that wait.
    pub waiting: usize,
    /// Items that are being executed.
    pub running: usize,
    /// The cost of all these items, in nanoseconds.
    pub backlog_ns: u64,
}

/// The queue.
pub(super) struct Board<T> {
    state: Mutex<State<T>>,
    limit: usize,
    /// Fewer than `limit` are waiting.
    room: Condvar,
    /// Nothing is unfinished.
    drained: Condvar,
    lanes: Vec<Condvar>,
    /// For each lane, the number of notifications to its threads. Readers look without the lock,
    /// and check again under it.
    news: Vec<AtomicU64>,
}

/// The answer to a lane's thread.
#[derive(Debug)]
pub(super) enum Next<T> {
    /// An item to execute. The thread later passes the cost to [`Board::finished`].
    Item(T, u64),
    /// [`Board::wake`] was called.
    Woken,
    /// There is no item, and [`Board::call`] was called.
    Called,
    /// The time limit has passed.
    Elapsed,
    /// The thread should end.
    Ended,
}

/// Why an item was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Refusal {
    /// The queue is full.
    Full,
    /// The runtime is being shut down.
    Closed,
}

impl<T> Board<T> {
    /// A board for lanes of these widths. The flag says whether a lane takes other lanes' items.
    pub(super) fn new(lanes: &[(usize, bool)], limit: usize) -> Self {
        let lane = |(number, &(width, steals)): (usize, &(usize, bool))| Lane {
            number,
            queues: std::array::from_fn(|_| VecDeque::with_capacity(limit)),
            load: Load::default(),
            width,
            woken: false,
            called: false,
            steals,
        };
        let state = State {
            lanes: lanes.iter().enumerate().map(lane).collect(),
            waiting: 0,
            unfinished: 0,
            closed: false,
            ended: false,
        };
        Self {
            state: Mutex::new(state),
            limit,
            room: Condvar::new(),
            drained: Condvar::new(),
            lanes: lanes.iter().map(|_| Condvar::new()).collect(),
            news: lanes.iter().map(|_| AtomicU64::new(0)).collect(),
        }
    }

    /// Wakes one thread of a lane.
    fn tell(&self, lane: usize) {
        self.news[lane].fetch_add(1, Ordering::Release);
        self.lanes[lane].notify_one();
    }

    /// Admits an item that the submitter executes itself. It takes no place in the queue, and the
    /// submitter must settle it.
    pub(super) fn admit(&self) -> bool {
        let mut state = lock(&self.state);
        state.unfinished += usize::from(!state.closed);
        !state.closed
    }

    /// Admits an item. `choose` gets all lanes' loads and returns the lane and the costs. It runs
    /// under the lock. With `block`, waits for room.
    pub(super) fn submit(
        &self,
        id: u64,
        priority: usize,
        value: T,
        block: bool,
        choose: impl FnOnce(&mut dyn Iterator<Item = Load>, &mut T) -> (usize, Costs),
    ) -> Result<(), (T, Refusal)> {
        let mut state = lock(&self.state);
        loop {
            if state.closed {
                return Err((value, Refusal::Closed));
            }
            if state.waiting < self.limit {
                break;
            }
            if !block {
                return Err((value, Refusal::Full));
            }
            state = wait(&self.room, state);
        }
        let mut value = value;
        let (lane, costs) = choose(&mut state.lanes.iter().map(|lane| lane.load), &mut value);
        state.unfinished += 1;
        state.lanes[lane].push(Item { id, priority, costs, value }, false);
        state.waiting += 1;
        drop(state);
        self.tell(lane);
        Ok(())
    }

    /// Puts an admitted item at the front of its priority's queue in `lane`. Never waits.
    pub(super) fn put_back(&self, lane: usize, id: u64, priority: usize, costs: Costs, value: T) {
        let mut state = lock(&self.state);
        state.lanes[lane].push(Item { id, priority, costs, value }, true);
        state.waiting += 1;
        drop(state);
        self.tell(lane);
    }

    /// Takes the next item of `lane` if `may_take`. Otherwise waits for an item, a wake-up, or
    /// the time `until`.
    pub(super) fn next(&self, lane: usize, may_take: bool, until: Option<Instant>) -> Next<T> {
        let mut state = lock(&self.state);
        // The processor has many threads, and perhaps nobody needs them soon. A thread that polls
        // sleeps only briefly. So neither spins.
        let mut glances = lane > 0 && until.is_none();
        loop {
            if may_take && let Some((value, cost)) = state.take(lane) {
                self.make_room(state);
                return Next::Item(value, cost);
            }
            if std::mem::take(&mut state.lanes[lane].woken) {
                return Next::Woken;
            }
            if may_take && state.lanes[lane].called {
                return Next::Called;
            }
            if state.ended {
                return Next::Ended;
            }
            if std::mem::take(&mut glances) {
                let news = self.news[lane].load(Ordering::Acquire);
                drop(state);
                glance(|| self.news[lane].load(Ordering::Acquire) != news);
                state = lock(&self.state);
                continue;
            }
            let elapsed;
            (state, elapsed) = wait_until(&self.lanes[lane], state, until);
            if elapsed {
                return Next::Elapsed;
            }
        }
    }

    /// Wakes one thread of a lane.
    pub(super) fn wake(&self, lane: usize) {
        lock(&self.state).lanes[lane].woken = true;
        self.tell(lane);
    }

    /// Asks all idle threads of a lane to help with a task, until [`Board::call_off`].
    pub(super) fn call(&self, lane: usize) {
        lock(&self.state).lanes[lane].called = true;
        self.lanes[lane].notify_all();
    }

    /// Ends the request for help.
    pub(super) fn call_off(&self, lane: usize) {
        lock(&self.state).lanes[lane].called = false;
    }

    /// True if the lane has a waiting item of a more urgent priority.
    pub(super) fn has_more_urgent(&self, lane: usize, priority: usize) -> bool {
        lock(&self.state).lanes[lane].queues[..priority].iter().any(|queue| !queue.is_empty())
    }

    /// Records that a lane no longer executes an item. Unless `settled`, the item is not finished,
    /// and will be put back.
    pub(super) fn finished(&self, lane: usize, cost: u64, settled: bool) {
        let mut state = lock(&self.state);
        let load = &mut state.lanes[lane].load;
        load.running -= 1;
        load.backlog_ns = load.backlog_ns.saturating_sub(cost);
        if settled {
            self.settle(&mut state);
        }
    }

    /// Records that an item which was withdrawn or evicted is finished.
    pub(super) fn settled(&self) {
        self.settle(&mut lock(&self.state));
    }

    fn settle(&self, state: &mut State<T>) {
        state.unfinished -= 1;
        if state.unfinished == 0 {
            self.drained.notify_all();
        }
    }

    /// Removes a waiting item. The caller must settle it.
    pub(super) fn withdraw(&self, id: u64) -> Option<T> {
        let mut state = lock(&self.state);
        let value = state.lanes.iter_mut().find_map(|lane| lane.withdraw(id))?;
        self.make_room(state);
        Some(value)
    }

    /// Removes the first item of a lane without executing it, as its device has failed.
    pub(super) fn evict(&self, lane: usize) -> Option<T> {
        let mut state = lock(&self.state);
        let item = state.lanes[lane].queues.iter_mut().find_map(VecDeque::pop_front)?;
        let item = state.lanes[lane].gone(item);
        self.make_room(state);
        Some(item.value)
    }

    /// The ids of all items that wait, sorted.
    pub(super) fn waiting(&self) -> Vec<u64> {
        let state = lock(&self.state);
        let queues = state.lanes.iter().flat_map(|lane| &lane.queues);
        let mut ids: Vec<u64> = queues.flatten().map(|item| item.id).collect();
        ids.sort_unstable();
        ids
    }

    /// True if all admitted items are settled.
    pub(super) fn is_idle(&self) -> bool {
        lock(&self.state).unfinished == 0
    }

    /// All lanes' loads.
    pub(super) fn loads(&self) -> Vec<Load> {
        lock(&self.state).lanes.iter().map(|lane| lane.load).collect()
    }

    /// One lane's load.
    pub(super) fn load(&self, lane: usize) -> Load {
        lock(&self.state).lanes[lane].load
    }

    /// Admits no more items.
    pub(super) fn close(&self) {
        lock(&self.state).closed = true;
        self.room.notify_all();
    }

    /// Waits until all admitted items are settled.
    pub(super) fn drain(&self) {
        let mut state = lock(&self.state);
        while state.unfinished > 0 {
            state = wait(&self.drained, state);
        }
    }

    /// Ends all threads once their queues are empty.
    pub(super) fn end(&self) {
        lock(&self.state).ended = true;
        self.lanes.iter().for_each(Condvar::notify_all);
    }

    fn make_room(&self, mut state: MutexGuard<'_, State<T>>) {
        state.waiting -= 1;
        drop(state);
        self.room.notify_one();
    }
}
