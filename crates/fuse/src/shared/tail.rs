//! Tailed files of a shared mount ([`crate::tail`]): how tailing begins, and what happens when
//! they are closed.
//!
//! **Readers** are programs of this host: written bytes lie in this mount's log, and no other host
//! has them before they are stored. Agents elsewhere leave such a job alone until its file is
//! closed.
//!
//! **Order.** First comes a registry record in the database ([`super::open_versions`]), then the
//! job, then the answer to `create`. A program is given bytes that were acknowledged but may not be
//! stored yet. If the mount ends, the program's work counts for nothing, and the job fails
//! (`outrigger_active::written`). When the last writer has gone, nothing more is handed out. Its
//! `release` has stored the file, or else the closer's thread does. The closer then has the content
//! held, checks that it is still the file's, and gives it to the job. The job's attempts so far are
//! void if the prefix was invalidated. Only then are readers told that the file is closed. If
//! another host has put another content in its place meanwhile, the job gets that one, and the
//! prefix is invalidated.
//!
//! **An overwritten file** (opened with `O_TRUNC`, or cut to nothing while it is open for writing)
//! is tailed from then on like a new file. Its job exists before the old content goes. The database
//! knows its path; the name that the kernel was told last is looked up first. Several mounts may
//! overwrite one file at the same time: each has an open version, and a registry record, of its
//! own.
//!
//! **Without its session** this mount can store nothing, and programs' reads here count for
//! nothing. Its readers are told that the file is closed, and find that the job's input is not.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::Duration;

use outrigger_format::Root;
use outrigger_format::catalogue::Attributes;
use outrigger_store::meta::jobs::{JobId, JobState};
use outrigger_store::meta::{At, DirEntry, ROOT_INODE, SessionId};
use outrigger_store::{Context as _, Error, ErrorKind, Result};

use super::SharedVolume;
use super::core::{Core, TRIES};
use super::file::File;
use super::open_versions::closed_holder;
use crate::tail::{
    ABORT, Again, End, Hanging, Input, Open, Prefix, StillWaits, TailRules, Tailed, Wanted, Write,
};

impl SharedVolume {
    /// Has files tailed from now on, as `rules` says; once.
    ///
    /// # Errors
    /// When there are too many threads, or what is wanted cannot be found out.
    pub fn set_tail_rules(&self, rules: Arc<dyn TailRules>) -> Result<()> {
        let core = Arc::clone(&self.core);
        self.core.tailing.start(rules, move || {
            core.tailing.run(|file| core.close_open(file), |done| core.report(done));
        })
    }

    /// Looks again which files are to be tailed, and whether somebody wants to know who reads.
    ///
    /// # Errors
    /// When that cannot be found out.
    pub fn refresh_tail_rules(&self) -> Result<()> {
        self.opens.refresh()?;
        self.core.tailing.refresh()
    }

    /// Wants one file; see [`TailRules::expect`].
    ///
    /// # Errors
    /// `Invalid` when this mount has no rules.
    pub fn expect_file(&self, rule: &str, waits: StillWaits) -> Result<Receiver<JobId>> {
        self.core.tailing.expect(rule, waits)
    }

    /// Where one of several inputs of a job is.
    pub fn input_of(&self, job: JobId, number: u32) -> Input {
        // As for a single file, the reader finds that the job's input is open and its mount gone.
        let is_over = self.core.session().check().is_err();
        if is_over { Input::Closed } else { self.core.tailing.input(job, number) }
    }

    /// The next bytes of a file that is being written, from byte `from` on; waits for them as long
    /// as `wait`.
    ///
    /// # Errors
    /// When they cannot be read.
    pub fn tail(&self, inode: u64, from: u64, wait: Duration) -> Result<Tailed> {
        self.tail_as(None, inode, from, wait)
    }

