//! Size and speed of the metadata engine: a small tree by default, for the answers; a million files
//! with `FILES=1000000 cargo test --release -p outrigger-store --test it meta_rates --
//! --nocapture`, for the rates.
#![allow(missing_docs)]

use std::time::Instant;

use outrigger_format::catalogue::{Attributes, FileKind, OtherTimes, Time};
use outrigger_format::{Entry, Fingerprint, Root};
use outrigger_store::meta::{
    At, Change, Commit, Location, Meta, OpenMode, PostgresMeta, ROOT_INODE, SessionKind, SqliteMeta,
};
use outrigger_workload::postgres::Server;

const FILES_PER_DIRECTORY: u64 = 20;

/// A number that looks random and is the same every time.
fn mix(value: u64) -> u64 {
    let mut x = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ x >> 31
}

fn attributes(kind: FileKind, inode: u64) -> Attributes {
    let time = mix(inode);
    Attributes {
        kind,
        mode: if kind == FileKind::Directory { 0o755 } else { 0o644 },
        uid: 1000,
        gid: 1000,
        mtime: Time {
            secs: 1_600_000_000 + (time % 100_000_000) as i64,
            nanos: (time >> 32) as u32 % 1_000_000_000,
        },
        rdev: 0,
        target: Vec::new(),
        xattrs: Vec::new(),
        times: None,
    }
}

fn root(inode: u64, content: u64) -> Root {
    let mut fingerprint = [0; 32];
    for (at, part) in fingerprint.chunks_exact_mut(8).enumerate() {
        part.copy_from_slice(&mix(inode * 4 + at as u64 + content).to_le_bytes());
    }
    let len = 1 + (mix(inode) % 16_000) as u32;
    Root::Inline(vec![Entry::Chunk { fingerprint: Fingerprint(fingerprint), len }])
}

/// A tree in the order of a walk: directories with files and, in the middle of them,
/// subdirectories.
fn tree(files: u64, content: u64) -> Vec<Change> {
    let mut changes = Vec::new();
    let mut inode = ROOT_INODE;
    let mut left = files;
    fill(ROOT_INODE, 0, &mut inode, &mut left, content, &mut changes);
    changes
}

fn fill(parent: u64, depth: u32, inode: &mut u64, left: &mut u64, content: u64, changes: &mut Vec<Change>) {
    let put = |inode: u64, name: String, kind, root, stamp| Change::Put {
        parent,
        name: name.into_bytes(),
        inode,
        attributes: attributes(kind, inode),
        root,
        stamp,
        replace: false,
    };
    // The top directories are as many as it takes.
    let subdirectories = if depth == 0 { u64::MAX } else { u64::from(5 - depth.min(5)) };
    let mut subdirectory = 0;
    for number in 0..FILES_PER_DIRECTORY {
        if *left == 0 {
            return;
        }
        *left -= 1;
        *inode += 1;
        let name = format!("{number:02}-{:x}.c", mix(*inode) >> (36 - number % 5 * 4));
        changes.push(put(*inode, name, FileKind::File, root(*inode, content), mix(*inode + 7)));
        if number % 3 == 1 && subdirectory < subdirectories && depth > 0 {
            subdirectory += 1;
            *inode += 1;
            let directory = *inode;
            changes.push(put(directory, format!("{number:02}-sub"), FileKind::Directory, Root::Empty, 0));
            fill(directory, depth + 1, inode, left, content, changes);
        }
    }
    while depth == 0 && *left > 0 {
        *inode += 1;
        let directory = *inode;
        changes.push(put(directory, format!("top-{directory:08}"), FileKind::Directory, Root::Empty, 0));
        fill(directory, 1, inode, left, content, changes);
    }
}

struct Clock(Instant);

impl Clock {
    fn report(&self, what: &str, count: usize) {
        let secs = self.0.elapsed().as_secs_f64();
        println!("{what:60} {:9.0} /s   {secs:7.2} s", count as f64 / secs);
    }
}

