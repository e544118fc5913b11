//! Claiming splits, and giving them back.

use tokio_postgres::types::Type;

use super::super::connection::Query;
use super::super::sealing::Subject;
use super::super::transaction::Tx;
use super::super::{counters, sessions};
use super::{PostgresJobs, read};
use crate::meta::SessionId;
use crate::meta::fault::Outcome;
use crate::meta::jobs::rules::{JobRows as _, Lock};
use crate::meta::jobs::{Claimed, Claims, GIVEN_UP, JobId, JobState, no_job};

/// SQL for a session that may still write: `s.session`, or that of another column.
macro_rules! alive {
    () => {
        alive!("session")
    };
    ($column:literal) => {
        concat!(
            "EXISTS (SELECT 1 FROM @session o WHERE o.id = s.",
            $column,
            " AND ",
            sessions::lease_until!("o."),
            " > ",
            sessions::now!(),
            ")"
        )
    };
}

const BEGIN: &str =
    concat!("UPDATE @job SET state = 1, changed = ", sessions::now!(), " WHERE id = $1 AND state = 0");

/// Where the newest attempt's session is over, a live primary has the split alone.
const HAND_BACK: &str = concat!(
    "WITH back AS (SELECT s.number FROM @job_split s WHERE s.job = $1 AND s.state = 1 \
     AND s.primary_session IS NOT NULL AND NOT ",
    alive!(),
    " AND ",
    alive!("primary_session"),
    " ORDER BY s.number FOR UPDATE SKIP LOCKED) \
     UPDATE @job_split s SET session = s.primary_session FROM back \
     WHERE s.job = $1 AND s.number = back.number"
);

const GIVE_UP: &str = concat!(
    "WITH dead AS (SELECT s.number FROM @job_split s WHERE s.job = $1 AND s.state = 1 AND s.tries >= $2 AND NOT ",
    alive!(),
    " ORDER BY s.number FOR UPDATE SKIP LOCKED) \
     UPDATE @job_split s SET state = 3, why = $3, primary_attempt = NULL, primary_session = NULL FROM dead WHERE s.job = $1 AND s.number = dead.number"
);

const CLAIM: &str = concat!(
    "WITH next AS (SELECT s.number FROM @job_split s WHERE s.job = $1 AND s.state < 2 AND (s.state = 0 OR NOT ",
    alive!(),
    ") AND ($4::int8[] IS NULL OR s.number = ANY ($4)) ORDER BY s.number LIMIT $3 FOR UPDATE SKIP LOCKED) \
     UPDATE @job_split s SET state = 1, attempt = s.attempt + 1, tries = s.tries + 1, session = $2, \
     primary_attempt = NULL, primary_session = NULL FROM next \
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
    if PostgresJobs(tx).state(job, Lock::Share)?.ok_or_else(|| no_job(job))? != JobState::Running {
        return Ok(Claims::default());
    }
    tx.later(Query::new(HAND_BACK).int(id));
    tx.later(Query::new(GIVE_UP).int(id).int(tries.into()).text(Subject::SplitWhy { job: id }, GIVEN_UP));
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
        let sql = "DELETE FROM @job_output WHERE job = $1 AND split = ANY ($2)";
        tx.later(Query::new(sql).int(id).ints(again));
    }
    let sql = "SELECT count(*) FROM @job_split WHERE job = $1 AND state = 1 AND session <> $2";
    let answer = tx.one(Query::new(sql).int(id).int(session.0 as i64))?;
    let elsewhere: i64 = counters::row(&answer)?.try_get(0)?;
    Ok(Claims { claimed, elsewhere: elsewhere as u64, open: true })
}
