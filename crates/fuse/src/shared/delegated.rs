//! Delegated upload: an agent on another host stores a file while its program reads it (`--attach
//! path`). This mount sends the bytes to the agent once, and the agent gives them to the program
//! and writes them into packs.
//!
//! ```text
//!  writer ─▶ log ─▶ control/remote.rs ─▶ the agent ─┬─▶ program
//!                                                   └─▶ write pipeline ─▶ packs, a root that is held in the agent's name
//!  close  ─▶ asks for what there is ─▶ the agent commits, and says how far that goes ─▶ it is what the file begins with, as if a round of increments.rs had stored it
//! ```
//!
//! Such an agent is the file's *delegate*, the upload delegate. While a file has one, the mount
//! stores the file only when it must: at close, at fsync, and when the log fills. Then it
//! asks the delegate and waits, so the writer waits as for the mount's own flush. The delegate's
//! content becomes the prefix that the file is stored over, in the usual transaction. At close and
//! fsync a dirty snapshot provides the rest, if there is any. To make room the mount asks the
//! delegate for no more than it was given, and commits only that. The bytes behind it stay in the
//! log and go to the delegate.
//!
//! A close or fsync of a large file before any agent has come waits for one, until [`COMES_WITHIN`]
//! after the file was begun. Otherwise this mount would send the whole file to the store, and then
//! to the agent. Once no agent has come in that time, the mount waits for none until one comes.
//!
//! **The mount trusts the database, not the agent.** The agent holds the root under a name that the
//! mount knows for file and agent ([`outrigger_store::increments::delegated_to`]). The mount reads
//! it from there, so the root was committed with its packs. The root must be as long as the agent
//! said, and no longer than the bytes that this mount has handed out. The writer must not have
//! changed any of these since. The bytes had checksums on their way. A client that can write to the
//! database could do the same without this.
//!
//! **In any doubt** the file loses its delegate, and the mount stores it from its log, which has
//! all of it until then. That is so when the connection breaks, a program reads nothing for
//! [`STANDSTILL`], storing takes longer than [`STORES_WITHIN`], the prefix is invalidated, or no
//! thread is left that may wait.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use outrigger_clock::Instant;
use outrigger_format::Root;
use outrigger_store::increments::{delegated_to, holder};
use outrigger_store::inline::new_bytes_max;
use outrigger_store::meta::SessionId;
use outrigger_store::policy::Overrides;
use outrigger_store::staging::Piece;
use outrigger_store::{Error, ErrorKind, Result};

use super::SharedVolume;
use super::core::Core;
use super::file::{File, State};
use super::stored_prefix::SHORTER;
use crate::tail::{Delegate, End, Open, STANDSTILL};

/// How long an agent may take to store what it was given last.
const STORES_WITHIN: Duration = Duration::from_secs(60);
/// How long after a file was begun the mount waits for agents to come and store it.
const COMES_WITHIN: Duration = Duration::from_secs(5);
/// A close or sync waits for an agent if the file has this many bytes that are not stored.
const WAITS_FOR: u64 = 8 << 20;

impl SharedVolume {
    /// From now on agents on other hosts can come and store files.
    pub(crate) fn has_delegates(&self) {
        self.core.has_delegates.store(true, Ordering::Relaxed);
    }

    /// Makes the agent that has this session a file's delegate; false if it cannot be.
    pub(crate) fn carry(&self, inode: u64, session: SessionId) -> bool {
        let core = &self.core;
        // An agent does not know this mount's overrides of how to store files.
        let Some(file) = core.open.get(inode).filter(|_| core.options.overrides == Overrides::default())
        else {
            return false;
        };
        let mut state = file.write();
        let is_only_here = state.is_only_here();
        let Some(open) = state.open.as_deref_mut() else { return false };
        let is_free = open.delegate.is_none_or(|delegate| delegate.session == session);
        if is_only_here || !is_free || open.end != End::Open || open.prefix.is_invalidated() {
            return false;
        }
        open.delegate = Some(Delegate { session, asked: None });
        drop(state);
        core.nobody_came.store(false, Ordering::Relaxed);
        core.tailing.wake();
        true
    }

    /// The agent stops storing the file.
    pub(crate) fn ends_delegation(&self, inode: u64, session: SessionId) {
        if let Some(file) = self.core.open.get(inode) {
            self.core.drop_delegate(&file, Some(session));
        }
    }

