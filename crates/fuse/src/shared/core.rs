//! The base of all operations: rows and how long they count, transactions, room in the log.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use outrigger_clock::Instant;
use outrigger_format::Root;
use outrigger_format::catalogue::{Attributes, FileKind, Time};
use outrigger_store::meta::{At, Change, Commit, Inode, ROOT_INODE};
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
use super::hidden::Hidden;
use super::increment_queue::IncrementQueue;
use super::lease::Lease;
use super::negative_cache::NegativeCache;
use super::outbox::Committing;
use super::packer::Packer;
use super::path_prefetch::{PathPrefetch, Taken};
use super::store::Turn;
use crate::follow::{Following, Places};
use crate::fs::{Attr, Entry, Handle, Result, Statfs};
use crate::report::Reports;
use crate::running::{Run, Running};
use crate::view::ahead::ReadAhead;
use crate::view::content::Budget;
use crate::view::directory::StoredDir;
use crate::view::handles::Handles;
use crate::view::{attr, space};

/// How long attributes may be reused without asking: of an open file, and right after a lookup.
const A_MOMENT: Duration = Duration::from_secs(1);
/// Room that a record needs beside its data.
const RECORD_ROOM: u64 = 256;
/// How long a write waits for room before it makes some itself.
const PATIENCE: Duration = Duration::from_secs(1);
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

/// An entry of the inode cache. Any of it may be out of date.
struct Known {
    /// A directory that it has, or had, a name in.
    parent: u64,
    /// The last row from the database.
    row: Option<Inode>,
    /// When it was read, unless it may have changed since.
    asked: Option<Instant>,
    /// The content that the kernel's cache holds bytes of.
    cached: Option<Root>,
    /// A directory's time that this mount has committed: the directory's times are not before it.
    touched: Time,
    /// The file was emptied while no program had it open to write: the next writer overwrites it.
    emptied: bool,
}

