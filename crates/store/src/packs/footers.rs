//! Packs' headers and footers, and single fingerprints in them.

use outrigger_format::{
    Fingerprint, Footer, PACK_HEADER_LEN, PackHeader, PackId, Place, TRAILER_LEN, Trailer,
};

use super::PackReader;
use crate::backend::Backend;
use crate::error::{Context, Error, ErrorKind, Result};

/// Bytes at a pack's end that usually hold its footer: one request should read them.
const FOOTER_GUESS: usize = 128 << 10;

/// Bytes that are read at once where a footer is expected.
const EXPECTED_MAX: usize = 8 << 20;

/// Packs whose tables' places are remembered, at most.
const TABLES_MAX: usize = 64 << 10;

/// Bytes of a pack's end that are read for its footer if its length is unknown. If requests cost
/// more than bytes, one request should be enough.
pub(super) fn guess(backend: &dyn Backend) -> usize {
    if backend.uploads_max() > 1 { FOOTER_GUESS } else { TRAILER_LEN }
}

/// Reads and checks the footer that `trailer` describes, no more of it at once than was found to be
/// one.
pub(crate) fn load_footer(backend: &dyn Backend, trailer: &Trailer) -> Result<Footer> {
    let at = || format!("pack {}, footer at byte {}", trailer.id, trailer.footer_offset);
    let mut bytes = Vec::new();
    for step in trailer.steps() {
        let have = bytes.len();
        bytes.resize(step, 0);
        backend.read_at(trailer.id, u64::from(trailer.footer_offset) + have as u64, &mut bytes[have..])?;
        Footer::check_beginning(&bytes).context(at)?;
    }
    trailer.decode_footer(&bytes).context(at)
}

impl PackReader {
    /// Reads and checks a pack's header.
    ///
    /// # Errors
    /// `Damaged` when it is not valid, or of another store or id.
    pub fn read_header(&self, pack: PackId) -> Result<PackHeader> {
        let mut bytes = [0; PACK_HEADER_LEN];
        self.backend.read_at(pack, 0, &mut bytes)?;
        let header = PackHeader::decode(&bytes).context(|| format!("pack {pack}"))?;
        if header.id != pack || header.store != self.store || header.fingerprint != self.fingerprint {
            return Err(Error::damaged(format!(
                "pack {pack}: its header names another pack, store or fingerprint"
            )));
        }
        Ok(header)
    }

    /// The footers of these packs are about to be asked for; so many chunks are in them, as far as
    /// anybody knows.
    pub(crate) fn expect_footers(&self, packs: &[(PackId, u32)]) {
        if self.footer_guess == TRAILER_LEN {
            return;
        }
        // Rows of the database give the number of chunks; a longer footer takes one more request.
        let longest = |chunks: u32| (TRAILER_LEN + Footer::longest(chunks)).min(EXPECTED_MAX);
        let mut expected = self.expected.lock().expect("no panic while held");
        // Earlier expectations that no read came for are dropped.
        *expected = packs.iter().map(|(pack, chunks)| (*pack, longest(*chunks))).collect();
    }

    /// How many footers are worth reading at once.
    pub(crate) fn footers_at_once(&self) -> usize {
        self.backend.uploads_max()
    }

    /// Reads and checks a sealed pack's footer.
    ///
    /// # Errors
    /// `NotFound`, `Damaged`.
    pub fn read_footer(&self, pack: PackId) -> Result<Footer> {
        match self.try_read_footer(pack) {
            Err(error) if error.kind() == ErrorKind::Damaged && self.backend.forget(pack) => {
                self.try_read_footer(pack)
            }
            read => read,
        }
    }

