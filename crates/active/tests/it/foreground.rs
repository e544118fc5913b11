//! Waiting requests in one of a host's mounts.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use outrigger_active::foreground::{Busy, of_mounts};
use outrigger_fuse::measures::{Status, json};
use outrigger_workload::eventually;

/// Reports that it has gone.
const GONE: u64 = u64::MAX;

/// A mount with this many waiting requests.
fn mount(dir: &Path, waiting: &Arc<AtomicU64>) -> thread::JoinHandle<()> {
    let listener = UnixListener::bind(dir.join("mount.sock")).unwrap();
    let waiting = Arc::clone(waiting);
    thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        drop(listener);
        let mut answers = stream.try_clone().unwrap();
        for line in BufReader::new(stream).lines() {
            assert_eq!(line.unwrap(), "status");
            let waiting_operations = waiting.load(Ordering::SeqCst);
            if waiting_operations == GONE {
                return;
            }
            writeln!(answers, "{}", json(&Status { waiting_operations, ..Status::default() }, &[])).unwrap();
        }
    })
}

#[track_caller]
fn until(busy: &Busy, is: bool) {
    eventually("mounts are busy, or no more", || busy() == is);
}

#[test]
fn one_mount_of_several_in_which_others_wait_is_enough() {
    let places = [(); 3].map(|()| tempfile::tempdir().unwrap());
    let waiting: [Arc<AtomicU64>; 2] = Default::default();
    // Nobody listens in the third one: its mount was killed, or has not begun yet.
    let mounts = [0, 1].map(|at| mount(places[at].path(), &waiting[at]));
    let dirs = places.each_ref().map(|place| place.path().to_path_buf()).to_vec();
    let busy = of_mounts(move || dirs.clone(), Duration::from_millis(20));
    assert!(!busy());
    for (at, told) in [(1, 2), (1, 0), (0, 1), (0, 0), (1, 1), (1, GONE), (0, 3), (0, GONE)] {
        waiting[at].store(told, Ordering::SeqCst);
        until(&busy, !matches!(told, 0 | GONE));
    }
    mounts.into_iter().for_each(|mount| mount.join().unwrap());
}
