//! What goes in comes out, for all options, sizes and threads, and stored chunks are not stored
//! again.

use std::path::Path;
use std::sync::Arc;

use outrigger_format::{ChunkerSpec, CodecChoice, FingerprintKind, Root};
use outrigger_store::local::{get, put};
use outrigger_store::meta::At;
use outrigger_store::read::Reader;
use outrigger_store::tree::{StorePath, require};
use outrigger_store::write::Progress;
use outrigger_store::{Profile, Store, StoreConfig};
use outrigger_workload::{
    MutateOptions, NastyOptions, Rng, TreeOptions, compare_trees, mutate_tree, nasty_tree, source_tree,
};

fn config() -> StoreConfig {
    Profile::Default.config().unwrap()
}

fn path(text: &str) -> StorePath {
    StorePath::parse(text.as_bytes()).unwrap()
}

fn put_all(
    store: &Store,
    source: put::Source,
    target: &str,
    threads: usize,
) -> (put::PutReport, Arc<Progress>) {
    let progress = Arc::new(Progress::default());
    let options = put::PutOptions::default();
    let report = put::put(store, vec![(source, path(target))], &options, threads, &progress).unwrap();
    (report, progress)
}

fn put_path(store: &Store, source: &Path, target: &str) -> put::PutReport {
    let (report, progress) = put_all(store, put::Source::Path(source.to_path_buf()), target, 2);
    assert_eq!(*progress.skipped.lock().unwrap(), []);
    report
}

fn get_all(store: &Store, target: &str, dest: &Path) {
    let inode = require(&*store.meta, At::Now, &path(target)).unwrap();
    let progress = Progress::default();
    let options =
        get::GetOptions { overwrite: false, special: true, threads: 2, ..get::GetOptions::default() };
    get::restore(store, At::Now, &inode, dest, None, options, &progress).unwrap();
    assert_eq!(*progress.skipped.lock().unwrap(), []);
}

fn read_all(store: &Store, target: &str, offset: u64, len: u64) -> Vec<u8> {
    let inode = require(&*store.meta, At::Now, &path(target)).unwrap();
    let mut bytes = Vec::new();
    let mut sink = |part: &[u8]| {
        bytes.extend_from_slice(part);
        Ok(())
    };
    Reader::new(store).read(&inode.root, offset, len, &mut sink).unwrap();
    let mut filled = vec![1; len.min(inode.root.len() + 1) as usize];
    let done = Reader::new(store).read_into(&inode.root, offset, &mut filled).unwrap();
    assert_eq!(&filled[..done], &bytes[..], "{offset} {len}");
    bytes
}

/// Half compressible bytes that do not repeat.
fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut rng = Rng::new(seed);
    (0..len.div_ceil(8))
        .flat_map(|_| (rng.next_u64() & 0x00ff_00ff_ffff_ffff).to_le_bytes())
        .take(len)
        .collect()
}

#[test]
fn every_combination_of_options_restores_two_versions() {
    let dir = tempfile::tempdir().unwrap();
    let (first, second) = (dir.path().join("first"), dir.path().join("second"));
    source_tree(&first, &TreeOptions::new(3, 120)).unwrap();
    source_tree(&second, &TreeOptions::new(3, 120)).unwrap();
    mutate_tree(&second, &MutateOptions::new(4)).unwrap();
    let mut number = 0;
    for chunker in ["gear32:4K/16K/64K", "gear32:64/256/1K", "fixed:512", "fixed:1M"] {
        for (fingerprint, codec) in [
            (FingerprintKind::Blake3, "zstd:1"),
            (FingerprintKind::Sha256, "lz4"),
            (FingerprintKind::Blake3, "none"),
        ] {
            number += 1;
            let (chunker, codec) = (ChunkerSpec::parse(chunker).unwrap(), CodecChoice::parse(codec).unwrap());
            let config = StoreConfig { chunker, codec, fingerprint, frame_size: 64 << 10, ..config() };
            let store = Store::init(&dir.path().join(format!("store{number}")), &config).unwrap();
            put_path(&store, &first, "t");
            let snapshot = store.meta.create_snapshot("one", 1, &[]).unwrap();
            put_path(&store, &second, "t");
            drop(store);
            let store = Store::open(&dir.path().join(format!("store{number}")), false).unwrap();
            let out = dir.path().join(format!("out{number}"));
            get_all(&store, "t", &out);
            assert_eq!(compare_trees(&second, &out).unwrap(), [], "{chunker} {codec}");
            let old = dir.path().join(format!("old{number}"));
            let at = At::Epoch(snapshot.epoch);
            let inode = require(&*store.meta, at, &path("t")).unwrap();
            let options =
                get::GetOptions { overwrite: false, special: true, threads: 3, ..get::GetOptions::default() };
            get::restore(&store, at, &inode, &old, None, options, &Progress::default()).unwrap();
            assert_eq!(compare_trees(&first, &old).unwrap(), [], "{chunker} {codec}");
        }
    }
}

#[test]
fn everything_a_file_system_can_hold_comes_back() {
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("nasty");
    let report = nasty_tree(&source, &NastyOptions { seed: 1, huge_hole: 1 << 32 }).unwrap();
    for skipped in &report.skipped {
        println!("not made here: {skipped:?}");
    }
    let store = Store::init(&dir.path().join("store"), &config()).unwrap();
    let (_, progress) = put_all(&store, put::Source::Path(source.clone()), "n", 2);
    let skipped = progress.skipped.lock().unwrap().clone();
    // Root can read everything; for others the rest is reported.
    if rustix::process::geteuid().is_root() {
        assert_eq!(skipped, []);
        let out = dir.path().join("out");
        get_all(&store, "n", &out);
        assert_eq!(compare_trees(&source, &out).unwrap(), []);
        // And a second put finds nothing to do.
        let again = put_path(&store, &source, "n");
        assert_eq!(again.write.progress.bytes_new, 0);
        assert_eq!(again.walk.removed, 0);
    }
}

