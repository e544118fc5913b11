//! Jobs: programs that run over stored files, as rows of their own beside the tree.
//!
//! A *job* has inputs and is cut into *splits*. A session claims a split and makes an *attempt*,
//! whose number is the fencing token. The session's own commits record the outputs of an attempt
//! ([`JobChange::Output`], [`JobChange::Finish`]), in the transaction that makes its packs live.
//! They count only if the split still belongs to that attempt. One more commit makes the whole
//! job's outputs visible together with their names ([`JobChange::Publish`]), or is refused.
//!
//! ```text
//! job    waiting ─► running ─► done                 split   waiting ─► running ─► done
//!           └───────────┴────► failed, cancelled               ▲          │
//!                  ▲                  │                        └──────────┴─────► set aside
//!                  └──── retry ───────┘
//! ```
//!
//! A split may have a second attempt beside the first ([`Splits::claim_speculative`]), when that
//! takes long: both count until one of them has finished, and then the other one does not. The
//! split's row knows both. If the newer one fails, or is given back, the split is its primary's
//! again.
//!
//! An input may still be *open*: a file that is being written. Its split has no end yet
//! ([`OPEN_END`]) and reads the file where it is written. Once the file has its content, the writer
//! calls [`Splits::close_input`], and from then on the split is like any other.
//!
//! [`job_holder`] holds the roots of a job's inputs and of its attempts' outputs (see
//! [`Holds::hold`](super::Holds::hold)) until the job has ended for good. So no collector takes
//! them, even if sessions end.

use std::collections::HashMap;

use outrigger_format::Root;
use serde::{Deserialize, Serialize};

use super::SessionId;
use super::fault::{Fault, Outcome, refuse};
use super::records::MadeBy;
use crate::error::{ErrorKind, Result};

pub(super) mod rules;

/// Why a split is set aside whose runners all ended.
pub(crate) const GIVEN_UP: &str = "the process that ran it ended, as often as it was tried";

/// The error for a job that there is not.
pub(super) fn no_job(job: JobId) -> Fault {
    refuse(ErrorKind::NotFound, format!("there is no job {job}"))
}

/// The end of a split whose input is still being written.
pub const OPEN_END: u64 = i64::MAX as u64;

/// A job's number; rises, never used twice.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash, Serialize, Deserialize)]
pub struct JobId(pub u64);

impl std::fmt::Display for JobId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// The owner of the holds on a job's roots.
pub fn job_holder(job: JobId) -> String {
    format!("job:{job}")
}

/// The state of a job.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum JobState {
    /// No session has begun it.
    Waiting = 0,
    /// A session has claimed a split of it.
    Running = 1,
    /// Its outputs are visible.
    Done = 2,
    /// It cannot be done; none of its outputs is visible. May be retried.
    Failed = 3,
    /// A user stopped it; none of its outputs is visible. May be retried.
    Cancelled = 4,
}

/// The state of a split.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum SplitState {
    /// To be claimed.
    Waiting = 0,
    /// Claimed; if the session is over, to be claimed again.
    Running = 1,
    /// An attempt has finished it.
    Done = 2,
    /// Given up after the allowed number of attempts.
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
    /// The program, in the runner's format; the store does not look into it.
    pub spec: String,
    /// Its inputs.
    pub inputs: Vec<JobInput>,
    /// How the inputs are cut; their numbers are their places in this list.
    pub splits: Vec<NewSplit>,
    /// The content for which a rule makes this job: both are recorded, or neither is.
    pub seen: Option<Seen>,
}

/// A content that a rule has seen.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Seen {
    /// The rule.
    pub rule: String,
    /// The file.
    pub inode: u64,
    /// The rule's earlier record of the file, from [`RuleMarks::seen`].
    pub before: Option<String>,
    /// Distinguishes its content from others.
    pub mark: String,
}

/// An input of a job: a file's content at the moment the job was made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct JobInput {
    /// Its path.
    pub path: Vec<u8>,
    /// Its content. The maker must make sure that it is rooted until [`Jobs::create_job`] returns.
    pub root: Root,
}

