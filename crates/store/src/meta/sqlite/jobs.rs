//! Jobs in SQLite.

use crate::meta::jobs::Splits;
use outrigger_format::Root;
use rusqlite::{Connection, OptionalExtension as _, Row};

use super::job_rows::SqliteJobs;
use super::sessions::lives;
use super::{Moment, SqliteMeta, marks, reclaim, row, sessions, sums};
use crate::error::Result;
use crate::meta::SessionId;
use crate::meta::fault::Outcome;
use crate::meta::jobs::rules::{self, JobRows as _, Lock};
use crate::meta::jobs::{
    Claimed, Claims, GIVEN_UP, JobId, JobInput, JobRow, JobState, Jobs, NewJob, NewSplit, OutputRow,
    SplitRow, SplitState, job_holder, no_job,
};

/// Queries whose rows describe the changed rows.
pub(super) const CHANGED: &[&str] = &[
    "SELECT 'input ' || number || ' of job ' || job || ' is not what was written' FROM job_input \
     WHERE NOT (sum IS row_sum(job, number, path, root))",
    "SELECT 'an output of job ' || job || ' is not what was written' FROM job_output \
     WHERE NOT (sum IS row_sum(job, split, attempt, name, root))",
];

fn create(db: &Connection, now: Moment, new: &NewJob) -> Outcome<JobId> {
    if let Some(seen) = &new.seen {
        marks::see(db, seen)?;
    }
    db.prepare_cached("INSERT INTO job (state, spec, why, created, changed) VALUES (0, ?1, '', ?2, ?2)")?
        .execute((&new.spec, now.wall as i64))?;
    let job = JobId(db.last_insert_rowid() as u64);
    let mut insert =
        db.prepare_cached("INSERT INTO job_input (job, number, path, root) VALUES (?1, ?2, ?3, ?4)")?;
    for (number, input) in new.inputs.iter().enumerate() {
        insert.execute((job.0 as i64, number as i64, &input.path, row::root_column(&input.root)))?;
        reclaim::hold(db, &job_holder(job), std::slice::from_ref(&input.root))?;
    }
    let mut insert = db.prepare_cached(
        "INSERT INTO job_split (job, number, input, first, after, state, attempt, tries, session, why) \
         VALUES (?1, ?2, ?3, ?4, ?5, 0, 0, 0, 0, '')",
    )?;
    for (number, split) in new.splits.iter().enumerate() {
        let (job, number) = (job.0 as i64, number as i64);
        insert.execute((job, number, split.input, split.from as i64, split.to as i64))?;
    }
    Ok(job)
}

fn job_row(db: &Connection, found: (i64, i64, String, String, i64, i64)) -> Outcome<JobRow> {
    let (id, state, spec, why, created, changed) = found;
    let mut splits = [0; 4];
    let mut count =
        db.prepare_cached("SELECT state, count(*) FROM job_split WHERE job = ?1 GROUP BY state")?;
    let mut rows = count.query([id])?;
    while let Some(row) = rows.next()? {
        splits[SplitState::of(row.get(0)?)? as usize] = row.get::<_, i64>(1)? as u64;
    }
    let state = JobState::of(state)?;
    let (created, changed) = (created as u64, changed as u64);
    Ok(JobRow { id: JobId(id as u64), state, spec, why, created, changed, splits, by: None })
}

fn job_briefly(db: &Connection, job: JobId) -> Outcome<Option<JobRow>> {
    let sql = "SELECT id, state, '', why, created, changed FROM job WHERE id = ?1";
    let found = db
        .prepare_cached(sql)?
        .query_row([job.0 as i64], |row| {
            Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?, row.get(5)?))
        })
        .optional()?;
    found.map(|found| job_row(db, found)).transpose()
}

fn jobs(db: &Connection, only: Option<JobId>, open: bool, limit: usize) -> Outcome<Vec<JobRow>> {
    let sql = "SELECT id, state, spec, why, created, changed FROM job WHERE (?1 IS NULL OR id = ?1) \
               AND (NOT ?2 OR state < 2) ORDER BY id DESC LIMIT ?3";
    let mut statement = db.prepare_cached(sql)?;
    let only = only.map(|job| job.0 as i64);
    let mut rows = statement.query((only, open, i64::try_from(limit).unwrap_or(i64::MAX)))?;
    let mut found = Vec::new();
    while let Some(row) = rows.next()? {
        let row = (row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?, row.get(5)?);
        found.push(job_row(db, row)?);
    }
    Ok(found)
}

