//! The read-only volume without a kernel: every byte and attribute, paging, snapshots, damage.

use crate::support;

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use outrigger_format::catalogue::FileKind;
use outrigger_fuse::fs::{Entry, FileSystem, ROOT, Seek};
use outrigger_workload::{NastyOptions, Rng, TreeOptions, nasty_tree, source_tree};
use rustix::fs::OFlags;
use rustix::io::Errno;

use support::{OTHER_USER, Place, ROOT_USER, find, is_missing, names, read_part, read_whole};

/// Compares all below a directory with the tree it was stored from.
fn compare(fs: &impl FileSystem, number: u64, source: &Path, seen: &mut usize) {
    let mut here: Vec<Vec<u8>> = std::fs::read_dir(source)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().as_bytes().to_vec())
        .collect();
    here.sort();
    assert_eq!(names(fs, number, 3, false), here, "{}", source.display());
    assert_eq!(names(fs, number, 1000, true), here, "{}", source.display());
    for name in here {
        let path = source.join(OsStr::from_bytes(&name));
        let Ok(outrigger_fuse::fs::Found::Entry(entry)) = fs.lookup(ROOT_USER, number, &name) else {
            panic!("{} cannot be looked up", path.display());
        };
        compare_entry(fs, &entry, &path);
        *seen += 1;
        if entry.attr.kind == FileKind::Directory {
            compare(fs, entry.attr.number, &path, seen);
        }
    }
}

fn compare_entry(fs: &impl FileSystem, entry: &Entry, path: &Path) {
    let (attr, stat, at) = (&entry.attr, std::fs::symlink_metadata(path).unwrap(), path.display());
    assert_eq!(
        attr.mtime,
        outrigger_format::catalogue::Time { secs: stat.mtime(), nanos: stat.mtime_nsec() as u32 },
        "{at}"
    );
    assert_eq!((attr.uid, attr.gid), (stat.uid(), stat.gid()), "{at}");
    if attr.kind != FileKind::Directory {
        assert_eq!((attr.size, u64::from(attr.links)), (stat.size(), stat.nlink()), "{at}");
    }
    match attr.kind {
        FileKind::Symlink => {
            let target = fs.read_link(ROOT_USER, attr.number).unwrap();
            assert_eq!(target, std::fs::read_link(path).unwrap().as_os_str().as_bytes(), "{at}");
        }
        FileKind::CharDevice | FileKind::BlockDevice => assert_eq!(attr.rdev, stat.rdev(), "{at}"),
        FileKind::File => {
            let bytes = std::fs::read(path).unwrap();
            for step in [7 << 10, 1 << 20] {
                assert!(read_whole(fs, entry, step).unwrap() == bytes, "{at} in steps of {step}");
            }
            let slack = 64 << 10;
            assert!(attr.allocated <= stat.blocks() * 512 + slack, "{at} takes {}", attr.allocated);
        }
        _ => {}
    }
    if attr.kind != FileKind::Symlink {
        assert_eq!(attr.mode, stat.mode() & 0o7777, "{at}");
    }
    compare_xattrs(fs, entry, path);
}

fn compare_xattrs(fs: &impl FileSystem, entry: &Entry, path: &Path) {
    let mut buffer = vec![0; 64 << 10];
    let len = rustix::fs::llistxattr(path, &mut buffer[..]).unwrap_or(0);
    let mut here: Vec<Vec<u8>> = buffer[..len].split(|byte| *byte == 0).map(<[u8]>::to_vec).collect();
    here.retain(|name| !name.is_empty() && name != b"security.selinux");
    here.sort();
    let mut there = fs.xattrs(ROOT_USER, entry.attr.number).unwrap();
    there.sort();
    assert_eq!(there, here, "{}", path.display());
    for name in here {
        let len = rustix::fs::lgetxattr(path, name.as_slice(), &mut buffer[..]).unwrap();
        assert_eq!(fs.xattr(ROOT_USER, entry.attr.number, &name).unwrap(), &buffer[..len]);
    }
}

#[test]
fn a_tree_of_everything_is_shown_as_it_is() {
    let place = Place::with_tiny_chunks();
    let report = nasty_tree(&place.source(), &NastyOptions::new(5)).unwrap();
    source_tree(&place.source().join("code"), &TreeOptions::new(5, 100)).unwrap();
    place.put();
    let fs = place.volume(None);
    let mut seen = 0;
    compare(&fs, ROOT, &place.source(), &mut seen);
    println!("{seen} entries; not made here: {:?}", report.skipped);
    assert!(seen > 200);
    assert_eq!(fs.handles_open(), 0);
    assert_eq!(*place.said.lock().unwrap(), Vec::<String>::new());
}

