//! Reads as much of a damaged pack as possible, and writes the good chunks into a new one.
//!
//! The footer gives the frames if there is one. Without it they are found by their magic: behind a
//! good frame the next one begins, and behind a bad one the search goes on byte by byte. If a
//! header has one flipped bit, its checksum corrects it. Chunks of a frame are judged singly. With
//! a footer, every chunk with the right fingerprint is good, whatever the frame's checksum. Without
//! one, the checksum of the whole frame must match.

use std::sync::Arc;

use outrigger_format::{
    ChunkKind, Codec, FRAME_HEADER_LEN, FRAME_MAGIC, Fingerprint, Footer, FrameHeader, MAX_FRAME_LEN,
    PACK_HEADER_LEN, PackHeader, PackId, PackKind,
};
use outrigger_offload::{Auto, Encoder, FrameDecoder, Wanted};

use super::packs::slots_by_frame;
use crate::error::{ErrorKind, Result};
use crate::meta::Meta;
use crate::packs::{Naming, load_footer};
use crate::session::Session;
use crate::store::Store;
use crate::write::{PackSink, SealedPack, StoredFrame};

/// A frame as far as it can be read.
pub(crate) struct Salvaged {
    /// The kind of its chunks.
    pub kind: ChunkKind,
    /// Chunks known to be good: fingerprint and bytes.
    pub chunks: Vec<(Fingerprint, Vec<u8>)>,
}

/// How far a pack could be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Salvage {
    /// Good chunks.
    pub chunks: u64,
    /// Bytes of the pack that no good frame explains, or frames with bad chunks.
    pub losses: u64,
}

/// True when the object's header is whole and names another pack or store: nothing of it belongs
/// here.
pub(crate) fn is_foreign(store: &Store, pack: PackId) -> bool {
    let mut bytes = [0; PACK_HEADER_LEN];
    if store.backend.read_at(pack, 0, &mut bytes).is_err() {
        return false;
    }
    PackHeader::decode(&bytes).is_ok_and(|header| {
        header.id != pack || header.store != store.config.id || header.fingerprint != store.config.fingerprint
    })
}

/// Hands every frame of `pack` that holds anything good to `visit`, in the order of the file.
///
/// # Errors
/// When the pack cannot be read for another reason than damage, and those of `visit`.
pub(crate) fn visit_frames(
    store: &Store,
    pack: PackId,
    visit: &mut dyn FnMut(Salvaged) -> Result<()>,
) -> Result<Salvage> {
    let naming = match store.packs.domain_of(pack) {
        // Nobody knows its domain: its frames are read as common ones, or not at all.
        Err(error) if error.kind() == ErrorKind::Damaged => store.packs.common_naming(),
        _ => store.packs.naming(pack)?,
    };
    let mut scan = Scan { store, pack, naming, decoder: FrameDecoder::new(), salvage: Salvage::default() };
    match store.packs.read_footer(pack).or_else(|_| scan.footer_without_header()) {
        Ok(footer) => scan.by_footer(&footer, visit)?,
        Err(error) if error.kind() == ErrorKind::Damaged => scan.by_magic(visit)?,
        Err(error) => return Err(error),
    }
    Ok(scan.salvage)
}

struct Scan<'a> {
    store: &'a Store,
    pack: PackId,
    naming: Naming,
    decoder: FrameDecoder,
    salvage: Salvage,
}

/// Bytes looked at together when searching for a magic.
const WINDOW: usize = 1 << 20;
/// A header with more chunks than this is not searched for a flipped bit: each try costs a
/// checksum.
const CORRECTED_CHUNKS_MAX: usize = 1024;

