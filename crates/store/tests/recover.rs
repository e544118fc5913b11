//! A lost database is rebuilt from the packs alone.

mod checking;

use checking::{
    add_pack, assert_same_or_unreadable, contents, make_store, open, pack_files, run_check, said, scratch,
};
use outrigger_format::catalogue::{Attributes, BlockBuilder, FileKind, Record, Time};
use outrigger_format::{ChunkKind, Root};
use outrigger_store::ErrorKind;
use outrigger_store::meta::SessionKind;
use outrigger_store::recover::{RecoverProgress, recover};

#[test]
fn a_deleted_database_comes_back_as_it_was() {
    let dir = scratch();
    let path = make_store(dir.path());
    let store = open(&path);
    let before = contents(&store);
    let report = run_check(&store, false);
    assert!(report.findings.is_empty(), "{}", said(&report));
    assert!(report.nodes >= 8 && report.blocks > 5, "{report:?}");
    drop(store);
    std::fs::remove_file(path.join("meta.db")).unwrap();
    let report = recover(&path, &RecoverProgress::default()).unwrap();
    assert!(report.problems.is_empty(), "{report:?}");
    assert_eq!((report.snapshots, report.old_database.clone()), (2, None), "{report:?}");
    let store = open(&path);
    let unreadable = assert_same_or_unreadable(&before, &contents(&store), "recovered");
    assert!(unreadable.is_empty(), "{unreadable:?}");
    let report = run_check(&store, false);
    assert!(report.findings.is_empty(), "{}", said(&report));
    // And it can be written again.
    checking::put_all(&store, &dir.path().join("source"), "tree");
    assert!(run_check(&store, false).findings.is_empty());
}

#[test]
fn a_destroyed_database_is_kept_aside() {
    let dir = scratch();
    let path = make_store(dir.path());
    let before = contents(&open(&path));
    let mut bytes = std::fs::read(path.join("meta.db")).unwrap();
    bytes[100..].fill(0);
    std::fs::write(path.join("meta.db"), &bytes).unwrap();
    let report = recover(&path, &RecoverProgress::default()).unwrap();
    let aside = report.old_database.clone().unwrap();
    assert_eq!(std::fs::read(aside).unwrap(), bytes);
    assert_eq!(
        assert_same_or_unreadable(&before, &contents(&open(&path)), "recovered"),
        Vec::<String>::new()
    );
}

#[test]
fn a_torn_last_pack_is_no_obstacle() {
    let dir = scratch();
    let path = make_store(dir.path());
    let before = contents(&open(&path));
    // The last pack holds the last catalogue block: cut within it, its commit is gone; all else is there.
    let last = pack_files(&path).into_iter().max_by_key(|path| path.file_name().unwrap().to_owned()).unwrap();
    let bytes = std::fs::read(&last).unwrap();
    for keep in [bytes.len() - 1, bytes.len() / 2, 70, 10, 0] {
        let copy = scratch();
        let path = copy.path().join("store");
        checking::copy_store(&dir.path().join("store"), &path);
        let torn = path.join(last.strip_prefix(dir.path().join("store")).unwrap());
        std::fs::write(&torn, &bytes[..keep]).unwrap();
        std::fs::remove_file(path.join("meta.db")).unwrap();
        let report = recover(&path, &RecoverProgress::default()).unwrap();
        assert!(!report.problems.is_empty(), "{keep}");
        let store = open(&path);
        let after = contents(&store);
        if keep == bytes.len() - 1 {
            assert_eq!(before, after, "only the footer was lost");
        }
        let report = run_check(&store, false);
        assert_eq!(report.damaged, 0, "{keep}: {}", said(&report));
        assert!(after.contains_key("snapshot second"));
    }
}

#[test]
fn a_store_in_use_is_refused() {
    let dir = scratch();
    let path = make_store(dir.path());
    let store = open(&path);
    let session = store.session(SessionKind::Writer, "test").unwrap();
    let error = recover(&path, &RecoverProgress::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy);
    drop(session);
    let error = recover(dir.path(), &RecoverProgress::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
}

#[test]
fn footers_and_the_database_lost_together() {
    let dir = scratch();
    let path = make_store(dir.path());
    let before = contents(&open(&path));
    std::fs::remove_file(path.join("meta.db")).unwrap();
    let packs = pack_files(&path);
    for pack in &packs {
        let len = std::fs::metadata(pack).unwrap().len() as usize;
        checking::flip(pack, len - 20, 1);
    }
    let report = recover(&path, &RecoverProgress::default()).unwrap();
    assert_eq!((report.packs, report.packs_salvaged), (0, packs.len() as u64), "{report:?}");
    let store = open(&path);
    assert_eq!(contents(&store), before);
    assert_eq!(run_check(&store, false).damaged, 0);
    // What was damaged is kept.
    assert_eq!(std::fs::read_dir(path.join("packs-damaged")).unwrap().count(), packs.len());
}

#[test]
fn damaged_data_costs_only_what_it_held() {
    let dir = scratch();
    let path = make_store(dir.path());
    let before = contents(&open(&path));
    std::fs::remove_file(path.join("meta.db")).unwrap();
    checking::flip(&pack_files(&path)[0], 1000, 1);
    recover(&path, &RecoverProgress::default()).unwrap();
    let store = open(&path);
    assert_same_or_unreadable(&before, &contents(&store), "a flipped bit");
    // Named even if another copy served every reader.
    let report = run_check(&store, false);
    assert!(report.damaged > 0, "{}", said(&report));
}

#[test]
fn a_reset_counts_once_it_has_ended() {
    let block = |ends: bool| {
        let attributes = Attributes {
            kind: FileKind::Directory,
            mode: 0o700,
            uid: 0,
            gid: 0,
            mtime: Time::default(),
            rdev: 0,
            target: Vec::new(),
            xattrs: Vec::new(),
            times: None,
        };
        let (name, root) = (b"alone".to_vec(), Root::Empty);
        let mut builder = BlockBuilder::default();
        builder.push(&Record::Reset);
        builder.push(&Record::Upsert { inode: 9, parent: 1, name, attributes, root, replace: false });
        if ends {
            builder.push(&Record::ResetEnd);
        }
        builder.finish(1 << 40, 5)
    };
    for ends in [false, true] {
        let dir = scratch();
        let path = make_store(dir.path());
        let store = open(&path);
        let before = contents(&store);
        // Twice, as if the collector had copied it: it counts once.
        add_pack(&store, 500, ChunkKind::Catalogue, &[block(ends)]);
        add_pack(&store, 501, ChunkKind::Catalogue, &[block(ends)]);
        drop(store);
        std::fs::remove_file(path.join("meta.db")).unwrap();
        let report = recover(&path, &RecoverProgress::default()).unwrap();
        assert!(report.problems.is_empty(), "{report:?}");
        let after = contents(&open(&path));
        if ends {
            assert_eq!(after.keys().collect::<Vec<_>>(), ["now: /alone"]);
        } else {
            assert_eq!(after, before);
        }
    }
}
