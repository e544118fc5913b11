//! Pipes to and from programs that do not wake either end for each page.
//!
//! A full pipe wakes its writer as soon as there is room for a page, and an empty one its reader as
//! soon as there is a byte. A program that reads or writes little at a time then pays for a wake-up
//! with each call: another processor wakes, does as little, and waits again. That costs a program
//! that reads 4 KiB at a time a quarter of its time, as in `cat FILE | PROGRAM`.
//!
//! So this end does not wait in the kernel, but by the clock: for about as long as the program
//! takes for half of the pipe's content. The program finds bytes, or room, at each call, and wakes
//! nobody. The time is learnt from the pipe's fill after each wait. If a program does nothing for a
//! while, this end waits in the kernel after all: then that costs nothing, however long it takes.

mod input;
mod output;

use std::os::fd::AsFd;
use std::time::Duration;

pub(super) use input::PacedInput;
pub(crate) use output::PacedOutput;

/// Pipes hold as much as an unprivileged user may ask for.
const PIPE_BYTES: usize = 1 << 20;
/// A smaller pipe is empty, or full, again before a timer expires.
const PACED_MIN: u64 = 256 << 10;
/// The shortest wait: timers are not much more exact.
const NAP_MIN: Duration = Duration::from_micros(50);
/// The longest: half of a pipe at 250 MB/s. A slower program reads on from the other half, or
/// writes on into it.
const NAP_MAX: Duration = Duration::from_millis(2);

/// Makes a pipe as large as possible; returns how many bytes it holds. If the kernel refuses, the
/// usual size stays: an unprivileged user has a limited number of pages for all pipes together.
pub(super) fn enlarge(pipe: impl AsFd) -> u64 {
    let _ = rustix::pipe::fcntl_setpipe_size(&pipe, PIPE_BYTES);
    rustix::pipe::fcntl_getpipe_size(&pipe).unwrap_or(0) as u64
}

/// How long to wait.
#[derive(Debug)]
struct Nap(Duration);

impl Nap {
    fn new() -> Self {
        Self(NAP_MIN)
    }

    /// It was too long.
    fn shorten(&mut self) {
        self.0 = (self.0 / 2).max(NAP_MIN);
    }

    /// It was too short.
    fn lengthen(&mut self) {
        self.0 = (self.0 * 5 / 4).min(NAP_MAX);
    }
}