impl Scan<'_> {
    fn read(&self, offset: u64, len: usize) -> Result<Vec<u8>> {
        let mut bytes = vec![0; len];
        self.store.backend.read_at(self.pack, offset, &mut bytes)?;
        Ok(bytes)
    }

    /// The footer of a pack whose header is damaged: the footer has a checksum, and the trailer the
    /// id.
    fn footer_without_header(&self) -> Result<Footer> {
        use crate::error::{Context, Error};
        use outrigger_format::{TRAILER_LEN, Trailer};
        let len = self.store.backend.len(self.pack)?.unwrap_or(0);
        let at = || format!("pack {}", self.pack);
        let start = len.checked_sub(TRAILER_LEN as u64).ok_or_else(|| Error::damaged(at()))?;
        let trailer = Trailer::decode(&self.read(start, TRAILER_LEN)?, len).context(at)?;
        if trailer.id != self.pack {
            return Err(Error::damaged(at()));
        }
        load_footer(&*self.store.backend, &trailer)
    }

    fn by_footer(&mut self, footer: &Footer, visit: &mut dyn FnMut(Salvaged) -> Result<()>) -> Result<()> {
        let slots = slots_by_frame(footer);
        for (number, entry) in (0u16..).zip(footer.frames()) {
            let range = footer.frame_range(number).expect("its own frame");
            let bytes = match self.read(range.start.into(), range.len()) {
                Ok(bytes) => bytes,
                Err(error) if error.kind() == ErrorKind::Damaged => {
                    self.salvage.losses += 1;
                    continue;
                }
                Err(error) => return Err(error),
            };
            let chunks = self.frame_chunks(bytes, Some(footer)).unwrap_or_default();
            let wanted = slots.keys().filter(|(frame, _)| *frame == number).count();
            if chunks.len() < wanted {
                self.salvage.losses += 1;
            }
            self.hand_out(entry.kind, chunks, visit)?;
        }
        Ok(())
    }

    fn by_magic(&mut self, visit: &mut dyn FnMut(Salvaged) -> Result<()>) -> Result<()> {
        let len = self.store.backend.len(self.pack)?.unwrap_or(0);
        let mut at = PACK_HEADER_LEN as u64;
        while at + (FRAME_HEADER_LEN as u64) < len {
            if let Some((kind, chunks, end)) = self.frame_at(at, len)? {
                self.hand_out(kind, chunks, visit)?;
                at = end;
                continue;
            }
            if self.read(at, 4)? == *b"OFTR" {
                return Ok(());
            }
            self.salvage.losses += 1;
            match self.find_magic(at + 1, len)? {
                Some(next) => at = next,
                None => return Ok(()),
            }
        }
        Ok(())
    }

    fn find_magic(&self, from: u64, len: u64) -> Result<Option<u64>> {
        let mut at = from;
        while at + (FRAME_HEADER_LEN as u64) < len {
            let window = self.read(at, (len - at).min(WINDOW as u64) as usize)?;
            if let Some(found) = window.windows(4).position(|four| four == FRAME_MAGIC) {
                return Ok(Some(at + found as u64));
            }
            at += (window.len() - 3) as u64;
        }
        Ok(None)
    }

    /// The good frame that begins at `at`, if one does: its kind, chunks and end.
    #[expect(clippy::type_complexity, reason = "three values, used in one place")]
    fn frame_at(
        &mut self,
        at: u64,
        len: u64,
    ) -> Result<Option<(ChunkKind, Vec<(Fingerprint, Vec<u8>)>, u64)>> {
        let fixed = self.read(at, FRAME_HEADER_LEN)?;
        let count = u32::from_le_bytes([fixed[16], fixed[17], fixed[18], fixed[19]]) as usize;
        let head = FRAME_HEADER_LEN + 4 * count.min(65_535);
        if at + head as u64 > len {
            return Ok(None);
        }
        let Some(header) = corrected_header(self.read(at, head)?) else { return Ok(None) };
        let end = at + (header.encoded_len() + header.stored_len as usize) as u64;
        if end > len {
            return Ok(None);
        }
        let kind = header.kind;
        let bytes = self.read(at, (end - at) as usize)?;
        Ok(self.frame_chunks(bytes, None).map(|chunks| (kind, chunks, end)))
    }

    /// The good chunks of a frame.
    fn frame_chunks(
        &mut self,
        bytes: Vec<u8>,
        footer: Option<&Footer>,
    ) -> Option<Vec<(Fingerprint, Vec<u8>)>> {
        let header = corrected_header(bytes.clone())?;
        let stored = bytes.get(header.encoded_len()..)?;
        let is_whole = header.verify_stored(stored).is_ok();
        if header.raw_len() > MAX_FRAME_LEN || (footer.is_none() && !is_whole) {
            return None;
        }
        let mut raw = Vec::new();
        if self.decoder.decode(header.encoding, stored, header.raw_len(), &mut raw).is_err() {
            if !FrameDecoder::is_plain(header.encoding) {
                return None;
            }
            raw = stored.to_vec();
        }
        let (mut chunks, mut at) = (Vec::new(), 0);
        for len in &header.lengths {
            let Some(chunk) = raw.get(at..at + *len as usize) else { break };
            at += *len as usize;
            let fingerprint = self.naming.name(chunk);
            if footer.is_none_or(|footer| footer.find(&fingerprint).is_some()) {
                chunks.push((fingerprint, chunk.to_vec()));
            }
        }
        Some(chunks)
    }

    fn hand_out(
        &mut self,
        kind: ChunkKind,
        chunks: Vec<(Fingerprint, Vec<u8>)>,
        visit: &mut dyn FnMut(Salvaged) -> Result<()>,
    ) -> Result<()> {
        if chunks.is_empty() {
            return Ok(());
        }
        self.salvage.chunks += chunks.len() as u64;
        visit(Salvaged { kind, chunks })
    }
}

