//! The life of a thread that serves the device.

use std::io;

use super::Device;
use crate::fs::{FileSystem, Result};
use crate::kernel::REQUEST_BYTES;
use crate::kernel::wire::answer::answer;
use crate::kernel::wire::opcode::{BATCH_FORGET, FORGET, NOTIFY_REPLY};
use crate::kernel::wire::{Request, guarded};

/// Room for a header and fixed fields beside the longest data.
const HEAD_ROOM: usize = 4096;

/// Serves until the mount is gone.
///
/// # Errors
/// When the device fails, or the kernel says what cannot be.
pub fn serve<F: FileSystem>(fs: &F, device: &Device) -> io::Result<()> {
    // Once for all requests: fresh memory for each would cost page faults.
    let (mut room, mut bytes) = (vec![0; REQUEST_BYTES as usize + HEAD_ROOM], Vec::new());
    while let Some(message) = device.receive(&mut room)? {
        let (request, unique) = Request::from_device(message)?;
        match request.opcode {
            // These have no answer.
            FORGET | BATCH_FORGET => drop(guarded(|| forget(fs, &request))),
            NOTIFY_REPLY => {}
            _ => {
                bytes.clear();
                let done = guarded(|| answer(fs, &request, &mut bytes));
                device.answer(unique, done.map(|()| bytes.as_slice()));
            }
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
