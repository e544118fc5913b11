//! Jobs: programs that run over stored files, as rows of their own beside the tree.
//!
//! A *job* has inputs and is cut into *splits*. A split is claimed by a session, which makes an *attempt*: its number is the fencing
//! token. What an attempt wrote is recorded by the session's own commits ([`JobChange::Output`], [`JobChange::Finish`]), in the transaction
//! that makes its packs live, and counts only if the split still belongs to that attempt. One more commit makes the whole job's outputs visible
//! ([`JobChange::Publish`]) together with the names that it gives them, or refuses.
//!
//! ```text
//! job    waiting ─► running ─► done                 split   waiting ─► running ─► done
//!           └───────────┴────► failed, cancelled               ▲          │
//!                  ▲                  │                        └──────────┴─────► set aside
//!                  └──── retry ───────┘
//! ```
//!
//! A split may have a second attempt beside the first ([`Jobs::claim_beside`]), when that takes long: both count until one of them has finished, and then the
//! other one does not. The split's row knows both. If the newer one fails, or is given back, the split is its primary's again.
//!
//! An input may still be *open*: a file that somebody is writing. Its split has no end yet ([`OPEN_END`]) and reads the file where it is written; once the file
//! has its content, [`Jobs::close_input`] says so, and from then on the split is like any other.
//!
//! The roots of a job's inputs and of what its attempts wrote are held (see [`Meta::hold`](super::Meta::hold)) by [`job_holder`] until the job
//! has ended for good, so that no collector takes them, whatever becomes of sessions.

use std::collections::HashMap;

use outrigger_format::Root;
use serde::{Deserialize, Serialize};

use super::SessionId;
use super::fault::{Fault, Outcome, refuse};
use super::records::MadeBy;
use crate::error::{ErrorKind, Result};

pub(super) mod rules;

/// Why a split is set aside that took its runners with it.
pub(crate) const GIVEN_UP: &str = "the process that ran it ended, as often as it was tried";

/// The error for a job that there is not.
pub(super) fn no_job(job: JobId) -> Fault {
    refuse(ErrorKind::NotFound, format!("there is no job {job}"))
}

/// Where a split ends whose input is still being written.
pub const OPEN_END: u64 = i64::MAX as u64;

/// A job's number; rises, never used twice.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash, Serialize, Deserialize)]
pub struct JobId(pub u64);

impl std::fmt::Display for JobId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// Who holds the roots of a job.
pub fn job_holder(job: JobId) -> String {
    format!("job:{job}")
}

/// Where a job is in its life.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum JobState {
    /// Nobody has begun.
    Waiting = 0,
    /// Some session has claimed a split of it.
    Running = 1,
    /// Its outputs are visible.
    Done = 2,
    /// It cannot be done; nothing of it is visible. May be retried.
    Failed = 3,
    /// Somebody stopped it; nothing of it is visible. May be retried.
    Cancelled = 4,
}

/// Where a split is in its life.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum SplitState {
    /// To be claimed.
    Waiting = 0,
    /// Claimed; if the session is over, to be claimed again.
    Running = 1,
    /// An attempt has finished it.
    Done = 2,
    /// Given up after as many attempts as are allowed.
    SetAside = 3,
}

fn unknown_state() -> Fault {
    refuse(ErrorKind::Damaged, "jobs: an unknown state")
}

impl JobState {
    /// The state with this number, as rows have it.
    pub(super) fn of(number: i64) -> Outcome<Self> {
        let states = [Self::Waiting, Self::Running, Self::Done, Self::Failed, Self::Cancelled];
        states.into_iter().find(|state| *state as i64 == number).ok_or_else(unknown_state)
    }
}

impl SplitState {
    /// The state with this number, as rows have it.
    pub(super) fn of(number: i64) -> Outcome<Self> {
        let states = [Self::Waiting, Self::Running, Self::Done, Self::SetAside];
        states.into_iter().find(|state| *state as i64 == number).ok_or_else(unknown_state)
    }
}

/// A job to be.
#[derive(Clone, Debug, Default)]
pub struct NewJob {
    /// What to do, in the words of who runs it; the store does not look into it.
    pub spec: String,
    /// What it reads.
    pub inputs: Vec<JobInput>,
    /// How the inputs are cut; their numbers are their places in this list.
    pub splits: Vec<NewSplit>,
    /// What a rule saw that makes this job: both are recorded, or neither is.
    pub seen: Option<Seen>,
}

/// A content that a rule has seen.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Seen {
    /// The rule.
    pub rule: String,
    /// The file.
    pub inode: u64,
    /// What it had seen of the file before: what [`Jobs::seen`] said.
    pub before: Option<String>,
    /// Tells its content from others.
    pub mark: String,
}

