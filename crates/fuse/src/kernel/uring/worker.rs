//! The thread of a processor: takes its requests, answers what is quick, hands on what is not, sends answers.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::{io, mem};

use rustix::io::Errno;

use super::super::wire::answer::{answer, effort};
use super::pool::{Answered, Job};
use super::shim::{Event, Held, Queue};
use crate::fs::FileSystem;

/// Serves until the mount is gone and every request has come back.
///
/// # Errors
/// When the ring fails.
pub fn serve<F: FileSystem>(
    fs: &F,
    queue: &mut Queue,
    slow: &Sender<Job>,
    answered: &Arc<Answered>,
) -> io::Result<()> {
    let (mut events, mut bytes) = (Vec::new(), Vec::new());
    while queue.live() > 0 {
        queue.wait(&mut events)?;
        for event in mem::take(&mut events) {
            match event {
                Event::Request(held) => {
                    let waits = held.request().is_ok_and(|request| fs.waits(effort(&request)));
                    let held = if waits {
                        match slow.send(Job { held, back: Arc::clone(answered) }) {
                            Ok(()) => continue,
                            // The pool's threads are gone, which they are not while anybody can send.
                            Err(unsent) => unsent.0.held,
                        }
                    } else {
                        held
                    };
                    commit(fs, queue, held, &mut bytes)?;
                }
                Event::Woken => answered.take().into_iter().try_for_each(|held| queue.commit(held))?,
            }
        }
    }
    Ok(())
}

fn commit<F: FileSystem>(fs: &F, queue: &mut Queue, mut held: Held, bytes: &mut Vec<u8>) -> io::Result<()> {
    fulfil(fs, &mut held, bytes);
    queue.commit(held)
}

/// Carries a request out and puts the answer in; `bytes` is room for it.
pub fn fulfil<F: FileSystem>(fs: &F, held: &mut Held, bytes: &mut Vec<u8>) {
    bytes.clear();
    // A bug in one operation must not leave a processor without anybody who answers, and every program on it waiting for ever.
    let done = catch_unwind(AssertUnwindSafe(|| answer(fs, &held.request()?, bytes)));
    held.answer(done.unwrap_or(Err(Errno::IO)).map(|()| bytes.as_slice()));
}
