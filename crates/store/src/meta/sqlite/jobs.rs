//! Jobs in SQLite.

use outrigger_format::Root;
use rusqlite::{Connection, OptionalExtension as _, Row};

use super::sessions::lives;
use super::{Moment, SqliteMeta, notes, reclaim, row, sessions, sums};
use crate::error::{ErrorKind, Result};
use crate::meta::SessionId;
use crate::meta::fault::{Fault, Outcome, refuse};
use crate::meta::jobs::{
    Claimed, Claims, GIVEN_UP, JobChange, JobId, JobInput, JobRow, JobState, Jobs, MEASURED, NewJob,
    NewSplit, Note, OPEN_END, OutputRow, PRIMARY, Seen, SplitRow, SplitState, job_holder, noted_split,
    primary_of, primary_text, split_note, whole_note,
};

/// Queries whose rows describe the changed rows.
pub(super) const CHANGED: &[&str] = &[
    "SELECT 'input ' || number || ' of job ' || job || ' is not what was written' FROM job_input \
     WHERE NOT (sum IS row_sum(job, number, path, root))",
    "SELECT 'an output of job ' || job || ' is not what was written' FROM job_output \
     WHERE NOT (sum IS row_sum(job, split, attempt, name, root))",
];

fn damaged(what: &str) -> Fault {
    refuse(ErrorKind::Damaged, format!("jobs: {what}"))
}

fn job_state(number: i64) -> Outcome<JobState> {
    use JobState::{Cancelled, Done, Failed, Running, Waiting};
    let states = [Waiting, Running, Done, Failed, Cancelled];
    states.into_iter().find(|state| *state as i64 == number).ok_or_else(|| damaged("an unknown state"))
}

fn split_state(number: i64) -> Outcome<SplitState> {
    use SplitState::{Done, Running, SetAside, Waiting};
    let states = [Waiting, Running, Done, SetAside];
    states.into_iter().find(|state| *state as i64 == number).ok_or_else(|| damaged("an unknown state"))
}

fn state_of(db: &Connection, job: JobId) -> Outcome<JobState> {
    let missing = || refuse(ErrorKind::NotFound, format!("there is no job {job}"));
    let state: Option<i64> = db
        .prepare_cached("SELECT state FROM job WHERE id = ?1")?
        .query_row([job.0 as i64], |row| row.get(0))
        .optional()?;
    job_state(state.ok_or_else(missing)?)
}

fn set_state(db: &Connection, now: Moment, job: JobId, state: JobState, why: &str) -> Outcome<()> {
    db.prepare_cached("UPDATE job SET state = ?2, why = ?3, changed = ?4 WHERE id = ?1")?.execute((
        job.0 as i64,
        state as i64,
        why,
        now.wall as i64,
    ))?;
    Ok(())
}

