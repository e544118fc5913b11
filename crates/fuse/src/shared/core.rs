//! The base of all operations: what they share, transactions, room in the log, and the attributes
//! that the kernel is given.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use outrigger_clock::Instant;
use outrigger_format::catalogue::{FileKind, Time};
use outrigger_store::meta::{Change, Commit, Inode};
use outrigger_store::publish::Touched;
use outrigger_store::read::Reader;
use outrigger_store::session::Session;
use outrigger_store::staging::{Appended, Log, Piece, Reservation};
use outrigger_store::{ErrorKind, Store};
use rustix::io::Errno;

use super::SharedOptions;
use super::batch::Counters;
use super::deferred::DeferredQueue;
use super::file::{File, Files, State};
use super::increment_queue::IncrementQueue;
use super::lease::Lease;
use super::negative_cache::NegativeCache;
use super::outbox::Committing;
use super::packer::Packer;
use super::path_prefetch::PathPrefetch;
use super::rows::{A_MOMENT, Known};
use super::store::Turn;
use super::unpublished::Unpublished;
use crate::destage_order;
use crate::fs::{Attr, Entry, Handle, Result, Statfs};
use crate::report::Reports;
use crate::running::{Run, Running};
use crate::tail::{Places, Tailing};
use crate::view::ahead::ReadAhead;
use crate::view::content::Budget;
use crate::view::directory::StoredDir;
use crate::view::handles::Handles;
use crate::view::{attr, space};

/// Room that a record needs beside its data.
const RECORD_ROOM: u64 = 256;
/// How long a write waits for room before it makes some itself.
const ROOM_TIMEOUT: Duration = Duration::from_secs(1);
/// Inode numbers reserved at once.
const INODES_AT_ONCE: u64 = 1 << 10;
/// Conflicts with other hosts that an operation retries before it fails with `EBUSY`.
pub(super) const TRIES: u32 = 1000;

/// An open file.
pub(super) struct OpenFile {
    pub file: Arc<File>,
    pub writes: bool,
    pub appends: bool,
    /// A lock taken by it, or bytes written to the file, are lost: see [`super::lease`].
    pub is_lost: AtomicBool,
    pub _run: Option<Run>,
}

impl OpenFile {
    /// Fails with `EIO` if a lock or bytes of this handle were lost. A thread that stages asks with
    /// the file's state locked; one that has stored asks afterwards, as a loss may be recent.
    pub fn require_sound(&self) -> Result<()> {
        if self.is_lost.load(Ordering::SeqCst) { Err(Errno::IO) } else { Ok(()) }
    }
}

/// See the module.
pub(super) struct Core {
    pub store: Arc<Store>,
    pub lease: Lease,
    pub log: Log,
    pub options: SharedOptions,
    pub reports: Arc<Reports>,
    pub budget: Arc<Budget>,
    pub ahead: ReadAhead,
    pub open: Files,
    pub files: Handles<OpenFile>,
    pub dirs: Handles<StoredDir>,
    pub(super) known: Mutex<HashMap<u64, Known>>,
    pub paths: PathPrefetch,
    pub fresh: NegativeCache,
    /// Rises with every commit of this mount: rows that were read before may be older.
    pub(super) changes: AtomicU64,
    inodes: Mutex<Range<u64>>,
    statfs: Mutex<Option<(Instant, Statfs)>>,
    pub turn: Turn,
    pub packer: Packer,
    pub tailing: Tailing<File>,
    pub places: Places,
    pub unpublished: Unpublished,
    pub running: Running,
    pub increments: IncrementQueue,
    /// Agents on other hosts can store files that they read in-line.
    pub has_delegates: AtomicBool,
    /// The last wait for an agent was in vain.
    pub nobody_came: AtomicBool,
    pub deferred: DeferredQueue,
    pub counters: Counters,
}

