//! Tailing: programs read files of a mount while they are written. Shared by all kinds of mounts.
//!
//! ```text
//!  create ──▶ Follows::wanted (rules, by path) ──▶ a job whose input is open ──▶ the file's open version (open.rs)
//!  write  ──▶ log, map, prefix grows ──▶ whoever waits in follow() has a block   (control.rs: the socket's line `follow`)
//!  release of the last writer ──▶ the closer's thread: stores the file, gives the job its content, forgets the open version
//! ```
//!
//! A mount keeps an [`Open`] for each tailed file, under the lock of the file's state, and this
//! registry. `live/follow.rs` and `shared/follow.rs` store and hide files in their own ways.
//!
//! **A writer that must wait** for its program ([`Open::ahead`]) waits before its write has taken
//! anything: no room in the log, no gate, no lock. The wait is bounded: a program that has read
//! nothing for [`STANDSTILL`] may itself wait for this writer's next step, so the limit is lifted
//! for this file. At least one of the threads that serve requests never waits.
//!
//! The registry's lock is taken before a file's, and with no other.

mod open;
mod places;

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

use outrigger_clock::Instant;
use outrigger_format::Root;
use outrigger_format::catalogue::Attributes;
use outrigger_store::meta::SessionId;
use outrigger_store::meta::jobs::{JobId, Jobs};
use outrigger_store::{Context as _, Error, ErrorKind, Result};
use rustix::io::Errno;

pub(crate) use self::open::{Delegate, End, Open, Prefix};
pub(crate) use self::places::{Hanging, Places};

/// Bytes handed out at once at most.
pub const BLOCK: u64 = 1 << 20;
/// A follower that asks for bytes from here on needs no more, and waits only for the file's end.
pub const NOTHING_MORE: u64 = u64::MAX;
/// How long a program may read nothing before its writer goes on without it.
pub(crate) const STANDSTILL: Duration = Duration::from_secs(10);
/// How often to look at the rules, and to try again files that could not be closed.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// A writer sets this on its file before closing it, to have the file discarded.
pub(crate) const ABORT: &[u8] = b"user.outrigger.abort";

/// The source of wishes that programs tail files: the rules.
pub trait Follows: Send + Sync {
    /// Looks up the present rules.
    ///
    /// # Errors
    /// When that fails; then the earlier rules stay.
    fn refresh(&self) -> Result<()>;
    /// False when no file at all is wanted. Quick.
    fn is_any(&self) -> bool;
    /// The rules' wish for a file that is about to be made at this path.
    fn wanted(&self, path: &[Vec<u8>]) -> Option<Box<dyn Wanted>>;
    /// Wants one file, the next that matches `rule`, as long as `waits` returns true; it is asked
    /// before a job is made. The channel gives the job that reads the file, once.
    ///
    /// # Errors
    /// `Invalid`, `Newer`: the rule is not understood.
    fn expect(&self, rule: &str, waits: StillWaits) -> Result<Receiver<JobId>>;
    /// Gives a job the content of its closed file. `content.1`: the prefix was invalidated.
    ///
    /// # Errors
    /// Those of the database; then it is called again.
    fn close(&self, jobs: &dyn Jobs, job: JobId, inode: u64, content: (&Root, bool)) -> Result<()> {
        let _ = inode;
        jobs.close_input(job, content.0, content.1).map(drop)
    }
    /// Finds one input of a job that has several.
    fn input(&self, job: JobId, number: u32) -> Input {
        let _ = (job, number);
        Input::Unknown
    }
}

/// State of one of a job's several inputs, all of which are tailed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Input {
    /// It was not made yet.
    NotYet,
    /// It is written.
    Inode(u64),
    /// It was closed: the job has its content.
    Closed,
    /// This mount has no such job, or not any more.
    Unknown,
}