fn inputs(db: &Connection, job: JobId) -> Outcome<Vec<JobInput>> {
    let sql = "SELECT path, root, sum IS row_sum(job, number, path, root) FROM job_input \
               WHERE job = ?1 ORDER BY number";
    let mut statement = db.prepare_cached(sql)?;
    let inputs = statement.query_map([job.0 as i64], |row| {
        sums::require(row, 2)?;
        Ok(JobInput { path: row.get(0)?, root: row::root(row.get_ref(1)?, 1)? })
    })?;
    Ok(inputs.collect::<rusqlite::Result<_>>()?)
}

pub(super) fn range(row: &Row<'_>, first: usize) -> rusqlite::Result<NewSplit> {
    let (from, to): (i64, i64) = (row.get(first + 1)?, row.get(first + 2)?);
    Ok(NewSplit { input: row.get(first)?, from: from as u64, to: to as u64 })
}

fn splits(db: &Connection, job: JobId, only: Option<u64>) -> Outcome<Vec<SplitRow>> {
    let sql = "SELECT number, input, first, after, state, attempt, session, why, \
               CASE WHEN ?2 IS NULL THEN NULL ELSE log END FROM job_split \
               WHERE job = ?1 AND (?2 IS NULL OR number = ?2) ORDER BY number";
    let mut statement = db.prepare_cached(sql)?;
    let mut rows = statement.query((job.0 as i64, only.map(|number| number as i64)))?;
    let mut found = Vec::new();
    while let Some(row) = rows.next()? {
        found.push(SplitRow {
            number: row.get::<_, i64>(0)? as u64,
            range: range(row, 1)?,
            state: SplitState::of(row.get(4)?)?,
            attempt: row.get::<_, i64>(5)? as u64,
            session: SessionId(row.get::<_, i64>(6)? as u64),
            why: row.get(7)?,
            log: row.get::<_, Option<Vec<u8>>>(8)?.unwrap_or_default(),
        });
    }
    Ok(found)
}

fn outputs(db: &Connection, job: JobId) -> Outcome<Vec<OutputRow>> {
    let sql = "SELECT o.split, o.name, o.root, o.sum IS row_sum(o.job, o.split, o.attempt, o.name, o.root) \
               FROM job_output o CROSS JOIN job_split s ON s.job = o.job AND s.number = o.split \
               WHERE o.job = ?1 AND s.state = 2 AND s.attempt = o.attempt ORDER BY o.split, o.name";
    let mut statement = db.prepare_cached(sql)?;
    let outputs = statement.query_map([job.0 as i64], |row| {
        sums::require(row, 3)?;
        let split: i64 = row.get(0)?;
        Ok(OutputRow { split: split as u64, name: row.get(1)?, root: row::root(row.get_ref(2)?, 2)? })
    })?;
    Ok(outputs.collect::<rusqlite::Result<_>>()?)
}

