//! The first gate is the machine: the rates that the stages of a put and of a get reach on these
//! cores, measured alone on one thread and on all of them at once, and the fraction of that which
//! whole operations reach.
//!
//! `cargo bench -p outrigger-store --bench stages -- [TREE]` (default: a generated source tree).
//! Without `--bench`, as under `cargo test`, a tiny tree: then only the answers matter, and they
//! are checked.
//!
//! Every figure is a median of [`ROUNDS`] after one round that warms caches and memory. The stages'
//! limit is the sum of their times on all threads; a stage with a thread to itself (walking,
//! committing) counts with its share of the cores.
#![allow(clippy::disallowed_methods, reason = "tests wait and measure in real time")]

use outrigger_store::meta::{Sessions, Tree};
use std::io::{IoSlice, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use outrigger_format::boundary::{CutWalk, GearMasks};
use outrigger_format::catalogue::{Attributes, FileKind, Time};
use outrigger_format::{ChunkerSpec, Codec, CodecSpec, FingerprintKind, PackId, Root};
use outrigger_offload::{Compressor, Decompressor, hash, scan};
use outrigger_store::backend::{Backend, LocalBackend};
use outrigger_store::local::{get, put};
use outrigger_store::meta::{At, Change, Commit, OpenMode, ROOT_INODE, SessionKind, SqliteMeta};
use outrigger_store::tree::{StorePath, require};
use outrigger_store::write::Progress;
use outrigger_store::{Profile, Store};
use outrigger_workload::{TreeOptions, compare_trees, source_tree};

/// Measured rounds of each stage and operation.
const ROUNDS: usize = 3;
/// As the default profile has it.
const FRAME: usize = 512 << 10;
const CODEC: CodecSpec = CodecSpec { codec: Codec::Zstd, level: 1 };

fn main() {
    let full = std::env::args().any(|argument| argument == "--bench");
    let given = std::env::args().skip(1).find(|argument| !argument.starts_with('-')).map(PathBuf::from);
    // Beside the tree, so that a restore is written to the same file system.
    let beside =
        given.as_deref().and_then(Path::parent).map(Path::to_path_buf).unwrap_or_else(std::env::temp_dir);
    let scratch = tempfile::tempdir_in(beside).expect("a temporary directory");
    let tree = given.unwrap_or_else(|| {
        let tree = scratch.path().join("tree");
        let options = TreeOptions::new(1, if full { 20_000 } else { 60 });
        source_tree(&tree, &options).expect("a generated tree");
        tree
    });
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let bench = Bench { threads, rounds: if full { ROUNDS } else { 1 }, scratch: scratch.path() };

    let paths = files_below(&tree);
    let files: Vec<Vec<u8>> =
        paths.iter().map(|path| std::fs::read(path).expect("a readable file")).collect();
    let bytes: usize = files.iter().map(Vec::len).sum();
    println!("{} files, {:.0} MB, {threads} threads", paths.len(), mb(bytes));

    // The whole operations first: they show how much of the data is new.
    let mut number = 0;
    let (put_wall, summary) = bench.median(|| {
        number += 1;
        whole_put(&scratch.path().join(format!("store{number}")), &tree, threads)
    });
    let (again_wall, _) = bench.median(|| whole_put(&scratch.path().join("store1"), &tree, threads));
    let store_dir = scratch.path().join("store1");
    let mut copies = 0;
    let (get_wall, _) = bench.median(|| {
        copies += 1;
        whole_get(&store_dir, &scratch.path().join(format!("restored{copies}")), threads);
    });
    let restored = scratch.path().join("restored1");
    assert_eq!(compare_trees(&tree, &restored).expect("two trees"), [], "the restored tree differs");
    let (new, stored) = (summary.write.progress.bytes_new, summary.write.progress.bytes_stored);
    println!("{:.0} MB new, {:.0} MB stored", mb(new as usize), mb(stored as usize));

    let masks = GearMasks::for_average(16 << 10);
    let cuts: Vec<Vec<u64>> = files.iter().map(|file| cut(file, masks)).collect();
    // Only new chunks are compressed and written: the same share of the tree is, here.
    let share = new as f64 / bytes.max(1) as f64;
    let joined = files.concat();
    let frames: Vec<&[u8]> = joined[..(joined.len() as f64 * share) as usize].chunks(FRAME).collect();
    let packed: Vec<(Codec, Vec<u8>)> =
        frames.iter().map(|frame| compressed(&mut Compressor::new(), frame)).collect();
    let each_chunk = |at: usize| {
        let (mut start, file) = (0, &files[at]);
        for &end in &cuts[at] {
            std::hint::black_box(hash(FingerprintKind::Blake3, &file[start..end as usize]));
            start = end as usize;
        }
    };

    let walk = bench.serial("walk + stat", || files_below(&tree));
    let hashing = bench.stage("hash", paths.len(), || (), |(), at| each_chunk(at));
    let put_stages = [
        walk.clone(),
        bench.stage(
            "open + read",
            paths.len(),
            || vec![0; files.iter().map(Vec::len).max().unwrap_or(0) + 1],
            |buffer, at| {
                let mut reader = std::fs::File::open(&paths[at]).expect("a readable file");
                assert!(
                    reader.read(buffer).expect("readable bytes") <= files[at].len(),
                    "the tree does not change"
                );
            },
        ),
        bench.stage("scan + cut", paths.len(), || (), |(), at| drop(cut(&files[at], masks))),
        hashing.clone(),
        bench.stage("compress", frames.len(), Compressor::new, |compressor, at| {
            drop(compressed(compressor, frames[at]))
        }),
        bench.serial("pack writes + sync", || write_packs(&scratch.path().join("packs"), stored)),
        bench.serial("metadata", || commit(&scratch.path().join("meta"), paths.len())),
    ];
    bench.report("first put", put_wall, bytes, &put_stages);
    bench.report("put again, nothing changed", again_wall, bytes, &[walk]);
    let pack_files = files_below(&store_dir.join("packs"));
    let get_stages = [
        bench.stage(
            "read packs",
            pack_files.len(),
            || (),
            |(), at| drop(std::fs::read(&pack_files[at]).expect("a pack")),
        ),
        bench.stage(
            "decompress",
            packed.len(),
            || (Decompressor::new(), Vec::new()),
            |(decompressor, out), at| {
                let (codec, stored) = &packed[at];
                decompressor.decompress(*codec, stored, frames[at].len(), out).expect("what was compressed");
            },
        ),
        hashing,
        bench.creation(&tree, &paths, &files),
    ];
    bench.report("get", get_wall, bytes, &get_stages);
}

struct Bench<'a> {
    threads: usize,
    rounds: usize,
    scratch: &'a Path,
}

