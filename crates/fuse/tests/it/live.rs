//! The writable volume in the situations that matter, without a kernel.

use crate::support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use outrigger_format::catalogue::FileKind;
use outrigger_fuse::fs::{Caller, DROP_SET_GROUP, FileSystem, Found, NewNode, OpenFlags, ROOT, SetAttr};
use outrigger_fuse::live::{LiveOptions, LiveVolume, staging_dir};
use outrigger_fuse::measures::{Status, Watched as _};
use outrigger_fuse::report::Reports;
use outrigger_fuse::running::EXEC;
use outrigger_store::check::{CheckOptions, CheckProgress, check};
use outrigger_store::meta::At;
use outrigger_store::ops::View;
use outrigger_workload::Rng;
use rustix::fs::{OFlags, RenameFlags, XattrFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};
use support::volume::{close, create, mount, mount_again, options, random, read, reclaim, write};
use support::{Place, ROOT_USER, find, read_part, read_whole};

#[test]
fn a_file_without_a_name_may_be_larger_than_the_log() {
    let place = Place::new();
    let volume = mount(&place, options());
    let file = create(&volume, ROOT, b"temporary");
    write(&volume, file, 0, &random(1, 100_000));
    volume.unlink(ROOT_USER, ROOT, b"temporary").unwrap();
    let expected = random(2, 40 << 20);
    for (at, part) in expected.chunks(1 << 20).enumerate() {
        write(&volume, file, (at << 20) as u64, part);
    }
    reclaim(&place);
    assert!(read(&volume, file, expected.len()) == expected);
    let holders = place.open().meta.holders().unwrap();
    assert!(holders.iter().any(|holder| holder.starts_with("orphan:")), "{holders:?}");
    close(&volume, file);
    volume.forget(file.0, 1);
    volume.destage_all().unwrap();
    assert_eq!(place.open().meta.holders().unwrap(), [""; 0]);
    volume.close().unwrap();
    drop(volume);
    reclaim(&place);
    let left: u64 = place.open().meta.packs().unwrap().iter().map(|pack| pack.bytes).sum();
    assert!(left < 1 << 20, "{left} bytes are still stored");
}

#[test]
fn what_was_stored_is_read_through_an_open_file_after_its_last_name_went() {
    let place = Place::new();
    let volume = mount(&place, options());
    let file = create(&volume, ROOT, b"file");
    let expected = random(3, 3 << 20);
    write(&volume, file, 0, &expected);
    volume.destage_all().unwrap();
    volume.unlink(ROOT_USER, ROOT, b"file").unwrap();
    volume.destage_all().unwrap();
    assert!(place.open().meta.lookup(At::Now, ROOT, b"file").unwrap().is_none());
    reclaim(&place);
    assert!(read(&volume, file, expected.len()) == expected);
    // And a mount that dies leaves nothing behind.
    drop(volume);
    let volume = mount(&place, options());
    assert_eq!(place.open().meta.holders().unwrap(), [""; 0]);
    volume.close().unwrap();
}

#[test]
fn what_was_looked_up_can_be_opened_though_its_name_went_meanwhile() {
    let place = Place::new();
    let volume = mount(&place, options());
    for name in [b"new".as_slice(), b"old"] {
        let file = create(&volume, ROOT, name);
        write(&volume, file, 0, name);
        close(&volume, file);
    }
    let old = find(&volume, "old").attr.number;
    volume.rename(ROOT_USER, (ROOT, b"new"), (ROOT, b"old"), RenameFlags::empty()).unwrap();
    let handle = volume.open(ROOT_USER, old, OFlags::RDONLY).unwrap().handle;
    volume.forget(old, 1);
    volume.destage_all().unwrap();
    assert_eq!(read(&volume, (old, handle), 10), b"old");
    close(&volume, (old, handle));
    assert_eq!(volume.open(ROOT_USER, old, OFlags::RDONLY).err(), Some(Errno::STALE));
    // Nor does an inode that the kernel never said it had forgotten keep anything from ending.
    let file = create(&volume, ROOT, b"brief");
    write(&volume, file, 0, b"brief");
    close(&volume, file);
    volume.unlink(ROOT_USER, ROOT, b"brief").unwrap();
    volume.close().unwrap();
}

