//! Inline chunks of small contents: read at any time, packed once, never lost. For both engines.
#![cfg(feature = "testing")]

use crate::gc_support;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use gc_support::faulty_meta::FaultyMeta;
use gc_support::{collect, committed, put_bytes, read, remove, scratch, small_packs, thorough, unique};
use outrigger_format::catalogue::{Attributes, FileKind, Time};
use outrigger_format::{ChunkerSpec, CodecChoice, Entry, PackKind, Root};
use outrigger_store::check::{CheckOptions, CheckProgress, CheckReport, check};
use outrigger_store::copy::{CopyOptions, CopyProgress, copy};
use outrigger_store::inline::{self, NEW_BYTES_MAX};
use outrigger_store::meta::{At, Change, ROOT_INODE, SessionId, SessionKind};
use outrigger_store::read::Reader;
use outrigger_store::session::Session;
use outrigger_store::write::{
    CommitWhen, Composed, Content, FileItem, Item, Oracle, Part, PartSource, Parts, Progress, Target,
    WriteOptions, Writer, compose,
};
use outrigger_store::{ErrorKind, Result, Store, StoreConfig};
use outrigger_workload::Rng;
use outrigger_workload::postgres::Server;

/// A store of one engine.
struct Place {
    dir: tempfile::TempDir,
    postgres: Option<(&'static Server, String)>,
}

/// A place for each available engine; a lack of PostgreSQL is reported.
fn places() -> Vec<Place> {
    let mut places = vec![Place { dir: scratch(), postgres: None }];
    if let Some(server) = Server::shared() {
        places.push(Place { dir: scratch(), postgres: Some((server, server.fresh())) });
    }
    for place in &places {
        let packs = format!("file:{}", place.dir.path().join("packs").display());
        let packs = outrigger_store::backend::Location::parse(&packs).unwrap();
        let packs = place.postgres.is_some().then_some(packs);
        drop(Store::init(&place.url(), &StoreConfig { packs, ..small_packs() }).unwrap());
    }
    places
}

impl Place {
    fn url(&self) -> PathBuf {
        match &self.postgres {
            Some((server, schema)) => server.url(schema).into(),
            None => self.dir.path().join("store"),
        }
    }

    fn open(&self) -> Store {
        Store::open(&self.url(), false).unwrap()
    }

