//! The frame header. `docs/format.md` has the byte map.
//!
//! ```text
//!  0  4 magic   4 1 version   5 1 chunk kind   6 1 codec   7 1 filter
//!  8  4 raw length   12 4 stored length   16 4 chunks   20 1 cipher
//! 21  1 codec asked for + 1 (0: not recorded)   22 1 its level   23 1 reason
//! 24  8 checksum of the stored bytes   32 8 checksum of 0..32 and the lengths   40 4n lengths
//! ```

use crate::{Codec, Cursor, Encoding, Filter, FormatError, Put, checksum};

const WHAT: &str = "frame header";
const VERSION: u8 = 1;

/// The beginning of every frame. A pack without its footer can be searched for it.
pub const FRAME_MAGIC: [u8; 4] = *b"OFRM";
/// Bytes before the chunks' lengths.
pub const FRAME_HEADER_LEN: usize = 40;
/// The most bytes of a frame, raw or stored.
pub const MAX_FRAME_LEN: usize = 64 << 20;
const MAX_CHUNKS: usize = 65_535;

/// The content of a frame's chunks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[repr(u8)]
pub enum ChunkKind {
    /// Pieces of files.
    Data = 0,
    /// Manifest nodes.
    Manifest = 1,
    /// One catalogue block.
    Catalogue = 2,
}

impl ChunkKind {
    /// From its number on disk.
    ///
    /// # Errors
    /// [`FormatError::Range`] for an unknown number.
    pub fn from_byte(byte: u8) -> Result<Self, FormatError> {
        match byte {
            0 => Ok(Self::Data),
            1 => Ok(Self::Manifest),
            2 => Ok(Self::Catalogue),
            value => Err(FormatError::Range { what: WHAT, field: "chunk kind", value: value.into() }),
        }
    }
}

/// A frame's description: everything but its stored bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FrameHeader {
    /// The content of the chunks.
    pub kind: ChunkKind,
    /// The encoding of the stored bytes.
    pub encoding: Encoding,
    /// Bytes after the header.
    pub stored_len: u32,
    /// Checksum of these bytes.
    pub stored_sum: u64,
    /// The length of each chunk in order. Their sum is the raw length.
    pub lengths: Vec<u32>,
}

impl FrameHeader {
    /// Sum of the chunks' lengths, bytes.
    pub fn raw_len(&self) -> usize {
        self.lengths.iter().map(|&len| len as usize).sum()
    }

    /// Bytes of the header with its lengths.
    pub fn encoded_len(&self) -> usize {
        FRAME_HEADER_LEN + 4 * self.lengths.len()
    }

