//! Contents composed of stored and new parts read back as the bytes they stand for, cost only the
//! new bytes, and have the same fingerprints as if they had been written whole.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use outrigger_format::catalogue::{Attributes, FileKind, Time};
use outrigger_format::{ChunkerSpec, CodecSpec, Entry, Root};
use outrigger_store::meta::{At, Change, PackState, ROOT_INODE, SessionKind};
use outrigger_store::read::Reader;
use outrigger_store::session::Session;
use outrigger_store::write::{
    CommitWhen, Content, FileItem, Item, Oracle, Part, PartSource, Parts, Progress, ProgressView, Target,
    WriteOptions, WriteSummary, Writer,
};
use outrigger_store::{Error, ErrorKind, Profile, Result, Store};
use outrigger_workload::Rng;

const GEAR: ChunkerSpec = ChunkerSpec::Gear32 { min: 256, avg: 1024, max: 4096 };
const BLOCKS: ChunkerSpec = ChunkerSpec::Fixed { size: 4096 };

/// A file's whole new content; only the requested parts are read.
struct Memory {
    bytes: Vec<u8>,
    read: AtomicU64,
}

impl Memory {
    fn new(bytes: Vec<u8>) -> Arc<Self> {
        Arc::new(Self { bytes, read: AtomicU64::new(0) })
    }
}

impl PartSource for Memory {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.read.fetch_add(buf.len() as u64, Ordering::Relaxed);
        buf.copy_from_slice(&self.bytes[offset as usize..][..buf.len()]);
        Ok(())
    }
}

/// Cannot be read from an offset on.
struct Broken(u64);

impl PartSource for Broken {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        buf.fill(7);
        if offset + buf.len() as u64 > self.0 {
            return Err(Error::new(ErrorKind::Io, "the log's device is gone"));
        }
        Ok(())
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

struct Fixture {
    dir: tempfile::TempDir,
    store: Store,
    session: Arc<Session>,
    next_inode: u64,
}

impl Fixture {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut config = Profile::Default.config().unwrap();
        config.pack_size = 1 << 20;
        let store = Store::init(&dir.path().join("store"), &config).unwrap();
        let session = store.session(SessionKind::Writer, "splice").unwrap();
        let next_inode = store.meta.reserve_inodes(100_000).unwrap().start;
        Self { dir, store, session, next_inode }
    }

    fn put(&mut self, name: &str) -> Target {
        self.next_inode += 1;
        let (name, inode) = (name.as_bytes().to_vec(), self.next_inode);
        Target::Put { parent: ROOT_INODE, name, inode, replace: false }
    }

    fn file(&mut self, name: &str, chunker: ChunkerSpec, content: Content) -> Item {
        let (to, codec) = (self.put(name), CodecSpec::parse("zstd:1").unwrap().into());
        Item::File(FileItem {
            to,
            attributes: attributes(),
            content,
            chunker,
            codec,
            dedup: true,
            frame: None,
            oracle: Oracle::Off,
        })
    }

    fn write(&self, threads: usize, commit: CommitWhen, items: Vec<Item>) -> Result<WriteSummary> {
        let options = WriteOptions { threads, chunk_max: 4096, commit };
        let progress = Arc::new(Progress::default());
        let mut writer = Writer::start(&self.store, &self.session, &options, &progress);
        for item in items {
            if writer.submit(item).is_err() {
                break;
            }
        }
        let summary = writer.finish()?;
        assert_eq!(*progress.skipped.lock().unwrap(), []);
        Ok(summary)
    }

    /// Stores one file and returns its root.
    fn store(&mut self, name: &str, chunker: ChunkerSpec, content: Content) -> (Arc<Root>, ProgressView) {
        let item = self.file(name, chunker, content);
        let summary = self.write(2, CommitWhen::AtTheEnd, vec![item]).unwrap();
        (self.root(name), summary.progress)
    }

