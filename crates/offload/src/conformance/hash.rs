//! Fingerprints of many pieces, and the parallel Merkle-Damgård construction of one block.

use std::ops::Range;

use outrigger_format::{Fingerprint, FingerprintKind};

use super::{LENGTHS, contents, run};
use crate::op::{Digest, HashMany, PMD_SEGMENT, PmdHash};
use crate::{Device, Task, TaskError, reference};

/// Published digests: the test suites of RFC 1321 and RFC 3174, the examples of FIPS 180-4, and
/// BLAKE3's test vectors (lengths 0 and 1025).
fn published() -> Vec<(FingerprintKind, Vec<u8>, &'static str)> {
    use FingerprintKind::{Blake3, Md5, Sha1, Sha256};
    let alphabet = "abcdefghijklmnopqrstuvwxyz";
    let alphanumeric = format!("{}{alphabet}0123456789", alphabet.to_uppercase());
    let digits = "1234567890".repeat(8);
    let long = "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq";
    let counting: Vec<u8> = (0..=250).cycle().take(1025).collect();
    let million = vec![b'a'; 1_000_000];
    let vectors: [(_, &[u8], _); 18] = [
        (Md5, b"", "d41d8cd98f00b204e9800998ecf8427e"),
        (Md5, b"a", "0cc175b9c0f1b6a831c399e269772661"),
        (Md5, b"abc", "900150983cd24fb0d6963f7d28e17f72"),
        (Md5, b"message digest", "f96b697d7cb7938d525a2f31aaf161d0"),
        (Md5, alphabet.as_bytes(), "c3fcd3d76192e4007dfb496cca67e13b"),
        (Md5, alphanumeric.as_bytes(), "d174ab98d277d9f5a5611c2c9f419d9f"),
        (Md5, digits.as_bytes(), "57edf4a22be3c955ac49da2e2107b67a"),
        (Sha1, b"abc", "a9993e364706816aba3e25717850c26c9cd0d89d"),
        (Sha1, long.as_bytes(), "84983e441c3bd26ebaae4aa1f95129e5e54670f1"),
        (Sha1, &million, "34aa973cd4c4daa4f61eeb2bdbad27316534016f"),
        (Sha1, b"a", "86f7e437faa5a7fce15d1ddcb9eaeaea377667b8"),
        (Sha1, &b"01234567".repeat(80), "dea356a2cddd90c7a7ecedc5ebb563934f460452"),
        (Sha256, b"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"),
        (Sha256, b"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"),
        (Sha256, long.as_bytes(), "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"),
        (Sha256, &million, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0"),
        (Blake3, b"", "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262"),
        (Blake3, &counting, "d00278ae47eb27b34faecf67b4fe263f82d5412916c1ffd97c8cb7fb814b8444"),
    ];
    vectors.into_iter().map(|(kind, data, hex)| (kind, data.to_vec(), hex)).collect()
}

pub(super) fn check_hash_many(device: &mut dyn Device) {
    for (kind, data, expected) in published() {
        // Alone, and often enough to fill every lane.
        for times in [1, 33] {
            let (ranges, mut got) = (vec![0..data.len() as u32; times], Vec::new());
            let task = HashMany { kind, data: &data, ranges: &ranges, out: &mut got };
            run(device, Task::HashMany(task)).expect("hash_many");
            let expected = Fingerprint::parse(&format!("{expected:0<64}")).expect("hex");
            assert_eq!(got, vec![expected; times], "{} of {} bytes", kind.name(), data.len());
        }
    }
    let (_, data) = contents(400_100).pop().expect("contents");
    let mut mixed: Vec<Range<u32>> = LENGTHS.iter().map(|&length| 3..3 + length as u32).collect();
    mixed.extend((0..100).map(|n| n * 3001..(n + 1) * 3001 + n));
    // Every length around a block's end, where the padding takes one block or two.
    let around: Vec<Range<u32>> = (0..300).map(|n| n * 7..n * 8).collect();
    let segment = PMD_SEGMENT as u32;
    let segments: Vec<Range<u32>> = (0..70).map(|n| n..n + n * segment - n % 3 * n / 3).collect();
    let one_long_among_short: Vec<Range<u32>> =
        (0..40).map(|n| n..if n == 20 { 390_000 } else { n + 60 }).collect();
    let lists: [&[Range<u32>]; 8] = [
        &[],
        std::slice::from_ref(&mixed[9]),
        &mixed,
        &around,
        &around[50..67],
        &segments,
        &one_long_among_short,
        &mixed[LENGTHS.len()..],
    ];
    for kind in FingerprintKind::ALL {
        for ranges in lists {
            let mut got = vec![Fingerprint([0; 32])];
            run(device, Task::HashMany(HashMany { kind, data: &data, ranges, out: &mut got }))
                .expect("hash_many");
            assert_eq!((got.len(), got[0]), (ranges.len() + 1, Fingerprint([0; 32])), "what was there stays");
            for (range, got) in ranges.iter().zip(&got[1..]) {
                let expected = reference::fingerprint(kind, &data[range.start as usize..range.end as usize]);
                assert_eq!(*got, expected, "{}: {} of {range:?}", device.name(), kind.name());
            }
        }
    }
}

pub(super) fn check_pmd_hash(device: &mut dyn Device) {
    const SEGMENT: usize = PMD_SEGMENT;
    // Around one segment, one segment of digests (256, 204.8 and 128 of them), and a segment of
    // those.
    let lengths =
        [0, 1, 55, 56, 64, SEGMENT - 1, SEGMENT, SEGMENT + 1, 2 * SEGMENT, 16 * SEGMENT + 5, 100_003];
    let levels = [128, 129, 204, 205, 256, 257].map(|segments| segments * SEGMENT);
    let (_, data) = contents(257 * SEGMENT + 1).pop().expect("contents");
    for digest in Digest::ALL.into_iter().filter(|digest| digest.has_pmd()) {
        for length in lengths.into_iter().chain(levels).chain(levels.map(|length| length + 1)) {
            // Unaligned, except the longest.
            let data = &data[(data.len() - length).min(1)..][..length];
            let mut got = vec![7];
            run(device, Task::PmdHash(PmdHash { digest, data, out: &mut got })).expect("pmd_hash");
            let expected = [&[7][..], &reference::pmd_hash(digest, data)].concat();
            assert_eq!(got, expected, "{}: pmd-{} of {length} bytes", device.name(), digest.name());
        }
    }
    let mut out = Vec::new();
    let answer = run(device, Task::PmdHash(PmdHash { digest: Digest::Blake3, data: b"abc", out: &mut out }));
    assert!(
        matches!(answer, Err(TaskError::Unsupported { .. })),
        "there is no such construction: {answer:?}"
    );
}
