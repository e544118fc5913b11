//! A program's standard input while its file is written: the mount hands out the bytes in the order
//! of the file. On another host than the mount's, the feed reads what the mount has stored of it.
//! If the program is attached in-line and the mount offers its open files, the mount sends the
//! bytes, and this host stores them ([`super::carry`]).
//!
//! The program sees the end of file only when the mount has closed the job's input and this attempt
//! still counts: the last bytes are read from the stored content. If the attempt is void, because
//! the writer changed bytes that it had read, the feed fails, which kills the program. If a program
//! has read enough, the feed still waits for the file's close: only then is it known if its work
//! counts.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use outrigger_clock::Instant;
use outrigger_fuse::control::{Client, is_within_reach, listens_at};
use outrigger_fuse::live::{Input, NOTHING_MORE, Tailed};
use outrigger_store::meta::jobs::{Claimed, JobId, SplitState};
use outrigger_store::meta::{Role, SessionId, SessionKind};
use outrigger_store::read::Reader;
use outrigger_store::session::Session;
use outrigger_store::tree::StorePath;
use outrigger_store::{Error, ErrorKind, Result, Store, increments};

use super::carry::Carry;
use super::{Access, is_lost};
use crate::attempt::{Feed, Pipes, Watch};
use crate::job::Written;
use crate::job::spec::Spec;
use crate::pattern::Pattern;
use crate::progress::Counters;

/// The reason when a runner gives an attempt up, for another runner to make.
pub(crate) const GAVE_BACK: &str = "its agent was told to stop";
/// How soon to check if a mount has stored more; each vain check doubles it, up to [`ASK_AGAIN`].
const LOOK_SOON: Duration = Duration::from_millis(10);
/// How often a mount that hangs up is asked again, until it is known to be gone.
const ASK_AGAIN: Duration = Duration::from_millis(100);
const ASK_AGAIN_MAX: u32 = 300;
/// As these, for a mount on another host, which takes longer to fail.
const FAR_AGAIN: Duration = Duration::from_secs(1);
const FAR_AGAIN_MAX: u32 = 5;
/// The reason when the mount cannot be reached from here any more: a runner that can reach it makes
/// another attempt.
const OUT_OF_REACH: &str = GAVE_BACK;
/// How often to check if the mount still has its session: a mount that is cut off from the database
/// does not know that it has lost it.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// The job that an attempt is for, as far as its input depends on it.
pub(crate) struct Reading {
    pub store: Arc<Store>,
    pub job: JobId,
    pub spec: Spec,
    /// The files that it reads, in order.
    pub paths: Vec<StorePath>,
    pub watch: Arc<Watch>,
    /// Once it is set, its agent gives the attempt up.
    pub drain: Option<Arc<AtomicBool>>,
    pub counters: Arc<Counters>,
    /// This host's name in the packs' engine, if packs can be placed on it.
    pub place: Option<Arc<str>>,
}

/// Tails one file for one attempt.
struct Tail {
    store: Arc<Store>,
    job: JobId,
    written: Written,
    /// How many files it reads, one after the other; `None`: the one that `written` names.
    together: Option<u32>,
    claimed: Claimed,
    watch: Arc<Watch>,
    drain: Option<Arc<AtomicBool>>,
    counters: Arc<Counters>,
    /// Set if the mount is on another host and offers its open files.
    far: Option<Far>,
    paths: Vec<StorePath>,
    place: Option<Arc<str>>,
}

/// For a mount on another host.
struct Far {
    session: Arc<Session>,
    /// The bytes are to be stored as a file as well.
    is_kept: bool,
}

/// The input of an attempt at the split of an open job.
pub(crate) fn feed(reading: Reading, written: Written, claimed: &Claimed) -> Feed {
    let Reading { store, job, spec, paths, watch, drain, counters, place } = reading;
    let together = spec.together.then(|| u32::try_from(paths.len()).unwrap_or(u32::MAX));
    let claimed = *claimed;
    let reader =
        Tail { store, job, written, together, claimed, watch, drain, counters, far: None, paths, place };
    let run = move |mut reader: Tail, pipes: &mut Pipes| {
        reader.far = reader.far(&spec)?;
        reader.run(pipes)
    };
    Feed::Stream(Box::new(move |pipes| run(reader, pipes).map_err(|error| error.to_string())))
}

impl Tail {
    /// Set if the mount is on another host, and offers its open files.
    fn far(&self, spec: &Spec) -> Result<Option<Far>> {
        if !Access::find(&self.store, self.written, spec)?.is_far() {
            return Ok(None);
        }
        let session = self.store.session(SessionKind::Writer, Role::Job(self.job))?;
        // Only the program sees the raw data of 1W->1W; the mount keeps it in case that the program
        // must run again.
        Ok(Some(Far { session, is_kept: spec.pattern != Pattern::WriteToFile }))
    }