/// A wish that programs tail one file.
pub trait Wanted: Send {
    /// True if only the writer may see the file (an unpublished file).
    fn hides(&self) -> bool;
    /// How many bytes the writer may be ahead of its readers.
    fn ahead(&self) -> Option<u64>;
    /// Called before `begin` with the attributes of file and directories, which say who may read
    /// it.
    fn made(&mut self, _file: &Attributes, _above: &[Attributes]) {}
    /// Makes the jobs that will read the file; none if no rule wants it after all. With `again` it
    /// is overwritten: once this returns, no earlier job's output may take its place any more.
    ///
    /// # Errors
    /// Those of the store: then the file must not be.
    fn begin(self: Box<Self>, inode: u64, mount: SessionId, again: bool) -> Result<Vec<JobId>>;
}

/// Returns false once the file is no longer wanted.
pub type StillWaits = Box<dyn Fn() -> bool + Send + Sync>;

/// An answer to a follower.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Followed {
    /// The next bytes.
    Data(Vec<u8>),
    /// Nothing yet: ask again.
    Nothing,
    /// Nothing yet. The follower stores the file, and shall commit what it has, and say so.
    Asked,
    /// Not open, or not any more: the job's rows have the outcome.
    Closed,
}

/// A file of a mount, which may have an open version.
pub(crate) trait Versioned: Send + Sync {
    fn number(&self) -> u64;
    /// Looks at its open version and its length, with its state locked.
    fn look<T>(&self, look: impl FnOnce(Option<&Open>, u64) -> T) -> T;
    /// Changes its open version, with its state locked.
    fn change<T>(&self, change: impl FnOnce(&mut Option<Box<Open>>) -> T) -> T;
}

/// Wakes threads that wait for a change.
#[derive(Default)]
struct Pulse {
    beats: Mutex<u64>,
    changed: Condvar,
}

impl Pulse {
    fn now(&self) -> u64 {
        *self.beats.lock().expect("no panic while held")
    }

    fn beat(&self) {
        *self.beats.lock().expect("no panic while held") += 1;
        self.changed.notify_all();
    }

    fn wait(&self, seen: u64, most: Duration) {
        let beats = self.beats.lock().expect("no panic while held");
        drop(self.changed.wait_timeout_while(beats, most, |beats| *beats == seen));
    }
}

/// A wish to tail an existing file that is about to be emptied and rewritten, and its place.
pub(crate) struct Again<'a> {
    /// Directory and name.
    pub place: (u64, Vec<u8>),
    pub wanted: Box<dyn Wanted>,
    /// Kept until tailing begins.
    pub alone: Alone<'a>,
}

/// While this lives, no other thread of this mount begins to overwrite the file.
pub(crate) struct Alone<'a> {
    beginning: &'a Mutex<HashSet<u64>>,
    moved: &'a Pulse,
    inode: u64,
}

impl Drop for Alone<'_> {
    fn drop(&mut self) {
        self.beginning.lock().expect("no panic while held").remove(&self.inode);
        self.moved.beat();
    }
}

/// A mount's registry of open versions.
pub(crate) struct Following<F> {
    follows: OnceLock<Arc<dyn Follows>>,
    open: Mutex<HashMap<u64, Arc<F>>>,
    /// Files that are about to be overwritten: tailing begins once for each.
    beginning: Mutex<HashSet<u64>>,
    /// Something was written, handed out, or ended.
    moved: Pulse,
    /// There is something to close, or nothing more to do.
    ended: Pulse,
    stop: AtomicBool,
    closer: Mutex<Option<JoinHandle<()>>>,
    /// Files whose writers may have to wait …
    bounded: AtomicU32,
    /// … and writers that do.
    waiting: AtomicU32,
    /// Nanoseconds that they have waited for, all together.
    waited: AtomicU64,
}

impl<F> Default for Following<F> {
    fn default() -> Self {
        Self {
            follows: OnceLock::new(),
            open: Mutex::default(),
            beginning: Mutex::default(),
            moved: Pulse::default(),
            ended: Pulse::default(),
            stop: AtomicBool::new(false),
            closer: Mutex::default(),
            bounded: AtomicU32::new(0),
            waiting: AtomicU32::new(0),
            waited: AtomicU64::new(0),
        }
    }
}

struct Waiting<'a> {
    begun: Instant,
    waiting: &'a AtomicU32,
    waited: &'a AtomicU64,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        self.waited.fetch_add(self.begun.elapsed().as_nanos() as u64, Ordering::Relaxed);
    }
}