#[test]
fn any_part_of_a_large_manifest_can_be_read() {
    let place = Place::with_tiny_chunks();
    let mut rng = Rng::new(9);
    let mut bytes = vec![0; 3 << 20];
    rng.fill(&mut bytes);
    std::fs::write(place.source().join("big"), &bytes).unwrap();
    place.put();
    let fs = place.volume(None);
    let entry = find(&fs, "big");
    let mut parts: Vec<(u64, usize)> =
        (0..400).map(|_| (rng.index(bytes.len() + 5000) as u64, rng.index(300_000))).collect();
    parts.extend([(0, 0), (0, 1), (bytes.len() as u64, 1), (bytes.len() as u64 - 1, 100), (u64::MAX, 10)]);
    let read = read_part(&fs, entry.attr.number, &parts).unwrap();
    for ((offset, len), read) in parts.iter().zip(read) {
        let from = usize::try_from(*offset).unwrap_or(usize::MAX).min(bytes.len());
        assert!(read == bytes[from..from.saturating_add(*len).min(bytes.len())], "{len} bytes at {offset}");
    }
}

#[test]
fn holes_are_found() {
    let place = Place::new();
    let file = std::fs::File::create(place.source().join("sparse")).unwrap();
    file.set_len(64 << 20).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &[7; 300_000], 16 << 20).unwrap();
    place.put();
    let fs = place.volume(None);
    let entry = find(&fs, "sparse");
    assert!(entry.attr.allocated < 1 << 20, "{}", entry.attr.allocated);
    let number = entry.attr.number;
    let handle = fs.open(ROOT_USER, number, OFlags::RDONLY).unwrap().handle;
    let seek = |offset, to| fs.seek(number, handle, offset, to);
    assert_eq!(seek(5, Seek::Hole), Ok(5));
    let data = seek(0, Seek::Data).unwrap();
    assert!(data <= 16 << 20 && data > 15 << 20, "{data}");
    let hole = seek(data, Seek::Hole).unwrap();
    assert!(((16 << 20) + 300_000..17 << 20).contains(&hole), "{hole}");
    assert_eq!(seek(hole, Seek::Data), Err(Errno::NXIO));
    assert_eq!(seek(64 << 20, Seek::Hole), Err(Errno::NXIO));
    // The same in a file that ends with data.
    drop(file);
    std::fs::write(place.source().join("dense"), [1; 1000]).unwrap();
    place.put();
    let fs = place.volume(None);
    let number = find(&fs, "dense").attr.number;
    let handle = fs.open(ROOT_USER, number, OFlags::RDONLY).unwrap().handle;
    assert_eq!(fs.seek(number, handle, 10, Seek::Hole), Ok(1000));
    assert_eq!(fs.seek(number, handle, 10, Seek::Data), Ok(10));
}

#[test]
fn a_large_directory_is_read_from_any_offset_again() {
    let place = Place::new();
    let expected: Vec<Vec<u8>> = (0..5000).map(|number| format!("file-{number:05}").into_bytes()).collect();
    for name in &expected {
        std::fs::write(place.source().join(OsStr::from_bytes(name)), "").unwrap();
    }
    place.put();
    let fs = place.volume(None);
    for batch in [1, 100, 1024, 1025, 10_000] {
        assert!(names(&fs, ROOT, batch, false) == expected, "batches of {batch}");
    }
    let handle = fs.open_dir(ROOT_USER, ROOT).unwrap().handle;
    let read_from = |offset: u64| {
        let mut first = None;
        fs.read_dir(ROOT, handle, offset, false, &mut |entry| {
            first = Some((entry.name.to_vec(), entry.next));
            false
        })
        .unwrap();
        first
    };
    let mut rng = Rng::new(3);
    for offset in (0..200).map(|_| rng.index(5000)).chain([4999, 0, 1023, 1024, 4095, 4096]) {
        let found = read_from(offset as u64 + 2).unwrap();
        assert_eq!(found, (expected[offset].clone(), offset as u64 + 3));
    }
    assert_eq!(read_from(5002), None);
    assert_eq!(read_from(1 << 40), None);
    assert_eq!(read_from(0), Some((b".".to_vec(), 1)));
    fs.release_dir(ROOT, handle);
}

