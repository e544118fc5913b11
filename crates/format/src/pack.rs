//! Pack header, footer and trailer. `docs/format.md` has the byte maps.

use crate::{
    ChunkKind, Cursor, FRAME_HEADER_LEN, Fingerprint, FingerprintKind, FormatError, MAX_FRAME_LEN, PackId,
    Put, StoreId, checksum,
};

const HEADER: &str = "pack header";
const FOOTER: &str = "pack footer";
const TRAILER: &str = "pack trailer";
const VERSION: u16 = 1;

/// Bytes of the pack header.
pub const PACK_HEADER_LEN: usize = 64;
/// Bytes of the trailer, at the end of a sealed pack.
pub const TRAILER_LEN: usize = 48;
/// The most frames in a pack: a frame's number is a u16.
pub const MAX_PACK_FRAMES: usize = 65_535;
/// The most chunks in a pack: a slot has 24 bits.
pub const MAX_PACK_CHUNKS: usize = 1 << 24;

/// The content of a pack.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[repr(u8)]
pub enum PackKind {
    /// Frames of data chunks.
    Data = 0,
    /// Frames of manifest nodes and catalogue blocks.
    Meta = 1,
}

impl PackKind {
    /// From its number on disk.
    ///
    /// # Errors
    /// [`FormatError::Range`] for an unknown number.
    pub fn from_byte(byte: u8) -> Result<Self, FormatError> {
        match byte {
            0 => Ok(Self::Data),
            1 => Ok(Self::Meta),
            value => Err(FormatError::Range { what: HEADER, field: "kind", value: value.into() }),
        }
    }
}

/// The first 64 bytes of a pack.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PackHeader {
    /// Its content.
    pub kind: PackKind,
    /// The function that names its chunks.
    pub fingerprint: FingerprintKind,
    /// Its id.
    pub id: PackId,
    /// The store it belongs to.
    pub store: StoreId,
    /// A random number that the announcer also wrote into its database.
    pub mark: u64,
}

impl PackHeader {
    /// The header's bytes.
    pub fn encode(&self) -> [u8; PACK_HEADER_LEN] {
        let mut out = Vec::with_capacity(PACK_HEADER_LEN);
        out.extend_from_slice(b"OUTRPACK");
        out.put_u16(VERSION);
        out.extend_from_slice(&[self.kind as u8, self.fingerprint as u8]);
        out.extend_from_slice(&[0; 12]);
        out.put_u64(self.id.0);
        out.extend_from_slice(&self.store.0);
        out.put_u64(self.mark);
        out.put_u64(checksum(&[&out]));
        let mut header = [0; PACK_HEADER_LEN];
        header.copy_from_slice(&out);
        header
    }

    /// Decodes the header at the beginning of `bytes`.
    ///
    /// # Errors
    /// Any [`FormatError`].
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut cursor = Cursor::new(HEADER, bytes);
        let all = cursor.take(PACK_HEADER_LEN)?;
        let mut cursor = Cursor::new(HEADER, all);
        if cursor.array::<8>()? != *b"OUTRPACK" {
            return Err(FormatError::Magic { what: HEADER });
        }
        let version = cursor.u16()?;
        let (kind, fingerprint) = (cursor.u8()?, cursor.u8()?);
        let (incompatible, _compatible, key) = (cursor.u32()?, cursor.u32()?, cursor.u32()?);
        let id = PackId(cursor.u64()?);
        let store = StoreId(cursor.array()?);
        let mark = cursor.u64()?;
        if cursor.u64()? != checksum(&[&all[..56]]) {
            return Err(FormatError::Checksum { what: HEADER });
        }
        if version != VERSION || incompatible != 0 || key != 0 {
            return Err(FormatError::Newer {
                what: HEADER,
                version: version.into(),
                features: incompatible | key,
            });
        }
        if id.0 == 0 || id > PackId::MAX {
            return Err(cursor.range("pack id", id.0));
        }
        let (kind, fingerprint) = (PackKind::from_byte(kind)?, FingerprintKind::from_byte(fingerprint)?);
        Ok(Self { kind, fingerprint, id, store, mark })
    }
}

/// One frame as the footer describes it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FrameEntry {
    /// The offset of its header in the pack, in bytes.
    pub offset: u32,
    /// Chunks in it.
    pub chunks: u16,
    /// Their content.
    pub kind: ChunkKind,
}

