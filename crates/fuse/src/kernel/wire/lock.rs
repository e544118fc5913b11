//! Locks, as `include/uapi/linux/fuse.h` of the kernel lays them out: `struct fuse_lk_in` and
//! `fuse_lk_out`.

use outrigger_store::meta::locks::{Lock, LockFamily, LockMode, LockRange};
use rustix::io::Errno;

use super::Request;
use super::encode::Encode as _;
use crate::fs::{Handle, Result};

/// The lock is one of `flock`.
const LK_FLOCK: u32 = 1;
/// Values of `l_type`, as `fcntl` has them.
const READ: u32 = 0;
const WRITE: u32 = 1;
const UNLOCK: u32 = 2;

/// A lock request's fields.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Asked {
    /// The open file by which it is asked.
    pub handle: Handle,
    /// The lock; its mode has no meaning in a release.
    pub lock: Lock,
    /// It is a release.
    pub gives_up: bool,
}

impl Asked {
    /// Reads it.
    ///
    /// # Errors
    /// `EINVAL` for what `fcntl` does not have, `EIO` when it is too short.
    pub fn new(request: &Request<'_>) -> Result<Self> {
        let mut fields = request.fields;
        let (handle, owner) = (fields.u64()?, fields.u64()?);
        let range = LockRange { first: fields.u64()?, last: fields.u64()? };
        let (kind, process, flags) = (fields.u32()?, fields.u32()?, fields.u32()?);
        // An open file has one handle, which is never reused. By the time that its release comes,
        // the kernel may have reused its own number for the file.
        let (family, owner) = match flags & LK_FLOCK {
            0 => (LockFamily::Ranges, owner),
            _ => (LockFamily::Whole, handle),
        };
        let (mode, gives_up) = match kind {
            READ => (LockMode::Shared, false),
            WRITE => (LockMode::Exclusive, false),
            UNLOCK => (LockMode::Shared, true),
            _ => return Err(Errno::INVAL),
        };
        Ok(Self { handle, lock: Lock { family, owner, range, mode, process }, gives_up })
    }
}

/// Appends a lock that is in the way to an answer.
pub fn in_the_way(out: &mut Vec<u8>, lock: Option<Lock>) {
    let (range, kind, process) = match lock {
        Some(Lock { range, mode: LockMode::Shared, process, .. }) => (range, READ, process),
        Some(Lock { range, mode: LockMode::Exclusive, process, .. }) => (range, WRITE, process),
        None => (LockRange { first: 0, last: 0 }, UNLOCK, 0),
    };
    out.u64(range.first);
    out.u64(range.last);
    out.u32(kind);
    out.u32(process);
}