/// An input of a job: a file's content at the moment the job was made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct JobInput {
    /// Its path.
    pub path: Vec<u8>,
    /// Its content. The maker vouches that it is rooted until [`Jobs::create_job`] returns.
    pub root: Root,
}

/// A part of an input, or all inputs together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NewSplit {
    /// Which input; `None`: all of them.
    pub input: Option<u32>,
    /// Nominal first byte.
    pub from: u64,
    /// Nominal first byte after; [`OPEN_END`] while nobody knows.
    pub to: u64,
}

impl NewSplit {
    /// Its input is still being written.
    pub fn is_open(&self) -> bool {
        self.to == OPEN_END
    }
}

/// A job as the database knows it.
#[derive(Clone, Debug)]
pub struct JobRow {
    /// Its number.
    pub id: JobId,
    /// Where it is in its life.
    pub state: JobState,
    /// See [`NewJob::spec`].
    pub spec: String,
    /// Why it failed or was cancelled; what it did.
    pub why: String,
    /// When it was made, nanoseconds since 1970.
    pub created: u64,
    /// When its state changed last, nanoseconds since 1970.
    pub changed: u64,
    /// Splits by [`SplitState`].
    pub splits: [u64; 4],
    /// Its maker, if the database has roles.
    pub by: Option<MadeBy>,
}

/// A split as the database knows it.
#[derive(Clone, Debug)]
pub struct SplitRow {
    /// Its number.
    pub number: u64,
    /// What it covers.
    pub range: NewSplit,
    /// Where it is in its life.
    pub state: SplitState,
    /// Attempts so far; the number of the newest one is its fencing token.
    pub attempt: u64,
    /// Who has claimed it.
    pub session: SessionId,
    /// Why the last attempt failed.
    pub why: String,
    /// What the last attempt said on standard error.
    pub log: Vec<u8>,
}

/// What an attempt wrote, privately until the job is published.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OutputRow {
    /// The split.
    pub split: u64,
    /// Which of the job's outputs, or the name of a file below one.
    pub name: Vec<u8>,
    /// Content.
    pub root: Root,
}

/// A split in the hands of a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Claimed {
    /// Its number.
    pub number: u64,
    /// What it covers.
    pub range: NewSplit,
    /// The fencing token.
    pub attempt: u64,
}

/// What [`Jobs::claim_splits`] found.
#[derive(Clone, Debug, Default)]
pub struct Claims {
    /// Now the session's.
    pub claimed: Vec<Claimed>,
    /// In the hands of other sessions that are not over.
    pub elsewhere: u64,
    /// False once the job has ended.
    pub open: bool,
}

/// A change of a job that comes with a [`Commit`](super::Commit).
#[derive(Clone, Debug)]
pub enum JobChange {
    /// A content that an attempt wrote. Ignored if the split is not this attempt's any more.
    Output {
        /// The job.
        job: JobId,
        /// The split.
        split: u64,
        /// The fencing token.
        attempt: u64,
        /// See [`OutputRow::name`].
        name: Vec<u8>,
        /// Content.
        root: Root,
    },
    /// An attempt has succeeded: its outputs, all recorded before, are those of the split. Ignored if the split is not this attempt's any more.
    Finish {
        /// The job.
        job: JobId,
        /// The split.
        split: u64,
        /// The fencing token.
        attempt: u64,
        /// What it said on standard error.
        log: Vec<u8>,
        /// What it used, in the words of who ran it; see [`Jobs::measured`].
        measured: Option<String>,
    },
    /// The job is done, and what the commit's other changes make visible is its result.
    ///
    /// # Errors
    /// `Fenced`, for the whole commit, unless the job is running and has no split that is waiting or running.
    Publish {
        /// The job.
        job: JobId,
        /// What to remember of it.
        why: String,
        /// What it made, in the words of who ran it; see [`Jobs::made`].
        made: Option<String>,
    },
}

