use std::collections::HashSet;
use std::io::IoSlice;

use outrigger_format::StoreId;

use super::*;
use crate::backend::MemoryBackend;
use crate::testing::conformance;

fn keys() -> Arc<Keyring> {
    Arc::new(Keyring::new(StoreId([3; 16])).unwrap())
}

fn over(inner: &MemoryBackend, keys: &Arc<Keyring>) -> SealedBackend {
    SealedBackend::new(Arc::new(inner.clone()), Arc::clone(keys))
}

fn write(backend: &dyn Backend, id: u64, bytes: &[u8]) {
    let mut writer = backend.create(PackId(id)).unwrap();
    for part in bytes.chunks(10_007) {
        writer.append(&[IoSlice::new(part)]).unwrap();
    }
    writer.seal().unwrap();
}

fn read(backend: &dyn Backend, id: u64, from: usize, len: usize) -> Result<Vec<u8>> {
    let mut bytes = vec![0; len];
    backend.read_at(PackId(id), from as u64, &mut bytes).map(|()| bytes)
}

fn text(len: usize) -> Vec<u8> {
    (0..len).map(|at| ((at * 31) >> 5) as u8).collect()
}

#[test]
fn it_conforms() {
    conformance::backend(&over(&MemoryBackend::new(), &keys()));
    let dir = tempfile::tempdir().unwrap();
    let local = crate::backend::LocalBackend::open(dir.path(), true, false).unwrap();
    conformance::backend(&SealedBackend::new(Arc::new(local), keys()));
}

#[test]
fn every_range_of_every_length_reads_back() {
    let (inner, keys) = (MemoryBackend::new(), keys());
    let sealed = over(&inner, &keys);
    for (id, len) in
        [0, 1, BLOCK - 5, BLOCK - 4, BLOCK - 3, BLOCK, BLOCK + 1, 3 * BLOCK, 9 * BLOCK + 5, 33 * BLOCK]
            .into_iter()
            .enumerate()
    {
        let (id, bytes) = (id as u64 + 1, text(len));
        write(&sealed, id, &bytes);
        let padded = padded_len(inner.packs()[&PackId(id)].len() as u64).unwrap();
        let unit = if padded < SMALL { UNIT_SMALL } else { BLOCK } as u64;
        assert!(
            padded.is_multiple_of(unit) && padded - len as u64 <= 2 * unit + COUNT as u64,
            "{len}: {padded}"
        );
        assert_eq!(over(&inner, &keys).len(PackId(id)).unwrap(), Some(len as u64));
        assert_eq!(sealed.len(PackId(id)).unwrap(), Some(len as u64));
        for from in [0, 1, BLOCK - 1, BLOCK, 2 * BLOCK - 7, len].into_iter().filter(|from| *from <= len) {
            for to in [from, from + 1, from + BLOCK, len].into_iter().filter(|to| (from..=len).contains(to)) {
                assert!(
                    read(&sealed, id, from, to - from).unwrap() == bytes[from..to],
                    "{len}: {from}..{to}"
                );
            }
        }
        assert!(read(&sealed, id, len, 1).is_err() && read(&over(&inner, &keys), id, len, 1).is_err());
        for max in [0, 1, 100, BLOCK, 2 * BLOCK + 1, 20 * BLOCK] {
            let (end, whole) = sealed.read_end(PackId(id), max).unwrap().unwrap();
            assert!(end == bytes[len - max.min(len)..] && whole == len as u64, "{len}: the last {max}");
        }
    }
}

#[test]
fn nothing_of_a_pack_shows() {
    let (inner, keys) = (MemoryBackend::new(), keys());
    let bytes = b"sixteen bytes!!!".repeat(10_000);
    write(&over(&inner, &keys), 1, &bytes);
    write(&over(&inner, &keys), 2, &bytes);
    let packs = inner.packs();
    let (one, other) = (&packs[&PackId(1)], &packs[&PackId(2)]);
    assert!(!one.windows(8).any(|window| window == b"sixteen "));
    let windows: HashSet<&[u8]> = one.windows(16).collect();
    assert!(!other.windows(16).any(|window| windows.contains(window)), "equal packs look different");
}

