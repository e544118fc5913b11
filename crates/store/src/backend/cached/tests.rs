use std::io::IoSlice;

use super::*;
use crate::backend::MemoryBackend;
use crate::testing::conformance;
use crate::testing::{Fault, FaultyBackend, Op, Plan};

const LIMITS: CacheLimits = CacheLimits { memory: 16 << 20, disk: 8 << 20 };

fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + at / 4093) as u8).collect()
}

fn write(backend: &dyn Backend, id: u64, bytes: &[u8]) {
    let mut writer = backend.create(PackId(id)).unwrap();
    writer.append(&[IoSlice::new(bytes)]).unwrap();
    writer.seal().unwrap();
}

fn read(backend: &dyn Backend, id: u64, at: usize, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    backend.read_at(PackId(id), at as u64, &mut bytes).unwrap();
    bytes
}

/// A cache over an engine that counts.
fn counted(dir: Option<&Path>) -> (FaultyBackend, CachedBackend) {
    let inner = FaultyBackend::new(MemoryBackend::new(), Plan::default());
    let cached = CachedBackend::new(Arc::new(inner.clone()), dir, LIMITS);
    (inner, cached)
}

#[test]
fn conforms() {
    conformance::backend(&counted(None).1);
    let dir = tempfile::tempdir().unwrap();
    conformance::backend(&counted(Some(dir.path())).1);
}

#[test]
fn what_was_read_is_not_asked_for_again() {
    let (_, cached) = counted(None);
    let data = bytes(3 * BLOCK_LEN + 17);
    write(&cached, 1, &data);
    assert!(read(&cached, 1, 100, 5000) == data[100..5100]);
    // Blocks that are fetched ahead, as these reads follow each other, may come at any time.
    let fetched = cached.counts().fetched;
    for at in (0..BLOCK_LEN - 10).step_by(99_991) {
        assert!(read(&cached, 1, at, 10) == data[at..at + 10]);
    }
    assert_eq!(cached.counts().fetched, fetched, "one block serves them");
    // A range over several blocks comes in one request.
    let (inner, cached) = counted(None);
    write(&cached, 1, &data);
    assert!(read(&cached, 1, data.len() - 5, 5) == data[data.len() - 5..]);
    let asked = inner.calls(Op::Read);
    assert!(read(&cached, 1, BLOCK_LEN, 2 * BLOCK_LEN) == data[BLOCK_LEN..3 * BLOCK_LEN]);
    assert_eq!(inner.calls(Op::Read), asked + 1);
    cached.remove(PackId(1)).unwrap();
    assert_eq!(cached.read_at(PackId(1), 100, &mut [0; 5]).unwrap_err().kind(), ErrorKind::NotFound);
}

#[test]
fn a_sequential_reader_finds_what_it_wants_there() {
    let (_, cached) = counted(None);
    let data = bytes(30 * BLOCK_LEN + 5);
    write(&cached, 1, &data);
    let step = 200_000;
    for at in (0..data.len()).step_by(step) {
        let len = step.min(data.len() - at);
        assert!(read(&cached, 1, at, len) == data[at..at + len], "at {at}");
    }
    let counts = cached.counts();
    assert!(counts.ahead >= 16, "{counts:?}: most blocks were fetched ahead");
    assert!(counts.ahead + counts.fetched <= 45, "{counts:?}: and few twice");
}

#[test]
fn memory_is_bounded_and_the_disk_outlives_the_process() {
    let dir = tempfile::tempdir().unwrap();
    let data = bytes(6 * BLOCK_LEN);
    let (inner, cached) = counted(Some(dir.path()));
    write(&cached, 1, &data);
    for block in 0..6 {
        read(&cached, 1, block * BLOCK_LEN + 5, 10);
        cached.settle();
    }
    // A second process goes without the disk, and works.
    let second = CachedBackend::new(Arc::new(inner.clone()), Some(dir.path()), LIMITS);
    assert!(read(&second, 1, 77, 1000) == data[77..1077]);
    drop(cached);
    let again = CachedBackend::new(Arc::new(inner.clone()), Some(dir.path()), LIMITS);
    let asked = inner.calls(Op::Read);
    assert!(read(&again, 1, 0, data.len()) == data);
    assert!(again.counts().disk_hits >= 4, "{:?}", again.counts());
    assert!(inner.calls(Op::Read) <= asked + 2, "only the pack's end was asked for, for its length");

    // More than the limit: old blocks go.
    write(&again, 2, &bytes(20 * BLOCK_LEN));
    for block in 0..20 {
        read(&again, 2, block * BLOCK_LEN + 5, 10);
        again.settle();
    }
    let kept: u64 = walk(dir.path()).iter().map(|path| std::fs::metadata(path).unwrap().len()).sum();
    assert!(kept <= LIMITS.disk && kept > LIMITS.disk / 2, "{kept} bytes");
}

fn walk(dir: &Path) -> Vec<std::path::PathBuf> {
    let entries = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { walk(&path) } else { vec![path] }).collect()
}