/// The jobs of a store. Every method is a transaction of its own.
pub trait Jobs: Send + Sync {
    /// Makes a job, and holds its inputs.
    ///
    /// # Errors
    /// `Exists` when the rule that makes it has seen something else since.
    fn create_job(&self, job: &NewJob) -> Result<JobId>;
    /// The job.
    fn job(&self, job: JobId) -> Result<Option<JobRow>>;
    /// The job with an empty `spec`, which may be long: for who looks often.
    fn job_briefly(&self, job: JobId) -> Result<Option<JobRow>>;
    /// All jobs, newest first, at most `limit`.
    fn jobs(&self, limit: usize) -> Result<Vec<JobRow>>;
    /// Those that wait or run, newest first.
    fn open_jobs(&self) -> Result<Vec<JobRow>>;
    /// Inputs of a job, in order; roots only while they are held.
    fn inputs(&self, job: JobId) -> Result<Vec<JobInput>>;
    /// Splits of a job, in order, without their logs.
    fn splits(&self, job: JobId) -> Result<Vec<SplitRow>>;
    /// A split with its log.
    fn split(&self, job: JobId, number: u64) -> Result<Option<SplitRow>>;
    /// What was noted of the attempts that finished splits, as far as it was, by split ([`JobChange::Finish`]).
    fn measured(&self, job: JobId) -> Result<Vec<(u64, String)>>;
    /// What was noted of a job's result when it was published, if it was.
    fn made(&self, job: JobId) -> Result<Option<String>>;
    /// What the finished splits wrote, by split and name; empty contents too.
    fn outputs(&self, job: JobId) -> Result<Vec<OutputRow>>;
    /// Gives `session` up to `limit` splits: those that wait, and those of sessions that are over. A split of a session that is over which had
    /// `tries` attempts since the last retry is set aside instead. With `only`, none but these.
    ///
    /// # Errors
    /// `Fenced`, `NotFound`.
    fn claim_splits(
        &self,
        session: SessionId,
        job: JobId,
        limit: usize,
        tries: u32,
        only: Option<&[u64]>,
    ) -> Result<Claims>;
    /// Gives `session` a second attempt at a split, beside attempt `beside` of another session that is not over. It does not count as a try. `None`, and nothing changes, when
    /// that is not the one that runs it, there are two already, or the split's input is open.
    ///
    /// # Errors
    /// `Fenced`, `NotFound`.
    fn claim_beside(
        &self,
        session: SessionId,
        job: JobId,
        split: u64,
        beside: u64,
    ) -> Result<Option<Claimed>>;
    /// Whether what this attempt of `session` finishes would count. False once another one was first, or the job has ended.
    fn is_current(&self, session: SessionId, job: JobId, claimed: &Claimed) -> Result<bool>;
    /// An attempt has failed: the split is that of the other one at it that is running, if there is one; else it waits again, or is set aside if it had `tries` attempts. Nothing happens if it is not this attempt's any
    /// more. Returns whether it was set aside.
    fn fail_split(&self, job: JobId, claimed: &Claimed, tries: u32, why: &str, log: &[u8]) -> Result<bool>;
    /// Gives splits back that were claimed and not begun: they count as not tried.
    fn give_back_splits(&self, job: JobId, claimed: &[Claimed]) -> Result<()>;
    /// The first input of a job was open, and has its content now: that is held, and the splits of it end where it does. With `again`, what attempts at them have
    /// read is not what the file became: they are void, and the splits wait, as if they had not been tried. The caller vouches that the content is rooted until
    /// this returns. Returns false, and changes nothing, if the input was not open any more, or the job is done or gone.
    fn close_input(&self, job: JobId, root: &Root, again: bool) -> Result<bool>;
    /// As [`Jobs::close_input`], for one of several inputs of a job whose only split has all of them. That stays open until the last is closed, of which `end` says: the length of all together.
    fn close_one_input(
        &self,
        job: JobId,
        input: u32,
        root: &Root,
        again: bool,
        end: Option<u64>,
    ) -> Result<bool>;
    /// Ends a job that is not done as `Failed` or `Cancelled`. Returns false when it has ended already.
    fn end_job(&self, job: JobId, state: JobState, why: &str) -> Result<bool>;
    /// Has a failed or cancelled job wait again: what is finished stays, what was set aside is tried again.
    ///
    /// # Errors
    /// `Invalid` when it is in another state, or was forgotten.
    fn retry_job(&self, job: JobId) -> Result<()>;
    /// Forgets an ended job: its rows go, and what it held.
    ///
    /// # Errors
    /// `Busy` while it is waiting or running.
    fn forget_job(&self, job: JobId) -> Result<()>;

    /// What a rule has seen: inode → mark.
    fn seen(&self, rule: &str) -> Result<HashMap<u64, String>>;
    /// A rule has seen these, and nothing comes of it. Where it has seen something else than [`Seen::before`] says, that stays.
    fn see(&self, seen: &[Seen]) -> Result<()>;
    /// A rule has seen nothing.
    fn forget_seen(&self, rule: &str) -> Result<()>;
    /// A rule has not seen these files.
    fn forget_inodes(&self, rule: &str, inodes: &[u64]) -> Result<()>;
}
