//! A program's standard input.

use std::io::{ErrorKind as Io, Result, Write as _};
use std::os::fd::{AsFd, BorrowedFd};
use std::process::ChildStdin;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::{Errno, ioctl_fionread};

use super::{Nap, PACED_MIN, enlarge};

/// After so many waits in which nothing was read the program is waited for in the kernel.
const IDLE_NAPS: u32 = 10;

/// See the module above.
#[derive(Debug)]
pub(in crate::attempt) struct PacedInput {
    stdin: ChildStdin,
    /// Bytes that the pipe holds.
    holds: u64,
    nap: Nap,
    /// How many waits ago something was read.
    idle: u32,
}

impl PacedInput {
    pub fn new(stdin: ChildStdin) -> Self {
        let holds = enlarge(&stdin);
        Self::holding(stdin, holds)
    }

    fn holding(stdin: ChildStdin, holds: u64) -> Self {
        if holds >= PACED_MIN {
            // Of this end alone. Where it is refused, writes wait in the kernel.
            let _ = fcntl_getfl(&stdin).and_then(|flags| fcntl_setfl(&stdin, flags | OFlags::NONBLOCK));
        }
        Self { stdin, holds, nap: Nap::new(), idle: 0 }
    }

    /// Writes all of it, and waits for room as often as it takes.
    ///
    /// # Errors
    /// Those of writing; `BrokenPipe` when nobody reads any more.
    pub fn write_all(&mut self, bytes: &[u8]) -> Result<()> {
        self.write_all_by(bytes, &mut outrigger_clock::sleep)
    }