#[test]
fn a_running_program_is_not_emptied_by_who_opens_it_to_read() {
    let place = Place::new();
    let volume = mount(&place, options());
    let (number, handle) = create(&volume, ROOT, b"program");
    write(&volume, (number, handle), 0, b"text");
    let runs = [EXEC, EXEC].map(|flags| volume.open(ROOT_USER, number, flags).unwrap().handle);
    for program in runs {
        assert_eq!(volume.open(ROOT_USER, number, OFlags::TRUNC).err(), Some(Errno::TXTBSY));
        assert_eq!(read(&volume, (number, handle), 10), b"text");
        close(&volume, (number, program));
    }
    let emptied = volume.open(ROOT_USER, number, OFlags::TRUNC).unwrap().handle;
    close(&volume, (number, emptied));
    assert_eq!(read(&volume, (number, handle), 10), b"");
    close(&volume, (number, handle));
    volume.close().unwrap();
}

/// Names of a directory from an offset on, each with the offset behind it.
fn names_from(volume: &LiveVolume, handle: u64, offset: u64) -> Vec<(Vec<u8>, u64)> {
    let mut names = Vec::new();
    volume
        .read_dir(ROOT, handle, offset, false, &mut |entry| {
            names.push((entry.name.to_vec(), entry.next));
            true
        })
        .unwrap();
    names
}

#[test]
fn offsets_of_a_directory_stay_good_when_its_names_are_stored_meanwhile() {
    let place = Place::new();
    let volume = mount(&place, options());
    for number in 0..5000 {
        let file = create(&volume, ROOT, format!("name{number:04}").as_bytes());
        close(&volume, file);
    }
    let handle = volume.open_dir(ROOT_USER, ROOT).unwrap().handle;
    let all = names_from(&volume, handle, 0);
    assert_eq!(all.len(), 5002, "with . and ..");
    volume.destage_all().unwrap();
    for at in [4000, 1500, 3, 2047, 2048, 1023, 4999] {
        assert_eq!(names_from(&volume, handle, all[at].1), all[at + 1..], "from entry {at} on");
    }
    // Of names that go and come, those that stay are met once.
    volume.unlink(ROOT_USER, ROOT, b"name0100").unwrap();
    close(&volume, create(&volume, ROOT, b"name0100a"));
    close(&volume, create(&volume, ROOT, b"name0100b"));
    let again = names_from(&volume, handle, all[2].1);
    for (name, _) in all[3..].iter().filter(|(name, _)| name != b"name0100") {
        assert_eq!(again.iter().filter(|(other, _)| other == name).count(), 1, "{}", name.escape_ascii());
    }
    volume.release_dir(ROOT, handle);
    volume.close().unwrap();
}

#[test]
fn a_file_handle_finds_its_file_and_the_directory_above() {
    let place = Place::new();
    let volume = mount(&place, options());
    let new = NewNode { kind: FileKind::Directory, mode: 0o755, umask: 0, rdev: 0 };
    let directory = volume.make(ROOT_USER, ROOT, b"directory", new).unwrap().attr.number;
    let file = create(&volume, directory, b"file");
    write(&volume, file, 0, b"text");
    close(&volume, file);
    let at = |volume: &LiveVolume, number, name: &[u8]| match volume.lookup(ROOT_USER, number, name) {
        Ok(Found::Entry(entry)) => Ok(entry.attr.number),
        Ok(Found::Missing { .. }) => panic!("a handle's file is there or stale"),
        Err(errno) => Err(errno),
    };
    let found = |volume: &LiveVolume| {
        assert_eq!(at(volume, file.0, b"."), Ok(file.0));
        assert_eq!(at(volume, directory, b".."), Ok(ROOT));
        assert_eq!(at(volume, ROOT, b".."), Ok(ROOT));
        assert_eq!(at(volume, 1 << 30, b"."), Err(Errno::STALE));
    };
    found(&volume);
    volume.close().unwrap();
    drop(volume);
    let volume = mount(&place, options());
    found(&volume);
    volume.unlink(ROOT_USER, directory, b"file").unwrap();
    assert_eq!(at(&volume, file.0, b"."), Err(Errno::STALE));
    volume.forget(file.0, 1);
    assert_eq!(at(&volume, file.0, b"."), Err(Errno::STALE), "the database does not know it yet");
    volume.destage_all().unwrap();
    assert_eq!(at(&volume, file.0, b"."), Err(Errno::STALE));
    volume.close().unwrap();
}

