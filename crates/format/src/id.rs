use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasherDefault, Hasher};

use crate::FormatError;

/// The first 8 bytes of BLAKE3 over the concatenated `parts`. It guards every header, footer and
/// stored frame.
pub fn checksum(parts: &[&[u8]]) -> u64 {
    let mut hasher = blake3::Hasher::new();
    for part in parts {
        hasher.update(part);
    }
    let mut first = [0; 8];
    first.copy_from_slice(&hasher.finalize().as_bytes()[..8]);
    u64::from_le_bytes(first)
}

/// The name of a chunk or manifest node: a 32-byte hash of its raw bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Fingerprint(pub [u8; 32]);

impl Fingerprint {
    /// Bytes 0..8 as a big-endian number. It sorts like the fingerprint itself, and index runs keep
    /// it.
    pub fn prefix(&self) -> u64 {
        let mut first = [0; 8];
        first.copy_from_slice(&self.0[..8]);
        u64::from_be_bytes(first)
    }

    /// Parses 64 hex digits.
    ///
    /// # Errors
    /// [`FormatError::Text`] when `text` is anything else.
    pub fn parse(text: &str) -> Result<Self, FormatError> {
        let bad = || FormatError::Text(format!("`{text}` is not a fingerprint (64 hex digits)"));
        if text.len() != 64 || !text.is_ascii() {
            return Err(bad());
        }
        let mut bytes = [0; 32];
        for (byte, pair) in bytes.iter_mut().zip(text.as_bytes().chunks(2)) {
            let pair = std::str::from_utf8(pair).map_err(|_| bad())?;
            *byte = u8::from_str_radix(pair, 16).map_err(|_| bad())?;
        }
        Ok(Self(bytes))
    }
}

/// A map by fingerprints.
///
/// ```
/// use outrigger_format::{Fingerprint, FingerprintMap};
/// let mut counts: FingerprintMap<u64> = FingerprintMap::default();
/// *counts.entry(Fingerprint([7; 32])).or_default() += 1;
/// assert_eq!(counts.get(&Fingerprint([7; 32])), Some(&1));
/// ```
pub type FingerprintMap<V> = HashMap<Fingerprint, V, BuildHasherDefault<FingerprintHasher>>;

/// Fingerprints are uniform already, so their first bytes serve as the hash.
#[derive(Clone, Copy, Default, Debug)]
pub struct FingerprintHasher(u64);

impl Hasher for FingerprintHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        let mut first = [0; 8];
        let n = bytes.len().min(8);
        first[..n].copy_from_slice(&bytes[..n]);
        self.0 ^= u64::from_le_bytes(first);
    }

    fn write_usize(&mut self, _: usize) {}
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}…", self.prefix())
    }
}

/// The hash function that names chunks; fixed per store.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[repr(u8)]
pub enum FingerprintKind {
    /// BLAKE3, 256 bits.
    Blake3 = 1,
    /// SHA-256 (FIPS 180-4).
    Sha256 = 2,
    /// MD5 (RFC 1321), 16 bytes and 16 zeros. For experiments.
    Md5 = 3,
    /// SHA-1 (RFC 3174), 20 bytes and 12 zeros. For experiments.
    Sha1 = 4,
    /// The parallel Merkle-Damgård construction over MD5, padded likewise. For experiments.
    PmdMd5 = 5,
    /// The same over SHA-1. For experiments.
    PmdSha1 = 6,
    /// The same over SHA-256. For experiments.
    PmdSha256 = 7,
}

impl FingerprintKind {
    /// Every kind, by its number on disk.
    pub const ALL: [FingerprintKind; 7] =
        [Self::Blake3, Self::Sha256, Self::Md5, Self::Sha1, Self::PmdMd5, Self::PmdSha1, Self::PmdSha256];

    /// From its number on disk.
    ///
    /// # Errors
    /// [`FormatError::Range`] for an unknown number.
    pub fn from_byte(byte: u8) -> Result<Self, FormatError> {
        Self::ALL.into_iter().find(|&kind| kind as u8 == byte).ok_or(FormatError::Range {
            what: "fingerprint",
            field: "kind",
            value: byte.into(),
        })
    }

