//! Tailing: programs read files of a mount while they are written. Shared by all kinds of mounts.
//!
//! ```text
//!  create ──▶ TailRules::wanted (rules, by path) ──▶ a job whose input is open ──▶ the file's open version (open.rs)
//!  write  ──▶ log, map, prefix grows ──▶ whoever waits in tail() has a block   (control.rs: the socket's line `follow`)
//!  release of the last writer ──▶ the closer's thread: stores the file, gives the job its content, forgets the open version
//! ```
//!
//! A mount keeps an [`Open`] for each tailed file, under the lock of the file's state, and this
//! registry. `live/tail.rs` and `shared/tail.rs` store and hide files in their own ways.
//!
//! `wishes.rs` has what rules want, and `waiting.rs` the writers that wait for their programs.
//!
//! The registry's lock is taken before a file's, and with no other.

mod open;
mod places;
mod waiting;
mod wishes;

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

use outrigger_clock::Instant;
use outrigger_store::meta::SessionId;
use outrigger_store::{Context as _, Error, ErrorKind, Result};
use rustix::io::Errno;

pub(crate) use self::open::{Delegate, End, Open, Prefix};
pub(crate) use self::places::{Hanging, Places};
use self::waiting::Pulse;
pub(crate) use self::waiting::Write;
pub(crate) use self::wishes::Again;
pub use self::wishes::{Input, StillWaits, TailRules, Wanted};

/// Bytes handed out at once at most.
pub const BLOCK: u64 = 1 << 20;
/// A reader that asks for bytes from here on needs no more, and waits only for the file's end.
pub const NOTHING_MORE: u64 = u64::MAX;
/// How long a program may read nothing before its writer goes on without it.
pub(crate) const STANDSTILL: Duration = Duration::from_secs(10);
/// How often to look at the rules, and to try again files that could not be closed.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// A writer sets this on its file before closing it, to have the file discarded.
pub(crate) const ABORT: &[u8] = b"user.outrigger.abort";

/// An answer to a reader.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Tailed {
    /// The next bytes.
    Data(Vec<u8>),
    /// Nothing yet: ask again.
    Nothing,
    /// Nothing yet. The reader stores the file, and shall commit what it has, and say so.
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

/// A mount's registry of open versions.
pub(crate) struct Tailing<F> {
    rules: OnceLock<Arc<dyn TailRules>>,
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

impl<F> Default for Tailing<F> {
    fn default() -> Self {
        Self {
            rules: OnceLock::new(),
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

impl<F> Tailing<F> {
    /// Has files tailed from now on, and starts the thread that does `close`; once.
    ///
    /// # Errors
    /// When there are too many threads, or what is wanted cannot be found out.
    pub fn start(&self, rules: Arc<dyn TailRules>, close: impl FnOnce() + Send + 'static) -> Result<()> {
        rules.refresh()?;
        if self.rules.set(rules).is_err() {
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

impl<F: Versioned> Tailing<F> {
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
    pub fn wake(&self) {
        self.moved.beat();
    }

    /// Returns bytes from `from` on, through `read`, and waits at most `wait` for them. `reader`:
    /// the session of the asking agent, which may store the file.
    ///
    /// # Errors
    /// When they cannot be read.
    pub fn tail(
        &self,
        inode: u64,
        from: u64,
        (reader, wait): (Option<SessionId>, Duration),
        read: impl Fn(&F, Range<u64>, &mut Vec<u8>) -> std::result::Result<(), Errno>,
    ) -> Result<Tailed> {
        let until = Instant::now() + wait;
        loop {
            let seen = self.moved.now();
            let Some(file) = self.file(inode) else { return Ok(Tailed::Closed) };
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
            let Some(range) = range else { return Ok(Tailed::Closed) };
            if is_asked {
                return Ok(Tailed::Asked);
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
                return Ok(if bytes.is_empty() { Tailed::Nothing } else { Tailed::Data(bytes) });
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(Tailed::Nothing);
            }
            self.moved.wait(seen, left);
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
                // A file that cannot be closed is tried again; its readers wait.
                report(close(&file));
            }
            self.ended.wait(seen, LOOK_EVERY);
        }
    }
}