/// The header at the beginning of `bytes`; if need be with the one bit set right that makes its
/// checksum hold.
fn corrected_header(mut bytes: Vec<u8>) -> Option<FrameHeader> {
    if let Ok(header) = FrameHeader::decode(&bytes) {
        return Some(header);
    }
    let count = |bytes: &[u8]| Some(u32::from_le_bytes(bytes.get(16..20)?.try_into().ok()?) as usize);
    let chunks = count(&bytes)?;
    // The count itself may be wrong: then the others are read with each corrected value.
    for bit in 0..8 * (FRAME_HEADER_LEN + 4 * chunks.min(CORRECTED_CHUNKS_MAX)).min(bytes.len()) {
        bytes[bit / 8] ^= 1 << (bit % 8);
        let plausible = count(&bytes).is_some_and(|count| (1..=CORRECTED_CHUNKS_MAX).contains(&count));
        if plausible && let Ok(header) = FrameHeader::decode(&bytes) {
            return Some(header);
        }
        bytes[bit / 8] ^= 1 << (bit % 8);
    }
    None
}

/// Writes the good chunks of `pack` into new packs of `session`, sealed and not yet committed.
///
/// # Errors
/// Those of the store.
pub(crate) fn rewrite(
    store: &Store,
    meta: &Arc<dyn Meta>,
    session: &Session,
    pack: PackId,
    kind: PackKind,
    keep: &mut dyn FnMut(&Salvaged) -> bool,
) -> Result<(Vec<SealedPack>, Salvage)> {
    let mut sink = PackSink::new(store, meta, session.id(), kind);
    let domain = store.packs.domain_of(pack).unwrap_or_default();
    let (mut encoder, mut stored, mut raw) = (Encoder::new(), Vec::new(), Vec::new());
    let wanted = Wanted::of(store.config.codec.into(), &Auto::new());
    let mut open = Vec::new();
    let salvage = visit_frames(store, pack, &mut |frame| {
        if (frame.kind != ChunkKind::Data) != (kind == PackKind::Meta) || !keep(&frame) {
            return Ok(());
        }
        raw.clear();
        frame.chunks.iter().for_each(|(_, bytes)| raw.extend_from_slice(bytes));
        let fingerprints: Vec<Fingerprint> =
            frame.chunks.iter().map(|(fingerprint, _)| *fingerprint).collect();
        let encoding = encoder.encode(wanted, &raw, &mut stored);
        let bytes = if encoding.codec == Codec::None { &raw } else { &stored };
        open.extend(sink.append(StoredFrame {
            domain,
            kind: frame.kind,
            encoding,
            lengths: frame.chunks.iter().map(|(_, bytes)| bytes.len() as u32).collect(),
            fingerprints: &fingerprints,
            stored: bytes,
            sequence: 0,
        })?);
        Ok(())
    })?;
    open.extend(sink.take_open());
    let mut sealed = Vec::new();
    for pack in open {
        let pack = pack.seal(session)?;
        meta.packs_sealed(session.id(), std::slice::from_ref(&pack.row))?;
        sealed.push(pack);
    }
    Ok((sealed, salvage))
}
