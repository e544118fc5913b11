//! Stores that lost a part of themselves: `store.toml`, directories, packs. Nothing begins over
//! what is left, and `recover` goes on from it.

use crate::checking;

use std::path::Path;

use checking::{
    assert_same_or_unreadable, contents, copy_store, make_store, open, pack_files, put_all, run_check, said,
    scratch,
};
use outrigger_store::recover::{RecoverProgress, recover};
use outrigger_store::{ErrorKind, Profile, Store};

fn begin(path: &Path) -> outrigger_store::Result<Store> {
    Store::init(path, &Profile::Default.config().unwrap())
}

#[test]
fn init_does_not_begin_over_a_store() {
    let dir = scratch();
    let path = make_store(dir.path());
    let before = contents(&open(&path));
    std::fs::rename(path.join("store.toml"), dir.path().join("kept")).unwrap();
    let database = std::fs::read(path.join("meta.db")).unwrap();
    let error = Store::open(&path, false).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Damaged);
    assert!(error.to_string().contains("recover") && !error.to_string().contains("init"), "{error}");
    let error = begin(&path).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Exists);
    assert!(error.to_string().contains("packs and a database"), "{error}");
    // Neither over packs alone, nor over a database alone, nor over one that cannot be read.
    let aside = dir.path().join("aside");
    std::fs::rename(path.join("meta.db"), &aside).unwrap();
    assert_eq!(begin(&path).unwrap_err().kind(), ErrorKind::Exists);
    std::fs::rename(&aside, path.join("meta.db")).unwrap();
    std::fs::rename(path.join("packs"), &aside).unwrap();
    assert_eq!(begin(&path).unwrap_err().kind(), ErrorKind::Exists);
    std::fs::write(path.join("meta.db"), vec![7; 5000]).unwrap();
    assert_eq!(begin(&path).unwrap_err().kind(), ErrorKind::Exists);
    std::fs::rename(&aside, path.join("packs")).unwrap();
    std::fs::write(path.join("meta.db"), database).unwrap();
    std::fs::rename(dir.path().join("kept"), path.join("store.toml")).unwrap();
    assert_eq!(contents(&open(&path)), before);
}

#[test]
fn an_init_that_was_interrupted_is_begun_again() {
    let dir = scratch();
    let path = dir.path().join("store");
    drop(begin(&path).unwrap());
    std::fs::remove_file(path.join("store.toml")).unwrap();
    assert_eq!(Store::open(&path, false).unwrap_err().kind(), ErrorKind::NotFound);
    drop(begin(&path).unwrap());
    std::fs::remove_file(path.join("store.toml")).unwrap();
    std::fs::write(path.join("meta.db"), b"").unwrap();
    drop(begin(&path).unwrap());
}

#[test]
fn recover_makes_a_lost_or_damaged_configuration_anew() {
    let dir = scratch();
    let path = make_store(dir.path());
    let store = open(&path);
    let (before, id) = (contents(&store), store.config.id);
    drop(store);
    let text = std::fs::read_to_string(path.join("store.toml")).unwrap();
    for damaged in [None, Some(text.replace("zstd", "zstx"))] {
        match &damaged {
            None => std::fs::remove_file(path.join("store.toml")).unwrap(),
            Some(text) => std::fs::write(path.join("store.toml"), text).unwrap(),
        }
        let report = recover(&path, &RecoverProgress::default()).unwrap();
        assert_eq!(report.problems.len(), 1, "{report:?}");
        assert!(report.problems[0].contains("was rebuilt"), "{report:?}");
        let store = open(&path);
        assert_eq!(store.config.id, id);
        let unreadable = assert_same_or_unreadable(&before, &contents(&store), "recovered");
        assert!(unreadable.is_empty(), "{unreadable:?}");
        assert_eq!(run_check(&store, false).damaged, 0);
        put_all(&store, &dir.path().join("source"), "more");
        ops_remove(&store, "more");
        if let Some(text) = damaged {
            assert_eq!(std::fs::read_to_string(path.join("store.toml.damaged")).unwrap(), text);
        }
    }
}

fn ops_remove(store: &Store, name: &str) {
    let path = outrigger_store::tree::StorePath::parse(name.as_bytes()).unwrap();
    outrigger_store::ops::edit::remove(store, &[path], true, None).unwrap();
}

#[test]
fn what_is_set_aside_is_never_set_aside_over() {
    let dir = scratch();
    let path = make_store(dir.path());
    let mut aside = Vec::new();
    for _ in 0..4 {
        let before = std::fs::read(path.join("meta.db")).unwrap();
        let report = recover(&path, &RecoverProgress::default()).unwrap();
        aside.push((report.old_database.unwrap(), before));
    }
    for (path, bytes) in aside {
        assert!(std::fs::read(&path).unwrap() == bytes, "{}", path.display());
    }
}