/// Each change that somebody could make who has the disk is noticed, and no wrong byte is returned.
#[test]
fn changes_are_noticed() {
    let (inner, keys) = (MemoryBackend::new(), keys());
    let bytes = text(3 * BLOCK + 100);
    for id in [1, 2] {
        write(&over(&inner, &keys), id, &bytes);
    }
    let whole = inner.packs()[&PackId(1)].clone();
    let other = inner.packs()[&PackId(2)].clone();
    let swapped = [&whole[SEALED..2 * SEALED], &whole[..SEALED], &whole[2 * SEALED..]].concat();
    let mixed = [&whole[..SEALED], &other[SEALED..]].concat();
    let mut changes = vec![other, swapped, mixed, whole[..2 * SEALED].to_vec(), whole[..SEALED - 3].to_vec()];
    changes.extend((0..whole.len()).step_by(977).map(|at| {
        let mut flipped = whole.clone();
        flipped[at] ^= 0x10;
        flipped
    }));
    for (number, change) in changes.into_iter().enumerate() {
        inner.packs().insert(PackId(1), change);
        let sealed = over(&inner, &keys);
        let error = read(&sealed, 1, 0, bytes.len()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Damaged, "change {number}: {error}");
        for block in 0..3 {
            if let Ok(read) = read(&sealed, 1, block * BLOCK, BLOCK) {
                assert!(read == bytes[block * BLOCK..][..BLOCK], "change {number}, block {block}");
            }
        }
    }
    inner.packs().insert(PackId(1), whole[..2 * SEALED].to_vec());
    assert_eq!(
        over(&inner, &keys).read_end(PackId(1), 10).unwrap_err().kind(),
        ErrorKind::Damaged,
        "cut off"
    );
    inner.packs().insert(PackId(1), whole);
    assert!(read(&over(&inner, &keys), 1, 0, bytes.len()).unwrap() == bytes);
    let others = Arc::new(Keyring::new(StoreId([3; 16])).unwrap());
    assert!(read(&over(&inner, &others), 1, 0, 1).unwrap_err().to_string().contains("another key"));
}

#[test]
fn packs_of_earlier_epochs_stay_readable() {
    let (inner, old) = (MemoryBackend::new(), keys());
    write(&over(&inner, &old), 1, b"before");
    let new = Arc::new(old.rotated().unwrap());
    let sealed = over(&inner, &new);
    write(&sealed, 2, b"after");
    assert_eq!(read(&sealed, 1, 0, 6).unwrap(), b"before");
    assert_eq!(read(&sealed, 2, 0, 5).unwrap(), b"after");
    assert!(read(&over(&inner, &old), 2, 0, 5).is_err(), "a keyring without the epoch");
}

/// Over several writers of the same and of different packs, no key meets a nonce twice.
#[test]
fn no_nonce_repeats() {
    let (inner, keys) = (MemoryBackend::new(), keys());
    let mut seen = HashSet::new();
    for _ in 0..3 {
        for id in [1, 2] {
            write(&over(&inner, &keys), id, &text(5 * BLOCK));
            for block in inner.packs().remove(&PackId(id)).unwrap().chunks(SEALED) {
                assert!(seen.insert((id, block[..NONCE_LEN].to_vec())));
            }
        }
    }
    assert!(seen.len() >= 3 * 2 * 6, "each writer made blocks: {}", seen.len());
}

/// Somebody who sees packs alone wants to know which of two files of one length was stored, by the
/// number of chunks that each is cut into: a chunk more makes the pack longer by its entry in the
/// footer (eprint 2025/532 and 2025/558). They know both lengths, and choose the best limit between.
#[test]
fn lengths_do_not_tell_how_many_chunks_there_are() {
    const CHUNKS: usize = 4 * 40;
    let (inner, keys) = (MemoryBackend::new(), keys());
    let sealed = over(&inner, &keys);
    // Just below a limit to which packs are padded.
    let (few, many) = (49 * UNIT_SMALL - COUNT - CHUNKS, 49 * UNIT_SMALL - COUNT + 8);
    let stored = |len: usize| {
        write(&sealed, 1, &vec![1; len]);
        inner.packs().remove(&PackId(1)).unwrap().len()
    };
    let right = |samples: &[(bool, usize)], limit: usize| {
        samples.iter().filter(|(is_many, len)| *is_many == (*len > limit)).count()
    };
    let samples: Vec<(bool, usize)> =
        (0..1000).map(|n| (n % 2 == 1, stored(if n % 2 == 1 { many } else { few }))).collect();
    let limits: HashSet<usize> = samples.iter().map(|(_, len)| *len).collect();
    let best = limits.iter().map(|limit| right(&samples, *limit)).max().unwrap();
    // The difference shows once in 24 times; a coin is right 500 times, give or take 32.
    assert!(best < 590, "{best} of 1,000 guesses are right");
}
