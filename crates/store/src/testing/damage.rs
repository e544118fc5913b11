//! Damages packs in memory, as a failing disk would, or makes them lie, as a client can that
//! publishes them so.

use outrigger_format::{
    ChunkKind, Codec, Encoding, Fingerprint, Footer, FooterBuilder, FrameHeader, PACK_HEADER_LEN, PackId,
    TRAILER_LEN, Trailer, checksum,
};

/// A pack with the footer entries of `pack` and other bytes for all its chunks of data and manifest
/// nodes. Everything else about it is right.
///
/// # Panics
/// When `pack` is no sealed pack.
pub fn corrupt(pack: &[u8], id: PackId) -> Vec<u8> {
    const OTHER: &[u8] = b"others";
    let trailer =
        Trailer::decode(&pack[pack.len() - TRAILER_LEN..], pack.len() as u64).expect("it is sealed");
    let start = trailer.footer_offset as usize;
    let footer = &pack[start..start + trailer.footer_len as usize];
    let footer: Footer = trailer.decode_footer(footer).expect("it has a footer");
    let mut corrupt = pack[..PACK_HEADER_LEN].to_vec();
    let mut builder = FooterBuilder::default();
    for (number, entry) in (0..).zip(footer.frames()) {
        let mut names = vec![Fingerprint([0; 32]); entry.chunks.into()];
        for (slot, name) in (0..).zip(footer.fingerprints()) {
            if let Some((_, at)) = footer.position(slot).filter(|(frame, _)| *frame == number) {
                names[usize::from(at)] = *name;
            }
        }
        builder.push(corrupt.len() as u32, entry.kind, &names);
        if entry.kind == ChunkKind::Catalogue {
            let range = footer.frame_range(number).expect("it has it");
            corrupt.extend_from_slice(&pack[range.start as usize..range.end as usize]);
            continue;
        }
        let stored = OTHER.repeat(names.len());
        let header = FrameHeader {
            kind: entry.kind,
            encoding: Encoding::plain(Codec::None),
            stored_len: stored.len() as u32,
            stored_sum: checksum(&[&stored]),
            lengths: vec![OTHER.len() as u32; names.len()],
        };
        header.encode(&mut corrupt);
        corrupt.extend_from_slice(&stored);
    }
    let (_, end) = builder.finish(id, corrupt.len() as u32);
    corrupt.extend_from_slice(&end);
    corrupt
}

use crate::backend::MemoryBackend;

impl MemoryBackend {
    /// Inverts bit `bit` (0 to 7) of the byte at `offset` of pack `id`.
    ///
    /// # Panics
    /// When there is no such byte.
    pub fn flip_bit(&self, id: PackId, offset: u64, bit: u8) {
        self.edit(id, |bytes| bytes[offset as usize] ^= 1 << bit);
    }

    /// Cuts pack `id` to `len` bytes.
    ///
    /// # Panics
    /// When there is no such pack.
    pub fn truncate(&self, id: PackId, len: u64) {
        self.edit(id, |bytes| bytes.truncate(len as usize));
    }

    /// The content of pack `id`, a copy.
    ///
    /// # Panics
    /// When there is no such pack.
    pub fn content(&self, id: PackId) -> Vec<u8> {
        self.edit(id, |bytes| bytes.clone())
    }

    /// Changes the content of pack `id` in any way, past all rules.
    ///
    /// # Panics
    /// When there is no such pack.
    pub fn edit<T>(&self, id: PackId, change: impl FnOnce(&mut Vec<u8>) -> T) -> T {
        change(self.packs().get_mut(&id).unwrap_or_else(|| panic!("there is no pack {id}")))
    }
}
