//! Reading jobs, splits and outputs.

use super::super::connection::{Answer, Connection, Query, Row};
use super::super::row::{self, require};
use super::super::sealing::Subject;
use crate::meta::SessionId;
use crate::meta::fault::{Fault, Outcome};
use crate::meta::jobs::{JobId, JobInput, JobRow, JobState, NewSplit, OutputRow, SplitRow, SplitState};
use crate::meta::records::MadeBy;

macro_rules! job_columns {
    ($which:literal) => {
        job_columns!("j.spec", $which)
    };
    ($spec:literal, $which:literal) => {
        concat!(
            "SELECT j.id, j.state, ",
            $spec,
            ", j.why, j.created, j.changed, c.waiting, c.running, c.done, c.aside, j.role, session_user::text FROM \
             (SELECT id, state, spec, why, created, changed, role FROM @job ",
            $which,
            ") j CROSS JOIN LATERAL (SELECT count(*) FILTER (WHERE s.state = 0) AS waiting, \
             count(*) FILTER (WHERE s.state = 1) AS running, count(*) FILTER (WHERE s.state = 2) AS done, \
             count(*) FILTER (WHERE s.state = 3) AS aside FROM @job_split s WHERE s.job = j.id) c ORDER BY j.id DESC"
        )
    };
}
pub(super) const JOB: &str = job_columns!("WHERE id = $1");
/// As that, with an empty spec.
pub(super) const JOB_BRIEFLY: &str = job_columns!("NULL::text", "WHERE id = $1");
pub(super) const NEWEST: &str = job_columns!("ORDER BY id DESC LIMIT $1");
pub(super) const OPEN: &str = job_columns!("WHERE state < 2");

pub(super) const INPUTS: &str =
    "SELECT number, path, root, sum FROM @job_input WHERE job = $1 ORDER BY number";
pub(super) const SPLITS: &str = "SELECT number, input, first, after, state, attempt, session, why, NULL::bytea \
    FROM @job_split WHERE job = $1 ORDER BY number";
pub(super) const SPLIT: &str = "SELECT number, input, first, after, state, attempt, session, why, log \
    FROM @job_split WHERE job = $1 AND number = $2";
/// Returns a row if an attempt still counts: it is the newest of its split, or the primary.
pub(super) const CURRENT: &str = "SELECT 1 FROM @job_split s JOIN @job j ON j.id = s.job AND j.state = 1 \
    WHERE s.job = $1 AND s.number = $2 AND s.state = 1 \
    AND ((s.attempt, s.session) = ($3, $4) OR (s.primary_attempt, s.primary_session) = ($3, $4))";
pub(super) const MEASURED: &str =
    "SELECT number, measured FROM @job_split WHERE job = $1 AND measured IS NOT NULL ORDER BY number";
pub(super) const OUTPUTS: &str = "SELECT o.split, o.attempt, o.name, o.root, o.sum FROM @job_split s \
    JOIN @job_output o ON o.job = s.job AND o.split = s.number AND o.attempt = s.attempt \
    WHERE s.job = $1 AND s.state = 2 ORDER BY o.split, o.name";

fn number(row: &Row, column: usize) -> Outcome<u64> {
    Ok(row.try_get::<_, i64>(column)? as u64)
}

pub(super) fn made(answer: &Answer, job: JobId) -> Outcome<Option<String>> {
    let subject = Subject::JobMade { job: job.0 as i64 };
    Ok(answer.first().map(|row| row.maybe_text(0, &subject)).transpose()?.flatten())
}

pub(super) fn measured(answer: &Answer, job: JobId) -> Outcome<Vec<(u64, String)>> {
    let measured = |row: &Row| {
        let (job, split) = (job.0 as i64, row.try_get(0)?);
        Ok((split as u64, row.text(1, &Subject::SplitMeasured { job, split })?))
    };
    answer.rows.iter().map(measured).collect()
}

/// The role that made a row, and the one that asks: two columns from `first` on.
pub(in super::super) fn made_by(row: &Row, first: usize) -> Outcome<MadeBy> {
    Ok(MadeBy { role: row.public(first)?, asks: row.public(first + 1)? })
}

pub(super) fn jobs(answer: &Answer) -> Outcome<Vec<JobRow>> {
    let read = |row: &Row| {
        Ok(JobRow {
            id: JobId(number(row, 0)?),
            state: JobState::of(row.try_get::<_, i32>(1)?.into())?,
            spec: row.maybe_text(2, &Subject::JobSpec)?.unwrap_or_default(),
            why: row.text(3, &Subject::JobWhy { job: row.try_get(0)? })?,
            created: number(row, 4)?,
            changed: number(row, 5)?,
            splits: [number(row, 6)?, number(row, 7)?, number(row, 8)?, number(row, 9)?],
            by: Some(made_by(row, 10)?),
        })
    };
    answer.rows.iter().map(read).collect()
}

