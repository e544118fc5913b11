//! The session of a mount, and the next one once another client has ended it.
//!
//! An expired lease does not end a session: it allows other clients to. A collector does that, and
//! so does a client that wants a lock of this mount. A mount that was cut off for so long learns of
//! it with its next transaction. The thread that renewed the lease then opens another session, as
//! soon as the database lets it, and the mount goes on:
//!
//! | before | after |
//! | --- | --- |
//! | names, attributes, open files | stay: inodes have the store's numbers, and the kernel relies on nothing that others can change |
//! | bytes in the log | are stored by the next session, like any others |
//! | stored prefixes of files | are dropped, as the log has their bytes |
//! | locks | are taken over, or lost: see below |
//! | a tailed file | its jobs fail; an unpublished file is lost |
//! | an anonymous file with stored content | goes on if nobody has released that, and is lost otherwise |
//! | a file that was removed while it was open | is no longer pinned, and can be read while its chunks exist |
//!
//! **A lock is lost** if another client has wanted a lock that the mount had, even if that is free
//! again. The program that has taken it gets `EIO` for everything that it does with that handle
//! from then on. Bytes of the file that are not stored may depend on the lock. So they are not
//! stored but kept aside, in a file of their own ([`UNSAVED`]), and all handles that may write to
//! the file get `EIO`, too.
//!
//! **Order.** A thread that stores something has the flush lock, and so does the renewal: no batch
//! belongs to both sessions. Locks are taken over before any other thread here sees the next
//! session. Operations that come meanwhile wait for a while.

use std::collections::BTreeSet;
use std::fs::{DirBuilder, File as Copy, OpenOptions};
use std::os::unix::fs::{DirBuilderExt as _, FileExt as _, OpenOptionsExt as _, symlink};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use outrigger_clock::Instant;
use outrigger_format::Root;
use outrigger_store::meta::{Role, SessionId, SessionKind, orphan_holder};
use outrigger_store::ops::mounts::UNSAVED;
use outrigger_store::session::Session;
use outrigger_store::staging::{ExtentMap, Piece};
use outrigger_store::{Context as _, ErrorKind, Result};

use super::core::Core;
use super::dir_of_mount;
use super::file::{File, State};
use super::locks::LockService;
use super::store::Asked;
use crate::fs::Handle;

/// How long an operation waits for the next session.
const SESSION_TIMEOUT: Duration = Duration::from_secs(10);
/// Pause after a failure to open another session.
const RETRY: Duration = Duration::from_secs(1);

/// Called with the number of the next session.
type Renewed = Box<dyn Fn(SessionId) -> Result<()> + Send + Sync>;

/// See the module.
pub(super) struct Lease {
    state: Mutex<Current>,
    changed: Condvar,
    renewed: Mutex<Vec<Renewed>>,
    /// Number of sessions that others have ended.
    lost: AtomicU64,
    /// Number of files with changes that were kept aside.
    kept: AtomicU64,
}

struct Current {
    session: Arc<Session>,
    /// A thread opens the next session. No other thread waits for it, as it may wait for that
    /// thread's end.
    is_renewing: bool,
    is_ending: bool,
}

