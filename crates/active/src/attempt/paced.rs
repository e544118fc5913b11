//! Pipes to and from programs, of which neither end is woken for each page.
//!
//! A pipe that is full wakes its writer as soon as there is room for a page, and one that is empty its reader as soon as there is a byte. A program that reads, or writes, little at a time then pays for a wake-up with each call: another processor is called,
//! which does as little, and waits again. That takes a program that reads 4 KiB at a time a quarter of its time, as in `cat FILE | PROGRAM`.
//!
//! So this end does not wait in the kernel, but by the clock: for about as long as the program takes for half of what the pipe holds. The program finds bytes, or room, whenever it looks, and wakes nobody. How long that is, is learnt from what is in the
//! pipe after each wait. A program that does nothing for a while is waited for in the kernel after all: it costs nothing then, however long it takes.

mod input;
mod output;

use std::os::fd::AsFd;
use std::time::Duration;

pub(super) use input::PacedInput;
pub(crate) use output::PacedOutput;

/// Pipes hold as much as an unprivileged user may ask for.
const PIPE_BYTES: usize = 1 << 20;
/// A pipe that holds less is empty, or full, again before a clock has gone off.
const PACED_MIN: u64 = 256 << 10;
/// The shortest wait: clocks are not much more exact.
const NAP_MIN: Duration = Duration::from_micros(50);
/// The longest: half of a pipe at 250 MB/s. A slower program reads on from the other half, or writes on into it.
const NAP_MAX: Duration = Duration::from_millis(2);

/// Makes a pipe as large as may be; how many bytes it holds then. A refusal leaves the usual size: an unprivileged user has so many pages for all pipes together.
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
