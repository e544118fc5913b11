//! Programs that read files while they are written in this mount: which files, how they are handed out, and what happens when they are closed.
//!
//! ```text
//!  create ──▶ Follows::wanted (rules, by path) ──▶ a job whose input is open ──▶ the file's open version (open.rs)
//!  write  ──▶ log, map, prefix grows ──▶ whoever waits in follow() has a block   (control.rs: the socket's line `follow`)
//!  release of the last writer ──▶ the closer's thread: stores the file, gives the job its content, forgets the open version
//! ```
//!
//! **Order.** The job is there before `create` is answered: no followed file is ever written that no job knows. A byte is in the log before it counts as written,
//! so nothing is handed out that the end of this process would take back. When the last writer has gone nothing is handed out any more: the closer stores the
//! file, and in one transaction its content becomes the job's input and, if the prefix was spoilt, all attempts so far are void. Only then is a follower told
//! that the file is closed; it asks the database for the verdict, and reads the rest from what is stored. Between storing and that transaction the closer has the
//! destager's turn, so no other content takes the place of this one. If this process ends in between, or at any earlier moment, the job's input stays open; its
//! runner finds that the mount has gone and takes what the log's replay has made of the file (`outrigger_active::written`).
//!
//! **Hidden files** (1W→1W) have no name but in [`Tree::hide`]: this mount finds them by it and does not list them; the log and the database know of no name, so a
//! crash leaves nothing. What is stored of one is held as an orphan's content is, until its job holds it.
//!
//! **A writer who is to wait** for its program ([`Open::ahead`]) does so before its write has taken anything: no room in the log, no gate, no lock. It does not wait for ever:
//! a program that has read nothing for [`STANDSTILL`] may be waiting for something that only this writer does next; then the bound is lifted for this file. Of the threads that serve requests
//! at least one is never used to wait.
//!
//! The registry has a handle on each file (so that nobody buries it), its lock is taken before a node's, and never together with the gate or the tree.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use outrigger_store::meta::SessionId;
use outrigger_store::meta::jobs::{JobId, JobState};
use outrigger_store::{Context as _, Error, ErrorKind, Result};
use rustix::io::Errno;

use super::LiveVolume;
use super::core::Core;
use super::destager::Select;
use super::node::{Node, State};
use super::open::{End, Open, Prefix};
use super::places::Places;

/// Bytes handed out at once at most.
pub const BLOCK: u64 = 1 << 20;
/// Who asks for bytes from here on has read enough, and waits for the end of the file only.
pub const NOTHING_MORE: u64 = u64::MAX;
/// How long a program may read nothing before its writer goes on without it.
const STANDSTILL: Duration = Duration::from_secs(10);
/// How often rules are looked at, and what could not be closed is tried again.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// A writer that sets this on its file before it closes it wants it gone.
const ABORT: &[u8] = b"user.outrigger.abort";

/// Who has programs read files while they are written.
pub trait Follows: Send + Sync {
    /// Looks what is wanted now.
    ///
    /// # Errors
    /// When that cannot be found out; then what was wanted before is.
    fn refresh(&self) -> Result<()>;
    /// False when no file at all is wanted. Quick.
    fn is_any(&self) -> bool;
    /// What is wanted of a file that is about to be made at this path.
    fn wanted(&self, path: &[Vec<u8>]) -> Option<Box<dyn Wanted>>;
    /// Wants one file, the next that `rule` says (in the words of who wants it), for as long as the answer lives.
    ///
    /// # Errors
    /// `Invalid`, `Newer`: it is not understood.
    fn expect(&self, rule: &str) -> Result<Expected>;
}

/// What is wanted of one file.
pub trait Wanted: Send {
    /// Nobody is to see what is written.
    fn hides(&self) -> bool;
    /// See [`Follows`]: how many bytes the writer may be ahead of those who read.
    fn ahead(&self) -> Option<u64>;
    /// Makes the jobs that will read the file. None: nobody wants it after all, and it is a file like any other.
    ///
    /// # Errors
    /// Those of the store: then the file must not be.
    fn begin(self: Box<Self>, inode: u64, mount: SessionId) -> Result<Vec<JobId>>;
}

/// Says which job reads the file that was waited for.
pub struct Expected {
    /// Once.
    pub job: Receiver<JobId>,
    /// Who waits for it.
    pub waiter: Arc<()>,
}