    /// Appends the header to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend_from_slice(&FRAME_MAGIC);
        let Encoding { codec, filter, .. } = self.encoding;
        out.extend_from_slice(&[VERSION, self.kind as u8, codec as u8, filter.byte()]);
        out.put_u32(self.raw_len() as u32);
        out.put_u32(self.stored_len);
        out.put_u32(self.lengths.len() as u32);
        out.push(0);
        out.extend_from_slice(&self.encoding.record());
        out.put_u64(self.stored_sum);
        out.put_u64(0);
        for &len in &self.lengths {
            out.put_u32(len);
        }
        let sum = checksum(&[&out[start..start + 32], &out[start + FRAME_HEADER_LEN..]]);
        out[start + 32..start + 40].copy_from_slice(&sum.to_le_bytes());
    }

    /// Decodes the header at the beginning of `bytes`, which may be longer.
    ///
    /// # Errors
    /// Any [`FormatError`]. The header's own checksum is verified before its lengths are used. The
    /// caller must verify the stored bytes with [`FrameHeader::verify_stored`].
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut cursor = Cursor::new(WHAT, bytes);
        if cursor.array::<4>()? != FRAME_MAGIC {
            return Err(FormatError::Magic { what: WHAT });
        }
        let version = cursor.u8()?;
        let (kind, codec, filter) = (cursor.u8()?, cursor.u8()?, cursor.u8()?);
        let (raw_len, stored_len, chunks) = (cursor.u32()?, cursor.u32()?, cursor.u32()?);
        let cipher = cursor.u8()?;
        let record = cursor.array::<3>()?;
        let (stored_sum, header_sum) = (cursor.u64()?, cursor.u64()?);
        let count = chunks as usize;
        if count == 0 || count > MAX_CHUNKS {
            return Err(FormatError::Range { what: WHAT, field: "chunks", value: chunks.into() });
        }
        let table = cursor.take(4 * count)?;
        if checksum(&[&bytes[..32], table]) != header_sum {
            return Err(FormatError::Checksum { what: WHAT });
        }
        let known = Filter::from_byte(filter).filter(|_| version == VERSION && cipher == 0);
        let Some(known) = known else {
            let features = u32::from(filter) << 8 | u32::from(cipher);
            return Err(FormatError::Newer { what: WHAT, version: version.into(), features });
        };
        let mut lengths = Vec::with_capacity(count);
        let mut table = Cursor::new(WHAT, table);
        let mut sum = 0u64;
        while !table.is_empty() {
            let len = table.u32()?;
            if len == 0 {
                return Err(FormatError::Range { what: WHAT, field: "chunk length", value: 0 });
            }
            sum += u64::from(len);
            lengths.push(len);
        }
        if sum != u64::from(raw_len) || raw_len as usize > MAX_FRAME_LEN {
            return Err(FormatError::Range { what: WHAT, field: "raw length", value: raw_len.into() });
        }
        if stored_len as usize > MAX_FRAME_LEN {
            return Err(FormatError::Range { what: WHAT, field: "stored length", value: stored_len.into() });
        }
        let (kind, codec) = (ChunkKind::from_byte(kind)?, Codec::from_byte(codec)?);
        let encoding = Encoding::from_record(codec, known, record);
        Ok(Self { kind, encoding, stored_len, stored_sum, lengths })
    }

    /// Checks the stored bytes against the header.
    ///
    /// # Errors
    /// [`FormatError::Checksum`] or [`FormatError::Truncated`].
    pub fn verify_stored(&self, stored: &[u8]) -> Result<(), FormatError> {
        let need = self.stored_len as usize;
        if stored.len() != need {
            return Err(FormatError::Truncated { what: "frame", need, have: stored.len() });
        }
        if checksum(&[stored]) != self.stored_sum {
            return Err(FormatError::Checksum { what: "frame" });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> FrameHeader {
        FrameHeader {
            kind: ChunkKind::Data,
            encoding: Encoding {
                codec: Codec::Zstd,
                filter: Filter::Group4,
                asked: Some(crate::CodecSpec { codec: Codec::Zstd, level: -1 }),
                reason: crate::Reason::Policy,
            },
            stored_len: 3,
            stored_sum: checksum(&[b"abc"]),
            lengths: vec![5, 1, 70_000],
        }
    }

    #[test]
    fn a_header_reads_back() {
        let mut bytes = Vec::new();
        header().encode(&mut bytes);
        assert_eq!(bytes.len(), header().encoded_len());
        bytes.extend_from_slice(b"abc");
        let read = FrameHeader::decode(&bytes).unwrap();
        assert_eq!(read, header());
        read.verify_stored(b"abc").unwrap();
        assert_eq!(read.verify_stored(b"abd"), Err(FormatError::Checksum { what: "frame" }));
    }

    #[test]
    fn a_frame_of_an_older_program_reads_as_it_did_and_a_newer_filter_is_refused() {
        let with = |at: usize, value: u8| {
            let mut bytes = Vec::new();
            FrameHeader { encoding: Encoding::plain(Codec::Zstd), ..header() }.encode(&mut bytes);
            bytes[at] = value;
            let sum = checksum(&[&bytes[..32], &bytes[FRAME_HEADER_LEN..]]);
            bytes[32..40].copy_from_slice(&sum.to_le_bytes());
            FrameHeader::decode(&bytes)
        };
        // Zeros in bytes that were reserved.
        assert_eq!(with(7, 0).unwrap().encoding, Encoding::plain(Codec::Zstd));
        assert!(matches!(with(7, 200), Err(FormatError::Newer { features: 0xc800, .. })));
        assert!(matches!(with(20, 1), Err(FormatError::Newer { features: 1, .. })));
        assert!(matches!(with(6, 77), Err(FormatError::Range { .. })));
        // Informative bytes never make a frame invalid.
        assert_eq!(with(21, 255).unwrap().encoding, Encoding::plain(Codec::Zstd));
    }

    #[test]
    fn every_flipped_bit_is_noticed() {
        let mut bytes = Vec::new();
        header().encode(&mut bytes);
        for bit in 0..bytes.len() * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(FrameHeader::decode(&bytes).is_err(), "bit {bit}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
    }
}
