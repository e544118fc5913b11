//! Fingerprints: BLAKE3-256 and SHA-256 over the chunks of a buffer, or over one chunk that spans several.
//!
//! Both crates choose their instructions at run time (AVX-512 for BLAKE3, SHA-NI for SHA-256). BLAKE3 is a tree over
//! blocks of 1 KiB and hashes up to 16 of them side by side, of one chunk or, in [`hash_many`], of all.

use std::ops::Range;

use outrigger_format::{Fingerprint, FingerprintKind};
use sha2::Digest;

use super::blake3_many;

/// The fingerprint of one chunk.
///
/// ```
/// use outrigger_format::FingerprintKind;
/// let fingerprint = outrigger_offload::hash(FingerprintKind::Sha256, b"abc");
/// assert!(fingerprint.to_string().starts_with("ba7816bf8f01cfea"));
/// ```
pub fn hash(kind: FingerprintKind, chunk: &[u8]) -> Fingerprint {
    Fingerprint(match kind {
        FingerprintKind::Blake3 => *blake3::hash(chunk).as_bytes(),
        FingerprintKind::Sha256 => sha2::Sha256::digest(chunk).into(),
    })
}

/// Appends to `out` the fingerprint of each of `data`'s `ranges`, in their order. BLAKE3 is faster on many chunks at once
/// than on one after the other.
///
/// # Panics
/// When a range lies outside of `data`.
///
/// ```
/// use outrigger_format::FingerprintKind::Blake3;
/// let mut out = Vec::new();
/// outrigger_offload::hash_many(Blake3, b"one two", [0..3, 4..7], &mut out);
/// assert_eq!(out, [outrigger_offload::hash(Blake3, b"one"), outrigger_offload::hash(Blake3, b"two")]);
/// ```
pub fn hash_many(
    kind: FingerprintKind,
    data: &[u8],
    ranges: impl IntoIterator<Item = Range<usize>>,
    out: &mut Vec<Fingerprint>,
) {
    let chunks = ranges.into_iter().map(|range| &data[range]);
    match kind {
        FingerprintKind::Blake3 => blake3_many::hash(chunks, out),
        FingerprintKind::Sha256 => out.extend(chunks.map(|chunk| hash(kind, chunk))),
    }
}

/// The fingerprint of a chunk that arrives in pieces. Reusable: [`Hasher::finish`] begins the next chunk.
///
/// ```
/// use outrigger_format::FingerprintKind::Blake3;
/// let mut hasher = outrigger_offload::Hasher::new(Blake3);
/// hasher.update(b"ab");
/// hasher.update(b"c");
/// assert_eq!(hasher.finish(), outrigger_offload::hash(Blake3, b"abc"));
/// ```
#[derive(Clone, Debug)]
pub struct Hasher(State);

#[derive(Clone, Debug)]
enum State {
    // Boxed: it keeps a stack of subtree hashes, 2 KB, where SHA-256 needs 100 bytes.
    Blake3(Box<blake3::Hasher>),
    Sha256(sha2::Sha256),
}

impl Hasher {
    /// A hasher at the beginning of a chunk. Allocates (once: keep it).
    pub fn new(kind: FingerprintKind) -> Self {
        Self(match kind {
            FingerprintKind::Blake3 => State::Blake3(Box::default()),
            FingerprintKind::Sha256 => State::Sha256(sha2::Sha256::new()),
        })
    }

    /// Takes the chunk's next bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        match &mut self.0 {
            State::Blake3(hasher) => drop(hasher.update(bytes)),
            State::Sha256(hasher) => hasher.update(bytes),
        }
    }

    /// The fingerprint of all bytes since the last call, or since [`Hasher::new`].
    pub fn finish(&mut self) -> Fingerprint {
        Fingerprint(match &mut self.0 {
            State::Blake3(hasher) => {
                let fingerprint = *hasher.finalize().as_bytes();
                hasher.reset();
                fingerprint
            }
            State::Sha256(hasher) => hasher.finalize_reset().into(),
        })
    }
}
