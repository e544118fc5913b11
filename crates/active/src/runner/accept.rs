//! Whether this process may run a job now, and with what.

use std::sync::Arc;

use outrigger_store::meta::jobs::{JobRow, JobState};
use outrigger_store::{Error, ErrorKind, Result, Store};

use super::RunOptions;
use super::launch::Inputs;
use crate::job::spec::Spec;
use crate::sandbox::Sandbox;
use crate::trust::refused_as_root;
use crate::written;

/// A job that may run here.
pub(super) struct Accepted {
    pub spec: Spec,
    pub inputs: Arc<Inputs>,
    pub sandbox: Sandbox,
}

/// Checks a job's submitter, inputs and sandbox. A job that cannot be run again fails.
///
/// # Errors
/// As [`super::run`], and `Busy` for a job that only agents of another host can run now.
pub(super) fn accept(
    store: &Arc<Store>,
    row: &JobRow,
    options: &RunOptions<'_>,
    is_fed: bool,
) -> Result<Accepted> {
    let (jobs, job) = (store.jobs(), row.id);
    let mut spec = Spec::decode(&row.spec)?;
    let rows = jobs.inputs(job)?;
    let admitted = options.trust.admit(store, row, &rows, &mut spec);
    let admitted = admitted.map_err(|error| error.context(format!("job {job}")))?;
    spec.submitter = admitted.submitter;
    let inputs = Arc::new(Inputs::load(store, job, &spec, rows)?);
    if spec.prints() && !options.prints {
        let why = "its results go to the process that made it";
        return Err(Error::new(
            ErrorKind::Invalid,
            format!("job {job} cannot be run here: {why}; start it again"),
        ));
    }
    if inputs.paths.is_empty() && !is_fed {
        let why = "what was written is gone with the process that read it";
        jobs.end_job(job, JobState::Failed, why)?;
        return Err(Error::new(ErrorKind::Invalid, format!("job {job} cannot be run again: {why}")));
    }
    if let Some(written) = spec.written
        && jobs.split(job, 0)?.is_some_and(|split| split.range.is_open())
        && !written::may_begin(store, written, &spec, &written::Access::find(store, written, &spec)?)?
    {
        let host = written::host_of(store, written)?.unwrap_or_else(|| "another host".to_string());
        let why = format!(
            "job {job} reads a file that is still being written in a mount on {host}: agents there run it (with the same cache directory), and anybody once some of it is stored, or it is closed"
        );
        return Err(Error::new(ErrorKind::Busy, why));
    }
    let sandbox = Sandbox::find_for(&spec)?.for_submitter(admitted.runs_as.as_ref())?.idle(options.idle);
    if sandbox.is_root() && !options.trust.allow_root {
        return Err(refused_as_root().context(format!("job {job}")));
    }
    Ok(Accepted { spec, inputs, sandbox })
}