#[test]
fn snapshots_stand_beside_the_mounted_tree() {
    let place = Place::new();
    let file = place.source().join("file");
    std::fs::write(&file, "one").unwrap();
    place.put();
    place.snapshot("first");
    std::fs::write(&file, "two!").unwrap();
    place.put();
    let fs = place.volume(None);
    assert_eq!(names(&fs, ROOT, 10, false), [b"file"]);
    let dir = find(&fs, ".snapshots");
    assert_eq!((dir.attr.kind, dir.valid), (FileKind::Directory, Duration::from_secs(1)));
    place.snapshot("second");
    std::fs::write(&file, "three").unwrap();
    place.put();
    place.snapshot("third");
    assert_eq!(names(&fs, dir.attr.number, 2, true), [b"first".as_slice(), b"second", b"third"]);
    let (now, one, two) =
        (find(&fs, "file"), find(&fs, ".snapshots/first/file"), find(&fs, ".snapshots/second/file"));
    let numbers = [now.attr.number, one.attr.number, two.attr.number];
    assert!(numbers[0] != numbers[1] && numbers[1] != numbers[2] && numbers[0] != numbers[2], "{numbers:?}");
    assert_eq!(read_whole(&fs, &now, 10).unwrap(), b"two!");
    assert_eq!(read_whole(&fs, &one, 10).unwrap(), b"one");
    assert_eq!(read_whole(&fs, &two, 10).unwrap(), b"two!");
    assert!(is_missing(&fs, dir.attr.number, "fourth"));
    // A snapshot's own root has no such directory, nor has the mount of a snapshot.
    assert!(is_missing(&fs, find(&fs, ".snapshots/first").attr.number, ".snapshots"));
    assert!(is_missing(&place.volume(Some("first")), ROOT, ".snapshots"));
}

#[test]
fn a_snapshot_in_use_outlives_its_deletion_and_others_do_not() {
    let place = Place::new();
    let file = place.source().join("file");
    for (text, name) in [("one", "used"), ("two", "unused")] {
        std::fs::write(&file, text).unwrap();
        place.put();
        place.snapshot(name);
    }
    std::fs::write(&file, "three").unwrap();
    place.put();
    let fs = place.volume(None);
    let used = find(&fs, ".snapshots/used/file");
    let unused = find(&fs, ".snapshots/unused");
    let store = place.open();
    outrigger_store::ops::snapshots::delete(&store, &["used".into(), "unused".into()]).unwrap();
    store.meta.purge_history().unwrap();
    assert_eq!(read_whole(&fs, &used, 10).unwrap(), b"one");
    assert_eq!(fs.lookup(ROOT_USER, unused.attr.number, b"file"), Err(Errno::STALE));
    assert!(is_missing(&fs, find(&fs, ".snapshots").attr.number, "used"));
    // A new one of that name is another tree.
    place.snapshot("used");
    assert_eq!(read_whole(&fs, &find(&fs, ".snapshots/used/file"), 10).unwrap(), b"three");
    assert_eq!(read_whole(&fs, &used, 10).unwrap(), b"one");
}

#[test]
fn a_stored_entry_named_as_the_snapshots_takes_their_place() {
    let place = Place::new();
    std::fs::write(place.source().join(".snapshots"), "mine").unwrap();
    place.put();
    place.snapshot("first");
    let fs = place.volume(None);
    assert_eq!(read_whole(&fs, &find(&fs, ".snapshots"), 10).unwrap(), b"mine");
}

#[test]
fn nothing_can_be_changed() {
    let place = Place::new();
    std::fs::write(place.source().join("file"), "one").unwrap();
    place.put();
    let fs = place.volume(None);
    let number = find(&fs, "file").attr.number;
    for flags in [OFlags::WRONLY, OFlags::RDWR, OFlags::RDONLY | OFlags::TRUNC] {
        assert_eq!(fs.open(ROOT_USER, number, flags), Err(Errno::ROFS));
    }
    assert_eq!(fs.unlink(ROOT_USER, ROOT, b"file"), Err(Errno::ROFS));
    assert_eq!(fs.set_attributes(ROOT_USER, number, &Default::default()), Err(Errno::ROFS));
    assert_eq!(fs.symlink(ROOT_USER, ROOT, b"link", b"file"), Err(Errno::ROFS));
    assert_eq!(fs.open(ROOT_USER, ROOT, OFlags::RDONLY), Err(Errno::ISDIR));
    assert_eq!(fs.open_dir(ROOT_USER, number), Err(Errno::NOTDIR));
    assert_eq!(fs.read_link(ROOT_USER, number), Err(Errno::INVAL));
    assert_eq!(fs.attributes(ROOT_USER, 12345, None), Err(Errno::STALE));
    assert_eq!(fs.read(number, 77, 0, 1, &mut Vec::new()), Err(Errno::BADF));
}

