//! Packing in the background: small files' chunks from the database, and the change outbox
//! (`outbox.rs`), which tells the catalogue of changed names and inodes.
//!
//! One thread with a session of its own. Rows of small files belong to that session
//! ([`outrigger_store::inline`]), so no other mount packs them while it lives, and a close never
//! waits for a pack. The thread packs when enough has gathered, when nothing has come for a moment,
//! when the oldest has waited for long, and at the unmount. Now and then it also looks for
//! leftovers of sessions that are over. It publishes the outbox at the same times, or when many
//! names have gathered. For that it reads the names first and then packs the chunks that lie in the
//! database, so that the packs contain everything the catalogue refers to. If it cannot pack, the
//! rows stay, and it tries again.
//!
//! When another client has ended its session, it opens another one. Until it has, new contents get
//! packs of their own. It takes over the rows of the old session, if nobody else has.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock};
use std::thread::JoinHandle;
use std::time::Duration;

use outrigger_clock::Instant;
use outrigger_store::meta::{SessionId, SessionKind};
use outrigger_store::publish::Touched;
use outrigger_store::session::Session;
use outrigger_store::{Context as _, ErrorKind, Result, Store, inline};

use super::outbox::{Committing, ENOUGH as ENOUGH_NAMES, Outbox};
use crate::report::Reports;

/// Bytes that are packed at once when they have gathered.
const ENOUGH: u64 = 8 << 20;
/// Packs when nothing has come for this long.
const QUIET: Duration = Duration::from_secs(2);
/// Packs when the oldest has waited for this long.
const LONG: Duration = Duration::from_secs(20);
/// Bytes that may wait: beyond them contents get packs of their own, so that the database does not
/// grow when packing is slow.
const WAITING_MAX: u64 = 64 << 20;
/// How often to look for leftovers of other sessions.
const LOOK_EVERY: Duration = Duration::from_secs(60);
/// Pause after a failure.
const RETRY: Duration = Duration::from_secs(5);
/// Pause after the session was found to be over.
const AGAIN: Duration = Duration::from_secs(1);

const ROLE: &str = "packing";

/// See the module.
pub(super) struct Packer {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

struct Shared {
    store: Arc<Store>,
    session: RwLock<Arc<Session>>,
    threads: usize,
    reports: Arc<Reports>,
    outbox: Outbox,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Bytes that wait.
    waiting: u64,
    /// Names and inodes to publish, about.
    outbox: usize,
    /// Since when chunks or names wait.
    oldest: Option<Instant>,
    newest: Option<Instant>,
    /// No try before this time.
    not_before: Option<Instant>,
    /// When it last looked for leftovers of other sessions.
    looked: Option<Instant>,
    ending: Option<Ending>,
    /// The session is over.
    is_over: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Ending {
    /// Pack the waiting chunks first.
    Pack,
    Leave,
}

impl Packer {
    /// Starts the thread.
    pub fn start(store: &Arc<Store>, threads: usize, reports: &Arc<Reports>) -> Result<Self> {
        let session = store.session(SessionKind::Writer, ROLE)?;
        let (store, reports) = (Arc::clone(store), Arc::clone(reports));
        let outbox = Outbox::new(&store.meta, session.id());
        let (state, changed) = Default::default();
        let session = RwLock::new(session);
        let shared = Arc::new(Shared { store, session, threads, reports, outbox, state, changed });
        let working = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("packer".to_string()).spawn(move || working.work());
        let thread = thread.context(|| "cannot start a thread".to_string())?;
        Ok(Self { shared, thread: Mutex::new(Some(thread)) })
    }

    /// False if new contents must get packs of their own.
    pub fn has_room(&self) -> bool {
        let state = self.shared.lock();
        state.waiting <= WAITING_MAX && !state.is_over && state.ending.is_none()
    }

    /// The session that owns new rows.
    pub fn session(&self) -> SessionId {
        self.shared.session().id()
    }

    /// This many bytes were committed for the packer.
    pub fn note(&self, bytes: u64) {
        if bytes == 0 {
            return;
        }
        let mut state = self.shared.lock();
        let now = Instant::now();
        state.waiting += bytes;
        state.oldest.get_or_insert(now);
        state.newest = Some(now);
        drop(state);
        self.shared.changed.notify_all();
    }

    /// To be called before each commit that changes the tree …
    ///
    /// # Errors
    /// Those of the database.
    pub fn begin_commit(&self) -> Result<Committing<'_>> {
        self.shared.outbox.begin()
    }

    /// … and this after the commit, even one in doubt.
    pub fn end_commit(&self, committing: Committing<'_>, touched: Touched) {
        if touched.is_empty() {
            return;
        }
        let count = committing.end(touched);
        let mut state = self.shared.lock();
        let now = Instant::now();
        // Otherwise it wakes up early enough by itself: this happens with each name.
        let wakes = state.oldest.is_none() || (count >= ENOUGH_NAMES && state.outbox < ENOUGH_NAMES);
        state.outbox = count;
        state.oldest.get_or_insert(now);
        state.newest = Some(now);
        drop(state);
        if wakes {
            self.shared.changed.notify_all();
        }
    }

    /// Bytes that wait.
    pub fn waiting(&self) -> u64 {
        self.shared.lock().waiting
    }

