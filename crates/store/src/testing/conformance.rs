//! The rules for every pack backend, as one function that tests all of them alike.

use std::io::IoSlice;

use outrigger_format::PackId;

use crate::backend::{Backend, KEYS_DIR, PackWriter, TEXT_MAX};
use crate::error::{Error, ErrorKind};

/// Lengths around which implementations change their ways: sectors, pages, and the local writer's 4
/// MiB stage.
const LENGTHS: [usize; 13] = [
    0,
    1,
    511,
    512,
    4095,
    4096,
    4097,
    100_000,
    (4 << 20) - 1,
    4 << 20,
    (4 << 20) + 1,
    (4 << 20) + 4096,
    (8 << 20) + 12_345,
];

/// Bytes that differ from place to place and from pack to pack.
fn pattern(id: u64, len: usize) -> Vec<u8> {
    let mut state = id;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        bytes.extend_from_slice(&(state ^ (state >> 29)).to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// Runs everything against `backend`, which must be empty, and leaves it empty.
///
/// # Panics
/// When the backend does not conform.
pub fn backend(backend: &dyn Backend) {
    assert_eq!(backend.list().unwrap(), []);
    written_is_read(backend);
    names(backend);
    parity(backend);
    concurrently(backend);
    unseen(backend);
    texts(backend);
    claims(backend);
    assert_eq!(backend.list().unwrap(), []);
}

fn written_is_read(backend: &dyn Backend) {
    for (number, len) in LENGTHS.into_iter().enumerate() {
        let id = PackId(1 + 0x1_0101 * number as u64);
        let bytes = pattern(id.0, len);
        let mut writer = backend.create(id).unwrap();
        // Appends of growing and uneven sizes, some of several parts, some of them empty.
        let (mut rest, mut step) = (&bytes[..], 1);
        while !rest.is_empty() {
            let (now, later) = rest.split_at(rest.len().min(step));
            let (head, tail) = now.split_at(now.len() / 3);
            writer.append(&[IoSlice::new(head), IoSlice::new(&[]), IoSlice::new(tail)]).unwrap();
            (rest, step) = (later, step * 3 + 1);
        }
        writer.append(&[]).unwrap();
        writer.seal().unwrap();

        assert_eq!(backend.len(id).unwrap(), Some(len as u64));
        let mut read = vec![0; len];
        backend.read_at(id, 0, &mut read).unwrap();
        assert!(read == bytes, "{len} bytes are read as they were written");
        for (start, end) in [(len / 2, len), (len / 3, len / 2), (len.saturating_sub(1), len), (len, len)] {
            let mut read = vec![0; end - start];
            backend.read_at(id, start as u64, &mut read).unwrap();
            assert!(read == bytes[start..end], "bytes {start}..{end} of {len}");
        }
        for (start, wanted) in [(0, len + 1), (len, 1), (len + 1, 1), (len + 10_000_000, 5)] {
            let error = backend.read_at(id, start as u64, &mut vec![0; wanted]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Damaged, "{error}");
            assert!(error.to_string().contains(&id.to_string()), "the pack is named: {error}");
            assert!(error.to_string().contains(&start.to_string()), "the offset is named: {error}");
        }
    }
    let ids = backend.list().unwrap();
    assert_eq!(ids.len(), LENGTHS.len());
    assert!(ids.is_sorted());
    for id in ids {
        backend.remove(id).unwrap();
    }
}

/// Parity files are like packs, but lie beside them.
fn parity(backend: &dyn Backend) {
    let ids = [PackId::of_parity(5, 1), PackId::of_parity(0x1234_5678, 0)];
    for id in ids {
        let mut writer = backend.create(id).unwrap();
        writer.append(&[IoSlice::new(&pattern(id.0, 100_000))]).unwrap();
        writer.seal().unwrap();
    }
    assert_eq!((backend.list_parity().unwrap(), backend.list().unwrap()), (ids.to_vec(), vec![]));
    let mut read = vec![0; 100_000];
    backend.read_at(ids[1], 0, &mut read).unwrap();
    assert!(read == pattern(ids[1].0, 100_000));
    assert_eq!(backend.create(ids[0]).and_then(PackWriter::seal).unwrap_err().kind(), ErrorKind::Exists);
    backend.set_aside(ids[0]).unwrap();
    backend.remove(ids[1]).unwrap();
    assert_eq!((backend.list_parity().unwrap(), backend.len(ids[0]).unwrap()), (vec![], None));
}

/// For engines that can hide a pack until it is whole.
fn unseen(backend: &dyn Backend) {
    let id = PackId(0x1_0005);
    let Some(mut writer) = backend.create_unseen(id).unwrap() else { return };
    let is_there = || (backend.len(id).unwrap().is_some(), backend.list().unwrap().contains(&id));
    writer.append(&[IoSlice::new(&pattern(1, 5 << 20))]).unwrap();
    assert_eq!(is_there(), (false, false));
    let error = backend.read_at(id, 0, &mut [0; 4]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    drop(writer);
    let write = |bytes: &[u8]| {
        let mut writer = backend.create_unseen(id)?.expect("it has a way");
        writer.append(&[IoSlice::new(bytes)])?;
        Ok::<_, crate::error::Error>(writer)
    };
    let bytes = pattern(2, 5 << 20);
    let writer = write(&bytes).unwrap();
    assert_eq!(is_there(), (false, false), "nothing is left of the first one");
    writer.seal().unwrap();
    assert_eq!(is_there(), (true, true));
    let mut read = vec![0; bytes.len()];
    backend.read_at(id, 0, &mut read).unwrap();
    assert!(read == bytes);
    let refused = write(b"again").and_then(PackWriter::seal).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Exists, "{refused}");
    backend.remove(id).unwrap();
    // Nor over one that came meanwhile.
    let late = write(b"late").unwrap();
    backend.create(id).unwrap().seal().unwrap();
    assert_eq!(late.seal().unwrap_err().kind(), ErrorKind::Exists);
    backend.remove(id).unwrap();
    // Forgetting a writer stands for killing it.
    std::mem::forget(write(b"killed").unwrap());
    assert_eq!(is_there(), (false, false));
    backend.clear_unseen().unwrap();
    drop(write(b"not refused").unwrap());
    assert_eq!(is_there(), (false, false));
}

fn names(backend: &dyn Backend) {
    let missing = PackId(77);
    assert_eq!(backend.len(missing).unwrap(), None);
    backend.remove(missing).unwrap();
    let error = backend.read_at(missing, 0, &mut [0; 4]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");

    // Ids are never used twice, neither those of sealed packs nor those of packs being written. The
    // second writer is refused when it begins, or at the latest when it seals, and the first one's
    // pack stays.
    for id in [PackId(1), PackId::MAX] {
        let mut first = backend.create(id).unwrap();
        first.append(&[IoSlice::new(b"first")]).unwrap();
        let second = backend.create(id).and_then(|mut second| {
            second.append(&[IoSlice::new(b"second")])?;
            Ok(second)
        });
        first.seal().unwrap();
        let refused = second.and_then(PackWriter::seal).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Exists, "{refused}");
        assert_eq!(backend.create(id).err().map(|error| error.kind()), Some(ErrorKind::Exists));
        assert_eq!(backend.len(id).unwrap(), Some(5));
        let mut bytes = [0; 5];
        backend.read_at(id, 0, &mut bytes).unwrap();
        assert_eq!(&bytes, b"first");
    }

    // A writer dropped unsealed may leave its pack behind: it is listed then, and swept like any
    // other.
    let mut writer = backend.create(PackId(0x100)).unwrap();
    writer.append(&[IoSlice::new(b"unfinished")]).unwrap();
    drop(writer);
    let listed = backend.list().unwrap();
    let left = backend.len(PackId(0x100)).unwrap().is_some();
    assert_eq!(listed.contains(&PackId(0x100)), left);
    assert!(listed.len() == 2 + usize::from(left), "{listed:?}");

    // One that was finished is uploading: sealing waits for it.
    let mut writer = backend.create(PackId(0x101)).unwrap();
    writer.append(&[IoSlice::new(b"finished")]).unwrap();
    writer.finish().unwrap();
    writer.seal().unwrap();
    assert_eq!(backend.len(PackId(0x101)).unwrap(), Some(8));

    // The end of a pack, and its length, in one.
    for (max, wanted) in [(4, &b"shed"[..]), (8, b"finished"), (100, b"finished")] {
        assert_eq!(backend.read_end(PackId(0x101), max).unwrap(), Some((wanted.to_vec(), 8)), "{max}");
    }
    assert_eq!(backend.read_end(missing, 4).unwrap(), None);

    // A pack that was set aside is no longer there.
    backend.set_aside(PackId(0x101)).unwrap();
    backend.set_aside(missing).unwrap();
    assert_eq!(backend.len(PackId(0x101)).unwrap(), None);
    assert!(!backend.list().unwrap().contains(&PackId(0x101)));

    // A pack that was read before it was removed is gone all the same.
    let mut writer = backend.create(PackId(0x200)).unwrap();
    writer.append(&[IoSlice::new(b"short-lived")]).unwrap();
    writer.seal().unwrap();
    backend.read_at(PackId(0x200), 0, &mut [0; 11]).unwrap();
    backend.remove(PackId(0x200)).unwrap();
    let error = backend.read_at(PackId(0x200), 0, &mut [0; 11]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");

    for id in [PackId(1), PackId(0x100), PackId::MAX] {
        backend.remove(id).unwrap();
    }
}

/// Small texts beside the packs, which no list of packs has.
fn texts(backend: &dyn Backend) {
    assert_eq!(backend.texts(KEYS_DIR).unwrap(), [""; 0]);
    assert_eq!(backend.text("keys/a").unwrap(), None);
    let longest = "ä".repeat(TEXT_MAX / 2);
    let all = [("b-2", "two\n"), ("a.1", ""), ("0000000000000001.pack", &longest)];
    for (name, text) in all {
        backend.put_text(&format!("keys/{name}"), text).unwrap();
    }
    assert_eq!(backend.texts(KEYS_DIR).unwrap(), ["0000000000000001.pack", "a.1", "b-2"]);
    for (name, text) in all {
        let name = format!("keys/{name}");
        for again in [text, "another"] {
            let refused = backend.put_text(&name, again).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Exists, "{refused}");
            assert!(refused.to_string().contains(name.rsplit('/').next().unwrap()), "{refused}");
        }
        assert!(backend.text(&name).unwrap().as_deref() == Some(text), "{name} is as it was written");
    }
    assert_eq!(backend.list().unwrap(), []);
    assert_eq!(backend.len(PackId(1)).unwrap(), None);
    backend.create(PackId(2)).unwrap().seal().unwrap();
    assert_eq!(backend.texts(KEYS_DIR).unwrap().len(), 3, "nor is a pack a text");
    backend.remove(PackId(2)).unwrap();

    for _ in 0..2 {
        backend.remove_text("keys/a.1").unwrap();
    }
    assert_eq!(backend.texts(KEYS_DIR).unwrap(), ["0000000000000001.pack", "b-2"]);
    assert_eq!(backend.text("keys/a.1").unwrap(), None);
    backend.put_text("keys/a.1", "anew").unwrap();
    assert_eq!(backend.text("keys/a.1").unwrap().as_deref(), Some("anew"));

    let invalid = |done: Result<(), Error>| assert_eq!(done.unwrap_err().kind(), ErrorKind::Invalid);
    for name in ["", "meta.db", "keys", "keys/", "keys/.a", "keys/a/b", "keys/../a", "packs/a", "/keys/a"] {
        invalid(backend.put_text(name, "text"));
        invalid(backend.text(name).map(drop));
        invalid(backend.remove_text(name));
    }
    for folder in ["", ".", "packs", "keys/"] {
        invalid(backend.texts(folder).map(drop));
    }
    invalid(backend.put_text("keys/long", &"x".repeat(TEXT_MAX + 1)));
    invalid(backend.remove_text("store.toml"));
    texts_at_once(backend);
    for name in backend.texts(KEYS_DIR).unwrap() {
        backend.remove_text(&format!("keys/{name}")).unwrap();
    }
    assert_eq!(backend.texts(KEYS_DIR).unwrap(), [""; 0]);
}

/// Of several that put a text under one name, one succeeds, and its text is there.
fn texts_at_once(backend: &dyn Backend) {
    let put = |thread: usize| backend.put_text("keys/raced", &format!("of {thread}"));
    let done: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|thread| scope.spawn(move || put(thread))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let there = backend.text("keys/raced").unwrap();
    for (thread, done) in done.into_iter().enumerate() {
        match done {
            Ok(()) => assert_eq!(there.as_deref(), Some(&*format!("of {thread}"))),
            Err(error) => assert_eq!(error.kind(), ErrorKind::Exists, "{error}"),
        }
    }
    assert!(there.is_some());
}

/// Packs belong to one store, once and for all.
fn claims(backend: &dyn Backend) {
    assert_eq!(backend.claimed().unwrap(), None);
    backend.claim("one").unwrap();
    backend.claim("one").unwrap();
    assert_eq!(backend.claim("another").unwrap_err().kind(), ErrorKind::Exists);
    assert_eq!(backend.claimed().unwrap().as_deref(), Some("one"));
}

/// Packs are written and read by several threads at once.
fn concurrently(backend: &dyn Backend) {
    std::thread::scope(|scope| {
        for thread in 0..4 {
            scope.spawn(move || {
                for number in 0..16 {
                    let id = PackId(1 + thread + 4 * number);
                    let bytes = pattern(id.0, 3000 * number as usize + 1);
                    let mut writer = backend.create(id).unwrap();
                    writer.append(&[IoSlice::new(&bytes)]).unwrap();
                    writer.seal().unwrap();
                    for earlier in (0..=number).map(|number| PackId(1 + thread + 4 * number)) {
                        let mut read = vec![0; backend.len(earlier).unwrap().unwrap() as usize];
                        backend.read_at(earlier, 0, &mut read).unwrap();
                        assert!(read == pattern(earlier.0, read.len()));
                    }
                }
                for id in (0..16).map(|number| PackId(1 + thread + 4 * number)) {
                    backend.remove(id).unwrap();
                }
            });
        }
    });
}
