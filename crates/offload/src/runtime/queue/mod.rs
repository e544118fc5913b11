//! The outstanding queue: what was submitted and not begun yet.
//!
//! One lock, one lane a device, in each lane one queue a priority. A submitter looks at all lanes' loads, chooses one and
//! pushes, in one critical section, so that two submitters cannot both take the last free place. It waits on `room` while
//! `limit` items are outstanding. A lane's threads wait on the lane's own condition for an item, for somebody's
//! [`Board::wake`], or for a moment; that of a device, which is one, looks for some microseconds before it sleeps. A thread whose lane is empty looks whether another lane's last item would be done
//! earlier here than there, and takes it (decisions made at submission are guesses; this corrects them).
//!
//! An item is admitted once. If its device fails, it comes back by [`Board::put_back`], which never waits and never
//! refuses; the count of admitted and not yet finished items is what a shutdown waits for.

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
/// What a lane cannot do costs this.
pub(super) const NEVER: u64 = u64::MAX;

/// What each lane would need for an item, in nanoseconds; [`NEVER`] if it cannot do it, or is not to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Costs {
    /// For how long it keeps others waiting, where stages overlap: by this, queues know how long they are.
    pub occupies: [u64; LANES_MAX],
    /// From its beginning to its end, alone: by this, a lane knows whether to take it from another.
    pub alone: [u64; LANES_MAX],
}

impl Costs {
    /// No lane can do it.
    pub(super) const NONE: Costs = Costs { occupies: [NEVER; LANES_MAX], alone: [NEVER; LANES_MAX] };

    /// The same on one lane only.
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
    /// What all of them cost, in nanoseconds.
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
    /// For each lane, how often there was news for its threads: to be looked at without the lock, by who looks again.
    news: Vec<AtomicU64>,
}

/// What a lane's thread is told.
#[derive(Debug)]
pub(super) enum Next<T> {
    /// Execute this. The cost is to be told to [`Board::finished`].
    Item(T, u64),
    /// [`Board::wake`] was called.
    Woken,
    /// There is no item, and [`Board::call`] was called.
    Called,
    /// The moment has come.
    Elapsed,
    /// End.
    Ended,
}

/// Why an item was not taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Refusal {
    /// As many are waiting as may.
    Full,
    /// The runtime is being shut down.
    Closed,
}

impl<T> Board<T> {
    /// For lanes of these widths; whether each takes other lanes' items.
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

    /// Tells one thread of a lane that there is something.
    fn tell(&self, lane: usize) {
        self.news[lane].fetch_add(1, Ordering::Release);
        self.lanes[lane].notify_one();
    }

    /// Admits an item that the submitter does itself: it takes no room, and has to be settled.
    pub(super) fn admit(&self) -> bool {
        let mut state = lock(&self.state);
        state.unfinished += usize::from(!state.closed);
        !state.closed
    }

    /// Admits an item. `choose` is given all lanes' loads and says the lane and the costs; it is called with the lock
    /// held. With `block`, waits for room.
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

    /// Puts an item that was admitted before in front of its priority's queue in `lane`. Never waits.
    pub(super) fn put_back(&self, lane: usize, id: u64, priority: usize, costs: Costs, value: T) {
        let mut state = lock(&self.state);
        state.lanes[lane].push(Item { id, priority, costs, value }, true);
        state.waiting += 1;
        drop(state);
        self.tell(lane);
    }

    /// Takes the next item of `lane` if `may_take`, or waits for one, for a wake-up, or until a moment.
    pub(super) fn next(&self, lane: usize, may_take: bool, until: Option<Instant>) -> Next<T> {
        let mut state = lock(&self.state);
        // The processor's threads are many, and nobody may be about to need them; who polls will not sleep for long.
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

    /// Makes one thread of a lane look around.
    pub(super) fn wake(&self, lane: usize) {
        lock(&self.state).lanes[lane].woken = true;
        self.tell(lane);
    }

    /// Has all idle threads of a lane help others, until it is called off.
    pub(super) fn call(&self, lane: usize) {
        lock(&self.state).lanes[lane].called = true;
        self.lanes[lane].notify_all();
    }

    /// There is nothing to help with.
    pub(super) fn call_off(&self, lane: usize) {
        lock(&self.state).lanes[lane].called = false;
    }

    /// Whether something waits in a lane that comes before this priority.
    pub(super) fn has_more_urgent(&self, lane: usize, priority: usize) -> bool {
        lock(&self.state).lanes[lane].queues[..priority].iter().any(|queue| !queue.is_empty())
    }

    /// Tells that an item is no longer being executed by a lane. Unless it is `settled`, it has come to no end yet: it will be put back.
    pub(super) fn finished(&self, lane: usize, cost: u64, settled: bool) {
        let mut state = lock(&self.state);
        let load = &mut state.lanes[lane].load;
        load.running -= 1;
        load.backlog_ns = load.backlog_ns.saturating_sub(cost);
        if settled {
            self.settle(&mut state);
        }
    }

    /// Tells that an item that was withdrawn or evicted has come to its end.
    pub(super) fn settled(&self) {
        self.settle(&mut lock(&self.state));
    }

    fn settle(&self, state: &mut State<T>) {
        state.unfinished -= 1;
        if state.unfinished == 0 {
            self.drained.notify_all();
        }
    }

    /// Takes an item out that still waits. It has to be settled.
    pub(super) fn withdraw(&self, id: u64) -> Option<T> {
        let mut state = lock(&self.state);
        let value = state.lanes.iter_mut().find_map(|lane| lane.withdraw(id))?;
        self.make_room(state);
        Some(value)
    }

    /// Takes the first item of a lane out without executing it: what a failed device leaves behind.
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

    /// Whether everything admitted is settled.
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

    /// Admits nothing more.
    pub(super) fn close(&self) {
        lock(&self.state).closed = true;
        self.room.notify_all();
    }

    /// Waits until everything admitted is settled.
    pub(super) fn drain(&self) {
        let mut state = lock(&self.state);
        while state.unfinished > 0 {
            state = wait(&self.drained, state);
        }
    }

    /// Sends all threads home, once nothing is left for them.
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
