//! When the flusher makes room in the staging log, and which staged data it stores then: GHOST's
//! destage-aware order.
//!
//! Data that is written again before it is stored need not be hashed and compressed. So what was
//! written last should stay staged for as long as possible. The log is a ring of segments and frees
//! only the oldest ones. Its order is that of the last writes, so the oldest segment is what GHOST
//! stores first, and nothing needs to be sorted or moved:
//!
//! - *Data is written again* if a quarter of the log was superseded before it was stored. Then
//!   the log may fill to four fifths. A batch takes what the oldest segment (an eighth of the log)
//!   still holds, and all other data stays.
//! - *Otherwise* keeping data back would save nothing, and cost a sync of the log with each batch.
//!   The log may fill to a half, and a batch takes all of it, or `batch_bytes` of a larger log.
//!
//! Data that is written all the time never fills the log: its copies in the oldest segment are
//! superseded by newer ones. A batch stores all else that this segment holds, so each batch frees
//! a segment.
//!
//! A disk that is nearly full bounds the log. Then nothing is kept back.

use outrigger_store::staging::{Age, Due, Fill, Log};

/// Parts of blocks of this many bytes are stored together: files that are rewritten in place are
/// cut into these.
pub(crate) const BLOCK: u32 = 16 << 10;
/// A log of which one byte in so many was superseded is one whose data is written again.
const REWRITTEN_SHARE: u64 = 4;

/// Which staged data goes first when room is needed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Order {
    /// Data that was last written longest ago: what was just written will likely be written again
    /// (GHOST's destage-aware order).
    #[default]
    LeastRecentlyWritten,
    /// Data that was first written longest ago, even if it was written again since.
    FirstWritten,
    /// Data that was just written: the worst case, for experiments.
    MostRecentlyWritten,
}

/// True if the flusher should make room.
pub(crate) fn is_filling(log: &Log) -> bool {
    let fill = log.fill();
    let filled = fill.used + fill.reserved;
    let keeps_to = fill.capacity / 5 * 4;
    fill.waiting > 0 || filled > fill.capacity / 2 && (filled > keeps_to || !is_rewritten(log, fill))
}

/// True if the log's data is written again.
fn is_rewritten(log: &Log, fill: Fill) -> bool {
    !fill.is_bounded && log.usage().superseded_bytes() >= fill.used / REWRITTEN_SHARE
}

/// Selects the data of the oldest segment; `None` selects all data, if there is only one segment.
pub(crate) fn oldest(log: &Log) -> Option<Due> {
    let segments = log.segments();
    let until = *segments.first().filter(|_| segments.len() > 1)?;
    Some(Due { until, from: u32::MAX, by: Age::LastWritten })
}

impl Order {
    /// Selects the data of a batch that makes room; `None` selects all data. `batch_bytes`: see the
    /// module.
    pub(crate) fn due(self, log: &Log, batch_bytes: u64) -> Option<Due> {
        let (fill, segments, oldest) = (log.fill(), log.segments(), oldest(log)?);
        let keeps = is_rewritten(log, fill);
        if !keeps && log.usage().bytes() < batch_bytes.saturating_mul(2) {
            return None;
        }
        let batch_bytes = if keeps { fill.capacity / 8 } else { batch_bytes };
        match self {
            Self::LeastRecentlyWritten | Self::FirstWritten => {
                let by = if self == Self::FirstWritten { Age::FirstWritten } else { Age::LastWritten };
                let until = if keeps { oldest.until } else { last_of(log, &segments, batch_bytes)? };
                segments.last().is_some_and(|last| until < *last).then_some(Due { until, by, ..oldest })
            }
            Self::MostRecentlyWritten => {
                let newest: Vec<u32> = segments.into_iter().rev().collect();
                let from = last_of(log, &newest, batch_bytes)?;
                (from > oldest.until).then_some(Due { from, ..oldest })
            }
        }
    }
}

/// The last of the first segments that hold so many bytes together, if they do.
fn last_of(log: &Log, segments: &[u32], bytes: u64) -> Option<u32> {
    let mut sum = 0;
    segments.iter().copied().find(|segment| {
        sum += log.usage().live_bytes(*segment);
        sum >= bytes
    })
}