/// What a follower is told.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Followed {
    /// The next bytes.
    Data(Vec<u8>),
    /// Nothing yet: ask again.
    Nothing,
    /// It is not open, or not any more: the job's rows say what became of it.
    Closed,
}

/// Wakes those who wait for something to change.
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

    /// Waits for a beat after `seen`.
    fn wait(&self, seen: u64, most: Duration) {
        let beats = self.beats.lock().expect("no panic while held");
        drop(self.changed.wait_timeout_while(beats, most, |beats| *beats == seen));
    }
}

/// What a mount knows of its open versions.
#[derive(Default)]
pub(super) struct Following {
    follows: OnceLock<Arc<dyn Follows>>,
    open: Mutex<HashMap<u64, Arc<Node>>>,
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
    pub places: Places,
}

/// One place less for those who wait.
struct Waiting<'a>(&'a AtomicU32);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Following {
    /// Files may be followed: making one takes as long as making a job does.
    pub fn is_any(&self) -> bool {
        self.follows.get().is_some_and(|follows| follows.is_any())
    }

    /// A write may have to wait for a program.
    pub fn may_wait(&self) -> bool {
        self.bounded.load(Ordering::Relaxed) > 0
    }

    fn node(&self, inode: u64) -> Option<Arc<Node>> {
        self.open.lock().expect("no panic while held").get(&inode).cloned()
    }

    fn ended_ones(&self) -> Vec<Arc<Node>> {
        let has_ended =
            |node: &&Arc<Node>| node.read().open.as_ref().is_some_and(|open| open.end != End::Open);
        self.open.lock().expect("no panic while held").values().filter(has_ended).cloned().collect()
    }
}

impl LiveVolume {
    /// Has files followed from now on, as `follows` says; once.
    ///
    /// # Errors
    /// When there are too many threads, or what is wanted cannot be found out.
    pub fn set_follows(&self, follows: Arc<dyn Follows>) -> Result<()> {
        follows.refresh()?;
        let following = &self.core.following;
        if following.follows.set(follows).is_err() {
            return Err(Error::new(ErrorKind::Invalid, "this mount has its rules already"));
        }
        let core = Arc::clone(&self.core);
        let closer = std::thread::Builder::new().name("closer".to_string()).spawn(move || core.run_closer());
        let closer = closer.context(|| "cannot start the thread that closes followed files".to_string())?;
        *following.closer.lock().expect("no panic while held") = Some(closer);
        Ok(())
    }

    /// Looks again which files are to be followed.
    ///
    /// # Errors
    /// When that cannot be found out.
    pub fn refresh_follows(&self) -> Result<()> {
        self.core.following.follows.get().map_or(Ok(()), |follows| follows.refresh())
    }

    /// Wants one file; see [`Follows::expect`].
    ///
    /// # Errors
    /// `Invalid` when this mount has no rules.
    pub fn expect_file(&self, rule: &str) -> Result<Expected> {
        let none = || Error::new(ErrorKind::Invalid, "this mount has no programs read what is written");
        self.core.following.follows.get().ok_or_else(none)?.expect(rule)
    }

    /// The next bytes of a file that is being written, from byte `from` on; waits for them as long as `wait`.
    ///
    /// # Errors
    /// When they cannot be read.
    pub fn follow(&self, inode: u64, from: u64, wait: Duration) -> Result<Followed> {
        let (core, until) = (&self.core, Instant::now() + wait);
        let following = &core.following;
        loop {
            let seen = following.moved.now();
            let Some(node) = following.node(inode) else { return Ok(Followed::Closed) };
            let range = {
                let mut state = node.write();
                let Some(open) = &mut state.open else { return Ok(Followed::Closed) };
                if from == NOTHING_MORE && open.ahead.take().is_some() {
                    following.bounded.fetch_sub(1, Ordering::Relaxed);
                    following.moved.beat();
                }
                // What is left when the writer has gone is read from what was stored.
                let is_open = open.end == End::Open;
                if is_open { open.prefix.hand_out(from, BLOCK) } else { from..from }
            };
            if !range.is_empty() {
                following.moved.beat();
                let mut bytes = Vec::new();
                let len = (range.end - range.start) as usize;
                core.read_file(&node, range.start, len, &mut bytes).map_err(|errno| {
                    let why = format!(
                        "inode {inode}, which is being written, cannot be read at byte {}",
                        range.start
                    );
                    Error::new(ErrorKind::Damaged, why).caused_by(std::io::Error::from(errno))
                })?;
                // It was cut since, which spoils what was handed out.
                return Ok(if bytes.is_empty() { Followed::Nothing } else { Followed::Data(bytes) });
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(Followed::Nothing);
            }
            following.moved.wait(seen, left);
        }
    }

