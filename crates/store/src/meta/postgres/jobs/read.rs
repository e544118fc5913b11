//! Reading jobs, splits and outputs.

use tokio_postgres::Row;

use super::super::connection::{Answer, Connection, Query};
use super::super::row::{self, require};
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
pub(super) const JOB_BRIEFLY: &str = job_columns!("''", "WHERE id = $1");
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

pub(super) fn made(answer: &Answer) -> Outcome<Option<String>> {
    Ok(answer.first().map(|row| row.try_get(0)).transpose()?.flatten())
}

pub(super) fn measured(answer: &Answer) -> Outcome<Vec<(u64, String)>> {
    answer.rows.iter().map(|row| Ok((number(row, 0)?, row.try_get(1)?))).collect()
}

/// The role that made a row, and the one that asks: two columns from `first` on.
pub(in super::super) fn made_by(row: &Row, first: usize) -> Outcome<MadeBy> {
    Ok(MadeBy { role: row.try_get(first)?, asks: row.try_get(first + 1)? })
}

pub(super) fn jobs(answer: &Answer) -> Outcome<Vec<JobRow>> {
    let read = |row: &Row| {
        Ok(JobRow {
            id: JobId(number(row, 0)?),
            state: JobState::of(row.try_get::<_, i32>(1)?.into())?,
            spec: row.try_get(2)?,
            why: row.try_get(3)?,
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
    let (number, path, root): (i32, Vec<u8>, Option<&[u8]>) =
        (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?);
    let what = || format!("input {number} of job {job} is not what was written");
    require(row.try_get(3)?, row::input_sum(job.0 as i64, number.into(), &path, root), what)?;
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

pub(super) fn splits(answer: &Answer) -> Outcome<Vec<SplitRow>> {
    let read = |row: &Row| {
        Ok(SplitRow {
            number: number(row, 0)?,
            range: range(row, 1)?,
            state: SplitState::of(row.try_get::<_, i32>(4)?.into())?,
            attempt: number(row, 5)?,
            session: SessionId(number(row, 6)?),
            why: row.try_get(7)?,
            log: row.try_get::<_, Option<Vec<u8>>>(8)?.unwrap_or_default(),
        })
    };
    answer.rows.iter().map(read).collect()
}

pub(super) fn outputs(answer: &Answer, job: JobId) -> Outcome<Vec<OutputRow>> {
    answer.rows.iter().map(|row| output(row, job)).collect()
}

fn output(row: &Row, job: JobId) -> Outcome<OutputRow> {
    let (split, attempt, name): (i64, i64, Vec<u8>) = (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?);
    let root: Option<&[u8]> = row.try_get(3)?;
    let what = || format!("an output of job {job} is not what was written");
    require(row.try_get(4)?, row::output_sum([job.0 as i64, split, attempt], &name, root), what)?;
    Ok(OutputRow { split: split as u64, name, root: row::root_of(root)? })
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