/// A decoded footer: the chunks of a pack, and the frame of each.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Footer {
    frames: Vec<FrameEntry>,
    fingerprints: Vec<Fingerprint>,
    positions: Vec<(u16, u16)>,
    end: u32,
}

impl Footer {
    /// Bytes before the frame table.
    pub const HEADER_LEN: u64 = 16;

    /// Checks the first bytes of a footer, so that a reader stops early at something else, such as
    /// a sparse file. It decides nothing else.
    ///
    /// # Errors
    /// `Magic`, `Truncated`, or `Range` if the fingerprints do not rise.
    pub fn check_beginning(bytes: &[u8]) -> Result<(), FormatError> {
        let mut cursor = Cursor::new(FOOTER, bytes);
        if cursor.array::<4>()? != *b"OFTR" {
            return Err(FormatError::Magic { what: FOOTER });
        }
        let (frames, chunks) = (cursor.u32()? as usize, cursor.u32()? as usize);
        cursor.u32()?;
        let table = cursor.rest().get(frames.saturating_mul(8)..).unwrap_or_default();
        let (names, _) = table.as_chunks::<32>();
        let names = &names[..names.len().min(chunks)];
        match names.windows(2).position(|pair| pair[0] >= pair[1]) {
            Some(slot) => Err(cursor.range("fingerprint order at slot", slot as u64)),
            None => Ok(()),
        }
    }

    /// The most bytes of a footer of so many different chunks, each in a frame of its own.
    pub fn longest(chunks: u32) -> usize {
        Self::HEADER_LEN as usize + 44 * chunks as usize
    }

    /// Frames in the order of the file.
    pub fn frames(&self) -> &[FrameEntry] {
        &self.frames
    }

    /// Fingerprints in rising order; the index is the slot.
    pub fn fingerprints(&self) -> &[Fingerprint] {
        &self.fingerprints
    }

    /// The slot of `fingerprint`.
    pub fn find(&self, fingerprint: &Fingerprint) -> Option<u32> {
        self.fingerprints.binary_search(fingerprint).ok().map(|slot| slot as u32)
    }

    /// The frame number of a slot, and the position in the frame. `None` if there is no such slot.
    pub fn position(&self, slot: u32) -> Option<(u16, u16)> {
        self.positions.get(slot as usize).copied()
    }

    /// The byte range of frame `number`, with its header. `None` if there is no such frame.
    pub fn frame_range(&self, number: u16) -> Option<std::ops::Range<u32>> {
        let start = self.frames.get(number as usize)?.offset;
        let end = self.frames.get(number as usize + 1).map_or(self.end, |next| next.offset);
        Some(start..end)
    }

    /// The approximate bytes of memory that it takes.
    pub fn memory(&self) -> usize {
        self.frames.len() * 8 + self.fingerprints.len() * 36
    }

