//! The unsafe part of the stages: taking over what was inherited, and moving into name spaces.
#![allow(unsafe_code)]

use std::io::{Error, Result};
use std::os::fd::{FromRawFd as _, OwnedFd, RawFd};
use std::path::Path;

use rustix::io::FdFlags;
use rustix::thread::UnshareFlags;

/// Takes over an inherited descriptor of this number, as [`Kept`](crate::sandbox::Kept) passed it
/// on.
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

/// Keeps inherited descriptors, except the standard streams, from all programs that this process
/// starts. To be called before it opens anything itself.
///
/// # Errors
/// When the table of descriptors cannot be read.
pub(in crate::sandbox) fn keep_inherited() -> Result<()> {
    let numbers: Vec<RawFd> = std::fs::read_dir("/proc/self/fd")?
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter(|number| *number > 2)
        .collect();
    for number in numbers {
        // SAFETY: it is used for this call only, which changes nothing but the flag; one that was closed meanwhile is refused.
        let file = unsafe { std::os::fd::BorrowedFd::borrow_raw(number) };
        let _ = rustix::io::fcntl_setfd(file, FdFlags::CLOEXEC);
    }
    Ok(())
}

/// Moves this process, which has one thread, into a user and a network name space of its own.
///
/// # Errors
/// The kernel's refusal.
pub(super) fn move_out() -> Result<()> {
    // SAFETY: that is unsafe for tables of descriptors only, which stay.
    Ok(unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWUSER | UnshareFlags::NEWNET) }?)
}