#[test]
fn an_acl_takes_the_set_group_bit_where_the_kernel_says_so() {
    let place = Place::new();
    let volume = mount(&place, options());
    let (number, handle) = create(&volume, ROOT, b"file");
    let mode = |mode| SetAttr { mode: Some(mode), ..SetAttr::default() };
    // Version 2; then tag, permissions and id of owner, group and others: what a mode says, too.
    let acl: Vec<u8> = [2u32.to_le_bytes().to_vec()]
        .into_iter()
        .chain([1u16, 4, 32].map(|tag| [tag.to_le_bytes(), 7u16.to_le_bytes(), [255; 2], [255; 2]].concat()))
        .flatten()
        .collect();
    for (flags, after) in [(XattrFlags::empty(), 0o2777), (DROP_SET_GROUP, 0o777)] {
        volume.set_attributes(ROOT_USER, number, &mode(0o2755)).unwrap();
        volume.set_xattr(ROOT_USER, number, b"system.posix_acl_access", &acl, flags).unwrap();
        let entry = volume.attributes(ROOT_USER, number, None).unwrap();
        assert_eq!(entry.attr.mode, after);
        assert_eq!(entry.valid.is_zero(), after & 0o6000 != 0, "set-id bits may go by any write");
    }
    close(&volume, (number, handle));
    volume.close().unwrap();
}

#[test]
fn times_are_those_of_the_changes_after_a_crash_too() {
    let place = Place::new();
    let volume = mount(&place, options());
    let file = create(&volume, ROOT, b"file");
    volume.destage_all().unwrap();
    write(&volume, file, 0, b"written");
    let other = create(&volume, ROOT, b"other");
    volume.rename(ROOT_USER, (ROOT, b"other"), (ROOT, b"renamed"), RenameFlags::empty()).unwrap();
    let times = |volume: &LiveVolume| {
        [ROOT, file.0, other.0].map(|number| {
            let attr = volume.attributes(ROOT_USER, number, None).unwrap().attr;
            (attr.mtime, attr.ctime)
        })
    };
    let before = times(&volume);
    drop(volume);
    std::thread::sleep(Duration::from_millis(20));
    let volume = mount(&place, options());
    assert_eq!(times(&volume), before);
    volume.close().unwrap();
    drop(volume);
    let volume = mount(&place, options());
    assert_eq!(times(&volume), before);
}

#[test]
fn a_snapshot_has_all_that_was_written_before_it_and_nothing_after() {
    let place = Place::new();
    let volume = Arc::new(mount(&place, options()));
    let files = [create(&volume, ROOT, b"one"), create(&volume, ROOT, b"two")];
    let stop = Arc::new(AtomicBool::new(false));
    let (writing, ended) = (Arc::clone(&volume), Arc::clone(&stop));
    // A reader that sees a number in `two` must find it in `one`; and `one` is at most one ahead.
    let writer = std::thread::spawn(move || {
        let mut count = 0_u64;
        while !ended.load(Ordering::Relaxed) {
            count += 1;
            files.iter().for_each(|file| write(&writing, *file, 0, &count.to_le_bytes()));
            let name = format!("name-{count}");
            writing.rename(ROOT_USER, (ROOT, b"one"), (ROOT, name.as_bytes()), RenameFlags::empty()).unwrap();
            writing.rename(ROOT_USER, (ROOT, name.as_bytes()), (ROOT, b"one"), RenameFlags::empty()).unwrap();
        }
        count
    });
    for round in 0..20 {
        std::thread::sleep(Duration::from_millis(20));
        let name = format!("moment-{round}");
        let paused = volume.pause().unwrap();
        outrigger_store::ops::snapshots::create(&place.open(), Some(&name), "x", &[]).unwrap();
        drop(paused);
    }
    stop.store(true, Ordering::Relaxed);
    let count = writer.join().unwrap();
    assert!(count > 20, "writers went on: {count}");
    let mut last = 0;
    for round in 0..20 {
        let store = place.open();
        let view = View::open(&store, "test", Some(&format!("moment-{round}"))).unwrap();
        let number = |name: &[u8]| {
            let row = store.meta.lookup(view.at, ROOT, name).unwrap()?;
            let mut bytes = Vec::new();
            let reader = outrigger_store::read::Reader::new(&store);
            let read = &mut |part: &[u8]| {
                bytes.extend_from_slice(part);
                Ok(())
            };
            reader.read(&row.root, 0, 8, read).unwrap();
            Some(u64::from_le_bytes(bytes.try_into().unwrap()))
        };
        // It may be under its other name.
        let two = number(b"two").unwrap();
        let one =
            number(b"one").or_else(|| (two..=two + 1).find_map(|at| number(format!("name-{at}").as_bytes())));
        let one = one.expect("`one` is under one of its names");
        assert!(one == two || one == two + 1, "{one} and {two} in snapshot {round}");
        assert!(two >= last, "time goes forward");
        last = two;
    }
}

