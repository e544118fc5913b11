//! The freeze lock: every change passes this gate, and a barrier closes it. A thread that closes
//! it, for however long, has the flusher's turn.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};

/// See the module.
#[derive(Default)]
pub(super) struct FreezeLock {
    lock: RwLock<()>,
    closed: AtomicBool,
}

/// Nothing changes while this lives.
pub(super) struct Closed<'a> {
    freeze_lock: &'a FreezeLock,
    _lock: RwLockWriteGuard<'a, ()>,
}

impl FreezeLock {
    /// Passes, for one change; waits while it is closed.
    pub fn pass(&self) -> RwLockReadGuard<'_, ()> {
        self.lock.read().expect("no panic while it is held")
    }

    /// Closes it for a moment.
    pub fn pause(&self) -> RwLockWriteGuard<'_, ()> {
        self.lock.write().expect("no panic while it is held")
    }

    /// Closes it for as long as a disk takes.
    pub fn close(&self) -> Closed<'_> {
        self.closed.store(true, Ordering::Relaxed);
        Closed { freeze_lock: self, _lock: self.pause() }
    }

    /// True while it is closed for longer than a moment: a change would have to wait.
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }
}

impl Drop for Closed<'_> {
    fn drop(&mut self) {
        // Two barriers follow one another. The flag may be wrong for a while during the later one,
        // and changes then wait on their own thread.
        self.freeze_lock.closed.store(false, Ordering::Relaxed);
    }
}
