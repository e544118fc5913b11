//! Whole puts, for benchmarks: into a new store, timed, read back and removed.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use outrigger_clock::process_time;
use outrigger_format::CodecChoice;
use outrigger_store::check::{CheckOptions, CheckProgress, check};
use outrigger_store::local::put;
use outrigger_store::tree::StorePath;
use outrigger_store::write::Progress;
use outrigger_store::{Profile, Store, StoreConfig};

/// One put.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    /// Seconds, and seconds of all processors.
    pub wall: f64,
    pub processor: f64,
    /// Bytes that were read; those that were new; what became of them.
    pub bytes: u64,
    pub new: u64,
    pub stored: u64,
}

impl Run {
    pub fn ratio(&self) -> f64 {
        self.new as f64 / self.stored.max(1) as f64
    }
}

/// A store of the default profile with this codec.
pub fn new_store(path: &Path, codec: &str) -> Store {
    let codec = CodecChoice::parse(codec).expect("a codec");
    let config = StoreConfig { codec, ..Profile::Default.config().expect("a profile") };
    Store::init(path, &config).expect("a store")
}

/// Puts all of `sources`.
pub fn put_into(store: &Store, sources: &[PathBuf], threads: usize) -> put::PutReport {
    let progress = Arc::new(Progress::default());
    let source = |(number, path): (usize, &PathBuf)| {
        let target = StorePath::parse(format!("tree{number}").as_bytes()).expect("a path");
        (put::Source::Path(path.clone()), target)
    };
    let sources = sources.iter().enumerate().map(source).collect();
    put::put(store, sources, &put::PutOptions::default(), threads, &progress).expect("a put")
}

/// A put into a new store at `path`, which is then read back by the processor alone, and removed.
/// `prepare` is part of what is timed.
pub fn whole_put(
    path: &Path,
    codec: &str,
    sources: &[PathBuf],
    threads: usize,
    prepare: impl FnOnce(&Store),
) -> Run {
    let store = new_store(path, codec);
    let (began, before) = (Instant::now(), process_time());
    prepare(&store);
    let view = put_into(&store, sources, threads).write.progress;
    let (wall, processor) = (began.elapsed().as_secs_f64(), (process_time() - before).as_secs_f64());
    drop(store);
    sound(path, threads);
    std::fs::remove_dir_all(path).expect("the store is removed");
    Run { wall, processor, bytes: view.bytes_done, new: view.bytes_new, stored: view.bytes_stored }
}

/// Everything in the store can be read, and is what its name says.
pub fn sound(path: &Path, threads: usize) {
    let store = Store::open(path, false).expect("the store opens");
    let options = CheckOptions { read_data: true, repair: false, threads };
    let report = check(&store, &options, &CheckProgress::default()).expect("a check");
    assert_eq!(report.damaged, 0, "{:?}", report.findings);
}