    /// As [`SharedVolume::tail`], for the agent with this session, which may store the file
    /// ([`SharedVolume::carry`]).
    pub(crate) fn tail_as(
        &self,
        reader: Option<SessionId>,
        inode: u64,
        from: u64,
        wait: Duration,
    ) -> Result<Tailed> {
        let core = &self.core;
        if core.session().check().is_err() {
            return Ok(Tailed::Closed);
        }
        core.tailing.tail(inode, from, (reader, wait), |file, range, out| {
            core.read_file(file, range.start, (range.end - range.start) as usize, out)
        })
    }

    /// Ends the closer's thread, and closes what is still open: there are no writers any more.
    pub(super) fn end_tailing(&self) -> Result<()> {
        let core = &self.core;
        core.tailing.stop();
        let mut first = Ok(());
        for file in core.tailing.left() {
            core.writers_left(&file);
            first = first.and(core.close_open(&file));
        }
        first
    }
}

impl Core {
    /// The rules' wish for a file that is about to be made.
    pub fn wanted(&self, parent: u64, name: &[u8]) -> crate::fs::Result<Option<Box<dyn Wanted>>> {
        let Some(rules) = self.tailing.wanting() else { return Ok(None) };
        let path = self.fail(self.places.path_of(self, parent))?;
        let Some(mut path) = path else { return Ok(None) };
        path.push(name.to_vec());
        Ok(rules.wanted(&path))
    }

