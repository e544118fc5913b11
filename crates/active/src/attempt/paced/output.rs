//! A program's standard output.

use std::io::{Read, Result};
use std::process::ChildStdout;
use std::time::Duration;

use rustix::io::ioctl_fionread;

use super::{Nap, PACED_MIN, enlarge};

/// Up to this many bytes are read as they come: most outputs are short, and their end should be
/// seen at once.
const AT_ONCE: u64 = 1 << 20;

/// See the module above.
#[derive(Debug)]
pub(crate) struct PacedOutput {
    stdout: ChildStdout,
    /// Bytes that the pipe holds.
    holds: u64,
    nap: Nap,
    /// Bytes that were read.
    came: u64,
}

impl PacedOutput {
    pub fn new(stdout: ChildStdout) -> Self {
        let holds = enlarge(&stdout);
        Self { stdout, holds, nap: Nap::new(), came: 0 }
    }

    fn read_by(&mut self, room: &mut [u8], sleep: &mut dyn FnMut(Duration)) -> Result<usize> {
        // If the pipe is empty, only the kernel knows when, or if, more comes.
        if self.holds >= PACED_MIN
            && self.came >= AT_ONCE
            && (1..self.holds / 2).contains(&ioctl_fionread(&self.stdout)?)
        {
            sleep(self.nap.0);
            self.learn(ioctl_fionread(&self.stdout)?);
        }
        let read = self.stdout.read(room)?;
        self.came += read as u64;
        Ok(read)
    }

    /// It is to be half full after a wait, and must not be full.
    fn learn(&mut self, there: u64) {
        if there > self.holds / 4 * 3 {
            self.nap.shorten();
        } else if there < self.holds / 2 {
            self.nap.lengthen();
        }
    }
}

impl Read for PacedOutput {
    fn read(&mut self, room: &mut [u8]) -> Result<usize> {
        self.read_by(room, &mut outrigger_clock::sleep)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::process::ChildStdin;

    use super::super::{NAP_MAX, PIPE_BYTES};
    use super::*;

    fn pipe() -> (ChildStdin, PacedOutput) {
        let (reads, writes) = rustix::pipe::pipe().unwrap();
        let mut output = PacedOutput::new(reads.into());
        output.came = AT_ONCE;
        (writes.into(), output)
    }

    #[test]
    fn whoever_writes_steadily_always_finds_room_and_wakes_nobody() {
        let len = 64 << 20;
        for rate in [10e6, 100e6, 250e6, 500e6, 1e9, 3e9] {
            let (program, mut output) = pipe();
            assert_eq!(output.holds, PIPE_BYTES as u64, "or this says nothing");
            let block: Vec<u8> = (0..4096).map(|at| (at % 251) as u8).collect();
            let (mut program, mut written, mut read) = (Some(program), 0, 0);
            let (mut time, mut blocked, mut due) = (0.0, 0.0, 0.0);
            let (mut room, mut woken) = (vec![0; 1 << 20], 0);
            loop {
                // The test has a clock of its own; nothing else takes time. Writes a block at a
                // time, as far as there is room.
                let mut write = |time_passes: f64| {
                    time += time_passes;
                    due += time_passes * rate;
                    while due >= 4096.0 && written < len {
                        let Some(to) = &mut program else { break };
                        if ioctl_fionread(&*to).unwrap() + 4096 > PIPE_BYTES as u64 {
                            blocked += due / rate;
                            due = 0.0;
                            break;
                        }
                        to.write_all(&block).unwrap();
                        (written, due) = (written + block.len(), due - 4096.0);
                    }
                    if written == len {
                        program = None;
                    }
                };
                if ioctl_fionread(&output.stdout).unwrap() == 0 {
                    // A reader that waits in the kernel is woken by the next block.
                    woken += 1;
                    write(4096.0 / rate + 1e-9);
                }
                let got = output.read_by(&mut room, &mut |nap| write(nap.as_secs_f64())).unwrap();
                if got == 0 {
                    break;
                }
                assert!((read..read + got).zip(&room).all(|(at, byte)| *byte == (at % 4096 % 251) as u8));
                read += got;
            }
            assert_eq!(read, len);
            // Otherwise each block would wake it.
            let most = (time / NAP_MAX.as_secs_f64()).max(len as f64 / PIPE_BYTES as f64 * 4.0) * 1.2;
            assert!(f64::from(woken) < most, "{rate}: woken {woken} times, not {most}");
            assert!(blocked < time / 100.0, "{rate}: {blocked} of {time} s without room");
        }
    }

    #[test]
    fn what_is_there_is_read_and_the_end_is_found() {
        let (mut program, mut output) = pipe();
        let mut room = [0; 100];
        program.write_all(b"a few bytes").unwrap();
        let mut naps = 0;
        assert_eq!(output.read_by(&mut room, &mut |_| naps += 1).unwrap(), 11);
        assert_eq!((naps, &room[..11]), (1, &b"a few bytes"[..]), "there may be more in a moment");
        output.came = 0;
        program.write_all(b"a few bytes").unwrap();
        assert_eq!(output.read_by(&mut room, &mut |_| unreachable!("it may be all")).unwrap(), 11);
        output.came = AT_ONCE;
        // It is half full.
        program.write_all(&vec![1; PIPE_BYTES / 2]).unwrap();
        drop(program);
        let mut all = Vec::new();
        let got = output.read_by(&mut room, &mut |_| unreachable!("there is enough")).unwrap();
        output.read_to_end(&mut all).unwrap();
        assert_eq!((got, got + all.len()), (100, PIPE_BYTES / 2));
    }
}
