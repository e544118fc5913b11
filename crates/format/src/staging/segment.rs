//! The header of a segment.
//!
//! ```text
//!  0  8 magic   8 2 version   10 2 reserved   12 4 incompatible features   16 4 number   20 4 reserved
//! 24 16 store id   40 8 first sequence   48 8 reserved   56 8 checksum of 0..56, and of 64..128 if there
//! only in an encrypted segment:
//! 64 32 salt   96 32 keyed hash of 0..56 and the salt
//! ```

use crate::{Cursor, FormatError, Put, StoreId, checksum};

const SEGMENT: &str = "staging segment header";
const VERSION: u8 = 1;
/// Incompatible feature: records are encrypted and have tags, and the header is longer. A log of before
/// its first release had 1 for another cipher.
const ENCRYPTED: u32 = 2;

/// The beginning of every segment.
pub const SEGMENT_MAGIC: [u8; 8] = *b"OUTRSTAG";
/// Bytes of a plain segment's header.
pub const SEGMENT_HEADER_LEN: usize = 64;
/// Bytes of an encrypted segment's header, which is not encrypted itself.
pub const SEALED_HEADER_LEN: usize = 128;

/// What an encrypted segment's header has more than a plain one's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Seal {
    /// Random bytes, from which and the log's key the segment's keys are derived.
    pub salt: [u8; 32],
    /// Keyed hash of [`SegmentHeader::authenticated`].
    pub mac: [u8; 32],
}

/// A segment's header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SegmentHeader {
    /// The store whose mount wrote it.
    pub store: StoreId,
    /// Its number, at least 1. The next segment has the next number.
    pub number: u32,
    /// Sequence of its first record, at least 1.
    pub first: u64,
    /// There is one if the records are encrypted.
    pub seal: Option<Seal>,
}

impl SegmentHeader {
    /// The header's bytes: 64 of them, or 128 with a seal.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(SEALED_HEADER_LEN);
        out.extend_from_slice(&SEGMENT_MAGIC);
        out.put_u16(VERSION.into());
        out.put_u16(0);
        out.put_u32(if self.seal.is_some() { ENCRYPTED } else { 0 });
        out.put_u32(self.number);
        out.put_u32(0);
        out.extend_from_slice(&self.store.0);
        out.put_u64(self.first);
        out.put_u64(0);
        match &self.seal {
            None => out.put_u64(checksum(&[&out])),
            Some(seal) => {
                out.put_u64(checksum(&[&out, &seal.salt, &seal.mac]));
                out.extend_from_slice(&seal.salt);
                out.extend_from_slice(&seal.mac);
            }
        }
        out
    }

    /// The bytes that the keyed hash of an encrypted segment's header covers.
    pub fn authenticated(&self) -> Vec<u8> {
        let mut bytes = self.encode();
        let salt = bytes.get(64..96).map(<[u8]>::to_vec).unwrap_or_default();
        bytes.truncate(56);
        bytes.extend_from_slice(&salt);
        bytes
    }

    /// Decodes the header at the beginning of `bytes`, which may be longer. The caller verifies the
    /// keyed hash.
    ///
    /// # Errors
    /// Any [`FormatError`].
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut cursor = Cursor::new(SEGMENT, bytes);
        if cursor.array::<8>()? != SEGMENT_MAGIC {
            return Err(FormatError::Magic { what: SEGMENT });
        }
        let (version, _, features) = (cursor.u16()?, cursor.u16()?, cursor.u32()?);
        let (number, _, store) = (cursor.u32()?, cursor.u32()?, StoreId(cursor.array()?));
        let (first, _, sum) = (cursor.u64()?, cursor.u64()?, cursor.u64()?);
        let rest: &[u8] = if features & ENCRYPTED != 0 { cursor.take(64)? } else { &[] };
        if checksum(&[&bytes[..56], rest]) != sum {
            return Err(FormatError::Checksum { what: SEGMENT });
        }
        if version != VERSION.into() || features & !ENCRYPTED != 0 {
            return Err(FormatError::Newer { what: SEGMENT, version: version.into(), features });
        }
        if number == 0 || first == 0 {
            return Err(cursor.range("number or first sequence", 0));
        }
        let seal = rest
            .split_first_chunk()
            .and_then(|(salt, rest)| Some(Seal { salt: *salt, mac: *rest.first_chunk()? }));
        Ok(Self { store, number, first, seal })
    }
}
