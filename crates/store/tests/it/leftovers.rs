//! Leftovers of failed and killed commands do not pile up.

use crate::gc_support;

use std::io::IoSlice;
use std::time::{Duration, SystemTime};

use gc_support::{init, scratch};
use outrigger_format::PackId;
use outrigger_store::meta::{SessionKind, SessionOwner};

#[test]
fn a_pack_that_is_not_finished_takes_its_room_along() {
    let dir = scratch();
    let store = init(dir.path());
    let id = PackId(77);
    for len in [10, 9 << 20] {
        let mut writer = store.backend.create(id).unwrap();
        writer.append(&[IoSlice::new(&vec![7; len])]).unwrap();
        drop(writer);
        assert_eq!(store.backend.len(id).unwrap(), None);
    }
    store.backend.create(id).unwrap().seal().unwrap();
    assert_eq!(store.backend.len(id).unwrap(), Some(0));
}

#[test]
fn lock_files_of_killed_sessions_go_with_the_next_session() {
    let dir = scratch();
    let store = init(dir.path());
    let locks = store.locks_dir();
    let alive = store.session(SessionKind::Writer, "alive").unwrap();
    let name = |number: u64| format!("{number:016x}");
    for number in 0..20 {
        std::fs::write(locks.join(format!("{}.lock", name(number))), b"").unwrap();
    }
    // Half of them have a row still.
    let mut killed = Vec::new();
    for number in 0..10 {
        let owner = SessionOwner::this(name(number), "put".into());
        killed.push(store.meta.open_session(SessionKind::Writer, &owner, 60).unwrap().0);
    }
    let age = |by: u64| {
        for entry in std::fs::read_dir(&locks).unwrap() {
            let file = std::fs::File::options().write(true).open(entry.unwrap().path()).unwrap();
            file.set_modified(SystemTime::now() - Duration::from_secs(by)).unwrap();
        }
    };
    age(1);
    drop(store.session(SessionKind::Reader, "too soon").unwrap());
    assert_eq!(std::fs::read_dir(&locks).unwrap().count(), 21, "they may be in the making");
    age(3600);
    drop(store.session(SessionKind::Reader, "next").unwrap());
    assert_eq!(std::fs::read_dir(&locks).unwrap().count(), 1);
    let rows = store.meta.sessions().unwrap();
    assert!(rows.iter().all(|row| !killed.contains(&row.id)), "{rows:?}");
    assert!(rows.iter().any(|row| row.id == alive.id()));
    alive.check().unwrap();
}