    /// Ends the closer's thread, and closes what is still open: there are no writers any more.
    pub(super) fn end_following(&self) -> Result<()> {
        self.stop_closer();
        let following = &self.core.following;
        let left: Vec<Arc<Node>> =
            following.open.lock().expect("no panic while held").values().cloned().collect();
        for node in left {
            self.core.writers_left(&mut node.write());
            self.core.close_open(&node)?;
        }
        Ok(())
    }

    /// Ends the closer's thread.
    pub(super) fn stop_closer(&self) {
        let following = &self.core.following;
        following.stop.store(true, Ordering::Relaxed);
        following.ended.beat();
        if let Some(thread) = following.closer.lock().expect("no panic while held").take() {
            let _ = thread.join();
        }
    }
}

impl Core {
    /// What is wanted of a file that is about to be made.
    pub fn wanted(&self, parent: u64, name: &[u8]) -> crate::fs::Result<Option<Box<dyn Wanted>>> {
        let following = &self.following;
        let Some(follows) = following.follows.get().filter(|follows| follows.is_any()) else {
            return Ok(None);
        };
        let path = self.world.fail(self.path_of(parent))?;
        let Some(mut path) = path else { return Ok(None) };
        path.push(name.to_vec());
        Ok(follows.wanted(&path))
    }

    /// Makes the jobs that follow a file that was just made and is held open by its maker, whom nobody has answered yet.
    pub fn begin_following(
        &self,
        node: &Arc<Node>,
        place: (u64, Vec<u8>),
        wanted: Box<dyn Wanted>,
    ) -> Result<()> {
        let (is_hidden, ahead) = (wanted.hides(), wanted.ahead());
        let jobs = wanted.begin(node.number, self.session.id())?;
        if jobs.is_empty() {
            return Ok(());
        }
        let following = &self.following;
        let open = Open { prefix: Prefix::default(), end: End::Open, jobs, place, is_hidden, ahead };
        let mut state = node.write();
        // What somebody was quick enough to write already counts as written beyond a gap: it is handed out when the file is closed.
        state.open = Some(Box::new(open));
        drop(state);
        node.opened(false);
        following.bounded.fetch_add(u32::from(ahead.is_some()), Ordering::Relaxed);
        following.open.lock().expect("no panic while held").insert(node.number, Arc::clone(node));
        Ok(())
    }

    /// Says of a file, whose state is held, what was done to it.
    pub fn tell_followers(&self, state: &mut State, tell: impl FnOnce(&mut Prefix)) {
        if let Some(open) = &mut state.open {
            tell(&mut open.prefix);
            self.following.moved.beat();
        }
    }

    /// The last handle that could write to a file was released.
    pub fn writers_left(&self, state: &mut State) {
        let is_given_up = state.attributes.xattrs.iter().any(|(name, _)| name == ABORT);
        if let Some(open) = &mut state.open
            && open.end == End::Open
        {
            open.end = if is_given_up { End::Aborted } else { End::Closed };
            self.following.moved.beat();
            self.following.ended.beat();
        }
    }

    /// Its writer has removed a hidden file.
    pub fn give_up_hidden(&self, node: &Node) {
        if let Some(open) = &mut node.write().open {
            open.end = End::Aborted;
        }
        self.following.moved.beat();
        self.following.ended.beat();
    }

    /// Waits until a write of so many bytes at `offset` (with `appends`: at the file's end) is not too far ahead of those who read the file.
    pub fn wait_for_followers(&self, node: &Node, offset: u64, len: usize, appends: bool) {
        let following = &self.following;
        if !following.may_wait() {
            return;
        }
        let (mut moved_at, mut before, mut place) = (Instant::now(), None, None);
        loop {
            let seen = following.moved.now();
            let consumed = {
                let state = node.read();
                let Some(Open { ahead: Some(ahead), prefix, end: End::Open, .. }) = state.open.as_deref()
                else {
                    return;
                };
                let from = if appends { state.file.map.len() } else { offset };
                if (from + len as u64).saturating_sub(prefix.consumed()) <= *ahead {
                    return;
                }
                prefix.consumed()
            };
            if before != Some(consumed) {
                (moved_at, before) = (Instant::now(), Some(consumed));
            }
            let stood = moved_at.elapsed();
            if stood >= STANDSTILL {
                return self.lift_bound(node);
            }
            if place.is_none() {
                // One thread is left to serve who else may come, the program's own requests among them.
                let most = self.options.write_threads.clamp(2, 8) as u32 - 1;
                let taken = following.waiting.fetch_add(1, Ordering::Relaxed);
                place = Some(Waiting(&following.waiting));
                if taken >= most {
                    return;
                }
            }
            following.moved.wait(seen, STANDSTILL - stood);
        }
    }

