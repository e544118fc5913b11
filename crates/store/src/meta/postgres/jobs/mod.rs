//! Jobs in PostgreSQL, as in SQLite (`sqlite/jobs.rs`); runners on any number of hosts share them.
//!
//! **Locks**, in this order: the session's row for key share (a fence deletes it), the job's row,
//! rows of splits. A transaction that claims splits, or records that an attempt succeeded, has the
//! job's row for share. One that ends the job, publishes it or retries it has it for update, and so
//! sees every split in its final state. Two runners that claim at once take different splits: each
//! skips the rows that the other has locked.
//!
//! A transaction that records that an attempt failed, or gives splits back, has only the rows of
//! these splits: both leave a running split waiting or set aside. Until then the split is running,
//! so the job cannot be published. The end of a job waits for the row, and then finds nothing to
//! void. After the end, that attempt is not the newest any more.
//!
//! A record that comes too late finds its split's row changed, because it looks the split up again
//! once it has the lock.

mod apply;
mod claim;
mod notes;
mod primary;
mod read;

use super::PostgresMeta;
use super::connection::Query;
use super::transaction::{Gate, Tx};
use super::{reclaim, row, sessions};
use crate::error::{ErrorKind, Result};
use crate::meta::SessionId;
use crate::meta::change::row::root_column;
use crate::meta::fault::{Fault, Outcome, refuse};
use crate::meta::jobs::{
    Claimed, Claims, JobId, JobInput, JobRow, JobState, Jobs, MEASURED, NewJob, Note, OPEN_END, OutputRow,
    PRIMARY, Seen, SplitRow, job_holder, noted_split, primary_text, split_note, whole_note,
};
use outrigger_format::Root;
use tokio_postgres::types::Type;

pub(super) use apply::apply;
pub(super) use read::check;

/// Sets a note with what the transaction does later.
pub(super) fn later_note(tx: &mut Tx<'_>, kind: &str, name: &str, value: &str) {
    notes::set(tx, kind, name, Some(value));
}

/// The job's state, locked as `how` says; `NotFound` when there is no such job.
fn state_of(tx: &mut Tx<'_>, job: JobId, how: Lock) -> Outcome<JobState> {
    let sql = match how {
        Lock::Share => "SELECT state FROM @job WHERE id = $1 FOR SHARE",
        Lock::Update => "SELECT state FROM @job WHERE id = $1 FOR UPDATE",
    };
    let answer = tx.one(Query::new(sql).int(job.0 as i64))?;
    let row = answer.first().ok_or_else(|| refuse(ErrorKind::NotFound, format!("there is no job {job}")))?;
    read::job_state(row.try_get(0)?)
}

/// The way in which a job's row is locked.
#[derive(Clone, Copy)]
enum Lock {
    /// Together with other transactions on its splits.
    Share,
    /// Alone.
    Update,
}

fn set_state(tx: &mut Tx<'_>, job: JobId, state: JobState, why: &str) {
    let sql = concat!("UPDATE @job SET state = $2, why = $3, changed = ", sessions::now!(), " WHERE id = $1");
    // A text in PostgreSQL cannot have a zero byte.
    let why = why.replace('\0', " ");
    tx.later(Query::new(sql).int(job.0 as i64).with(state as i32, Type::INT4).text(&why));
}