fn start() -> Clock {
    Clock(Instant::now())
}

fn read_all(meta: &dyn Meta, at: At, directories: &[u64]) -> usize {
    directories.iter().map(|&directory| meta.read_dir(at, directory, None, usize::MAX).unwrap().len()).sum()
}

/// An engine's database, and its properties.
struct Place {
    name: &'static str,
    meta: Box<dyn Meta>,
    bytes: Box<dyn Fn() -> u64>,
    /// Another handle, as another process would have.
    another: Box<dyn Fn() -> Box<dyn Meta>>,
}

/// A fresh database of each engine. A server that is to be measured syncs its commits.
fn places(server: Option<&'static Server>) -> Vec<Place> {
    let directory = std::sync::Arc::new(tempfile::tempdir().unwrap());
    let path = directory.path().join("meta.db");
    let (file, kept) = (path.clone(), std::sync::Arc::clone(&directory));
    let mut places = vec![Place {
        name: "SQLite",
        meta: Box::new(SqliteMeta::open(&path, OpenMode::Create).unwrap()),
        bytes: Box::new(move || {
            let _ = &kept;
            std::fs::metadata(&file).unwrap().len()
        }),
        another: Box::new(move || {
            let _ = &directory;
            Box::new(SqliteMeta::open(&path, OpenMode::ReadWrite).unwrap())
        }),
    }];
    if let Some(server) = server {
        let url = server.url(&server.fresh());
        let location = move || Location::parse(&url).unwrap();
        let meta = PostgresMeta::create(location(), "rates").unwrap();
        let other = PostgresMeta::open(location(), true).unwrap();
        places.push(Place {
            name: "PostgreSQL",
            meta: Box::new(meta),
            bytes: Box::new(move || other.bytes().unwrap()),
            another: Box::new(move || Box::new(PostgresMeta::open(location(), false).unwrap())),
        });
    }
    places
}

/// The server of this process's tests, which syncs.
fn server() -> Option<&'static Server> {
    static SERVER: std::sync::OnceLock<Option<Server>> = std::sync::OnceLock::new();
    SERVER.get_or_init(|| Server::start("fsync = on")).as_ref()
}

/// As a mount commits it: an inode, and its name.
fn states(files: u64, times: bool) -> Vec<Change> {
    let to_states = |change| match change {
        Change::Put { parent, name, inode, mut attributes, root, .. } => {
            let mtime = attributes.mtime;
            attributes.times = times.then_some(OtherTimes { atime: mtime, ctime: mtime });
            [
                Change::Node { inode, parent, attributes, root, keep: true },
                Change::Name { parent, name, inode: Some(inode) },
            ]
        }
        _ => unreachable!(),
    };
    tree(files, 0).into_iter().flat_map(to_states).collect()
}

#[test]
fn names_and_inodes_at_once() {
    let files: u64 = std::env::var("FILES").map_or(5_000, |files| files.parse().expect("FILES is a number"));
    for (place, times) in [false, true]
        .into_iter()
        .flat_map(|times| places(server()).into_iter().map(move |place| (place, times)))
    {
        let Place { name, meta, bytes, .. } = place;
        println!("{name}:");
        let session = meta
            .open_session(SessionKind::Writer, &outrigger_store::testing::owner("rates"), 3600)
            .unwrap()
            .0;
        let mut changes = states(files, times);
        let pairs = changes.len() / 2;
        meta.reserve_inodes(pairs as u64 + 1).unwrap();
        let commit = |changes: &[Change]| {
            let commit = Commit { packs: Vec::new(), changes: changes.to_vec(), time: 1 };
            let clock = start();
            meta.commit(session, &commit).unwrap();
            clock
        };
        println!("{pairs} inodes, each with a name, in one commit; other times: {times}");
        commit(&changes).report("new", pairs);
        meta.tidy().unwrap();
        let bytes = bytes();
        println!("{:44} {:9.1} bytes", "an inode and its name, all tables", bytes as f64 / pairs as f64);
        commit(&changes).report("the same again", pairs);
        for change in &mut changes {
            if let Change::Node { attributes, .. } = change {
                attributes.mtime.secs += 1;
            }
        }
        commit(&changes).report("other attributes", pairs);
        // Everything moves to the root directory.
        let moved: Vec<Change> = changes
            .iter()
            .filter_map(|change| match change {
                Change::Name { parent, name, inode } if *parent != ROOT_INODE => {
                    let gone = Change::Name { parent: *parent, name: name.clone(), inode: None };
                    let name = [&name[..], b"-", parent.to_string().as_bytes()].concat();
                    Some([gone, Change::Name { parent: ROOT_INODE, name, inode: *inode }])
                }
                _ => None,
            })
            .flatten()
            .collect();
        commit(&moved).report("moves", moved.len() / 2);
        assert_eq!(meta.check().unwrap(), [""; 0]);
    }
}

