//! Leftovers: packs of ended sessions, objects of dead packs, objects without a row (rules 15 and
//! 22).
//!
//! All of it may be done by anyone, any number of times: nothing here needs the collector's lease.

use outrigger_format::PackId;

use super::report::{GcOptions, GcReport};
use crate::error::Result;
use crate::meta::{PackRow, PackState, SessionKind, is_gone};
use crate::stale;
use crate::store::Store;

/// Removes the objects of packs that have been dead for the grace period, and then their rows. A
/// row whose session is not over stays. So does a row whose object another database has made under
/// the same number, with that object: see [`crate::stale`].
pub(super) fn unlink_dead(
    store: &Store,
    rows: &[PackRow],
    options: &GcOptions,
    report: &mut GcReport,
) -> Result<()> {
    let now = store.meta.now()?;
    let grace = options.grace_secs.saturating_mul(1_000_000_000);
    let (mut gone, mut waiting) = (Vec::new(), 0);
    for row in rows.iter().filter(|row| row.state == PackState::Dead) {
        if row.dead_since.saturating_add(grace) > now {
            waiting += 1;
            continue;
        }
        if let Some(len) = store.backend.len(row.id)? {
            if stale::is_anothers(store, row)? {
                continue;
            }
            if !options.dry_run {
                store.backend.remove(row.id)?;
            }
            report.packs_unlinked += 1;
            report.bytes_freed += len;
        }
        gone.push(row.id);
    }
    report.packs_waiting = waiting;
    if options.dry_run || gone.is_empty() {
        return Ok(());
    }
    store.index.remove_packs(&gone);
    store.meta.forget_packs(&gone)
}

/// Removes `strays`: objects without a row that are not sealed, which a fenced writer made late.
/// Rows come before objects. So an object without a row that was listed before the rows were read
/// was swept. A sealed one is never removed for lack of a row: see [`crate::stale`].
pub(super) fn remove_strays(
    store: &Store,
    strays: &[PackId],
    options: &GcOptions,
    report: &mut GcReport,
) -> Result<()> {
    for &stray in strays {
        let len = store.backend.len(stray)?.unwrap_or(0);
        if !options.dry_run {
            store.backend.remove(stray)?;
        }
        report.strays += 1;
        report.bytes_freed += len;
    }
    Ok(())
}

/// The session that is collecting now, for a dry run, which must not look while packs move.
pub(super) fn other_collector(store: &Store) -> Result<Option<String>> {
    let locks = store.locks_dir();
    let sessions = store.meta.sessions()?;
    let busy = sessions.iter().find(|row| row.kind == SessionKind::Collector && !is_gone(row, Some(&locks)));
    Ok(busy.map(|row| row.owner.to_string()))
}
