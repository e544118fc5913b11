//! A running client of the store: its lease, what it may rely on, and what it relies on.
//!
//! The rules are those of `docs/decisions/0003-reclaim-protocol.md`, named here by number. A background thread renews the lease
//! once a second and acknowledges new generations at once (rule 8): nothing has to drain first, because what uncommitted
//! files rely on is taken out of the collector's run by the acknowledgement itself.
//!
//! Locks, in the order they are taken: `turn` (held over a commit and its aftermath, and over an acknowledgement), then
//! `reliance` (held over each lookup), or `commits`.
//!
//! **A commit without an answer**, whose database went away while it was made and did not come back in time, may have happened. As long as nobody knows, the
//! session relies on what it relied on before, and commits nothing else: its packs may be live, or not. The thread that renews the lease asks once a second; so does whoever commits next.

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
use crate::lock_files::LockFile;
use crate::meta::{
    Generation, Meta, PackMark, PackState, PinTarget, Role, SessionId, SessionKind, SessionOwner,
};
use crate::snapshot::BeforeSnapshot;

/// How long a session is believed alive without a word, seconds. A process of this host that is killed is noticed at once by its
/// lock file.
pub const LEASE_SECS: u32 = 60;
const LOST: &str = "another client ended this session, as for more than a minute this machine slept, was stopped, or could not reach the store's database: run the command again (mounts go on by themselves)";
const RENEW_EVERY: Duration = Duration::from_secs(1);
/// How long after the last word of the database it is asked before a pack is sealed. Nobody ends a session that was heard of so lately.
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
    /// It is not known what became of the last acknowledgement: until another one has succeeded, no pack of others is usable.
    is_unsure: bool,
    /// Up to where it has seen what packs there are, where the database tells what has changed since.
    mark: Option<PackMark>,
}

/// A commit that got no answer.
struct OpenCommit {
    unanswered: Unanswered,
    /// What follows if it has happened; see [`Session::commit`].
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
    /// Of which at most the last one is not known to have happened, or not.
    commits: Mutex<Vec<OpenCommit>>,
    /// When the database last said that it lives, by both clocks: one of them goes on while the machine sleeps.
    heard: Mutex<(Instant, u64)>,
    /// Why it is over, once it is.
    over: OnceLock<(ErrorKind, String)>,
    /// Where the store's packs lie.
    packs: OnceLock<Arc<dyn Backend>>,
    /// What is done once another client has ended it.
    fenced: OnceLock<Box<dyn Fn() + Send + Sync>>,
    stop: Mutex<bool>,
    stopped: Condvar,
}