fn create(tx: &mut Tx<'_>, new: &NewJob) -> Outcome<JobId> {
    if let Some(seen) = &new.seen {
        notes::see(tx, seen)?;
    }
    let sql = concat!(
        "INSERT INTO @job (state, spec, why, created, changed) VALUES (0, $1, '', ",
        sessions::now!(),
        ", ",
        sessions::now!(),
        ") RETURNING id"
    );
    let answer = tx.one(Query::new(sql).text(&new.spec))?;
    let id: i64 = super::counters::row(&answer)?.try_get(0)?;
    let job = JobId(id as u64);
    let (mut numbers, mut sums, mut paths, mut roots) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for (number, input) in new.inputs.iter().enumerate() {
        let root = root_column(&input.root);
        sums.push(row::input_sum(id, number as i64, &input.path, root.as_deref()));
        numbers.push(number as i32);
        paths.push(input.path.clone());
        roots.push(root);
    }
    let held: Vec<Vec<u8>> = roots.iter().flatten().cloned().collect();
    let sql = "INSERT INTO @job_input (job, number, sum, path, root) \
               SELECT $1, * FROM unnest($2::int4[], $3::int4[], $4::bytea[], $5::bytea[])";
    let query = Query::new(sql).int(id).with(numbers, Type::INT4_ARRAY).with(sums, Type::INT4_ARRAY);
    tx.later(query.with(paths, Type::BYTEA_ARRAY).with(roots, Type::BYTEA_ARRAY));
    hold_all(tx, &job_holder(job), held);
    let column =
        |of: fn(&crate::meta::jobs::NewSplit) -> i64| new.splits.iter().map(of).collect::<Vec<i64>>();
    let inputs: Vec<Option<i32>> = new.splits.iter().map(|split| split.input.map(u32::cast_signed)).collect();
    let sql = "INSERT INTO @job_split (job, number, first, after, attempt, tries, session, input, state, why) \
               SELECT $1, n.number - 1, n.first, n.after, 0, 0, 0, n.input, 0, '' \
               FROM unnest($2::int8[], $3::int8[], $4::int4[]) WITH ORDINALITY AS n (first, after, input, number)";
    let query = Query::new(sql).int(id).ints(column(|split| split.from as i64));
    tx.later(query.ints(column(|split| split.to as i64)).with(inputs, Type::INT4_ARRAY));
    Ok(job)
}

/// Adds roots to those that `holder` holds, in one statement.
fn hold_all(tx: &mut Tx<'_>, holder: &str, mut roots: Vec<Vec<u8>>) {
    if roots.is_empty() {
        return;
    }
    // Always in this order, so that two that hold the same roots cannot deadlock.
    roots.sort_unstable();
    roots.dedup();
    let sums: Vec<i32> = roots.iter().map(|root| row::held_sum(holder, root)).collect();
    let sql = "INSERT INTO @held (holder, digest, sum, root) SELECT $1, sha256(r.root), r.sum, r.root \
               FROM unnest($2::int4[], $3::bytea[]) AS r (sum, root) ON CONFLICT DO NOTHING";
    tx.later(Query::new(sql).text(holder).with(sums, Type::INT4_ARRAY).with(roots, Type::BYTEA_ARRAY));
}

fn close_input(tx: &mut Tx<'_>, job: JobId, root: &Root, again: bool) -> Outcome<bool> {
    match state_of(tx, job, Lock::Update) {
        Ok(JobState::Done) => return Ok(false),
        Err(Fault::Store(error)) if error.kind() == ErrorKind::NotFound => return Ok(false),
        other => drop(other?),
    }
    let id = job.0 as i64;
    let sql = "UPDATE @job_split SET after = $2 WHERE job = $1 AND input = 0 AND after = $3 RETURNING number";
    let answer = tx.one(Query::new(sql).int(id).int(root.len() as i64).int(OPEN_END as i64))?;
    if answer.first().is_none() {
        return Ok(false);
    }
    let answer = tx.one(Query::new("SELECT path FROM @job_input WHERE job = $1 AND number = 0").int(id))?;
    let path: Vec<u8> = super::counters::row(&answer)?.try_get(0)?;
    let column = root_column(root);
    let sum = row::input_sum(id, 0, &path, column.as_deref());
    let sql = "UPDATE @job_input SET root = $2, sum = $3 WHERE job = $1 AND number = 0";
    tx.later(Query::new(sql).int(id).with(column.clone(), Type::BYTEA).with(sum, Type::INT4));
    hold_all(tx, &job_holder(job), column.into_iter().collect());
    if again {
        // A runner of one finds its token void.
        let sql = "UPDATE @job_split SET state = 0, attempt = attempt + 1, tries = 0 \
                   WHERE job = $1 AND input = 0 AND state IN (1, 2)";
        tx.later(Query::new(sql).int(id));
    }
    Ok(true)
}

