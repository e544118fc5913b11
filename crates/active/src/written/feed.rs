//! A program's standard input while its file is written: the mount hands out what there is, in the order of the file.
//!
//! The end of file is given only when the mount has closed the job's input and this attempt still counts: the last bytes are read from what was stored. If the
//! attempt is void, because the writer changed what it had been given, the feed fails, which kills the program. A program that has read enough is waited for with the file: until
//! that is closed nobody knows whether what it read counts.

use std::io::{ErrorKind as Io, Write};
use std::process::ChildStdin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use outrigger_fuse::control::Client;
use outrigger_fuse::live::{Followed, NOTHING_MORE};
use outrigger_store::meta::jobs::{Claimed, JobId, SplitState};
use outrigger_store::read::Reader;
use outrigger_store::{Error, ErrorKind, Result, Store};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{Written, is_lost};
use crate::attempt::{Feed, Watch};
use crate::progress::Counters;
use crate::runner::Shared;

/// What is said of an attempt that its runner gives up, to be made by another.
pub(crate) const GAVE_BACK: &str = "its agent was told to stop";
/// How often a mount that hangs up is asked again, until it is known to have gone.
const ASK_AGAIN: Duration = Duration::from_millis(100);
const ASK_AGAIN_MAX: u32 = 300;

/// What follows one file for one attempt.
struct Follower {
    store: Arc<Store>,
    job: JobId,
    written: Written,
    claimed: Claimed,
    watch: Arc<Watch>,
    drain: Option<Arc<AtomicBool>>,
    counters: Arc<Counters>,
}

/// The input of an attempt at the split of an open job.
pub(crate) fn feed(shared: &Shared, written: Written, claimed: &Claimed) -> Feed {
    let follower = Follower {
        store: Arc::clone(&shared.store),
        job: shared.job,
        written,
        claimed: *claimed,
        watch: Arc::clone(&shared.watch),
        drain: shared.drain.clone(),
        counters: Arc::clone(&shared.counters),
    };
    Feed::Stream(Box::new(move |stdin| follower.run(stdin).map_err(|error| error.to_string())))
}

impl Follower {
    fn run(self, stdin: ChildStdin) -> Result<()> {
        // Gone once the program has closed it.
        let mut stdin = Some(stdin);
        let (mut mount, mut at, mut asked_again) = (None, 0u64, 0);
        loop {
            self.check_stopped()?;
            let from = if stdin.is_some() { at } else { NOTHING_MORE };
            match self.ask(&mut mount, from) {
                Ok(Followed::Data(bytes)) => {
                    at += bytes.len() as u64;
                    self.give(&mut stdin, &bytes)?;
                }
                Ok(Followed::Nothing) => {
                    if stdin.as_ref().is_some_and(is_closed) {
                        stdin = None;
                    }
                }
                Ok(Followed::Closed) => break,
                Err(error) if error.kind() == ErrorKind::Io && asked_again < ASK_AGAIN_MAX => {
                    mount = None;
                    asked_again += 1;
                    if is_lost(&self.store, self.written)? || !self.is_open()? {
                        break;
                    }
                    std::thread::sleep(ASK_AGAIN);
                }
                Err(error) => return Err(error),
            }
        }
        self.finish(stdin, at)
    }

    fn ask(&self, mount: &mut Option<Client>, from: u64) -> Result<Followed> {
        if mount.is_none() {
            *mount = Client::connect(self.store.dir())?;
        }
        let gone = || Error::new(ErrorKind::Io, "the mount that the file was written in has gone");
        mount.as_mut().ok_or_else(gone)?.follow(self.written.inode, from)
    }

    fn is_open(&self) -> Result<bool> {
        let split = self.store.jobs()?.split(self.job, self.claimed.number)?;
        Ok(split.is_some_and(|split| split.range.is_open()))
    }

    fn check_stopped(&self) -> Result<()> {
        if self.watch.is_stopped() {
            return Err(Error::new(ErrorKind::Cancelled, "stopped"));
        }
        if self.drain.as_ref().is_some_and(|drain| drain.load(Ordering::Relaxed)) {
            return Err(Error::new(ErrorKind::Cancelled, GAVE_BACK));
        }
        Ok(())
    }

    fn give(&self, stdin: &mut Option<ChildStdin>, bytes: &[u8]) -> Result<()> {
        Counters::add(&self.counters.bytes_read, bytes.len() as u64);
        match stdin.as_mut().map_or(Ok(()), |stdin| stdin.write_all(bytes)) {
            Err(error) if error.kind() == Io::BrokenPipe => *stdin = None,
            Err(error) => return Err(Error::new(ErrorKind::Io, "its standard input").caused_by(error)),
            Ok(()) => {}
        }
        Ok(())
    }

    /// The file is closed, or nobody knows: the rows say which, and whether what was read counts.
    fn finish(&self, mut stdin: Option<ChildStdin>, at: u64) -> Result<()> {
        let jobs = self.store.jobs()?;
        let why = match jobs.split(self.job, self.claimed.number)? {
            Some(row) if row.range.is_open() => "the mount that the file was written in has gone",
            Some(row) if row.attempt != self.claimed.attempt || row.state != SplitState::Running => {
                "its writer changed what it had read; it is run again over what the file became"
            }
            Some(_) => "",
            None => "its job was forgotten",
        };
        if !why.is_empty() {
            return Err(Error::new(ErrorKind::Cancelled, why));
        }
        let input = jobs.inputs(self.job)?.into_iter().next();
        let lost = || Error::new(ErrorKind::Damaged, format!("job {} has lost its input", self.job));
        let root = input.ok_or_else(lost)?.root;
        if at > root.len() {
            return Err(lost());
        }
        let rest = Reader::new(&self.store).read(&root, at, root.len() - at, &mut |bytes| {
            self.give(&mut stdin, bytes)?;
            if stdin.is_none() { Err(Error::new(ErrorKind::Cancelled, "it has read enough")) } else { Ok(()) }
        });
        match rest {
            Err(_) if stdin.is_none() => Ok(()),
            done => done,
        }
    }
}

/// True when nobody will read any more what is written there.
fn is_closed(stdin: &ChildStdin) -> bool {
    let mut looked = [PollFd::new(stdin, PollFlags::ERR)];
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut looked, Some(&at_once)).is_ok() && looked[0].revents().contains(PollFlags::ERR)
}
