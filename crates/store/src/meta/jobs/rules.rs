//! The rules of jobs, once for both engines. An engine gives its rows as [`JobRows`], within a
//! transaction.
//!
//! A rule asks for the job's row before it asks for rows of splits, and for these in rising order.
//! [`fail`] and [`give_back`] ask for rows of splits alone: see `postgres/jobs/mod.rs`.

use std::collections::{BTreeMap, BTreeSet};

use outrigger_format::Root;

use super::{Claimed, JobChange, JobId, JobState, NewSplit, SplitState, job_holder, no_job};
use crate::error::ErrorKind;
use crate::meta::fault::{Outcome, refuse};
use crate::meta::{Change, SessionId};

/// How a transaction has a job's row.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::meta) enum Lock {
    /// Beside others that work on the job's splits.
    Share,
    /// Alone.
    Update,
}

/// A split that is running.
#[derive(Clone, Copy, Debug)]
pub(in crate::meta) struct Running {
    /// What it covers.
    pub range: NewSplit,
    /// Its newest attempt.
    pub attempt: u64,
    /// Attempts since the last retry, for which `claim_speculative` does not count.
    pub tries: u64,
    /// Who has the newest attempt.
    pub session: SessionId,
    /// The attempt that counts beside the newest one, and who has it.
    pub primary: Option<(u64, SessionId)>,
}

/// What one attempt wrote.
pub(in crate::meta) struct NewOutput<'a> {
    pub split: u64,
    pub attempt: u64,
    pub name: &'a [u8],
    pub root: &'a Root,
}

/// The end of an attempt that succeeded.
pub(in crate::meta) struct Finished<'a> {
    pub split: u64,
    pub attempt: u64,
    pub log: &'a [u8],
    pub measured: Option<&'a str>,
}

