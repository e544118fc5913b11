//! Group commit: callers that want records on disk at the same time share one sync.
//!
//! The first caller leads: it notes the last appended record, syncs, and wakes the others. Callers
//! whose records the sync includes are done. One of the others, whose records it may have missed,
//! leads the next sync for all of them. So there are never more than two syncs between a call and
//! its return, however many threads call.
//!
//! A failed sync is final. The kernel reports a failed write-back once and then counts the pages as
//! clean, so a later successful sync proves nothing. Every later call fails, and so does every
//! append, until the log is opened again.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard};

use crate::error::{Error, ErrorKind, Result};

struct State {
    leading: bool,
    failed: Option<String>,
}

pub(super) struct GroupCommit {
    state: Mutex<State>,
    done: Condvar,
    /// Records up to this sequence are on disk. Written under the lock of `state`.
    durable: AtomicU64,
}

impl GroupCommit {
    pub fn new(durable: u64) -> Self {
        let state = State { leading: false, failed: None };
        Self { state: Mutex::new(state), done: Condvar::new(), durable: AtomicU64::new(durable) }
    }

    /// Records up to this sequence are on disk.
    pub fn durable(&self) -> u64 {
        self.durable.load(Ordering::Acquire)
    }

    /// Fails once a sync has failed.
    pub fn check(&self) -> Result<()> {
        match &self.state.lock().expect("no panic while it is held").failed {
            None => Ok(()),
            Some(why) => Err(refused(why)),
        }
    }

    /// Returns when records up to `target` are on disk. `flush` makes the appended records durable,
    /// and returns the last sequence.
    pub fn wait(&self, target: u64, flush: impl FnOnce() -> Result<u64>) -> Result<()> {
        let mut state = self.state.lock().expect("no panic while it is held");
        loop {
            if self.durable() >= target {
                return Ok(());
            }
            if let Some(why) = &state.failed {
                return Err(refused(why));
            }
            if !state.leading {
                break;
            }
            state = self.done.wait(state).expect("no panic while it is held");
        }
        self.lead(state, flush)
    }

    /// Flushes, alone: each flush takes over the list of segments to sync, so a second one at the
    /// same time would miss some.
    fn lead(&self, mut state: MutexGuard<'_, State>, flush: impl FnOnce() -> Result<u64>) -> Result<()> {
        state.leading = true;
        drop(state);
        let flushed = flush();
        let mut state = self.state.lock().expect("no panic while it is held");
        state.leading = false;
        match &flushed {
            Ok(sequence) => self.durable.store(*sequence, Ordering::Release),
            Err(error) => state.failed = Some(error.to_string()),
        }
        self.done.notify_all();
        flushed.map(drop)
    }
}

fn refused(why: &str) -> Error {
    let text = format!("an earlier sync of the staging log failed, mount again ({why})");
    Error::new(ErrorKind::Io, text)
}
