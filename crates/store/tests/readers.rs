//! Threads that want the same frame, and one of them that fails at it in the worst way.
#![cfg(feature = "testing")]

mod gc_support;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use gc_support::{init, open, put_bytes, scratch, unique};
use outrigger_store::read::packs::{PackReader, Wanted};
use outrigger_store::testing::Wrapped;

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
    // A read that panics, once, when it is told to: it says that it has come, and waits for the word.
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