fn close_one_input(
    tx: &mut Tx<'_>,
    job: JobId,
    input: u32,
    root: &Root,
    again: bool,
    end: Option<u64>,
) -> Outcome<bool> {
    match state_of(tx, job, Lock::Update) {
        Ok(JobState::Done) => return Ok(false),
        Err(Fault::Store(error)) if error.kind() == ErrorKind::NotFound => return Ok(false),
        other => drop(other?),
    }
    let id = job.0 as i64;
    let sql = "SELECT number FROM @job_split WHERE job = $1 AND input IS NULL AND after = $2";
    if tx.one(Query::new(sql).int(id).int(OPEN_END as i64))?.first().is_none() {
        return Ok(false);
    }
    let sql = "SELECT path FROM @job_input WHERE job = $1 AND number = $2";
    let answer = tx.one(Query::new(sql).int(id).int(input.into()))?;
    let path: Vec<u8> = super::counters::row(&answer)?.try_get(0)?;
    let column = root_column(root);
    let sum = row::input_sum(id, input.into(), &path, column.as_deref());
    let sql = "UPDATE @job_input SET root = $2, sum = $3 WHERE job = $1 AND number = $4";
    let query = Query::new(sql).int(id).with(column.clone(), Type::BYTEA).with(sum, Type::INT4);
    tx.later(query.int(input.into()));
    hold_all(tx, &job_holder(job), column.into_iter().collect());
    if let Some(end) = end {
        let sql = "UPDATE @job_split SET after = $2 WHERE job = $1 AND input IS NULL";
        tx.later(Query::new(sql).int(id).int(end as i64));
    }
    if again {
        // Its runner finds its token void.
        let sql = "UPDATE @job_split SET state = 0, attempt = attempt + 1, tries = 0 \
                   WHERE job = $1 AND input IS NULL AND state IN (1, 2)";
        tx.later(Query::new(sql).int(id));
    }
    Ok(true)
}

fn end(tx: &mut Tx<'_>, job: JobId, state: JobState, why: &str) -> Outcome<bool> {
    if !matches!(state_of(tx, job, Lock::Update)?, JobState::Waiting | JobState::Running) {
        return Ok(false);
    }
    set_state(tx, job, state, why);
    // A runner of one of its splits finds its token void.
    let sql = "UPDATE @job_split SET state = 0, attempt = attempt + 1 WHERE job = $1 AND state = 1";
    tx.later(Query::new(sql).int(job.0 as i64));
    primary::remove_all(tx, job);
    Ok(true)
}

fn retry(tx: &mut Tx<'_>, job: JobId) -> Outcome<()> {
    if !matches!(state_of(tx, job, Lock::Update)?, JobState::Failed | JobState::Cancelled) {
        let why = format!("job {job} has not failed, nor was it cancelled");
        return Err(refuse(ErrorKind::Invalid, why));
    }
    set_state(tx, job, JobState::Waiting, "");
    let sql = "UPDATE @job_split SET state = 0, tries = 0 WHERE job = $1 AND state <> 2";
    tx.later(Query::new(sql).int(job.0 as i64));
    Ok(())
}

fn forget(tx: &mut Tx<'_>, job: JobId) -> Outcome<()> {
    if matches!(state_of(tx, job, Lock::Update)?, JobState::Waiting | JobState::Running) {
        return Err(refuse(ErrorKind::Busy, format!("job {job} has not ended; cancel it first")));
    }
    reclaim::let_go(tx, &job_holder(job), None);
    for sql in [
        "DELETE FROM @job_output WHERE job = $1",
        "DELETE FROM @job_split WHERE job = $1",
        "DELETE FROM @job_input WHERE job = $1",
        "DELETE FROM @job WHERE id = $1",
    ] {
        tx.later(Query::new(sql).int(job.0 as i64));
    }
    notes::remove_below(tx, MEASURED, &split_note(job, ""));
    Ok(())
}

