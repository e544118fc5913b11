//! Stores with fingerprints that prove nothing: they keep two files with one MD5 apart, and return
//! both or report an error.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use outrigger_format::{ChunkerSpec, FingerprintKind};
use outrigger_offload::hash;
use outrigger_store::check::{CheckOptions, CheckProgress, check};
use outrigger_store::local::{get, put};
use outrigger_store::meta::At;
use outrigger_store::policy::Overrides;
use outrigger_store::tree::{StorePath, require};
use outrigger_store::write::Progress;
use outrigger_store::{Error, ErrorKind, Profile, Store, StoreConfig};
use outrigger_workload::{MutateOptions, TreeOptions, compare_trees, mutate_tree, source_tree};

/// Two contents of one MD5 (Wang and Yu, "How to Break MD5 and Other Hash Functions", 2005).
fn twins() -> [Vec<u8>; 2] {
    let first = "d131dd02c5e6eec4693d9a0698aff95c2fcab58712467eab4004583eb8fb7f89\
                 55ad340609f4b30283e488832571415a085125e8f7cdc99fd91dbdf280373c5b\
                 d8823e3156348f5bae6dacd436c919c6dd53e2b487da03fd02396306d248cda0\
                 e99f33420f577ee8ce54b67080a80d1ec69821bcb6a8839396f9652b6ff72a70";
    let first: Vec<u8> =
        (0..128).map(|n| u8::from_str_radix(&first[2 * n..2 * n + 2], 16).expect("hex")).collect();
    let mut second = first.clone();
    for at in [19, 45, 59, 83, 109, 123] {
        second[at] ^= 0x80;
    }
    [first, second]
}

fn path(text: &str) -> StorePath {
    StorePath::parse(text.as_bytes()).unwrap()
}

struct Place {
    dir: tempfile::TempDir,
    store: Store,
}

impl Place {
    fn new(fingerprint: FingerprintKind) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let config = StoreConfig { fingerprint, ..Profile::Default.config().unwrap() };
        let store = Store::init(&dir.path().join("store"), &config).unwrap();
        Self { dir, store }
    }

    fn source(&self, name: &str, files: &[(&str, &[u8])]) -> PathBuf {
        let dir = self.dir.path().join(name);
        std::fs::create_dir(&dir).unwrap();
        files.iter().for_each(|(name, bytes)| std::fs::write(dir.join(name), bytes).unwrap());
        dir
    }

    fn put(&self, source: &Path, target: &str, overrides: Overrides) -> Result<u64, Error> {
        let options = put::PutOptions { overrides, ..put::PutOptions::default() };
        let sources = vec![(put::Source::Path(source.to_path_buf()), path(target))];
        let report = put::put(&self.store, sources, &options, 2, &Arc::new(Progress::default()))?;
        Ok(report.write.progress.bytes_new)
    }

    fn get(&self, target: &str, name: &str) -> PathBuf {
        let out = self.dir.path().join(name);
        let inode = require(&*self.store.meta, At::Now, &path(target)).unwrap();
        let options =
            get::GetOptions { overwrite: false, special: true, threads: 2, ..get::GetOptions::default() };
        let progress = Progress::default();
        get::restore(&self.store, At::Now, &inode, &out, None, options, &progress).unwrap();
        assert_eq!(*progress.skipped.lock().unwrap(), []);
        out
    }

    fn check(&self) {
        let options = CheckOptions { read_data: true, repair: false, threads: 2 };
        let report = check(&self.store, &options, &CheckProgress::default()).unwrap();
        assert!(report.findings.is_empty(), "{:?}", report.findings);
    }
}

#[test]
fn the_twins_are_twins() {
    let [first, second] = twins();
    assert_ne!(first, second);
    for kind in [FingerprintKind::Md5, FingerprintKind::PmdMd5] {
        assert_eq!(hash(kind, &first), hash(kind, &second));
    }
}