#[derive(Clone)]
struct Stage {
    name: &'static str,
    /// Seconds on one thread.
    alone: f64,
    /// Seconds on all threads; `None` where the pipeline has one thread for it.
    together: Option<f64>,
}

impl Bench<'_> {
    /// The median time of `work`, after a first round that does not count, and what its last round
    /// gave.
    fn median<T>(&self, mut work: impl FnMut() -> T) -> (f64, T) {
        let mut result = work();
        let walls: Vec<f64> = (0..self.rounds)
            .map(|_| {
                rustix::fs::sync();
                let began = Instant::now();
                result = work();
                began.elapsed().as_secs_f64()
            })
            .collect();
        (middle(walls), result)
    }

    fn serial<T>(&self, name: &'static str, work: impl FnMut() -> T) -> Stage {
        Stage { name, alone: self.median(work).0, together: None }
    }

    /// `work` for each of `count` items, by threads that have a `state` each.
    fn stage<S: Send>(
        &self,
        name: &'static str,
        count: usize,
        state: impl Fn() -> S,
        work: impl Fn(&mut S, usize) + Sync,
    ) -> Stage {
        let on = |threads: usize| {
            let mut states: Vec<S> = (0..threads).map(|_| state()).collect();
            self.median(|| share_out(&mut states, count, &work)).0
        };
        Stage { name, alone: on(1), together: Some(on(self.threads)) }
    }

    /// Creating the tree's files with their content, in directories that exist.
    fn creation(&self, tree: &Path, paths: &[PathBuf], files: &[Vec<u8>]) -> Stage {
        let round = std::sync::atomic::AtomicUsize::new(0);
        // A directory a round: writing over old files would be another thing.
        let fresh = || {
            let top = self
                .scratch
                .join(format!("copy{}", round.fetch_add(1, std::sync::atomic::Ordering::Relaxed)));
            let place = |path: &PathBuf| top.join(path.strip_prefix(tree).expect("below the tree"));
            for path in paths {
                std::fs::create_dir_all(place(path).parent().expect("a directory"))
                    .expect("room on the disk");
            }
            paths.iter().map(place).collect::<Vec<_>>()
        };
        let on = |threads: usize| {
            let mut walls = Vec::new();
            for _ in 0..self.rounds {
                let places = fresh();
                rustix::fs::sync();
                let began = Instant::now();
                share_out(&mut vec![(); threads], places.len(), &|(), at| {
                    std::fs::write(&places[at], &files[at]).expect("room on the disk");
                });
                walls.push(began.elapsed().as_secs_f64());
            }
            middle(walls)
        };
        Stage { name: "create + write", alone: on(1), together: Some(on(self.threads)) }
    }

    fn report(&self, operation: &str, wall: f64, bytes: usize, stages: &[Stage]) {
        println!(
            "\n{operation:<28} {:>10} {:>10} {:>8}",
            "1 thread",
            format!("{} threads", self.threads),
            "share"
        );
        let cost = |stage: &Stage| stage.together.unwrap_or(stage.alone / self.threads as f64);
        let sum: f64 = stages.iter().map(cost).sum();
        // However many cores there are, a stage with one thread takes its time.
        let serial = stages.iter().filter(|stage| stage.together.is_none()).map(|stage| stage.alone);
        let allowed = serial.fold(sum, f64::max);
        for stage in stages {
            let together =
                stage.together.map_or_else(|| "-".to_string(), |seconds| format!("{seconds:.3} s"));
            println!(
                "  {:<26} {:>8.3} s {together:>10} {:>6.1} %",
                stage.name,
                stage.alone,
                100.0 * cost(stage) / sum
            );
        }
        let largest = stages.iter().max_by(|a, b| cost(a).total_cmp(&cost(b))).expect("stages");
        println!("  the stages allow           {allowed:>21.3} s");
        println!(
            "  whole                      {wall:>21.3} s = {:.0} MB/s: {:.0} % of what the stages allow; lost outside of them {:.3} s; \
             largest stage: {}",
            mb(bytes) / wall,
            100.0 * allowed / wall,
            wall - allowed,
            largest.name
        );
    }
}

