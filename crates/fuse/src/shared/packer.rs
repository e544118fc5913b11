//! Packing in the background what closes have left in the database, and telling the catalogue which names and inodes have changed (`untold.rs`).
//!
//! One thread, with a session of its own: rows of small files are its session's ([`outrigger_store::loose`]), so that no other mount packs them while it lives, and who closes never
//! waits for a pack. It packs when enough has gathered, when nothing has come for a moment, when the oldest has waited for long, and at the unmount; now and then it also looks for what
//! sessions that are over have left. Names are told at the same times, or when many have gathered: what they are is read first, then what lies in the database is packed, so that the packs have what the block refers to. Where it cannot pack, the rows stay, and it tries again.
//!
//! When another client has ended its session, it opens another one. Until it has, new contents get packs of their own. It takes over the rows
//! that are left of the old one, if nobody else has.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock};
use std::thread::JoinHandle;
use std::time::Duration;

use outrigger_clock::Instant;
use outrigger_store::meta::{SessionId, SessionKind};
use outrigger_store::session::Session;
use outrigger_store::tell::Touched;
use outrigger_store::{Context as _, ErrorKind, Result, Store, loose};

use super::untold::{Committing, ENOUGH as ENOUGH_NAMES, Untold};
use crate::report::Reports;

/// Bytes that are packed at once when they have gathered.
const ENOUGH: u64 = 8 << 20;
/// Nothing has come for so long.
const QUIET: Duration = Duration::from_secs(2);
/// The oldest has waited for so long.
const LONG: Duration = Duration::from_secs(20);
/// Bytes that may wait: beyond them contents get packs of their own, so that the database does not grow when packing is slow.
const WAITING_MAX: u64 = 64 << 20;
/// How often it is looked for what others have left.
const LOOK_EVERY: Duration = Duration::from_secs(60);
/// How long after a failure it is tried again.
const RETRY: Duration = Duration::from_secs(5);
/// And after the session was found to be over.
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
    untold: Untold,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Bytes that wait.
    waiting: u64,
    /// Names and inodes that are to be told, about.
    untold: usize,
    /// Since when something of both waits.
    oldest: Option<Instant>,
    newest: Option<Instant>,
    /// It is not tried before.
    not_before: Option<Instant>,
    /// When it was last looked for what others have left.
    looked: Option<Instant>,
    ending: Option<Ending>,
    /// The session is over.
    is_over: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Ending {
    /// What waits is packed first.
    Pack,
    Leave,
}

impl Packer {
    /// Starts the thread.
    pub fn start(store: &Arc<Store>, threads: usize, reports: &Arc<Reports>) -> Result<Self> {
        let session = store.session(SessionKind::Writer, ROLE)?;
        let (store, reports) = (Arc::clone(store), Arc::clone(reports));
        let untold = Untold::new(&store.meta, session.id());
        let (state, changed) = Default::default();
        let session = RwLock::new(session);
        let shared = Arc::new(Shared { store, session, threads, reports, untold, state, changed });
        let working = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("packer".to_string()).spawn(move || working.work());
        let thread = thread.context(|| "cannot start a thread".to_string())?;
        Ok(Self { shared, thread: Mutex::new(Some(thread)) })
    }

    /// Whether there may be more; else contents get packs of their own.
    pub fn has_room(&self) -> bool {
        let state = self.shared.lock();
        state.waiting <= WAITING_MAX && !state.is_over && state.ending.is_none()
    }

    /// Whose rows new ones are.
    pub fn session(&self) -> SessionId {
        self.shared.session().id()
    }

    /// So many bytes were committed for it.
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
        self.shared.untold.begin()
    }

    /// … and this, when it has been made, or nobody knows.
    pub fn end_commit(&self, committing: Committing<'_>, touched: Touched) {
        if touched.is_empty() {
            return;
        }
        let count = committing.end(touched);
        let mut state = self.shared.lock();
        let now = Instant::now();
        // Else it wakes up early enough by itself: this happens with each name.
        let wakes = state.oldest.is_none() || (count >= ENOUGH_NAMES && state.untold < ENOUGH_NAMES);
        state.untold = count;
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

    /// Packs and tells what waits, and ends. What cannot be packed stays for another one.
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
        self.untold.begin_anew(session.id())?;
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
                    state.untold = self.untold.len();
                    state.oldest = (state.waiting > 0 || state.untold > 0).then_some(now);
                }
                // The mount says so itself, when something is asked of it.
                Err(error) if error.kind() == ErrorKind::Fenced => {
                    self.session().note(&error);
                    self.untold.end();
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
            loose::take_over(&self.store, &session)?;
        }
        let (mut packed, mut is_packed) = (Ok(()), false);
        let told = self.untold.tell(&self.store, &session, || {
            is_packed = true;
            match loose::pack(&self.store, &session, self.threads) {
                // All others are packed, and names have to be told all the same.
                Err(error) if error.kind() == ErrorKind::Damaged => packed = Err(error),
                done => drop(done?),
            }
            Ok(())
        });
        told?;
        if !is_packed {
            loose::pack(&self.store, &session, self.threads)?;
        }
        self.untold.settle()?;
        packed
    }
}

impl State {
    /// How long there is nothing to do, if nothing comes.
    fn pause(&self, now: Instant) -> Duration {
        let look = self.looked.map_or(Duration::ZERO, |at| LOOK_EVERY.saturating_sub(now.duration_since(at)));
        let (Some(oldest), Some(newest)) = (self.oldest, self.newest) else { return look };
        let mut due = (oldest + LONG).min(newest + QUIET);
        if self.waiting >= ENOUGH || self.untold >= ENOUGH_NAMES || self.is_over {
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
