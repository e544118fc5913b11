//! The life of a thread that serves the device.

use std::io;
use std::sync::Arc;

use super::Device;
use super::crowd::{Crowd, take_back};
use crate::fs::{Answer, FileSystem, LockRequest, Result, Unlock};
use crate::kernel::REQUEST_BYTES;
use crate::kernel::wire::answer::answer;
use crate::kernel::wire::lock::Asked;
use crate::kernel::wire::opcode::{BATCH_FORGET, FORGET, INTERRUPT, NOTIFY_REPLY, SETLK, SETLKW};
use crate::kernel::wire::{Request, guarded};

/// Room for a header and fixed fields beside the longest data.
const HEAD_ROOM: usize = 4096;

/// Serves until the mount is gone, as the thread `at` of the crowd.
///
/// # Errors
/// When the device fails, or the kernel says what cannot be.
pub fn serve<F: FileSystem>(fs: &F, device: &Arc<Device>, crowd: &Crowd, at: usize) -> io::Result<()> {
    crowd.join(at, device);
    let keeps_locks = fs.keeps_locks();
    // Once for all requests: fresh memory for each would cost page faults.
    let (mut room, mut bytes) = (vec![0; REQUEST_BYTES as usize + HEAD_ROOM], Vec::new());
    while let Some(message) = device.receive(&mut room)? {
        let request = Request::from_device(message)?;
        let unique = request.unique;
        match request.opcode {
            // These have no answer.
            FORGET | BATCH_FORGET => drop(guarded(|| forget(fs, &request))),
            NOTIFY_REPLY => {}
            // Needs no answer either.
            INTERRUPT => drop(guarded(|| interrupt(fs, crowd, &request))),
            SETLK | SETLKW if keeps_locks => {
                // The way it came, at whatever time: only there the kernel looks for the request.
                let back = Arc::clone(device);
                let answer = Answer::new(move |done| back.answer(unique, done.map(|()| &[][..])));
                // A panic drops the answer, which says so.
                let _ = guarded(|| lock(fs, &request, unique, answer));
            }
            _ => {
                bytes.clear();
                crowd.begin(at, &request);
                let done = guarded(|| answer(fs, &request, &mut bytes));
                if crowd.end(at) {
                    device.answer(unique, done.map(|()| bytes.as_slice()));
                } else if done.is_ok() {
                    let _ = guarded(|| take_back(fs, &request, &bytes));
                }
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

/// The caller of a request does not want to wait for the answer any more.
fn interrupt<F: FileSystem>(fs: &F, crowd: &Crowd, request: &Request<'_>) -> Result<()> {
    let mut fields = request.fields;
    let unique = fields.u64()?;
    if fs.keeps_locks() {
        fs.interrupt(unique);
    }
    crowd.interrupt(unique);
    Ok(())
}

/// Takes a lock or gives one up. Only what is given up is answered from here.
fn lock<F: FileSystem>(fs: &F, request: &Request<'_>, unique: u64, answer: Answer) -> Result<()> {
    let asked = match Asked::new(request) {
        Ok(asked) => asked,
        Err(errno) => {
            answer.give(Err(errno));
            return Ok(());
        }
    };
    let Asked { handle, lock, gives_up } = asked;
    if gives_up {
        let unlock = Unlock { family: lock.family, owner: lock.owner, range: lock.range };
        answer.give(fs.unlock(request.number, &unlock));
    } else {
        let waits = request.opcode == SETLKW;
        fs.lock(request.number, &LockRequest { handle, request: unique, lock, waits }, answer);
    }
    Ok(())
}