    fn root(&self, name: &str) -> Arc<Root> {
        let inode = self.store.meta.lookup(At::Now, ROOT_INODE, name.as_bytes()).unwrap();
        Arc::new(inode.expect("it was committed").root)
    }

    fn read(&self, root: &Root) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut sink = |part: &[u8]| {
            bytes.extend_from_slice(part);
            Ok(())
        };
        Reader::new(&self.store).read(root, 0, u64::MAX, &mut sink).unwrap();
        bytes
    }

    fn entries(&self, root: &Root) -> Vec<Entry> {
        let mut all = Vec::new();
        let mut visit = |_, entry| {
            all.push(entry);
            Ok(true)
        };
        Reader::new(&self.store).entries(root, 0, u64::MAX, &mut visit).unwrap();
        all
    }
}

fn noise(rng: &mut Rng, len: usize) -> Vec<u8> {
    (0..len.div_ceil(8))
        .flat_map(|_| (rng.next_u64() & 0x00ff_00ff_ffff_ffff).to_le_bytes())
        .take(len)
        .collect()
}

fn parts(parts: Vec<Part>, source: Arc<dyn PartSource>) -> Content {
    Content::Parts(Parts { parts, source })
}

fn len(entries: &[Entry]) -> u64 {
    entries.iter().map(Entry::len).sum()
}

#[test]
fn random_compositions_read_back() {
    let mut fixture = Fixture::new();
    let mut rng = Rng::new(11);
    for chunker in [GEAR, BLOCKS] {
        let mut files: Vec<(Arc<Root>, Vec<u8>)> = Vec::new();
        for round in 0..40 {
            let name = format!("{} {round}", chunker == GEAR);
            let (mut list, mut image, mut new) = (Vec::new(), Vec::new(), 0);
            for _ in 0..rng.below(12) {
                let at = image.len() as u64;
                match rng.below(4) {
                    0 if !files.is_empty() => {
                        let (root, bytes) = &files[rng.below(files.len() as u64) as usize];
                        let entries = fixture.entries(root);
                        let (a, b) =
                            (rng.below(entries.len() as u64 + 1), rng.below(entries.len() as u64 + 1));
                        let (from, to) =
                            (len(&entries[..a.min(b) as usize]), len(&entries[..a.max(b) as usize]));
                        list.push(Part::Keep { root: Arc::clone(root), from, to });
                        image.extend_from_slice(&bytes[from as usize..to as usize]);
                    }
                    1 => {
                        let len = rng.below(200_000);
                        list.push(Part::Hole { len });
                        image.resize(image.len() + len as usize, 0);
                    }
                    _ => {
                        let most = [0, 100, 20_000, 3_000_000][rng.below(4) as usize];
                        let bytes = noise(&mut rng, most / 2 + most / 3);
                        list.push(Part::Data { offset: at, len: bytes.len() as u64 });
                        new += bytes.len() as u64;
                        image.extend(bytes);
                    }
                }
            }
            let source = Memory::new(image.clone());
            let (root, _) = fixture.store(&name, chunker, parts(list, source.clone()));
            // And the bytes before a segment that the scanner needs.
            let read = source.read.load(Ordering::Relaxed);
            assert!((new..=new + new / 1000).contains(&read), "{read} bytes read where {new} are new");
            assert_eq!(root.len(), image.len() as u64);
            assert!(fixture.read(&root) == image, "{name} differs");
            files.push((root, image));
        }
    }
}

