//! Catalogue blocks where they are found: in whole packs, and in salvaged frames of torn ones.

use std::collections::HashSet;

use outrigger_format::catalogue::{Block, Record, sealed_bytes};
use outrigger_format::{ChunkKind, Fingerprint, Footer, PackId};

use crate::error::{Context, Error, ErrorKind, Result};
use crate::keys::ContentKeys;
use crate::packs::PackReader;
use crate::store::Store;

/// A catalogue block and where it was found. Its records are read again when it is replayed: all
/// blocks of a large store together would not fit into memory.
#[derive(Clone)]
pub(crate) struct FoundBlock {
    pub sequence: u64,
    /// Blocks that the collector copied have the same one.
    pub fingerprint: Fingerprint,
    pub pack: PackId,
    pub frame: u16,
    /// How many changes it has.
    pub records: u64,
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
    /// The blocks that it says came before it.
    pub after: Vec<(u64, Fingerprint)>,
    /// Heads that its reset supersedes, and whether the reset was compared with them.
    pub heads: Vec<(bool, Vec<Fingerprint>)>,
    /// It says nothing else: it was made to be a head.
    pub is_mark: bool,
    /// A host that reads contents has sealed it.
    pub is_sealed: bool,
}

impl FoundBlock {
    pub(super) fn new(block: &Block, fingerprint: Fingerprint, pack: PackId, frame: u16) -> Self {
        let records = &block.records;
        let after = records.iter().filter_map(|record| match record {
            Record::After { blocks } => Some(blocks.iter().copied()),
            _ => None,
        });
        let heads = records.iter().filter_map(|record| match record {
            Record::Heads { is_proven, heads } => Some((*is_proven, heads.clone())),
            _ => None,
        });
        let after: Vec<_> = after.flatten().collect();
        Self {
            sequence: block.sequence,
            fingerprint,
            pack,
            frame,
            records: records.iter().filter(|record| !is_link(record)).count() as u64,
            torn: None,
            is_lossy: false,
            resets: records.contains(&Record::Reset),
            ends: records.contains(&Record::ResetEnd),
            is_exact: records.iter().any(is_exact),
            highest_inode: records.iter().map(highest_inode).max().unwrap_or(0),
            is_mark: records.iter().any(|record| matches!(record, Record::After { .. }))
                && records.iter().all(is_link),
            after,
            heads: heads.collect(),
            is_sealed: false,
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

/// True for what a mark consists of.
fn is_link(record: &Record) -> bool {
    matches!(record, Record::After { .. } | Record::Seal { .. })
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
        | Record::ResetEnd
        | Record::After { .. }
        | Record::Heads { .. }
        | Record::Seal { .. } => 0,
    }
}

/// Puts blocks into the order of their replay, each once.
pub(crate) fn in_order(blocks: &mut Vec<FoundBlock>) {
    blocks.sort_by_key(|found| (found.sequence, found.pack, found.frame));
    let mut seen = HashSet::new();
    blocks.retain(|found| seen.insert(found.fingerprint));
}

/// True if a block ends with its seal.
fn is_sealed(keys: Option<&ContentKeys>, block: &[u8]) -> bool {
    let Some((keys, (bytes, mac))) = keys.zip(sealed_bytes(block)) else { return false };
    // Compares in constant time.
    blake3::Hash::from(mac) == blake3::Hash::from(keys.seal_of(&bytes))
}

/// Reads the catalogue blocks of a whole pack; `keys` are those of their seals. Errors of a block are
/// in its place.
pub(crate) fn read(
    packs: &PackReader,
    keys: Option<&ContentKeys>,
    id: PackId,
    footer: &Footer,
) -> impl Iterator<Item = Result<FoundBlock>> {
    let catalogue = (0u16..).zip(footer.frames()).filter(|(_, entry)| entry.kind == ChunkKind::Catalogue);
    catalogue.map(move |(number, entry)| {
        let frame = packs.load(id, footer, number).map_err(|error| match error.kind() {
            ErrorKind::Newer => error,
            _ => Error::damaged(format!("a catalogue block is lost: {error}")),
        })?;
        let bytes = frame.chunk(0).unwrap_or_default();
        let block = Block::decode(bytes).map_err(|error| {
            let at = format!("pack {id}, catalogue block at byte {}", entry.offset);
            let kind = match error {
                outrigger_format::FormatError::Newer { .. } => ErrorKind::Newer,
                _ => ErrorKind::Damaged,
            };
            Error::new(kind, at).caused_by(error)
        })?;
        let fingerprint = outrigger_offload::hash(packs.fingerprint_kind(), bytes);
        let found = FoundBlock::new(&block, fingerprint, id, number);
        Ok(FoundBlock { is_sealed: is_sealed(keys, bytes), ..found })
    })
}

/// Adds what [`read`] found to `found`, and to `problems` why the others cannot be read.
///
/// # Errors
/// `Newer`.
pub(crate) fn sort_out(
    read: impl Iterator<Item = Result<FoundBlock>>,
    found: &mut Vec<FoundBlock>,
    problems: &mut Vec<String>,
) -> Result<()> {
    for block in read {
        match block {
            Ok(block) => found.push(block),
            Err(error) if error.kind() == ErrorKind::Newer => return Err(error),
            Err(error) => problems.push(error.to_string()),
        }
    }
    Ok(())
}

/// The blocks among a salvaged frame's chunks.
pub(crate) fn in_chunks(
    pack: PackId,
    keys: Option<&ContentKeys>,
    chunks: &[(Fingerprint, Vec<u8>)],
) -> Vec<FoundBlock> {
    let decode = |(fingerprint, bytes): &(Fingerprint, Vec<u8>)| {
        let block = Block::decode(bytes).ok()?;
        let found = FoundBlock::new(&block, *fingerprint, pack, u16::MAX);
        Some(FoundBlock { torn: Some(block), is_sealed: is_sealed(keys, bytes), ..found })
    };
    chunks.iter().filter_map(decode).collect()
}