/// `work` for each of `count` items, by as many threads as there are `states`.
fn share_out<S: Send>(states: &mut [S], count: usize, work: &(impl Fn(&mut S, usize) + Sync)) {
    let threads = states.len();
    std::thread::scope(|scope| {
        for (first, state) in states.iter_mut().enumerate() {
            scope.spawn(move || (first..count).step_by(threads).for_each(|at| work(state, at)));
        }
    });
}

/// The median.
fn middle(mut seconds: Vec<f64>) -> f64 {
    seconds.sort_by(f64::total_cmp);
    seconds[seconds.len() / 2]
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

fn compressed(compressor: &mut Compressor, frame: &[u8]) -> (Codec, Vec<u8>) {
    let mut out = Vec::new();
    (compressor.compress(CODEC, frame, &mut out), out)
}

/// Packs of the store's usual size, in a new directory every time.
fn write_packs(dir: &Path, bytes: u64) {
    let dir = tempfile::tempdir_in(dir.parent().expect("a parent")).expect("a directory");
    let backend = LocalBackend::open(dir.path(), true, false).expect("a backend");
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

fn commit(beside: &Path, files: usize) {
    let dir = tempfile::tempdir_in(beside.parent().expect("a parent")).expect("a directory");
    let meta = SqliteMeta::open(&dir.path().join("meta.db"), OpenMode::Create).expect("a database");
    let (session, _) = meta
        .open_session(SessionKind::Writer, &outrigger_store::testing::owner("bench"), 60)
        .expect("a session");
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
        times: None,
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
    let store = if dir.exists() {
        Store::open(dir, false).expect("the store")
    } else {
        Store::init(dir, &Profile::Default.config().expect("a configuration")).expect("a store")
    };
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
    let options = get::GetOptions { overwrite: false, special: true, threads, ..get::GetOptions::default() };
    let progress = Progress::default();
    get::restore(&store, At::Now, &inode, dest, None, options, &progress).expect("a get");
    assert_eq!(progress.skipped.lock().expect("no panic").len(), 0, "nothing is skipped");
}