fn create(db: &Connection, now: Moment, new: &NewJob) -> Outcome<JobId> {
    if let Some(seen) = &new.seen {
        notes::see(db, seen)?;
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
    let mut insert =
        db.prepare_cached("INSERT INTO job_split VALUES (?1, ?2, ?3, ?4, ?5, 0, 0, 0, 0, '', NULL)")?;
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
        splits[split_state(row.get(0)?)? as usize] = row.get::<_, i64>(1)? as u64;
    }
    let state = job_state(state)?;
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

fn range(row: &Row<'_>, first: usize) -> rusqlite::Result<NewSplit> {
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
            state: split_state(row.get(4)?)?,
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
    match state_of(db, job)? {
        JobState::Waiting => set_state(db, now, job, JobState::Running, "")?,
        JobState::Running => {}
        _ => return Ok(Claims::default()),
    }
    let (id, now) = (job.0 as i64, now.steady as i64);
    db.prepare_cached(concat!(
        "UPDATE job_split SET state = 3, why = ?4 WHERE job = ?1 AND state = 1 AND tries >= ?2 AND \
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
        "UPDATE job_split SET state = 1, attempt = ?3, tries = tries + 1, session = ?4 WHERE job = ?1 AND number = ?2",
    )?;
    // Leftovers of earlier attempts never became outputs.
    let mut drop = db.prepare_cached("DELETE FROM job_output WHERE job = ?1 AND split = ?2")?;
    for split in &claimed {
        update.execute((id, split.number as i64, split.attempt as i64, session.0 as i64))?;
        if split.attempt > 1 {
            drop.execute((id, split.number as i64))?;
            notes::remove(db, PRIMARY, &split_note(job, split.number))?;
        }
    }
    let open: i64 = db
        .prepare_cached("SELECT count(*) FROM job_split WHERE job = ?1 AND state = 1 AND session <> ?2")?
        .query_row((id, session.0 as i64), |row| row.get(0))?;
    Ok(Claims { claimed, elsewhere: open as u64, open: true })
}

/// The primary attempt, besides the newest one.
fn primary(db: &Connection, job: JobId, split: u64) -> Outcome<Option<(u64, SessionId)>> {
    Ok(notes::one(db, PRIMARY, &split_note(job, split))?.as_deref().and_then(primary_of))
}

fn is_live(db: &Connection, now: Moment, session: SessionId) -> rusqlite::Result<bool> {
    db.prepare_cached(concat!("SELECT 1 FROM session WHERE id = ?1 AND ", lives!("?2")))?
        .exists((session.0 as i64, now.steady as i64))
}

/// A running split: its newest attempt, and that attempt's session.
fn running(db: &Connection, job: JobId, split: u64) -> rusqlite::Result<Option<(u64, SessionId)>> {
    db.prepare_cached("SELECT attempt, session FROM job_split WHERE job = ?1 AND number = ?2 AND state = 1")?
        .query_row((job.0 as i64, split as i64), |row| {
            Ok((row.get::<_, i64>(0)? as u64, SessionId(row.get::<_, i64>(1)? as u64)))
        })
        .optional()
}

fn claim_beside(
    db: &Connection,
    now: Moment,
    session: SessionId,
    job: JobId,
    split: u64,
    beside: u64,
) -> Outcome<Option<Claimed>> {
    sessions::require_live(db, now, session)?;
    if state_of(db, job)? != JobState::Running {
        return Ok(None);
    }
    let Some((attempt, holder)) = running(db, job, split)? else { return Ok(None) };
    let primary = primary(db, job, split)?;
    // A newer attempt may have failed, and left the split to its primary.
    let token = match primary {
        Some((primary, of)) if of == holder => primary,
        Some(_) => return Ok(None),
        None => attempt,
    };
    if attempt != beside || holder == session || !is_live(db, now, holder)? {
        return Ok(None);
    }
    let range = db
        .prepare_cached("SELECT input, first, after FROM job_split WHERE job = ?1 AND number = ?2")?
        .query_row((job.0 as i64, split as i64), |row| range(row, 0))?;
    if range.is_open() {
        return Ok(None);
    }
    notes::set(db, now.wall, PRIMARY, &split_note(job, split), Some(&primary_text(token, holder)))?;
    db.prepare_cached("UPDATE job_split SET attempt = ?3, session = ?4 WHERE job = ?1 AND number = ?2")?
        .execute((job.0 as i64, split as i64, attempt as i64 + 1, session.0 as i64))?;
    Ok(Some(Claimed { number: split, range, attempt: attempt + 1 }))
}

/// Removes an attempt from its split. Returns the number of the split's newest attempt when this was the only one, so
/// that the caller must act on the split. `None` when another attempt has the split, or this one had it no more.
fn leave(db: &Connection, now: Moment, job: JobId, claimed: &Claimed) -> Outcome<Option<u64>> {
    let Some((attempt, holder)) = running(db, job, claimed.number)? else { return Ok(None) };
    let Some((primary, of)) = primary(db, job, claimed.number)? else {
        return Ok((attempt == claimed.attempt).then_some(attempt));
    };
    let is_newest = attempt == claimed.attempt;
    if !is_newest && primary != claimed.attempt {
        return Ok(None);
    }
    if is_newest && of != holder && is_live(db, now, of)? {
        // The primary goes on; its token stays what it was.
        db.prepare_cached("UPDATE job_split SET session = ?3 WHERE job = ?1 AND number = ?2")?.execute((
            job.0 as i64,
            claimed.number as i64,
            of.0 as i64,
        ))?;
        return Ok(None);
    }
    notes::remove(db, PRIMARY, &split_note(job, claimed.number))?;
    // The newest goes on, unless it has left before.
    Ok((is_newest || of == holder).then_some(attempt))
}

fn fail(
    db: &Connection,
    now: Moment,
    job: JobId,
    claimed: &Claimed,
    tries: u32,
    (why, log): (&str, &[u8]),
) -> Outcome<bool> {
    let Some(attempt) = leave(db, now, job, claimed)? else { return Ok(false) };
    db.prepare_cached(
        "UPDATE job_split SET state = CASE WHEN tries >= ?4 THEN 3 ELSE 0 END, why = ?5, log = ?6 \
         WHERE job = ?1 AND number = ?2 AND attempt = ?3 AND state = 1",
    )?
    .execute((job.0 as i64, claimed.number as i64, attempt as i64, tries, why, log))?;
    let state: Option<i64> = db
        .prepare_cached("SELECT state FROM job_split WHERE job = ?1 AND number = ?2")?
        .query_row((job.0 as i64, claimed.number as i64), |row| row.get(0))
        .optional()?;
    Ok(state == Some(SplitState::SetAside as i64))
}

fn give_back(db: &Connection, now: Moment, job: JobId, claimed: &[Claimed]) -> Outcome<()> {
    let mut update = db.prepare_cached(
        "UPDATE job_split SET state = 0, tries = tries - 1 WHERE job = ?1 AND number = ?2 AND attempt = ?3 AND state = 1",
    )?;
    for split in claimed {
        if let Some(attempt) = leave(db, now, job, split)? {
            update.execute((job.0 as i64, split.number as i64, attempt as i64))?;
        }
    }
    Ok(())
}

fn close_input(db: &Connection, job: JobId, root: &Root, again: bool) -> Outcome<bool> {
    match state_of(db, job) {
        Ok(JobState::Done) => return Ok(false),
        Err(Fault::Store(error)) if error.kind() == ErrorKind::NotFound => return Ok(false),
        other => drop(other?),
    }
    let id = job.0 as i64;
    let closed = db
        .prepare_cached("UPDATE job_split SET after = ?2 WHERE job = ?1 AND input = 0 AND after = ?3")?
        .execute((id, root.len() as i64, OPEN_END as i64))?;
    if closed == 0 {
        return Ok(false);
    }
    db.prepare_cached("UPDATE job_input SET root = ?2 WHERE job = ?1 AND number = 0")?
        .execute((id, row::root_column(root)))?;
    reclaim::hold(db, &job_holder(job), std::slice::from_ref(root))?;
    if again {
        // A runner of one finds its token void.
        db.prepare_cached(
            "UPDATE job_split SET state = 0, attempt = attempt + 1, tries = 0 WHERE job = ?1 AND input = 0 AND state IN (1, 2)",
        )?
        .execute([id])?;
    }
    Ok(true)
}

fn close_one_input(
    db: &Connection,
    job: JobId,
    input: u32,
    root: &Root,
    again: bool,
    end: Option<u64>,
) -> Outcome<bool> {
    match state_of(db, job) {
        Ok(JobState::Done) => return Ok(false),
        Err(Fault::Store(error)) if error.kind() == ErrorKind::NotFound => return Ok(false),
        other => drop(other?),
    }
    let id = job.0 as i64;
    let open = "SELECT 1 FROM job_split WHERE job = ?1 AND input IS NULL AND after = ?2";
    if !db.prepare_cached(open)?.exists((id, OPEN_END as i64))? {
        return Ok(false);
    }
    db.prepare_cached("UPDATE job_input SET root = ?3 WHERE job = ?1 AND number = ?2")?.execute((
        id,
        input,
        row::root_column(root),
    ))?;
    reclaim::hold(db, &job_holder(job), std::slice::from_ref(root))?;
    if let Some(end) = end {
        db.prepare_cached("UPDATE job_split SET after = ?2 WHERE job = ?1 AND input IS NULL")?
            .execute((id, end as i64))?;
    }
    if again {
        // Its runner finds its token void.
        db.prepare_cached(
            "UPDATE job_split SET state = 0, attempt = attempt + 1, tries = 0 WHERE job = ?1 AND input IS NULL AND state IN (1, 2)",
        )?
        .execute([id])?;
    }
    Ok(true)
}

fn end(db: &Connection, now: Moment, job: JobId, state: JobState, why: &str) -> Outcome<bool> {
    if !matches!(state_of(db, job)?, JobState::Waiting | JobState::Running) {
        return Ok(false);
    }
    set_state(db, now, job, state, why)?;
    // A runner of one of its splits finds its token void.
    db.prepare_cached("UPDATE job_split SET state = 0, attempt = attempt + 1 WHERE job = ?1 AND state = 1")?
        .execute([job.0 as i64])?;
    notes::remove_below(db, PRIMARY, &split_note(job, ""))?;
    Ok(true)
}

fn retry(db: &Connection, now: Moment, job: JobId) -> Outcome<()> {
    if !matches!(state_of(db, job)?, JobState::Failed | JobState::Cancelled) {
        let why = format!("job {job} has not failed, nor was it cancelled");
        return Err(refuse(ErrorKind::Invalid, why));
    }
    set_state(db, now, job, JobState::Waiting, "")?;
    db.prepare_cached("UPDATE job_split SET state = 0, tries = 0 WHERE job = ?1 AND state <> 2")?
        .execute([job.0 as i64])?;
    Ok(())
}

fn forget(db: &Connection, job: JobId) -> Outcome<()> {
    if matches!(state_of(db, job)?, JobState::Waiting | JobState::Running) {
        return Err(refuse(ErrorKind::Busy, format!("job {job} has not ended; cancel it first")));
    }
    reclaim::let_go(db, &job_holder(job), None)?;
    for sql in [
        "DELETE FROM job_output WHERE job = ?1",
        "DELETE FROM job_split WHERE job = ?1",
        "DELETE FROM job_input WHERE job = ?1",
        "DELETE FROM job WHERE id = ?1",
    ] {
        db.prepare_cached(sql)?.execute([job.0 as i64])?;
    }
    notes::remove_below(db, MEASURED, &split_note(job, ""))
}

/// Applies a change that came with a commit.
pub(super) fn apply(db: &Connection, now: Moment, session: SessionId, change: &JobChange) -> Outcome<()> {
    match change {
        JobChange::Output { job, split, attempt, name, root } => {
            if !is_current(db, session, *job, *split, *attempt)? {
                return Ok(());
            }
            db.prepare_cached(
                "INSERT INTO job_output (job, split, attempt, name, root) VALUES (?1, ?2, ?3, ?4, ?5) \
                 ON CONFLICT DO UPDATE SET root = excluded.root",
            )?
            .execute((
                job.0 as i64,
                *split as i64,
                *attempt as i64,
                name,
                row::root_column(root),
            ))?;
            reclaim::hold(db, &job_holder(*job), std::slice::from_ref(root))
        }
        JobChange::Finish { job, split, attempt, log, measured } => {
            if is_current(db, session, *job, *split, *attempt)? {
                // If there were two attempts, the other one's outputs are ignored: the split has this one's number now.
                db.prepare_cached(
                    "UPDATE job_split SET state = 2, why = '', log = ?3, attempt = ?4, session = ?5 WHERE job = ?1 AND number = ?2",
                )?
                .execute((
                    job.0 as i64,
                    *split as i64,
                    (!log.is_empty()).then_some(log),
                    *attempt as i64,
                    session.0 as i64,
                ))?;
                notes::remove(db, PRIMARY, &split_note(*job, *split))?;
                if let Some(measured) = measured {
                    notes::set(db, now.wall, MEASURED, &split_note(*job, *split), Some(measured))?;
                }
            }
            Ok(())
        }
        JobChange::Publish { job, why, made } => {
            let unfinished = db
                .prepare_cached("SELECT 1 FROM job_split WHERE job = ?1 AND state < 2 LIMIT 1")?
                .exists([job.0 as i64])?;
            if state_of(db, *job)? != JobState::Running || unfinished {
                let why = format!("job {job} was cancelled, or another process has taken it over");
                return Err(refuse(ErrorKind::Fenced, why));
            }
            set_state(db, now, *job, JobState::Done, why)?;
            // From now on the tree keeps the contents.
            reclaim::let_go(db, &job_holder(*job), None)?;
            let id = [job.0 as i64];
            db.prepare_cached("DELETE FROM job_output WHERE job = ?1")?.execute(id)?;
            db.prepare_cached("UPDATE job_input SET root = NULL WHERE job = ?1")?.execute(id)?;
            match made {
                Some(made) => notes::set(db, now.wall, MEASURED, &whole_note(*job), Some(made)),
                None => Ok(()),
            }
        }
    }
}

fn is_current(db: &Connection, session: SessionId, job: JobId, split: u64, attempt: u64) -> Outcome<bool> {
    let state: Option<i64> = db
        .prepare_cached("SELECT state FROM job WHERE id = ?1")?
        .query_row([job.0 as i64], |row| row.get(0))
        .optional()?;
    if state != Some(JobState::Running as i64) {
        return Ok(false);
    }
    let Some(newest) = running(db, job, split)? else { return Ok(false) };
    Ok(newest == (attempt, session) || primary(db, job, split)? == Some((attempt, session)))
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
        let found =
            self.read("reading what attempts used", |db| notes::below(db, MEASURED, &split_note(job, "")))?;
        let mut found: Vec<_> =
            found.into_iter().filter_map(|(name, text)| Some((noted_split(&name)?, text))).collect();
        found.sort_unstable();
        Ok(found)
    }

    fn made(&self, job: JobId) -> Result<Option<String>> {
        self.read("reading what a job made", |db| notes::one(db, MEASURED, &whole_note(job)))
    }

    fn outputs(&self, job: JobId) -> Result<Vec<OutputRow>> {
        self.read("listing a job's outputs", |db| outputs(db, job))
    }

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

    fn claim_beside(
        &self,
        session: SessionId,
        job: JobId,
        split: u64,
        beside: u64,
    ) -> Result<Option<Claimed>> {
        self.write("claiming a split beside another runner", |db| {
            claim_beside(db, self.moment(), session, job, split, beside)
        })
    }

    fn is_current(&self, session: SessionId, job: JobId, claimed: &Claimed) -> Result<bool> {
        self.read("looking whose a split is", |db| {
            is_current(db, session, job, claimed.number, claimed.attempt)
        })
    }

    fn fail_split(&self, job: JobId, claimed: &Claimed, tries: u32, why: &str, log: &[u8]) -> Result<bool> {
        self.write("recording a failed attempt", |db| {
            fail(db, self.moment(), job, claimed, tries, (why, log))
        })
    }

    fn give_back_splits(&self, job: JobId, claimed: &[Claimed]) -> Result<()> {
        self.write("giving splits back", |db| give_back(db, self.moment(), job, claimed))
    }

    fn close_input(&self, job: JobId, root: &Root, again: bool) -> Result<bool> {
        self.write("closing a job's input", |db| close_input(db, job, root, again))
    }

    fn close_one_input(
        &self,
        job: JobId,
        input: u32,
        root: &Root,
        again: bool,
        end: Option<u64>,
    ) -> Result<bool> {
        self.write("closing a job's input", |db| close_one_input(db, job, input, root, again, end))
    }

    fn end_job(&self, job: JobId, state: JobState, why: &str) -> Result<bool> {
        self.write("ending a job", |db| end(db, self.moment(), job, state, why))
    }

    fn retry_job(&self, job: JobId) -> Result<()> {
        self.write("retrying a job", |db| retry(db, self.moment(), job))
    }

    fn forget_job(&self, job: JobId) -> Result<()> {
        self.write("forgetting a job", |db| forget(db, job))
    }

    fn notes(&self, kind: &str) -> Result<Vec<Note>> {
        self.read("reading notes", |db| notes::notes(db, kind))
    }

    fn set_note(&self, kind: &str, name: &str, value: Option<&str>) -> Result<()> {
        self.write("making a note", |db| notes::set(db, self.moment().wall, kind, name, value))
    }

    fn add_note(&self, kind: &str, name: &str, value: &str) -> Result<bool> {
        self.write("making a note", |db| notes::add(db, self.moment().wall, kind, name, value))
    }

    fn change_note(&self, kind: &str, name: &str, was: &str, to: Option<&str>) -> Result<bool> {
        self.write("changing a note", |db| notes::change(db, self.moment().wall, (kind, name), was, to))
    }

    fn seen(&self, rule: &str) -> Result<std::collections::HashMap<u64, String>> {
        self.read("reading what a rule has seen", |db| notes::seen(db, rule))
    }

    fn see(&self, seen: &[Seen]) -> Result<()> {
        self.write("recording what a rule has seen", |db| notes::see_all(db, seen))
    }

    fn forget_seen(&self, rule: &str) -> Result<()> {
        self.write("forgetting what a rule has seen", |db| notes::forget_seen(db, rule))
    }

    fn forget_inodes(&self, rule: &str, inodes: &[u64]) -> Result<()> {
        self.write("forgetting files that are gone", |db| notes::forget_inodes(db, rule, inodes))
    }
}