    /// Takes over the first `len` bytes that a delegate says it has stored. False if they are not
    /// wanted.
    ///
    /// # Errors
    /// Those of the database.
    pub(crate) fn take_delegated(&self, inode: u64, len: u64, session: SessionId) -> Result<bool> {
        let Some(file) = self.core.open.get(inode) else { return Ok(false) };
        // Zero bytes: the agent could not store them.
        let taken = if len == 0 { Ok(false) } else { self.core.take_delegated(&file, len, session) };
        if !matches!(taken, Ok(true)) {
            self.core.drop_delegate(&file, Some(session));
        }
        self.core.tailing.wake();
        taken
    }
}

impl State {
    /// True if the first `end` bytes are stored or committed.
    fn has_delegated(&self, end: u64) -> bool {
        self.stored_increments().is_some_and(|len| len >= end)
            || self.map.pieces(0..end).all(|(_, piece)| piece == Piece::Committed)
    }

    /// How much of the file to store now, if not all: the delegate's part, unless a thread waits
    /// for more. So this mount stores nothing that the delegate will store as well.
    pub fn delegated_part(&self) -> Option<u64> {
        self.open.as_deref().filter(|open| open.end == End::Open && open.delegate.is_some())?;
        self.stored_increments().filter(|len| *len >= self.close_barrier)
    }

    /// How long to wait for a delegate, if one may come.
    fn waits_for_delegate(&self) -> Option<Duration> {
        let may_come =
            |open: &&Open| open.end == End::Open && open.delegate.is_none() && !open.prefix.is_invalidated();
        let open = self.open.as_deref().filter(may_come).filter(|_| !self.is_only_here())?;
        let left = open.delegated_until?.saturating_duration_since(Instant::now());
        Some(left).filter(|left| !left.is_zero())
    }

    /// True if the file still begins with the `len` bytes that the agent was given.
    fn begins_as_delegated(&self, len: u64, session: SessionId) -> bool {
        let is_it = |delegate: &Delegate| delegate.session == session;
        let sound = self.open.as_ref().is_some_and(|open| {
            open.delegate.as_ref().is_some_and(is_it)
                && !open.prefix.is_invalidated()
                && open.prefix.consumed() >= len
        });
        sound && self.map.len() >= len && !self.is_only_here() && !self.is_committing
    }
}

impl Core {
    /// Until when a file that begins now, and is to be read in-line, waits for agents.
    pub fn waits_for_delegates(&self) -> Option<Instant> {
        self.has_delegates.load(Ordering::Relaxed).then(|| Instant::now() + COMES_WITHIN)
    }

    /// Takes the file's delegate away; with `session`, only if that is the delegate.
    fn drop_delegate(&self, file: &File, session: Option<SessionId>) {
        if let Some(open) = file.write().open.as_deref_mut()
            && open.delegate.is_some_and(|delegate| session.is_none_or(|session| delegate.session == session))
        {
            open.delegate = None;
        }
        self.tailing.wake();
    }

    fn take_delegated(&self, file: &File, len: u64, session: SessionId) -> Result<bool> {
        let (number, mount) = (file.number, self.session().id());
        let (its, ours) = (delegated_to(number, mount, session), holder(number, mount));
        // Under the lock, no commit over the earlier prefix is in progress.
        let mut asked = self.take_turn()?;
        if !file.read().begins_as_delegated(len, session) {
            return Ok(false);
        }
        let has = |root: &Root| Ok::<_, Error>(self.store.meta.held(&its)?.contains(root));
        let Some(root) = self.store.meta.held(&its)?.pop().filter(|root| root.len() == len) else {
            let why = format!("an agent says that it has stored {len} bytes of inode {number}, and has not");
            return Err(Error::new(ErrorKind::Invalid, why));
        };
        self.increments.will_hold(number);
        self.store.meta.hold(&ours, std::slice::from_ref(&root))?;
        // This mount holds the root already. If its maker still holds it now, it was held all the
        // time.
        if !has(&root)? {
            self.store.meta.release(&ours, Some(&[root]))?;
            return Ok(false);
        }
        // Its packs were committed a moment ago.
        asked.packs_at = None;
        self.follow_packs(&mut asked.packs_at)?;
        let before = {
            let mut state = file.write();
            if !state.begins_as_delegated(len, session) {
                drop(state);
                self.store.meta.release(&ours, Some(&[root]))?;
                return Ok(false);
            }
            if let Some(delegate) = state.open.as_deref_mut().and_then(|open| open.delegate.as_mut()) {
                delegate.asked = delegate.asked.filter(|asked| *asked > len);
            }
            state.take_over(root.clone(), len)
        };
        if let Some(before) = before.filter(|before| *before != root) {
            self.store.meta.release(&ours, Some(&[before]))?;
        }
        Ok(true)
    }

