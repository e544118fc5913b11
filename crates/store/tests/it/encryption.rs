//! An encrypted store: nothing of names and contents shows, everything works as in a plain one, and
//! no change goes unnoticed.
#![cfg(feature = "testing")]

use crate::gc_support;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use gc_support::{collect, path, put_bytes, read, scratch, small_packs, thorough, unique};
use outrigger_store::backend::Access;
use outrigger_store::check::{CheckOptions, CheckProgress, check};
use outrigger_store::copy::{CopyEncryption, CopyOptions, CopyProgress, copy};
use outrigger_store::keys::{Key, NewKeys, Rights, Secret, Slot, remove_slot, slots, unlock};
use outrigger_store::ops;
use outrigger_store::recover::{RecoverProgress, recover};
use outrigger_store::{ErrorKind, Store, StoreConfig};

const NAME: &str = "a-name-that-nobody-should-see.txt";
const TEXT: &[u8] = b"a sentence that nobody should read, over and over again. ";

/// A new encrypted store, and a key of it.
fn init(dir: &Path) -> (Store, Key) {
    let config = small_packs();
    let key = Key::random().unwrap();
    let mut keys = NewKeys::new(config.id).unwrap();
    let config = StoreConfig { keyring: Some(keys.ring.id().number), ..config };
    keys.add(&Secret::Key(key.clone()), "laptop").unwrap();
    (Store::init_with(&dir.join("store"), &config, Some(&keys)).unwrap(), key)
}

/// With a name, a text and a snapshot that a search would find.
fn filled(dir: &Path) -> (Store, Key) {
    let (store, key) = init(dir);
    put_bytes(&store, NAME, TEXT.repeat(20_000)).unwrap();
    put_bytes(&store, "random", unique(1, 3 << 20)).unwrap();
    ops::snapshots::create(
        &store,
        Some("a-snapshot-with-a-long-name"),
        "",
        &["a-tag-with-a-long-name".into()],
    )
    .unwrap();
    (store, key)
}

fn all_files(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { all_files(&path) } else { vec![path] }).collect()
}

fn holds(dir: &Path, needle: &[u8]) -> Vec<PathBuf> {
    let has =
        |path: &PathBuf| std::fs::read(path).unwrap().windows(needle.len()).any(|window| window == needle);
    all_files(dir).into_iter().filter(has).collect()
}

fn is_sound(store: &Store) {
    let options = CheckOptions { read_data: true, repair: false, threads: 2 };
    let report = check(store, &options, &CheckProgress::default()).unwrap();
    assert_eq!(report.damaged, 0, "{report:?}");
}

#[test]
fn nothing_shows_on_the_disk() {
    let dir = scratch();
    let (store, _) = filled(dir.path());
    let shows = |needle: &[u8]| holds(dir.path(), needle);
    for when in ["in use", "closed"] {
        for needle in
            [&NAME.as_bytes()[..16], &TEXT[..16], b"a-snapshot-with-", b"a-tag-with-a-lon", &unique(1, 16)]
        {
            assert_eq!(shows(needle), Vec::<PathBuf>::new(), "{when}: {:?}", String::from_utf8_lossy(needle));
        }
        if when == "in use" {
            store.meta.tidy().unwrap();
            store.index.flush().unwrap();
        }
    }
    let plain = gc_support::scratch();
    let store = Store::init(&plain.path().join("store"), &small_packs()).unwrap();
    put_bytes(&store, NAME, unique(1, 1 << 20)).unwrap();
    assert!(
        !holds(plain.path(), &NAME.as_bytes()[..16]).is_empty(),
        "the search finds what is not encrypted"
    );
    assert!(!holds(plain.path(), &unique(1, 16)).is_empty());
}

#[test]
fn it_works_as_a_plain_one() {
    let dir = scratch();
    let (store, _) = filled(dir.path());
    assert_eq!(read(&store, NAME), TEXT.repeat(20_000));
    put_bytes(&store, "again", unique(1, 3 << 20)).unwrap();
    gc_support::remove(&store, "random").unwrap();
    collect(&store, &thorough()).unwrap();
    is_sound(&store);
    drop(store);
    let store = gc_support::open(dir.path());
    assert_eq!(read(&store, "again"), unique(1, 3 << 20));
    let rows = store.meta.packs().unwrap();
    for row in rows.iter().filter(|row| row.is_committed()) {
        assert_eq!(store.backend.len(row.id).unwrap(), Some(row.bytes), "lengths are plain ones");
    }
}