fn claim(
    db: &Connection,
    now: Moment,
    session: SessionId,
    job: JobId,
    limit: usize,
    tries: u32,
    only: Option<&[u64]>,
) -> Outcome<Claims> {
    sessions::require_live(db, now, session)?;
    let mut rows = SqliteJobs { db, now };
    match rows.state(job, Lock::Update)?.ok_or_else(|| no_job(job))? {
        JobState::Waiting => rows.set_state(job, JobState::Running, "")?,
        JobState::Running => {}
        _ => return Ok(Claims::default()),
    }
    let (id, now) = (job.0 as i64, now.steady as i64);
    // Where the newest attempt's session is over, a live primary has the split alone.
    db.prepare_cached(concat!(
        "UPDATE job_split SET session = primary_session WHERE job = ?1 AND state = 1 AND primary_session IS NOT NULL \
         AND NOT EXISTS (SELECT 1 FROM session WHERE id = job_split.session AND ",
        lives!("?2"),
        ") AND EXISTS (SELECT 1 FROM session WHERE id = job_split.primary_session AND ",
        lives!("?2"),
        ")"
    ))?
    .execute((id, now))?;
    db.prepare_cached(concat!(
        "UPDATE job_split SET state = 3, why = ?4, primary_attempt = NULL, primary_session = NULL WHERE job = ?1 AND state = 1 AND tries >= ?2 AND \
         NOT EXISTS (SELECT 1 FROM session WHERE id = job_split.session AND ",
        lives!("?3"),
        ")"
    ))?
    .execute((id, tries, now, GIVEN_UP))?;
    let mut select = db.prepare_cached(concat!(
        "SELECT number, input, first, after, attempt FROM job_split WHERE job = ?1 AND state < 2 AND \
         (state = 0 OR NOT EXISTS (SELECT 1 FROM session WHERE id = job_split.session AND ",
        lives!("?2"),
        ")) AND (?4 IS NULL OR number IN (SELECT value FROM json_each(?4))) ORDER BY number LIMIT ?3"
    ))?;
    let only =
        only.map(|only| format!("[{}]", only.iter().map(u64::to_string).collect::<Vec<_>>().join(",")));
    let claimed: Vec<Claimed> = select
        .query_map((id, now, i64::try_from(limit).unwrap_or(i64::MAX), only), |row| {
            let (number, attempt): (i64, i64) = (row.get(0)?, row.get(4)?);
            Ok(Claimed { number: number as u64, range: range(row, 1)?, attempt: attempt as u64 + 1 })
        })?
        .collect::<rusqlite::Result<_>>()?;
    let mut update = db.prepare_cached(
        "UPDATE job_split SET state = 1, attempt = ?3, tries = tries + 1, session = ?4, primary_attempt = NULL, \
         primary_session = NULL WHERE job = ?1 AND number = ?2",
    )?;
    // Leftovers of earlier attempts never became outputs.
    let mut drop = db.prepare_cached("DELETE FROM job_output WHERE job = ?1 AND split = ?2")?;
    for split in &claimed {
        update.execute((id, split.number as i64, split.attempt as i64, session.0 as i64))?;
        if split.attempt > 1 {
            drop.execute((id, split.number as i64))?;
        }
    }
    let open: i64 = db
        .prepare_cached("SELECT count(*) FROM job_split WHERE job = ?1 AND state = 1 AND session <> ?2")?
        .query_row((id, session.0 as i64), |row| row.get(0))?;
    Ok(Claims { claimed, elsewhere: open as u64, open: true })
}

fn is_current(db: &Connection, session: SessionId, job: JobId, claimed: &Claimed) -> rusqlite::Result<bool> {
    let sql = "SELECT 1 FROM job_split s JOIN job j ON j.id = s.job AND j.state = 1 \
               WHERE s.job = ?1 AND s.number = ?2 AND s.state = 1 AND \
               ((s.attempt, s.session) = (?3, ?4) OR (s.primary_attempt, s.primary_session) = (?3, ?4))";
    let (split, attempt) = (claimed.number as i64, claimed.attempt as i64);
    db.prepare_cached(sql)?.exists((job.0 as i64, split, attempt, session.0 as i64))
}

fn measured(db: &Connection, job: JobId) -> rusqlite::Result<Vec<(u64, String)>> {
    let sql =
        "SELECT number, measured FROM job_split WHERE job = ?1 AND measured IS NOT NULL ORDER BY number";
    let mut select = db.prepare_cached(sql)?;
    select.query_map([job.0 as i64], |row| Ok((row.get::<_, i64>(0)? as u64, row.get(1)?)))?.collect()
}

fn made(db: &Connection, job: JobId) -> rusqlite::Result<Option<String>> {
    let mut select = db.prepare_cached("SELECT made FROM job WHERE id = ?1")?;
    Ok(select.query_row([job.0 as i64], |row| row.get(0)).optional()?.flatten())
}

impl SqliteMeta {
    /// A change of a job's rows by one of the rules.
    fn rule<T>(&self, what: &str, rule: impl Fn(&mut SqliteJobs<'_>) -> Outcome<T>) -> Result<T> {
        self.write(what, |db| rule(&mut SqliteJobs { db, now: self.moment() }))
    }
}

impl Jobs for SqliteMeta {
    fn create_job(&self, job: &NewJob) -> Result<JobId> {
        self.write("making a job", |db| create(db, self.moment(), job))
    }

