//! An oracle's record can replace the computation for the same bytes; other bytes are never given
//! to a reader.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use outrigger_format::{ChunkerSpec, Entry, FingerprintKind};
use outrigger_store::check::{CheckOptions, CheckProgress, CheckReport, check};
use outrigger_store::local::{get, put};
use outrigger_store::meta::{At, ROOT_INODE};
use outrigger_store::policy::Overrides;
use outrigger_store::read::Reader;
use outrigger_store::tree::{StorePath, find, require};
use outrigger_store::write::{OracleMode, Progress};
use outrigger_store::{Error, ErrorKind, Profile, Store, StoreConfig};
use outrigger_workload::{Rng, compare_trees};
use tempfile::TempDir;

/// A source tree, and stores.
struct Place {
    dir: TempDir,
}

impl Place {
    fn new() -> Self {
        let place = Self { dir: tempfile::tempdir().unwrap() };
        let source = place.path("source");
        std::fs::create_dir_all(source.join("deep/er")).unwrap();
        let mut rng = Rng::new(11);
        // Small files, one as long as a batch, large ones, and one with holes.
        for (name, len) in [
            ("empty", 0),
            ("tiny", 5),
            ("deep/small", 70_000),
            ("deep/er/batch", 1 << 20),
            ("deep/er/large", 5_000_001),
            ("huge", 9 << 20),
        ] {
            let mut bytes = vec![0; len];
            rng.fill(&mut bytes);
            std::fs::write(source.join(name), bytes).unwrap();
        }
        let sparse = File::create(source.join("sparse")).unwrap();
        sparse.set_len(20 << 20).unwrap();
        let mut bytes = vec![0; 1_500_000];
        rng.fill(&mut bytes);
        sparse.write_all_at(&bytes, 3 << 20).unwrap();
        sparse.write_all_at(&bytes, 15 << 20).unwrap();
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn init(&self, name: &str, change: impl FnOnce(&mut StoreConfig)) -> Store {
        let mut config = Profile::Default.config().unwrap();
        config.experiment = true;
        change(&mut config);
        Store::init(&self.path(name), &config).unwrap()
    }

    fn store(&self, name: &str) -> Store {
        self.init(name, |_| {})
    }

    fn record(&self) -> OracleMode {
        OracleMode::Record(self.path("record"))
    }

    fn replay(&self) -> OracleMode {
        OracleMode::Replay(self.path("record"))
    }

    fn try_put(&self, store: &Store, target: &str, oracle: OracleMode) -> Result<put::PutReport, Error> {
        let source = put::Source::Path(self.path("source"));
        put_from(store, source, target, Some(oracle), Overrides::default())
    }

    fn put(&self, store: &Store, target: &str, oracle: OracleMode) -> put::PutReport {
        self.try_put(store, target, oracle).unwrap()
    }

    fn overwrite(&self, name: &str, offset: u64) {
        let file = File::options().write(true).open(self.path("source").join(name)).unwrap();
        file.write_all_at(b"other", offset).unwrap();
    }
}

fn put_from(
    store: &Store,
    source: put::Source,
    target: &str,
    oracle: Option<OracleMode>,
    overrides: Overrides,
) -> Result<put::PutReport, Error> {
    let progress = Arc::new(Progress::default());
    let options = put::PutOptions { oracle, overrides, ..put::PutOptions::default() };
    let report = put::put(store, vec![(source, path(target))], &options, 3, &progress)?;
    assert_eq!(*progress.skipped.lock().unwrap(), []);
    Ok(report)
}

fn path(text: &str) -> StorePath {
    StorePath::parse(text.as_bytes()).unwrap()
}

const FILES: [&str; 7] = ["empty", "tiny", "deep/small", "deep/er/batch", "deep/er/large", "huge", "sparse"];

fn entries(store: &Store, target: &str) -> Vec<Vec<Entry>> {
    let of = |name: &&str| {
        let inode = require(&*store.meta, At::Now, &path(&format!("{target}/{name}"))).unwrap();
        let mut all = Vec::new();
        let mut visit = |_, entry| {
            all.push(entry);
            Ok(true)
        };
        Reader::new(store).entries(&inode.root, 0, u64::MAX, &mut visit).unwrap();
        all
    };
    FILES.iter().map(of).collect()
}

fn restore(store: &Store, target: &str, dest: &Path) -> Vec<String> {
    let inode = require(&*store.meta, At::Now, &path(target)).unwrap();
    let progress = Progress::default();
    let options = get::GetOptions { special: true, threads: 2, ..get::GetOptions::default() };
    get::restore(store, At::Now, &inode, dest, None, options, &progress).unwrap();
    let skipped = progress.skipped.lock().unwrap();
    skipped.iter().map(|skipped| format!("{skipped:?}")).collect()
}

fn checked(store: &Store) -> CheckReport {
    let options = CheckOptions { read_data: true, repair: false, threads: 2 };
    check(store, &options, &CheckProgress::default()).unwrap()
}

#[test]
fn what_was_recorded_is_stored_the_same_without_computing() {
    for (number, chunker) in ["gear32:4K/16K/64K", "fixed:64K"].into_iter().enumerate() {
        let place = Place::new();
        let chunker = ChunkerSpec::parse(chunker).unwrap();
        let store = place.init("first", |config| config.chunker = chunker);
        place.put(&store, "a", place.record());
        let computed = entries(&store, "a");
        // Into the same store nothing is new.
        let again = place.put(&store, "b", place.replay());
        assert_eq!(again.write.progress.bytes_new, 0);
        assert_eq!(entries(&store, "b"), computed);
        // A fresh one has the same chunks under the same names.
        let fresh = place.init("second", |config| config.chunker = chunker);
        place.put(&fresh, "c", place.replay());
        assert_eq!(entries(&fresh, "c"), computed);
        // And both have every byte.
        for (store, target) in [(&store, "a"), (&store, "b"), (&fresh, "c")] {
            let out = place.path(&format!("out-{number}-{target}"));
            assert!(restore(store, target, &out).is_empty());
            assert_eq!(compare_trees(&place.path("source"), &out).unwrap(), []);
        }
        for store in [&store, &fresh] {
            let report = checked(store);
            assert_eq!(report.damaged, 0, "{:?}", report.findings);
        }
    }
}

#[test]
fn a_stream_is_told_of_as_well() {
    let place = Place::new();
    let store = place.store("store");
    let bytes = std::fs::read(place.path("source/huge")).unwrap();
    let stream = |bytes: &[u8]| put::Source::Stream(Box::new(std::io::Cursor::new(bytes.to_vec())));
    let put_stream = |target: &str, bytes: &[u8], oracle| {
        put_from(&store, stream(bytes), target, Some(oracle), Overrides::default())
    };
    put_stream("one", &bytes, place.record()).unwrap();
    let again = put_stream("two", &bytes, place.replay()).unwrap();
    assert_eq!(again.write.progress.bytes_new, 0);
    // How long a stream is shows at its end only, and in time.
    for other in [&bytes[..bytes.len() - 1], &[&bytes[..], b"x"].concat()] {
        let error = put_stream("three", other, place.replay()).unwrap_err();
        assert!(
            error.kind() == ErrorKind::Invalid && error.to_string().contains("when it was recorded"),
            "{error}"
        );
        assert!(find(&*store.meta, At::Now, &path("three")).unwrap().is_none());
    }
}

#[test]
fn an_ordinary_store_believes_nobody() {
    let place = Place::new();
    let store = place.init("store", |config| config.experiment = false);
    for mode in [place.record(), place.replay()] {
        let error = place.try_put(&store, "a", mode).unwrap_err();
        assert!(
            error.kind() == ErrorKind::Invalid && error.to_string().contains("init --experiment"),
            "{error}"
        );
    }
    assert!(!place.path("record").exists());
    assert!(store.meta.read_dir(At::Now, ROOT_INODE, None, 10).unwrap().is_empty());
}

#[test]
fn a_file_that_was_not_recorded_so_is_refused() {
    let place = Place::new();
    let store = place.store("store");
    place.put(&store, "a", place.record());
    let refused = |target: &str, what: &str| {
        let error = place.try_put(&store, target, place.replay()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        assert!(error.to_string().contains(what), "{what}: {error}");
    };
    for name in ["tiny", "deep/small", "huge", "sparse"] {
        let file = File::options().write(true).open(place.path("source").join(name)).unwrap();
        let len = file.metadata().unwrap().len();
        for other in [len - 1, len + 1] {
            file.set_len(other).unwrap();
            // Files that the walk met before are right, and may stay.
            let target = format!("{}-{other}", name.replace('/', "-"));
            refused(&target, name);
            let found = find(&*store.meta, At::Now, &path(&format!("{target}/{name}"))).unwrap();
            assert!(found.is_none(), "{name} was committed with {other} bytes");
        }
        file.set_len(len).unwrap();
    }
    std::fs::write(place.path("source/new"), "x").unwrap();
    refused("b", "no file `new`");
    std::fs::remove_file(place.path("source/new")).unwrap();
    let source = put::Source::Path(place.path("source"));
    let overrides = Overrides { chunker: Some(ChunkerSpec::Fixed { size: 4096 }), dedup: None };
    let error = put_from(&store, source, "b", Some(place.replay()), overrides).unwrap_err();
    assert!(error.to_string().contains("fixed:4K"), "{error}");
    let sha = place.init("sha", |config| config.fingerprint = FingerprintKind::Sha256);
    let error = place.try_put(&sha, "b", place.replay()).unwrap_err();
    assert!(error.to_string().contains("blake3"), "{error}");
    // And a record is never written over.
    assert_eq!(place.try_put(&store, "b", place.record()).unwrap_err().kind(), ErrorKind::Exists);
}

#[test]
fn other_bytes_under_recorded_names_are_damage_to_every_reader() {
    for name in ["tiny", "deep/er/large", "sparse"] {
        let place = Place::new();
        place.put(&place.store("first"), "a", place.record());
        place.overwrite(name, if name == "sparse" { 3 << 20 } else { 0 });
        let store = place.store("second");
        place.put(&store, "a", place.replay());
        let report = checked(&store);
        assert!(report.damaged > 0, "{name}");
        let out = place.path("out");
        let skipped = restore(&store, "a", &out);
        assert!(skipped.len() == 1 && skipped[0].contains(name), "{skipped:?}");
        assert!(!out.join(name).exists(), "what is wrong is not handed out");
    }
}
