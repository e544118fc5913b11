//! The life of a thread that serves the device.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};

use rustix::io::Errno;

use super::Device;
use crate::fs::{FileSystem, Result};
use crate::kernel::REQUEST_BYTES;
use crate::kernel::wire::Request;
use crate::kernel::wire::answer::answer;
use crate::kernel::wire::opcode::{BATCH_FORGET, FORGET, NOTIFY_REPLY};

/// Room for a header and fixed fields beside the longest data.
const HEAD_ROOM: usize = 4096;

/// Serves until the mount is gone.
///
/// # Errors
/// When the connection was aborted, or the kernel says what cannot be.
pub fn serve<F: FileSystem>(fs: &F, device: &Device) -> io::Result<()> {
    // Once for all requests: fresh memory for each would cost page faults.
    let (mut room, mut bytes) = (vec![0; REQUEST_BYTES as usize + HEAD_ROOM], Vec::new());
    while let Some(message) = device.receive(&mut room)? {
        let (request, unique) = Request::from_device(message)?;
        bytes.clear();
        // A bug in one operation must not leave nobody who answers, and every program in the mount waiting for ever.
        let done = catch_unwind(AssertUnwindSafe(|| match request.opcode {
            FORGET | BATCH_FORGET => forget(fs, &request).map(|()| false),
            NOTIFY_REPLY => Ok(false),
            _ => answer(fs, &request, &mut bytes).map(|()| true),
        }));
        match done.unwrap_or(Err(Errno::IO)) {
            Ok(true) => device.answer(unique, Ok(&bytes)),
            // These have no answer.
            Ok(false) => {}
            Err(_) if matches!(request.opcode, FORGET | BATCH_FORGET) => {}
            Err(errno) => device.answer(unique, Err(errno)),
        }
    }
    Ok(())
}

/// The kernel forgets inodes: one, or some.
fn forget<F: FileSystem>(fs: &F, request: &Request<'_>) -> Result<()> {
    let mut fields = request.fields;
    if request.opcode == FORGET {
        fs.forget(request.number, fields.u64()?);
        return Ok(());
    }
    let (count, _) = (fields.u32()?, fields.u32()?);
    let mut rest = request.rest;
    for _ in 0..count {
        fs.forget(rest.u64()?, rest.u64()?);
    }
    Ok(())
}
