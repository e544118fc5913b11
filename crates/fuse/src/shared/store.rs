//! From the log to the store: what close and fsync wait for.
//!
//! One thread at a time has the flush lock. It stores what all that wait for the lock want stored,
//! in one batch (`batch.rs`), so that many closes share one transaction. If that fails, each
//! waiting thread stores its own file alone, if it still has to. If another host changed the file,
//! the thread reads it again and lays its bytes over the new content, until that succeeds.
//! Deduplication finds again what was packed.
//!
//! A batch in doubt is resolved before anything else is stored (`in_doubt.rs`). A closed file that
//! cannot be stored stays open here, and is tried again with later batches.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use outrigger_clock::Instant;
use outrigger_store::policy::Policies;
use outrigger_store::staging::Due;
use outrigger_store::{Error, ErrorKind, Result};

use super::batch::Counters;
use super::core::{Core, TRIES};
use super::file::{File, State};
use super::in_doubt::InDoubt;

/// How long other hosts' new policies and packs (whose chunks are stored again) may stay unknown.
const FOLLOW_EVERY: Duration = Duration::from_secs(1);
/// Pause before storing again what could not be stored at its close.
const RETRY_EVERY: Duration = Duration::from_secs(5);
/// Growth of the pause after each time that other hosts have changed the file again.
const PAUSE: Duration = Duration::from_millis(1);
const PAUSES_MAX: u32 = 50;

/// The flush lock, and the files that wait for it.
#[derive(Default)]
pub(super) struct Turn {
    pub turn: Mutex<Asked>,
    waiting: Mutex<Vec<Arc<File>>>,
    left: Mutex<Left>,
    /// The commit in doubt. Only the holder of the flush lock sets or clears it.
    in_doubt: Mutex<Option<Arc<InDoubt>>>,
}

/// The database's last answers.
#[derive(Default)]
pub(super) struct Asked {
    at: Option<Instant>,
    policies: Option<Arc<Policies>>,
    /// When other hosts' packs were last read about, in their place.
    pub packs_at: Option<Instant>,
}

impl Turn {
    fn waiting(&self) -> MutexGuard<'_, Vec<Arc<File>>> {
        self.waiting.lock().expect("no panic while held")
    }

    pub fn in_doubt(&self) -> MutexGuard<'_, Option<Arc<InDoubt>>> {
        self.in_doubt.lock().expect("no panic while held")
    }
}

/// Files that are closed, and of which something could not be stored. Each has kept a handle.
#[derive(Default)]
struct Left {
    files: Vec<Arc<File>>,
    tried: Option<Instant>,
}

impl Core {
    /// Stores what was written to a file. With `closes`, what is stored is what the file was at a
    /// close.
    ///
    /// # Errors
    /// Those of the store; then it stays staged.
    pub fn store_file(self: &Arc<Self>, file: &Arc<File>, closes: bool) -> Result<()> {
        let mut stored = Ok(());
        if self.is_in_doubt_of(file.number) {
            // Perhaps the outcome in doubt gave it a name.
            drop(self.take_turn()?);
        }
        if !file.is_stored() {
            self.await_delegated(file);
            self.store_deferred();
            stored = self.store_one(file);
        }
        self.store_left();
        stored?;
        if closes {
            let mut state = file.write();
            (state.is_version, state.is_new, state.writer) = (true, false, None);
        }
        Ok(())
    }

    /// Adds these files to the batch of the next holder of the flush lock.
    pub fn will_store(&self, files: &[Arc<File>]) {
        self.turn.waiting().extend(files.iter().cloned());
    }