    fn try_read_footer(&self, pack: PackId) -> Result<Footer> {
        let missing = || Error::new(ErrorKind::NotFound, format!("pack {pack} is missing"));
        let expected = self.expected.lock().expect("no panic while held").remove(&pack);
        let at_first = expected.unwrap_or(self.footer_guess);
        let (end, len) = self.backend.read_end(pack, at_first)?.ok_or_else(missing)?;
        self.read_header(pack)?;
        if len < (PACK_HEADER_LEN + TRAILER_LEN) as u64 {
            return Err(Error::damaged(format!("pack {pack}: only {len} bytes long")));
        }
        let at = || format!("pack {pack}, trailer at byte {}", len - TRAILER_LEN as u64);
        let trailer =
            Trailer::decode(end.last_chunk::<TRAILER_LEN>().unwrap_or(&[0; TRAILER_LEN]), len).context(at)?;
        if trailer.id != pack {
            return Err(Error::damaged(format!("{}: names {}", at(), trailer.id)));
        }
        let at = || format!("pack {pack}, footer at byte {}", trailer.footer_offset);
        let (start, wanted) = (u64::from(trailer.footer_offset), trailer.footer_len as usize);
        let in_end = start
            .checked_sub(len - end.len() as u64)
            .and_then(|from| end.get(from as usize..)?.get(..wanted));
        if let Some(bytes) = in_end {
            return trailer.decode_footer(bytes).context(at);
        }
        load_footer(&*self.backend, &trailer)
    }

