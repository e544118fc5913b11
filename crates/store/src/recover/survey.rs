//! Looks at every object: which packs are whole, which are torn, and where catalogue blocks lie.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use outrigger_format::catalogue::{Block, Record};
use outrigger_format::{ChunkKind, Fingerprint, Footer, PackId, PackKind};

use super::{RecoverProgress, RecoverReport};
use crate::backend::Backend;
use crate::check::salvage::Salvaged;
use crate::config::StoreConfig;
use crate::error::{Context, Error, ErrorKind, Result};
use crate::meta::{PackRow, PackState, SessionId};
use crate::packs::PackReader;
use crate::store::Store;

/// A pack whose footer cannot be read.
pub(super) struct Torn {
    pub id: PackId,
    pub kind: PackKind,
    pub why: String,
}

/// A catalogue block and where it was found. Its records are read again when it is replayed: all
/// blocks of a large store together would not fit into memory.
pub(super) struct FoundBlock {
    pub sequence: u64,
    /// Blocks that the collector copied have the same one.
    pub fingerprint: Fingerprint,
    pub pack: PackId,
    pub frame: u16,
    /// The block itself, when it was found in a pack that was not sealed: its commit may not count.
    pub torn: Option<Block>,
    /// Other blocks of its commit may have been lost.
    pub is_lossy: bool,
    /// It holds a reset.
    pub resets: bool,
    /// It holds the end of one.
    pub ends: bool,
    /// It has states of names or inodes: it is replayed together with the others of its sequence.
    pub is_exact: bool,
    /// The highest inode in it.
    pub highest_inode: u64,
}

impl FoundBlock {
    fn new(block: &Block, fingerprint: Fingerprint, pack: PackId, frame: u16) -> Self {
        Self {
            sequence: block.sequence,
            fingerprint,
            pack,
            frame,
            torn: None,
            is_lossy: false,
            resets: block.records.contains(&Record::Reset),
            ends: block.records.contains(&Record::ResetEnd),
            is_exact: block.records.iter().any(is_exact),
            highest_inode: block.records.iter().map(highest_inode).max().unwrap_or(0),
        }
    }

    /// The block.
    pub fn load(self, store: &Store) -> Result<Block> {
        if let Some(block) = self.torn {
            return Ok(block);
        }
        let at = || format!("pack {}, catalogue frame {}", self.pack, self.frame);
        let footer = store.packs.read_footer(self.pack)?;
        let frame = store.packs.load(self.pack, &footer, self.frame)?;
        Block::decode(frame.chunk(0).unwrap_or_default()).context(at)
    }
}

fn is_exact(record: &Record) -> bool {
    matches!(record, Record::Name { .. } | Record::Node { .. })
}

fn highest_inode(record: &Record) -> u64 {
    match record {
        Record::Upsert { inode, parent, .. } | Record::Link { inode, parent, .. } => *inode.max(parent),
        Record::Unlink { parent, .. } => *parent,
        Record::Name { parent, inode, .. } => *parent.max(&inode.unwrap_or(0)),
        Record::Node { inode, parent, .. } => *inode.max(parent),
        Record::Rename { parent, new_parent, .. } => *parent.max(new_parent),
        Record::Version { inode, .. } | Record::Policy { inode, .. } => *inode,
        Record::Snapshot { .. }
        | Record::Tags { .. }
        | Record::Forget { .. }
        | Record::Reset
        | Record::ResetEnd => 0,
    }
}

/// The contents of `packs/`.
#[derive(Default)]
pub(super) struct Survey {
    pub whole: Vec<PackRow>,
    pub torn: Vec<Torn>,
    pub blocks: Vec<FoundBlock>,
    /// The highest id seen.
    pub highest: u64,
}

