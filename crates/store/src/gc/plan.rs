//! Which packs are worth emptying.
//!
//! These are packs with less than the live ratio in use. If there are many small packs of a kind
//! (each command that stores a little makes two), enough of the smallest are emptied, too, and
//! joined. Joining takes the packs in the order of their sizes, and stops before one that is larger
//! than all before it together. So a byte is copied again only into a pack at least twice as large,
//! however often the collector runs.

use std::collections::BTreeSet;

use outrigger_format::{PackId, PackKind};

use super::bits::Bits;
use super::report::{GcOptions, GcReport};
use crate::error::{Error, Result};
use crate::meta::{PackRow, PackState};
use crate::store::Store;

/// So many small packs of a kind are not joined.
const SMALL_MAX: usize = 16;

/// The candidates for emptying, rising; `report` gets the totals.
pub(super) fn judge(
    store: &Store,
    rows: &[PackRow],
    bits: &Bits,
    options: &GcOptions,
    report: &mut GcReport,
) -> Result<Vec<PackId>> {
    let mut marked = BTreeSet::new();
    (report.packs_before, report.bytes_before) = (rows.len() as u64, rows.iter().map(|row| row.bytes).sum());
    (report.live_bytes, report.dead_bytes) = (0, 0);
    for row in rows {
        let (live, total) = share(store, row, bits)?;
        report.live_bytes += live;
        report.dead_bytes += total - live.min(total);
        let wasteful = live < total && (live as f64) < options.live_ratio * total as f64;
        if row.state == PackState::Live && (live == 0 || wasteful) {
            marked.insert(row.id);
        }
    }
    if options.merge_small {
        for kind in [PackKind::Data, PackKind::Meta] {
            let small = u64::from(store.config.pack_size) / 4;
            let mut packs: Vec<&PackRow> = rows
                .iter()
                .filter(|row| row.kind == kind && row.state == PackState::Live && row.bytes < small)
                .filter(|row| !marked.contains(&row.id))
                .collect();
            if packs.len() > SMALL_MAX {
                packs.sort_by_key(|row| (row.bytes, row.id));
                marked.extend(to_join(&packs));
            }
        }
    }
    // A pack that nobody can read goes when nothing needs it, and is never copied.
    let mut empty_or_readable = Vec::with_capacity(marked.len());
    for id in marked {
        if bits.pack(id).is_none_or(|pack| pack.count() == 0) || !store.packs.is_destroyed(id)? {
            empty_or_readable.push(id);
        }
    }
    Ok(empty_or_readable)
}

/// Bytes of a pack's frames in use, and in all.
fn share(store: &Store, row: &PackRow, bits: &Bits) -> Result<(u64, u64)> {
    let Some(pack) = bits.pack(row.id) else { return Ok((0, row.bytes)) };
    if pack.count() == 0 {
        return Ok((0, row.bytes));
    }
    if pack.is_full() {
        return Ok((row.bytes, row.bytes));
    }
    let footer = store.index.footers().get(row.id)?;
    let footer = footer.ok_or_else(|| Error::damaged(format!("pack {} has no readable footer", row.id)))?;
    let last = footer.frames().len().saturating_sub(1) as u16;
    let frames = footer.frame_range(last).map_or(0, |range| range.end);
    Ok((pack.live_bytes(&footer), frames.into()))
}

/// The smallest of `packs`, which rise in size, as far as joining them pays.
fn to_join(packs: &[&PackRow]) -> Vec<PackId> {
    let (mut sum, mut joined) = (0, Vec::new());
    for row in packs {
        if joined.len() >= SMALL_MAX && row.bytes > sum {
            break;
        }
        sum += row.bytes;
        joined.push(row.id);
    }
    joined
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::meta::SessionId;

    fn row(id: u64, bytes: u64) -> PackRow {
        let (kind, state, session) = (PackKind::Data, PackState::Live, SessionId(1));
        PackRow {
            id: PackId(id),
            kind,
            state,
            session,
            bytes,
            raw_bytes: bytes,
            chunks: 1,
            dead_since: 0,
            mark: 0,
        }
    }

    #[test]
    fn the_result_of_joining_is_not_joined_again_for_a_few() {
        let mut rows: Vec<PackRow> = (1..=20).map(|id| row(id, 100)).collect();
        let all: Vec<&PackRow> = rows.iter().collect();
        assert_eq!(to_join(&all).len(), 20);
        rows.push(row(30, 2001));
        let all: Vec<&PackRow> = rows.iter().collect();
        assert_eq!(to_join(&all).len(), 20);
        rows[20].bytes = 1999;
        let all: Vec<&PackRow> = rows.iter().collect();
        assert_eq!(to_join(&all).len(), 21);
    }
}
