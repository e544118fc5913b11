//! A running client of the store: its lease, the packs it may rely on, and those it relies on.
//!
//! The rules are those of `docs/decisions/0003-reclaim-protocol.md`, named here by number. A
//! background thread renews the lease once a second and acknowledges new generations at once (rule
//! 8). Nothing has to drain first: the acknowledgement itself takes what uncommitted files rely on
//! out of the collector's run.
//!
//! Locks, in the order they are taken: `turn` (held over a commit and its aftermath, and over an
//! acknowledgement), then `reliance` (held over each lookup), or `commits`.
//!
//! **A commit in doubt.** If the database goes away during a commit and does not come back in time,
//! the commit may have happened, so its packs may be live or not. Until the session knows, it
//! relies on what it relied on before, and commits nothing else. The thread that renews the lease
//! asks once a second, and so does the next caller that commits.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use outrigger_clock as clock;
use outrigger_clock::Instant;
use outrigger_format::{PackId, Root};

use crate::backend::Backend;
use crate::error::{Error, ErrorKind, Result, Unanswered};
use crate::links::Links;
use crate::lock_files::LockFile;
use crate::meta::{
    Generation, Meta, PackMark, PackState, PinTarget, Role, SessionId, SessionKind, SessionOwner,
};
use crate::snapshot::BeforeSnapshot;

/// Seconds for which a session is believed alive after it last renewed its lease. If a process of
/// this host is killed, others notice at once by its lock file.
pub const LEASE_SECS: u32 = 60;
const LOST: &str = "another client ended this session, as for more than a minute this machine slept, was stopped, or could not reach the store's database: run the command again (mounts go on by themselves)";
const RENEW_EVERY: Duration = Duration::from_secs(1);
/// A session asks the database before it seals a pack if it heard from it longer ago than this.
/// Nobody ends a session that was heard of so recently.
const SURE_FOR: Duration = Duration::from_secs(10);

struct Reliance {
    generation: u64,
    /// Rule 1: hits count in these only …
    usable: HashSet<PackId>,
    /// … and in these: sealed by this session, not committed yet.
    own: HashSet<PackId>,
    /// Rule 4: pack → number of the last change that relies on it.
    relied: HashMap<PackId, u64>,
    /// The last change that anything was looked up for.
    newest_change: u64,
    /// The outcome of the last acknowledgement is unknown: until another one succeeds, no pack of
    /// other clients is usable.
    is_unsure: bool,
    /// How far it has read the database's list of changed packs, if the database has one.
    mark: Option<PackMark>,
}

/// A commit that got no answer.
struct OpenCommit {
    unanswered: Unanswered,
    /// The changes that need nothing any more if the commit has happened; see [`Session::commit`].
    done: u64,
    packs: Vec<PackId>,
    has_happened: Option<bool>,
}

struct Shared {
    id: SessionId,
    kind: SessionKind,
    meta: Arc<dyn Meta>,
    turn: Mutex<()>,
    reliance: Mutex<Reliance>,
    /// At most the last one is in doubt.
    commits: Mutex<Vec<OpenCommit>>,
    /// When the database last answered, by two clocks: one of them goes on while the machine
    /// sleeps.
    heard: Mutex<(Instant, u64)>,
    /// Why it is over, once it is.
    over: OnceLock<(ErrorKind, String)>,
    /// Where the store's packs lie, and what its next catalogue block names.
    packs: OnceLock<(Arc<dyn Backend>, Arc<Links>)>,
    /// Called once another client has ended this session.
    fenced: OnceLock<Box<dyn Fn() + Send + Sync>>,
    stop: Mutex<bool>,
    stopped: Condvar,
}

/// Stops changes to the store in other processes during a commit of this session; `None` when there
/// is no such process. Dropping the answer lets them go on.
pub type Beside = dyn Fn(SessionId) -> Result<Option<Box<dyn Send>>> + Send + Sync;

