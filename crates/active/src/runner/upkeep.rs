//! Questions and chores about jobs beside running them: their runners, failed splits, deletion of
//! old jobs.

use std::time::Duration;

use outrigger_store::meta::jobs::{JobId, JobState, SplitState};
use outrigger_store::meta::{Role, SessionOwner, SessionRow, is_gone};
use outrigger_store::tree::StorePath;
use outrigger_store::{ErrorKind, Result, Store};

use super::SetAside;
use crate::job::spec::Spec;

/// Pause between the two looks at a job's sessions.
const LOOK_AGAIN: Duration = Duration::from_millis(200);

/// The splits of a job that were set aside.
///
/// # Errors
/// Those of the database.
pub fn set_aside(store: &Store, job: JobId) -> Result<Vec<SetAside>> {
    let jobs = store.jobs();
    let inputs = jobs.inputs(job)?;
    let spec = jobs.job(job)?.and_then(|row| Spec::decode(&row.spec).ok());
    let by_host = spec.map(|spec| spec.by_host).unwrap_or_default();
    let aside = jobs.splits(job)?.into_iter().filter(|split| split.state == SplitState::SetAside);
    aside
        .map(|split| {
            let input = split.range.input.and_then(|input| inputs.get(input as usize));
            let input = input.map(|input| StorePath::parse(&input.path)).transpose()?;
            let (from, to) = (split.range.from, split.range.to);
            let held_by = by_host.get(split.number as usize).map(|held| held.host.clone());
            Ok(SetAside { split: split.number, input, from, to, held_by, why: split.why })
        })
        .collect()
}

/// The session of a process that runs a part of this job, if there is one.
///
/// # Errors
/// Those of the database.
pub fn runner_of(store: &Store, job: JobId) -> Result<Option<SessionOwner>> {
    let owners = store.live_sessions(works)?.into_iter().map(|row| row.owner);
    Ok(owners.into_iter().find(|owner| owner.role == Role::Job(job)))
}

/// Those of these jobs that have begun but have no runner any more: their processes have ended
/// without a word. This only reads.
///
/// # Errors
/// Those of the database.
pub fn left_of(store: &Store, mut jobs: Vec<JobId>) -> Result<Vec<JobId>> {
    let locks = store.locks_dir();
    for look in 0..2 {
        if jobs.is_empty() {
            return Ok(jobs);
        }
        // Between its last split and the end a runner has no session, for a moment.
        if look > 0 {
            outrigger_clock::sleep(LOOK_AGAIN);
        }
        let sessions = store.meta.sessions()?;
        jobs.retain(|job| {
            !sessions.iter().any(|row| row.owner.role == Role::Job(*job) && !is_gone(row, Some(&locks)))
        });
    }
    let mut left = Vec::new();
    for job in jobs {
        let row = store.jobs().job(job)?;
        left.extend(row.filter(|row| row.state == JobState::Running).map(|row| row.id));
    }
    Ok(left)
}

fn works(session: &SessionRow) -> bool {
    matches!(session.owner.role, Role::Job(_) | Role::Agent(_))
}

/// Ends the sessions of runners that are gone, so that their claims are free.
pub(crate) fn fence_the_dead(store: &Store) -> Result<()> {
    store.live_sessions(works).map(drop)
}

/// Deletes jobs that failed or were cancelled `age` ago or earlier: until then they can be retried,
/// and their finished splits take room. Returns how many.
///
/// # Errors
/// Those of the database.
pub fn forget_ended(store: &Store, age: Duration) -> Result<u64> {
    let (jobs, now) = (store.jobs(), store.meta.now()?);
    let mut forgotten = 0;
    for row in jobs.jobs(usize::MAX)? {
        let is_old = u128::from(now.saturating_sub(row.changed)) >= age.as_nanos();
        if !is_old || !matches!(row.state, JobState::Failed | JobState::Cancelled) {
            continue;
        }
        match jobs.forget_job(row.id) {
            Ok(()) => forgotten += 1,
            // Another client has just retried or deleted it.
            Err(error) if matches!(error.kind(), ErrorKind::Busy | ErrorKind::NotFound) => {}
            Err(error) => return Err(error),
        }
    }
    crate::written::sweep(store)?;
    Ok(forgotten)
}