impl Lease {
    pub fn new(session: Arc<Session>) -> Self {
        Self {
            state: Mutex::new(Current { session, is_renewing: false, is_ending: false }),
            changed: Condvar::new(),
            renewed: Mutex::default(),
            lost: AtomicU64::new(0),
            kept: AtomicU64::new(0),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Current> {
        self.state.lock().expect("no panic while held")
    }

    /// The session, even if it is over.
    pub fn session(&self) -> Arc<Session> {
        Arc::clone(&self.lock().session)
    }

    /// The session. If another client has ended it, waits for the next one. The holder of the flush
    /// lock must not wait: the renewal needs the lock.
    ///
    /// # Errors
    /// `Fenced` when there is none in time; `Io` when the store was removed.
    pub fn live(&self) -> Result<Arc<Session>> {
        let until = Instant::now() + SESSION_TIMEOUT;
        let mut current = self.lock();
        loop {
            let Err(error) = current.session.check() else { return Ok(Arc::clone(&current.session)) };
            let left = until.saturating_duration_since(Instant::now());
            if error.kind() != ErrorKind::Fenced || current.is_ending || left.is_zero() {
                return Err(error);
            }
            current = self.changed.wait_timeout(current, left).expect("no panic while held").0;
        }
    }

    /// How many sessions others have ended, and of how many files changes were kept aside.
    pub fn counts(&self) -> (u64, u64) {
        (self.lost.load(Ordering::Relaxed), self.kept.load(Ordering::Relaxed))
    }

    /// There is no next session.
    pub fn end(&self) {
        self.lock().is_ending = true;
        self.changed.notify_all();
    }

    /// Has `then` called with each next session.
    pub fn when_renewed(&self, then: Renewed) {
        self.renewed.lock().expect("no panic while held").push(then);
    }

    /// True if the caller is to open the next session, and no other thread does.
    fn begin(&self) -> bool {
        let mut current = self.lock();
        !std::mem::replace(&mut current.is_renewing, true)
    }

    /// True if the caller, which has begun, is to open a session now; otherwise it has ended its
    /// task.
    fn goes_on(&self) -> bool {
        let mut current = self.lock();
        current.is_renewing = !current.is_ending && current.session.check().is_err();
        current.is_renewing
    }

    /// Waits a moment.
    fn pause(&self) {
        let wait = self.changed.wait_timeout_while(self.lock(), RETRY, |current| !current.is_ending);
        drop(wait.expect("no panic while held"));
    }
}

/// Lets the mount go on after another client has ended its session.
pub(super) fn watch(core: &Arc<Core>, locks: &Arc<LockService>) {
    let session = core.session();
    let (weak, weak_locks) = (Arc::downgrade(core), Arc::downgrade(locks));
    session.when_fenced(move || {
        if let (Some(core), Some(locks)) = (weak.upgrade(), weak_locks.upgrade()) {
            core.go_on(&locks);
        }
    });
    if session.check().is_err() {
        // Its thread may have ended before this.
        let (core, locks) = (Arc::clone(core), Arc::clone(locks));
        std::thread::spawn(move || core.go_on(&locks));
    }
}

impl Core {
    fn go_on(self: &Arc<Self>, locks: &Arc<LockService>) {
        if !self.lease.begin() {
            return;
        }
        while self.lease.goes_on() {
            let renewed = self.renew_session(locks);
            let failed = renewed.map_err(|error| error.context("opening another session for the mount"));
            if self.fail(failed).is_err() {
                self.lease.pause();
            }
        }
    }

    fn renew_session(self: &Arc<Self>, locks: &Arc<LockService>) -> Result<()> {
        // Without a live session, tailing that begins after this ends by itself.
        self.end_tailed_of_lost_session()?;
        let mut asked = self.take_turn()?;
        let before = self.session();
        let session = self.store.session(SessionKind::Writer, Role::Mount)?;
        let mut lost = Vec::new();
        for file in self.open.all() {
            {
                let mut state = file.write();
                state.forget_increments();
                state.forget_pin();
            }
            if !self.holds_on(&file, session.id())? {
                file.write().can_have_no_name();
                lost.push((Arc::clone(&file), BTreeSet::new()));
            }
        }
        self.increments.forget_held();
        self.link_dir(before.id(), session.id())?;
        if !self.options.closes_within.is_zero() {
            self.register_deferred(session.id())?;
        }
        for (inode, handles) in locks.take_over(before.id(), &session)? {
            lost.extend(self.open.get(inode).map(|file| (file, handles)));
        }
        lost.iter().try_for_each(|(file, handles)| self.lose(file, handles))?;
        *asked = Asked::default();
        let id = session.id();
        self.lease.lock().session = session;
        self.lease.lost.fetch_add(1, Ordering::Relaxed);
        drop(asked);
        watch(self, locks);
        self.lease.changed.notify_all();
        // The kernel may have bytes that were dropped.
        lost.iter().for_each(|(file, _)| locks.forget(file.number));
        let why = "another client ended the mount's session, because it was cut off for longer than its lease; the mount continues";
        self.reports.note(format!("{why} with session {} in place of {}", id.0, before.id().0));
        for then in &*self.lease.renewed.lock().expect("no panic while held") {
            let _ = self.fail(then(id));
        }
        Ok(())
    }

    /// Lets others on this host find the mount by its session.
    fn link_dir(&self, before: SessionId, now: SessionId) -> Result<()> {
        let [old, new] = [before, now].map(|id| dir_of_mount(&self.store, id));
        let dir = if old.is_symlink() { std::fs::read_link(&old).ok() } else { None };
        let target = dir.or_else(|| old.file_name().map(PathBuf::from)).unwrap_or_default();
        symlink(target, &new).context(|| format!("cannot make {}", new.display()))?;
        if old.is_symlink() {
            let _ = std::fs::remove_file(&old);
        }
        Ok(())
    }

    /// Has the stored content of a file without a name held for the next session. False if another
    /// client has released it.
    fn holds_on(&self, file: &File, session: SessionId) -> Result<bool> {
        let (is_noted, root) = {
            let state = file.read();
            (state.is_noted, state.row.root.clone())
        };
        if !is_noted {
            return Ok(true);
        }
        // The record first: a client that releases the earlier session's leftovers finds that they
        // belong to another session, too.
        self.register_open(file.number, session)?;
        Ok(root == Root::Empty || self.store.meta.held(&orphan_holder(file.number))?.contains(&root))
    }

    /// A part of a file is lost: `handles`, and all that may write to it, answer `EIO`.
    ///
    /// # Errors
    /// When its data that is not stored cannot be kept aside.
    pub fn lose(&self, file: &Arc<File>, handles: &BTreeSet<Handle>) -> Result<()> {
        for (handle, open) in self.files.all() {
            // A process's locks belong to all its descriptors.
            if Arc::ptr_eq(&open.file, file) && (open.writes || handles.contains(&handle)) {
                open.is_lost.store(true, Ordering::SeqCst);
            }
        }
        // From here on these handles stage nothing.
        let mut state = file.write();
        if state.is_dirty() || state.is_only_here() {
            self.keep_aside(file.number, &mut state)?;
        }
        self.forget_cached(file.number);
        Ok(())
    }

    /// Writes this mount's content of a file into a file of its own, and drops the part that is not
    /// stored.
    fn keep_aside(&self, number: u64, state: &mut State) -> Result<()> {
        let bytes = state.map.staged_bytes();
        let path = self.copy_aside(number, state)?;
        self.lease.kept.fetch_add(1, Ordering::Relaxed);
        self.reports.note(format!(
            "{bytes} bytes that were written to inode {number} and not stored rested on what this mount has lost with its session: they are kept in {}, in their places in the file",
            path.display()
        ));
        let clean = ExtentMap::new(Arc::clone(self.log.usage()), state.row.root.len());
        state.forget_changes(clean);
        self.forget_row(number);
        Ok(())
    }

    fn copy_aside(&self, number: u64, state: &State) -> Result<PathBuf> {
        let above = self.store.dir().join(UNSAVED);
        let path = above.join(format!("inode-{number}-{}", outrigger_clock::now_nanos()));
        let at = || format!("cannot keep it in {}", path.display());
        DirBuilder::new().recursive(true).mode(0o700).create(&above).context(at)?;
        let copy = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path).context(at)?;
        let copied = self.copy_changes(state, &copy).map_err(|error| error.context(at()));
        if copied.is_err() {
            // It is tried again, and the disk may be full.
            let _ = std::fs::remove_file(&path);
        }
        copied.map(|()| path)
    }

    fn copy_changes(&self, state: &State, copy: &Copy) -> Result<()> {
        let what = || "writing".to_string();
        // A length that no file here can have tells nothing about the bytes.
        let _ = copy.set_len(state.map.len());
        let mut bytes = Vec::new();
        for (range, piece) in state.map.pieces(0..u64::MAX) {
            if let Piece::Data(location) = piece {
                bytes.resize((range.end - range.start) as usize, 0);
                self.log.read(location, &mut bytes)?;
                copy.write_all_at(&bytes, range.start).context(what)?;
            }
        }
        copy.sync_all().context(what)
    }
}
