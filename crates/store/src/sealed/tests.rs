use std::collections::HashSet;
use std::io::IoSlice;

use outrigger_format::StoreId;
use outrigger_workload::Rng;

use super::layout::{EXTRA, FRAMES, HEADER, HEADER_NUMBER, Shape};
use super::read::open_block;
use super::*;
use crate::backend::{CacheLimits, CachedBackend, MemoryBackend};
use crate::keys::{HEAD_LEN, Key, NONCE_LEN, PackHead, Rights};
use crate::testing::{Wrapped, conformance};

fn keys() -> Arc<Keyring> {
    Arc::new(Keyring::new(StoreId([3; 16])).unwrap())
}

fn over(inner: &MemoryBackend, keys: &Arc<Keyring>) -> SealedBackend {
    SealedBackend::new(Arc::new(inner.clone()), Arc::clone(keys))
}

/// Writes a pack whose last quarter is its footer.
fn write(backend: &dyn Backend, id: u64, bytes: &[u8]) {
    let mut writer = backend.create(PackId(id)).unwrap();
    let (frames, footer) = bytes.split_at(frames_end(bytes.len()));
    for part in frames.chunks(10_007) {
        writer.append(&[IoSlice::new(part)]).unwrap();
    }
    writer.begin_footer().unwrap();
    for part in footer.chunks(10_007) {
        writer.append(&[IoSlice::new(part)]).unwrap();
    }
    writer.seal().unwrap();
}

