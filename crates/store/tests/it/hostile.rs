//! A store is untrusted input: whatever it contains, nothing is written outside the target, nothing
//! is walked for ever, nothing panics.

use crate::checking;

use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};

use checking::{add_pack, fingerprint, make_store, open, pack_files, run_check, said, scratch};
use outrigger_format::catalogue::{Attributes, FileKind, Time};
use outrigger_format::{ChunkKind, Entry, Fingerprint, Node, PACK_HEADER_LEN, Put, Root, checksum};
use outrigger_store::check::{CheckOptions, CheckProgress, check};
use outrigger_store::local::get::{GetOptions, restore};
use outrigger_store::meta::{At, Change, Commit, ROOT_INODE, SessionKind};
use outrigger_store::read::Reader;
use outrigger_store::tree::{StorePath, require};
use outrigger_store::write::{Progress, Skipped};
use outrigger_store::{ErrorKind, Store};
use rusqlite::Connection;

fn database(path: &Path) -> Connection {
    outrigger_store::testing::database(&path.join("meta.db")).unwrap()
}

/// Restores `tree` into `dest`; returns what was skipped.
fn get(store: &Store, dest: &Path, overwrite: bool, special: bool) -> Vec<Skipped> {
    let tree = require(&*store.meta, At::Now, &StorePath::parse(b"tree").unwrap()).unwrap();
    let progress = Progress::default();
    let options = GetOptions { overwrite, special, threads: 2, ..GetOptions::default() };
    restore(store, At::Now, &tree, dest, None, options, &progress).unwrap();
    progress.skipped.into_inner().unwrap()
}

fn files_below(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && !path.is_symlink() {
            found.extend(files_below(&path));
        }
        found.push(path);
    }
    found.sort();
    found
}

#[test]
fn names_that_lead_elsewhere_are_not_restored() {
    let dir = scratch();
    let path = make_store(dir.path());
    let copy = dir.path().join("copy");
    for name in [&b".."[..], b".", b"a/b", b"/etc/x", b"", b"a\0b", &[b'x'; 300]] {
        checking::copy_store(&path, &copy);
        let changed =
            database(&copy).execute("UPDATE dentry SET name = ?1 WHERE name = ?2", (name, &b"text"[..]));
        assert_eq!(changed.unwrap(), 1);
        let store = open(&copy);
        let target = dir.path().join("parent/target");
        let skipped = get(&store, &target, false, false);
        // An empty name is not listed at all.
        assert_eq!(skipped.len(), usize::from(!name.is_empty()), "{name:?}: {skipped:?}");
        assert_eq!(
            files_below(&dir.path().join("parent")).iter().filter(|file| !file.starts_with(&target)).count(),
            0
        );
        assert!(!target.join("text").exists() && target.join("big").exists(), "{name:?}");
        let report = run_check(&store, false);
        assert!(report.damaged > 0 && said(&report).contains("cannot be"), "{name:?}: {}", said(&report));
        drop(store);
        std::fs::remove_dir_all(&copy).unwrap();
        std::fs::remove_dir_all(dir.path().join("parent")).unwrap();
    }
}

#[test]
fn symlinks_in_the_target_are_not_followed() {
    let dir = scratch();
    let path = make_store(dir.path());
    let (target, outside) = (dir.path().join("target"), dir.path().join("outside"));
    std::fs::create_dir_all(&target).unwrap();
    std::fs::create_dir_all(outside.join("er")).unwrap();
    std::fs::write(outside.join("victim"), b"mine").unwrap();
    // Where the store has a directory, and where it has a file.
    symlink(&outside, target.join("deep")).unwrap();
    symlink(outside.join("victim"), target.join("text")).unwrap();
    symlink(outside.join("new"), target.join("empty")).unwrap();
    let store = open(&path);
    for overwrite in [false, true] {
        let skipped = get(&store, &target, overwrite, false);
        assert!(skipped.iter().any(|skipped| skipped.what.contains("deep")), "{skipped:?}");
        assert_eq!(std::fs::read(outside.join("victim")).unwrap(), b"mine");
        assert_eq!(files_below(&outside), [outside.join("er"), outside.join("victim")]);
    }
    // Overwriting replaced the links themselves.
    assert!(!target.join("text").is_symlink() && target.join("deep").is_symlink());
}