#[test]
fn a_spliced_file_is_the_file_written_whole() {
    let mut fixture = Fixture::new();
    let mut rng = Rng::new(12);
    let before = noise(&mut rng, 6_000_000);
    for (number, chunker) in [GEAR, BLOCKS].into_iter().enumerate() {
        let (old, _) = fixture.store(&format!("old{number}"), chunker, Content::Bytes(before.clone()));
        let mut after = before.clone();
        for dirty in [100_000..100_003, 2_000_000..4_500_000, 5_999_999..6_000_000] {
            let new = noise(&mut rng, dirty.len());
            after[dirty].copy_from_slice(&new);
        }
        after.extend(noise(&mut rng, 12_345));
        let (whole, _) = fixture.store(&format!("new{number}"), chunker, Content::Bytes(after.clone()));
        // New: from a boundary before the difference to where boundaries meet again.
        let (a, b) = (fixture.entries(&old), fixture.entries(&whole));
        let boundaries = |entries: &[Entry]| {
            entries
                .iter()
                .scan(0, |at, entry| Some(std::mem::replace(at, *at + entry.len())))
                .collect::<Vec<_>>()
        };
        let (in_old, in_new) = (boundaries(&a), boundaries(&b));
        let (mut list, mut kept) = (Vec::new(), 0);
        for (entry, &at) in b.iter().zip(&in_new) {
            let same = in_old.binary_search(&at).is_ok_and(|n| a[n] == *entry);
            kept += u64::from(same) * entry.len();
            match (list.last_mut(), same) {
                (Some(Part::Keep { to, .. }), true) => *to += entry.len(),
                (Some(Part::Data { len, .. }), false) => *len += entry.len(),
                (_, true) => list.push(Part::Keep { root: Arc::clone(&old), from: at, to: at + entry.len() }),
                (_, false) => list.push(Part::Data { offset: at, len: entry.len() }),
            }
        }
        assert!(kept > 3_000_000 && list.len() < 12, "{kept} bytes kept, {} parts", list.len());
        let content = parts(list, Memory::new(after));
        let (spliced, progress) = fixture.store(&format!("spliced{number}"), chunker, content);
        assert_eq!(spliced, whole, "the same manifest");
        assert_eq!((progress.chunks_new, progress.bytes_new), (0, 0), "all of it is known");
        assert!(progress.chunks < b.len() as u64 / 2, "what is kept is not looked up");
    }
}

#[test]
fn blocks_stay_where_the_file_has_them() {
    let mut fixture = Fixture::new();
    let bytes = noise(&mut Rng::new(13), 5 << 20);
    let lens =
        |fixture: &Fixture, root: &Root| fixture.entries(root).iter().map(Entry::len).collect::<Vec<_>>();
    let data = |offset, len| Part::Data { offset, len };
    // One part, which takes the way of small files, and several.
    let small = parts(vec![data(5000, 10_000)], Memory::new(bytes.clone()));
    let (small, _) = fixture.store("small", BLOCKS, small);
    assert_eq!(lens(&fixture, &small), [3192, 4096, 2712]);
    let large = vec![Part::Hole { len: 5000 }, data(5000, 10_000), data(15_000, 3 << 20)];
    let (large, _) = fixture.store("large", BLOCKS, parts(large, Memory::new(bytes)));
    let lens = lens(&fixture, &large);
    assert_eq!(lens[..6], [5000, 3192, 4096, 2712, 1384, 4096]);
}

#[test]
fn thousands_of_dirty_blocks_share_buffers() {
    let mut fixture = Fixture::new();
    let mut rng = Rng::new(14);
    let block = 4096;
    let mut bytes = noise(&mut rng, 5000 * block);
    let (old, _) = fixture.store("image", BLOCKS, Content::Bytes(bytes.clone()));
    let mut list = Vec::new();
    for at in (0..5000).step_by(2) {
        let offset = at * block;
        bytes[offset] ^= 1;
        let middle = (offset + block) as u64;
        list.push(Part::Data { offset: offset as u64, len: block as u64 });
        list.push(Part::Keep { root: Arc::clone(&old), from: middle, to: middle + block as u64 });
    }
    let (root, progress) = fixture.store("image", BLOCKS, parts(list, Memory::new(bytes.clone())));
    assert_eq!((progress.chunks, progress.chunks_new), (2500, 2500));
    assert!(fixture.read(&root) == bytes);
}

