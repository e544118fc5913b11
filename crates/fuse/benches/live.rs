//! The cost of the writable volume itself, without a kernel: nanoseconds an operation, beside a
//! bare `pwrite` to the same disk.
//!
//! `cargo bench -p outrigger-fuse --bench live`; under `cargo test` a tiny size that checks what it
//! reads back.
#![allow(clippy::disallowed_methods, reason = "tests wait and measure in real time")]

use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Instant;

use outrigger_format::catalogue::FileKind;
use outrigger_fuse::fs::{Caller, FileSystem, NewNode, OpenFlags, ROOT};
use outrigger_fuse::live::{LiveOptions, LiveVolume};
use outrigger_fuse::report::Reports;
use outrigger_store::{Profile, Store};
use outrigger_workload::Rng;

const USER: Caller = Caller { uid: 0, gid: 0, pid: 1 };

fn timed(what: &str, count: u64, mut work: impl FnMut(u64)) {
    let begun = Instant::now();
    (0..count).for_each(&mut work);
    println!("{what:36} {:8.2} us", begun.elapsed().as_secs_f64() * 1e6 / count as f64);
}

fn main() {
    let small = !std::env::args().any(|arg| arg == "--bench");
    let scale = if small { 1 } else { 100 };
    let dir = tempfile::tempdir().unwrap();
    Store::init(&dir.path().join("store"), &Profile::Default.config().unwrap()).unwrap();
    let store = Arc::new(Store::open(&dir.path().join("store"), false).unwrap());
    let volume = LiveVolume::open(store, LiveOptions::new(2), Reports::new(|text| panic!("{text}"))).unwrap();
    let new = NewNode { kind: FileKind::File, mode: 0o644, umask: 0, rdev: 0 };
    let (entry, opened) = volume.create(USER, ROOT, b"file", new, OpenFlags::RDWR).unwrap();
    let (number, handle) = (entry.attr.number, opened.handle);

    let plain = std::fs::File::create(dir.path().join("plain")).unwrap();
    let (mut rng, mut block) = (Rng::new(1), vec![0; 4096]);
    rng.fill(&mut block);
    let pages = 320 * scale;
    timed("pwrite 4K, a plain file in order", pages, |at| plain.write_all_at(&block, at * 4096).unwrap());
    timed("write 4K in order", pages, |at| {
        volume.write(USER, number, handle, at * 4096, &block, false).unwrap();
    });
    volume.destage_all().unwrap();
    timed("write 4K at random over stored bytes", pages, |_| {
        let at = rng.below(pages) * 4096;
        volume.write(USER, number, handle, at, &block, false).unwrap();
    });
    let mut read = Vec::new();
    timed("read 4K at random, staged", pages, |_| {
        read.clear();
        volume.read(number, handle, rng.below(pages) * 4096, 4096, &mut read).unwrap();
        assert_eq!(read, block);
    });
    volume.destage_all().unwrap();
    timed("read 4K at random, stored", pages, |_| {
        read.clear();
        volume.read(number, handle, rng.below(pages) * 4096, 4096, &mut read).unwrap();
        assert_eq!(read, block);
    });
    let files = 100 * scale;
    timed("create, write 4K, close", files, |at| {
        let name = format!("name-{at}");
        let (entry, opened) = volume.create(USER, ROOT, name.as_bytes(), new, OpenFlags::RDWR).unwrap();
        volume.write(USER, entry.attr.number, opened.handle, 0, &block, false).unwrap();
        volume.flush(USER, entry.attr.number, opened.handle).unwrap();
        volume.release(entry.attr.number, opened.handle);
    });
    timed("lookup", files, |at| {
        volume.lookup(USER, ROOT, format!("name-{at}").as_bytes()).unwrap();
    });
    timed("unlink", files, |at| {
        volume.unlink(USER, ROOT, format!("name-{at}").as_bytes()).unwrap();
    });
    volume.release(number, handle);
    volume.close().unwrap();
}