    fn job(&self, job: JobId) -> Result<Option<JobRow>> {
        self.read("reading a job", |db| Ok(jobs(db, Some(job), false, 1)?.pop()))
    }

    fn job_briefly(&self, job: JobId) -> Result<Option<JobRow>> {
        self.read("looking at a job", |db| job_briefly(db, job))
    }

    fn jobs(&self, limit: usize) -> Result<Vec<JobRow>> {
        self.read("listing jobs", |db| jobs(db, None, false, limit))
    }

    fn open_jobs(&self) -> Result<Vec<JobRow>> {
        self.read("listing open jobs", |db| jobs(db, None, true, usize::MAX))
    }

    fn inputs(&self, job: JobId) -> Result<Vec<JobInput>> {
        self.read("listing a job's inputs", |db| inputs(db, job))
    }

    fn splits(&self, job: JobId) -> Result<Vec<SplitRow>> {
        self.read("listing a job's splits", |db| splits(db, job, None))
    }

    fn split(&self, job: JobId, number: u64) -> Result<Option<SplitRow>> {
        self.read("reading a split", |db| Ok(splits(db, job, Some(number))?.pop()))
    }

    fn measured(&self, job: JobId) -> Result<Vec<(u64, String)>> {
        self.read("reading what attempts used", |db| Ok(measured(db, job)?))
    }

    fn made(&self, job: JobId) -> Result<Option<String>> {
        self.read("reading what a job made", |db| Ok(made(db, job)?))
    }

    fn outputs(&self, job: JobId) -> Result<Vec<OutputRow>> {
        self.read("listing a job's outputs", |db| outputs(db, job))
    }
}

impl Splits for SqliteMeta {
    fn claim_splits(
        &self,
        session: SessionId,
        job: JobId,
        limit: usize,
        tries: u32,
        only: Option<&[u64]>,
    ) -> Result<Claims> {
        self.write("claiming splits", |db| claim(db, self.moment(), session, job, limit, tries, only))
    }

    fn claim_speculative(
        &self,
        session: SessionId,
        job: JobId,
        split: u64,
        beside: u64,
    ) -> Result<Option<Claimed>> {
        self.rule("claiming a split beside another runner", |rows| {
            sessions::require_live(rows.db, rows.now, session)?;
            rules::claim_speculative(rows, session, job, split, beside)
        })
    }

    fn is_current(&self, session: SessionId, job: JobId, claimed: &Claimed) -> Result<bool> {
        self.read("looking whose a split is", |db| Ok(is_current(db, session, job, claimed)?))
    }

    fn fail_split(&self, job: JobId, claimed: &Claimed, tries: u32, why: &str, log: &[u8]) -> Result<bool> {
        self.rule("recording a failed attempt", |rows| rules::fail(rows, job, claimed, tries, (why, log)))
    }

    fn give_back_splits(&self, job: JobId, claimed: &[Claimed]) -> Result<()> {
        self.rule("giving splits back", |rows| rules::give_back(rows, job, claimed))
    }

    fn close_input(&self, job: JobId, root: &Root, again: bool) -> Result<bool> {
        let (of, end) = ((0, Some(0)), Some(root.len()));
        self.rule("closing a job's input", |rows| rules::close_input(rows, job, of, root, again, end))
    }

    fn close_one_input(
        &self,
        job: JobId,
        input: u32,
        root: &Root,
        again: bool,
        end: Option<u64>,
    ) -> Result<bool> {
        let of = (input, None);
        self.rule("closing a job's input", |rows| rules::close_input(rows, job, of, root, again, end))
    }

    fn end_job(&self, job: JobId, state: JobState, why: &str) -> Result<bool> {
        self.rule("ending a job", |rows| rules::end(rows, job, state, why))
    }

    fn retry_job(&self, job: JobId) -> Result<()> {
        self.rule("retrying a job", |rows| rules::retry(rows, job))
    }

    fn forget_job(&self, job: JobId) -> Result<()> {
        self.rule("forgetting a job", |rows| rules::forget(rows, job))
    }
}
