//! The unsafe part of the stages: taking over what was inherited, and moving into name spaces.
#![allow(unsafe_code)]

use std::io::{Error, Result};
use std::os::fd::{FromRawFd as _, OwnedFd, RawFd};
use std::path::Path;

use rustix::io::FdFlags;
use rustix::thread::UnshareFlags;

/// What this process inherited under this number, as [`Kept`](crate::sandbox::Kept) handed it over.
///
/// # Errors
/// When it is not open.
pub(in crate::sandbox) fn kept(number: RawFd) -> Result<OwnedFd> {
    if number <= 2 || !Path::new(&format!("/proc/self/fd/{number}")).exists() {
        return Err(Error::from(rustix::io::Errno::BADF));
    }
    // SAFETY: the stage is this process's only thread, has opened nothing yet, and is told this number by who started it; nobody else in this process owns it. That it is open has just been looked at.
    let socket = unsafe { OwnedFd::from_raw_fd(number) };
    rustix::io::fcntl_setfd(&socket, FdFlags::CLOEXEC)?;
    Ok(socket)
}

/// Moves this process, which has one thread, into a user and a network name space of its own.
///
/// # Errors
/// The kernel's refusal.
pub(super) fn move_out() -> Result<()> {
    // SAFETY: that is unsafe for tables of descriptors only, which stay.
    Ok(unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWUSER | UnshareFlags::NEWNET) }?)
}
