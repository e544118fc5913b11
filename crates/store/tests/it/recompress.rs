//! Recompressing old data: it gets where it should, loses nothing, goes on where it was
//! interrupted, and runs beside writers and collectors.
#![cfg(feature = "testing")]

use crate::gc_support;

use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use gc_support::*;
use outrigger_format::{CodecChoice, Reason};
use outrigger_store::gc::{GcOptions, GcProgress, Recompress, RecompressReport, recompress};
use outrigger_store::local::put::{PutOptions, Source, put};
use outrigger_store::meta::{At, ROOT_INODE, SessionKind};
use outrigger_store::ops::stats::stats;
use outrigger_store::tree::require;
use outrigger_store::write::{Progress, set_policy};
use outrigger_store::{ErrorKind, Store, ops};

/// Compressible content that says what it should be: [`content`] with a quarter of each byte's
/// values.
fn soft(seed: u64, blocks: u32) -> Vec<u8> {
    content(seed, blocks).into_iter().map(|byte| byte & 0x3f).collect()
}

fn to(codec: &str) -> Recompress {
    Recompress { to: Some(CodecChoice::parse(codec).unwrap()), ..Recompress::default() }
}

fn run(store: &Store, how: &Recompress) -> RecompressReport {
    recompress(store, how, &GcOptions { threads: 2, ..GcOptions::default() }, &GcProgress::default()).unwrap()
}

/// Codec, level and filter of all data frames that are in use.
fn encodings(store: &Store) -> Vec<String> {
    let mut found: Vec<String> = stats(store, usize::MAX)
        .unwrap()
        .frames
        .into_keys()
        .filter(|key| key.kind == "data")
        .map(|key| key.encoding)
        .collect();
    found.dedup();
    found
}

fn filled(dir: &std::path::Path, files: u64) -> Store {
    let store = init(dir);
    for seed in 0..files {
        put_bytes(&store, &format!("d/{seed}"), soft(seed, 20)).unwrap();
    }
    store
}

fn all_there(store: &Store, files: u64) {
    for seed in 0..files {
        assert!(read(store, &format!("d/{seed}")) == soft(seed, 20), "{seed}");
    }
}

#[test]
fn old_data_gets_to_the_codec_that_is_named_and_stays_there() {
    let dir = scratch();
    let store = filled(dir.path(), 12);
    let snapshot = ops::snapshots::create(&store, Some("before"), "", &[]).unwrap();
    assert_eq!(encodings(&store), ["zstd:1"]);
    let report = run(&store, &to("gzip:9"));
    assert!(report.frames > 5 && report.packs > 0 && report.packs_left == 0, "{report:?}");
    assert!(report.raw_bytes > report.stored_after, "{report:?}");
    assert_eq!(encodings(&store), ["gzip:9"]);
    all_there(&store, 12);
    let again = run(&store, &to("gzip:9"));
    assert_eq!((again.frames, again.packs, again.runs), (0, 0, 1), "{again:?}");
    // A store that is opened again, and a snapshot from before, show the same.
    let store = open(dir.path());
    all_there(&store, 12);
    assert_eq!(read_at(&store, At::Epoch(snapshot.epoch), "d/3").unwrap().unwrap(), soft(3, 20));
    run(&store, &to("auto"));
    assert_eq!(encodings(&store), ["zstd:2"]);
    all_there(&store, 12);
}

#[test]
fn without_a_codec_each_directory_gets_what_it_asks_for() {
    let dir = scratch();
    let store = init(dir.path());
    for (n, name) in ["a/x", "a/deep/x", "b/x", "x"].into_iter().enumerate() {
        put_bytes(&store, name, unique(n as u64, 400_000).into_iter().map(|byte| byte & 0x1f).collect())
            .unwrap();
    }
    let session = store.session(SessionKind::Writer, "test").unwrap();
    for (name, codec) in [("", "gzip:1"), ("a", "lz4"), ("a/deep", "zstd:9")] {
        let inode = require(&*store.meta, At::Now, &path(name)).unwrap().number;
        set_policy(&store, &session, inode, "codec", Some(codec)).unwrap();
    }
    drop(session);
    let report = run(&store, &Recompress::default());
    assert!(report.frames >= 4, "{report:?}");
    // LZ4 has no entropy stage: these bytes do not fit its budget, which is remembered.
    assert_eq!(encodings(&store), ["gzip:1", "none", "zstd:9"]);
    let refused = stats(&store, usize::MAX)
        .unwrap()
        .frames
        .into_keys()
        .find(|key| key.kind == "data" && key.codec == "none")
        .unwrap();
    assert!(matches!(refused.reason, Reason::Budget | Reason::Known), "{refused:?}");
    assert_eq!(run(&store, &Recompress::default()).frames, 0);
    for (n, name) in ["a/x", "a/deep/x", "b/x", "x"].into_iter().enumerate() {
        let expected: Vec<u8> = unique(n as u64, 400_000).into_iter().map(|byte| byte & 0x1f).collect();
        assert!(read(&store, name) == expected, "{name}");
    }
}

