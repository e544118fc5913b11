//! Looks at every object: which packs are whole, which are torn, and where catalogue blocks lie.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use outrigger_format::{ChunkKind, Footer, PackId, PackKind};

use super::{RecoverProgress, RecoverReport};
use crate::backend::Backend;
use crate::catalogue::blocks::{self, FoundBlock};
use crate::check::salvage::Salvaged;
use crate::config::StoreConfig;
use crate::error::{ErrorKind, Result};
use crate::keys::ContentKeys;
use crate::meta::{PackRow, PackState, SessionId};
use crate::packs::PackReader;

/// A pack whose footer cannot be read.
pub(super) struct Torn {
    pub id: PackId,
    pub kind: PackKind,
    pub why: String,
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
    keys: Option<&ContentKeys>,
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
                    let read = blocks::read(&packs, keys, id, &footer);
                    blocks::sort_out(read, &mut survey.blocks, &mut report.problems)?;
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

/// The blocks in a salvaged frame.
pub(super) fn blocks_of(pack: PackId, keys: Option<&ContentKeys>, frame: &Salvaged) -> Vec<FoundBlock> {
    match frame.kind {
        ChunkKind::Catalogue => blocks::in_chunks(pack, keys, &frame.chunks),
        _ => Vec::new(),
    }
}