    fn run(self, pipes: &mut Pipes) -> Result<()> {
        let mut mount = None;
        let Some(count) = self.together else {
            let mount_here = SessionId(self.written.mount);
            let is_here = || !self.store.is_shared() || is_within_reach(&self.store, mount_here);
            let at = match self.far.is_some() || is_here() {
                true => self.tail(&mut mount, (0, self.written.inode), pipes)?,
                false => self.tail_stored(pipes)?,
            };
            return self.finish(0, true, pipes, at);
        };
        for number in 0..count {
            let at = match self.find(&mut mount, number, pipes)? {
                Some(inode) => self.tail(&mut mount, (number, inode), pipes)?,
                None => 0,
            };
            self.finish(number, number + 1 == count, pipes, at)?;
        }
        Ok(())
    }

    /// Waits until one of several files is made. `None`: it was closed, or that is unknown; its job
    /// knows.
    fn find(&self, mount: &mut Option<Client>, number: u32, pipes: &mut Pipes) -> Result<Option<u64>> {
        let (mut asked_again, mut looked) = (0, Instant::now());
        loop {
            self.check_stopped()?;
            if self.has_gone(&mut looked) {
                return Ok(None);
            }
            match self.connected(mount).and_then(|mount| mount.input(self.job, number)) {
                Ok(Input::Inode(inode)) => return Ok(Some(inode)),
                Ok(Input::Closed) => return Ok(None),
                Ok(Input::Unknown) if !self.is_open()? => return Ok(None),
                Ok(Input::Unknown) => {
                    let why = "one of its files was given up, or the mount no longer waits for it";
                    return Err(Error::new(ErrorKind::Cancelled, why));
                }
                Ok(Input::NotYet) => {
                    self.counters.wait_for_writer(true);
                    pipes.look();
                    outrigger_clock::sleep(ASK_AGAIN);
                }
                Err(error) => {
                    *mount = None;
                    if !self.asks_again(error, &mut asked_again)? {
                        return Ok(None);
                    }
                }
            }
        }
    }

    /// Reads a file until it is closed, or its state is unknown; returns how far it came.
    fn tail(
        &self,
        mount: &mut Option<Client>,
        (number, inode): (u32, u64),
        pipes: &mut Pipes,
    ) -> Result<u64> {
        let (mut at, mut asked_again, mut looked) = (0u64, 0, Instant::now());
        let (mut carry, mut is_told) = (self.carry(number, inode), false);
        loop {
            self.check_stopped()?;
            if self.has_gone(&mut looked) {
                return Ok(at);
            }
            let from = if pipes.are_any() || carry.is_some() { at } else { NOTHING_MORE };
            let asked = self.connected(mount).and_then(|mount| {
                // The mount must hear of it once in each conversation.
                if !is_told && carry.is_some() {
                    is_told = true;
                    carry = if mount.carry(inode)? { carry.take() } else { None };
                }
                mount.tail(inode, from)
            });
            match asked {
                Ok(Tailed::Data(bytes)) => {
                    at += bytes.len() as u64;
                    if carry.as_mut().is_some_and(|carry| !carry.give(&bytes)) {
                        carry = None;
                        // The mount need not wait for it. If the mount has gone, the next call
                        // finds out.
                        let _ = mount.as_mut().map(|mount| mount.stored(inode, 0));
                    }
                    self.give(pipes, &bytes)?;
                }
                Ok(Tailed::Asked) => {
                    let stored = carry.as_mut().map_or(Ok(0), Carry::store).unwrap_or(0);
                    let taken = self.connected(mount).and_then(|mount| mount.stored(inode, stored));
                    // In any case the mount has the file.
                    if !taken.is_ok_and(|taken| taken) {
                        carry = None;
                    }
                }
                Ok(Tailed::Nothing) => {
                    self.counters.wait_for_writer(true);
                    pipes.look();
                }
                Ok(Tailed::Closed) => return Ok(at),
                Err(error) => {
                    (*mount, is_told) = (None, false);
                    if !self.asks_again(error, &mut asked_again)? {
                        return Ok(at);
                    }
                }
            }
        }
    }

    /// Begins to store a file for a mount on another host, if that is wanted.
    fn carry(&self, number: u32, inode: u64) -> Option<Carry> {
        let (Some(far), Some(path)) =
            (self.far.as_ref().filter(|far| far.is_kept), self.paths.get(number as usize))
        else {
            return None;
        };
        let of = (path, inode, SessionId(self.written.mount));
        // If this fails, the mount stores the file.
        Carry::new(&self.store, &far.session, self.place.as_ref(), of).ok()
    }

