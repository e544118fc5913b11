//! Claiming splits, and giving them back.

use tokio_postgres::types::Type;

use super::super::connection::Query;
use super::super::transaction::Tx;
use super::super::{counters, sessions};
use super::{Lock, primary, read, state_of};
use crate::meta::SessionId;
use crate::meta::fault::Outcome;
use crate::meta::jobs::{Claimed, Claims, GIVEN_UP, JobId, JobState};

/// SQL for a session that may still write, as `s.session`.
macro_rules! alive {
    () => {
        concat!(
            "EXISTS (SELECT 1 FROM @session o WHERE o.id = s.session AND ",
            sessions::lease_until!("o."),
            " > ",
            sessions::now!(),
            ")"
        )
    };
}

const BEGIN: &str =
    concat!("UPDATE @job SET state = 1, changed = ", sessions::now!(), " WHERE id = $1 AND state = 0");

const GIVE_UP: &str = concat!(
    "WITH dead AS (SELECT s.number FROM @job_split s WHERE s.job = $1 AND s.state = 1 AND s.tries >= $2 AND NOT ",
    alive!(),
    " ORDER BY s.number FOR UPDATE SKIP LOCKED) \
     UPDATE @job_split s SET state = 3, why = $3 FROM dead WHERE s.job = $1 AND s.number = dead.number"
);

const CLAIM: &str = concat!(
    "WITH next AS (SELECT s.number FROM @job_split s WHERE s.job = $1 AND s.state < 2 AND (s.state = 0 OR NOT ",
    alive!(),
    ") AND ($4::int8[] IS NULL OR s.number = ANY ($4)) ORDER BY s.number LIMIT $3 FOR UPDATE SKIP LOCKED) \
     UPDATE @job_split s SET state = 1, attempt = s.attempt + 1, tries = s.tries + 1, session = $2 FROM next \
     WHERE s.job = $1 AND s.number = next.number RETURNING s.number, s.input, s.first, s.after, s.attempt"
);

pub(super) fn claim(
    tx: &mut Tx<'_>,
    session: SessionId,
    job: JobId,
    limit: usize,
    tries: u32,
    only: Option<&[u64]>,
) -> Outcome<Claims> {
    sessions::require_live(tx, session)?;
    let id = job.0 as i64;
    // Changed before the row is locked for share: two transactions that both had it so could not
    // both change it.
    tx.later(Query::new(BEGIN).int(id));
    if state_of(tx, job, Lock::Share)? != JobState::Running {
        return Ok(Claims::default());
    }
    tx.later(Query::new(GIVE_UP).int(id).int(tries.into()).text(GIVEN_UP));
    let only: Option<Vec<i64>> = only.map(|only| only.iter().map(|&number| number as i64).collect());
    let query = Query::new(CLAIM).int(id).int(session.0 as i64);
    let query = query.int(i64::try_from(limit).unwrap_or(i64::MAX)).with(only, Type::INT8_ARRAY);
    let answer = tx.one(query)?;
    let mut claimed = Vec::with_capacity(answer.rows.len());
    for row in &answer.rows {
        let (number, attempt): (i64, i64) = (row.try_get(0)?, row.try_get(4)?);
        claimed.push(Claimed { number: number as u64, range: read::range(row, 1)?, attempt: attempt as u64 });
    }
    claimed.sort_unstable_by_key(|split| split.number);
    // Leftovers of earlier attempts never became outputs.
    let again: Vec<i64> =
        claimed.iter().filter(|split| split.attempt > 1).map(|split| split.number as i64).collect();
    if !again.is_empty() {
        primary::remove(tx, job, &again);
        let sql = "DELETE FROM @job_output WHERE job = $1 AND split = ANY ($2)";
        tx.later(Query::new(sql).int(id).ints(again));
    }
    let sql = "SELECT count(*) FROM @job_split WHERE job = $1 AND state = 1 AND session <> $2";
    let answer = tx.one(Query::new(sql).int(id).int(session.0 as i64))?;
    let elsewhere: i64 = counters::row(&answer)?.try_get(0)?;
    Ok(Claims { claimed, elsewhere: elsewhere as u64, open: true })
}

pub(super) fn fail(
    tx: &mut Tx<'_>,
    job: JobId,
    claimed: &Claimed,
    tries: u32,
    (why, log): (&str, &[u8]),
) -> Outcome<bool> {
    let Some(attempt) = primary::leave(tx, job, claimed)? else { return Ok(false) };
    let sql = "UPDATE @job_split SET state = CASE WHEN tries >= $4 THEN 3 ELSE 0 END, why = $5, log = $6 \
               WHERE job = $1 AND number = $2 AND attempt = $3 AND state = 1 RETURNING state = 3";
    let query = Query::new(sql).int(job.0 as i64).int(claimed.number as i64).int(attempt as i64);
    // A text in PostgreSQL cannot have a zero byte.
    let answer = tx.one(query.int(tries.into()).text(&why.replace('\0', " ")).bytes(log.to_vec()))?;
    Ok(match answer.first() {
        Some(row) => row.try_get(0)?,
        None => false,
    })
}

pub(super) fn give_back(tx: &mut Tx<'_>, job: JobId, claimed: &[Claimed]) -> Outcome<()> {
    // Always in this order, so that two that give back cannot deadlock.
    let mut claimed = claimed.to_vec();
    claimed.sort_unstable_by_key(|split| split.number);
    for split in &claimed {
        if let Some(attempt) = primary::leave(tx, job, split)? {
            let sql = "UPDATE @job_split SET state = 0, tries = tries - 1 \
                       WHERE job = $1 AND number = $2 AND attempt = $3 AND state = 1";
            tx.later(Query::new(sql).int(job.0 as i64).int(split.number as i64).int(attempt as i64));
        }
    }
    Ok(())
}
