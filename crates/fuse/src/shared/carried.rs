//! Files that an agent on another host stores while its program reads them (`--attach path`): the bytes go from this mount to the agent once, and from there into the program and into packs.
//!
//! ```text
//!  writer ─▶ log ─▶ control/remote.rs ─▶ the agent ─┬─▶ program
//!                                                   └─▶ write pipeline ─▶ packs, a root that is held in the agent's name
//!  close  ─▶ asks for what there is ─▶ the agent commits, and says how far that goes ─▶ it is what the file begins with, as if a round of early.rs had stored it
//! ```
//!
//! Such an agent is the file's *carrier*. As long as there is one the mount stores nothing of the file by itself before it has to: at close, at fsync, and when the log is half full. Then it asks, and waits; so the writer waits as for the mount's own storing. What
//! the carrier has becomes the prefix that the file is stored over, and the transaction is the one that there always was. At close and fsync the rest, if there is any, is cut from the log. To make room the carrier is asked for no more than it was given, and
//! only that is committed: what is behind it stays in the log, and goes to the carrier, and nowhere else.
//!
//! Who closes or syncs a large file before any agent has come waits for one, for [`COMES_WITHIN`] since the file was begun: else all of it would go to the store from here, and then to the agent. Once nobody has come in that time, nobody is waited for until one does.
//!
//! **What is believed.** Not the agent's word, but the database's: the root is read from what is held in the name that this mount knows for file and agent ([`outrigger_store::early::carried_by`]), so it was committed with its packs. It must be as long as what
//! was said, and no longer than what this mount has handed out, and nothing of that may have been changed since; the bytes had checksums on their way. Whoever can write to the database could do the same without this.
//!
//! **In any doubt** (the connection breaks, a program reads nothing for [`STANDSTILL`], storing takes longer than [`STORES_WITHIN`], the prefix is spoilt, no thread is left that may wait) the file has no carrier any more, and the mount stores it from its log, which has all of it until then.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use outrigger_clock::Instant;
use outrigger_format::Root;
use outrigger_store::early::{carried_by, holder};
use outrigger_store::loose::NEW_BYTES_MAX;
use outrigger_store::meta::SessionId;
use outrigger_store::policy::Overrides;
use outrigger_store::staging::Piece;
use outrigger_store::{Error, ErrorKind, Result};

use super::SharedVolume;
use super::core::Core;
use super::early::SHORTER;
use super::file::{File, State};
use crate::follow::{Carrier, End, Open, STANDSTILL};

/// How long an agent may take to store what it was given last.
const STORES_WITHIN: Duration = Duration::from_secs(60);
/// For so long after a file was begun it is left to agents to come and store it.
const COMES_WITHIN: Duration = Duration::from_secs(5);
/// Who closes or syncs a file of which so many bytes are not stored waits for that.
const WAITS_FOR: u64 = 8 << 20;

impl SharedVolume {
    /// From now on agents on other hosts can come and store files.
    pub(crate) fn has_carriers(&self) {
        self.core.has_carriers.store(true, Ordering::Relaxed);
    }

    /// Makes the agent that has this session a file's carrier; false if it cannot be.
    pub(crate) fn carry(&self, inode: u64, session: SessionId) -> bool {
        let core = &self.core;
        // How this mount is told to store what is written through it an agent does not know.
        let Some(file) = core.open.get(inode).filter(|_| core.options.overrides == Overrides::default())
        else {
            return false;
        };
        let mut state = file.write();
        let is_only_here = state.is_only_here();
        let Some(open) = state.open.as_deref_mut() else { return false };
        let is_free = open.carrier.is_none_or(|carrier| carrier.session == session);
        if is_only_here || !is_free || open.end != End::Open || open.prefix.is_spoilt() {
            return false;
        }
        open.carrier = Some(Carrier { session, asked: None });
        drop(state);
        core.nobody_came.store(false, Ordering::Relaxed);
        core.following.told();
        true
    }

    /// An agent stores a file no more.
    pub(crate) fn carries_no_more(&self, inode: u64, session: SessionId) {
        if let Some(file) = self.core.open.get(inode) {
            self.core.drop_carrier(&file, Some(session));
        }
    }