    fn write_all_by(&mut self, mut bytes: &[u8], sleep: &mut dyn FnMut(Duration)) -> Result<()> {
        while !bytes.is_empty() {
            match self.stdin.write(bytes) {
                Ok(0) => return Err(Io::WriteZero.into()),
                Ok(written) => bytes = &bytes[written..],
                Err(error) if error.kind() == Io::Interrupted => {}
                Err(error) if error.kind() == Io::WouldBlock => self.wait_for_room(sleep)?,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// It is to be half empty then, and must not be empty.
    fn wait_for_room(&mut self, sleep: &mut dyn FnMut(Duration)) -> Result<()> {
        let before = ioctl_fionread(&self.stdin)?;
        if self.idle < IDLE_NAPS {
            sleep(self.nap.0);
        } else {
            wait_in_the_kernel(&self.stdin)?;
        }
        let left = ioctl_fionread(&self.stdin)?;
        self.idle = if left < before { 0 } else { self.idle + 1 };
        if left < self.holds / 4 {
            self.nap.shorten();
        } else if left > self.holds / 2 {
            self.nap.lengthen();
        }
        Ok(())
    }
}

fn wait_in_the_kernel(stdin: &ChildStdin) -> Result<()> {
    match poll(&mut [PollFd::new(stdin, PollFlags::OUT)], None) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

impl AsFd for PacedInput {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stdin.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::process::ChildStdout;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc::channel;

    use super::super::{NAP_MAX, PIPE_BYTES};
    use super::*;

    /// A pipe as programs get one, and its other end.
    fn pipe() -> (PacedInput, ChildStdout) {
        let (reads, writes) = rustix::pipe::pipe().unwrap();
        (PacedInput::new(writes.into()), reads.into())
    }

    fn bytes(len: usize) -> Vec<u8> {
        (0..len).map(|at| (at % 251) as u8).collect()
    }

    /// Writes to a program that reads so many bytes a second, 4 KiB at a time, by a clock of the
    /// test's own: nothing else takes time. How many waits that took in how many seconds, and for
    /// how many of these the program found nothing to read.
    fn waited_for(rate: f64, len: usize) -> (u32, f64, f64) {
        let (mut input, mut program) = pipe();
        assert_eq!(input.holds, PIPE_BYTES as u64, "or this says nothing");
        let (wanted, mut got) = (bytes(len), Vec::new());
        let (mut waits, mut time, mut hungry, mut due) = (0, 0.0, 0.0, 0.0);
        let mut sleep = |nap: Duration| {
            waits += 1;
            time += nap.as_secs_f64();
            due += nap.as_secs_f64() * rate;
            while due >= 4096.0 {
                if ioctl_fionread(&program).unwrap() == 0 {
                    hungry += due / rate;
                    due = 0.0;
                    break;
                }
                let at = got.len();
                got.resize(at + 4096, 0);
                let read = program.read(&mut got[at..]).unwrap();
                got.truncate(at + read);
                due -= read as f64;
            }
        };
        for block in wanted.chunks(1 << 20) {
            input.write_all_by(block, &mut sleep).unwrap();
        }
        drop(input);
        program.read_to_end(&mut got).unwrap();
        assert!(got == wanted);
        (waits, time, hungry)
    }

    #[test]
    fn whoever_reads_steadily_always_finds_bytes_and_is_waited_for_seldom() {
        let len = 64 << 20;
        for rate in [10e6, 100e6, 250e6, 500e6, 1e9, 3e9] {
            let (waits, time, hungry) = waited_for(rate, len);
            // Woken for each page it would be 16 384. Slow ones are waited for by the longest wait.
            let most = (time / NAP_MAX.as_secs_f64()).max(len as f64 / PIPE_BYTES as f64 * 4.0) * 1.2;
            assert!(f64::from(waits) < most, "{rate}: {waits} waits, not {most}");
            assert!(hungry < time / 100.0, "{rate}: {hungry} of {time} s without a byte");
        }
    }

    #[test]
    fn whoever_reads_nothing_is_waited_for_in_the_kernel() {
        let (mut input, mut program) = pipe();
        let (begin, begins) = channel();
        let has_begun = Arc::new(AtomicBool::new(false));
        let begun = Arc::clone(&has_begun);
        let reader = std::thread::spawn(move || {
            begins.recv().unwrap();
            // Time enough for many waits that are none.
            outrigger_clock::sleep(Duration::from_millis(50));
            begun.store(true, Ordering::SeqCst);
            let mut got = Vec::new();
            program.read_to_end(&mut got).unwrap();
            got
        });
        let wanted = bytes(5 << 20);
        let mut waits = 0;
        let mut sleep = |_: Duration| {
            waits += u32::from(!has_begun.load(Ordering::SeqCst));
            if waits == IDLE_NAPS {
                let _ = begin.send(());
            }
        };
        input.write_all_by(&wanted, &mut sleep).unwrap();
        drop(input);
        assert!(reader.join().unwrap() == wanted);
        assert_eq!(waits, IDLE_NAPS);
    }

    #[test]
    fn whoever_stops_reading_meanwhile_is_noticed() {
        let (mut input, program) = pipe();
        let mut program = Some(program);
        let mut sleep = |_: Duration| drop(program.take());
        let error = input.write_all_by(&bytes(5 << 20), &mut sleep).unwrap_err();
        assert_eq!(error.kind(), Io::BrokenPipe);
        // Waited for in the kernel it is noticed, too.
        let (mut input, program) = pipe();
        input.idle = IDLE_NAPS;
        let closes = std::thread::spawn(move || {
            outrigger_clock::sleep(Duration::from_millis(20));
            drop(program);
        });
        let error =
            input.write_all_by(&bytes(5 << 20), &mut |_| unreachable!("it reads nothing")).unwrap_err();
        assert_eq!(error.kind(), Io::BrokenPipe);
        closes.join().unwrap();
    }

    #[test]
    fn a_small_pipe_is_written_to_as_ever() {
        let (reads, writes) = rustix::pipe::pipe().unwrap();
        rustix::pipe::fcntl_setpipe_size(&writes, 64 << 10).unwrap();
        let mut input = PacedInput::holding(writes.into(), 64 << 10);
        let mut program = ChildStdout::from(reads);
        let reader = std::thread::spawn(move || {
            let mut got = Vec::new();
            program.read_to_end(&mut got).unwrap();
            got
        });
        let wanted = bytes(1 << 20);
        input.write_all_by(&wanted, &mut |_| unreachable!("the kernel waits")).unwrap();
        drop(input);
        assert!(reader.join().unwrap() == wanted);
    }
}
