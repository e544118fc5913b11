//! A mount's overrides of the policies hold for everything that is written through it: new files,
//! and those that are rewritten in place.

use crate::support;

use std::sync::Arc;
use std::time::Duration;

use outrigger_format::catalogue::FileKind;
use outrigger_format::{ChunkerSpec, Entry};
use outrigger_fuse::fs::{FileSystem, NewNode, ROOT};
use outrigger_fuse::live::{LiveOptions, LiveVolume};
use outrigger_fuse::report::Reports;
use outrigger_store::check::{CheckOptions, CheckProgress, check};
use outrigger_store::meta::At;
use outrigger_store::ops::stats::stats;
use outrigger_store::policy::Overrides;
use outrigger_store::read::Reader;
use outrigger_workload::Rng;
use rustix::fs::OFlags;
use support::{Place, ROOT_USER};

/// More than makes a file one that is rewritten in place.
const REWRITES: usize = 80;
const STEP: usize = 32 << 10;
const PIECE: usize = 4 << 10;

struct Mounted {
    place: Place,
    volume: LiveVolume,
}

impl Mounted {
    fn new(overrides: Overrides) -> Self {
        let place = Place::new();
        // Nothing is destaged before the test says so.
        let options = LiveOptions { idle: Duration::from_secs(3600), overrides, ..LiveOptions::new(2) };
        let reports = Reports::new(|text| panic!("{text}"));
        let volume = LiveVolume::open(Arc::new(place.open()), options, reports).unwrap();
        Self { place, volume }
    }

    fn make(&self, name: &str) -> u64 {
        let node = NewNode { kind: FileKind::File, mode: 0o644, umask: 0, rdev: 0 };
        self.volume.make(ROOT_USER, ROOT, name.as_bytes(), node).unwrap().attr.number
    }

    /// Writes pieces of `bytes` where they belong in the file.
    fn write(&self, number: u64, bytes: &[u8], pieces: impl Iterator<Item = (usize, usize)>) {
        let handle = self.volume.open(ROOT_USER, number, OFlags::RDWR).unwrap().handle;
        for (from, to) in pieces {
            let data = &bytes[from..to];
            self.volume.write(ROOT_USER, number, handle, from as u64, data, false).unwrap();
        }
        self.volume.release(number, handle);
    }

    fn file(&self, name: &str, bytes: &[u8]) -> u64 {
        let number = self.make(name);
        self.write(
            number,
            bytes,
            (0..bytes.len()).step_by(64 << 10).map(|at| (at, bytes.len().min(at + (64 << 10)))),
        );
        number
    }

    /// Raw bytes of all chunks that packs hold, after everything was destaged.
    fn stored(&self) -> u64 {
        self.volume.destage_all().unwrap();
        stats(&self.place.open(), usize::MAX).unwrap().committed(Some("data")).raw_bytes
    }

    /// Writes the same bytes over a file in many places; says how many were stored.
    fn rewrite(&self, number: u64, bytes: &[u8]) -> u64 {
        let before = self.stored();
        self.write(number, bytes, (0..REWRITES).map(|at| (at * STEP, at * STEP + PIECE)));
        self.stored() - before
    }

    fn lengths(&self, name: &str) -> Vec<u64> {
        let store = self.place.open();
        let inode = store.meta.lookup(At::Now, ROOT, name.as_bytes()).unwrap().unwrap();
        let mut lengths = Vec::new();
        let mut visit = |_, entry: Entry| {
            lengths.push(entry.len());
            Ok(true)
        };
        Reader::new(&store).entries(&inode.root, 0, u64::MAX, &mut visit).unwrap();
        lengths
    }

    fn close(self) {
        self.volume.close().unwrap();
        let options = CheckOptions { read_data: true, repair: false, threads: 2 };
        let report = check(&self.place.open(), &options, &CheckProgress::default()).unwrap();
        assert_eq!(report.damaged, 0, "{:?}", report.findings);
    }
}

fn noise(len: usize) -> Vec<u8> {
    Rng::new(5).bytes(len)
}