    fn lift_bound(&self, node: &Node) {
        let mut state = node.write();
        if let Some(open) = &mut state.open
            && open.ahead.take().is_some()
        {
            self.following.bounded.fetch_sub(1, Ordering::Relaxed);
            let jobs: Vec<String> = open.jobs.iter().map(ToString::to_string).collect();
            let name = open.place.1.escape_ascii().to_string();
            drop(state);
            self.world.reports.note(format!(
                "`{name}`: its program (job {}) has read nothing for {} seconds; its writer goes on without waiting for it",
                jobs.join(", "),
                STANDSTILL.as_secs()
            ));
        }
    }

    /// The closer's thread.
    fn run_closer(self: &Arc<Self>) {
        let following = &self.following;
        while !following.stop.load(Ordering::Relaxed) {
            let seen = following.ended.now();
            if let Some(follows) = following.follows.get() {
                self.report(follows.refresh());
            }
            for node in following.ended_ones() {
                // What cannot be closed is tried again; its followers wait.
                let done = self.close_open(&node);
                self.report(done);
            }
            following.ended.wait(seen, LOOK_EVERY);
        }
    }

    fn report(&self, done: Result<()>) {
        if let Err(error) = done {
            self.world.reports.errno_of_our_own(&error);
        }
    }

    /// Ends an open version whose writers have gone; see the module.
    fn close_open(self: &Arc<Self>, node: &Arc<Node>) -> Result<()> {
        let Some((end, jobs, place, is_hidden)) =
            node.read().open.as_ref().map(|o| (o.end, o.jobs.clone(), o.place.clone(), o.is_hidden))
        else {
            return Ok(());
        };
        let rows = self.world.store.jobs()?;
        if end == End::Aborted {
            for job in jobs {
                rows.end_job(job, JobState::Failed, "its writer gave the file up")?;
            }
            if !is_hidden {
                self.unlink_aborted(node, &place)?;
            }
        } else {
            let _turn = self.control.turn();
            self.batch(Select::One(node.number), None)?;
            let (root, spoilt) = {
                let state = node.read();
                let spoilt = state.open.as_ref().is_none_or(|open| open.prefix.is_spoilt());
                (state.file.stored.root().clone(), spoilt)
            };
            for job in jobs {
                rows.close_input(job, &root, spoilt)?;
            }
        }
        if is_hidden {
            self.tree_mut().show(place.0, &place.1, node.number);
        }
        let bounded = node.write().open.take().is_some_and(|open| open.ahead.is_some());
        self.following.bounded.fetch_sub(u32::from(bounded), Ordering::Relaxed);
        self.following.open.lock().expect("no panic while held").remove(&node.number);
        node.closed(false);
        if node.read().links == 0 {
            self.bury_if_unused(node, is_hidden);
        }
        self.following.moved.beat();
        Ok(())
    }

    /// Removes a file that its writer has given up, if its name still stands for it.
    fn unlink_aborted(&self, node: &Node, (parent, name): &(u64, Vec<u8>)) -> Result<()> {
        let stands = self.world.find_in(&self.tree(), *parent, name)?;
        if stands.is_some_and(|seen| seen.number() == node.number) {
            self.unlink_node(*parent, name, false)
                .context(|| format!("removing `{}`, which its writer gave up", name.escape_ascii()))?;
        }
        Ok(())
    }

    /// Gives a file its name in this mount only, if that is not taken.
    pub fn hide(&self, node: &Arc<Node>, parent: u64, name: &[u8]) -> crate::fs::Result<()> {
        let tree = &mut *self.tree_mut();
        self.world.directory_in(tree, parent)?;
        if self.world.lookup_in(tree, parent, name)?.is_some() {
            return Err(Errno::EXIST);
        }
        tree.hide(parent, name, node.number);
        Ok(())
    }

    /// Whether a name stands for something already.
    pub fn is_taken(&self, parent: u64, name: &[u8]) -> crate::fs::Result<bool> {
        Ok(self.world.lookup_in(&self.tree(), parent, name)?.is_some())
    }
}
