//! The description at the end of a parity file.
//!
//! A parity file has `L` bytes of parity, and then this:
//!
//! ```text
//!   0  8  magic "OUTRPAR1"
//!   8  2  version = 1
//!  10  1  members K of the group, 1 to 32
//!  11  1  parity files M of the group, 1 to 8
//!  12  1  which of these this file is, from 0
//!  13  3  reserved
//!  16  4  incompatible features (an unknown bit refuses the file)
//!  20  4  reserved
//!  24  8  group
//!  32 16  store id
//!  48  8  L: the longest member's stored length, rounded up to 64
//!  56 32  BLAKE3 of the L bytes
//!  88 48K members: pack id u64, stored length u64, BLAKE3 of the stored bytes
//!  ..  4  length of the description, without these last 16 bytes
//!  ..  4  reserved
//!  ..  8  checksum of all of it before this
//! ```

use crate::cursor::{Cursor, Put};
use crate::error::FormatError;
use crate::id::{PackId, StoreId, checksum};

const WHAT: &str = "parity description";
const MAGIC: [u8; 8] = *b"OUTRPAR1";
const VERSION: u16 = 1;
const FIXED_LEN: usize = 88;
const MEMBER_LEN: usize = 48;
const END_LEN: usize = 16;

/// Bytes of the end of a parity file that surely have all of its description.
pub const PARITY_END_LEN: usize = FIXED_LEN + PARITY_MEMBERS_MAX * MEMBER_LEN + END_LEN;
/// Packs in a group, at most.
pub const PARITY_MEMBERS_MAX: usize = 32;
/// Parity files of a group, at most.
pub const PARITY_FILES_MAX: usize = 8;
/// The lengths of parity are multiples of this.
pub const PARITY_UNIT: u64 = 64;

/// A pack in a group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ParityMember {
    /// Its id.
    pub pack: PackId,
    /// Its length as it is stored, bytes.
    pub len: u64,
    /// BLAKE3 of its stored bytes.
    pub hash: [u8; 32],
}

/// The description of a group, and of one of its files, in that file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ParityDescription {
    /// The store whose packs these are.
    pub store: StoreId,
    /// The group's number.
    pub group: u64,
    /// How many parity files the group has.
    pub files: u8,
    /// Which of them this is, from 0.
    pub shard: u8,
    /// BLAKE3 of this file's parity.
    pub hash: [u8; 32],
    /// The packs, in the order in which they were encoded.
    pub members: Vec<ParityMember>,
}

impl ParityDescription {
    /// Bytes of parity in each of the group's files.
    pub fn parity_len(&self) -> u64 {
        let longest = self.members.iter().map(|member| member.len).max().unwrap_or(0);
        longest.next_multiple_of(PARITY_UNIT)
    }