/// Looks at all objects in `backend`.
pub(super) fn survey(
    backend: &Arc<dyn Backend>,
    config: &StoreConfig,
    progress: &RecoverProgress,
    report: &mut RecoverReport,
) -> Result<Survey> {
    let packs = PackReader::new(Arc::clone(backend), config.id, config.fingerprint);
    let ids = backend.list()?;
    progress.packs_expected.store(ids.len() as u64, Ordering::Relaxed);
    let mut survey = Survey::default();
    for id in ids {
        survey.highest = survey.highest.max(id.0);
        let header = packs.read_header(id);
        match header.and_then(|header| Ok((header, packs.read_footer(id)?))) {
            Ok((header, footer)) => {
                let bytes = backend.len(id)?.unwrap_or(0);
                let chunks = footer.fingerprints().len() as u32;
                survey.whole.push(PackRow {
                    id,
                    kind: header.kind,
                    state: PackState::Live,
                    session: SessionId(0),
                    bytes,
                    // Only the frames' headers have the uncompressed length.
                    raw_bytes: raw_bytes(&packs, id, &footer, backend.as_ref()),
                    chunks,
                    dead_since: 0,
                    mark: 0,
                });
                if header.kind == PackKind::Meta {
                    read_blocks(&packs, id, &footer, &mut survey.blocks, report)?;
                }
            }
            Err(error) if error.kind() == ErrorKind::Damaged => {
                let header = packs.read_header(id).ok();
                let kind = match header.map(|header| header.kind) {
                    Some(kind) => kind,
                    None => first_kind(backend.as_ref(), id),
                };
                survey.torn.push(Torn { id, kind, why: error.to_string() });
            }
            Err(error) if error.kind() == ErrorKind::Io => {
                report.problems.push(format!("pack {id} was left alone: {error}"));
            }
            Err(error) => return Err(error),
        }
        progress.packs_done.fetch_add(1, Ordering::Relaxed);
    }
    Ok(survey)
}

/// Sum of the raw lengths in the frames' headers; frames that cannot be read count as nothing.
fn raw_bytes(packs: &PackReader, id: PackId, footer: &Footer, backend: &dyn Backend) -> u64 {
    let mut sum = 0;
    for (number, entry) in (0u16..).zip(footer.frames()) {
        let mut raw = [0; 4];
        if backend.read_at(id, u64::from(entry.offset) + 8, &mut raw).is_ok() {
            sum += u64::from(u32::from_le_bytes(raw));
        } else if let Ok(frame) = packs.load(id, footer, number) {
            sum += frame.header.raw_len() as u64;
        }
    }
    sum
}

/// Data or meta, by the byte in the header's place; it is usually right even in a damaged header.
fn first_kind(backend: &dyn Backend, id: PackId) -> PackKind {
    // Offset 5 of the first frame is the kind of its chunks, and 64 is where it begins.
    let mut frame_kind = [0];
    match backend.read_at(id, outrigger_format::PACK_HEADER_LEN as u64 + 5, &mut frame_kind) {
        Ok(()) if frame_kind[0] != ChunkKind::Data as u8 => PackKind::Meta,
        _ => PackKind::Data,
    }
}

fn read_blocks(
    packs: &PackReader,
    id: PackId,
    footer: &Footer,
    blocks: &mut Vec<FoundBlock>,
    report: &mut RecoverReport,
) -> Result<()> {
    let catalogue = (0u16..).zip(footer.frames()).filter(|(_, entry)| entry.kind == ChunkKind::Catalogue);
    for (number, entry) in catalogue {
        let frame = match packs.load(id, footer, number) {
            Ok(frame) => frame,
            Err(error) if error.kind() == ErrorKind::Newer => return Err(error),
            Err(error) => {
                report.problems.push(format!("a catalogue block is lost: {error}"));
                continue;
            }
        };
        let bytes = frame.chunk(0).unwrap_or_default();
        match Block::decode(bytes) {
            Ok(block) => {
                let fingerprint = outrigger_offload::hash(packs.fingerprint_kind(), bytes);
                blocks.push(FoundBlock::new(&block, fingerprint, id, number));
            }
            Err(error) => {
                let at = format!("pack {id}, catalogue block at byte {}", entry.offset);
                if matches!(error, outrigger_format::FormatError::Newer { .. }) {
                    return Err(Error::new(ErrorKind::Newer, at).caused_by(error));
                }
                report.problems.push(format!("{at}: {error}"));
            }
        }
    }
    Ok(())
}

/// The blocks in a salvaged frame.
pub(super) fn blocks_of(pack: PackId, frame: &Salvaged) -> Vec<FoundBlock> {
    if frame.kind != ChunkKind::Catalogue {
        return Vec::new();
    }
    let decode = |(fingerprint, bytes): &(Fingerprint, Vec<u8>)| {
        let block = Block::decode(bytes).ok()?;
        let found = FoundBlock::new(&block, *fingerprint, pack, u16::MAX);
        Some(FoundBlock { torn: Some(block), ..found })
    };
    frame.chunks.iter().filter_map(decode).collect()
}
