//! Slow and readable versions of the operations. All devices' results are compared with them.
//!
//! Each follows its definition in `docs/format.md` or in [`crate::op`], one window, one segment,
//! one bit at a time. The standard digests are those of the `md-5`, `sha1`, `sha2` and `blake3`
//! crates. (The reference of `scan` is [`scan_reference`].)

use std::collections::HashMap;

use md5::Digest as _;
use outrigger_format::boundary::{
    CutWalk, GEAR, GearMasks, RABIN_POLYNOMIAL, WINDOWED, scan_reference, windowed_mask,
};
use outrigger_format::{ChunkerSpec, Fingerprint, FingerprintKind, WindowedHash};

use crate::op::{Digest, Ingested, PMD_SEGMENT, PMD_TAG, Stream, WindowFunction, WindowSpec};

/// The standard digest of `data`.
///
/// ```
/// use outrigger_offload::{op::Digest, reference};
/// assert_eq!(reference::digest(Digest::Md5, b"")[..4], [0xd4, 0x1d, 0x8c, 0xd9]);
/// ```
pub fn digest(digest: Digest, data: &[u8]) -> Vec<u8> {
    match digest {
        Digest::Md5 => md5::Md5::digest(data).to_vec(),
        Digest::Sha1 => sha1::Sha1::digest(data).to_vec(),
        Digest::Sha256 => sha2::Sha256::digest(data).to_vec(),
        Digest::Blake3 => blake3::hash(data).as_bytes().to_vec(),
    }
}

/// The parallel Merkle-Damgård construction over `function`, which must not be BLAKE3.
pub fn pmd_hash(function: Digest, data: &[u8]) -> Vec<u8> {
    // Empty data is one empty segment.
    let mut digests = vec![digest(function, &data[..data.len().min(PMD_SEGMENT)])];
    digests.extend(data.chunks(PMD_SEGMENT).skip(1).map(|segment| digest(function, segment)));
    while digests.len() > 1 {
        digests = digests.concat().chunks(PMD_SEGMENT).map(|segment| digest(function, segment)).collect();
    }
    let length = (data.len() as u64).to_le_bytes();
    digest(function, &[&PMD_TAG[..], &length, &digests[0]].concat())
}

/// The fingerprint of one chunk: a digest, or the parallel construction, padded with zeros to 32
/// bytes.
pub fn fingerprint(kind: FingerprintKind, chunk: &[u8]) -> Fingerprint {
    let value = match Digest::of_kind(kind) {
        (function, false) => digest(function, chunk),
        (function, true) => pmd_hash(function, chunk),
    };
    let mut fingerprint = Fingerprint([0; 32]);
    fingerprint.0[..value.len()].copy_from_slice(&value);
    fingerprint
}

/// The Rabin fingerprint of `window`: the remainder of its polynomial, by long division.
///
/// ```
/// use outrigger_offload::reference::rabin;
/// assert_eq!((rabin(&[0]), rabin(&[2]), rabin(b"ab")), (0, 2, 0x6162));
/// ```
pub fn rabin(window: &[u8]) -> u64 {
    const DEGREE: u32 = RABIN_POLYNOMIAL.ilog2();
    let mut remainder = 0;
    for byte in window {
        for bit in (0..8).rev() {
            remainder = remainder << 1 | u64::from(byte >> bit & 1);
            if remainder >> DEGREE == 1 {
                remainder ^= RABIN_POLYNOMIAL;
            }
        }
    }
    remainder
}

/// The whole hash of one window.
pub fn window(function: WindowFunction, window: &[u8]) -> Vec<u8> {
    match function {
        WindowFunction::Md5 => digest(Digest::Md5, window),
        WindowFunction::Sha1 => digest(Digest::Sha1, window),
        WindowFunction::Rabin => rabin(window).to_le_bytes().to_vec(),
        WindowFunction::Gear32 => {
            let step = |h: u32, &byte: &u8| (h << 1).wrapping_add(GEAR[byte as usize]);
            window.iter().fold(0, step).to_le_bytes().to_vec()
        }
    }
}

/// The kept parts of the hashes of all windows of `data`. `spec` must be valid.
pub fn window_hash(spec: WindowSpec, data: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut start = 0usize;
    while start.saturating_add(spec.window) <= data.len() {
        out.extend_from_slice(&window(spec.function, &data[start..start + spec.window])[..spec.keep]);
        start = start.saturating_add(spec.step);
    }
    out
}

/// Appends the candidates in `data` for a chunker, like [`crate::candidates`].
pub fn candidates(chunker: ChunkerSpec, history: &[u8], data: &[u8], out: &mut Vec<u32>) {
    let (function, avg) = match chunker {
        ChunkerSpec::Fixed { .. } => return,
        ChunkerSpec::Gear32 { avg, .. } => {
            return scan_reference(history, data, GearMasks::for_average(avg), out);
        }
        ChunkerSpec::Windowed { hash, avg, .. } => (window_function(hash), avg),
    };
    let all = [history, data].concat();
    for position in 0..data.len() {
        let end = history.len() + position + 1;
        let Some(start) = end.checked_sub(WINDOWED) else { continue };
        let hash = window(function, &all[start..end]);
        let low = u32::from_le_bytes([hash[0], hash[1], hash[2], hash[3]]);
        if low & windowed_mask(avg) == windowed_mask(avg) {
            out.push((position as u32) << 1 | 1);
        }
    }
}

/// The function that hashes a chunker's windows.
pub(crate) fn window_function(hash: WindowedHash) -> WindowFunction {
    match hash {
        WindowedHash::Rabin => WindowFunction::Rabin,
        WindowedHash::Md5 => WindowFunction::Md5,
        WindowedHash::Sha1 => WindowFunction::Sha1,
    }
}

/// Cuts, fingerprints and looks up, one step after the other. Returns the chunks of all streams,
/// and their number in each.
pub fn ingest(
    data: &[u8],
    streams: &[Stream],
    chunker: ChunkerSpec,
    kind: FingerprintKind,
    table: &HashMap<Fingerprint, u64>,
) -> (Vec<Ingested>, Vec<u32>) {
    let (mut out, mut counts) = (Vec::new(), Vec::new());
    for Stream { range, last } in streams {
        let stream = &data[range.start as usize..range.end as usize];
        let (mut found, mut ends) = (Vec::new(), Vec::new());
        candidates(chunker, &[], stream, &mut found);
        let mut walk = CutWalk::new(chunker);
        walk.feed(stream.len(), &found, &mut ends);
        if *last {
            ends.extend(walk.finish());
        }
        let mut start = 0;
        for &end in &ends {
            let fingerprint = fingerprint(kind, &stream[start..end as usize]);
            let place = table.get(&fingerprint).copied();
            out.push(Ingested { end: range.start + end as u32, fingerprint, place });
            start = end as usize;
        }
        counts.push(ends.len() as u32);
    }
    (out, counts)
}