pub(super) fn inputs(answer: &Answer, job: JobId) -> Outcome<Vec<JobInput>> {
    answer.rows.iter().map(|row| input(row, job)).collect()
}

fn input(row: &Row, job: JobId) -> Outcome<JobInput> {
    let (job, number) = (job.0 as i64, i64::from(row.try_get::<_, i32>(0)?));
    let path = row.bytes(1, &Subject::InputPath { job, number })?;
    let root = row.maybe_bytes(2, &Subject::InputRoot { job, number })?;
    let root = root.as_deref();
    let what = || format!("input {number} of job {job} is not what was written");
    require(row.try_get(3)?, row::input_sum(row.seals(), job, number, &path, root), what)?;
    Ok(JobInput { path, root: row::root_of(root)? })
}

/// Input, first, after: three columns from `first` on.
pub(super) fn range(row: &Row, first: usize) -> Outcome<NewSplit> {
    let input: Option<i32> = row.try_get(first)?;
    Ok(NewSplit {
        input: input.map(i32::cast_unsigned),
        from: number(row, first + 1)?,
        to: number(row, first + 2)?,
    })
}

pub(super) fn splits(answer: &Answer, job: JobId) -> Outcome<Vec<SplitRow>> {
    let read = |row: &Row| {
        let (job, split) = (job.0 as i64, row.try_get(0)?);
        Ok(SplitRow {
            number: number(row, 0)?,
            range: range(row, 1)?,
            state: SplitState::of(row.try_get::<_, i32>(4)?.into())?,
            attempt: number(row, 5)?,
            session: SessionId(number(row, 6)?),
            why: row.text(7, &Subject::SplitWhy { job })?,
            log: row.maybe_bytes(8, &Subject::SplitLog { job, split })?.unwrap_or_default(),
        })
    };
    answer.rows.iter().map(read).collect()
}

pub(super) fn outputs(answer: &Answer, job: JobId) -> Outcome<Vec<OutputRow>> {
    let read = |row| output(row, job);
    let mut outputs: Vec<OutputRow> = answer.rows.iter().map(read).collect::<Outcome<_>>()?;
    // Where names are sealed, the database has another order.
    outputs.sort_by(|a, b| (a.split, &a.name).cmp(&(b.split, &b.name)));
    Ok(outputs)
}

fn output(row: &Row, job: JobId) -> Outcome<OutputRow> {
    let (job, split, attempt): (_, i64, i64) = (job.0 as i64, row.try_get(0)?, row.try_get(1)?);
    let name = row.bytes(2, &Subject::OutputName { job, split, attempt })?;
    let root = row.maybe_bytes(3, &Subject::OutputRoot { job, split, attempt })?;
    let root = root.as_deref();
    let what = || format!("an output of job {job} is not what was written");
    require(row.try_get(4)?, row::output_sum(row.seals(), [job, split, attempt], &name, root), what)?;
    Ok(OutputRow { split: split as u64, name, root: row::root_of(root)? })
}

/// Every job, for [`open_job`].
pub(in super::super) const JOB_TEXTS: &str = "SELECT id, spec, why, made FROM @job";

/// Opens a row of [`JOB_TEXTS`].
pub(in super::super) fn open_job(row: &Row) -> Outcome<()> {
    let job = row.try_get(0)?;
    row.text(1, &Subject::JobSpec)?;
    row.text(2, &Subject::JobWhy { job })?;
    row.maybe_text(3, &Subject::JobMade { job }).map(drop)
}

/// Every split, for [`open_split`].
pub(in super::super) const SPLIT_TEXTS: &str = "SELECT job, number, why, log, measured FROM @job_split";

/// Opens a row of [`SPLIT_TEXTS`].
pub(in super::super) fn open_split(row: &Row) -> Outcome<()> {
    let (job, split) = (row.try_get(0)?, row.try_get(1)?);
    row.text(2, &Subject::SplitWhy { job })?;
    row.maybe_bytes(3, &Subject::SplitLog { job, split })?;
    row.maybe_text(4, &Subject::SplitMeasured { job, split }).map(drop)
}

/// Checks every row with a checksum; reports errors to `find`.
pub(in super::super) fn check(connection: &mut Connection, find: &mut dyn FnMut(String)) -> Outcome<()> {
    let mut look = |found: Outcome<()>| match found {
        Ok(()) => Ok(()),
        Err(Fault::Store(error)) => {
            find(error.to_string());
            Ok(())
        }
        Err(fault) => Err(fault),
    };
    let query = Query::new("SELECT number, path, root, sum, job FROM @job_input");
    connection.stream(&query, |row| look((|| input(row, JobId(number(row, 4)?)).map(drop))()))?;
    let query = Query::new("SELECT split, attempt, name, root, sum, job FROM @job_output");
    connection.stream(&query, |row| look((|| output(row, JobId(number(row, 5)?)).map(drop))()))
}
