//! The first gate is the machine: what each stage of a put costs alone, what all of them allow on these cores, and what the
//! whole put and get take. Prints the fraction reached and the largest single cost.
//!
//! `cargo bench -p outrigger-store --bench stages -- [TREE]` (default: a generated source tree). Without `--bench`, as under
//! `cargo test`, a tiny tree: then only the answers matter, and they are checked.

use std::io::{IoSlice, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use outrigger_format::boundary::{CutWalk, GearMasks};
use outrigger_format::catalogue::{Attributes, FileKind, Time};
use outrigger_format::{ChunkerSpec, Codec, CodecSpec, PackId, Root};
use outrigger_offload::{Compressor, hash, scan};
use outrigger_store::backend::{Backend, LocalBackend};
use outrigger_store::local::{get, put};
use outrigger_store::meta::{At, Change, Commit, Meta, OpenMode, ROOT_INODE, SessionKind, SqliteMeta};
use outrigger_store::tree::{StorePath, require};
use outrigger_store::write::Progress;
use outrigger_store::{Profile, Store};
use outrigger_workload::{TreeOptions, compare_trees, source_tree};

fn main() {
    let full = std::env::args().any(|argument| argument == "--bench");
    let given = std::env::args().skip(1).find(|argument| !argument.starts_with('-')).map(PathBuf::from);
    let scratch = tempfile::tempdir().expect("a temporary directory");
    let tree = given.unwrap_or_else(|| {
        let tree = scratch.path().join("tree");
        let options = TreeOptions::new(1, if full { 20_000 } else { 60 });
        source_tree(&tree, &options).expect("a generated tree");
        tree
    });
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let mut stages = Stages { seconds: Vec::new() };

    let paths = stages.time("walk + stat", || files_below(&tree));
    let files: Vec<Vec<u8>> =
        paths.iter().map(|path| std::fs::read(path).expect("a readable file")).collect();
    // Into one buffer: fresh memory costs more than reading, and the pipeline reuses its buffers too.
    let mut buffer = vec![0; files.iter().map(Vec::len).max().unwrap_or(0) + 1];
    stages.time("open + read", || {
        for (path, file) in paths.iter().zip(&files) {
            let mut reader = std::fs::File::open(path).expect("a readable file");
            let len = reader.read(&mut buffer).expect("readable bytes");
            assert!(len <= file.len(), "the tree does not change");
        }
    });
    let bytes: usize = files.iter().map(Vec::len).sum();
    let masks = GearMasks::for_average(16 << 10);
    let cuts = stages.time("scan + cut", || files.iter().map(|file| cut(file, masks)).collect::<Vec<_>>());
    let kind = outrigger_format::FingerprintKind::Blake3;
    stages.time("hash", || {
        for (file, ends) in files.iter().zip(&cuts) {
            let mut start = 0;
            for &end in ends {
                std::hint::black_box(hash(kind, &file[start..end as usize]));
                start = end as usize;
            }
        }
    });

    // The whole put, twice: the first warms what the stages did not touch.
    let (mut put_wall, mut summary) = (f64::MAX, None);
    let mut store_dir = PathBuf::new();
    for round in 0..if full { 3 } else { 1 } {
        store_dir = scratch.path().join(format!("store{round}"));
        let began = Instant::now();
        summary = Some(whole_put(&store_dir, &tree, threads));
        put_wall = put_wall.min(began.elapsed().as_secs_f64());
    }
    let summary = summary.expect("one round at least");
    let (new, stored) = (summary.write.progress.bytes_new, summary.write.progress.bytes_stored);

    // Only what is new is compressed and written: the same share of the tree is, here.
    let share = new as f64 / bytes.max(1) as f64;
    let joined = files.concat();
    let part = &joined[..(joined.len() as f64 * share) as usize];
    let mut frame = vec![0; 512 << 10];
    stages.time("copy into frames", || {
        for piece in part.chunks(frame.len()) {
            frame[..piece.len()].copy_from_slice(piece);
            std::hint::black_box(&frame);
        }
    });
    stages.time("compress", || compress(part));
    stages.time("pack writes + sync", || write_pack(&scratch.path().join("pack"), stored));
    stages.time("metadata", || commit(&scratch.path().join("meta.db"), paths.len()));
    let restored = scratch.path().join("restored");
    let began = Instant::now();
    whole_get(&store_dir, &restored, threads);
    let get_wall = began.elapsed().as_secs_f64();
    assert_eq!(compare_trees(&tree, &restored).expect("two trees"), [], "the restored tree differs");

    let sum: f64 = stages.seconds.iter().map(|(_, seconds)| seconds).sum();
    let allowed = sum / threads as f64;
    println!(
        "\n{} files, {:.0} MB, {:.0} MB new, {:.0} MB stored, {threads} threads",
        paths.len(),
        mb(bytes),
        mb(new as usize),
        mb(stored as usize)
    );
    for (name, seconds) in &stages.seconds {
        println!(
            "{name:<20} {seconds:8.3} s alone on one thread {:8.0} MB/s {:5.1} %",
            mb(bytes) / seconds,
            100.0 * seconds / sum
        );
    }
    let largest = stages.seconds.iter().max_by(|a, b| a.1.total_cmp(&b.1)).expect("stages");
    println!("sum / threads        {allowed:8.3} s: what the stages allow");
    println!(
        "whole put            {put_wall:8.3} s = {:.0} % of that; largest stage: {}",
        100.0 * allowed / put_wall,
        largest.0
    );
    println!("whole get            {get_wall:8.3} s = {:.0} MB/s, verified", mb(bytes) / get_wall);
}

struct Stages {
    seconds: Vec<(&'static str, f64)>,
}

impl Stages {
    fn time<T>(&mut self, name: &'static str, mut stage: impl FnMut() -> T) -> T {
        let began = Instant::now();
        let result = stage();
        self.seconds.push((name, began.elapsed().as_secs_f64()));
        result
    }
}

fn mb(bytes: usize) -> f64 {
    bytes as f64 / 1e6
}

fn files_below(tree: &Path) -> Vec<PathBuf> {
    let (mut files, mut dirs) = (Vec::new(), vec![tree.to_path_buf()]);
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(dir).expect("a readable directory") {
            let path = entry.expect("an entry").path();
            let stat = path.symlink_metadata().expect("an entry's metadata");
            if stat.is_dir() {
                dirs.push(path);
            } else if stat.is_file() {
                files.push(path);
            }
        }
    }
    files
}

fn cut(file: &[u8], masks: GearMasks) -> Vec<u64> {
    let (mut candidates, mut ends) = (Vec::new(), Vec::new());
    scan(&[], file, masks, &mut candidates);
    let mut walk = CutWalk::new(ChunkerSpec::DEFAULT);
    walk.feed(file.len(), &candidates, &mut ends);
    ends.extend(walk.finish());
    ends
}

fn compress(data: &[u8]) -> usize {
    let (mut compressor, mut out, mut total) = (Compressor::new(), Vec::new(), 0);
    let spec = CodecSpec { codec: Codec::Zstd, level: 2 };
    for frame in data.chunks(512 << 10) {
        compressor.compress(spec, frame, &mut out);
        total += out.len();
    }
    total
}

fn write_pack(dir: &Path, bytes: u64) {
    std::fs::create_dir_all(dir).expect("a directory");
    let backend = LocalBackend::open(dir, true, false).expect("a backend");
    let block = vec![0xa5; 256 << 10];
    for (number, start) in (0..bytes).step_by(64 << 20).enumerate() {
        let mut writer = backend.create(PackId(number as u64 + 1)).expect("a pack");
        let mut left = (bytes - start).min(64 << 20) as usize;
        while left > 0 {
            let len = left.min(block.len());
            writer.append(&[IoSlice::new(&block[..len])]).expect("room on the disk");
            left -= len;
        }
        writer.seal().expect("a sync");
    }
}

fn commit(path: &Path, files: usize) {
    let meta = SqliteMeta::open(path, OpenMode::Create).expect("a database");
    let (session, _) = meta.open_session(SessionKind::Writer, "bench", 60).expect("a session");
    let inodes = meta.reserve_inodes(files as u64).expect("inodes");
    let attributes = Attributes {
        kind: FileKind::File,
        mode: 0o644,
        uid: 0,
        gid: 0,
        mtime: Time { secs: 1_700_000_000, nanos: 5 },
        rdev: 0,
        target: Vec::new(),
        xattrs: Vec::new(),
    };
    let entry =
        outrigger_format::Entry::Chunk { fingerprint: outrigger_format::Fingerprint([7; 32]), len: 100 };
    let changes: Vec<Change> = inodes
        .map(|inode| Change::Put {
            parent: ROOT_INODE,
            name: format!("file{inode:08}.c").into_bytes(),
            inode,
            attributes: attributes.clone(),
            root: Root::Inline(vec![entry]),
            stamp: inode,
            replace: false,
        })
        .collect();
    for batch in changes.chunks(20_000) {
        let commit = Commit { packs: Vec::new(), changes: batch.to_vec(), time: 1 };
        meta.commit(session, &commit).expect("a commit");
    }
}

fn whole_put(dir: &Path, tree: &Path, threads: usize) -> put::PutReport {
    let store = Store::init(dir, &Profile::Default.config().expect("a configuration")).expect("a store");
    let target = StorePath::parse(b"tree").expect("a path");
    let source = put::Source::Path(tree.to_path_buf());
    let progress = Arc::new(Progress::default());
    let options = put::PutOptions::default();
    let report = put::put(&store, vec![(source, target)], &options, threads, &progress).expect("a put");
    assert_eq!(progress.skipped.lock().expect("no panic").len(), 0, "nothing is skipped");
    report
}

fn whole_get(dir: &Path, dest: &Path, threads: usize) {
    let store = Store::open(dir, false).expect("the store");
    let inode =
        require(&*store.meta, At::Now, &StorePath::parse(b"tree").expect("a path")).expect("the tree");
    let options = get::GetOptions { overwrite: false, special: true, threads };
    let progress = Progress::default();
    get::restore(&store, At::Now, &inode, dest, None, options, &progress).expect("a get");
    assert_eq!(progress.skipped.lock().expect("no panic").len(), 0, "nothing is skipped");
}
