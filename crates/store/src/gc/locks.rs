//! Object locks: the collector renews those of all packs that are still needed, before they end.

use outrigger_format::PackId;
use serde::{Deserialize, Serialize};

use super::report::GcReport;
use crate::error::Result;
use crate::meta::records::{Record, Registered};
use crate::store::Store;

/// All locks are renewed when a fourth of their time is over.
const PARTS: u64 = 4;
const DAY: u64 = 24 * 60 * 60 * 1_000_000_000;

/// When all packs were last locked, and the newest of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Locked {
    /// Nanoseconds since 1970, by the database's clock.
    at: u64,
    /// Packs up to this one were locked then.
    newest: u64,
}

impl Record for Locked {
    const KIND: &'static str = "locked";

    fn name(&self) -> String {
        String::new()
    }
}

/// Of `ids`, which rise, those to lock now, and the record of it.
fn due(ids: Vec<PackId>, last: Option<Locked>, now: u64, days: u32) -> (Vec<PackId>, Locked) {
    let newest = ids.last().map_or(0, |id| id.0);
    match last {
        Some(last) if now.saturating_sub(last.at) < u64::from(days) * DAY / PARTS => {
            let new = ids.into_iter().filter(|id| id.0 > last.newest).collect();
            (new, Locked { newest: newest.max(last.newest), ..last })
        }
        _ => (ids, Locked { at: now, newest }),
    }
}

/// Locks the packs that are left, if their place locks any: new ones, or all when it is time.
///
/// # Errors
/// Those of the place: without the right to lock, for example.
pub(super) fn renew(store: &Store, report: &mut GcReport) -> Result<()> {
    let Some(days) = store.backend.lock_days() else { return Ok(()) };
    let (rows, now) = (store.meta.packs()?, store.meta.now()?);
    let mut ids: Vec<PackId> = rows.iter().filter(|row| row.is_committed()).map(|row| row.id).collect();
    ids.sort_unstable();
    let last: Option<Registered<Locked>> = store.registry().find(|_| true)?;
    let (ids, locked) = due(ids, last.map(|read| read.record), now, days);
    report.packs_locked = store.backend.lock(&ids)?;
    store.registry().put(&locked)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_packs_are_locked_at_once_and_all_of_them_in_time() {
        let ids = |ids: &[u64]| ids.iter().map(|id| PackId(*id)).collect::<Vec<_>>();
        let begun = 1000 * DAY;
        let (all, first) = due(ids(&[3, 5]), None, begun, 40);
        assert_eq!((all, first), (ids(&[3, 5]), Locked { at: begun, newest: 5 }));
        let (new, second) = due(ids(&[5, 8]), Some(first), begun + 9 * DAY, 40);
        assert_eq!((new, second), (ids(&[8]), Locked { at: begun, newest: 8 }));
        // Nothing is left of the new ones.
        assert_eq!(due(ids(&[5]), Some(second), begun + 9 * DAY, 40), (Vec::new(), second));
        let (all, third) = due(ids(&[5, 8]), Some(second), begun + 10 * DAY, 40);
        assert_eq!((all, third), (ids(&[5, 8]), Locked { at: begun + 10 * DAY, newest: 8 }));
    }
}