impl Jobs for PostgresMeta {
    fn create_job(&self, job: &NewJob) -> Result<JobId> {
        self.write("making a job", Gate::Shared, |tx| create(tx, job))
    }

    fn job(&self, job: JobId) -> Result<Option<JobRow>> {
        let query = Query::new(read::JOB).int(job.0 as i64);
        Ok(self.read("reading a job", &query, read::jobs)?.pop())
    }

    fn job_briefly(&self, job: JobId) -> Result<Option<JobRow>> {
        let query = Query::new(read::JOB_BRIEFLY).int(job.0 as i64);
        Ok(self.read("looking at a job", &query, read::jobs)?.pop())
    }

    fn jobs(&self, limit: usize) -> Result<Vec<JobRow>> {
        let query = Query::new(read::NEWEST).int(i64::try_from(limit).unwrap_or(i64::MAX));
        self.read("listing jobs", &query, read::jobs)
    }

    fn open_jobs(&self) -> Result<Vec<JobRow>> {
        self.read("listing open jobs", &Query::new(read::OPEN), read::jobs)
    }

    fn inputs(&self, job: JobId) -> Result<Vec<JobInput>> {
        let query = Query::new(read::INPUTS).int(job.0 as i64);
        self.read("listing a job's inputs", &query, |answer| read::inputs(answer, job))
    }

    fn splits(&self, job: JobId) -> Result<Vec<SplitRow>> {
        self.read("listing a job's splits", &Query::new(read::SPLITS).int(job.0 as i64), read::splits)
    }

    fn split(&self, job: JobId, number: u64) -> Result<Option<SplitRow>> {
        let query = Query::new(read::SPLIT).int(job.0 as i64).int(number as i64);
        Ok(self.read("reading a split", &query, read::splits)?.pop())
    }

    fn made(&self, job: JobId) -> Result<Option<String>> {
        let query = Query::new(notes::BELOW).text(MEASURED).text(&whole_note(job));
        Ok(self.read("reading what a job made", &query, notes::read)?.pop().map(|note| note.value))
    }

    fn measured(&self, job: JobId) -> Result<Vec<(u64, String)>> {
        let query = Query::new(notes::BELOW).text(MEASURED).text(&split_note(job, ""));
        let found = self.read("reading what attempts used", &query, notes::read)?;
        let mut found: Vec<_> =
            found.into_iter().filter_map(|note| Some((noted_split(&note.name)?, note.value))).collect();
        found.sort_unstable();
        Ok(found)
    }

    fn outputs(&self, job: JobId) -> Result<Vec<OutputRow>> {
        let query = Query::new(read::OUTPUTS).int(job.0 as i64);
        self.read("listing a job's outputs", &query, |answer| read::outputs(answer, job))
    }

    fn claim_splits(
        &self,
        session: SessionId,
        job: JobId,
        limit: usize,
        tries: u32,
        only: Option<&[u64]>,
    ) -> Result<Claims> {
        self.write("claiming splits", Gate::Open, |tx| claim::claim(tx, session, job, limit, tries, only))
    }

    fn claim_beside(
        &self,
        session: SessionId,
        job: JobId,
        split: u64,
        beside: u64,
    ) -> Result<Option<Claimed>> {
        self.write("claiming a split beside another runner", Gate::Open, |tx| {
            primary::claim_beside(tx, session, job, split, beside)
        })
    }