impl Core {
    pub fn new(
        store: Arc<Store>,
        session: Arc<Session>,
        packer: Packer,
        log: Log,
        ahead: ReadAhead,
        options: SharedOptions,
        reports: Arc<Reports>,
    ) -> Self {
        Self {
            store,
            lease: Lease::new(session),
            log,
            fresh: NegativeCache::new(options.names_for),
            options,
            reports,
            budget: Arc::default(),
            ahead,
            open: Files::default(),
            files: Handles::default(),
            dirs: Handles::default(),
            known: Mutex::default(),
            paths: PathPrefetch::default(),
            changes: AtomicU64::new(0),
            inodes: Mutex::new(0..0),
            statfs: Mutex::default(),
            turn: Turn::default(),
            packer,
            tailing: Tailing::default(),
            places: Places::default(),
            unpublished: Unpublished::default(),
            running: Running::default(),
            increments: IncrementQueue::default(),
            has_delegates: AtomicBool::new(false),
            nobody_came: AtomicBool::new(false),
            deferred: DeferredQueue::default(),
            counters: Counters::default(),
        }
    }

    /// An open file by its handle.
    ///
    /// # Errors
    /// `EBADF`, and `EIO` if a lock or bytes of this handle were lost.
    pub fn opened(&self, handle: Handle) -> Result<Arc<OpenFile>> {
        let open = self.files.get(handle)?;
        open.require_sound()?;
        Ok(open)
    }

    pub fn fail<T>(&self, done: outrigger_store::Result<T>) -> Result<T> {
        done.map_err(|error| self.reports.errno(&error))
    }