/// How many threads may wait at once. One is left, also for requests of a waited-for program.
fn most_waiting(threads: usize) -> u32 {
    threads.clamp(2, 8) as u32 - 1
}

pub(crate) struct Write {
    pub offset: u64,
    pub len: usize,
    /// Appends, ignoring `offset`.
    pub appends: bool,
}

impl<F> Following<F> {
    /// True if files may be tailed: then making a file takes as long as making a job does.
    pub fn is_any(&self) -> bool {
        self.follows.get().is_some_and(|follows| follows.is_any())
    }

    /// True if a write may have to wait for a program.
    pub fn may_wait(&self) -> bool {
        self.bounded.load(Ordering::Relaxed) > 0
    }

    /// The source of wishes, if it has any.
    pub fn wanting(&self) -> Option<&dyn Follows> {
        self.follows.get().map(Arc::as_ref).filter(|follows| follows.is_any())
    }

    /// Looks again which files are to be tailed.
    ///
    /// # Errors
    /// When that cannot be found out.
    pub fn refresh(&self) -> Result<()> {
        self.follows.get().map_or(Ok(()), |follows| follows.refresh())
    }

    /// Wants one file; see [`Follows::expect`].
    ///
    /// # Errors
    /// `Invalid` when this mount has no rules.
    pub fn expect(&self, rule: &str, waits: StillWaits) -> Result<Receiver<JobId>> {
        let none = || Error::new(ErrorKind::Invalid, "this mount has no programs read what is written");
        self.follows.get().ok_or_else(none)?.expect(rule, waits)
    }

    pub fn input(&self, job: JobId, number: u32) -> Input {
        self.follows.get().map_or(Input::Unknown, |follows| follows.input(job, number))
    }

    /// A file that a job reads was closed; see [`Follows::close`].
    ///
    /// # Errors
    /// Those of the database.
    pub fn close(&self, jobs: &dyn Jobs, job: JobId, inode: u64, content: (&Root, bool)) -> Result<()> {
        match self.follows.get() {
            Some(follows) => follows.close(jobs, job, inode, content),
            None => jobs.close_input(job, content.0, content.1).map(drop),
        }
    }

    /// Has files followed from now on, and starts the thread that does `close`; once.
    ///
    /// # Errors
    /// When there are too many threads, or what is wanted cannot be found out.
    pub fn start(&self, follows: Arc<dyn Follows>, close: impl FnOnce() + Send + 'static) -> Result<()> {
        follows.refresh()?;
        if self.follows.set(follows).is_err() {
            return Err(Error::new(ErrorKind::Invalid, "this mount has its rules already"));
        }
        let closer = std::thread::Builder::new().name("closer".to_string()).spawn(close);
        let closer = closer.context(|| "cannot start the thread that closes followed files".to_string())?;
        *self.closer.lock().expect("no panic while held") = Some(closer);
        Ok(())
    }

    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
        self.ended.beat();
        if let Some(thread) = self.closer.lock().expect("no panic while held").take() {
            let _ = thread.join();
        }
    }

    /// The open versions' files.
    pub fn left(&self) -> Vec<Arc<F>> {
        self.open.lock().expect("no panic while held").values().cloned().collect()
    }

    fn file(&self, inode: u64) -> Option<Arc<F>> {
        self.open.lock().expect("no panic while held").get(&inode).cloned()
    }

    /// Records a change of a file whose state is locked.
    pub fn tell(&self, open: Option<&mut Open>, tell: impl FnOnce(&mut Prefix)) {
        if let Some(open) = open {
            tell(&mut open.prefix);
            self.moved.beat();
        }
    }

    /// The last writing handle of a file was released, or (`is_given_up`) the writer discarded it.
    pub fn writers_left(&self, open: Option<&mut Open>, is_given_up: bool) {
        if let Some(open) = open
            && open.end == End::Open
        {
            open.end = if is_given_up { End::Aborted } else { End::Closed };
            self.moved.beat();
            self.ended.beat();
        }
    }

    pub fn give_up(&self, open: Option<&mut Open>) {
        if let Some(open) = open {
            open.end = End::Aborted;
        }
        self.moved.beat();
        self.ended.beat();
    }
}