    /// The one fingerprint at `place`, straight from the footer's bytes; `None` when there is no
    /// such pack or slot. It is not checked against the footer's checksum: a caller compares all of
    /// it.
    ///
    /// # Errors
    /// When the backend cannot be read.
    pub fn read_fingerprint(&self, place: Place) -> Result<Option<Fingerprint>> {
        let known = self.tables.lock().expect("no panic while held").get(&place.pack).copied();
        let (start, chunks) = match known {
            Some(table) => table,
            None => {
                let Some(table) = self.find_table(place.pack)? else { return Ok(None) };
                let mut tables = self.tables.lock().expect("no panic while held");
                if tables.len() >= TABLES_MAX {
                    tables.clear();
                }
                tables.insert(place.pack, table);
                table
            }
        };
        if place.slot >= chunks {
            return Ok(None);
        }
        let mut bytes = [0; 32];
        match self.backend.read_at(place.pack, start + 32 * u64::from(place.slot), &mut bytes) {
            Ok(()) => Ok(Some(Fingerprint(bytes))),
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Damaged) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Where a pack's table of fingerprints begins, and how many there are.
    fn find_table(&self, pack: PackId) -> Result<Option<(u64, u32)>> {
        let Some(len) = self.backend.len(pack)? else { return Ok(None) };
        let Some(at) = len.checked_sub(TRAILER_LEN as u64) else { return Ok(None) };
        let mut bytes = [0; TRAILER_LEN];
        match self.backend.read_at(pack, at, &mut bytes) {
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Damaged) => {
                return Ok(None);
            }
            read => read?,
        }
        let Ok(trailer) = Trailer::decode(&bytes, len) else { return Ok(None) };
        let start = u64::from(trailer.footer_offset) + Footer::HEADER_LEN + 8 * u64::from(trailer.frames);
        Ok((trailer.id == pack).then_some((start, trailer.chunks)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::io::IoSlice;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use outrigger_format::{ChunkKind, FingerprintKind, FooterBuilder, PackKind, StoreId};

    use crate::backend::MemoryBackend;
    use crate::testing::Wrapped;

    const STORE: StoreId = StoreId([1; 16]);
    const KIND: FingerprintKind = FingerprintKind::Blake3;

    /// Writes a pack with so many chunks, but only its footer.
    fn write(backend: &dyn Backend, id: PackId, chunks: u32) {
        let header =
            PackHeader { kind: PackKind::Data, fingerprint: KIND, id, store: STORE, mark: 0 }.encode();
        let mut builder = FooterBuilder::default();
        let names: Vec<Fingerprint> = (0..chunks)
            .map(|number| {
                let mut bytes = [0; 32];
                bytes[..4].copy_from_slice(&number.to_be_bytes());
                Fingerprint(bytes)
            })
            .collect();
        for (at, frame) in names.chunks(8).enumerate() {
            builder.push(PACK_HEADER_LEN as u32 + at as u32, ChunkKind::Data, frame);
        }
        let frames = vec![0; 1 << 20];
        let (_, end) = builder.finish(id, (header.len() + frames.len()) as u32);
        let mut writer = backend.create(id).unwrap();
        writer.append(&[IoSlice::new(&header), IoSlice::new(&frames), IoSlice::new(&end)]).unwrap();
        writer.seal().unwrap();
    }

    #[test]
    fn of_a_pack_that_is_expected_no_more_is_read_than_its_footer_may_take() {
        let memory = MemoryBackend::default();
        let packs = [(PackId(1), 10), (PackId(2), 2_000), (PackId(3), 20_000)];
        packs.iter().for_each(|(id, chunks)| write(&memory, *id, *chunks));
        let (reads, bytes) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let counted = (Arc::clone(&reads), Arc::clone(&bytes));
        let far = Wrapped::over(Arc::new(memory)).far().before_reads(move |_, len| {
            counted.0.fetch_add(1, Ordering::Relaxed);
            counted.1.fetch_add(len, Ordering::Relaxed);
        });
        let reader = PackReader::new(Arc::new(far), STORE, KIND);
        let take = |counter: &AtomicUsize| counter.swap(0, Ordering::Relaxed);
        for (id, chunks) in packs {
            let unknown = reader.read_footer(id).unwrap();
            let (asked, at_most) = (take(&reads), take(&bytes));
            reader.expect_footers(&packs);
            assert_eq!(reader.read_footer(id).unwrap(), unknown);
            assert_eq!(unknown.fingerprints().len(), chunks as usize);
            assert_eq!(take(&reads), 2, "the end and the header");
            let read = take(&bytes);
            assert!(read <= 44 * chunks as usize + 200, "{read} for {chunks} chunks");
            if chunks > 4_000 {
                assert_eq!(asked, 3)
            } else {
                assert!(read < at_most)
            }
            // One that turns out to be longer is read all the same.
            reader.expect_footers(&[(id, 1)]);
            assert_eq!(reader.read_footer(id).unwrap(), unknown);
            take(&reads);
            take(&bytes);
        }
    }

    /// A length that is only claimed: the bytes there are zeros, as in a sparse file.
    #[test]
    fn no_more_is_read_of_a_claimed_footer_than_is_found_to_be_one() {
        let memory = MemoryBackend::default();
        let (id, chunks) = (PackId(1), 1 << 20);
        let header =
            PackHeader { kind: PackKind::Data, fingerprint: KIND, id, store: STORE, mark: 0 }.encode();
        let mut footer = vec![0; Footer::HEADER_LEN as usize + 36 * chunks];
        footer[..4].copy_from_slice(b"OFTR");
        footer[8..12].copy_from_slice(&(chunks as u32).to_le_bytes());
        let (footer_offset, footer_len) = (PACK_HEADER_LEN as u32, footer.len() as u32);
        let trailer =
            Trailer { footer_offset, footer_len, frames: 0, chunks: chunks as u32, footer_sum: 0, id };
        let mut writer = memory.create(id).unwrap();
        let parts = [&header[..], &footer, &trailer.encode()];
        writer.append(&parts.map(IoSlice::new)).unwrap();
        writer.seal().unwrap();
        let bytes = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&bytes);
        let wrapped = Wrapped::over(Arc::new(memory)).before_reads(move |_, len| {
            counted.fetch_add(len, Ordering::Relaxed);
        });
        let reader = PackReader::new(Arc::new(wrapped), STORE, KIND);
        let error = reader.read_footer(id).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Damaged, "{error}");
        assert!(bytes.load(Ordering::Relaxed) < 2 << 20, "{bytes:?} bytes were read");
        // However many chunks a row of the database speaks of.
        let far = Wrapped::over(Arc::new(MemoryBackend::default())).far();
        let reader = PackReader::new(Arc::new(far), STORE, KIND);
        reader.expect_footers(&[(id, u32::MAX)]);
        assert_eq!(reader.expected.lock().unwrap()[&id], EXPECTED_MAX);
    }
}
