//! Threads that want the same frame, and one of them that fails at it in the worst way.
#![cfg(feature = "testing")]

use crate::checking;
use crate::gc_support;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use checking::pack_files;
use gc_support::{init, open, path, put_bytes, scratch, unique};
use outrigger_store::meta::At;
use outrigger_store::packs::{PackReader, Wanted};
use outrigger_store::read::Reader;
use outrigger_store::testing::Wrapped;
use outrigger_store::tree::find;
use outrigger_store::{Error, ErrorKind};

type Gate = Mutex<Option<(Sender<()>, Receiver<()>)>>;

#[test]
fn who_waits_for_a_frame_does_not_wait_for_a_thread_that_panicked() {
    let dir = scratch();
    let bytes = unique(1, 100_000);
    put_bytes(&init(dir.path()), "file", bytes.clone()).unwrap();
    let store = open(dir.path());
    // The pack with the file's bytes: the largest.
    let packs = store.meta.packs().unwrap();
    let pack = packs.into_iter().max_by_key(|pack| pack.bytes).unwrap().id;
    // A read that panics once, on request: it reports that it has begun, and waits for the word.
    let gate: Arc<Gate> = Arc::default();
    let read = Arc::clone(&gate);
    let shared = Wrapped::over(Arc::clone(&store.backend)).before_reads(move |_, _| {
        let gate = read.lock().unwrap().take();
        if let Some((come, word)) = gate {
            come.send(()).unwrap();
            word.recv().unwrap();
            panic!("on purpose");
        }
    });
    let shared = Arc::new(shared);
    let reader = Arc::new(PackReader::new(shared, store.config.id, store.config.fingerprint));
    let footer = Arc::new(reader.read_footer(pack).unwrap());
    let ((come, has_come), (tell, word)) = (channel(), channel());
    *gate.lock().unwrap() = Some((come, word));
    let frame = |wanted| {
        let (reader, footer) = (Arc::clone(&reader), Arc::clone(&footer));
        move || reader.frame(pack, &footer, 0, wanted).map(|frame| frame.chunks())
    };
    let first = std::thread::spawn({
        let frame = frame(Wanted::Ahead);
        move || catch_unwind(AssertUnwindSafe(frame)).is_err()
    });
    has_come.recv().unwrap();
    let (done, ended) = channel();
    for _ in 0..3 {
        let (frame, done) = (frame(Wanted::Now), done.clone());
        std::thread::spawn(move || done.send(frame()).unwrap());
    }
    // They wait by now, most likely; if not, they will have to.
    std::thread::sleep(Duration::from_millis(50));
    tell.send(()).unwrap();
    assert!(first.join().unwrap(), "the first one panicked");
    for _ in 0..3 {
        let found = ended.recv_timeout(Duration::from_secs(60)).expect("nobody waits for ever");
        assert!(found.unwrap() > 0, "the next one has decoded it");
    }
}

#[test]
fn what_is_decoded_ahead_is_what_is_read_and_ends_with_the_reader() {
    let dir = scratch();
    // Some of it twice, so that places are not in the order of the file.
    let mut bytes = unique(2, 9 << 20);
    bytes.extend_from_within(1 << 20..3 << 20);
    put_bytes(&init(dir.path()), "file", bytes.clone()).unwrap();
    let opened = || {
        let store = open(dir.path());
        let root = find(&*store.meta, At::Now, &path("file")).unwrap().unwrap().root;
        (store, root)
    };
    for (from, len) in [(0, u64::MAX), (12_345, 5 << 20), (8 << 20, 3 << 20), (7 << 20, 100), (11 << 20, 9)] {
        let (store, root) = opened();
        let mut read = Vec::new();
        let mut sink = |part: &[u8]| {
            read.extend_from_slice(part);
            Ok(())
        };
        Reader::new(&store).read_ahead(&root, from, len, &mut sink).unwrap();
        let to = from.saturating_add(len).min(bytes.len() as u64);
        assert!(read == bytes[from as usize..to as usize], "{len} bytes from byte {from}");
    }
    // A reader that stands still: what comes next is decoded all the same, and not all that there
    // is.
    let (store, root) = opened();
    let (mut given, until) = (0, Instant::now() + Duration::from_secs(60));
    let mut sink = |part: &[u8]| {
        given += part.len();
        while store.packs.frame_counts().ahead < 2 {
            assert!(Instant::now() < until, "nothing is decoded ahead");
            std::thread::sleep(Duration::from_millis(1));
        }
        Err(Error::new(ErrorKind::Cancelled, "enough"))
    };
    let ended = Reader::new(&store).read_ahead(&root, 0, u64::MAX, &mut sink);
    assert_eq!(ended.unwrap_err().kind(), ErrorKind::Cancelled);
    let counts = store.packs.frame_counts();
    let decoded = (counts.ahead + counts.misses) as usize;
    // Frames are of 128 KiB here.
    assert!(given > 0 && decoded < (9 << 20) / (128 << 10), "{counts:?}, {given} bytes were handed out");
}

#[test]
fn damage_is_told_as_it_is_where_nothing_is_decoded_ahead() {
    let dir = scratch();
    put_bytes(&init(dir.path()), "file", unique(3, 6 << 20)).unwrap();
    let store = open(dir.path());
    let root = find(&*store.meta, At::Now, &path("file")).unwrap().unwrap().root;
    let packs = pack_files(&dir.path().join("store")).into_iter();
    let file = packs.max_by_key(|file| file.metadata().unwrap().len()).unwrap();
    let mut damaged = std::fs::read(&file).unwrap();
    let half = damaged.len() / 2;
    damaged[half..half + 100].fill(0xA5);
    std::fs::write(&file, damaged).unwrap();
    let read = |ahead: bool| {
        let (store, mut given) = (open(dir.path()), 0);
        let mut sink = |part: &[u8]| {
            given += part.len();
            Ok(())
        };
        let reader = Reader::new(&store);
        let read = match ahead {
            true => reader.read_ahead(&root, 0, u64::MAX, &mut sink),
            false => reader.read(&root, 0, u64::MAX, &mut sink),
        };
        let error = read.unwrap_err();
        (error.kind(), error.to_string(), given)
    };
    assert_eq!(read(true), read(false));
    assert_eq!(read(true).0, ErrorKind::Damaged);
}