    /// The rules' wish for an existing file that is about to lose its content to be written anew,
    /// and the file's place. If its last writer here has just closed a version of it, that is
    /// stored first.
    pub fn wanted_again(&self, number: u64) -> crate::fs::Result<Option<Again<'_>>> {
        if !self.tailing.is_any() {
            return Ok(None);
        }
        let alone = self.tailing.alone(number)?;
        if let Some(file) = self.open.get(number)
            && self.tailing.wait_for_close(&file)?
        {
            // Its readers begin anew.
            return Ok(None);
        }
        let place = self.places.place_of_file(self, number, self.parent_of(number));
        let Some(place) = self.fail(place)? else { return Ok(None) };
        let wanted = self.wanted(place.0, &place.1)?;
        Ok(wanted.map(|wanted| Again { place, wanted, alone }))
    }

    /// Makes the jobs that tail a file that was just made, or (`again`) is about to lose its
    /// content. The caller holds the file open and has not answered its program yet. False if no
    /// rule wants it after all.
    pub fn begin_tailing(
        &self,
        file: &Arc<File>,
        place: (u64, Vec<u8>),
        mut wanted: Box<dyn Wanted>,
        again: bool,
    ) -> Result<bool> {
        let session = self.lease.live()?;
        // A file that others see by its name cannot be hidden from them.
        let (is_unpublished, ahead) = (wanted.is_unpublished() && !again, wanted.ahead());
        self.forget_increments(file)?;
        let made = file.read().attributes();
        wanted.made(&made, &self.attributes_above(place.0)?);
        if !is_unpublished {
            self.register_open(file.number, session.id())?;
        }
        let jobs = wanted.begin(file.number, session.id(), again);
        let is_wanted = jobs.as_ref().is_ok_and(|jobs| !jobs.is_empty());
        if !is_wanted && !is_unpublished {
            // If this fails, the next client that finds this mount gone does it.
            let _ = self.fail(self.unregister(file.number, None, false));
        }
        let jobs = jobs?;
        if is_wanted {
            self.note_emptied(file.number, false);
            self.open.again(file);
            let (prefix, end) = (Prefix::default(), End::Open);
            let delegate = None;
            let may_come = ahead.is_some() && !is_unpublished;
            let delegated_until = if may_come { self.waits_for_delegates() } else { None };
            let open = Open {
                prefix,
                end,
                jobs,
                place,
                is_unpublished,
                was_there: again,
                ahead,
                delegate,
                delegated_until,
            };
            let unpublished = is_unpublished.then(|| open.place.clone());
            self.tailing.begin(file, open);
            // From here on, the end of the session finds this record.
            if let Err(error) = session.check() {
                self.drop_open(file, unpublished.as_ref());
                return Err(error);
            }
            if again {
                // Another program that has it open may have closed it meanwhile.
                self.writers_left(file);
            }
        }
        Ok(is_wanted)
    }

    /// The attributes of a directory and of those above it, from the root on.
    fn attributes_above(&self, directory: u64) -> Result<Vec<Attributes>> {
        let (mut found, mut at) = (Vec::new(), Some(directory));
        while let Some(number) = at {
            let gone = || Error::new(ErrorKind::NotFound, format!("directory {number} is gone"));
            found.push(self.store.meta.inode(At::Now, number)?.ok_or_else(gone)?.attributes);
            at = if number == ROOT_INODE { None } else { self.store.meta.parent_of(number)? };
        }
        found.reverse();
        Ok(found)
    }

    /// A handle of a file was released: if no other one can write, its writers have left.
    pub fn writers_left(&self, file: &File) {
        if !file.has_writers() {
            self.tailing.writers_left(file.write().open.as_deref_mut(), false);
        }
    }

    /// A file has another name.
    pub fn renamed_open(&self, number: u64, (parent, name): (u64, &[u8])) {
        if let Some(file) = self.open.get(number)
            && let Some(open) = &mut file.write().open
        {
            open.place = (parent, name.to_vec());
        }
    }

    /// Waits until a write of so many bytes at `offset` (with `appends`: at the file's end) is not
    /// too far ahead of those who read the file.
    pub fn wait_for_readers(&self, file: &File, offset: u64, len: usize, appends: bool) {
        let note = |text| self.reports.note(text);
        self.tailing.wait_for(file, &Write { offset, len, appends }, self.options.request_threads, note);
    }

    fn report(&self, done: Result<()>) {
        if let Err(error) = done {
            self.reports.errno_of_our_own(&error);
        }
    }

    /// Ends an open version whose writers have gone; see the module.
    fn close_open(self: &Arc<Self>, file: &Arc<File>) -> Result<()> {
        let known = |open: &Open| (open.end, open.jobs.clone(), open.place.clone(), open.is_unpublished);
        let Some((end, jobs, place, is_unpublished)) = file.read().open.as_deref().map(known) else {
            return Ok(());
        };
        let unpublished = is_unpublished.then_some(&place);
        if self.session().check().is_err() {
            // The runners of its jobs find that out, and do what is left to do.
            self.drop_open(file, unpublished);
            return Ok(());
        }
        let rows = self.store.jobs();
        if end == End::Aborted || self.is_given_up(file)? {
            for job in jobs {
                rows.end_job(job, JobState::Failed, "its writer gave the file up")?;
            }
            if file.read().open.as_ref().is_some_and(|open| open.was_there) {
                // The file existed before, and its next writer has not given up. If even this
                // fails, its content so far stays.
                let _ = self.remove_xattr_of(file.number, ABORT);
            } else if !is_unpublished {
                self.unlink_aborted(file, &place)?;
            }
        } else if let Some((root, invalidated)) = self.content_at_end(file)? {
            for job in jobs {
                self.tailing.close(rows, job, file.number, (&root, invalidated))?;
            }
        } else {
            for job in jobs {
                rows.end_job(job, JobState::Failed, "another host removed the file while it was written")?;
            }
        }
        let is_kept = file.read().is_kept();
        self.unregister(file.number, unpublished, is_kept)?;
        self.drop_open(file, unpublished);
        Ok(())
    }

    /// Ends all tailing for jobs of a session that is over. The runners of these jobs find that
    /// out, and do what is left to do.
    ///
    /// # Errors
    /// When what was written to a file that nobody else sees cannot be kept aside.
    pub fn end_tailed_of_lost_session(&self) -> Result<()> {
        for file in self.open.all() {
            let place = |open: &Open| open.is_unpublished.then(|| open.place.clone());
            let Some(unpublished) = file.read().open.as_deref().map(place) else { continue };
            if unpublished.is_some() {
                self.lose(&file, &BTreeSet::new())?;
            }
            self.drop_open(&file, unpublished.as_ref());
        }
        Ok(())
    }

    /// A file is tailed no more.
    fn drop_open(&self, file: &Arc<File>, unpublished: Option<&(u64, Vec<u8>)>) {
        if let Some((parent, name)) = unpublished {
            self.unpublished.remove((*parent, name), file.number);
        }
        if self.tailing.end(file) {
            if unpublished.is_some() {
                // Nobody can find it any more.
                file.write().lose();
                self.forget_row(file.number);
            }
            self.close_file(file);
        }
        self.tailing.wake();
    }

    /// True if its writer, or anybody else, has marked it as worthless.
    fn is_given_up(&self, file: &File) -> Result<bool> {
        let state = file.read();
        if state.is_unpublished || state.is_removed {
            return Ok(state.row.attributes.xattrs.iter().any(|(name, _)| name == ABORT));
        }
        drop(state);
        let row = self.store.meta.inode(At::Now, file.number)?;
        Ok(row.is_some_and(|row| row.attributes.xattrs.iter().any(|(name, _)| name == ABORT)))
    }

    /// Stores a file whose writers have gone. Returns its content, protected from the collector,
    /// and whether that differs from what was read of it; `None` if the file is gone.
    fn content_at_end(self: &Arc<Self>, file: &Arc<File>) -> Result<Option<(Root, bool)>> {
        for _ in 0..TRIES {
            self.store_file(file, true)?;
            let (root, invalidated) = {
                let state = file.read();
                if state.is_void() {
                    return Ok(None);
                }
                let invalidated = state.open.as_ref().is_none_or(|open| open.prefix.is_invalidated());
                // From here on only `invalidated` can change, if a program opens it again and
                // writes: in vain, then.
                if state.is_kept() {
                    // It is held since it was stored, or pinned since its name was removed.
                    return Ok(Some((state.row.root.clone(), invalidated)));
                }
                (state.row.root.clone(), invalidated)
            };
            // The content is held before it is seen to be the file's, so it has been rooted all the
            // time.
            let holder = closed_holder(file.number, self.session().id());
            self.store.meta.hold(&holder, std::slice::from_ref(&root))?;
            let now = self.store.meta.inode(At::Now, file.number)?;
            if now.is_some_and(|row| row.root == root) {
                return Ok(Some((root, invalidated)));
            }
            self.refresh(file)?;
        }
        Err(Error::new(ErrorKind::Busy, "other hosts change a file all the time that programs have read"))
    }

    /// Removes a file that its writer has given up, if its name still belongs to it.
    fn unlink_aborted(self: &Arc<Self>, file: &File, (parent, name): &(u64, Vec<u8>)) -> Result<()> {
        let stands = self.store.meta.lookup(At::Now, *parent, name)?;
        if stands.is_some_and(|row| row.number == file.number) {
            self.unlink_node(*parent, name, false)
                .context(|| format!("removing `{}`, which its writer gave up", name.escape_ascii()))?;
        }
        Ok(())
    }
}

impl Hanging for Core {
    fn number_at(&self, parent: u64, name: &[u8]) -> Result<Option<u64>> {
        Ok(self.store.meta.lookup(At::Now, parent, name)?.map(|row| row.number))
    }

    fn parent_of(&self, directory: u64) -> Result<Option<u64>> {
        self.store.meta.parent_of(directory)
    }

    fn name_in(&self, parent: u64, directory: u64) -> Result<Option<Vec<u8>>> {
        const PAGE: usize = 1024;
        let mut after: Option<Vec<u8>> = None;
        loop {
            let page = self.store.meta.read_dir(At::Now, parent, after.as_deref(), PAGE)?;
            let is_last = page.len() < PAGE;
            after = page.last().map(|last| last.name.clone());
            let found = page.into_iter().find(|entry: &DirEntry| entry.inode.number == directory);
            if found.is_some() || is_last {
                return Ok(found.map(|entry| entry.name));
            }
        }
    }
}
