//! Heads: a check tells a store that was set back from one that people have worked on, and a
//! database that differs from its packs.
#![cfg(feature = "testing")]

use std::path::Path;
use std::sync::Arc;

use crate::{checking, gc_support};

use checking::{add_pack, contents, copy_store, make_store, open, pack_files, put_all, said};
use gc_support::{put_bytes, remove, small_packs};
use outrigger_format::catalogue::{BlockBuilder, Record};
use outrigger_format::{ChunkKind, PackId};
use outrigger_store::catalogue::Head;
use outrigger_store::check::{CheckOptions, CheckProgress, CheckReport, FindingKind, Trust, check_since};
use outrigger_store::gc::{GcOptions, GcProgress, GcReport, collect};
use outrigger_store::keys::{Key, NewKeys, Rights, Secret, unlock};
use outrigger_store::meta::{Change, Commit, SessionKind};
use outrigger_store::recover::{RecoverProgress, recover, recover_since};
use outrigger_store::testing::database;
use outrigger_store::write::append_records;
use outrigger_store::{ErrorKind, Store, StoreConfig, ops};

fn since(store: &Store, trust: Trust) -> CheckReport {
    let options = CheckOptions { read_data: false, repair: false, threads: 2 };
    check_since(store, &options, trust, &CheckProgress::default()).unwrap()
}

/// A head, after a check that found nothing.
#[track_caller]
fn head(store: &Store) -> Head {
    sound(store, Trust::Present)
}

#[track_caller]
fn sound(store: &Store, trust: Trust) -> Head {
    let report = since(store, trust);
    assert_eq!(report.damaged, 0, "{}", said(&report));
    report.head.expect("nothing is wrong").parse().unwrap()
}

/// The findings of a check that gives no new head.
#[track_caller]
fn told(store: &Store, trust: Trust) -> String {
    let report = since(store, trust);
    assert!(report.damaged > 0 && report.head.is_none(), "{}", said(&report));
    let of_trust = report.findings.iter().filter(|finding| finding.kind == FindingKind::Trust);
    of_trust.map(|finding| format!("{}\n", finding.what)).collect()
}

/// Makes the catalogue grow, and collects.
fn collect_grown(store: &Store) -> GcReport {
    for _ in 0..60 {
        put_bytes(store, "more", b"more".to_vec()).unwrap();
        remove(store, "more").unwrap();
    }
    let options = GcOptions { catalogue_min: 0, ..GcOptions::default() };
    collect(store, &options, &GcProgress::default()).unwrap()
}

fn remove_database(path: &Path) {
    for name in ["meta.db", "meta.db-wal", "meta.db-shm"] {
        let _ = std::fs::remove_file(path.join(name));
    }
}

/// Puts back the database that `from` has.
fn put_back_database(from: &Path, to: &Path) {
    remove_database(to);
    std::fs::copy(from.join("meta.db"), to.join("meta.db")).unwrap();
}

fn changes(store: &Store) {
    let session = store.session(SessionKind::Writer, "test").unwrap();
    let change = |change| {
        let commit = Commit { packs: Vec::new(), changes: vec![change], time: 5 };
        store.meta.commit(session.id(), &commit).unwrap();
    };
    change(Change::Remove { parent: 1, name: b"tree".to_vec(), recursive: true });
}

#[test]
fn all_heads_stay_valid_through_honest_work() {
    let dir = checking::scratch();
    let path = make_store(dir.path());
    let store = open(&path);
    let first = head(&store);
    assert_eq!(head(&store), first, "nothing has changed");
    put_all(&store, &dir.path().join("source"), "again");
    ops::snapshots::create(&store, Some("third"), "x", &["t".into()]).unwrap();
    ops::snapshots::delete(&store, &["first".into()]).unwrap();
    ops::edit::remove(&store, &[gc_support::path("again/deep")], true, None).unwrap();
    let second = sound(&store, Trust::Since(first));
    assert_ne!(second, first);
    // The catalogue is written anew, and what the heads stood for is gone.
    assert!(collect_grown(&store).catalogue_compacted);
    for head in [first, second] {
        sound(&store, Trust::Since(head));
    }
    drop(store);
    // Another process goes on, and the catalogue is written anew once more.
    let store = open(&path);
    put_all(&store, &dir.path().join("source"), "tree");
    let third = head(&store);
    assert!(collect_grown(&store).catalogue_compacted);
    let before = contents(&store);
    drop(store);
    remove_database(&path);
    let report = recover_since(&path, Some(&first), &RecoverProgress::default()).unwrap();
    assert_eq!(report.problems, Vec::<String>::new());
    let store = open(&path);
    assert_eq!(contents(&store), before);
    for head in [first, second, third] {
        sound(&store, Trust::Since(head));
    }
}