#[test]
fn without_deduplication_equal_files_are_stored_twice() {
    let bytes = noise(300_000);
    for (dedup, after_two, after_three) in [(None, 300_000, 300_000), (Some(false), 600_000, 900_000)] {
        let mounted = Mounted::new(Overrides { dedup, chunker: None });
        mounted.file("one", &bytes);
        // In flight together with the first, and after it was stored.
        mounted.file("two", &bytes);
        assert_eq!(mounted.stored(), after_two, "{dedup:?}");
        mounted.file("three", &bytes);
        assert_eq!(mounted.stored(), after_three, "{dedup:?}");
        mounted.close();
    }
}

#[test]
fn without_deduplication_every_rewrite_in_place_is_stored() {
    let bytes = noise(REWRITES * STEP);
    for dedup in [None, Some(false)] {
        let mounted = Mounted::new(Overrides { dedup, chunker: None });
        let number = mounted.file("image", &bytes);
        assert_eq!(mounted.stored(), bytes.len() as u64);
        // The first batch shows how the file is used, the second cuts it into blocks, the third
        // finds these.
        mounted.rewrite(number, &bytes);
        mounted.rewrite(number, &bytes);
        let third = mounted.rewrite(number, &bytes);
        let written = (REWRITES * PIECE) as u64;
        if dedup.is_none() {
            assert_eq!(third, 0);
        } else {
            assert!(third >= written, "{third} of {written}");
        }
        mounted.close();
    }
}

#[test]
fn a_mount_cuts_as_it_was_told() {
    let bytes = noise(REWRITES * STEP + 100);
    let chunker = Some(ChunkerSpec::Fixed { size: 8 << 10 });
    let mounted = Mounted::new(Overrides { chunker, dedup: None });
    let number = mounted.file("image", &bytes);
    mounted.stored();
    let all = |lengths: Vec<u64>| {
        lengths.split_last().map(|(last, rest)| (*last, rest.iter().all(|&len| len == 8 << 10)))
    };
    assert_eq!(all(mounted.lengths("image")), Some((100, true)));
    for _ in 0..2 {
        mounted.rewrite(number, &bytes);
    }
    assert_eq!(all(mounted.lengths("image")), Some((100, true)), "in place, too");
    mounted.close();
}

#[test]
fn a_mount_cuts_by_windows() {
    let bytes = noise(1_500_000);
    for chunker in ["rabin:2K/8K/64K", "lbfs-md5:2K/8K/64K", "lbfs-sha1:2K/8K/64K"] {
        let mounted =
            Mounted::new(Overrides { chunker: Some(ChunkerSpec::parse(chunker).unwrap()), dedup: None });
        let number = mounted.file("one", &bytes);
        let before = mounted.stored();
        let lengths = mounted.lengths("one");
        let (_, all_but_last) = lengths.split_last().expect("chunks");
        assert!(
            lengths.len() > 50 && all_but_last.iter().all(|len| (2049..=65_536).contains(len)),
            "{chunker}"
        );
        // Content, not position, decides: with another byte in front, nearly all of it is known.
        let mut moved = vec![7];
        moved.extend_from_slice(&bytes);
        mounted.file("two", &moved);
        let added = mounted.stored() - before;
        assert!((1..150_000).contains(&added), "{chunker}: {added} bytes for one");
        // Overwritten bytes are cut again, from one chunk's beginning to another's end.
        let mut changed = bytes.clone();
        changed[700_000..710_000].fill(9);
        mounted.write(number, &changed, std::iter::once((700_000, 710_000)));
        let rewritten = mounted.stored() - before - added;
        assert!((1..300_000).contains(&rewritten), "{chunker}: {rewritten} bytes for 10,000");
        let store = mounted.place.open();
        let inode = store.meta.lookup(At::Now, ROOT, b"one").unwrap().unwrap();
        let mut read = Vec::new();
        let mut sink = |part: &[u8]| {
            read.extend_from_slice(part);
            Ok(())
        };
        Reader::new(&store).read(&inode.root, 0, u64::MAX, &mut sink).unwrap();
        assert!(read == changed, "{chunker}");
        mounted.close();
    }
}