#[test]
fn it_is_recovered_from_packs_and_a_slot() {
    let dir = scratch();
    let (store, key) = filled(dir.path());
    let (id, ring) = (store.config.id, store.config.ring_id().unwrap());
    drop(store);
    for lost in [&["meta.db", "meta.db-wal", "meta.db-shm"][..], &["store.toml", "meta.db"]] {
        lost.iter().for_each(|name| drop(std::fs::remove_file(dir.path().join("store").join(name))));
        let report = recover(&dir.path().join("store"), &RecoverProgress::default()).unwrap();
        assert_eq!(report.files, 2, "{report:?}");
        let store = gc_support::open(dir.path());
        assert!(store.config.is_encrypted() && store.config.id == id);
        assert_eq!(read(&store, NAME), TEXT.repeat(20_000));
        assert_eq!(holds(dir.path(), &NAME.as_bytes()[..16]), Vec::<PathBuf>::new());
    }
    let slots = slots::slots(&*gc_support::open(dir.path()).backend).unwrap();
    assert!(slots[0].open(&Secret::Key(key), ring).unwrap().is_some());
}

#[test]
fn it_is_copied_with_its_keys_with_new_ones_and_without() {
    let dir = scratch();
    let (store, _) = filled(dir.path());
    let copied = |from: &Store, name: &str, encryption: CopyEncryption| {
        let to = dir.path().join(name).join("store");
        let options = CopyOptions { to: to.clone(), packs: None, threads: 2, verify: true, encryption };
        let report = copy(from, &options, &CopyProgress::default()).unwrap();
        assert_eq!((report.files, report.problems.len()), (2, 0), "{report:?}");
        let store = Store::open(&to, false).unwrap();
        assert_eq!(read(&store, NAME), TEXT.repeat(20_000));
        is_sound(&store);
        store
    };
    let same = copied(&store, "same", CopyEncryption::Same);
    assert!(same.config.is_encrypted() && holds(&dir.path().join("same"), &TEXT[..16]).is_empty());
    let plain = copied(&same, "plain", CopyEncryption::Plain);
    assert!(
        !plain.config.is_encrypted() && !holds(&dir.path().join("plain"), &NAME.as_bytes()[..16]).is_empty()
    );
    // From the plain copy to other keys: what a user does to whom a key was stolen.
    let mut keys = NewKeys::new(plain.config.id).unwrap();
    keys.add(&Secret::Key(Key::random().unwrap()), "other").unwrap();
    let other = copied(&plain, "other", CopyEncryption::New(keys));
    assert_ne!(other.config.ring_id(), store.config.ring_id());
    let labels = |store: &Store| -> Vec<String> {
        let packs = store.config.open_uncached(store.dir(), Access::default()).unwrap();
        slots::slots(&*packs).unwrap().into_iter().map(|slot| slot.label).collect()
    };
    assert_eq!((labels(&same), labels(&other)), (vec!["laptop".to_string()], vec!["other".to_string()]));
    assert!(!plain.dir().join("keys").exists(), "no slot goes to a plain copy");
    drop((store, same, plain, other));

    let dir = scratch();
    let plain = Store::init(&dir.path().join("store"), &small_packs()).unwrap();
    put_bytes(&plain, NAME, TEXT.repeat(20_000)).unwrap();
    let mut keys = NewKeys::new(plain.config.id).unwrap();
    keys.add(&Secret::Key(Key::random().unwrap()), "").unwrap();
    let to = dir.path().join("sealed");
    let options = CopyOptions {
        to: to.clone(),
        packs: None,
        threads: 2,
        verify: true,
        encryption: CopyEncryption::New(keys),
    };
    for _ in 0..2 {
        copy(&plain, &options, &CopyProgress::default()).unwrap();
        put_bytes(&plain, "more", unique(4, 100_000)).unwrap();
    }
    let store = Store::open(&to, false).unwrap();
    assert!(store.config.is_encrypted() && holds(&to, &TEXT[..16]).is_empty());
    assert_eq!(read(&store, "more"), unique(4, 100_000));
    is_sound(&store);
}