    /// Decodes a footer that fills `bytes` and began at `offset` in its pack.
    ///
    /// # Errors
    /// Any [`FormatError`]. Counts, order and every position are checked, so lookups need not.
    pub fn decode(bytes: &[u8], offset: u32) -> Result<Self, FormatError> {
        let mut cursor = Cursor::new(FOOTER, bytes);
        if cursor.array::<4>()? != *b"OFTR" {
            return Err(FormatError::Magic { what: FOOTER });
        }
        let (frame_count, chunk_count) = (cursor.u32()? as usize, cursor.u32()? as usize);
        cursor.u32()?;
        if frame_count > MAX_PACK_FRAMES {
            return Err(cursor.range("frames", frame_count as u64));
        }
        if chunk_count > MAX_PACK_CHUNKS || cursor.rest().len() != frame_count * 8 + chunk_count * 36 {
            return Err(cursor.range("chunks", chunk_count as u64));
        }
        let mut frames = Vec::with_capacity(frame_count);
        let (mut floor, mut total) = (PACK_HEADER_LEN as u32, 0usize);
        for _ in 0..frame_count {
            let (offset_, chunks, kind) = (cursor.u32()?, cursor.u16()?, cursor.u8()?);
            cursor.u8()?;
            if offset_ < floor || offset_ >= offset || chunks == 0 {
                return Err(cursor.range("frame offset", offset_.into()));
            }
            floor = offset_ + 1;
            total += chunks as usize;
            frames.push(FrameEntry { offset: offset_, chunks, kind: ChunkKind::from_byte(kind)? });
        }
        if total < chunk_count {
            return Err(cursor.range("chunks", chunk_count as u64));
        }
        // A reader allocates memory for a whole frame before it sees the frame's own header.
        let ends = frames.iter().skip(1).map(|next| next.offset).chain([offset]);
        for (frame, end) in frames.iter().zip(ends) {
            let longest = FRAME_HEADER_LEN + 4 * usize::from(frame.chunks) + MAX_FRAME_LEN;
            if (end - frame.offset) as usize > longest {
                return Err(cursor.range("frame length", (end - frame.offset).into()));
            }
        }
        let fingerprints: Vec<Fingerprint> =
            (0..chunk_count).map(|_| cursor.fingerprint()).collect::<Result<_, _>>()?;
        if let Some(slot) = fingerprints.windows(2).position(|pair| pair[0] >= pair[1]) {
            return Err(cursor.range("fingerprint order at slot", slot as u64));
        }
        let mut positions = Vec::with_capacity(chunk_count);
        for _ in 0..chunk_count {
            let (frame, at) = (cursor.u16()?, cursor.u16()?);
            if frames.get(frame as usize).is_none_or(|entry| at >= entry.chunks) {
                return Err(cursor.range("position in frame", frame.into()));
            }
            positions.push((frame, at));
        }
        Ok(Self { frames, fingerprints, positions, end: offset })
    }
}

/// Collects a pack's frames while it is written.
#[derive(Debug, Default)]
pub struct FooterBuilder {
    frames: Vec<FrameEntry>,
    chunks: Vec<(Fingerprint, u16, u16)>,
}

impl FooterBuilder {
    /// Frames so far.
    pub fn frames(&self) -> usize {
        self.frames.len()
    }

    /// Chunks so far.
    pub fn chunks(&self) -> usize {
        self.chunks.len()
    }

    /// True if another frame of `chunks` chunks still fits the format's bounds.
    pub fn has_room(&self, chunks: usize) -> bool {
        self.frames.len() < MAX_PACK_FRAMES && self.chunks.len() + chunks <= MAX_PACK_CHUNKS
    }

    /// Records a frame whose header begins at `offset`.
    pub fn push(&mut self, offset: u32, kind: ChunkKind, fingerprints: &[Fingerprint]) {
        let frame = self.frames.len() as u16;
        self.frames.push(FrameEntry { offset, chunks: fingerprints.len() as u16, kind });
        let numbered = fingerprints.iter().enumerate();
        self.chunks.extend(numbered.map(|(at, fingerprint)| (*fingerprint, frame, at as u16)));
    }

    /// The footer, and the bytes of it and the trailer. The footer begins at `offset` of pack `id`.
    /// Among equal fingerprints the first stays.
    pub fn finish(mut self, id: PackId, offset: u32) -> (Footer, Vec<u8>) {
        self.chunks.sort_unstable();
        self.chunks.dedup_by_key(|(fingerprint, ..)| *fingerprint);
        let mut out = Vec::with_capacity(16 + self.frames.len() * 8 + self.chunks.len() * 36 + TRAILER_LEN);
        out.extend_from_slice(b"OFTR");
        out.put_u32(self.frames.len() as u32);
        out.put_u32(self.chunks.len() as u32);
        out.put_u32(0);
        for frame in &self.frames {
            out.put_u32(frame.offset);
            out.put_u16(frame.chunks);
            out.extend_from_slice(&[frame.kind as u8, 0]);
        }
        for (fingerprint, ..) in &self.chunks {
            out.extend_from_slice(&fingerprint.0);
        }
        for &(_, frame, at) in &self.chunks {
            out.put_u16(frame);
            out.put_u16(at);
        }
        let trailer = Trailer {
            footer_offset: offset,
            footer_len: out.len() as u32,
            frames: self.frames.len() as u32,
            chunks: self.chunks.len() as u32,
            footer_sum: checksum(&[&out]),
            id,
        };
        out.extend_from_slice(&trailer.encode());
        let footer = Footer {
            frames: self.frames,
            fingerprints: self.chunks.iter().map(|(fingerprint, ..)| *fingerprint).collect(),
            positions: self.chunks.iter().map(|&(_, frame, at)| (frame, at)).collect(),
            end: offset,
        };
        (footer, out)
    }
}

