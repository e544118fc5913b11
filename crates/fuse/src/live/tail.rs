//! Tailed files of a mount that owns its store ([`crate::tail`]): how tailing begins, and what
//! happens when they are closed.
//!
//! **Order.** The job exists before `create` is answered, so a job knows every file that is tailed.
//! A byte counts as written only when it is in the log, so the end of this process takes back
//! nothing that was handed out. When the last writer has gone, nothing more is handed out. The
//! closer's thread stores the file. In one transaction the content becomes the job's input and, if
//! the prefix was invalidated, all attempts so far become void. Only then are readers told that
//! the file is closed. A reader asks the database for the verdict, and reads the rest from the
//! stored content. From storing to that transaction the closer has the flusher's turn, so no other
//! content takes the place of this one. If this process ends at any earlier moment, the job's input
//! stays open. The job's runner finds that the mount has gone, and takes the content that the log's
//! replay has given the file (`outrigger_active::written`).
//!
//! **An overwritten file** (opened with `O_TRUNC`, or cut to nothing while it is open for writing)
//! is tailed from then on like a new file. Its job exists before the old content goes.
//!
//! **Unpublished files** (1W→1W) have a name only in [`Tree::add_unpublished`]: this mount finds them by it
//! and does not list them. The log and the database know no name, so a crash leaves nothing. Their
//! stored content is held as an orphan's is, until their job holds it.
//!
//! The registry has a handle on each file, so that it is not deleted. Its lock is taken before a
//! node's, and never together with the gate or the tree.
//!
//! [`Tree::add_unpublished`]: super::tree::Tree::add_unpublished

use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::Duration;

use outrigger_store::meta::jobs::{JobId, JobState};
use outrigger_store::{Context as _, Result};
use rustix::io::Errno;

use super::LiveVolume;
use super::core::Core;
use super::flusher::Select;
use super::node::{Node, State};
use crate::tail::{
    ABORT, Again, End, Input, Open, Prefix, StillWaits, TailRules, Tailed, Versioned, Wanted, Write,
};

impl Versioned for Node {
    fn number(&self) -> u64 {
        self.number
    }

    fn look<T>(&self, look: impl FnOnce(Option<&Open>, u64) -> T) -> T {
        let state = self.read();
        look(state.open.as_deref(), state.file.map.len())
    }

    fn change<T>(&self, change: impl FnOnce(&mut Option<Box<Open>>) -> T) -> T {
        change(&mut self.write().open)
    }
}

impl LiveVolume {
    /// Has files tailed from now on, as `rules` says; once.
    ///
    /// # Errors
    /// When there are too many threads, or what is wanted cannot be found out.
    pub fn set_tail_rules(&self, rules: Arc<dyn TailRules>) -> Result<()> {
        let core = Arc::clone(&self.core);
        self.core.tailing.start(rules, move || {
            core.tailing.run(|node| core.close_open(node), |done| core.report(done));
        })
    }

    /// Looks again which files are to be tailed, and whether somebody wants to know who reads.
    ///
    /// # Errors
    /// When that cannot be found out.
    pub fn refresh_tail_rules(&self) -> Result<()> {
        self.core.opens.refresh()?;
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
        self.core.tailing.input(job, number)
    }

    /// The next bytes of a file that is being written, from byte `from` on; waits for them as long
    /// as `wait`.
    ///
    /// # Errors
    /// When they cannot be read.
    pub fn tail(&self, inode: u64, from: u64, wait: Duration) -> Result<Tailed> {
        let core = &self.core;
        core.tailing.tail(inode, from, (None, wait), |node, range, out| {
            core.read_file(node, range.start, (range.end - range.start) as usize, out)
        })
    }

    /// Ends the closer's thread, and closes what is still open: there are no writers any more.
    pub(super) fn end_tailing(&self) -> Result<()> {
        self.stop_closer();
        for node in self.core.tailing.left() {
            self.core.writers_left(&mut node.write());
            self.core.close_open(&node)?;
        }
        Ok(())
    }

    /// Ends the closer's thread.
    pub(super) fn stop_closer(&self) {
        self.core.tailing.stop();
    }
}

impl Core {
    /// The rules' wish for a file that is about to be made.
    pub fn wanted(&self, parent: u64, name: &[u8]) -> crate::fs::Result<Option<Box<dyn Wanted>>> {
        let Some(rules) = self.tailing.wanting() else { return Ok(None) };
        let path = self.world.fail(self.path_of(parent))?;
        let Some(mut path) = path else { return Ok(None) };
        path.push(name.to_vec());
        Ok(rules.wanted(&path))
    }

