//! Blocks in memory, present or promised by the thread that fetches them. They are bounded in
//! bytes, and the least recently used go first.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

use outrigger_format::PackId;

use super::CacheCounts;

/// A block's bytes.
pub(super) type Block = Arc<[u8]>;

type Key = (PackId, u64);

enum Slot {
    Promised,
    Ready { block: Block, used: u64 },
}

#[derive(Default)]
struct State {
    slots: HashMap<Key, Slot>,
    bytes: usize,
    clock: u64,
    counts: CacheCounts,
}

/// What [`Blocks::find`] found.
pub(super) enum Found {
    /// It is here.
    Here(Block),
    /// It is nowhere: the caller has promised it now, and must put it or give it up.
    Promised,
    /// It was promised, and given up.
    Failed,
}

/// See the module.
pub(super) struct Blocks {
    state: Mutex<State>,
    changed: Condvar,
    limit: usize,
}

impl Blocks {
    pub(super) fn new(limit: usize) -> Self {
        Self { state: Mutex::default(), changed: Condvar::new(), limit }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic while it is held")
    }

    /// The block, waiting for it if it was promised.
    pub(super) fn find(&self, id: PackId, number: u64) -> Found {
        let (mut state, mut has_waited) = (self.state(), false);
        loop {
            state.clock += 1;
            let now = state.clock;
            match state.slots.get_mut(&(id, number)) {
                Some(Slot::Ready { block, used }) => {
                    *used = now;
                    let block = Arc::clone(block);
                    state.counts.memory_hits += 1;
                    return Found::Here(block);
                }
                Some(Slot::Promised) => {
                    has_waited = true;
                    state = self.changed.wait(state).expect("no panic while it is held");
                }
                None if has_waited => return Found::Failed,
                None => {
                    state.slots.insert((id, number), Slot::Promised);
                    return Found::Promised;
                }
            }
        }
    }

    /// Promises a block that is not there; false when it is, or is promised already.
    pub(super) fn promise(&self, id: PackId, number: u64) -> bool {
        let mut state = self.state();
        if state.slots.contains_key(&(id, number)) {
            return false;
        }
        state.slots.insert((id, number), Slot::Promised);
        true
    }

    /// The block is here.
    pub(super) fn put(&self, id: PackId, number: u64, block: Block) {
        let mut state = self.state();
        state.clock += 1;
        let (len, used) = (block.len(), state.clock);
        if let Some(Slot::Ready { block, .. }) = state.slots.insert((id, number), Slot::Ready { block, used })
        {
            state.bytes -= block.len();
        }
        state.bytes += len;
        self.evict(&mut state);
        self.changed.notify_all();
    }

    /// Withdraws a promise.
    pub(super) fn give_up(&self, id: PackId, number: u64) {
        let mut state = self.state();
        if let Some(Slot::Promised) = state.slots.get(&(id, number)) {
            state.slots.remove(&(id, number));
        }
        self.changed.notify_all();
    }

    /// Drops a pack's blocks; whether there were any.
    pub(super) fn forget(&self, id: PackId) -> bool {
        let state = &mut *self.state();
        let mut freed = 0;
        state.slots.retain(|(of, _), slot| match slot {
            Slot::Ready { block, .. } if *of == id => {
                freed += block.len();
                false
            }
            _ => true,
        });
        state.bytes -= freed;
        freed > 0
    }

    /// Drops all blocks that are there.
    pub(super) fn clear(&self) {
        let state = &mut *self.state();
        state.slots.retain(|_, slot| matches!(slot, Slot::Promised));
        state.bytes = 0;
    }

    pub(super) fn count(&self, with: impl FnOnce(&mut CacheCounts)) {
        with(&mut self.state().counts);
    }

    pub(super) fn counts(&self) -> CacheCounts {
        self.state().counts
    }

    /// A quarter goes at once, so that looking at all is rare.
    fn evict(&self, state: &mut State) {
        if state.bytes <= self.limit {
            return;
        }
        let mut ages: Vec<(u64, Key, usize)> = state
            .slots
            .iter()
            .filter_map(|(key, slot)| match slot {
                Slot::Ready { block, used } => Some((*used, *key, block.len())),
                Slot::Promised => None,
            })
            .collect();
        ages.sort_unstable();
        // The newest stays, however small the limit: a reader is about to use it.
        ages.pop();
        for (_, key, len) in ages {
            if state.bytes <= self.limit / 4 * 3 {
                return;
            }
            state.slots.remove(&key);
            state.bytes -= len;
        }
    }
}
