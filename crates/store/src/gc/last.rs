//! When the collector last came to its end, and what that gave back, as `status` shows it.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::report::GcReport;
use crate::error::Result;
use crate::meta::records::{Record, Registered, Registry};
use crate::meta::{Meta, SessionId};
use crate::parity::Reach;

/// A run that is under way.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Collecting {
    /// Its session. A run that was killed leaves its record behind.
    pub session: SessionId,
    /// What it is at.
    pub phase: String,
    /// When it began, nanoseconds since 1970 by the database's clock.
    pub began: u64,
    /// How long it has been under way, nanoseconds.
    #[serde(skip)]
    pub age: u64,
}

impl Record for Collecting {
    const KIND: &'static str = "collecting";

    fn name(&self) -> String {
        String::new()
    }
}

impl Collecting {
    /// The run that is under way, or was when it was killed; `now` by the database's clock.
    pub(crate) fn read(meta: &dyn Meta, now: u64) -> Result<Option<Self>> {
        let run = Registry::of(meta).find(|_| true)?.map(|read| read.record);
        Ok(run.map(|run: Self| Self { age: now.saturating_sub(run.began), ..run }))
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
    /// How far parity reached then, if the store's policy asks for it.
    pub parity: Option<Reach>,
}

impl Record for LastGc {
    const KIND: &'static str = "last-gc";

    fn name(&self) -> String {
        String::new()
    }
}

impl LastGc {
    pub(super) fn of(report: &GcReport, took: Duration) -> Self {
        Self {
            ended: 0,
            took_ms: took.as_millis() as u64,
            packs_removed: report.packs_unlinked,
            bytes_freed: report.bytes_freed.saturating_sub(report.bytes_copied),
            packs_unreadable: report.unreadable.len() as u64,
            parity: report.parity.is_on.then(|| report.parity.reach()),
        }
    }

    /// The last run.
    pub(crate) fn read(meta: &dyn Meta) -> Result<Option<Self>> {
        let last: Option<Registered<Self>> = Registry::of(meta).find(|_| true)?;
        Ok(last.map(|read| Self { ended: read.changed, ..read.record }))
    }
}