    /// The rules' wish for an existing file that is about to lose its content to be written anew,
    /// and the file's place. If its last writer has just closed a version of it, that is stored
    /// first.
    pub fn wanted_again(&self, node: &Node) -> crate::fs::Result<Option<Again<'_>>> {
        if !self.tailing.is_any() {
            return Ok(None);
        }
        let alone = self.tailing.alone(node.number)?;
        if self.tailing.wait_for_close(node)? {
            // Its readers begin anew.
            return Ok(None);
        }
        let Some(place) = self.world.fail(self.place_of_file(node))? else { return Ok(None) };
        let wanted = self.wanted(place.0, &place.1)?;
        Ok(wanted.map(|wanted| Again { place, wanted, alone }))
    }

    /// Makes the jobs that tail a file that was just made, or (`again`) is about to lose its
    /// content. The caller holds the file open and has not answered its program yet.
    pub fn begin_tailing(
        &self,
        node: &Arc<Node>,
        place: (u64, Vec<u8>),
        mut wanted: Box<dyn Wanted>,
        again: bool,
    ) -> Result<()> {
        // A file that others see by its name cannot be hidden from them.
        let (is_unpublished, ahead) = (wanted.is_unpublished() && !again, wanted.ahead());
        let made = node.read().attributes.clone();
        wanted.made(&made, &self.attributes_above(place.0)?);
        let jobs = wanted.begin(node.number, self.session.id(), again)?;
        if jobs.is_empty() {
            return Ok(());
        }
        node.write().emptied = false;
        node.opened(false);
        let (prefix, end) = (Prefix::default(), End::Open);
        let (delegate, delegated_until) = (None, None);
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
        self.tailing.begin(node, open);
        // Another program that has an existing file open may have closed it meanwhile.
        if !node.has_writers() {
            self.writers_left(&mut node.write());
        }
        Ok(())
    }

    /// Records a change of a file whose state is locked.
    pub fn tell_readers(&self, state: &mut State, tell: impl FnOnce(&mut Prefix)) {
        self.tailing.tell(state.open.as_deref_mut(), tell);
    }

    /// The last handle that could write to a file was released.
    pub fn writers_left(&self, state: &mut State) {
        let is_given_up = state.attributes.xattrs.iter().any(|(name, _)| name == ABORT);
        self.tailing.writers_left(state.open.as_deref_mut(), is_given_up);
    }

    /// The writer of an unpublished file has removed it.
    pub fn give_up_unpublished(&self, node: &Node) {
        self.tailing.give_up(node.write().open.as_deref_mut());
    }

    /// Waits until a write of so many bytes at `offset` (with `appends`: at the file's end) is not
    /// too far ahead of those who read the file.
    pub fn wait_for_readers(&self, node: &Node, offset: u64, len: usize, appends: bool) {
        let note = |text| self.world.reports.note(text);
        self.tailing.wait_for(node, &Write { offset, len, appends }, self.options.write_threads, note);
    }

    fn report(&self, done: Result<()>) {
        if let Err(error) = done {
            self.world.reports.errno_of_our_own(&error);
        }
    }

    /// Ends an open version whose writers have gone; see the module.
    fn close_open(self: &Arc<Self>, node: &Arc<Node>) -> Result<()> {
        let known = |open: &Open| {
            (open.end, open.jobs.clone(), open.place.clone(), open.is_unpublished, open.was_there)
        };
        let Some((end, jobs, place, is_unpublished, was_there)) = node.read().open.as_deref().map(known)
        else {
            return Ok(());
        };
        let rows = self.world.store.jobs();
        if end == End::Aborted {
            for job in jobs {
                rows.end_job(job, JobState::Failed, "its writer gave the file up")?;
            }
            if was_there {
                // The file existed before, and its next writer has not given up. If even this
                // fails, its content so far stays.
                let _ = self.remove_xattr_of(node.number, ABORT);
            } else if !is_unpublished {
                self.unlink_aborted(node, &place)?;
            }
        } else {
            let _turn = self.control.turn();
            self.batch(Select::One(node.number), None)?;
            let (root, invalidated) = {
                let state = node.read();
                let invalidated = state.open.as_ref().is_none_or(|open| open.prefix.is_invalidated());
                (state.file.stored.root().clone(), invalidated)
            };
            for job in jobs {
                self.tailing.close(rows, job, node.number, (&root, invalidated))?;
            }
        }
        if is_unpublished {
            self.tree_mut().remove_unpublished(place.0, &place.1, node.number);
        }
        self.tailing.end(node);
        node.closed(false);
        if node.read().links == 0 {
            self.delete_if_unused(node, is_unpublished);
        }
        self.tailing.wake();
        Ok(())
    }

    /// Removes a file that its writer has given up, if its name still belongs to it.
    fn unlink_aborted(&self, node: &Node, (parent, name): &(u64, Vec<u8>)) -> Result<()> {
        let stands = self.world.find_in(&self.tree(), *parent, name)?;
        if stands.is_some_and(|seen| seen.number() == node.number) {
            self.unlink_node(*parent, name, false)
                .context(|| format!("removing `{}`, which its writer gave up", name.escape_ascii()))?;
        }
        Ok(())
    }

    /// Gives a file its name in this mount only, if that is not taken.
    pub fn name_unpublished(&self, node: &Arc<Node>, parent: u64, name: &[u8]) -> crate::fs::Result<()> {
        let tree = &mut *self.tree_mut();
        self.world.directory_in(tree, parent)?;
        if self.world.lookup_in(tree, parent, name)?.is_some() {
            return Err(Errno::EXIST);
        }
        tree.add_unpublished(parent, name, node.number);
        Ok(())
    }

    /// True if the name exists already.
    pub fn is_taken(&self, parent: u64, name: &[u8]) -> crate::fs::Result<bool> {
        Ok(self.world.lookup_in(&self.tree(), parent, name)?.is_some())
    }
}
