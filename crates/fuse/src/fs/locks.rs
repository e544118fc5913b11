//! Locks that programs take on files, where the file system keeps them itself.

use outrigger_store::meta::locks::{Lock, LockFamily, LockRange};
use rustix::io::Errno;

use super::{Handle, Result};

/// What is asked of a lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LockRequest {
    /// The open file by which it is asked.
    pub handle: Handle,
    /// A number of its own, by which it can be interrupted.
    pub request: u64,
    /// What is wanted.
    pub lock: Lock,
    /// If it cannot be had now, the asker waits.
    pub waits: bool,
}

/// What an owner lets go of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Unlock {
    /// Which locks.
    pub family: LockFamily,
    /// Whose.
    pub owner: u64,
    /// Where.
    pub range: LockRange,
}

/// Takes the outcome to whoever asked, at any time and from any thread. One that is dropped says `EIO`: nobody is left waiting.
pub struct Answer(Option<Box<dyn FnOnce(Result<()>) + Send>>);

impl Answer {
    /// Outcomes go to `give`.
    pub fn new(give: impl FnOnce(Result<()>) + Send + 'static) -> Self {
        Self(Some(Box::new(give)))
    }

    /// Says what came of it.
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
