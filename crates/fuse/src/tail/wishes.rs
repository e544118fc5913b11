//! Which files programs tail: the wishes of rules, and what a mount asks of them.
//!
//! A mount asks when a file is made or is about to be overwritten. Only one thread at a time begins
//! to overwrite a file ([`Alone`]), so that its jobs are made once.

use std::collections::HashSet;
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex};

use outrigger_clock::Instant;
use outrigger_format::Root;
use outrigger_format::catalogue::Attributes;
use outrigger_store::meta::SessionId;
use outrigger_store::meta::jobs::{JobId, Jobs};
use outrigger_store::{Error, ErrorKind, Result};
use rustix::io::Errno;

use super::{Pulse, STANDSTILL, Tailing, Versioned};

/// The source of wishes that programs tail files: the rules.
pub trait TailRules: Send + Sync {
    /// Looks up the present rules.
    ///
    /// # Errors
    /// When that fails; then the earlier rules stay.
    fn refresh(&self) -> Result<()>;
    /// False when no file at all is wanted. Quick.
    fn is_any(&self) -> bool;
    /// The rules' wish for a file that is about to be made at this path.
    fn wanted(&self, path: &[Vec<u8>]) -> Option<Box<dyn Wanted>>;
    /// Wants one file, the next that matches `rule`, as long as `waits` returns true; it is asked
    /// before a job is made. The channel gives the job that reads the file, once.
    ///
    /// # Errors
    /// `Invalid`, `Newer`: the rule is not understood.
    fn expect(&self, rule: &str, waits: StillWaits) -> Result<Receiver<JobId>>;
    /// Gives a job the content of its closed file. `content.1`: the prefix was invalidated.
    ///
    /// # Errors
    /// Those of the database; then it is called again.
    fn close(&self, jobs: &dyn Jobs, job: JobId, inode: u64, content: (&Root, bool)) -> Result<()> {
        let _ = inode;
        jobs.close_input(job, content.0, content.1).map(drop)
    }
    /// Finds one input of a job that has several.
    fn input(&self, job: JobId, number: u32) -> Input {
        let _ = (job, number);
        Input::Unknown
    }
}

/// State of one of a job's several inputs, all of which are tailed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Input {
    /// It was not made yet.
    NotYet,
    /// It is written.
    Inode(u64),
    /// It was closed: the job has its content.
    Closed,
    /// This mount has no such job, or not any more.
    Unknown,
}

/// A wish that programs tail one file.
pub trait Wanted: Send {
    /// True if only the writer may see the file (an unpublished file).
    fn is_unpublished(&self) -> bool;
    /// How many bytes the writer may be ahead of its readers.
    fn ahead(&self) -> Option<u64>;
    /// Called before `begin` with the attributes of file and directories, which say who may read
    /// it.
    fn made(&mut self, _file: &Attributes, _above: &[Attributes]) {}
    /// Makes the jobs that will read the file; none if no rule wants it after all. With `again` it
    /// is overwritten: once this returns, no earlier job's output may take its place any more.
    ///
    /// # Errors
    /// Those of the store: then the file must not be.
    fn begin(self: Box<Self>, inode: u64, mount: SessionId, again: bool) -> Result<Vec<JobId>>;
}

/// Returns false once the file is no longer wanted.
pub type StillWaits = Box<dyn Fn() -> bool + Send + Sync>;

/// A wish to tail an existing file that is about to be emptied and rewritten, and its place.
pub(crate) struct Again<'a> {
    /// Directory and name.
    pub place: (u64, Vec<u8>),
    pub wanted: Box<dyn Wanted>,
    /// Kept until tailing begins.
    pub alone: Alone<'a>,
}

/// While this lives, no other thread of this mount begins to overwrite the file.
pub(crate) struct Alone<'a> {
    beginning: &'a Mutex<HashSet<u64>>,
    moved: &'a Pulse,
    inode: u64,
}

impl Drop for Alone<'_> {
    fn drop(&mut self) {
        self.beginning.lock().expect("no panic while held").remove(&self.inode);
        self.moved.beat();
    }
}

impl<F> Tailing<F> {
    /// True if files may be tailed: then making a file takes as long as making a job does.
    pub fn is_any(&self) -> bool {
        self.rules.get().is_some_and(|rules| rules.is_any())
    }

    /// The source of wishes, if it has any.
    pub fn wanting(&self) -> Option<&dyn TailRules> {
        self.rules.get().map(Arc::as_ref).filter(|rules| rules.is_any())
    }

    /// Looks again which files are to be tailed.
    ///
    /// # Errors
    /// When that cannot be found out.
    pub fn refresh(&self) -> Result<()> {
        self.rules.get().map_or(Ok(()), |rules| rules.refresh())
    }

    /// Wants one file; see [`TailRules::expect`].
    ///
    /// # Errors
    /// `Invalid` when this mount has no rules.
    pub fn expect(&self, rule: &str, waits: StillWaits) -> Result<Receiver<JobId>> {
        let none = || Error::new(ErrorKind::Invalid, "this mount has no programs read what is written");
        self.rules.get().ok_or_else(none)?.expect(rule, waits)
    }

    pub fn input(&self, job: JobId, number: u32) -> Input {
        self.rules.get().map_or(Input::Unknown, |rules| rules.input(job, number))
    }

    /// A file that a job reads was closed; see [`TailRules::close`].
    ///
    /// # Errors
    /// Those of the database.
    pub fn close(&self, jobs: &dyn Jobs, job: JobId, inode: u64, content: (&Root, bool)) -> Result<()> {
        match self.rules.get() {
            Some(rules) => rules.close(jobs, job, inode, content),
            None => jobs.close_input(job, content.0, content.1).map(drop),
        }
    }
}

impl<F: Versioned> Tailing<F> {
    /// Waits until no other thread is about to overwrite this file.
    ///
    /// # Errors
    /// `EBUSY` when that takes too long.
    pub fn alone(&self, inode: u64) -> std::result::Result<Alone<'_>, Errno> {
        let until = Instant::now() + STANDSTILL;
        loop {
            let seen = self.moved.now();
            if self.beginning.lock().expect("no panic while held").insert(inode) {
                return Ok(Alone { beginning: &self.beginning, moved: &self.moved, inode });
            }
            self.wait_until(until, seen)?;
        }
    }
}
