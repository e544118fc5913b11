//! Tests of a database in a file: its place, and its clocks.

use std::sync::atomic::{AtomicU64, Ordering};

use super::*;
use crate::meta::{SessionKind, Sessions as _, Tree as _};

const SECOND: u64 = 1_000_000_000;

#[test]
fn connections_opened_later_are_to_the_same_database_wherever_it_lies() {
    let dir = tempfile::tempdir().unwrap();
    let (here, there) = (dir.path().join("here"), dir.path().join("there"));
    std::fs::create_dir(&here).unwrap();
    let path = here.join("meta.db");
    let meta = SqliteMeta::open(&path, OpenMode::Create).unwrap();
    meta.next_sequence().unwrap();
    let one = meta.reader().unwrap();
    std::fs::rename(&here, &there).unwrap();
    std::fs::create_dir(&here).unwrap();
    let other = SqliteMeta::open(&path, OpenMode::Create).unwrap();
    let sequence = |db: &Connection| state::counter(db, "next_sequence").ok();
    let two = meta.reader().unwrap();
    assert_eq!(sequence(&two), sequence(&one));
    assert_ne!(sequence(&two), sequence(&other.reader().unwrap()));
    // A commit is seen through both.
    meta.next_sequence().unwrap();
    assert_eq!((sequence(&one), sequence(&two)), (Some(3), Some(3)));
}

#[test]
fn a_database_that_was_removed_takes_nothing_more() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("meta.db");
    let meta = SqliteMeta::open(&path, OpenMode::Create).unwrap();
    let _one = meta.reader().unwrap();
    meta.still_there().unwrap();
    std::fs::remove_file(&path).unwrap();
    std::fs::write(&path, "another").unwrap();
    assert_eq!(meta.next_sequence().unwrap_err().kind(), ErrorKind::Io);
    assert!(meta.reader().is_err());
    assert!(meta.still_there().unwrap_err().to_string().contains("was removed or replaced"));
}

#[test]
fn leases_go_by_the_steady_clock_and_end_when_that_begins_anew() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("meta.db");
    let clock = |at: u64| Arc::new(AtomicU64::new(at * SECOND));
    let (wall, steady) = (clock(1_000_000), clock(5_000));
    let read = |clock: &Arc<AtomicU64>| -> Clock {
        let clock = Arc::clone(clock);
        Arc::new(move || clock.load(Ordering::SeqCst))
    };
    let meta =
        SqliteMeta::open_with_clocks(&path, OpenMode::Create, None, read(&wall), read(&steady)).unwrap();
    let (session, _) = meta.open_session(SessionKind::Writer, &crate::testing::owner("one"), 60).unwrap();
    let is_over = || meta.sessions().unwrap()[0].lease_is_over;
    for hour in [1_003_600, 996_400] {
        wall.store(hour * SECOND, Ordering::SeqCst);
        assert!(!is_over());
        meta.renew(session, 60).unwrap();
    }
    // A transaction that took its time before the lease was renewed does not treat the session as
    // dead.
    steady.fetch_sub(30 * SECOND, Ordering::SeqCst);
    assert!(!is_over());
    steady.fetch_add(91 * SECOND, Ordering::SeqCst);
    assert!(is_over());
    // The session goes on, as nothing has ended it.
    meta.renew(session, 60).unwrap();
    assert!(!is_over());
    // The machine was started again a minute ago.
    steady.store(60 * SECOND, Ordering::SeqCst);
    assert!(is_over());
    meta.fence(session).unwrap();
    assert_eq!(meta.renew(session, 60).unwrap_err().kind(), ErrorKind::Fenced);
}
