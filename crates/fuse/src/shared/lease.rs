//! The session of a mount, and the next one once another client has ended it.
//!
//! A lease that is over ends no session: it allows others to. A collector does that, and whoever wants a lock that the mount has. A mount that
//! was cut off for so long is told with its next transaction. The thread that renewed the lease then opens another session, as soon as the
//! database lets it, and the mount goes on:
//!
//! | what there was | what becomes of it |
//! | --- | --- |
//! | names, attributes, open files | stay: inodes have the store's numbers, and the kernel relies on nothing that others can change |
//! | bytes in the log | are stored by the next session, as any others |
//! | prefixes of files that were stored | are forgotten, as the log has their bytes |
//! | locks | are taken over, or lost: see below |
//! | a file that programs read while it is written | their jobs fail; if it has its name here only, it is lost |
//! | a file without a name of which something was stored | goes on if nobody has released that, and is lost otherwise |
//! | a file that was removed while it was open | is pinned no more, and can be read while its chunks are there |
//!
//! **A lock is lost** if somebody else has wanted one that the mount had, whether or not that one is free again. Whoever has taken it is told
//! `EIO` by everything that it does with that handle from then on. What was written to the file and is not stored may rest on the
//! lock. So it is not stored but kept aside, in a file of its own ([`UNSAVED`]), and all who may write to the file are told `EIO` likewise.
//!
//! **Order.** Whoever stores something has the turn, which the renewal has, too: no batch is of both sessions. Locks are taken over before
//! anybody else here sees the next session. An operation that comes meanwhile waits for a while.

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
const PATIENCE: Duration = Duration::from_secs(10);
/// How long after a failure another session is opened.
const RETRY: Duration = Duration::from_secs(1);

/// Called with the number of the next session.
type Renewed = Box<dyn Fn(SessionId) -> Result<()> + Send + Sync>;

/// See the module.
pub(super) struct Lease {
    state: Mutex<Current>,
    changed: Condvar,
    renewed: Mutex<Vec<Renewed>>,
    /// How many sessions were ended by others.
    lost: AtomicU64,
    /// Files of which changes were kept aside.
    kept: AtomicU64,
}

struct Current {
    session: Arc<Session>,
    /// A thread opens the next session. No other one waits for it, as it may wait for that one's end.
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

    /// The session, whatever became of it.
    pub fn session(&self) -> Arc<Session> {
        Arc::clone(&self.lock().session)
    }

    /// The session. If another client has ended it, the next one is waited for. Who has the turn must not wait: the renewal needs it.
    ///
    /// # Errors
    /// `Fenced` when there is none in time; `Io` when the store was removed.
    pub fn live(&self) -> Result<Arc<Session>> {
        let until = Instant::now() + PATIENCE;
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

    /// How many sessions were ended by others, and of how many files changes were kept aside.
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

    /// Whether the caller is to open the next session, and nobody else does.
    fn begin(&self) -> bool {
        let mut current = self.lock();
        !std::mem::replace(&mut current.is_renewing, true)
    }

    /// Whether the caller, who has begun, is to open one now: else it has ended.
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

/// Has the mount go on once its session was ended by another client.
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
        // With a session that is over, what begins to be followed after this ends by itself.
        self.end_followed_of_lost_session()?;
        let mut asked = self.take_turn()?;
        let before = self.session();
        let session = self.store.session(SessionKind::Writer, Role::Mount)?;
        let mut lost = Vec::new();
        for file in self.open.all() {
            {
                let mut state = file.write();
                state.forget_early();
                state.forget_pin();
            }
            if !self.holds_on(&file, session.id())? {
                file.write().can_have_no_name();
                lost.push((Arc::clone(&file), BTreeSet::new()));
            }
        }
        self.early.forget_held();
        self.link_dir(before.id(), session.id())?;
        if !self.options.closes_within.is_zero() {
            self.tell_behind(session.id())?;
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
        // The kernel may have bytes that were given up.
        lost.iter().for_each(|(file, _)| locks.forget(file.number));
        let why = "another client had ended the mount's session, as it was cut off for more than a minute; the mount goes on";
        self.reports.note(format!("{why} with session {} in place of {}", id.0, before.id().0));
        for then in &*self.lease.renewed.lock().expect("no panic while held") {
            let _ = self.fail(then(id));
        }
        Ok(())
    }

    /// Others on this host find the mount by its session.
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

    /// Has what is stored of a file without a name held for the next session. False: somebody has released it.
    fn holds_on(&self, file: &File, session: SessionId) -> Result<bool> {
        let (is_noted, root) = {
            let state = file.read();
            (state.is_noted, state.row.root.clone())
        };
        if !is_noted {
            return Ok(true);
        }
        // The note first: whoever releases what the session before has left finds that it is another one's, too.
        self.note_open(file.number, session)?;
        Ok(root == Root::Empty || self.store.meta.held(&orphan_holder(file.number))?.contains(&root))
    }

    /// Something of a file is lost: `handles`, and all that may write to it, answer `EIO`.
    ///
    /// # Errors
    /// When what is not stored of it cannot be kept aside.
    pub fn lose(&self, file: &Arc<File>, handles: &BTreeSet<Handle>) -> Result<()> {
        for (handle, open) in self.files.all() {
            // A process's locks are those of all its descriptors.
            if Arc::ptr_eq(&open.file, file) && (open.writes || handles.contains(&handle)) {
                open.is_lost.store(true, Ordering::SeqCst);
            }
        }
        // From here on nothing is staged by these.
        let mut state = file.write();
        if state.is_dirty() || state.is_only_here() {
            self.keep_aside(file.number, &mut state)?;
        }
        self.forget_cached(file.number);
        Ok(())
    }

    /// Writes what a file is here into a file of its own, and gives up what of it is not stored.
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
        // A length that no file here can have says nothing of the bytes.
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
