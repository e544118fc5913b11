//! A `close` that returns its error, which `File` does not.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::IntoRawFd;

/// Closes a file. Others see the written bytes only if this succeeds.
///
/// # Errors
/// As of `close`; the file is closed all the same.
pub fn close(file: File) -> io::Result<()> {
    // SAFETY: the file owned the descriptor, and gives it up here.
    let closed = unsafe { libc::close(file.into_raw_fd()) };
    if closed == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
