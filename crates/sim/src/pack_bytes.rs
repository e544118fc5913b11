//! The bytes of a stored pack: reads them, replaces them, and flips a bit.

use std::io::IoSlice;

use outrigger_format::{PackId, TRAILER_LEN, Trailer};
use outrigger_store::Result;
use outrigger_store::backend::{Backend, MemoryBackend};

use crate::scheduler;

/// Flips one bit at a place chosen by the seed.
pub fn flip(bytes: &mut [u8]) {
    let bit = scheduler::below(8 * bytes.len() as u64);
    bytes[bit as usize / 8] ^= 1 << (bit % 8);
}

/// Replaces a pack's bytes.
///
/// # Errors
/// None: it is in memory.
pub fn replace(packs: &MemoryBackend, id: PackId, bytes: &[u8]) -> Result<()> {
    packs.remove(id)?;
    let mut writer = packs.create(id)?;
    writer.append(&[IoSlice::new(bytes)])?;
    writer.seal()
}

/// All bytes of a pack; `None` if there is none.
///
/// # Errors
/// None: it is in memory.
pub fn bytes_of(packs: &MemoryBackend, id: PackId) -> Result<Option<Vec<u8>>> {
    let Some(len) = packs.len(id)? else { return Ok(None) };
    let mut bytes = vec![0; len as usize];
    packs.read_at(id, 0, &mut bytes).map(|()| Some(bytes))
}

/// The names of a pack's chunks; empty if it is not whole.
pub fn names_of(pack: &[u8]) -> Vec<String> {
    let found = || {
        let end = pack.last_chunk::<TRAILER_LEN>()?;
        let trailer = Trailer::decode(end, pack.len() as u64).ok()?;
        let (from, len) = (trailer.footer_offset as usize, trailer.footer_len as usize);
        trailer.decode_footer(pack.get(from..from + len)?).ok()
    };
    let footer = found();
    footer.iter().flat_map(|footer| footer.fingerprints()).map(ToString::to_string).collect()
}
