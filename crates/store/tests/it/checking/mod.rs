//! A small store with everything in it, and all that can be read of it as one value: what the
//! damage tests compare.

#![allow(dead_code, reason = "each test binary uses its own part of this")]

use std::collections::BTreeMap;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use outrigger_format::catalogue::FileKind;
use outrigger_format::{
    ChunkKind, ChunkerSpec, Encoding, Fingerprint, FooterBuilder, FrameHeader, PackHeader, PackId, PackKind,
    Root, checksum,
};
use outrigger_store::check::{CheckOptions, CheckProgress, CheckReport, check};
use outrigger_store::local::put::{PutOptions, Source, put};
use outrigger_store::meta::{At, PackRow, PackState, ROOT_INODE, SessionId, SessionKind};
use outrigger_store::read::Reader;
use outrigger_store::text::show;
use outrigger_store::tree::{StorePath, require};
use outrigger_store::write::{Progress, set_policy};
use outrigger_store::{Profile, Store, ops};
use outrigger_workload::Rng;
use tempfile::TempDir;

/// All that a store says: (where, what) → attributes and content; content is `None` when it cannot
/// be read.
pub type Contents = BTreeMap<String, (String, Option<Vec<u8>>)>;

/// A new directory for one case.
pub fn scratch() -> TempDir {
    tempfile::Builder::new().prefix("outrigger-check-").tempdir().unwrap()
}

pub fn random(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    Rng::new(seed).fill(&mut bytes);
    bytes
}

/// Makes the store `dir/store` by putting, changing, naming and removing.
pub fn make_store(dir: &Path) -> PathBuf {
    let (source, path) = (dir.join("source"), dir.join("store"));
    let mut config = Profile::Default.config().unwrap();
    config.chunker = ChunkerSpec::parse("gear32:64/256/1K").unwrap();
    config.frame_size = 8 << 10;
    config.pack_size = 1 << 20;
    let store = Store::init(&path, &config).unwrap();
    std::fs::create_dir_all(source.join("deep/er")).unwrap();
    std::fs::create_dir_all(source.join("copies")).unwrap();
    std::fs::write(source.join("big"), random(1, 160_000)).unwrap();
    std::fs::write(source.join("text"), b"the same line again and again\n".repeat(2000)).unwrap();
    std::fs::write(source.join("small"), b"hello").unwrap();
    std::fs::write(source.join("empty"), b"").unwrap();
    std::fs::write(source.join("deep/er/file"), random(2, 30_000)).unwrap();
    std::fs::hard_link(source.join("deep/er/file"), source.join("deep/linked")).unwrap();
    std::fs::set_permissions(source.join("deep/er"), PermissionsExt::from_mode(0o750)).unwrap();
    symlink("../small", source.join("deep/link")).unwrap();
    std::fs::File::create(source.join("sparse")).unwrap().set_len(1 << 20).unwrap();
    put_all(&store, &source, "tree");

    let session = store.session(SessionKind::Writer, "test").unwrap();
    let deep = require(&*store.meta, At::Now, &StorePath::parse(b"tree/deep").unwrap()).unwrap();
    set_policy(&store, &session, deep.number, "versions", Some("3")).unwrap();
    let copies = require(&*store.meta, At::Now, &StorePath::parse(b"tree/copies").unwrap()).unwrap();
    set_policy(&store, &session, copies.number, "dedup", Some("off")).unwrap();
    set_policy(&store, &session, copies.number, "codec", Some("lz4")).unwrap();
    set_policy(&store, &session, copies.number, "codec", None).unwrap();
    drop(session);
    ops::snapshots::create(&store, Some("first"), "x", &["tagged".to_string()]).unwrap();

    std::fs::write(source.join("text"), b"the other line again and again\n".repeat(1500)).unwrap();
    std::fs::write(source.join("deep/er/file"), random(3, 20_000)).unwrap();
    std::fs::write(source.join("copies/twin"), random(1, 160_000)).unwrap();
    std::fs::remove_file(source.join("small")).unwrap();
    put_all(&store, &source, "tree");
    ops::snapshots::create(&store, Some("second"), "x", &[]).unwrap();
    std::fs::write(source.join("deep/er/file"), random(4, 10_000)).unwrap();
    put_all(&store, &source, "tree");
    store.index.flush().unwrap();
    path
}

pub fn put_all(store: &Store, source: &Path, target: &str) {
    let progress = Arc::new(Progress::default());
    let what = vec![(Source::Path(source.to_path_buf()), StorePath::parse(target.as_bytes()).unwrap())];
    let options = PutOptions { rescan: true, ..PutOptions::default() };
    put(store, what, &options, 2, &progress).unwrap();
    assert!(progress.skipped.lock().unwrap().is_empty(), "{:?}", progress.skipped);
}

pub fn open(path: &Path) -> Store {
    Store::open(path, false).unwrap()
}

pub fn run_check(store: &Store, repair: bool) -> CheckReport {
    let options = CheckOptions { read_data: true, repair, threads: 2 };
    check(store, &options, &CheckProgress::default()).unwrap()
}

