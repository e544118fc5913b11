//! The checksums of records.
//!
//! A record has two. The long one, over fields and data, is computed before the record's place is
//! known. The short one covers the record's header, and with it the long one.

use twox_hash::XxHash3_64;

/// XXH3-64 over `data`, seeded with that over `fields`. A quick hash suffices, as it is computed on
/// every write, and a record lives for seconds. The content gets its fingerprint when it is stored.
pub fn record_sum(fields: &[u8], data: &[u8]) -> u64 {
    XxHash3_64::oneshot_with_seed(XxHash3_64::oneshot(fields), data)
}

/// Computes the checksums of one segment's records.
pub trait Sums: Send + Sync {
    /// Over a record's fields and data. It is the same in all segments of a log.
    fn payload(&self, fields: &[u8], data: &[u8]) -> u64;
    /// Over the bytes of a record's header before this checksum. The record begins at `offset` of
    /// its segment.
    fn header(&self, header: &[u8], offset: u64) -> u64;
}

/// Checksums of a plain segment. They find what a crash has torn, and anybody can compute them.
#[derive(Clone, Copy, Debug)]
pub struct PlainSums;

impl Sums for PlainSums {
    fn payload(&self, fields: &[u8], data: &[u8]) -> u64 {
        record_sum(fields, data)
    }

    fn header(&self, header: &[u8], _: u64) -> u64 {
        record_sum(header, &[])
    }
}

/// Checksums of an encrypted segment: keyed BLAKE3, cut to 8 bytes. Nobody without the keys can
/// change a record, or move it to another offset or segment.
pub struct KeyedSums {
    payload: [u8; 32],
    header: [u8; 32],
}

impl KeyedSums {
    /// Sums with these two keys. All segments of a log have the same `payload`, and each has another
    /// `header`.
    pub fn new(payload: [u8; 32], header: [u8; 32]) -> Self {
        Self { payload, header }
    }
}

impl std::fmt::Debug for KeyedSums {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("KeyedSums(..)")
    }
}

impl Sums for KeyedSums {
    fn payload(&self, fields: &[u8], data: &[u8]) -> u64 {
        // The length keeps apart what has the same bytes, divided in another way.
        keyed(&self.payload, &[&(fields.len() as u64).to_le_bytes(), fields, data])
    }

    fn header(&self, header: &[u8], offset: u64) -> u64 {
        keyed(&self.header, &[&offset.to_le_bytes(), header])
    }
}

fn keyed(key: &[u8; 32], parts: &[&[u8]]) -> u64 {
    let mut hasher = blake3::Hasher::new_keyed(key);
    for part in parts {
        hasher.update(part);
    }
    let mut first = [0; 8];
    first.copy_from_slice(&hasher.finalize().as_bytes()[..8]);
    u64::from_le_bytes(first)
}
