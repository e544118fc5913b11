//! The state under the board's lock: the lanes, their queues, and which item a lane takes.

use std::collections::VecDeque;

use super::{Costs, Load, NEVER, PRIORITIES};

/// An item that waits.
pub(super) struct Item<T> {
    pub id: u64,
    pub priority: usize,
    pub costs: Costs,
    pub value: T,
}

impl<T> Item<T> {
    /// The cost that the item adds to a lane's backlog. Zero for a lane that should not execute it
    /// but got it all the same.
    pub(super) fn cost_on(&self, lane: usize) -> u64 {
        if self.costs.occupies[lane] == NEVER { 0 } else { self.costs.occupies[lane] }
    }
}

pub(super) struct Lane<T> {
    pub number: usize,
    pub queues: [VecDeque<Item<T>>; PRIORITIES],
    pub load: Load,
    /// How many items it executes at a time without one slowing another.
    pub width: usize,
    pub woken: bool,
    /// Asks idle threads to help with a task.
    pub called: bool,
    /// True if its threads take other lanes' items.
    pub steals: bool,
}

pub(super) struct State<T> {
    pub lanes: Vec<Lane<T>>,
    pub waiting: usize,
    /// Admitted and not finished.
    pub unfinished: usize,
    pub closed: bool,
    pub ended: bool,
}

impl<T> State<T> {
    /// The next item for `lane`: its own, or another lane's that finishes earlier here.
    pub(super) fn take(&mut self, lane: usize) -> Option<(T, u64)> {
        let item = self.lanes[lane].queues.iter_mut().find_map(VecDeque::pop_front);
        let item = match item {
            Some(item) => self.lanes[lane].gone(item),
            None if self.lanes[lane].steals => self.steal(lane)?,
            None => return None,
        };
        let cost = item.cost_on(lane);
        let load = &mut self.lanes[lane].load;
        load.running += 1;
        load.backlog_ns = load.backlog_ns.saturating_add(cost);
        Some((item.value, cost))
    }

    /// The last item of another lane, if that lane's backlog takes more than 1.25 times as long as
    /// `lane` needs for the item.
    pub(super) fn steal(&mut self, lane: usize) -> Option<Item<T>> {
        for from in (0..self.lanes.len()).filter(|&from| from != lane) {
            let other = &mut self.lanes[from];
            // If a thread of that lane is free, it takes the item itself at once.
            if other.load.running < other.width {
                continue;
            }
            let until_done = other.load.backlog_ns / other.width as u64;
            let Some(queue) = other.queues.iter_mut().rev().find(|queue| !queue.is_empty()) else { continue };
            let alone = |item: &Item<T>| item.costs.alone[lane];
            let worth = |item: &Item<T>| alone(item).saturating_add(alone(item) / 4) < until_done;
            if queue.back().is_some_and(worth)
                && let Some(item) = queue.pop_back()
            {
                return Some(other.gone(item));
            }
        }
        None
    }
}

impl<T> Lane<T> {
    pub(super) fn push(&mut self, item: Item<T>, in_front: bool) {
        self.load.waiting += 1;
        self.load.backlog_ns = self.load.backlog_ns.saturating_add(item.cost_on(self.number));
        let queue = &mut self.queues[item.priority];
        if in_front { queue.push_front(item) } else { queue.push_back(item) }
    }

    pub(super) fn withdraw(&mut self, id: u64) -> Option<T> {
        let found = |queue: &VecDeque<Item<T>>| queue.iter().position(|item| item.id == id);
        let (queue, at) = self.queues.iter_mut().find_map(|queue| found(queue).map(|at| (queue, at)))?;
        let item = queue.remove(at)?;
        Some(self.gone(item).value)
    }

    /// Accounts for an item that no longer waits here.
    pub(super) fn gone(&mut self, item: Item<T>) -> Item<T> {
        self.load.waiting -= 1;
        self.load.backlog_ns = self.load.backlog_ns.saturating_sub(item.cost_on(self.number));
        item
    }
}