    /// As [`Core::store_file`], of this file and those that wait for the flush lock.
    pub fn store_one(self: &Arc<Self>, file: &Arc<File>) -> Result<()> {
        self.turn.waiting().push(Arc::clone(file));
        for tries in 0..TRIES {
            // Others store their files during the pause.
            let pauses = tries.saturating_sub(1).min(PAUSES_MAX);
            outrigger_clock::sleep(PAUSE * pauses);
            let mut turn = self.take_turn()?;
            // The row may have changed during the pause. A busy host would win each time.
            if pauses > 0 {
                self.refresh(file)?;
            }
            if file.is_stored() {
                self.turn.waiting().retain(|other| !Arc::ptr_eq(other, file));
                return Ok(());
            }
            // After an error each file goes alone: another file may have caused the error.
            let mut files = if tries == 0 { std::mem::take(&mut *self.turn.waiting()) } else { Vec::new() };
            let mut numbers = HashSet::from([file.number]);
            files.retain(|other| !other.is_stored() && numbers.insert(other.number));
            files.push(Arc::clone(file));
            let before = file.read().row.root.clone();
            let Err(error) = self.batch(&mut turn, &files) else { return Ok(()) };
            drop(turn);
            if error.kind() == ErrorKind::Fenced {
                self.session().note(&error);
                self.lease.live()?;
                continue;
            }
            let is_outside = matches!(error.kind(), ErrorKind::Changed | ErrorKind::NotFound);
            Counters::add(&self.counters.outside, is_outside.into());
            if !is_outside && error.kind() != ErrorKind::Damaged {
                if files.len() > 1 {
                    continue;
                }
                return Err(error);
            }
            // Another host may have stored another content, and a collector taken this one.
            self.refresh(file)?;
            let is_same = !file.is_stored() && file.read().row.root == before;
            if is_same && error.kind() != ErrorKind::Changed && files.len() == 1 {
                return Err(error);
            }
        }
        Err(Error::new(ErrorKind::Busy, "other hosts change this file all the time"))
    }

    /// Stores everything that can be.
    ///
    /// # Errors
    /// The first one; what could not be stored stays staged.
    pub fn store_all(self: &Arc<Self>) -> Result<()> {
        let (delegated, files) = self.dirty_delegated();
        // Agents' files come later: a batch would store all that is written to them meanwhile.
        self.will_store(&files);
        self.store_each(files.iter().chain(&delegated))
    }