/// An open session. Dropping it closes it.
pub struct Session {
    shared: Arc<Shared>,
    renewer: Option<JoinHandle<()>>,
    lock: Option<LockFile>,
    before: OnceLock<Arc<BeforeSnapshot>>,
    uses_reserve: AtomicBool,
    beside: OnceLock<Arc<Beside>>,
}

impl Session {
    /// Opens a session; `locks` is the directory of lock files, if the store has one.
    ///
    /// # Errors
    /// When the database refuses.
    pub fn open(
        meta: &Arc<dyn Meta>,
        kind: SessionKind,
        locks: Option<&Path>,
        role: Role,
    ) -> Result<Arc<Self>> {
        let name = format!("{:016x}", u64::from_le_bytes(clock::random()?));
        let lock = locks.map(|locks| LockFile::take(locks, format!("{name}.lock"))).transpose()?;
        let (id, generation) = meta.open_session(kind, &SessionOwner::this(name, role), LEASE_SECS)?;
        let shared = Arc::new(Shared {
            id,
            kind,
            meta: Arc::clone(meta),
            turn: Mutex::new(()),
            reliance: Mutex::new(Reliance::new(generation)),
            commits: Mutex::default(),
            heard: Mutex::new((Instant::now(), clock::now_nanos())),
            over: OnceLock::new(),
            packs: OnceLock::new(),
            fenced: OnceLock::new(),
            stop: Mutex::new(false),
            stopped: Condvar::new(),
        });
        let renewing = Arc::clone(&shared);
        let renewer = std::thread::spawn(move || renewing.renew());
        let before = OnceLock::new();
        let uses_reserve = AtomicBool::new(false);
        Ok(Arc::new(Self {
            shared,
            renewer: Some(renewer),
            lock,
            before,
            uses_reserve,
            beside: OnceLock::new(),
        }))
    }

    /// Makes writers of this session take the snapshot `before` ahead of their first transaction.
    /// Only the first call counts.
    pub fn take_before(&self, before: &Arc<BeforeSnapshot>) {
        let _ = self.before.set(Arc::clone(before));
    }

    /// The snapshot that [`Session::take_before`] was given.
    pub(crate) fn before_snapshot(&self) -> Option<&BeforeSnapshot> {
        self.before.get().map(|before| &**before)
    }

    /// Stops other processes' changes during each of its writers' commits. Only the first call
    /// counts.
    pub(crate) fn set_beside(&self, beside: &Arc<Beside>) {
        let _ = self.beside.set(Arc::clone(beside));
    }

    /// Before a commit: stops other processes' changes until the answer is dropped.
    pub(crate) fn stand_still(&self) -> Result<Option<Box<dyn Send>>> {
        self.beside.get().map_or(Ok(None), |hold| hold(self.id()))
    }

    /// Tends these packs for as long as it is open, and leaves these links in the database then.
    pub(crate) fn tend(&self, packs: &Arc<dyn Backend>, links: &Arc<Links>) {
        let _ = self.shared.packs.set((Arc::clone(packs), Arc::clone(links)));
    }

    /// Calls `then` once another client has ended this session, on the thread that renews its
    /// lease. Only the first call counts.
    pub fn when_fenced(&self, then: impl Fn() + Send + Sync + 'static) {
        let _ = self.shared.fenced.set(Box::new(then));
    }

    /// Lets its writers take the reserved space of the disk, for content that was already
    /// acknowledged.
    pub fn use_reserve(&self) {
        self.uses_reserve.store(true, Ordering::Relaxed);
    }

    /// True after [`Session::use_reserve`].
    pub(crate) fn may_use_reserve(&self) -> bool {
        self.uses_reserve.load(Ordering::Relaxed)
    }

    /// Its number.
    pub fn id(&self) -> SessionId {
        self.shared.id
    }

