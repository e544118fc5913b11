//! A lost database is rebuilt from the packs alone.

use crate::checking;

use checking::{
    add_pack, assert_same_or_unreadable, contents, make_store, open, pack_files, run_check, said, scratch,
};
use outrigger_format::catalogue::{Attributes, BlockBuilder, FileKind, OtherTimes, Record, Time};
use outrigger_format::{ChunkKind, Entry, Fingerprint, Root};
use outrigger_store::gc::{GcOptions, GcProgress, collect};
use outrigger_store::meta::{At, Change, Commit, Inode, SessionKind};
use outrigger_store::recover::{RecoverProgress, recover};
use outrigger_store::tree::StorePath;
use outrigger_store::{ErrorKind, Store};

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
    // The last pack holds the last catalogue block: cut within it, its commit is gone; everything
    // else is there.
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
    // Damaged packs are kept.
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

fn exact_attributes(kind: FileKind) -> Attributes {
    let time = |secs, nanos| Time { secs, nanos };
    Attributes {
        kind,
        mode: 0o750,
        uid: 5,
        gid: 6,
        mtime: time(7, 8),
        rdev: 0,
        target: Vec::new(),
        xattrs: Vec::new(),
        times: Some(OtherTimes { atime: time(9, 10), ctime: time(7, 11) }),
    }
}

fn name(parent: u64, name: &str, inode: Option<u64>) -> Change {
    Change::Name { parent, name: name.into(), inode }
}

/// Commits names and inodes, with a catalogue block for each of `parts`, all of one sequence.
fn commit_exact(store: &Store, pack: u64, parts: &[Vec<Change>]) {
    let (sequence, time) = (store.meta.next_sequence().unwrap(), 1000 + pack);
    let mut builder = BlockBuilder::default();
    // A pack each: one of them can be lost.
    for (pack, part) in (pack..).zip(parts) {
        for change in part.clone() {
            builder.push(&match change {
                Change::Name { parent, name, inode } => Record::Name { parent, name, inode },
                Change::Node { inode, parent, attributes, root, keep } => {
                    Record::Node { inode, parent, attributes, root, keep }
                }
                _ => unreachable!(),
            });
        }
        add_pack(store, pack, ChunkKind::Catalogue, &[builder.finish(sequence, time)]);
    }
    let session = store.session(SessionKind::Writer, "test").unwrap();
    let commit = Commit { packs: Vec::new(), changes: parts.concat(), time };
    store.meta.commit(session.id(), &commit).unwrap();
}

fn inode(store: &Store, path: &str) -> Inode {
    let path = StorePath::parse(path.as_bytes()).unwrap();
    outrigger_store::tree::require(&*store.meta, At::Now, &path).unwrap()
}

