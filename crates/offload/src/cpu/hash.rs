//! Fingerprints of the chunks of a buffer, or of one chunk that spans several buffers.
//!
//! BLAKE3 is a tree over blocks of 1 KiB. It hashes up to 16 blocks side by side, of one chunk or,
//! in [`hash_many`], of all chunks. The other functions are chains, so their chunks are hashed side
//! by side ([`super::lanes`]), and those of the parallel construction segment by segment
//! ([`super::pmd`]). A single chunk is left to the functions' crates, which choose their
//! instructions at run time.

use std::ops::Range;

use outrigger_format::{Fingerprint, FingerprintKind};
use sha2::Digest as _;

use super::{blake3_many, lanes, pmd, scratch};
use crate::SimdLevel;
use crate::op::{Digest, PMD_SEGMENT, PMD_TAG};

/// The fingerprint of one chunk.
///
/// ```
/// use outrigger_format::FingerprintKind;
/// let fingerprint = outrigger_offload::hash(FingerprintKind::Sha256, b"abc");
/// assert!(fingerprint.to_string().starts_with("ba7816bf8f01cfea"));
/// ```
pub fn hash(kind: FingerprintKind, chunk: &[u8]) -> Fingerprint {
    match kind {
        FingerprintKind::Blake3 => Fingerprint(*blake3::hash(chunk).as_bytes()),
        FingerprintKind::Sha256 => Fingerprint(sha2::Sha256::digest(chunk).into()),
        FingerprintKind::Md5 => padded(&md5::Md5::digest(chunk)),
        FingerprintKind::Sha1 => padded(&sha1::Sha1::digest(chunk)),
        FingerprintKind::PmdMd5 | FingerprintKind::PmdSha1 | FingerprintKind::PmdSha256 => {
            let mut fingerprint = Fingerprint([0; 32]);
            let (digest, _) = Digest::of_kind(kind);
            pmd::many(SimdLevel::current(), digest, 1, |_| chunk, |_, value| fingerprint.0 = value);
            fingerprint
        }
    }
}

/// A digest and zeros.
fn padded(digest: &[u8]) -> Fingerprint {
    let mut fingerprint = Fingerprint([0; 32]);
    fingerprint.0[..digest.len()].copy_from_slice(digest);
    fingerprint
}

/// Appends to `out` the fingerprint of each of `data`'s `ranges`, in their order. With all
/// functions, many chunks in one call are faster than one after the other. In steady state a thread
/// allocates nothing apart from the growth of `out`.
///
/// # Panics
/// If a range lies outside of `data`.
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
    hash_many_with(SimdLevel::current(), kind, data, ranges, out);
}

/// [`hash_many`] with the instructions of `level`, or of the best lower level that this processor
/// has. (BLAKE3 always uses the best.)
///
/// # Panics
/// If a range lies outside of `data`.
pub fn hash_many_with(
    level: SimdLevel,
    kind: FingerprintKind,
    data: &[u8],
    ranges: impl IntoIterator<Item = Range<usize>>,
    out: &mut Vec<Fingerprint>,
) {
    let (digest, is_pmd) = Digest::of_kind(kind);
    if digest == Digest::Blake3 {
        return blake3_many::hash(data, ranges.into_iter(), out);
    }
    scratch::with_ranges(ranges.into_iter(), |ranges| {
        let (count, before) = (ranges.len(), out.len());
        out.resize(before + count, Fingerprint([0; 32]));
        let (chunk, out) = (|n: usize| &data[ranges[n].clone()], &mut out[before..]);
        if is_pmd {
            pmd::many(level, digest, count, chunk, |n, value| out[n].0 = value);
        } else {
            lanes::digests(level, digest, count, chunk, |n, value| out[n].0 = value);
        }
    });
}

/// Fingerprints a chunk that arrives in pieces. After [`Hasher::finish`] it takes the next chunk.
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
    // Boxed, as its stack of subtree hashes takes 2 KB, while the others need 100 bytes.
    Blake3(Box<blake3::Hasher>),
    Plain(Plain),
    Pmd(Box<Pmd>),
}

impl Hasher {
    /// A hasher at the beginning of a chunk. Allocates, so it should be kept.
    pub fn new(kind: FingerprintKind) -> Self {
        Self(match Digest::of_kind(kind) {
            (Digest::Blake3, _) => State::Blake3(Box::default()),
            (digest, false) => State::Plain(Plain::new(digest)),
            (digest, true) => State::Pmd(Box::new(Pmd::new(digest))),
        })
    }