#[test]
fn a_file_below_a_symlink_is_nowhere() {
    let dir = scratch();
    let path = make_store(dir.path());
    let outside = dir.path().join("outside");
    std::fs::create_dir_all(&outside).unwrap();
    // The directory `deep` becomes a symlink that still has entries.
    let db = database(&path);
    let mode = 0o777 | 2 << 12;
    db.execute("INSERT INTO traits SELECT max(id) + 1, 77, ?1, 0, 0, NULL FROM traits", [mode]).unwrap();
    let link = outside.to_str().unwrap().as_bytes();
    let changed = db.execute(
        "UPDATE inode SET traits = (SELECT max(id) FROM traits), special = ?1 WHERE number = \
         (SELECT inode FROM dentry WHERE name = ?2)",
        (link, &b"deep"[..]),
    );
    assert_eq!(changed.unwrap(), 1);
    drop(db);
    let store = open(&path);
    get(&store, &dir.path().join("target"), true, false);
    assert!(files_below(&outside).is_empty());
    assert!(run_check(&store, false).damaged > 0);
}

/// An inner node of 1024 times the same child, with the total that a reader would compute, cut to
/// 64 bits.
fn repeated(level: u8, child: Fingerprint, child_len: u64) -> Vec<u8> {
    let mut node = b"ON\x01".to_vec();
    node.push(level);
    node.put_u32(1024);
    node.put_u64(child_len.wrapping_mul(1024));
    for _ in 0..1024 {
        node.put_u64(child_len);
        node.extend_from_slice(&child.0);
    }
    node
}

fn attributes(kind: FileKind, mode: u32) -> Attributes {
    Attributes {
        kind,
        mode,
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
        mtime: Time::default(),
        rdev: if kind == FileKind::CharDevice { 0x501 } else { 0 },
        target: Vec::new(),
        xattrs: Vec::new(),
        times: None,
    }
}

/// Puts an entry into `tree`, past all that usually makes one.
fn add_entry(store: &Store, name: &str, attributes: Attributes, root: Root) {
    let session = store.session(SessionKind::Writer, "test").unwrap();
    let tree = store.meta.lookup(At::Now, ROOT_INODE, b"tree").unwrap().unwrap();
    let inode = store.meta.reserve_inodes(1).unwrap().start;
    let (parent, name) = (tree.number, name.as_bytes().to_vec());
    let change = Change::Put { parent, name, inode, attributes, root, stamp: 0, replace: false };
    let commit = Commit { packs: Vec::new(), changes: vec![change], time: 1 };
    store.meta.commit(session.id(), &commit).unwrap();
}

#[test]
fn manifests_that_repeat_themselves_end() {
    let dir = scratch();
    let path = make_store(dir.path());
    let store = open(&path);
    let big = require(&*store.meta, At::Now, &StorePath::parse(b"tree/big").unwrap()).unwrap();
    let mut chunk = None;
    Reader::new(&store)
        .entries(&big.root, 0, 1, &mut |_, entry| {
            chunk = Some(entry);
            Ok(true)
        })
        .unwrap();
    // Level 0: 1024 times one chunk. Levels 1 to 7: 1024 times the one below, 2^80 chunks in all.
    let leaf = Node::Leaf(vec![chunk.unwrap(); 1024]);
    let (mut nodes, mut len) = (vec![leaf.encode()], leaf.total_len().unwrap());
    let (mut roots, mut fits) = (Vec::new(), true);
    for level in 1..=7 {
        let child = fingerprint(&store, nodes.last().unwrap());
        nodes.push(repeated(level, child, len));
        fits &= len.checked_mul(1024).is_some();
        len = len.wrapping_mul(1024).max(1);
        roots.push((level, len, fits, fingerprint(&store, nodes.last().unwrap())));
    }
    add_pack(&store, 500, ChunkKind::Manifest, &nodes);
    for &(level, len, fits, fingerprint) in &roots {
        let root = Root::Tree { level, len, fingerprint };
        // Some bytes in the middle are read by one path through the tree, or refused.
        let mut read = Vec::new();
        let result = Reader::new(&store).read(&root, len / 2, 100, &mut |run| {
            read.extend_from_slice(run);
            Ok(())
        });
        assert_eq!(result.is_ok(), fits, "level {level}: {result:?}");
        assert_eq!(read.len(), if fits { 100 } else { 0 });
        if !fits {
            assert_eq!(result.unwrap_err().kind(), ErrorKind::Damaged);
            add_entry(&store, &format!("bomb{level}"), attributes(FileKind::File, 0o644), root);
        }
    }
    let (level, len, _, fingerprint) = *roots.iter().rev().find(|(_, _, fits, _)| *fits).unwrap();
    assert!(len > 1 << 55);
    add_entry(&store, "huge", attributes(FileKind::File, 0o644), Root::Tree { level, len, fingerprint });
    // Checking reads each node once.
    let report = run_check(&store, false);
    assert!(report.findings.iter().all(|finding| !finding.what.contains("huge")), "{}", said(&report));
    assert_eq!(report.damaged > 0, roots.iter().any(|(_, _, fits, _)| !fits), "{}", said(&report));
}

