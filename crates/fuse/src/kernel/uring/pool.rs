//! Threads for requests that may wait, so that the quick ones of the same processor do not wait
//! behind them.
//!
//! A worker hands a held request over with the way back to it. The pool's thread puts the answer in
//! and wakes the worker by its event; the worker sends the answer, as only the thread of a ring may
//! use it. No more requests can be in progress than there are entries, so nothing here needs a
//! bound.

use std::os::fd::OwnedFd;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::{io, mem};

use rustix::event::{EventfdFlags, eventfd};

use super::shim::Held;
use super::worker::fulfil;
use crate::fs::FileSystem;

/// Requests of one worker that have their answer.
pub struct Answered {
    held: Mutex<Vec<Held>>,
    /// Wakes the worker.
    pub wake: Arc<OwnedFd>,
}

impl Answered {
    /// An empty one.
    ///
    /// # Errors
    /// When there are too many open files.
    pub fn new() -> io::Result<Arc<Self>> {
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        Ok(Arc::new(Self { held: Mutex::default(), wake }))
    }

    fn push(&self, held: Held) {
        self.held.lock().unwrap_or_else(PoisonError::into_inner).push(held);
        // It fails only when the count would not fit, and then there was something to wake by.
        #[allow(clippy::host_endian_bytes, reason = "the kernel's count")]
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    /// Takes all of them.
    pub fn take(&self) -> Vec<Held> {
        mem::take(&mut self.held.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A request, and where it goes when it has been answered.
pub struct Job {
    /// The request.
    pub held: Held,
    /// The worker's.
    pub back: Arc<Answered>,
}

/// Starts so many threads. They end when all senders are gone.
///
/// # Errors
/// When there are too many threads.
pub fn start<F: FileSystem>(fs: &Arc<F>, threads: usize) -> io::Result<(Sender<Job>, Vec<JoinHandle<()>>)> {
    let (sender, receiver) = mpsc::channel();
    let receiver = Arc::new(Mutex::new(receiver));
    let started = (0..threads).map(|thread| {
        let (fs, receiver) = (Arc::clone(fs), Arc::clone(&receiver));
        std::thread::Builder::new().name(format!("mount-slow-{thread}")).spawn(move || serve(&*fs, &receiver))
    });
    let started = started.collect::<io::Result<_>>()?;
    Ok((sender, started))
}

fn serve<F: FileSystem>(fs: &F, jobs: &Mutex<Receiver<Job>>) {
    let mut answer = Vec::new();
    loop {
        let job = jobs.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(Job { mut held, back }) = job else { return };
        fulfil(fs, &mut held, &mut answer);
        back.push(held);
    }
}