pub fn read_all(store: &Store, root: &Root) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let read = Reader::new(store).read(root, 0, u64::MAX, &mut |run| {
        bytes.extend_from_slice(run);
        Ok(())
    });
    read.ok().map(|()| bytes)
}

/// Reads everything, in all trees and versions.
pub fn contents(store: &Store) -> Contents {
    let mut all = Contents::new();
    let mut trees = vec![("now".to_string(), At::Now)];
    for snapshot in store.meta.snapshots().unwrap() {
        let facts = format!("{} {:?}", snapshot.time, snapshot.tags);
        all.insert(format!("snapshot {}", snapshot.name), (facts, None));
        trees.push((snapshot.name, At::Epoch(snapshot.epoch)));
    }
    for (tree, at) in trees {
        let mut open = vec![(ROOT_INODE, String::new())];
        while let Some((directory, path)) = open.pop() {
            for entry in store.meta.read_dir(at, directory, None, usize::MAX).unwrap() {
                let path = format!("{path}/{}", show(&entry.name));
                let inode = entry.inode;
                let bytes = read_all(store, &inode.root);
                let facts = format!("{} {:?} {} links", inode.number, inode.attributes, inode.links);
                all.insert(format!("{tree}: {path}"), (facts, bytes));
                if inode.attributes.kind == FileKind::Directory {
                    open.push((inode.number, path));
                } else if at == At::Now {
                    for version in store.meta.versions(inode.number).unwrap() {
                        let facts = format!("{} {:?}", version.time, version.mtime);
                        let bytes = read_all(store, &version.root);
                        all.insert(format!("version {} of {path}", version.number), (facts, bytes));
                    }
                }
            }
        }
    }
    for (inode, policies) in store.meta.all_policies().unwrap() {
        all.insert(format!("policies of {inode}"), (format!("{policies:?}"), None));
    }
    all
}

/// Nothing but what could not be read may differ; returns what could not be read.
pub fn assert_same_or_unreadable(before: &Contents, after: &Contents, case: &str) -> Vec<String> {
    let names = |contents: &Contents| contents.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(before), names(after), "{case}");
    let mut unreadable = Vec::new();
    for (name, (facts, bytes)) in before {
        let (other_facts, other_bytes) = &after[name];
        assert_eq!(facts, other_facts, "{case}: {name}");
        match other_bytes {
            Some(other) => assert!(bytes.as_ref() == Some(other), "{case}: {name} has other bytes"),
            None if bytes.is_some() => unreadable.push(name.clone()),
            None => {}
        }
    }
    unreadable
}

pub fn copy_store(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy_store(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

pub fn flip(path: &Path, offset: usize, bit: u8) {
    let mut bytes = std::fs::read(path).unwrap();
    bytes[offset] ^= 1 << bit;
    std::fs::write(path, bytes).unwrap();
}

/// All pack files.
pub fn pack_files(store: &Path) -> Vec<PathBuf> {
    let mut packs = Vec::new();
    for dir in std::fs::read_dir(store.join("packs")).unwrap() {
        for file in std::fs::read_dir(dir.unwrap().path()).unwrap() {
            packs.push(file.unwrap().path());
        }
    }
    packs.sort();
    packs
}

pub fn said(report: &CheckReport) -> String {
    report.findings.iter().map(|finding| format!("{finding:?}\n")).collect()
}

/// Writes a meta pack of `chunks`, a frame each, and makes it live.
pub fn add_pack(store: &Store, id: u64, kind: ChunkKind, chunks: &[Vec<u8>]) {
    let config = &store.config;
    let header = PackHeader {
        kind: PackKind::Meta,
        fingerprint: config.fingerprint,
        id: PackId(id),
        store: config.id,
        mark: 0,
    };
    let mut bytes = header.encode().to_vec();
    let mut footer = FooterBuilder::default();
    for chunk in chunks {
        let offset = bytes.len() as u32;
        let header = FrameHeader {
            kind,
            encoding: Encoding::NONE,
            stored_len: chunk.len() as u32,
            stored_sum: checksum(&[chunk]),
            lengths: vec![chunk.len() as u32],
        };
        header.encode(&mut bytes);
        bytes.extend_from_slice(chunk);
        footer.push(offset, kind, &[fingerprint(store, chunk)]);
    }
    let offset = bytes.len() as u32;
    bytes.extend_from_slice(&footer.finish(PackId(id), offset).1);
    let directory = store.dir().join(format!("packs/{:02x}", id as u8));
    std::fs::create_dir_all(&directory).unwrap();
    std::fs::write(directory.join(format!("{id:016x}.pack")), &bytes).unwrap();
    let row = PackRow {
        id: PackId(id),
        kind: PackKind::Meta,
        state: PackState::Live,
        session: SessionId(0),
        bytes: bytes.len() as u64,
        raw_bytes: 0,
        chunks: chunks.len() as u32,
        dead_since: 0,
        mark: 0,
    };
    store.meta.adopt_packs(&[row]).unwrap();
    store.refresh_index().unwrap();
}

pub fn fingerprint(store: &Store, bytes: &[u8]) -> Fingerprint {
    outrigger_offload::hash(store.config.fingerprint, bytes)
}