    /// Changes the database behind the engine's back.
    fn harm(&self, sql: &str) {
        match &self.postgres {
            Some((server, schema)) => drop(server.sql(&sql.replace('@', &format!("{schema}.")))),
            None => {
                let path = self.url().join("meta.db");
                outrigger_store::testing::database(&path)
                    .unwrap()
                    .execute_batch(&sql.replace('@', ""))
                    .unwrap();
            }
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.postgres.is_some()
            && !std::thread::panicking()
            && let Ok(store) = Store::open(&self.url(), true)
        {
            let _ = std::fs::remove_dir_all(store.dir());
        }
    }
}

fn attributes() -> Attributes {
    Attributes {
        kind: FileKind::File,
        mode: 0o644,
        uid: 0,
        gid: 0,
        mtime: Time { secs: 1, nanos: 2 },
        rdev: 0,
        target: Vec::new(),
        xattrs: Vec::new(),
        times: None,
    }
}

struct Memory(Vec<u8>);

impl PartSource for Memory {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        buf.copy_from_slice(&self.0[offset as usize..][..buf.len()]);
        Ok(())
    }
}

fn item(bytes: Vec<u8>, parts: Vec<Part>, chunker: ChunkerSpec) -> FileItem {
    let to = Target::Put { parent: ROOT_INODE, name: b"piped".to_vec(), inode: 1 << 20, replace: false };
    FileItem {
        to,
        attributes: attributes(),
        content: Content::Parts(Parts { parts, source: Arc::new(Memory(bytes)) }),
        chunker,
        codec: CodecChoice::parse("zstd:1").unwrap().into(),
        dedup: true,
        frame: None,
        oracle: Oracle::Off,
    }
}

fn composed(store: &Store, bytes: &[u8]) -> Composed {
    let parts = vec![Part::Data { offset: 0, len: bytes.len() as u64 }];
    let item = item(bytes.to_vec(), parts, store.config.chunker);
    compose(&Reader::new(store), &item, NEW_BYTES_MAX).unwrap().expect("it is small")
}

/// Closes small files like a mount, in one transaction; returns the bytes of new rows.
fn close(store: &Store, session: &Session, owner: SessionId, files: &[(String, Vec<u8>)]) -> Result<u64> {
    let inodes = store.meta.reserve_inodes(files.len() as u64)?;
    let (mut changes, mut chunks) = (Vec::new(), Vec::new());
    for (inode, (name, bytes)) in inodes.zip(files) {
        let Composed { root, chunks: new } = composed(store, bytes);
        let name = name.clone().into_bytes();
        let attributes = attributes();
        changes.push(Change::Put {
            parent: ROOT_INODE,
            name,
            inode,
            attributes,
            root,
            stamp: 0,
            replace: false,
        });
        chunks.extend(new);
    }
    inline::commit(store, session, owner, changes, chunks)
}

/// Some are so long that they have manifest nodes.
fn small(seeds: std::ops::Range<u64>) -> Vec<(String, Vec<u8>)> {
    let len = |seed: usize| 200 + seed * 977 % 20_000 + if seed % 5 == 3 { 90_000 } else { 0 };
    seeds.map(|seed| (format!("f{seed}"), unique(seed, len(seed as usize)))).collect()
}

fn is_all_there(store: &Store, files: &[(String, Vec<u8>)]) {
    files.iter().for_each(|(name, bytes)| assert!(read(store, name) == *bytes, "{name}"));
}

fn checked(store: &Store) -> CheckReport {
    let options = CheckOptions { read_data: true, repair: false, threads: 2 };
    check(store, &options, &CheckProgress::default()).unwrap()
}

fn rows(store: &Store) -> u64 {
    store.meta.inline().inline_owners().unwrap().iter().map(|owner| owner.chunks).sum()
}

fn writer(store: &Store) -> Arc<Session> {
    store.session(SessionKind::Writer, "test").unwrap()
}

#[test]
fn small_files_are_read_at_once_and_packed_together() {
    for place in places() {
        let store = place.open();
        let (session, packer) = (writer(&store), writer(&store));
        let files = small(0..60);
        for (at, part) in files.chunks(7).enumerate() {
            let bytes = close(&store, &session, packer.id(), part).unwrap();
            let raw = part.iter().map(|(_, bytes)| bytes.len() as u64).sum::<u64>();
            assert!(bytes >= raw && bytes < raw + 5000, "{at}");
        }
        assert_eq!(committed(&store).len(), 0, "no pack was made");
        is_all_there(&store, &files);
        // Also by a client that has not seen it.
        let other = place.open();
        is_all_there(&other, &files);
        assert_eq!(checked(&other).findings, []);
        let chunks = rows(&store);
        assert!(chunks >= 60);
        assert_eq!(inline::pack(&store, &packer, 2).unwrap(), chunks);
        let packs = committed(&store);
        assert!(packs.len() <= 2 && packs.iter().all(|pack| pack.kind == PackKind::Data), "{packs:?}");
        assert_eq!((rows(&store), inline::pack(&store, &packer, 2).unwrap()), (0, 0));
        // A client that was open before finds it in its new place.
        for store in [&store, &other, &place.open()] {
            is_all_there(store, &files);
        }
        drop((session, packer));
        assert_eq!(checked(&place.open()).findings, []);
    }
}

#[test]
fn what_is_stored_is_referred_to_and_what_has_been_stored_meanwhile_is_not_packed_again() {
    for place in places() {
        let store = place.open();
        let (before, meanwhile) = (unique(1, 30_000), unique(2, 30_000));
        put_bytes(&store, "put", before.clone()).unwrap();
        let (session, packer) = (writer(&store), writer(&store));
        let data = |store: &Store| committed(store).iter().filter(|pack| pack.kind == PackKind::Data).count();
        let packs = data(&store);
        assert_eq!(close(&store, &session, packer.id(), &[("same".into(), before.clone())]).unwrap(), 0);
        assert_eq!(rows(&store), 0);
        assert!(close(&store, &session, packer.id(), &[("new".into(), meanwhile.clone())]).unwrap() > 0);
        // Another client stores the same.
        put_bytes(&place.open(), "by another", meanwhile.clone()).unwrap();
        assert_eq!(data(&store), packs + 1);
        inline::pack(&store, &packer, 2).unwrap();
        assert_eq!((data(&store), rows(&store)), (packs + 1, 0));
        // Chunks that two files relied on stay when one of the files goes.
        for name in ["put", "by another"] {
            remove(&store, name).unwrap();
        }
        collect(&place.open(), &thorough()).unwrap();
        assert!(read(&store, "same") == before && read(&store, "new") == meanwhile);
        drop((session, packer));
        assert_eq!(checked(&place.open()).findings, []);
    }
}

#[test]
fn a_collector_leaves_them_to_their_session_and_packs_those_of_one_that_is_over() {
    for place in places() {
        let store = place.open();
        // Counts data packs only: the collector also makes meta packs, to publish the closed files.
        let data = |store: &Store| committed(store).iter().filter(|pack| pack.kind == PackKind::Data).count();
        let files = small(0..40);
        let (session, packer) = (writer(&store), writer(&store));
        close(&store, &session, packer.id(), &files).unwrap();
        let chunks = rows(&store);
        let report = collect(&place.open(), &thorough()).unwrap();
        assert_eq!((report.chunks_packed, rows(&store), data(&store)), (0, chunks, 0));
        is_all_there(&store, &files);
        // As if it had been killed: only its rows are left.
        drop((session, packer));
        assert_eq!(rows(&store), chunks);
        let report = collect(&place.open(), &thorough()).unwrap();
        assert_eq!((report.chunks_packed, rows(&store)), (chunks, 0));
        assert!((1..=2).contains(&data(&store)));
        is_all_there(&store, &files);
        assert_eq!(checked(&store).findings, []);
        // Unneeded chunks go, like any others.
        files.iter().for_each(|(name, _)| remove(&store, name).unwrap());
        collect(&place.open(), &thorough()).unwrap();
        assert_eq!(data(&store), 0);
    }
}

#[test]
fn a_copy_has_what_is_not_packed_yet_and_packs_it_itself() {
    for place in places() {
        let store = place.open();
        let files = small(0..40);
        let (session, packer) = (writer(&store), writer(&store));
        close(&store, &session, packer.id(), &files).unwrap();
        let chunks = rows(&store);
        let (directory, shared) = (scratch(), scratch());
        let mut copies = vec![(directory.path().join("copy"), None)];
        if let Some(server) = Server::shared() {
            let packs = format!("file:{}", shared.path().join("packs").display());
            let packs = outrigger_store::backend::Location::parse(&packs).unwrap();
            copies.push((server.url(&server.fresh()).into(), Some(packs)));
        }
        for (to, packs) in copies {
            let options = CopyOptions {
                to: to.clone(),
                packs,
                threads: 2,
                verify: true,
                encryption: Default::default(),
            };
            // A repetition changes nothing and does not fail.
            for _ in 0..2 {
                let report = copy(&store, &options, &CopyProgress::default()).unwrap();
                assert_eq!((report.problems.len(), report.files), (0, files.len() as u64));
            }
            let copied = Store::open(&to, false).unwrap();
            assert_eq!((rows(&copied), committed(&copied).len()), (chunks, 0));
            is_all_there(&copied, &files);
            let report = collect(&copied, &thorough()).unwrap();
            assert_eq!((report.chunks_packed, rows(&copied)), (chunks, 0));
            is_all_there(&copied, &files);
            assert_eq!(checked(&copied).findings, []);
            let dir = copied.dir().to_path_buf();
            drop(copied);
            let _ = std::fs::remove_dir_all(dir);
        }
        assert_eq!(rows(&store), chunks);
    }
}

#[test]
fn many_small_packs_are_joined_by_a_collector() {
    for place in places() {
        let store = place.open();
        let (session, packer) = (writer(&store), writer(&store));
        let files = small(0..40);
        for file in &files {
            close(&store, &session, packer.id(), std::slice::from_ref(file)).unwrap();
            inline::pack(&store, &packer, 1).unwrap();
        }
        assert_eq!(committed(&store).len(), 40);
        collect(&place.open(), &thorough()).unwrap();
        assert!(committed(&store).len() <= 4, "{}", committed(&store).len());
        is_all_there(&store, &files);
        drop((session, packer));
        assert_eq!(checked(&place.open()).findings, []);
    }
}

#[test]
fn a_row_that_is_not_what_was_written_is_named_and_stays() {
    for place in places() {
        let store = place.open();
        let (session, packer) = (writer(&store), writer(&store));
        let files = [("bad".to_string(), unique(1, 900)), ("good".to_string(), unique(2, 900))];
        close(&store, &session, packer.id(), &files[..1]).unwrap();
        place.harm("UPDATE @inline_chunk SET session = session, codec = 'zstd:1'");
        is_all_there(&store, &files[..1]);
        let zeros = if place.postgres.is_some() { "'\\x0000'" } else { "x'0000'" };
        place.harm(&format!("UPDATE @inline_chunk SET bytes = {zeros}"));
        close(&store, &session, packer.id(), &files[1..]).unwrap();
        let inode = store.meta.lookup(At::Now, ROOT_INODE, b"bad").unwrap().unwrap();
        let done = Reader::new(&store).read(&inode.root, 0, 900, &mut |_| Ok(()));
        assert_eq!(done.unwrap_err().kind(), ErrorKind::Damaged);
        let report = checked(&place.open());
        assert_eq!(report.damaged, 1, "{:?}", report.findings);
        let named: Vec<_> = report.findings[0].files.iter().map(|file| file.path.as_str()).collect();
        assert_eq!(named, ["bad"]);
        let error = inline::pack(&store, &packer, 1).unwrap_err();
        assert_eq!((error.kind(), rows(&store)), (ErrorKind::Damaged, 1), "{error}");
        is_all_there(&store, &files[1..]);
        drop((session, packer));
        // A collector reports them and goes on.
        let report = collect(&place.open(), &thorough()).unwrap();
        assert_eq!(report.unreadable.len(), 1, "{report:?}");
        assert_eq!(rows(&store), 1);
    }
}

/// A composed content is what the pipeline makes of it, with any kept, cut and omitted parts.
#[test]
fn a_small_content_is_composed_as_the_pipeline_does() {
    let place = &places()[0];
    let store = place.open();
    store.meta.raise_counters(1, (1 << 20) + 1, 1).unwrap();
    let session = writer(&store);
    let mut rng = Rng::new(7);
    let (mut same, mut trees, mut others) = (0, 0, 0);
    let chunkers = ["gear32:4K/16K/64K", "gear32:256/1K/4K", "fixed:4K", "fixed:16K"];
    let mut before = Arc::new(Root::Empty);
    for round in 0..160 {
        let chunker = ChunkerSpec::parse(chunkers[round % chunkers.len()]).unwrap();
        let (mut parts, mut at) = (Vec::new(), 0);
        for _ in 0..rng.below(4) {
            let most = if rng.below(3) == 0 { 200_000 } else { 3_000 };
            let len = 1 + rng.below(most);
            let part = match rng.below(4) {
                0 => Part::Hole { len },
                // Whole entries, from the beginning.
                1 => {
                    let (mut to, mut more) = (0, 1 + rng.below(30));
                    let count = &mut |at: u64, entry: Entry| {
                        (to, more) = (at + entry.len(), more - 1);
                        Ok(more > 0)
                    };
                    Reader::new(&store).entries(&before, 0, u64::MAX, count).unwrap();
                    Part::Keep { root: Arc::clone(&before), from: 0, to }
                }
                _ => Part::Data { offset: at, len },
            };
            at += part.len();
            parts.push(part);
        }
        let bytes = unique(1000 + round as u64 % 9, at as usize);
        let made = compose(&Reader::new(&store), &item(bytes.clone(), parts.clone(), chunker), NEW_BYTES_MAX)
            .unwrap();
        let options = WriteOptions { threads: 2, chunk_max: 64 << 10, commit: CommitWhen::AtTheEnd };
        let mut pipeline = Writer::start(&store, &session, &options, &Arc::new(Progress::default()));
        pipeline.submit(Item::File(item(bytes, parts.clone(), chunker))).unwrap();
        pipeline.finish().unwrap();
        let root = store.meta.lookup(At::Now, ROOT_INODE, b"piped").unwrap().unwrap().root;
        let new: u64 =
            parts.iter().map(|part| if let Part::Data { len, .. } = part { *len } else { 0 }).sum();
        let (mut entries, is_tree) = (0, matches!(root, Root::Tree { .. }));
        let count = &mut |_: u64, _: Entry| {
            entries += 1;
            Ok(true)
        };
        Reader::new(&store).entries(&root, 0, u64::MAX, count).unwrap();
        match made {
            Some(made) => {
                assert_eq!(made.root, root, "{parts:?}");
                let bytes = made.chunks.iter().map(|chunk| chunk.bytes.len() as u64).sum::<u64>();
                assert!(if is_tree { bytes > new && bytes < new + 20_000 } else { bytes == new });
                same += 1;
                trees += u32::from(is_tree);
            }
            None => {
                assert!(new > NEW_BYTES_MAX || entries > 250, "{parts:?}");
                others += 1;
            }
        }
        before = Arc::new(root);
    }
    assert!(same > 40 && trees > 20 && others > 10, "{same} {trees} {others}");
}

/// Each database call of packing fails, undone or done: nothing is lost, and the next packer goes
/// on.
#[test]
fn packing_that_fails_anywhere_loses_nothing() {
    let files = small(0..12);
    for after in [false, true] {
        let mut tried = 0;
        loop {
            tried += 1;
            let dir = scratch();
            let mut store = gc_support::init(dir.path());
            let (session, packer) = (writer(&store), writer(&store));
            close(&store, &session, packer.id(), &files).unwrap();
            drop((session, packer));
            let real = Arc::clone(&store.meta);
            let faulty = Arc::new(FaultyMeta::new(Arc::clone(&real), tried, after));
            store.meta = faulty.clone();
            let done = inline::pack_left(&store, 1);
            let has_failed = faulty.has_failed();
            store.meta = real;
            is_all_there(&store, &files);
            inline::pack_left(&store, 1).unwrap();
            assert_eq!(rows(&store), 0, "{tried} {after} {done:?}");
            collect(&store, &thorough()).unwrap();
            is_all_there(&store, &files);
            assert_eq!(checked(&store).findings, [], "{tried} {after} {done:?}");
            assert_eq!(committed(&store).iter().filter(|pack| pack.kind == PackKind::Data).count(), 1);
            if !has_failed {
                assert!(done.is_ok());
                break;
            }
        }
        assert!(tried > 8, "{tried} calls");
    }
}

/// At once: mounts close small files, packers are killed and succeeded, clients put and remove the
/// same data, a collector runs.
#[test]
fn closing_packing_and_reclaiming_at_once_lose_nothing() {
    const ROUNDS: u64 = 60;
    for place in places() {
        let truth = Mutex::new(BTreeMap::<String, Vec<u8>>::new());
        let is_done = AtomicBool::new(false);
        // Few contents, so that many rows, packs and garbage are of the same chunks.
        let content = |seed: u64| unique(500 + seed % 12, 3_000 + (seed % 12) as usize * 900);
        // The present packer; replaced when it is killed.
        let store = place.open();
        let packers = [0, 1].map(|_| Mutex::new(writer(&store)));
        std::thread::scope(|scope| {
            let mounts: Vec<_> = [0_u64, 1]
                .into_iter()
                .map(|number| {
                    let (truth, packers, place) = (&truth, &packers, &place);
                    scope.spawn(move || {
                        let (store, mut rng) = (place.open(), Rng::new(number));
                        let session = writer(&store);
                        for _ in 0..ROUNDS {
                            if rng.below(4) == 0 {
                                session.follow().unwrap();
                                store.refresh_index().unwrap();
                            }
                            let files: Vec<_> = (0..1 + rng.below(3))
                                .map(|_| (format!("{number}-{}", rng.below(10)), content(rng.below(1000))))
                                .collect::<BTreeMap<_, _>>()
                                .into_iter()
                                .collect();
                            let owner = packers[number as usize].lock().unwrap().id();
                            close(&store, &session, owner, &files).unwrap();
                            truth.lock().unwrap().extend(files);
                            if rng.below(3) == 0 {
                                let name = format!("{number}-{}", rng.below(10));
                                if truth.lock().unwrap().remove(&name).is_some() {
                                    remove(&store, &name).unwrap();
                                }
                            }
                        }
                    })
                })
                .collect();
            for number in [0, 1] {
                let (packers, place, is_done) = (&packers, &place, &is_done);
                scope.spawn(move || {
                    let (store, mut rng) = (place.open(), Rng::new(20 + number as u64));
                    while !is_done.load(Ordering::SeqCst) {
                        let session = Arc::clone(&packers[number].lock().unwrap());
                        match inline::pack(&store, &session, 1) {
                            Ok(_) => {}
                            Err(error) if error.kind() == ErrorKind::Fenced => {
                                let next = writer(&store);
                                inline::take_over(&store, &next).unwrap();
                                *packers[number].lock().unwrap() = next;
                            }
                            Err(error) => panic!("{error}"),
                        }
                        // As a collector does to a session that is gone; it may be packing just
                        // now.
                        if rng.below(4) == 0 {
                            let other = packers[1 - number].lock().unwrap().id();
                            store.meta.fence(other).unwrap();
                        }
                    }
                });
            }
            let (place, is_done) = (&place, &is_done);
            scope.spawn(move || {
                let (store, mut rng) = (place.open(), Rng::new(9));
                while !is_done.load(Ordering::SeqCst) {
                    put_bytes(&store, "put", content(rng.below(1000))).unwrap();
                    remove(&store, "put").unwrap();
                    collect(&store, &thorough()).unwrap();
                }
            });
            // A failing thread does not leave the others waiting for the end.
            let ended: Vec<_> = mounts.into_iter().map(|mount| mount.join()).collect();
            is_done.store(true, Ordering::SeqCst);
            ended.into_iter().for_each(|ended| ended.unwrap());
        });
        drop(packers);
        let files: Vec<_> = truth.into_inner().unwrap().into_iter().collect();
        is_all_there(&store, &files);
        collect(&store, &thorough()).unwrap();
        assert_eq!(rows(&store), 0);
        is_all_there(&store, &files);
        assert_eq!(checked(&store).findings, []);
    }
}
