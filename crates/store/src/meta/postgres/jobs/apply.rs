//! Changes of jobs that come with a commit.

use std::collections::{BTreeMap, BTreeSet};

use tokio_postgres::types::Type;

use super::super::connection::Query;
use super::super::transaction::Tx;
use super::super::{counters, reclaim, row};
use super::{Lock, hold_all, notes, primary, set_state, state_of};
use crate::error::ErrorKind;
use crate::meta::change::row::root_column;
use crate::meta::fault::{Outcome, refuse};
use crate::meta::jobs::{JobChange, JobId, JobState, MEASURED, job_holder, split_note, whole_note};
use crate::meta::{Change, SessionId};

/// Splits of a job that an attempt of this session still has: split → attempt.
type Current = BTreeMap<u64, u64>;

/// Applies them, in order; the session is known to be live.
pub(in super::super) fn apply(tx: &mut Tx<'_>, session: SessionId, changes: &[Change]) -> Outcome<()> {
    let changes: Vec<&JobChange> = changes
        .iter()
        .filter_map(|change| match change {
            Change::Job(change) => Some(change),
            _ => None,
        })
        .collect();
    let jobs: BTreeSet<JobId> = changes
        .iter()
        .filter_map(|change| match change {
            JobChange::Output { job, .. } | JobChange::Finish { job, .. } => Some(*job),
            JobChange::Publish { .. } => None,
        })
        .collect();
    for job in jobs {
        records(tx, session, job, &changes)?;
    }
    for change in changes {
        if let JobChange::Publish { job, why, made } = change {
            publish(tx, *job, why)?;
            if let Some(made) = made {
                notes::set(tx, MEASURED, &whole_note(*job), Some(made));
            }
        }
    }
    Ok(())
}

/// Records outputs and ends of attempts at splits of one job.
fn records(tx: &mut Tx<'_>, session: SessionId, job: JobId, changes: &[&JobChange]) -> Outcome<()> {
    let mut wanted = BTreeSet::new();
    for change in changes {
        if let JobChange::Output { job: of, split, .. } | JobChange::Finish { job: of, split, .. } = change
            && *of == job
        {
            wanted.insert(*split as i64);
        }
    }
    let mut current = current(tx, session, job, wanted.into_iter().collect())?;
    let id = job.0 as i64;
    // By split, attempt and name: the last one counts.
    let mut outputs = BTreeMap::new();
    let (mut ended, mut logs, mut attempts_ended): (Vec<i64>, Vec<Option<Vec<u8>>>, Vec<i64>) =
        Default::default();
    let (mut names, mut texts) = (Vec::new(), Vec::new());
    for change in changes {
        match change {
            JobChange::Output { job: of, split, attempt, name, root }
                if *of == job && current.get(split) == Some(attempt) =>
            {
                outputs.insert((*split, *attempt, name.as_slice()), root_column(root));
            }
            JobChange::Finish { job: of, split, attempt, log, measured }
                if *of == job && current.get(split) == Some(attempt) =>
            {
                // Outputs after the end of an attempt are ignored.
                current.remove(split);
                ended.push(*split as i64);
                attempts_ended.push(*attempt as i64);
                logs.push((!log.is_empty()).then(|| log.clone()));
                if let Some(measured) = measured {
                    names.push(split_note(job, split));
                    texts.push(measured.clone());
                }
            }
            _ => {}
        }
    }
    if !outputs.is_empty() {
        let (mut splits, mut attempts, mut sums, mut names, mut roots) =
            (Vec::new(), Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for ((split, attempt, name), root) in outputs {
            sums.push(row::output_sum([id, split as i64, attempt as i64], name, root.as_deref()));
            splits.push(split as i64);
            attempts.push(attempt as i64);
            names.push(name.to_vec());
            roots.push(root);
        }
        hold_all(tx, &job_holder(job), roots.iter().flatten().cloned().collect());
        let sql = "INSERT INTO @job_output (job, split, attempt, sum, name, root) \
                   SELECT $1, * FROM unnest($2::int8[], $3::int8[], $4::int4[], $5::bytea[], $6::bytea[]) \
                   ON CONFLICT (job, split, attempt, name) DO UPDATE SET sum = excluded.sum, root = excluded.root";
        let query = Query::new(sql).int(id).ints(splits).ints(attempts).with(sums, Type::INT4_ARRAY);
        tx.later(query.with(names, Type::BYTEA_ARRAY).with(roots, Type::BYTEA_ARRAY));
    }
    if !ended.is_empty() {
        primary::remove(tx, job, &ended);
        // If there were two attempts at a split, the other one's outputs are ignored: the split has
        // this one's number now.
        let sql = "UPDATE @job_split s SET state = 2, why = '', log = f.log, attempt = f.attempt, session = $5 \
                   FROM unnest($2::int8[], $3::bytea[], $4::int8[]) AS f (number, log, attempt) \
                   WHERE s.job = $1 AND s.number = f.number";
        let query = Query::new(sql).int(id).ints(ended).with(logs, Type::BYTEA_ARRAY).ints(attempts_ended);
        tx.later(query.int(session.0 as i64));
    }
    if !names.is_empty() {
        notes::set_all(tx, MEASURED, names, texts);
    }
    Ok(())
}

/// Which of these splits are still the session's, locked.
fn current(tx: &mut Tx<'_>, session: SessionId, job: JobId, wanted: Vec<i64>) -> Outcome<Current> {
    let running = "SELECT 1 FROM @job WHERE id = $1 AND state = 1 FOR SHARE";
    if tx.one(Query::new(running).int(job.0 as i64))?.first().is_none() {
        return Ok(Current::new());
    }
    primary::of_session(tx, session, job, wanted)
}

fn publish(tx: &mut Tx<'_>, job: JobId, why: &str) -> Outcome<()> {
    // With the job's row locked its splits do not change, and the next statement sees all earlier
    // changes.
    let state = state_of(tx, job, Lock::Update)?;
    let unfinished = "SELECT EXISTS (SELECT 1 FROM @job_split WHERE job = $1 AND state < 2)";
    let answer = tx.one(Query::new(unfinished).int(job.0 as i64))?;
    if state != JobState::Running || counters::row(&answer)?.try_get(0)? {
        let why = format!("job {job} was cancelled, or another process has taken it over");
        return Err(refuse(ErrorKind::Fenced, why));
    }
    set_state(tx, job, JobState::Done, why);
    // From now on the tree keeps the contents.
    reclaim::let_go(tx, &job_holder(job), None);
    tx.later(Query::new("DELETE FROM @job_output WHERE job = $1").int(job.0 as i64));
    clear_inputs(tx, job)
}

/// Removes the roots of a job's inputs. Its rows are written whole, as they end with a checksum.
fn clear_inputs(tx: &mut Tx<'_>, job: JobId) -> Outcome<()> {
    let id = job.0 as i64;
    let answer = tx.one(Query::new("SELECT number, path FROM @job_input WHERE job = $1").int(id))?;
    let (mut numbers, mut sums) = (Vec::new(), Vec::new());
    for found in &answer.rows {
        let (number, path): (i32, &[u8]) = (found.try_get(0)?, found.try_get(1)?);
        sums.push(row::input_sum(id, number.into(), path, None));
        numbers.push(number);
    }
    let sql = "UPDATE @job_input i SET root = NULL, sum = n.sum FROM unnest($2::int4[], $3::int4[]) AS n (number, sum) \
               WHERE i.job = $1 AND i.number = n.number";
    tx.later(Query::new(sql).int(id).with(numbers, Type::INT4_ARRAY).with(sums, Type::INT4_ARRAY));
    Ok(())
}