/// A part of an input, or all inputs together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NewSplit {
    /// The input; `None`: all of them.
    pub input: Option<u32>,
    /// Nominal first byte.
    pub from: u64,
    /// Nominal first byte after; [`OPEN_END`] while it is unknown.
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
    /// Its state.
    pub state: JobState,
    /// See [`NewJob::spec`].
    pub spec: String,
    /// Why it failed or was cancelled; or its results.
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
    /// Its range.
    pub range: NewSplit,
    /// Its state.
    pub state: SplitState,
    /// Attempts so far; the number of the newest one is its fencing token.
    pub attempt: u64,
    /// The session that has claimed it.
    pub session: SessionId,
    /// Why the last attempt failed.
    pub why: String,
    /// Standard error of the last attempt.
    pub log: Vec<u8>,
}

/// An output of an attempt, private until the job is published.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OutputRow {
    /// The split.
    pub split: u64,
    /// Which of the job's outputs, or the name of a file below one.
    pub name: Vec<u8>,
    /// Content.
    pub root: Root,
}

/// A split that a session has claimed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Claimed {
    /// Its number.
    pub number: u64,
    /// Its range.
    pub range: NewSplit,
    /// The fencing token.
    pub attempt: u64,
}

/// The result of [`Splits::claim_splits`].
#[derive(Clone, Debug, Default)]
pub struct Claims {
    /// Claimed for the session.
    pub claimed: Vec<Claimed>,
    /// Splits of other sessions that are not over.
    pub elsewhere: u64,
    /// False once the job has ended.
    pub open: bool,
}

/// A change of a job that comes with a [`Commit`](super::Commit).
#[derive(Clone, Debug)]
pub enum JobChange {
    /// An output of an attempt. Ignored if the split no longer belongs to this attempt.
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
    /// An attempt has succeeded: its recorded outputs are those of the split. Ignored if the split
    /// no longer belongs to this attempt.
    Finish {
        /// The job.
        job: JobId,
        /// The split.
        split: u64,
        /// The fencing token.
        attempt: u64,
        /// Its standard error.
        log: Vec<u8>,
        /// Its use of resources, in the runner's format; see [`Jobs::measured`].
        measured: Option<String>,
    },
    /// The job is done, and the commit's other changes make its result visible.
    ///
    /// # Errors
    /// `Fenced`, for the whole commit, unless the job is running and has no split that is waiting
    /// or running.
    Publish {
        /// The job.
        job: JobId,
        /// Its results, for people.
        why: String,
        /// Its results, in the runner's format; see [`Jobs::made`].
        made: Option<String>,
    },
}

/// The jobs of a store. Every method is a transaction of its own.
pub trait Jobs: Splits + RuleMarks {
    /// Makes a job, and holds its inputs.
    ///
    /// # Errors
    /// `Exists` when the rule that makes it has recorded another content since.
    fn create_job(&self, job: &NewJob) -> Result<JobId>;
    /// The job.
    fn job(&self, job: JobId) -> Result<Option<JobRow>>;
    /// The job with an empty `spec`, which may be long: for frequent callers.
    fn job_briefly(&self, job: JobId) -> Result<Option<JobRow>>;
    /// All jobs, newest first, at most `limit`.
    fn jobs(&self, limit: usize) -> Result<Vec<JobRow>>;
    /// Waiting and running jobs, newest first.
    fn open_jobs(&self) -> Result<Vec<JobRow>>;
    /// Inputs of a job, in order; roots only while they are held.
    fn inputs(&self, job: JobId) -> Result<Vec<JobInput>>;
    /// Splits of a job, in order, without their logs.
    fn splits(&self, job: JobId) -> Result<Vec<SplitRow>>;
    /// A split with its log.
    fn split(&self, job: JobId, number: u64) -> Result<Option<SplitRow>>;
    /// The use of resources by the attempts that finished splits, where recorded, by split
    /// ([`JobChange::Finish`]).
    fn measured(&self, job: JobId) -> Result<Vec<(u64, String)>>;
    /// The recorded result of a job, if it was published with one.
    fn made(&self, job: JobId) -> Result<Option<String>>;
    /// The outputs of the finished splits, by split and name; empty contents too.
    fn outputs(&self, job: JobId) -> Result<Vec<OutputRow>>;
}