#[test]
fn other_bytes_of_one_fingerprint_are_refused() {
    let [first, second] = twins();
    let plain = Overrides::default();
    for kind in [FingerprintKind::Md5, FingerprintKind::PmdMd5] {
        for overrides in [plain, Overrides { dedup: Some(false), ..plain }] {
            let place = Place::new(kind);
            let one = place.source("one", &[("a", &first)]);
            assert_eq!(place.put(&one, "one", overrides).unwrap(), 128);
            // Stored, in a pack that can be read; and again after the store was opened anew.
            let two = place.source("two", &[("a", &second)]);
            let refused = place.put(&two, "two", overrides).expect_err("other bytes");
            assert_eq!(refused.kind(), ErrorKind::Invalid);
            let said = refused.to_string();
            assert!(
                said.contains(&format!("the {} fingerprint", kind.name())) && said.contains("use blake3"),
                "{said}"
            );
            let place =
                Place { store: Store::open(&place.dir.path().join("store"), false).unwrap(), ..place };
            place.put(&two, "two", overrides).expect_err("other bytes");
            // On their way, in one batch.
            let both = place.source("both", &[("a", &second), ("b", &first), ("c", &second)]);
            place.put(&both, "both", overrides).expect_err("other bytes");
            // Stored files are unchanged, and the same bytes are found.
            let again = place.source("again", &[("x", &first), ("y", &first)]);
            let new = place.put(&again, "again", overrides).unwrap();
            assert_eq!(new, if overrides == plain { 0 } else { 256 });
            let out = place.get("again", "out");
            assert_eq!(std::fs::read(out.join("y")).unwrap(), first);
            place.check();
        }
    }
    let place = Place::new(FingerprintKind::Blake3);
    let both = place.source("both", &[("a", &second), ("b", &first), ("c", &second)]);
    assert_eq!(place.put(&both, "both", plain).unwrap(), 256);
    assert_eq!(std::fs::read(place.get("both", "out").join("c")).unwrap(), second);
}

#[test]
fn pending_chunks_are_compared_too() {
    let [first, second] = twins();
    let place = Place::new(FingerprintKind::Md5);
    // Nothing of it is in a pack that can be read before the last file is looked at.
    let both = place.source("both", &[("a", &first), ("b", &second)]);
    place.put(&both, "both", Overrides::default()).expect_err("other bytes");
    let alone = place.source("alone", &[("b", &second)]);
    place.put(&alone, "alone", Overrides::default()).unwrap();
    assert_eq!(std::fs::read(place.get("alone", "out").join("b")).unwrap(), second);
    place.check();
}

#[test]
fn trees_come_back_whatever_names_and_cuts_them() {
    let dir = tempfile::tempdir().unwrap();
    let (first, second) = (dir.path().join("first"), dir.path().join("second"));
    source_tree(&first, &TreeOptions::new(3, 80)).unwrap();
    source_tree(&second, &TreeOptions::new(3, 80)).unwrap();
    mutate_tree(&second, &MutateOptions::new(4)).unwrap();
    // Longer than any segment, and with repetitions.
    let large: Vec<u8> =
        (0..3_000_000u32).flat_map(|n| (n % 700_000).wrapping_mul(0x9e37_79b9).to_be_bytes()).collect();
    std::fs::write(second.join("large"), &large).unwrap();
    let chunkers =
        ["rabin:2K/8K/64K", "lbfs-md5:2K/8K/64K", "lbfs-sha1:64/256/1K", "gear32:4K/16K/64K", "fixed:4K"];
    for (kind, chunker) in FingerprintKind::ALL.into_iter().zip(chunkers.into_iter().cycle()) {
        let place = Place::new(kind);
        let cut = Overrides { chunker: Some(ChunkerSpec::parse(chunker).unwrap()), dedup: None };
        let before = place.put(&first, "t", cut).unwrap();
        let after = place.put(&second, "t", cut).unwrap();
        assert!(before > 0 && after > 0);
        assert_eq!(
            place.put(&second, "copy", cut).unwrap(),
            0,
            "{} {chunker}: all of it is known",
            kind.name()
        );
        let out = place.get("t", "out");
        assert_eq!(compare_trees(&second, &out).unwrap(), [], "{} {chunker}", kind.name());
        place.check();
    }
}

#[test]
fn windows_find_what_was_moved() {
    let mut bytes = vec![0; 4 << 20];
    outrigger_workload::Rng::new(9).fill(&mut bytes);
    for chunker in ["rabin:2K/8K/64K", "lbfs-md5:2K/8K/64K", "lbfs-sha1:2K/8K/64K"] {
        let place = Place::new(FingerprintKind::Blake3);
        let cut = Overrides { chunker: Some(ChunkerSpec::parse(chunker).unwrap()), dedup: None };
        let one = place.source("one", &[("f", &bytes)]);
        assert_eq!(place.put(&one, "one", cut).unwrap(), bytes.len() as u64);
        let mut moved = bytes.clone();
        moved.insert(1 << 20, 7);
        let two = place.source("two", &[("f", &moved)]);
        let new = place.put(&two, "two", cut).unwrap();
        assert!((1..200_000).contains(&new), "{chunker}: {new} new bytes for one inserted");
        assert_eq!(std::fs::read(place.get("two", "out").join("f")).unwrap(), moved);
    }
}