/// Rows of jobs in a transaction.
pub(in crate::meta) trait JobRows {
    /// The state of a job, with its row locked; `None` where there is no such job.
    fn state(&mut self, job: JobId, lock: Lock) -> Outcome<Option<JobState>>;
    fn set_state(&mut self, job: JobId, state: JobState, why: &str) -> Outcome<()>;
    /// Records what a job made.
    fn set_made(&mut self, job: JobId, made: &str) -> Outcome<()>;
    /// Those of these splits that are running, with their rows locked.
    fn running(&mut self, job: JobId, splits: &BTreeSet<u64>) -> Outcome<BTreeMap<u64, Running>>;
    /// Writes the newest attempt, its session and the primary one of a split.
    fn set_attempts(&mut self, job: JobId, split: u64, to: &Running) -> Outcome<()>;
    /// Takes a split from all who run it.
    fn stop(&mut self, job: JobId, split: u64, state: SplitState, tries: u64) -> Outcome<()>;
    /// Records why the last attempt at a split failed, and what it said.
    fn set_why(&mut self, job: JobId, split: u64, why: &str, log: &[u8]) -> Outcome<()>;
    fn is_live(&mut self, session: SessionId) -> Outcome<bool>;
    fn is_unfinished(&mut self, job: JobId) -> Outcome<bool>;
    /// Whether splits of this input (`None`: of all inputs together) have no end yet.
    fn is_open(&mut self, job: JobId, input: Option<u32>) -> Outcome<bool>;
    /// Gives the splits of this input (`None`: of all inputs together) their end.
    fn set_end(&mut self, job: JobId, input: Option<u32>, end: u64) -> Outcome<()>;
    fn set_input_root(&mut self, job: JobId, input: u32, root: &Root) -> Outcome<()>;
    /// The splits of this input (`None`: of all inputs together) that are running or done wait, as
    /// if they had not been tried; attempts at them are void.
    fn void_input(&mut self, job: JobId, input: Option<u32>) -> Outcome<()>;
    /// All splits that are running wait, and attempts at them are void.
    fn void_running(&mut self, job: JobId) -> Outcome<()>;
    /// All splits that are not done wait, as if they had not been tried.
    fn wait_again(&mut self, job: JobId) -> Outcome<()>;
    fn add_outputs(&mut self, job: JobId, outputs: &[NewOutput<'_>]) -> Outcome<()>;
    fn finish(&mut self, job: JobId, session: SessionId, finished: &[Finished<'_>]) -> Outcome<()>;
    /// A job that is published needs its outputs and the roots of its inputs no more.
    fn clear(&mut self, job: JobId) -> Outcome<()>;
    fn remove(&mut self, job: JobId) -> Outcome<()>;
    fn hold(&mut self, holder: &str, root: &Root) -> Outcome<()>;
    fn release(&mut self, holder: &str) -> Outcome<()>;
}

fn state(rows: &mut impl JobRows, job: JobId, lock: Lock) -> Outcome<JobState> {
    rows.state(job, lock)?.ok_or_else(|| no_job(job))
}

/// A split, if it is running.
fn running(rows: &mut impl JobRows, job: JobId, split: u64) -> Outcome<Option<Running>> {
    Ok(rows.running(job, &BTreeSet::from([split]))?.remove(&split))
}

fn has_ended(state: JobState) -> bool {
    !matches!(state, JobState::Waiting | JobState::Running)
}

/// See [`Splits::claim_speculative`](super::Splits::claim_speculative); the session is known to be
/// live.
pub(in crate::meta) fn claim_speculative(
    rows: &mut impl JobRows,
    session: SessionId,
    job: JobId,
    split: u64,
    beside: u64,
) -> Outcome<Option<Claimed>> {
    if state(rows, job, Lock::Share)? != JobState::Running {
        return Ok(None);
    }
    let Some(found) = running(rows, job, split)? else { return Ok(None) };
    // A newer attempt may have failed, and left the split to its primary.
    let token = match found.primary {
        Some((primary, of)) if of == found.session => primary,
        Some(_) => return Ok(None),
        None => found.attempt,
    };
    if found.attempt != beside || found.session == session || found.range.is_open() {
        return Ok(None);
    }
    if !rows.is_live(found.session)? {
        return Ok(None);
    }
    let attempt = found.attempt + 1;
    let to = Running { attempt, session, primary: Some((token, found.session)), ..found };
    rows.set_attempts(job, split, &to)?;
    Ok(Some(Claimed { number: split, range: found.range, attempt }))
}

/// An attempt leaves its split. Returns the split if this was the only attempt at it; `None` if
/// another attempt has it, or this one had it no more.
fn leave(rows: &mut impl JobRows, job: JobId, claimed: &Claimed) -> Outcome<Option<Running>> {
    let split = claimed.number;
    let Some(found) = running(rows, job, split)? else { return Ok(None) };
    let is_newest = found.attempt == claimed.attempt;
    let Some((primary, of)) = found.primary else { return Ok(is_newest.then_some(found)) };
    let alone = Running { primary: None, ..found };
    // The newest attempt has left before: the split is the primary's.
    let has_left = of == found.session;
    if is_newest {
        if has_left {
            return Ok(None);
        }
        if !rows.is_live(of)? {
            return Ok(Some(alone));
        }
        // The primary goes on, and its token stays what it was.
        rows.set_attempts(job, split, &Running { session: of, ..found })?;
        return Ok(None);
    }
    if primary != claimed.attempt {
        return Ok(None);
    }
    if has_left || !rows.is_live(found.session)? {
        return Ok(Some(alone));
    }
    // The newest goes on.
    rows.set_attempts(job, split, &alone)?;
    Ok(None)
}

/// See [`Splits::fail_split`](super::Splits::fail_split).
pub(in crate::meta) fn fail(
    rows: &mut impl JobRows,
    job: JobId,
    claimed: &Claimed,
    tries: u32,
    (why, log): (&str, &[u8]),
) -> Outcome<bool> {
    let Some(found) = leave(rows, job, claimed)? else { return Ok(false) };
    let is_aside = found.tries >= u64::from(tries);
    let state = if is_aside { SplitState::SetAside } else { SplitState::Waiting };
    rows.stop(job, claimed.number, state, found.tries)?;
    rows.set_why(job, claimed.number, why, log)?;
    Ok(is_aside)
}

/// See [`Splits::give_back_splits`](super::Splits::give_back_splits).
pub(in crate::meta) fn give_back(rows: &mut impl JobRows, job: JobId, claimed: &[Claimed]) -> Outcome<()> {
    // In one order, so that two that give back cannot wait for each other.
    let mut claimed = claimed.to_vec();
    claimed.sort_unstable_by_key(|split| split.number);
    for split in &claimed {
        if let Some(found) = leave(rows, job, split)? {
            rows.stop(job, split.number, SplitState::Waiting, found.tries.saturating_sub(1))?;
        }
    }
    Ok(())
}

/// An input of a job has its content: input `input`, which is read by the splits of `of` (`None`:
/// those of all inputs together). These end at `end`, if that is known.
pub(in crate::meta) fn close_input(
    rows: &mut impl JobRows,
    job: JobId,
    (input, of): (u32, Option<u32>),
    root: &Root,
    again: bool,
    end: Option<u64>,
) -> Outcome<bool> {
    if matches!(rows.state(job, Lock::Update)?, None | Some(JobState::Done)) || !rows.is_open(job, of)? {
        return Ok(false);
    }
    rows.set_input_root(job, input, root)?;
    rows.hold(&job_holder(job), root)?;
    if let Some(end) = end {
        rows.set_end(job, of, end)?;
    }
    if again {
        rows.void_input(job, of)?;
    }
    Ok(true)
}

/// See [`Splits::end_job`](super::Splits::end_job).
pub(in crate::meta) fn end(
    rows: &mut impl JobRows,
    job: JobId,
    as_what: JobState,
    why: &str,
) -> Outcome<bool> {
    if has_ended(state(rows, job, Lock::Update)?) {
        return Ok(false);
    }
    rows.set_state(job, as_what, why)?;
    rows.void_running(job)?;
    Ok(true)
}

/// See [`Splits::retry_job`](super::Splits::retry_job).
pub(in crate::meta) fn retry(rows: &mut impl JobRows, job: JobId) -> Outcome<()> {
    if !matches!(state(rows, job, Lock::Update)?, JobState::Failed | JobState::Cancelled) {
        let why = format!("job {job} has not failed, nor was it cancelled");
        return Err(refuse(ErrorKind::Invalid, why));
    }
    rows.set_state(job, JobState::Waiting, "")?;
    rows.wait_again(job)
}

/// See [`Splits::forget_job`](super::Splits::forget_job).
pub(in crate::meta) fn forget(rows: &mut impl JobRows, job: JobId) -> Outcome<()> {
    if !has_ended(state(rows, job, Lock::Update)?) {
        return Err(refuse(ErrorKind::Busy, format!("job {job} has not ended; cancel it first")));
    }
    rows.release(&job_holder(job))?;
    rows.remove(job)
}

/// Applies the changes of jobs that came with a commit, in order; the session is known to be live.
pub(in crate::meta) fn apply<'a>(
    rows: &mut impl JobRows,
    session: SessionId,
    changes: impl IntoIterator<Item = &'a Change>,
) -> Outcome<()> {
    let of_jobs = |change: &'a Change| match change {
        Change::Job(change) => Some(change),
        _ => None,
    };
    let changes: Vec<&JobChange> = changes.into_iter().filter_map(of_jobs).collect();
    let mut splits: BTreeMap<JobId, BTreeSet<u64>> = BTreeMap::new();
    for change in &changes {
        if let JobChange::Output { job, split, .. } | JobChange::Finish { job, split, .. } = change {
            splits.entry(*job).or_default().insert(*split);
        }
    }
    for (job, splits) in splits {
        record(rows, session, job, &splits, &changes)?;
    }
    for change in changes {
        if let JobChange::Publish { job, why, made } = change {
            publish(rows, *job, why, made.as_deref())?;
        }
    }
    Ok(())
}

/// Records what attempts at splits of one job have done.
fn record(
    rows: &mut impl JobRows,
    session: SessionId,
    job: JobId,
    splits: &BTreeSet<u64>,
    changes: &[&JobChange],
) -> Outcome<()> {
    let mut current = current(rows, session, job, splits)?;
    // By split, attempt and name: what is written last counts.
    let mut outputs = BTreeMap::new();
    let mut finished = Vec::new();
    for change in changes {
        match change {
            JobChange::Output { job: of, split, attempt, name, root }
                if *of == job && current.get(split) == Some(attempt) =>
            {
                outputs.insert((*split, *attempt, name.as_slice()), root);
            }
            JobChange::Finish { job: of, split, attempt, log, measured }
                if *of == job && current.get(split) == Some(attempt) =>
            {
                // What comes after the end of an attempt is none of its.
                current.remove(split);
                let (split, attempt, measured) = (*split, *attempt, measured.as_deref());
                finished.push(Finished { split, attempt, log, measured });
            }
            _ => {}
        }
    }
    let output = |((split, attempt, name), root)| NewOutput { split, attempt, name, root };
    let outputs: Vec<NewOutput<'_>> = outputs.into_iter().map(output).collect();
    if !outputs.is_empty() {
        rows.add_outputs(job, &outputs)?;
    }
    if finished.is_empty() { Ok(()) } else { rows.finish(job, session, &finished) }
}

/// Which of these splits this session still runs, by which attempt.
fn current(
    rows: &mut impl JobRows,
    session: SessionId,
    job: JobId,
    splits: &BTreeSet<u64>,
) -> Outcome<BTreeMap<u64, u64>> {
    if rows.state(job, Lock::Share)? != Some(JobState::Running) {
        return Ok(BTreeMap::new());
    }
    let attempt = |(number, split): (u64, Running)| match split.primary {
        Some((primary, of)) if of == session => Some((number, primary)),
        _ => (split.session == session).then_some((number, split.attempt)),
    };
    Ok(rows.running(job, splits)?.into_iter().filter_map(attempt).collect())
}

fn publish(rows: &mut impl JobRows, job: JobId, why: &str, made: Option<&str>) -> Outcome<()> {
    // With the job's row locked nobody else changes its splits.
    if state(rows, job, Lock::Update)? != JobState::Running || rows.is_unfinished(job)? {
        let why = format!("job {job} was cancelled, or another process has taken it over");
        return Err(refuse(ErrorKind::Fenced, why));
    }
    rows.set_state(job, JobState::Done, why)?;
    if let Some(made) = made {
        rows.set_made(job, made)?;
    }
    // From now on the tree keeps what is to be kept.
    rows.release(&job_holder(job))?;
    rows.clear(job)
}