impl<F: Versioned> Following<F> {
    /// Begins to tail a file. The caller gives its handle of the file to the registry.
    pub fn begin(&self, file: &Arc<F>, version: Open) {
        self.bounded.fetch_add(u32::from(version.ahead.is_some()), Ordering::Relaxed);
        // Bytes that were written before this count as beyond a gap, and are read after the close.
        file.change(|open| *open = Some(Box::new(version)));
        self.open.lock().expect("no panic while held").insert(file.number(), Arc::clone(file));
    }

    /// Ends the tailing of a file; its handle is the caller's again. False if it was not tailed.
    pub fn end(&self, file: &F) -> bool {
        let Some(ended) = file.change(Option::take) else { return false };
        self.bounded.fetch_sub(u32::from(ended.ahead.is_some()), Ordering::Relaxed);
        self.open.lock().expect("no panic while held").remove(&file.number());
        true
    }

    /// Waits until no other thread is about to overwrite this file.
    ///
    /// # Errors
    /// `EBUSY` when that takes too long.
    pub fn alone(&self, inode: u64) -> std::result::Result<Alone<'_>, Errno> {
        let until = Instant::now() + STANDSTILL;
        loop {
            let seen = self.moved.now();
            if self.beginning.lock().expect("no panic while held").insert(inode) {
                return Ok(Alone { beginning: &self.beginning, moved: &self.moved, inode });
            }
            self.wait_until(until, seen)?;
        }
    }

    fn wait_until(&self, until: Instant, seen: u64) -> std::result::Result<(), Errno> {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(Errno::BUSY);
        }
        self.moved.wait(seen, left);
        Ok(())
    }

    /// Waits until a just closed version is stored. True if the file is tailed and being written.
    ///
    /// # Errors
    /// `EBUSY` when that takes too long.
    pub fn wait_for_close(&self, file: &F) -> std::result::Result<bool, Errno> {
        let until = Instant::now() + STANDSTILL;
        loop {
            let seen = self.moved.now();
            match file.look(|open, _| open.map(|open| open.end)) {
                None => return Ok(false),
                Some(End::Open) => return Ok(true),
                Some(_) => {}
            }
            self.wait_until(until, seen)?;
        }
    }

    /// Wakes threads that may wait for a file that has ended.
    pub fn told(&self) {
        self.moved.beat();
    }

    /// Returns bytes from `from` on, through `read`, and waits at most `wait` for them. `reader`:
    /// the session of the asking agent, which may store the file.
    ///
    /// # Errors
    /// When they cannot be read.
    pub fn follow(
        &self,
        inode: u64,
        from: u64,
        (reader, wait): (Option<SessionId>, Duration),
        read: impl Fn(&F, Range<u64>, &mut Vec<u8>) -> std::result::Result<(), Errno>,
    ) -> Result<Followed> {
        let until = Instant::now() + wait;
        loop {
            let seen = self.moved.now();
            let Some(file) = self.file(inode) else { return Ok(Followed::Closed) };
            let mut is_asked = false;
            let range = file.change(|open| {
                let open = open.as_mut()?;
                is_asked = open.asks(reader, from);
                if is_asked {
                    return Some(from..from);
                }
                if from == NOTHING_MORE && open.ahead.take().is_some() {
                    self.bounded.fetch_sub(1, Ordering::Relaxed);
                    self.moved.beat();
                }
                // Bytes that are left when the writer has gone are read from the stored content.
                let is_open = open.end == End::Open;
                Some(if is_open { open.prefix.hand_out(from, BLOCK) } else { from..from })
            });
            let Some(range) = range else { return Ok(Followed::Closed) };
            if is_asked {
                return Ok(Followed::Asked);
            }
            if !range.is_empty() {
                self.moved.beat();
                let mut bytes = Vec::new();
                read(&file, range.clone(), &mut bytes).map_err(|errno| {
                    let why = format!(
                        "inode {inode}, which is being written, cannot be read at byte {}",
                        range.start
                    );
                    Error::new(ErrorKind::Damaged, why).caused_by(std::io::Error::from(errno))
                })?;
                // The file was cut since, which invalidates these bytes.
                return Ok(if bytes.is_empty() { Followed::Nothing } else { Followed::Data(bytes) });
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(Followed::Nothing);
            }
            self.moved.wait(seen, left);
        }
    }

    /// Waits as long as `goes_on` returns for how long; it is called after each change. If no
    /// thread of the `threads` that serve requests may wait, returns false at once.
    pub fn wait_while(&self, threads: usize, goes_on: impl FnMut() -> Option<Duration>) -> bool {
        let is_free = self.waiting.fetch_add(1, Ordering::Relaxed) < most_waiting(threads);
        if is_free {
            self.wait_here(goes_on);
        }
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        is_free
    }

    /// As [`Following::wait_while`], in a thread that serves no requests.
    pub fn wait_here(&self, mut goes_on: impl FnMut() -> Option<Duration>) {
        loop {
            let seen = self.moved.now();
            let Some(most) = goes_on() else { return };
            self.moved.wait(seen, most);
        }
    }

    /// Waits until a write is not too far ahead of the readers. `note` reports that it gave that
    /// up.
    pub fn wait_for(&self, file: &F, write: &Write, threads: usize, note: impl FnOnce(String)) {
        if !self.may_wait() {
            return;
        }
        let (mut moved_at, mut before, mut place) = (Instant::now(), None, None);
        loop {
            let seen = self.moved.now();
            let consumed = file.look(|open, len| match open {
                Some(Open { ahead: Some(ahead), prefix, end: End::Open, .. }) => {
                    let from = if write.appends { len } else { write.offset };
                    let is_near = (from + write.len as u64).saturating_sub(prefix.consumed()) <= *ahead;
                    (!is_near).then(|| prefix.consumed())
                }
                _ => None,
            });
            let Some(consumed) = consumed else { return };
            if before != Some(consumed) {
                (moved_at, before) = (Instant::now(), Some(consumed));
            }
            let stood = moved_at.elapsed();
            if stood >= STANDSTILL {
                return self.lift_bound(file, note);
            }
            if place.is_none() {
                let taken = self.waiting.fetch_add(1, Ordering::Relaxed);
                place = Some(Waiting { begun: Instant::now(), waiting: &self.waiting, waited: &self.waited });
                if taken >= most_waiting(threads) {
                    return;
                }
            }
            self.moved.wait(seen, STANDSTILL - stood);
        }
    }

    /// Nanoseconds that writers have waited for their files' readers.
    pub fn waited(&self) -> u64 {
        self.waited.load(Ordering::Relaxed)
    }

    fn lift_bound(&self, file: &F, note: impl FnOnce(String)) {
        let lifted = file.change(|open| {
            let open = open.as_mut()?;
            open.ahead.take()?;
            let jobs: Vec<String> = open.jobs.iter().map(ToString::to_string).collect();
            Some((jobs.join(", "), open.place.1.escape_ascii().to_string()))
        });
        if let Some((jobs, name)) = lifted {
            self.bounded.fetch_sub(1, Ordering::Relaxed);
            note(format!(
                "`{name}`: its program (job {jobs}) has read nothing for {} seconds; its writer no longer waits for it",
                STANDSTILL.as_secs()
            ));
        }
    }

    /// The closer's thread: reads the rules, and calls `close` for each ended file until it
    /// succeeds.
    pub fn run(&self, close: impl Fn(&Arc<F>) -> Result<()>, report: impl Fn(Result<()>)) {
        while !self.stop.load(Ordering::Relaxed) {
            let seen = self.ended.now();
            report(self.refresh());
            let has_ended =
                |file: &Arc<F>| file.look(|open, _| open.is_some_and(|open| open.end != End::Open));
            for file in self.left().into_iter().filter(has_ended) {
                // A file that cannot be closed is tried again; its followers wait.
                report(close(&file));
            }
            self.ended.wait(seen, LOOK_EVERY);
        }
    }
}