    /// Fails once the session is over: it was fenced, or its store was removed.
    ///
    /// # Errors
    /// `Fenced`; `Io` when the store was removed.
    pub fn check(&self) -> Result<()> {
        match self.shared.over.get() {
            Some((kind, why)) => Err(Error::new(*kind, why.clone())),
            None => Ok(()),
        }
    }

    /// Makes sure that nobody has ended the session while its host slept or stood still. Call it
    /// right before sealing a pack. If the session was ended, the pack's row may have been swept,
    /// and a sealed pack without a row looks as if the database were stale.
    ///
    /// # Errors
    /// `Fenced`, and those of the database.
    pub fn confirm(&self) -> Result<()> {
        let (at, wall) = *self.shared.heard.lock().expect("no panic while held");
        let is_sure =
            at.elapsed() < SURE_FOR && clock::now_nanos().abs_diff(wall) < SURE_FOR.as_nanos() as u64;
        if is_sure {
            return Ok(());
        }
        self.shared.renew_once().inspect_err(|error| self.note(error)).map(drop)
    }

    /// Handles a failed transaction of this session: if the session is over, [`Session::check`]
    /// says so from now on.
    pub fn note(&self, error: &Error) {
        self.shared.note(error);
    }

    /// Rule 4: runs `lookup`, and remembers that change `change` relies on the packs it returns.
    /// `lookup` gets a test for which packs count. `change` is 0 for the change that is being
    /// looked up now.
    ///
    /// # Errors
    /// Those of `lookup`.
    pub fn rely<I: Iterator<Item = PackId>>(
        &self,
        change: u64,
        lookup: impl FnOnce(&dyn Fn(PackId) -> bool) -> Result<I>,
    ) -> Result<()> {
        let mut guard = self.shared.reliance.lock().expect("no panic while held");
        let Reliance { usable, own, relied, newest_change, .. } = &mut *guard;
        *newest_change = change.max(*newest_change);
        let mut last = None;
        for pack in lookup(&|pack| usable.contains(&pack) || own.contains(&pack))? {
            // Neighbours lie in the same pack nearly always.
            if last != Some(pack) {
                relied.insert(pack, *newest_change);
                last = Some(pack);
            }
        }
        Ok(())
    }

    /// The generation that it has acknowledged.
    pub fn generation(&self) -> u64 {
        self.shared.reliance.lock().expect("no panic while held").generation
    }

    /// Records a pack that this session sealed: its chunks count, and anything looked up so far may
    /// lie in it.
    pub fn own_pack(&self, pack: PackId) {
        let mut reliance = self.shared.reliance.lock().expect("no panic while held");
        let newest = reliance.newest_change;
        reliance.own.insert(pack);
        reliance.relied.insert(pack, newest);
    }

    /// Returns the state from which a new writer goes on: the newest change that anything was
    /// looked up for, and the packs that are sealed and not committed. A writer that failed leaves
    /// such packs behind. Hits in them count, so the next writer's first commit makes them live.
    ///
    /// # Errors
    /// When the outcome of a commit in doubt, and so of its packs, cannot be found out.
    pub fn resume(&self) -> Result<(u64, Vec<PackId>)> {
        let _turn = self.shared.turn.lock().expect("no panic while held");
        self.shared.settle()?;
        let reliance = self.shared.reliance.lock().expect("no panic while held");
        let mut own: Vec<PackId> = reliance.own.iter().copied().collect();
        own.sort_unstable();
        Ok((reliance.newest_change, own))
    }

    /// Rule 7: runs `commit`, after which `packs` are live and the changes up to number `done` rely
    /// on nothing any more.
    ///
    /// # Errors
    /// Those of `commit`; also when the outcome of an earlier commit cannot be found out.
    pub fn commit<T>(&self, done: u64, packs: &[PackId], commit: impl FnOnce() -> Result<T>) -> Result<T> {
        let _turn = self.shared.turn.lock().expect("no panic while held");
        self.shared.settle()?;
        let committed = commit().inspect_err(|error| {
            self.note(error);
            if let Some(unanswered) = error.unanswered() {
                let open = OpenCommit { unanswered, done, packs: packs.to_vec(), has_happened: None };
                self.shared.commits().push(open);
            }
        })?;
        self.shared.committed(done, packs);
        Ok(committed)
    }