#[test]
fn empty_directories_are_made_again_and_lost_packs_are_said_to_be_lost() {
    let dir = scratch();
    let path = dir.path().join("empty");
    drop(begin(&path).unwrap());
    for name in ["packs", "sessions", "index"] {
        std::fs::remove_dir_all(path.join(name)).unwrap();
    }
    drop(open(&path));
    assert!(["packs", "sessions", "index"].iter().all(|name| path.join(name).is_dir()));

    let path = make_store(dir.path());
    let before = contents(&open(&path));
    std::fs::remove_dir_all(path.join("sessions")).unwrap();
    assert_eq!(contents(&open(&path)), before);
    let kept = dir.path().join("kept");
    std::fs::rename(path.join("packs"), &kept).unwrap();
    let error = Store::open(&path, false).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Damaged);
    assert!(error.to_string().contains("packs is missing"), "{error}");
    assert_eq!(recover(&path, &RecoverProgress::default()).unwrap_err().kind(), ErrorKind::Damaged);
    std::fs::rename(&kept, path.join("packs")).unwrap();
    assert_eq!(contents(&open(&path)), before);
}

#[test]
fn an_empty_database_is_damage_that_recover_mends() {
    let dir = scratch();
    let path = make_store(dir.path());
    let before = contents(&open(&path));
    for bytes in [&b""[..], b"nothing of the kind"] {
        std::fs::write(path.join("meta.db"), bytes).unwrap();
        let error = Store::open(&path, false).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Damaged);
        assert!(error.to_string().contains("recover"), "{error}");
    }
    recover(&path, &RecoverProgress::default()).unwrap();
    assert!(assert_same_or_unreadable(&before, &contents(&open(&path)), "recovered").is_empty());
}

#[test]
fn damaged_rows_are_said_in_words() {
    let dir = scratch();
    let path = make_store(dir.path());
    let database = |name: &str| {
        let copy = dir.path().join(name);
        copy_store(&path, &copy);
        (outrigger_store::testing::database(&copy.join("meta.db")).unwrap(), copy)
    };
    let (db, copy) = database("totals");
    db.execute("UPDATE state SET files = files + 7", []).unwrap();
    drop(db);
    let report = said(&run_check(&open(&copy), false));
    assert!(report.contains("the totals say") && !report.contains("TreeTotals"), "{report}");
    let (db, copy) = database("epoch");
    db.execute("UPDATE state SET epoch = 9223372036854775807", []).unwrap();
    drop(db);
    let error = outrigger_store::ops::snapshots::create(&open(&copy), Some("x"), "x", &[]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Damaged, "{error}");
    assert!(!pack_files(&copy).is_empty());
}

#[test]
fn a_missing_pack_is_given_up_when_nothing_needs_it() {
    let dir = scratch();
    let path = make_store(dir.path());
    let wanted = contents(&open(&path));
    let mut mended = 0;
    for pack in pack_files(&path) {
        let copy = dir.path().join("copy");
        copy_store(&path, &copy);
        std::fs::remove_file(copy.join(pack.strip_prefix(&path).unwrap())).unwrap();
        let store = open(&copy);
        let report = run_check(&store, false);
        let is_needed = report.findings.iter().any(|finding| !finding.mendable);
        let report = run_check(&store, true);
        assert_eq!(report.damaged > 0, is_needed, "{}: {}", pack.display(), said(&report));
        if is_needed {
            assert!(said(&report).contains("put --rescan"), "{}", said(&report));
            // All that ever referred to it goes.
            ops_remove(&store, "tree");
            for snapshot in ["first", "second"] {
                let names = [snapshot.to_string()];
                outrigger_store::ops::snapshots::delete(&store, &names).unwrap();
            }
            store.meta.purge_history().unwrap();
            put_all(&store, &dir.path().join("source"), "tree");
            drop(store);
            let store = open(&copy);
            let report = run_check(&store, true);
            assert_eq!(report.damaged, 0, "{}: {}", pack.display(), said(&report));
            mended += 1;
        } else {
            assert_eq!(contents(&store), wanted);
        }
        let store = open(&copy);
        assert_eq!(run_check(&store, false).findings, Vec::new());
        outrigger_store::gc::collect(&store, &Default::default(), &Default::default()).unwrap();
        assert_eq!(run_check(&store, false).damaged, 0);
        drop(store);
        // And the packs alone say the same.
        recover(&copy, &RecoverProgress::default()).unwrap();
        assert_eq!(run_check(&open(&copy), false).damaged, 0);
        std::fs::remove_dir_all(&copy).unwrap();
    }
    assert!(mended > 0);
}