    /// Takes what a carrier says that it has stored: the first `len` bytes of a file. False: it is not wanted.
    ///
    /// # Errors
    /// Those of the database.
    pub(crate) fn take_carried(&self, inode: u64, len: u64, session: SessionId) -> Result<bool> {
        let Some(file) = self.core.open.get(inode) else { return Ok(false) };
        // Nothing: it could not.
        let taken = if len == 0 { Ok(false) } else { self.core.take_carried(&file, len, session) };
        if !matches!(taken, Ok(true)) {
            self.core.drop_carrier(&file, Some(session));
        }
        self.core.following.told();
        taken
    }
}

impl State {
    /// Its first bytes are stored, so many at least, or committed.
    fn has_carried(&self, end: u64) -> bool {
        self.stored_early().is_some_and(|len| len >= end)
            || self.map.pieces(0..end).all(|(_, piece)| piece == Piece::Committed)
    }

    /// How much of the file is to be stored now, where that is not all of it: what its carrier has stored, if nobody waits for more. So of what is written meanwhile nothing is stored here that the carrier will have as well.
    pub fn carried_part(&self) -> Option<u64> {
        self.open.as_deref().filter(|open| open.end == End::Open && open.carrier.is_some())?;
        self.stored_early().filter(|len| *len >= self.awaited)
    }

    /// How long to wait for a carrier, if one may come.
    fn waits_for_carrier(&self) -> Option<Duration> {
        let may_come =
            |open: &&Open| open.end == End::Open && open.carrier.is_none() && !open.prefix.is_spoilt();
        let open = self.open.as_deref().filter(may_come).filter(|_| !self.is_only_here())?;
        let left = open.carried_until?.saturating_duration_since(Instant::now());
        Some(left).filter(|left| !left.is_zero())
    }

    /// Whether what an agent was given up to byte `len` is what the file begins with.
    fn begins_as_carried(&self, len: u64, session: SessionId) -> bool {
        let is_it = |carrier: &Carrier| carrier.session == session;
        let sound = self.open.as_ref().is_some_and(|open| {
            open.carrier.as_ref().is_some_and(is_it)
                && !open.prefix.is_spoilt()
                && open.prefix.consumed() >= len
        });
        sound && self.map.len() >= len && !self.is_only_here() && !self.is_committing
    }
}

impl Core {
    /// Until when a file that is begun now, and is to be read in the path, is left to agents.
    pub fn waits_for_carriers(&self) -> Option<Instant> {
        self.has_carriers.load(Ordering::Relaxed).then(|| Instant::now() + COMES_WITHIN)
    }

    /// It has no carrier any more; with a session, if it was that.
    fn drop_carrier(&self, file: &File, session: Option<SessionId>) {
        if let Some(open) = file.write().open.as_deref_mut()
            && open.carrier.is_some_and(|carrier| session.is_none_or(|session| carrier.session == session))
        {
            open.carrier = None;
        }
        self.following.told();
    }

    fn take_carried(&self, file: &File, len: u64, session: SessionId) -> Result<bool> {
        let (number, mount) = (file.number, self.session().id());
        let (its, ours) = (carried_by(number, mount, session), holder(number, mount));
        // Nothing is being committed over what was stored of it before.
        let mut asked = self.take_turn()?;
        if !file.read().begins_as_carried(len, session) {
            return Ok(false);
        }
        let has = |root: &Root| Ok::<_, Error>(self.store.meta.held(&its)?.contains(root));
        let Some(root) = self.store.meta.held(&its)?.pop().filter(|root| root.len() == len) else {
            let why = format!("an agent says that it has stored {len} bytes of inode {number}, and has not");
            return Err(Error::new(ErrorKind::Invalid, why));
        };
        self.early.will_hold(number);
        self.store.meta.hold(&ours, std::slice::from_ref(&root))?;
        // What is held by its maker after that has been held all the time.
        if !has(&root)? {
            self.store.meta.release(&ours, Some(&[root]))?;
            return Ok(false);
        }
        // Its packs were committed a moment ago.
        asked.packs_at = None;
        self.follow_packs(&mut asked.packs_at)?;
        let before = {
            let mut state = file.write();
            if !state.begins_as_carried(len, session) {
                drop(state);
                self.store.meta.release(&ours, Some(&[root]))?;
                return Ok(false);
            }
            if let Some(carrier) = state.open.as_deref_mut().and_then(|open| open.carrier.as_mut()) {
                carrier.asked = carrier.asked.filter(|asked| *asked > len);
            }
            state.take_over(root.clone(), len)
        };
        if let Some(before) = before.filter(|before| *before != root) {
            self.store.meta.release(&ours, Some(&[before]))?;
        }
        Ok(true)
    }