    /// Its bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(PARITY_END_LEN);
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.extend_from_slice(&[self.members.len() as u8, self.files, self.shard, 0, 0, 0]);
        out.put_u32(0);
        out.put_u32(0);
        out.put_u64(self.group);
        out.extend_from_slice(&self.store.0);
        out.put_u64(self.parity_len());
        out.extend_from_slice(&self.hash);
        for member in &self.members {
            out.put_u64(member.pack.0);
            out.put_u64(member.len);
            out.extend_from_slice(&member.hash);
        }
        out.put_u32(out.len() as u32);
        out.put_u32(0);
        let sum = checksum(&[&out]);
        out.put_u64(sum);
        out
    }

    /// Decodes the description of parity file `id` from `end`, the last bytes of the `file_len`
    /// bytes that the file has: [`PARITY_END_LEN`] of them, or all.
    ///
    /// # Errors
    /// Any [`FormatError`]. [`FormatError::Range`] also if it describes a file of another name or
    /// length.
    pub fn decode(end: &[u8], file_len: u64, id: PackId) -> Result<Self, FormatError> {
        let truncated = || FormatError::Truncated { what: WHAT, need: FIXED_LEN + END_LEN, have: end.len() };
        let last = end.len().checked_sub(END_LEN).ok_or_else(truncated)?;
        let mut cursor = Cursor::new(WHAT, &end[last..]);
        let len = cursor.u32()? as usize;
        let start = last.checked_sub(len).filter(|_| len >= FIXED_LEN).ok_or_else(truncated)?;
        let bytes = &end[start..];
        let mut cursor = Cursor::new(WHAT, bytes);
        if cursor.array::<8>()? != MAGIC {
            return Err(FormatError::Magic { what: WHAT });
        }
        let version = u16::from_le_bytes(cursor.array()?);
        let [members, files, shard, ..] = cursor.array::<6>()?;
        let features = cursor.u32()?;
        if version != VERSION || features != 0 {
            return Err(FormatError::Newer { what: WHAT, version: version.into(), features });
        }
        if checksum(&[&bytes[..bytes.len() - 8]])
            != u64::from_le_bytes(end[end.len() - 8..].try_into().unwrap_or_default())
        {
            return Err(FormatError::Checksum { what: WHAT });
        }
        cursor.u32()?;
        let (group, store) = (cursor.u64()?, StoreId(cursor.array()?));
        let (parity_len, hash) = (cursor.u64()?, cursor.array()?);
        let count = usize::from(members);
        if !(1..=PARITY_MEMBERS_MAX).contains(&count) || len != FIXED_LEN + count * MEMBER_LEN {
            return Err(cursor.range("members", members.into()));
        }
        if !(1..=PARITY_FILES_MAX).contains(&usize::from(files)) {
            return Err(cursor.range("parity files", files.into()));
        }
        if shard >= files || id != PackId::of_parity(group, shard) {
            return Err(cursor.range("group", group));
        }
        let mut read = Vec::with_capacity(count);
        for _ in 0..count {
            let (pack, len) = (PackId(cursor.u64()?), cursor.u64()?);
            if pack.0 == 0 || pack > PackId::MAX {
                return Err(cursor.range("pack", pack.0));
            }
            if len > u64::from(u32::MAX) * 2 {
                return Err(cursor.range("pack length", len));
            }
            read.push(ParityMember { pack, len, hash: cursor.array()? });
        }
        let described = Self { store, group, files, shard, hash, members: read };
        let has_twice =
            |at: usize| described.members[..at].iter().any(|m| m.pack == described.members[at].pack);
        if let Some(at) = (0..count).find(|at| has_twice(*at)) {
            return Err(cursor.range("pack", described.members[at].pack.0));
        }
        let whole_len = parity_len.checked_add((len + END_LEN) as u64);
        if parity_len != described.parity_len() || whole_len != Some(file_len) {
            return Err(cursor.range("length", parity_len));
        }
        Ok(described)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn description() -> ParityDescription {
        let member = |id: u64| ParityMember { pack: PackId(id), len: 100 * id, hash: [id as u8; 32] };
        ParityDescription {
            store: StoreId([7; 16]),
            group: 0x1234,
            files: 2,
            shard: 1,
            hash: [9; 32],
            members: vec![member(3), member(5)],
        }
    }

    #[test]
    fn descriptions_are_read_as_they_were_written() {
        let about = description();
        let bytes = about.encode();
        assert_eq!((about.parity_len(), bytes.len()), (512, 88 + 96 + 16));
        let id = PackId::of_parity(0x1234, 1);
        assert_eq!(id.parity(), Some((0x1234, 1)));
        let file_len = 512 + bytes.len() as u64;
        let mut end = vec![1; 40];
        end.extend_from_slice(&bytes);
        assert_eq!(ParityDescription::decode(&end, file_len, id).unwrap(), about);
        assert!(ParityDescription::decode(&end, file_len + 1, id).is_err(), "of another length");
        assert!(ParityDescription::decode(&end, file_len, PackId::of_parity(0x1234, 0)).is_err());
        for cut in 0..bytes.len() {
            assert!(ParityDescription::decode(&bytes[..cut], file_len, id).is_err());
        }
    }

    #[test]
    fn every_flipped_bit_is_noticed() {
        let (bytes, id) = (description().encode(), PackId::of_parity(0x1234, 1));
        let file_len = 512 + bytes.len() as u64;
        for bit in 0..bytes.len() * 8 {
            let mut other = bytes.clone();
            other[bit / 8] ^= 1 << (bit % 8);
            assert!(ParityDescription::decode(&other, file_len, id).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn a_pack_is_in_a_group_once() {
        let mut about = description();
        about.members[1] = about.members[0];
        let bytes = about.encode();
        let file_len = about.parity_len() + bytes.len() as u64;
        assert!(ParityDescription::decode(&bytes, file_len, PackId::of_parity(0x1234, 1)).is_err());
    }
}