/// The last 48 bytes of a sealed pack.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Trailer {
    /// The offset of the footer, in bytes.
    pub footer_offset: u32,
    /// Its length, bytes.
    pub footer_len: u32,
    /// Frames in the pack.
    pub frames: u32,
    /// Chunks in the pack.
    pub chunks: u32,
    /// Checksum of the footer.
    pub footer_sum: u64,
    /// The pack's id.
    pub id: PackId,
}

impl Trailer {
    /// The trailer's bytes.
    pub fn encode(&self) -> [u8; TRAILER_LEN] {
        let mut out = Vec::with_capacity(TRAILER_LEN);
        out.extend_from_slice(b"OUTREND1");
        out.put_u32(self.footer_offset);
        out.put_u32(self.footer_len);
        out.put_u32(self.frames);
        out.put_u32(self.chunks);
        out.put_u64(self.footer_sum);
        out.put_u64(self.id.0);
        out.put_u64(checksum(&[&out]));
        let mut trailer = [0; TRAILER_LEN];
        trailer.copy_from_slice(&out);
        trailer
    }

    /// Decodes the trailer in the last 48 bytes of a pack of `pack_len` bytes.
    ///
    /// # Errors
    /// Any [`FormatError`]. [`FormatError::Range`] if the trailer describes another length.
    pub fn decode(bytes: &[u8], pack_len: u64) -> Result<Self, FormatError> {
        let mut cursor = Cursor::new(TRAILER, bytes);
        if cursor.array::<8>()? != *b"OUTREND1" {
            return Err(FormatError::Magic { what: TRAILER });
        }
        let (footer_offset, footer_len) = (cursor.u32()?, cursor.u32()?);
        let (frames, chunks) = (cursor.u32()?, cursor.u32()?);
        let (footer_sum, id) = (cursor.u64()?, PackId(cursor.u64()?));
        if cursor.u64()? != checksum(&[&bytes[..40]]) {
            return Err(FormatError::Checksum { what: TRAILER });
        }
        let described = u64::from(footer_offset) + u64::from(footer_len) + TRAILER_LEN as u64;
        let tables = Footer::HEADER_LEN + 8 * u64::from(frames) + 36 * u64::from(chunks);
        let is_possible = frames as usize <= MAX_PACK_FRAMES && chunks as usize <= MAX_PACK_CHUNKS;
        if !is_possible || tables != u64::from(footer_len) {
            return Err(cursor.range("footer length", footer_len.into()));
        }
        if described != pack_len || (footer_offset as usize) < PACK_HEADER_LEN {
            return Err(cursor.range("footer offset", footer_offset.into()));
        }
        Ok(Self { footer_offset, footer_len, frames, chunks, footer_sum, id })
    }

    /// Lengths up to which the footer is read in turn, and checked by [`Footer::check_beginning`].
    /// So a false length costs at most twice the memory of the existing bytes.
    pub fn steps(&self) -> impl Iterator<Item = usize> + use<> {
        let len = self.footer_len as usize;
        let doubled = std::iter::successors(Some(1 << 20), |step| Some(step * 2usize));
        doubled.take_while(move |step| *step < len).chain([len])
    }

