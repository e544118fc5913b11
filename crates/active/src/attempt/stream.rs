//! A program's output as a stream that ends well only if the program does.

use std::io::{Error, Read};
use std::process::ChildStdout;
use std::sync::mpsc::Sender;

use super::{Attempt, Ended, PacedOutput};
use crate::progress::Counters;
use std::sync::Arc;

/// The outcome of an attempt whose output was a stream.
pub type Finished = Ended;

/// Reads an attempt's standard output. At its end it waits for the program, and is an error unless
/// that succeeded, so that the stream is not stored.
pub struct OutputStream {
    /// Bytes that were read already.
    head: std::io::Cursor<Vec<u8>>,
    stdout: PacedOutput,
    attempt: Option<Attempt>,
    done: Sender<Finished>,
    /// Bytes that may still come.
    left: u64,
    counters: Arc<Counters>,
}

impl OutputStream {
    /// The output of `attempt`: `head` was read already, and `left` more bytes may come. `done`
    /// gets the outcome.
    pub fn new(
        head: Vec<u8>,
        stdout: ChildStdout,
        attempt: Attempt,
        left: u64,
        done: Sender<Finished>,
        counters: &Arc<Counters>,
    ) -> Self {
        let (head, stdout, counters) =
            (std::io::Cursor::new(head), PacedOutput::new(stdout), Arc::clone(counters));
        Self { head, stdout, attempt: Some(attempt), done, left, counters }
    }

    fn end(&mut self) -> std::io::Result<usize> {
        let Some(attempt) = self.attempt.take() else { return Ok(0) };
        let ended = attempt.end();
        let result = ended.result.clone();
        // The receiver is gone if the job was stopped.
        let _ = self.done.send(ended);
        result.map(|()| 0).map_err(Error::other)
    }
}

impl Read for OutputStream {
    fn read(&mut self, room: &mut [u8]) -> std::io::Result<usize> {
        if room.is_empty() {
            return Ok(0);
        }
        let len = match self.head.read(room)? {
            0 => self.stdout.read(room)?,
            len => len,
        };
        if len == 0 {
            return self.end();
        }
        Counters::add(&self.counters.bytes_written, len as u64);
        if len as u64 > self.left {
            if let Some(attempt) = &self.attempt {
                attempt.kill(&too_much());
            }
            return self.end();
        }
        self.left -= len as u64;
        Ok(len)
    }
}

impl Drop for OutputStream {
    fn drop(&mut self) {
        if let Some(attempt) = self.attempt.take() {
            attempt.kill("stopped");
            let _ = self.done.send(attempt.end());
        }
    }
}

/// The reason when a program writes without end.
pub fn too_much() -> String {
    "it wrote more than it may (--limits output=SIZE)".to_string()
}