    fn is_current(&self, session: SessionId, job: JobId, claimed: &Claimed) -> Result<bool> {
        let query = Query::new(read::CURRENT).int(job.0 as i64).int(claimed.number as i64);
        let query = query.int(claimed.attempt as i64).int(session.0 as i64).text(PRIMARY);
        let query =
            query.text(&split_note(job, claimed.number)).text(&primary_text(claimed.attempt, session));
        self.read("looking whose a split is", &query, |answer| Ok(answer.first().is_some()))
    }

    fn fail_split(&self, job: JobId, claimed: &Claimed, tries: u32, why: &str, log: &[u8]) -> Result<bool> {
        self.write("recording a failed attempt", Gate::Open, |tx| {
            claim::fail(tx, job, claimed, tries, (why, log))
        })
    }

    fn give_back_splits(&self, job: JobId, claimed: &[Claimed]) -> Result<()> {
        self.write("giving splits back", Gate::Open, |tx| claim::give_back(tx, job, claimed))
    }

    fn close_input(&self, job: JobId, root: &Root, again: bool) -> Result<bool> {
        self.write("closing a job's input", Gate::Shared, |tx| close_input(tx, job, root, again))
    }

    fn close_one_input(
        &self,
        job: JobId,
        input: u32,
        root: &Root,
        again: bool,
        end: Option<u64>,
    ) -> Result<bool> {
        self.write("closing a job's input", Gate::Shared, |tx| {
            close_one_input(tx, job, input, root, again, end)
        })
    }

    fn end_job(&self, job: JobId, state: JobState, why: &str) -> Result<bool> {
        self.write("ending a job", Gate::Open, |tx| end(tx, job, state, why))
    }

    fn retry_job(&self, job: JobId) -> Result<()> {
        self.write("retrying a job", Gate::Open, |tx| retry(tx, job))
    }

    fn forget_job(&self, job: JobId) -> Result<()> {
        self.write("forgetting a job", Gate::Shared, |tx| forget(tx, job))
    }

    fn notes(&self, kind: &str) -> Result<Vec<Note>> {
        self.read("reading notes", &Query::new(notes::ALL).text(kind), notes::read)
    }

    fn set_note(&self, kind: &str, name: &str, value: Option<&str>) -> Result<()> {
        self.write("making a note", Gate::Open, |tx| {
            notes::set(tx, kind, name, value);
            Ok(())
        })
    }

    fn add_note(&self, kind: &str, name: &str, value: &str) -> Result<bool> {
        self.write("making a note", Gate::Open, |tx| notes::add(tx, kind, name, value))
    }

    fn change_note(&self, kind: &str, name: &str, was: &str, to: Option<&str>) -> Result<bool> {
        self.write("changing a note", Gate::Open, |tx| notes::change(tx, (kind, name), was, to))
    }

    fn seen(&self, rule: &str) -> Result<std::collections::HashMap<u64, String>> {
        self.read("reading what a rule has seen", &Query::new(notes::SEEN).text(rule), notes::read_seen)
    }

    fn see(&self, seen: &[Seen]) -> Result<()> {
        self.write("recording what a rule has seen", Gate::Open, |tx| {
            notes::see_all(tx, seen);
            Ok(())
        })
    }

    fn forget_seen(&self, rule: &str) -> Result<()> {
        self.write("forgetting what a rule has seen", Gate::Open, |tx| {
            tx.later(Query::new("DELETE FROM @job_seen WHERE rule = $1").text(rule));
            Ok(())
        })
    }

    fn forget_inodes(&self, rule: &str, inodes: &[u64]) -> Result<()> {
        let mut inodes: Vec<i64> = inodes.iter().map(|inode| *inode as i64).collect();
        inodes.sort_unstable();
        self.write("forgetting files that are gone", Gate::Open, |tx| {
            let sql = "DELETE FROM @job_seen WHERE rule = $1 AND inode = ANY ($2)";
            tx.later(Query::new(sql).text(rule).ints(inodes.clone()));
            Ok(())
        })
    }
}