    /// True if a [`Session::commit`] that failed without an answer has happened all the same.
    ///
    /// # Errors
    /// When that cannot be found out now.
    pub fn has_happened(&self, unanswered: Unanswered) -> Result<bool> {
        let _turn = self.shared.turn.lock().expect("no panic while held");
        self.shared.settle()?;
        let commits = self.shared.commits();
        Ok(commits.iter().any(|open| open.unanswered == unanswered && open.has_happened == Some(true)))
    }

    /// True if `unanswered` is a [`Session::commit`] of this session that failed without an answer,
    /// whatever its outcome.
    pub fn is_unanswered(&self, unanswered: Unanswered) -> bool {
        self.shared.commits().iter().any(|open| open.unanswered == unanswered)
    }

    /// Learns which packs there are now, also those of other sessions: hits in them count from here
    /// on. The caller refreshes the index. If the database can tell what has changed, only that is
    /// read.
    ///
    /// # Errors
    /// Those of the database.
    pub fn follow(&self) -> Result<()> {
        let _turn = self.shared.turn.lock().expect("no panic while held");
        if self.shared.join_changed()? { Ok(()) } else { self.shared.take_generation() }
    }

    /// Pins something; see [`Snapshots::pin`](crate::meta::Snapshots::pin).
    ///
    /// # Errors
    /// Those of the database.
    pub fn pin(&self, target: &PinTarget) -> Result<(u64, Option<Root>)> {
        self.shared.meta.pin(self.shared.id, target)
    }
}

impl Reliance {
    fn new(generation: Generation) -> Self {
        Self {
            generation: generation.number,
            usable: generation.live.into_iter().collect(),
            own: HashSet::new(),
            relied: HashMap::new(),
            newest_change: 0,
            is_unsure: false,
            mark: generation.mark,
        }
    }
}

