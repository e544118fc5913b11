//! The last complete run of the collector, and what it freed: recorded in the database for
//! `status`.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::report::GcReport;
use crate::error::Result;
use crate::meta::Meta;

/// The kind of its registry record.
const KIND: &str = "gc";
const NAME: &str = "last";
/// … and that of the run that is under way.
const RUNNING: &str = "running";

/// A run that is under way, as it has noted itself.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Collecting {
    /// Its session. One that is over has left its note behind.
    pub session: u64,
    /// Its present phase.
    pub phase: String,
    /// When it began, nanoseconds since 1970 by the database's clock.
    pub began: u64,
    /// How long it has been under way, nanoseconds.
    #[serde(skip)]
    pub age: u64,
}

impl Collecting {
    /// Records the phase of the run of `session`. The run goes on even if that fails.
    pub(super) fn note(meta: &dyn Meta, session: u64, began: u64, phase: &str) {
        let note = Self { session, phase: phase.to_owned(), began, age: 0 };
        if let (Some(jobs), Ok(text)) = (meta.jobs(), serde_json::to_string(&note)) {
            let _ = jobs.set_note(KIND, RUNNING, Some(text.as_str()));
        }
    }

    /// Nothing is under way any more.
    pub(super) fn ended(meta: &dyn Meta) {
        if let Some(jobs) = meta.jobs() {
            let _ = jobs.set_note(KIND, RUNNING, None);
        }
    }

    /// Reads the last record, `now` by the database's clock.
    pub(crate) fn read(meta: &dyn Meta, now: u64) -> Result<Option<Self>> {
        let Some(jobs) = meta.jobs() else { return Ok(None) };
        let note = jobs.notes(KIND)?.into_iter().find(|note| note.name == RUNNING);
        let run: Option<Self> = note.and_then(|note| serde_json::from_str(&note.value).ok());
        Ok(run.map(|run| Self { age: now.saturating_sub(run.began), ..run }))
    }
}

/// A run that has reclaimed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct LastGc {
    /// When it ended, nanoseconds since 1970 by the database's clock.
    #[serde(skip)]
    pub ended: u64,
    /// How long it took, milliseconds.
    pub took_ms: u64,
    /// Packs that it removed.
    pub packs_removed: u64,
    /// Bytes freed: those of the removed packs, less those that were copied out of them.
    pub bytes_freed: u64,
    /// Packs that could not be read, and were left alone.
    pub packs_unreadable: u64,
}

impl LastGc {
    pub(super) fn of(report: &GcReport, took: Duration) -> Self {
        Self {
            ended: 0,
            took_ms: took.as_millis() as u64,
            packs_removed: report.packs_unlinked,
            bytes_freed: report.bytes_freed.saturating_sub(report.bytes_copied),
            packs_unreadable: report.unreadable.len() as u64,
        }
    }

    /// Notes it. The run is through whether or not that can be done.
    pub(super) fn note(self, meta: &dyn Meta) {
        if let (Some(jobs), Ok(text)) = (meta.jobs(), serde_json::to_string(&self)) {
            let _ = jobs.set_note(KIND, NAME, Some(text.as_str()));
        }
    }

    /// The last run that was noted. One of a later program that this one does not understand counts as none.
    pub(crate) fn read(meta: &dyn Meta) -> Result<Option<Self>> {
        let Some(jobs) = meta.jobs() else { return Ok(None) };
        let note = jobs.notes(KIND)?.into_iter().find(|note| note.name == NAME);
        Ok(note
            .and_then(|note| Some(Self { ended: note.changed, ..serde_json::from_str(&note.value).ok()? })))
    }
}