/// The life of jobs and their splits.
pub trait Splits: Send + Sync {
    /// Gives `session` up to `limit` splits: waiting ones, and those of ended sessions. But if an
    /// ended session's split had `tries` attempts since the last retry, it is set aside. With
    /// `only`, none but these.
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
    /// Gives `session` a speculative attempt at a split, besides attempt `beside` of another
    /// session that is not over. It does not count as a try. `None`, and nothing changes, when that
    /// attempt is not the one that runs it, there are two already, or the split's input is open.
    ///
    /// # Errors
    /// `Fenced`, `NotFound`.
    fn claim_speculative(
        &self,
        session: SessionId,
        job: JobId,
        split: u64,
        beside: u64,
    ) -> Result<Option<Claimed>>;
    /// True if the result of this attempt of `session` would count: not once another attempt has
    /// finished first, or the job has ended.
    fn is_current(&self, session: SessionId, job: JobId, claimed: &Claimed) -> Result<bool>;
    /// Records that an attempt has failed. The split goes to its other running attempt, if there is
    /// one. Otherwise it waits again, or is set aside if it had `tries` attempts. Ignored if the
    /// split no longer belongs to this attempt. Returns whether it was set aside.
    fn fail_split(&self, job: JobId, claimed: &Claimed, tries: u32, why: &str, log: &[u8]) -> Result<bool>;
    /// Gives back splits that were claimed and not begun: these attempts do not count as tries.
    fn give_back_splits(&self, job: JobId, claimed: &[Claimed]) -> Result<()>;
    /// Gives the first input of a job, which was open, its final content: holds that, and ends its
    /// splits there. With `again`, attempts have read something else than the final content: they
    /// are void, and the splits wait, as if they had not been tried. The caller must make sure that
    /// the content is rooted until this returns. Returns false, and changes nothing, if the input
    /// was not open any more, or the job is done or gone.
    fn close_input(&self, job: JobId, root: &Root, again: bool) -> Result<bool>;
    /// Like [`Splits::close_input`], for one of several inputs of a job whose only split has all of
    /// them. The split stays open until the last input is closed, for which `end` is the length of
    /// all together.
    fn close_one_input(
        &self,
        job: JobId,
        input: u32,
        root: &Root,
        again: bool,
        end: Option<u64>,
    ) -> Result<bool>;
    /// Ends a job that is not done as `Failed` or `Cancelled`. Returns false when it has ended
    /// already.
    fn end_job(&self, job: JobId, state: JobState, why: &str) -> Result<bool>;
    /// Lets a failed or cancelled job wait again: finished splits stay, those set aside are tried
    /// again.
    ///
    /// # Errors
    /// `Invalid` when it is in another state, or was forgotten.
    fn retry_job(&self, job: JobId) -> Result<()>;
    /// Forgets an ended job: removes its rows and releases its holds.
    ///
    /// # Errors
    /// `Busy` while it is waiting or running.
    fn forget_job(&self, job: JobId) -> Result<()>;
}

/// What rules have seen of files, by marks of their contents.
pub trait RuleMarks: Send + Sync {
    /// What a rule has seen: inode → mark.
    fn seen(&self, rule: &str) -> Result<HashMap<u64, String>>;
    /// Records that a rule has seen these, without a job. If its record differs from
    /// [`Seen::before`], that stays.
    fn see(&self, seen: &[Seen]) -> Result<()>;
    /// Forgets all records of a rule.
    fn forget_seen(&self, rule: &str) -> Result<()>;
    /// Forgets a rule's records of these files.
    fn forget_inodes(&self, rule: &str, inodes: &[u64]) -> Result<()>;
}
