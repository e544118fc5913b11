//! Files that an agent on another host stores while its program reads them (`--attach path`): the bytes go from this mount to the agent once, and from there into the program and into packs.
//!
//! ```text
//!  writer ─▶ log ─▶ control/remote.rs ─▶ the agent ─┬─▶ program
//!                                                   └─▶ write pipeline ─▶ packs, a root that is held in the agent's name
//!  close  ─▶ asks for what there is ─▶ the agent commits, and says how far that goes ─▶ it is what the file begins with, as if a round of early.rs had stored it
//! ```
//!
//! Such an agent is the file's *carrier*. As long as there is one the mount stores nothing of the file by itself before it has to: at close, at fsync, and when the log is half full. Then it asks, and waits; so the writer waits as for the mount's own storing. What
//! the carrier has becomes the prefix that the file is stored over, the rest is cut from the log, and the transaction is the one that there always was.
//!
//! **What is believed.** Not the agent's word, but the database's: the root is read from what is held in the name that this mount knows for file and agent ([`outrigger_store::early::carried_by`]), so it was committed with its packs. It must be as long as what
//! was said, and no longer than what this mount has handed out, and nothing of that may have been changed since; the bytes had checksums on their way. Whoever can write to the database could do the same without this.
//!
//! **In any doubt** (the connection breaks, a program reads nothing for [`STANDSTILL`], storing takes longer than [`STORES_WITHIN`], the prefix is spoilt, no thread is left that may wait) the file has no carrier any more, and the mount stores it from its log, which has all of it until then.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use outrigger_format::Root;
use outrigger_store::early::{carried_by, holder};
use outrigger_store::loose::NEW_BYTES_MAX;
use outrigger_store::meta::SessionId;
use outrigger_store::tree::Overrides;
use outrigger_store::{Error, ErrorKind, Result};

use super::SharedVolume;
use super::core::Core;
use super::file::{File, State};
use crate::follow::{Carrier, End, STANDSTILL};

/// How long an agent may take to store what it was given last.
const STORES_WITHIN: Duration = Duration::from_secs(60);
/// For so long after a file was begun it is left to agents to come and store it.
const COMES_WITHIN: Duration = Duration::from_secs(5);

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
        open.carrier = Some(Carrier { session, is_asked: false });
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
        let (number, mount) = (file.number, self.session.id());
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
                carrier.is_asked = false;
            }
            state.take_over(root.clone(), len)
        };
        if let Some(before) = before.filter(|before| *before != root) {
            self.store.meta.release(&ours, Some(&[before]))?;
        }
        Ok(true)
    }

    /// Before a file is stored: if it has a carrier, what that has of it is waited for, if it is worth it.
    pub fn await_carrier(&self, file: &Arc<File>) {
        if !self.has_carriers.load(Ordering::Relaxed) {
            return;
        }
        let asked = || -> Option<u64> {
            let mut state = file.write();
            if state.map.staged_bytes() <= NEW_BYTES_MAX {
                return None;
            }
            let open = state.open.as_deref_mut().filter(|open| open.end == End::Open)?;
            let end = Some(open.prefix.end()).filter(|end| *end > 0)?;
            open.carrier.as_mut()?.is_asked = true;
            Some(end)
        };
        let Some(end) = asked() else { return };
        self.following.told();
        let (mut moved, mut consumed) = (Instant::now(), None);
        let waited = self.following.wait_while(self.options.request_threads, || {
            let state = file.read();
            let open = state.open.as_deref().filter(|open| open.end == End::Open)?;
            let carrier = open.carrier.as_ref()?;
            if !carrier.is_asked || open.prefix.is_spoilt() {
                return None;
            }
            if consumed != Some(open.prefix.consumed()) {
                (moved, consumed) = (Instant::now(), Some(open.prefix.consumed()));
            }
            let most = if open.prefix.consumed() < end { STANDSTILL } else { STORES_WITHIN };
            most.checked_sub(moved.elapsed()).filter(|left| !left.is_zero())
        });
        let is_asked = |state: &State| {
            let carrier = state.open.as_deref().and_then(|open| open.carrier);
            carrier.is_some_and(|carrier| carrier.is_asked)
        };
        if !waited || is_asked(&file.read()) {
            self.drop_carrier(file, None);
        }
    }
}
