//! The thread of a processor: takes its requests, answers what is quick, hands on what is not,
//! sends answers.

use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::{io, mem};

use super::super::wire::answer::{answer, effort};
use super::super::wire::guarded;
use super::pool::{Answered, Job};
use super::shim::{Event, Held, Queue};
use crate::fs::{FileSystem, Keeps};

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
        let mut come = mem::take(&mut events).into_iter().peekable();
        while let Some(event) = come.next() {
            match event {
                Event::Request(held) if hand_on(fs, &held, come.peek().is_some()) => {
                    // The pool's threads are there for as long as anybody can send.
                    let _ = slow.send(Job { held, back: Arc::clone(answered) });
                }
                Event::Request(mut held) => {
                    fulfil(fs, &mut held, &mut bytes);
                    queue.commit(held)?;
                }
                Event::Woken => answered.take().into_iter().try_for_each(|held| queue.commit(held))?,
            }
        }
    }
    Ok(())
}

/// A request is for the pool: it may wait, or others would wait behind it for long.
fn hand_on<F: FileSystem>(fs: &F, held: &Held, more: bool) -> bool {
    held.request().is_ok_and(|request| match fs.keeps(effort(&request)) {
        Keeps::Shortly => false,
        Keeps::Busy => more,
        Keeps::Waiting => true,
    })
}

/// Carries a request out and puts the answer in; `bytes` is room for it.
pub fn fulfil<F: FileSystem>(fs: &F, held: &mut Held, bytes: &mut Vec<u8>) {
    bytes.clear();
    let done = guarded(|| answer(fs, &held.request()?, bytes));
    held.answer(done.map(|()| bytes.as_slice()));
}
