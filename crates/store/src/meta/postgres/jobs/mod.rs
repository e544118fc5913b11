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

mod claim;
mod marks;
mod read;
mod rows;

use super::connection::Query;
use super::sealing::{Private, Subject};
use super::transaction::{Gate, Tx};
use super::{PostgresMeta, row, sessions};
use crate::error::Result;
use crate::meta::SessionId;
use crate::meta::change::row::root_column;
use crate::meta::fault::Outcome;
use crate::meta::jobs::{
    Claimed, Claims, JobId, JobInput, JobRow, JobState, Jobs, NewJob, OutputRow, SplitRow, Splits,
    job_holder, rules,
};
use outrigger_format::Root;
use tokio_postgres::types::Type;

pub(super) use marks::{MARKS, open as open_mark};
pub(super) use read::{JOB_TEXTS, SPLIT_TEXTS, check, made_by, open_job, open_split};
pub(super) use rows::PostgresJobs;

fn create(tx: &mut Tx<'_>, new: &NewJob) -> Outcome<JobId> {
    if let Some(seen) = &new.seen {
        marks::see(tx, seen)?;
    }
    let sql = concat!(
        "INSERT INTO @job (state, spec, why, created, changed) VALUES (0, $1, '', ",
        sessions::now!(),
        ", ",
        sessions::now!(),
        ") RETURNING id"
    );
    let answer = tx.one(Query::new(sql).text(Subject::JobSpec, &new.spec))?;
    let id: i64 = super::counters::row(&answer)?.try_get(0)?;
    let job = JobId(id as u64);
    let (mut numbers, mut sums, mut paths, mut roots) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut held = Vec::new();
    for (number, input) in new.inputs.iter().enumerate() {
        let (root, job) = (root_column(&input.root), id);
        sums.push(row::input_sum(tx.seals(), job, number as i64, &input.path, root.as_deref()));
        numbers.push(number as i32);
        let number = number as i64;
        paths.push(Private::new(Subject::InputPath { job, number }, input.path.clone()));
        held.extend(root.clone());
        roots.push(root.map(|root| Private::new(Subject::InputRoot { job, number }, root)));
    }
    let sql = "INSERT INTO @job_input (job, number, sum, path, root) \
               SELECT $1, * FROM unnest($2::int4[], $3::int4[], $4::bytea[], $5::bytea[])";
    let query = Query::new(sql).int(id).with(numbers, Type::INT4_ARRAY).with(sums, Type::INT4_ARRAY);
    tx.later(query.each_bytes(paths).each_maybe_bytes(roots));
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
    let sums: Vec<i32> = roots.iter().map(|root| row::held_sum(tx.seals(), holder, root)).collect();
    let roots = roots.into_iter().map(|root| Private::new(Subject::held(holder), root)).collect();
    let sql = "INSERT INTO @held (holder, digest, sum, root) SELECT $1, sha256(r.root), r.sum, r.root \
               FROM unnest($2::int4[], $3::bytea[]) AS r (sum, root) ON CONFLICT DO NOTHING";
    tx.later(Query::new(sql).public(holder).with(sums, Type::INT4_ARRAY).each_bytes(roots));
}

impl PostgresMeta {
    /// A change of a job's rows by one of the rules.
    fn rule<T>(
        &self,
        what: &str,
        gate: Gate,
        rule: impl Fn(&mut PostgresJobs<'_, '_>) -> Outcome<T>,
    ) -> Result<T> {
        self.write(what, gate, |tx| rule(&mut PostgresJobs(tx)))
    }
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
        let query = Query::new(read::SPLITS).int(job.0 as i64);
        self.read("listing a job's splits", &query, |answer| read::splits(answer, job))
    }

    fn split(&self, job: JobId, number: u64) -> Result<Option<SplitRow>> {
        let query = Query::new(read::SPLIT).int(job.0 as i64).int(number as i64);
        Ok(self.read("reading a split", &query, |answer| read::splits(answer, job))?.pop())
    }

    fn made(&self, job: JobId) -> Result<Option<String>> {
        let query = Query::new("SELECT made FROM @job WHERE id = $1").int(job.0 as i64);
        self.read("reading what a job made", &query, |answer| read::made(answer, job))
    }

    fn measured(&self, job: JobId) -> Result<Vec<(u64, String)>> {
        let query = Query::new(read::MEASURED).int(job.0 as i64);
        self.read("reading what attempts used", &query, |answer| read::measured(answer, job))
    }

    fn outputs(&self, job: JobId) -> Result<Vec<OutputRow>> {
        let query = Query::new(read::OUTPUTS).int(job.0 as i64);
        self.read("listing a job's outputs", &query, |answer| read::outputs(answer, job))
    }
}

impl Splits for PostgresMeta {
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

    fn claim_speculative(
        &self,
        session: SessionId,
        job: JobId,
        split: u64,
        beside: u64,
    ) -> Result<Option<Claimed>> {
        self.rule("claiming a split beside another runner", Gate::Open, |rows| {
            sessions::require_live(rows.0, session)?;
            rules::claim_speculative(rows, session, job, split, beside)
        })
    }

    fn is_current(&self, session: SessionId, job: JobId, claimed: &Claimed) -> Result<bool> {
        let query = Query::new(read::CURRENT).int(job.0 as i64).int(claimed.number as i64);
        let query = query.int(claimed.attempt as i64).int(session.0 as i64);
        self.read("looking whose a split is", &query, |answer| Ok(answer.first().is_some()))
    }

    fn fail_split(&self, job: JobId, claimed: &Claimed, tries: u32, why: &str, log: &[u8]) -> Result<bool> {
        let fail = |rows: &mut PostgresJobs<'_, '_>| rules::fail(rows, job, claimed, tries, (why, log));
        self.rule("recording a failed attempt", Gate::Open, fail)
    }

    fn give_back_splits(&self, job: JobId, claimed: &[Claimed]) -> Result<()> {
        self.rule("giving splits back", Gate::Open, |rows| rules::give_back(rows, job, claimed))
    }

    fn close_input(&self, job: JobId, root: &Root, again: bool) -> Result<bool> {
        let (of, end) = ((0, Some(0)), Some(root.len()));
        self.rule("closing a job's input", Gate::Shared, |rows| {
            rules::close_input(rows, job, of, root, again, end)
        })
    }

    fn close_one_input(
        &self,
        job: JobId,
        input: u32,
        root: &Root,
        again: bool,
        end: Option<u64>,
    ) -> Result<bool> {
        self.rule("closing a job's input", Gate::Shared, |rows| {
            rules::close_input(rows, job, (input, None), root, again, end)
        })
    }

    fn end_job(&self, job: JobId, state: JobState, why: &str) -> Result<bool> {
        self.rule("ending a job", Gate::Open, |rows| rules::end(rows, job, state, why))
    }

    fn retry_job(&self, job: JobId) -> Result<()> {
        self.rule("retrying a job", Gate::Open, |rows| rules::retry(rows, job))
    }

    fn forget_job(&self, job: JobId) -> Result<()> {
        self.rule("forgetting a job", Gate::Shared, |rows| rules::forget(rows, job))
    }
}