    fn store_each<'a>(self: &Arc<Self>, files: impl Iterator<Item = &'a Arc<File>>) -> Result<()> {
        let mut first = Ok(());
        for file in files {
            let stored = self.store_file(file, false);
            // Nothing can be stored without the session.
            let goes_on = stored.as_ref().err().is_none_or(|error| error.kind() != ErrorKind::Fenced);
            first = first.and(stored);
            if !goes_on {
                break;
            }
        }
        first
    }

    /// The files with data to store: first those that agents store.
    fn dirty_delegated(&self) -> (Vec<Arc<File>>, Vec<Arc<File>>) {
        let by_others =
            |file: &Arc<File>| file.read().open.as_ref().is_some_and(|open| open.is_left_to_others());
        self.dirty().into_iter().partition(by_others)
    }

    /// Stores all that it can without waiting for agents: of their files, the parts they stored.
    ///
    /// # Errors
    /// The first one.
    pub fn make_some_room(self: &Arc<Self>) -> Result<()> {
        let (delegated, files) = self.dirty_delegated();
        let due = self.options.order.due(&self.log, u64::MAX);
        let files = match due {
            Some(due) => self.store_due(files, &due),
            None => files,
        };
        self.will_store(&files);
        let stored = self.store_each(files.iter());
        delegated.iter().try_for_each(|file| self.store_delegated(file)).and(stored)?;
        self.keep_some()
    }

    /// Stores what is due of these files. Returns those of which all is to be stored, each for
    /// itself: tailed files, as their readers get them in increments, and files that failed
    /// together.
    fn store_due(self: &Arc<Self>, mut files: Vec<Arc<File>>, due: &Due) -> Vec<Arc<File>> {
        self.store_deferred();
        files.retain(|file| file.read().map.due(due, 1).is_some());
        let (tailed, files): (Vec<_>, Vec<_>) =
            files.into_iter().partition(|file| file.read().open.is_some());
        let stored = self.take_turn().and_then(|mut turn| self.batch_due(&mut turn, &files, due));
        if stored.is_ok() { tailed } else { tailed.into_iter().chain(files).collect() }
    }

    /// Stores everything that can be stored, and anonymous files only if that was not enough.
    ///
    /// # Errors
    /// The first one.
    pub fn make_all_room(self: &Arc<Self>) -> Result<()> {
        self.store_all()?;
        self.keep_some()
    }

    fn keep_some(self: &Arc<Self>) -> Result<()> {
        if self.is_filling() { self.keep_anonymous() } else { Ok(()) }
    }

    /// Closes a handle. If it is the last one of a file that could not be stored, the file stays.
    pub fn close_file(&self, file: &Arc<File>) {
        if !self.open.close(file) {
            let mut left = self.turn.left.lock().expect("no panic while held");
            left.tried = Some(Instant::now());
            left.files.push(Arc::clone(file));
            return;
        }
        self.anonymous_closed(file);
    }

    /// True if something could not be stored, at its close or since.
    pub fn has_left(&self) -> bool {
        !self.turn.left.lock().expect("no panic while held").files.is_empty()
    }

    /// Tries again to store what was left when it was closed, unless that was a moment ago.
    fn store_left(self: &Arc<Self>) {
        let due = |left: &Left| left.tried.is_none_or(|at| at.elapsed() >= RETRY_EVERY);
        let _ = self.fail(self.store_left_if(due));
    }

    fn store_left_if(self: &Arc<Self>, is_due: impl Fn(&Left) -> bool) -> Result<()> {
        let files = {
            let mut left = self.turn.left.lock().expect("no panic while held");
            if left.files.is_empty() || !is_due(&left) {
                return Ok(());
            }
            left.tried = Some(Instant::now());
            std::mem::take(&mut left.files)
        };
        let mut first = Ok(());
        for file in files {
            first = first.and(self.store_one(&file));
            self.close_file(&file);
        }
        first
    }

    /// Stores all closed files, so that they are in the store when this returns.
    ///
    /// # Errors
    /// The first one.
    pub fn store_closed(self: &Arc<Self>) -> Result<()> {
        self.lease.live()?;
        self.store_deferred();
        self.store_left_if(|_| true)
    }

    pub fn refresh(&self, file: &Arc<File>) -> Result<()> {
        let knows_only_here = |state: &State| state.is_unpublished || state.may_be_named;
        if knows_only_here(&file.read()) {
            return Ok(());
        }
        let row = self.store.meta.inode(outrigger_store::meta::At::Now, file.number)?;
        let mut state = file.write();
        match row {
            Some(row) => state.take(&row, &self.budget),
            None => state.lose(),
        }
        Ok(())
    }

    /// Recent policies. The session has followed the collector since they were read.
    pub fn policies(&self, asked: &mut Asked) -> Result<Arc<Policies>> {
        let session = self.session();
        session.check()?;
        if let Some(policies) = &asked.policies
            && asked.at.is_some_and(|at| at.elapsed() < FOLLOW_EVERY)
        {
            return Ok(Arc::clone(policies));
        }
        session.follow().inspect_err(|error| session.note(error))?;
        let policies = Arc::new(Policies::load(&self.store)?.with(self.options.overrides));
        (asked.at, asked.policies) = (Some(Instant::now()), Some(Arc::clone(&policies)));
        Ok(policies)
    }

    /// Reads about other hosts' packs, unless that was done a moment ago.
    pub fn follow_packs(&self, packs_at: &mut Option<Instant>) -> Result<()> {
        if packs_at.is_none_or(|at| at.elapsed() >= FOLLOW_EVERY) {
            self.store.follow_packs()?;
            *packs_at = Some(Instant::now());
        }
        Ok(())
    }
}