#[test]
fn a_database_that_is_set_back_is_told() {
    let dir = checking::scratch();
    let path = make_store(dir.path());
    let store = open(&path);
    let first = head(&store);
    store.meta.tidy().unwrap();
    drop(store);
    let (old, later) = (dir.path().join("old"), dir.path().join("later"));
    copy_store(&path, &old);
    let store = open(&path);
    put_bytes(&store, "tree/new", b"new".to_vec()).unwrap();
    let second = head(&store);
    store.meta.tidy().unwrap();
    drop(store);
    copy_store(&path, &later);
    // The database alone.
    put_back_database(&old, &path);
    for trust in [Trust::Present, Trust::Since(first), Trust::Since(second)] {
        let said = told(&open(&path), trust);
        assert!(said.contains("/tree/new: is missing in the database"), "{said}");
    }
    // The store as a whole: only who knows the later head sees it.
    let store = open(&old);
    sound(&store, Trust::Since(first));
    let said = told(&store, Trust::Since(second));
    assert!(said.contains("does not have this head"), "{said}");
    drop(store);
    remove_database(&old);
    let refused = recover_since(&old, Some(&second), &RecoverProgress::default()).unwrap_err();
    assert!(refused.kind() == ErrorKind::Damaged && refused.to_string().contains("this head"), "{refused}");
    assert!(!old.join("meta.db").exists());
    recover_since(&old, Some(&first), &RecoverProgress::default()).unwrap();
    sound(&open(&later), Trust::Since(second));
}

/// Rows that were valid once, with their checksums.
#[test]
fn rows_that_are_set_back_are_told() {
    let dir = checking::scratch();
    let path = make_store(dir.path());
    let store = open(&path);
    put_bytes(&store, "tree/x", b"one".to_vec()).unwrap();
    let first = head(&store);
    store.meta.tidy().unwrap();
    drop(store);
    let old = dir.path().join("old");
    copy_store(&path, &old);
    let store = open(&path);
    put_bytes(&store, "tree/x", b"two".to_vec()).unwrap();
    let session = store.session(SessionKind::Writer, "test").unwrap();
    outrigger_store::write::set_policy(&store, &session, 1, "codec", Some("lz4")).unwrap();
    drop(session);
    ops::snapshots::hold(&store, &["second".into()], true).unwrap();
    sound(&store, Trust::Since(first));
    store.meta.tidy().unwrap();
    drop(store);
    for (rows, wanted) in [
        (
            "REPLACE INTO inode (number, epoch, traits, links, version, mtime_secs, mtime_nanos, time, stamp, special, root, times) \
             SELECT number, epoch, traits, links, version, mtime_secs, mtime_nanos, time, stamp, special, root, times FROM old.inode \
             WHERE number IN (SELECT inode FROM old.dentry WHERE name = x'78')",
            "/tree/x: content",
        ),
        ("UPDATE policy SET value = 'none' WHERE key = 'codec' AND inode = 1", "/: policies"),
        ("DELETE FROM policy WHERE inode = 1", "/: policies"),
        (
            "DELETE FROM snapshot_tag WHERE tag = 'held:yes'",
            "snapshot second has another time, or other tags",
        ),
        (
            "UPDATE snapshot SET name = 'zeroth' WHERE name = 'second'",
            "snapshot zeroth is not in the catalogue",
        ),
    ] {
        let copy = dir.path().join("copy");
        let _ = std::fs::remove_dir_all(&copy);
        copy_store(&path, &copy);
        let connection = database(&copy.join("meta.db")).unwrap();
        connection.execute("ATTACH ?1 AS old", [old.join("meta.db").display().to_string()]).unwrap();
        assert!(connection.execute(rows, []).unwrap() > 0, "{rows}");
        drop(connection);
        let said = told(&open(&copy), Trust::Since(first));
        assert!(said.contains(wanted), "{rows}: {said}");
    }
    sound(&open(&path), Trust::Since(first));
}

