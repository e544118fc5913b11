//! Speculative attempts at slow splits. The split's row has the newer attempt, a registry record
//! the primary. Both are changed with the row locked. The record is read by a statement of its own
//! after that, so that it belongs to the row.

use std::collections::BTreeMap;

use tokio_postgres::types::Type;

use super::super::connection::Query;
use super::super::sessions;
use super::super::transaction::Tx;
use super::{Lock, notes, read, state_of};
use crate::meta::SessionId;
use crate::meta::fault::Outcome;
use crate::meta::jobs::{Claimed, JobId, JobState, PRIMARY, primary_of, primary_text, split_note};

/// A split that is running, its row locked.
struct Running {
    attempt: u64,
    holder: SessionId,
    primary: Option<(u64, SessionId)>,
}

const LOCK: &str = "SELECT number, attempt, session FROM @job_split WHERE job = $1 AND number = ANY ($2) AND state = 1 \
                    ORDER BY number FOR UPDATE";
const PRIMARIES: &str = "SELECT name, value FROM @job_note WHERE kind = $1 AND name = ANY ($2)";

fn names(job: JobId, splits: &[i64]) -> Vec<String> {
    splits.iter().map(|split| split_note(job, split)).collect()
}

/// Those of these splits that are running.
fn running(tx: &mut Tx<'_>, job: JobId, splits: Vec<i64>) -> Outcome<BTreeMap<u64, Running>> {
    let named = names(job, &splits);
    let primaries = Query::new(PRIMARIES).text(PRIMARY).with(named, Type::TEXT_ARRAY);
    let queries = vec![Query::new(LOCK).int(job.0 as i64).ints(splits), primaries];
    let answers = tx.run(queries)?;
    let mut primaries = BTreeMap::new();
    for row in &answers[1].rows {
        let (name, value): (String, String) = (row.try_get(0)?, row.try_get(1)?);
        primaries.insert(name, primary_of(&value));
    }
    let mut found = BTreeMap::new();
    for row in &answers[0].rows {
        let (number, attempt, session): (i64, i64, i64) = (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?);
        let primary = primaries.get(&split_note(job, number)).copied().flatten();
        let (attempt, holder) = (attempt as u64, SessionId(session as u64));
        found.insert(number as u64, Running { attempt, holder, primary });
    }
    Ok(found)
}

/// Attempts of a session at these splits that still count: split → attempt; rows locked.
pub(super) fn of_session(
    tx: &mut Tx<'_>,
    session: SessionId,
    job: JobId,
    splits: Vec<i64>,
) -> Outcome<BTreeMap<u64, u64>> {
    let mut current = BTreeMap::new();
    for (number, split) in running(tx, job, splits)? {
        match split.primary {
            Some((primary, of)) if of == session => current.insert(number, primary),
            _ if split.holder == session => current.insert(number, split.attempt),
            _ => continue,
        };
    }
    Ok(current)
}

/// Removes notes of primary attempts at these splits.
pub(super) fn remove(tx: &mut Tx<'_>, job: JobId, splits: &[i64]) {
    let sql = "DELETE FROM @job_note WHERE kind = $1 AND name = ANY ($2)";
    tx.later(Query::new(sql).text(PRIMARY).with(names(job, splits), Type::TEXT_ARRAY));
}

/// Removes those at all splits of a job.
pub(super) fn remove_all(tx: &mut Tx<'_>, job: JobId) {
    notes::remove_below(tx, PRIMARY, &split_note(job, ""));
}

fn is_live(tx: &mut Tx<'_>, session: SessionId) -> Outcome<bool> {
    let sql = concat!(
        "SELECT 1 FROM @session WHERE id = $1 AND ",
        sessions::lease_until!(""),
        " > ",
        sessions::now!()
    );
    Ok(tx.one(Query::new(sql).int(session.0 as i64))?.first().is_some())
}

/// See [`Jobs::claim_beside`](crate::meta::jobs::Jobs::claim_beside).
pub(super) fn claim_beside(
    tx: &mut Tx<'_>,
    session: SessionId,
    job: JobId,
    split: u64,
    beside: u64,
) -> Outcome<Option<Claimed>> {
    sessions::require_live(tx, session)?;
    if state_of(tx, job, Lock::Share)? != JobState::Running {
        return Ok(None);
    }
    let Some(found) = running(tx, job, vec![split as i64])?.remove(&split) else { return Ok(None) };
    // A newer attempt may have failed, and left the split to its primary.
    let token = match found.primary {
        Some((primary, of)) if of == found.holder => primary,
        Some(_) => return Ok(None),
        None => found.attempt,
    };
    if found.attempt != beside || found.holder == session || !is_live(tx, found.holder)? {
        return Ok(None);
    }
    let sql = "SELECT number, input, first, after FROM @job_split WHERE job = $1 AND number = $2";
    let answer = tx.one(Query::new(sql).int(job.0 as i64).int(split as i64))?;
    let range = read::range(super::super::counters::row(&answer)?, 1)?;
    if range.is_open() {
        return Ok(None);
    }
    notes::set(tx, PRIMARY, &split_note(job, split), Some(&primary_text(token, found.holder)));
    let sql = "UPDATE @job_split SET attempt = $3, session = $4 WHERE job = $1 AND number = $2";
    let attempt = found.attempt + 1;
    tx.later(Query::new(sql).int(job.0 as i64).int(split as i64).int(attempt as i64).int(session.0 as i64));
    Ok(Some(Claimed { number: split, range, attempt }))
}

/// Removes an attempt from its split. Returns the number of the split's newest attempt when this
/// was the only one, so that the caller must act on the split. `None` when another attempt has the
/// split, or this one had it no more.
pub(super) fn leave(tx: &mut Tx<'_>, job: JobId, claimed: &Claimed) -> Outcome<Option<u64>> {
    let number = claimed.number as i64;
    let Some(found) = running(tx, job, vec![number])?.remove(&claimed.number) else { return Ok(None) };
    let is_newest = found.attempt == claimed.attempt;
    let Some((primary, of)) = found.primary else { return Ok(is_newest.then_some(found.attempt)) };
    if !is_newest && primary != claimed.attempt {
        return Ok(None);
    }
    if is_newest && of != found.holder && is_live(tx, of)? {
        // The primary goes on; its token stays what it was.
        let sql = "UPDATE @job_split SET session = $3 WHERE job = $1 AND number = $2";
        tx.later(Query::new(sql).int(job.0 as i64).int(number).int(of.0 as i64));
        return Ok(None);
    }
    remove(tx, job, &[number]);
    // The newest goes on, unless it has left before.
    Ok((is_newest || of == found.holder).then_some(found.attempt))
}