#[test]
fn writers_wait_for_room_and_lose_nothing() {
    let place = Place::new();
    let volume = Arc::new(mount(&place, options()));
    let writers: Vec<_> = (0..4_u64)
        .map(|seed| {
            let volume = Arc::clone(&volume);
            std::thread::spawn(move || {
                let file = create(&volume, ROOT, format!("file-{seed}").as_bytes());
                for (at, part) in random(seed, 12 << 20).chunks(128 << 10).enumerate() {
                    write(&volume, file, (at as u64) << 17, part);
                }
                close(&volume, file);
            })
        })
        .collect();
    writers.into_iter().for_each(|writer| writer.join().unwrap());
    let mut status = Status::default();
    volume.watch(&mut status);
    assert!(status.destaged_bytes > 0);
    // After a crash, too.
    drop(volume);
    let volume = mount(&place, options());
    for seed in 0..4_u64 {
        let entry = find(&volume, format!("file-{seed}"));
        assert!(read_whole(&volume, &entry, 1 << 20).unwrap() == random(seed, 12 << 20), "file {seed}");
    }
    volume.close().unwrap();
    assert!(!staging_dir(&place.store_dir()).exists(), "nothing is left staged");
}

#[test]
fn what_has_been_idle_is_stored_without_being_asked_for() {
    let place = Place::new();
    let volume = mount(&place, LiveOptions { idle: Duration::from_millis(100), ..options() });
    let file = create(&volume, ROOT, b"file");
    write(&volume, file, 0, b"a few bytes");
    let begun = Instant::now();
    let stored = || {
        let row = place.open().meta.lookup(At::Now, ROOT, b"file").unwrap();
        row.is_some_and(|row| row.root.len() == 11)
    };
    while !stored() {
        assert!(begun.elapsed() < Duration::from_secs(30), "it was not stored");
        std::thread::sleep(Duration::from_millis(20));
    }
    // Reads return the same before and after.
    assert_eq!(read(&volume, file, 100), b"a few bytes");
}

#[test]
fn a_file_rewritten_in_place_is_recognised_and_stays_right() {
    let place = Place::new();
    let volume = mount(&place, options());
    let file = create(&volume, ROOT, b"database");
    let mut expected = random(5, 4 << 20);
    write(&volume, file, 0, &expected);
    volume.destage_all().unwrap();
    let mut rng = Rng::new(6);
    for _ in 0..6 {
        for _ in 0..60 {
            let at = rng.below(1023) as usize * 4096;
            let page = random(rng.below(u64::MAX), 4096);
            write(&volume, file, at as u64, &page);
            expected[at..at + 4096].copy_from_slice(&page);
        }
        volume.destage_all().unwrap();
        assert!(read(&volume, file, expected.len()) == expected);
    }
    let store = place.open();
    let row = store.meta.lookup(At::Now, ROOT, b"database").unwrap().unwrap();
    let mut sizes = Vec::new();
    outrigger_store::read::Reader::new(&store)
        .entries(&row.root, 0, u64::MAX, &mut |_, entry| {
            sizes.push(entry.len());
            Ok(true)
        })
        .unwrap();
    let blocks = sizes.iter().filter(|size| **size == 16 << 10).count();
    assert!(blocks > 80, "what was rewritten is in blocks of 16 KiB: {blocks} of {}", sizes.len());
}

/// A file system of its own, with so many bytes. `None`, with the reason printed, for users who may
/// not mount.
struct Small(std::path::PathBuf);

impl Small {
    fn new(point: std::path::PathBuf, bytes: u64) -> Option<Self> {
        std::fs::create_dir_all(&point).unwrap();
        let options = std::ffi::CString::new(format!("size={bytes}")).unwrap();
        match rustix::mount::mount("none", &point, "tmpfs", MountFlags::empty(), Some(options.as_c_str())) {
            Ok(()) => Some(Self(point)),
            Err(error) => {
                outrigger_workload::skipped!("cannot mount a tmpfs: {error}");
                None
            }
        }
    }