    /// Before a file is stored: what its carrier has of it is waited for, if it is worth it; and first for a carrier, if one may come.
    pub fn await_carried(&self, file: &Arc<File>) {
        if !self.has_carriers.load(Ordering::Relaxed) {
            return;
        }
        let all = file.read().map.len();
        self.await_carrier(file);
        let mut state = file.write();
        if !state.has_carried(all) {
            // Others may be about to store less of it.
            state.awaited = state.awaited.max(all);
        }
    }

    fn await_carrier(&self, file: &Arc<File>) {
        let (staged, end) = {
            let state = file.read();
            (state.map.staged_bytes(), state.open.as_ref().map_or(0, |open| open.prefix.end()))
        };
        if staged <= NEW_BYTES_MAX || end == 0 {
            return;
        }
        let threads = self.options.request_threads;
        let is_worth_it = staged >= WAITS_FOR && !self.nobody_came.load(Ordering::Relaxed);
        if is_worth_it && file.read().waits_for_carrier().is_some() {
            self.following.wait_while(threads, || file.read().waits_for_carrier());
            let nobody_came = file.read().open.as_ref().is_some_and(|open| open.has_nobody_come());
            self.nobody_came.store(nobody_came, Ordering::Relaxed);
        }
        let mut asking = Asking::new(file, end);
        let waited = self.following.wait_while(threads, || self.ask_on(&mut asking));
        if !waited || !file.read().has_carried(end) {
            self.drop_carrier(file, None);
        }
    }

    /// To make room: has a carrier store what it was given, and stores that; of one that was given little, or has not come, nothing.
    ///
    /// # Errors
    /// Those of the store.
    pub fn store_carried(self: &Arc<Self>, file: &Arc<File>) -> Result<()> {
        let (given, committed) = {
            let state = file.read();
            let carried = state.open.as_deref().filter(|open| open.carrier.is_some());
            (carried.map_or(0, |open| open.prefix.consumed()), state.row.root.len())
        };
        if given.saturating_sub(committed) < self.options.early_bytes / SHORTER {
            return Ok(());
        }
        let mut asking = Asking::new(file, given);
        self.following.wait_here(|| self.ask_on(&mut asking));
        if !file.read().has_carried(given) {
            self.drop_carrier(file, None);
        }
        self.store_one(file)
    }

    /// Asks the carrier, and again if it has answered somebody who wanted less. How long to wait for it to go on; `None`: it has stored that much, or it is waited for no more.
    fn ask_on(&self, asking: &mut Asking<'_>) -> Option<Duration> {
        let mut state = asking.file.write();
        if state.has_carried(asking.end) {
            return None;
        }
        let open = state.open.as_deref_mut().filter(|open| open.end == End::Open)?;
        let carrier = open.carrier.as_mut()?;
        if open.prefix.is_spoilt() {
            return None;
        }
        if carrier.asked.is_none_or(|asked| asked < asking.end) {
            carrier.asked = Some(asking.end);
            self.following.told();
        }
        let consumed = open.prefix.consumed();
        if asking.consumed != Some(consumed) {
            (asking.moved, asking.consumed) = (Instant::now(), Some(consumed));
        }
        let most = if consumed < asking.end { STANDSTILL } else { STORES_WITHIN };
        most.checked_sub(asking.moved.elapsed()).filter(|left| !left.is_zero())
    }
}

/// A file whose carrier is asked for its first bytes.
struct Asking<'a> {
    file: &'a File,
    end: u64,
    /// When something was read of it last, and how much had been then.
    moved: Instant,
    consumed: Option<u64>,
}

impl<'a> Asking<'a> {
    fn new(file: &'a File, end: u64) -> Self {
        Self { file, end, moved: Instant::now(), consumed: None }
    }
}
