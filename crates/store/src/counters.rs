//! The database's counters are kept above every id that its packs have: see [`crate::stale`].

use outrigger_format::PackId;

use crate::backend::Backend;
use crate::error::Result;
use crate::meta::Meta;

/// Ids handed out afterwards begin this far above any that was seen: a lost database may have given
/// out more.
pub(crate) const PACK_ID_GAP: u64 = 1 << 20;
const SEQUENCE_GAP: u64 = 1 << 32;
/// Numbers below 2^40 can be shown in every mount: room for hundreds of such accidents.
pub(crate) const INODE_GAP: u64 = 1 << 30;

/// Raises the counters if an object in `backend` has an id that `meta` has not given out. Returns
/// whether one had.
///
/// # Errors
/// Those of both.
pub(crate) fn raise_counters(meta: &dyn Meta, backend: &dyn Backend) -> Result<bool> {
    let Some(newest) = backend.list()?.last().copied() else { return Ok(false) };
    let counters = meta.counters()?;
    if newest.0 < counters.next_pack {
        return Ok(false);
    }
    let next_pack = newest.0.saturating_add(PACK_ID_GAP).min(PackId::MAX.0);
    meta.raise_counters(
        next_pack,
        counters.next_inode.saturating_add(INODE_GAP),
        counters.next_sequence.saturating_add(SEQUENCE_GAP),
    )?;
    Ok(true)
}