impl Known {
    fn new() -> Self {
        Self {
            parent: ROOT_INODE,
            row: None,
            asked: None,
            cached: None,
            touched: Time::default(),
            emptied: false,
        }
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
    known: Mutex<HashMap<u64, Known>>,
    pub paths: PathPrefetch,
    pub fresh: NegativeCache,
    /// Rises with every commit of this mount: rows that were read before may be older.
    changes: AtomicU64,
    inodes: Mutex<Range<u64>>,
    statfs: Mutex<Option<(Instant, Statfs)>>,
    pub turn: Turn,
    pub packer: Packer,
    pub following: Following<File>,
    pub places: Places,
    pub hidden: Hidden,
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
            following: Following::default(),
            places: Places::default(),
            hidden: Hidden::default(),
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

    // ---- rows -------------------------------------------------------------------------------------------------------

    /// An inode's present row; for a file that is open here and removed, its last one.
    pub fn row(&self, number: u64) -> Result<Inode> {
        let before = self.changes.load(Ordering::SeqCst);
        let open = self.open.get(number);
        if let Some(row) = open.as_ref().and_then(Self::row_of_hidden) {
            return Ok(row);
        }
        let edition = open.as_ref().map(|file| file.read().edition);
        match self.fail(self.store.meta.inode(At::Now, number))? {
            Some(row) => {
                if let (Some(file), Some(edition)) = (open, edition) {
                    let mut state = file.write();
                    if state.edition == edition {
                        state.take(&row, &self.budget);
                    }
                }
                self.remember(&row, None, before);
                Ok(row)
            }
            None => {
                self.forget_row(number);
                let file = open.ok_or(Errno::STALE)?;
                let mut state = file.write();
                state.lose();
                Ok(state.row.clone())
            }
        }
    }

    /// The row of a file that only this mount knows.
    fn row_of_hidden(file: &Arc<File>) -> Option<Inode> {
        let state = file.read();
        (state.is_hidden || state.may_be_named).then(|| state.row.clone())
    }

    /// Looks up a name that only this mount knows.
    pub fn look_hidden(&self, parent: u64, name: &[u8]) -> Option<Inode> {
        let number = self.hidden.number(parent, name)?;
        Self::row_of_hidden(&self.open.get(number)?)
    }

    /// As [`Core::row`], or the row that was read a moment ago.
    pub fn row_soon(&self, number: u64) -> Result<Inode> {
        let known = self.known.lock().expect("no panic while held");
        if let Some(Known { row: Some(row), asked: Some(asked), .. }) = known.get(&number)
            && asked.elapsed() < A_MOMENT
        {
            return Ok(row.clone());
        }
        drop(known);
        self.row(number)
    }

    /// The last row of a directory that is removed and still open, or a process's working directory.
    pub fn removed_directory(&self, number: u64) -> Result<Inode> {
        let known = self.known.lock().expect("no panic while held");
        let row = known.get(&number).and_then(|known| known.row.clone());
        let row = row.filter(|row| row.attributes.kind == FileKind::Directory).ok_or(Errno::STALE)?;
        Ok(Inode { links: 0, ..row })
    }

    /// The attributes in [`Core::row_soon`], with the changes that wait for the close.
    pub fn attributes_soon(&self, number: u64) -> Result<Attributes> {
        let mut attributes = self.row_soon(number)?.attributes;
        if let Some(file) = self.open.get(number) {
            file.read().edit(&mut attributes);
        }
        Ok(attributes)
    }

    /// Looks up a name.
    pub fn look(&self, parent: u64, name: &[u8]) -> Result<Option<Inode>> {
        match self.look_hidden(parent, name) {
            Some(row) => Ok(Some(row)),
            None => Ok(self.look_each(&[(parent, name)])?.pop().flatten()),
        }
    }

    /// Looks up several names in the database.
    fn look_each(&self, names: &[(u64, &[u8])]) -> Result<Vec<Option<Inode>>> {
        let before = self.changes.load(Ordering::SeqCst);
        let found = self.fail(self.store.meta.lookup_each(names))?;
        for ((parent, _), row) in names.iter().zip(&found) {
            if let Some(row) = row {
                self.remember(row, Some(*parent), before);
            }
        }
        Ok(found)
    }

    /// As [`Core::look`] on a path: also prefetches the next directories ([`super::path_prefetch`]).
    pub fn look_on(&self, thread: u32, parent: u64, name: &[u8]) -> Result<Option<Inode>> {
        if let Some(row) = self.look_hidden(parent, name) {
            return Ok(Some(row));
        }
        if self.fresh.lacks(parent, name) {
            self.paths.leave(thread);
            return Ok(None);
        }
        let before = self.changes.load(Ordering::SeqCst);
        let ahead = match self.paths.take(thread, parent, name, before) {
            Taken::Known(row) => return Ok(Some(row)),
            Taken::Ask(ahead) => ahead,
        };
        let asked = (Instant::now(), before);
        let mut steps = vec![(parent, name)];
        steps.extend(ahead.iter().map(|(parent, name)| (*parent, name.as_slice())));
        let mut found = self.look_each(&steps)?.into_iter();
        let first = found.next().flatten();
        if let Some(row) = &first {
            let ahead = ahead.into_iter().zip(found).filter_map(|(step, row)| Some((step, row?)));
            self.paths.took(thread, (parent, name), row, ahead, asked);
        }
        Ok(first)
    }

    /// Caches a row that was read when this mount's count of changes was `before`.
    fn remember(&self, row: &Inode, parent: Option<u64>, before: u64) {
        let mut known = self.known.lock().expect("no panic while held");
        let known = known.entry(row.number).or_insert_with(Known::new);
        known.parent = parent.unwrap_or(known.parent);
        // Otherwise a change of ours may be younger.
        if self.changes.load(Ordering::SeqCst) == before {
            (known.row, known.asked) = (Some(row.clone()), Some(Instant::now()));
        }
    }

    /// Caches a row that this mount has just committed.
    pub fn remember_own(&self, row: &Inode, parent: Option<u64>) {
        let now = self.changes.fetch_add(1, Ordering::SeqCst) + 1;
        self.remember(row, parent, now);
    }

    /// An inode has another directory.
    pub fn moved(&self, number: u64, parent: u64) {
        if let Some(known) = self.known.lock().expect("no panic while held").get_mut(&number) {
            known.parent = parent;
        }
        self.forget_row(number);
    }

    /// An inode's cached row does not count any more.
    pub fn forget_row(&self, number: u64) {
        self.changes.fetch_add(1, Ordering::SeqCst);
        if let Some(known) = self.known.lock().expect("no panic while held").get_mut(&number) {
            known.asked = None;
        }
    }

    /// True if this mount has committed this very time as a directory's time of change.
    pub fn is_touched(&self, number: u64, time: Time) -> bool {
        let known = self.known.lock().expect("no panic while held");
        known.get(&number).is_some_and(|known| known.touched == time)
    }

    /// This mount has committed this time of a directory; `None` if it set its times otherwise.
    pub fn note_touched(&self, number: u64, time: Option<Time>) {
        self.forget_row(number);
        if let Some(known) = self.known.lock().expect("no panic while held").get_mut(&number) {
            known.touched = time.unwrap_or_default();
        }
    }

    /// How long a cached row counts.
    fn counts_for(&self, number: u64) -> Duration {
        let known = self.known.lock().expect("no panic while held");
        let at = known.get(&number).and_then(|known| known.asked);
        at.map_or(Duration::ZERO, |at| A_MOMENT.saturating_sub(at.elapsed()))
    }

    /// The file was emptied while no program had it open to write; or (not `emptied`) it is tailed.
    pub fn note_emptied(&self, number: u64, emptied: bool) {
        if let Some(known) = self.known.lock().expect("no panic while held").get_mut(&number) {
            known.emptied = emptied;
        }
    }

    /// True if a file was emptied before it was opened to be written.
    pub fn was_emptied(&self, number: u64) -> bool {
        self.known.lock().expect("no panic while held").get(&number).is_some_and(|known| known.emptied)
    }

    /// The kernel is given a name. This matters only while some files are tailed.
    pub fn saw(&self, parent: u64, name: &[u8], row: &Inode) {
        if row.attributes.kind == FileKind::File && self.following.is_any() {
            self.places.saw(parent, name, row.number);
        }
    }

    /// The kernel does not know it any more.
    pub fn forget(&self, number: u64) {
        self.places.forget(number);
        self.paths.forget(number);
        self.fresh.forget(number);
        self.known.lock().expect("no panic while held").remove(&number);
    }

    /// A directory that an inode has a name in, if known.
    pub fn parent_of(&self, number: u64) -> u64 {
        self.known.lock().expect("no panic while held").get(&number).map_or(ROOT_INODE, |known| known.parent)
    }

    /// True if the kernel's cached bytes of a file are this content's; from here on they are.
    pub fn keeps_cache(&self, number: u64, content: &Root) -> bool {
        let mut known = self.known.lock().expect("no panic while held");
        known
            .get_mut(&number)
            .is_some_and(|known| known.cached.replace(content.clone()).as_ref() == Some(content))
    }

    /// The kernel may have bytes of a file that are not of its content.
    pub fn forget_cached(&self, number: u64) {
        if let Some(known) = self.known.lock().expect("no panic while held").get_mut(&number) {
            known.cached = None;
        }
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
        match self.log.reserve(bytes, Some(PATIENCE)) {
            Err(error) if error.kind() == ErrorKind::Busy => {
                // The files that could be stored have made room, even if others failed.
                let stored = self.with_session(|| self.fail(self.make_all_room()));
                match self.log.reserve(bytes, Some(PATIENCE)) {
                    // Without an error, files without names fill it, and these cannot be stored.
                    Err(error) if error.kind() == ErrorKind::Busy => stored.and(Err(Errno::NOSPC)),
                    reserved => self.fail(reserved),
                }
            }
            reserved => self.fail(reserved),
        }
    }

    /// The log is half full.
    pub fn is_filling(&self) -> bool {
        let fill = self.log.fill();
        fill.used + fill.reserved > fill.capacity / 2
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
        let is_followed = open.is_some_and(|file| file.read().open.is_some());
        let name_valid = if is_followed { Duration::ZERO } else { self.options.names_for };
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