/// Has whoever changes the store in another process stand still, for a commit of this session; `None` when there is nobody. Dropping the answer lets them go on.
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

    /// Has writers of this session take `before` in front of their first transaction, as that says. The first call counts.
    pub fn take_before(&self, before: &Arc<BeforeSnapshot>) {
        let _ = self.before.set(Arc::clone(before));
    }

    /// What [`Session::take_before`] was given.
    pub(crate) fn before_snapshot(&self) -> Option<&BeforeSnapshot> {
        self.before.get().map(|before| &**before)
    }

    /// Has others stand still for each of its writers' commits. The first call counts.
    pub(crate) fn set_beside(&self, beside: &Arc<Beside>) {
        let _ = self.beside.set(Arc::clone(beside));
    }

    /// Before a commit: others stand still until the answer is dropped.
    pub(crate) fn stand_still(&self) -> Result<Option<Box<dyn Send>>> {
        self.beside.get().map_or(Ok(None), |hold| hold(self.id()))
    }

    /// Has these packs tended for as long as it is open.
    pub(crate) fn tend(&self, packs: &Arc<dyn Backend>) {
        let _ = self.shared.packs.set(Arc::clone(packs));
    }

    /// Has `then` called once another client has ended this session, by the thread that renews its lease. The first call counts.
    pub fn when_fenced(&self, then: impl Fn() + Send + Sync + 'static) {
        let _ = self.shared.fenced.set(Box::new(then));
    }

    /// Lets its writers take the room that is kept free on the disk: what they store was acknowledged.
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

    /// Makes sure that nobody has ended the session while its host slept or stood still. To be called right before a pack is sealed: of a
    /// session that was ended the row may have been swept, and a pack that is whole and has none looks as if the database were an older one.
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

    /// A transaction of this session has failed: if that was because the session is over, [`Session::check`] says so from now on.
    pub fn note(&self, error: &Error) {
        self.shared.note(error);
    }

    /// Rule 4: runs `lookup`, which is told which packs count and says which ones its answers lie in, and remembers that change
    /// `change` (0: the one being looked up for now) relies on them.
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

    /// A pack of this session was sealed: its chunks count, and whatever was looked up so far may lie in it.
    pub fn own_pack(&self, pack: PackId) {
        let mut reliance = self.shared.reliance.lock().expect("no panic while held");
        let newest = reliance.newest_change;
        reliance.own.insert(pack);
        reliance.relied.insert(pack, newest);
    }

    /// What a writer goes on from: the newest change that anything was looked up for, and the packs that are sealed and not committed. A
    /// writer that failed leaves such packs behind; as hits in them count, the next one's first commit makes them live.
    ///
    /// # Errors
    /// When it cannot be found out what became of a commit without an answer, and so of its packs.
    pub fn resume(&self) -> Result<(u64, Vec<PackId>)> {
        let _turn = self.shared.turn.lock().expect("no panic while held");
        self.shared.settle()?;
        let reliance = self.shared.reliance.lock().expect("no panic while held");
        let mut own: Vec<PackId> = reliance.own.iter().copied().collect();
        own.sort_unstable();
        Ok((reliance.newest_change, own))
    }

    /// Rule 7: runs `commit`, after which `packs` are live and the changes up to number `done` rely on nothing any more.
    ///
    /// # Errors
    /// Those of `commit`; before it, when it cannot be found out what became of an earlier one.
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

    /// Whether a [`Session::commit`] that failed without an answer has happened all the same.
    ///
    /// # Errors
    /// When that cannot be found out now.
    pub fn has_happened(&self, unanswered: Unanswered) -> Result<bool> {
        let _turn = self.shared.turn.lock().expect("no panic while held");
        self.shared.settle()?;
        let commits = self.shared.commits();
        Ok(commits.iter().any(|open| open.unanswered == unanswered && open.has_happened == Some(true)))
    }

    /// Whether it is a [`Session::commit`] that failed without an answer, whatever became of it.
    pub fn is_unanswered(&self, unanswered: Unanswered) -> bool {
        self.shared.commits().iter().any(|open| open.unanswered == unanswered)
    }

    /// Learns which packs there are now, those of other sessions among them: hits in them count from here on. What the index says of them is the
    /// caller's to refresh. Where the database tells what has changed, no more than that is read.
    ///
    /// # Errors
    /// Those of the database.
    pub fn follow(&self) -> Result<()> {
        let _turn = self.shared.turn.lock().expect("no panic while held");
        if self.shared.join_changed()? { Ok(()) } else { self.shared.take_generation() }
    }

    /// Pins something; see [`Meta::pin`].
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

    /// With the turn held: packs are live, and the changes up to number `done` rely on nothing any more.
    fn committed(&self, done: u64, packs: &[PackId]) {
        let mut reliance = self.reliance.lock().expect("no panic while held");
        for pack in packs {
            reliance.own.remove(pack);
            reliance.usable.insert(*pack);
        }
        reliance.relied.retain(|_, change| *change > done);
    }

    /// With the turn held: finds out what became of a commit without an answer, if there is one.
    fn settle(&self) -> Result<()> {
        let is_open = |open: &&mut OpenCommit| open.has_happened.is_none();
        let Some(unanswered) = self.commits().last_mut().filter(is_open).map(|open| open.unanswered) else {
            return Ok(());
        };
        // Which takes as long as a server is waited for. What fails because of it is another commit, which has not been tried.
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
            if let Some(packs) = self.packs.get() {
                packs.tend();
            }
            match self.renew_once().and_then(|number| self.acknowledge(number)) {
                Err(error) if self.note(&error) => break,
                // A busy database is asked again in a second; the lease is long enough for many of them.
                Ok(()) | Err(_) => {}
            }
            stop = self.stop.lock().expect("no panic while held");
        }
        let is_fenced = self.over.get().is_some_and(|(kind, _)| *kind == ErrorKind::Fenced);
        if let Some(then) = self.fenced.get().filter(|_| is_fenced) {
            then();
        }
    }

    /// Rule 8. Who only reads relies on nothing, and has nothing to acknowledge (rule 12).
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

    /// Rule 9, with the turn held: what has become live joins the usable set, if it was read under the generation that is acknowledged. Says whether that was all there is to know.
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

    /// Rule 8, with the turn held.
    fn take_generation(&self) -> Result<()> {
        let mut reliance = self.reliance.lock().expect("no panic while held");
        let relied: Vec<PackId> = reliance.relied.keys().copied().collect();
        let generation = self.meta.acknowledge(self.id, &relied).inspect_err(|_| {
            // It may have happened all the same. Then the collector goes on, without regard to what would be found in condemned packs from here on. What was relied on
            // before has been told, and is safe either way.
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
        // What is done once it is fenced may be what drops it.
        if let Some(renewer) =
            self.renewer.take().filter(|renewer| renewer.thread().id() != thread::current().id())
        {
            let _ = renewer.join();
        }
        // A failure leaves a row whose lock can be taken, so the file must stay: the next collector fences the session by it.
        let closed = self.shared.meta.close_session(self.shared.id);
        if let (Ok(()), Some(lock)) = (closed, &self.lock) {
            lock.remove();
        }
    }
}