    /// Checks the footer's bytes and decodes them.
    ///
    /// # Errors
    /// Any [`FormatError`].
    pub fn decode_footer(&self, bytes: &[u8]) -> Result<Footer, FormatError> {
        if checksum(&[bytes]) != self.footer_sum {
            return Err(FormatError::Checksum { what: FOOTER });
        }
        Footer::decode(bytes, self.footer_offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fingerprint(byte: u8) -> Fingerprint {
        Fingerprint([byte; 32])
    }

    #[test]
    fn headers_read_back_and_every_flipped_bit_is_noticed() {
        let header = PackHeader {
            kind: PackKind::Meta,
            fingerprint: FingerprintKind::Sha256,
            id: PackId(77),
            store: StoreId([5; 16]),
            mark: 0x0123_4567_89ab_cdef,
        };
        let mut bytes = header.encode();
        assert_eq!(PackHeader::decode(&bytes), Ok(header));
        for bit in 0..bytes.len() * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(PackHeader::decode(&bytes).is_err(), "bit {bit}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
    }

    #[test]
    fn a_footer_finds_what_was_pushed() {
        let mut builder = FooterBuilder::default();
        builder.push(64, ChunkKind::Data, &[fingerprint(9), fingerprint(3)]);
        builder.push(500, ChunkKind::Data, &[fingerprint(5)]);
        let (built, bytes) = builder.finish(PackId(3), 1000);
        let pack_len = 1000 + bytes.len() as u64;
        let (footer, trailer) = bytes.split_at(bytes.len() - TRAILER_LEN);
        let trailer = Trailer::decode(trailer, pack_len).unwrap();
        assert_eq!(trailer.id, PackId(3));
        let read = trailer.decode_footer(footer).unwrap();
        assert_eq!(read, built);
        assert_eq!(read.position(read.find(&fingerprint(3)).unwrap()), Some((0, 1)));
        assert_eq!(read.position(read.find(&fingerprint(5)).unwrap()), Some((1, 0)));
        assert_eq!(read.find(&fingerprint(4)), None);
        assert_eq!(read.frame_range(0), Some(64..500));
        assert_eq!(read.frame_range(1), Some(500..1000));
        assert!(Trailer::decode(&bytes[bytes.len() - TRAILER_LEN..], pack_len + 1).is_err());
        for bit in 0..footer.len() * 8 {
            let mut torn = footer.to_vec();
            torn[bit / 8] ^= 1 << (bit % 8);
            assert!(trailer.decode_footer(&torn).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn trailers_claim_no_longer_footer_than_their_counts_need() {
        let trailer = |footer_len: u32, frames, chunks| {
            let footer_offset = PACK_HEADER_LEN as u32;
            let trailer = Trailer { footer_offset, footer_len, frames, chunks, footer_sum: 0, id: PackId(1) };
            let pack_len = u64::from(footer_offset) + u64::from(footer_len) + TRAILER_LEN as u64;
            Trailer::decode(&trailer.encode(), pack_len)
        };
        assert!(trailer(16 + 8 + 36, 1, 1).is_ok());
        assert!(trailer(u32::MAX - 4096, 1, 1).is_err());
        assert!(trailer(16 + 8 * 65_536, 65_536, 0).is_err(), "more frames than a pack can have");
        let chunks = MAX_PACK_CHUNKS as u32 + 1;
        assert!(trailer(16 + 36 * chunks, 0, chunks).is_err(), "more chunks than a pack can have");
    }

    #[test]
    fn frames_are_no_longer_than_a_frame_may_be() {
        let decode = |frame_len: u32| {
            let mut builder = FooterBuilder::default();
            builder.push(64, ChunkKind::Data, &[fingerprint(1)]);
            builder.push(64 + frame_len, ChunkKind::Data, &[fingerprint(2)]);
            let offset = 64 + 2 * frame_len;
            let (_, bytes) = builder.finish(PackId(3), offset);
            Footer::decode(&bytes[..bytes.len() - TRAILER_LEN], offset)
        };
        let longest = (FRAME_HEADER_LEN + 4 + MAX_FRAME_LEN) as u32;
        assert!(decode(longest).is_ok() && decode(longest + 1).is_err());
    }

    #[test]
    fn what_is_no_footer_is_known_by_its_beginning() {
        let mut builder = FooterBuilder::default();
        let names: Vec<Fingerprint> = (0..200).map(fingerprint).collect();
        builder.push(64, ChunkKind::Data, &names);
        let (_, bytes) = builder.finish(PackId(3), 1000);
        let footer = &bytes[..bytes.len() - TRAILER_LEN];
        for len in 16..footer.len() {
            assert_eq!(Footer::check_beginning(&footer[..len]), Ok(()), "{len} bytes");
        }
        let mut torn = footer.to_vec();
        torn[16 + 8 + 64..].fill(0);
        assert!(Footer::check_beginning(&torn[..24 + 64]).is_ok());
        assert!(Footer::check_beginning(&torn).is_err() && Footer::check_beginning(&[0; 64]).is_err());
    }
}