#[test]
fn packs_that_are_taken_away_or_put_back_are_told() {
    let dir = checking::scratch();
    let path = make_store(dir.path());
    let store = open(&path);
    head(&store);
    for name in ["one", "two", "three"] {
        put_bytes(&store, name, name.as_bytes().to_vec()).unwrap();
    }
    let before = head(&store);
    store.meta.tidy().unwrap();
    let meta: Vec<PackId> = {
        let rows = store.meta.packs().unwrap();
        rows.iter().filter(|row| row.kind == outrigger_format::PackKind::Meta).map(|row| row.id).collect()
    };
    drop(store);
    // Each pack of the catalogue, with its row.
    for id in meta {
        let copy = dir.path().join("copy");
        let _ = std::fs::remove_dir_all(&copy);
        copy_store(&path, &copy);
        let file = pack_files(&copy).into_iter().find(|file| file.ends_with(format!("{id}.pack"))).unwrap();
        std::fs::remove_file(file).unwrap();
        let connection = database(&copy.join("meta.db")).unwrap();
        connection.execute("DELETE FROM pack WHERE id = ?1", [id.0 as i64]).unwrap();
        drop(connection);
        let said = told(&open(&copy), Trust::Since(before));
        assert!(said.contains("is missing") || said.contains("this head"), "{id}: {said}");
        remove_database(&copy);
        let problems = recover(&copy, &RecoverProgress::default()).unwrap().problems;
        let last = said.contains("this head");
        assert!(last || problems.iter().any(|what| what.contains("is missing")), "{problems:?}");
    }
    // A catalogue that was superseded comes back: nobody believes it.
    let old = dir.path().join("old");
    copy_store(&path, &old);
    let store = open(&path);
    remove(&store, "one").unwrap();
    assert!(collect_grown(&store).catalogue_compacted);
    let after = contents(&store);
    sound(&store, Trust::Since(before));
    drop(store);
    for file in pack_files(&old) {
        let back = path.join(file.strip_prefix(&old).unwrap());
        if !back.exists() {
            std::fs::copy(&file, &back).unwrap();
        }
    }
    let report = since(&open(&path), Trust::Since(before));
    assert!(report.findings.iter().any(|finding| finding.what.contains("stale")), "{}", said(&report));
    remove_database(&path);
    recover_since(&path, Some(&before), &RecoverProgress::default()).unwrap();
    let store = open(&path);
    assert_eq!(contents(&store), after);
    sound(&store, Trust::Since(before));
}

/// Nobody knows better than the database here, so this is an attacker's work.
#[test]
fn a_database_that_differs_is_not_written_into_the_catalogue() {
    let dir = checking::scratch();
    let path = make_store(dir.path());
    let store = open(&path);
    let first = head(&store);
    changes(&store);
    let report = collect_grown(&store);
    assert!(report.catalogue_differs && !report.catalogue_compacted, "{report:?}");
    let said = told(&store, Trust::Since(first));
    assert!(said.contains("/tree: is missing in the database"), "{said}");
    // A repair of lost blocks takes the database as it is, and earlier heads are worth nothing.
    put_bytes(&store, "last", b"last".to_vec()).unwrap();
    let meta = |row: &outrigger_store::meta::PackRow| row.kind == outrigger_format::PackKind::Meta;
    let lost = store.meta.packs().unwrap().into_iter().filter(meta).map(|row| row.id).max().unwrap();
    let file = pack_files(&path).into_iter().find(|file| file.ends_with(format!("{lost}.pack"))).unwrap();
    let mut bytes = std::fs::read(&file).unwrap();
    bytes[110..150].fill(0x55);
    std::fs::write(&file, &bytes).unwrap();
    drop(store);
    let store = open(&path);
    let options = CheckOptions { read_data: true, repair: true, threads: 2 };
    outrigger_store::check::check(&store, &options, &CheckProgress::default()).unwrap();
    drop(store);
    let store = open(&path);
    let said = told(&store, Trust::Since(first));
    assert!(said.contains("was written anew since from a database that differed"), "{said}");
    let second = head(&store);
    sound(&store, Trust::Since(second));
}

#[test]
fn a_head_of_another_store_is_refused() {
    let dir = checking::scratch();
    let (one, other) = (dir.path().join("one"), dir.path().join("other"));
    let (one, other) =
        (Store::init(&one, &small_packs()).unwrap(), Store::init(&other, &small_packs()).unwrap());
    put_bytes(&one, "a", b"a".to_vec()).unwrap();
    put_bytes(&other, "a", b"a".to_vec()).unwrap();
    let head = head(&one);
    let said = told(&other, Trust::Since(head));
    assert!(said.contains("another store"), "{said}");
    let name = other.dir().to_path_buf();
    drop(other);
    let refused = recover_since(&name, Some(&head), &RecoverProgress::default()).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Invalid);
}