    /// Packs the waiting chunks, publishes the outbox, and ends. Chunks that cannot be packed are
    /// left to another packer.
    pub fn finish(&self) {
        self.end(Ending::Pack);
    }

    fn end(&self, ending: Ending) {
        self.shared.lock().ending.get_or_insert(ending);
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.lock().expect("no panic while held").take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Packer {
    fn drop(&mut self) {
        self.end(Ending::Leave);
    }
}

impl Shared {
    fn session(&self) -> Arc<Session> {
        Arc::clone(&self.session.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Opens a session in place of the one that another client has ended.
    fn begin_anew(&self) -> Result<()> {
        let session = self.store.session(SessionKind::Writer, ROLE)?;
        self.outbox.begin_anew(session.id())?;
        let before =
            std::mem::replace(&mut *self.session.write().unwrap_or_else(PoisonError::into_inner), session);
        // Its drop asks the database.
        drop(before);
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic while held")
    }

    fn work(&self) {
        let mut state = self.lock();
        loop {
            let (ending, now) = (state.ending, Instant::now());
            if ending == Some(Ending::Leave) {
                return;
            }
            let looks = state.looked.is_none_or(|at| now.duration_since(at) >= LOOK_EVERY);
            let pause = if looks { Duration::ZERO } else { state.pause(now) };
            if ending.is_none() && !pause.is_zero() {
                state = self.changed.wait_timeout(state, pause).expect("no panic while held").0;
                continue;
            }
            if looks {
                state.looked = Some(now);
            }
            let before = state.waiting;
            drop(state);
            let was_over = self.session().check().is_err();
            let begun = if was_over { self.begin_anew() } else { Ok(()) };
            let done = begun.and_then(|()| self.pack((looks || was_over) && ending.is_none()));
            state = self.lock();
            match done {
                Ok(()) => {
                    state.is_over = false;
                    state.waiting -= before;
                    state.not_before = None;
                    state.outbox = self.outbox.len();
                    state.oldest = (state.waiting > 0 || state.outbox > 0).then_some(now);
                }
                // The mount reports the error itself when it is used.
                Err(error) if error.kind() == ErrorKind::Fenced => {
                    self.session().note(&error);
                    self.outbox.end();
                    state.is_over = true;
                    state.not_before = Some(now + AGAIN);
                    state.oldest.get_or_insert(now);
                    state.newest.get_or_insert(now);
                }
                Err(error) => {
                    self.reports.errno_of_our_own(
                        &error.context("packing small files and names, which are in the database"),
                    );
                    state.not_before = Some(now + RETRY);
                }
            }
            if ending.is_some() {
                return;
            }
        }
    }

    fn pack(&self, looks: bool) -> Result<()> {
        let session = self.session();
        if looks {
            inline::take_over(&self.store, &session)?;
        }
        let (mut packed, mut is_packed) = (Ok(()), false);
        let published = self.outbox.tell(&self.store, &session, || {
            is_packed = true;
            match inline::pack(&self.store, &session, self.threads) {
                // All other chunks are packed, and names must be published all the same.
                Err(error) if error.kind() == ErrorKind::Damaged => packed = Err(error),
                done => drop(done?),
            }
            Ok(())
        });
        published?;
        if !is_packed {
            inline::pack(&self.store, &session, self.threads)?;
        }
        self.outbox.settle()?;
        packed
    }
}

impl State {
    /// How long the thread may sleep if nothing comes.
    fn pause(&self, now: Instant) -> Duration {
        let look = self.looked.map_or(Duration::ZERO, |at| LOOK_EVERY.saturating_sub(now.duration_since(at)));
        let (Some(oldest), Some(newest)) = (self.oldest, self.newest) else { return look };
        let mut due = (oldest + LONG).min(newest + QUIET);
        if self.waiting >= ENOUGH || self.outbox >= ENOUGH_NAMES || self.is_over {
            due = now;
        }
        let due = due.max(self.not_before.unwrap_or(now));
        look.min(due.saturating_duration_since(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_packs_what_is_enough_or_quiet_or_old_and_not_right_after_a_failure() {
        let now = Instant::now() + Duration::from_secs(1000);
        let ago = |secs| now.checked_sub(Duration::from_secs(secs));
        let state = |waiting, oldest, newest| State {
            waiting,
            oldest: ago(oldest),
            newest: ago(newest),
            looked: ago(0),
            ..State::default()
        };
        assert_eq!(
            State { looked: ago(1), ..State::default() }.pause(now),
            LOOK_EVERY - Duration::from_secs(1)
        );
        assert_eq!(State::default().pause(now), Duration::ZERO, "first it looks for what others left");
        assert_eq!(state(1, 1, 0).pause(now), QUIET);
        assert_eq!(state(1, 5, 2).pause(now), Duration::ZERO, "nothing has come for a while");
        assert_eq!(state(1, 20, 0).pause(now), Duration::ZERO, "the first one has waited for long");
        assert_eq!(state(ENOUGH, 1, 0).pause(now), Duration::ZERO, "enough");
        let failed = State { not_before: Some(now + RETRY), ..state(ENOUGH, 30, 30) };
        assert_eq!(failed.pause(now), RETRY);
    }
}
