//! Open files for reading, at most so many, the least recently used closed first.
//!
//! A file is opened outside the lock. If two threads open the same pack at once, one of the
//! descriptors serves only its own read. A pack that is removed while it is being opened is not
//! kept, or its space would stay taken until it is evicted; `removals` detects that.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use outrigger_format::PackId;
use rustix::fd::OwnedFd;

#[derive(Default)]
struct State {
    files: HashMap<PackId, (Arc<OwnedFd>, u64)>,
    /// Counts lookups: the age of an entry.
    clock: u64,
    /// Counts calls of `forget`.
    removals: u64,
}

pub(super) struct Descriptors {
    state: Mutex<State>,
    max: usize,
}

impl Descriptors {
    /// Keeps at most `max` files open, besides those that are being read.
    pub(super) fn new(max: usize) -> Self {
        Self { state: Mutex::default(), max }
    }

    /// The open file of pack `id`; `open` opens it when it is not kept.
    pub(super) fn get<E>(
        &self,
        id: PackId,
        open: impl FnOnce() -> Result<OwnedFd, E>,
    ) -> Result<Arc<OwnedFd>, E> {
        let removals = {
            let mut state = self.state.lock().expect("no panic while it is held");
            state.clock += 1;
            let now = state.clock;
            if let Some((file, used)) = state.files.get_mut(&id) {
                *used = now;
                return Ok(Arc::clone(file));
            }
            state.removals
        };
        let file = Arc::new(open()?);
        let mut state = self.state.lock().expect("no panic while it is held");
        if state.removals != removals {
            return Ok(file);
        }
        // A scan of a few hundred entries, next to an `open` that cost more.
        while state.files.len() >= self.max && !state.files.contains_key(&id) {
            let oldest = state.files.iter().min_by_key(|(_, (_, used))| *used).map(|(id, _)| *id);
            let Some(oldest) = oldest else { break };
            state.files.remove(&oldest);
        }
        let now = state.clock;
        state.files.insert(id, (Arc::clone(&file), now));
        Ok(file)
    }

    /// Closes pack `id` once its reads in flight are done, and the returned file is dropped.
    pub(super) fn forget(&self, id: PackId) -> Option<Arc<OwnedFd>> {
        let mut state = self.state.lock().expect("no panic while it is held");
        state.removals += 1;
        state.files.remove(&id).map(|(file, _)| file)
    }

    /// Closes files that have lost their name.
    pub(super) fn close_removed(&self) {
        let mut state = self.state.lock().expect("no panic while it is held");
        let has_name = |file: &OwnedFd| rustix::fs::fstat(file).is_ok_and(|stat| stat.st_nlink > 0);
        state.files.retain(|_, (file, _)| has_name(file));
    }

    /// How many files are kept open.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.state.lock().expect("no panic while it is held").files.len()
    }
}