#[test]
fn trusted_attributes_are_for_the_superuser() {
    let place = Place::new();
    let file = place.source().join("file");
    std::fs::write(&file, "").unwrap();
    let set = |name: &str| rustix::fs::setxattr(&file, name, b"value", rustix::fs::XattrFlags::empty());
    if let Err(errno) = set("trusted.secret").and(set("user.plain")) {
        outrigger_workload::skipped!("extended attributes cannot be set here: {errno}");
        return;
    }
    place.put();
    let fs = place.volume(None);
    let number = find(&fs, "file").attr.number;
    assert_eq!(fs.xattrs(OTHER_USER, number).unwrap(), [b"user.plain"]);
    assert_eq!(fs.xattrs(ROOT_USER, number).unwrap().len(), 2);
    assert_eq!(fs.xattr(OTHER_USER, number, b"trusted.secret"), Err(Errno::NODATA));
    assert_eq!(fs.xattr(ROOT_USER, number, b"trusted.secret").unwrap(), b"value");
}

#[test]
fn damaged_data_is_an_error_and_the_rest_is_whole() {
    let place = Place::new();
    let mut bytes = vec![0; 4 << 20];
    Rng::new(1).fill(&mut bytes);
    std::fs::write(place.source().join("big"), &bytes).unwrap();
    std::fs::write(place.source().join("small"), "whole").unwrap();
    place.put();
    let mut packs: Vec<_> = walk(&place.store_dir().join("packs"));
    packs.sort_by_key(|path| std::fs::metadata(path).unwrap().len());
    let pack = packs.last().unwrap();
    let mut damaged = std::fs::read(pack).unwrap();
    let middle = damaged.len() / 2;
    damaged[middle] ^= 1;
    std::fs::write(pack, damaged).unwrap();
    let fs = place.volume(None);
    let entry = find(&fs, "big");
    let (mut failed, step) = (0, 64 << 10);
    for at in (0..bytes.len()).step_by(step) {
        match read_part(&fs, entry.attr.number, &[(at as u64, step)]) {
            Ok(read) => assert!(read[0] == bytes[at..at + step], "wrong bytes at {at}"),
            Err(errno) => {
                assert_eq!(errno, Errno::IO);
                failed += 1;
            }
        }
    }
    assert!((1..=10).contains(&failed), "{failed} reads failed");
    let said = place.said.lock().unwrap().join("\n");
    assert!(said.contains("pack") && said.contains("inode"), "{said}");
}

fn walk(dir: &Path) -> Vec<std::path::PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { found.extend(walk(&path)) } else { found.push(path) }
    }
    found
}

#[test]
fn space_is_what_the_disk_has() {
    let place = Place::new();
    std::fs::write(place.source().join("file"), vec![0x5a; 1 << 20]).unwrap();
    place.put();
    let volume = place.volume(None);
    let space = volume.statfs().unwrap();
    // But for what content leaves. Other tests take and give back room meanwhile.
    let kept = outrigger_store::disk::Disk::of(place.dir.path()).unwrap().floor();
    outrigger_workload::eventually("the mount and the disk agree", || {
        let free = volume.statfs().unwrap().blocks_free * u64::from(space.block_bytes) + kept;
        let disk = rustix::fs::statvfs(place.dir.path()).unwrap();
        free.abs_diff(disk.f_bfree * disk.f_frsize) < 1 << 20
    });
    let used = (space.blocks - space.blocks_free) * u64::from(space.block_bytes);
    assert!(used > 0 && used < 1 << 20, "a mebibyte of one byte takes {used} bytes");
    assert_eq!((space.files - space.files_free, space.name_max), (2, 255));
    assert!(space.files_free > 0, "files can be made");
}
