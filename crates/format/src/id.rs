use std::fmt;

use crate::FormatError;

/// The first 8 bytes of BLAKE3 over `parts`, concatenated: guards every header, footer and stored frame.
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
    /// Bytes 0..8 as a big-endian number: orders like the fingerprint itself, and is what index runs keep.
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
}

impl FingerprintKind {
    /// From its number on disk.
    ///
    /// # Errors
    /// [`FormatError::Range`] for an unknown number.
    pub fn from_byte(byte: u8) -> Result<Self, FormatError> {
        match byte {
            1 => Ok(Self::Blake3),
            2 => Ok(Self::Sha256),
            value => Err(FormatError::Range { what: "fingerprint", field: "kind", value: value.into() }),
        }
    }

    /// From its name: `blake3` or `sha256`.
    ///
    /// # Errors
    /// [`FormatError::Text`] for any other name.
    pub fn parse(text: &str) -> Result<Self, FormatError> {
        match text {
            "blake3" => Ok(Self::Blake3),
            "sha256" => Ok(Self::Sha256),
            _ => Err(FormatError::Text(format!(
                "`{text}` is not a fingerprint function; use blake3 or sha256"
            ))),
        }
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Blake3 => "blake3",
            Self::Sha256 => "sha256",
        }
    }
}

/// A pack's number: from a counter in the database, below 2^40, never used twice, never 0.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PackId(pub u64);

impl PackId {
    /// The largest pack id.
    pub const MAX: PackId = PackId((1 << 40) - 1);
}

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

/// Where a chunk lies: a pack, and its rank among that pack's sorted fingerprints.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Place {
    /// The pack.
    pub pack: PackId,
    /// The rank.
    pub slot: u32,
}

impl Place {
    /// `pack << 24 | slot`, as index runs keep it.
    pub fn to_u64(self) -> u64 {
        self.pack.0 << 24 | u64::from(self.slot)
    }

    /// The inverse of [`Place::to_u64`].
    pub fn from_u64(value: u64) -> Self {
        Self { pack: PackId(value >> 24), slot: (value & 0xff_ffff) as u32 }
    }
}

/// Sixteen random bytes that name a store; a pack of another store is refused.
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
