use std::io::IoSlice;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use super::*;
use crate::backend::{KEYS_DIR, TEXT_MAX};
use crate::testing::conformance;

fn write(backend: &LocalBackend, id: u64, bytes: &[u8]) {
    let mut writer = backend.create(PackId(id)).unwrap();
    writer.append(&[IoSlice::new(bytes)]).unwrap();
    writer.seal().unwrap();
}

#[test]
fn conforms() {
    let dir = tempfile::tempdir().unwrap();
    conformance::backend(&LocalBackend::open(dir.path(), true, false).unwrap());
}

/// As a directory that several hosts have mounted, which writes otherwise.
#[test]
fn conforms_when_it_is_shared() {
    let dir = tempfile::tempdir().unwrap();
    let access = Access { create: true, ..Access::default() };
    conformance::backend(&LocalBackend::open_shared(dir.path(), access).unwrap());
}

/// On tmpfs, where direct I/O may be missing.
#[test]
fn conforms_in_shared_memory() {
    let Ok(dir) = tempfile::tempdir_in("/dev/shm") else {
        return outrigger_workload::skipped!("no /dev/shm");
    };
    conformance::backend(&LocalBackend::open(dir.path(), true, false).unwrap());
}

/// Another process took it for a leftover of an ended session.
#[test]
fn what_was_removed_while_it_was_written_is_not_sealed() {
    let dir = tempfile::tempdir().unwrap();
    let backend = LocalBackend::open(dir.path(), true, false).unwrap();
    for len in [10, 5 << 20] {
        let mut writer = backend.create(PackId(5)).unwrap();
        writer.append(&[IoSlice::new(&vec![1; len])]).unwrap();
        backend.remove(PackId(5)).unwrap();
        assert_eq!(writer.seal().unwrap_err().kind(), ErrorKind::NotFound);
    }
    write(&backend, 5, b"data");
}

#[test]
fn lies_where_the_format_says_and_is_private() {
    let dir = tempfile::tempdir().unwrap();
    let backend = LocalBackend::open(dir.path(), true, false).unwrap();
    write(&backend, 0x1234_56ab, b"data");
    let path = dir.path().join("packs/ab/00000000123456ab.pack");
    assert_eq!(std::fs::read(&path).unwrap(), b"data");
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    for dir in [dir.path().join("packs"), dir.path().join("packs/ab")] {
        assert_eq!(std::fs::metadata(dir).unwrap().permissions().mode() & 0o777, 0o700);
    }
}

/// Room reserved for a whole pack is given back when the pack ends early.
#[test]
fn gives_back_reserved_room() {
    let dir = tempfile::tempdir().unwrap();
    let backend = LocalBackend::open(dir.path(), true, false).unwrap();
    write(&backend, 1, &vec![7; (9 << 20) + 5]);
    let metadata = std::fs::metadata(dir.path().join("packs/01/0000000000000001.pack")).unwrap();
    assert_eq!(metadata.len(), (9 << 20) + 5);
    assert!(metadata.blocks() * 512 < 10 << 20, "{} bytes are allocated", metadata.blocks() * 512);
}

#[test]
fn what_is_no_pack_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let backend = LocalBackend::open(dir.path(), true, false).unwrap();
    write(&backend, 0x1ab, b"data");
    let packs = dir.path().join("packs");
    for name in [
        "ab/00000000000001AB.pack", // not how we write it
        "ab/00000000000001ac.pack", // in a directory where it is not looked for
        "ab/1ab.pack",
        "ab/ffffffffffffffab.pack", // beyond the largest id
        "ab/00000000000002ab.pack.tmp",
        "lost+found",
        "abc",
    ] {
        std::fs::write(packs.join(name), b"").unwrap();
    }
    std::fs::create_dir(packs.join("AB")).unwrap();
    assert_eq!(backend.list().unwrap(), [PackId(0x1ab)]);
}

#[test]
fn opens_as_asked() {
    let dir = tempfile::tempdir().unwrap();
    let error = LocalBackend::open(dir.path(), false, false).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    let error = LocalBackend::open(dir.path(), true, true).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::NotFound, "read-only creates nothing: {error}");

    write(&LocalBackend::open(dir.path(), true, false).unwrap(), 5, b"data");
    let backend = LocalBackend::open(dir.path(), false, true).unwrap();
    backend.read_at(PackId(5), 0, &mut [0; 4]).unwrap();
    assert_eq!(backend.create(PackId(6)).err().unwrap().kind(), ErrorKind::Denied);
    assert_eq!(backend.remove(PackId(5)).unwrap_err().kind(), ErrorKind::Denied);
    assert_eq!(backend.list().unwrap(), [PackId(5)]);
}

/// A repair in another process sets a rotten file aside, and writes another one.
#[test]
fn a_file_that_was_replaced_is_noticed() {
    let dir = tempfile::tempdir().unwrap();
    let backend = LocalBackend::open(dir.path(), true, false).unwrap();
    let path = dir.path().join("packs").join(relative(PackId(1)));
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(&path, b"rotten").unwrap();
    let read = || {
        let mut bytes = [0; 6];
        backend.read_at(PackId(1), 0, &mut bytes).unwrap();
        bytes
    };
    assert_eq!((read(), backend.forget(PackId(1))), (*b"rotten", false));
    assert_eq!(read(), *b"rotten");
    std::fs::rename(&path, dir.path().join("aside")).unwrap();
    std::fs::write(&path, b"whole!").unwrap();
    assert_eq!((read(), backend.forget(PackId(1))), (*b"rotten", true));
    assert_eq!(read(), *b"whole!");
}