    /// Before a file is stored: waits for a delegate if one may come, and then for the delegate's
    /// content, if it is large enough.
    pub fn await_delegated(&self, file: &Arc<File>) {
        if !self.has_delegates.load(Ordering::Relaxed) {
            return;
        }
        let all = file.read().map.len();
        self.await_delegate(file);
        let mut state = file.write();
        if !state.has_delegated(all) {
            // Another thread may be about to store less of it.
            state.close_barrier = state.close_barrier.max(all);
        }
    }

    fn await_delegate(&self, file: &Arc<File>) {
        let (staged, end) = {
            let state = file.read();
            (state.map.staged_bytes(), state.open.as_ref().map_or(0, |open| open.prefix.end()))
        };
        if staged <= new_bytes_max(&self.store) || end == 0 {
            return;
        }
        let threads = self.options.request_threads;
        let is_worth_it = staged >= WAITS_FOR && !self.nobody_came.load(Ordering::Relaxed);
        if is_worth_it && file.read().waits_for_delegate().is_some() {
            self.tailing.wait_while(threads, || file.read().waits_for_delegate());
            let nobody_came = file.read().open.as_ref().is_some_and(|open| open.has_nobody_come());
            self.nobody_came.store(nobody_came, Ordering::Relaxed);
        }
        let mut asking = Asking::new(file, end);
        let waited = self.tailing.wait_while(threads, || self.ask_on(&mut asking));
        if !waited || !file.read().has_delegated(end) {
            self.drop_delegate(file, None);
        }
    }

    /// To make room: has the delegate store what it was given, and stores that. Does nothing if it
    /// was given little or there is none.
    ///
    /// # Errors
    /// Those of the store.
    pub fn store_delegated(self: &Arc<Self>, file: &Arc<File>) -> Result<()> {
        let (given, committed) = {
            let state = file.read();
            let delegated = state.open.as_deref().filter(|open| open.delegate.is_some());
            (delegated.map_or(0, |open| open.prefix.consumed()), state.row.root.len())
        };
        if given.saturating_sub(committed) < self.options.increment_bytes / SHORTER {
            return Ok(());
        }
        let mut asking = Asking::new(file, given);
        self.tailing.wait_here(|| self.ask_on(&mut asking));
        if !file.read().has_delegated(given) {
            self.drop_delegate(file, None);
        }
        self.store_one(file)
    }

    /// Asks the delegate, and again if it has answered a request for less. Returns how long to wait
    /// for progress; `None` if it has stored that much or cannot.
    fn ask_on(&self, asking: &mut Asking<'_>) -> Option<Duration> {
        let mut state = asking.file.write();
        if state.has_delegated(asking.end) {
            return None;
        }
        let open = state.open.as_deref_mut().filter(|open| open.end == End::Open)?;
        let delegate = open.delegate.as_mut()?;
        if open.prefix.is_invalidated() {
            return None;
        }
        if delegate.asked.is_none_or(|asked| asked < asking.end) {
            delegate.asked = Some(asking.end);
            self.tailing.wake();
        }
        let consumed = open.prefix.consumed();
        if asking.consumed != Some(consumed) {
            (asking.moved, asking.consumed) = (Instant::now(), Some(consumed));
        }
        let most = if consumed < asking.end { STANDSTILL } else { STORES_WITHIN };
        most.checked_sub(asking.moved.elapsed()).filter(|left| !left.is_zero())
    }
}

/// A file whose delegate is asked for its first bytes.
struct Asking<'a> {
    file: &'a File,
    end: u64,
    /// When the agent last read something of it, and how much it had read by then.
    moved: Instant,
    consumed: Option<u64>,
}

impl<'a> Asking<'a> {
    fn new(file: &'a File, end: u64) -> Self {
        Self { file, end, moved: Instant::now(), consumed: None }
    }
}