    /// Takes the chunk's next bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        match &mut self.0 {
            State::Blake3(hasher) => drop(hasher.update(bytes)),
            State::Plain(hasher) => hasher.update(bytes),
            State::Pmd(hasher) => hasher.update(bytes),
        }
    }

    /// The fingerprint of all bytes since the last call, or since [`Hasher::new`].
    pub fn finish(&mut self) -> Fingerprint {
        match &mut self.0 {
            State::Blake3(hasher) => {
                let fingerprint = *hasher.finalize().as_bytes();
                hasher.reset();
                Fingerprint(fingerprint)
            }
            State::Plain(hasher) => hasher.finish(),
            State::Pmd(hasher) => hasher.finish(),
        }
    }
}

/// A function that is a chain of blocks.
#[derive(Clone, Debug)]
enum Plain {
    Md5(md5::Md5),
    Sha1(sha1::Sha1),
    Sha256(sha2::Sha256),
}

impl Plain {
    fn new(digest: Digest) -> Self {
        match digest {
            Digest::Md5 => Self::Md5(md5::Md5::new()),
            Digest::Sha1 => Self::Sha1(sha1::Sha1::new()),
            Digest::Sha256 => Self::Sha256(sha2::Sha256::new()),
            Digest::Blake3 => unreachable!("it is a tree"),
        }
    }

    fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Md5(hasher) => hasher.update(bytes),
            Self::Sha1(hasher) => hasher.update(bytes),
            Self::Sha256(hasher) => hasher.update(bytes),
        }
    }

    fn finish(&mut self) -> Fingerprint {
        match self {
            Self::Md5(hasher) => padded(&hasher.finalize_reset()),
            Self::Sha1(hasher) => padded(&hasher.finalize_reset()),
            Self::Sha256(hasher) => padded(&hasher.finalize_reset()),
        }
    }
}

/// The parallel construction over bytes that arrive in pieces. Every level is open at once, and the
/// digest of a level's segment is input of the next level. The level that ends up with one segment
/// has the root. Levels above it are ignored.
#[derive(Clone, Debug)]
struct Pmd {
    digest: Digest,
    len: u64,
    levels: Vec<Level>,
}

#[derive(Clone, Debug)]
struct Level {
    hasher: Plain,
    /// Bytes in the open segment.
    open: usize,
    /// The number of closed segments.
    closed: u64,
    /// The digest of the first of them.
    first: Fingerprint,
}

impl Pmd {
    fn new(digest: Digest) -> Self {
        Self { digest, len: 0, levels: Vec::new() }
    }

    fn update(&mut self, bytes: &[u8]) {
        self.len += bytes.len() as u64;
        self.feed(0, bytes);
    }

    fn feed(&mut self, level: usize, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let open = self.level(level).open;
            let (now, later) = bytes.split_at(bytes.len().min(PMD_SEGMENT - open));
            let at = self.level(level);
            at.hasher.update(now);
            at.open += now.len();
            if at.open == PMD_SEGMENT {
                self.close(level);
            }
            bytes = later;
        }
    }

    fn level(&mut self, level: usize) -> &mut Level {
        if level == self.levels.len() {
            let (hasher, first) = (Plain::new(self.digest), Fingerprint([0; 32]));
            self.levels.push(Level { hasher, open: 0, closed: 0, first });
        }
        &mut self.levels[level]
    }

    /// Ends a segment and passes its digest to the next level.
    fn close(&mut self, level: usize) {
        let len = self.digest.len();
        let at = self.level(level);
        let value = at.hasher.finish();
        at.open = 0;
        at.closed += 1;
        if at.closed == 1 {
            at.first = value;
        }
        self.feed(level + 1, &value.0[..len]);
    }

    fn finish(&mut self) -> Fingerprint {
        let mut level = 0;
        let root = loop {
            let at = self.level(level);
            if at.open > 0 || at.closed == 0 {
                self.close(level);
            }
            let at = self.level(level);
            if at.closed == 1 {
                break at.first;
            }
            level += 1;
        };
        let mut last = Plain::new(self.digest);
        last.update(&PMD_TAG);
        last.update(&self.len.to_le_bytes());
        last.update(&root.0[..self.digest.len()]);
        *self = Self::new(self.digest);
        last.finish()
    }
}