#[test]
fn threads_do_not_change_what_is_stored() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, noise(5, 9 << 20)).unwrap();
    let mut roots: Vec<Root> = Vec::new();
    for threads in [1, 2, 7] {
        let store = Store::init(&dir.path().join(format!("store{threads}")), &config()).unwrap();
        put_all(&store, put::Source::Path(file.clone()), "file", threads);
        roots.push(require(&*store.meta, At::Now, &path("file")).unwrap().root);
        // As a stream it is cut the same way, though its length was not known.
        let reader = Box::new(std::fs::File::open(&file).unwrap());
        put_all(&store, put::Source::Stream(reader), "stream", threads);
        roots.push(require(&*store.meta, At::Now, &path("stream")).unwrap().root);
    }
    roots.dedup();
    assert_eq!(roots.len(), 1);
}

#[test]
fn a_byte_inserted_into_a_large_file_stores_little() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::init(&dir.path().join("store"), &config()).unwrap();
    let mut bytes = noise(6, 20 << 20);
    let file = dir.path().join("file");
    std::fs::write(&file, &bytes).unwrap();
    assert_eq!(put_path(&store, &file, "f").write.progress.bytes_new, 20 << 20);
    bytes.insert(7 << 20, 1);
    std::fs::write(&file, &bytes).unwrap();
    let new = put_path(&store, &file, "f").write.progress.bytes_new;
    assert!(new <= 2 * (64 << 10), "{new} bytes are new");
    assert_eq!(read_all(&store, "f", 0, u64::MAX), bytes);
}

#[test]
fn any_range_reads_as_the_file_does() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::init(&dir.path().join("store"), &config()).unwrap();
    let bytes = noise(7, 3 << 20);
    put_all(&store, put::Source::Stream(Box::new(std::io::Cursor::new(bytes.clone()))), "d/f", 2);
    let mut rng = Rng::new(8);
    for _ in 0..200 {
        let offset = rng.next_u64() % (bytes.len() as u64 + 100);
        let len = rng.next_u64() % (1 << 20);
        let start = (offset as usize).min(bytes.len());
        let end = (offset + len).min(bytes.len() as u64) as usize;
        assert_eq!(read_all(&store, "d/f", offset, len), &bytes[start..end.max(start)], "{offset} {len}");
    }
}

#[test]
fn holes_are_kept_and_read_as_zeros() {
    use std::os::unix::fs::{FileExt, MetadataExt};
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("sparse");
    let sparse = std::fs::File::create(&file).unwrap();
    let data = noise(9, 100_000);
    for at in [1 << 20, 5 << 20, (64 << 20) - 4096] {
        sparse.write_all_at(&data[..4096], at).unwrap();
    }
    sparse.set_len(100 << 20).unwrap();
    let store = Store::init(&dir.path().join("store"), &config()).unwrap();
    put_path(&store, &file, "s");
    let out = dir.path().join("out");
    let inode = require(&*store.meta, At::Now, &path("s")).unwrap();
    let options =
        get::GetOptions { overwrite: false, special: false, threads: 2, ..get::GetOptions::default() };
    get::restore(&store, At::Now, &inode, &out, Some(b"s"), options, &Progress::default()).unwrap();
    assert_eq!(compare_trees(&file, &out.join("s")).unwrap(), []);
    assert!(std::fs::metadata(out.join("s")).unwrap().blocks() * 512 < 1 << 20, "the copy is sparse too");
    assert_eq!(read_all(&store, "s", (5 << 20) - 10, 20)[..10], [0; 10]);
    assert_eq!(read_all(&store, "s", (100 << 20) - 5, 100), [0; 5]);
}

#[test]
fn hard_links_follow_the_source() {
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("source");
    std::fs::create_dir(&source).unwrap();
    let at = |name: &str| source.join(name);
    std::fs::write(at("a"), "one").unwrap();
    std::fs::hard_link(at("a"), at("b")).unwrap();
    let store = Store::init(&dir.path().join("store"), &config()).unwrap();
    let restored_is_equal = |round: u32| {
        put_path(&store, &source, "t");
        let out = dir.path().join(format!("out{round}"));
        get_all(&store, "t", &out);
        assert_eq!(compare_trees(&source, &out).unwrap(), [], "round {round}");
    };
    restored_is_equal(1);
    // The link is broken: b becomes a file of its own, a keeps its content.
    std::fs::remove_file(at("b")).unwrap();
    std::fs::write(at("b"), "two").unwrap();
    restored_is_equal(2);
    // Another file, then a directory, gives way to a link.
    std::fs::remove_file(at("b")).unwrap();
    std::fs::create_dir(at("b")).unwrap();
    std::fs::write(at("b").join("x"), "x").unwrap();
    restored_is_equal(3);
    std::fs::remove_dir_all(at("b")).unwrap();
    std::fs::hard_link(at("a"), at("b")).unwrap();
    std::fs::hard_link(at("a"), at("c")).unwrap();
    restored_is_equal(4);
}
