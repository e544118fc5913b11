//! The index against the footers it is made from. It is a cache: errors in it cost time, and never
//! data.

use outrigger_format::{PackId, Place};

use super::is_damage;
use super::report::{CheckReport, Finding, FindingKind};
use crate::error::Result;
use crate::meta::PackRow;
use crate::store::Store;

/// Reports runs that opening the store dropped already; returns their number.
pub(super) fn check_at_open(store: &Store, report: &mut CheckReport) -> u64 {
    let dropped = store.index.stats().runs_dropped;
    if dropped > 0 {
        let what = format!("index: {dropped} runs were damaged; they are made again from the packs' footers");
        let mut finding = Finding::damage(FindingKind::Index, what);
        finding.mendable = true;
        report.findings.push(finding);
    }
    dropped
}

/// Checks that the index finds every chunk of every committed pack at the footer's place. `before`
/// runs had been dropped when the check began: lookups drop those that fail.
pub(super) fn check_against_footers(
    store: &Store,
    rows: &[PackRow],
    before: u64,
    report: &mut CheckReport,
) -> Result<()> {
    // Some have been committed by others since the store was opened, which covered all that there
    // were.
    match store.refresh_index() {
        // Named where the packs are checked.
        Err(error) if is_damage(&error) => {}
        done => done?,
    }
    let mut lost: Vec<PackId> = Vec::new();
    let mut candidates = Vec::new();
    for row in rows {
        let footer = match store.packs.read_footer(row.id) {
            Ok(footer) => footer,
            Err(error) if is_damage(&error) => continue,
            Err(error) => return Err(error),
        };
        let mut slot = 0;
        for batch in footer.fingerprints().chunks(4096) {
            store.index.lookup_batch(batch, &mut candidates);
            for found in &candidates {
                let place = Place { pack: row.id, slot };
                if lost.last() != Some(&row.id) && !found.iter().any(|candidate| candidate == place) {
                    lost.push(row.id);
                }
                slot += 1;
            }
        }
    }
    let dropped = store.index.stats().runs_dropped - before;
    if dropped > 0 {
        store.index.cover(&rows.iter().map(|row| row.id).collect::<Vec<_>>())?;
    }
    if !lost.is_empty() || dropped > 0 {
        let what = format!(
            "index: chunks of {} packs are not found ({dropped} runs damaged), the first is pack {}",
            lost.len(),
            lost.first().map_or_else(|| "none".to_string(), ToString::to_string)
        );
        let mut finding = Finding::damage(FindingKind::Index, what);
        finding.mendable = true;
        report.findings.push(finding);
    }
    Ok(())
}
