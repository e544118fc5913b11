//! The standard inputs of the programs that read one pass over an input.
//!
//! ```text
//!  source ──▶ Pipes ─┬─▶ standard input of program 1
//!   (read once)      └─▶ standard input of program 2 …
//! ```
//!
//! Each block is written to all of them, one after the other, before the next one is read. So
//! nothing is kept but the block and the pipes' content, and the slowest reader sets the pace. A
//! program that closes its input is left out from then on.
//!
//! The programs are started one by one ([`share`]). Each brings its pipe, and the thread that reads
//! the source begins once all have come, or are known not to come. A program's own feeder gets its
//! result as soon as the program has closed its input, so a failing program is noticed at once. The
//! thread's result says if the source could be read to its end, and counts for all programs. With
//! it a feeder gets its pipe back. After a failure it closes the pipe only when the program was
//! killed: the program would take that for the end of its input.

use std::io::{ErrorKind as Io, Result};
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::Feed;
use super::paced::PacedInput;
use crate::progress::Counters;

/// How feeding ended.
pub(crate) type Fed = std::result::Result<(), String>;

/// The result for a program's feeder, and its pipe, unless that is closed already.
type Done = (Fed, Option<PacedInput>);

struct Pipe {
    stdin: PacedInput,
    /// Gets the result once its program has read enough.
    done: Option<Sender<Done>>,
}

/// See the module.
pub struct Pipes(Vec<Pipe>);

impl Pipes {
    /// That of one program.
    pub(super) fn one(stdin: PacedInput) -> Self {
        Self(vec![Pipe { stdin, done: None }])
    }

    /// True as long as a program reads.
    pub fn are_any(&self) -> bool {
        !self.0.is_empty()
    }

    /// Writes these bytes to all that read, and waits for the slowest.
    ///
    /// # Errors
    /// All except that a program has closed its input.
    pub fn give(&mut self, bytes: &[u8]) -> Result<()> {
        let mut given = Ok(());
        self.0.retain_mut(|pipe| match pipe.stdin.write_all(bytes) {
            Ok(()) => true,
            Err(error) => {
                let is_closed = error.kind() == Io::BrokenPipe;
                if is_closed {
                    pipe.has_enough();
                } else {
                    given = Err(error);
                }
                // Otherwise it stays open until its program is killed.
                !is_closed
            }
        });
        given
    }

    /// Leaves out programs that will not read any more, while there is nothing to write.
    pub fn look(&mut self) {
        self.0.retain_mut(|pipe| {
            let is_closed = pipe.is_closed();
            if is_closed {
                pipe.has_enough();
            }
            !is_closed
        });
    }
}

impl Pipe {
    fn has_enough(&mut self) {
        if let Some(done) = self.done.take() {
            // Its feeder may have gone with its program.
            let _ = done.send((Ok(()), None));
        }
    }

    fn is_closed(&self) -> bool {
        let mut looked = [PollFd::new(&self.stdin, PollFlags::ERR)];
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut looked, Some(&at_once)).is_ok() && looked[0].revents().contains(PollFlags::ERR)
    }
}

/// One pass over `source` for `count` programs: a feed for each, and the thread that reads, which
/// returns if it could.
pub(crate) fn share(source: Feed, count: usize, counters: &Arc<Counters>) -> (Vec<Feed>, JoinHandle<Fed>) {
    let (bring, bundled) = channel::<(PacedInput, Sender<Done>)>();
    let feed = |_| {
        let bring = bring.clone();
        Feed::Stream(Box::new(move |pipes: &mut Pipes| {
            let (done, is_done) = channel();
            for pipe in pipes.0.drain(..) {
                let _ = bring.send((pipe.stdin, done.clone()));
            }
            drop((bring, done));
            let (fed, stdin) = is_done
                .recv()
                .unwrap_or_else(|_| (Err("the thread that read its input panicked".into()), None));
            // The feeder closes it, after killing the program if something was wrong.
            pipes.0.extend(stdin.map(|stdin| Pipe { stdin, done: None }));
            fed
        }))
    };
    let feeds = (0..count).map(feed).collect();
    drop(bring);
    let counters = Arc::clone(counters);
    let pass = std::thread::spawn(move || {
        // Ends when all have come: a feed that does not come has dropped its end.
        let mut pipes = Pipes(bundled.iter().map(|(stdin, done)| Pipe { stdin, done: Some(done) }).collect());
        let fed = source.into(&mut pipes, &counters);
        for Pipe { stdin, done } in pipes.0 {
            if let Some(done) = done {
                let _ = done.send((fed.clone(), Some(stdin)));
            }
        }
        fed
    });
    (feeds, pass)
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command, Stdio};

    use super::*;

    fn program(script: &str) -> (Child, Pipes) {
        let mut command = Command::new("sh");
        let mut child =
            command.args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let pipes = Pipes::one(PacedInput::new(child.stdin.take().unwrap()));
        (child, pipes)
    }

    #[test]
    fn all_are_given_the_same_and_one_that_stops_does_not_stop_the_others() {
        let bytes: Vec<u8> = (0..5_000_000u32).map(|at| (at % 251) as u8).collect();
        let source = bytes.clone();
        let source = Feed::Stream(Box::new(move |pipes: &mut Pipes| {
            for block in source.chunks(100_000) {
                pipes.give(block).map_err(|error| error.to_string())?;
            }
            assert!(pipes.are_any());
            Ok(())
        }));
        let (feeds, pass) = share(source, 3, &Arc::default());
        let scripts = ["wc -c", "head -c 10 | wc -c", "wc -c"];
        let running: Vec<_> = feeds
            .into_iter()
            .zip(scripts)
            .map(|(feed, script)| {
                let (child, pipes) = program(script);
                (child, std::thread::spawn(move || feed.into(&mut { pipes }, &Counters::default())))
            })
            .collect();
        let counts: Vec<String> = running
            .into_iter()
            .map(|(child, feeder)| {
                assert_eq!(feeder.join().unwrap(), Ok(()));
                String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap().trim().to_string()
            })
            .collect();
        assert_eq!(
            (pass.join().unwrap(), counts),
            (Ok(()), ["5000000", "10", "5000000"].map(String::from).into())
        );
    }

    #[test]
    fn what_goes_wrong_with_the_source_is_told_to_all_and_who_does_not_come_keeps_nobody_waiting() {
        let source = Feed::Stream(Box::new(|_| Err("it is damaged".to_string())));
        let (mut feeds, pass) = share(source, 3, &Arc::default());
        drop(feeds.pop());
        let told = |feed: Feed| {
            let (mut child, mut pipes) = program("cat");
            std::thread::spawn(move || {
                assert_eq!(feed.into(&mut pipes, &Counters::default()), Err("it is damaged".into()));
                assert!(pipes.are_any(), "closed, it would be the end of the input");
                child.kill().unwrap();
                child.wait().unwrap();
            })
        };
        let all: Vec<_> = feeds.into_iter().map(told).collect();
        all.into_iter().for_each(|one| one.join().unwrap());
        assert_eq!(pass.join().unwrap(), Err("it is damaged".into()));
    }
}