#[test]
fn lengths_that_lie_are_refused() {
    let dir = scratch();
    let path = make_store(dir.path());
    let store = open(&path);
    let big = require(&*store.meta, At::Now, &StorePath::parse(b"tree/big").unwrap()).unwrap();
    let Root::Tree { level, len, fingerprint } = big.root else { panic!("a tree") };
    let chunk = Entry::Chunk { fingerprint: Fingerprint([7; 32]), len: 0x7fff_ffff };
    let roots = [
        ("longer", Root::Tree { level, len: len + 1, fingerprint }),
        ("endless", Root::Tree { level, len: u64::MAX >> 1, fingerprint }),
        ("deeper", Root::Tree { level: level + 1, len, fingerprint }),
        ("nowhere", Root::Tree { level, len, fingerprint: Fingerprint([9; 32]) }),
        ("absent", Root::Inline(vec![chunk])),
        ("vast", Root::Inline(vec![Entry::Hole { len: i64::MAX as u64 }, chunk])),
    ];
    for (name, root) in &roots {
        if *name != "vast" {
            assert_eq!(checking::read_all(&store, root), None, "{name}");
        }
        add_entry(&store, name, attributes(FileKind::File, 0o600), root.clone());
    }
    let target = dir.path().join("target");
    let skipped = get(&store, &target, false, false);
    for (name, _) in &roots {
        assert!(skipped.iter().any(|skipped| skipped.what.ends_with(name)), "{name}: {skipped:?}");
        assert!(!target.join(name).exists(), "{name}");
    }
    assert!(target.join("big").exists());
    let report = run_check(&store, false);
    for (name, _) in &roots {
        let named =
            report.findings.iter().flat_map(|finding| &finding.files).any(|file| file.path.ends_with(name));
        // If a manifest's node is good and its root wrong, the error is about the root.
        assert!(named || matches!(*name, "longer" | "endless" | "deeper"), "{name}: {}", said(&report));
    }
    assert!(report.damaged >= 3, "{}", said(&report));
}

#[test]
fn devices_and_set_id_bits_only_on_request() {
    let dir = scratch();
    let path = make_store(dir.path());
    let store = open(&path);
    add_entry(&store, "device", attributes(FileKind::CharDevice, 0o666), Root::Empty);
    add_entry(&store, "setuid", attributes(FileKind::File, 0o6755), Root::Empty);
    let plain = dir.path().join("plain");
    get(&store, &plain, false, false);
    assert!(!plain.join("device").exists());
    assert_eq!(std::fs::metadata(plain.join("setuid")).unwrap().mode() & 0o7777, 0o755);
    let special = dir.path().join("special");
    get(&store, &special, false, true);
    assert_eq!(std::fs::metadata(special.join("setuid")).unwrap().mode() & 0o7777, 0o6755);
}

#[test]
fn what_is_newer_is_refused_and_not_touched() {
    let dir = scratch();
    let path = make_store(dir.path());
    let copy = dir.path().join("copy");
    let error = |path: &Path| Store::open(path, false).unwrap_err();

    checking::copy_store(&path, &copy);
    let text = std::fs::read_to_string(copy.join("store.toml")).unwrap();
    std::fs::write(copy.join("store.toml"), text.replace("format = 1", "format = 2")).unwrap();
    assert_eq!(error(&copy).kind(), ErrorKind::Newer);
    std::fs::write(copy.join("store.toml"), text).unwrap();

    database(&copy).pragma_update(None, "user_version", 5).unwrap();
    assert_eq!(error(&copy).kind(), ErrorKind::Newer);
    database(&copy).pragma_update(None, "user_version", 4).unwrap();

    // A pack with an incompatible feature, and one of version 2, their checksums right.
    for (offset, value) in [(12, 1u8), (8, 2)] {
        for pack in pack_files(&copy) {
            let mut bytes = std::fs::read(&pack).unwrap();
            bytes[offset] = value;
            let sum = checksum(&[&bytes[..PACK_HEADER_LEN - 8]]);
            bytes[PACK_HEADER_LEN - 8..PACK_HEADER_LEN].copy_from_slice(&sum.to_le_bytes());
            std::fs::write(&pack, &bytes).unwrap();
        }
        match Store::open(&copy, false) {
            Err(error) => assert_eq!(error.kind(), ErrorKind::Newer, "{error}"),
            Ok(store) => {
                let options = CheckOptions { read_data: true, repair: true, threads: 1 };
                let error = check(&store, &options, &CheckProgress::default()).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Newer, "{error}");
            }
        }
        for (pack, original) in pack_files(&copy).iter().zip(pack_files(&path)) {
            assert_eq!(std::fs::metadata(pack).unwrap().len(), std::fs::metadata(original).unwrap().len());
        }
        std::fs::remove_dir_all(copy.join("packs")).unwrap();
        checking::copy_store(&path.join("packs"), &copy.join("packs"));
    }
}