    pub fn reader(&self) -> Reader<'_> {
        Reader::new(&self.store)
    }

    // ---- changes ----------------------------------------------------------------------------------------------------

    /// One transaction: all or, on an error, nothing. `Ok(None)`: another host was faster.
    pub fn commit(&self, changes: Vec<Change>) -> outrigger_store::Result<Option<()>> {
        let session = self.lease.live()?;
        let committing = self.packer.begin_commit()?;
        self.fresh.will_have(&changes);
        let time = outrigger_clock::now_nanos();
        let commit = Commit { packs: Vec::new(), changes, time };
        let done = self.store.meta.commit(session.id(), &commit);
        self.changes.fetch_add(1, Ordering::SeqCst);
        self.note_committed(committing, &done, Touched::of(&commit.changes));
        match done {
            Ok(_) => Ok(Some(())),
            Err(error) if error.kind() == ErrorKind::Changed => Ok(None),
            Err(error) => {
                session.note(&error);
                // The rows may have changed since the session ended.
                if error.kind() == ErrorKind::Fenced { self.lease.live().map(|_| None) } else { Err(error) }
            }
        }
    }

    /// The session, even if it is over.
    pub fn session(&self) -> Arc<Session> {
        self.lease.session()
    }

    /// Does something, and once more if another client has ended the session meanwhile.
    pub fn with_session<T>(&self, work: impl Fn() -> Result<T>) -> Result<T> {
        let session = self.fail(self.lease.live())?;
        match work() {
            Err(_) if session.check().is_err() => {
                self.require_session()?;
                work()
            }
            done => done,
        }
    }

    /// Fails if nothing can be changed now; see [`Lease::live`].
    pub fn require_session(&self) -> Result<()> {
        self.fail(self.lease.live()).map(drop)
    }

    /// Adds these changes to the change outbox, unless they were refused.
    pub fn note_committed<T>(
        &self,
        committing: Committing<'_>,
        done: &outrigger_store::Result<T>,
        touched: Touched,
    ) {
        if done.as_ref().err().is_none_or(|error| error.kind() != ErrorKind::Changed) {
            self.packer.end_commit(committing, touched);
        }
    }

    /// A number for a new inode.
    pub fn next_inode(&self) -> Result<u64> {
        let mut inodes = self.inodes.lock().expect("no panic while held");
        if inodes.is_empty() {
            *inodes = self.fail(self.store.meta.reserve_inodes(INODES_AT_ONCE))?;
        }
        inodes.start += 1;
        Ok(inodes.start - 1)
    }

    // ---- the log ----------------------------------------------------------------------------------------------------

    /// Waits until the log has room for so many bytes, and makes some if need be.
    pub fn room(self: &Arc<Self>, bytes: usize) -> Result<Reservation<'_>> {
        let bytes = bytes as u64 + RECORD_ROOM;
        if self.is_filling() {
            self.increments.wake_for_room();
        }
        let mut reserved = self.log.reserve(bytes, Some(ROOM_TIMEOUT));
        let is_busy = reserved.as_ref().is_err_and(|error| error.kind() == ErrorKind::Busy);
        if is_busy && self.options.order.due(&self.log, u64::MAX).is_some() {
            // The thread that makes room may be slow. What is kept back stays as long as possible.
            let _ = self.with_session(|| self.fail(self.make_some_room()));
            reserved = self.log.reserve(bytes, Some(ROOM_TIMEOUT));
        }
        match reserved {
            Err(error) if error.kind() == ErrorKind::Busy => {
                // The files that could be stored have made room, even if others failed.
                let stored = self.with_session(|| self.fail(self.make_all_room()));
                match self.log.reserve(bytes, Some(ROOM_TIMEOUT)) {
                    // Without an error, files without names fill it, and these cannot be stored.
                    Err(error) if error.kind() == ErrorKind::Busy => stored.and(Err(Errno::NOSPC)),
                    reserved => self.fail(reserved),
                }
            }
            reserved => self.fail(reserved),
        }
    }

    /// True if room should be made in the log.
    pub fn is_filling(&self) -> bool {
        destage_order::is_filling(&self.log)
    }

    pub fn append(&self, operation: &outrigger_format::staging::Operation, data: &[u8]) -> Result<Appended> {
        self.fail(self.log.append(operation, data))
    }

    /// Open files with data that is not stored, and can be.
    pub fn dirty(&self) -> Vec<Arc<File>> {
        let mut files = self.open.all();
        files.retain(|file| {
            let state = file.read();
            state.is_dirty() && !state.is_void()
        });
        files
    }

    // ---- attributes -------------------------------------------------------------------------------------------------

    /// The kernel's entry for a row that was just read.
    pub fn entry(&self, row: &Inode) -> Entry {
        let open = self.open.get(row.number);
        let attr = match open.as_ref().map(|file| file.read()) {
            Some(state) if state.is_dirty() || state.is_committing || state.is_removed => self.attr(&state),
            _ => attr::attr(row.number, row, attr::allocated(&self.reader(), &row.root)),
        };
        // A flush in flight may hide what another host has stored.
        let is_deferred = open.as_ref().is_some_and(|file| file.read().row.root != row.root);
        let valid = if is_deferred { Duration::ZERO } else { self.counts_for(row.number) };
        // By default the kernel asks each time. A tailed file may go when it is closed.
        let is_tailed = open.is_some_and(|file| file.read().open.is_some());
        let name_valid = if is_tailed { Duration::ZERO } else { self.options.names_for };
        Entry { attr, valid, name_valid }
    }

    fn attr(&self, state: &State) -> Attr {
        let allocated = state.map.pieces(0..u64::MAX).map(|(range, piece)| match piece {
            Piece::Zero => 0,
            _ => range.end - range.start,
        });
        attr::shown(state.row.number, &state.attributes(), state.row.links, state.map.len(), allocated.sum())
    }

    /// The entry of a directory that is being read.
    pub fn entry_at_once(&self, row: &Inode) -> Entry {
        if row.attributes.kind == FileKind::File && self.open.get(row.number).is_some() {
            return self.entry(row);
        }
        let allocated = attr::allocated_at_once(&row.root).unwrap_or(row.root.len());
        Entry::new(attr::attr(row.number, row, allocated), Duration::ZERO)
    }

    /// Room in the store, as it was a moment ago.
    pub fn statfs(&self) -> Result<Statfs> {
        let mut last = self.statfs.lock().expect("no panic while held");
        if let Some((at, statfs)) = *last
            && at.elapsed() < A_MOMENT
        {
            return Ok(statfs);
        }
        let count = || {
            let totals = self.store.meta.totals()?;
            space::statfs(&self.store, totals.files + totals.directories + totals.others)
        };
        let statfs = self.fail(count())?;
        *last = Some((Instant::now(), statfs));
        Ok(statfs)
    }
}

/// The present.
pub(super) fn now() -> Time {
    Time::from_nanos(outrigger_clock::now_nanos())
}