#[test]
fn names_and_inodes_come_back_as_they_were() {
    let dir = scratch();
    let path = make_store(dir.path());
    let store = open(&path);
    let number = |path| inode(&store, path).number;
    let (tree, deep, er, copies) =
        (number("tree"), number("tree/deep"), number("tree/deep/er"), number("tree/copies"));
    let (big, text, file) =
        (inode(&store, "tree/big"), inode(&store, "tree/text"), number("tree/deep/er/file"));
    let node = |inode, parent, root: &Root, keep| {
        let attributes = exact_attributes(FileKind::File);
        Change::Node { inode, parent, attributes, root: root.clone(), keep }
    };
    let new = store.meta.reserve_inodes(4).unwrap().start;
    let attributes = exact_attributes(FileKind::Directory);
    let made = Change::Node { inode: new, parent: 1, attributes, root: Root::Empty, keep: false };
    // A directory moves, and two files are exchanged. Between the two blocks neither the directory
    // nor `big` has a name.
    commit_exact(
        &store,
        600,
        &[
            vec![name(deep, "er", None), name(tree, "big", Some(text.number)), made],
            vec![name(new, "er", Some(er)), name(tree, "text", Some(big.number)), name(1, "new", Some(new))],
        ],
    );
    // One content is kept, another one is not; a name is replaced; hard links come and go.
    commit_exact(
        &store,
        610,
        &[
            vec![
                node(file, er, &big.root, true),
                node(text.number, tree, &Root::Empty, false),
                name(copies, "twin", Some(file)),
            ],
            vec![
                node(new + 1, new, &text.root, true),
                name(new, "a", Some(new + 1)),
                name(tree, "b", Some(new + 1)),
                name(deep, "linked", None),
            ],
        ],
    );
    commit_exact(&store, 620, &[vec![node(new + 1, new, &big.root, true), name(new, "a", None)]]);
    let before = contents(&store);
    let report = run_check(&store, false);
    assert!(report.findings.is_empty(), "{}", said(&report));
    assert!(before.contains_key("now: /new/er/file") && before.contains_key("version 1 of /tree/b"));
    drop(store);
    std::fs::remove_file(path.join("meta.db")).unwrap();
    let report = recover(&path, &RecoverProgress::default()).unwrap();
    assert!(report.problems.is_empty(), "{report:?}");
    let store = open(&path);
    assert_eq!(contents(&store), before);
    let report = run_check(&store, false);
    assert!(report.findings.is_empty(), "{}", said(&report));
    // The catalogue that the collector rewrites gives the same tree, with other times, too.
    for put in 0..40 {
        checking::put_all(&store, &dir.path().join("source"), &format!("again/{put}"));
    }
    let session = store.session(SessionKind::Writer, "test").unwrap();
    let gone = Change::Remove { parent: 1, name: b"again".to_vec(), recursive: true };
    let commit = Commit { packs: Vec::new(), changes: vec![gone], time: 5 };
    store.meta.commit(session.id(), &commit).unwrap();
    drop(session);
    let options = GcOptions { catalogue_min: 0, ..GcOptions::default() };
    assert!(collect(&store, &options, &GcProgress::default()).unwrap().catalogue_compacted);
    drop(store);
    std::fs::remove_file(path.join("meta.db")).unwrap();
    recover(&path, &RecoverProgress::default()).unwrap();
    assert_eq!(contents(&open(&path)), before);
}

#[test]
fn a_lost_block_costs_what_hangs_together_with_it() {
    let dir = scratch();
    let path = make_store(dir.path());
    let store = open(&path);
    let (big, text) = (inode(&store, "tree/big").root, inode(&store, "tree/text").root);
    let node = |inode, parent, kind, root| {
        let attributes = exact_attributes(kind);
        Change::Node { inode, parent, attributes, root, keep: false }
    };
    let new = store.meta.reserve_inodes(10).unwrap().start;
    let parts = [
        vec![
            name(new, "file", Some(new + 1)),
            name(1, "lost", Some(new + 2)),
            name(new + 2, "in it", Some(new + 3)),
            name(1, "kept", Some(new)),
        ],
        vec![node(new + 2, 1, FileKind::Directory, Root::Empty)],
        vec![
            node(new + 3, new + 2, FileKind::File, big),
            node(new + 1, new, FileKind::File, text),
            node(new, 1, FileKind::Directory, Root::Empty),
            name(1, "linked", Some(new + 1)),
        ],
    ];
    commit_exact(&store, 600, &parts);
    let mut before = contents(&store);
    drop(store);
    std::fs::remove_file(path.join("meta.db")).unwrap();
    let packs = pack_files(&path);
    let lost = packs.iter().find(|pack| pack.ends_with(format!("{:016x}.pack", 601))).unwrap();
    std::fs::remove_file(lost).unwrap();
    let report = recover(&path, &RecoverProgress::default()).unwrap();
    assert!(report.problems.iter().all(|problem| problem.contains("was left out")), "{report:?}");
    assert_eq!(report.problems.len(), 2, "{report:?}");
    let after = contents(&open(&path));
    before.retain(|name, _| !name.contains("/lost"));
    assert_eq!(after, before);
}