#[test]
fn a_dry_run_changes_nothing_and_a_throttle_is_kept() {
    let dir = scratch();
    let store = filled(dir.path(), 3);
    let before = committed(&store);
    let options = GcOptions { dry_run: true, ..GcOptions::default() };
    let report = recompress(&store, &to("lz4"), &options, &GcProgress::default()).unwrap();
    assert!(report.packs_left > 0 && report.frames == 0, "{report:?}");
    assert_eq!(committed(&store), before);
    let began = std::time::Instant::now();
    let how = Recompress { bytes_per_sec: 4_000_000, ..to("zstd:3") };
    let report = run(&store, &how);
    // It may be slower, never faster.
    assert!(began.elapsed().as_secs_f64() >= report.raw_bytes as f64 / 4e6 - 0.01, "{report:?}");
    all_there(&store, 3);
}

#[test]
fn beside_writers_and_collectors_nothing_is_lost() {
    let dir = scratch();
    let store = filled(dir.path(), 8);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (stop, at) = (&stop, dir.path());
        let writer = scope.spawn(move || {
            let store = open(at);
            let mut n = 0;
            while !stop.load(Ordering::Relaxed) {
                // Half of the content is there already, in packs that may be candidates at this
                // moment.
                put_bytes(&store, &format!("w/{}", n % 7), soft(n % 16, 20)).unwrap();
                if n % 5 == 4 {
                    remove(&store, &format!("w/{}", n % 7)).unwrap();
                }
                n += 1;
            }
            n
        });
        let collector = scope.spawn(move || {
            let store = open(at);
            while !stop.load(Ordering::Relaxed) {
                match collect(&store, &thorough()) {
                    Ok(_) => {}
                    Err(error) => assert_eq!(error.kind(), ErrorKind::Busy, "{error}"),
                }
            }
        });
        for codec in ["gzip:1", "lz4", "zstd:5", "auto", "zstd:1", "auto:ratio"] {
            let options = GcOptions { threads: 2, ..GcOptions::default() };
            match recompress(&store, &to(codec), &options, &GcProgress::default()) {
                Ok(_) => {}
                Err(error) => assert_eq!(error.kind(), ErrorKind::Busy, "{error}"),
            }
            all_there(&store, 8);
        }
        stop.store(true, Ordering::Relaxed);
        assert!(writer.join().unwrap() > 0);
        collector.join().unwrap();
    });
    let store = open(dir.path());
    all_there(&store, 8);
    run(&store, &to("zstd:3"));
    assert!(encodings(&store).iter().all(|one| one == "zstd:3" || one == "none"), "{:?}", encodings(&store));
    all_there(&store, 8);
}

/// The child of the next test: recompresses to and fro until it is killed.
#[test]
fn child() {
    let Some(dir) = std::env::var_os("RECOMPRESS_CHILD_DIR") else { return };
    let store = open(std::path::Path::new(&dir));
    for codec in ["gzip:6", "zstd:5", "lzjb", "auto"].into_iter().cycle() {
        run(&store, &Recompress { packs_max: 2, ..to(codec) });
    }
}

#[test]
fn killed_at_any_moment_it_leaves_a_whole_store_and_goes_on() {
    let dir = scratch();
    drop(filled(dir.path(), 8));
    let rounds: u64 = std::env::var("OUTRIGGER_KILL_ROUNDS").ok().and_then(|n| n.parse().ok()).unwrap_or(6);
    for round in 0..rounds {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["recompress::child", "--exact", "--nocapture"])
            .env("RECOMPRESS_CHILD_DIR", dir.path())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_millis(60 + 97 * (round % 11)));
        child.kill().unwrap();
        child.wait().unwrap();
        let store = open(dir.path());
        all_there(&store, 8);
    }
    let store = open(dir.path());
    let report = run(&store, &to("zstd:7"));
    assert_eq!(report.packs_left, 0, "{report:?}");
    assert_eq!(encodings(&store), ["zstd:7"]);
    all_there(&store, 8);
    let gone = collect(&store, &thorough()).unwrap();
    assert_eq!(gone.unreadable, Vec::<String>::new());
    all_there(&store, 8);
}

#[test]
fn a_file_keeps_what_it_hints_unless_a_codec_is_named() {
    let dir = scratch();
    let store = filled(dir.path(), 3);
    let source = dir.path().join("source");
    // In nothing like the others: a frame that several files share goes by the first of them.
    let hinted: Vec<u8> = unique(77, 400_000).into_iter().map(|byte| byte & 0x1f).collect();
    std::fs::write(&source, &hinted).unwrap();
    let flags = rustix::fs::XattrFlags::empty();
    if let Err(errno) = rustix::fs::setxattr(&source, "user.outrigger.codec", b"gzip:9", flags) {
        println!("not tested: this file system has no extended attributes of users ({errno})");
        return;
    }
    let hinting = (Source::Path(source), path("hinting"));
    put(&store, vec![hinting], &PutOptions::default(), 2, &Arc::new(Progress::default())).unwrap();
    assert_eq!(encodings(&store), ["gzip:9", "zstd:1"]);
    let untouched = run(&store, &Recompress::default());
    assert_eq!((untouched.frames, untouched.packs), (0, 0), "{untouched:?}");
    let session = store.session(SessionKind::Writer, "test").unwrap();
    set_policy(&store, &session, ROOT_INODE, "codec", Some("zstd:5")).unwrap();
    drop(session);
    run(&store, &Recompress::default());
    assert_eq!(encodings(&store), ["gzip:9", "zstd:5"]);
    run(&store, &to("zstd:2"));
    assert_eq!(encodings(&store), ["zstd:2"]);
    assert!(read(&store, "hinting") == hinted);
    all_there(&store, 3);
}