    /// From its name: `blake3`, `sha256`, `md5`, `sha1`, `pmd-md5`, `pmd-sha1` or `pmd-sha256`.
    ///
    /// # Errors
    /// [`FormatError::Text`] for any other name.
    pub fn parse(text: &str) -> Result<Self, FormatError> {
        Self::ALL.into_iter().find(|kind| kind.name() == text).ok_or_else(|| {
            FormatError::Text(format!(
                "`{text}` is not a fingerprint function; use blake3 or sha256 (for experiments: md5, sha1, \
                 pmd-md5, pmd-sha1, pmd-sha256)"
            ))
        })
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Blake3 => "blake3",
            Self::Sha256 => "sha256",
            Self::Md5 => "md5",
            Self::Sha1 => "sha1",
            Self::PmdMd5 => "pmd-md5",
            Self::PmdSha1 => "pmd-sha1",
            Self::PmdSha256 => "pmd-sha256",
        }
    }

    /// True if equal fingerprints mean equal bytes. The other kinds exist for experiments, and
    /// anybody can make two chunks with the same MD5. A store that uses one compares bytes before
    /// it relies on a match.
    ///
    /// ```
    /// use outrigger_format::FingerprintKind;
    /// let trusted: Vec<_> = FingerprintKind::ALL.into_iter().filter(|kind| kind.is_trusted()).collect();
    /// assert_eq!(trusted, [FingerprintKind::Blake3, FingerprintKind::Sha256]);
    /// ```
    pub fn is_trusted(self) -> bool {
        matches!(self, Self::Blake3 | Self::Sha256)
    }
}

/// A pack's number, from a counter in the database. It is below 2^40, never 0, and never used
/// twice.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PackId(pub u64);

impl PackId {
    /// The largest pack id.
    pub const MAX: PackId = PackId((1 << 40) - 1);

    /// The name of a parity file: no pack has it. `group` has 55 bits.
    pub fn of_parity(group: u64, shard: u8) -> Self {
        Self(PARITY_BIT | (group & PARITY_GROUP_MAX) << 8 | u64::from(shard))
    }

    /// The group, and the number in it, of a parity file; `None` for a pack.
    pub fn parity(self) -> Option<(u64, u8)> {
        let group = (self.0 & !PARITY_BIT) >> 8;
        (self.0 & PARITY_BIT != 0).then_some((group, self.0 as u8))
    }
}

/// The bit that tells names of parity files from pack ids.
const PARITY_BIT: u64 = 1 << 63;
/// The largest number of a group.
const PARITY_GROUP_MAX: u64 = (1 << 55) - 1;

impl fmt::Display for PackId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl fmt::Debug for PackId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "pack {:x}", self.0)
    }
}

/// Where a chunk is: a pack, and the chunk's rank among the pack's sorted fingerprints.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Place {
    /// The pack.
    pub pack: PackId,
    /// The rank.
    pub slot: u32,
}

impl Place {
    /// `pack << 24 | slot`, as in index runs.
    pub fn to_u64(self) -> u64 {
        self.pack.0 << 24 | u64::from(self.slot)
    }

    /// The inverse of [`Place::to_u64`].
    pub fn from_u64(value: u64) -> Self {
        Self { pack: PackId(value >> 24), slot: (value & 0xff_ffff) as u32 }
    }
}

/// An encryption domain: inodes whose contents share a key of their own, by a random number.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Domain(pub u64);

impl Domain {
    /// The domain of everything outside directories with a key of their own. It has the store's keys.
    pub const COMMON: Self = Self(0);
}

impl fmt::Display for Domain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl fmt::Debug for Domain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "domain {self}")
    }
}

/// Sixteen random bytes that name a store. Packs of other stores are refused.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct StoreId(pub [u8; 16]);

impl fmt::Display for StoreId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for StoreId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "store {self}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_come_back_from_disk_and_from_text() {
        for (number, kind) in (1..).zip(FingerprintKind::ALL) {
            assert_eq!(kind as u8, number, "numbers on disk never change");
            assert_eq!(FingerprintKind::from_byte(number), Ok(kind));
            assert_eq!(FingerprintKind::parse(kind.name()), Ok(kind));
        }
        for unknown in [0, 8, 255] {
            FingerprintKind::from_byte(unknown).expect_err("no such kind");
        }
        for unknown in ["", "MD5", "pmd", "pmd-blake3"] {
            FingerprintKind::parse(unknown).expect_err("no such kind");
        }
    }
}