/// A pack that is right in all but its key: only in a store that is not encrypted can it be made.
#[test]
fn a_forged_pack_is_told() {
    let dir = checking::scratch();
    let path = make_store(dir.path());
    let store = open(&path);
    let first = head(&store);
    let mut builder = BlockBuilder::default();
    builder.push(&Record::Unlink { parent: 1, name: b"tree".to_vec() });
    add_pack(&store, 500, ChunkKind::Catalogue, &[builder.finish(1 << 20, 5)]);
    let said = told(&store, Trust::Since(first));
    assert!(said.contains("/tree: is not in the catalogue"), "{said}");
}

/// A host that only stores writes a catalogue that would supersede all others.
#[test]
fn a_reset_by_a_key_that_only_stores_counts_for_nobody() {
    let dir = gc_support::scratch();
    let config = small_packs();
    let mut keys = NewKeys::new(config.id).unwrap();
    keys.add(&Secret::Key(Key::random().unwrap()), "all").unwrap();
    let config = StoreConfig { keyring: Some(keys.ring.id().number), ..config };
    let store = Store::init_with(&dir.path().join("store"), &config, Some(&keys)).unwrap();
    for name in ["a", "b"] {
        put_bytes(&store, name, name.as_bytes().to_vec()).unwrap();
    }
    let (first, all) = (head(&store), Arc::clone(store.keys().unwrap()));
    let before = contents(&store);
    drop(store);
    unlock::keep(Arc::new(all.limited(Rights::PutOnly).unwrap()));
    let store = gc_support::open(dir.path());
    let session = store.session(SessionKind::Writer, "put").unwrap();
    append_records(&store, &session, [Ok(Record::Reset)].into_iter()).unwrap();
    drop((session, store));
    unlock::keep(all);
    let store = gc_support::open(dir.path());
    let said = told(&store, Trust::Since(first));
    assert!(said.contains("nobody who may do that has sealed it"), "{said}");
    let options = GcOptions { catalogue_min: 0, ..GcOptions::default() };
    collect(&store, &options, &GcProgress::default()).unwrap();
    // The collector has removed it, and nothing else.
    sound(&store, Trust::Since(first));
    assert_eq!(contents(&store), before);
    assert!(collect_grown(&store).catalogue_compacted);
    sound(&store, Trust::Since(first));
    drop(store);
    remove_database(&dir.path().join("store"));
    recover_since(&dir.path().join("store"), Some(&first), &RecoverProgress::default()).unwrap();
    assert_eq!(contents(&gc_support::open(dir.path())), before);
}

#[test]
fn the_head_of_an_empty_store_stays_valid() {
    let dir = checking::scratch();
    let store = Store::init(&dir.path().join("store"), &small_packs()).unwrap();
    let first = head(&store);
    assert_eq!(head(&store), first, "nothing has changed");
    put_bytes(&store, "file", b"text".to_vec()).unwrap();
    assert!(collect_grown(&store).catalogue_compacted);
    sound(&store, Trust::Since(first));
}

/// After an honest loss the collector makes a catalogue of which heads can be taken again.
#[test]
fn a_lost_block_is_not_the_end_of_heads() {
    let dir = checking::scratch();
    let path = make_store(dir.path());
    let store = open(&path);
    let first = head(&store);
    let before = pack_files(&path);
    put_bytes(&store, "lost", b"text".to_vec()).unwrap();
    let after = pack_files(&path);
    put_bytes(&store, "later", b"other".to_vec()).unwrap();
    drop(store);
    for pack in after.iter().filter(|pack| !before.contains(pack)) {
        std::fs::remove_file(pack).unwrap();
    }
    remove_database(&path);
    recover(&path, &RecoverProgress::default()).unwrap();
    let store = open(&path);
    let said = told(&store, Trust::Since(first));
    assert!(said.contains("is missing"), "{said}");
    let report = collect(&store, &GcOptions::default(), &GcProgress::default()).unwrap();
    assert!(report.catalogue_compacted);
    let next = head(&store);
    sound(&store, Trust::Since(next));
    let said = told(&store, Trust::Since(first));
    assert!(said.contains("written anew"), "{said}");
}