    fn grow(&self, bytes: u64) {
        let options = std::ffi::CString::new(format!("size={bytes}")).unwrap();
        rustix::mount::mount_remount(&self.0, MountFlags::empty(), options.as_c_str()).unwrap();
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.0, UnmountFlags::DETACH);
    }
}

#[test]
fn a_full_disk_is_an_error_to_the_writer_and_nothing_is_lost() {
    let dir = tempfile::tempdir().unwrap();
    let Some(disk) = Small::new(dir.path().join("disk"), 48 << 20) else { return };
    let path = disk.0.join("store");
    outrigger_store::Store::init(&path, &outrigger_store::Profile::Default.config().unwrap()).unwrap();
    let open = || Arc::new(outrigger_store::Store::open(&path, false).unwrap());
    let volume = LiveVolume::open(open(), options(), Reports::new(|_| {})).unwrap();
    let mut kept: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
    let refused = 'full: loop {
        let name = format!("file-{}", kept.len()).into_bytes();
        let new = NewNode { kind: FileKind::File, mode: 0o644, umask: 0, rdev: 0 };
        let file = match volume.create(ROOT_USER, ROOT, &name, new, OpenFlags::RDWR) {
            Ok((entry, opened)) => (entry.attr.number, opened.handle),
            Err(errno) => break errno,
        };
        kept.push((name, Vec::new()));
        for part in random(kept.len() as u64, 2 << 20).chunks(128 << 10) {
            let bytes = &mut kept.last_mut().unwrap().1;
            if let Err(errno) = volume.write(ROOT_USER, file.0, file.1, bytes.len() as u64, part, false) {
                volume.release(file.0, file.1);
                break 'full errno;
            }
            bytes.extend_from_slice(part);
        }
        volume.release(file.0, file.1);
        assert!(kept.len() < 60, "it takes more than there is");
    };
    assert_eq!(refused, Errno::NOSPC);
    let compare = |volume: &LiveVolume, kept: &[(Vec<u8>, Vec<u8>)]| {
        for (name, bytes) in kept {
            let entry = find(volume, std::str::from_utf8(name).unwrap());
            assert!(read_whole(volume, &entry, 1 << 20).unwrap() == *bytes, "{}", name.escape_ascii());
        }
    };
    assert!(kept.len() > 5);
    compare(&volume, &kept);
    // Something can still be removed.
    let (gone, _) = kept.remove(0);
    volume.unlink(ROOT_USER, ROOT, &gone).unwrap();
    // It ends there; the next mount has it all, and goes on when there is room.
    drop(volume);
    let volume = mount_again(|| LiveVolume::open(open(), options(), Reports::new(|_| {})));
    compare(&volume, &kept);
    disk.grow(128 << 20);
    volume.destage_all().unwrap();
    let file = create(&volume, ROOT, b"and on");
    write(&volume, file, 0, &random(99, 9 << 20));
    close(&volume, file);
    compare(&volume, &kept);
    volume.close().unwrap();
    drop(volume);
    let report = check(
        &open(),
        &CheckOptions { read_data: true, repair: false, threads: 1 },
        &CheckProgress::default(),
    );
    assert_eq!(report.unwrap().damaged, 0);
}

/// Keeps packs from being read and made: each of their directories is away, and something else in
/// its place.
struct Vanished(std::path::PathBuf);

impl Vanished {
    const DIRECTORIES: std::ops::Range<u32> = 0..256;

    fn new(place: &Place) -> Self {
        let packs = place.store_dir().join("packs");
        for name in Self::DIRECTORIES.map(|at| format!("{at:02x}")) {
            let _ = std::fs::rename(packs.join(&name), packs.join(format!("away-{name}")));
            std::fs::write(packs.join(&name), "not a directory").unwrap();
        }
        Self(packs)
    }
}

impl Drop for Vanished {
    fn drop(&mut self) {
        for name in Self::DIRECTORIES.map(|at| format!("{at:02x}")) {
            std::fs::remove_file(self.0.join(&name)).unwrap();
            let _ = std::fs::rename(self.0.join(format!("away-{name}")), self.0.join(&name));
        }
    }
}