#[test]
fn one_transaction_however_many_changes() {
    let mut fixture = Fixture::new();
    let link = |fixture: &mut Fixture, n: u32| {
        let Target::Put { parent, name, inode, replace } = fixture.put(&n.to_string()) else {
            unreachable!()
        };
        let attributes = Attributes { kind: FileKind::Fifo, ..attributes() };
        Item::Change(Change::Put { parent, name, inode, attributes, root: Root::Empty, stamp: 0, replace })
    };
    let items: Vec<Item> = (0..70_000).map(|n| link(&mut fixture, n)).collect();
    let summary = fixture.write(2, CommitWhen::AtTheEnd, items).unwrap();
    assert_eq!((summary.totals.commits, summary.totals.created), (1, 70_000));
    let nothing = fixture.write(2, CommitWhen::AtTheEnd, Vec::new()).unwrap();
    assert_eq!(nothing.totals.commits, 0);
}

#[test]
fn a_source_that_fails_fails_all_and_the_session_goes_on() {
    let mut fixture = Fixture::new();
    let mut rng = Rng::new(15);
    let data = |len| vec![Part::Data { offset: 0, len }];
    let mixed = || vec![Part::Hole { len: 9 }, Part::Data { offset: 9, len: 3 << 20 }];
    // In a small file, in the middle of a large one, and in one that also keeps something.
    let broken: [(Vec<Part>, u64); 3] = [(data(1000), 999), (data(9 << 20), 5 << 20), (mixed(), 100_000)];
    let good = noise(&mut rng, 8 << 20);
    for (number, (list, reach)) in broken.into_iter().enumerate() {
        let items = |fixture: &mut Fixture| {
            let content = |range: std::ops::Range<usize>| Content::Bytes(good[range].to_vec());
            vec![
                fixture.file(&format!("large{number}"), GEAR, content(0..8 << 20)),
                fixture.file(&format!("small{number}"), GEAR, content(5..5000)),
            ]
        };
        let mut with_broken = items(&mut fixture);
        with_broken.push(fixture.file("broken", GEAR, parts(list, Arc::new(Broken(reach)))));
        let error = fixture.write(2, CommitWhen::AtTheEnd, with_broken).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Io);
        assert!(error.to_string().contains("the log's device is gone"), "{error}");
        assert_eq!(fixture.store.meta.totals().unwrap().files, 0, "nothing of it is committed");
    }
    // Packs that the failed writers left count, so they must become live with the next commit.
    let item = fixture.file("again", GEAR, Content::Bytes(good.clone()));
    fixture.write(2, CommitWhen::AtTheEnd, vec![item]).unwrap();
    let sealed = |row: &outrigger_store::meta::PackRow| row.state == PackState::Sealed;
    assert!(!fixture.store.meta.packs().unwrap().iter().any(sealed));
    let Fixture { dir, store, session, next_inode } = fixture;
    drop(session);
    store.meta.sweep_packs(1).unwrap();
    drop(store);
    let store = Store::open(&dir.path().join("store"), false).unwrap();
    let session = store.session(SessionKind::Writer, "splice").unwrap();
    let fixture = Fixture { dir, store, session, next_inode };
    assert!(fixture.read(&fixture.root("again")) == good);
}

#[test]
fn a_range_that_is_none_of_a_file_is_refused() {
    let mut fixture = Fixture::new();
    let (old, _) = fixture.store("old", GEAR, Content::Bytes(noise(&mut Rng::new(16), 50_000)));
    for (from, to) in [(1, 50_000), (0, 49_999), (0, 50_001)] {
        let content = parts(vec![Part::Keep { root: Arc::clone(&old), from, to }], Arc::new(Broken(0)));
        let item = fixture.file("new", GEAR, content);
        let error = fixture.write(1, CommitWhen::AtTheEnd, vec![item]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{from}..{to}");
    }
}