/// Files of the cache that were torn, flipped, cut or replaced are not believed.
#[test]
fn damage_on_the_local_disk_is_not_returned() {
    let dir = tempfile::tempdir().unwrap();
    let data = bytes(4 * BLOCK_LEN);
    let (inner, cached) = counted(Some(dir.path()));
    write(&cached, 1, &data);
    for block in 0..4 {
        read(&cached, 1, block * BLOCK_LEN + 5, 10);
        cached.settle();
    }
    drop(cached);
    let files: Vec<_> =
        walk(dir.path()).into_iter().filter(|path| path.file_name().unwrap() != "lock").collect();
    assert_eq!(files.len(), 4);
    for (number, path) in files.iter().enumerate() {
        let mut bytes = std::fs::read(path).unwrap();
        match number {
            0 => bytes[500_000] ^= 1,
            1 => bytes.truncate(1000),
            2 => bytes.clear(),
            _ => bytes[3] ^= 0x80,
        }
        std::fs::write(path, bytes).unwrap();
    }
    let again = CachedBackend::new(Arc::new(inner), Some(dir.path()), LIMITS);
    assert!(read(&again, 1, 0, data.len()) == data);
    assert_eq!(again.counts().disk_hits, 0);
}

/// `forget` drops damaged blocks from memory; and while a check runs, no cached block counts.
#[test]
fn what_is_kept_can_be_doubted() {
    let (inner, cached) = counted(None);
    let data = bytes(2 * BLOCK_LEN);
    write(&cached, 1, &data);
    inner.set_plan(Plan::new(7).nth(Op::Read, 2, Fault::FlipBit));
    assert!(read(&cached, 1, 0, BLOCK_LEN) != data[..BLOCK_LEN], "a bit was flipped on the way");
    assert!(read(&cached, 1, 0, BLOCK_LEN) != data[..BLOCK_LEN], "and is kept");
    assert!(cached.forget(PackId(1)));
    assert!(read(&cached, 1, 0, BLOCK_LEN) == data[..BLOCK_LEN]);
    assert!(cached.forget(PackId(1)) && !cached.forget(PackId(1)));

    read(&cached, 1, 0, 2 * BLOCK_LEN);
    cached.use_cache(false);
    let asked = inner.calls(Op::Read);
    read(&cached, 1, 0, 2 * BLOCK_LEN);
    assert!(inner.calls(Op::Read) > asked);
    cached.use_cache(true);
}

/// An engine that fails ahead of a reader fails the reader only when it comes, and not for good.
#[test]
fn failures_are_the_readers_and_pass() {
    let (inner, cached) = counted(None);
    let data = bytes(12 * BLOCK_LEN);
    write(&cached, 1, &data);
    read(&cached, 1, 0, 1000);
    inner.set_plan(Plan::new(1).calls(Op::Read, 1.., Fault::Fail(ErrorKind::Io)));
    let mut buf = vec![0; 5 * BLOCK_LEN];
    assert_eq!(cached.read_at(PackId(1), 1000, &mut buf).unwrap_err().kind(), ErrorKind::Io);
    inner.set_plan(Plan::default());
    assert!(read(&cached, 1, 0, data.len()) == data);
}

#[test]
fn many_readers_get_what_they_ask_for() {
    let dir = tempfile::tempdir().unwrap();
    let (_, cached) = counted(Some(dir.path()));
    let data = bytes(9 * BLOCK_LEN + 4321);
    for id in 1..=3 {
        write(&cached, id, &data);
    }
    std::thread::scope(|scope| {
        for thread in 0..6usize {
            let (cached, data) = (&cached, &data);
            scope.spawn(move || {
                let mut at = thread * 1_234_567;
                for turn in 0..200usize {
                    at = (at * 31 + turn * 104_729) % (data.len() - 1);
                    let len = (turn * 7919 % 700_000 + 1).min(data.len() - at);
                    let id = 1 + (turn % 3) as u64;
                    assert!(read(cached, id, at, len) == data[at..at + len]);
                }
            });
        }
    });
}

#[test]
fn who_learns_what_is_in_a_pack_fetches_no_blocks_of_it() {
    let (_, cached) = counted(None);
    let data = bytes(3 * BLOCK_LEN + 17);
    write(&cached, 1, &data);
    let (end, len) = cached.read_end(PackId(1), 70_000).unwrap().unwrap();
    assert!(end == data[data.len() - 70_000..] && len == data.len() as u64);
    assert!(read(&cached, 1, 0, PACK_HEADER_LEN) == data[..PACK_HEADER_LEN]);
    assert_eq!(cached.counts(), CacheCounts::default());
    // Reading on puts the block into the cache.
    assert!(read(&cached, 1, 4000, 100) == data[4000..4100]);
    assert_eq!(cached.counts().fetched, 1);
    assert_eq!(cached.read_end(PackId(1), 70_000).unwrap().unwrap().0, end);
    assert!(cached.read_end(PackId(2), 10).unwrap().is_none());
}