#[test]
fn every_operation_on_a_large_tree() {
    for place in places(server()) {
        every_operation(&place);
    }
}

fn every_operation(place: &Place) {
    let Place { name, meta, bytes, .. } = place;
    let meta = &**meta;
    println!("{name}:");
    let files: u64 = std::env::var("FILES").map_or(5_000, |files| files.parse().expect("FILES is a number"));
    let session =
        meta.open_session(SessionKind::Writer, &outrigger_store::testing::owner("rates"), 3600).unwrap().0;
    let changes = tree(files, 0);
    let total = changes.len();
    meta.reserve_inodes(total as u64 + 1).unwrap();
    let mut directories = vec![ROOT_INODE];
    directories.extend(changes.iter().filter_map(|change| match change {
        Change::Put { inode, attributes, .. } if attributes.kind == FileKind::Directory => Some(*inode),
        _ => None,
    }));
    println!("{files} files, {} directories", directories.len());
    let commit_all = |changes: &[Change], batch: usize| {
        for changes in changes.chunks(batch) {
            let commit =
                Commit { packs: Vec::new(), changes: changes.to_vec(), time: 1_700_000_000_000_000_000 };
            meta.commit(session, &commit).unwrap();
        }
    };

    let half = total / 2;
    let clock = start();
    commit_all(&changes[..half], 1000);
    clock.report("create, 1000 a commit", half);
    let clock = start();
    commit_all(&changes[half..], 20_000);
    clock.report("create, 20,000 a commit", total - half);
    let clock = start();
    meta.tidy().unwrap();
    clock.report("tidy", 1);
    let bytes = bytes();
    println!("{:44} {:9.1} bytes", "a file or directory, all tables", bytes as f64 / total as f64);
    println!("{:44} {:9.1} bytes", "a file, all tables", bytes as f64 / files as f64);

    for threads in [1, 2] {
        let clock = start();
        let read: usize = std::thread::scope(|scope| {
            let part = directories.len().div_ceil(threads);
            let parts = directories.chunks(part).map(|part| scope.spawn(|| read_all(meta, At::Now, part)));
            parts.collect::<Vec<_>>().into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert_eq!(read, total);
        clock.report(&format!("read_dir, entries, {threads} thread(s)"), read);
    }
    let clock = start();
    for change in changes.iter().step_by(10) {
        let Change::Put { parent, name, inode, .. } = change else { unreachable!() };
        assert_eq!(meta.lookup(At::Now, *parent, name).unwrap().unwrap().number, *inode);
    }
    clock.report("lookup", total.div_ceil(10));
    let clock = start();
    commit_all(&changes, 20_000);
    clock.report("put, nothing changed", total);
    let clock = start();
    for change in changes.iter().take(2000) {
        let commit = Commit { packs: Vec::new(), changes: vec![change.clone()], time: 1 };
        meta.commit(session, &commit).unwrap();
    }
    clock.report("commits of one unchanged entry", 2000);
    let clock = start();
    let mut roots = 0;
    meta.visit_roots(&mut |_| {
        roots += 1;
        Ok(())
    })
    .unwrap();
    clock.report("visit_roots", roots);

    let epoch = meta.create_snapshot("s", 1, &[]).unwrap().epoch;
    let changed = tree(files, 1);
    let some = &changed[..total / 4];
    let clock = start();
    commit_all(some, 20_000);
    clock.report("put, content changed, with history", some.len());
    let clock = start();
    assert_eq!(read_all(meta, At::Epoch(epoch), &directories), total);
    clock.report("read_dir at a snapshot", total);
    meta.delete_snapshot("s").unwrap();
    let clock = start();
    let purged = meta.purge_history().unwrap();
    clock.report("purge_history", purged as usize);
    let clock = start();
    assert_eq!(meta.check().unwrap(), [""; 0]);
    clock.report("check", total);
    let tops = meta.read_dir(At::Now, ROOT_INODE, None, usize::MAX).unwrap();
    let removals: Vec<Change> = tops
        .into_iter()
        .map(|entry| Change::Remove { parent: ROOT_INODE, name: entry.name, recursive: true })
        .collect();
    let clock = start();
    commit_all(&removals, 100);
    clock.report("remove recursively", total);
    assert_eq!(meta.totals().unwrap().files, 0);
    assert_eq!(meta.check().unwrap(), [""; 0]);
}

/// Each file is a commit of its own, as by a mount that guarantees exclusive creation: from one
/// thread, from several of one process, and from several processes; in a directory each, and all in
/// one.
#[test]
fn exclusive_creations() {
    let files: u64 = std::env::var("FILES").map_or(200, |files| files.parse().expect("FILES is a number"));
    for place in places(server()) {
        println!("{}:", place.name);
        place.meta.raise_counters(1, 1 << 40, 1).unwrap();
        let mut next = 1u64 << 20;
        for (threads, processes, shared) in
            [(1, 1, false), (4, 1, false), (4, 1, true), (1, 4, false), (4, 4, true)]
        {
            let handles: Vec<Box<dyn Meta>> = (0..processes).map(|_| (place.another)()).collect();
            let each = files / (threads * processes);
            let directory = |number: u64| Change::Put {
                parent: ROOT_INODE,
                name: format!("d{number}").into_bytes(),
                inode: number,
                attributes: attributes(FileKind::Directory, number),
                root: Root::Empty,
                stamp: 0,
                replace: false,
            };
            let first = next;
            next += 100;
            let session = place
                .meta
                .open_session(SessionKind::Writer, &outrigger_store::testing::owner("rates"), 3600)
                .unwrap()
                .0;
            let changes = (0..threads * processes).map(|worker| directory(first + worker)).collect();
            place.meta.commit(session, &Commit { packs: Vec::new(), changes, time: 1 }).unwrap();
            let clock = start();
            std::thread::scope(|scope| {
                for (process, meta) in handles.iter().enumerate() {
                    let session = meta
                        .open_session(SessionKind::Writer, &outrigger_store::testing::owner("rates"), 3600)
                        .unwrap()
                        .0;
                    for thread in 0..threads {
                        let worker = process as u64 * threads + thread;
                        let base = next + worker * each;
                        let parent = first + if shared { 0 } else { worker };
                        scope.spawn(move || {
                            for inode in base..base + each {
                                let create = Change::Put {
                                    parent,
                                    name: format!("f{inode}").into_bytes(),
                                    inode,
                                    attributes: attributes(FileKind::File, inode),
                                    root: root(inode, 0),
                                    stamp: 0,
                                    replace: false,
                                };
                                let commit = Commit { packs: Vec::new(), changes: vec![create], time: 1 };
                                assert_eq!(meta.commit(session, &commit).unwrap().created, 1);
                            }
                        });
                    }
                }
            });
            next += threads * processes * each;
            let place = if shared { "in one directory" } else { "in a directory each" };
            let what = format!("create one by one, {processes} process(es) of {threads}, {place}");
            clock.report(&what, (each * threads * processes) as usize);
        }
        assert_eq!(place.meta.check().unwrap(), [""; 0]);
    }
}