/// A bit that is changed anywhere in packs, slots or the database is an error or harmless, and never
/// another content.
#[test]
fn changed_bits_never_change_a_content() {
    let dir = scratch();
    let (store, _) = filled(dir.path());
    store.meta.tidy().unwrap();
    drop(store);
    let wanted = TEXT.repeat(20_000);
    let kinds = ["packs", "meta.db", "keys"];
    for kind in kinds {
        let of_kind = |path: &PathBuf| path.strip_prefix(dir.path().join("store")).unwrap().starts_with(kind);
        for file in all_files(&dir.path().join("store")).into_iter().filter(of_kind) {
            let whole = std::fs::read(&file).unwrap();
            for at in (0..whole.len()).step_by((whole.len() / 12).max(1)) {
                let mut changed = whole.clone();
                changed[at] ^= 4;
                std::fs::write(&file, &changed).unwrap();
                let read = Store::open(&dir.path().join("store"), true)
                    .and_then(|store| gc_support::read_at(&store, outrigger_store::meta::At::Now, NAME));
                if let Ok(Some(read)) = read {
                    assert!(read == wanted, "{} byte {at}", file.display());
                }
            }
            std::fs::write(&file, &whole).unwrap();
        }
    }
    assert!(read(&gc_support::open(dir.path()), NAME) == wanted);
}

#[test]
fn the_last_key_stays() {
    let dir = scratch();
    let (store, key) = init(dir.path());
    let packs = store.config.open_uncached(store.dir(), Access::default()).unwrap();
    assert_eq!(remove_slot(&*packs, store.keys().unwrap(), "laptop").unwrap_err().kind(), ErrorKind::Invalid);
    let words = Secret::Passphrase("a passphrase of words".to_string().into());
    outrigger_store::keys::add_slot(&*packs, store.keys().unwrap(), &words, "words", Rights::All, None)
        .unwrap();
    assert!(
        remove_slot(&*packs, store.keys().unwrap(), "nothing")
            .unwrap_err()
            .to_string()
            .contains("passphrase `words`")
    );
    remove_slot(&*packs, store.keys().unwrap(), "laptop").unwrap();
    let left: Vec<Slot> = slots::slots(&*packs).unwrap();
    assert!(left.len() == 1 && left[0].open(&words, store.config.ring_id().unwrap()).unwrap().is_some());
    assert!(left[0].open(&Secret::Key(key), store.config.ring_id().unwrap()).unwrap().is_none());
}

#[test]
fn an_interrupted_init_is_begun_again_and_other_files_stay() {
    let dir = scratch();
    let (store, _) = init(dir.path());
    drop(store);
    std::fs::remove_file(dir.path().join("store/store.toml")).unwrap();
    drop(init(dir.path()));
    std::fs::create_dir_all(dir.path().join("own/store/keys")).unwrap();
    std::fs::write(dir.path().join("own/store/keys/house"), "the only copy").unwrap();
    let config = small_packs();
    let mut keys = NewKeys::new(config.id).unwrap();
    let config = StoreConfig { keyring: Some(keys.ring.id().number), ..config };
    keys.add(&Secret::Key(Key::random().unwrap()), "").unwrap();
    let error = Store::init_with(&dir.path().join("own/store"), &config, Some(&keys)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Exists);
    assert_eq!(std::fs::read(dir.path().join("own/store/keys/house")).unwrap(), b"the only copy");
}

#[test]
fn equal_files_are_stored_once() {
    let dir = scratch();
    let (store, _) = init(dir.path());
    let first = put_bytes(&store, "one", unique(7, 2 << 20)).unwrap();
    let before = gc_support::disk(&store);
    put_bytes(&store, "two", unique(7, 2 << 20)).unwrap();
    let more = gc_support::disk(&store) - before;
    assert!(more < 64 << 10, "{more} bytes more, {first:?}");
    assert!(path("two").to_string() == "two");
}

