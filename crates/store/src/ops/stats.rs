//! How much is stored, how well it is deduplicated and compressed, and what the index takes.

use std::collections::BTreeMap;

use outrigger_format::{ChunkKind, FrameHeader, PackKind, Reason};

use crate::error::{Context, Result};
use crate::index::{IndexMemory, IndexStats};
use crate::meta::{PackRow, TreeTotals};
use crate::store::Store;

/// Packs, their raw and stored bytes and chunks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PackTotals {
    /// Packs.
    pub packs: u64,
    /// Bytes of the objects.
    pub stored_bytes: u64,
    /// Bytes of the chunks before compression.
    pub raw_bytes: u64,
    /// Chunks.
    pub chunks: u64,
}

/// Frames of one kind and codec.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FrameTotals {
    /// Frames.
    pub frames: u64,
    /// Bytes of the chunks before compression.
    pub raw_bytes: u64,
    /// Bytes as they lie in the frame, without its header.
    pub stored_bytes: u64,
}

/// Frames that are counted together.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct FrameKey {
    /// The kind of their chunks: `data`, `manifest`, `catalogue`.
    pub kind: &'static str,
    /// Their codec.
    pub codec: &'static str,
    /// Codec, level and filter, as far as they are recorded: `zstd:1 +group4`.
    pub encoding: String,
    /// Why they are stored so.
    pub reason: Reason,
}

/// The contents of a store, in numbers.
#[derive(Clone, Debug, Default)]
pub struct Stats {
    /// The current tree.
    pub tree: TreeTotals,
    /// Snapshots.
    pub snapshots: u64,
    /// Sum of the lengths of all files that are retained: current ones, kept versions, snapshots (a
    /// file in several counts once for each content).
    pub retained_bytes: u64,
    /// Packs by kind and state.
    pub packs: BTreeMap<(&'static str, &'static str), PackTotals>,
    /// Frames by kind of chunk, of how they are stored and of why, of the packs looked at.
    pub frames: BTreeMap<FrameKey, FrameTotals>,
    /// Packs whose frames were read …
    pub packs_sampled: u64,
    /// … of these many.
    pub packs_readable: u64,
    /// Packs whose frames could not be read.
    pub packs_unreadable: u64,
    /// The index's memory.
    pub memory: IndexMemory,
    /// The index's counters.
    pub index: IndexStats,
    /// Bytes of the database.
    pub database_bytes: u64,
}

impl Stats {
    /// Sums over the packs that readers may use, of one kind (`data`, `meta`) or both.
    pub fn committed(&self, kind: Option<&str>) -> PackTotals {
        let mut sum = PackTotals::default();
        for ((of, state), totals) in &self.packs {
            if kind.is_none_or(|kind| kind == *of) && matches!(*state, "live" | "candidate") {
                sum.packs += totals.packs;
                sum.stored_bytes += totals.stored_bytes;
                sum.raw_bytes += totals.raw_bytes;
                sum.chunks += totals.chunks;
            }
        }
        sum
    }
}

/// Counts. Frame headers are read from at most `packs_max` packs, spread evenly.
///
/// # Errors
/// When the database or a pack cannot be read; packs that are damaged are counted.
pub fn stats(store: &Store, packs_max: usize) -> Result<Stats> {
    let mut stats = Stats {
        tree: store.meta.totals()?,
        snapshots: store.meta.snapshots()?.len() as u64,
        memory: store.index.memory(),
        index: store.index.stats(),
        database_bytes: store.database_bytes(),
        ..Stats::default()
    };
    store.meta.visit_roots(&mut |root| {
        stats.retained_bytes = stats.retained_bytes.saturating_add(root.len());
        Ok(())
    })?;
    let rows = store.meta.packs()?;
    for row in &rows {
        let kind = if row.kind == PackKind::Data { "data" } else { "meta" };
        let totals = stats.packs.entry((kind, row.state.name())).or_default();
        totals.packs += 1;
        totals.stored_bytes += row.bytes;
        totals.raw_bytes += row.raw_bytes;
        totals.chunks += u64::from(row.chunks);
    }
    let rows: Vec<&PackRow> = rows.iter().filter(|row| row.is_committed()).collect();
    let step = rows.len().div_ceil(packs_max.max(1)).max(1);
    stats.packs_readable = rows.len() as u64;
    for row in rows.iter().step_by(step) {
        match frames(store, row, &mut stats.frames) {
            Ok(()) => stats.packs_sampled += 1,
            Err(_) => stats.packs_unreadable += 1,
        }
    }
    Ok(stats)
}

/// Bytes of a frame's header with the lengths of this many chunks, read at once.
const HEADER_BYTES: usize = 4096;

fn frames(store: &Store, row: &PackRow, totals: &mut BTreeMap<FrameKey, FrameTotals>) -> Result<()> {
    let footer = store.packs.read_footer(row.id)?;
    let mut bytes = Vec::new();
    for number in 0..footer.frames().len() as u16 {
        let Some(range) = footer.frame_range(number) else { continue };
        let header = match read_header(store, row, range.start, range.len().min(HEADER_BYTES), &mut bytes) {
            Ok(header) => header,
            Err(_) => read_header(store, row, range.start, range.len(), &mut bytes)?,
        };
        let kind = match header.kind {
            ChunkKind::Data => "data",
            ChunkKind::Manifest => "manifest",
            ChunkKind::Catalogue => "catalogue",
        };
        let encoding = header.encoding;
        let (codec, reason) = (encoding.codec.name(), encoding.reason);
        let key = FrameKey { kind, codec, encoding: encoding.to_string(), reason };
        let sum = totals.entry(key).or_default();
        sum.frames += 1;
        sum.raw_bytes += header.raw_len() as u64;
        sum.stored_bytes += (range.len() - header.encoded_len()) as u64;
    }
    Ok(())
}

fn read_header(
    store: &Store,
    row: &PackRow,
    at: u32,
    len: usize,
    bytes: &mut Vec<u8>,
) -> Result<FrameHeader> {
    bytes.resize(len, 0);
    store.backend.read_at(row.id, at.into(), bytes)?;
    FrameHeader::decode(bytes).context(|| format!("pack {}, frame at byte {at}", row.id))
}