#[test]
fn half_a_move_is_no_removal() {
    let dir = scratch();
    let path = make_store(dir.path());
    let store = open(&path);
    let before = contents(&store);
    let (tree, text) = (inode(&store, "tree").number, inode(&store, "tree/text").number);
    let new = store.meta.reserve_inodes(1).unwrap().start;
    let nowhere = Root::Inline(vec![Entry::Chunk { fingerprint: Fingerprint([7; 32]), len: 9 }]);
    let attributes = exact_attributes(FileKind::File);
    let node = Change::Node { inode: new, parent: 1, attributes, root: nowhere, keep: false };
    let moved = vec![node, name(1, "new", Some(new)), name(1, "moved", Some(text))];
    commit_exact(&store, 600, &[vec![name(tree, "text", None)], moved]);
    drop(store);
    // The second block's pack was never sealed, and its content was never written.
    let packs = pack_files(&path);
    let torn = packs.iter().find(|pack| pack.ends_with(format!("{:016x}.pack", 601))).unwrap();
    let bytes = std::fs::read(torn).unwrap();
    std::fs::write(torn, &bytes[..bytes.len() - 40]).unwrap();
    std::fs::remove_file(path.join("meta.db")).unwrap();
    let report = recover(&path, &RecoverProgress::default()).unwrap();
    assert!(report.problems.iter().any(|problem| problem.contains("is not there: left out")), "{report:?}");
    assert_eq!(contents(&open(&path)), before);
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

/// As older programs wrote them for directories that mounts of a shared store had made, or as they
/// are when a block is lost.
#[test]
fn what_lies_in_directories_that_nothing_tells_of_is_where_it_can_be_found() {
    let dir = scratch();
    let path = make_store(dir.path());
    let store = open(&path);
    let kept = inode(&store, "tree/text");
    let put = |parent: u64, name: &str, inode: u64, kind: FileKind| {
        let root = if kind == FileKind::File { kept.root.clone() } else { Root::Empty };
        let (name, attributes) = (name.as_bytes().to_vec(), exact_attributes(kind));
        Record::Upsert { inode, parent, name, attributes, root, replace: false }
    };
    let mut sequence = 600;
    let mut block = |records: &[Record]| {
        let mut builder = BlockBuilder::default();
        records.iter().for_each(|record| builder.push(record));
        sequence += 1;
        add_pack(&store, sequence, ChunkKind::Catalogue, &[builder.finish(sequence, 7)]);
    };
    block(&[put(9001, "out", 9002, FileKind::File), put(9001, "sub", 9003, FileKind::Directory)]);
    block(&[
        put(9003, "more", 9004, FileKind::File),
        Record::Link { parent: 9005, name: b"link".to_vec(), inode: 9004 },
    ]);
    // This one is published later.
    block(&[put(9006, "late", 9007, FileKind::File)]);
    block(&[put(1, "known", 9006, FileKind::Directory), put(9006, "later", 9008, FileKind::File)]);
    drop(store);
    std::fs::remove_file(path.join("meta.db")).unwrap();
    let report = recover(&path, &RecoverProgress::default()).unwrap();
    let [problem] = &report.problems[..] else { panic!("{report:?}") };
    assert!(problem.contains("`/recovered-directories/directory-9001` and 1 more"), "{problem}");
    let store = open(&path);
    let lost = "recovered-directories";
    for path in ["directory-9001/out", "directory-9001/sub/more", "directory-9005/link"] {
        assert_eq!(inode(&store, &format!("{lost}/{path}")).root, kept.root, "{path}");
    }
    assert_eq!(inode(&store, "known/late").root, inode(&store, "known/later").root);
    assert_eq!(inode(&store, lost).attributes.mode, 0o700);
    assert!(run_check(&store, false).findings.is_empty());
    // When all are published, nothing is left of it.
    drop(store);
    let dir = scratch();
    let path = make_store(dir.path());
    let store = open(&path);
    let mut builder = BlockBuilder::default();
    let records = [put(9006, "late", 9007, FileKind::File), put(1, "known", 9006, FileKind::Directory)];
    records.iter().for_each(|record| builder.push(record));
    add_pack(&store, 600, ChunkKind::Catalogue, &[builder.finish(600, 7)]);
    drop(store);
    std::fs::remove_file(path.join("meta.db")).unwrap();
    let report = recover(&path, &RecoverProgress::default()).unwrap();
    assert!(report.problems.is_empty(), "{report:?}");
    assert!(!contents(&open(&path)).keys().any(|name| name.contains(lost)));
}
