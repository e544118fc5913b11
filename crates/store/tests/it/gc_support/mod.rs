//! Shared parts of the collector's tests: small stores, and contents that say themselves what they
//! should be.
//!
//! A content is made of blocks out of a small pool, so that files share chunks. It begins with the
//! numbers that it is made from. So any reader of a file can tell whether it is right without
//! knowing its writer.

#![allow(dead_code, reason = "each test uses its part")]

pub mod faulty_meta;

use std::io::{Cursor, Read};
use std::path::Path;
use std::sync::Arc;

use outrigger_format::catalogue::FileKind;
use outrigger_store::keys::{Key, NewKeys, Secret};
use outrigger_store::local::put::{PutOptions, PutReport, Source, put};
use outrigger_store::meta::{At, PackRow, PackState, ROOT_INODE};
use outrigger_store::read::Reader;
use outrigger_store::tree::{StorePath, find};
use outrigger_store::write::Progress;
use outrigger_store::{Profile, Result, Store, StoreConfig, gc, ops};
use outrigger_workload::Rng;

/// Bytes of a block.
const BLOCK: usize = 40_000;
/// Blocks in the pool.
const POOL: u64 = 48;

/// A directory for a store: in memory where possible, as tests sync a lot.
pub fn scratch() -> tempfile::TempDir {
    let memory = Path::new("/dev/shm");
    let made = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
    made.expect("a temporary directory can be made")
}

/// A configuration with the smallest packs, so that little data makes many.
pub fn small_packs() -> StoreConfig {
    StoreConfig { pack_size: 1 << 20, frame_size: 128 << 10, ..Profile::Default.config().unwrap() }
}

/// A new store; with `OUTRIGGER_TEST_ENCRYPTED` set an encrypted one.
pub fn init(dir: &Path) -> Store {
    let encrypted = std::env::var_os("OUTRIGGER_TEST_ENCRYPTED").is_some();
    let config = small_packs();
    let keys = encrypted.then(|| {
        let mut keys = NewKeys::new(config.id).unwrap();
        keys.add(&Secret::Key(Key::random().unwrap()), "test").unwrap();
        keys
    });
    let config = StoreConfig { keyring: keys.as_ref().map(|keys| keys.ring.id().number), ..config };
    Store::init_with(&dir.join("store"), &config, keys.as_ref()).unwrap()
}

pub fn open(dir: &Path) -> Store {
    Store::open(&dir.join("store"), false).unwrap()
}

pub fn path(text: &str) -> StorePath {
    StorePath::parse(text.as_bytes()).unwrap()
}

/// The content of `blocks` blocks that `seed` picks.
pub fn content(seed: u64, blocks: u32) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(12 + blocks as usize * BLOCK);
    bytes.extend_from_slice(&seed.to_le_bytes());
    bytes.extend_from_slice(&blocks.to_le_bytes());
    let mut picks = Rng::new(seed);
    for _ in 0..blocks {
        let mut rng = Rng::new(0xb10c + picks.below(POOL));
        let start = bytes.len();
        while bytes.len() < start + BLOCK {
            bytes.extend_from_slice(&rng.next_u64().to_le_bytes());
        }
    }
    bytes
}

/// Content that no other seed shares.
pub fn unique(seed: u64, len: usize) -> Vec<u8> {
    Rng::new(!seed).bytes(len)
}

/// Checks a content that [`content`] made; returns what is wrong with it.
pub fn judge(bytes: &[u8]) -> Option<String> {
    let Some((head, _)) = bytes.split_at_checked(12) else { return Some(format!("{} bytes", bytes.len())) };
    let seed = u64::from_le_bytes(head[..8].try_into().unwrap());
    let blocks = u32::from_le_bytes(head[8..].try_into().unwrap());
    let wanted = 12 + blocks as usize * BLOCK;
    if blocks > 1000 || bytes.len() != wanted || bytes != content(seed, blocks) {
        return Some(format!("{} bytes that are not the content of seed {seed}", bytes.len()));
    }
    None
}

/// The seed that a content was made from.
pub fn seed_of(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes[..8].try_into().unwrap())
}

pub fn put_stream(store: &Store, target: &str, stream: impl Read + Send + 'static) -> Result<PutReport> {
    let source = (Source::Stream(Box::new(stream)), path(target));
    put(store, vec![source], &PutOptions::default(), 2, &Arc::new(Progress::default()))
}

pub fn put_bytes(store: &Store, target: &str, bytes: Vec<u8>) -> Result<PutReport> {
    put_stream(store, target, Cursor::new(bytes))
}

pub fn remove(store: &Store, target: &str) -> Result<()> {
    ops::edit::remove(store, &[path(target)], true, None).map(drop)
}

pub fn read_at(store: &Store, at: At, target: &str) -> Result<Option<Vec<u8>>> {
    let Some(inode) = find(&*store.meta, at, &path(target))? else { return Ok(None) };
    let mut bytes = Vec::new();
    Reader::new(store).read(&inode.root, 0, u64::MAX, &mut |part| {
        bytes.extend_from_slice(part);
        Ok(())
    })?;
    Ok(Some(bytes))
}

pub fn read(store: &Store, target: &str) -> Vec<u8> {
    read_at(store, At::Now, target).unwrap().expect("it is there")
}

/// Paths of all regular files.
pub fn files(store: &Store, at: At) -> Result<Vec<String>> {
    let (mut found, mut open) = (Vec::new(), vec![(String::new(), ROOT_INODE)]);
    while let Some((above, directory)) = open.pop() {
        for entry in store.meta.read_dir(at, directory, None, usize::MAX)? {
            let name = format!("{above}{}", String::from_utf8(entry.name).unwrap());
            match entry.inode.attributes.kind {
                FileKind::Directory => open.push((format!("{name}/"), entry.inode.number)),
                FileKind::File => found.push(name),
                _ => {}
            }
        }
    }
    found.sort();
    Ok(found)
}

/// Reads every file and every file of every snapshot; the error says what is wrong.
pub fn verify_all(store: &Store) -> std::result::Result<usize, String> {
    let mut trees = vec![(At::Now, "now".to_string())];
    let snapshots = store.meta.snapshots().map_err(|error| error.to_string())?;
    trees.extend(snapshots.into_iter().map(|snapshot| (At::Epoch(snapshot.epoch), snapshot.name)));
    let mut count = 0;
    for (at, tree) in trees {
        for name in files(store, at).map_err(|error| error.to_string())? {
            let bytes = read_at(store, at, &name).map_err(|error| format!("{tree}:{name}: {error}"))?;
            if let Some(wrong) = judge(&bytes.unwrap_or_default()) {
                return Err(format!("{tree}:{name}: {wrong}"));
            }
            count += 1;
        }
    }
    Ok(count)
}

/// Everything is in use, or as good as: for tests that want all garbage gone.
pub fn thorough() -> gc::GcOptions {
    gc::GcOptions { live_ratio: 1.0, threads: 2, ..gc::GcOptions::default() }
}

pub fn collect(store: &Store, options: &gc::GcOptions) -> Result<gc::GcReport> {
    gc::collect(store, options, &gc::GcProgress::default())
}

/// Bytes of all objects.
pub fn disk(store: &Store) -> u64 {
    let objects = store.backend.list().unwrap();
    objects.into_iter().filter_map(|id| store.backend.len(id).unwrap()).sum()
}

/// The committed packs.
pub fn committed(store: &Store) -> Vec<PackRow> {
    let mut rows = store.meta.packs().unwrap();
    rows.retain(|row| matches!(row.state, PackState::Live | PackState::Candidate));
    rows
}