#[test]
fn a_store_that_cannot_be_reached_is_an_error_until_it_is_back() {
    let place = Place::new();
    let volume = mount(&place, options());
    let files: Vec<_> = (0..4_u64).map(|at| create(&volume, ROOT, format!("file-{at}").as_bytes())).collect();
    let expected = |at: usize| random(at as u64, 1 << 20);
    write(&volume, files[0], 0, &expected(0));
    volume.destage_all().unwrap();
    write(&volume, files[1], 0, &expected(1));
    let vanished = Vanished::new(&place);
    // Nothing can be stored. Staged data can be read, and more can be staged until the log is full.
    volume.destage_all().unwrap_err();
    assert!(read(&volume, files[1], 2 << 20) == expected(1));
    let (number, handle) = files[2];
    let mut written = 0;
    let refused = loop {
        assert!(written < 64 << 20, "there is no room for that");
        match volume.write(ROOT_USER, number, handle, written, &random(written, 1 << 20), false) {
            Ok(()) => written += 1 << 20,
            Err(errno) => break errno,
        }
    };
    assert!(refused == Errno::IO || refused == Errno::NOSPC, "{refused:?}");
    drop(vanished);
    volume.destage_all().unwrap();
    write(&volume, files[3], 0, &expected(3));
    volume.destage_all().unwrap();
    for at in [0, 1, 3] {
        assert!(read(&volume, files[at], 2 << 20) == expected(at), "file {at}");
    }
    let bytes = read(&volume, files[2], 64 << 20);
    assert_eq!(bytes.len() as u64, written);
    for (at, part) in (0..).zip(bytes.chunks(1 << 20)) {
        assert!(part == random(at << 20, 1 << 20), "MiB {at}");
    }
    files.into_iter().for_each(|file| close(&volume, file));
    volume.close().unwrap();
    drop(volume);
    let options = CheckOptions { read_data: true, repair: false, threads: 1 };
    assert_eq!(check(&place.open(), &options, &CheckProgress::default()).unwrap().damaged, 0);
}

#[test]
fn what_nobody_may_change_says_so() {
    let place = Place::new();
    let volume = mount(&place, options());
    let (number, handle) = create(&volume, ROOT, b"file");
    volume.release(number, handle);
    let reading = volume.open(ROOT_USER, number, OFlags::RDONLY).unwrap().handle;
    assert_eq!(volume.write(ROOT_USER, number, reading, 0, b"x", false), Err(Errno::BADF));
    assert_eq!(read_part(&volume, number, &[(0, 10)]).unwrap(), [b""]);
    let caller = Caller { uid: 1, gid: 1, pid: 1 };
    assert_eq!(volume.unlink(caller, ROOT, b"nothing"), Err(Errno::NOENT));
}

#[test]
fn one_mount_at_a_time_and_not_on_a_mount_of_ones_own() {
    let place = Place::new();
    let volume = mount(&place, options());
    let second = LiveVolume::open(Arc::new(place.open()), options(), Reports::new(|_| {}));
    assert_eq!(second.err().map(|error| error.kind()), Some(outrigger_store::ErrorKind::Busy));
    volume.close().unwrap();
}

#[test]
fn what_is_in_snapshots_gives_no_rights_where_the_kernel_would_honour_them() {
    for tame in [false, true] {
        let place = Place::new();
        let volume = mount(&place, LiveOptions { tame_snapshots: tame, ..options() });
        let make = |name: &[u8], kind, mode, rdev| {
            let new = NewNode { kind, mode, umask: 0, rdev };
            volume.make(ROOT_USER, ROOT, name, new).unwrap().attr.number
        };
        let program = make(b"program", FileKind::File, 0o6755, 0);
        make(b"disk", FileKind::BlockDevice, 0o600, 0x801);
        make(b"shared", FileKind::Directory, 0o3775, 0);
        for name in [b"security.capability".as_slice(), b"user.note"] {
            volume.set_xattr(ROOT_USER, program, name, b"value", XattrFlags::empty()).unwrap();
        }
        let paused = volume.pause().unwrap();
        outrigger_store::ops::snapshots::create(&place.open(), Some("before"), "x", &[]).unwrap();
        drop(paused);
        let seen = |at: &str| {
            let attr = |name: &str| find(&volume, format!("{at}{name}")).attr;
            let program = attr("program").number;
            let capability = volume.xattr(ROOT_USER, program, b"security.capability");
            let names = volume.xattrs(ROOT_USER, program).unwrap();
            (attr("program").mode, attr("disk").rdev, attr("shared").mode, capability.is_ok(), names.len())
        };
        let whole = (0o6755, 0x801, 0o3775, true, 2);
        assert_eq!(seen(""), whole);
        assert_eq!(seen(".snapshots/before/"), if tame { (0o755, 0, 0o3775, false, 1) } else { whole });
    }
}