impl Shared {
    fn commits(&self) -> MutexGuard<'_, Vec<OpenCommit>> {
        self.commits.lock().expect("no panic while held")
    }

    /// With `turn` held: packs are live, and the changes up to number `done` rely on nothing any
    /// more.
    fn committed(&self, done: u64, packs: &[PackId]) {
        let mut reliance = self.reliance.lock().expect("no panic while held");
        for pack in packs {
            reliance.own.remove(pack);
            reliance.usable.insert(*pack);
        }
        reliance.relied.retain(|_, change| *change > done);
    }

    /// With `turn` held: finds out the outcome of a commit in doubt, if there is one.
    fn settle(&self) -> Result<()> {
        let is_open = |open: &&mut OpenCommit| open.has_happened.is_none();
        let Some(unanswered) = self.commits().last_mut().filter(is_open).map(|open| open.unanswered) else {
            return Ok(());
        };
        // This waits as long as one waits for a server. A failure is that of the new commit, which
        // was not tried.
        let has_happened = self.meta.has_happened(unanswered).map_err(|error| error.again())?;
        let mut commits = self.commits();
        let open = commits.last_mut().expect("who has the turn adds them, and nobody takes them away");
        open.has_happened = Some(has_happened);
        if has_happened {
            self.committed(open.done, &open.packs);
        }
        Ok(())
    }

    fn renew_once(&self) -> Result<u64> {
        // A lease counts from the moment that the server was asked, or later.
        let asked = (Instant::now(), clock::now_nanos());
        let number = self.meta.renew(self.id, LEASE_SECS)?;
        *self.heard.lock().expect("no panic while held") = asked;
        Ok(number)
    }

    /// See [`Session::note`]. Says whether the session is over.
    fn note(&self, error: &Error) -> bool {
        if error.kind() == ErrorKind::Fenced {
            self.over.get_or_init(|| (ErrorKind::Fenced, LOST.to_owned()));
        } else if let Err(gone) = self.meta.still_there() {
            self.over.get_or_init(|| (gone.kind(), gone.to_string()));
        }
        self.over.get().is_some()
    }

    fn renew(&self) {
        let mut stop = self.stop.lock().expect("no panic while held");
        while !*stop {
            stop = self.stopped.wait_timeout(stop, RENEW_EVERY).expect("no panic while held").0;
            if *stop {
                return;
            }
            drop(stop);
            if let Some((packs, _)) = self.packs.get() {
                packs.tend();
            }
            match self.renew_once().and_then(|number| self.acknowledge(number)) {
                Err(error) if self.note(&error) => break,
                // A busy database is asked again in a second; the lease is long enough for many of
                // them.
                Ok(()) | Err(_) => {}
            }
            stop = self.stop.lock().expect("no panic while held");
        }
        let is_fenced = self.over.get().is_some_and(|(kind, _)| *kind == ErrorKind::Fenced);
        if let Some(then) = self.fenced.get().filter(|_| is_fenced) {
            then();
        }
    }

    /// Rule 8. A reader relies on nothing, and has nothing to acknowledge (rule 12).
    fn acknowledge(&self, number: u64) -> Result<()> {
        if self.kind == SessionKind::Reader {
            return Ok(());
        }
        let _turn = self.turn.lock().expect("no panic while held");
        self.settle()?;
        let is_known = {
            let reliance = self.reliance.lock().expect("no panic while held");
            number <= reliance.generation && !reliance.is_unsure
        };
        if is_known { Ok(()) } else { self.take_generation() }
    }

    /// Rule 9, with `turn` held: packs that have become live join the usable set, if they were read
    /// under the acknowledged generation. Returns false if that was not all that has changed.
    fn join_changed(&self) -> Result<bool> {
        let known = self.reliance.lock().expect("no panic while held").mark;
        let Some(mark) = known else { return Ok(false) };
        let Some(changes) = self.meta.changed_packs(mark)? else { return Ok(false) };
        let mut reliance = self.reliance.lock().expect("no panic while held");
        if reliance.is_unsure || changes.generation != reliance.generation {
            return Ok(false);
        }
        let live = changes.rows.iter().filter(|row| row.state == PackState::Live);
        reliance.usable.extend(live.map(|row| row.id));
        reliance.mark = Some(changes.mark);
        Ok(true)
    }

    /// Rule 8, with `turn` held.
    fn take_generation(&self) -> Result<()> {
        let mut reliance = self.reliance.lock().expect("no panic while held");
        let relied: Vec<PackId> = reliance.relied.keys().copied().collect();
        let generation = self.meta.acknowledge(self.id, &relied).inspect_err(|_| {
            // The acknowledgement may have happened all the same. Then the collector goes on, and
            // disregards anything found in deletion candidates from here on. What was relied on
            // before was already reported, and is safe either way.
            reliance.usable.clear();
            reliance.is_unsure = true;
        })?;
        reliance.is_unsure = false;
        reliance.generation = generation.number;
        reliance.usable = generation.live.into_iter().collect();
        reliance.mark = generation.mark;
        Ok(())
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        *self.shared.stop.lock().expect("no panic while held") = true;
        self.shared.stopped.notify_all();
        // The callback for a fenced session may be what drops it, on the renewing thread.
        if let Some(renewer) =
            self.renewer.take().filter(|renewer| renewer.thread().id() != thread::current().id())
        {
            let _ = renewer.join();
        }
        // A failure costs a link between two blocks.
        let _ = self.shared.packs.get().map(|(_, links)| links.leave(&*self.shared.meta));
        // A failure leaves a row whose lock can be taken, so the file must stay: the next collector
        // fences the session by it.
        let closed = self.shared.meta.close_session(self.shared.id);
        if let (Ok(()), Some(lock)) = (closed, &self.lock) {
            lock.remove();
        }
    }
}