fn frames_end(len: usize) -> usize {
    len - len / 4
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
    for (id, len) in [
        0,
        1,
        HEADER,
        HEADER + 1,
        BLOCK - 4,
        BLOCK,
        BLOCK + HEADER + 1,
        4 * BLOCK / 3,
        3 * BLOCK,
        9 * BLOCK + 5,
        33 * BLOCK,
    ]
    .into_iter()
    .enumerate()
    {
        let (id, bytes) = (id as u64 + 1, text(len));
        write(&sealed, id, &bytes);
        let stored = inner.packs()[&PackId(id)].len();
        let unit = if (stored as u64) < SMALL { UNIT_SMALL } else { UNIT } as usize;
        let most = len + 3 * unit + FRAMES + TAIL + (len / BLOCK + 3) * EXTRA;
        assert!(stored.is_multiple_of(unit) && stored <= most, "{len}: {stored}");
        assert_eq!(over(&inner, &keys).len(PackId(id)).unwrap(), Some(len as u64));
        assert_eq!(sealed.len(PackId(id)).unwrap(), Some(len as u64));
        for from in [0, 1, HEADER, BLOCK - 1, BLOCK + HEADER, 2 * BLOCK - 7, frames_end(len), len]
            .into_iter()
            .filter(|from| *from <= len)
        {
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
    let (one, two, three) = (FRAMES, FRAMES + SEALED, FRAMES + 2 * SEALED);
    let swapped = [&whole[..one], &whole[two..three], &whole[one..two], &whole[three..]].concat();
    let mixed = [&whole[..one], &other[one..two], &whole[two..]].concat();
    let headed = [&other[..one], &whole[one..]].concat();
    let ended = [&whole[..whole.len() - TAIL], &other[other.len() - TAIL..]].concat();
    let cut = [&whole[..two], &whole[three..]].concat();
    let mut changes = vec![other, swapped, mixed, headed, ended, cut];
    changes.extend([three, two - 3, FRAMES, FRAMES - 1, 5].map(|len| whole[..len].to_vec()));
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
    inner.packs().insert(PackId(1), whole[..three].to_vec());
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

/// Another process has moved it to another tier, where it has other keys.
#[test]
fn a_pack_that_was_encrypted_anew_is_read_as_it_is_now() {
    let (inner, keys) = (MemoryBackend::new(), keys());
    let bytes = text(5 * BLOCK);
    for how in 0..3 {
        write(&over(&inner, &keys), 1, &bytes);
        let sealed = over(&inner, &keys);
        assert!(read(&sealed, 1, 0, BLOCK).unwrap() == bytes[..BLOCK]);
        inner.packs().remove(&PackId(1));
        write(&over(&inner, &keys), 1, &bytes);
        match how {
            0 => assert!(read(&sealed, 1, 0, bytes.len()).unwrap() == bytes),
            1 => assert!(sealed.read_end(PackId(1), 9).unwrap().unwrap().0 == bytes[bytes.len() - 9..]),
            _ => assert!(sealed.shape(PackId(1), true).unwrap().unwrap().len == bytes.len() as u64),
        }
        inner.packs().remove(&PackId(1));
    }
}

/// No two packs have a key in common, not even two of one id, and under one key each block has a
/// nonce of its own.
#[test]
fn no_nonce_repeats() {
    let (inner, keys) = (MemoryBackend::new(), keys());
    let (mut heads, mut seen) = (HashSet::new(), HashSet::new());
    for round in 0..3 {
        for id in [1, 2].map(PackId) {
            let sealed = over(&inner, &keys);
            write(&sealed, id.0, &text(9 * BLOCK));
            let shape = sealed.shape(id, true).unwrap().unwrap();
            let stored = inner.packs().remove(&id).unwrap();
            assert!(heads.insert(stored[..HEAD_LEN].to_vec()), "another key each time");
            let (frames, end, tail) = (FRAMES, shape.end().at as usize, stored.len() - TAIL);
            let contents = stored[frames..end].chunks(SEALED).map(|block| (true, block));
            let others = [&stored[HEAD_LEN..frames], &stored[tail..]].into_iter();
            let others = others.chain(stored[end..tail].chunks(SEALED)).map(|block| (false, block));
            for (is_content, block) in contents.chain(others) {
                assert!(seen.insert((round, id, is_content, block[..NONCE_LEN].to_vec())));
            }
        }
    }
    assert!(seen.len() >= 3 * 2 * (7 + 3 + 2), "each writer made blocks: {}", seen.len());
}

/// A host that only stores finds what is in packs, and reads no content: neither of others nor its
/// own. That is no damage.
#[test]
fn a_host_that_only_stores_reads_headers_and_footers() {
    let (inner, keys) = (MemoryBackend::new(), keys());
    let stores = Arc::new(keys.limited(Rights::PutOnly).unwrap());
    let bytes = text(5 * BLOCK);
    write(&over(&inner, &keys), 1, &bytes);
    write(&over(&inner, &stores), 2, &bytes);
    let footer = frames_end(bytes.len());
    for id in [1, 2] {
        assert!(read(&over(&inner, &keys), id, 0, bytes.len()).unwrap() == bytes, "all rights");
        let sealed = over(&inner, &stores);
        assert_eq!(sealed.len(PackId(id)).unwrap(), Some(bytes.len() as u64));
        assert!(read(&sealed, id, 0, HEADER).unwrap() == bytes[..HEADER]);
        assert!(read(&sealed, id, footer, bytes.len() - footer).unwrap() == bytes[footer..]);
        let (end, len) = sealed.read_end(PackId(id), 1000).unwrap().unwrap();
        assert!(end == bytes[bytes.len() - 1000..] && len == bytes.len() as u64);
        for (from, len) in [(HEADER, 1), (0, bytes.len()), (footer - 1, 2), (BLOCK, 2 * BLOCK)] {
            let refused = read(&sealed, id, from, len).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Denied, "{refused}");
            assert!(refused.to_string().contains("--key-file"), "{refused}");
        }
    }
}

/// Whatever is in a slot that only stores: as it is, or derived as this program derives keys, it
/// opens no block of frames.
#[test]
fn nothing_in_a_slot_that_only_stores_opens_contents() {
    let (inner, keys) = (MemoryBackend::new(), keys());
    let stores = Arc::new(keys.limited(Rights::PutOnly).unwrap());
    write(&over(&inner, &keys), 1, &text(3 * BLOCK));
    write(&over(&inner, &stores), 2, &text(3 * BLOCK));
    let held = stores.encode();
    let held: Vec<Key> = held.windows(32).map(|at| Key::new(at.try_into().unwrap())).collect();
    for id in [1, 2].map(PackId) {
        let stored = inner.packs()[&id].clone();
        let head = PackHead(*stored.first_chunk().unwrap());
        assert!(stores.pack(id, &head, None).unwrap().content.is_none());
        let (store, number) = (&[3u8; 16], id.0.to_le_bytes());
        let derived = held.iter().flat_map(|key| {
            let content = |about: &[&[u8]]| key.derive("outrigger 2026-11 pack content", about);
            let footer = key.derive("outrigger 2026-11 pack footer", &[store, &number, &head.0]);
            [
                key.clone(),
                footer,
                content(&[store, &number, &head.0]),
                content(&[store, &number, &head.0, key.bytes(), key.bytes()]),
            ]
        });
        let opens = |key: &Key, from: usize, number: u32| {
            open_block(&key.aead(), number, &mut stored[from..][..SEALED].to_vec()).is_some()
        };
        let derived: Vec<Key> = derived.collect();
        assert!(!derived.iter().any(|key| opens(key, FRAMES, 0) || opens(key, FRAMES + SEALED, 1)));
        // The same search finds the key of what it may read.
        let header = &stored[HEAD_LEN..FRAMES];
        let opens = |key: &Key| open_block(&key.aead(), HEADER_NUMBER, &mut header.to_vec()).is_some();
        assert!(derived.iter().any(opens));
    }
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
    let unit = UNIT_SMALL as usize;
    let len = 48 * unit;
    let shape = Shape { frames_end: frames_end(len) as u64, len: len as u64, zeros: 0, is_whole: true };
    let limit = 49 * unit - (shape.stored() as usize - len);
    let (few, many) = (limit - CHUNKS, limit + 8);
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

/// Somebody sees which ranges of packs are asked for, at a place that is read through a cache, and
/// wants to know which of two files that they have was stored: its cuts decide where frames begin, and so
/// what a reader asks for. They store both files in a store of their own, and compare.
#[test]
fn reads_of_a_file_do_not_tell_where_its_frames_begin() {
    const LEN: usize = 6 << 20;
    let mut rng = Rng::new(1);
    // Frames end with the chunk that reaches 512 KiB; chunks have 4 to 64 KiB.
    let frames = |rng: &mut Rng| {
        let mut ends = vec![0];
        while ends[ends.len() - 1] < LEN {
            ends.push((ends[ends.len() - 1] + (512 << 10) + rng.below(60 << 10) as usize).min(LEN));
        }
        ends
    };
    let (inner, keys) = (MemoryBackend::new(), keys());
    write(&over(&inner, &keys), 1, &vec![7; HEADER + LEN]);
    let asked = |ends: &[usize], is_cached: bool| {
        let log = Arc::new(Mutex::new(Vec::new()));
        let noted = Arc::clone(&log);
        let far = Wrapped::over(Arc::new(inner.clone())).far();
        let far: Arc<dyn Backend> = Arc::new(far.before_reads(move |_, len| noted.lock().unwrap().push(len)));
        let limits = CacheLimits { memory: 32 << 20, disk: 0 };
        let place = if is_cached { Arc::new(CachedBackend::new(far, None, limits)) } else { far };
        let sealed = SealedBackend::new(place, Arc::clone(&keys));
        for frame in ends.windows(2) {
            let mut bytes = vec![0; frame[1] - frame[0]];
            sealed.read_at(PackId(1), (HEADER + frame[0]) as u64, &mut bytes).unwrap();
        }
        drop(sealed);
        log.lock().unwrap().clone()
    };
    let mut right = |trials: usize, is_cached: bool| {
        let is_right = |_: &usize| {
            let files = [frames(&mut rng), frames(&mut rng)];
            let coin = rng.below(2) as usize;
            let seen = asked(&files[coin], is_cached);
            let like: Vec<usize> = (0..2).filter(|&file| asked(&files[file], is_cached) == seen).collect();
            let guess = if like.len() == 1 { like[0] } else { rng.below(2) as usize };
            guess == coin
        };
        (0..trials).filter(is_right).count()
    };
    let without = right(50, false);
    assert!(without > 45, "the attack works where nothing is cached: {without} of 50");
    let with = right(1000, true);
    assert!((410..590).contains(&with), "{with} of 1,000 guesses are right");
}
