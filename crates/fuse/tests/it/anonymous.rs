//! Files without a name (`O_TMPFILE`), and their first one.

use crate::support;

use outrigger_format::catalogue::FileKind;
use outrigger_fuse::fs::{FileSystem, Found, Handle, NewNode, OpenFlags, ROOT, SetAttr};
use outrigger_fuse::live::LiveVolume;
use rustix::fs::XattrFlags;
use rustix::io::Errno;
use support::volume::{close, create, mount, options, random, read, reclaim, write};
use support::{Place, ROOT_USER};

fn anonymous(volume: &LiveVolume) -> (u64, Handle) {
    let new = NewNode { kind: FileKind::File, mode: 0o666, umask: 0o022, rdev: 0 };
    let (entry, opened) = volume.create_anonymous(ROOT_USER, ROOT, new, OpenFlags::RDWR).unwrap();
    assert_eq!((entry.attr.links, entry.attr.mode), (0, 0o644));
    (entry.attr.number, opened.handle)
}

/// The bytes of `name`, or nothing, in the mount after a crash or a clean end.
fn after(place: &Place, volume: LiveVolume, crash: bool, name: &str) -> Option<Vec<u8>> {
    if !crash {
        volume.close().unwrap();
    }
    drop(volume);
    let volume = mount(place, options());
    // Nothing that it needs may be taken for garbage.
    reclaim(place);
    let found = volume.lookup(ROOT_USER, ROOT, name.as_bytes()).unwrap();
    let bytes = if let Found::Entry(entry) = found {
        let handle = volume.open(ROOT_USER, entry.attr.number, OpenFlags::RDONLY).unwrap().handle;
        let bytes = read(&volume, (entry.attr.number, handle), 1 << 30);
        volume.release(entry.attr.number, handle);
        Some(bytes)
    } else {
        None
    };
    volume.close().unwrap();
    assert_eq!(place.open().meta.holders().unwrap(), [""; 0]);
    bytes
}

#[test]
fn what_is_staged_stored_or_both_is_there_once_it_was_linked_and_not_before() {
    // Bytes that are stored before it is linked, bytes that are only staged, and whether the mount
    // is killed.
    for (stored, staged, linked, crash) in [
        (0, 0, true, true),
        (0, 300_000, true, true),
        (3 << 20, 0, true, true),
        (3 << 20, 300_000, true, true),
        // More than new records may repeat: it is stored first.
        (0, 5 << 20, true, true),
        (12 << 20, 200_000, true, false),
        (3 << 20, 300_000, false, true),
        (3 << 20, 300_000, false, false),
    ] {
        let place = Place::new();
        let volume = mount(&place, options());
        let file = anonymous(&volume);
        let mut expected = random(5, stored);
        for (at, part) in expected.chunks(1 << 20).enumerate() {
            write(&volume, file, (at << 20) as u64, part);
        }
        if stored > 0 {
            // An anonymous file is stored only for want of room.
            let other = create(&volume, ROOT, b"other");
            for at in 0..8 {
                write(&volume, other, at << 20, &random(at, 1 << 20));
            }
            volume.destage_all().unwrap();
            close(&volume, other);
        }
        // A hole, and bytes that overwrite what is stored.
        let more = random(6, staged);
        for (at, part) in more.chunks(1 << 20).enumerate() {
            write(&volume, file, (stored / 2 + (at << 20)) as u64, part);
        }
        expected.resize(expected.len().max(stored / 2 + staged), 0);
        expected[stored / 2..stored / 2 + staged].copy_from_slice(&more);
        let len = expected.len() as u64 + 70_000;
        let set = SetAttr { size: Some(len), mode: Some(0o600), ..SetAttr::default() };
        volume.set_attributes(ROOT_USER, file.0, &set).unwrap();
        volume.set_xattr(ROOT_USER, file.0, b"user.kept", b"yes", XattrFlags::empty()).unwrap();
        expected.resize(len as usize, 0);
        reclaim(&place);
        if linked {
            let entry = volume.link(ROOT_USER, file.0, ROOT, b"named").unwrap();
            assert_eq!((entry.attr.links, entry.attr.size, entry.attr.mode), (1, len, 0o600));
            assert_eq!(volume.xattr(ROOT_USER, file.0, b"user.kept").unwrap(), b"yes");
        }
        assert!(read(&volume, file, expected.len() + 1) == expected);
        if !crash {
            close(&volume, file);
            volume.forget(file.0, if linked { 2 } else { 1 });
        }
        let found = after(&place, volume, crash, "named");
        assert!(found == linked.then_some(expected), "{stored} {staged} {linked} {crash}");
    }
}

#[test]
fn it_is_an_ordinary_file_from_then_on() {
    let place = Place::new();
    let volume = mount(&place, options());
    let file = anonymous(&volume);
    write(&volume, file, 0, b"before");
    assert_eq!(volume.link(ROOT_USER, file.0, ROOT, b"").unwrap_err(), Errno::NOENT);
    close(&volume, create(&volume, ROOT, b"taken"));
    assert_eq!(volume.link(ROOT_USER, file.0, ROOT, b"taken").unwrap_err(), Errno::EXIST);
    volume.link(ROOT_USER, file.0, ROOT, b"one").unwrap();
    volume.destage_all().unwrap();
    write(&volume, file, 6, b" and after");
    assert_eq!(volume.link(ROOT_USER, file.0, ROOT, b"two").unwrap().attr.links, 2);
    volume.destage_all().unwrap();
    for name in [&b"one"[..], b"two"] {
        volume.unlink(ROOT_USER, ROOT, name).unwrap();
    }
    // It has had names: it is on its way out.
    assert_eq!(volume.link(ROOT_USER, file.0, ROOT, b"three").unwrap_err(), Errno::NOENT);
    assert_eq!(read(&volume, file, 100), b"before and after");
    close(&volume, file);
    volume.forget(file.0, 3);
    assert_eq!(after(&place, volume, false, "one"), None);
}

#[test]
fn one_that_was_never_linked_leaves_nothing() {
    let place = Place::new();
    let volume = mount(&place, options());
    let file = anonymous(&volume);
    for at in 0..20 {
        write(&volume, file, at << 20, &random(at, 1 << 20));
    }
    close(&volume, file);
    volume.forget(file.0, 1);
    assert_eq!(after(&place, volume, false, "named"), None);
    reclaim(&place);
    let left: u64 = place.open().meta.packs().unwrap().iter().map(|pack| pack.bytes).sum();
    assert!(left < 1 << 20, "{left} bytes are still stored");
}