#[test]
fn keeps_a_bounded_number_of_files_open() {
    let dir = tempfile::tempdir().unwrap();
    let backend = LocalBackend::open(dir.path(), true, false).unwrap();
    let ids = 1..=DESCRIPTORS_MAX as u64 + 20;
    for id in ids.clone() {
        // Made without syncing, for speed.
        let path = dir.path().join("packs").join(relative(PackId(id)));
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, id.to_le_bytes()).unwrap();
    }
    for id in ids.clone().chain(ids.rev()) {
        let mut bytes = [0; 8];
        backend.read_at(PackId(id), 0, &mut bytes).unwrap();
        assert_eq!(u64::from_le_bytes(bytes), id);
        backend.read_at(PackId(1), 0, &mut bytes).unwrap();
        assert!(backend.open.len() <= DESCRIPTORS_MAX);
    }
    assert_eq!(backend.open.len(), DESCRIPTORS_MAX);
    let before = backend.open.len();
    backend.remove(PackId(1)).unwrap();
    assert_eq!(backend.open.len(), before - 1, "a removed pack is closed");
}

/// A full disk, in small: /dev/full is of no use for files with offsets, a file-size limit is; so
/// only the mapping.
#[test]
fn no_space_is_said_to_be_full() {
    let full: Result<()> = Err(Errno::NOSPC).context(|| "writing".into());
    assert_eq!(full.unwrap_err().kind(), ErrorKind::Full);
    let full: Result<()> = Err(Errno::DQUOT).context(|| "writing".into());
    assert_eq!(full.unwrap_err().kind(), ErrorKind::Full);
}

#[test]
fn a_full_disk_is_said_to_be_full() {
    let dir = tempfile::tempdir().unwrap();
    let run = |program: &str, args: &[&str]| {
        let done = std::process::Command::new(program).args(args).arg(dir.path()).output();
        done.is_ok_and(|output| output.status.success())
    };
    if !run("mount", &["-t", "tmpfs", "-o", "size=16m", "tmpfs"]) {
        return outrigger_workload::skipped!("a file system of 16 MiB cannot be mounted here");
    }
    let outcome = std::panic::catch_unwind(|| fill_up(dir.path()));
    assert!(run("umount", &["--lazy"]));
    outcome.unwrap();
}

fn fill_up(disk: &Path) {
    let backend = LocalBackend::open(disk, true, false).unwrap();
    let mut writer = backend.create(PackId(1)).unwrap();
    let part = vec![1; 1 << 20];
    let error = (0..64).find_map(|_| writer.append(&[IoSlice::new(&part)]).err()).expect("the disk is small");
    assert_eq!(error.kind(), ErrorKind::Full, "{error}");
    assert!(error.to_string().contains("0000000000000001.pack"), "{error}");
    assert!(writer.append(&[IoSlice::new(&part)]).is_err(), "and stays unusable");
    assert!(writer.seal().is_err(), "and is never taken for durable");
    backend.remove(PackId(1)).unwrap();
    write(&backend, 2, &part);
    backend.remove(PackId(2)).unwrap();
}

#[test]
fn texts_lie_beside_the_packs_and_slots_are_private() {
    let dir = tempfile::tempdir().unwrap();
    let backend = LocalBackend::open(dir.path(), true, false).unwrap();
    backend.put_text("keys/a", "slot").unwrap();
    backend.claim("text").unwrap();
    let error = backend.claim("other").unwrap_err().to_string();
    assert_eq!(error, format!("{}/ is another store's", dir.path().display()));
    let keys = dir.path().join("keys");
    assert_eq!(std::fs::read(keys.join("a")).unwrap(), b"slot");
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&keys), mode(&keys.join("a"))), (0o700, 0o600));
    let entries = |dir: &Path| std::fs::read_dir(dir).unwrap().count();
    assert_eq!((entries(&keys), entries(dir.path())), (1, 3), "no temporary file is left");

    // A killed writer's file is no text, and goes with its text; other files stay.
    for name in [".a.~0000000000000001", ".ab.~0000000000000001", "notes~"] {
        std::fs::write(keys.join(name), "part").unwrap();
    }
    assert_eq!(backend.texts(KEYS_DIR).unwrap(), ["a"]);
    backend.remove_text("keys/a").unwrap();
    assert_eq!((backend.texts(KEYS_DIR).unwrap(), entries(&keys)), (vec![], 2));

    // No link leads out of the folder.
    std::os::unix::fs::symlink(dir.path().join("store.toml"), keys.join("b")).unwrap();
    backend.text("keys/b").unwrap_err();
    std::fs::write(keys.join("c"), "x".repeat(TEXT_MAX + 1)).unwrap();
    assert_eq!(backend.text("keys/c").unwrap_err().kind(), ErrorKind::Damaged);
    let reader = LocalBackend::open(dir.path(), false, true).unwrap();
    assert_eq!(reader.text("store.toml").unwrap().as_deref(), Some("text"));
    assert_eq!(reader.put_text("keys/d", "x").unwrap_err().kind(), ErrorKind::Denied);
    assert_eq!(reader.remove_text("keys/c").unwrap_err().kind(), ErrorKind::Denied);
}
