//! Tests the primitives against `vectors.txt`, which Python made with hashlib and from the
//! definitions in `docs/format.md`. If there is a Python, it also tests that file against its
//! script.

use std::process::Command;

use outrigger_format::boundary::CutWalk;
use outrigger_format::{ChunkerSpec, FingerprintKind, WindowedHash};
use outrigger_offload::op::{Digest, WindowFunction, WindowSpec};
use outrigger_offload::{
    SimdLevel, candidates_with, hash, hash_many_with, pmd_hash_with, reference, window_hash_with,
};

const VECTORS: &str = include_str!("vectors.txt");
const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/hash_vectors.py");

/// The script's generator.
fn golden(len: usize) -> Vec<u8> {
    let mut state = 0x4f75_7472_6967_6765u64;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        bytes.extend_from_slice(&state.wrapping_mul(0x2545_f491_4f6c_dd1d).to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The fields of all lines of one kind, without the first field.
fn lines(kind: &str) -> Vec<Vec<&'static str>> {
    let all = VECTORS.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    let lines: Vec<_> = all.filter(|fields| fields[0] == kind).map(|fields| fields[1..].to_vec()).collect();
    assert!(lines.len() > 5, "no vectors of {kind}");
    lines
}

fn number(text: &str) -> usize {
    text.parse().expect("a number")
}

fn digest_named(name: &str) -> Digest {
    Digest::ALL.into_iter().find(|digest| digest.name() == name).expect("a digest")
}

#[test]
fn digests() {
    let data = golden(1 << 20);
    for line in lines("digest") {
        let [name, length, expected] = line[..] else { panic!("{line:?}") };
        let (kind, length) = (FingerprintKind::parse(name).expect("a kind"), number(length));
        let expected = format!("{expected:0<64}");
        assert_eq!(hash(kind, &data[..length]).to_string(), expected, "{name} of {length} bytes");
        for level in SimdLevel::available() {
            let mut many = Vec::new();
            hash_many_with(level, kind, &data, vec![0..length; 20], &mut many);
            assert!(many.iter().all(|one| one.to_string() == expected), "{level}: {name} of {length} bytes");
        }
    }
}

#[test]
fn pmd() {
    let data = golden(1 << 20);
    for line in lines("pmd") {
        let [name, length, expected] = line[..] else { panic!("{line:?}") };
        let (digest, data) = (digest_named(name), &data[..number(length)]);
        assert_eq!(hex(&reference::pmd_hash(digest, data)), expected, "pmd-{name} of {length} bytes");
        for level in SimdLevel::available() {
            let mut got = Vec::new();
            pmd_hash_with(level, digest, data, &mut got);
            assert_eq!(hex(&got), expected, "{level}: pmd-{name} of {length} bytes");
        }
        let kind = FingerprintKind::parse(&format!("pmd-{name}")).expect("a kind");
        assert_eq!(hash(kind, data).to_string(), format!("{expected:0<64}"));
    }
}

#[test]
fn windows() {
    let data = golden(10_000);
    for line in lines("window") {
        let [name, window, step, keep, length, expected] = line[..] else { panic!("{line:?}") };
        let function = WindowFunction::ALL.into_iter().find(|function| function.name() == name).expect("one");
        let spec = WindowSpec { function, window: number(window), step: number(step), keep: number(keep) };
        let data = &data[..number(length)];
        let sum = |bytes: &[u8]| hash(FingerprintKind::Sha256, bytes).to_string();
        assert_eq!(sum(&reference::window_hash(spec, data)), expected, "{line:?}");
        for level in SimdLevel::available() {
            let mut got = Vec::new();
            window_hash_with(level, spec, data, &mut got);
            assert_eq!(sum(&got), expected, "{level}: {line:?}");
        }
    }
}

#[test]
fn cuts() {
    let data = golden(300_000);
    for line in lines("cuts") {
        let [name, min, avg, max, length, chunks, expected] = line[..] else { panic!("{line:?}") };
        let hashes = [WindowedHash::Rabin, WindowedHash::Md5, WindowedHash::Sha1];
        let hash_named = hashes.into_iter().find(|hash| hash.chunker_name() == name).expect("a chunker");
        let [min, avg, max] = [min, avg, max].map(|size| number(size) as u32);
        let chunker = ChunkerSpec::Windowed { hash: hash_named, min, avg, max };
        let data = &data[..number(length)];
        for level in SimdLevel::available() {
            // For pieces of any length, the scan and the walk give the same ends.
            for piece in [data.len(), 3001, 47, 10] {
                let (mut walk, mut ends, mut found) = (CutWalk::new(chunker), Vec::new(), Vec::new());
                for at in (0..data.len()).step_by(piece) {
                    let end = data.len().min(at + piece);
                    found.clear();
                    candidates_with(level, chunker, &data[..at], &data[at..end], &mut found);
                    walk.feed(end - at, &found, &mut ends);
                }
                ends.extend(walk.finish());
                let bytes: Vec<u8> = ends.iter().flat_map(|end| end.to_le_bytes()).collect();
                assert_eq!(
                    (ends.len(), hash(FingerprintKind::Sha256, &bytes).to_string().as_str()),
                    (number(chunks), expected),
                    "{level}: {line:?}, pieces of {piece}"
                );
            }
        }
    }
}

#[test]
fn the_script_still_says_so() {
    match Command::new("python3").arg(SCRIPT).output() {
        Err(why) => outrigger_workload::skipped!("no python3 here ({why})"),
        Ok(made) => {
            assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
            assert!(
                made.stdout == VECTORS.as_bytes(),
                "vectors.txt is not what scripts/hash_vectors.py prints"
            );
        }
    }
}
