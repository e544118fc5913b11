//! Stores made of trees, and volumes that show them.

#![allow(dead_code, reason = "each test binary uses its own part of this")]

pub mod rewritten;
pub mod tailed;
pub mod volume;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use outrigger_format::ChunkerSpec;
use outrigger_fuse::fs::{Caller, Entry, FileSystem, Found, ROOT, Result};
use outrigger_fuse::report::Reports;
use outrigger_fuse::view::{ReadOptions, ReadVolume};
use outrigger_store::local::put::{PutOptions, Source, put};
use outrigger_store::ops::{self, View};
use outrigger_store::tree::StorePath;
use outrigger_store::write::Progress;
use outrigger_store::{Profile, Store};
use tempfile::TempDir;

pub const ROOT_USER: Caller = Caller { uid: 0, gid: 0, pid: 1 };
pub const OTHER_USER: Caller = Caller { uid: 1000, gid: 1000, pid: 2 };

/// A directory with a source tree `source` and a store `store`.
pub struct Place {
    pub dir: TempDir,
    pub said: Arc<Mutex<Vec<String>>>,
}

impl Place {
    pub fn new() -> Self {
        let dir = tempfile::Builder::new().prefix("outrigger-mount-").tempdir().unwrap();
        std::fs::create_dir(dir.path().join("source")).unwrap();
        Store::init(&dir.path().join("store"), &Profile::Default.config().unwrap()).unwrap();
        Self { dir, said: Arc::default() }
    }

    /// With tiny chunks, so that small files have large manifests.
    pub fn with_tiny_chunks() -> Self {
        let place = Self::new();
        std::fs::remove_dir_all(place.store_dir()).unwrap();
        let mut config = Profile::Default.config().unwrap();
        config.chunker = ChunkerSpec::parse("gear32:64/256/1K").unwrap();
        config.frame_size = 8 << 10;
        Store::init(&place.store_dir(), &config).unwrap();
        place
    }

    pub fn source(&self) -> PathBuf {
        self.dir.path().join("source")
    }

    pub fn store_dir(&self) -> PathBuf {
        self.dir.path().join("store")
    }

    pub fn open(&self) -> Store {
        Store::open(&self.store_dir(), false).unwrap()
    }

    /// Makes the root of the store equal to the source.
    pub fn put(&self) {
        let progress = Arc::new(Progress::default());
        let what = vec![(Source::Path(self.source()), StorePath::default())];
        put(&self.open(), what, &PutOptions::default(), 2, &progress).unwrap();
        assert_eq!(*progress.skipped.lock().unwrap(), []);
    }

    pub fn snapshot(&self, name: &str) {
        ops::snapshots::create(&self.open(), Some(name), "x", &[]).unwrap();
    }

    /// The current tree, or a snapshot.
    pub fn volume(&self, at: Option<&str>) -> ReadVolume {
        let store = Arc::new(self.open());
        let view = View::open(&store, "test", at).unwrap();
        let said = Arc::clone(&self.said);
        let reports = Reports::new(move |message| said.lock().unwrap().push(message.to_string()));
        let options = ReadOptions { snapshots: at.is_none(), tame_snapshots: false, ahead_threads: 2 };
        ReadVolume::new(store, view, options, reports).unwrap()
    }
}

/// Looks up a path, which must exist.
pub fn find(fs: &impl FileSystem, path: impl AsRef<Path>) -> Entry {
    use std::os::unix::ffi::OsStrExt;
    let mut entry = fs.attributes(ROOT_USER, ROOT, None).unwrap();
    for name in path.as_ref().iter() {
        match fs.lookup(ROOT_USER, entry.attr.number, name.as_bytes()).unwrap() {
            Found::Entry(found) => entry = found,
            Found::Missing { .. } => panic!("{:?} is missing in {}", name, path.as_ref().display()),
        }
    }
    entry
}

pub fn is_missing(fs: &impl FileSystem, parent: u64, name: &str) -> bool {
    matches!(fs.lookup(ROOT_USER, parent, name.as_bytes()).unwrap(), Found::Missing { .. })
}

/// Reads a part of a file as one open file.
pub fn read_part(fs: &impl FileSystem, number: u64, parts: &[(u64, usize)]) -> Result<Vec<Vec<u8>>> {
    let opened = fs.open(ROOT_USER, number, rustix::fs::OFlags::RDONLY)?;
    let read = |&(offset, len): &(u64, usize)| {
        let mut bytes = Vec::new();
        fs.read(number, opened.handle, offset, len, &mut bytes).map(|()| bytes)
    };
    let all = parts.iter().map(read).collect();
    fs.release(number, opened.handle);
    all
}

/// Reads a whole file, `step` bytes at a time.
pub fn read_whole(fs: &impl FileSystem, entry: &Entry, step: usize) -> Result<Vec<u8>> {
    let parts: Vec<(u64, usize)> = (0..=entry.attr.size).step_by(step).map(|at| (at, step)).collect();
    Ok(read_part(fs, entry.attr.number, &parts)?.concat())
}

/// Names in a directory but `.` and `..`, asked for `batch` entries at a time, each time from where
/// the last answer ended.
pub fn names(fs: &impl FileSystem, number: u64, batch: usize, attributes: bool) -> Vec<Vec<u8>> {
    let opened = fs.open_dir(ROOT_USER, number).unwrap();
    let (mut names, mut offset) = (Vec::new(), 0);
    loop {
        let mut taken = 0;
        fs.read_dir(number, opened.handle, offset, attributes, &mut |entry| {
            if taken == batch {
                return false;
            }
            taken += 1;
            offset = entry.next;
            if entry.name != b"." && entry.name != b".." {
                assert_eq!(entry.entry.is_some(), attributes);
                names.push(entry.name.to_vec());
            }
            true
        })
        .unwrap();
        if taken < batch {
            break;
        }
    }
    fs.release_dir(number, opened.handle);
    names
}
