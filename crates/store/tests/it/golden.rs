//! A store's packs of format version 1, committed with the code that made them, read for ever. Its
//! database is made from them: schemas are not kept for ever before the first release.
//!
//! `OUTRIGGER_MAKE_GOLDEN=1 cargo test -p outrigger-store --test golden` makes a new one; an old
//! one is never made again.

use crate::checking;

use std::path::{Path, PathBuf};

use checking::{contents, copy_store, put_all, run_check, said, scratch};
use outrigger_format::{ChunkerSpec, checksum};
use outrigger_store::recover::{RecoverProgress, recover};
use outrigger_store::{Profile, Store, ops};

fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/golden_data/v1")
}

/// One line for each thing in the store: its kind and name, its attributes, and a checksum of its
/// content. Owners are left out, as they depend on who made the store.
fn listing(store: &Store) -> String {
    let line = |(name, (facts, bytes)): (&String, &(String, Option<Vec<u8>>))| {
        let content = bytes.as_ref().map_or_else(
            || "-".to_string(),
            |bytes| format!("{} bytes {:016x}", bytes.len(), checksum(&[bytes])),
        );
        format!("{name}\t{facts}\t{content}\n")
    };
    contents(store).iter().map(line).collect()
}

#[test]
fn version_1_reads_for_ever() {
    if std::env::var_os("OUTRIGGER_MAKE_GOLDEN").is_some() {
        make();
    }
    let dir = scratch();
    let path = dir.path().join("store");
    copy_store(&golden().join("store"), &path);
    // Version control keeps no empty directories: the store does without them.
    assert!(!path.join("sessions").exists());
    let report = recover(&path, &RecoverProgress::default()).unwrap();
    assert!(report.problems.is_empty(), "{report:?}");
    let store = Store::open(&path, false).unwrap();
    assert_eq!(listing(&store), std::fs::read_to_string(golden().join("listing.txt")).unwrap());
    let report = run_check(&store, false);
    assert_eq!(report.damaged, 0, "{}", said(&report));
}

fn make() {
    let dir = scratch();
    let (source, path) = (dir.path().join("source"), golden().join("store"));
    assert!(!path.exists(), "{} is there already, and stays", path.display());
    let mut config = Profile::Default.config().unwrap();
    config.chunker = ChunkerSpec::parse("gear32:64/256/1K").unwrap();
    let store = Store::init(&path, &config).unwrap();
    std::fs::create_dir_all(source.join("directory")).unwrap();
    std::fs::write(source.join("text"), b"what was written once is read for ever\n".repeat(500)).unwrap();
    std::fs::write(source.join("tree"), checking::random(7, 20_000)).unwrap();
    std::fs::hard_link(source.join("text"), source.join("directory/linked")).unwrap();
    std::os::unix::fs::symlink("../text", source.join("directory/symlink")).unwrap();
    std::fs::File::create(source.join("sparse")).unwrap().set_len(1 << 20).unwrap();
    put_all(&store, &source, "golden");
    ops::snapshots::create(&store, Some("first"), "x", &["kept".to_string()]).unwrap();
    std::fs::write(source.join("tree"), checking::random(8, 5_000)).unwrap();
    put_all(&store, &source, "golden");
    store.index.flush().unwrap();
    store.meta.tidy().unwrap();
    std::fs::write(golden().join("listing.txt"), listing(&store)).unwrap();
    drop(store);
    for name in ["meta.db", "meta.db-wal", "meta.db-shm", "index/LOCK", "index/MERGE.lock"] {
        let _ = std::fs::remove_file(path.join(name));
    }
}