    /// Reads what the mount has stored of the file, until it is closed or its state is unknown;
    /// returns how far it came.
    fn tail_stored(&self, pipes: &mut Pipes) -> Result<u64> {
        let (mut at, mut asked_again, mut looked) = (0u64, 0, Instant::now());
        let mut pause = LOOK_SOON;
        let (meta, mount) = (&*self.store.meta, SessionId(self.written.mount));
        loop {
            self.check_stopped()?;
            if self.has_gone(&mut looked) || !self.is_open()? {
                return Ok(at);
            }
            let stored = increments::prefix(meta, self.written.inode, mount)?;
            let Some(root) = stored.filter(|root| root.len() > at && pipes.are_any()) else {
                self.counters.wait_for_writer(true);
                pipes.look();
                outrigger_clock::sleep(pause);
                pause = (pause * 2).min(ASK_AGAIN);
                continue;
            };
            pause = LOOK_SOON;
            self.store.follow_packs()?;
            let rest = root.len() - at;
            let read = Reader::new(&self.store).read(&root, at, rest, &mut |bytes| {
                self.check_stopped()?;
                at += bytes.len() as u64;
                self.give(pipes, bytes)
            });
            match read {
                Ok(()) => asked_again = 0,
                // The mount does not hold it any more, as it has a longer one or the whole file.
                Err(error)
                    if matches!(error.kind(), ErrorKind::Damaged | ErrorKind::NotFound)
                        && asked_again < ASK_AGAIN_MAX =>
                {
                    asked_again += 1;
                    outrigger_clock::sleep(ASK_AGAIN);
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// True if the mount of a shared store has lost its session, even if it does not know that.
    /// Checked now and then.
    fn has_gone(&self, looked: &mut Instant) -> bool {
        if !self.store.is_shared() || looked.elapsed() < LOOK_EVERY {
            return false;
        }
        *looked = Instant::now();
        // If the database cannot be reached, that is unknown.
        is_lost(&self.store, self.written).unwrap_or(false)
    }

    fn connected<'a>(&self, mount: &'a mut Option<Client>) -> Result<&'a mut Client> {
        if mount.is_none() {
            let written_in = SessionId(self.written.mount);
            *mount = match &self.far {
                Some(far) => Client::reach(&self.store, written_in, far.session.id())?,
                None => Client::connect(&listens_at(&self.store, written_in))?,
            };
        }
        let gone = || Error::new(ErrorKind::Io, "the mount that the file was written in has gone");
        mount.as_mut().ok_or_else(gone)
    }

    /// After a mount's error: waits and returns true if it may still answer; false if nobody writes
    /// the file any more.
    fn asks_again(&self, error: Error, asked_again: &mut u32) -> Result<bool> {
        let (most, pause) = match self.far {
            Some(_) => (FAR_AGAIN_MAX, FAR_AGAIN),
            None => (ASK_AGAIN_MAX, ASK_AGAIN),
        };
        if error.kind() != ErrorKind::Io {
            return Err(error);
        }
        *asked_again += 1;
        if is_lost(&self.store, self.written)? || !self.is_open()? {
            return Ok(false);
        }
        if *asked_again > most {
            return Err(if self.far.is_some() {
                Error::new(ErrorKind::Cancelled, OUT_OF_REACH)
            } else {
                error
            });
        }
        outrigger_clock::sleep(pause);
        Ok(true)
    }

    fn is_open(&self) -> Result<bool> {
        let split = self.store.jobs().split(self.job, self.claimed.number)?;
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

    fn give(&self, pipes: &mut Pipes, bytes: &[u8]) -> Result<()> {
        self.counters.wait_for_writer(false);
        Counters::add(&self.counters.bytes_read, bytes.len() as u64);
        pipes.give(bytes).map_err(|error| Error::new(ErrorKind::Io, "its standard input").caused_by(error))
    }

    /// A file is closed, or its state is unknown: the rows have the outcome, and if the read bytes
    /// count.
    fn finish(&self, number: u32, is_last: bool, pipes: &mut Pipes, at: u64) -> Result<()> {
        self.counters.wait_for_writer(false);
        let jobs = self.store.jobs();
        let why = match jobs.split(self.job, self.claimed.number)? {
            Some(row) if row.range.is_open() && (is_last || is_lost(&self.store, self.written)?) => {
                "the mount that the file was written in has gone"
            }
            Some(row) if row.attempt != self.claimed.attempt || row.state != SplitState::Running => {
                "its writer changed bytes that it had read; it is run again over the new content"
            }
            Some(_) => "",
            None => "its job was forgotten",
        };
        if !why.is_empty() {
            return Err(Error::new(ErrorKind::Cancelled, why));
        }
        let input = jobs.inputs(self.job)?.into_iter().nth(number as usize);
        let lost = || Error::new(ErrorKind::Damaged, format!("job {} has lost its input", self.job));
        let root = input.ok_or_else(lost)?.root;
        if at > root.len() {
            return Err(lost());
        }
        let mut enough = false;
        let rest = Reader::new(&self.store).read(&root, at, root.len() - at, &mut |bytes| {
            self.give(pipes, bytes)?;
            enough = !pipes.are_any();
            if enough { Err(Error::new(ErrorKind::Cancelled, "it has read enough")) } else { Ok(()) }
        });
        if enough { Ok(()) } else { rest }
    }
}