/// Whatever a program does with the store, also one that opens it for writing.
#[test]
fn a_key_that_only_reads_opens_a_store_that_takes_no_change() {
    let dir = scratch();
    let (store, _) = filled(dir.path());
    let reader = store.keys().unwrap().limited(Rights::ReadOnly).unwrap();
    drop(store);
    // As if this process had found that key.
    unlock::keep(Arc::new(reader));
    let store = gc_support::open(dir.path());
    assert!(store.is_read_only());
    let packs = store.backend.list().unwrap();
    let refused = [
        put_bytes(&store, "more", unique(2, 1 << 20)).map(drop),
        gc_support::remove(&store, NAME).map(drop),
        collect(&store, &thorough()).map(drop),
        ops::snapshots::create(&store, Some("mine"), "", &[]).map(drop),
        store.meta.delete_snapshot("a-snapshot-with-a-long-name"),
    ];
    for (number, refused) in refused.into_iter().enumerate() {
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::Denied, "change {number}");
    }
    let why = store.require_writable().unwrap_err().to_string();
    assert!(why.contains("--key-file"), "{why}");
    assert_eq!(read(&store, NAME), TEXT.repeat(20_000));
    is_sound(&store);
    assert_eq!(store.backend.list().unwrap(), packs);
    drop(store);
    let refused = recover(&dir.path().join("store"), &RecoverProgress::default()).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Denied);
}

/// A host that only stores: its packs are whole to others, and it can read none.
#[test]
fn a_key_that_only_stores_stores_once_and_reads_nothing() {
    let dir = scratch();
    let (store, _) = filled(dir.path());
    let all = Arc::clone(store.keys().unwrap());
    let stored = gc_support::disk(&store);
    drop(store);
    unlock::keep(Arc::new(all.limited(Rights::PutOnly).unwrap()));
    let store = gc_support::open(dir.path());
    // What another host has stored is found. After the index was lost, too.
    put_bytes(&store, "again", unique(1, 3 << 20)).unwrap();
    put_bytes(&store, "own", unique(2, 3 << 20)).unwrap();
    drop(store);
    std::fs::remove_dir_all(dir.path().join("store/index")).unwrap();
    let store = gc_support::open(dir.path());
    put_bytes(&store, "own again", unique(2, 3 << 20)).unwrap();
    let more = gc_support::disk(&store) - stored;
    assert!((3 << 20..(3 << 20) + (256 << 10)).contains(&more), "{more} bytes more");

    let at = outrigger_store::meta::At::Now;
    for name in [NAME, "random", "again", "own"] {
        let refused = gc_support::read_at(&store, at, name).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Denied, "{name}: {refused}");
        assert!(refused.to_string().contains("only stores in it"), "{refused}");
    }
    let options = CheckOptions { read_data: true, repair: false, threads: 2 };
    let refused = [
        check(&store, &options, &CheckProgress::default()).map(drop),
        collect(&store, &thorough()).map(drop),
        gc_support::remove(&store, NAME).map(drop),
        ops::snapshots::delete(&store, &["a-snapshot-with-a-long-name".to_string()]),
    ];
    for (number, refused) in refused.into_iter().enumerate() {
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::Denied, "{number}");
    }
    drop(store);
    assert_eq!(
        recover(&dir.path().join("store"), &RecoverProgress::default()).unwrap_err().kind(),
        ErrorKind::Denied
    );

    unlock::keep(all);
    let store = gc_support::open(dir.path());
    assert!(read(&store, "own") == unique(2, 3 << 20) && read(&store, "again") == unique(1, 3 << 20));
    is_sound(&store);
    collect(&store, &thorough()).unwrap();
    is_sound(&store);
    drop(store);
    // Also what is found without the database.
    std::fs::remove_file(dir.path().join("store/meta.db")).unwrap();
    recover(&dir.path().join("store"), &RecoverProgress::default()).unwrap();
    assert!(read(&gc_support::open(dir.path()), "own again") == unique(2, 3 << 20));
}
