//! Locks that programs take on files, where the file system keeps them itself.

use outrigger_store::meta::locks::{Lock, LockFamily, LockRange};
use rustix::io::Errno;

use super::{Handle, Result};

/// A request for a lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LockRequest {
    /// The open file by which it is asked.
    pub handle: Handle,
    /// A number of its own, by which it can be interrupted.
    pub request: u64,
    /// The lock that is asked for.
    pub lock: Lock,
    /// If others have the lock, the caller waits.
    pub waits: bool,
}

/// Locks that an owner releases.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Unlock {
    /// The kind of locks.
    pub family: LockFamily,
    /// The owner.
    pub owner: u64,
    /// The range.
    pub range: LockRange,
}

/// Gives the outcome to the caller, at any time and from any thread. Dropping it answers `EIO`, so
/// that nobody is left waiting.
pub struct Answer(Option<Box<dyn FnOnce(Result<()>) + Send>>);

impl Answer {
    /// Outcomes go to `give`.
    pub fn new(give: impl FnOnce(Result<()>) + Send + 'static) -> Self {
        Self(Some(Box::new(give)))
    }

    /// Gives the outcome.
    pub fn give(mut self, done: Result<()>) {
        if let Some(give) = self.0.take() {
            give(done);
        }
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        if let Some(give) = self.0.take() {
            give(Err(Errno::IO));
        }
    }
}

impl std::fmt::Debug for Answer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Answer").finish_non_exhaustive()
    }
}
