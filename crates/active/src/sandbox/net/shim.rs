//! The unsafe part of a network of one's own: what a child does between `fork` and `exec`, and what the stage takes over from it.
#![allow(unsafe_code)]

use std::io::{Error, Result};
use std::os::fd::{FromRawFd as _, OwnedFd, RawFd};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;

use rustix::io::FdFlags;
use rustix::thread::UnshareFlags;

/// Has the child of `command` keep `socket`, by its number here, and no other child that is started meanwhile.
pub(super) fn keep(command: &mut Command, socket: OwnedFd) {
    let keep = move || Ok(rustix::io::fcntl_setfd(&socket, FdFlags::empty())?);
    // SAFETY: between `fork` and `exec` only what is safe in a signal's handler may be called: this is one `fcntl`, which neither allocates nor takes a lock, and the descriptor
    // lives as long as the closure.
    unsafe { command.pre_exec(keep) };
}

/// What was kept by [`keep`] under this number.
///
/// # Errors
/// When it is not open.
pub(super) fn kept(number: RawFd) -> Result<OwnedFd> {
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
