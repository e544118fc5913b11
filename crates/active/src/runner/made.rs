//! A job's results, recorded in the transaction that publishes it, so that all that ran it or
//! waited for it report the same.

use outrigger_store::meta::jobs::{JobId, JobState};
use outrigger_store::tree::StorePath;
use outrigger_store::{Result, Store};
use serde::{Deserialize, Serialize};

/// Files at most that are recorded by name.
const NAMED_MAX: usize = 1000;

/// Files that a job made visible.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Made {
    /// How many.
    pub files: u64,
    /// Their lengths together.
    pub bytes: u64,
    /// The first thousand of those whose names are text.
    named: Vec<(String, u64)>,
}

impl Made {
    /// Of these files.
    pub(super) fn of(files: &[(StorePath, u64)]) -> Self {
        let text = |(path, len): &(StorePath, u64)| Some((String::from_utf8(path.to_bytes()).ok()?, *len));
        Self {
            files: files.len() as u64,
            bytes: files.iter().map(|(_, len)| len).sum(),
            named: files.iter().filter_map(text).take(NAMED_MAX).collect(),
        }
    }

    pub(super) fn encode(&self) -> String {
        serde_json::to_string(self).expect("names and numbers serialise")
    }

    /// Recorded files, with their lengths.
    pub fn named(&self) -> Vec<(StorePath, u64)> {
        let path = |(path, len): &(String, u64)| Some((StorePath::parse(path.as_bytes()).ok()?, *len));
        self.named.iter().filter_map(path).collect()
    }
}

/// The recorded results of a finished job.
///
/// # Errors
/// Those of the database.
pub fn made(store: &Store, job: JobId, state: JobState) -> Result<Option<Made>> {
    if state != JobState::Done {
        return Ok(None);
    }
    // What another version wrote otherwise is not understood.
    Ok(store.jobs().made(job)?.and_then(|text| serde_json::from_str(&text).ok()))
}
